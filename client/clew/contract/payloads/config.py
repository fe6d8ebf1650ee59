"""What `config` entries hold: the configuration in force."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import fields, replace
from typing import ClassVar, Literal, Self

from pydantic import SkipValidation
from pydantic_core import to_json

from clew.contract.config import ApprovalScope, OnBusy, SessionConfig
from clew.contract.names import READ_RESULT
from clew.contract.payloads.base import EntryKind, Json, Payload, Stored, stored
from clew.contract.policy import ContextPolicy
from clew.model.messages import ToolSpec
from clew.model.tokens import Encoding

_NOT_COMPARED = ("own", "changes", "tokens")
"""Fields of a configuration that say nothing new about what is in force."""


def list_configured_names(tools: Iterable[ToolSpec]) -> list[str]:
    """List the names that a configuration has of these tools, unless a name is an MCP server's or of no tool."""
    return [tool["name"] for tool in tools if tool["name"] != READ_RESULT]


@stored
class ConfigTokens(Stored):
    """Tokens that every context has beside its messages.

    Attributes:
        system_prompt: Tokens of the system prompt.
        tools: Tokens of the tool schemas.
    """

    system_prompt: int
    tools: int


@stored
class AgentVersion(Stored):
    """An agent as a worker has resolved it.

    Attributes:
        name: The name of the agent.
        version: The digest of the agent's configuration, its tools and its label.
        label: The label that the agent's author gave the version.
    """

    name: str
    version: str
    label: str | None = None


@stored
class ConfigPayload(Payload):
    """The configuration in force from this entry on, complete, so that no later default can change it.

    Attributes:
        agent: The agent whose configuration it is; absent: the session has none, or no worker has resolved it yet.
        pin: Whether the session keeps this version of the agent and these schemas.
        model: The model, as `provider:model`; empty: it is the agent's, and no worker has resolved the agent yet.
        fallbacks: The models that a run tries while its model has an outage.
        strategy: How a run is led: `react`.
        system_prompt: The system prompt.
        tools: The schemas of the tools, as the worker resolved them.
        tool_names: The names of the tools as the configuration has them; absent: those of the schemas, but for
            `read_result`.
        require_approval: The tools whose calls wait for a person's decision.
        approval_scope: Which calls of a reply wait for an approval: those that need it (`call`), or all of the reply
            until the last decision (`round`).
        context_policy: The context policy (`ContextPolicy`), with every field.
        model_options: The options of model calls (`ModelOptions`) that are set.
        max_iterations: The most model calls of a run.
        request_timeout_seconds: The longest time of a request, in seconds.
        on_busy: What becomes of a message that finds the session busy.
        steering: When inputs enter a run: with its answer, or before its next model call.
        encoding: The encoding that tokens are counted under.
        limits: The limits (`Limits`) that are set.
        idle_timeout_seconds: After so many seconds without work the session hibernates.
        metadata: The session's metadata.
        priority: Which calls the workers take first: 1 the first, 5 the last.
        own: What callers have set over the agent's configuration (`SessionConfig`), where the session has an agent.
        changes: The fields that differ from the `config` entry before, but for `own`; absent in the first one.
        tokens: The tokens of the system prompt and of the tool schemas.
    """

    entry_kind: ClassVar[EntryKind] = "config"

    agent: AgentVersion | None = None
    pin: bool = False
    model: str
    strategy: str
    system_prompt: str | None
    tools: SkipValidation[list[ToolSpec]]
    require_approval: list[str]
    context_policy: Json
    model_options: Json
    max_iterations: int
    request_timeout_seconds: int
    on_busy: OnBusy
    steering: Literal["terminal", "step"]
    encoding: str
    limits: Json
    idle_timeout_seconds: int | None
    metadata: dict[str, str]
    fallbacks: tuple[str, ...] = ()
    priority: int = 3
    approval_scope: ApprovalScope = "call"
    tool_names: list[str] | None = None
    own: Json | None = None
    changes: list[str] | None = None
    tokens: ConfigTokens | None = None

    @property
    def policy(self) -> ContextPolicy:
        """The context policy in force, complete.

        Raises:
            ValueError: The policy has fields of a later release.
        """
        return ContextPolicy.model_validate(self.context_policy, strict=False)

    @property
    def prompt(self) -> str | None:
        """The system prompt in force: the policy's if it has one, else the session's."""
        return self.context_policy.get("system_prompt") or self.system_prompt

    @property
    def provider(self) -> str:
        """The provider of the model."""
        return self.model.partition(":")[0]

    @property
    def configured_tools(self) -> list[str]:
        """The names of the tools as the configuration has them. One of them may stand for several tools, or none."""
        return list_configured_names(self.tools) if self.tool_names is None else self.tool_names

    @property
    def config(self) -> SessionConfig:
        """The configuration as a session is started with it, without the policy."""
        value = {name: value for name, value in self.as_dict().items() if name in SessionConfig.model_fields}
        value |= {"tools": self.configured_tools, "model": self.model or None}
        # An agent's metadata and the session's own may be more together than a caller may send.
        del value["context_policy"], value["metadata"]
        if self.own:
            value["agent"] = self.own["agent"]
        config = SessionConfig.model_validate_json(to_json(value))
        return config.model_copy(update={"metadata": self.metadata})

    def compare(self, before: Self) -> Self:
        """Compare the configuration with the one before; the payload records the fields that differ."""
        names = (field.name for field in fields(self) if field.name not in _NOT_COMPARED)
        return replace(self, changes=[name for name in names if getattr(self, name) != getattr(before, name)])

    def count(self, encoding: Encoding) -> tuple[Self, int]:
        """Count the tokens of the system prompt and of the tool schemas; the payload records both.

        If `tokens` has those of the schemas already, they are not counted again.
        """
        tokens = ConfigTokens(
            system_prompt=encoding.count_system_prompt(self.prompt),
            tools=self.tokens.tools if self.tokens else encoding.count_tools(self.tools),
        )
        return replace(self, tokens=tokens), tokens.system_prompt + tokens.tools
