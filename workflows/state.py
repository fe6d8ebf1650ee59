"""What a session is at a moment, beside its thread. Frozen values; the decisions make the next one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from clew.answers import InputReceipt, RequestOutcome, Usage
from clew.contract import ConfigureInput, ContextOperation, MessageInput, ModelOptions, SessionConfig
from clew.policy import ContextPolicy
from workflows.effects import ArchiveRef, CallModel, Defaults, Failure, Prepare, ResolvedTool, ToolAnswered

Phase = Literal[
    "preparing",
    "idle",
    "awaiting_model",
    "awaiting_tools",
    "awaiting_approval",
    "summarizing",
    "hibernating",
    "closed",
]

REMEMBERED_OPS = 128
"""Ids of operations, applied or overtaken, that are known again."""
MAX_WAITING = 64
"""Inputs, and queued messages, that a session keeps; and how many bytes of them."""
MAX_WAITING_BYTES = 512 * 1024
EIGHTHS = 8
"""Ratios of tokens move in steps of an eighth."""


@dataclass(frozen=True, slots=True)
class Moment:
    """Where and when a decision is taken: the thread's next seq, and the workflow's clock in seconds."""

    rev: int
    time: float


@dataclass(frozen=True, slots=True)
class Input:
    """What was steered in or injected, waiting for its place in the run.

    `request_id` is set where a message joined the run under a request id of its own; `metadata` is that message's.
    """

    input_id: str
    kind: str
    content: str
    at: Literal["terminal", "step"]
    on_failure: Literal["follow_up", "drop"]
    source: str
    request_id: str | None = None
    metadata: dict[str, str] | None = None


@dataclass(frozen=True, slots=True)
class Request:
    """An accepted message with the settings of its own, or the inputs that a follow-up run answers.

    `context_policy` holds what differs from the session's; where the request brings a model, and the agent has
    chosen no policy, that is the whole policy for the model.
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
    output_schema: dict[str, Any] | None = None
    inputs: tuple[Input, ...] = ()
    given: MessageInput | None = None


@dataclass(frozen=True, slots=True)
class AskedCall:
    """A tool call of the current round. `answer` is there as soon as it is known."""

    tool_call_id: str
    name: str
    arguments: dict[str, Any]
    answer: ToolAnswered | None = None
    needs_approval: bool = False


@dataclass(frozen=True, slots=True)
class Run:
    """The loop that serves a request, and the requests that have joined it.

    `deadline` is in seconds of the workflow's clock. `opened_seq` is the seq of the message that opened it,
    `paused_at` when it began to wait for approvals: people take their time. `repaired` and `tightened` say that an
    answer was asked for again, and that a context was made shorter: each is done once.
    """

    run_id: str
    request: Request
    deadline: float
    opened_seq: int
    joined: tuple[str, ...] = ()
    paused_at: float | None = None
    repaired: bool = False
    tightened: bool = False
    iteration: int = 0
    call: CallModel | None = None
    asked: tuple[AskedCall, ...] = ()
    answer_seq: int | None = None
    usage: Usage = Usage()


@dataclass(frozen=True, slots=True)
class Summarizing:
    """A summary in the making. `operation` asked for it, or the update that waits for it, or else the session did."""

    summary_id: str
    operation: ContextOperation | None = None
    automatic: bool = False


@dataclass(frozen=True, slots=True)
class Learned:
    """What is known of a model.

    `eighths` is how many tokens its provider counts where we count eight, in whole steps, and never less than eight.
    `budget` is what a refusal has left of any context, in tokens of ours; None: none was refused.
    """

    eighths: int = EIGHTHS
    budget: int | None = None

    @property
    def ratio(self) -> float:
        """The provider's tokens to ours."""
        return self.eighths / EIGHTHS

    def of(self, budget: int) -> int:
        """What is left of a policy's budget, in tokens of ours."""
        left = max(budget * EIGHTHS // self.eighths, 1)
        return left if self.budget is None else min(left, self.budget)


@dataclass(frozen=True, slots=True)
class State:
    """The session. `tools` is None until a worker has resolved them; `problem` is why it could not.

    `config` is the configuration in force, `own_policy` what `configure` has laid over the agent's. The counters make
    ids that are unique in the thread. `pending_op` and `pending_config` wait for the run to end, `config_due` says
    that a configuration waits for its preparation to be committed. `defaults` is what a worker's catalog has chosen,
    and `defaults_due` says that the next preparation is to tell; `learned` is what providers have told of their
    models, by name. `archive` is where older entries are, and `outcomes` are those of requests whose `run` entries
    may be there alone. `summary_due` is a lane whose contexts want a summary, `no_summary_before` the number of the
    run up to whose end none is tried, since one has failed.
    """

    session_id: str
    config: SessionConfig
    policy: ContextPolicy
    phase: Phase = "preparing"
    tools: tuple[ResolvedTool, ...] | None = None
    problem: Failure | None = None
    run: Run | None = None
    own_policy: ContextPolicy | None = None
    queue: tuple[Request, ...] = ()
    inbox: tuple[Input, ...] = ()
    receipts: tuple[InputReceipt, ...] = ()
    pending_op: ContextOperation | None = None
    pending_config: ConfigureInput | None = None
    known_ops: tuple[str, ...] = ()
    config_due: bool = True
    defaults: Defaults | None = None
    defaults_due: bool = False
    learned: Mapping[str, Learned] = field(default_factory=dict)
    context_ref: str = "default"
    usage: Usage = Usage()
    runs: int = 0
    calls: int = 0
    tool_calls: int = 0
    inputs: int = 0
    archive: ArchiveRef | None = None
    outcomes: Mapping[str, RequestOutcome] = field(default_factory=dict)
    summarizing: Summarizing | None = None
    summaries: int = 0
    summary_due: str | None = None
    no_summary_before: int = 0

    @property
    def closed(self) -> bool:
        """Whether the session has ended."""
        return self.phase == "closed"

    @property
    def request_id(self) -> str | None:
        """The request that is being served or is the next to be."""
        if self.run:
            return self.run.request.request_id
        return self.queue[0].request_id if self.queue else None

    @property
    def busy(self) -> bool:
        """Whether a request is being served or waits, or a summary is in the making."""
        return self.run is not None or bool(self.queue) or self.summarizing is not None

    @property
    def preparation(self) -> Prepare:
        """What resolves the configuration in force anew."""
        return Prepare(
            model=self.config.model,
            tools=self.config.tools,
            archived=self.archive is not None,
            clears=self.policy.clear_tool_results is not None,
        )

    @property
    def unfinished(self) -> tuple[str, ...]:
        """The ids of all requests that have been accepted and have no outcome in the thread yet."""
        served = (self.run.request.request_id, *self.run.joined) if self.run else ()
        return (*served, *(request.request_id for request in self.queue))


def remembering(state: State, op_id: str) -> State:
    """The session with an operation's id as the newest that it knows."""
    others = (known for known in state.known_ops if known != op_id)
    return replace(state, known_ops=(*others, op_id)[-REMEMBERED_OPS:])
