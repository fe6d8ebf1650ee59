"""What a session and its subagents send each other: a task with the start, a result with a signal."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from clew.contract._input import Input
from clew.contract.names import Id, SessionId
from clew.contract.sizes import MAX_TOOL_RESULT_BYTES
from clew.outcomes import Usage

MAX_SUBAGENT_DEPTH = 5
"""Most subagents above each other: the subagent of a session that callers have started has the depth 1."""


class Task(Input):
    """The task of a subagent's session. Only the session that starts a subagent sets it.

    Attributes:
        content: The text of the task: the subagent's first message.
        request_id: The request that serves the task.
        session_id: The session that has started the subagent.
        tool_call_id: Its tool call, which the subagent answers.
        depth: The number of sessions above the subagent.
        timeout_seconds: The most seconds of the request, as its parent has left.
        max_result_bytes: The most bytes of the text that the subagent answers.
        max_total_tokens: The most tokens of the subagent and its own subagents.
        max_cost_usd: The highest cost of the subagent and its own subagents, in USD.
    """

    content: str
    request_id: Id
    session_id: SessionId
    tool_call_id: Id
    depth: int = Field(ge=1, le=MAX_SUBAGENT_DEPTH)
    timeout_seconds: int = Field(ge=1, le=30 * 86400)
    max_result_bytes: int = Field(ge=256, le=MAX_TOOL_RESULT_BYTES)
    max_total_tokens: int | None = Field(default=None, ge=1)
    max_cost_usd: float | None = Field(default=None, gt=0)


class SubagentResultInput(Input):
    """The argument of the signal `subagent_result`, which a subagent sends to the session that has started it.

    Attributes:
        tool_call_id: The tool call that started the subagent.
        session_id: The subagent's session.
        status: The status of its request.
        reason: Why the request ended.
        content: The text of the answer, or the description of the error.
        usage: The usage of the subagent, its own subagents included.
        worked_seconds: The seconds that the request has taken, without those in which its clock stood still.
    """

    tool_call_id: Id
    session_id: SessionId
    status: Literal["completed", "failed", "cancelled"]
    reason: str = Field(max_length=200)
    content: str
    usage: Usage
    worked_seconds: float = Field(ge=0)
