"""What a user's hooks check, and when: the effects that ask them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Literal

from clew_workflows.contract.hooks import HookPoint
from clew_workflows.protocol import CheckedItem, RunHooks
from clew_workflows.session import tool_rounds
from clew_workflows.session.state import Checking, Decision, Input, Request, RequestedCall, Run, State


def check_request(state: State, request: Request, *, compares: bool) -> Decision:
    """Have the hooks check the message of a request, or the inputs of a follow-up run. It waits in the queue."""
    if request.message is None:
        items = tuple(map(_describe_input, request.inputs))
    else:
        items = (CheckedItem(text=request.content, metadata=request.metadata or None),)
    effect = RunHooks(
        point="request",
        request_id=request.request_id,
        items=items,
        hooks=state.hooks if compares else None,
    )
    return Decision(replace(state, queue=(request, *state.queue), phase="checking"), (), effect)


def list_unchecked_inputs(state: State, inputs: Sequence[Input]) -> tuple[Input, ...]:
    """List the inputs that the hooks have to check before they are committed."""
    return tuple(unread for unread in inputs if not unread.checked) if "request" in state.hooks else ()


def check_inputs(state: State, run: Run, inputs: Sequence[Input], step: Literal["inputs", "reply"]) -> Decision:
    """Have the hooks check inputs of the run. `step` says what follows: a model call, or what follows a reply."""
    checking = Checking(step, tuple(unread.input_id for unread in inputs))
    return _check(state, run, checking, "request", tuple(map(_describe_input, inputs)))


def check_committed(state: State, run: Run) -> Decision:
    """Have the hooks check the messages that the run has committed already. They read them from the thread."""
    items = (CheckedItem(seq=run.opened_seq, run_id=run.run_id),)
    return _check(state, run, Checking("committed"), "request", items)


def list_unchecked_calls(state: State, run: Run) -> tuple[RequestedCall, ...]:
    """List the ready calls of the round that the hooks have to check before they are run."""
    if "tool" not in state.hooks:
        return ()
    return tuple(call for call in tool_rounds.list_ready(run.tool_calls) if not call.checked)


def check_tools(state: State, run: Run, calls: Sequence[RequestedCall]) -> Decision:
    """Have the hooks check calls of a round, with the arguments that a person may have edited."""
    items = tuple(
        CheckedItem(tool_call_id=call.tool_call_id, name=call.name, arguments=call.arguments) for call in calls
    )
    return _check(state, run, Checking("tools", tuple(call.tool_call_id for call in calls)), "tool", items)


def needs_answer_check(state: State, run: Run) -> bool:
    """Whether the hooks have to check the answer of the run before it is returned."""
    return "answer" in state.hooks and run.answer_seq is not None and run.answer_seq != run.checked_seq


def check_answer(state: State, run: Run) -> Decision:
    """Have the hooks check the answer of a run. They read it from the thread."""
    return _check(state, run, Checking("answer"), "answer", (CheckedItem(seq=run.answer_seq),))


def _check(state: State, run: Run, checking: Checking, point: HookPoint, items: tuple[CheckedItem, ...]) -> Decision:
    run = replace(run, checking=checking)
    effect = RunHooks(point=point, request_id=run.request.request_id, items=items)
    return Decision(replace(state, run=run, phase="checking"), (), effect)


def _describe_input(unread: Input) -> CheckedItem:
    return CheckedItem(kind=unread.kind, text=unread.content, metadata=unread.metadata or None)
