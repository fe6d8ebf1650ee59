"""Webhooks: what they are told of the entries and the waits of a session, and which of them is told what."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace

from clew_workflows.contract.limits import MAX_NAMED_CALLS
from clew_workflows.contract.messages import compute_digest
from clew_workflows.contract.payloads import RunPayload
from clew_workflows.contract.webhooks import (
    EventType,
    WaitingCall,
    Webhook,
    WebhookData,
    WebhookError,
    WebhookMessage,
)
from clew_workflows.protocol import Notice
from clew_workflows.session import outside
from clew_workflows.session.state import Decision, RequestedCall, State
from clew_workflows.thread.entries import Entry

LIMITS = ("token_limit", "cost_limit", "max_iterations")
"""The termination reasons of runs that have ended at a limit."""
ID_CHARACTERS = 32
"""Characters of a notice's id, without its prefix."""


def list_webhooks(state: State, event: EventType) -> tuple[Webhook, ...]:
    """List the webhooks in force that are told of events of a type: the session's and the workers' own, each once."""
    known = (*state.settings.config.webhooks, *state.settings.webhooks)
    return tuple(dict.fromkeys(webhook for webhook in known if webhook.wants(event)))


def note_events(
    before: State, after: State, entries: Iterable[Entry], make_timestamp: Callable[[], str], last_seq: int
) -> State:
    """Note what webhooks are to be told of a decision: of its entries, and of the calls that wait since then.

    Args:
        before: The state before the decision.
        after: The state after it.
        entries: The entries that it has committed.
        make_timestamp: Formats the present time.
        last_seq: The seq of the thread's newest entry.
    """
    notices = [
        *(notice for entry in entries for notice in _note_entry(after, entry)),
        *_note_waits(before, after, make_timestamp, last_seq),
    ]
    wanted = tuple(notice for notice in notices if list_webhooks(after, notice.message.type))
    return replace(after, notices=(*after.notices, *wanted)) if wanted else after


def drop_notice(state: State, notice: Notice) -> Decision:
    """Take a notice out of the state: the server has confirmed the start of its delivery."""
    return Decision(
        replace(state, notices=tuple(other for other in state.notices if other.notice_id != notice.notice_id))
    )


def _note_entry(state: State, entry: Entry) -> Iterator[Notice]:
    body = entry.body
    if not isinstance(body, RunPayload):
        return
    request_id, run_id = entry.refs["request_id"], entry.refs["run_id"]
    ended = WebhookData(
        session_id=state.session_id,
        parent_session_id=_find_parent(state),
        request_id=request_id,
        run_id=run_id,
        seq=entry.seq,
        status=body.status,
        termination_reason=body.termination_reason,
        answer_seq=body.answer_seq,
        iterations=body.iterations,
        usage=body.usage,
        subagent_usage=body.subagent_usage,
        error=WebhookError(type=body.error.type, retryable=body.error.retryable) if body.error else None,
    )
    yield _make_notice(state, "request.ended", entry.at, ended, entry.id)
    # Of the requests that share a run, one has its usage.
    if body.termination_reason in LIMITS and body.usage.shared_with is None:
        yield _make_notice(state, "limit.reached", entry.at, ended, entry.id)


def _note_waits(before: State, after: State, make_timestamp: Callable[[], str], last_seq: int) -> Iterator[Notice]:
    waits: tuple[tuple[EventType, Callable[[State], tuple[RequestedCall, ...]]], ...] = (
        ("approval.wanted", outside.list_pending_approvals),
        ("external_call.waiting", outside.list_pending_results),
    )
    run = after.run
    if run is None or not run.tool_calls:
        return
    for event, list_waiting in waits:
        waited = {call.tool_call_id for call in list_waiting(before)}
        calls = [call for call in list_waiting(after) if call.tool_call_id not in waited]
        if not calls:
            continue
        data = WebhookData(
            session_id=after.session_id,
            parent_session_id=_find_parent(after),
            request_id=run.request.request_id,
            run_id=run.run_id,
            seq=last_seq,
            tool_calls=tuple(
                WaitingCall(tool_call_id=call.tool_call_id, name=call.name) for call in calls[:MAX_NAMED_CALLS]
            ),
            waiting=len(calls),
        )
        yield _make_notice(after, event, make_timestamp(), data, *(call.tool_call_id for call in calls))


def _find_parent(state: State) -> str | None:
    return state.assignment.task.session_id if state.assignment else None


def _make_notice(state: State, event: EventType, at: str, data: WebhookData, *names: str) -> Notice:
    """Make a notice. Its id is that of the event: another session of the same name has begun at another time."""
    named = [state.session_id, state.listed.started_at, event, *names]
    return Notice(
        notice_id=f"msg_{compute_digest(named)[:ID_CHARACTERS]}",
        message=WebhookMessage(type=event, timestamp=at, data=data),
    )
