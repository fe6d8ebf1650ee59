"""Clew: durable LLM-agent sessions on Temporal.

A session is one long-running workflow. Its event history has the conversation's thread, and the context of a model
call is a pure projection of that thread.

This package exports the names of everyday use. `clew.contract` has all inputs and answers of sessions, `clew.errors`
all errors. `clew.thread` and `clew.context` have threads and contexts, for programs that project them themselves.
"""

from clew.agents import Agent
from clew.content import Audio, File, Image
from clew.session import Clew, Request, Session
from clew.tools import Tool, ToolContext, tool
from clew_workflows.contract import ClearToolResults, ContextPolicy, Limits, ModelOptions, RequestOutcome
from clew_workflows.contract.errors import (
    Busy,
    ClewError,
    Closed,
    NotFound,
    Refusal,
    RequestFailed,
    ServerUnreachable,
    WorkerUnavailable,
)
from clew_workflows.thread import Entry

__all__ = [
    "Agent",
    "Audio",
    "Busy",
    "ClearToolResults",
    "Clew",
    "ClewError",
    "Closed",
    "ContextPolicy",
    "Entry",
    "File",
    "Image",
    "Limits",
    "ModelOptions",
    "NotFound",
    "Refusal",
    "Request",
    "RequestFailed",
    "RequestOutcome",
    "ServerUnreachable",
    "Session",
    "Tool",
    "ToolContext",
    "WorkerUnavailable",
    "tool",
]
