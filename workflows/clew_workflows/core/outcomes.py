"""How requests stand: outcomes are read from the thread's `run` entries, older ones from what was carried over."""

from __future__ import annotations

from itertools import islice

from clew.contract.payloads import RunPayload
from clew.outcomes import RequestOutcome, Usage
from clew.thread.entries import Entry
from clew.thread.thread import Thread
from clew_workflows.core.state import Run, State

REMEMBERED = 1000
"""Requests whose ids are known again when their entries are in the archive."""
MAX_ERROR = 200
"""Characters that are remembered of an error's message; the whole of it is in the thread."""


def outcome_of(state: State, thread: Thread, request_id: str) -> RequestOutcome | None:
    """How a request ended; None while it has not, or where it is not known."""
    ended = thread.find_outcome(request_id)
    return _read(request_id, ended) if ended else state.outcomes.get(request_id)


def knows(state: State, thread: Thread, request_id: str) -> bool:
    """Whether a request of that id was accepted before."""
    return request_id in state.unfinished or outcome_of(state, thread, request_id) is not None


def running(state: State, thread: Thread, request_id: str) -> RequestOutcome:
    """How a request stands that has not ended."""
    run = state.run
    if run and request_id not in (run.request.request_id, *run.joined):
        run = None
    return RequestOutcome(
        request_id=request_id,
        run_id=run.run_id if run else None,
        status="running",
        last_seq=thread.last_seq,
        iterations=run.iteration if run else 0,
        usage=_usage(run, request_id),
    )


def _usage(run: Run | None, request_id: str) -> Usage:
    if run is None:
        return Usage()
    return run.usage if request_id == run.request.request_id else Usage(shared_with=run.request.request_id)


def remembered(state: State, thread: Thread) -> dict[str, RequestOutcome]:
    """The newest outcomes, oldest first, as they are carried over."""
    known = {**state.outcomes, **{name: _read(name, entry) for name, entry in thread.outcomes.items()}}
    newest = sorted(known.values(), key=lambda outcome: outcome.last_seq)
    return {outcome.request_id: _brief(outcome) for outcome in islice(newest, max(len(newest) - REMEMBERED, 0), None)}


def _brief(outcome: RequestOutcome) -> RequestOutcome:
    if outcome.error is None or len(outcome.error.message) <= MAX_ERROR:
        return outcome
    error = outcome.error.model_copy(update={"message": outcome.error.message[:MAX_ERROR]})
    return outcome.model_copy(update={"error": error})


def _read(request_id: str, ended: Entry) -> RequestOutcome:
    held = ended.read(RunPayload)
    return RequestOutcome(
        request_id=request_id,
        run_id=ended.refs["run_id"],
        status=held.status,
        termination_reason=held.termination_reason,
        reason=held.reason,
        answer_seq=held.answer_seq,
        last_seq=ended.seq,
        iterations=held.iterations,
        usage=held.usage,
        error=held.error,
    )
