"""Gemini's own API, `generateContent`, at Google AI and at Vertex AI.

`GOOGLE_API_KEY` and `GEMINI_API_KEY` are read as by the official client: if both are set, the first one counts.
`GOOGLE_BASE_URL` is another server, or a location of Vertex AI, which takes `GOOGLE_ACCESS_TOKEN`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any
from urllib.parse import quote, urlsplit

from clew_activities.providers.answer_object import describe_schema
from clew_activities.providers.dialects import GOOGLE, VERTEX, Dialect
from clew_activities.providers.endpoint import Server, describe_fitting, describe_options
from clew_activities.providers.fit_messages import list_system_texts
from clew_activities.providers.fit_tools import FittedTools, fit_tools
from clew_activities.providers.google.messages import encode_messages
from clew_activities.providers.google.models import Generation, find_generation
from clew_activities.providers.google.schema import make_answer_schema
from clew_activities.providers.google.stream import GoogleDecoder
from clew_activities.providers.interface import HttpRequest, ModelRequest
from clew_activities.providers.loading import read_headers, read_key, read_url
from clew_activities.providers.options import (
    choose_effort,
    describe_provider_tools,
    draws_images,
    get_object,
    merge_provider_options,
)
from clew_activities.providers.provider_errors import BadRequest
from clew_activities.providers.request_media import TEXTS_ALONE, MediaForms, fit_media
from clew_workflows.contract.messages import ToolSpec

_OFFICIAL_URL = "https://generativelanguage.googleapis.com"
_VERTEX_HOST = "aiplatform.googleapis.com"
_VERTEX_PATH = "/publishers/"
_VERSION = "/v1beta"

_ENCODER = "google/1"
_OWNED = frozenset(
    (
        *("contents", "systemInstruction", "tools", "toolConfig"),
        # The API also takes the names of its protocol buffers.
        *("system_instruction", "tool_config", "generation_config"),
    )
)
"""Fields that `provider_options` cannot set."""
_OWNED_CONFIG = frozenset(("candidateCount", "responseMimeType", "responseSchema", "responseJsonSchema"))
"""Fields of `generationConfig` that `provider_options` cannot set."""

_PROVIDER_TOOLS = {"web_search": "googleSearch", "web_fetch": "urlContext", "code_execution": "codeExecution"}
_ROLES = {"user": "user", "assistant": "model"}
_TIERS = ("flex", "standard", "priority")
_MOST_OF_SEED = 2**31
# The budgets of ai.google.dev/gemini-api/docs/openai#thinking.
_BUDGET = {"minimal": 1024, "low": 1024, "medium": 8192, "high": 24_576, "xhigh": 32_768, "max": 32_768}


def make_providers(environ: Mapping[str, str]) -> Iterable[Google]:
    """Make the provider `google`, if it is configured.

    Raises:
        ValueError: A variable's value cannot be used.
    """
    key = read_key(environ, "GOOGLE_API_KEY") or read_key(environ, "GEMINI_API_KEY")
    token, url = read_key(environ, "GOOGLE_ACCESS_TOKEN"), read_url(environ, "GOOGLE_BASE_URL")
    if not (key or token or url):
        return
    url = url or _OFFICIAL_URL
    parts = urlsplit(url)
    if f".{parts.hostname}".endswith((f".{_VERTEX_HOST}", f"-{_VERTEX_HOST}")) and _VERTEX_PATH not in parts.path:
        raise ValueError(
            "GOOGLE_BASE_URL names no publisher of Vertex AI: it ends in "
            "/v1/projects/<project>/locations/<location>/publishers/google"
        )
    yield Google("google", url, token, api_key=key, custom=read_headers(environ, "CLEW_PROVIDER_GOOGLE_HEADERS"))


@dataclass(frozen=True)
class Google(Server):
    """Gemini's API. The key is sent as `x-goog-api-key`.

    Attributes:
        access_token: An OAuth token, sent as a bearer token instead of the key.
        is_vertex: Whether it is Vertex AI; None: the URL says it.
    """

    access_token: str | None = field(default=None, repr=False)
    is_vertex: bool | None = None

    @property
    def secrets(self) -> tuple[str, ...]:
        """The key and the token, as far as there are."""
        return (*filter(None, (self.api_key, self.access_token)), *self.custom.secrets)

    @property
    def secret_headers(self) -> tuple[str, ...]:
        """The headers that hold them."""
        return ("x-goog-api-key", "authorization", *self.custom.secret_names)

    def encode(self, request: ModelRequest) -> HttpRequest:
        """Encode the request as the body of `POST …/models/{model}:streamGenerateContent`."""
        dialect = self._dialect
        generation = find_generation(request.model)
        fitted = fit_tools(request.tools, dialect.tools)
        tools = _choose_tools(request, fitted, generation, self.name, is_vertex=self._is_at_vertex)
        answer = _choose_answer(request, tools, generation)
        media = fit_media(request, self.get_media_forms(request.model))
        request = replace(request, messages=media.messages)
        turns = encode_messages(request, fitted, dialect.tools, self.name, generation, combines=tools.combines)
        body: dict[str, Any] = {
            "contents": [{"role": _ROLES[turn.role], "parts": turn.blocks} for turn in turns.turns]
        }
        texts, blank = list_system_texts(request.messages)
        texts += [answer.prompt] if answer.prompt else []
        if texts:
            body["systemInstruction"] = {"parts": [{"text": text} for text in texts]}
        if tools.encoded:
            body["tools"] = tools.encoded
        if tools.config:
            body["toolConfig"] = tools.config
        body["generationConfig"] = _encode_options(request, generation) | answer.config
        if "image_generation" in request.provider_tools and draws_images(request.model):
            body["generationConfig"]["responseModalities"] = ["TEXT", "IMAGE"]
        if request.options.service_tier in _TIERS:
            body["serviceTier"] = request.options.service_tier
        body = _merge_options(body, request, self.name)
        described = _describe_options(request, body, tools, answer)
        left_out = tools.left_out
        fitting = describe_fitting(dialect.name, turns, media, fitted, described, left_out=left_out, dropped=blank)
        path = f"{self._prefix}/{_name_model(request.model)}:streamGenerateContent?alt=sse"
        return HttpRequest(path, self.headers, body, fitting, _ENCODER, dialect.name)

    def get_media_forms(self, model: str) -> MediaForms:
        """Return what a model's requests may have of images, recordings and files."""
        media = self._dialect.media
        return media if find_generation(model).shows_results else replace(media, in_results=TEXTS_ALONE.in_results)

    def make_decoder(self, request: ModelRequest) -> GoogleDecoder:
        """Make a decoder for the reply to a request."""
        return GoogleDecoder(self.name, request.model, fit_tools(request.tools, self._dialect.tools))

    @property
    def _is_at_vertex(self) -> bool:
        return _VERTEX_PATH in urlsplit(self.base_url).path if self.is_vertex is None else self.is_vertex

    @property
    def _dialect(self) -> Dialect:
        return VERTEX if self._is_at_vertex else GOOGLE

    @property
    def _prefix(self) -> str:
        """The version of the API, where the URL does not have it."""
        path = urlsplit(self.base_url).path
        return "" if self._is_at_vertex or re.search(r"/v\d\w*$", path) else _VERSION

    @property
    def headers(self) -> dict[str, str]:
        """The token or the key, and the custom headers."""
        own = {"x-goog-api-key": self.api_key} if self.api_key else {}
        if self.access_token:
            own = {"authorization": f"Bearer {self.access_token}"}
        return own | dict(self.custom.pairs)


def _name_model(model: str) -> str:
    """Name a model in a path; it may already have its collection."""
    collection, _, name = model.rpartition("/")
    if collection not in ("models", "tunedModels"):
        collection, name = "models", model
    return f"{collection}/{quote(name, safe='')}"


# Tools


@dataclass(frozen=True)
class _Tools:
    """The tools of a request.

    Attributes:
        encoded: The field `tools`.
        config: The field `toolConfig`.
        left_out: Tools of the API that are not in the request, and why.
        combines: Whether the request has both kinds of tools.
    """

    encoded: list[dict[str, Any]]
    config: dict[str, Any]
    left_out: dict[str, str]
    combines: bool


def _choose_tools(
    request: ModelRequest, fitted: FittedTools, generation: Generation, provider: str, *, is_vertex: bool
) -> _Tools:
    """Choose the tools of a request. Those of the session come first, if the API refuses both kinds together."""
    asked = [name for name in request.provider_tools if name != "image_generation"]
    taken, left_out = describe_provider_tools(asked, _PROVIDER_TOOLS, provider)
    if "image_generation" in request.provider_tools and not draws_images(request.model):
        left_out["image_generation"] = f"{request.model} does not draw"
    if fitted.specs and taken and (is_vertex or not generation.combines):
        # "Tool use with function calling is unsupported", "Multiple tools are supported only when they are all search
        # tools"
        where = "Vertex AI" if is_vertex else request.model
        left_out |= dict.fromkeys(taken, f"{where} does not take it beside a session's tools")
        taken = []
    if is_vertex and len(taken) > 1 and "code_execution" in taken:
        left_out["code_execution"] = "Vertex AI does not take it beside a search"
        taken = [name for name in taken if name != "code_execution"]
    encoded: list[dict[str, Any]] = []
    config: dict[str, Any] = {}
    if fitted.specs:
        encoded.append({"functionDeclarations": [_encode_tool(spec) for spec in fitted.specs]})
        if calling := _encode_tool_choice(request.options.tool_choice, fitted):
            config["functionCallingConfig"] = calling
    encoded += [{_PROVIDER_TOOLS[name]: {}} for name in taken]
    combines = bool(fitted.specs and taken)
    if combines:
        # ai.google.dev/gemini-api/docs/tool-combination, whose mode is neither `AUTO` nor `NONE`
        config["includeServerSideToolInvocations"] = True
        if config.get("functionCallingConfig", {}).get("mode") == "AUTO":
            del config["functionCallingConfig"]
    return _Tools(encoded, config, left_out, combines)


def _encode_tool(spec: ToolSpec) -> dict[str, Any]:
    declaration: dict[str, Any] = {"name": spec["name"], "description": spec["description"]}
    if spec["parameters"].get("properties"):
        declaration["parametersJsonSchema"] = spec["parameters"]
    return declaration


def _encode_tool_choice(choice: str | None, tools: FittedTools) -> dict[str, Any] | None:
    modes = {"auto": "AUTO", "none": "NONE", "required": "ANY"}
    if choice in modes:
        return {"mode": modes[choice]}
    tool = tools.by_name.get(choice or "")
    return {"mode": "ANY", "allowedFunctionNames": [tool.spec["name"]]} if tool else None


# Answers and options


@dataclass(frozen=True)
class _Answer:
    """How an answer's schema is sent.

    Attributes:
        config: Its fields of `generationConfig`.
        prompt: The description of the schema, where the API does not take all of it; empty: it does.
    """

    config: dict[str, Any] = field(default_factory=dict)
    prompt: str = ""


def _choose_answer(request: ModelRequest, tools: _Tools, generation: Generation) -> _Answer:
    schema = request.output_schema
    if schema is None:
        return _Answer()
    if tools.encoded and not generation.combines:
        # "Function calling with a response mime type: 'application/json' is unsupported", also with "Tool use"
        return _Answer(prompt=describe_schema(schema))
    fitted, is_whole = make_answer_schema(schema)
    config: dict[str, Any] = {"responseMimeType": "application/json"}
    if fitted is not None:
        config["responseJsonSchema"] = fitted
    return _Answer(config, "" if is_whole else describe_schema(schema))


def _encode_options(request: ModelRequest, generation: Generation) -> dict[str, Any]:
    options, seed = request.options, request.options.seed
    values = {
        "maxOutputTokens": options.max_output_tokens,
        "temperature": options.temperature,
        "topP": options.top_p,
        "stopSequences": list(options.stop) if options.stop else None,
        "seed": seed if seed is not None and -_MOST_OF_SEED <= seed < _MOST_OF_SEED else None,
        "thinkingConfig": _choose_thinking(options.reasoning_effort, options.max_output_tokens or 0, generation),
    }
    return {name: value for name, value in values.items() if value is not None}


def _choose_thinking(effort: str | None, max_tokens: int, generation: Generation) -> dict[str, Any] | None:
    """Choose `thinkingConfig`; None omits it. A budget counts towards the tokens of the reply: it is half of them."""
    if effort is None:
        return None
    if generation.budget is not None:
        least, most = generation.budget
        if effort == "none":
            return {"thinkingBudget": 0} if generation.can_stop_thinking else None
        budget = max(least, min(_BUDGET[effort], most, max_tokens // 2))
        return {"thinkingBudget": budget, "includeThoughts": True}
    level = choose_effort(effort, generation.levels)
    return {"thinkingLevel": level.upper(), "includeThoughts": True} if level else None


def _merge_options(body: dict[str, Any], request: ModelRequest, provider: str) -> dict[str, Any]:
    """Merge the caller's own fields.

    Raises:
        BadRequest: Clew writes one of them itself.
    """
    config = get_object((request.options.provider_options or {}).get(provider), "generationConfig")
    if not isinstance(config, dict):
        raise BadRequest(f"provider_options.{provider}: generationConfig is not an object")
    if taken := sorted(set(config) & _OWNED_CONFIG):
        raise BadRequest(
            f"provider_options.{provider}.generationConfig cannot set {', '.join(taken)}: Clew writes these fields "
            "itself"
        )
    return merge_provider_options(body, request, provider, _OWNED)


def _describe_options(
    request: ModelRequest, body: Mapping[str, Any], tools: _Tools, answer: _Answer
) -> dict[str, str]:
    """Describe the options that the request has otherwise than the session, or not at all."""
    options, config = request.options, body["generationConfig"]
    tier = options.service_tier if "serviceTier" in body else None
    sent = {"seed": config.get("seed"), "verbosity": None, "service_tier": tier}
    lacks_choice = bool(request.tools) and "functionCallingConfig" not in tools.config
    described = describe_options(options, sent, lacks_choice=lacks_choice)
    effort, thinking = options.reasoning_effort, get_object(config, "thinkingConfig")
    if effort is not None and not thinking:
        described["reasoning_effort"] = "left out"
    elif effort is not None and (level := str(thinking.get("thinkingLevel", effort)).lower()) != effort:
        described["reasoning_effort"] = level
    if answer.prompt:
        described["output_schema"] = "also in the prompt" if "responseJsonSchema" in config else "in the prompt"
    return described
