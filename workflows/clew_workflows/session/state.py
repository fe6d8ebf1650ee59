"""A session's state beside its thread: frozen values, which decisions replace by the next ones."""

from __future__ import annotations

import re
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from hashlib import sha256
from typing import Any, Concatenate, Literal, ParamSpec

from pydantic import TypeAdapter
from pydantic.json_schema import SkipJsonSchema
from pydantic_core import from_json, to_json

from clew_workflows.contract import (
    ConfigureInput,
    ContextOperation,
    MessageInput,
    ModelOptions,
    RunSettings,
    SessionConfig,
    SubmitInput,
    Task,
)
from clew_workflows.contract.config import ExternalToolSpec
from clew_workflows.contract.content import Content, get_opening
from clew_workflows.contract.hooks import HookPoint
from clew_workflows.contract.lists import cut_title
from clew_workflows.contract.messages import canonicalize
from clew_workflows.contract.outcomes import RequestOutcome, Usage
from clew_workflows.contract.outputs import InputReceipt
from clew_workflows.contract.payloads import (
    ForkPayload,
    Refused,
    RunPayload,
    SessionPayload,
    ToolMessage,
    UserMessage,
)
from clew_workflows.contract.policy import ContextPolicy
from clew_workflows.contract.webhooks import Webhook
from clew_workflows.protocol import (
    FUNCTION,
    AgentRoute,
    ArchiveRef,
    CallModel,
    ExternalRoute,
    Failure,
    ModelProfile,
    Notice,
    Prepare,
    ResolvedAgent,
    ResolvedTool,
    Route,
    SessionEffect,
)
from clew_workflows.thread.entries import Draft, Entry, Refs

# Tool calls and checks as a session's state holds them, and the sessions on both sides of a call of a subagent.


@dataclass(frozen=True, slots=True)
class RequestedCall:
    """A tool call of the current round.

    Attributes:
        tool_call_id: The id of the call.
        name: The tool.
        arguments: The model's arguments, or those that a person has replaced them by.
        needs_approval: A person must approve the call first.
        holds_round: The other calls of the round wait for the decision, too.
        checked: The hooks have checked the call.
        idempotent: The call may be repeated.
        route: How the call is carried out.
        edited: A person has changed the arguments.
        scheduled: An activity has been started for the call: it may have run.
        expires_at: When a call that waits for its result from outside times out, in seconds of the workflow's clock.
        returned: Its result is in the thread.
    """

    tool_call_id: str
    name: str
    arguments: dict[str, Any]
    needs_approval: bool = False
    holds_round: bool = False
    checked: bool = False
    idempotent: bool = False
    route: Route = FUNCTION
    edited: bool = False
    scheduled: bool = False
    expires_at: float | None = None
    returned: bool = False

    @property
    def has_begun(self) -> bool:
        """Whether its activity has been started, or the wait for its result from outside has begun."""
        return self.scheduled or self.expires_at is not None

    @property
    def is_running(self) -> bool:
        """Whether its activity has been started, and its result is not in the thread."""
        return self.scheduled and not self.returned

    @property
    def is_external(self) -> bool:
        """Whether the result is submitted by a caller."""
        return isinstance(self.route, ExternalRoute)

    @property
    def is_outside(self) -> bool:
        """Whether the result comes from outside: no activity is started for the call."""
        return isinstance(self.route, ExternalRoute | AgentRoute)


@dataclass(frozen=True, slots=True)
class Checking:
    """What hooks are checking for a run.

    Attributes:
        step: Inputs before a model call (`inputs`) or after a reply (`reply`), messages that the run has committed
            already (`committed`), the round's calls, or the answer.
        item_ids: The inputs, or the tool calls.
    """

    step: Literal["inputs", "reply", "committed", "tools", "answer"]
    item_ids: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class LateCall:
    """A tool call whose activity may still return although its run has ended.

    Attributes:
        doubt: The result in doubt that the thread holds for it.
        refs: The refs of that result.
        run_number: The number of its run.
        round_seq: Where the call's round begins, which the thread of a later workflow run may not hold; -1 in the
            workflow run that has started the activity.
    """

    doubt: ToolMessage
    refs: Refs
    run_number: int
    round_seq: int = -1

    @property
    def tool_call_id(self) -> str:
        """The id of the call."""
        return self.doubt.tool_call_id


@dataclass(frozen=True, slots=True)
class Child:
    """A subagent's session, from its call until it has reported.

    Attributes:
        tool_call_id: The tool call.
        agent: The agent.
        session_id: The id of the session.
        step: The session is to be started (`start`), works (`working`), or is to be cancelled (`cancel`) because its
            call has ended, or has been cancelled (`cancelled`).
        max_total_tokens: The tokens that are reserved for it; None: the session has no limit.
        max_cost_usd: The cost that is reserved for it, in USD; None: the session has no limit.
    """

    tool_call_id: str
    agent: str
    session_id: str
    step: Literal["start", "working", "cancel", "cancelled"] = "start"
    max_total_tokens: int | None = None
    max_cost_usd: float | None = None


@dataclass(frozen=True, slots=True)
class Assignment:
    """The task that a session works on as a subagent.

    Attributes:
        task: The task, without its text, which is in the queue or in the thread.
        step: The request has not been reported (`open`), has been (`reported`), or the session has closed
            after that (`over`): one that is opened again stays open.
        worked_seconds: The seconds that the request has taken, without those in which its clock stood still.
    """

    task: Task
    step: Literal["open", "reported", "over"] = "open"
    worked_seconds: float = 0.0


# The run as a session's state holds it, with its request and the inputs that wait for it.


@dataclass(frozen=True, slots=True)
class Input:
    """An input for the active run, not committed yet.

    Attributes:
        input_id: The id of the input.
        kind: `steer`, `inject`, `repair`, or `message` for a message that joins the run.
        content: The text.
        at: When it is committed: before the next model call (`step`), or after a reply that
            would end the run (`terminal`).
        on_failure: What becomes of it if the run ends before it is committed.
        source: The source that its entry names.
        request_id: The request of a message that joins the run.
        joined: The message that joins the run.
        tokens: The tokens of its text, counted when it begins to wait.
        checked: The hooks have accepted it.
        refs: The caller's own refs.
    """

    input_id: str
    kind: str
    content: Content
    at: Literal["terminal", "step"]
    on_failure: Literal["follow_up", "drop"]
    source: str
    request_id: str | None = None
    joined: MessageInput | None = None
    tokens: int | None = None
    checked: bool = False
    refs: dict[str, str] | None = None

    @property
    def metadata(self) -> dict[str, str] | None:
        """The metadata of the message that joins the run."""
        return self.joined.metadata if self.joined else None


@dataclass(frozen=True, slots=True)
class Request:
    """An accepted message with its settings resolved, or the inputs that a follow-up run answers.

    The settings are resolved again when the run starts, so that a queued request runs under the configuration that is
    in force by then.

    Attributes:
        request_id: The id of the request.
        content: The text of the message.
        context_ref: The lane.
        model: `provider:model`.
        options: The model's options.
        policy: The context policy in force for the request, complete.
        context_policy: The request's changes to the session's policy. If the request names a model and the
            configuration has no policy, they are the complete policy of that model.
        max_iterations: Most model calls of the run.
        timeout_seconds: The time for the run, without the time it waits for nothing but approvals, or results from
            outside.
        metadata: The message's metadata.
        output_schema: The JSON Schema of the answer.
        message: The message; None for a follow-up run.
        inputs: The inputs that a follow-up run answers.
        tokens: The tokens of its text, counted when it begins to wait.
        fallbacks: The models that are tried next, in order, if the model has an outage.
        tools: The names of the request's tools; None: all of the session's.
        external_tools: The caller's tools of the request; None: the session's.
        provider_tools: The tools that the provider may run itself.
    """

    request_id: str
    content: Content
    context_ref: str
    model: str
    options: ModelOptions
    policy: ContextPolicy
    context_policy: ContextPolicy | None
    max_iterations: int
    timeout_seconds: int
    metadata: dict[str, str] | None = None
    output_schema: dict[str, Any] | None = None
    message: MessageInput | None = None
    inputs: tuple[Input, ...] = ()
    tokens: int | None = None
    fallbacks: tuple[str, ...] = ()
    tools: tuple[str, ...] | None = None
    provider_tools: tuple[str, ...] = ()
    external_tools: tuple[ExternalToolSpec, ...] | None = None

    @property
    def has_own_settings(self) -> bool:
        """Whether the entry with its settings has what its contexts need beside their recipes."""
        return self.output_schema is not None or self.external_tools is not None


@dataclass(frozen=True, slots=True)
class Ending:
    """How a run ends, or is to end once its model call has stopped.

    Attributes:
        status: The status of its requests' outcomes.
        reason: Their termination reason. A run that is to end: `cancelled`; `interrupted` by a message, the first in
            the queue; `closed`, with the session.
        inputs: What becomes of the inputs that the run has not read.
        explanation: The reason that the caller has sent.
        failure: Why the run has failed.
    """

    status: Literal["completed", "failed", "cancelled"]
    reason: str
    inputs: Literal["drop", "follow_up"] = "follow_up"
    explanation: str | None = None
    failure: Failure | None = None


@dataclass(frozen=True, slots=True)
class Clock:
    """The time of a request. It stands still while the run waits for nothing but people, or results from outside.

    Attributes:
        deadline: When the run times out, in seconds of the workflow's clock.
        paused_at: When the clock began to stand still, in seconds of the workflow's clock; None: it goes.
        worked_seconds: The most seconds that a subagent of the newest round has worked, which count meanwhile.
    """

    deadline: float
    paused_at: float | None = None
    worked_seconds: float = 0.0

    def measure_left(self, now: float) -> float:
        """Measure the seconds that are left."""
        return self.deadline - (now if self.paused_at is None else self.paused_at)

    def stop(self, now: float) -> Clock:
        """Stop the clock, if it does not stand still already."""
        return self if self.paused_at is not None else replace(self, paused_at=now)

    def resume(self, now: float) -> Clock:
        """Let the clock go on. The time in which it stood still does not count, except for the work of a subagent."""
        if self.paused_at is None:
            return self if self.worked_seconds == 0 else replace(self, worked_seconds=0.0)
        waited = max(now - self.paused_at - self.worked_seconds, 0.0)
        return Clock(self.deadline + waited)


@dataclass(frozen=True, slots=True)
class Answer:
    """The newest reply as the answer of its run.

    Attributes:
        seq: The seq of the newest reply that has text; with an `output_schema`, of the newest that also has no tool
            calls.
        first_seq: The seq of the newest reply, or of its first part: a paused reply is continued by the next.
        is_paused: Whether the newest reply is to be continued.
        reason: The termination reason of the run if its newest reply is the answer.
        schema_problem: How the newest reply without tool calls violates the request's `output_schema`.
        checked_seq: The seq of the newest answer that the hooks have accepted.
    """

    seq: int | None = None
    first_seq: int = -1
    is_paused: bool = False
    reason: str = ""
    schema_problem: str | None = None
    checked_seq: int | None = None


@dataclass(frozen=True, slots=True)
class Tried:
    """What a run has tried, so that it is not tried for ever.

    Attributes:
        prepared: The configuration was prepared anew during the run, which happens once a run.
        shortened: A refused context was shortened, which happens once for each model.
        failed_models: The models of the run that had an outage. The request's model is the next one.
        cut_replies: The newest replies that ended within a tool call, without another between them.
        repeats: The newest model call has failed, and the next one repeats it.
        corrections: The answers that the model was asked to correct, each by its first seq and its correction's.
    """

    prepared: bool = False
    shortened: bool = False
    failed_models: tuple[str, ...] = ()
    cut_replies: int = 0
    repeats: bool = False
    corrections: tuple[tuple[int, int], ...] = ()


@dataclass(frozen=True, slots=True)
class Spent:
    """Tokens and cost.

    Attributes:
        own: Those of the session or the run.
        subagents: Those of its subagents, and of theirs.
    """

    own: Usage = Usage()
    subagents: Usage = Usage()

    @property
    def total(self) -> Usage:
        """The sum of both."""
        return self.own.plus(self.subagents)

    @property
    def tokens(self) -> int:
        """The tokens of both, of prompts and replies."""
        used = self.total
        return used.input_tokens + used.output_tokens

    @property
    def cost_usd(self) -> float:
        """The cost of both, in USD."""
        return self.total.cost_usd or 0.0

    def add(self, usage: Usage) -> Spent:
        """Add usage of the session's or the run's own."""
        return Spent(self.own.plus(usage), self.subagents)

    def add_subagent(self, usage: Usage) -> Spent:
        """Add the usage of a subagent."""
        return Spent(self.own, self.subagents.plus(usage))


@dataclass(frozen=True, slots=True)
class FollowingSettings:
    """Settings that a caller has sent with a result or a decision.

    Attributes:
        settings: The settings.
        seq: The entry that has them.
    """

    settings: RunSettings
    seq: int


@dataclass(frozen=True, slots=True)
class Run:
    """The ReAct loop that serves a request, and the requests that have joined it.

    Attributes:
        run_id: The id of the run.
        request: The request that opened the run.
        clock: The time of the request.
        opened_seq: The seq of the message that opened the run.
        joined: The ids of the requests that have joined the run.
        describing: A worker is asked to describe the model that the request names.
        iteration: The number of the newest model call; 0 before the first.
        call: The newest model call.
        tool_calls: The tool calls of the newest reply.
        timed_out_calls: The tool calls that the deadline interrupted, for the message of the timeout.
        answer: The newest reply as the answer.
        tried: What the run has tried.
        spent: The tokens and the cost of the run.
        ending: How the run ends once its model call has stopped; None: it is not to end.
        checking: What hooks are checking; None: nothing.
        unchecked: Hooks have to check the run's messages, which were committed before the session knew of the hooks.
            No model has been called.
        settings_seq: The seq of the entry that has the settings of the request.
        following: The settings from the next model call on; None: those that the run has.
        media: The images, recordings and files of its messages, by `name_part`.
        unread: Those of them that a model did not get, and why.
    """

    run_id: str
    request: Request
    clock: Clock
    opened_seq: int
    joined: tuple[str, ...] = ()
    describing: bool = False
    iteration: int = 0
    call: CallModel | None = None
    tool_calls: tuple[RequestedCall, ...] = ()
    timed_out_calls: tuple[str, ...] = ()
    answer: Answer = Answer()
    tried: Tried = Tried()
    spent: Spent = Spent()
    ending: Ending | None = None
    checking: Checking | None = None
    unchecked: bool = False
    settings_seq: int = 0
    following: FollowingSettings | None = None
    media: tuple[str, ...] = ()
    unread: dict[str, str] = field(default_factory=dict)

    @property
    def fallback(self) -> str | None:
        """The fallback that the run uses; None: its model has had no outage."""
        return self.request.model if self.tried.failed_models else None

    @property
    def policy(self) -> ContextPolicy:
        """The context policy of the newest model call: the request's, with the budget that the model takes."""
        return self.request.policy.overlay(self.call.context_policy if self.call else None)

    @property
    def is_exhausted(self) -> bool:
        """Whether the run makes no other model call."""
        return self.iteration >= self.request.max_iterations


# What a session learns of a model from the answers of its provider.


EIGHTHS = 8
"""Token ratios are counted in eighths."""


@dataclass(frozen=True, slots=True)
class Learned:
    """Measurements of a model's token counts and window.

    Attributes:
        eighths: The tokens that the provider counts for eight of ours; at least 8.
        budget: The largest context that is tried after a refusal, in our tokens; None: no context was refused.
    """

    eighths: int = EIGHTHS
    budget: int | None = None

    @property
    def ratio(self) -> float:
        """The provider's token counts divided by ours."""
        return self.eighths / EIGHTHS

    def reduce(self, budget: int) -> int:
        """Reduce a policy's budget, in our tokens, to a context that the model takes."""
        scaled = max(budget * EIGHTHS // self.eighths, 1)
        return scaled if self.budget is None else min(scaled, self.budget)


# What lists of sessions show that only the entries say: it is noted as they are committed.


@dataclass(frozen=True, slots=True)
class Listed:
    """Notes on the entries so far.

    Attributes:
        opening: The first words of the first message; None before it.
        started_at: When the session's first own entry was committed; None before it.
        active_at: When the newest entry was committed.
        finished: The number of requests that have ended.
        failed: The newest of them failed.
        hibernated: It was by hibernation that the session ended last.
        origin: The session that this one was forked from.
    """

    opening: str | None = None
    started_at: str | None = None
    active_at: str | None = None
    finished: int = 0
    failed: bool = False
    hibernated: bool = False
    origin: str | None = None


def note_entries(listed: Listed, entries: Sequence[Entry]) -> Listed:
    """Note what lists show of new entries, of which there is at least one."""
    listed = replace(listed, started_at=listed.started_at or entries[0].at, active_at=entries[-1].at)
    for entry in entries:
        match entry.body:
            case UserMessage() as message if listed.opening is None:
                listed = replace(listed, opening=cut_title(get_opening(message.content)))
            case RunPayload(status=status):
                listed = replace(listed, finished=listed.finished + 1, failed=status == "failed")
            case SessionPayload(event=event):
                listed = replace(listed, hibernated=event == "hibernated")
            case ForkPayload(event="forked_from", session_id=origin):
                listed = replace(listed, origin=origin, started_at=entry.at, failed=False)
            case _:
                pass
    return listed


# Outcomes that a session remembers when their entries are in the archive.
#
# Few of them are ever asked for, so they stay packed: a thousand take 50 KB of a worker, and 2 MB as objects.


Columns = Mapping[str, Sequence[Any]]
"""Outcomes as one list of values for each field, which compress to less than a list of outcomes."""

_GROWING = ("run_id", "answer_seq", "last_seq")
_RUN_ID = re.compile(r"run-([1-9][0-9]{0,14})")
"""The ids that a session makes. A thread that was imported may have any, and Python reads 4 300 digits at most."""

_outcomes: TypeAdapter[list[RequestOutcome]] = TypeAdapter(list[RequestOutcome])


@dataclass(frozen=True, slots=True)
class Remembered:
    """Outcomes of one session, oldest first.

    Attributes:
        ids: The ids of their requests, each as JSON between line breaks.
        packed: The outcomes as compressed JSON.
    """

    ids: str = "\n"
    packed: bytes = b""

    @classmethod
    def pack(cls, known: Sequence[RequestOutcome]) -> Remembered:
        """Pack outcomes."""
        if not known:
            return cls()
        ids = "".join(_make_line(outcome.request_id) for outcome in known)
        return cls(f"\n{ids}", zlib.compress(to_json(make_columns(known)), 1))

    def unpack(self) -> list[RequestOutcome]:
        """Unpack all outcomes."""
        return read_columns(from_json(zlib.decompress(self.packed))) if self.packed else []

    def find(self, request_id: str) -> RequestOutcome | None:
        """Find the outcome of a request."""
        if request_id not in self:
            return None
        return next((outcome for outcome in self.unpack() if outcome.request_id == request_id), None)

    def __contains__(self, request_id: str) -> bool:
        return f"\n{_make_line(request_id)}" in self.ids


def _make_line(request_id: str) -> str:
    """Write an id as a line. As JSON it has no line break within it."""
    return f"{to_json(request_id).decode()}\n"


def make_columns(known: Sequence[RequestOutcome]) -> Columns:
    """Write outcomes field by field, and what grows with the thread as differences."""
    rows = _outcomes.dump_python([*known], mode="json", exclude_none=True)
    columns = {name: [row.get(name) for row in rows] for name in RequestOutcome.model_fields}
    columns["run_id"] = [_find_number(run_id) for run_id in columns["run_id"]]
    return {**columns, **{name: [*_subtract(columns[name])] for name in _GROWING}}


def read_columns(columns: Columns) -> list[RequestOutcome]:
    """Read what `make_columns` has written.

    Raises:
        KeyError: A field is missing.
        TypeError: A field is no list.
        ValueError: The lists have different lengths, or a value is no outcome's.
    """
    lists = {**columns, **{name: [*_add(columns[name])] for name in _GROWING}}
    lists["run_id"] = [f"run-{number}" if isinstance(number, int) else number for number in lists["run_id"]]
    rows = zip(*lists.values(), strict=True)
    return _outcomes.validate_python(
        [{name: value for name, value in zip(lists, row, strict=True) if value is not None} for row in rows]
    )


def _find_number(run_id: str | None) -> int | str | None:
    """Find the number in a run's id; the id itself, if it is not one that a session makes."""
    match = _RUN_ID.fullmatch(run_id or "")
    return int(match[1]) if match else run_id


def _subtract(values: Iterable[Any]) -> Iterator[Any]:
    """Replace each number by its difference from the one before it. Other values stay."""
    before = 0
    for value in values:
        if isinstance(value, int):
            yield value - before
            before = value
        else:
            yield value


def _add(values: Iterable[Any]) -> Iterator[Any]:
    """Undo `_subtract`."""
    before = 0
    for value in values:
        if isinstance(value, int):
            before += value
            yield before
        else:
            yield value


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


@dataclass(frozen=True)
class Settings:
    """The configuration in force, as a worker has resolved it, and what is known of the models that it names.

    Attributes:
        own: The configuration that callers have set, by the start and by `configure`.
        policy: The context policy in force, complete.
        own_policy: The policy fields that `configure` has set, over those of the configuration's policy.
        agent: The agent as a worker has resolved it; None until one has, and in a session without an agent.
        agent_due: The agent that `own` names has not been resolved, also where the session is pinned.
        due: The configuration has been changed and its `config` entry not been committed.
        problem: Why a worker could not resolve the configuration.
        tools: The tools of the workers, as one has resolved them; None until one has.
        deployment: The deployment of the worker that has resolved the configuration; None until one has.
        hooks: The points for which the workers have hooks.
        limited: The providers whose rate the workers limit: their calls have task queues of their own.
        calls_models: The workers for sessions make model calls, too.
        shows_texts: Labels, details, titles and search attributes may hold texts of the conversation: a worker that
            does not encrypt has said so.
        attributes: The search attributes that the namespace has.
        has_viewer: A worker has been asked for `view_blob`, because the thread has media.
        profiles: Workers' profiles of models, by model: the configuration's, and those that requests name.
        learned: Measurements of providers' token counts, by model.
        refused: What providers have refused of the session's contexts, by model: later calls are without it.
        webhooks: The workers' own webhooks.
    """

    own: SessionConfig
    policy: ContextPolicy
    own_policy: ContextPolicy | None = None
    agent: ResolvedAgent | None = None
    agent_due: bool = True
    due: bool = True
    problem: Failure | None = None
    tools: tuple[ResolvedTool, ...] | None = None
    deployment: str | None = None
    hooks: tuple[HookPoint, ...] = ()
    limited: tuple[str, ...] = ()
    calls_models: bool = False
    shows_texts: bool = False
    attributes: tuple[str, ...] = ()
    has_viewer: bool = False
    profiles: Mapping[str, ModelProfile] = field(default_factory=dict)
    learned: Mapping[str, Learned] = field(default_factory=dict)
    refused: Mapping[str, tuple[Refused, ...]] = field(default_factory=dict)
    webhooks: tuple[Webhook, ...] = ()

    @cached_property
    def config(self) -> SessionConfig:
        """The configuration in force: the agent's, with the fields that callers have set."""
        return self.agent.config.overlay(self.own) if self.agent else self.own

    @cached_property
    def offered_tools(self) -> tuple[ResolvedTool, ...]:
        """The tools that the model may call: the workers', and those that callers have defined."""
        return self.list_tools()

    def list_tools(self, external: Sequence[ExternalToolSpec] | None = None) -> tuple[ResolvedTool, ...]:
        """List the tools that a request has: the workers', and its own external ones; None: the session's."""
        own = self.config.external_tools if external is None else external
        return (*(self.tools or ()), *map(_make_external_tool, own))

    @property
    def model(self) -> str:
        """The model of the configuration; empty until a worker has resolved the agent whose model it is."""
        return self.config.model or ""

    @property
    def keeps_agent(self) -> bool:
        """Whether a preparation keeps the agent and the tools' schemas that the session has."""
        return self.own.pin and not self.agent_due

    @property
    def has_encoding(self) -> bool:
        """Whether the encoding is chosen: by the caller, or by the first worker that has answered."""
        return self.tools is not None or "encoding" in self.own.model_fields_set


def _make_external_tool(tool: ExternalToolSpec) -> ResolvedTool:
    return ResolvedTool(
        spec=tool.spec,
        route=ExternalRoute(type="external"),
        timeout_seconds=tool.timeout_seconds,
        max_attempts=1,
        requires_approval=tool.requires_approval,
    )


@dataclass(frozen=True, slots=True)
class Deferred:
    """What callers have ordered that waits for the run to end.

    Attributes:
        operations: Context operations, in order; at most one `replace` or `switch`.
        config: A change of configuration.
    """

    operations: tuple[ContextOperation, ...] = ()
    config: ConfigureInput | None = None


@dataclass(frozen=True, slots=True)
class Summaries:
    """The work on summaries.

    Attributes:
        writing: The summary that is being written.
        due: A lane that has reached the policy's threshold for a summary.
        not_before: The number of runs before which no automatic summary is tried, because one has failed.
    """

    writing: Summarizing | None = None
    due: str | None = None
    not_before: int = 0


@dataclass(frozen=True, slots=True)
class Counters:
    """The numbers of all that has had an id so far, for ids that are unique in the thread.

    Attributes:
        runs: Runs.
        calls: Model calls.
        tool_calls: Tool calls.
        inputs: Inputs.
        summaries: Summaries.
        media_bytes: The bytes of the blobs that accepted messages name; a blob counts once for each message.
    """

    runs: int = 0
    calls: int = 0
    tool_calls: int = 0
    inputs: int = 0
    summaries: int = 0
    media_bytes: int = 0

    @property
    def next_call_id(self) -> str:
        """The id of the next model call, which is the first to read a message that is committed now."""
        return f"call-{self.calls + 1}"


MAX_KNOWN_COMMANDS = 1000
"""Messages, inputs and operations whose digests a session remembers, to tell a repetition from another one."""
_DIGEST_DIGITS = 16
IdField = Literal["request_id", "input_id", "op_id"]
"""The fields of commands that name them."""


def digest_command(command: MessageInput | SubmitInput | ContextOperation) -> str:
    """Digest what a command asks for, whatever its id is, and when and by which way a run reads a text."""
    own = {"request_id", "input_id", "op_id", "on_busy", "kind", "at", "on_failure", "expected_request_id"}
    return _make_digest(canonicalize(command.model_dump(mode="json", exclude_none=True, exclude=own)))


def _name_command(field: IdField, own_id: str) -> str:
    # No id has a control character.
    return _make_digest(f"{field}\n{own_id}".encode())


def _make_digest(data: bytes) -> str:
    return sha256(data).hexdigest()[:_DIGEST_DIGITS]


@dataclass(frozen=True, slots=True)
class Memory:
    """What a session remembers to recognize a repetition, and to answer it.

    Attributes:
        receipts: The receipts of the newest inputs.
        operations: The ids of the newest applied or superseded operations.
        answered_calls: The ids of the newest external calls whose results were submitted.
        digests: The digests of the newest `MAX_KNOWN_COMMANDS` messages, inputs and operations, by those of their
            ids.
        outcomes: Outcomes of requests whose `run` entries may be in the archive alone; `carried` writes them as
            columns.
        seals: The ids in the encrypted texts of the newest `MAX_SEALS` inputs, one after the other. All have the same
            length.
    """

    receipts: tuple[InputReceipt, ...] = ()
    operations: tuple[str, ...] = ()
    answered_calls: tuple[str, ...] = ()
    digests: dict[str, str] = field(default_factory=dict)
    outcomes: SkipJsonSchema[Remembered] = field(default_factory=Remembered)
    seals: str = ""

    def is_reused(self, field: IdField, own_id: str, digest: str) -> bool:
        """Whether a command with another digest is remembered under the id."""
        return self.digests.get(_name_command(field, own_id), digest) != digest

    def add_digest(self, field: IdField, own_id: str, digest: str) -> Memory:
        """Remember the digest of a command as the newest."""
        digests = {**self.digests, _name_command(field, own_id): digest}
        if len(digests) > MAX_KNOWN_COMMANDS:
            del digests[next(iter(digests))]
        return replace(self, digests=digests)

    def has_seal(self, seal: str) -> bool:
        """Whether an input with this id in its encrypted text has been accepted before."""
        return f"{seal} " in self.seals

    def add_seal(self, seal: str) -> Memory:
        """Remember the id in the encrypted text of an input, as the newest."""
        return replace(self, seals=f"{self.seals}{seal} "[-MAX_SEALS * (len(seal) + 1) :])

    def add_operation(self, op_id: str) -> Memory:
        """Remember the id of an operation, as the newest."""
        others = (known for known in self.operations if known != op_id)
        return replace(self, operations=(*others, op_id)[-MAX_KNOWN_OPS:])


@dataclass(frozen=True, slots=True)
class State:
    """The session's state beside its thread.

    Attributes:
        session_id: The id of the session.
        settings: The configuration in force.
        phase: The status that the query `status` reports.
        context_ref: The active lane.
        run: The active run.
        queue: The requests that wait for the active run to end, in order.
        inbox: The inputs that wait to be committed, in order.
        deferred: Operations and configuration that wait for the active run to end.
        summaries: The work on summaries.
        children: The subagents that the session has started and that have not reported.
        assignment: The task that the session works on as a subagent; None in a session that a caller has started.
        late_calls: Tool calls of ended runs that may still return.
        detached_calls: Those of earlier workflow runs. Their results come by the signal `late_result`, or never:
            nothing waits for them.
        counters: The numbers of runs, calls and inputs.
        spent: The tokens and the cost of the session.
        memory: What recognizes a repetition.
        listed: What lists of sessions show of the entries.
        has_media: The thread has images, recordings or files.
        archive: The session's archive; None if the worker that began it had no store.
        notices: What webhooks are to be told.
    """

    session_id: str
    settings: Settings
    phase: Phase = "preparing"
    context_ref: str = "default"
    run: Run | None = None
    queue: tuple[Request, ...] = ()
    inbox: tuple[Input, ...] = ()
    deferred: Deferred = Deferred()
    summaries: Summaries = Summaries()
    children: tuple[Child, ...] = ()
    assignment: Assignment | None = None
    late_calls: tuple[LateCall, ...] = ()
    detached_calls: tuple[LateCall, ...] = ()
    counters: Counters = Counters()
    spent: Spent = Spent()
    memory: Memory = Memory()
    listed: Listed = Listed()
    has_media: bool = False
    archive: ArchiveRef | None = None
    notices: tuple[Notice, ...] = ()

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
        return bool(self.run or self.queue or (self.summaries.writing and not self.own_summary))

    @property
    def own_summary(self) -> bool:
        """Whether an automatic summary is being written. The session gives it up when it gets other work."""
        return self.summaries.writing is not None and self.summaries.writing.automatic

    @property
    def at_rest(self) -> bool:
        """Whether nothing runs, waits or is being prepared, an automatic summary aside."""
        return not self.busy and (self.phase == "idle" or self.own_summary)

    @property
    def describing(self) -> bool:
        """Whether a worker is asked to describe the model that the active run's request names."""
        return self.phase == "preparing" and self.run is not None and self.run.describing

    @property
    def preparation(self) -> Prepare:
        """The effect that resolves the configuration in force, with the agent that `own` names."""
        settings, archived = self.settings, self.archive is not None
        own, config, policy = settings.own, settings.config, settings.policy
        encoding = config.encoding if settings.has_encoding else None
        clears_media = policy.clear_media is not None
        if own.agent is None or settings.keeps_agent:
            return Prepare(
                model=settings.model,
                fallbacks=config.fallbacks or None,
                tools=config.tools,
                archived=archived,
                clears=policy.clear_tool_results is not None,
                views=self.has_media,
                clears_media=clears_media,
                encoding=encoding,
                webhooks=config.webhooks or None,
            )
        policy = (own.context_policy or ContextPolicy()).overlay(settings.own_policy)
        return Prepare(
            agent=own.agent,
            model=own.model,
            fallbacks=own.fallbacks if "fallbacks" in own.model_fields_set else None,
            tools=own.tools if "tools" in own.model_fields_set else None,
            archived=archived,
            clears=policy.clear_tool_results is not None if "clear_tool_results" in policy.model_fields_set else None,
            views=self.has_media,
            clears_media=clears_media,
            encoding=encoding,
            webhooks=own.webhooks if "webhooks" in own.model_fields_set else None,
        )

    @property
    def unfinished(self) -> tuple[str, ...]:
        """The ids of all accepted requests that have no outcome in the thread yet."""
        served = (self.run.request.request_id, *self.run.joined) if self.run else ()
        return (*served, *(request.request_id for request in self.queue))


def get_run(state: State) -> Run:
    """Return the active run; there must be one."""
    assert state.run is not None, "no run is active"
    return state.run


# A decision: the consequences of an event or a command, as data.

P = ParamSpec("P")


@dataclass(frozen=True, slots=True)
class Decision:
    """The consequences of an event or a command.

    Attributes:
        state: The next state.
        commit: The entries to commit, in order.
        effect: The effect to carry out next; None: none, or the one that is being carried out already.
    """

    state: State
    commit: tuple[Draft, ...] = ()
    effect: SessionEffect | None = None

    def prepend(self, *drafts: Draft) -> Decision:
        """Commit other entries before those of this decision."""
        return replace(self, commit=(*drafts, *self.commit))

    def then(
        self,
        follow: Callable[Concatenate[State, Moment, P], Decision],
        at: Moment,
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> Decision:
        """Chain another decision, made from this one's state. `at` is the moment of this decision."""
        more = follow(self.state, Moment(at.rev + len(self.commit), at.time), *args, **kwargs)
        return Decision(more.state, (*self.commit, *more.commit), more.effect or self.effect)
