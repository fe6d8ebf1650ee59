"""Agents: named configurations of sessions, which the workers have and sessions name.

support = Agent("support", model="openai:gpt-4o", system_prompt="You are kind.", tools=[lookup_order])
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, dataclass
from typing import Any, Unpack

from pydantic import ValidationError

from clew.tools import ToolDefinition, make_tool
from clew.tools.definition import EXTERNAL_TIMEOUT_SECONDS, WaitSettings, make_spec
from clew_workflows.contract import ApprovalScope, ContextPolicy, Limits, ModelOptions, OnBusy, SessionConfig
from clew_workflows.contract.config import ProviderTool, Steering
from clew_workflows.contract.errors import Refusal
from clew_workflows.contract.limits import MAX_SYSTEM_PROMPT_BYTES
from clew_workflows.contract.names import AGENT_NAME, BUILT_IN_TOOLS, is_selected
from clew_workflows.contract.policy import resolve
from clew_workflows.contract.validation import translate_validation_error
from clew_workflows.contract.webhooks import Webhook

ToolForm = ToolDefinition | Mapping[str, Any] | str
"""A tool, one in its JSON form, or the name of one that the workers have from elsewhere."""

MAX_VERSION_CHARACTERS = 200
"""Longest `version` of an agent, in characters."""

TASK_PARAMETERS: Mapping[str, Any] = {
    "type": "object",
    "properties": {
        "task": {
            "type": "string",
            "description": "The task, with all that the agent has to know.",
        }
    },
    "required": ["task"],
    "additionalProperties": False,
}
"""The JSON Schema of the arguments of every `AgentTool`."""


@dataclass(frozen=True)
class Agent:
    """A configuration of sessions under a name. Sessions name the agent, and a worker resolves it.

    A field that is None is not set: the session's own value or Clew's default is in force. Agents are checked when
    they are made, so that a mistake shows when their module is imported.

    Attributes:
        name: The name: 1 to 64 letters, digits, `_`, `.` and `-`.
        model: The model, as `provider:name`.
        fallbacks: The models that a run tries, in this order, while its model has an outage; at most 8.
        system_prompt: The system prompt; at most 65 536 bytes.
        tools: The tools that the model may call: tools, or their JSON form. A worker that has the agent has them too.
            A string names a tool that the worker has from elsewhere.
        provider_tools: The tools that the model's provider runs itself: `web_search`, `web_fetch`, `code_execution`,
            `image_generation`.
        require_approval: The names of tools of the agent whose calls wait for approval, beside those that always do.
        approval_scope: Which calls of a reply wait for an approval: those that need it (`call`), or all of the reply
            (`round`).
        context_policy: The context policy. None: the worker chooses one for the model.
        model_options: Options of the model's calls.
        limits: Limits of a session's inputs, tool results and usage.
        max_iterations: The most model calls of a run, 1 to 1 000. Default: 10.
        request_timeout_seconds: The time of a request, in seconds; at most 30 days. Waiting for people does not
            count. Default: 900.
        on_busy: What a session does with a message while a request is active: `reject` (the default), `queue`,
            `steer` or `interrupt`.
        steering: When a run reads an input that does not set `at`: with its answer (`terminal`, the default), or
            before its next model call (`step`).
        idle_timeout_seconds: A session hibernates after this many seconds without work. Default: it does not.
        priority: Which calls the workers take first while calls wait for them: 1 the first, 3 the default, 5 the
            last.
        metadata: Names and values that each session of the agent has, all texts.
        webhooks: The URLs that are told of events of each session of the agent; at most 8.
        version: A label for people, for example a release: 1 to 200 characters. Threads record it beside the digest
            of the agent.

    Raises:
        TypeError: A field is not valid, a tool is listed twice, or `require_approval` names a tool that is not the
            agent's.

    Example:
        support = Agent(
            "support",
            model="openai:gpt-4o",
            system_prompt="You help with orders.",
            tools=[lookup_order, refund],
            limits={"max_cost_usd": 1.0},
        )
    """

    name: str
    _: KW_ONLY
    model: str
    fallbacks: Sequence[str] = ()
    system_prompt: str | None = None
    tools: Sequence[ToolForm] = ()
    provider_tools: Sequence[ProviderTool] = ()
    require_approval: Sequence[str] = ()
    context_policy: ContextPolicy | None = None
    model_options: ModelOptions | Mapping[str, Any] | None = None
    limits: Limits | Mapping[str, Any] | None = None
    max_iterations: int | None = None
    request_timeout_seconds: int | None = None
    on_busy: OnBusy | None = None
    steering: Steering | None = None
    approval_scope: ApprovalScope | None = None
    idle_timeout_seconds: int | None = None
    priority: int | None = None
    metadata: Mapping[str, str] | None = None
    webhooks: Sequence[Webhook | Mapping[str, Any]] = ()
    version: str | None = None

    def __post_init__(self) -> None:
        name: object = self.name
        if not isinstance(name, str) or not AGENT_NAME.matches(name):
            raise TypeError(f"{AGENT_NAME.words}, not {name!r}")
        label: object = self.version
        if label is not None and not (isinstance(label, str) and 0 < len(label) <= MAX_VERSION_CHARACTERS):
            raise TypeError(f"agent {self.name!r}: version has 1 to {MAX_VERSION_CHARACTERS} characters, or is None")
        for field in ("fallbacks", "tools", "provider_tools", "require_approval", "webhooks"):
            # A string is a sequence, too: of one-letter names.
            if isinstance(values := getattr(self, field), str) or not isinstance(values, Sequence):
                raise TypeError(f"agent {self.name!r}: {field} is a list, not {values!r}")
            object.__setattr__(self, field, tuple(values))
        tools = tuple(map(self._read_tool, self.tools))
        object.__setattr__(self, "tools", tools)
        names = [tool if isinstance(tool, str) else tool.name for tool in tools]
        if repeated := sorted({name for name in names if names.count(name) > 1}):
            raise TypeError(f"agent {self.name!r}: the tool {repeated[0]!r} is listed twice")
        unknown = [name for name in self.require_approval if not is_selected(name, (*names, *BUILT_IN_TOOLS))]
        if unknown:
            raise TypeError(
                f"agent {self.name!r}: require_approval names {unknown[0]!r}, which is not a tool of the agent: its "
                f"tools are {', '.join(names) or 'none'}"
            )
        object.__setattr__(self, "_config", self._make_config(names))

    @property
    def config(self) -> SessionConfig:
        """The configuration with the fields that the agent sets."""
        config: SessionConfig = self.__dict__["_config"]
        return config

    @property
    def own_tools(self) -> Sequence[ToolDefinition]:
        """The tools that the agent brings to a worker."""
        return [tool for tool in self.tools if isinstance(tool, ToolDefinition)]

    def as_tool(
        self,
        name: str | None = None,
        description: str | None = None,
        **settings: Unpack[WaitSettings],
    ) -> AgentTool:
        """Make a tool whose calls are tasks of this agent. A worker that has the tool has the agent, too.

        Args:
            name: The name of the tool; by default the agent's, with `_` for each `.`. A worker with two tools of one
                name does not start.
            description: What the agent does, for the model that calls it.
            settings: How calls wait for the subagent (`WaitSettings`): a day by default. One whose call has timed out
                is cancelled.

        Raises:
            TypeError: The name or the timeout are out of bounds.

        Example:
            research = researcher.as_tool("research", "Finds sources.")
            support = Agent("support", model="openai:gpt-4o", tools=[research])
        """
        return AgentTool(
            self,
            self.name.replace(".", "_") if name is None else name,
            f"Give a task to the agent {self.name!r}, which works on its own and answers with a text."
            if description is None
            else description,
            **settings,
        )

    def _read_tool(self, tool: object) -> ToolDefinition | str:
        """Read one of the forms that a tool may have. This is the only place that knows them."""
        match tool:
            case ToolDefinition():
                return tool
            case Mapping():
                return make_tool(tool)
            case str() if tool:
                return tool
            case _:
                raise TypeError(f"agent {self.name!r}: {tool!r} is not a tool: decorate the function with clew.tool")

    def _make_config(self, tools: Sequence[str]) -> SessionConfig:
        fields = {name: value for name, value in vars(self).items() if name in SessionConfig.model_fields}
        fields["tools"] = tools
        try:
            # An empty list is the default of each field that is one.
            values = {name: value for name, value in fields.items() if value not in (None, (), [])}
            config = SessionConfig.model_validate_json(json.dumps(values, default=_make_plain))
            if config.context_policy:
                resolve(agent=config.context_policy)
        except ValidationError as error:
            raise TypeError(f"agent {self.name!r}: {translate_validation_error(SessionConfig, error)}") from None
        except (Refusal, ValueError, TypeError, RecursionError) as error:
            raise TypeError(f"agent {self.name!r}: {error}") from None
        prompts = (config.system_prompt, config.context_policy.system_prompt if config.context_policy else None)
        if any(len(prompt.encode()) > MAX_SYSTEM_PROMPT_BYTES for prompt in prompts if prompt):
            raise TypeError(f"agent {self.name!r}: a system prompt has at most {MAX_SYSTEM_PROMPT_BYTES} bytes")
        return config


class AgentTool(ToolDefinition):
    """A tool whose calls are tasks of an agent: a call starts a session of the agent, and waits for its answer.

    Attributes:
        agent: The agent.
    """

    default_timeout_seconds = EXTERNAL_TIMEOUT_SECONDS

    def __init__(self, agent: Agent, name: str, description: str, **settings: Unpack[WaitSettings]) -> None:
        super().__init__(make_spec(name, description, TASK_PARAMETERS), **settings)
        self.agent = agent


def _make_plain(value: Any) -> Any:
    match value:
        case ContextPolicy() | ModelOptions() | Limits() | Webhook():
            return value.model_dump(mode="json", exclude_unset=True)
        case Mapping():
            return dict(value)
        case _:
            raise TypeError(f"{value!r} is not JSON")
