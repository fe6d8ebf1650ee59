"""What `config` entries hold: the configuration in force."""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar, Literal, Self

from pydantic import SkipValidation
from pydantic_core import to_json

from clew.contract.config import OnBusy, SessionConfig
from clew.contract.payloads.base import EntryKind, Json, Payload, Stored, stored
from clew.contract.policy import ContextPolicy
from clew.model.messages import ToolSpec
from clew.model.tokens import Encoding


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
class ConfigPayload(Payload):
    """The configuration in force from this entry on, complete, so that no later default can change it.

    Attributes:
        model: The model, as `provider:model`.
        strategy: How a run is led: `react`.
        system_prompt: The system prompt.
        tools: The schemas of the tools, as the worker resolved them.
        require_approval: The tools whose calls wait for a person's decision.
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
        tokens: The tokens of the system prompt and of the tool schemas.
    """

    entry_kind: ClassVar[EntryKind] = "config"

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
    def config(self) -> SessionConfig:
        """The configuration as a session is started with it, without the policy."""
        value = {name: value for name, value in self.as_json().items() if name in SessionConfig.model_fields}
        value["tools"] = [tool["name"] for tool in self.tools]
        del value["context_policy"]
        return SessionConfig.model_validate_json(to_json(value))

    def count(self, encoding: Encoding) -> tuple[Self, int]:
        """Count the tokens of the system prompt and of the tool schemas; the payload records both."""
        tokens = ConfigTokens(
            system_prompt=encoding.count_system_prompt(self.prompt), tools=encoding.count_tools(self.tools)
        )
        return replace(self, tokens=tokens), tokens.system_prompt + tokens.tools
