"""What a session takes and answers: each message with the types of its input and of its answer, and its refusals."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from clew import contract


@dataclass(frozen=True, slots=True)
class Exchange:
    """A message of the contract.

    Attributes:
        name: The name of the update, signal, query or workflow type.
        input: The type of its argument; None where it takes none.
        answer: The type of its answer; None where it has none.
        refusals: The words that only it is refused with, beside those of its kind.
        bare: It may come without an argument.
    """

    name: str
    input: type | None
    answer: type | None = None
    refusals: tuple[str, ...] = ()
    bare: bool = False


START = Exchange(
    "AgentSession",
    contract.SessionStart,
    contract.SessionEnd,
    ("invalid_token_budget", "thread_mismatch", "too_large", "unknown_tool", "unsupported_strategy"),
)

COMMON_UPDATE_REFUSALS = ("archive_unavailable", "closed", "invalid_input", "thread_mismatch", "too_large")
"""Every update may be refused with these."""

UPDATES = (
    Exchange(
        "message",
        contract.MessageInput,
        contract.RequestOutcome,
        ("busy", "empty_content", "invalid_token_budget", "queue_full"),
    ),
    Exchange("await_request", contract.AwaitRequestInput, contract.RequestOutcome, ("unknown_request",)),
    Exchange(
        "submit_input",
        contract.SubmitInput,
        contract.InputReceipt,
        ("empty_content", "idle", "queue_full", "request_mismatch"),
    ),
    Exchange(
        "submit_context_operation",
        contract.ContextOperation,
        contract.OperationReceipt,
        ("invalid_operation", "queue_full"),
    ),
    Exchange(
        "configure", contract.ConfigureInput, contract.ConfigureReceipt, ("invalid_token_budget", "unknown_tool")
    ),
    Exchange("cancel_request", contract.CancelInput, contract.CancelReceipt, ("idle", "request_mismatch"), bare=True),
    Exchange(
        "resolve_approval",
        contract.ApprovalInput,
        contract.ApprovalReceipt,
        ("already_resolved", "unknown_approval"),
    ),
    Exchange(
        "submit_tool_result",
        contract.ToolResultInput,
        contract.ToolResultReceipt,
        ("already_answered", "call_ended", "unknown_tool_call"),
    ),
    Exchange(
        "summarize",
        contract.SummarizeInput,
        contract.SummaryReceipt,
        ("archived", "busy", "nothing_to_summarize"),
        bare=True,
    ),
    Exchange(
        "checkpoint",
        contract.CheckpointInput,
        contract.CheckpointReceipt,
        ("archived", "busy", "checkpoint_unavailable", "context_overflow", "invalid_operation", "unknown_lane"),
        bare=True,
    ),
    Exchange("hibernate", contract.HibernateInput, contract.HibernateReceipt, ("busy",), bare=True),
    Exchange("close_session", contract.CloseInput, contract.CloseReceipt, bare=True),
)

SIGNALS = (
    Exchange("steer", contract.SteerInput),
    Exchange("inject", contract.SteerInput),
    Exchange("modify_context", contract.ContextOperation),
    Exchange("cancel", contract.CancelInput, bare=True),
    Exchange("close", contract.CloseInput, bare=True),
    Exchange("forked", contract.ForkedInput),
    Exchange("subagent_result", contract.SubagentResultInput),
)

COMMON_QUERY_REFUSALS = ("invalid_input", "starting", "thread_mismatch")
"""Every query but `status` may be refused with these."""

QUERIES = (
    Exchange("status", None, contract.SessionStatus),
    Exchange(
        "context",
        contract.ContextQuery,
        contract.ContextPage,
        ("archived", "context_overflow", "empty_content", "invalid_token_budget", "too_large"),
        bare=True,
    ),
    Exchange("transcript", contract.TranscriptQuery, contract.TranscriptPage, bare=True),
    Exchange(
        "window", contract.WindowQuery, contract.Window, ("archived", "context_overflow", "invalid_token_budget")
    ),
    Exchange("entries", contract.EntriesQuery, contract.EntriesPage, bare=True),
    Exchange("follow", contract.FollowQuery, contract.FollowPage, bare=True),
)

COMMON_WORKFLOW_REFUSALS = ("archive_damaged", "archive_unavailable", "invalid_input", "too_large")
"""Every workflow but `AgentSession` may fail with these."""

WORKFLOWS = (
    Exchange("ReadThread", contract.ReadThreadInput, contract.EntriesPage, ("not_found", "thread_mismatch")),
    Exchange(
        "ReadContext",
        contract.ReadContextInput,
        contract.ContextPage,
        ("context_overflow", "empty_content", "invalid_token_budget", "not_found", "thread_mismatch"),
    ),
    Exchange("ForkSession", contract.ForkSessionInput, contract.ForkReceipt, ("not_found", "thread_mismatch")),
    Exchange(
        "RestoreSession",
        contract.RestoreInput,
        contract.RestoreReceipt,
        (
            "checkpoint_unavailable",
            "token_expired",
            "token_foreign",
            "token_key",
            "token_legacy",
            "token_malformed",
            "token_mismatch",
            "token_signature",
            "token_version",
        ),
    ),
    Exchange("DeleteSession", contract.DeleteSessionInput, contract.DeleteReceipt, ("not_found",)),
)

HEARTBEATS = (
    Exchange("call_model", None, contract.ReplyProgress),
    Exchange("run_tool", None, contract.ToolProgress),
)
"""What the heartbeats of a session's activities hold."""

MESSAGES = (START, *UPDATES, *SIGNALS, *QUERIES, *WORKFLOWS, *HEARTBEATS)


def wire_types() -> dict[str, Any]:
    """Every type that travels as a whole message, by its name."""
    types = [type_ for exchange in MESSAGES for type_ in (exchange.input, exchange.answer) if type_ is not None]
    return {type_.__name__: type_ for type_ in types}
