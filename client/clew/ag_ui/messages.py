"""Messages of AG-UI: those of a thread, and those that a client sends."""

from __future__ import annotations

from collections.abc import AsyncIterable, Iterator, Sequence

from ag_ui.core import (
    AssistantMessage,
    FunctionCall,
    Message,
    ReasoningMessage,
    RunAgentInput,
    TextPart,
    ToolCall,
    ToolMessage,
    UserMessage,
)
from pydantic_core import to_json

from clew.contract import payloads
from clew.errors import InvalidInput
from clew.model import messages
from clew.thread.entries import Entry


def name_message(entry: Entry) -> str:
    """Name the message of an entry: a user's by the id that its sender chose, a reply by its model call."""
    match entry.body:
        case payloads.UserMessage() as sent:
            return sent.input_id or entry.refs.get("request_id") or entry.id
        case payloads.ToolMessage() as result:
            return f"{result.tool_call_id}-result"
    return entry.refs.get("call_id") or entry.id


def name_reasoning(call_id: str) -> str:
    """Name the message with the reasoning of a model call."""
    return f"{call_id}-reasoning"


def convert_call(call: messages.ToolCall) -> ToolCall:
    """Convert a tool call."""
    function = FunctionCall(name=call["name"], arguments=to_json(call["arguments"]).decode())
    return ToolCall(id=call["id"], function=function)


def convert_result(entry: Entry, result: payloads.ToolMessage) -> ToolMessage:
    """Convert the result of a tool call."""
    return ToolMessage(
        id=name_message(entry),
        tool_call_id=result.tool_call_id,
        content=result.content,
        error=result.content if result.is_error else None,
    )


def convert_entry(entry: Entry) -> Iterator[Message]:
    """Convert an entry to the messages that clients show; most kinds of entries have none."""
    name = name_message(entry)
    match entry.body:
        case payloads.UserMessage() as sent:
            yield UserMessage(id=name, content=sent.content)
        case payloads.ToolMessage() as result:
            yield convert_result(entry, result)
        case payloads.AssistantMessage() as reply:
            if reply.thinking:
                yield ReasoningMessage(id=name_reasoning(name), content=reply.thinking)
            calls = [convert_call(call) for call in reply.tool_calls or ()]
            if reply.content or calls:
                yield AssistantMessage(id=name, content=reply.content or None, tool_calls=calls or None)


async def convert_thread(entries: AsyncIterable[Entry]) -> list[Message]:
    """Convert a thread. A late result takes the place of the result in doubt."""
    converted: dict[str, Message] = {}
    async for entry in entries:
        for message in convert_entry(entry):
            converted[message.id] = message
    return list(converted.values())


def read_text(message: UserMessage) -> str:
    """Read the text of a user's message.

    Raises:
        InvalidInput: It has parts that are not text.
    """
    if isinstance(message.content, str):
        return message.content
    texts = [part.text for part in message.content if isinstance(part, TextPart)]
    if len(texts) < len(message.content):
        raise InvalidInput("a message has parts that are not text: sessions take text only")
    return "\n".join(texts)


def read_result(message: ToolMessage) -> str:
    """Read the text of a result that a client has sent.

    Raises:
        InvalidInput: It has parts that are not text.
    """
    return read_text(UserMessage(id=message.id, content=message.content))


def get_new_message(run: RunAgentInput) -> UserMessage | None:
    """Get the message that the run is to answer: the last one, if it is a user's."""
    newest = run.messages[-1] if run.messages else None
    return newest if isinstance(newest, UserMessage) else None


def list_new_results(run: RunAgentInput) -> Sequence[ToolMessage]:
    """List the tool results after the newest reply: the client has sent them, or repeats those that it got."""
    results: list[ToolMessage] = []
    for message in reversed(run.messages):
        if isinstance(message, AssistantMessage):
            break
        if isinstance(message, ToolMessage):
            results.append(message)
    return results[::-1]
