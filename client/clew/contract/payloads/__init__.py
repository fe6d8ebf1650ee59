"""What the entries of a thread hold: one type for each kind of entry, and one for the recipe of a model call.

An entry's JSON travels as it was committed. These types read it, and what a session commits is made of them. Fields
that a later release writes are ignored by an earlier one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from pydantic import TypeAdapter

from clew.contract.payloads.base import KINDS, EntryKind, Payload, Stored
from clew.contract.payloads.facts import (
    ApprovalPayload,
    ConfigPayload,
    ConfigTokens,
    ErrorPayload,
    ForkPayload,
    InputPayload,
    Retried,
    RunPayload,
    SessionPayload,
    SummaryPayload,
)
from clew.contract.payloads.messages import (
    AnyMessage,
    AssistantMessage,
    MessagePayload,
    StoredResult,
    ToolMessage,
    UserMessage,
)
from clew.contract.payloads.operations import (
    AppliedExpand,
    AppliedOperation,
    AppliedPin,
    AppliedReplace,
    AppliedSwitch,
    AppliedUnpin,
    OperationPayload,
    StoredSnapshot,
)
from clew.contract.payloads.recipe import Recipe

__all__ = [
    "KINDS",
    "AppliedExpand",
    "AppliedOperation",
    "AppliedPin",
    "AppliedReplace",
    "AppliedSwitch",
    "AppliedUnpin",
    "ApprovalPayload",
    "AssistantMessage",
    "ConfigPayload",
    "ConfigTokens",
    "EntryKind",
    "ErrorPayload",
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
    "StoredResult",
    "StoredSnapshot",
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
    kind: TypeAdapter(held).validator.validate_python for kind, held in _TYPES.items()
}


def read_payload(kind: EntryKind, payload: Mapping[str, Any]) -> Payload:
    """The payload of an entry of a kind, of its JSON form.

    Raises:
        ValueError: an entry of the kind does not hold this.
    """
    return _READERS[kind](payload)


def read_lane(payload: Mapping[str, Any]) -> str | None:
    """The lane that an entry belongs to, where its kind belongs to one. The rest of the payload is not read."""
    lane: str | None = payload.get("context_ref")
    return lane
