"""The parts of a response that its request sets, and the objects of the API that have them. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any

from pydantic_core import from_json

from clew.serve.error_words import WORDS
from clew.serve.openai.ids import ResponseName
from clew_workflows.contract.outcomes import OutcomeError, Usage
from clew_workflows.contract.payloads import ConfigPayload, UserMessage
from clew_workflows.thread.entries import Entry

ECHO = "clew.response"
"""The metadata of a message that keeps what a response repeats of its request, and no model reads: JSON."""

# Keys of the echo.
_BACKGROUND, PREVIOUS, _FORMAT, _STORE, _SUMMARY, _TIER, KEY, BODY = (
    "background",
    "previous",
    "format",
    "store",
    "summary",
    "tier",
    "key",
    "body",
)
REPEATED = ("user", "safety_identifier", "prompt_cache_key")
"""Fields of a request that its response repeats, and that have no other effect."""


@dataclass(frozen=True)
class Frame:
    """What a response repeats of its request.

    Attributes:
        name: The response.
        created_at: When it was made, in seconds since 1970.
        model: The agent or the model, as the caller named it.
        instructions: The instructions; None: it had none.
        metadata: The caller's metadata.
        functions: The caller's functions: name, description and parameters.
        options: The options of model calls that the request has set (`ModelOptions`).
        defaults: Those of the session.
        output_schema: The JSON Schema that the answer must meet; None: it is a text.
        echo: The other fields that are repeated.
    """

    name: ResponseName
    created_at: float
    model: str
    instructions: str | None = None
    metadata: Mapping[str, str] = field(default_factory=dict)
    functions: Sequence[Mapping[str, Any]] = ()
    options: Mapping[str, Any] = field(default_factory=dict)
    defaults: Mapping[str, Any] = field(default_factory=dict)
    output_schema: Mapping[str, Any] | None = None
    echo: Mapping[str, Any] = field(default_factory=dict)

    @property
    def function_names(self) -> frozenset[str]:
        """The names of the caller's functions."""
        return frozenset(function["name"] for function in self.functions)

    @property
    def takes_calls(self) -> bool:
        """Whether a reply may have several calls."""
        return self.options.get("parallel_tool_calls", self.defaults.get("parallel_tool_calls")) is not False

    @property
    def is_stored(self) -> bool:
        """Whether the caller may read the response later."""
        return self.echo.get(_STORE, True) is not False

    @property
    def is_background(self) -> bool:
        """Whether the request was made in the background."""
        return self.echo.get(_BACKGROUND) is True


def make_echo(
    *,
    background: bool,
    previous: str | None,
    schema_name: str | None,
    store: bool,
    summary: str | None,
    service_tier: str | None,
    repeated: Mapping[str, str | None],
) -> dict[str, Any]:
    """Make the echo of a request. What has its default is absent."""
    values: dict[str, Any] = {
        _BACKGROUND: True if background else None,
        PREVIOUS: previous,
        _FORMAT: schema_name,
        _STORE: None if store else False,
        _SUMMARY: summary,
        _TIER: service_tier,
        **repeated,
    }
    return {name: value for name, value in values.items() if value is not None}


def read_frame(name: ResponseName, message: Entry | None, config: Entry | None) -> Frame:
    """Read what a response repeats from the thread.

    Args:
        name: The response.
        message: The user's message that the request began with; None: it has not entered the thread.
        config: The configuration that was in force then; None: there is none yet.
    """
    if message is None:
        return Frame(name, 0.0, _name_model(config) or "")
    sent = message.read(UserMessage)
    own = {**(sent.settings or {}), "metadata": sent.metadata, "output_schema": sent.output_schema}
    defaults = config.read(ConfigPayload).config.model_options.model_dump(exclude_none=True) if config else {}
    return follow_settings(Frame(name, int(read_time(message.at)), "", defaults=defaults), own, config)


def follow_settings(frame: Frame, settings: Mapping[str, Any], config: Entry | None) -> Frame:
    """Make the frame of a part that has settings of its own (`RunSettings`), from that of the part before."""
    metadata = dict(settings.get("metadata") or {})
    echo = _read_echo(metadata.pop(ECHO, None))
    functions = settings.get("external_tools")
    if functions is None:
        functions = (config.read(ConfigPayload).external_tools if config else None) or ()
    return replace(
        frame,
        model=settings.get("model") or settings.get("agent") or _name_model(config) or frame.model,
        instructions=(settings.get("context_policy") or {}).get("system_prompt"),
        metadata=metadata,
        functions=tuple(functions),
        options=settings.get("model_options") or {},
        output_schema=settings.get("output_schema"),
        echo=echo,
    )


def _name_model(config: Entry | None) -> str | None:
    """Name the agent, or the model, of a configuration."""
    if config is None:
        return None
    configured = config.read(ConfigPayload)
    return configured.agent.name if configured.agent else configured.model


def _read_echo(text: str | None) -> dict[str, Any]:
    try:
        echo = from_json(text or "{}")
    except ValueError:
        return {}
    return echo if isinstance(echo, dict) else {}


def read_time(at: str) -> float:
    """Read the time of an entry, in seconds since 1970."""
    return datetime.fromisoformat(at).timestamp()


def make_response(
    frame: Frame,
    status: str,
    output: Sequence[Mapping[str, Any]] = (),
    *,
    usage: Usage | None = None,
    error: Mapping[str, str] | None = None,
    incomplete: str | None = None,
    completed_at: int | None = None,
) -> dict[str, Any]:
    """Make the object of a response."""
    options, echo = frame.options, frame.echo
    return {
        "id": frame.name.id,
        "object": "response",
        "created_at": frame.created_at,
        "status": status,
        "background": frame.is_background,
        "completed_at": completed_at if status == "completed" else None,
        "conversation": {"id": frame.name.session_id},
        "error": error,
        "incomplete_details": {"reason": incomplete} if incomplete else None,
        "instructions": frame.instructions,
        "max_output_tokens": options.get("max_output_tokens"),
        "max_tool_calls": None,
        "frequency_penalty": 0.0,
        "presence_penalty": 0.0,
        "top_logprobs": 0,
        "metadata": dict(frame.metadata),
        "model": frame.model,
        "output": [dict(item) for item in output],
        "parallel_tool_calls": frame.takes_calls,
        "previous_response_id": echo.get(PREVIOUS),
        "reasoning": {"effort": options.get("reasoning_effort"), "summary": echo.get(_SUMMARY)},
        "service_tier": options.get("service_tier") or echo.get(_TIER) or "default",
        "store": frame.is_stored,
        "temperature": options.get("temperature", frame.defaults.get("temperature", 1.0)),
        "text": {"format": _make_format(frame), "verbosity": options.get("verbosity") or "medium"},
        "tool_choice": _make_tool_choice(options.get("tool_choice")),
        "tools": [make_tool(function) for function in frame.functions],
        "top_p": options.get("top_p", frame.defaults.get("top_p", 1.0)),
        "truncation": "auto",
        "usage": make_usage(usage) if usage else None,
        **{name: echo.get(name) for name in REPEATED},
    }


def make_tool(function: Mapping[str, Any]) -> dict[str, Any]:
    """Make the definition of a function, as the API has it."""
    return {
        "type": "function",
        "name": function["name"],
        "description": function.get("description") or None,
        "parameters": function["parameters"],
        "strict": False,
    }


def make_usage(usage: Usage) -> dict[str, Any]:
    """Make the usage of a response. Tokens of reasoning are among those of the output, and not known apart."""
    return {
        "input_tokens": usage.input_tokens,
        "input_tokens_details": {
            "cached_tokens": usage.cached_input_tokens,
            "cache_write_tokens": usage.written_input_tokens or 0,
        },
        "output_tokens": usage.output_tokens,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": usage.input_tokens + usage.output_tokens,
    }


_CODES = {400: "invalid_prompt", 429: "rate_limit_exceeded"}
"""The API's codes of failed responses, by the statuses of their words."""


def make_error(error: OutcomeError | None, reason: str) -> dict[str, str]:
    """Make the error of a failed response. Its message begins with the contract's word."""
    word = error.type if error else reason
    return {
        "code": _CODES.get(WORDS[word][0] if word in WORDS else 500, "server_error"),
        "message": f"{word}: {error.message}" if error else word,
    }


def _make_format(frame: Frame) -> dict[str, Any]:
    if frame.output_schema is None:
        return {"type": "text"}
    name = frame.echo.get(_FORMAT)
    if name is None:
        return {"type": "json_object"}
    schema = dict(frame.output_schema)
    return {"type": "json_schema", "name": name, "description": None, "schema": schema, "strict": True}


def _make_tool_choice(choice: str | None) -> str | dict[str, str]:
    if choice in (None, "auto", "none", "required"):
        return choice or "auto"
    return {"type": "function", "name": str(choice)}
