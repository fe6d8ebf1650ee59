"""The inputs and the answers of activities, in the order of a turn: prepare, check, call the model, run its tools.

A decision of `clew_workflows.session` names an effect. An activity carries it out, and its answer is an event for the
next decision. The input of an activity refers to the thread by lane and seq and holds no messages, so that the
history grows only by new text.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Annotated, Any, Literal, NamedTuple, Self

from pydantic import Field, PlainSerializer, SkipValidation, field_serializer

from clew_workflows.contract import ModelOptions, SessionConfig, SnapshotToolCall
from clew_workflows.contract.content import Blob, Content, Part, get_text
from clew_workflows.contract.hooks import HookPoint
from clew_workflows.contract.messages import Citation, ProviderCall, ProviderData, ToolCall, ToolSpec
from clew_workflows.contract.names import EncodingName
from clew_workflows.contract.outcomes import Output, Prices, Usage
from clew_workflows.contract.payloads import (
    Fitting,
    Refused,
    SentRequest,
    StopReason,
    StoredResult,
    Subagent,
    SummaryRecipe,
)
from clew_workflows.contract.policy import ContextPolicy
from clew_workflows.contract.webhooks import Webhook, WebhookMessage
from clew_workflows.thread.lane import Layers
from clew_workflows.values import Packed, ReportedUsage, Value

# The failure of an effect.


class Failure(Value):
    """Why an effect failed.

    Attributes:
        type: A word that callers can compare: an error type of the contract, or a worker's own.
        message: The reason, for people.
        retryable: The same request may succeed later.
        details: Further values; each type has its own.
    """

    type: str
    message: str
    retryable: bool = False
    details: dict[str, Any] = Field(default={})


# Resolving a configuration against a worker's providers, tools and agents.


class ResolvedAgent(Value):
    """An agent as a worker has it.

    Attributes:
        name: The name of the agent.
        version: The digest of the agent's configuration, its tools and its label.
        label: The label that the agent's author gave the version.
        config: The configuration, with the fields that the agent sets.
    """

    name: str
    version: str
    label: str | None = None
    config: SessionConfig

    @field_serializer("config")
    def _dump_config(self, config: SessionConfig) -> dict[str, Any]:
        """Dump the fields that are set: the others are not the agent's."""
        return config.model_dump(mode="json", exclude_unset=True)


class Prepare(Value):
    """Resolve a configuration against what the worker has: its providers, its registered tools and agents.

    Attributes:
        agent: The name of the agent; None: the session has none, or keeps the version that it has.
        model: `provider:model`; None: the agent's.
        fallbacks: The models that are tried while that one has an outage; None: the agent's, or none.
        tools: The names of the tools; None: the agent's.
        execution: The id of the workflow execution that starts. With it the worker also looks for an archive of the
            session; where there is one, the session continues from it.
        after: The session's newest workflow run, which has ended (`SessionStart.after`); only with `execution`.
        archived: The session has an archive, which its model may read from.
        clears: The session's policy clears tool results, which its model may read again. None: the agent's policy
            says so.
        views: The session has images, recordings or files, which its model may see again with its tools.
        clears_media: The session's policy clears them. The agent's policy is not counted here.
        encoding: The encoding that the tokens of the tools' schemas are counted under; None: the model's.
        webhooks: The webhooks; None: the agent's, or none.
    """

    agent: str | None = None
    model: str | None = None
    fallbacks: tuple[str, ...] | None = None
    tools: tuple[str, ...] | None = None
    execution: str | None = None
    after: str | None = None
    archived: bool = False
    clears: bool | None = False
    views: bool = False
    clears_media: bool = False
    encoding: EncodingName | None = None
    webhooks: tuple[Webhook, ...] | None = None


class DescribeModel(Value):
    """Describe a model that a request names.

    Attributes:
        model: `provider:model`.
    """

    model: str


class ModelProfile(Value):
    """A worker's description of a model, with the settings it chooses where a configuration leaves them open.

    Attributes:
        model: `provider:model`.
        policy: The context policy for the model's window, complete.
        encoding: The encoding of a thread that begins with this model.
        prices: The model's list prices when the worker answered.
    """

    model: str
    policy: ContextPolicy
    encoding: EncodingName
    prices: Prices = ()


class Prepared(Value):
    """A resolved configuration, or the reason why it cannot be resolved.

    Attributes:
        tools: The tools, in the order of the configuration.
        problem: The first agent, tool or model that the worker does not know.
        agent: The agent that the configuration names; None if the worker does not know it.
        deployment: The digest of all agents and tools of the worker; None if no worker has answered.
        shows_texts: Whether labels and search attributes may hold texts of the conversation: the worker does not
            encrypt. None if no worker has answered.
        hooks: The points for which the worker has hooks; None if no worker has answered.
        limited: The providers whose rate is limited; None if no worker has answered.
        calls_models: Whether the worker makes model calls, too; None if no worker has answered.
        profile: The profile of the configuration's model; None if no worker has answered.
        archive: The session's archive; None if the worker has no store.
        state: The name of the archived state that the session continues from; None for a new session.
        interrupted: Why the session must be recovered before it can continue from its archive.
        search_attributes: The names of the search attributes of sessions that the namespace has.
        webhooks: The worker's own webhooks, which all sessions have beside theirs.
    """

    tools: tuple[ResolvedTool, ...] = ()
    problem: Failure | None = None
    agent: ResolvedAgent | None = None
    deployment: str | None = None
    shows_texts: bool | None = None
    hooks: tuple[HookPoint, ...] | None = None
    limited: tuple[str, ...] | None = None
    calls_models: bool | None = None
    profile: ModelProfile | None = None
    archive: ArchiveRef | None = None
    state: str | None = None
    interrupted: str | None = None
    search_attributes: tuple[str, ...] = ()
    webhooks: tuple[Webhook, ...] = ()


# Checks by a user's hooks: before a message is committed, before a tool runs, before an answer is returned.


HOOK_SECONDS = 15
"""Seconds of one attempt of all hooks that check one message, round or answer."""


class CheckedItem(Value):
    """What hooks check: a message, a tool call, or an answer.

    Attributes:
        kind: Of a message: `message`, `steer` or `inject`.
        text: The text of a message.
        media: The images, recordings and files of a message.
        metadata: The metadata of a message.
        tool_call_id: The tool call.
        name: The tool.
        arguments: The arguments of the tool call.
        seq: The entry that has the answer, or the first of a run's messages that are committed already.
        run_id: The run of those messages.
    """

    kind: str = "message"
    text: str = ""
    media: list[SkipValidation[Part]] = Field(default=[])
    metadata: dict[str, str] | None = None
    tool_call_id: str = ""
    name: str = ""
    arguments: dict[str, Any] = Field(default={})
    seq: int | None = None
    run_id: str = ""


class RunHooks(Value):
    """Let the hooks of one point check some items.

    Attributes:
        point: When it is: before a message is committed, before a tool runs, or before an answer is returned.
        request_id: The request.
        items: What is checked, each by all hooks of the point.
        hooks: The points for which the worker that prepared the session has hooks. A worker with hooks for others
            answers `Outdated`. None: it need not.
    """

    point: HookPoint
    request_id: str
    items: tuple[CheckedItem, ...]
    hooks: tuple[HookPoint, ...] | None = None


class HooksAnswered(Value):
    """The answer to `RunHooks`.

    Attributes:
        request_id: The request.
        refusals: For each item the reason why a hook refuses it; None: all accept it.
    """

    request_id: str
    refusals: tuple[str | None, ...]


# Model calls and replies.


OUTAGES = frozenset({"insufficient_quota", "overloaded", "provider_unavailable", "rate_limited", "truncated_stream"})
"""The types of failures after which a run goes on with a fallback: the provider does not serve the model now."""


def _dump_set_fields(policy: ContextPolicy) -> dict[str, Any]:
    return policy.model_dump(mode="json", exclude_unset=True)


def _dump_options(options: ModelOptions) -> dict[str, Any]:
    return options.model_dump(mode="json", exclude_none=True)


class CallModel(Value):
    """One model call, by reference: the activity fetches the context from the session by query.

    Attributes:
        request_id: The request that the run serves.
        run_id: The run.
        call_id: The model call.
        iteration: The number of the call within its run, from 1.
        context_ref: The lane.
        at_seq: The newest entry that the context may include.
        model: `provider:model`.
        options: The model's options; `max_output_tokens` is always set.
        provider_tools: The tools that the provider may run itself.
        context_policy: The request's changes to the session's policy, with a smaller budget where the model takes
            less; None: the session's policy.
        token_ratio: The provider's token counts divided by ours; None where it counts no more than we do.
        encoding: The encoding that the reply's tokens are counted under.
        earlier_tool_calls: The number of tool calls of the session so far; those of the reply are numbered after it.
        priced: The session has a cost limit: the call fails unless the model's prices are known.
        deployment: The worker deployment that has resolved the configuration: a worker of another one answers
            `Outdated`. None: any worker makes the call.
        hooks: The points for which the worker that resolved the configuration has hooks: a worker with hooks for
            others answers `Outdated`. None: any worker makes the call.
        checks: The points whose hooks the session has run, when it has learned them for this very call: a worker
            with hooks for more points fails the attempt. None: any worker makes the call.
        limited: The providers whose rate the worker limits that resolved the configuration: a worker that limits
            others answers `Outdated`. None: any worker makes the call.
        declined: A worker for sessions has declined the call: it goes to the queue of model calls.
        parent_call_id: The call whose tool results this one reads; None for the first of a run.
        has_fallback: Another model is called if this one has an outage, so that the call gives up soon.
        refuses_content: The call fails if a marker would stand for an image, a recording or a file.
        refused: What the model's provider has refused of the session's contexts: the request is made without it.
    """

    request_id: str
    run_id: str
    call_id: str
    iteration: int
    context_ref: str
    at_seq: int
    model: str
    options: Annotated[ModelOptions, PlainSerializer(_dump_options, when_used="json")]
    provider_tools: tuple[str, ...] = ()
    context_policy: Annotated[ContextPolicy, PlainSerializer(_dump_set_fields, when_used="json")] | None = None
    token_ratio: float | None = None
    encoding: EncodingName
    earlier_tool_calls: int = 0
    priced: bool = False
    deployment: str | None = None
    hooks: tuple[HookPoint, ...] | None = None
    checks: tuple[HookPoint, ...] | None = None
    limited: tuple[str, ...] | None = None
    declined: bool = False
    parent_call_id: str | None = None
    has_fallback: bool = False
    refuses_content: bool = False
    refused: tuple[Annotated[Refused, PlainSerializer(Refused.as_dict, when_used="json")], ...] = ()


class RequestedTool(Value):
    """A tool call as the provider sent it.

    Attributes:
        name: The tool.
        arguments: The arguments.
        malformed: The arguments' text where it was not a JSON object; `arguments` is empty then.
        cut: The reply ended within the arguments, whose text so far is `malformed`.
        problem: How the arguments violate the schema of the tool; None: they do not.
    """

    name: str
    arguments: dict[str, Any] = Field(default={})
    malformed: str | None = None
    cut: bool = False
    problem: str | None = None


class ModelReply(Value):
    """A model's complete reply, in a form that is the same for all providers.

    Attributes:
        content: The text, or the parts of a reply with images or recordings, whose bytes are stored.
        thinking: The model's reasoning, where the provider shows it.
        tool_calls: The tool calls that the model requests.
        provider_data: Data that the same provider wants back with the next call.
        provider_calls: The calls of tools that the provider ran itself.
        citations: The sources that the reply names.
        stop_reason: Why the model stopped, as in a recipe.
        usage: The tokens, and the cost where the prices are known.
    """

    content: Content = ""
    thinking: str | None = None
    tool_calls: tuple[RequestedTool, ...] = ()
    provider_data: ProviderData | None = None
    provider_calls: tuple[ProviderCall, ...] = ()
    citations: tuple[Citation, ...] = ()
    stop_reason: StopReason = "stop"
    usage: ReportedUsage = Usage()

    @property
    def text(self) -> str:
        """The content as a text, with a marker for each image and recording."""
        return get_text(self.content)


class ModelAnswered(Value):
    """The result of `CallModel`: the reply, and the measures of the context that the model was sent.

    The reply of a call that was cancelled is what had been read of it (`interrupted`).

    Attributes:
        reply: The reply.
        prices: The prices that the cost in the reply's usage was computed with.
        digest: The digest of the context.
        policy_hash: The digest of the context policy.
        input_tokens: The context's tokens under our encoding.
        attempt: The number of the attempt that succeeded, from 1.
        epoch: The context's epoch, where the policy's window is `epoch`.
        shared_prefix_tokens: The tokens that the context's beginning shares with that of the call before.
        cleared_tool_results: The number of tool results that the policy cleared.
        cleared_media: The number of images, recordings and files that the policy cleared.
        truncated_tool_results: The tool results that were truncated, by tool call id: the bytes of the beginning and
            of the end that the context has.
        schema_problem: How the answer violates the request's `output_schema`; None if it does not.
        needs_summary: The lane has reached the policy's threshold for a summary.
        tokens: The tokens of the reply's message without its media. None: the session counts them.
        earlier_usage: The usage of earlier attempts of the call, whose replies were lost or not usable.
        fitting: The differences of the request from the context; None: there are none.
        request: What the provider received.
    """

    reply: ModelReply
    prices: Prices = ()
    digest: str
    policy_hash: str
    input_tokens: int
    attempt: int
    epoch: tuple[int, ...] | None = None
    shared_prefix_tokens: int | None = None
    cleared_tool_results: int | None = None
    cleared_media: int | None = None
    truncated_tool_results: dict[str, tuple[int, int]] | None = None
    schema_problem: str | None = None
    needs_summary: bool = False
    tokens: int | None = None
    earlier_usage: ReportedUsage | None = None
    fitting: Annotated[Fitting, PlainSerializer(Fitting.as_dict, when_used="json")] | None = None
    request: Annotated[SentRequest, PlainSerializer(SentRequest.as_dict, when_used="json")] | None = None

    @property
    def usage(self) -> Usage:
        """The usage of the call with all its attempts, counted as one model call."""
        usage = self.reply.usage.plus(self.earlier_usage) if self.earlier_usage else self.reply.usage
        return usage.model_copy(update={"model_calls": 1})


class ModelStopped(Value):
    """A model call that has ended without a complete reply.

    Attributes:
        failure: Why it failed; None: it was cancelled.
        answer: What had been read of the reply; None: nothing.
    """

    failure: Failure | None = None
    answer: ModelAnswered | None = None


class Outdated(Value):
    """The answer to `CallModel` of a worker whose deployment is not the call's: no model was called.

    Attributes:
        deployment: The worker's deployment.
        hooks: The points for which the worker has hooks.
    """

    deployment: str
    hooks: tuple[HookPoint, ...] = ()


class Declined(Value):
    """The answer to `CallModel` of a worker for sessions that does not make the call itself: no model was called.

    Attributes:
        calls_models: The worker makes model calls, and has as many as it may.
    """

    calls_models: bool


def describe_read(characters: int) -> str:
    """Describe how much of a reply was read when the time was over."""
    if characters:
        return f"the reply was being streamed, {characters} characters had arrived"
    return "the model had not begun to reply"


TOOL_CALL_ID = re.compile(r"tool([0-9]{5,15})")
"""The ids of a session's tool calls, with their numbers. All providers take this form: Mistral wants nine letters and
digits."""


def number_tool_calls(tools: Iterable[RequestedTool | SnapshotToolCall], earlier: int) -> list[ToolCall]:
    """Number the tool calls of a reply: their ids are unique in the thread, which has `earlier` calls already."""
    return [
        {"id": f"tool{number:05d}", "name": tool.name, "arguments": tool.arguments}
        for number, tool in enumerate(tools, earlier + 1)
    ]


# Tools as a worker resolves them, tool calls, and their results.


STORING_SECONDS = 20.0
"""Seconds that a tool's activity has to store a large result, after the tool has returned."""


class FunctionRoute(Value):
    """A call runs a function on a worker of Clew's.

    Attributes:
        type: `function`.
        task_queue: The deployment whose workers run the function; None: the session's own.
        takes_context: The function takes a `ToolContext`.
    """

    type: Literal["function"]
    task_queue: str | None = None
    takes_context: bool = False


class RemoteRoute(Value):
    """A call is an activity of another worker.

    Attributes:
        type: `remote`.
        task_queue: The task queue of the activity.
        activity: The name of the activity.
    """

    type: Literal["remote"]
    task_queue: str
    activity: str


class ExternalRoute(Value):
    """A call waits until its result is submitted.

    Attributes:
        type: `external`.
    """

    type: Literal["external"]


class McpRoute(Value):
    """A worker of Clew's passes a call on to an MCP server. The session validates the arguments before.

    Attributes:
        type: `mcp`.
    """

    type: Literal["mcp"]


class AgentRoute(Value):
    """A call is a task of a subagent: the session starts a session of the agent.

    Attributes:
        type: `agent`.
        agent: The name of the agent.
    """

    type: Literal["agent"]
    agent: str


Route = Annotated[FunctionRoute | RemoteRoute | ExternalRoute | McpRoute | AgentRoute, Field(discriminator="type")]
"""How the calls of a tool are carried out."""


FUNCTION = FunctionRoute(type="function")
"""The route of a function on the session's own workers."""


class ResolvedTool(Value):
    """A tool's schema, and how its calls are carried out.

    Attributes:
        spec: The name, the description and the JSON Schema of the parameters.
        timeout_seconds: The time for one attempt.
        max_attempts: Attempts, where an attempt failed.
        idempotent: A call may be repeated. A call of another tool is attempted once.
        requires_approval: A person must approve each call; `round`: before any call of its reply begins.
        route: How a call is carried out.
        tokens: The tokens of the schema in a context. None: the session counts them.
    """

    spec: ToolSpec
    timeout_seconds: float
    max_attempts: int
    idempotent: bool = True
    requires_approval: bool | Literal["round"] = False
    route: Route = FUNCTION
    tokens: int | None = None


class RunTool(Value):
    """One tool call.

    Attributes:
        request_id: The request that the run serves.
        run_id: The run.
        call_id: The model call that requested it.
        tool_call_id: The tool call.
        name: The tool.
        arguments: The model's arguments, or a person's; the activity validates them.
        edited: The arguments are a person's.
        encoding: The encoding that the result's tokens are counted under.
        max_result_bytes: A larger result is truncated; the complete result goes to the archive.
        family: The session family in whose archive large results are stored; None without an archive.
        iteration: The number of the model call in its run.
        agent: The session's agent; only for a tool that takes a context, as the metadata.
        metadata: The session's metadata.
        request_metadata: The metadata of the request.
        max_blob_bytes: The largest image, recording or file of the result; None: the largest that is stored.
        max_media_bytes: The most bytes of all those of the result; None: the most of a message by default.
    """

    request_id: str
    run_id: str
    call_id: str
    tool_call_id: str
    name: str
    arguments: dict[str, Any]
    edited: bool = False
    encoding: EncodingName
    max_result_bytes: int
    family: str | None = None
    iteration: int = 0
    agent: str | None = None
    metadata: dict[str, str] | None = None
    request_metadata: dict[str, str] | None = None
    max_blob_bytes: int | None = None
    max_media_bytes: int | None = None


def make_idempotency_key(session_id: str, tool_call_id: str) -> str:
    """Make the key that all attempts of one tool call share, and no other call has."""
    return f"{session_id}/{tool_call_id}"


class PlannedCall(NamedTuple):
    """A tool call and its tool.

    Attributes:
        call: The input of the activity.
        tool: The tool as a worker has resolved it.
    """

    call: RunTool
    tool: ResolvedTool


class RunTools(Value):
    """Tool calls that run in parallel.

    Attributes:
        calls: The calls of the round that have not returned.
    """

    calls: tuple[PlannedCall, ...]


class ToolAnswered(Value):
    """A tool's result, as the model will read it.

    Attributes:
        content: The text, truncated if it is too large, or the parts.
        result: Where the complete result is stored, if the text is truncated.
        is_error: The text describes a failure.
        in_doubt: The tool may or may not have run.
        tokens: The tokens of the result's message without its media. None: the session counts them, and those of its
            pieces.
        note_tokens: The tokens of the note that says how a person has changed the call.
        pieces: The tokens of each piece of the text, if it is long enough to be cut.
        subagent: The subagent that has answered.
        by: The person or program that submitted the result.
        problem: What is wrong with the operator's setup, which neither the model nor a tenant reads.
    """

    content: Content
    result: StoredResult | None = None
    is_error: bool = False
    in_doubt: bool = False
    tokens: int | None = None
    note_tokens: int | None = None
    pieces: tuple[int, ...] | None = None
    subagent: Subagent | None = None
    by: str | None = None
    problem: str | None = None

    @property
    def text(self) -> str:
        """The content as a text, with a marker for each image, recording and file."""
        return get_text(self.content)


class ToolReturned(Value):
    """One tool call of a round has ended. Without an answer and a failure it was cancelled.

    Attributes:
        tool_call_id: The tool call.
        answer: The tool's result.
        failure: Why there is none.
    """

    tool_call_id: str
    answer: ToolAnswered | None = None
    failure: Failure | None = None


# Summaries, which a model writes.


class Summarize(Value):
    """Summarize a range of a lane, by reference: the activity reads the entries from the session or the archive.

    Attributes:
        summary_id: The summary.
        context_ref: The lane.
        model: The model that writes the summary, `provider:model`.
        encoding: The encoding that both limits are counted under.
        max_input_tokens: The model's window, for a worker that does not know it.
        max_output_tokens: The longest summary.
        learned_budget: The longest prompt that the model is known to take, in tokens of `encoding`; None: not known.
        token_ratio: The provider's token counts divided by ours; None where it counts no more than we do.
        compacts: The summary replaces the lane's context, as a snapshot.
        from_seq: The first entry; None until the range is determined.
        to_seq: The last entry; None until the range is determined.
        builds_on: The seq of the summary or the snapshot that replaces the entries before `from_seq`, if any.
        pinned: The seqs of pinned messages, which are not summarized.
        withdrawn: Pairs of seqs between which messages were withdrawn or corrected, which are not summarized.
    """

    summary_id: str
    context_ref: str
    model: str
    encoding: str
    max_input_tokens: int
    max_output_tokens: int
    learned_budget: int | None = None
    token_ratio: float | None = None
    compacts: bool = False
    from_seq: int | None = None
    to_seq: int | None = None
    builds_on: int | None = None
    pinned: tuple[int, ...] = ()
    withdrawn: tuple[tuple[int, int], ...] = ()


class WrittenSummary(Value):
    """A summary as a model has written it.

    Attributes:
        content: The text.
        source_digest: The SHA-256 over the seqs and ids of the summarized entries.
        source_tokens: The tokens of the summarized entries.
        usage: The tokens and the cost of all model calls.
        tokens: The tokens of the summary's message. None: the session counts them.
        recipe: The requests that were sent for it; None: a worker of an earlier release has written it.
    """

    content: str
    source_digest: str
    source_tokens: int
    usage: ReportedUsage = Usage()
    tokens: int | None = None
    recipe: Annotated[SummaryRecipe, PlainSerializer(SummaryRecipe.as_dict, when_used="json")] | None = None


class Summarized(Value):
    """The result of `Summarize`.

    Attributes:
        effect: The effect, with its range.
        summary: The summary.
        system_prompt: The system prompt of the snapshot under the lane; None: it has no prompt in force.
        system_prompt_tokens: The tokens of that prompt.
    """

    effect: Summarize
    summary: WrittenSummary
    system_prompt: str | None = None
    system_prompt_tokens: int = 0


# Archiving a session's entries when it rolls over, and fetching them again.


class RolloverThresholds(Value):
    """Sizes at which a session continues in a new workflow run. At three times a size it refuses new messages.

    At 3.25 times a size nothing more goes on. The largest sizes leave room for one step of a run then.

    Temporal ends a workflow run at 51 200 events, 50 MB, 2 000 updates or 10 000 signals. The thresholds are far
    lower, because a worker that takes a session over replays the whole workflow run, at about 0.4 ms of CPU an event:
    the default of `events` makes that half a second.

    Attributes:
        events: Events of the history.
        bytes: Bytes of the history.
        updates: Updates of the workflow run.
        signals: Signals of the workflow run.
    """

    events: int = Field(default=1_250, ge=50, le=15_000)
    bytes: int = Field(default=4_000_000, ge=50_000, le=13_000_000)
    updates: int = Field(default=350, ge=5, le=600)
    signals: int = Field(default=2_500, ge=5, le=3_000)


class ArchiveRef(Value):
    """A session's archive.

    Attributes:
        execution: The id of the workflow execution that writes it, the same for all its workflow runs.
        family: The session family whose folder holds the segments. A fork is of its parent's family.
        root: The name of the index node that lists the segments; None before the first is written.
        upto: The seq of the newest archived entry; -1 for none.
        thresholds: The thresholds that the worker is configured with.
    """

    execution: str
    family: str
    root: str | None = None
    upto: int = -1
    thresholds: RolloverThresholds = RolloverThresholds()


class Archiving(Value):
    """Write a session's entries and its state to the archive.

    Attributes:
        archive: The archive as it is before.
        closed: The session ends in this execution, or hibernates.
    """

    archive: ArchiveRef
    closed: bool = False


class WrittenArchive(Value):
    """The archive after a write.

    Attributes:
        archive: The archive.
        search_attributes: The names of the search attributes of sessions that the namespace has.
    """

    archive: ArchiveRef
    search_attributes: tuple[str, ...] = ()


class Thaw(Value):
    """Fetch the state that an archived session continues from.

    Attributes:
        archive: The archive.
        state: The name of the archived state.
    """

    archive: ArchiveRef
    state: str


class Thawed(Packed):
    """The state that an archived session continues from, compressed.

    Attributes:
        version: The version of its format.
        archive: The archive as it is now.
    """

    version: int = 1
    archive: ArchiveRef | None = None


class Recall(Value):
    """Fetch the archived part of a lane that contexts need.

    Attributes:
        archive: The archive.
        context_ref: The lane.
        policies: The policies of the contexts.
        before: The session holds the lane's messages from this seq on.
        layers: The lane's layers as the session holds them; None: read them from the archive. The session may hold
            operations that are not archived yet, and older layers that an `expand` has brought back.
    """

    archive: ArchiveRef
    context_ref: str
    policies: tuple[ContextPolicy, ...]
    before: int
    layers: Layers | None = None


class Recalled(Value):
    """The fetched part of a lane.

    Attributes:
        packed: The entries, and the archived part before them.
    """

    packed: Packed


# Blobs, which workers store, and check before a message that names them enters the thread.


class CheckBlobs(Value):
    """Check that blobs are stored, and that their descriptions are those of their bytes.

    Attributes:
        family: The family of the session's archive.
        blobs: The blobs. Their names are not checked.
    """

    family: str
    blobs: tuple[Blob, ...]

    @classmethod
    def make(cls, family: str, blobs: Iterable[Blob]) -> Self:
        """Make the request without the names of files: the history has them in the message."""
        unnamed: list[Any] = [{key: value for key, value in blob.items() if key != "name"} for blob in blobs]
        return cls(family=family, blobs=tuple(unnamed))


class BlobProblem(Value):
    """Why a message cannot name a blob.

    Attributes:
        blob: The number of the blob among those that were checked.
        type: The word of the refusal.
        message: The reason, for people.
    """

    blob: int
    type: str
    message: str


class BlobsChecked(Value):
    """The answer to `CheckBlobs`.

    Attributes:
        problems: What is wrong with blobs, in their order; the others are stored as they are described.
    """

    problems: tuple[BlobProblem, ...] = ()


class EndUpload(Value):
    """Delete the chunks of an upload, and the event histories of the workflows that have brought them.

    Attributes:
        session_id: The session that the blob is for.
        upload_id: The upload.
    """

    session_id: str
    upload_id: str


# Checkpoints, which workers sign and verify.


class SignCheckpoint(Value):
    """Sign a checkpoint that the session has drafted.

    Attributes:
        number: The number of the draft; the worker fetches it by query.
        expires_seconds: Seconds from signing until the checkpoint expires.
    """

    number: int
    expires_seconds: int


class DraftQuery(Value):
    """The query for a draft to sign.

    Attributes:
        number: The number of the draft.
    """

    number: int


class CheckpointSignature(Value):
    """The fields that a worker adds to a checkpoint.

    Attributes:
        namespace: The worker's namespace.
        fingerprint: A digest over the configuration as it was resolved.
        iat: When it was signed, in seconds since 1970.
        exp: When it expires, in seconds since 1970.
        kid: The id of the key.
        signature: The HMAC-SHA256 in base64url.
    """

    namespace: str
    fingerprint: str
    iat: int
    exp: int
    kid: str
    signature: str


class OpenCheckpoint(Value):
    """Verify a checkpoint.

    Attributes:
        token: The checkpoint.
        session_id: The id of the session that will continue from it.
    """

    token: str
    session_id: str


class OpenedCheckpoint(Value):
    """A verified checkpoint.

    Attributes:
        config: The new session's configuration, as `AgentSession` takes it.
        restored: How far earlier attempts have come. `begun`: the session was started. `done`: it holds the context.
            `deleted`: they have done nothing, and the session that had the id before was deleted.
    """

    config: dict[str, Any]
    restored: Literal["no", "begun", "done", "deleted"]


# Forks: sessions that begin with the thread of another session.


class Fork(Value):
    """Make a new session from another session's thread, and record the fork in both.

    Attributes:
        session_id: The parent.
        at_seq: The last entry that the fork shares with its parent.
        new_session_id: The fork.
        metadata: The caller's metadata for both `fork` entries.
        at: The time of both `fork` entries, RFC 3339.
        entry_ids: The ids of both `fork` entries, the fork's and the parent's.
    """

    session_id: str
    at_seq: int
    new_session_id: str
    metadata: dict[str, str] | None = None
    at: str
    entry_ids: tuple[str, str]


# Webhooks: what they are told of a session.


class Notice(Value):
    """A message for webhooks.

    Attributes:
        notice_id: The id of the message, the same in every attempt and for every URL.
        message: The message.
    """

    notice_id: str
    message: Annotated[WebhookMessage, PlainSerializer(Output.as_dict)]


class Delivery(Value):
    """The argument of the workflow `DeliverWebhook`: a message, and the webhooks that it is sent to."""

    notice: Notice
    webhooks: tuple[Webhook, ...]


class SendNotice(Value):
    """Send a message to one webhook.

    Attributes:
        notice: The message.
        webhook: The webhook.
    """

    notice: Notice
    webhook: Webhook


class NoticeSent(Value):
    """A receiver has taken a message.

    Attributes:
        status: The status of its answer.
        attempt: The number of the attempt.
    """

    status: int
    attempt: int


# All effects and events.


SessionEffect = Prepare | DescribeModel | RunHooks | CallModel | RunTools | Summarize
"""The effects of decisions, one at a time. The tool calls of a round run in parallel."""

Effect = (
    Prepare
    | DescribeModel
    | RunHooks
    | CallModel
    | PlannedCall
    | Summarize
    | Archiving
    | Thaw
    | Recall
    | SignCheckpoint
    | CheckBlobs
)
"""The input of one activity: `clew_workflows.host.execution.choose_options` names the activity and its timeouts."""

Event = (
    Prepared
    | ModelProfile
    | ModelAnswered
    | ModelStopped
    | HooksAnswered
    | Outdated
    | Declined
    | ToolReturned
    | Summarized
    | Failure
)
"""The result of an effect."""
