"""What follows when a user's hooks have checked a message, a round of tool calls, or an answer."""

from __future__ import annotations

from dataclasses import replace

from clew.outcomes import Usage
from clew.thread.entries import Draft
from clew_workflows.core import closing, drafts, operations, runs, tool_rounds
from clew_workflows.core.decision import Decision
from clew_workflows.core.run import Input, Request, Run
from clew_workflows.core.state import Moment, State, get_run
from clew_workflows.protocol import Failure, HooksAnswered, ToolAnswered


def take_answer(state: State, answer: HooksAnswered, at: Moment) -> Decision:
    """Continue what waited for the hooks, without what they have refused."""
    run = state.run
    if run is None:
        return _take_request_answer(state, answer, at)
    match run.checking.step if run.checking else None:
        case "tools":
            return _take_tool_answer(state, run, answer).then(runs.start_tools, at)
        case "answer":
            (reason,) = answer.refusals
            if reason is None:
                checked = replace(state, run=replace(run, checked_seq=run.answer_seq, checking=None))
                return runs.follow_reply(checked, at)
            refused = replace(state, run=replace(run, answer_seq=None))
            return runs.fail_run(refused, _make_refusal(reason), at)
        case "committed":
            (reason,) = answer.refusals
            if reason is None:
                return runs.resume_run(replace(state, run=replace(run, unchecked=False, checking=None)), at)
            return runs.fail_run(state, _make_refusal(reason), at)
        case "inputs":
            return _take_input_answer(state, run, answer).then(runs.call_model, at)
        case _:
            return _take_input_answer(state, run, answer).then(runs.follow_reply, at)


def take_failure(state: State, failure: Failure, at: Moment) -> Decision:
    """Fail the request whose message, calls or answer could not be checked: nothing passes unchecked."""
    message = failure.message if failure.type == "hook_failed" else f"{failure.type}: {failure.message}"
    failure = Failure(type="hook_failed", message=message, retryable=True)
    if state.run:
        return runs.fail_run(state, failure, at)
    state = replace(state, phase="idle")
    if not state.queue:
        return _continue(state, at)
    return _fail_request(state, state.queue[0], failure, at).then(_continue, at)


def prepare_again(state: State) -> Decision:
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
            return opened.then(lambda state, at: runs.open_run(state, remaining, at, checked=True), at)
    elif not refusals:
        return runs.open_run(replace(state, queue=state.queue[1:]), request, at, checked=True)
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
    unread = closing.leave_unread(replace(state, queue=queue), run, failure.type, "follow_up")
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
    return operations.apply_deferred(state, at).then(runs.open_next_run, at)
