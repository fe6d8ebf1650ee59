"""External calls: tool calls of a round that wait until their results are submitted, or their time is over."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from pydantic_core import to_json

from clew.contract import ToolResultInput
from clew.contract.receipts import ToolResultReceipt
from clew.errors import AlreadyAnswered, CallEnded, InvalidInput, TooLarge, UnknownToolCall
from clew.model.texts import find_data_url
from clew_workflows.core import children, tool_rounds
from clew_workflows.core.calls import RequestedCall
from clew_workflows.core.decision import Decision
from clew_workflows.core.state import Moment, State, get_run
from clew_workflows.protocol import TOOL_CALL_ID, ToolAnswered

MAX_KNOWN_ANSWERS = 128
"""Ids of calls whose results were submitted that a session remembers, to recognize a repetition."""


def list_pending(state: State) -> tuple[RequestedCall, ...]:
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
        InvalidInput: The result holds a data URL.
        TooLarge: The result has more bytes than the session's limit.
        UnknownToolCall: No external call of this id waits.
    """
    call = _find_pending(state, command.tool_call_id)
    content = command.content if isinstance(command.content, str) else to_json(command.content).decode()
    size, limit = len(content.encode()), state.config.limits.max_tool_result_bytes
    if size > limit:
        raise TooLarge(f"the result has {size} bytes of text, at most {limit} are taken")
    if data := find_data_url(content):
        raise InvalidInput(f"content: it holds a data URL ({data}): a model reads text only, submit a description")
    answered = (*state.answered_calls, call.tool_call_id)[-MAX_KNOWN_ANSWERS:]
    answer = ToolAnswered(content=content, is_error=command.is_error, by=command.by)
    receipt = ToolResultReceipt(tool_call_id=call.tool_call_id, seq=at.rev)
    return _end_call(replace(state, answered_calls=answered), call, answer), receipt


def expire(state: State, at: Moment) -> Decision:
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


def _end_call(state: State, call: RequestedCall, answer: ToolAnswered) -> Decision:
    """Commit a result that has not come from a subagent: one that works on the call is cancelled."""
    state = children.release_child(state, call.tool_call_id)
    return tool_rounds.commit_result(state, get_run(state), call, answer)


def _find_pending(state: State, tool_call_id: str) -> RequestedCall:
    for call in tool_rounds.list_outside(state):
        if call.tool_call_id == tool_call_id:
            return call
    if tool_call_id in state.answered_calls:
        raise AlreadyAnswered(f"a result of tool call {tool_call_id!r} has been submitted before")
    number = TOOL_CALL_ID.fullmatch(tool_call_id)
    current = [call.tool_call_id for call in state.run.tool_calls if not call.returned] if state.run else []
    if tool_call_id in current or number is None or int(number[1]) > state.tool_calls:
        raise UnknownToolCall(f"no external tool call {tool_call_id!r} waits for a result")
    raise CallEnded(f"tool call {tool_call_id!r} waits for no result: it has timed out, or its run has ended")
