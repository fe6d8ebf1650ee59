"""The run: model call, tools, model call, … until terminal, and the order of what follows then."""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

from clew.contract.payloads import Retried
from clew.errors import Refusal
from clew.outcomes import Usage
from clew.thread.entries import Draft
from clew_workflows.core import budgets, drafts, operations, profiles, requests, summaries, tool_rounds
from clew_workflows.core.decision import Decision
from clew_workflows.core.state import Input, Moment, Request, Run, State
from clew_workflows.protocol import (
    CallModel,
    DescribeModel,
    Failure,
    ModelAnswered,
    ModelProfile,
    ToolReturned,
)

FOLLOW_UP = "followup:"
"""What the ids of the session's own requests begin with."""


def next_run(state: State, at: Moment) -> Decision:
    """The next request in the queue is served, once the session is idle."""
    if state.run or state.phase != "idle" or not state.queue:
        return Decision(state)
    return open_run(replace(state, queue=state.queue[1:]), state.queue[0], at)


def open_run(state: State, request: Request, at: Moment, prepared_now: bool = False) -> Decision:
    """What was asked is committed before any model is called.

    A session whose configuration has a problem asks a worker anew, unless one has just answered: workers learn.
    """
    refused: Failure | None = None
    try:
        request = requests.renew_request(state, request)
    except Refusal as refusal:
        refused = Failure(type=refusal.type, message=refusal.message)
    number = state.runs + 1
    deadline = at.time + request.timeout_seconds
    run = Run(f"run-{number}", request, deadline, opened_seq=at.rev)
    if request.inputs:
        messages = tuple(drafts.draft_user_message(state, run, unread.content, unread) for unread in request.inputs)
    else:
        messages = (drafts.draft_request_message(state, run),)
    opened = Decision(replace(state, runs=number, run=run), messages)
    problem = refused or (state.problem if prepared_now else None)
    if problem:
        return opened.then(lambda state, at: fail_run(state, problem, at), at)
    if state.problem is None:
        return opened.then(start_run, at)
    return replace(opened, state=replace(opened.state, phase="preparing"), effect=state.preparation)


def start_run(state: State, at: Moment) -> Decision:
    """The run's first model call, once a worker has told of the model."""
    model = get_run(state).request.model
    if profiles.is_known(state, model):
        return call_model(state, at)
    return Decision(replace(state, phase="preparing"), (), DescribeModel(model=model))


def take_profile(state: State, profile: ModelProfile, at: Moment) -> Decision:
    """A worker has told of the model that the request names: its settings are filled in again."""
    run, state = get_run(state), profiles.remember_profile(state, profile)
    try:
        request = requests.renew_request(state, run.request)
    except Refusal as refusal:
        return fail_run(state, Failure(type=refusal.type, message=refusal.message), at)
    return call_model(replace(state, run=replace(run, request=request)), at)


def call_model(state: State, at: Moment) -> Decision:
    """The next model call of the run, pinned to all that is committed by now, step inputs included."""
    steps = tuple(unread for unread in state.inbox if unread.at == "step")
    if steps:
        return _commit_inputs(state, steps).then(_start_call, at)
    return _start_call(state, at)


def _start_call(state: State, at: Moment, instead_of: CallModel | None = None) -> Decision:
    run = get_run(state)
    if problem := find_reached_limit(state):
        return fail_run(state, problem, at)
    if at.time >= run.deadline:
        return fail_run(state, make_timeout(run, ", ".join(run.cut)), at)
    request = run.request
    ratio = state.learned.get(request.model, budgets.NOTHING_LEARNED).ratio
    parent = run.call.call_id if run.call else None
    if instead_of:
        parent = instead_of.parent_call_id
    call = CallModel(
        request_id=request.request_id,
        run_id=run.run_id,
        call_id=f"call-{state.calls + 1}",
        iteration=instead_of.iteration if instead_of else run.iteration + 1,
        context_ref=request.context_ref,
        at_seq=at.rev - 1,
        model=request.model,
        options=request.options,
        context_policy=budgets.make_call_policy(state, request),
        token_ratio=ratio if ratio > 1 else None,
        priced=state.config.limits.max_cost_usd is not None,
        parent_call_id=parent,
    )
    run = replace(run, iteration=call.iteration, call=call, tool_calls=())
    return Decision(replace(state, run=run, calls=state.calls + 1, phase="awaiting_model"), (), call)


def find_reached_limit(state: State) -> Failure | None:
    """Why the session may spend no more, where it may not."""
    limits, usage = state.config.limits, state.usage
    tokens, cost = usage.input_tokens + usage.output_tokens, usage.cost_usd or 0.0
    if limits.max_total_tokens is not None and tokens >= limits.max_total_tokens:
        message = f"the session has used {tokens} tokens of the {limits.max_total_tokens} that its limits allow"
        return Failure(type="token_limit", message=message)
    if limits.max_cost_usd is not None and cost >= limits.max_cost_usd:
        message = f"the session has cost {cost:.4f} USD of the {limits.max_cost_usd} that its limits allow"
        return Failure(type="cost_limit", message=message)
    return None


def take_reply(state: State, answer: ModelAnswered, at: Moment) -> Decision:
    """The reply is committed; it asks for tools, or it is an answer, which ends the run if nothing waits."""
    run, reply = get_run(state), answer.reply
    if run.call:
        state = budgets.note_reply(state, run.call, answer)
    used = reply.usage.model_copy(update={"model_calls": 1})
    calls = tool_rounds.open_calls(state, reply.tool_calls)
    calls_of_round = tuple(call for call, _ in calls)
    message = drafts.draft_assistant_message(state, run, answer, calls_of_round)
    refused = tuple(drafts.draft_tool_message(state, run, call, result) for call, result in calls if result)
    run = replace(
        run,
        usage=run.usage.plus(used),
        answer_seq=at.rev if reply.content else run.answer_seq,
        tool_calls=calls_of_round,
    )
    state = replace(
        state,
        run=run,
        usage=state.usage.plus(used),
        tool_calls=state.tool_calls + len(calls_of_round),
        summary_due=run.request.context_ref if answer.needs_summary and state.policy.writes_summaries else None,
    )
    committed, exhausted = Decision(state, (message, *refused)), run.iteration >= run.request.max_iterations
    if calls_of_round or (state.inbox and exhausted):
        if exhausted:
            return committed.then(lambda state, at: finish_run(state, "completed", "max_iterations", at), at)
        return committed.then(start_tools, at)
    if state.inbox:
        return committed.then(lambda state, at: _commit_inputs(state, state.inbox).then(call_model, at), at)
    if answer.schema_problem is not None:
        return committed.then(lambda state, at: _ask_again(state, answer.schema_problem or "", exhausted, at), at)
    reason = "max_output_tokens" if reply.stop_reason == "length" else "final_answer"
    return committed.then(lambda state, at: finish_run(state, "completed", reason, at), at)


def shorten_context(state: State, refusal: Failure, at: Moment) -> Decision:
    """The provider refuses the context for its length: it is made shorter, once in a run, by what that tells."""
    run = get_run(state)
    call = run.call
    budget = None if run.tightened or call is None else budgets.compute_budget_left(state, call, refusal)
    if call is None or budget is None:
        return fail_run(state, refusal, at)
    again = Retried(call_id=f"call-{state.calls + 1}", model=call.model, budget=budget)
    error = drafts.draft_error(state, run, refusal, drafts.make_call_refs(run), retried=again)
    learned = budgets.learn_refusal(state.learned, call.model, budget)
    state = replace(state, learned=learned, run=replace(run, tightened=True))
    return Decision(state, (error,)).then(lambda state, at: _start_call(state, at, instead_of=call), at)


def start_tools(state: State, at: Moment) -> Decision:
    """The tools of a round run side by side, once those that need it are approved."""
    run = get_run(state)
    if tool_rounds.list_unapproved(run.tool_calls):
        return Decision(replace(state, run=replace(run, paused_at=at.time), phase="awaiting_approval"))
    effect = tool_rounds.make_effect(state, run)
    if effect is None:
        return call_model(state, at)
    return Decision(replace(state, phase="awaiting_tools"), (), effect)


def take_result(state: State, event: ToolReturned, at: Moment) -> Decision:
    """A tool call has returned; after the last one of its round the model reads the results."""
    decision = tool_rounds.take_result(state, event)
    run = decision.state.run
    if run is None or decision.state.phase != "awaiting_tools" or not all(call.returned for call in run.tool_calls):
        return decision
    return decision.then(call_model, at)


def fail_run(state: State, failure: Failure, at: Moment) -> Decision:
    """The run cannot go on: the failure becomes a fact, and the run ends."""
    return Decision(state, (drafts.draft_error(state, get_run(state), failure),)).then(
        lambda state, at: finish_run(state, "failed", failure.type, at, failure=failure), at
    )


def finish_run(
    state: State,
    status: Literal["completed", "failed", "cancelled"],
    reason: str,
    at: Moment,
    *,
    failure: Failure | None = None,
    inputs: Literal["drop", "follow_up"] = "follow_up",
    explanation: str | None = None,
    first: Request | None = None,
) -> Decision:
    """The terminal transition. Its order is fixed.

    Dangling tool calls are closed; the outcome is committed; then the deferred operations and configuration; then an
    interrupting message (`first`), the follow-up run of what was not read, the queue. A summary that is due comes
    last: it is written after a completed run, and only if nothing waits.
    """
    ended = end_run(state, status, reason, failure=failure, inputs=inputs, explanation=explanation)
    if first is None:
        followed = ended.then(operations.apply_deferred, at)
    else:
        ended = replace(ended, state=replace(ended.state, queue=(first, *ended.state.queue)))
        followed = ended.then(operations.apply_before_interrupt, at)
    followed = followed.then(next_run, at)
    return followed.then(summaries.begin_due, at) if status == "completed" else followed


def end_run(
    state: State,
    status: Literal["completed", "failed", "cancelled"],
    reason: str,
    *,
    failure: Failure | None = None,
    inputs: Literal["drop", "follow_up"] = "follow_up",
    explanation: str | None = None,
) -> Decision:
    """The run ends: every call has its result, every request that it served its outcome.

    `explanation` is what the caller gave as the reason of a cancellation.
    """
    run = get_run(state)
    closers, late = tool_rounds.close_calls(state, run, reason)
    unread = leave_unread(state, run, reason, inputs)

    def outcome(request_id: str) -> Draft:
        # The numbers stand with one of the requests that shared the run, so that they add up.
        opened = run.request.request_id
        return drafts.draft_run(
            state,
            run,
            request_id,
            status=status,
            reason=reason,
            usage=run.usage if request_id == opened else Usage(shared_with=opened),
            answer_seq=run.answer_seq,
            failure=failure,
            explanation=explanation,
        )

    waiting = {request.request_id for request in unread.state.queue}
    joined = tuple(outcome(joined) for joined in run.joined if joined not in waiting)
    ended = replace(unread.state, run=None, phase="idle", late_calls=(*state.late_calls, *late))
    return Decision(ended, (*closers, *unread.commit, outcome(run.request.request_id), *joined))


def leave_unread(state: State, run: Run, reason: str, inputs: Literal["drop", "follow_up"]) -> Decision:
    """What a run has not read is answered by a run of its own, which comes next, or leaves a fact."""
    stays = inputs == "follow_up"
    follow = tuple(i for i in state.inbox if stays and not i.request_id and i.on_failure == "follow_up")
    asks_again = tuple(i for i in state.inbox if stays and i.request_id)
    dropped = tuple(
        drafts.draft_dropped_input(state, dropped, reason)
        for dropped in state.inbox
        if dropped not in follow and dropped not in asks_again
    )
    later = tuple(requests.make_request(state, i.joined, i.request_id or "") for i in asks_again if i.joined)
    if follow:
        later = (requests.make_follow_up(state, f"{FOLLOW_UP}{run.run_id}", follow), *later)
    return Decision(replace(state, inbox=(), queue=(*later, *state.queue)), dropped)


def make_timeout(run: Run, last: str | None = None) -> Failure:
    """The request's time is over; `last` is what was under way by then."""
    message = f"no answer within {run.request.timeout_seconds} seconds"
    return Failure(type="timeout", message=f"{message}: {last}" if last else message, retryable=True)


def get_run(state: State) -> Run:
    """The run in progress, where there must be one."""
    assert state.run is not None, "no run is active"
    return state.run


def _commit_inputs(state: State, inputs: tuple[Input, ...]) -> Decision:
    """Inputs enter the thread, first in, first out, one user message each."""
    run = get_run(state)
    messages = tuple(drafts.draft_user_message(state, run, unread.content, unread) for unread in inputs)
    return Decision(replace(state, inbox=tuple(i for i in state.inbox if i not in inputs)), messages)


def _ask_again(state: State, problem: str, exhausted: bool, at: Moment) -> Decision:
    """An answer that is not of the form asked for gets one more turn, and then is a failure."""
    run = get_run(state)
    if run.repaired or exhausted:
        message = f"the answer is not what output_schema asks for: {problem}"
        return fail_run(state, Failure(type="invalid_output", message=message, retryable=True), at)
    number = state.inputs + 1
    wanted = f"Your answer is not of the form asked for: {problem}\nAnswer again with nothing but JSON of that form."
    request = Input(f"input-{number}", "repair", wanted, "terminal", "drop", "repair")
    state = replace(state, run=replace(run, repaired=True), inputs=number)
    return _commit_inputs(state, (request,)).then(call_model, at)
