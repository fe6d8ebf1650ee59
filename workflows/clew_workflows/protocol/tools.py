"""Tools as a worker resolves them, their calls, and what comes of a call."""

from __future__ import annotations

from typing import Any, NamedTuple

from clew.contract.payloads import StoredResult
from clew.model.messages import ToolSpec
from clew_workflows.protocol._value import Value
from clew_workflows.protocol.failures import Failure

STORING_SECONDS = 20.0
"""For how long a tool's activity tries to store a large result, once the tool has done its work."""


class ResolvedTool(Value):
    """A tool's schema and how its calls are carried out.

    `timeout_seconds` bounds one attempt; `max_attempts` bounds the retries of an attempt that failed. A call of a
    tool that is not `idempotent` is never attempted twice.
    """

    spec: ToolSpec
    timeout_seconds: float
    max_attempts: int
    idempotent: bool = True
    requires_approval: bool = False


class RunTool(Value):
    """One tool call. `arguments` are as the model gave them; the activity validates them.

    A result over `max_result_bytes` is stored whole in the archive of the `family`, where there is one.
    """

    request_id: str
    run_id: str
    call_id: str
    tool_call_id: str
    name: str
    arguments: dict[str, Any]
    max_result_bytes: int
    family: str | None = None


def make_idempotency_key(session_id: str, tool_call_id: str) -> str:
    """The same for every attempt of a tool call, and for no other call anywhere."""
    return f"{session_id}/{tool_call_id}"


class ToolCall(NamedTuple):
    """A tool call, and how it is to be carried out.

    Attributes:
        call: What the activity receives.
        tool: The tool as a worker has resolved it.
    """

    call: RunTool
    tool: ResolvedTool


class RunTools(Value):
    """Tool calls that run side by side.

    Attributes:
        calls: One for each call of the round that has not returned.
    """

    calls: tuple[ToolCall, ...]


class ToolAnswered(Value):
    """What a tool said, as the model will read it.

    `is_error` marks a result that tells of a failure, `in_doubt` one that cannot say whether the tool has run. Where
    there is more of it than fits, `result` says where all of it is.
    """

    content: str
    result: StoredResult | None = None
    is_error: bool = False
    in_doubt: bool = False


class ToolReturned(Value):
    """What came of one tool call: what the tool said, or why nothing came. Neither: the call was cancelled."""

    tool_call_id: str
    answer: ToolAnswered | None = None
    failure: Failure | None = None
