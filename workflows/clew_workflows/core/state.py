"""What a session is at a moment, beside its thread. Frozen values; the decisions make the next one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from clew.contract import ConfigureInput, ContextOperation, MessageInput, ModelOptions, SessionConfig
from clew.contract.outputs import InputReceipt
from clew.contract.payloads import ToolMessage
from clew.contract.policy import ContextPolicy
from clew.outcomes import RequestOutcome, Usage
from clew.thread.entries import Refs
from clew_workflows.protocol import ArchiveRef, CallModel, Failure, ModelProfile, Prepare, ResolvedTool

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

MAX_KNOWN_OPS = 128
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

    Attributes:
        joined: The message that joined the run, where the input is one; it is a request of its own.
    """

    input_id: str
    kind: str
    content: str
    at: Literal["terminal", "step"]
    on_failure: Literal["follow_up", "drop"]
    source: str
    request_id: str | None = None
    joined: MessageInput | None = None

    @property
    def metadata(self) -> dict[str, str] | None:
        """The metadata of the message that joined."""
        return self.joined.metadata if self.joined else None


@dataclass(frozen=True, slots=True)
class Request:
    """An accepted message with its settings filled in, or the inputs that a follow-up run answers.

    The settings are filled in again when the run starts: a request that waited runs under the configuration that is
    in force by then.

    Attributes:
        context_policy: What differs from the session's policy. Where the request names a model, and the agent has
            chosen no policy, it is the whole policy for that model.
        message: The message. A follow-up run has none.
        inputs: What a follow-up run answers.
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
    message: MessageInput | None = None
    inputs: tuple[Input, ...] = ()


@dataclass(frozen=True, slots=True)
class RequestedCall:
    """A tool call of the current round.

    Attributes:
        arguments: What the tool is run with: the model's, or those that a person put in their place.
        edited: A person has changed the arguments.
        scheduled: An activity has been started for the call, so that it may have run.
        returned: Its result is in the thread.
    """

    tool_call_id: str
    name: str
    arguments: dict[str, Any]
    needs_approval: bool = False
    idempotent: bool = False
    edited: bool = False
    scheduled: bool = False
    returned: bool = False


@dataclass(frozen=True, slots=True)
class LateCall:
    """A tool call whose activity may still return although its run has ended.

    Attributes:
        doubt: The result in doubt that the thread has of it.
        refs: Those of that result.
    """

    doubt: ToolMessage
    refs: Refs

    @property
    def tool_call_id(self) -> str:
        """The id of the call."""
        return self.doubt.tool_call_id


@dataclass(frozen=True, slots=True)
class Run:
    """The loop that serves a request, and the requests that have joined it.

    `deadline` is in seconds of the workflow's clock. `opened_seq` is the seq of the message that opened it,
    `paused_at` when it began to wait for approvals: people take their time. `repaired` and `tightened` say that an
    answer was asked for again, and that a context was made shorter: each is done once. `cut` names the tool calls
    that the deadline cut off.
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
    tool_calls: tuple[RequestedCall, ...] = ()
    cut: tuple[str, ...] = ()
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

    def reduce(self, budget: int) -> int:
        """What is left of a policy's budget, in tokens of ours."""
        left = max(budget * EIGHTHS // self.eighths, 1)
        return left if self.budget is None else min(left, self.budget)


@dataclass(frozen=True, slots=True)
class State:
    """The session beside its thread.

    Attributes:
        config: The configuration in force.
        policy: The context policy in force, complete.
        tools: The tools as a worker resolved them; None until one has.
        problem: Why a worker could not resolve the configuration.
        own_policy: What `configure` has laid over the agent's policy.
        pending_ops: Context operations that wait for the run to end, in order; at most one `replace` or `switch`.
        pending_config: A change of configuration that waits for the run to end.
        known_ops: The ids of the newest operations, applied or overtaken.
        config_due: A configuration waits for its preparation to be committed.
        profiles: What workers have told of models, by name: the configuration's, and requests' own.
        learned: What providers have told of their models, by name.
        runs, calls, tool_calls, inputs, summaries: Counters; they make ids that are unique in the thread.
        late_calls: Tool calls of ended runs that may still return.
        archive: Where older entries are.
        outcomes: Outcomes of requests whose `run` entries may be in the archive alone.
        summary_due: A lane whose contexts want a summary.
        no_summary_before: No automatic summary is tried before the end of this run: one has failed.
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
    pending_ops: tuple[ContextOperation, ...] = ()
    pending_config: ConfigureInput | None = None
    known_ops: tuple[str, ...] = ()
    config_due: bool = True
    profiles: Mapping[str, ModelProfile] = field(default_factory=dict)
    learned: Mapping[str, Learned] = field(default_factory=dict)
    context_ref: str = "default"
    usage: Usage = Usage()
    runs: int = 0
    calls: int = 0
    tool_calls: int = 0
    inputs: int = 0
    late_calls: tuple[LateCall, ...] = ()
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
        """Whether a request is being served or waits, or a summary that was asked for is in the making."""
        return self.run is not None or bool(self.queue) or (self.summarizing is not None and not self.own_summary)

    @property
    def own_summary(self) -> bool:
        """Whether the session is writing a summary of its own accord; it gives way to whatever arrives."""
        return self.summarizing is not None and self.summarizing.automatic

    @property
    def at_rest(self) -> bool:
        """Whether nothing runs, waits or is being prepared, but for a summary of the session's own accord."""
        return not self.busy and (self.phase == "idle" or self.own_summary)

    @property
    def describing(self) -> bool:
        """Whether a worker is being asked about the model that the request being served names."""
        return self.phase == "preparing" and self.run is not None and self.problem is None

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


def remember_operation(state: State, op_id: str) -> State:
    """The session with an operation's id as the newest that it knows."""
    others = (known for known in state.known_ops if known != op_id)
    return replace(state, known_ops=(*others, op_id)[-MAX_KNOWN_OPS:])
