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
│   ├── ContentMismatch
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
│   ├── RequestReused
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
│   ├── UnknownBlob
│   ├── UnknownKey
│   ├── UnknownLane
│   ├── UnknownRequest
│   ├── UnknownTool
│   ├── UnknownToolCall
│   ├── UnknownUpload
│   ├── UnsupportedContent
│   ├── UnsupportedStrategy
│   ├── UploadExpired
│   └── UploadUnavailable
├── ContextOverflow         a part that the context must have does not fit
├── EncodingUnavailable     a token encoding is not there, or its vocabulary cannot be loaded
├── RequestFailed           a request ended without an answer; has its outcome
├── SearchAttributesMissing the namespace lacks the search attributes that a filter needs
├── ServerUnreachable       no Temporal server answers
└── WorkerUnavailable       the server answers, but no worker serves the session

The `type` of a refusal is the `type` of Temporal's application error.
"""

from __future__ import annotations

import re
from typing import ClassVar

from clew_workflows.contract.outcomes import RequestOutcome

# The base of every error.


class ClewError(Exception):
    """The base of every error that Clew raises. Its message says what to do."""


def find_word(error: ClewError | type[ClewError]) -> str:
    """Find the contract's word for an error or its class, else the name of the class in snake case."""
    word = getattr(error, "type", None)
    name = (error if isinstance(error, type) else type(error)).__name__
    return word if isinstance(word, str) else re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name).lower()


# Refusals: one class for each word of the contract.


class Refusal(ClewError):
    """A command or a query was refused: the thread is unchanged.

    Attributes:
        type: The contract's word for the refusal.
        message: The reason, and what to do.
    """

    type: ClassVar[str] = "refused"

    def __init_subclass__(cls) -> None:
        """Make the word of a class of this module: its name, as `queue_full` of `QueueFull`."""
        super().__init_subclass__()
        if cls.__module__ == __name__:
            cls.type = re.sub("(?<=[a-z])(?=[A-Z])", "_", cls.__name__).lower()

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.message = message


class AlreadyAnswered(Refusal):
    """A result of the tool call has been submitted before."""


class AlreadyResolved(Refusal):
    """The tool call was already approved or denied."""


class ArchiveDamaged(Refusal):
    """An object of the archive is missing or was changed; the message names it."""


class ArchiveUnavailable(Refusal):
    """The archive cannot be read or written at present."""


class Archived(Refusal):
    """The answer needs archived entries that the session does not have: `ReadContext` and `ReadThread` read them."""


class Busy(Refusal):
    """A request is running or waits, or a summary is being written."""


class CallEnded(Refusal):
    """The tool call waits for no result any more: it has timed out, or its run has ended."""


class CheckpointUnavailable(Refusal):
    """No worker has a key to sign or verify checkpoints, or no worker answers."""


class Closed(Refusal):
    """The session has ended, hibernates, or is about to do so."""


class ContentMismatch(Refusal):
    """The bytes of a blob are not what its description says: another type, size or digest."""


class EmptyContent(Refusal):
    """The content is empty or white space."""


class Idle(Refusal):
    """No request is active or waits."""


class Interrupted(Closed):
    """The session's workflow was terminated or has timed out: `clew recover` repairs the session."""


class InvalidInput(Refusal):
    """The input cannot be used; the message says why."""


class InvalidOperation(Refusal):
    """The context operation cannot be applied; the message says why."""


class InvalidTokenBudget(Refusal):
    """The policy, or the budget of a window, leaves no token for the context."""


class NewerVersion(Refusal):
    """A newer version of Clew has written the data; the message names both versions of its format."""


class NotEncrypted(Refusal):
    """The input, or a file that was uploaded, is not encrypted, and the workers accept only what is."""


class NotFound(Refusal):
    """The session has neither a workflow nor an archive."""


class NothingToSummarize(Refusal):
    """The lane has no message between the last summary and the end of the range."""


class QueueFull(Refusal):
    """64 messages, inputs or operations already wait, or 512 KiB of them."""


class Repeated(Refusal):
    """The same encrypted input came before, and was carried out."""


class RequestMismatch(Refusal):
    """Another request than the named one is running."""


class RequestReused(Refusal):
    """A request, an input or an operation with the same id was accepted before, and was another one."""


class Starting(Refusal):
    """The session is still looking for its archive, or a worker has just read its history again: ask again."""


class ThreadMismatch(Refusal):
    """The archive and the session do not belong together."""


class TokenExpired(Refusal):
    """The checkpoint has expired."""


class TokenForeign(Refusal):
    """The checkpoint was made in another Temporal namespace."""


class TokenKey(Refusal):
    """The checkpoint was signed with a key that the workers do not have."""


class TokenLegacy(Refusal):
    """The checkpoint has a thread; only checkpoints of a context are accepted."""


class TokenMalformed(Refusal):
    """The text is not a complete checkpoint token."""


class TokenMismatch(Refusal):
    """The workers' tools or policy differ from those of the checkpoint."""


class TokenSignature(Refusal):
    """The signature does not match the checkpoint."""


class TokenVersion(Refusal):
    """The checkpoint has another version."""


class TooLarge(Refusal):
    """The input exceeds its limit."""


class UnknownApproval(Refusal):
    """No approval is pending for that tool call."""


class UnknownBlob(Refusal):
    """The session's archive holds no blob of that digest: store it with `PutBlob` first."""


class UnknownKey(Refusal):
    """A text is encrypted with a key that its reader does not have, or was changed since."""


class UnknownLane(Refusal):
    """The thread has no lane of that name."""


class UnknownRequest(Refusal):
    """The session has no request of that id."""


class UnknownTool(Refusal):
    """`require_approval` names a tool that the session does not have."""


class UnknownToolCall(Refusal):
    """No external tool call of that id waits for a result."""


class UnknownUpload(Refusal):
    """The session has no such upload, or nothing was uploaded to its URL."""


class UnsupportedContent(Refusal):
    """No model can read a file of that type, or it is not what a part of that kind can be."""


class UnsupportedStrategy(Refusal):
    """The strategy is not `react`."""


class UploadExpired(Refusal):
    """The upload was not finished in its time: start another one."""


class UploadUnavailable(Refusal):
    """The workers' store signs no URLs, as a local folder does not: store the blob with `PutBlob`."""


REFUSALS: dict[str, type[Refusal]] = {cls.type: cls for base in (Refusal, Closed) for cls in base.__subclasses__()}


def make_refusal(word: str, message: str) -> Refusal:
    """Make the exception for a refusal's word; a word of a newer session makes a `Refusal`."""
    cls = REFUSALS.get(word)
    return cls(message) if cls else Refusal(f"{word}: {message}")


# Other errors.


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
    """This process has no such token encoding, or cannot load its vocabulary."""


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
    """The Temporal server answers, but no worker serves the session, or too many of its updates wait.

    A command may have been accepted, and a deletion, a fork or a restore may be done in part: send it again, with the
    same ids.
    """

    type = "worker_unavailable"


WORDS = frozenset({*REFUSALS, ContextOverflow.type, WorkerUnavailable.type})
"""The words with which a service workflow may fail."""


def make_error(word: str, message: str) -> ClewError:
    """Make the exception for the word with which an update or a workflow has failed."""
    return WorkerUnavailable(message) if word == WorkerUnavailable.type else make_refusal(word, message)


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
    "ContentMismatch",
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
    "RequestReused",
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
    "UnknownBlob",
    "UnknownKey",
    "UnknownLane",
    "UnknownRequest",
    "UnknownTool",
    "UnknownToolCall",
    "UnknownUpload",
    "UnsupportedContent",
    "UnsupportedStrategy",
    "UploadExpired",
    "UploadUnavailable",
    "WorkerUnavailable",
    "make_refusal",
]
