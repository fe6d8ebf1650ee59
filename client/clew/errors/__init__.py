"""Every error that Clew raises.

ClewError
├── Refusal                 the session refused a command or a query; nothing has changed
│   ├── AlreadyAnswered
│   ├── AlreadyResolved
│   ├── ArchiveDamaged
│   ├── ArchiveUnavailable
│   ├── Archived
│   ├── Busy
│   ├── CallEnded
│   ├── CheckpointUnavailable
│   ├── Closed
│   │   └── Interrupted
│   ├── EmptyContent
│   ├── Idle
│   ├── InvalidInput
│   ├── InvalidOperation
│   ├── InvalidTokenBudget
│   ├── NewerVersion
│   ├── NotEncrypted
│   ├── NotFound
│   ├── NothingToSummarize
│   ├── QueueFull
│   ├── Repeated
│   ├── RequestMismatch
│   ├── Starting
│   ├── ThreadMismatch
│   ├── TokenExpired
│   ├── TokenForeign
│   ├── TokenKey
│   ├── TokenLegacy
│   ├── TokenMalformed
│   ├── TokenMismatch
│   ├── TokenSignature
│   ├── TokenVersion
│   ├── TooLarge
│   ├── UnknownApproval
│   ├── UnknownKey
│   ├── UnknownLane
│   ├── UnknownRequest
│   ├── UnknownTool
│   ├── UnknownToolCall
│   └── UnsupportedStrategy
├── ContextOverflow         a part that the context must have does not fit
├── EncodingUnavailable     the vocabulary of a token encoding cannot be loaded
├── RequestFailed           a request ended without an answer; has its outcome
├── SearchAttributesMissing the namespace lacks the search attributes that a filter needs
├── ServerUnreachable       no Temporal server answers
└── WorkerUnavailable       the server answers, but no worker serves the session

The `type` of a refusal is the `type` of Temporal's application error.
"""

from __future__ import annotations

from clew.errors.base import ClewError
from clew.errors.refusals import (
    REFUSALS,
    AlreadyAnswered,
    AlreadyResolved,
    Archived,
    ArchiveDamaged,
    ArchiveUnavailable,
    Busy,
    CallEnded,
    CheckpointUnavailable,
    Closed,
    EmptyContent,
    Idle,
    Interrupted,
    InvalidInput,
    InvalidOperation,
    InvalidTokenBudget,
    NewerVersion,
    NotEncrypted,
    NotFound,
    NothingToSummarize,
    QueueFull,
    Refusal,
    Repeated,
    RequestMismatch,
    Starting,
    ThreadMismatch,
    TokenExpired,
    TokenForeign,
    TokenKey,
    TokenLegacy,
    TokenMalformed,
    TokenMismatch,
    TokenSignature,
    TokenVersion,
    TooLarge,
    UnknownApproval,
    UnknownKey,
    UnknownLane,
    UnknownRequest,
    UnknownTool,
    UnknownToolCall,
    UnsupportedStrategy,
    make_refusal,
)
from clew.outcomes import RequestOutcome

__all__ = [
    "REFUSALS",
    "AlreadyAnswered",
    "AlreadyResolved",
    "ArchiveDamaged",
    "ArchiveUnavailable",
    "Archived",
    "Busy",
    "CallEnded",
    "CheckpointUnavailable",
    "ClewError",
    "Closed",
    "ContextOverflow",
    "EmptyContent",
    "EncodingUnavailable",
    "Idle",
    "Interrupted",
    "InvalidInput",
    "InvalidOperation",
    "InvalidTokenBudget",
    "NewerVersion",
    "NotEncrypted",
    "NotFound",
    "NothingToSummarize",
    "QueueFull",
    "Refusal",
    "Repeated",
    "RequestFailed",
    "RequestMismatch",
    "SearchAttributesMissing",
    "ServerUnreachable",
    "Starting",
    "ThreadMismatch",
    "TokenExpired",
    "TokenForeign",
    "TokenKey",
    "TokenLegacy",
    "TokenMalformed",
    "TokenMismatch",
    "TokenSignature",
    "TokenVersion",
    "TooLarge",
    "UnknownApproval",
    "UnknownKey",
    "UnknownLane",
    "UnknownRequest",
    "UnknownTool",
    "UnknownToolCall",
    "UnsupportedStrategy",
    "WorkerUnavailable",
    "make_refusal",
]


class ContextOverflow(ClewError):
    """A part that the context must have does not fit.

    Attributes:
        part: `system_prompt`, `tools`, `pending`, `request` or `tool_results`.
        needed: The tokens that the part needs.
        available: The tokens that are left of the budget.
    """

    type = "context_overflow"

    def __init__(self, part: str, needed: int, available: int) -> None:
        super().__init__(
            f"{part} needs {needed} tokens and {available} are left of the context's "
            "budget: raise max_input_tokens or shorten it"
        )
        self.part, self.needed, self.available = part, needed, available


class EncodingUnavailable(ClewError):
    """The vocabulary of a token encoding cannot be loaded on this machine."""


class RequestFailed(ClewError):
    """A request ended without an answer.

    Attributes:
        outcome: The outcome of the request.
    """

    def __init__(self, outcome: RequestOutcome) -> None:
        reason = outcome.error.message if outcome.error else outcome.termination_reason
        super().__init__(f"request {outcome.request_id} {outcome.status}: {reason}")
        self.outcome = outcome


class SearchAttributesMissing(ClewError):
    """The namespace lacks the search attributes that a filter needs: `clew setup-namespace` registers them."""


class ServerUnreachable(ClewError):
    """No Temporal server answers at the address."""


class WorkerUnavailable(ClewError):
    """The Temporal server answers, but no worker serves the session."""

    type = "worker_unavailable"
