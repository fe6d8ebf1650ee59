"""Repeating a model call that has failed: with a shorter context, or with a fallback."""

from __future__ import annotations

from dataclasses import replace

from clew.contract.payloads import Retried
from clew.errors import Refusal
from clew_workflows.core import budgets, drafts, runs
from clew_workflows.core.decision import Decision
from clew_workflows.core.state import Moment, State, get_run
from clew_workflows.protocol import Failure


def shorten_context(state: State, refusal: Failure, at: Moment) -> Decision:
    """Repeat a model call that the provider refused as too long, with a smaller budget, once a run."""
    run = get_run(state)
    call = run.call
    budget = None if run.tightened or call is None else budgets.compute_budget_left(state, call, refusal)
    if call is None or budget is None:
        return runs.fail_run(state, refusal, at)
    again = Retried(call_id=f"call-{state.calls + 1}", model=call.model, budget=budget)
    error = drafts.draft_error(state, run, refusal, again)
    learned = budgets.learn_refusal(state.learned, call.model, budget)
    state = replace(state, learned=learned, run=replace(run, tightened=True))
    return Decision(state, (error,)).then(lambda state, at: runs.start_call(state, at, instead_of=call), at)


def fall_back(state: State, outage: Failure, at: Moment) -> Decision:
    """Repeat a model call with the request's next fallback, which the run keeps; without one the run fails."""
    run = get_run(state)
    if run.call is None or not run.request.fallbacks:
        return runs.fail_run(state, outage, at)
    again = Retried(call_id=f"call-{state.calls + 1}", model=run.request.fallbacks[0])
    error = drafts.draft_error(state, run, outage, again)
    failed_models = (*run.failed_models, run.request.model)
    # Another model has another window: its context may be shortened once, too.
    state = replace(state, run=replace(run, failed_models=failed_models, tightened=False))
    return Decision(state, (error,)).then(_start_fallback, at)


def _start_fallback(state: State, at: Moment) -> Decision:
    try:
        return runs.start_run(runs.renew_request(state), at)
    except Refusal as refusal:
        return runs.fail_run(state, Failure(type=refusal.type, message=refusal.message), at)
