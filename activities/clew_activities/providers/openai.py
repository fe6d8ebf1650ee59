"""OpenAI's Chat Completions, as OpenAI, Ollama, vLLM, llama.cpp, LiteLLM and others implement it.

The limit of output tokens has two names. OpenAI's reasoning models refuse `max_tokens`. Many compatible servers
ignore `max_completion_tokens`, which leaves a reply unbounded. So a request to an `official` provider, whose host is
OpenAI's or Azure's, uses `max_completion_tokens`; a request to any other server uses `max_tokens`.

`OPENAI_API_KEY` and `OPENAI_BASE_URL` are read as the official client reads them: the key or the URL is enough.
`CLEW_PROVIDER_<NAME>_BASE_URL` adds a compatible server under the name in lower case;
`CLEW_PROVIDER_<NAME>_API_KEY` sets its key, if it needs one.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

from clew.contract import ModelOptions
from clew.model.messages import Message, ToolSpec
from clew.outcomes import Usage
from clew_activities.providers.errors import (
    ErrorAnswer,
    ProviderError,
    TruncatedStream,
    classify_event,
    classify_response,
)
from clew_activities.providers.interface import HttpRequest, ModelRequest, make_safe_name
from clew_activities.providers.reply import (
    Call,
    DraftDecoder,
    StopReason,
    get_member,
    limit_name,
    parse_event,
    read_count,
    read_string,
)
from clew_activities.providers.rewrite_schema import rewrite_schema
from clew_activities.providers.variables import read_key, read_url
from clew_workflows.protocol import ModelReply

_OFFICIAL_URL = "https://api.openai.com/v1"
_OFFICIAL_HOSTS = (".openai.com", ".openai.azure.com")
_VARIABLE = re.compile(r"CLEW_PROVIDER_([A-Z0-9_]+)_(?:BASE_URL|API_KEY)")

# Characters of a refusal that are kept.
_REFUSAL_LIMIT = 4000
# Keywords that strict mode refuses, and those of which a subschema needs one.
_REFUSED = frozenset(
    [
        "allOf",
        "oneOf",
        "not",
        "if",
        "then",
        "else",
        "default",
        "minLength",
        "maxLength",
        "uniqueItems",
        "prefixItems",
        "contains",
        "minContains",
        "maxContains",
        "patternProperties",
        "propertyNames",
        "minProperties",
        "maxProperties",
        "dependentRequired",
        "dependentSchemas",
        "dependencies",
    ]
)
_TYPING = frozenset(("type", "anyOf", "enum", "const", "$ref"))
_STOP_REASONS: Mapping[str, StopReason] = {"length": "length", "tool_calls": "tool_calls"}


def make_providers(environ: Mapping[str, str]) -> Iterable[OpenAI]:
    """Make the provider `openai`, if it is configured, and one for each compatible server that a variable names.

    Raises:
        ValueError: A variable's value cannot be used.
    """
    key, url = read_key(environ, "OPENAI_API_KEY"), read_url(environ, "OPENAI_BASE_URL")
    if key or url:
        yield _make_server("openai", url or _OFFICIAL_URL, key)
    configured = (name for name, value in environ.items() if value.strip())
    for prefix in sorted({match[1] for name in configured if (match := _VARIABLE.fullmatch(name))}):
        name, variable = prefix.lower(), f"CLEW_PROVIDER_{prefix}"
        url = read_url(environ, f"{variable}_BASE_URL")
        if name in ("openai", "anthropic"):
            raise ValueError(f"{variable}_BASE_URL: {name} is configured with {prefix}_BASE_URL and {prefix}_API_KEY")
        if url is None:
            raise ValueError(f"{variable}_API_KEY is set and {variable}_BASE_URL is not: set the URL too")
        yield _make_server(name, url, read_key(environ, f"{variable}_API_KEY"))


def _make_server(name: str, url: str, key: str | None) -> OpenAI:
    is_official = f".{urlsplit(url).hostname}".endswith(_OFFICIAL_HOSTS)
    return OpenAI(name, url, is_official, key)


@dataclass(frozen=True)
class OpenAI:
    """A server of Chat Completions.

    Attributes:
        name: The part of a session's model before the colon.
        base_url: The server's URL, without a slash at its end.
        is_official: Whether the host is OpenAI's or Azure's.
        api_key: The key, sent as a bearer token; None: the server needs none.
    """

    name: str
    base_url: str
    is_official: bool
    api_key: str | None = field(default=None, repr=False)

    @property
    def secrets(self) -> tuple[str, ...]:
        """The key, if there is one."""
        return (self.api_key,) if self.api_key else ()

    @property
    def secret_headers(self) -> tuple[str, ...]:
        """The header that holds the key."""
        return ("authorization",)

    def encode(self, request: ModelRequest) -> HttpRequest:
        """Encode the request as the body of `POST /chat/completions`."""
        body: dict[str, Any] = {
            "model": request.model,
            "messages": [_encode_message(message) for message in request.messages],
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        if request.tools:
            body["tools"] = [_encode_tool(spec) for spec in request.tools]
        body |= _encode_options(request.options, self.is_official, bool(request.tools))
        if request.output_schema is not None:
            body["response_format"] = _encode_response_format(request.output_schema)
        if self.is_official and request.cache_key:
            body["prompt_cache_key"] = request.cache_key
        headers = {"authorization": f"Bearer {self.api_key}"} if self.api_key else {}
        return HttpRequest("/chat/completions", headers, body)

    def make_decoder(self) -> OpenAIDecoder:
        """Make a decoder for one reply."""
        return OpenAIDecoder()

    def read_error(self, answer: ErrorAnswer) -> ProviderError:
        """Classify an error response by the tables in `errors`."""
        return classify_response(answer)


class OpenAIDecoder(DraftDecoder):
    """Folds `chat.completion.chunk` objects, or one complete `chat.completion`."""

    def __init__(self) -> None:
        super().__init__()
        self._calls: dict[int | str, Call] = {}
        self._newest: Call | None = None
        self._refusal = ""

    def feed(self, event: str, data: str) -> None:
        """Fold one event.

        Raises:
            ProviderError: The event is an error.
            TruncatedStream: The event cannot be parsed, or the server aborted the reply.
        """
        if data.strip() == "[DONE]":
            self._draft.ended = True
            return
        chunk = parse_event(data)
        if event == "error" or chunk.get("error") or chunk.get("object") == "error":
            raise classify_event(chunk)
        if (usage := chunk.get("usage")) is not None:
            self._read_usage(usage)
        choices = chunk.get("choices")
        for choice in choices if isinstance(choices, list) else ():
            # Requests ask for one choice; ignore further ones.
            if isinstance(choice, dict) and choice.get("index") in (0, None):
                self._add_delta(choice.get("delta") or choice.get("message"))
                if (reason := choice.get("finish_reason")) is not None:
                    self._set_stop_reason(reason)

    def finish(self) -> ModelReply:
        """Return the reply; raises as `Decoder.finish` does."""
        if self._refusal:
            self._draft.refusal = self._refusal
        return self._draft.finish()

    def _add_delta(self, delta: object) -> None:
        if not isinstance(delta, dict):
            return
        if content := delta.get("content"):
            self._draft.add_text(content if isinstance(content, str) else _make_text(content))
        # Servers use either name; some send the same text under both.
        if thinking := delta.get("reasoning_content") or delta.get("reasoning"):
            self._draft.add_thinking(thinking)
        if len(self._refusal) < _REFUSAL_LIMIT and (refusal := read_string(delta.get("refusal"))):
            self._refusal = (self._refusal + refusal)[:_REFUSAL_LIMIT]
        calls = delta.get("tool_calls")
        for call in calls if isinstance(calls, list) else ():
            self._add_call(call)

    def _add_call(self, delta: object) -> None:
        """Find the call that a delta belongs to, or start a new one.

        OpenAI numbers calls with `index`. Other servers omit it or number every call 0, repeat ids and names in every
        delta, or use one id for two calls. So a delta starts a new call in three cases: it is the first of its index;
        its id or name differs from the open call's; or it has a name and arguments, and the open call's arguments are
        already complete.
        """
        index = get_member(delta, "index")
        function = get_member(delta, "function")
        call_id, name = read_string(get_member(delta, "id")), limit_name(read_string(get_member(function, "name")))
        arguments = get_member(function, "arguments")
        key = index if isinstance(index, int) else call_id
        call = self._calls.get(key, None if isinstance(index, int) else self._newest)
        if call is None or _starts_another_call(call, call_id, name, arguments):
            call = self._draft.open_call(call_id, name)
        elif name and not call.name:
            call.rename(name)
        self._newest = call
        if call is not None:
            self._calls[key] = call
        self._draft.add_arguments(call, arguments)

    def _set_stop_reason(self, reason: object) -> None:
        if not isinstance(reason, str) or not reason:
            return
        if reason in ("abort", "error"):
            raise TruncatedStream("the server aborted the reply")
        if reason == "content_filter":
            self._draft.refusal = "the provider's content filter stopped the reply"
        self._draft.stop_reason = _STOP_REASONS.get(reason, "stop")

    def _read_usage(self, usage: object) -> None:
        if not isinstance(usage, dict):
            return
        prompt = read_count(usage.get("prompt_tokens")) or 0
        cached = read_count(get_member(usage.get("prompt_tokens_details"), "cached_tokens")) or 0
        self._draft.usage = Usage(
            input_tokens=prompt,
            output_tokens=read_count(usage.get("completion_tokens")) or 0,
            cached_input_tokens=min(cached, prompt),
        )


def _starts_another_call(call: Call, call_id: str, name: str, arguments: object) -> bool:
    if call_id and call.id and call_id != call.id:
        return True
    if name and call.name and name != call.name:
        return True
    return bool(name and arguments) and call.has_all_arguments


def _make_text(content: object) -> str:
    """Join content that is a list of parts, as some servers send it."""
    parts = content if isinstance(content, list) else ()
    return "".join(read_string(get_member(part, "text")) for part in parts)


def _encode_message(message: Message) -> dict[str, Any]:
    role, content = message["role"], message["content"]
    if role == "tool":
        return {"role": role, "tool_call_id": message.get("tool_call_id", ""), "content": content}
    encoded: dict[str, Any] = {"role": role, "content": content}
    if calls := message.get("tool_calls"):
        encoded["tool_calls"] = [
            {
                "id": call["id"],
                "type": "function",
                "function": {
                    "name": make_safe_name(call["name"]),
                    "arguments": json.dumps(call["arguments"], ensure_ascii=False),
                },
            }
            for call in calls
        ]
    return encoded


def _encode_tool(spec: ToolSpec) -> dict[str, Any]:
    return {
        "type": "function",
        "function": {
            "name": spec["name"],
            "description": spec["description"],
            "parameters": spec["parameters"],
        },
    }


def _encode_options(options: ModelOptions, official: bool, has_tools: bool) -> dict[str, Any]:
    """Encode the options under OpenAI's names.

    Options that are not set are left to the server. OpenAI refuses `tool_choice` in a request without tools.
    """
    stop = list(options.stop) if options.stop else None
    options_by_name = {
        "temperature": options.temperature,
        "max_completion_tokens" if official else "max_tokens": options.max_output_tokens,
        "reasoning_effort": options.reasoning_effort,
        "stop": stop,
        "seed": options.seed,
        "tool_choice": _encode_tool_choice(options.tool_choice) if has_tools else None,
    }
    return {name: value for name, value in options_by_name.items() if value is not None}


def _encode_tool_choice(choice: str | None) -> str | dict[str, Any] | None:
    if choice is None or choice in ("auto", "none", "required"):
        return choice
    return {"type": "function", "function": {"name": choice}}


def _encode_response_format(schema: dict[str, Any]) -> dict[str, Any]:
    json_schema = {"name": "reply", "schema": schema, "strict": _is_strict(schema)}
    return {"type": "json_schema", "json_schema": json_schema}


def _is_strict(schema: dict[str, Any]) -> bool:
    """Whether OpenAI's strict mode accepts the schema; it refuses `strict` with any other.

    Every object is closed, every property required, every value has a type, and no keyword is refused.
    """
    is_strict = True

    def check(subschema: dict[str, Any]) -> dict[str, Any]:
        nonlocal is_strict
        is_strict = is_strict and _is_strict_part(subschema)
        return subschema

    rewrite_schema(schema, check)
    return is_strict


def _is_strict_part(subschema: dict[str, Any]) -> bool:
    if _REFUSED & subschema.keys() or not _TYPING & subschema.keys():
        return False
    if "$ref" in subschema:
        return len(subschema) == 1
    properties = subschema.get("properties")
    if subschema.get("type") != "object" and properties is None:
        return True
    required = subschema.get("required", [])
    return subschema.get("additionalProperties") is False and set(properties or ()) == set(required)
