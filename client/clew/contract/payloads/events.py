"""What the entries hold that no context shows: errors, outcomes, refused inputs, approvals, forks, session events."""

from __future__ import annotations

from typing import ClassVar, Literal

from clew.contract.payloads.base import EntryKind, Json, Payload, RunError, Stored, Usage, stored


@stored
class Retried(Stored):
    """A model call that follows one that failed: with a shorter context, or of a fallback.

    Attributes:
        call_id: The new call.
        model: The model, as `provider:model`.
        budget: The largest context of the model from now on, in tokens; absent: the new call is of a fallback.
    """

    call_id: str
    model: str
    budget: int | None = None


@stored
class ErrorPayload(Payload):
    """An error.

    Attributes:
        type: The type of the error, a word of the contract's list.
        message: A description for people.
        details: More about the error: the attempts, the failed operation, the call that follows.
    """

    entry_kind: ClassVar[EntryKind] = "error"

    type: str
    message: str
    details: Json

    @property
    def op_id(self) -> str | None:
        """The id of the failed context operation; None where no operation failed."""
        return self.details.get("op_id")

    @property
    def retried(self) -> Retried | None:
        """The call that follows the failed one; None where there is none."""
        value = self.details.get("retried")
        return Retried.from_json(value) if value else None


@stored
class RunPayload(Payload):
    """The outcome of a request.

    Attributes:
        event: `finished`.
        status: The status of the request.
        termination_reason: Why the request ended: `final_answer`, another word of the contract's list, or the error's
            type.
        usage: The usage of the run. Of requests that shared a run, one has the numbers and the others name it.
        subagent_usage: The usage of the subagents that the run has started, and of theirs.
        iterations: Model calls of the run.
        fallback: The fallback that the run ended with, as `provider:model`; absent: its model had no outage.
        answer_seq: The seq of the answer; absent where there is none.
        error: Why the request failed.
        reason: The reason that the caller gave for a cancellation.
    """

    entry_kind: ClassVar[EntryKind] = "run"

    event: Literal["finished"]
    status: Literal["completed", "failed", "cancelled"]
    termination_reason: str
    usage: Usage
    subagent_usage: Usage | None = None
    iterations: int
    fallback: str | None = None
    answer_seq: int | None = None
    error: RunError | None = None
    reason: str | None = None


@stored
class InputPayload(Payload):
    """An input that did not enter the thread as a message.

    Attributes:
        event: The input was refused, never read, superseded by a later one, or merged with a later one.
        kind: The kind of input: `message`, `steer`, `inject`, `modify_context`, `configure`, or a signal's name.
        reason: The reason for the event.
        content: The first 200 characters; of a signal that is malformed, its ids alone.
        input_id: The id of the input.
        op_id: The id of the context operation.
        request_id: The request that it belonged to.
    """

    entry_kind: ClassVar[EntryKind] = "input"

    event: Literal["rejected", "dropped", "superseded", "merged"]
    kind: str
    reason: str
    content: str
    input_id: str | None = None
    op_id: str | None = None
    request_id: str | None = None


@stored
class ApprovalPayload(Payload):
    """A person's decision about a tool call.

    Attributes:
        tool_call_id: The call.
        decision: Whether the tool may run.
        reason: The reason that the person gave.
        by: Who decided, as the caller said.
        arguments: The arguments that replace the model's.
    """

    entry_kind: ClassVar[EntryKind] = "approval"

    tool_call_id: str
    decision: Literal["approve", "deny"]
    reason: str | None = None
    by: str | None = None
    arguments: Json | None = None


@stored
class ForkPayload(Payload):
    """A fork: the session was forked, or is a fork.

    Attributes:
        event: `forked_from`: the session is a fork of the other one; `forked_to`: the other one is a fork of it.
        session_id: The other session.
        fork_seq: The last entry that both have.
        metadata: The metadata of the fork.
    """

    entry_kind: ClassVar[EntryKind] = "fork"

    event: Literal["forked_from", "forked_to"]
    session_id: str
    fork_seq: int
    metadata: dict[str, str] | None = None


@stored
class SessionPayload(Payload):
    """The session hibernated, woke, was recovered or was closed.

    Attributes:
        event: The event.
        workflow: The status in which the workflow had ended before a recovery.
        reason: The reason that the caller gave.
    """

    entry_kind: ClassVar[EntryKind] = "session"

    event: Literal["hibernated", "woken", "recovered", "closed"]
    workflow: str | None = None
    reason: str | None = None
