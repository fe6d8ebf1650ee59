"""The run, which is the ReAct loop: model call, tool calls, model call, … until it ends, and what follows its end.

The way of a run, in the order of the functions:

1. `open_run` commits the request's message, once hooks have checked it (`take_check_answer`).
2. `call_model` commits the inputs that wait, and makes the model call.
3. `take_reply` commits the reply. Without tool calls `follow_reply` ends the run, or goes on for inputs.
4. `start_tools` begins the tool calls that may begin. The others wait for people (`outside`).
5. `proceed` says what follows a result, wherever it comes from: the next calls, or the next model call (2.).
6. `end_run` ends the run, and `open_next_run` begins what waits for its end.

Sections after these: calls that are repeated or stopped, the close of a run, and what follows the answers of hooks.
Only this module says what comes next; the modules below it return their own decisions.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Literal

from clew_workflows.contract import ConfigureInput
from clew_workflows.contract.content import Content, is_empty, list_media, name_part
from clew_workflows.contract.errors import Refusal
from clew_workflows.contract.payloads import MARKED, Refused, Retried
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
)
from clew_workflows.session import (
    budgets,
    configuration,
    drafts,
    hooks,
    named_blobs,
    operations,
    requests,
    subagents,
    summaries,
    tool_rounds,
)
from clew_workflows.session.state import (
    Clock,
    Decision,
    Ending,
    FollowingSettings,
    Input,
    Moment,
    Request,
    Run,
    Settings,
    State,
    get_run,
)
from clew_workflows.thread.entries import Draft

MAX_CORRECTIONS = 3
"""Most times that a run asks for an answer of the form of its `output_schema` again."""
MAX_CUT_REPLIES = 3
"""Replies in a row that end within a tool call, after which the run fails: each of them was paid for."""


def open_next_run(state: State, at: Moment) -> Decision:
    """Open the run of the first request in the queue, if the session is idle."""
    if state.run or state.phase != "idle" or not state.queue:
        return Decision(state)
    return open_run(replace(state, queue=state.queue[1:]), at, state.queue[0])


def open_run(
    state: State,
    at: Moment,
    request: Request,
    *,
    is_new: bool = False,
    prepared_now: bool = False,
    checked: bool = False,
) -> Decision:
    """Open a run: its messages are committed before any model is called. Hooks check them first.

    If the configuration could not be resolved, a worker is asked to resolve it again first: workers may have been
    updated.

    Args:
        state: The session's state, without the request in its queue.
        at: The moment of the decision.
        request: The request.
        is_new: Its settings have just been resolved. They are resolved again otherwise.
        prepared_now: A worker has just answered, so that the run fails at once if the configuration has a problem.
        checked: The hooks have accepted the messages.
    """
    if "request" in state.settings.hooks and not checked:
        return hooks.check_request(state, request, compares=not prepared_now)
    problem = state.settings.problem if prepared_now else None
    try:
        request = request if is_new else requests.renew_request(state, request)
    except Refusal as refusal:
        problem = Failure(type=refusal.type, message=refusal.message)
    counters = replace(state.counters, runs=state.counters.runs + 1)
    run = Run(
        f"run-{counters.runs}",
        request,
        Clock(at.time + request.timeout_seconds),
        opened_seq=at.rev,
        settings_seq=at.rev,
    )
    call_id = counters.next_call_id
    if request.inputs:
        messages = tuple(drafts.draft_user_message(run, unread, call_id) for unread in request.inputs)
    else:
        given = drafts.draft_replies(run, counters.tool_calls)
        messages = (drafts.draft_request_message(run, call_id), *given)
        made = sum(len(reply.tool_calls or ()) for reply in (request.message and request.message.replies) or ())
        counters = replace(counters, tool_calls=counters.tool_calls + made)
    run = _note_media(run, [unread.content for unread in request.inputs] or [request.content])
    opened = Decision(replace(state, counters=counters, run=run), messages)
    if problem:
        return opened.then(fail_run, at, problem)
    # The model gets `view_blob` with the first message that has media.
    lacks_viewer = not state.settings.has_viewer and (state.has_media or requests.has_media(request))
    prepares = state.settings.problem or (lacks_viewer and not prepared_now)
    opened = replace(opened, state=replace(opened.state, has_media=True)) if lacks_viewer else opened
    return opened.then(_prepare if prepares else call_model, at)


def prepare_again(state: State, at: Moment, outdated: Outdated) -> Decision:
    """Have a worker resolve the configuration, because the one that was asked has another deployment or other hooks.

    No model was called: the call that follows has the same number.
    """
    if state.phase == "checking":
        return Decision(replace(state, phase="preparing"), (), state.preparation)
    unchecked = "request" in outdated.hooks and "request" not in state.settings.hooks
    run = replace(get_run(state), call=None, iteration=0, unchecked=unchecked)
    counters = replace(state.counters, calls=state.counters.calls - 1)
    return _prepare(replace(state, run=run, counters=counters), at)


def _prepare(state: State, _at: Moment) -> Decision:
    run = get_run(state)
    run = replace(run, tried=replace(run.tried, prepared=True))
    return Decision(replace(state, run=run, phase="preparing"), (), state.preparation)


def resume_run(state: State, at: Moment) -> Decision:
    """Make the run's next model call, under the request's settings as they are now.

    They are resolved again, because the configuration has been prepared, a worker has described the model, or the
    model had an outage.
    """
    run = get_run(state)
    try:
        request = requests.renew_request(state, run.request, run.tried.failed_models)
    except Refusal as refusal:
        return fail_run(state, at, Failure(type=refusal.type, message=refusal.message))
    deadline = run.clock.deadline + request.timeout_seconds - run.request.timeout_seconds
    run = replace(run, request=request, clock=replace(run.clock, deadline=deadline))
    return call_model(replace(state, run=run), at)


def take_profile(state: State, at: Moment, profile: ModelProfile) -> Decision:
    """Take a worker's description of the request's model, and call the model."""
    return resume_run(replace(state, settings=requests.remember_profile(state.settings, profile)), at)


def _follow_settings(state: State, at: Moment, following: FollowingSettings) -> Decision:
    """Go on with the settings that came with a result or a decision. A worker resolves another agent first."""
    run, agent = get_run(state), following.settings.agent
    request = requests.continue_request(run.request, following.settings)
    tried = replace(run.tried, shortened=False, failed_models=())
    run = replace(run, request=request, settings_seq=following.seq, following=None, tried=tried)
    state = replace(state, run=run)
    if agent in (None, state.settings.config.agent):
        return resume_run(state, at)
    settings = configuration.change_settings(state.settings, ConfigureInput(agent=agent))
    return _prepare(replace(state, settings=replace(settings, due=True)), at)


def call_model(state: State, at: Moment) -> Decision:
    """Make the run's next model call, or the one that repeats a failed one.

    A worker describes an unknown model first. Then the inputs that wait for the next step are committed, which the
    hooks check before.
    """
    run, settings = get_run(state), state.settings
    if run.following:
        return _follow_settings(state, at, run.following)
    # The preparation has answered the profile of the configuration's model.
    if not run.describing and run.request.model not in (settings.model, *settings.profiles):
        run = replace(run, describing=True)
        return Decision(replace(state, run=run, phase="preparing"), (), DescribeModel(model=run.request.model))
    steps = () if run.tried.repeats else tuple(unread for unread in state.inbox if unread.at == "step")
    if not steps:
        return _make_call(state, at)
    return hooks.check_inputs(state, run, steps, "inputs") or _commit_inputs(state, steps).then(_make_call, at)


def _make_call(state: State, at: Moment) -> Decision:
    run, settings = get_run(state), state.settings
    max_tokens, max_cost = budgets.find_limits(state)
    if problem := budgets.find_reached_limit(max_tokens, max_cost, state.spent):
        return fail_run(state, at, problem)
    if at.time >= run.clock.deadline:
        return fail_run(state, at, make_timeout(run, ", ".join(run.timed_out_calls)))
    request, newest, learned = run.request, run.call, settings.learned.get(run.request.model)
    failed = newest if run.tried.repeats else None
    # The first call of a run brings the tools that the others have, too.
    is_first = newest is None
    compares = is_first and not run.tried.prepared
    call = CallModel(
        request_id=request.request_id,
        run_id=run.run_id,
        call_id=state.counters.next_call_id,
        iteration=failed.iteration if failed else run.iteration + 1,
        context_ref=request.context_ref,
        at_seq=at.rev - 1,
        model=request.model,
        options=request.options,
        provider_tools=request.provider_tools,
        context_policy=budgets.make_call_policy(settings, request),
        token_ratio=learned.ratio if learned and learned.ratio > 1 else None,
        encoding=settings.config.encoding,
        earlier_tool_calls=state.counters.tool_calls,
        priced=max_cost is not None,
        deployment=settings.deployment if compares and not settings.keeps_agent else None,
        hooks=settings.hooks if compares else None,
        checks=settings.hooks if is_first and run.tried.prepared else None,
        limited=settings.limited if compares else None,
        parent_call_id=failed.parent_call_id if failed else newest and newest.call_id,
        has_fallback=bool(request.fallbacks),
        refused=settings.refused.get(request.model, ()),
        refuses_content=request.policy.unsupported_content == "refuse",
    )
    tried = replace(run.tried, repeats=False)
    run = replace(run, describing=False, iteration=call.iteration, call=call, tool_calls=(), tried=tried)
    counters = replace(state.counters, calls=state.counters.calls + 1)
    return Decision(replace(state, run=run, counters=counters, phase="awaiting_model"), (), call)


def call_elsewhere(state: State, declined: Declined) -> Decision:
    """Have a worker for model calls make the call that a worker for sessions has declined."""
    run = get_run(state)
    assert run.call is not None, "a run whose call is declined has one"
    call = run.call.model_copy(update={"declined": True})
    settings = replace(state.settings, calls_models=declined.calls_models)
    return Decision(replace(state, run=replace(run, call=call), settings=settings), (), call)


_REASONS = {"length": "max_output_tokens", "paused": "max_iterations"}
"""The termination reasons of runs whose last reply stopped early."""


def take_reply(state: State, at: Moment, answer: ModelAnswered) -> Decision:
    """Commit a reply. If it has tool calls they are next; else the run ends, unless an input waits."""
    run, reply, usage = get_run(state), answer.reply, answer.usage
    calls = tool_rounds.open_calls(state, run, reply) if reply.tool_calls else []
    round_calls = tuple(call for call, _ in calls)
    message = drafts.draft_assistant_message(run, answer, round_calls)
    refusals = _draft_refusals(run, answer)
    refused = tuple(drafts.draft_tool_message(run, call, result) for call, result in calls if result)
    # Of a request with an `output_schema`, text beside tool calls is no answer: no worker has validated it.
    answers = run.request.output_schema is None or not reply.tool_calls
    seq = at.rev + len(refusals)
    newest = replace(
        run.answer,
        seq=seq if reply.content and answers else run.answer.seq,
        first_seq=run.answer.first_seq if run.answer.is_paused else seq,
        is_paused=reply.stop_reason == "paused" and not calls,
        reason=_REASONS.get(reply.stop_reason, "final_answer"),
        schema_problem=answer.schema_problem if answers else run.answer.schema_problem,
    )
    cut_replies = run.tried.cut_replies + 1 if any(tool.cut for tool in reply.tool_calls) else 0
    marked = {
        name: text for name, text in (answer.fitting.media if answer.fitting else {}).items() if name in run.media
    }
    unread = {name: text.removeprefix(MARKED) for name, text in marked.items() if text.startswith(MARKED)}
    run = replace(
        run,
        unread=run.unread | unread,
        spent=run.spent.add(usage),
        answer=newest,
        tool_calls=round_calls,
        tried=replace(run.tried, cut_replies=cut_replies),
    )
    due = run.request.context_ref if answer.needs_summary and state.settings.policy.writes_summaries else None
    state = replace(
        state,
        run=run,
        settings=_note_reply(state.settings, run, answer),
        spent=state.spent.add(usage),
        counters=replace(
            named_blobs.count_content(state.counters, reply.content),
            tool_calls=state.counters.tool_calls + len(calls),
        ),
        summaries=replace(state.summaries, due=due),
    )
    committed = Decision(state, (*refusals, message, *refused))
    if cut_replies >= MAX_CUT_REPLIES:
        return committed.then(fail_run, at, _make_cut_failure(run))
    if reply.stop_reason == "paused" and not run.is_exhausted:
        # No input may stand between the parts of the reply.
        return committed.then(_make_call, at)
    return committed.then(start_tools if calls and not run.is_exhausted else follow_reply, at)


def _note_reply(settings: Settings, run: Run, answer: ModelAnswered) -> Settings:
    """Learn from a reply: how its provider counts, and what it refuses."""
    if run.call is None:
        return settings
    if answer.request and answer.request.refused:
        refused = budgets.learn_refused(settings.refused, run.call.model, answer.request.refused)
        settings = replace(settings, refused=refused)
    is_complete = answer.reply.stop_reason != "interrupted"
    return budgets.note_reply(settings, run, answer) if is_complete else settings


def _draft_refusals(run: Run, answer: ModelAnswered) -> tuple[Draft, ...]:
    """Draft an `error` entry for each reason for which the provider has refused items during the call."""
    if run.call is None or not (answer.request and answer.request.refused):
        return ()
    again = Retried(call_id=run.call.call_id, model=run.call.model)
    return tuple(
        drafts.draft_error(
            run, Failure(type="item_refused", message=refused.reason, details={"refused": refused.as_dict()}), again
        )
        for refused in budgets.list_new_refusals(run.call, answer.request.refused)
    )


def follow_reply(state: State, at: Moment) -> Decision:
    """Commit the inputs that wait for the answer, have a wrong answer corrected, or end the run."""
    run = get_run(state)
    if run.is_exhausted and (run.tool_calls or state.inbox):
        return _complete(state, at, "max_iterations")
    if state.inbox:
        checked = hooks.check_inputs(state, run, state.inbox, "reply")
        return checked or _commit_inputs(state, state.inbox).then(call_model, at)
    may_correct = len(run.tried.corrections) < MAX_CORRECTIONS and not run.is_exhausted
    if run.answer.schema_problem is not None and may_correct:
        return _ask_again(state, at, run.answer.schema_problem)
    return _complete(state, at, run.answer.reason)


def _complete(state: State, at: Moment, reason: str) -> Decision:
    """End the run as completed, once the hooks have accepted its answer.

    It fails instead if its request has an `output_schema` and no answer that meets it.
    """
    run = get_run(state)
    answer = run.answer
    if run.request.output_schema is not None and (answer.seq is None or answer.schema_problem is not None):
        problem = answer.schema_problem or "the model asked for tools in its last call and has not answered"
        message = f"the answer is not what output_schema asks for: {problem}"
        return fail_run(state, at, Failure(type="invalid_output", message=message, retryable=True))
    if "answer" in state.settings.hooks and answer.seq not in (None, answer.checked_seq):
        return hooks.check_answer(state, run)
    return end_run(state, at, Ending("completed", reason))


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
        return hooks.check_tools(state, replace(run, clock=run.clock.resume(at.time)), unchecked)
    run = tool_rounds.open_outside(state, run, at)
    return subagents.open_children(replace(state, run=run)).then(_begin_calls, at)


def _begin_calls(state: State, at: Moment) -> Decision:
    run = get_run(state)
    effect = tool_rounds.make_effect(state, run)
    if effect is None:
        return _continue_round(state, at)
    run = replace(run, clock=run.clock.resume(at.time))
    return Decision(replace(state, run=run, phase=_name_wait(run)), (), effect)


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
        return call_model(replace(state, run=replace(run, clock=run.clock.resume(at.time))), at)
    if any(call.is_running for call in run.tool_calls):
        return Decision(replace(state, phase=_name_wait(run)))
    if tool_rounds.list_ready(run.tool_calls):
        return start_tools(state, at)
    if run.clock.paused_at is None and at.time >= run.clock.deadline:
        return fail_run(state, at, make_timeout(run, ", ".join(run.timed_out_calls)))
    stopped = replace(run, clock=run.clock.stop(at.time))
    return Decision(replace(state, run=stopped, phase=_name_wait(run)))


def _name_wait(run: Run) -> Literal["awaiting_approval", "awaiting_tools", "awaiting_external"]:
    """Name what a round waits for: people before tools, tools before results from outside."""
    if tool_rounds.list_unapproved(run.tool_calls):
        return "awaiting_approval"
    activities = any(not (call.returned or call.is_outside) for call in run.tool_calls)
    return "awaiting_tools" if activities else "awaiting_external"


def fail_run(state: State, at: Moment, failure: Failure) -> Decision:
    """Commit an `error` entry and end the run as failed."""
    error = Decision(state, (drafts.draft_error(get_run(state), failure),))
    return error.then(end_run, at, Ending("failed", failure.type, failure=failure))


def fail_refused(state: State, at: Moment, failure: Failure) -> Decision:
    """End a run whose model call was refused for its content. Later calls are without the text that was refused."""
    run, value = get_run(state), failure.details.get("refused")
    if run.call is not None and value:
        refused = budgets.learn_refused(state.settings.refused, run.call.model, [Refused.from_json(value)])
        state = replace(state, settings=replace(state.settings, refused=refused))
    return fail_run(state, at, failure)


def end_run(state: State, at: Moment, ending: Ending) -> Decision:
    """End the run, and begin what waits for its end, in this order.

    1. A result is committed for each tool call without one, then the outcome.
    2. The deferred context operations and the deferred configuration are applied.
    3. The next run is opened: the follow-up run of unread inputs, or the first request of the queue. If a message has
       interrupted the run, it is the first, and operations that wait for its own end stay.
    4. A summary that is due is started, if the run has completed and nothing waits.
    """
    run = get_run(state)
    interrupts = ending.status == "cancelled" and ending.reason == "interrupted"
    apply = operations.apply_before_interrupt if interrupts else operations.apply_deferred
    followed = close_run(state, at, ending)
    if state.deferred.operations or state.deferred.config:
        followed = followed.then(apply, at)
    if followed.state.queue:
        followed = followed.then(open_next_run, at)
    if ending.status != "completed" or state.summaries.due is None:
        return followed
    return followed.then(summaries.begin_due, at, drafts.make_run_refs(run) | drafts.make_call_refs(run))


def make_timeout(run: Run, last: str | None = None) -> Failure:
    """Make the failure of a request whose time is over. `last` describes what was being done."""
    message = f"no answer within {run.request.timeout_seconds} seconds"
    return Failure(type="timeout", message=f"{message}: {last}" if last else message, retryable=True)


def _make_cut_failure(run: Run) -> Failure:
    """Make the failure of a request whose model does not keep its tool calls within the limit of a reply."""
    limit = run.request.options.max_output_tokens
    message = (
        f"{run.tried.cut_replies} replies in a row ended within a tool call: raise max_output_tokens ({limit}), or "
        "ask for less at once"
    )
    return Failure(type="max_output_tokens", message=message)


def _commit_inputs(state: State, inputs: tuple[Input, ...]) -> Decision:
    """Commit inputs as user messages, one each, in the order of their arrival."""
    run, call_id = get_run(state), state.counters.next_call_id
    messages = tuple(drafts.draft_user_message(run, unread, call_id) for unread in inputs)
    run = _note_media(run, (unread.content for unread in inputs))
    return Decision(replace(state, run=run, inbox=tuple(i for i in state.inbox if i not in inputs)), messages)


def _note_media(run: Run, contents: Iterable[Content]) -> Run:
    names = (name_part(part) for content in contents for part in list_media(content))
    return replace(run, media=tuple(dict.fromkeys((*run.media, *names))))


def _ask_again(state: State, at: Moment, problem: str) -> Decision:
    """Ask the model to correct an answer that violates `output_schema`."""
    counters = replace(state.counters, inputs=state.counters.inputs + 1)
    prompt = f"Your answer is not of the form asked for: {problem}\nAnswer again with nothing but JSON of that form."
    repair = Input(f"input-{counters.inputs}", "repair", prompt, "terminal", "drop", "repair")
    run = get_run(state)
    corrections = (*run.tried.corrections, (run.answer.first_seq, at.rev))
    run = replace(run, tried=replace(run.tried, corrections=corrections))
    return _commit_inputs(replace(state, run=run, counters=counters), (repair,)).then(call_model, at)


# Repeating a model call that has failed: with a shorter context, or with a fallback.


def shorten_context(state: State, at: Moment, refusal: Failure) -> Decision:
    """Repeat a model call that the provider refused as too long, with a smaller budget, once a run."""
    run = get_run(state)
    call, settings = run.call, state.settings
    budget = None if run.tried.shortened or call is None else budgets.compute_budget_left(run, refusal)
    if call is None or budget is None:
        return fail_run(state, at, refusal)
    again = Retried(call_id=state.counters.next_call_id, model=call.model, budget=budget)
    error = drafts.draft_error(run, refusal, again)
    settings = replace(settings, learned=budgets.learn_refusal(settings.learned, call.model, budget))
    run = replace(run, tried=replace(run.tried, shortened=True, repeats=True))
    return Decision(replace(state, settings=settings, run=run), (error,)).then(call_model, at)


def fall_back(state: State, at: Moment, outage: Failure) -> Decision:
    """Repeat a model call with the request's next fallback, which the run keeps; without one the run fails."""
    run = get_run(state)
    if run.call is None or not run.request.fallbacks:
        return fail_run(state, at, outage)
    again = Retried(call_id=state.counters.next_call_id, model=run.request.fallbacks[0])
    error = drafts.draft_error(run, outage, again)
    failed_models = (*run.tried.failed_models, run.request.model)
    # Another model has another window: its context may be shortened once, too.
    tried = replace(run.tried, failed_models=failed_models, shortened=False, repeats=True)
    return Decision(replace(state, run=replace(run, tried=tried)), (error,)).then(resume_run, at)


# Stopping a model call: what was read of its reply is committed before its run ends.
#
# `stop_run` lets the run end. While a model call is in flight the phase is `stopping`, until `decisions.take_event`
# takes the end of the call: a worker learns of the cancellation with its next heartbeat, and a lost worker is given
# up after the heartbeat timeout. The session takes no other input meanwhile (`Intake`), so that the next decision
# meets a session whose run has ended.


def stop_run(state: State, at: Moment, ending: Ending) -> Decision:
    """End the active run. A model call in flight is stopped first."""
    if state.phase != "awaiting_model":
        return end_run(state, at, ending)
    return Decision(replace(state, run=replace(get_run(state), ending=ending), phase="stopping"))


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
    settings = _note_reply(state.settings, run, answer)
    message, refusals = drafts.draft_assistant_message(run, answer, ()), _draft_refusals(run, answer)
    run, spent = replace(run, spent=run.spent.add(answer.usage)), state.spent.add(answer.usage)
    committed = refusals if is_empty(reply.content) else (*refusals, message)
    return Decision(replace(state, run=run, settings=settings, spent=spent), committed)


# The close of a run: results for its open tool calls, outcomes for its requests, and its unread inputs.


FOLLOW_UP = "followup:"
"""The prefix of the ids of follow-up requests, which the session makes itself."""


def close_run(state: State, at: Moment, ending: Ending) -> Decision:
    """End the run: commit a result for each tool call and an outcome for each request of the run.

    Messages that hooks had to check and have not accepted are withdrawn. Corrections leave the contexts.
    """
    run = get_run(state)
    closers, late = tool_rounds.close_calls(state, run, ending.reason) if run.tool_calls else ((), ())
    worked = subagents.end_work(state, run, at) if state.children or state.assignment else state
    unread = _leave_unread(worked, run, ending) if worked.inbox else Decision(worked)
    waiting = {request.request_id for request in unread.state.queue}
    outcomes = tuple(
        drafts.draft_run(run, request_id, ending)
        for request_id in (run.request.request_id, *run.joined)
        if request_id not in waiting
    )
    withdrawn = (drafts.draft_withdrawal(run),) if run.unchecked else ()
    corrected = drafts.draft_corrected(run)
    ended = replace(unread.state, run=None, phase="idle", late_calls=(*state.late_calls, *late))
    return Decision(ended, (*closers, *withdrawn, *corrected, *unread.commit, *outcomes))


def close_unopened(
    state: State, at: Moment, request: Request, ending: Ending, excerpts: tuple[Draft, ...] = ()
) -> Decision:
    """End a queued request whose run has not begun: commit an excerpt of it with the reason, and its outcome.

    `excerpts`: those of inputs that have reasons of their own.
    """
    counters = replace(state.counters, runs=state.counters.runs + 1)
    run = Run(f"run-{counters.runs}", request, Clock(at.time), at.rev)
    # Without an active run, the waiting inputs belong to the first request of the queue.
    is_next = state.request_id == request.request_id
    queue = tuple(waiting for waiting in state.queue if waiting is not request)
    remaining = replace(state, queue=queue, counters=counters)
    unread = _leave_unread(remaining, run, ending) if is_next and remaining.inbox else Decision(remaining)
    excerpts = excerpts or drafts.draft_unopened(request, ending)
    errors = (drafts.draft_error(run, ending.failure),) if ending.failure else ()
    outcome = drafts.draft_run(run, request.request_id, ending)
    return Decision(unread.state, (*unread.commit, *excerpts, *errors, outcome))


def _leave_unread(state: State, run: Run, ending: Ending) -> Decision:
    """Put the inputs that a run has not read into a follow-up request, which is next, or commit them as dropped."""
    keeps = ending.inputs == "follow_up"
    following = tuple(i for i in state.inbox if keeps and not i.request_id and i.on_failure == "follow_up")
    rejoining = tuple(i for i in state.inbox if keeps and i.request_id)
    dropped = tuple(
        drafts.draft_unread(unread, "dropped", ending.reason)
        for unread in state.inbox
        if unread not in following and unread not in rejoining
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


def take_check_answer(state: State, at: Moment, answer: HooksAnswered) -> Decision:
    """Continue what waited for the hooks, without what they have refused."""
    run = state.run
    if run is None:
        return _take_request_answer(state, at, answer)
    match run.checking.step if run.checking else None:
        case "tools":
            return hooks.take_tool_answer(state, run, answer).then(start_tools, at)
        case "answer":
            (reason,) = answer.refusals
            if reason is None:
                accepted = replace(run.answer, checked_seq=run.answer.seq)
                return follow_reply(replace(state, run=replace(run, answer=accepted, checking=None)), at)
            refused = replace(run, answer=replace(run.answer, seq=None))
            return fail_run(replace(state, run=refused), at, hooks.make_refusal(reason))
        case "committed":
            (reason,) = answer.refusals
            if reason is None:
                return resume_run(replace(state, run=replace(run, unchecked=False, checking=None)), at)
            return fail_run(state, at, hooks.make_refusal(reason))
        case "inputs":
            return hooks.take_input_answer(state, run, answer).then(call_model, at)
        case _:
            return hooks.take_input_answer(state, run, answer).then(follow_reply, at)


def take_check_failure(state: State, at: Moment, failure: Failure) -> Decision:
    """Fail the request whose message, calls or answer could not be checked: nothing passes unchecked."""
    message = failure.message if failure.type == "hook_failed" else f"{failure.type}: {failure.message}"
    failure = Failure(type="hook_failed", message=message, retryable=True)
    if state.run:
        return fail_run(state, at, failure)
    state = replace(state, phase="idle")
    if not state.queue:
        return follow_end(state, at)
    return _fail_request(state, at, state.queue[0], failure)


def follow_end(state: State, at: Moment) -> Decision:
    """Apply what waited for the end of what the session did, and open the next run."""
    return operations.apply_deferred(state, at).then(open_next_run, at)


def _take_request_answer(state: State, at: Moment, answer: HooksAnswered) -> Decision:
    state = replace(state, phase="idle")
    request = state.queue[0] if state.queue else None
    if request is None or request.request_id != answer.request_id:
        # The request was cancelled, or another one interrupts it.
        return follow_end(state, at)
    refusals = [reason for reason in answer.refusals if reason is not None]
    following = replace(state, queue=state.queue[1:])
    if not refusals:
        return open_run(following, at, request, checked=True)
    checked = tuple(zip(request.inputs, answer.refusals, strict=True)) if request.inputs else ()
    entries = tuple(hooks.draft_refused(unread, reason, answer) for unread, reason in checked if reason is not None)
    if kept := tuple(unread for unread, reason in checked if reason is None):
        remaining = replace(request, inputs=kept)
        return Decision(following, entries).then(open_run, at, remaining, checked=True)
    return _fail_request(state, at, request, hooks.make_refusal(refusals[0]), entries)


def _fail_request(
    state: State, at: Moment, request: Request, failure: Failure, excerpts: tuple[Draft, ...] = ()
) -> Decision:
    """Commit what the thread has of a request whose message was not accepted: an excerpt, the error, the outcome."""
    ending = Ending("failed", failure.type, failure=failure)
    return close_unopened(state, at, request, ending, excerpts).then(follow_end, at)
