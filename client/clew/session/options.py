"""Types of the keyword arguments of `Session` and `Clew`. None means the same as leaving an argument out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal, TypedDict

from clew.agents import Agent
from clew.tools import ExternalTool, ToolDefinition
from clew_workflows.contract import ApprovalScope, ContextPolicy, Limits, ModelOptions, OnBusy
from clew_workflows.contract.config import ExternalToolSpec, ProviderTool, Steering
from clew_workflows.contract.messages import Message
from clew_workflows.contract.webhooks import Webhook


class MessageOptions(TypedDict, total=False):
    """Options of `Session.message` and `Session.ask`. An option that is left out has the session's value.

    Attributes:
        request_id: Id of the request. A second message with the same id returns the same request's outcome.
        on_busy: What the session does while another request is active: `reject` the message, `queue` it,
            `interrupt` (cancel the other request), or `steer` (join its run and share its outcome).
        context_policy: Fields that override the session's policy for this request.
        model: Model of this request, as `provider:name`.
        fallbacks: Models that this request tries while its model has an outage, instead of the session's.
        model_options: Fields that override the session's model options for this request.
        shortens_only: Whether `max_output_tokens` may make replies shorter than the session's, and not longer.
        max_iterations: Largest number of model calls.
        timeout_seconds: Seconds after which the request fails.
        output_schema: JSON Schema that the answer must meet.
        tools: The session's tools that this request may use, or their names.
        external_tools: Tools of the caller's own for this request, instead of the session's `external_tools`.
        replies: What was answered to the content elsewhere: messages of the roles `assistant` and `tool`, each tool
            result right after its call (`SnapshotMessage`). The run goes on behind them.
        metadata: Strings that are stored with the request's entries.
        refs: Refs of your own. The message's entry and transcripts have them; no model reads them.
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
    replies: Sequence[Message | Mapping[str, Any]] | None
    metadata: Mapping[str, str] | None
    refs: Mapping[str, str] | None


class InputOptions(TypedDict, total=False):
    """Options of `Session.steer` and `Session.inject`.

    Attributes:
        at: When the run reads the input: after the answer (`terminal`) or before the next model call (`step`). The
            session's `steering` decides if left out.
        input_id: Id of the input. A second input with the same id is ignored.
        expected_request_id: The input is refused unless this request is active.
        on_failure: What happens to the input if the run ends before reading it: a follow-up run reads it
            (`follow_up`, the default), or it is dropped (`drop`).
        source: Name of the sender, stored with the entry.
        refs: Refs of your own. The input's entry and transcripts have them; no model reads them.
    """

    at: Steering | None
    input_id: str | None
    expected_request_id: str | None
    on_failure: Literal["follow_up", "drop"] | None
    source: str | None
    refs: Mapping[str, str] | None


class ConfigChanges(TypedDict, total=False):
    """Options of `Session.configure`: the settings that a session may change. Fields left out keep their values.

    Attributes:
        agent: An agent that the workers have, or its name. `configure` resolves it anew, also in a pinned session.
        model: The model, as `provider:name`.
        fallbacks: Models that a run tries, in this order, while its model has an outage.
        system_prompt: The system prompt.
        tools: The tools that the model may call, or their names. The workers must have them.
        external_tools: Tools of the caller's own, made by `external_tool` or as JSON (`ExternalToolSpec`). Workers
            need not have them: their calls wait for `Session.submit_tool_result`.
        provider_tools: The tools that the model's provider runs itself: `web_search`, `web_fetch`, `code_execution`,
            `image_generation`.
        require_approval: The tools whose calls wait for approval, or their names.
        approval_scope: Which calls of a reply wait for an approval: those that need it (`call`), or all of the reply
            (`round`).
        context_policy: The context policy; `configure` overrides fields of the one in force.
        model_options: Options of the model's calls.
        on_busy: What the session does with a message while a request is active.
        steering: When a run reads an input that does not set `at`.
        limits: Limits of inputs, tool results and usage.
        priority: Which calls the workers take first while calls wait for them: 1 the first, 5 the last; 3 by default.
        metadata: All names and values of the caller's own.
        webhooks: The URLs that are told of events of the session.
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
    """Options of `Clew.open`: the settings, and what stays as it was when the session was started.

    Attributes:
        pin: Whether the session keeps this version of the agent and its tools' schemas.
        strategy: The loop of a run; only `react` is accepted.
        max_iterations: The most model calls of a run.
        request_timeout_seconds: The time of a request, in seconds.
        encoding: The encoding that tokens are counted under.
        idle_timeout_seconds: The session hibernates after this many seconds without work.
    """

    pin: bool | None
    strategy: str | None
    max_iterations: int | None
    request_timeout_seconds: int | None
    encoding: str | None
    idle_timeout_seconds: int | None


class EntryFilters(TypedDict, total=False):
    """Filters of entries. An entry must meet all of them.

    Attributes:
        kind: Entries of this kind.
        context_ref: Entries of this lane.
        request_id: Entries of this request.
        run_id: Entries of this run.
        call_id: Entries of this model call.
        tool_call_id: Entries of this tool call.
        parent_call_id: Entries of the model call that follows this one.
        iteration: Entries of a run's model call with this number, counted from 1.
        source: Inputs from this sender.
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
