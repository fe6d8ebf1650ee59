"""Anthropic's Messages API.

What a model takes depends on its generation: `models` has the table. Options that the API does not support
are omitted: `seed` and `verbosity` always; `temperature` and `top_p` where the generation has no sampling, and in
requests with thinking, of which `top_p` is sent from 0.95 on; `top_p` beside a `temperature`. API version 2026-10-21
has no sampling, so a request with one of these is sent under the version before it.

Where thinking blocks are bound, the API refuses a request whose earlier messages have changed. A sliding context
changes them in normal operation, so requests tell the API to drop such blocks instead. Requests without thinking have
none.

`ANTHROPIC_API_KEY` and `ANTHROPIC_BASE_URL` are read as the official client reads them: the key or the URL is enough.
`ANTHROPIC_CACHE_TTL` is how long the provider's cache keeps a prompt, `ANTHROPIC_BETA` names beta features.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from clew_activities.providers.answer_object import describe_schema
from clew_activities.providers.anthropic.messages import (
    encode_messages,
    find_container,
    find_open_uses,
    lacks_thinking_in_round,
    make_text,
)
from clew_activities.providers.anthropic.models import BINDING_BETA, Generation, find_generation
from clew_activities.providers.anthropic.schema import make_answer_schema
from clew_activities.providers.anthropic.stream import AnthropicDecoder
from clew_activities.providers.anthropic.tools import choose_provider_tools
from clew_activities.providers.dialects import ANTHROPIC
from clew_activities.providers.errors import ErrorAnswer, ProviderError, classify_response
from clew_activities.providers.fit_tools import FittedTools, declare_called_tools, fit_tools
from clew_activities.providers.interface import HttpRequest, ModelRequest
from clew_activities.providers.loading import read_key, read_url
from clew_activities.providers.media import MediaForms, fit_media
from clew_activities.providers.options import get_object, merge_provider_options
from clew_workflows.contract.content import get_text
from clew_workflows.contract.messages import Message, ToolSpec
from clew_workflows.contract.payloads import Fitting

_OFFICIAL_URL = "https://api.anthropic.com"
_VERSION = "2026-10-21"
_VERSION_WITH_SAMPLING = "2023-06-01"
_SAMPLING = frozenset(("temperature", "top_p", "top_k"))

_ENCODER = "anthropic/1"
_OWNED = frozenset(("model", "messages", "system", "stream", "tools", "tool_choice", "cache_control"))
"""Fields that `provider_options` cannot set."""

LONG_TTL = "1h"
"""The dialect of requests whose prompts the cache keeps for an hour instead of five minutes."""
_TTLS = ("5m", LONG_TTL)
_BETA_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")

_SERVICE_TIERS = ("auto", "standard_only")
_LEAST_TOP_P_WITH_THINKING = 0.95


def make_providers(environ: Mapping[str, str]) -> Iterable[Anthropic]:
    """Make the provider `anthropic`, if it is configured.

    Raises:
        ValueError: A variable's value cannot be used.
    """
    key, url = read_key(environ, "ANTHROPIC_API_KEY"), read_url(environ, "ANTHROPIC_BASE_URL")
    ttl, betas = _read_ttl(environ, "ANTHROPIC_CACHE_TTL"), _read_betas(environ, "ANTHROPIC_BETA")
    if key or url:
        yield Anthropic("anthropic", url or _OFFICIAL_URL, key, caches_longer=ttl == LONG_TTL, betas=betas)


def _read_ttl(environ: Mapping[str, str], variable: str) -> str:
    ttl = environ.get(variable, "").strip() or _TTLS[0]
    if ttl not in _TTLS:
        raise ValueError(f"{variable} must be {' or '.join(_TTLS)}")
    return ttl


def _read_betas(environ: Mapping[str, str], variable: str) -> tuple[str, ...]:
    names = [name for name in map(str.strip, environ.get(variable, "").split(",")) if name]
    if not all(map(_BETA_NAME.fullmatch, names)):
        raise ValueError(f"{variable} must name beta features, separated by commas, as in compact-2026-09-04")
    return tuple(dict.fromkeys(names))


@dataclass(frozen=True)
class Anthropic:
    """Anthropic's Messages API, or a compatible server.

    Attributes:
        name: The part of a session's model before the colon.
        base_url: The server's URL, without a slash at its end.
        api_key: The key, sent as `x-api-key`; None: the server needs none.
        caches_longer: The provider's cache keeps prompts for an hour instead of five minutes.
        betas: The beta features of all requests. They are in a header, so a body does not depend on them.
    """

    name: str
    base_url: str
    api_key: str | None = field(default=None, repr=False)
    caches_longer: bool = False
    betas: tuple[str, ...] = ()

    @property
    def secrets(self) -> tuple[str, ...]:
        """The key, if there is one."""
        return (self.api_key,) if self.api_key else ()

    @property
    def secret_headers(self) -> tuple[str, ...]:
        """The header that holds the key."""
        return ("x-api-key",)

    def encode(self, request: ModelRequest) -> HttpRequest:
        """Encode the request as the body of `POST /v1/messages`."""
        generation, media = find_generation(request.model), fit_media(request, ANTHROPIC.media)
        fitted = fit_tools(request.tools, ANTHROPIC.tools)
        options = _encode_options(request, generation, fitted, self.name)
        # Bound blocks that the API would ignore could only make it refuse the request.
        thinks = options.get("thinking", {}).get("type") not in ("disabled", "between_tools")
        returns_thinking = thinks or not generation.binds
        turns = encode_messages(media.messages, fitted, self.name, request.blobs, returns_thinking=returns_thinking)
        # A breakpoint. The API accepts four in a request. All have one TTL, since longer ones must stand first.
        breakpoint_ = {"type": "ephemeral", **({"ttl": LONG_TTL} if self.caches_longer else {})}
        body: dict[str, Any] = {
            "model": request.model,
            # This breakpoint moves with the conversation; the next request reads the prefix before it from the cache.
            "cache_control": breakpoint_,
            "messages": [{"role": turn.role, "content": turn.blocks} for turn in turns.turns],
            "stream": True,
        }
        declared = [] if fitted.specs else declare_called_tools(request.messages, ANTHROPIC)
        tools, system = [_encode_tool(spec) for spec in fitted.specs or declared], _encode_system(request.messages)
        own_tools, left_out = choose_provider_tools(
            request.provider_tools, generation, [tool["name"] for tool in tools], request.model
        )
        tools += own_tools
        # Further breakpoints after the parts that stay when the conversation is truncated: tools, system prompt,
        # summary.
        for stable in system[:2] or tools[-1:]:
            stable["cache_control"] = breakpoint_
        system += _describe_schema(request.output_schema)
        if system:
            body["system"] = system
        if tools:
            body["tools"] = tools
        if container := find_container(request.messages, self.name):
            body["container"] = container
        body = merge_provider_options(body | options, request, self.name, _OWNED)
        if declared and not own_tools:
            body["tool_choice"] = {"type": "none"}
        headers = {"anthropic-version": _VERSION_WITH_SAMPLING if _SAMPLING & body.keys() else _VERSION}
        needed = [BINDING_BETA] if "block_binding" in get_object(body, "thinking") else []
        if betas := list(dict.fromkeys((*needed, *self.betas))):
            headers["anthropic-beta"] = ",".join(betas)
        if self.api_key:
            headers["x-api-key"] = self.api_key
        fitting = Fitting(
            dialect=ANTHROPIC.name,
            merged=turns.merged,
            added=turns.added + media.added,
            dropped=turns.dropped + sum(_is_blank_system(message) for message in request.messages),
            tools=dict(fitted.changes),
            tools_left_out=dict(fitted.left_out) | left_out,
            options=_describe_options(request, body),
            media=media.changes,
        )
        dialect = LONG_TTL if self.caches_longer else None
        return HttpRequest("/v1/messages", headers, body, fitting, _ENCODER, dialect)

    def get_media_forms(self, model: str) -> MediaForms:  # noqa: ARG002 - all models take the same forms
        """Return what requests may have of images and files."""
        return ANTHROPIC.media

    def make_decoder(self, request: ModelRequest) -> AnthropicDecoder:
        """Make a decoder for the reply to a request."""
        open_uses = find_open_uses(request.messages, self.name)
        return AnthropicDecoder(self.name, fit_tools(request.tools, ANTHROPIC.tools), open_uses)

    def read_error(self, answer: ErrorAnswer) -> ProviderError:
        """Classify an error response by the tables in `errors`."""
        return classify_response(answer)


def _encode_options(
    request: ModelRequest, generation: Generation, tools: FittedTools, provider: str
) -> dict[str, Any]:
    options = request.options
    max_tokens = options.max_output_tokens
    assert max_tokens is not None  # ModelRequest guarantees it
    choice = _encode_tool_choice(options.tool_choice, tools) if tools.by_name else None
    is_forced = bool(request.tools) and options.tool_choice not in (None, "auto", "none")
    thinking = generation.choose_thinking(options.reasoning_effort, max_tokens, forced=is_forced)
    if thinking and "budget_tokens" in thinking and lacks_thinking_in_round(request.messages, provider):
        thinking = None
    output_config: dict[str, Any] = {}
    if effort := generation.choose_effort(options.reasoning_effort):
        output_config["effort"] = effort
    if schema := make_answer_schema(request.output_schema):
        output_config["format"] = {"type": "json_schema", "schema": schema}
    options_by_name = {
        "max_tokens": max_tokens,
        # The API refuses a sequence of white space alone.
        "stop_sequences": list(filter(str.strip, options.stop or ())) or None,
        **(_encode_sampling(request, thinks=thinking is not None) if generation.sampling else {}),
        "service_tier": options.service_tier if options.service_tier in _SERVICE_TIERS else None,
        "thinking": thinking,
        "output_config": output_config or None,
        "tool_choice": choice if generation.forces_tools or not is_forced else None,
    }
    return {name: value for name, value in options_by_name.items() if value is not None}


def _encode_sampling(request: ModelRequest, *, thinks: bool) -> dict[str, Any]:
    """Encode the temperature or `top_p`: models refuse both together, and most of it beside thinking."""
    temperature, top_p = request.options.temperature, request.options.top_p
    if temperature is not None and not thinks:
        return {"temperature": min(temperature, ANTHROPIC.temperatures[1])}
    if top_p is not None and (not thinks or top_p >= _LEAST_TOP_P_WITH_THINKING):
        return {"top_p": top_p}
    return {}


def _describe_options(request: ModelRequest, body: Mapping[str, Any]) -> dict[str, str]:
    """Describe the options that the request has otherwise than the session, or not at all."""
    options = request.options
    config, thinking = get_object(body, "output_config"), get_object(body, "thinking")
    wanted = {
        "seed": options.seed,
        "verbosity": options.verbosity,
        "temperature": options.temperature,
        "top_p": options.top_p,
        "service_tier": options.service_tier,
    }
    described = {
        name: str(body[name]) if name in body else "left out"
        for name, value in wanted.items()
        if value is not None and body.get(name) != value
    }
    stops = body.get("stop_sequences", [])
    if options.stop and (not isinstance(stops, list) or len(options.stop) > len(stops)):
        described["stop"] = str(stops) if stops else "left out"
    if options.tool_choice not in (None, "auto") and "tools" in body and "tool_choice" not in body:
        described["tool_choice"] = "left out"
    effort, sent = options.reasoning_effort, config.get("effort")
    if sent is not None and sent != effort:
        described["reasoning_effort"] = str(sent)
    elif effort not in (None, "none") and sent is None and thinking.get("type") != "enabled":
        described["reasoning_effort"] = "left out"
    if request.output_schema is not None and "format" not in config:
        described["output_schema"] = "in the prompt"
    return described


def _encode_system(messages: Iterable[Message]) -> list[dict[str, Any]]:
    texts = (get_text(message["content"]) for message in messages if message["role"] == "system")
    return [make_text(text) for text in texts if text.strip()]


def _describe_schema(schema: dict[str, Any] | None) -> list[dict[str, Any]]:
    """Describe, for the model, a schema that the API does not accept in any form."""
    return [] if schema is None or make_answer_schema(schema) else [make_text(describe_schema(schema))]


def _is_blank_system(message: Message) -> bool:
    return message["role"] == "system" and not get_text(message["content"]).strip()


def _encode_tool(spec: ToolSpec) -> dict[str, Any]:
    return {"name": spec["name"], "description": spec["description"], "input_schema": spec["parameters"]}


def _encode_tool_choice(choice: str | None, tools: FittedTools) -> dict[str, Any] | None:
    kinds = {"auto": "auto", "none": "none", "required": "any"}
    if choice in kinds:
        return {"type": kinds[choice]}
    tool = tools.by_name.get(choice or "")
    return {"type": "tool", "name": tool.spec["name"]} if tool else None
