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
    """Options of `Session.message` and `Session.ask`: the fields of `MessageInput`, beside the content.

    Attributes:
        request_id: The request's id: each is served once. None: a new one is made.
        on_busy: What happens to the message while a request is active: `reject`, `queue`, `steer` or `interrupt`.
        context_policy: Overlays the session's policy for this request.
        model: The model of this request, as `provider:name`.
        fallbacks: The models that this request tries during an outage; `[]`: none.
        model_options: Overlay the session's options for this request, such as `temperature` or `max_output_tokens`.
        shortens_only: Whether `max_output_tokens` may make replies shorter than the session's, and not longer.
        max_iterations: The most model calls of the run, 1 to 1 000.
        timeout_seconds: The request fails with `timeout` after so many seconds. Waiting for people does not count.
        output_schema: The JSON Schema that the answer must follow. `answer` takes a Python type instead.
        tools: The tools of this request: some of the session's; `[]`: none.
        external_tools: The caller's tools of this request, instead of the session's; `[]`: none.
        replies: What was answered to the content elsewhere, in order. The run goes on behind them.
        metadata: Names and values of your own; tools get them as `request_metadata`.
        refs: References of your own, such as the message's id in another system. No model reads them.
    """

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
    """Options of `Session.steer` and `Session.inject`: the fields of `SteerInput`, beside the content.

    Attributes:
        at: When the run reads the input: with its answer (`terminal`), or before its next model call (`step`).
        input_id: The input's id: each is accepted once. None: a new one is made.
        expected_request_id: Refuse the input unless this request is active.
        on_failure: If the run fails before it reads the input: a follow-up run answers it (`follow_up`, the default),
            or it is dropped (`drop`).
        source: The sender: a name or an id.
        refs: References of your own. No model reads them.
    """

    at: Steering | None
    input_id: str | None
    expected_request_id: str | None
    on_failure: Literal["follow_up", "drop"] | None
    source: str | None
    refs: Mapping[str, str] | None


class ConfigChanges(TypedDict, total=False):
    """Options of `Session.configure`: the fields of `ConfigureInput`. Those left out keep their values.

    Tools are named, or given as the objects that the workers have; an agent likewise.

    Attributes:
        agent: The agent, which the workers have.
        model: The model, as `provider:name`.
        fallbacks: The models that a run tries, in this order, during an outage of its model; at most 8.
        system_prompt: The system prompt; at most 65 536 bytes.
        tools: The tools of the workers that the model may call; `mcp:SERVER/*` names all of an MCP server.
        external_tools: Tools of the caller, whose calls wait for `Session.submit_tool_result`.
        provider_tools: Tools that the model's provider runs: `web_search`, `web_fetch`, `code_execution`,
            `image_generation`.
        require_approval: Tools whose calls wait for a person, beside those that always do.
        approval_scope: Which calls of a reply wait for an approval: those that need it (`call`, the default), or all
            of the reply (`round`).
        context_policy: How contexts are made.
        model_options: Options of model calls, such as `temperature`.
        on_busy: What happens to a message while a request is active: `reject` (the default), `queue`, `steer` or
            `interrupt`.
        steering: When a run reads an input that does not say: `terminal` (the default) or `step`.
        limits: Limits of inputs, tool results, tokens and cost.
        priority: Which calls the workers take first: 1 the first, 3 the default, 5 the last.
        metadata: Names and values of your own, all texts. `user` is the one that lists and deletions go by.
        webhooks: URLs that are told of events, at most 8.
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
    """Options of `Clew.open`: the fields of `SessionConfig`. With an agent, those left out are the agent's.

    Attributes:
        pin: Whether the session keeps the version of the agent and the tools' schemas with which it began. Default:
            false.
        strategy: The loop of a run; only `react` is accepted.
        max_iterations: The most model calls of a run, 1 to 1 000. Default: 10.
        request_timeout_seconds: The time of a request, in seconds. Waiting for people does not count. Default: 900.
        encoding: The encoding that tokens are counted under. Default: that of the model's family.
        idle_timeout_seconds: The session hibernates after so many seconds without work; at most 10 years. Default: it
            does not.
    """

    pin: bool | None
    strategy: str | None
    max_iterations: int | None
    request_timeout_seconds: int | None
    encoding: str | None
    idle_timeout_seconds: int | None


class EntryFilters(TypedDict, total=False):
    """Filters of entries: fields of `EntriesQuery`. An entry must meet all of them.

    Attributes:
        kind: The kind, such as `ai_message`, `config`, `run`, `approval`, `error`, `summary` or `fork`.
        context_ref: The lane.
        request_id: The request.
        run_id: The run.
        call_id: The model call.
        tool_call_id: The tool call.
        parent_call_id: The model call before.
        iteration: The number of the model call in its run, from 1.
        source: The sender of an input.
    """

    kind: str | None
    context_ref: str | None
    request_id: str | None
    run_id: str | None
    call_id: str | None
    tool_call_id: str | None
    parent_call_id: str | None
    iteration: int | None
    source: str | None
