"""Answers of the routes under `/v1/sessions`: the contract's types, with the ids that callers know."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from fastapi.responses import JSONResponse
from pydantic import BaseModel, Field

from clew.json_schemas import StandsFor, entry_union, event_union
from clew.serve.access import Caller
from clew_workflows.contract.content import Blob
from clew_workflows.contract.lists import SessionSummary
from clew_workflows.contract.messages import Message
from clew_workflows.contract.outcomes import Output, RequestOutcome
from clew_workflows.contract.outputs import PendingCall

_IDS = frozenset({"session_id", "parent"})
"""The fields of answers that name a session."""
_OPAQUE = frozenset({"arguments", "content", "metadata", "config", "meta"})
"""The fields of answers that hold what callers, models and tools have written."""


class ErrorDetail(BaseModel):
    """What went wrong.

    Attributes:
        type: The contract's word.
        message: The reason, and what to do.
        param: The field or the parameter that it is about; null: none.
        code: The contract's word.
    """

    type: str
    message: str
    param: str | None
    code: str


class ErrorBody(BaseModel):
    """The body of every response that is an error.

    Attributes:
        error: The error.
    """

    error: ErrorDetail


class OpenedSession(Output):
    """A session was started or resumed.

    Attributes:
        session_id: The session.
        ignored: The fields of the request whose values differ in the session, which existed already, with its values.
    """

    session_id: str
    ignored: dict[str, Any] = Field(default_factory=dict)


class SessionsList(Output):
    """A page of sessions.

    Attributes:
        sessions: The sessions: live ones, the newest first, then those that only the archive has, by their ids.
        has_more: Whether there are more after them.
    """

    sessions: tuple[SessionSummary, ...]
    has_more: bool = False


class RequestAnswer(RequestOutcome):
    """The state of a request, with its answer.

    Attributes:
        session_id: The session.
        answer: The text of the answer, once the request is `completed`.
    """

    session_id: str
    answer: str | None = None


class AcceptedRequest(Output):
    """A message was accepted. From now on it is durable.

    Attributes:
        session_id: The session.
        request_id: The request.
        status: `running`: the request has no outcome yet.
    """

    session_id: str
    request_id: str
    status: Literal["running"] = "running"


class WaitingCallRow(Output):
    """A tool call that waits for a person or a program.

    Attributes:
        session_id: The session that it waits in: the session itself, or a subagent of it.
        needs: `approval`: `approvals` ends the wait; `result`: `tool-results` does.
        call: The call.
    """

    session_id: str
    needs: Literal["approval", "result"]
    call: PendingCall


class WaitingCalls(Output):
    """The tool calls that wait in a session and in its subagents.

    Attributes:
        calls: The calls.
    """

    calls: tuple[WaitingCallRow, ...]


class Messages(Output):
    """The messages of a lane.

    Attributes:
        messages: The messages, oldest first.
    """

    messages: list[Annotated[dict[str, Any], StandsFor(lambda: Message)]]


class EntriesList(Output):
    """A page of a thread.

    Attributes:
        entries: The entries, in order.
        next_seq: The `from_seq` of the next page; absent: there may be none.
    """

    entries: list[Annotated[dict[str, Any], StandsFor(entry_union)]]
    next_seq: int | None = None


class BlobRow(Output):
    """A blob that the thread names.

    Attributes:
        blob: Its description.
        type: The kind of the part.
        seq: The first entry that names it.
    """

    blob: Blob
    type: str
    seq: int


class BlobsList(Output):
    """The blobs that the thread names.

    Attributes:
        blobs: The blobs, in the order of the thread.
    """

    blobs: list[BlobRow]


class StreamDrained(Output):
    """The last event of a stream whose process is about to end: connect again.

    Attributes:
        type: `draining`.
    """

    type: Literal["draining"] = "draining"


class StreamFailed(Output):
    """The last event of a stream that has failed.

    Attributes:
        type: `error`.
        error: The error.
    """

    type: Literal["error"] = "error"
    error: ErrorDetail


StreamedEvent = Annotated[dict[str, Any], StandsFor(lambda: event_union(StreamDrained, StreamFailed))]
"""The data of an event of a session's stream."""


def answer(caller: Caller, value: Output, status: int = 200) -> JSONResponse:
    """Make the response that is a value of the contract."""
    return JSONResponse(show(caller, value.as_dict()), status, {"Cache-Control": "no-store"})


def show(caller: Caller, value: Any) -> Any:
    """Show a JSON value of the contract to a caller: with the ids that it knows, and what it may read of errors."""
    return _unscope_ids(caller, caller.reader.show(value))


def _unscope_ids(caller: Caller, value: Any) -> Any:
    """Replace the workflow ids of sessions in a JSON value by the ids that callers know."""
    match value:
        case dict():
            return {name: _unscope_field(caller, name, part) for name, part in value.items()}
        case list() | tuple():
            return [_unscope_ids(caller, part) for part in value]
        case _:
            return value


def _unscope_field(caller: Caller, name: str, value: Any) -> Any:
    if name in _IDS and isinstance(value, str):
        return caller.unscope(value)
    return value if name in _OPAQUE else _unscope_ids(caller, value)
