"""Make the events of an AG-UI run from those of a request. Pure.

The messages of a client's input say what the client has, and a run sends what it lacks.
"""

from __future__ import annotations

from collections.abc import AsyncIterable, Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from ag_ui.core import (
    AssistantMessage,
    BaseEvent,
    CustomEvent,
    FunctionCall,
    Message,
    MessagesSnapshotEvent,
    ReasoningEndEvent,
    ReasoningMessage,
    ReasoningMessageContentEvent,
    ReasoningMessageEndEvent,
    ReasoningMessageStartEvent,
    ReasoningStartEvent,
    RunAgentInput,
    TextMessageContentEvent,
    TextMessageEndEvent,
    TextMessageStartEvent,
    ToolCall,
    ToolCallArgsEvent,
    ToolCallEndEvent,
    ToolCallResultEvent,
    ToolCallStartEvent,
    ToolMessage,
    UserMessage,
)
from pydantic_core import to_json

from clew.ag_ui.ag_ui_parts import BlobUrl, convert_content, convert_part
from clew.session.events import (
    Change,
    EntryCommitted,
    LiveTurn,
    Retrying,
    SubagentWaiting,
    TextAdded,
    ThinkingAdded,
    ToolProgressed,
    Voided,
)
from clew.session.events.turn import Growing
from clew_workflows.contract import messages, payloads
from clew_workflows.contract.content import list_media
from clew_workflows.thread.entries import Entry

CUSTOM_PREFIX = "clew."
"""What the names of custom events begin with, and the keys of metadata. The type of the session's event follows."""
_RUN_BY_PROVIDER = {f"{CUSTOM_PREFIX}run_by": "provider"}
"""The metadata of a call that the provider ran itself."""


# Messages of AG-UI: those of a thread, and those that a client sends.


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


_PROVIDER_CALL = "-provider-"
"""In the id of a call that the provider ran itself, between the model call and the number."""


def convert_provider_calls(name: str, reply: payloads.AssistantMessage) -> list[tuple[ToolCall, ToolMessage]]:
    """Convert the calls of tools that the provider ran itself, each with its result: its output and its sources."""
    converted = []
    for number, call in enumerate(reply.provider_calls or (), 1):
        arguments = {"input": call["input"]} if "input" in call else {}
        function = FunctionCall(name=call["tool"], arguments=to_json(arguments).decode())
        made = ToolCall(id=f"{name}{_PROVIDER_CALL}{number}", function=function, metadata=_RUN_BY_PROVIDER)
        result = {key: value for key, value in call.items() if key not in ("tool", "input")}
        content = to_json(result).decode()
        converted.append(
            (
                made,
                ToolMessage(id=f"{made.id}-result", tool_call_id=made.id, content=content, error=call.get("error")),
            )
        )
    return converted


def make_metadata(reply: payloads.AssistantMessage, blob_url: BlobUrl | None = None) -> dict[str, Any] | None:
    """Make the metadata of a reply's message: its citations, and its parts, which the protocol has no place for.

    None: it has none of them.
    """
    metadata: dict[str, Any] = {f"{CUSTOM_PREFIX}citations": reply.citations} if reply.citations else {}
    if list_media(reply.content):
        parts = [convert_part(part, blob_url) for part in reply.content if not isinstance(part, str)]
        metadata[f"{CUSTOM_PREFIX}parts"] = [part.model_dump(by_alias=True, exclude_none=True) for part in parts]
    return metadata or None


def convert_result(entry: Entry, result: payloads.ToolMessage, blob_url: BlobUrl | None = None) -> ToolMessage:
    """Convert the result of a tool call."""
    return ToolMessage(
        id=name_message(entry),
        tool_call_id=result.tool_call_id,
        content=convert_content(result.content, blob_url),
        error=result.text if result.is_error else None,
    )


def convert_entry(entry: Entry, blob_url: BlobUrl | None = None) -> Iterator[Message]:
    """Convert an entry to the messages that clients show; most kinds of entries have none."""
    name = name_message(entry)
    match entry.body:
        case payloads.UserMessage() as sent:
            yield UserMessage(id=name, content=convert_content(sent.content, blob_url))
        case payloads.ToolMessage() as result:
            yield convert_result(entry, result, blob_url)
        case payloads.AssistantMessage() as reply:
            if reply.thinking:
                yield ReasoningMessage(id=name_reasoning(name), content=reply.thinking)
            provided = convert_provider_calls(name, reply)
            calls = [*(call for call, _ in provided), *map(convert_call, reply.tool_calls or ())]
            if reply.content or calls:
                metadata = make_metadata(reply, blob_url)
                yield AssistantMessage(
                    id=name, content=reply.text or None, tool_calls=calls or None, metadata=metadata
                )
            yield from (result for _, result in provided)


async def convert_thread(entries: AsyncIterable[Entry], blob_url: BlobUrl | None = None) -> list[Message]:
    """Convert a thread. A late result takes the place of the result in doubt."""
    converted: dict[str, Message] = {}
    async for entry in entries:
        for message in convert_entry(entry, blob_url):
            converted[message.id] = message
    return list(converted.values())


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
        if isinstance(message, ToolMessage) and _PROVIDER_CALL not in message.tool_call_id:
            results.append(message)
    return results[::-1]


@dataclass(frozen=True)
class _Form:
    """How a growing message is sent.

    Attributes:
        make: Makes the empty message.
        start: The events that open it.
        add: Makes the event that adds text.
        end: The events that close it.
    """

    make: Callable[[str], Message]
    start: Callable[[str], Sequence[BaseEvent]]
    add: Callable[[str, str], BaseEvent]
    end: Callable[[str], Sequence[BaseEvent]]


def _make_text_form(role: Literal["assistant", "user"], make: Callable[[str], Message]) -> _Form:
    return _Form(
        make=make,
        start=lambda name: [TextMessageStartEvent(message_id=name, role=role)],
        add=lambda name, text: TextMessageContentEvent(message_id=name, delta=text),
        end=lambda name: [TextMessageEndEvent(message_id=name)],
    )


_REPLY = _make_text_form("assistant", lambda name: AssistantMessage(id=name, content=""))
_SENT = _make_text_form("user", lambda name: UserMessage(id=name, content=""))
_REASONING = _Form(
    make=lambda name: ReasoningMessage(id=name, content=""),
    start=lambda name: [ReasoningStartEvent(message_id=name), ReasoningMessageStartEvent(message_id=name)],
    add=lambda name, text: ReasoningMessageContentEvent(message_id=name, delta=text),
    end=lambda name: [ReasoningMessageEndEvent(message_id=name), ReasoningEndEvent(message_id=name)],
)


class RunEvents:
    """Makes the events of one run.

    Args:
        messages: The messages that the client has.
        blob_url: Makes the addresses of blobs; None: they have none.

    Attributes:
        messages: The messages that the client has, as the events so far leave them.
        turn: Folds the events of the request to the changes.
    """

    def __init__(self, messages: Iterable[Message], blob_url: BlobUrl | None = None) -> None:
        self.turn = LiveTurn()
        self._blob_url = blob_url
        # A message that changes is copied then: a client may have tens of thousands.
        self.messages = {message.id: message for message in messages}
        # The message that is open, with its form, and the replies whose entries have not come.
        self._open: tuple[str, _Form] | None = None
        self._growing: set[str] = set()

    def take(self, change: Change) -> Iterator[BaseEvent]:
        """Make the events that a change of the request leads to."""
        match change:
            case TextAdded(call_id=call_id):
                yield from self._grow(call_id, _REPLY, self.turn.text)
            case ThinkingAdded(call_id=call_id):
                yield from self._grow(name_reasoning(call_id), _REASONING, self.turn.thinking)
            case Voided(call_id, text=text, thinking=thinking):
                yield from self._set_texts({call_id: text, name_reasoning(call_id): thinking})
            case ToolProgressed() | Retrying() | SubagentWaiting():
                yield CustomEvent(name=f"{CUSTOM_PREFIX}{change.type}", value=change.as_dict())
            case EntryCommitted(body=payloads.UserMessage() as sent, entry=entry):
                yield from self._take_message(name_message(entry), sent)
            case EntryCommitted(body=payloads.AssistantMessage() as reply, entry=entry):
                yield from self._take_reply(name_message(entry), reply)
            case EntryCommitted(body=payloads.ToolMessage(late=False) as result, entry=entry):
                yield from self._send_result(convert_result(entry, result, self._blob_url), is_error=result.is_error)
            case EntryCommitted(body=payloads.RunPayload()):
                yield from self._drop_unfinished()

    def replace(self, messages: Iterable[Message]) -> Iterator[BaseEvent]:
        """Make the client have other messages."""
        yield from self.close()
        self.messages = {message.id: message.model_copy() for message in messages}
        yield MessagesSnapshotEvent(messages=[message.model_copy() for message in self.messages.values()])

    def close(self, metadata: dict[str, Any] | None = None) -> Iterator[BaseEvent]:
        """Close the message that is open. Clients add `metadata` to the message."""
        if self._open is not None:
            (name, form), self._open = self._open, None
            *events, last = form.end(name)
            yield from (*events, last.model_copy(update={"metadata": metadata}) if metadata else last)

    def _take_message(self, name: str, sent: payloads.UserMessage) -> Iterator[BaseEvent]:
        known = self.messages.get(name)
        if isinstance(known, UserMessage) and not isinstance(known.content, str):
            return  # The client has sent its parts.
        if isinstance(sent.content, str):
            yield from self._complete(name, _SENT, sent.content)
        elif known is None:
            # Events add texts only: a snapshot has parts.
            made = UserMessage(id=name, content=convert_content(sent.content, self._blob_url))
            yield from self.replace([*self.messages.values(), made])

    def _take_reply(self, name: str, reply: payloads.AssistantMessage) -> Iterator[BaseEvent]:
        yield from self._complete(name_reasoning(name), _REASONING, reply.thinking or "")
        yield from self._complete(name, _REPLY, reply.text, make_metadata(reply, self._blob_url))
        provided = convert_provider_calls(name, reply)
        message = self.messages.get(name)
        if not isinstance(message, AssistantMessage):
            message = AssistantMessage(id=name)
        known = message.tool_calls or []
        calls = [*(call for call, _ in provided), *map(convert_call, reply.tool_calls or ())]
        new = [call for call in calls if all(call.id != old.id for old in known)]
        for call in new:
            yield ToolCallStartEvent(
                tool_call_id=call.id,
                tool_call_name=call.function.name,
                parent_message_id=name,
                metadata=call.metadata,
            )
            yield ToolCallArgsEvent(tool_call_id=call.id, delta=call.function.arguments)
            yield ToolCallEndEvent(tool_call_id=call.id)
        if new:
            self.messages[name] = message.model_copy(update={"tool_calls": [*known, *new]})
        for _, result in provided:
            yield from self._send_result(result, is_error=result.error is not None)

    def _send_result(self, made: ToolMessage, *, is_error: bool) -> Iterator[BaseEvent]:
        # The client has it already: it has sent it, or an earlier run has.
        for message in self.messages.values():
            if isinstance(message, ToolMessage) and message.tool_call_id == made.tool_call_id:
                return
        self.messages[made.id] = made
        metadata = {"is_error": True} if is_error else None
        yield ToolCallResultEvent(
            message_id=made.id, tool_call_id=made.tool_call_id, content=made.content, role="tool", metadata=metadata
        )

    def _grow(self, name: str, form: _Form, grown: Growing) -> Iterator[BaseEvent]:
        if not grown.has_gap:
            self._growing.add(name)
            # A heartbeat may be older than what the client has.
            if not self._get_text(name).startswith(grown.text):
                yield from self._show(name, form, grown.text)

    def _complete(
        self, name: str, form: _Form, text: str, metadata: dict[str, Any] | None = None
    ) -> Iterator[BaseEvent]:
        """Send what the client lacks of a text that is complete, and of its metadata."""
        self._growing.discard(name)
        known = self.messages.get(name)
        lacks = metadata if text and (known is None or known.metadata != metadata) else None
        if text != self._get_text(name) or lacks:
            yield from self._show(name, form, text)
        if self._open == (name, form):
            yield from self.close(lacks)
        if lacks:
            self.messages[name] = self.messages[name].model_copy(update={"metadata": lacks})

    def _show(self, name: str, form: _Form, text: str) -> Iterator[BaseEvent]:
        if not text.startswith(self._get_text(name)):
            yield from self._set_texts({name: ""})
        shown = self._get_text(name)
        if self._open != (name, form):
            yield from self.close()
            self._open = (name, form)
            yield from form.start(name)
        if new := text[len(shown) :]:
            yield form.add(name, new)
        message = self.messages.get(name) or form.make(name)
        self.messages[name] = message.model_copy(update={"content": text})

    def _set_texts(self, texts: Mapping[str, str]) -> Iterator[BaseEvent]:
        """Take back the texts of messages but for these. The protocol adds to a text, or replaces all messages."""
        changed = {
            name: self.messages[name].model_copy(update={"content": text})
            for name, text in texts.items()
            if self._get_text(name) not in ("", text)
        }
        if changed:
            yield from self.replace((self.messages | changed).values())

    def _drop_unfinished(self) -> Iterator[BaseEvent]:
        """Take back messages that have no entry."""
        void, self._growing = self._growing & self.messages.keys(), set()
        yield from self.close()
        if void:
            yield from self.replace([message for message in self.messages.values() if message.id not in void])

    def _get_text(self, name: str) -> str:
        content = getattr(self.messages.get(name), "content", None)
        return content if isinstance(content, str) else ""
