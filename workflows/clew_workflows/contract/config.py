"""The configuration of a session, and the arguments that start its workflow."""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, BaseModel, Field, StringConstraints, field_validator, model_validator
from pydantic_core import PydanticCustomError

from clew_workflows.contract.invalid import Form
from clew_workflows.contract.limits import (
    MAX_BLOB_BYTES,
    MAX_MESSAGE_BLOB_BYTES,
    MAX_MESSAGE_BYTES,
    MAX_PROVIDER_OPTIONS_BYTES,
    MAX_REQUEST_SECONDS,
    MAX_SUBAGENT_DEPTH,
    MAX_SUMMARY_TITLE_CHARACTERS,
    MAX_TOOL_RESULT_BYTES,
    MAX_TOOLS,
    MAX_TOOLS_BYTES,
)
from clew_workflows.contract.messages import ToolSpec, canonicalize
from clew_workflows.contract.names import (
    BUILT_IN_TOOLS,
    MCP_PREFIX,
    WORKFLOW_TYPE,
    AgentName,
    EncodingName,
    Id,
    Metadata,
    ModelName,
    SessionId,
)
from clew_workflows.contract.policy import ContextPolicy
from clew_workflows.contract.validation import Explained, Input, validate_schema
from clew_workflows.contract.webhooks import Webhooks

ReasoningEffort = Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"]
"""The levels of reasoning, from none to the most."""
ProviderTool = Literal["web_search", "web_fetch", "code_execution", "image_generation"]
"""The tools that a provider runs itself."""
ServiceTier = Annotated[str, Form(r"^[a-z_]{1,40}$", "a service tier has 1 to 40 lower-case letters and '_'")]


class ModelOptions(Input):
    """Parameters of model calls. An absent one has the provider's default.

    Attributes:
        temperature: The randomness of sampling.
        top_p: The part of the probability from which tokens are sampled.
        max_output_tokens: The longest reply, in tokens. Absent: the policy's `reserve_output_tokens`, or 4 096 if
            that is 0.
        tool_choice: `auto`, `none`, `required`, or the name of a tool.
        parallel_tool_calls: `false`: one tool call a reply. Of a reply with more the first one is carried out, and
            the model reads that the others were not.
        reasoning_effort: The amount of reasoning before the reply; a provider gets the nearest level that it has.
        verbosity: The length of replies, for models that take it.
        service_tier: The provider's name of a tier of its service, such as `flex` or `priority`.
        stop: Texts that end the reply; it does not contain them.
        seed: The seed of sampling, for providers that support it.
        provider_options: Fields of the request's body, by the provider that gets them: an object for each, merged
            into what Clew sends. At most 4 096 bytes of JSON. A call fails if one is a field that Clew writes. Those
            of a message replace all of the session's.
    """

    temperature: float | None = Field(default=None, ge=0, le=2)
    top_p: float | None = Field(default=None, ge=0, le=1)
    max_output_tokens: int | None = Field(default=None, ge=1)
    tool_choice: str | None = Field(default=None, max_length=200)
    parallel_tool_calls: bool | None = None
    reasoning_effort: ReasoningEffort | None = None
    verbosity: Literal["low", "medium", "high"] | None = None
    service_tier: ServiceTier | None = None
    stop: tuple[Annotated[str, StringConstraints(min_length=1, max_length=200)], ...] | None = Field(
        default=None, max_length=4
    )
    seed: int | None = Field(default=None, ge=-(2**63), lt=2**63)
    provider_options: dict[str, dict[str, Any]] | None = None

    @field_validator("provider_options")
    @classmethod
    def _check_provider_options(cls, value: dict[str, dict[str, Any]] | None) -> dict[str, dict[str, Any]] | None:
        if value and len(canonicalize(value)) > MAX_PROVIDER_OPTIONS_BYTES:
            raise ValueError(f"over {MAX_PROVIDER_OPTIONS_BYTES} bytes of JSON")
        return value


class Limits(Input):
    """Limits of a session's inputs, tool results and usage.

    `max_total_tokens` and `max_cost_usd` limit the sum of all model calls, those of subagents included; the call that
    exceeds one is the last.

    Attributes:
        max_message_bytes: The largest input, in bytes of JSON.
        max_tool_result_bytes: The part of a tool result that a message has, in bytes of UTF-8; the archive has the
            rest.
        max_blob_bytes: The largest image, recording or file of a message; absent: 50 MiB.
        max_message_blob_bytes: The most bytes of all those of one message, each counted once; absent: 100 MiB.
        max_session_blob_bytes: The most bytes of all those that the session's messages name; a blob counts once for
            each message.
        max_total_tokens: The most tokens of prompts and replies.
        max_cost_usd: The highest cost by list price, in USD. Models whose price the worker does not know are then not
            called: `CLEW_PRICES` gives prices.
    """

    max_message_bytes: int = Field(default=MAX_MESSAGE_BYTES, ge=1, le=MAX_MESSAGE_BYTES)
    max_tool_result_bytes: int = Field(default=MAX_TOOL_RESULT_BYTES, ge=256, le=MAX_TOOL_RESULT_BYTES)
    max_blob_bytes: int | None = Field(default=None, ge=1, le=MAX_BLOB_BYTES)
    max_message_blob_bytes: int | None = Field(default=None, ge=1, le=MAX_MESSAGE_BLOB_BYTES)
    max_session_blob_bytes: int | None = Field(default=None, ge=1)
    max_total_tokens: int | None = Field(default=None, ge=1)
    max_cost_usd: float | None = Field(default=None, gt=0)


# Tools that a caller defines.


def _check_parameters(schema: dict[str, Any]) -> dict[str, Any]:
    if schema.get("type") != "object":
        raise PydanticCustomError("json_schema", "the parameters are a JSON Schema with the type 'object'")
    return validate_schema(schema)


def _check_tool_name(name: str) -> str:
    if name in BUILT_IN_TOOLS or name.startswith(MCP_PREFIX):
        raise PydanticCustomError("tool_name", "{name} is a name of Clew's own: take another one", {"name": name})
    return name


class ExternalToolSpec(Input):
    """A tool that the caller defines. Its calls wait until `submit_tool_result` submits their results.

    Attributes:
        name: The name: 1 to 64 letters, digits, `_` and `-`. `read_result`, `view_blob` and names that begin with
            `mcp__` are taken.
        description: What the tool does, for the model.
        parameters: The JSON Schema of the arguments, an object. The session validates the arguments of each call.
        timeout_seconds: The time that a call waits, in seconds. After that the model reads that it timed out.
        requires_approval: Whether a person must approve each call; `round`: before any call of its reply begins.
    """

    name: Annotated[
        str,
        Form(r"^[A-Za-z0-9_-]{1,64}$", "a tool's name has 1 to 64 letters, digits, '_' and '-'"),
        AfterValidator(_check_tool_name),
    ]
    description: str = ""
    parameters: Annotated[dict[str, Any], AfterValidator(_check_parameters)]
    timeout_seconds: float = Field(default=86400, gt=0, le=MAX_REQUEST_SECONDS)
    requires_approval: bool | Literal["round"] = False

    @property
    def spec(self) -> ToolSpec:
        """The part that models read."""
        return {"name": self.name, "description": self.description, "parameters": self.parameters}


def _check_external_tools(tools: tuple[ExternalToolSpec, ...]) -> tuple[ExternalToolSpec, ...]:
    names = [tool.name for tool in tools]
    if repeated := next((name for name in names if names.count(name) > 1), None):
        raise PydanticCustomError("tool_name", "the name {name} is there twice", {"name": repeated})
    if (size := measure_specs(tool.spec for tool in tools)) > MAX_TOOLS_BYTES:
        raise PydanticCustomError(
            "too_large",
            "the schemas have {size} bytes together, at most {limit} are accepted",
            {"size": size, "limit": MAX_TOOLS_BYTES},
        )
    return tools


def measure_specs(specs: Iterable[ToolSpec]) -> int:
    """Measure the schemas of tools together, in bytes."""
    return sum(len(canonicalize(spec)) for spec in specs)


OnBusy = Literal["reject", "queue", "interrupt", "steer"]
Steering = Literal["terminal", "step"]
ToolNames = Annotated[
    tuple[Annotated[str, StringConstraints(min_length=1, max_length=200)], ...], Field(max_length=MAX_TOOLS)
]
ExternalTools = Annotated[
    tuple[ExternalToolSpec, ...], Field(max_length=MAX_TOOLS), AfterValidator(_check_external_tools)
]
ProviderTools = Annotated[tuple[ProviderTool, ...], Field(max_length=8)]
Fallbacks = Annotated[tuple[ModelName, ...], Field(max_length=8)]
ApprovalScope = Literal["call", "round"]
PriorityLevel = Annotated[int, Field(ge=1, le=5)]
Iterations = Annotated[int, Field(ge=1, le=1000)]
RequestSeconds = Annotated[int, Field(ge=1, le=MAX_REQUEST_SECONDS)]


# As an `Input`, but type checkers know that it is frozen: so `SessionConfig` may narrow the types of fields.
class ChangeableConfig(Explained, BaseModel, frozen=True, extra="forbid", strict=True, allow_inf_nan=False):
    """The fields of a configuration that `configure` can change. Each is declared here; null or absent: not set.

    Attributes:
        agent: The agent, by the name under which the workers have it.
        model: The model.
        fallbacks: The models that a run tries, in this order, while its model has an outage. The next run begins with
            `model` again.
        system_prompt: The system prompt; at most 65 536 bytes.
        tools: The names of the tools that the model may call, each once.
        external_tools: Tools that the caller defines, beside `tools`. Their calls wait for `submit_tool_result`. None
            may have the name of a tool that the session has from its workers.
        provider_tools: The tools that the model's provider runs itself. A provider that has none of a name does not
            get it.
        require_approval: The tools whose calls wait for a person's decision, beside those that always do.
        approval_scope: Which calls of a reply wait for an approval: those that need it (`call`), or all of the reply
            until the last decision (`round`).
        context_policy: The context policy.
        model_options: The options of model calls.
        on_busy: How the session treats a message while it serves a request.
        steering: When inputs enter a run: with its answer (`terminal`) or before its next model call (`step`).
        limits: Limits of the session's inputs, tool results and usage.
        priority: Which calls the workers take first while calls wait for them: 1 the first, 5 the last.
        metadata: The caller's own names and values.
        webhooks: The URLs that are told of events of the session.
    """

    agent: AgentName | None = None
    model: ModelName | None = None
    fallbacks: Fallbacks | None = None
    system_prompt: str | None = None
    tools: ToolNames | None = None
    external_tools: ExternalTools | None = None
    provider_tools: ProviderTools | None = None
    require_approval: ToolNames | None = None
    approval_scope: ApprovalScope | None = None
    context_policy: ContextPolicy | None = None
    model_options: ModelOptions | None = None
    on_busy: OnBusy | None = None
    steering: Steering | None = None
    limits: Limits | None = None
    priority: PriorityLevel | None = None
    metadata: Metadata | None = None
    webhooks: Webhooks | None = None

    def change(self, upper: ChangeableConfig, exclude: Collection[str] = ()) -> Self:
        """Return this configuration with the fields that `upper` sets and that are not in `exclude`.

        A field that is null is not set. The options, the policy and the limits are overlaid field by field, null
        included; every other field takes the place of the one here. All values stay of their types.
        """
        fields: dict[str, Any] = {}
        for name in upper.model_fields_set.difference(exclude):
            lower, value = getattr(self, name), getattr(upper, name)
            if value is not None:
                fields[name] = lower.overlay(value) if isinstance(lower, Input) else value
        return self.model_copy(update=fields)


class ConfigureInput(ChangeableConfig, frozen=True):
    """The argument of the update `configure`. Absent fields stay unchanged; a list replaces the one in force.

    A change that arrives while a request is active waits until the run ends. A second one is merged with it, and
    leaves an `input` entry (`merged`). A new policy discards what the session has learned of the models' windows.

    Attributes:
        agent: The agent. A worker resolves it anew, also if the session is pinned or has the same one.
        tools: All tools that the model may call from then on. A worker resolves their schemas anew, also if the
            session is pinned.
        context_policy: Overlays the session's policy.
        model_options: Overlay the options in force; null takes a value away.
        limits: Overlay the limits in force; null takes a value away.
        metadata: All names and values of the caller's own. Those of the session's agent stay below them.
    """


class SessionConfig(ChangeableConfig, frozen=True):
    """The configuration of a session, from its start until a `configure` changes it.

    With `agent`, absent fields are the agent's. The fields of `context_policy`, `model_options`, `limits` and
    `metadata` are overlaid one by one; a list replaces the agent's.

    Attributes:
        model: The model. It is needed if there is no `agent`.
        context_policy: The agent's policy. Absent: the worker chooses one for the model.
        pin: Whether the session keeps the version of the agent and the tools' schemas with which it began. Otherwise
            each request has those of the workers' present deployment.
        strategy: The loop of a run; only `react` is accepted.
        max_iterations: The most model calls of a run.
        request_timeout_seconds: A request fails with `timeout` after this many seconds. The time in which it only
            waits for approvals, for results of external calls, or for subagents that wait, does not count.
        encoding: The encoding that tokens are counted under: `o200k_base`, `cl100k_base`, `heuristic`, or one that
            the workers register. Absent: that of the model's family, if the worker knows it.
        idle_timeout_seconds: The session hibernates after this many seconds without work; at most 10 years.
    """

    # The defaults of the settings that have one.
    fallbacks: Fallbacks = ()
    tools: ToolNames = ()
    external_tools: ExternalTools = ()
    provider_tools: ProviderTools = ()
    require_approval: ToolNames = ()
    approval_scope: ApprovalScope = "call"
    model_options: ModelOptions = ModelOptions()
    on_busy: OnBusy = "reject"
    steering: Steering = "terminal"
    limits: Limits = Limits()
    priority: PriorityLevel = 3
    metadata: Metadata = Field(default={})
    webhooks: Webhooks = ()

    pin: bool = False
    strategy: str = Field(default="react", max_length=200)
    max_iterations: Iterations = 10
    request_timeout_seconds: RequestSeconds = 900
    encoding: EncodingName = "o200k_base"
    idle_timeout_seconds: int | None = Field(default=None, ge=1, le=3650 * 86400)

    @model_validator(mode="after")
    def _check_model(self) -> Self:
        if self.model is None and self.agent is None:
            raise ValueError("a model or an agent is needed")
        return self

    def overlay(self, upper: Self) -> Self:
        """Return this configuration with the fields that `upper` sets. A field that is null is not set.

        Fields that have fields of their own, and `metadata`, are overlaid one by one.
        """
        changed = self.change(upper)
        if "metadata" not in upper.model_fields_set:
            return changed
        return changed.model_copy(update={"metadata": self.metadata | upper.metadata})


# The start of a session's workflow: by a client, a fork, a restore and a recovery alike.


class Task(Input):
    """The task of a subagent's session. Only the session that starts a subagent sets it.

    Attributes:
        content: The text of the task: the subagent's first message.
        request_id: The request that serves the task.
        session_id: The session that has started the subagent.
        tool_call_id: The tool call that the subagent answers.
        depth: The number of sessions above the subagent.
        timeout_seconds: The most seconds of the request: those that its parent has left.
        max_result_bytes: The most bytes of the text that the subagent answers.
        max_total_tokens: The most tokens of the subagent and its own subagents.
        max_cost_usd: The highest cost of the subagent and its own subagents, in USD.
    """

    content: str
    request_id: Id
    session_id: SessionId
    tool_call_id: Id
    depth: int = Field(ge=1, le=MAX_SUBAGENT_DEPTH)
    timeout_seconds: RequestSeconds
    max_result_bytes: int = Field(ge=256, le=MAX_TOOL_RESULT_BYTES)
    max_total_tokens: int | None = Field(default=None, ge=1)
    max_cost_usd: float | None = Field(default=None, gt=0)


class SessionStart(Input):
    """The argument of `AgentSession`.

    A new workflow first looks for an archive of its id. If there is one, the session continues from it, with the same
    seqs. An invalid argument fails the workflow at once, with the error's type as the type of its `ApplicationError`;
    the id may be started again. Cron schedules are refused with `invalid_input`.

    The start does not ask whether the worker knows the model and the agent: each request asks, and fails with
    `unknown_model` or `unknown_agent`. It fails with `invalid_token_budget` if the policy leaves no budget.

    Attributes:
        config: The configuration. If this id has an archived session, its configuration is used instead.
        carried: The state that the session's own earlier workflow run carried over; not accepted from other callers.
        task: The task of a subagent; only accepted from the session that starts the subagent.
        after: The id of the session's newest workflow run, which has ended: the archive must have what that run has
            written. Empty: there was none, or the archive is right as it is. Absent: the worker looks for one.
    """

    config: SessionConfig
    carried: dict[str, int | str] | None = None
    task: Task | None = None
    after: Annotated[str, StringConstraints(max_length=200)] | None = None


@dataclass(frozen=True, slots=True)
class StartArguments:
    """The arguments of Temporal's `start_workflow` for a session.

    Attributes:
        workflow: The workflow type.
        argument: The workflow's only argument, as JSON: a `SessionStart`.
        id: The workflow id, which is the session id.
        static_summary: The text beside the workflow in the Temporal UI.
    """

    workflow: str
    argument: dict[str, Any]
    id: str
    static_summary: str


def make_start_arguments(session_id: str, config: SessionConfig, after: str | None = None) -> StartArguments:
    """Make the arguments that start a session, or wake one from its archive.

    Args:
        session_id: The session.
        config: The configuration of a session without an archive.
        after: The session's newest workflow run, which has ended, as in `SessionStart`.
    """
    argument = SessionStart(config=config).model_dump(mode="json", exclude_unset=True)
    if after is not None:
        argument["after"] = after
    summary = f"session · {config.agent or config.model}"
    if title := " ".join(config.metadata.get("title", "").split()):
        summary += f" · {title[:MAX_SUMMARY_TITLE_CHARACTERS]}"
    return StartArguments(WORKFLOW_TYPE, argument, session_id, summary)


# The fairness key of a session: while calls wait for workers, the server takes those of each key in turn.


KEY_CHARACTERS = 32
"""Characters of a key. Temporal takes 64 bytes."""


def find_fairness_key(session_id: str, metadata: Mapping[str, str], inherited: str | None = None) -> str:
    """Find the fairness key of a session: that of its metadata's `tenant`, or else of its `user`.

    A session that has neither shares the key that it was started with (`inherited`), as a subagent does, or else has
    one of its own.
    """
    owner = metadata.get("tenant") or metadata.get("user")
    return make_fairness_key(owner) if owner else inherited or make_fairness_key(session_id)


def make_fairness_key(owner: str) -> str:
    """Make the fairness key of a tenant, a user or a session: a digest, since the server and its UI show it."""
    return hashlib.sha256(owner.encode()).hexdigest()[:KEY_CHARACTERS]
