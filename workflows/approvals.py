"""Approvals: tool calls that wait for somebody's word, for as long as that takes."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from clew.contract import ApprovalInput
from clew.entries import Draft
from clew.errors import AlreadyResolved, InvalidInput, UnknownApproval
from clew.thread import Thread
from workflows import facts, runs
from workflows.decision import Decision
from workflows.effects import ToolAnswered
from workflows.schemas import problems
from workflows.state import AskedCall, Moment, State


def pending_approvals(state: State) -> tuple[AskedCall, ...]:
    """The tool calls that wait for somebody's word."""
    if state.phase != "awaiting_approval" or state.run is None:
        return ()
    return tuple(call for call in state.run.asked if call.needs_approval and call.answer is None)


def check(state: State, thread: Thread, given: ApprovalInput) -> None:
    """Refuse a decision about what is not pending, or with arguments that the tool does not take.

    Raises:
        AlreadyResolved, InvalidInput, UnknownApproval: as their words say.
    """
    call = next((call for call in pending_approvals(state) if call.tool_call_id == given.tool_call_id), None)
    if call is None:
        if thread.approval_of(given.tool_call_id):
            raise AlreadyResolved(f"tool call {given.tool_call_id!r} has been decided upon")
        raise UnknownApproval(f"no approval is pending for tool call {given.tool_call_id!r}")
    if given.arguments is None:
        return
    if given.decision == "deny":
        raise InvalidInput("arguments: a denied call has none to edit")
    schema = next(tool.spec["parameters"] for tool in state.tools or () if tool.spec["name"] == call.name)
    try:
        problem = next(problems(given.arguments, schema), None)
    except ValueError as error:
        problem = str(error)
    if problem:
        raise InvalidInput(f"arguments: {problem}")


def resolve(state: State, given: ApprovalInput, at: Moment) -> Decision:
    """Somebody's word about a tool call; the last one that was waited for lets the round run."""
    run = runs.running(state)
    payload: dict[str, Any] = given.model_dump(exclude_none=True)
    fact = Draft("approval", payload, facts.run_refs(state, run) | {"tool_call_id": given.tool_call_id})
    denied = f"denied: {given.reason or 'no reason was given'}"
    asked = tuple(
        call
        if call.tool_call_id != given.tool_call_id
        else replace(
            call,
            arguments=call.arguments if given.arguments is None else given.arguments,
            answer=ToolAnswered(content=denied, is_error=True) if given.decision == "deny" else None,
            needs_approval=False,
        )
        for call in run.asked
    )
    state = replace(state, run=replace(run, asked=asked))
    if pending_approvals(state):
        return Decision(state, (fact,))
    # People take their time, which is not the request's.
    waited = 0.0 if run.paused_at is None else at.time - run.paused_at
    resumed = replace(run, asked=asked, deadline=run.deadline + waited, paused_at=None)
    return Decision(replace(state, run=resumed), (fact,)).then(runs.run_tools, at)
