"""The keyword arguments that several methods share, each with its type. None says the same as leaving one out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal, TypedDict

from clew.contract import ContextPolicy, Limits, ModelOptions, OnBusy


class MessageOptions(TypedDict, total=False):
    """What `Session.message` and `Session.ask` take beside the text. Absent: as the session is configured.

    Attributes:
        request_id: The request's id. Sent again, it is the same request: answered again and never run again.
        on_busy: What becomes of the message while another request is served: `reject`, `queue`, `interrupt` (that
            request is cancelled) or `steer` (it joins that request's run, and both get the outcome).
        context_policy: Lies over the policy of the session for this request.
        model: The model of this request, as `provider:name`.
        model_options: Lie over the session's, field by field.
        max_iterations: The largest number of model calls.
        timeout_seconds: After this time the request fails.
        output_schema: A JSON Schema that the answer is to meet.
        metadata: Strings that the request's entries keep.
    """

    request_id: str | None
    on_busy: OnBusy | None
    context_policy: ContextPolicy | None
    model: str | None
    model_options: ModelOptions | Mapping[str, Any] | None
    max_iterations: int | None
    timeout_seconds: int | None
    output_schema: Mapping[str, Any] | None
    metadata: Mapping[str, str] | None


class InputOptions(TypedDict, total=False):
    """What `Session.steer` and `Session.inject` take beside the text.

    Attributes:
        at: When it is read: after the answer (`terminal`), or before the next model call (`step`). Absent: as the
            session is configured.
        input_id: Given again, it is the same input and read once.
        expected_request_id: It is refused unless this is the request that is served.
        on_failure: What becomes of it if the run ends without having read it: asked next (`follow_up`, the default),
            or dropped (`drop`).
        source: The source of it, for the record.
    """

    at: Literal["terminal", "step"] | None
    input_id: str | None
    expected_request_id: str | None
    on_failure: Literal["follow_up", "drop"] | None
    source: str | None


class ConfigChanges(TypedDict, total=False):
    """What `Session.configure` changes. What is absent stays as it is.

    Attributes:
        model: The model, as `provider:name`.
        model_options: The options of its calls.
        system_prompt: The system prompt.
        tools: The names of the tools.
        require_approval: The names of the tools that wait for approval.
        context_policy: The policy; it lies over the one in force, field by field.
        limits: What the session may take in and spend.
        on_busy: What becomes of messages while a request is served.
        steering: When inputs are read that do not say it themselves.
    """

    model: str | None
    model_options: ModelOptions | Mapping[str, Any] | None
    system_prompt: str | None
    tools: Sequence[str] | None
    require_approval: Sequence[str] | None
    context_policy: ContextPolicy | None
    limits: Limits | Mapping[str, Any] | None
    on_busy: OnBusy | None
    steering: Literal["terminal", "step"] | None


class EntryFilters(TypedDict, total=False):
    """Which entries are read: those that meet every filter.

    Attributes:
        kind: Entries of this kind.
        context_ref: Entries of this lane.
        request_id: Entries of this request.
        run_id: Entries of this run.
        call_id: Entries of this model call.
        tool_call_id: Entries of this tool call.
        parent_call_id: Entries of the model call that came after this one.
        iteration: Entries of a run's model call of this number; the first is 1.
        source: Inputs from this source.
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
