"""The run, which is the ReAct loop: model call, tool calls, model call, … until it ends, and what follows its end.

The way of a run: `open_run` → `start_run` → `call_model` → `take_reply` → `start_tools` → `take_result` →
`call_model` … → `finish_run` → `open_next_run`.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

from clew.errors import Refusal
from clew_workflows.core import (
    budgets,
    children,
    closing,
    drafts,
    hooks,
    limits,
    operations,
    profiles,
    requests,
    summaries,
    tool_rounds,
)
from clew_workflows.core.clock import resume_clock, stop_clock
from clew_workflows.core.decision import Decision
from clew_workflows.core.run import Input, Request, Run
from clew_workflows.core.state import Moment, State, get_run
from clew_workflows.protocol import (
    CallModel,
    Declined,
    DescribeModel,
    Failure,
    ModelAnswered,
    ModelProfile,
    Outdated,
    ToolReturned,
)

MAX_CUT_REPLIES = 3
"""Replies in a row that end within a tool call, after which the run fails: each of them was paid for."""


def open_next_run(state: State, at: Moment) -> Decision:
    """Open the run of the first request in the queue, if the session is idle."""
    if state.run or state.phase != "idle" or not state.queue:
        return Decision(state)
    return open_run(replace(state, queue=state.queue[1:]), state.queue[0], at)


def open_run(
    state: State, request: Request, at: Moment, prepared_now: bool = False, checked: bool = False
) -> Decision:
    """Open a run: its messages are committed before any model is called. Hooks check them first.

    If the configuration could not be resolved, a worker is asked to resolve it again first: workers may have been
    updated. `prepared_now`: a worker has just answered, so that the run fails at once instead. `checked`: the hooks
    have accepted the messages.
    """
    if "request" in state.hooks and not checked:
        return hooks.check_request(state, request, compares=not prepared_now)
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
    return opened.then(lambda state, _at: _prepare(state), at)


def prepare_again(state: State, outdated: Outdated) -> Decision:
    """Have a worker resolve the configuration, because the worker of the run's first call is of another deployment.

    No model was called: the call that follows has the same number.
    """
    unchecked = "request" in outdated.hooks and "request" not in state.hooks
    run = replace(get_run(state), call=None, iteration=0, unchecked=unchecked)
    return _prepare(replace(state, run=run, calls=state.calls - 1))


def _prepare(state: State) -> Decision:
    run = replace(get_run(state), prepared=True)
    return Decision(replace(state, run=run, phase="preparing"), (), state.preparation)


def start_run(state: State, at: Moment) -> Decision:
    """Call the run's model for the first time, or have a worker describe the model first."""
    run = get_run(state)
    model = run.request.model
    if profiles.is_known(state, model):
        return _begin_calls(state, at)
    run = replace(run, describing=True)
    return Decision(replace(state, run=run, phase="preparing"), (), DescribeModel(model=model))


def _begin_calls(state: State, at: Moment) -> Decision:
    """Make the run's first model call, or repeat the one of a model that had an outage."""
    failed = get_run(state).call
    return start_call(state, at, instead_of=failed) if failed else call_model(state, at)


def resume_run(state: State, at: Moment) -> Decision:
    """Resolve the request's settings again, under the configuration prepared during the run, and start the run."""
    try:
        return start_run(renew_request(state), at)
    except Refusal as refusal:
        return fail_run(state, Failure(type=refusal.type, message=refusal.message), at)


def take_profile(state: State, profile: ModelProfile, at: Moment) -> Decision:
    """Resolve the request's settings again, under the profile of its model, and call the model.

    It is the run's first call, or follows one of a model that had an outage.
    """
    run = replace(get_run(state), describing=False)
    state = replace(profiles.remember_profile(state, profile), run=run)
    try:
        return _begin_calls(renew_request(state), at)
    except Refusal as refusal:
        return fail_run(state, Failure(type=refusal.type, message=refusal.message), at)


def renew_request(state: State) -> State:
    """Resolve the settings of the run's request again, for the first of its models that has had no outage."""
    run = get_run(state)
    request = requests.renew_request(state, run.request, run.failed_models)
    deadline = run.deadline + request.timeout_seconds - run.request.timeout_seconds
    return replace(state, run=replace(run, request=request, deadline=deadline))


def call_model(state: State, at: Moment) -> Decision:
    """Commit the inputs that wait for the next step, and make the run's next model call. Hooks check them first."""
    steps = tuple(unread for unread in state.inbox if unread.at == "step")
    if unchecked := hooks.list_unchecked_inputs(state, steps):
        return hooks.check_inputs(state, get_run(state), unchecked, "inputs")
    committed = _commit_inputs(state, steps) if steps else Decision(state)
    return committed.then(start_call, at)


def start_call(state: State, at: Moment, instead_of: CallModel | None = None) -> Decision:
    """Make a model call. `instead_of`: the call that has failed and that the new one repeats."""
    run = get_run(state)
    if problem := limits.find_reached_limit(state):
        return fail_run(state, problem, at)
    if at.time >= run.deadline:
        return fail_run(state, make_timeout(run, ", ".join(run.timed_out_calls)), at)
    request = run.request
    ratio = state.learned.get(request.model, budgets.NOTHING_LEARNED).ratio
    parent = instead_of.parent_call_id if instead_of else run.call and run.call.call_id
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
        encoding=state.config.encoding,
        earlier_tool_calls=state.tool_calls,
        priced=limits.find_cost_limit(state) is not None,
        # Only the first call of a run: the others have the tools that the run began with.
        deployment=None if run.call or run.prepared or state.keeps_agent else state.deployment,
        hooks=None if run.call or run.prepared else state.hooks,
        checks=state.hooks if run.prepared and not run.call else None,
        limited=None if run.call or run.prepared else state.limited,
        parent_call_id=parent,
        has_fallback=bool(request.fallbacks),
    )
    run = replace(run, iteration=call.iteration, call=call, tool_calls=())
    return Decision(replace(state, run=run, calls=state.calls + 1, phase="awaiting_model"), (), call)


def call_elsewhere(state: State, declined: Declined) -> Decision:
    """Have a worker for model calls make the call that a worker for sessions has declined."""
    run = get_run(state)
    assert run.call is not None, "a run whose call is declined has one"
    call = run.call.model_copy(update={"declined": True})
    return Decision(replace(state, run=replace(run, call=call), calls_models=declined.calls_models), (), call)


def take_reply(state: State, answer: ModelAnswered, at: Moment) -> Decision:
    """Commit a reply. If it has tool calls they are next; else the run ends, unless an input waits."""
    run, reply = get_run(state), answer.reply
    if run.call:
        state = budgets.note_reply(state, run.call, answer)
    used = answer.usage
    # Of a request with an `output_schema`, text beside tool calls is no answer: no worker has validated it.
    answers = run.request.output_schema is None or not reply.tool_calls
    calls = tool_rounds.open_calls(state, reply)
    calls_of_round = tuple(call for call, _ in calls)
    message = drafts.draft_assistant_message(state, run, answer, calls_of_round)
    refused = tuple(drafts.draft_tool_message(state, run, call, result) for call, result in calls if result)
    run = replace(
        run,
        usage=run.usage.plus(used),
        answer_seq=at.rev if reply.content and answers else run.answer_seq,
        tool_calls=calls_of_round,
        reply_reason="max_output_tokens" if reply.stop_reason == "length" else "final_answer",
        schema_problem=answer.schema_problem if answers else run.schema_problem,
        cut_replies=run.cut_replies + 1 if any(tool.cut for tool in reply.tool_calls) else 0,
    )
    state = replace(
        state,
        run=run,
        usage=state.usage.plus(used),
        tool_calls=state.tool_calls + len(calls_of_round),
        summary_due=run.request.context_ref if answer.needs_summary and state.policy.writes_summaries else None,
    )
    committed = Decision(state, (message, *refused))
    if run.cut_replies >= MAX_CUT_REPLIES:
        return committed.then(lambda state, at: fail_run(state, _make_cut_failure(run), at), at)
    if calls_of_round and not _is_exhausted(run):
        return committed.then(start_tools, at)
    return committed.then(follow_reply, at)


def follow_reply(state: State, at: Moment) -> Decision:
    """Commit the inputs that wait for the answer, have a wrong answer corrected, or end the run."""
    run = get_run(state)
    if _is_exhausted(run) and (run.tool_calls or state.inbox):
        return _complete(state, "max_iterations", at)
    if state.inbox:
        if unchecked := hooks.list_unchecked_inputs(state, state.inbox):
            return hooks.check_inputs(state, run, unchecked, "reply")
        return _commit_inputs(state, state.inbox).then(call_model, at)
    if run.schema_problem is not None and not _is_exhausted(run):
        return _ask_again(state, run.schema_problem, at)
    return _complete(state, run.reply_reason, at)


def _is_exhausted(run: Run) -> bool:
    return run.iteration >= run.request.max_iterations


def _complete(state: State, reason: str, at: Moment) -> Decision:
    """End the run as completed, once the hooks have accepted its answer.

    It fails instead if its request has an `output_schema` and no answer that meets it.
    """
    run = get_run(state)
    if run.request.output_schema is not None and (run.answer_seq is None or run.schema_problem is not None):
        problem = run.schema_problem or "the model asked for tools in its last call and has not answered"
        message = f"the answer is not what output_schema asks for: {problem}"
        return fail_run(state, Failure(type="invalid_output", message=message, retryable=True), at)
    if hooks.needs_answer_check(state, run):
        return hooks.check_answer(state, run)
    return finish_run(state, "completed", reason, at)


def start_tools(state: State, at: Moment) -> Decision:
    """Run the tool calls of a round that may begin, in parallel. The others wait for a person's decision."""
    run = get_run(state)
    if run.checking:
        # They begin when the hooks have answered.
        return Decision(state)
    if unchecked := hooks.list_unchecked_calls(state, run):
        if any(call.is_running for call in run.tool_calls):
            # A session has one effect at a time: the hooks are asked when the calls that run have returned.
            return _continue_round(state, at)
        return hooks.check_tools(state, resume_clock(run, at), unchecked)
    run = tool_rounds.open_outside(state, run, at)
    return children.open_children(replace(state, run=run), at).then(_begin_calls_of_round, at)


def _begin_calls_of_round(state: State, at: Moment) -> Decision:
    run = get_run(state)
    effect = tool_rounds.make_effect(state, run)
    if effect is None:
        return _continue_round(state, at)
    return Decision(replace(state, run=resume_clock(run, at), phase=_name_wait(run)), (), effect)


def take_result(state: State, event: ToolReturned, at: Moment) -> Decision:
    """Commit the result of a tool call. After the last one of the round the next model call is made."""
    return tool_rounds.take_result(state, event).then(proceed, at)


def proceed(state: State, at: Moment) -> Decision:
    """Go on with the round of tool calls that waits, if there is one, after a result has come from anywhere."""
    waits = state.phase in ("awaiting_tools", "awaiting_approval", "awaiting_external")
    return _continue_round(state, at) if state.run and waits else Decision(state)


def _continue_round(state: State, at: Moment) -> Decision:
    """Make the next model call if all calls of the round have results, or wait for the others.

    While all that are open wait for people, or for results from outside, the request's clock stands still.
    """
    run = get_run(state)
    if run.checking:
        return Decision(state)
    if all(call.returned for call in run.tool_calls):
        return call_model(replace(state, run=resume_clock(run, at)), at)
    if any(call.is_running for call in run.tool_calls):
        return Decision(replace(state, phase=_name_wait(run)))
    if tool_rounds.list_ready(run.tool_calls):
        return start_tools(state, at)
    if run.paused_at is None and at.time >= run.deadline:
        return fail_run(state, make_timeout(run, ", ".join(run.timed_out_calls)), at)
    return Decision(replace(state, run=stop_clock(run, at), phase=_name_wait(run)))


def _name_wait(run: Run) -> Literal["awaiting_approval", "awaiting_tools", "awaiting_external"]:
    """Name what a round waits for: people before tools, tools before results from outside."""
    if tool_rounds.list_unapproved(run.tool_calls):
        return "awaiting_approval"
    activities = any(not (call.returned or call.is_outside) for call in run.tool_calls)
    return "awaiting_tools" if activities else "awaiting_external"


def fail_run(state: State, failure: Failure, at: Moment) -> Decision:
    """Commit an `error` entry and end the run as failed."""
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
    interrupts: bool = False,
) -> Decision:
    """End the run, and begin what waits for its end, in this order.

    1. A result is committed for each tool call without one, then the outcome.
    2. The deferred context operations and the deferred configuration are applied.
    3. The next run is opened: the follow-up run of unread inputs, or the first request of the queue. `interrupts`: a
       message that has interrupted the run is the first, and operations that wait for its own end stay.
    4. A summary that is due is started, if the run has completed and nothing waits.
    """
    run = get_run(state)
    ended = closing.close_run(state, run, status, reason, at, failure=failure, inputs=inputs, explanation=explanation)
    apply = operations.apply_before_interrupt if interrupts else operations.apply_deferred
    followed = ended.then(apply, at).then(open_next_run, at)
    if status != "completed":
        return followed
    refs = drafts.make_run_refs(state, run) | drafts.make_call_refs(run)
    return followed.then(lambda state, _at: summaries.begin_due(state, refs), at)


def make_timeout(run: Run, last: str | None = None) -> Failure:
    """Make the failure of a request whose time is over. `last` describes what was being done."""
    message = f"no answer within {run.request.timeout_seconds} seconds"
    return Failure(type="timeout", message=f"{message}: {last}" if last else message, retryable=True)


def _make_cut_failure(run: Run) -> Failure:
    """Make the failure of a request whose model does not keep its tool calls within the limit of a reply."""
    limit = run.request.options.max_output_tokens
    message = (
        f"{run.cut_replies} replies in a row ended within a tool call: raise max_output_tokens ({limit}), or ask for "
        "less at once"
    )
    return Failure(type="max_output_tokens", message=message)


def _commit_inputs(state: State, inputs: tuple[Input, ...]) -> Decision:
    """Commit inputs as user messages, one each, in the order of their arrival."""
    run = get_run(state)
    messages = tuple(drafts.draft_user_message(state, run, unread.content, unread) for unread in inputs)
    return Decision(replace(state, inbox=tuple(i for i in state.inbox if i not in inputs)), messages)


def _ask_again(state: State, problem: str, at: Moment) -> Decision:
    """Ask the model to correct an answer that violates `output_schema`."""
    number = state.inputs + 1
    prompt = f"Your answer is not of the form asked for: {problem}\nAnswer again with nothing but JSON of that form."
    request = Input(f"input-{number}", "repair", prompt, "terminal", "drop", "repair")
    return _commit_inputs(replace(state, inputs=number), (request,)).then(call_model, at)
