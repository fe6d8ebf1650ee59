"""Tool calls that wait for people and programs outside: approvals, and results that are submitted."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

from pydantic_core import to_json

from clew_workflows.contract import ApprovalInput, RunSettings, ToolResultInput
from clew_workflows.contract.content import Content, get_text, read_parts
from clew_workflows.contract.errors import (
    AlreadyAnswered,
    AlreadyResolved,
    CallEnded,
    InvalidInput,
    TooLarge,
    UnknownApproval,
    UnknownToolCall,
)
from clew_workflows.contract.limits import MAX_EDITED_ARGUMENTS_BYTES
from clew_workflows.contract.messages import canonicalize, find_data_url
from clew_workflows.contract.outputs import ToolResultReceipt
from clew_workflows.contract.payloads import ApprovalPayload
from clew_workflows.protocol import TOOL_CALL_ID, ToolAnswered
from clew_workflows.session import drafts, requests, subagents, tool_rounds
from clew_workflows.session.state import Decision, Moment, RequestedCall, Run, State, get_run
from clew_workflows.session.tool_rounds import find_argument_problem
from clew_workflows.thread.entries import Draft
from clew_workflows.thread.thread import Thread

# Approvals: tool calls that wait for a person's decision, without a time limit.


def list_pending_approvals(state: State) -> tuple[RequestedCall, ...]:
    """List the tool calls that wait for a person's decision."""
    run = state.run
    # The calls of a reply that is the last of its run wait for nothing: they are not run.
    is_checking = run is not None and run.checking is not None and run.checking.step == "tools"
    if run is None or not (state.phase == "awaiting_approval" or is_checking):
        return ()
    return tool_rounds.list_unapproved(run.tool_calls)


def resolve_approval(state: State, thread: Thread, command: ApprovalInput, at: Moment) -> Decision:
    """Approve or deny a tool call.

    Raises:
        AlreadyResolved: The call has been approved or denied before.
        InvalidInput: The edited arguments violate the tool's schema, the decision is `deny` and has arguments, or the
            settings cannot be used.
        TooLarge: The edited arguments of the round would have over 512 KiB together.
        UnknownApproval: No approval is pending for the call.
    """
    call = _find_pending_approval(state, thread, command.tool_call_id)
    _check_arguments(state, call, command)
    state = requests.note_settings(state, command.settings, at)
    run = get_run(state)
    payload = ApprovalPayload.from_json(command.model_dump(mode="json", exclude_unset=True))
    approval = Draft(payload, drafts.make_run_refs(run) | {"tool_call_id": command.tool_call_id})
    if command.decision == "deny":
        denied = ToolAnswered(content=f"denied: {command.reason or 'no reason was given'}", is_error=True)
        decision = tool_rounds.commit_result(state, run, call, denied).prepend(approval)
    else:
        decision = Decision(replace(state, run=_approve(run, call, command.arguments)), (approval,))
    return decision


def _find_pending_approval(state: State, thread: Thread, tool_call_id: str) -> RequestedCall:
    for call in list_pending_approvals(state):
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


# External calls: tool calls of a round that wait until their results are submitted, or their time is over.


MAX_KNOWN_ANSWERS = 128
"""Ids of calls whose results were submitted that a session remembers, to recognize a repetition."""


def list_pending_results(state: State) -> tuple[RequestedCall, ...]:
    """List the external calls that wait for their results."""
    return tuple(call for call in tool_rounds.list_outside(state) if call.is_external)


def find_next_expiry(state: State) -> float | None:
    """Find the time when the next call that waits times out, in seconds of the workflow's clock; None: none does."""
    waiting = tool_rounds.list_outside(state)
    return min((call.expires_at for call in waiting if call.expires_at is not None), default=None)


def submit_result(state: State, command: ToolResultInput, at: Moment) -> tuple[Decision, ToolResultReceipt]:
    """Commit the submitted result of an external call, or of a subagent's call, in place of the subagent's.

    Raises:
        AlreadyAnswered: A result of the call has been submitted before.
        CallEnded: The call has timed out, or its run has ended.
        InvalidInput: The result holds a data URL, or the settings cannot be used.
        InvalidTokenBudget: The policy of the settings leaves no budget.
        TooLarge: The result has more bytes than the session's limit.
        UnknownToolCall: No external call of this id waits.
    """
    call = _find_pending_result(state, command.tool_call_id)
    content: Content = read_parts(command.content) or (
        command.content if isinstance(command.content, str) else to_json(command.content).decode()
    )
    text = get_text(content)
    size, limit = len(text.encode()), state.settings.config.limits.max_tool_result_bytes
    if size > limit:
        raise TooLarge(f"the result has {size} bytes of text, at most {limit} are taken")
    if data := find_data_url(text):
        raise InvalidInput(f"content: it holds a data URL ({data}): store a blob, and submit its part")
    state = requests.note_settings(state, command.settings, at)
    answered = (*state.memory.answered_calls, call.tool_call_id)[-MAX_KNOWN_ANSWERS:]
    answer = ToolAnswered(content=content, is_error=command.is_error, by=command.by)
    receipt = ToolResultReceipt(tool_call_id=call.tool_call_id, seq=at.rev)
    state = replace(state, memory=replace(state.memory, answered_calls=answered))
    return _end_call(state, call, answer, command.settings), receipt


def expire_calls(state: State, at: Moment) -> Decision:
    """Commit a result for each external call, and each call of a subagent, whose time is over."""
    decision = Decision(state)
    for call in tool_rounds.list_outside(state):
        if call.expires_at is not None and call.expires_at <= at.time:
            decision = decision.then(partial(_expire_call, call), at)
    return decision


def _expire_call(call: RequestedCall, state: State, _at: Moment) -> Decision:
    if call not in tool_rounds.list_outside(state):
        return Decision(state)
    seconds = tool_rounds.get_tool(state, call.name).timeout_seconds
    content = f"error: tool {call.name!r} timed out: no result came within {seconds:g} seconds"
    return _end_call(state, call, ToolAnswered(content=content, is_error=True))


def _end_call(
    state: State, call: RequestedCall, answer: ToolAnswered, settings: RunSettings | None = None
) -> Decision:
    """Commit a result that has not come from a subagent: one that works on the call is cancelled."""
    state = subagents.release_child(state, call.tool_call_id)
    return tool_rounds.commit_result(state, get_run(state), call, answer, settings)


def _find_pending_result(state: State, tool_call_id: str) -> RequestedCall:
    for call in tool_rounds.list_outside(state):
        if call.tool_call_id == tool_call_id:
            return call
    if tool_call_id in state.memory.answered_calls:
        raise AlreadyAnswered(f"a result of tool call {tool_call_id!r} has been submitted before")
    number = TOOL_CALL_ID.fullmatch(tool_call_id)
    current = [call.tool_call_id for call in state.run.tool_calls if not call.returned] if state.run else []
    if tool_call_id in current or number is None or int(number[1]) > state.counters.tool_calls:
        raise UnknownToolCall(f"no external tool call {tool_call_id!r} waits for a result")
    raise CallEnded(f"tool call {tool_call_id!r} waits for no result: it has timed out, or its run has ended")
