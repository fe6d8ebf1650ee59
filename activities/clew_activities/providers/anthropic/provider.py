"""Anthropic's Messages API.

What a model takes depends on its generation: `models` has the table. Options that the API does not support
are omitted: `seed` and `verbosity` always; `temperature` and `top_p` where the generation has no sampling, and in
requests with thinking, of which `top_p` is sent from 0.95 on; `top_p` beside a `temperature`. API version 2026-10-21
has no sampling, so a request with one of these is sent under the version before it.

Where thinking blocks are bound, the API refuses a request whose earlier messages have changed. A sliding context
changes them in normal operation, so requests tell the API to drop such blocks instead. Requests without thinking have
none.

`ANTHROPIC_API_KEY` and `ANTHROPIC_BASE_URL` are read as the official client reads them: the key or the URL is enough.
`ANTHROPIC_CACHE_TTL` is how long the provider's cache keeps a prompt, `ANTHROPIC_BETA` names beta features,
`CLEW_PROVIDER_ANTHROPIC_HEADERS` has further headers.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from clew_activities.providers.answer_object import describe_schema
from clew_activities.providers.anthropic.messages import (
    encode_messages,
    find_container,
    find_open_uses,
    lacks_thinking_in_round,
    make_text,
)
from clew_activities.providers.anthropic.models import (
    BINDING_BETA,
    Generation,
    find_generation,
    make_foreign_generation,
)
from clew_activities.providers.anthropic.schema import make_answer_schema
from clew_activities.providers.anthropic.stream import AnthropicDecoder
from clew_activities.providers.anthropic.tools import choose_provider_tools
from clew_activities.providers.dialects import (
    MESSAGES_DIALECTS,
    MessagesDialect,
    choose_messages_dialect,
    find_messages_dialect,
)
from clew_activities.providers.endpoint import Server, describe_fitting, describe_options
from clew_activities.providers.fit_messages import list_system_texts
from clew_activities.providers.fit_tools import FittedTools, declare_called_tools, fit_tools
from clew_activities.providers.interface import HttpRequest, ModelRequest
from clew_activities.providers.loading import read_headers, read_key, read_url
from clew_activities.providers.options import get_object, merge_provider_options
from clew_activities.providers.request_media import MediaForms, fit_media
from clew_workflows.contract.messages import ToolSpec

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
    variable = "CLEW_PROVIDER_ANTHROPIC_DIALECT"
    configured = environ.get(variable, "").strip()
    if key or url:
        try:
            dialect = find_messages_dialect("anthropic", "", configured) if configured else None
        except ValueError as error:
            raise ValueError(f"{variable}: {error}") from None
        yield Anthropic(
            "anthropic",
            url or _OFFICIAL_URL,
            api_key=key,
            custom=read_headers(environ, "CLEW_PROVIDER_ANTHROPIC_HEADERS"),
            caches_longer=ttl == LONG_TTL,
            betas=betas,
            dialect=dialect,
        )


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
class Anthropic(Server):
    """Anthropic's Messages API, or a compatible server. The key is sent as `x-api-key`.

    Attributes:
        caches_longer: The provider's cache keeps prompts for an hour instead of five minutes.
        betas: The beta features of all requests. They are in a header, so a body does not depend on them.
        dialect: The server's dialect; None: that of its host or its name.
    """

    caches_longer: bool = False
    betas: tuple[str, ...] = ()
    dialect: MessagesDialect | None = None

    @property
    def secret_headers(self) -> tuple[str, ...]:
        """The headers that hold the key."""
        return ("x-api-key", "authorization", *self.custom.secret_names)

    def choose_dialect(self, model: str) -> MessagesDialect:
        """Choose the dialect of a model's requests."""
        return choose_messages_dialect(self.dialect or find_messages_dialect(self.name, self.base_url), model)

    def encode(self, request: ModelRequest) -> HttpRequest:
        """Encode the request as the body of `POST /v1/messages`."""
        dialect = self.choose_dialect(request.model)
        generation, media = _choose_generation(request.model, dialect), fit_media(request, dialect.media)
        fitted = fit_tools(request.tools, dialect.tools)
        options = _encode_options(request, generation, fitted, self.name, dialect)
        # Bound blocks that the API would ignore could only make it refuse the request.
        thinks = options.get("thinking", {}).get("type") not in ("disabled", "between_tools")
        returns_thinking = thinks or not generation.binds
        turns = encode_messages(
            media.messages,
            fitted,
            self.name,
            request.blobs,
            dialect,
            returns_thinking=returns_thinking,
            fills_thinking=dialect.fills_thinking and thinks,
        )
        # A breakpoint. The API accepts four in a request. All have one TTL, since longer ones must stand first.
        breakpoint_ = {"type": "ephemeral", **({"ttl": LONG_TTL} if self.caches_longer else {})}
        body: dict[str, Any] = {
            "model": request.model,
            # This breakpoint moves with the conversation; the next request reads the prefix before it from the cache.
            **({"cache_control": breakpoint_} if dialect.caches == "everywhere" else {}),
            "messages": [{"role": turn.role, "content": turn.blocks} for turn in turns.turns],
            "stream": True,
        }
        offered = fitted.specs if dialect.forbids_tools or request.options.tool_choice != "none" else []
        declared = [] if offered else declare_called_tools(request.messages, dialect)
        texts, blank = list_system_texts(request.messages)
        tools, system = [_encode_tool(spec) for spec in offered or declared], list(map(make_text, texts))
        own_tools, left_out = choose_provider_tools(
            request.provider_tools, generation, [tool["name"] for tool in tools], request.model
        )
        tools += own_tools
        # Further breakpoints after the parts that stay when the conversation is truncated: tools, system prompt,
        # summary.
        for stable in (system[:2] or tools[-1:]) if dialect.caches != "nowhere" else ():
            stable["cache_control"] = breakpoint_
        system += _describe_schema(request.output_schema, dialect)
        if system:
            body["system"] = system
        if tools:
            body["tools"] = tools
        if container := find_container(request.messages, self.name):
            body["container"] = container
        body = merge_provider_options(body | options, request, self.name, _OWNED)
        if declared and not own_tools and dialect.forbids_tools:
            body["tool_choice"] = {"type": "none"}
        has_newest = dialect.is_claude and not _SAMPLING & body.keys()
        headers = {"anthropic-version": _VERSION if has_newest else _VERSION_WITH_SAMPLING}
        needed = [BINDING_BETA] if "block_binding" in get_object(body, "thinking") else []
        if betas := list(dict.fromkeys((*needed, *self.betas))):
            headers["anthropic-beta"] = ",".join(betas)
        if self.api_key:
            headers["x-api-key"] = self.api_key
            if dialect.name != "anthropic":
                # Others read it here, as Anthropic's client sends `ANTHROPIC_AUTH_TOKEN`.
                headers["authorization"] = f"Bearer {self.api_key}"
        described = _describe_options(request, body)
        fitting = describe_fitting(dialect.name, turns, media, fitted, described, left_out=left_out, dropped=blank)
        headers |= dict(self.custom.pairs)
        return HttpRequest("/v1/messages", headers, body, fitting, _ENCODER, self._name_dialect(dialect))

    def _name_dialect(self, dialect: MessagesDialect) -> str | None:
        """Name what a body depends on, beside the request; None: Anthropic's own dialect, and its shorter cache."""
        names = (dialect.name if dialect.name != "anthropic" else "", LONG_TTL if self.caches_longer else "")
        return " ".join(filter(None, names)) or None

    def get_media_forms(self, model: str) -> MediaForms:
        """Return what requests may have of images and files."""
        return self.choose_dialect(model).media

    def make_decoder(self, request: ModelRequest) -> AnthropicDecoder:
        """Make a decoder for the reply to a request."""
        open_uses = find_open_uses(request.messages, self.name)
        dialect = self.choose_dialect(request.model)
        tools = fit_tools(request.tools, dialect.tools)
        return AnthropicDecoder(self.name, tools, open_uses, signs_thinking=dialect.is_claude)


def make_encoder(name: str, url: str, dialect: str | None) -> Anthropic:
    """Make a provider that encodes as the one did that named its dialect so."""
    names = (dialect or "").split()
    known = next(
        (MESSAGES_DIALECTS[each] for each in names if each in MESSAGES_DIALECTS), MESSAGES_DIALECTS["anthropic"]
    )
    return Anthropic(name, url, caches_longer=LONG_TTL in names, dialect=known)


def _choose_generation(model: str, dialect: MessagesDialect) -> Generation:
    if dialect.is_claude:
        generation = find_generation(model)
        # Vertex AI behind a gateway knows the oldest versions alone.
        is_newer = generation.tools == "newest" and dialect.name == "gateway"
        return replace(generation, tools="basic") if is_newer else generation
    return make_foreign_generation(off=dialect.thinking_off, forces_tools=dialect.forces_tools)


def _encode_options(
    request: ModelRequest, generation: Generation, tools: FittedTools, provider: str, dialect: MessagesDialect
) -> dict[str, Any]:
    options = request.options
    max_tokens = options.max_output_tokens
    assert max_tokens is not None  # ModelRequest guarantees it
    choice = _encode_tool_choice(options.tool_choice, tools, dialect) if tools.by_name else None
    alone = dialect.is_claude and options.parallel_tool_calls is False and bool(tools.by_name)
    if alone and (choice or {}).get("type") != "none":
        choice = {"type": "auto", **(choice or {}), "disable_parallel_tool_use": True}
    is_forced = bool(request.tools) and options.tool_choice not in (None, "auto", "none")
    thinking = generation.choose_thinking(options.reasoning_effort, max_tokens, forced=is_forced)
    lacks_thinking = thinking and "budget_tokens" in thinking and not dialect.fills_thinking
    if lacks_thinking and lacks_thinking_in_round(request.messages, provider):
        thinking = None
    if thinking is None and is_forced and not dialect.is_claude and dialect.thinking_off == "disabled":
        # These models think where a request does not say that they should not, and then none can be forced.
        thinking = {"type": "disabled"}
    output_config: dict[str, Any] = {}
    if effort := generation.choose_effort(options.reasoning_effort):
        output_config["effort"] = effort
    if dialect.takes_format and (schema := make_answer_schema(request.output_schema)):
        output_config["format"] = {"type": "json_schema", "schema": schema}
    options_by_name = {
        "max_tokens": max_tokens,
        # The API refuses a sequence of white space alone.
        "stop_sequences": list(filter(str.strip, options.stop or ())) or None,
        **(_encode_sampling(request, dialect, thinks=_thinks(thinking)) if generation.sampling else {}),
        "service_tier": options.service_tier
        if dialect.is_claude and options.service_tier in _SERVICE_TIERS
        else None,
        "thinking": thinking,
        "output_config": output_config or None,
        "tool_choice": choice if generation.forces_tools or not is_forced else None,
    }
    return {name: value for name, value in options_by_name.items() if value is not None}


def _thinks(thinking: Mapping[str, Any] | None) -> bool:
    return thinking is not None and (thinking["type"] != "disabled")


def _encode_sampling(request: ModelRequest, dialect: MessagesDialect, *, thinks: bool) -> dict[str, Any]:
    """Encode the temperature or `top_p`: models refuse both together, and most of it beside thinking."""
    temperature, top_p = request.options.temperature, request.options.top_p
    if temperature is not None and not thinks:
        least, most = dialect.temperatures
        return {"temperature": min(max(temperature, least), most)}
    if top_p is not None and (not thinks or top_p >= _LEAST_TOP_P_WITH_THINKING):
        return {"top_p": top_p}
    return {}


def _describe_options(request: ModelRequest, body: Mapping[str, Any]) -> dict[str, str]:
    """Describe the options that the request has otherwise than the session, or not at all."""
    options = request.options
    config, thinking = get_object(body, "output_config"), get_object(body, "thinking")
    names = ("seed", "verbosity", "temperature", "top_p", "service_tier")
    sent = {name: body.get(name) for name in names} | {"stop": body.get("stop_sequences")}
    described = describe_options(options, sent, lacks_choice="tools" in body and "tool_choice" not in body)
    effort, level = options.reasoning_effort, config.get("effort")
    if level is not None and level != effort:
        described["reasoning_effort"] = str(level)
    elif effort not in (None, "none") and level is None and thinking.get("type") != "enabled":
        described["reasoning_effort"] = "left out"
    if request.output_schema is not None and "format" not in config:
        described["output_schema"] = "in the prompt"
    return described


def _describe_schema(schema: dict[str, Any] | None, dialect: MessagesDialect) -> list[dict[str, Any]]:
    """Describe, for the model, a schema that the API does not accept in any form."""
    is_sent = schema is None or (dialect.takes_format and make_answer_schema(schema))
    return [] if schema is None or is_sent else [make_text(describe_schema(schema))]


def _encode_tool(spec: ToolSpec) -> dict[str, Any]:
    return {"name": spec["name"], "description": spec["description"], "input_schema": spec["parameters"]}


def _encode_tool_choice(choice: str | None, tools: FittedTools, dialect: MessagesDialect) -> dict[str, Any] | None:
    # `auto` is the default, and some servers know no choice at all.
    auto = "auto" if dialect.is_claude else None
    kinds = {"auto": auto, "none": "none" if dialect.forbids_tools else None, "required": "any"}
    if choice in kinds:
        return {"type": kind} if (kind := kinds[choice]) else None
    tool = tools.by_name.get(choice or "") if dialect.names_forced_tool else None
    return {"type": "tool", "name": tool.spec["name"]} if tool else None
