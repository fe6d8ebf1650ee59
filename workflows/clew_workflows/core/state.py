"""A session's state beside its thread: frozen values, which decisions replace by the next ones."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Literal

from pydantic.json_schema import SkipJsonSchema

from clew.contract import ConfigureInput, ContextOperation, SessionConfig
from clew.contract.policy import ContextPolicy
from clew.contract.receipts import InputReceipt
from clew.hooks import HookPoint
from clew.outcomes import Usage
from clew.thread.entries import Refs
from clew_workflows.core.calls import Assignment, Child, LateCall
from clew_workflows.core.learned import Learned
from clew_workflows.core.listed import Listed
from clew_workflows.core.remembered import Remembered
from clew_workflows.core.run import Input, Request, Run
from clew_workflows.protocol import (
    ArchiveRef,
    Failure,
    ModelProfile,
    Prepare,
    ResolvedAgent,
    ResolvedTool,
)

Phase = Literal[
    "preparing",
    "idle",
    "checking",
    "awaiting_model",
    "stopping",
    "awaiting_tools",
    "awaiting_approval",
    "awaiting_external",
    "summarizing",
    "hibernating",
    "closed",
]

MAX_SEALS = 1000
"""Inputs whose encrypted text a session recognizes when it is sent again."""
MAX_KNOWN_OPS = 128
"""Ids of applied or superseded operations that a session remembers, to recognize a repetition."""
MAX_WAITING = 64
"""Most inputs that wait, most queued messages, and most context operations that wait."""
MAX_WAITING_BYTES = 512 * 1024
"""Most bytes of each of them together."""


@dataclass(frozen=True, slots=True)
class Moment:
    """When a decision is taken.

    Attributes:
        rev: The seq of the thread's next entry.
        time: The workflow's clock, in seconds.
    """

    rev: int
    time: float


@dataclass(frozen=True, slots=True)
class Summarizing:
    """A summary that is being written.

    Attributes:
        summary_id: The id of the summary.
        operation: The compaction that needs it; None for the update `summarize`, and for an automatic summary.
        refs: The refs of the run after which the session has started it by itself; None: a caller has asked for it.
    """

    summary_id: str
    operation: ContextOperation | None = None
    refs: Refs | None = None

    @property
    def automatic(self) -> bool:
        """Whether the session has started it by itself."""
        return self.refs is not None


@dataclass(frozen=True, slots=True)
class State:
    """The session's state beside its thread.

    Attributes:
        session_id: The id of the session.
        own: The configuration that callers have set, by the start and by `configure`.
        policy: The context policy in force, complete.
        phase: The status that the query `status` reports.
        agent: The agent as a worker has resolved it; None until one has, and in a session without an agent.
        agent_due: The agent that `own` names has not been resolved, also where the session is pinned.
        tools: The tools as a worker has resolved them; None until one has.
        deployment: The deployment of the worker that has resolved the configuration; None until one has.
        hooks: The points for which the workers have hooks.
        limited: The providers whose rate the workers limit: their calls have task queues of their own.
        calls_models: The workers for sessions make model calls, too.
        shows_texts: Labels, details, titles and search attributes may hold texts of the conversation: a worker that
            does not encrypt has said so.
        problem: Why a worker could not resolve the configuration.
        run: The active run.
        own_policy: The policy fields that `configure` has set, over those of the configuration's policy.
        queue: The requests that wait for the active run to end, in order.
        inbox: The inputs that wait to be committed, in order.
        receipts: The receipts of the newest inputs, to recognize a repetition.
        pending_ops: Context operations that wait for the run to end, in order; at most one `replace` or `switch`.
        pending_config: A change of configuration that waits for the run to end.
        known_ops: The ids of the newest applied or superseded operations, to recognize a repetition.
        config_due: The configuration has been changed and its `config` entry not been committed.
        profiles: Workers' profiles of models, by model: the configuration's, and those that requests name.
        learned: Measurements of providers' token counts, by model.
        context_ref: The active lane.
        usage: The tokens and the cost of the session.
        children: The subagents that the session has started and that have not reported.
        subagent_usage: The tokens and the cost of the session's subagents, and of theirs.
        assignment: The task that the session works on as a subagent; None in a session that a caller has started.
        runs: The number of runs so far, for ids that are unique in the thread.
        calls: The number of model calls so far.
        tool_calls: The number of tool calls so far.
        inputs: The number of inputs so far.
        late_calls: Tool calls of ended runs that may still return.
        detached_calls: Those of earlier workflow runs. Their results come by the signal `late_result`, or never:
            nothing waits for them.
        answered_calls: The ids of the newest external calls whose results were submitted, to recognize a repetition.
        archive: The session's archive; None if the worker that began it had no store.
        outcomes: Outcomes of requests whose `run` entries may be in the archive alone; `carried` writes them as
            columns.
        summarizing: The summary that is being written.
        summaries: The number of summaries so far.
        summary_due: A lane that has reached the policy's threshold for a summary.
        no_summary_before: The number of runs before which no automatic summary is tried, because one has failed.
        listed: What lists of sessions show of the entries.
        attributes: The search attributes that the namespace has.
        seals: The ids in the encrypted texts of the newest `MAX_SEALS` inputs, one after the other, to recognize a
            repetition.
    """

    session_id: str
    own: SessionConfig
    policy: ContextPolicy
    phase: Phase = "preparing"
    agent: ResolvedAgent | None = None
    agent_due: bool = True
    tools: tuple[ResolvedTool, ...] | None = None
    deployment: str | None = None
    hooks: tuple[HookPoint, ...] = ()
    limited: tuple[str, ...] = ()
    calls_models: bool = False
    shows_texts: bool = False
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
    children: tuple[Child, ...] = ()
    subagent_usage: Usage = Usage()
    assignment: Assignment | None = None
    runs: int = 0
    calls: int = 0
    tool_calls: int = 0
    inputs: int = 0
    late_calls: tuple[LateCall, ...] = ()
    detached_calls: tuple[LateCall, ...] = ()
    answered_calls: tuple[str, ...] = ()
    archive: ArchiveRef | None = None
    outcomes: SkipJsonSchema[Remembered] = field(default_factory=Remembered)
    summarizing: Summarizing | None = None
    summaries: int = 0
    summary_due: str | None = None
    no_summary_before: int = 0
    listed: Listed = field(default_factory=Listed)
    attributes: tuple[str, ...] = ()
    seals: str = ""

    @property
    def config(self) -> SessionConfig:
        """The configuration in force: the agent's, with the fields that callers have set."""
        return self.agent.config.overlay(self.own) if self.agent else self.own

    @property
    def model(self) -> str:
        """The model of the configuration; empty until a worker has resolved the agent whose model it is."""
        return self.config.model or ""

    @property
    def keeps_agent(self) -> bool:
        """Whether a preparation keeps the agent and the tools' schemas that the session has."""
        return self.own.pin and not self.agent_due

    @property
    def closed(self) -> bool:
        """Whether the session has ended."""
        return self.phase == "closed"

    @property
    def stopping(self) -> bool:
        """Whether the active run ends as soon as its model call has stopped."""
        return self.phase == "stopping"

    @property
    def request_id(self) -> str | None:
        """The request of the active run, or else the first in the queue."""
        if self.run:
            return self.run.request.request_id
        return self.queue[0].request_id if self.queue else None

    @property
    def busy(self) -> bool:
        """Whether a run is active, a request waits, or a summary is being written that a caller asked for."""
        return self.run is not None or bool(self.queue) or (self.summarizing is not None and not self.own_summary)

    @property
    def own_summary(self) -> bool:
        """Whether an automatic summary is being written. The session gives it up when it gets other work."""
        return self.summarizing is not None and self.summarizing.automatic

    @property
    def at_rest(self) -> bool:
        """Whether nothing runs, waits or is being prepared, an automatic summary aside."""
        return not self.busy and (self.phase == "idle" or self.own_summary)

    @property
    def describing(self) -> bool:
        """Whether a worker is asked to describe the model that the active run's request names."""
        return self.phase == "preparing" and self.run is not None and self.run.describing

    @property
    def has_encoding(self) -> bool:
        """Whether the encoding is chosen: by the caller, or by the first worker that has answered."""
        return self.tools is not None or "encoding" in self.own.model_fields_set

    @property
    def preparation(self) -> Prepare:
        """The effect that resolves the configuration in force, with the agent that `own` names."""
        archived = self.archive is not None
        encoding = self.config.encoding if self.has_encoding else None
        if self.own.agent is None or self.keeps_agent:
            clears = self.policy.clear_tool_results is not None
            return Prepare(
                model=self.model,
                fallbacks=self.config.fallbacks or None,
                tools=self.config.tools,
                archived=archived,
                clears=clears,
                encoding=encoding,
            )
        policy = (self.own.context_policy or ContextPolicy()).overlay(self.own_policy)
        return Prepare(
            agent=self.own.agent,
            model=self.own.model,
            fallbacks=self.own.fallbacks if "fallbacks" in self.own.model_fields_set else None,
            tools=self.own.tools if "tools" in self.own.model_fields_set else None,
            archived=archived,
            clears=policy.clear_tool_results is not None if "clear_tool_results" in policy.model_fields_set else None,
            encoding=encoding,
        )

    @property
    def unfinished(self) -> tuple[str, ...]:
        """The ids of all accepted requests that have no outcome in the thread yet."""
        served = (self.run.request.request_id, *self.run.joined) if self.run else ()
        return (*served, *(request.request_id for request in self.queue))


def remember_operation(state: State, op_id: str) -> State:
    """Remember the id of an operation, as the newest."""
    others = (known for known in state.known_ops if known != op_id)
    return replace(state, known_ops=(*others, op_id)[-MAX_KNOWN_OPS:])


def is_sealed_before(state: State, seal: str) -> bool:
    """Whether an input with this id in its encrypted text has been accepted before."""
    return f"{seal} " in state.seals


def remember_seal(state: State, seal: str) -> State:
    """Remember the id in the encrypted text of an input, as the newest. All ids have the same length."""
    return replace(state, seals=f"{state.seals}{seal} "[-MAX_SEALS * (len(seal) + 1) :])


def get_run(state: State) -> Run:
    """Return the active run; there must be one."""
    assert state.run is not None, "no run is active"
    return state.run
