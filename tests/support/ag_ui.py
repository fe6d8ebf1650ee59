"""A client of AG-UI: it checks the order of the events and applies them to its messages, as those from npm do."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Iterable, Sequence
from contextlib import aclosing
from typing import Any

from ag_ui import core
from pydantic import TypeAdapter

from clew import Session
from clew.ag_ui import run_agent
from tests.support.waiting import PATIENCE_SECONDS

_events: TypeAdapter[core.Event] = TypeAdapter(core.Event)


class AgUiClient:
    """Runs a session, and keeps the messages that the events make.

    Attributes:
        messages: The messages.
        events: The events of the newest run.
    """

    def __init__(self, session: Session, **options: Any) -> None:
        self.messages: list[core.Message] = []
        self.events: list[core.Event] = []
        self._session = session
        self._options = options
        self._numbers = itertools.count(1)

    async def say(self, text: str | list[core.ContentPart], **fields: Any) -> core.Event:
        """Run with a new message; returns the last event."""
        self.messages.append(core.UserMessage(id=f"said-{next(self._numbers)}", content=text))
        return await self.run(**fields)

    async def run(self, stop_after: int | None = None, **fields: Any) -> core.Event:
        """Run with the messages that there are; returns the last event. `stop_after` drops the connection."""
        run = core.RunAgentInput(
            thread_id="thread", run_id=f"run-{next(self._numbers)}", messages=self.messages, **fields
        )
        self.events = []
        # Without what no input has: the client sends JSON.
        sent = core.RunAgentInput.model_validate_json(run.model_dump_json(by_alias=True))
        made = run_agent(self._session, sent, **self._options)
        async with asyncio.timeout(PATIENCE_SECONDS), aclosing(made):
            async for event in made:
                self.events.append(_events.validate_json(event.model_dump_json(by_alias=True)))
                if len(self.events) == stop_after:
                    break
        check_order(self.events, is_complete=stop_after is None)
        self.messages = apply(self.messages, self.events)
        return self.events[-1]

    def list_types(self) -> list[str]:
        """List the types of the events, those in a row of one type once."""
        return [kind for kind, _ in itertools.groupby(event.type.value for event in self.events)]


def check_order(events: Sequence[core.Event], *, is_complete: bool = True) -> None:
    """Check the protocol's order: one run, and each message and call opened and closed before its end."""
    assert isinstance(events[0], core.RunStartedEvent)
    assert all(not isinstance(event, core.RunStartedEvent) for event in events[1:])
    opened: set[tuple[str, str]] = set()
    for event in events:
        name = str(getattr(event, "message_id", None) or getattr(event, "tool_call_id", None))
        kind, _, part = event.type.value.rpartition("_")
        if part == "START":
            assert (kind, name) not in opened
            opened.add((kind, name))
        elif part in ("CONTENT", "ARGS"):
            assert (kind, name) in opened
        elif part == "END":
            opened.remove((kind, name))
    if is_complete:
        assert not opened
        assert isinstance(events[-1], core.RunFinishedEvent | core.RunErrorEvent)
        ends = [event for event in events if isinstance(event, core.RunFinishedEvent | core.RunErrorEvent)]
        assert len(ends) == 1


def _add_metadata(to: Any, event: core.BaseEvent) -> None:
    if event.metadata:
        to.metadata = {**(to.metadata or {}), **event.metadata}


def apply(messages: Iterable[core.Message], events: Iterable[core.Event]) -> list[core.Message]:
    """Apply events to messages."""
    known: dict[str, Any] = {message.id: message.model_copy(deep=True) for message in messages}
    calls: dict[str, core.ToolCall] = {}
    for event in events:
        match event:
            case core.MessagesSnapshotEvent():
                kept = {message.id: message.model_copy(deep=True) for message in event.messages}
                known = {name: kept.pop(name) for name in known if name in kept} | kept
            case core.TextMessageStartEvent() if event.message_id not in known:
                make: Any = core.UserMessage if event.role == "user" else core.AssistantMessage
                known[event.message_id] = make(id=event.message_id, content="")
            case core.ReasoningMessageStartEvent() if event.message_id not in known:
                known[event.message_id] = core.ReasoningMessage(id=event.message_id, content="")
            case core.TextMessageContentEvent() | core.ReasoningMessageContentEvent():
                known[event.message_id].content = (known[event.message_id].content or "") + event.delta
            case core.TextMessageEndEvent():
                _add_metadata(known[event.message_id], event)
            case core.ToolCallStartEvent():
                function = core.FunctionCall(name=event.tool_call_name, arguments="")
                calls[event.tool_call_id] = call = core.ToolCall(id=event.tool_call_id, function=function)
                _add_metadata(call, event)
                parent = event.parent_message_id or event.tool_call_id
                message = known.setdefault(parent, core.AssistantMessage(id=parent))
                message.tool_calls = [*(message.tool_calls or ()), call]
            case core.ToolCallArgsEvent():
                calls[event.tool_call_id].function.arguments += event.delta
            case core.ToolCallResultEvent():
                assert event.message_id not in known
                known[event.message_id] = core.ToolMessage(
                    id=event.message_id, tool_call_id=event.tool_call_id, content=event.content
                )
    return list(known.values())
