"""Outcomes of requests, read from the thread's `run` entries; the state holds those of archived entries."""

from __future__ import annotations

from clew.contract.payloads import RunPayload
from clew.outcomes import RequestOutcome, Usage
from clew.thread.entries import Entry
from clew.thread.thread import Thread
from clew_workflows.core.run import Run
from clew_workflows.core.state import State

MAX_OUTCOMES = 1000
"""Outcomes that a session remembers when their entries are in the archive."""
MAX_ERROR_CHARACTERS = 200
"""Characters of an error's message in a remembered outcome; the thread holds all of it."""


def find_outcome(state: State, thread: Thread, request_id: str) -> RequestOutcome | None:
    """Find the outcome of a request; None if it has none yet, or is not known."""
    ended = thread.find_outcome(request_id)
    return _read_outcome(request_id, ended) if ended else state.outcomes.find(request_id)


def is_known(state: State, thread: Thread, request_id: str) -> bool:
    """Whether a request with this id has been accepted."""
    return request_id in state.unfinished or has_ended(state, thread, request_id)


def has_ended(state: State, thread: Thread, request_id: str) -> bool:
    """Whether a request has an outcome."""
    return thread.find_outcome(request_id) is not None or request_id in state.outcomes


def make_running_outcome(state: State, thread: Thread, request_id: str) -> RequestOutcome:
    """Make the answer for a request that has no outcome yet."""
    run = state.run
    if run and request_id not in (run.request.request_id, *run.joined):
        run = None
    return RequestOutcome(
        request_id=request_id,
        run_id=run.run_id if run else None,
        status="running",
        last_seq=thread.last_seq,
        iterations=run.iteration if run else 0,
        fallback=run.fallback if run else None,
        usage=_find_usage(run, request_id),
        subagent_usage=run.subagent_usage if run and run.subagent_usage != Usage() else None,
    )


def _find_usage(run: Run | None, request_id: str) -> Usage:
    if run is None:
        return Usage()
    return run.usage if request_id == run.request.request_id else Usage(shared_with=run.request.request_id)


def list_newest(state: State, thread: Thread) -> list[RequestOutcome]:
    """List the newest outcomes, oldest first, to be carried to the next workflow run."""
    remembered = {outcome.request_id: outcome for outcome in state.outcomes.unpack()}
    ended = {name: _shorten_error(_read_outcome(name, entry)) for name, entry in thread.outcomes.items()}
    return sorted({**remembered, **ended}.values(), key=lambda outcome: outcome.last_seq)[-MAX_OUTCOMES:]


def _shorten_error(outcome: RequestOutcome) -> RequestOutcome:
    if outcome.error is None or len(outcome.error.message) <= MAX_ERROR_CHARACTERS:
        return outcome
    error = outcome.error.model_copy(update={"message": outcome.error.message[:MAX_ERROR_CHARACTERS]})
    return outcome.model_copy(update={"error": error})


def _read_outcome(request_id: str, ended: Entry) -> RequestOutcome:
    payload = ended.read(RunPayload)
    return RequestOutcome(
        request_id=request_id,
        run_id=ended.refs["run_id"],
        status=payload.status,
        termination_reason=payload.termination_reason,
        reason=payload.reason,
        answer_seq=payload.answer_seq,
        last_seq=ended.seq,
        iterations=payload.iterations,
        fallback=payload.fallback,
        usage=payload.usage,
        subagent_usage=payload.subagent_usage,
        error=payload.error,
    )
