"""Types of the keyword arguments of `Session` and `Clew`, which make the inputs of the contract.

The contract declares each option: what it means, its bounds and its default. Here stand its name, and the forms in
which Python callers may write it; `tests/typing` holds the two together. None is the same as leaving an option out.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal, TypedDict

from clew.agents import Agent
from clew.tools import ExternalTool, ToolDefinition
from clew_workflows.contract import ApprovalScope, ContextPolicy, Limits, ModelOptions, OnBusy, SnapshotMessage
from clew_workflows.contract.config import ExternalToolSpec, ProviderTool, Steering
from clew_workflows.contract.messages import Message
from clew_workflows.contract.webhooks import Webhook


class MessageOptions(TypedDict, total=False):
    """Options of `Session.message` and `Session.ask`: the fields of `MessageInput`, beside the content."""

    request_id: str | None
    on_busy: OnBusy | None
    context_policy: ContextPolicy | None
    model: str | None
    fallbacks: Sequence[str] | None
    model_options: ModelOptions | Mapping[str, Any] | None
    shortens_only: bool | None
    max_iterations: int | None
    timeout_seconds: int | None
    output_schema: Mapping[str, Any] | None
    tools: Sequence[str | ToolDefinition] | None
    external_tools: Sequence[ExternalTool | ExternalToolSpec | Mapping[str, Any]] | None
    replies: Sequence[Message | SnapshotMessage | Mapping[str, Any]] | None
    metadata: Mapping[str, str] | None
    refs: Mapping[str, str] | None


class InputOptions(TypedDict, total=False):
    """Options of `Session.steer` and `Session.inject`: the fields of `SteerInput`, beside the content."""

    at: Steering | None
    input_id: str | None
    expected_request_id: str | None
    on_failure: Literal["follow_up", "drop"] | None
    source: str | None
    refs: Mapping[str, str] | None


class ConfigChanges(TypedDict, total=False):
    """Options of `Session.configure`: the fields of `ConfigureInput`. Those left out keep their values.

    Tools are named, or given as the objects that the workers have; an agent likewise.
    """

    agent: str | Agent | None
    model: str | None
    fallbacks: Sequence[str] | None
    system_prompt: str | None
    tools: Sequence[str | ToolDefinition] | None
    external_tools: Sequence[ExternalTool | ExternalToolSpec | Mapping[str, Any]] | None
    provider_tools: Sequence[ProviderTool] | None
    require_approval: Sequence[str | ToolDefinition] | None
    approval_scope: ApprovalScope | None
    context_policy: ContextPolicy | None
    model_options: ModelOptions | Mapping[str, Any] | None
    on_busy: OnBusy | None
    steering: Steering | None
    limits: Limits | Mapping[str, Any] | None
    priority: int | None
    metadata: Mapping[str, str] | None
    webhooks: Sequence[Webhook | Mapping[str, Any]] | None


class SessionOptions(ConfigChanges, total=False):
    """Options of `Clew.open`: the fields of `SessionConfig`. With an agent, those left out are the agent's."""

    pin: bool | None
    strategy: str | None
    max_iterations: int | None
    request_timeout_seconds: int | None
    encoding: str | None
    idle_timeout_seconds: int | None


class EntryFilters(TypedDict, total=False):
    """Filters of entries: fields of `EntriesQuery`. An entry must meet all of them."""

    kind: str | None
    context_ref: str | None
    request_id: str | None
    run_id: str | None
    call_id: str | None
    tool_call_id: str | None
    parent_call_id: str | None
    iteration: int | None
    source: str | None
