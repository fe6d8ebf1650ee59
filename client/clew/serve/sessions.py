"""The routes `/v1/sessions/…`: what a session can do, as HTTP. Bodies and answers are the contract's types."""

from __future__ import annotations

import asyncio
import hashlib
import secrets
import time
from collections.abc import AsyncGenerator
from contextlib import aclosing, suppress
from datetime import UTC, datetime
from typing import Annotated, Any, Literal, Self, cast

from fastapi import APIRouter, Depends, Header, Path, Query, Request
from fastapi.responses import HTMLResponse, JSONResponse, Response, StreamingResponse
from pydantic import Field, NonNegativeInt, model_validator

from clew.json_schemas import StandsFor
from clew.report import MAX_ENTRIES, make_report
from clew.report.page_document import render_page
from clew.report.page_media import MediaCollector
from clew.serve.access import CALLER_ID, Authorized, Caller
from clew.serve.answers import (
    AcceptedRequest,
    EntriesList,
    ErrorBody,
    Messages,
    OpenedSession,
    RequestAnswer,
    SessionsList,
    StreamedEvent,
    WaitingCallRow,
    WaitingCalls,
    answer,
    show,
)
from clew.serve.bodies import measure_body, read_body, work_on
from clew.serve.problems import InvalidParameter
from clew.serve.shares import Shares
from clew.serve.streams import EventStream, SentEvent, describe_stream, make_json_event, stream_events
from clew.serve.worker_watch import ACCEPT_SECONDS, WatchedRoute, accept_within
from clew.session import Session
from clew.session.events import EntryCommitted, SessionEvent
from clew.session.events import follow_session as follow
from clew.session.handle import make_id
from clew.session.request import Request as SessionRequest
from clew.session.transport import check_input, make_input
from clew_workflows.contract import (
    ApprovalInput,
    CancelInput,
    CheckpointInput,
    CloseInput,
    ConfigureInput,
    Context,
    ContextOperation,
    ContextQuery,
    FollowQuery,
    HibernateInput,
    MessageInput,
    SessionConfig,
    SessionStatus,
    SteerInput,
    SubmitInput,
    SummarizeInput,
    Window,
)
from clew_workflows.contract.errors import (
    Closed,
    Interrupted,
    NotFound,
    RequestReused,
    TokenForeign,
    UnknownBlob,
    UnknownRequest,
)
from clew_workflows.contract.inputs import InputKind, Operation, PendingMessage, Replace
from clew_workflows.contract.lists import ListedStatus
from clew_workflows.contract.names import Id, Metadata, Seq
from clew_workflows.contract.outputs import (
    ApprovalReceipt,
    CancelReceipt,
    CheckpointReceipt,
    CloseReceipt,
    ConfigureReceipt,
    DeleteReceipt,
    HibernateReceipt,
    InputReceipt,
    LiveStatus,
    OperationReceipt,
    RestoreReceipt,
    SummaryReceipt,
    ToolResultReceipt,
)
from clew_workflows.contract.payloads import AssistantMessage, RunPayload, SessionPayload
from clew_workflows.contract.policy import ContextPolicy
from clew_workflows.contract.validation import Input
from clew_workflows.thread.entries import Entry

MAX_WAIT_SECONDS = 300
"""Longest time that a request waits for an outcome, in seconds."""
MAX_LISTED = 500
"""Most sessions of a page."""
MAX_OFFSET = 10_000
"""Most sessions before a page."""
MAX_PAGE_ENTRIES = 1000
"""Most entries of a page."""
REPORTS_AT_ONCE = 2
"""Reports that are made at the same time, one for a key: each reads a whole thread."""
DERIVED_CHARACTERS = 32

router = APIRouter(
    prefix="/v1/sessions",
    tags=["sessions"],
    responses={"default": {"model": ErrorBody}},
    route_class=WatchedRoute,
)


# What bodies have beside the contract's own types.


class OpenInput(SessionConfig, frozen=True):
    """The configuration of a session that is opened. Without an agent and a model it must exist.

    Attributes:
        session_id: The session; absent: the server makes an id.
    """

    session_id: Annotated[str, CALLER_ID] | None = None

    @model_validator(mode="after")
    def _check_model(self) -> Self:
        """A session that exists already needs neither an agent nor a model."""
        return self


class DecisionInput(Input):
    """A decision about a tool call that waits for it.

    Attributes:
        decision: Whether the tool may run.
        reason: For people; the model reads it if the call is denied.
        by: The person that decided: a name or an id. The entry has it, and no model reads it.
        arguments: The arguments that replace the model's; only with `approve`.
    """

    decision: Literal["approve", "deny"]
    reason: str | None = Field(default=None, max_length=2000)
    by: Id | None = None
    arguments: dict[str, Any] | None = None


class ResultInput(Input):
    """The result of an external tool call.

    Attributes:
        content: The result: a text, a list of parts, or any other JSON value.
        is_error: Whether the result describes a failure.
        by: The person or program that answers. The entry has it, and no model reads it.
    """

    content: Any
    is_error: bool = False
    by: Id | None = None


class OperationInput(Input):
    """A context operation.

    Attributes:
        op_id: The operation's id: each is applied once. Absent: the `Idempotency-Key`, or a new one.
        context_ref: The lane; absent: the active one. A `switch` names it.
        operation: The operation.
    """

    op_id: Id | None = None
    context_ref: Id | None = None
    operation: Annotated[dict[str, Any], StandsFor(lambda: Operation)]


class PreviewInput(Input):
    """What a model would see if messages were sent next. Nothing is committed.

    Attributes:
        pending: The messages: `{"role": "user", "content": …}`.
        context_ref: The lane; absent: the active one.
        context_policy: Overlays the policy in force.
    """

    pending: list[Annotated[dict[str, Any], StandsFor(lambda: PendingMessage)]] = Field(min_length=1)
    context_ref: Id | None = None
    context_policy: Annotated[dict[str, Any] | None, StandsFor(lambda: ContextPolicy | None)] = None


class ForkInput(Input):
    """A fork of a session.

    Attributes:
        session_id: The id of the fork; absent: the server makes one.
        at_seq: The last entry that both have; absent: the newest.
        metadata: The caller's own names and values; the `fork` entries have them.
    """

    session_id: Annotated[str, CALLER_ID] | None = None
    at_seq: Seq | None = None
    metadata: Metadata | None = None


class RestoreBody(Input):
    """A session that is to be started from a checkpoint.

    Attributes:
        token: The checkpoint, of a session of the same tenant.
        session_id: The id of the new session; absent: the server makes one.
    """

    token: str
    session_id: Annotated[str, CALLER_ID] | None = None


# Parameters.


async def _find_session(
    caller: Authorized,
    session_id: Annotated[str, Path(description="The session: letters, digits, `.`, `_` and `-`.")],
) -> Session:
    return caller.session(session_id)


Known = Annotated[Session, Depends(_find_session)]
"""The session of the path. It may not exist."""
SessionName = Annotated[str, Path()]
ToolCallId = Annotated[str, Path(min_length=1, max_length=200)]
RequestId = Annotated[str, Path(min_length=1, max_length=200)]
IdempotencyKey = Annotated[
    str | None,
    Header(
        alias="Idempotency-Key",
        min_length=1,
        max_length=200,
        description="A repeated request with the same key has no second effect, in any process.",
    ),
]
Wait = Annotated[
    int, Query(ge=0, le=MAX_WAIT_SECONDS, description="Seconds to wait for the outcome; 0: answer at once.")
]
Lane = Annotated[str | None, Query(description="The lane; absent: the active one.")]


def _choose_id(given: str | None, key: str | None, field: str) -> str | None:
    """Choose the id of a command: that of the body, or the idempotency key.

    Raises:
        InvalidParameter: Both are set, and differ.
    """
    if given is not None and key is not None and given != key:
        raise InvalidParameter(f"{field} and Idempotency-Key differ: send one of them", param=field)
    return given if given is not None else key


def _derive_id(prefix: str, key: str | None, about: str = "") -> str:
    """Make the id of a session: for equal idempotency keys an equal one."""
    digest = hashlib.sha256(f"{about}\0{key}".encode()).hexdigest() if key is not None else secrets.token_hex(16)
    return f"{prefix}-{digest[:DERIVED_CHARACTERS]}"


def _dump(body: Input) -> dict[str, Any]:
    return body.model_dump(mode="json", exclude_unset=True)


# Open, list, read, change and end sessions.


@router.post("", response_model=OpenedSession)
async def create_session(
    caller: Authorized, body: Annotated[OpenInput, read_body(OpenInput)], key: IdempotencyKey = None
) -> JSONResponse:
    """Start a session, or resume the one that the body names."""
    config = body.model_dump(mode="json", exclude_unset=True)
    session_id = config.pop("session_id", None) or _derive_id("s", key)
    return await _open(caller, session_id, config, key)


@router.put("/{session_id}", response_model=OpenedSession)
async def open_session(
    caller: Authorized, session_id: SessionName, body: Annotated[OpenInput, read_body(OpenInput)]
) -> JSONResponse:
    """Start the session with this configuration, or resume it with the one that it has."""
    config = body.model_dump(mode="json", exclude_unset=True)
    if config.pop("session_id", session_id) != session_id:
        raise InvalidParameter("session_id: the path names another session", param="session_id")
    return await _open(caller, session_id, config)


async def _open(caller: Caller, session_id: str, config: dict[str, Any], key: str | None = None) -> JSONResponse:
    session = await caller.open(session_id, compares=True, **cast("Any", config))
    ignored = {name: value for name, value in session.ignored.items() if name != "metadata"}
    if key is not None and ignored:
        raise RequestReused(
            f"the Idempotency-Key was used for a session with other values of {', '.join(sorted(ignored))}: send a "
            "key of its own"
        )
    return answer(caller, OpenedSession(session_id=session_id, ignored=ignored))


@router.get("", response_model=SessionsList)
async def list_sessions(
    caller: Authorized,
    *,
    user: Annotated[str | None, Query(max_length=2000, description="Sessions whose metadata `user` is this.")] = None,
    status: Annotated[ListedStatus | None, Query(description="Sessions in this status.")] = None,
    agent: Annotated[str | None, Query(description="Sessions with this agent.")] = None,
    since: Annotated[
        str | None, Query(max_length=50, description="Sessions that were active since then: `today`, `24h`, a date.")
    ] = None,
    starts_with: Annotated[
        Annotated[str, CALLER_ID] | None, Query(description="Sessions whose ids begin with this.")
    ] = None,
    limit: Annotated[int, Query(ge=1, le=MAX_LISTED)] = 50,
    offset: Annotated[int, Query(ge=0, le=MAX_OFFSET)] = 0,
) -> JSONResponse:
    """List the tenant's sessions: live ones, the newest first, then those that only the archive has."""
    prefix = caller.prefix + (starts_with or "") or None
    listing = caller.clew.sessions(user=user, status=status, agent=agent, since=since, prefix=prefix)
    rows = []
    async with aclosing(listing):
        async for summary in listing:
            rows.append(summary)
            if len(rows) > offset + limit:
                break
    page = SessionsList(sessions=tuple(rows[offset : offset + limit]), has_more=len(rows) > offset + limit)
    return answer(caller, page)


@router.get("/{session_id}", response_model=SessionStatus)
async def read_status(caller: Authorized, session: Known) -> JSONResponse:
    """Read what the session is doing, its configuration and its usage."""
    return answer(caller, await session.status())


@router.patch("/{session_id}", response_model=ConfigureReceipt)
async def configure(
    caller: Authorized, session: Known, body: Annotated[ConfigureInput, read_body(ConfigureInput)]
) -> JSONResponse:
    """Change fields of the configuration. During a run the change waits until the run ends."""
    changes = body.model_dump(mode="json", exclude_unset=True)
    caller.check_config(changes, changes=True)
    if changes.get("metadata") is not None:
        changes["metadata"] = caller.add_tenant(changes["metadata"])
    return answer(caller, await session.configure(**cast("Any", changes)))


@router.delete("/{session_id}", response_model=DeleteReceipt)
async def delete_session(caller: Authorized, session_id: SessionName) -> JSONResponse:
    """End the session, and delete its archive and its event histories."""
    return answer(caller, await caller.clew.delete(caller.scope(session_id)))


@router.post("/{session_id}/close", response_model=CloseReceipt)
async def close_session(
    caller: Authorized, session: Known, body: Annotated[CloseInput, read_body(CloseInput)]
) -> JSONResponse:
    """Cancel every request, archive the session, and end it."""
    return answer(caller, await session.close(body.reason))


@router.post("/{session_id}/hibernate", response_model=HibernateReceipt)
async def hibernate(
    caller: Authorized, session: Known, body: Annotated[HibernateInput, read_body(HibernateInput)]
) -> JSONResponse:
    """Archive the session and end its workflow. Opening it, or a message, resumes it."""
    return answer(caller, await session.hibernate(body.reason))


# Messages, and their requests.


@router.post("/{session_id}/messages", response_model=RequestAnswer, responses={202: {"model": AcceptedRequest}})
async def send_message(
    caller: Authorized,
    *,
    session_id: SessionName,
    session: Known,
    body: Annotated[MessageInput, read_body(MessageInput)],
    key: IdempotencyKey = None,
    wait: Wait = 0,
) -> JSONResponse:
    """Send a message. It is durable when this answers: 200 with its outcome, or 202 while it has none."""
    options = _dump(body)
    content = options.pop("content")
    options = caller.check_message(options)
    caller.check_messages(body.replies or ())
    options["request_id"] = _choose_id(body.request_id, key, "request_id")
    begun_at = time.monotonic()
    sending = _send_or_wake(caller, session, content, options)
    request = await accept_within(caller.clew, wait or ACCEPT_SECONDS, sending, "message")
    left = max(wait - (time.monotonic() - begun_at), 0)
    return await _answer_request(caller, session_id, request, left)


async def _send_or_wake(caller: Caller, session: Session, content: Any, options: dict[str, Any]) -> SessionRequest:
    """Send a message. A session that hibernates is opened for it."""
    try:
        request: SessionRequest = await session.message(content, **options)
    except Closed as closed:
        if isinstance(closed, Interrupted) or not await _hibernates(caller, session):
            raise
        await caller.check_room(session.id)
        await caller.clew.open(session.id)
        request = await session.message(content, **options)
    return request


async def _hibernates(caller: Caller, session: Session) -> bool:
    """Whether a session that has ended hibernates: it was not closed."""
    async for entry in caller.clew.read_thread(session.id, kind="session", newest=1):
        return entry.read(SessionPayload).event == "hibernated"
    return False


@router.get("/{session_id}/messages", response_model=Messages)
async def read_messages(
    caller: Authorized,
    *,
    session: Known,
    context_ref: Lane = None,
    from_seq: NonNegativeInt = 0,
    limit: Annotated[int, Query(ge=1, le=MAX_PAGE_ENTRIES, description="The most messages, the newest ones.")] = 100,
    include_system: bool = False,
) -> JSONResponse:
    """Read a lane's messages."""
    rows = await session.transcript(
        context_ref=context_ref, from_seq=from_seq, limit=limit, include_system=include_system
    )
    return answer(caller, Messages(messages=[dict(row) for row in rows]))


@router.get("/{session_id}/requests/{request_id}", response_model=RequestAnswer)
async def read_request(
    caller: Authorized, session_id: SessionName, session: Known, request_id: RequestId, wait: Wait = 0
) -> JSONResponse:
    """Read the state of a request, and its answer once there is one."""
    if wait == 0:
        return answer(caller, await _read_state(session_id, session, request_id))
    request = session.request(request_id)
    return await _answer_request(caller, session_id, request, wait, running=200, checks_worker=True)


@router.get(
    "/{session_id}/requests/{request_id}/events",
    response_class=EventStream,
    responses=describe_stream(StreamedEvent),
)
async def follow_request(
    request: Request,
    caller: Authorized,
    session: Known,
    request_id: RequestId,
    last_event_id: Annotated[NonNegativeInt | None, Header(alias="Last-Event-ID")] = None,
) -> StreamingResponse:
    """Follow a request as server-sent events, from its first entry to its outcome, or on from `Last-Event-ID`."""
    events = session.request(request_id).events()
    return await stream_events(request, _send_events(caller, _skip_to(events, last_event_id or 0)))


@router.post("/{session_id}/requests/{request_id}/cancel", response_model=CancelReceipt)
async def cancel_request(
    caller: Authorized, session: Known, request_id: RequestId, body: Annotated[CancelInput, read_body(CancelInput)]
) -> JSONResponse:
    """Cancel a request."""
    if body.request_id not in (None, request_id):
        raise InvalidParameter("request_id: the path names another request", param="request_id")
    return await _cancel(caller, session, body.model_copy(update={"request_id": request_id}))


@router.post("/{session_id}/cancel", response_model=CancelReceipt)
async def cancel(
    caller: Authorized, session: Known, body: Annotated[CancelInput, read_body(CancelInput)]
) -> JSONResponse:
    """Cancel the active request, or the one that the body names."""
    return await _cancel(caller, session, body)


async def _cancel(caller: Caller, session: Session, body: CancelInput) -> JSONResponse:
    receipt = await session.cancel(body.request_id, reason=body.reason, inputs=body.inputs)
    return answer(caller, receipt)


async def _answer_request(
    caller: Caller,
    session_id: str,
    request: SessionRequest,
    wait: float,
    *,
    running: int = 202,
    checks_worker: bool = False,
) -> JSONResponse:
    """Wait for the outcome of a request, and answer with it, or with `running` after the time.

    Raises:
        WorkerUnavailable: With `checks_worker`, no worker polls the task queue: it may not run at all.
    """
    outcome, text = None, None
    try:
        async with asyncio.timeout(wait):
            # Without a wait the session is not asked: each question is an event of its history.
            outcome = await request.result() if wait else None
            text = await request.answer() if outcome and outcome.status == "completed" else None
    except TimeoutError:
        outcome = None
    if outcome is None:
        if checks_worker:
            await caller.clew.check_worker()
        accepted = AcceptedRequest(session_id=session_id, request_id=request.request_id)
        return answer(caller, accepted, running)
    return answer(caller, RequestAnswer(**dict(outcome), session_id=session_id, answer=text))


async def _read_state(session_id: str, session: Session, request_id: str) -> RequestAnswer:
    """Read the state of a request by queries, which leave nothing in the session's history.

    Of a request that the session does not know, or not yet, an update asks.

    Raises:
        UnknownRequest: The session has no such request.
    """
    entry = await _read_run(session, request_id)
    if entry is None:
        last_seq = await _find_unfinished(session, request_id)
        # It may have ended between the two reads.
        if (entry := await _read_run(session, request_id)) is None:
            if last_seq is None:
                raise UnknownRequest(f"session {session.id!r} knows no request {request_id!r}")
            return RequestAnswer(request_id=request_id, status="running", last_seq=last_seq, session_id=session_id)
    run = entry.read(RunPayload)
    text = await _read_text(session, run.answer_seq) if run.status == "completed" else None
    return RequestAnswer(
        request_id=request_id,
        run_id=entry.refs.get("run_id"),
        status=run.status,
        termination_reason=run.termination_reason,
        reason=run.reason,
        answer_seq=run.answer_seq,
        last_seq=entry.seq,
        iterations=run.iterations,
        fallback=run.fallback,
        usage=run.usage,
        subagent_usage=run.subagent_usage,
        error=run.error,
        session_id=session_id,
        answer=text,
    )


async def _read_run(session: Session, request_id: str) -> Entry | None:
    async for entry in session.read(kind="run", request_id=request_id, limit=1):
        return entry
    return None


async def _find_unfinished(session: Session, request_id: str) -> int | None:
    """Find the last entry of the thread, if a request has no outcome yet; None: it has one, or the session has none.

    Raises:
        UnknownRequest: The session has no such request.
    """
    try:
        status = await _read_live_status(session)
        if request_id not in status.unfinished_request_ids:
            await session.request(request_id)._wait_for_decision()
            status = await _read_live_status(session)
    except (Closed, NotFound):
        return None
    return status.rev - 1 if request_id in status.unfinished_request_ids else None


async def _read_live_status(session: Session) -> LiveStatus:
    page = await session._handle.query("follow", FollowQuery(), only_open=True)
    return LiveStatus.model_validate(page["status"])


async def _read_text(session: Session, seq: int | None) -> str | None:
    if seq is not None:
        async for entry in session.read(from_seq=seq, limit=1):
            return entry.read(AssistantMessage).text
    return None


# Inputs of a run, and calls that wait.


@router.post("/{session_id}/steer", response_model=InputReceipt)
async def steer(
    caller: Authorized,
    session: Known,
    body: Annotated[SteerInput, read_body(SteerInput)],
    key: IdempotencyKey = None,
) -> JSONResponse:
    """Send the active run a user's correction."""
    return await _submit(caller, session, "steer", body, key)


@router.post("/{session_id}/inject", response_model=InputReceipt)
async def inject(
    caller: Authorized,
    session: Known,
    body: Annotated[SteerInput, read_body(SteerInput)],
    key: IdempotencyKey = None,
) -> JSONResponse:
    """Send the active run a program's message."""
    return await _submit(caller, session, "inject", body, key)


async def _submit(
    caller: Caller, session: Session, kind: InputKind, body: SteerInput, key: str | None
) -> JSONResponse:
    fields = {**_dump(body), "kind": kind, "input_id": _choose_id(body.input_id, key, "input_id")}
    command = make_input(SubmitInput, fields)
    return answer(caller, await session._handle.call("submit_input", command, InputReceipt))


@router.get("/{session_id}/waiting", response_model=WaitingCalls)
async def list_waiting_calls(caller: Authorized, session: Known) -> JSONResponse:
    """List the tool calls that wait for people or programs, in the session and in its subagents."""
    calls = await session.list_waiting_calls()
    rows = (WaitingCallRow(session_id=call.session_id, needs=call.needs, call=call.call) for call in calls)
    return answer(caller, WaitingCalls(calls=tuple(rows)))


@router.post("/{session_id}/approvals/{tool_call_id}", response_model=ApprovalReceipt)
async def decide(
    caller: Authorized,
    session: Known,
    tool_call_id: ToolCallId,
    body: Annotated[DecisionInput, read_body(DecisionInput)],
) -> JSONResponse:
    """Approve or deny a tool call that waits for it."""
    command = make_input(ApprovalInput, {**_dump(body), "tool_call_id": tool_call_id})
    return answer(caller, await session._handle.call("resolve_approval", command, ApprovalReceipt))


@router.post("/{session_id}/tool-results/{tool_call_id}", response_model=ToolResultReceipt)
async def submit_tool_result(
    caller: Authorized,
    session: Known,
    tool_call_id: ToolCallId,
    body: Annotated[ResultInput, read_body(ResultInput)],
) -> JSONResponse:
    """Answer a waiting call of an external tool."""
    receipt = await session.submit_tool_result(tool_call_id, body.content, is_error=body.is_error, by=body.by)
    return answer(caller, receipt)


# What a model sees.


@router.get("/{session_id}/context", response_model=Context)
async def read_context(
    caller: Authorized,
    session: Known,
    context_ref: Lane = None,
    at_seq: Annotated[NonNegativeInt | None, Query(description="As it was when this was the newest entry.")] = None,
    call_id: Annotated[str | None, Query(max_length=200, description="What the model saw in this call.")] = None,
) -> JSONResponse:
    """Read a lane's context: the current one, the one at a seq, or the one that a model call saw."""
    return answer(caller, await session.context(context_ref=context_ref, at_seq=at_seq, call_id=call_id))


@router.get("/{session_id}/window", response_model=Window)
async def read_window(
    caller: Authorized, session: Known, token_budget: int = 4000, context_ref: Lane = None
) -> JSONResponse:
    """Read the newest messages that fit a token budget."""
    return answer(caller, await session.window(token_budget, context_ref=context_ref))


@router.post("/{session_id}/preview", response_model=Context)
async def preview(
    request: Request, caller: Authorized, session: Known, body: Annotated[PreviewInput, read_body(PreviewInput)]
) -> JSONResponse:
    """Read what a model would see, and what it would cost, if these messages were sent next."""
    query = await work_on(request, measure_body(request), lambda: check_input(make_input(ContextQuery, _dump(body))))
    assert query.pending is not None
    pending = [message.model_dump(mode="json", exclude_unset=True) for message in query.pending]
    context = await session.context(
        context_ref=query.context_ref, context_policy=query.context_policy, pending=cast("Any", pending)
    )
    return answer(caller, context)


@router.post("/{session_id}/context", response_model=OperationReceipt)
async def modify_context(
    request: Request,
    caller: Authorized,
    session: Known,
    body: Annotated[OperationInput, read_body(OperationInput)],
    key: IdempotencyKey = None,
) -> JSONResponse:
    """Apply a context operation: `replace`, `switch`, `pin`, `unpin` or `expand`; a compaction is a `replace`."""
    op_id = _choose_id(body.op_id, key, "op_id") or make_id()
    operation = await work_on(
        request, measure_body(request), lambda: make_input(ContextOperation, {**_dump(body), "op_id": op_id})
    )
    if isinstance(operation.operation, Replace) and operation.operation.result_context:
        caller.check_snapshot(operation.operation.result_context)
    return answer(caller, await session._handle.call("submit_context_operation", operation, OperationReceipt))


@router.post("/{session_id}/summarize", response_model=SummaryReceipt)
async def summarize(
    caller: Authorized, session: Known, body: Annotated[SummarizeInput, read_body(SummarizeInput)]
) -> JSONResponse:
    """Have a model summarize a lane. Answers when the summary is committed."""
    return answer(caller, await session.summarize(body.from_seq, body.to_seq, context_ref=body.context_ref))


# Copies.


@router.post("/{session_id}/fork", response_model=OpenedSession)
async def fork(
    caller: Authorized,
    session_id: SessionName,
    session: Known,
    body: Annotated[ForkInput, read_body(ForkInput)],
    key: IdempotencyKey = None,
) -> JSONResponse:
    """Start a session that begins with this session's entries."""
    fork_id = body.session_id or _derive_id("fork", key, session_id)
    scoped = caller.scope_new(fork_id)
    await caller.check_room(scoped)
    await session.fork(body.at_seq, scoped, metadata=body.metadata)
    return answer(caller, OpenedSession(session_id=fork_id))


@router.post("/{session_id}/checkpoint", response_model=CheckpointReceipt)
async def make_checkpoint(
    caller: Authorized, session: Known, body: Annotated[CheckpointInput, read_body(CheckpointInput)]
) -> JSONResponse:
    """Write a lane's context and the configuration into a signed token."""
    token = await session.checkpoint(body.context_ref, expires_seconds=body.expires_seconds)
    return answer(caller, CheckpointReceipt(token=token))


@router.post("/restore", response_model=RestoreReceipt)
async def restore(
    caller: Authorized, body: Annotated[RestoreBody, read_body(RestoreBody)], key: IdempotencyKey = None
) -> JSONResponse:
    """Start a session from a checkpoint of this tenant."""
    source = caller.clew.describe_checkpoint(body.token)
    # The signature, which a worker verifies, covers both.
    if not source.session_id.startswith(caller.prefix):
        raise TokenForeign("the checkpoint was made of a session of another tenant")
    if caller.add_tenant(source.config.get("metadata")) != {**(source.config.get("metadata") or {})}:
        raise TokenForeign("the checkpoint was made of a session without the metadata of this tenant")
    caller.check_copy(source.config)
    session_id = body.session_id or _derive_id("r", key)
    scoped = caller.scope_new(session_id)
    await caller.check_room(scoped)
    await caller.clew.restore(body.token, scoped)
    return answer(caller, RestoreReceipt(session_id=session_id))


# The thread: its entries, its events, and a page about it.


@router.get("/{session_id}/entries", response_model=EntriesList)
async def read_entries(
    caller: Authorized,
    *,
    session: Known,
    from_seq: NonNegativeInt = 0,
    limit: Annotated[int, Query(ge=1, le=MAX_PAGE_ENTRIES)] = 100,
    kind: Annotated[str | None, Query(max_length=50)] = None,
    context_ref: Lane = None,
    request_id: Annotated[str | None, Query(max_length=200)] = None,
    run_id: Annotated[str | None, Query(max_length=200)] = None,
    call_id: Annotated[str | None, Query(max_length=200)] = None,
    tool_call_id: Annotated[str | None, Query(max_length=200)] = None,
    source: Annotated[str | None, Query(max_length=200)] = None,
) -> JSONResponse:
    """Read entries of the thread, live and archived ones alike."""
    filters = {
        "kind": kind,
        "context_ref": context_ref,
        "request_id": request_id,
        "run_id": run_id,
        "call_id": call_id,
        "tool_call_id": tool_call_id,
        "source": source,
    }
    rows = await session.entries(from_seq=from_seq, limit=limit, **cast("Any", filters))
    following = rows[-1].seq + 1 if len(rows) == limit else None
    return answer(caller, EntriesList(entries=[entry.as_dict() for entry in rows], next_seq=following))


@router.get("/{session_id}/events", response_class=EventStream, responses=describe_stream(StreamedEvent))
async def follow_session(
    request: Request,
    caller: Authorized,
    session: Known,
    from_seq: Annotated[
        NonNegativeInt | None, Query(description="Begin with this entry; absent: with the next one.")
    ] = None,
    last_event_id: Annotated[NonNegativeInt | None, Header(alias="Last-Event-ID")] = None,
) -> StreamingResponse:
    """Follow the session as server-sent events. The id of an event is its cursor, for `Last-Event-ID`."""
    start = from_seq if last_event_id is None else last_event_id
    return await stream_events(request, _send_events(caller, follow(session._handle, start)))


async def _skip_to(events: AsyncGenerator[SessionEvent, None], cursor: int) -> AsyncGenerator[SessionEvent, None]:
    """Skip the events up to the entry whose cursor a client has; 0: none."""
    is_behind = cursor == 0
    async with aclosing(events):
        async for event in events:
            if is_behind or (event.cursor or 0) > cursor:
                is_behind = True
                yield event
            elif event.cursor == cursor:
                is_behind = True


async def _send_events(
    caller: Caller, followed: AsyncGenerator[SessionEvent | LiveStatus, None]
) -> AsyncGenerator[SentEvent | str, None]:
    knows_start = False
    async with aclosing(followed):
        async for event in followed:
            if isinstance(event, LiveStatus):
                # A client that is sent away before the first entry comes again for it.
                if not knows_start:
                    yield str(event.rev)
            else:
                cursor = None if event.cursor is None else str(event.cursor)
                yield make_json_event(show(caller, event.as_dict()), id=cursor)
            knows_start = knows_start or isinstance(event, EntryCommitted | LiveStatus)


@router.get("/{session_id}/report", response_class=HTMLResponse)
async def make_report_page(
    request: Request,
    caller: Authorized,
    *,
    session_id: SessionName,
    session: Known,
    from_seq: NonNegativeInt | None = None,
    limit: Annotated[int, Query(ge=1, le=MAX_ENTRIES)] = MAX_ENTRIES,
    with_texts: bool = True,
) -> Response:
    """Make a page about the session: what was said, what each model call saw, and what it cost."""
    shares: Shares = request.app.state.reports
    async with shares.hold(caller.key.hash):
        entries = [caller.reader.show_entry(entry) for entry in await session.entries()]
        made = await asyncio.to_thread(
            make_report,
            entries,
            made_at=datetime.now(UTC).isoformat(timespec="milliseconds"),
            session_id=session_id,
            from_seq=from_seq,
            limit=limit,
            with_texts=with_texts,
        )
        collector = MediaCollector(made)
        for digest in collector.digests:
            with suppress(UnknownBlob):
                collector.take(digest, await session.read_blob(digest))
        page = await asyncio.to_thread(render_page, made, collector.media)
    return HTMLResponse(
        page, headers={"Cache-Control": "no-store", "Content-Security-Policy": "sandbox allow-scripts"}
    )
