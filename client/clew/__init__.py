"""Clew: durable LLM-agent sessions on Temporal.

A session is one long-running workflow, its event history is the conversation thread, and what a model sees is a
pure projection of that thread.
"""

from clew.client import Clew
from clew.contract import (
    Context,
    ContextMeta,
    Limits,
    ModelOptions,
    OutcomeError,
    RequestOutcome,
    SessionConfig,
    SessionStatus,
    StreamState,
    TranscriptMessage,
    Usage,
    Window,
)
from clew.entries import Entry
from clew.errors import (
    ArchiveUnavailable,
    Busy,
    ClewError,
    Closed,
    ContextOverflow,
    EmptyContent,
    EncodingUnavailable,
    Idle,
    InvalidInput,
    InvalidOperation,
    InvalidTokenBudget,
    NothingToSummarize,
    QueueFull,
    Refusal,
    RequestFailed,
    RequestMismatch,
    ServerUnreachable,
    TooLarge,
    UnknownApproval,
    UnknownLane,
    UnknownRequest,
    UnsupportedStrategy,
    WorkerUnavailable,
)
from clew.messages import Message, ToolCall, ToolSpec
from clew.policy import ContextPolicy
from clew.session import Request, Session
from clew.thread import Thread
from clew.tools import Tool, ToolContext, tool

__all__ = [
    "ArchiveUnavailable",
    "Busy",
    "Clew",
    "ClewError",
    "Closed",
    "Context",
    "ContextMeta",
    "ContextOverflow",
    "ContextPolicy",
    "EmptyContent",
    "EncodingUnavailable",
    "Entry",
    "Idle",
    "InvalidInput",
    "InvalidOperation",
    "InvalidTokenBudget",
    "Limits",
    "Message",
    "ModelOptions",
    "NothingToSummarize",
    "OutcomeError",
    "QueueFull",
    "Refusal",
    "Request",
    "RequestFailed",
    "RequestMismatch",
    "RequestOutcome",
    "ServerUnreachable",
    "Session",
    "SessionConfig",
    "SessionStatus",
    "StreamState",
    "Thread",
    "TooLarge",
    "Tool",
    "ToolCall",
    "ToolContext",
    "ToolSpec",
    "TranscriptMessage",
    "UnknownApproval",
    "UnknownLane",
    "UnknownRequest",
    "UnsupportedStrategy",
    "Usage",
    "Window",
    "WorkerUnavailable",
    "tool",
]
