"""The answers of a session to updates, and of the service workflows. They may gain optional fields."""

from __future__ import annotations

from typing import Literal

from clew_workflows.contract.outcomes import Output


class InputReceipt(Output):
    """An input was accepted.

    Attributes:
        input_id: The input's id: the sender's, or `input-<n>`.
        request_id: The request whose run reads it.
        position: The position of the input among those that wait, from 1.
    """

    input_id: str
    request_id: str
    position: int


class OperationReceipt(Output):
    """A context operation was accepted.

    Attributes:
        op_id: The operation's id.
        status: `applied`, `deferred` to the end of the run, or `duplicate`: the id is known, nothing changed.
        seq: The operation's entry, if it was applied.
    """

    op_id: str
    status: Literal["applied", "deferred", "duplicate"]
    seq: int | None = None


class ConfigureReceipt(Output):
    """A change of configuration was accepted.

    Attributes:
        seq: The `config` entry, if the change was applied.
        status: `applied`, or `deferred` to the end of the run.
    """

    seq: int | None = None
    status: Literal["applied", "deferred"]


class SummaryReceipt(Output):
    """A summary was committed.

    Attributes:
        seq: The entry.
        from_seq: The first entry that the model read; the summary before covers earlier ones.
        to_seq: The last entry that the summary covers.
        tokens: Tokens of the summary.
    """

    seq: int
    from_seq: int
    to_seq: int
    tokens: int


class CancelReceipt(Output):
    """A cancellation was accepted.

    Attributes:
        request_id: The cancelled request; empty if a summary was cancelled.
        cancelled: Whether the request was cancelled; false if it had ended.
    """

    request_id: str
    cancelled: bool


class ApprovalReceipt(Output):
    """A decision about a tool call was accepted.

    Attributes:
        tool_call_id: The call.
        decision: The decision.
    """

    tool_call_id: str
    decision: Literal["approve", "deny"]


class ToolResultReceipt(Output):
    """The result of an external tool call was accepted.

    Attributes:
        tool_call_id: The call.
        seq: The result's entry.
    """

    tool_call_id: str
    seq: int


class CheckpointReceipt(Output):
    """A lane's context and the session's configuration, signed.

    Attributes:
        token: The argument of `RestoreSession`: `rt2.<payload>.<signature>`.
    """

    token: str


class RestoreReceipt(Output):
    """A session was made from a checkpoint.

    Attributes:
        session_id: The new session.
    """

    session_id: str


class HibernateReceipt(Output):
    """The complete session is in the archive; its workflow completes.

    Attributes:
        last_seq: The thread's last entry.
    """

    last_seq: int


class CloseReceipt(Output):
    """The session has ended, and the archive has all of it.

    Attributes:
        last_seq: The thread's last entry; -1 if the session ended before it had read its archive, which is unchanged.
    """

    last_seq: int


class ForkReceipt(Output):
    """A session was forked.

    Attributes:
        session_id: The new session.
        fork_seq: The last entry that it shares with its parent.
    """

    session_id: str
    fork_seq: int


class DeleteReceipt(Output):
    """A session was deleted.

    Attributes:
        deleted_segments: Archive segments that were deleted, without those that forks still need.
        deleted_subagents: Sessions of subagents that were deleted with the session.
    """

    deleted_segments: int
    deleted_subagents: int = 0


Receipt = (
    InputReceipt
    | OperationReceipt
    | ConfigureReceipt
    | SummaryReceipt
    | CancelReceipt
    | ApprovalReceipt
    | ToolResultReceipt
    | CheckpointReceipt
    | RestoreReceipt
    | HibernateReceipt
    | CloseReceipt
    | ForkReceipt
    | DeleteReceipt
)
"""A receipt of a session or of a service workflow."""
