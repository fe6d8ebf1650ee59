"""The run, which is the ReAct loop: model call, tool calls, model call, … until it ends, and what follows its end.

The way of a run, in the order of the functions:

1. `open_run` commits the request's message, once hooks have checked it (`take_check_answer`), and `start_run` begins.
2. `call_model` reads the inputs that wait, and `start_call` makes the model call.
3. `take_reply` commits the reply. Without tool calls `follow_reply` ends the run, or goes on for inputs.
4. `start_tools` begins the tool calls that may begin. The others wait for people (`outside`).
5. `proceed` says what follows a result, wherever it comes from: the next calls, or the next model call (2.).
6. `finish_run` ends the run, and `open_next_run` begins what waits for its end.

Sections after these: calls that are repeated or stopped, the close of a run, and what follows the answers of hooks.
Only this module says what comes next; the modules below it return their own decisions.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

from clew_workflows.contract.errors import Refusal
from clew_workflows.contract.outcomes import Usage
from clew_workflows.contract.payloads import Retried
from clew_workflows.protocol import (
    CallModel,
    Declined,
    DescribeModel,
    Event,
    Failure,
    HooksAnswered,
    ModelAnswered,
    ModelProfile,
    ModelStopped,
    Outdated,
    ToolAnswered,
    ToolReturned,
)
from clew_workflows.session import budgets, drafts, hooks, operations, requests, subagents, summaries, tool_rounds
from clew_workflows.session.state import (
    Decision,
    Ending,
    Input,
    Moment,
    Request,
    Run,
    State,
    get_run,
    resume_clock,
    stop_clock,
)
from clew_workflows.thread.entries import Draft

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
    if requests.has_profile(state, model):
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
    state = replace(requests.remember_profile(state, profile), run=run)
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
    if problem := budgets.find_reached_limit(state):
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
        priced=budgets.find_cost_limit(state) is not None,
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
    return subagents.open_children(replace(state, run=run), at).then(_begin_calls_of_round, at)


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
    ended = close_run(state, run, status, reason, at, failure=failure, inputs=inputs, explanation=explanation)
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


# Repeating a model call that has failed: with a shorter context, or with a fallback.


def shorten_context(state: State, refusal: Failure, at: Moment) -> Decision:
    """Repeat a model call that the provider refused as too long, with a smaller budget, once a run."""
    run = get_run(state)
    call = run.call
    budget = None if run.tightened or call is None else budgets.compute_budget_left(state, call, refusal)
    if call is None or budget is None:
        return fail_run(state, refusal, at)
    again = Retried(call_id=f"call-{state.calls + 1}", model=call.model, budget=budget)
    error = drafts.draft_error(state, run, refusal, again)
    learned = budgets.learn_refusal(state.learned, call.model, budget)
    state = replace(state, learned=learned, run=replace(run, tightened=True))
    return Decision(state, (error,)).then(lambda state, at: start_call(state, at, instead_of=call), at)


def fall_back(state: State, outage: Failure, at: Moment) -> Decision:
    """Repeat a model call with the request's next fallback, which the run keeps; without one the run fails."""
    run = get_run(state)
    if run.call is None or not run.request.fallbacks:
        return fail_run(state, outage, at)
    again = Retried(call_id=f"call-{state.calls + 1}", model=run.request.fallbacks[0])
    error = drafts.draft_error(state, run, outage, again)
    failed_models = (*run.failed_models, run.request.model)
    # Another model has another window: its context may be shortened once, too.
    state = replace(state, run=replace(run, failed_models=failed_models, tightened=False))
    return Decision(state, (error,)).then(_start_fallback, at)


def _start_fallback(state: State, at: Moment) -> Decision:
    try:
        return start_run(renew_request(state), at)
    except Refusal as refusal:
        return fail_run(state, Failure(type=refusal.type, message=refusal.message), at)


# Stopping a model call: what was read of its reply is committed before its run ends.
#
# `end_run` lets the run end. While a model call is in flight the phase is `stopping`, until `decisions.take_event`
# takes the end of the call: a worker learns of the cancellation with its next heartbeat, and a lost worker is given
# up after the heartbeat timeout. The session takes no other input meanwhile (`Intake`), so that the next decision
# meets a session whose run has ended.


def end_run(state: State, ending: Ending, at: Moment) -> Decision:
    """End the active run. A model call in flight is stopped first."""
    if state.phase != "awaiting_model":
        return finish_stopped_run(state, ending, at)
    run = replace(get_run(state), ending=ending)
    return Decision(replace(state, run=run, phase="stopping"))


def finish_stopped_run(state: State, ending: Ending, at: Moment) -> Decision:
    """End the active run, and begin what waits for its end."""
    return finish_run(
        state,
        "cancelled",
        ending.reason,
        at,
        inputs=ending.inputs,
        explanation=ending.explanation,
        interrupts=ending.reason == "interrupted",
    )


def commit_unfinished(state: State, event: Event) -> Decision:
    """Commit what was read of the reply of a call that has ended otherwise than its run expected.

    A reply that was complete already stays as it is, unless it has tool calls, which are not run. An entry without
    text would show nothing: then only the usage is counted. The text is never the run's answer.
    """
    answer = event.answer if isinstance(event, ModelStopped) else event
    if not isinstance(answer, ModelAnswered):
        return Decision(state)
    run, reply = get_run(state), answer.reply
    if reply.tool_calls:
        bare = {"tool_calls": (), "thinking": None, "provider_data": None, "stop_reason": "interrupted"}
        answer = answer.model_copy(update={"reply": reply.model_copy(update=bare), "tokens": None})
    if run.call and answer.reply.stop_reason != "interrupted":
        state = budgets.note_reply(state, run.call, answer)
    message = drafts.draft_assistant_message(state, run, answer, ())
    used = answer.usage
    state = replace(state, run=replace(run, usage=run.usage.plus(used)), usage=state.usage.plus(used))
    return Decision(state, (message,) if reply.content.strip() else ())


# The close of a run: results for its open tool calls, outcomes for its requests, and its unread inputs.


FOLLOW_UP = "followup:"
"""The prefix of the ids of follow-up requests, which the session makes itself."""


def close_run(
    state: State,
    run: Run,
    status: Literal["completed", "failed", "cancelled"],
    reason: str,
    at: Moment,
    *,
    failure: Failure | None = None,
    inputs: Literal["drop", "follow_up"] = "follow_up",
    explanation: str | None = None,
) -> Decision:
    """End the run: commit a result for each tool call and an outcome for each request of the run.

    Messages that hooks had to check and have not accepted are withdrawn.

    `explanation` is the reason that a caller has sent with a cancellation.
    """
    closers, late = tool_rounds.close_calls(state, run, reason)
    unread = leave_unread(subagents.note_work(subagents.release_children(state), run, at), run, reason, inputs)

    def draft_outcome(request_id: str) -> Draft:
        # One of the requests that shared the run has its usage, so that the sum over requests is right.
        opened = run.request.request_id
        return drafts.draft_run(
            state,
            run,
            request_id,
            status=status,
            reason=reason,
            usage=run.usage if request_id == opened else Usage(shared_with=opened),
            subagent_usage=run.subagent_usage if request_id == opened else Usage(),
            answer_seq=run.answer_seq,
            failure=failure,
            explanation=explanation,
        )

    waiting = {request.request_id for request in unread.state.queue}
    joined = tuple(draft_outcome(joined) for joined in run.joined if joined not in waiting)
    ended = replace(unread.state, run=None, phase="idle", late_calls=(*state.late_calls, *late))
    withdrawn = (drafts.draft_withdrawal(state, run),) if run.unchecked else ()
    outcome = draft_outcome(run.request.request_id)
    return Decision(ended, (*closers, *withdrawn, *unread.commit, outcome, *joined))


def leave_unread(state: State, run: Run, reason: str, inputs: Literal["drop", "follow_up"]) -> Decision:
    """Put the inputs that a run has not read into a follow-up request, which is next, or commit them as dropped."""
    keeps = inputs == "follow_up"
    following = tuple(i for i in state.inbox if keeps and not i.request_id and i.on_failure == "follow_up")
    rejoining = tuple(i for i in state.inbox if keeps and i.request_id)
    dropped = tuple(
        drafts.draft_dropped_input(state, dropped, reason)
        for dropped in state.inbox
        if dropped not in following and dropped not in rejoining
    )
    later = tuple(
        replace(requests.make_request(state, i.joined, i.request_id or ""), tokens=i.tokens)
        for i in rejoining
        if i.joined
    )
    if following:
        later = (requests.make_follow_up(state, f"{FOLLOW_UP}{run.run_id}", following), *later)
    return Decision(replace(state, inbox=(), queue=(*later, *state.queue)), dropped)


# What follows when a user's hooks have checked a message, a round of tool calls, or an answer.


def take_check_answer(state: State, answer: HooksAnswered, at: Moment) -> Decision:
    """Continue what waited for the hooks, without what they have refused."""
    run = state.run
    if run is None:
        return _take_request_answer(state, answer, at)
    match run.checking.step if run.checking else None:
        case "tools":
            return _take_tool_answer(state, run, answer).then(start_tools, at)
        case "answer":
            (reason,) = answer.refusals
            if reason is None:
                checked = replace(state, run=replace(run, checked_seq=run.answer_seq, checking=None))
                return follow_reply(checked, at)
            refused = replace(state, run=replace(run, answer_seq=None))
            return fail_run(refused, _make_refusal(reason), at)
        case "committed":
            (reason,) = answer.refusals
            if reason is None:
                return resume_run(replace(state, run=replace(run, unchecked=False, checking=None)), at)
            return fail_run(state, _make_refusal(reason), at)
        case "inputs":
            return _take_input_answer(state, run, answer).then(call_model, at)
        case _:
            return _take_input_answer(state, run, answer).then(follow_reply, at)


def take_check_failure(state: State, failure: Failure, at: Moment) -> Decision:
    """Fail the request whose message, calls or answer could not be checked: nothing passes unchecked."""
    message = failure.message if failure.type == "hook_failed" else f"{failure.type}: {failure.message}"
    failure = Failure(type="hook_failed", message=message, retryable=True)
    if state.run:
        return fail_run(state, failure, at)
    state = replace(state, phase="idle")
    if not state.queue:
        return _continue(state, at)
    return _fail_request(state, state.queue[0], failure, at).then(_continue, at)


def prepare_for_hooks(state: State) -> Decision:
    """Have a worker resolve the configuration, because the workers' hooks are others than it was resolved with."""
    return Decision(replace(state, phase="preparing"), (), state.preparation)


def _take_request_answer(state: State, answer: HooksAnswered, at: Moment) -> Decision:
    state = replace(state, phase="idle")
    request = state.queue[0] if state.queue else None
    if request is None or request.request_id != answer.request_id:
        # The request was cancelled, or another one interrupts it.
        return _continue(state, at)
    refusals = [reason for reason in answer.refusals if reason is not None]
    if request.message is None:
        kept = tuple(i for i, reason in zip(request.inputs, answer.refusals, strict=True) if reason is None)
        if kept:
            entries = tuple(
                _draft_refused(state, unread, reason, answer)
                for unread, reason in zip(request.inputs, answer.refusals, strict=True)
                if reason is not None
            )
            remaining = replace(request, inputs=kept)
            opened = Decision(replace(state, queue=state.queue[1:]), entries)
            return opened.then(lambda state, at: open_run(state, remaining, at, checked=True), at)
    elif not refusals:
        return open_run(replace(state, queue=state.queue[1:]), request, at, checked=True)
    return _fail_request(state, request, _make_refusal(refusals[0]), at).then(_continue, at)


def _fail_request(state: State, request: Request, failure: Failure, at: Moment) -> Decision:
    """Commit what the thread has of a request whose message was not accepted: an excerpt, the error, the outcome."""
    run = Run(f"run-{state.runs + 1}", request, at.time, at.rev)
    reason = f"{failure.type}: {failure.message}"
    refused = request.inputs or (None,)
    excerpts = tuple(
        drafts.draft_input(
            state,
            "rejected",
            unread.kind if unread else "message",
            reason,
            unread.content if unread else request.content,
            input_id=unread.input_id if unread else None,
            request_id=request.request_id,
        )
        for unread in refused
    )
    error = drafts.draft_error(state, run, failure)
    outcome = drafts.draft_run(
        state, run, request.request_id, status="failed", reason=failure.type, usage=Usage(), failure=failure
    )
    queue = tuple(waiting for waiting in state.queue if waiting is not request)
    # Inputs that waited for this request's run belong to no other.
    unread = leave_unread(replace(state, queue=queue), run, failure.type, "follow_up")
    return Decision(replace(unread.state, runs=state.runs + 1), (*excerpts, *unread.commit, error, outcome))


def _take_input_answer(state: State, run: Run, answer: HooksAnswered) -> Decision:
    """Drop the refused inputs. A message that had joined the run gets an outcome of its own."""
    reasons = dict(zip(run.checking.item_ids if run.checking else (), answer.refusals, strict=True))
    refused = tuple(unread for unread in state.inbox if reasons.get(unread.input_id) is not None)
    kept = tuple(
        replace(unread, checked=unread.checked or unread.input_id in reasons)
        for unread in state.inbox
        if unread not in refused
    )
    outcomes = tuple(
        drafts.draft_run(
            state,
            run,
            unread.request_id,
            status="failed",
            reason="refused_by_hook",
            usage=Usage(shared_with=run.request.request_id),
            failure=_make_refusal(reasons[unread.input_id] or ""),
        )
        for unread in refused
        if unread.request_id
    )
    entries = tuple(_draft_refused(state, unread, reasons[unread.input_id] or "", answer) for unread in refused)
    leaving = {unread.request_id for unread in refused}
    joined = tuple(request_id for request_id in run.joined if request_id not in leaving)
    run = replace(run, joined=joined, checking=None)
    return Decision(replace(state, run=run, inbox=kept), (*entries, *outcomes))


def _draft_refused(state: State, unread: Input, reason: str, answer: HooksAnswered) -> Draft:
    return drafts.draft_input(
        state,
        "rejected",
        unread.kind,
        f"refused_by_hook: {reason}",
        unread.content,
        input_id=unread.input_id,
        request_id=unread.request_id or answer.request_id,
    )


def _take_tool_answer(state: State, run: Run, answer: HooksAnswered) -> Decision:
    """Commit a result for each refused call: the model reads the reason, as of a denied approval."""
    checked_ids = run.checking.item_ids if run.checking else ()
    checked = [call for call in run.tool_calls if call.tool_call_id in checked_ids]
    calls = tuple(
        replace(call, checked=True) if call.tool_call_id in checked_ids else call for call in run.tool_calls
    )
    decision = Decision(replace(state, run=replace(run, tool_calls=calls, checking=None)))
    for call, reason in zip(checked, answer.refusals, strict=True):
        if reason is not None:
            result = ToolAnswered(content=f"refused: {reason}", is_error=True)
            after = decision.state
            committed = tool_rounds.commit_result(after, get_run(after), replace(call, checked=True), result)
            decision = committed.prepend(*decision.commit)
    return decision


def _make_refusal(reason: str) -> Failure:
    return Failure(type="refused_by_hook", message=reason)


def _continue(state: State, at: Moment) -> Decision:
    return operations.apply_deferred(state, at).then(open_next_run, at)
