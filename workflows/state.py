"""What a session is at a moment, beside its thread. Frozen values; the decisions make the next one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from clew.contract import ModelOptions, SessionConfig, Usage
from clew.entries import Draft
from clew.policy import ContextPolicy
from workflows.effects import CallModel, Failure, ResolvedTool, ToolAnswered

Phase = Literal["preparing", "idle", "awaiting_model", "awaiting_tools", "closed"]


@dataclass(frozen=True, slots=True)
class Moment:
    """Where and when a decision is taken: the thread's next seq, and the workflow's clock in seconds."""

    rev: int
    time: float


@dataclass(frozen=True, slots=True)
class Request:
    """An accepted message with the settings of its own.

    `context_policy` holds what differs from the session's; where the request brings a model but no policy, that
    is the whole policy for the model.
    """

    request_id: str
    content: str
    context_ref: str
    model: str
    options: ModelOptions
    context_policy: ContextPolicy | None
    max_iterations: int
    timeout_seconds: int
    metadata: dict[str, str] | None = None


@dataclass(frozen=True, slots=True)
class AskedCall:
    """A tool call of the current round. `answer` is there as soon as it is known."""

    tool_call_id: str
    name: str
    arguments: dict[str, object]
    answer: ToolAnswered | None = None


@dataclass(frozen=True, slots=True)
class Run:
    """The loop that serves a request. `deadline` is in seconds of the workflow's clock."""

    run_id: str
    request: Request
    deadline: float
    iteration: int = 0
    call: CallModel | None = None
    asked: tuple[AskedCall, ...] = ()
    answer_seq: int | None = None
    usage: Usage = Usage()


@dataclass(frozen=True, slots=True)
class State:
    """The session. `tools` is None until a worker has resolved them; `problem` is why it could not.

    `waiting` holds a request that was accepted before the session was prepared, `early` the facts that were known
    before: seq 0 is the configuration's. The counters make ids that are unique in the thread.
    """

    session_id: str
    config: SessionConfig
    policy: ContextPolicy
    phase: Phase = "preparing"
    tools: tuple[ResolvedTool, ...] | None = None
    problem: Failure | None = None
    run: Run | None = None
    waiting: Request | None = None
    early: tuple[Draft, ...] = ()
    context_ref: str = "default"
    usage: Usage = Usage()
    runs: int = 0
    calls: int = 0
    tool_calls: int = 0

    @property
    def closed(self) -> bool:
        """Whether the session has ended."""
        return self.phase == "closed"

    @property
    def request_id(self) -> str | None:
        """The request that is being served or waits to be."""
        request = self.run.request if self.run else self.waiting
        return request.request_id if request else None
