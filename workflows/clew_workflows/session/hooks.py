"""A user's hooks: the effects that have them check something, and what their answers leave of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Literal

from clew_workflows.contract.content import Content, get_text, list_media
from clew_workflows.contract.hooks import HookPoint
from clew_workflows.protocol import CheckedItem, Failure, HooksAnswered, RunHooks, ToolAnswered
from clew_workflows.session import drafts, tool_rounds
from clew_workflows.session.state import (
    Answer,
    Checking,
    Decision,
    Ending,
    Input,
    Request,
    RequestedCall,
    Run,
    State,
    get_run,
)
from clew_workflows.thread.entries import Draft


def check_request(state: State, request: Request, *, compares: bool) -> Decision:
    """Have the hooks check the message of a request, or the inputs of a follow-up run. It waits in the queue."""
    if request.message is None:
        items = tuple(map(_describe_input, request.inputs))
    else:
        items = (_describe("message", request.content, request.metadata),)
    effect = RunHooks(
        point="request",
        request_id=request.request_id,
        items=items,
        hooks=state.settings.hooks if compares else None,
    )
    return Decision(replace(state, queue=(request, *state.queue), phase="checking"), (), effect)


def check_inputs(
    state: State, run: Run, inputs: Sequence[Input], step: Literal["inputs", "reply"]
) -> Decision | None:
    """Have the hooks check inputs of the run before they are committed; None: none of them is unchecked.

    `step` says what follows: a model call, or what follows a reply.
    """
    unchecked = [unread for unread in inputs if not unread.checked] if "request" in state.settings.hooks else []
    if not unchecked:
        return None
    checking = Checking(step, tuple(unread.input_id for unread in unchecked))
    return _check(state, run, checking, "request", tuple(map(_describe_input, unchecked)))


def check_committed(state: State, run: Run) -> Decision:
    """Have the hooks check the messages that the run has committed already. They read them from the thread."""
    items = (CheckedItem(seq=run.opened_seq, run_id=run.run_id),)
    return _check(state, run, Checking("committed"), "request", items)


def list_unchecked_calls(state: State, run: Run) -> tuple[RequestedCall, ...]:
    """List the ready calls of the round that the hooks have to check before they are run."""
    if "tool" not in state.settings.hooks:
        return ()
    return tuple(call for call in tool_rounds.list_ready(run.tool_calls) if not call.checked)


def check_tools(state: State, run: Run, calls: Sequence[RequestedCall]) -> Decision:
    """Have the hooks check calls of a round, with the arguments that a person may have edited."""
    items = tuple(
        CheckedItem(tool_call_id=call.tool_call_id, name=call.name, arguments=call.arguments) for call in calls
    )
    return _check(state, run, Checking("tools", tuple(call.tool_call_id for call in calls)), "tool", items)


def check_answer(state: State, run: Run) -> Decision:
    """Have the hooks check the answer of a run. They read it from the thread."""
    return _check(state, run, Checking("answer"), "answer", (CheckedItem(seq=run.answer.seq),))


def take_input_answer(state: State, run: Run, answer: HooksAnswered) -> Decision:
    """Drop the refused inputs. A message that had joined the run gets an outcome of its own."""
    reasons = dict(zip(run.checking.item_ids if run.checking else (), answer.refusals, strict=True))
    refused = [(unread, reason) for unread in state.inbox if (reason := reasons.get(unread.input_id)) is not None]
    dropped = [unread for unread, _ in refused]
    kept = tuple(
        replace(unread, checked=unread.checked or unread.input_id in reasons)
        for unread in state.inbox
        if unread not in dropped
    )
    # They share the run, and not its answer.
    unanswered = replace(run, answer=Answer())
    outcomes = tuple(
        drafts.draft_run(
            unanswered,
            unread.request_id,
            Ending("failed", "refused_by_hook", failure=make_refusal(reason)),
        )
        for unread, reason in refused
        if unread.request_id
    )
    entries = tuple(draft_refused(unread, reason, answer) for unread, reason in refused)
    leaving = {unread.request_id for unread in dropped}
    joined = tuple(request_id for request_id in run.joined if request_id not in leaving)
    run = replace(run, joined=joined, checking=None)
    return Decision(replace(state, run=run, inbox=kept), (*entries, *outcomes))


def take_tool_answer(state: State, run: Run, answer: HooksAnswered) -> Decision:
    """Commit a result for each refused call: the model reads the reason, as of a denied approval."""
    checked_ids = run.checking.item_ids if run.checking else ()
    calls = tuple(
        replace(call, checked=True) if call.tool_call_id in checked_ids else call for call in run.tool_calls
    )
    checked = [call for call in calls if call.tool_call_id in checked_ids]
    decision = Decision(replace(state, run=replace(run, tool_calls=calls, checking=None)))
    for call, reason in zip(checked, answer.refusals, strict=True):
        if reason is not None:
            result = ToolAnswered(content=f"refused: {reason}", is_error=True)
            committed = tool_rounds.commit_result(decision.state, get_run(decision.state), call, result)
            decision = committed.prepend(*decision.commit)
    return decision


def draft_refused(unread: Input, reason: str, answer: HooksAnswered) -> Draft:
    """Draft the `input` entry of an input that the hooks have refused."""
    return drafts.draft_unread(unread, "rejected", f"refused_by_hook: {reason}", answer.request_id)


def make_refusal(reason: str) -> Failure:
    """Make the failure of a request that the hooks have refused."""
    return Failure(type="refused_by_hook", message=reason)


def _check(state: State, run: Run, checking: Checking, point: HookPoint, items: tuple[CheckedItem, ...]) -> Decision:
    run = replace(run, checking=checking)
    effect = RunHooks(point=point, request_id=run.request.request_id, items=items)
    return Decision(replace(state, run=run, phase="checking"), (), effect)


def _describe_input(unread: Input) -> CheckedItem:
    return _describe(unread.kind, unread.content, unread.metadata)


def _describe(kind: str, content: Content, metadata: dict[str, str] | None) -> CheckedItem:
    return CheckedItem(kind=kind, text=get_text(content), media=list_media(content), metadata=metadata or None)
