"""Approvals: tool calls that wait for a person's decision, without a time limit."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from clew.contract import ApprovalInput
from clew.contract.payloads import ApprovalPayload
from clew.contract.sizes import MAX_EDITED_ARGUMENTS_BYTES
from clew.errors import AlreadyResolved, InvalidInput, TooLarge, UnknownApproval
from clew.model.canonical import canonicalize
from clew.thread.entries import Draft
from clew.thread.thread import Thread
from clew_workflows.core import drafts, tool_rounds
from clew_workflows.core.argument_schemas import find_argument_problem
from clew_workflows.core.calls import RequestedCall
from clew_workflows.core.decision import Decision
from clew_workflows.core.run import Run
from clew_workflows.core.state import State, get_run
from clew_workflows.protocol import ToolAnswered


def list_pending(state: State) -> tuple[RequestedCall, ...]:
    """List the tool calls that wait for a person's decision."""
    run = state.run
    # The calls of a reply that is the last of its run wait for nothing: they are not run.
    is_checking = run is not None and run.checking is not None and run.checking.step == "tools"
    if run is None or not (state.phase == "awaiting_approval" or is_checking):
        return ()
    return tool_rounds.list_unapproved(run.tool_calls)


def resolve_approval(state: State, thread: Thread, command: ApprovalInput) -> Decision:
    """Approve or deny a tool call.

    Raises:
        AlreadyResolved: The call has been approved or denied before.
        InvalidInput: The edited arguments violate the tool's schema, or the decision is `deny` and has arguments.
        TooLarge: The edited arguments of the round would have over 512 KiB together.
        UnknownApproval: No approval is pending for the call.
    """
    call = _find_pending(state, thread, command.tool_call_id)
    _check_arguments(state, call, command)
    run = get_run(state)
    payload = ApprovalPayload.from_json(command.model_dump())
    approval = Draft(payload, drafts.make_run_refs(state, run) | {"tool_call_id": command.tool_call_id})
    if command.decision == "deny":
        denied = ToolAnswered(content=f"denied: {command.reason or 'no reason was given'}", is_error=True)
        decision = tool_rounds.commit_result(state, run, call, denied).prepend(approval)
    else:
        decision = Decision(replace(state, run=_approve(run, call, command.arguments)), (approval,))
    return decision


def _find_pending(state: State, thread: Thread, tool_call_id: str) -> RequestedCall:
    for call in list_pending(state):
        if call.tool_call_id == tool_call_id:
            return call
    if thread.find_approval(tool_call_id):
        raise AlreadyResolved(f"tool call {tool_call_id!r} has been approved or denied before")
    raise UnknownApproval(f"no approval is pending for tool call {tool_call_id!r}")


def _check_arguments(state: State, call: RequestedCall, command: ApprovalInput) -> None:
    if command.arguments is None:
        return
    if command.decision == "deny":
        raise InvalidInput("arguments: a denied call has none to edit")
    schema = tool_rounds.get_tool(state, call.name).spec["parameters"]
    if problem := find_argument_problem(command.arguments, schema):
        raise InvalidInput(f"arguments: {problem}")
    calls = _approve(get_run(state), call, command.arguments).tool_calls
    size = sum(len(canonicalize(edited.arguments)) for edited in calls if edited.edited)
    if size > MAX_EDITED_ARGUMENTS_BYTES:
        raise TooLarge(
            f"the edited arguments of this round would have {size} bytes together, at most "
            f"{MAX_EDITED_ARGUMENTS_BYTES} are taken"
        )


def _approve(run: Run, call: RequestedCall, arguments: dict[str, Any] | None) -> Run:
    approved = replace(call, needs_approval=False)
    if arguments is not None and arguments != call.arguments:
        approved = replace(approved, arguments=arguments, edited=True)
    return replace(run, tool_calls=tuple(approved if other is call else other for other in run.tool_calls))
