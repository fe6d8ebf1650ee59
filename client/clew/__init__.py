"""Clew: durable LLM-agent sessions on Temporal.

A session is one long-running workflow, its event history is the conversation thread, and what a model sees is a
pure projection of that thread.

Here is what programs use daily. Everything that sessions take and answer is in `clew.contract`, every error in
`clew.errors`, and the thread and its contexts, for programs that project them on their own, in `clew.thread` and
`clew.context`.
"""

from clew.contract import (
    ClearToolResults,
    ContextPolicy,
    Limits,
    ModelOptions,
    RequestOutcome,
    StreamState,
)
from clew.errors import (
    Busy,
    ClewError,
    Closed,
    Refusal,
    RequestFailed,
    ServerUnreachable,
    WorkerUnavailable,
)
from clew.session import Clew, Request, Session
from clew.thread import Entry
from clew.tools import Tool, ToolContext, tool

__all__ = [
    "Busy",
    "ClearToolResults",
    "Clew",
    "ClewError",
    "Closed",
    "ContextPolicy",
    "Entry",
    "Limits",
    "ModelOptions",
    "Refusal",
    "Request",
    "RequestFailed",
    "RequestOutcome",
    "ServerUnreachable",
    "Session",
    "StreamState",
    "Tool",
    "ToolContext",
    "WorkerUnavailable",
    "tool",
]
