"""Make the events of an AG-UI run from those of a request. Pure.

The messages of a client's input say what the client has, and a run sends what it lacks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from ag_ui.core import (
    AssistantMessage,
    BaseEvent,
    CustomEvent,
    Message,
    MessagesSnapshotEvent,
    ReasoningEndEvent,
    ReasoningMessage,
    ReasoningMessageContentEvent,
    ReasoningMessageEndEvent,
    ReasoningMessageStartEvent,
    ReasoningStartEvent,
    TextMessageContentEvent,
    TextMessageEndEvent,
    TextMessageStartEvent,
    ToolCallArgsEvent,
    ToolCallEndEvent,
    ToolCallResultEvent,
    ToolCallStartEvent,
    ToolMessage,
    UserMessage,
)

from clew.ag_ui.messages import convert_call, convert_result, name_message, name_reasoning
from clew.contract import payloads
from clew.session.events import (
    EntryCommitted,
    Restarted,
    Retrying,
    SessionEvent,
    TextAdded,
    ThinkingAdded,
    ToolProgressed,
)
from clew.thread.entries import Entry

CUSTOM_PREFIX = "clew."
"""What the names of custom events begin with; the type of the session's event follows."""


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

    Attributes:
        messages: The messages that the client has, as the events so far leave them.
    """

    def __init__(self, messages: Iterable[Message]) -> None:
        self.messages = {message.id: message.model_copy() for message in messages}
        # The message that is open, with its form.
        self._open: tuple[str, _Form] | None = None
        # The text so far of each growing message, and those whose entry has not come.
        self._texts: dict[str, str] = {}

    def take(self, event: SessionEvent) -> Iterator[BaseEvent]:
        """Make the events that an event of the request leads to."""
        match event:
            case TextAdded():
                yield from self._grow(event.call_id, _REPLY, event)
            case ThinkingAdded():
                yield from self._grow(name_reasoning(event.call_id), _REASONING, event)
            case Restarted():
                yield from self._empty(event.call_id, name_reasoning(event.call_id))
            case ToolProgressed() | Retrying():
                yield CustomEvent(name=f"{CUSTOM_PREFIX}{event.type}", value=event.as_dict())
            case EntryCommitted(entry=entry):
                yield from self._take_entry(entry)

    def replace(self, messages: Iterable[Message]) -> Iterator[BaseEvent]:
        """Make the client have other messages."""
        yield from self.close()
        self.messages = {message.id: message.model_copy() for message in messages}
        yield MessagesSnapshotEvent(messages=[message.model_copy() for message in self.messages.values()])

    def has_call(self, tool_call_id: str) -> bool:
        """Whether the client has the message with a tool call."""
        replies = (message for message in self.messages.values() if isinstance(message, AssistantMessage))
        return any(call.id == tool_call_id for reply in replies for call in reply.tool_calls or ())

    def close(self) -> Iterator[BaseEvent]:
        """Close the message that is open."""
        if self._open is not None:
            (name, form), self._open = self._open, None
            yield from form.end(name)

    def _take_entry(self, entry: Entry) -> Iterator[BaseEvent]:
        match entry.body if entry.kind in ("ai_message", "run") else None:
            case payloads.UserMessage() as sent:
                yield from self._complete(name_message(entry), _SENT, sent.content)
            case payloads.AssistantMessage() as reply:
                yield from self._take_reply(name_message(entry), reply)
            case payloads.ToolMessage() as result if not result.late:
                yield from self._take_result(entry, result)
            case payloads.RunPayload():
                yield from self._drop(self._texts)

    def _take_reply(self, name: str, reply: payloads.AssistantMessage) -> Iterator[BaseEvent]:
        yield from self._complete(name_reasoning(name), _REASONING, reply.thinking or "")
        yield from self._complete(name, _REPLY, reply.content)
        message = self.messages.get(name)
        if not isinstance(message, AssistantMessage):
            message = AssistantMessage(id=name)
        known = message.tool_calls or []
        new = [convert_call(call) for call in reply.tool_calls or () if all(call["id"] != old.id for old in known)]
        for call in new:
            yield ToolCallStartEvent(tool_call_id=call.id, tool_call_name=call.function.name, parent_message_id=name)
            yield ToolCallArgsEvent(tool_call_id=call.id, delta=call.function.arguments)
            yield ToolCallEndEvent(tool_call_id=call.id)
        if new:
            self.messages[name] = message.model_copy(update={"tool_calls": [*known, *new]})

    def _take_result(self, entry: Entry, result: payloads.ToolMessage) -> Iterator[BaseEvent]:
        # The client has it already: it has sent it, or an earlier run has.
        for message in self.messages.values():
            if isinstance(message, ToolMessage) and message.tool_call_id == result.tool_call_id:
                return
        made = convert_result(entry, result)
        self.messages[made.id] = made
        metadata = {"is_error": True} if result.is_error else None
        yield ToolCallResultEvent(
            message_id=made.id, tool_call_id=made.tool_call_id, content=made.content, role="tool", metadata=metadata
        )

    def _grow(self, name: str, form: _Form, added: TextAdded | ThinkingAdded) -> Iterator[BaseEvent]:
        """Send the new part of a text that grows."""
        shown = self._get_text(name)
        text = self._texts.get(name, shown)
        if added.offset > len(text):
            return  # A part is missing: the entry has it.
        self._texts[name] = text = text[: added.offset] + added.text
        if not shown.startswith(text):
            yield from self._show(name, form, text)

    def _complete(self, name: str, form: _Form, text: str) -> Iterator[BaseEvent]:
        """Send what the client lacks of a text that is complete."""
        self._texts.pop(name, None)
        if text != self._get_text(name):
            yield from self._show(name, form, text)
        if self._open == (name, form):
            yield from self.close()

    def _show(self, name: str, form: _Form, text: str) -> Iterator[BaseEvent]:
        shown = self._get_text(name)
        if not text.startswith(shown):
            yield from self._empty(name)
            shown = ""
        if self._open != (name, form):
            yield from self.close()
            self._open = (name, form)
            yield from form.start(name)
        if new := text[len(shown) :]:
            yield form.add(name, new)
        message = self.messages.get(name) or form.make(name)
        self.messages[name] = message.model_copy(update={"content": text})

    def _empty(self, *names: str) -> Iterator[BaseEvent]:
        """Take back the texts of messages. The protocol adds to a text, or replaces all messages."""
        emptied: dict[str, Any] = {"content": ""}
        shown = {name: self.messages[name].model_copy(update=emptied) for name in names if self._get_text(name)}
        for name in names:
            self._texts.pop(name, None)
        if shown:
            yield from self.replace((self.messages | shown).values())

    def _drop(self, names: Iterable[str]) -> Iterator[BaseEvent]:
        """Take back messages that have no entry."""
        void = {name for name in names if name in self.messages}
        self._texts = {}
        yield from self.close()
        if void:
            yield from self.replace([message for message in self.messages.values() if message.id not in void])

    def _get_text(self, name: str) -> str:
        content = getattr(self.messages.get(name), "content", None)
        return content if isinstance(content, str) else ""
