"""The payloads of a thread's entries: one type for each kind of entry, and one for the recipe of a model call.

A session builds payloads from these types, and readers parse them. The JSON of an entry never changes once it is
committed. The types ignore fields that a later release wrote.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from pydantic import TypeAdapter

from clew_workflows.contract.payloads.base import KINDS, EntryKind, Payload, Stored
from clew_workflows.contract.payloads.events import (
    AgentVersion,
    ApprovalPayload,
    ConfigPayload,
    ConfigTokens,
    ErrorPayload,
    ForkPayload,
    InputPayload,
    Retried,
    RunPayload,
    SessionPayload,
)
from clew_workflows.contract.payloads.messages import (
    AnyMessage,
    AssistantMessage,
    Fitting,
    MessagePayload,
    Recipe,
    StoredResult,
    Subagent,
    SummaryPayload,
    ToolMessage,
    UserMessage,
)
from clew_workflows.contract.payloads.operations import (
    AppliedExpand,
    AppliedOperation,
    AppliedPin,
    AppliedReplace,
    AppliedSwitch,
    AppliedUnpin,
    AppliedWithdraw,
    OperationPayload,
    StoredMessage,
    StoredSnapshot,
)

__all__ = [
    "KINDS",
    "AgentVersion",
    "AppliedExpand",
    "AppliedOperation",
    "AppliedPin",
    "AppliedReplace",
    "AppliedSwitch",
    "AppliedUnpin",
    "AppliedWithdraw",
    "ApprovalPayload",
    "AssistantMessage",
    "ConfigPayload",
    "ConfigTokens",
    "EntryKind",
    "ErrorPayload",
    "Fitting",
    "ForkPayload",
    "InputPayload",
    "MessagePayload",
    "OperationPayload",
    "Payload",
    "Recipe",
    "Retried",
    "RunPayload",
    "SessionPayload",
    "Stored",
    "StoredMessage",
    "StoredResult",
    "StoredSnapshot",
    "Subagent",
    "SummaryPayload",
    "ToolMessage",
    "UserMessage",
    "read_lane",
    "read_payload",
]

_TYPES: dict[EntryKind, Any] = {
    "config": ConfigPayload,
    "ai_message": AnyMessage,
    "ai_context_operation": OperationPayload,
    "summary": SummaryPayload,
    "error": ErrorPayload,
    "run": RunPayload,
    "input": InputPayload,
    "approval": ApprovalPayload,
    "fork": ForkPayload,
    "session": SessionPayload,
}
_READERS: dict[EntryKind, Callable[[Any], Payload]] = {
    kind: TypeAdapter(payload_type).validator.validate_python for kind, payload_type in _TYPES.items()
}


def read_payload(kind: EntryKind, payload: Mapping[str, Any]) -> Payload:
    """Parse the payload of an entry.

    Raises:
        ValueError: The payload does not have the type of the kind.
    """
    return _READERS[kind](payload)


def read_lane(payload: Mapping[str, Any]) -> str | None:
    """Return the lane that an entry belongs to, if any, without parsing the payload."""
    lane: str | None = payload.get("context_ref")
    return lane
