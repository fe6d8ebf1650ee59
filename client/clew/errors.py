"""Every error that Clew raises.

ClewError
├── Refusal                 what was asked was refused, and nothing has changed
│   ├── AlreadyResolved
│   ├── ArchiveDamaged
│   ├── ArchiveUnavailable
│   ├── Archived
│   ├── Busy
│   ├── CheckpointUnavailable
│   ├── Closed
│   ├── EmptyContent
│   ├── Idle
│   ├── InvalidInput
│   ├── InvalidOperation
│   ├── InvalidTokenBudget
│   ├── NotFound
│   ├── NothingToSummarize
│   ├── QueueFull
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
│   ├── UnknownLane
│   ├── UnknownRequest
│   ├── UnknownTool
│   └── UnsupportedStrategy
├── ContextOverflow         what must fit into the context does not
├── EncodingUnavailable     the vocabulary of a token encoding cannot be loaded
├── RequestFailed           a request ended, and not with an answer; carries its outcome
├── ServerUnreachable       no Temporal server answers
└── WorkerUnavailable       the server answers, but no worker serves the session

The `type` of a refusal is the word that travels as the `type` of Temporal's application error.
"""

from __future__ import annotations

from typing import ClassVar

from clew.outcomes import RequestOutcome

__all__ = [
    "REFUSALS",
    "AlreadyResolved",
    "ArchiveDamaged",
    "ArchiveUnavailable",
    "Archived",
    "Busy",
    "CheckpointUnavailable",
    "ClewError",
    "Closed",
    "ContextOverflow",
    "EmptyContent",
    "EncodingUnavailable",
    "Idle",
    "InvalidInput",
    "InvalidOperation",
    "InvalidTokenBudget",
    "NotFound",
    "NothingToSummarize",
    "QueueFull",
    "Refusal",
    "RequestFailed",
    "RequestMismatch",
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
    "UnknownLane",
    "UnknownRequest",
    "UnknownTool",
    "UnsupportedStrategy",
    "WorkerUnavailable",
    "make_refusal",
]


class ClewError(Exception):
    """The base of every error that Clew raises. Its message says what to do."""


class Refusal(ClewError):
    """What was asked was refused: nothing entered the thread, nothing was lost.

    Attributes:
        type: The contract's word.
        message: What is wrong and what to do.
    """

    type: ClassVar[str] = "refused"

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.message = message


class AlreadyResolved(Refusal):
    """The tool call has been decided upon already."""

    type = "already_resolved"


class ArchiveDamaged(Refusal):
    """An object of the archive is missing, or is not what was written; the message names it."""

    type = "archive_damaged"


class ArchiveUnavailable(Refusal):
    """The archive cannot be written or read at present."""

    type = "archive_unavailable"


class Archived(Refusal):
    """The answer needs archived entries that the session does not hold: `ReadContext` and `ReadThread` read them."""

    type = "archived"


class Busy(Refusal):
    """A request is running or waits, or a summary is being written."""

    type = "busy"


class CheckpointUnavailable(Refusal):
    """No worker has a key to sign or verify checkpoints with, or none answers."""

    type = "checkpoint_unavailable"


class Closed(Refusal):
    """The session has ended, hibernates, or is about to end."""

    type = "closed"


class EmptyContent(Refusal):
    """The content is empty, or white space."""

    type = "empty_content"


class Idle(Refusal):
    """Nothing is running that could take it."""

    type = "idle"


class InvalidInput(Refusal):
    """The input cannot be used; the message says why."""

    type = "invalid_input"


class InvalidOperation(Refusal):
    """The context operation cannot be applied; the message says why."""

    type = "invalid_operation"


class InvalidTokenBudget(Refusal):
    """The policy, or the window, leaves no token for the context."""

    type = "invalid_token_budget"


class NotFound(Refusal):
    """There is no such session, neither a workflow nor an archive."""

    type = "not_found"


class NothingToSummarize(Refusal):
    """The lane holds no message between the last summary and the end of the range."""

    type = "nothing_to_summarize"


class QueueFull(Refusal):
    """64 messages, inputs or operations wait already, or 512 KiB of them."""

    type = "queue_full"


class RequestMismatch(Refusal):
    """Another request than the named one is running."""

    type = "request_mismatch"


class Starting(Refusal):
    """The session is still looking for its archive: ask again in a moment."""

    type = "starting"


class ThreadMismatch(Refusal):
    """The archive and the session do not belong together."""

    type = "thread_mismatch"


class TokenExpired(Refusal):
    """The checkpoint has expired."""

    type = "token_expired"


class TokenForeign(Refusal):
    """The checkpoint was made in another Temporal namespace."""

    type = "token_foreign"


class TokenKey(Refusal):
    """The checkpoint was signed with a key that the workers do not have."""

    type = "token_key"


class TokenLegacy(Refusal):
    """The checkpoint holds a thread; only a context is taken."""

    type = "token_legacy"


class TokenMalformed(Refusal):
    """The text is not a checkpoint token, or not all of one."""

    type = "token_malformed"


class TokenMismatch(Refusal):
    """The workers' tools or policy are not those that the checkpoint was made under."""

    type = "token_mismatch"


class TokenSignature(Refusal):
    """The signature does not match the checkpoint."""

    type = "token_signature"


class TokenVersion(Refusal):
    """The checkpoint is of another version."""

    type = "token_version"


class TooLarge(Refusal):
    """The input is larger than its limit."""

    type = "too_large"


class UnknownApproval(Refusal):
    """No approval is pending for that tool call."""

    type = "unknown_approval"


class UnknownLane(Refusal):
    """The thread has no lane of that name."""

    type = "unknown_lane"


class UnknownRequest(Refusal):
    """The session knows no request of that id."""

    type = "unknown_request"


class UnknownTool(Refusal):
    """`require_approval` names a tool that the session does not have."""

    type = "unknown_tool"


class UnsupportedStrategy(Refusal):
    """The strategy is not `react`."""

    type = "unsupported_strategy"


class ContextOverflow(ClewError):
    """What must fit into the context does not.

    Attributes:
        part: `system_prompt`, `tools`, `pending`, `request` or `tool_results`.
        needed: The tokens that it needs.
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
    """A request ended, and not with an answer."""

    def __init__(self, outcome: RequestOutcome) -> None:
        reason = outcome.error.message if outcome.error else outcome.termination_reason
        super().__init__(f"request {outcome.request_id} {outcome.status}: {reason}")
        self.outcome = outcome


class ServerUnreachable(ClewError):
    """No Temporal server answers at the address."""


class WorkerUnavailable(ClewError):
    """The Temporal server answers, but no worker polls the session's task queue."""


REFUSALS: dict[str, type[Refusal]] = {cls.type: cls for cls in Refusal.__subclasses__()}


def make_refusal(word: str, message: str) -> Refusal:
    """The exception for a refusal's word; an unknown word (a newer session's) gives the base class."""
    cls = REFUSALS.get(word)
    return cls(message) if cls else Refusal(f"{word}: {message}")
