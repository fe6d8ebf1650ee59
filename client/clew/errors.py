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
    "refusal",
]


class ClewError(Exception):
    """The base of every error that Clew raises. Its message says what to do."""


class Refusal(ClewError):
    """What was asked was refused: nothing entered the thread, nothing was lost."""

    type: ClassVar[str] = "refused"

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.message = message


class AlreadyResolved(Refusal):
    """The approval has been decided upon."""

    type = "already_resolved"


class ArchiveDamaged(Refusal):
    """An object of the session's archive is missing or not what was written; the message names it."""

    type = "archive_damaged"


class ArchiveUnavailable(Refusal):
    """The session's archive cannot be written or read at present."""

    type = "archive_unavailable"


class Archived(Refusal):
    """What was asked for is in the session's archive, beyond what the session itself holds."""

    type = "archived"


class Busy(Refusal):
    """A run is in progress, and the session rejects messages meanwhile."""

    type = "busy"


class CheckpointUnavailable(Refusal):
    """The workers have no key to sign or to verify checkpoints with, or do not answer."""

    type = "checkpoint_unavailable"


class Closed(Refusal):
    """The session has ended, or is about to."""

    type = "closed"


class EmptyContent(Refusal):
    """A message with nothing in it."""

    type = "empty_content"


class Idle(Refusal):
    """What only a running request can take was sent to an idle session."""

    type = "idle"


class InvalidInput(Refusal):
    """The input is not of the contract's shape."""

    type = "invalid_input"


class InvalidOperation(Refusal):
    """A context operation that cannot be applied."""

    type = "invalid_operation"


class InvalidTokenBudget(Refusal):
    """A policy or a window that leaves no token for the context."""

    type = "invalid_token_budget"


class NotFound(Refusal):
    """There is no such session, neither a workflow nor an archive."""

    type = "not_found"


class NothingToSummarize(Refusal):
    """The range asked for holds no message."""

    type = "nothing_to_summarize"


class QueueFull(Refusal):
    """As much is waiting as the session keeps."""

    type = "queue_full"


class RequestMismatch(Refusal):
    """The request named is not the one that is running."""

    type = "request_mismatch"


class Starting(Refusal):
    """The session has yet to find out whether it goes on from an archive; ask again in a moment."""

    type = "starting"


class ThreadMismatch(Refusal):
    """What is in the archive and what the session holds do not belong together."""

    type = "thread_mismatch"


class TokenExpired(Refusal):
    """The checkpoint's time is over."""

    type = "token_expired"


class TokenForeign(Refusal):
    """The checkpoint was made in another Temporal namespace."""

    type = "token_foreign"


class TokenKey(Refusal):
    """The checkpoint was signed with a key that the workers do not have (any more)."""

    type = "token_key"


class TokenLegacy(Refusal):
    """The checkpoint holds a whole thread, as old ones did; nothing but a context is taken."""

    type = "token_legacy"


class TokenMalformed(Refusal):
    """This is no checkpoint's token, or not all of one."""

    type = "token_malformed"


class TokenMismatch(Refusal):
    """The configuration that the workers resolve today is not the one that the checkpoint was made under."""

    type = "token_mismatch"


class TokenSignature(Refusal):
    """The checkpoint is not what was signed."""

    type = "token_signature"


class TokenVersion(Refusal):
    """The checkpoint is of another version."""

    type = "token_version"


class TooLarge(Refusal):
    """The input is over its cap."""

    type = "too_large"


class UnknownApproval(Refusal):
    """No approval is pending under that id."""

    type = "unknown_approval"


class UnknownLane(Refusal):
    """The thread has no lane of that name."""

    type = "unknown_lane"


class UnknownRequest(Refusal):
    """The session knows no request of that id."""

    type = "unknown_request"


class UnknownTool(Refusal):
    """A tool is named that the session does not have."""

    type = "unknown_tool"


class UnsupportedStrategy(Refusal):
    """A strategy other than `react`."""

    type = "unsupported_strategy"


class ContextOverflow(ClewError):
    """What must fit into the context does not.

    `part` is `system_prompt`, `tools`, `pending`, `request` or `tool_results`; sizes are in tokens.
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


def refusal(word: str, message: str) -> Refusal:
    """The exception for a refusal's word; an unknown word (a newer session's) gives the base class."""
    cls = REFUSALS.get(word)
    return cls(message) if cls else Refusal(f"{word}: {message}")
