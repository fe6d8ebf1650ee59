"""What a session takes and answers: each message with the types of its input and of its answer, and its refusals."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import NoneType
from typing import Any

from clew_workflows import contract
from clew_workflows.host import handlers
from clew_workflows.host.handlers import Handler


@dataclass(frozen=True, slots=True)
class Exchange:
    """A message of the contract.

    Attributes:
        name: The name of the update, signal, query or workflow type.
        input: The type of its argument; None where it takes none.
        answer: The type of its answer; None where it has none.
        refusals: The words that only it is refused with, beside those of its kind.
        bare: It may come without an argument.
        description: Its effect or its answer, in one sentence.
    """

    name: str
    input: type | None
    answer: type | None = None
    refusals: tuple[str, ...] = ()
    bare: bool = False
    description: str = ""


def _read(
    handlers: Mapping[str, Handler[Any]], name: str, answer: type | None = None, refusals: tuple[str, ...] = ()
) -> Exchange:
    """Read what a session's own table says of an update, a signal or a query."""
    handler = handlers[name]
    input_ = None if handler.input is NoneType else handler.input
    return Exchange(name, input_, answer, refusals, handler.is_bare, handler.description)


START = Exchange(
    "AgentSession",
    contract.SessionStart,
    contract.SessionEnd,
    (
        "interrupted",
        "invalid_token_budget",
        "not_encrypted",
        "thread_mismatch",
        "too_large",
        "unknown_key",
        "unknown_tool",
        "unsupported_strategy",
    ),
)

COMMON_UPDATE_REFUSALS = (
    "archive_damaged",
    "archive_unavailable",
    "closed",
    "interrupted",
    "invalid_input",
    "newer_version",
    "not_encrypted",
    "repeated",
    "thread_mismatch",
    "too_large",
    "unknown_key",
)
"""Every update may be refused with these."""

UPDATES = (
    _read(
        handlers.UPDATES,
        "message",
        contract.RequestOutcome,
        ("busy", "empty_content", "invalid_token_budget", "queue_full", "request_reused", "unknown_tool"),
    ),
    _read(handlers.UPDATES, "await_request", contract.RequestOutcome, ("unknown_request",)),
    _read(
        handlers.UPDATES,
        "submit_input",
        contract.InputReceipt,
        ("empty_content", "idle", "queue_full", "request_mismatch", "request_reused"),
    ),
    _read(
        handlers.UPDATES,
        "submit_context_operation",
        contract.OperationReceipt,
        ("invalid_operation", "queue_full", "request_reused"),
    ),
    _read(handlers.UPDATES, "configure", contract.ConfigureReceipt, ("invalid_token_budget", "unknown_tool")),
    _read(handlers.UPDATES, "cancel_request", contract.CancelReceipt, ("idle", "request_mismatch")),
    _read(
        handlers.UPDATES,
        "resolve_approval",
        contract.ApprovalReceipt,
        ("already_resolved", "unknown_approval"),
    ),
    _read(
        handlers.UPDATES,
        "submit_tool_result",
        contract.ToolResultReceipt,
        ("already_answered", "call_ended", "unknown_tool_call"),
    ),
    _read(
        handlers.UPDATES,
        "summarize",
        contract.SummaryReceipt,
        ("archived", "busy", "nothing_to_summarize"),
    ),
    _read(
        handlers.UPDATES,
        "checkpoint",
        contract.CheckpointReceipt,
        ("archived", "busy", "checkpoint_unavailable", "context_overflow", "invalid_operation", "unknown_lane"),
    ),
    _read(handlers.UPDATES, "hibernate", contract.HibernateReceipt, ("busy",)),
    _read(handlers.UPDATES, "close_session", contract.CloseReceipt),
)

SIGNALS = (
    _read(handlers.SIGNALS, "steer"),
    _read(handlers.SIGNALS, "inject"),
    _read(handlers.SIGNALS, "modify_context"),
    _read(handlers.SIGNALS, "cancel"),
    _read(handlers.SIGNALS, "close"),
    _read(handlers.SIGNALS, "move"),
    _read(handlers.SIGNALS, "forked"),
    _read(handlers.SIGNALS, "late_result"),
    _read(handlers.SIGNALS, "subagent_result"),
)

COMMON_QUERY_REFUSALS = ("interrupted", "invalid_input", "starting", "thread_mismatch", "unknown_key")
"""Every query but `status` may be refused with these."""

QUERIES = (
    _read(handlers.QUERIES, "status", contract.SessionStatus),
    _read(
        handlers.QUERIES,
        "context",
        contract.ContextPage,
        ("archived", "context_overflow", "empty_content", "invalid_token_budget", "too_large"),
    ),
    _read(handlers.QUERIES, "transcript", contract.TranscriptPage, ("archived",)),
    _read(handlers.QUERIES, "window", contract.Window, ("archived", "context_overflow", "invalid_token_budget")),
    _read(handlers.QUERIES, "entries", contract.EntriesPage),
    _read(handlers.QUERIES, "follow", contract.FollowPage),
)

COMMON_WORKFLOW_REFUSALS = (
    "archive_damaged",
    "archive_unavailable",
    "invalid_input",
    "newer_version",
    "not_encrypted",
    "too_large",
    "unknown_key",
)
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
            "unknown_blob",
        ),
    ),
    Exchange("DeleteSession", contract.DeleteSessionInput, contract.DeleteReceipt, ("not_found",)),
    Exchange("ListSessions", contract.ListSessionsInput, contract.SessionsPage),
    Exchange("ListAgents", contract.ListAgentsInput, contract.AgentsList),
    Exchange("PutBlob", contract.PutBlobInput, contract.BlobReceipt, ("content_mismatch", "unsupported_content")),
    Exchange("GetBlob", contract.GetBlobInput, contract.BlobPage, ("unknown_blob",)),
    Exchange("StartUpload", contract.StartUploadInput, contract.UploadReceipt, ("upload_unavailable",)),
    Exchange(
        "FinishUpload",
        contract.FinishUploadInput,
        contract.BlobReceipt,
        ("content_mismatch", "unknown_upload", "unsupported_content", "upload_expired"),
    ),
    Exchange(
        "SendMessage",
        contract.SendMessageInput,
        contract.SendMessageReceipt,
        (
            "busy",
            "closed",
            "empty_content",
            "interrupted",
            "invalid_token_budget",
            "not_found",
            "queue_full",
            "repeated",
            "request_reused",
            "unknown_tool",
        ),
    ),
)

HEARTBEATS = (
    Exchange("call_model", None, contract.ReplyProgress),
    Exchange("run_tool", None, contract.ToolProgress),
)
"""What the heartbeats of a session's activities hold."""

WEBHOOKS = (Exchange("webhook", None, contract.WebhookMessage),)
"""What the body of a webhook's request holds."""

MESSAGES = (START, *UPDATES, *SIGNALS, *QUERIES, *WORKFLOWS, *HEARTBEATS, *WEBHOOKS)


def wire_types() -> dict[str, Any]:
    """Every type that travels as a whole message, by its name."""
    types = [type_ for exchange in MESSAGES for type_ in (exchange.input, exchange.answer) if type_ is not None]
    return {type_.__name__: type_ for type_ in types}
