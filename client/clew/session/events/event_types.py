"""The events that viewers of a session get. `type` tells them apart.

`as_dict` makes a JSON object of each, `to_json` its text, and `to_sse` a server-sent event for a browser.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, Literal

from clew_workflows.contract.payloads import Payload
from clew_workflows.thread.entries import Entry


@dataclass(frozen=True, slots=True, kw_only=True)
class _Event:
    """The base of all events.

    Attributes:
        request_id: The request that it belongs to; None: it belongs to none.
        run_id: The run that it belongs to; None: it belongs to none.
    """

    request_id: str | None = None
    run_id: str | None = None

    @property
    def cursor(self) -> int | None:
        """The `from_seq` of `Session.follow` that continues after this event; None: it is between two entries."""
        return None

    def as_dict(self) -> dict[str, Any]:
        """The event as a JSON object, without absent fields."""
        names = sorted((field.name for field in fields(self)), key=lambda name: name != "type")
        values = {name: getattr(self, name) for name in names}
        return {
            name: value.as_dict() if isinstance(value, Entry) else value
            for name, value in values.items()
            if value is not None
        }

    def to_json(self) -> str:
        """The event as JSON, on one line."""
        return json.dumps(self.as_dict(), ensure_ascii=False, separators=(",", ":"))

    def to_sse(self) -> str:
        """The event as a server-sent event, with its cursor as the id: `Last-Event-ID` has it after a reconnection.

        Source: https://html.spec.whatwg.org/multipage/server-sent-events.html
        """
        cursor = "" if self.cursor is None else f"id: {self.cursor}\n"
        return f"{cursor}data: {self.to_json()}\n\n"


@dataclass(frozen=True, slots=True, kw_only=True)
class EntryCommitted(_Event):
    """An entry of the thread. Following from `seq + 1` continues after it.

    Attributes:
        type: `entry`.
        seq: The entry's seq.
        entry: The entry.
    """

    type: Literal["entry"] = "entry"
    seq: int
    entry: Entry

    @property
    def cursor(self) -> int:
        """The `from_seq` of `Session.follow` that continues after this entry."""
        return self.seq + 1

    @property
    def body(self) -> Payload | None:
        """The entry's payload; None: it is of a later release."""
        try:
            return self.entry.body
        except ValueError:
            return None

    @property
    def call_id(self) -> str:
        """The model call that the entry is of; for an entry of none, the entry's own id."""
        return self.entry.refs.get("call_id") or self.entry.id


@dataclass(frozen=True, slots=True, kw_only=True)
class TextAdded(_Event):
    """More text of a reply. All texts of a reply together are the content of its entry, which follows them.

    Attributes:
        type: `text`.
        call_id: The model call.
        attempt: The attempt that writes the reply.
        offset: Characters of the reply before `text`. It is the length of the text so far, unless the viewer was
            slow, or the text so far is replaced: then only its first `offset` characters stay.
        text: The characters that follow.
    """

    type: Literal["text"] = "text"
    call_id: str
    attempt: int
    offset: int
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ThinkingAdded(_Event):
    """More of the model's reasoning, if the provider sends it.

    Attributes:
        type: `thinking`.
        call_id: The model call.
        attempt: The attempt that writes the reply.
        offset: Characters of the reasoning before `text`, as in `TextAdded`.
        text: The characters that follow.
    """

    type: Literal["thinking"] = "thinking"
    call_id: str
    attempt: int
    offset: int
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolStarted(_Event):
    """A tool call runs.

    Attributes:
        type: `tool_started`.
        tool_call_id: The call.
        name: The tool.
        arguments: The arguments.
    """

    type: Literal["tool_started"] = "tool_started"
    tool_call_id: str
    name: str
    arguments: Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolProgressed(_Event):
    """A tool call that runs has reported its progress. Only the newest report counts.

    Attributes:
        type: `tool_progress`.
        tool_call_id: The call.
        name: The tool.
        text: The report.
        fraction: The part of the work that is done, from 0 to 1; None: the tool has not reported it.
    """

    type: Literal["tool_progress"] = "tool_progress"
    tool_call_id: str
    name: str
    text: str
    fraction: float | None = None

    @property
    def description(self) -> str:
        """The tool and its report, for people: `count: half of it (50%)`."""
        done = "" if self.fraction is None else f" ({self.fraction:.0%})"
        return f"{self.name}: {self.text}{done}"


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolFinished(_Event):
    """A tool call has a result. The entry with the result follows.

    Attributes:
        type: `tool_finished`.
        tool_call_id: The call.
        name: The tool; None: a late result does not name it.
        is_error: The result describes a failure.
    """

    type: Literal["tool_finished"] = "tool_finished"
    tool_call_id: str
    name: str | None = None
    is_error: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ApprovalRequired(_Event):
    """A tool call waits for a person's decision: `Session.approve` or `Session.deny`.

    Attributes:
        type: `approval_required`.
        tool_call_id: The call.
        name: The tool.
        arguments: The model's arguments.
    """

    type: Literal["approval_required"] = "approval_required"
    tool_call_id: str
    name: str
    arguments: Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class ResultRequired(_Event):
    """An external tool call waits for its result: `Session.submit_tool_result`.

    Attributes:
        type: `result_required`.
        tool_call_id: The call.
        name: The tool.
        arguments: The model's arguments.
        expires_at: When the call times out: ISO 8601 in UTC with milliseconds.
    """

    type: Literal["result_required"] = "result_required"
    tool_call_id: str
    name: str
    arguments: Mapping[str, Any]
    expires_at: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SubagentWaiting(_Event):
    """A tool call of a subagent waits. It is told within seconds, and decided or answered in the subagent's session.

    Attributes:
        type: `subagent_waiting`.
        session_id: The subagent's session, which may be one of a subagent's own.
        needs: `approval`: `Session.approve` or `Session.deny`; `result`: `Session.submit_tool_result`.
        tool_call_id: The call.
        name: The tool.
        arguments: The model's arguments.
    """

    type: Literal["subagent_waiting"] = "subagent_waiting"
    session_id: str
    needs: Literal["approval", "result"]
    tool_call_id: str
    name: str
    arguments: Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Retrying(_Event):
    """An attempt of a model call or of a tool call has failed; another one follows.

    Attributes:
        type: `retrying`.
        call_id: The model call; None: a tool call is retried.
        tool_call_id: The tool call; None: a model call is retried.
        attempt: The number of the attempt that follows.
        error: Why the attempt failed: the type of the error, or `worker_lost`.
        message: A description for people.
        next_at: When the attempt starts at the earliest: ISO 8601 in UTC with milliseconds; None: it has started, or
            starts now.
    """

    type: Literal["retrying"] = "retrying"
    call_id: str | None = None
    tool_call_id: str | None = None
    attempt: int
    error: str
    message: str
    next_at: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Restarted(_Event):
    """A new attempt of a model call has started: the reply starts over, the text so far is void.

    Attributes:
        type: `restarted`.
        call_id: The model call.
        attempt: The number of the attempt.
    """

    type: Literal["restarted"] = "restarted"
    call_id: str
    attempt: int


@dataclass(frozen=True, slots=True, kw_only=True)
class StatusChanged(_Event):
    """The session's status has changed, or the request that it serves. The first one tells the status at the start.

    Attributes:
        type: `status`.
        status: As in `SessionStatus`; also `hibernated`: the session continues when it is opened again.
    """

    type: Literal["status"] = "status"
    status: str


SessionEvent = (
    EntryCommitted
    | TextAdded
    | ThinkingAdded
    | ToolStarted
    | ToolProgressed
    | ToolFinished
    | ApprovalRequired
    | ResultRequired
    | SubagentWaiting
    | Retrying
    | Restarted
    | StatusChanged
)
"""An event, discriminated by `type`."""
