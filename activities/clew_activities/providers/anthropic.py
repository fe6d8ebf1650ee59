"""Anthropic's Messages API.

The features of a model depend on its generation, `_Generation`, which `_find_generation` reads from the model's name:

| models              | thinking               | `reasoning_effort`     | temperature | thinking blocks are bound |
|---------------------|------------------------|------------------------|-------------|---------------------------|
| before 4.6          | `enabled`, with budget | the budget             | yes         | no                        |
| 4.6                 | `adaptive`             | `output_config.effort` | yes         | no                        |
| 4.7 to 5.0          | `adaptive`             | `output_config.effort` | no          | no                        |
| 5.1 and later       | `adaptive`             | `output_config.effort` | no          | to all earlier messages   |
| Claude, unversioned | `adaptive`             | `output_config.effort` | no          | no                        |
| other names         | `adaptive`             | `output_config.effort` | yes         | no                        |

Options that the API does not support are omitted: `seed` always; `temperature` where the table says no, and in
requests with thinking. API version 2026-10-21 has no temperature, so a request with one is sent under the version
before it.

Where thinking blocks are bound, the API refuses a request whose earlier messages have changed. A sliding context
changes them in normal operation, so requests tell the API to drop such blocks instead.

`ANTHROPIC_API_KEY` and `ANTHROPIC_BASE_URL` are read as the official client reads them: the key or the URL is enough.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any

from clew_activities.providers.answer_object import describe_schema
from clew_activities.providers.anthropic_schema import find_loss, make_closed_schema
from clew_activities.providers.anthropic_stream import AnthropicDecoder
from clew_activities.providers.dialects import ANTHROPIC
from clew_activities.providers.errors import ErrorAnswer, ProviderError, classify_response
from clew_activities.providers.fit_messages import CONTINUE, OMITTED, choose_call_ids, get_own_data
from clew_activities.providers.fit_tools import FittedTools, declare_called_tools, fit_tools
from clew_activities.providers.interface import HttpRequest, ModelRequest
from clew_activities.providers.loading import read_key, read_url
from clew_activities.providers.options import choose_effort, merge_provider_options
from clew_workflows.contract.content import get_text
from clew_workflows.contract.messages import Message, ToolSpec
from clew_workflows.contract.payloads import Fitting

_OFFICIAL_URL = "https://api.anthropic.com"
_VERSION = "2026-10-21"
_VERSION_WITH_TEMPERATURE = "2023-06-01"
_BINDING_BETA = "thinking-binding-controls-2026-08-01"

_ENCODER = "anthropic/1"
_OWNED = frozenset(("model", "messages", "system", "stream", "tools", "tool_choice"))
"""Fields that `provider_options` cannot set."""

_EFFORTS = ("low", "medium", "high", "max")
_BUDGET = {"minimal": 1024, "low": 2048, "medium": 8192, "high": 16384, "xhigh": 32768, "max": 65536}
_SMALLEST_BUDGET = 1024

_BLOCKS_SENT_BACK = frozenset({"thinking", "redacted_thinking", "text"})

# A cache breakpoint. The API accepts four in a request.
_BREAKPOINT = {"type": "ephemeral"}


def make_providers(environ: Mapping[str, str]) -> Iterable[Anthropic]:
    """Make the provider `anthropic`, if it is configured.

    Raises:
        ValueError: A variable's value cannot be used.
    """
    key, url = read_key(environ, "ANTHROPIC_API_KEY"), read_url(environ, "ANTHROPIC_BASE_URL")
    if key or url:
        yield Anthropic("anthropic", url or _OFFICIAL_URL, key)


@dataclass(frozen=True)
class Anthropic:
    """Anthropic's Messages API, or a compatible server.

    Attributes:
        name: The part of a session's model before the colon.
        base_url: The server's URL, without a slash at its end.
        api_key: The key, sent as `x-api-key`; None: the server needs none.
    """

    name: str
    base_url: str
    api_key: str | None = field(default=None, repr=False)

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
        fitted = fit_tools(request.tools, ANTHROPIC.tools)
        turns = _encode_messages(request.messages, fitted, self.name)
        body: dict[str, Any] = {
            "model": request.model,
            # This breakpoint moves with the conversation; the next request reads the prefix before it from the cache.
            "cache_control": _BREAKPOINT,
            "messages": turns.encoded,
            "stream": True,
        }
        declared = [] if fitted.specs else declare_called_tools(request.messages, ANTHROPIC)
        tools, system = [_encode_tool(spec) for spec in fitted.specs or declared], _encode_system(request.messages)
        # Further breakpoints after the parts that stay when the conversation is truncated: tools, system prompt,
        # summary.
        for stable in system[:2] or tools[-1:]:
            stable["cache_control"] = _BREAKPOINT
        system += _describe_schema(request.output_schema)
        if system:
            body["system"] = system
        if tools:
            body["tools"] = tools
        body |= _encode_options(request, fitted, self.name)
        body = merge_provider_options(body, request, self.name, _OWNED)
        if declared:
            body["tool_choice"] = {"type": "none"}
        version = _VERSION_WITH_TEMPERATURE if "temperature" in body else _VERSION
        headers = {"anthropic-version": version}
        if "block_binding" in body.get("thinking", {}):
            headers["anthropic-beta"] = _BINDING_BETA
        if self.api_key:
            headers["x-api-key"] = self.api_key
        fitting = Fitting(
            dialect=ANTHROPIC.name,
            merged=turns.merged,
            added=turns.added,
            dropped=turns.dropped + sum(_is_blank_system(message) for message in request.messages),
            tools=dict(fitted.changes),
            tools_left_out=dict(fitted.left_out),
            options=_describe_options(request, body),
        )
        return HttpRequest("/v1/messages", headers, body, fitting, _ENCODER)

    def make_decoder(self, request: ModelRequest) -> AnthropicDecoder:
        """Make a decoder for the reply to a request."""
        return AnthropicDecoder(self.name, fit_tools(request.tools, ANTHROPIC.tools))

    def read_error(self, answer: ErrorAnswer) -> ProviderError:
        """Classify an error response by the tables in `errors`."""
        return classify_response(answer)


@dataclass(frozen=True)
class _Generation:
    """The features of a model's generation; the module's docstring has the table.

    Attributes:
        adaptive: The model takes `adaptive` thinking and `effort`, not a budget.
        temperature: The model takes a temperature.
        binds: Thinking blocks are bound to the earlier messages.
    """

    adaptive: bool
    temperature: bool
    binds: bool


def _find_generation(model: str) -> _Generation:
    """Parse `claude-sonnet-4-5-20250929`, `claude-opus-5`, `claude-3-7-sonnet-latest`, also with a prefix."""
    match = re.search(r"claude-(?:[a-z]+-)?(\d{1,2})(?:[-.](\d{1,2}))?(?!\d)", model)
    if match is None:
        return _Generation(adaptive=True, temperature="claude" not in model, binds=False)
    version = (int(match[1]), int(match[2] or 0))
    return _Generation(adaptive=version >= (4, 6), temperature=version < (4, 7), binds=version >= (5, 1))


def _encode_options(request: ModelRequest, tools: FittedTools, provider: str) -> dict[str, Any]:
    options = request.options
    generation = _find_generation(request.model)
    max_tokens = options.max_output_tokens
    assert max_tokens is not None  # ModelRequest guarantees it
    thinking = _choose_thinking(request, generation, max_tokens, provider)
    output_config: dict[str, Any] = {}
    if options.reasoning_effort not in (None, "none") and generation.adaptive:
        output_config["effort"] = choose_effort(options.reasoning_effort, _EFFORTS)
    if schema := _make_answer_schema(request.output_schema):
        output_config["format"] = {"type": "json_schema", "schema": schema}
    options_by_name = {
        "max_tokens": max_tokens,
        # The API refuses a sequence of white space alone.
        "stop_sequences": list(filter(str.strip, options.stop or ())) or None,
        "temperature": _fit_temperature(options.temperature) if generation.temperature and thinking is None else None,
        "thinking": thinking,
        "output_config": output_config or None,
        "tool_choice": _encode_tool_choice(options.tool_choice, tools) if tools.by_name else None,
    }
    return {name: value for name, value in options_by_name.items() if value is not None}


def _describe_options(request: ModelRequest, body: Mapping[str, Any]) -> dict[str, str]:
    """Describe the options that the request has otherwise than the session, or not at all."""
    options = request.options
    described = {} if options.seed is None else {"seed": "left out"}
    sent = body.get("temperature")
    if options.temperature is not None and sent != options.temperature:
        described["temperature"] = "left out" if sent is None else str(sent)
    if len(options.stop or ()) > len(body.get("stop_sequences", ())):
        described["stop"] = str(body["stop_sequences"]) if "stop_sequences" in body else "left out"
    if options.tool_choice not in (None, "auto") and "tools" in body and "tool_choice" not in body:
        described["tool_choice"] = "left out"
    effort, config = options.reasoning_effort, body.get("output_config", {})
    if effort is not None and "effort" not in config and "thinking" not in body:
        described["reasoning_effort"] = "left out"
    elif effort is not None and config.get("effort", effort) != effort:
        described["reasoning_effort"] = str(config["effort"])
    if request.output_schema is not None and "format" not in config:
        described["output_schema"] = "in the prompt"
    return described


def _fit_temperature(temperature: float | None) -> float | None:
    return None if temperature is None else min(temperature, ANTHROPIC.temperatures[1])


def _choose_thinking(
    request: ModelRequest, generation: _Generation, max_tokens: int, provider: str
) -> dict[str, Any] | None:
    """Choose the `thinking` parameter; None omits it.

    The API refuses thinking together with a forced tool call. A thinking budget counts towards `max_tokens`, so it is
    at most half of them; it is omitted below the API's minimum.
    """
    effort = request.options.reasoning_effort
    if effort == "none":
        effort = None
    forced = bool(request.tools) and request.options.tool_choice not in (None, "auto", "none")
    if generation.binds:
        thinking = {"type": "adaptive", "block_binding": {"prefix_mismatch_behavior": "drop_block"}}
        return thinking | ({"display": "summarized"} if effort else {})
    if effort is None or forced:
        return None
    if generation.adaptive:
        return {"type": "adaptive", "display": "summarized"}
    budget = min(_BUDGET[effort], max_tokens // 2)
    if budget < _SMALLEST_BUDGET or _round_lacks_thinking(request.messages, provider):
        return None
    return {"type": "enabled", "budget_tokens": budget}


def _round_lacks_thinking(messages: Sequence[Message], provider: str) -> bool:
    """Whether an assistant's message since the newest user's message has no blocks of this provider.

    With a thinking budget, the API refuses an assistant's message of an open tool round that does not begin with
    thinking.
    """
    since_user: list[Message] = []
    for message in reversed(messages):
        if message["role"] == "user":
            break
        since_user.append(message)
    return any(message["role"] == "assistant" and not _find_own_blocks(message, provider) for message in since_user)


def _encode_system(messages: Iterable[Message]) -> list[dict[str, Any]]:
    texts = (get_text(message["content"]) for message in messages if message["role"] == "system")
    return [_make_text(text) for text in texts if text.strip()]


def _make_answer_schema(schema: dict[str, Any] | None) -> dict[str, Any] | None:
    """Make the schema that the API gets; None: there is none, or it has no form that the API accepts."""
    return None if schema is None or find_loss(schema) else make_closed_schema(schema)


def _describe_schema(schema: dict[str, Any] | None) -> list[dict[str, Any]]:
    """Describe, for the model, a schema that the API does not accept in any form."""
    return [] if schema is None or _make_answer_schema(schema) else [_make_text(describe_schema(schema))]


@dataclass(frozen=True)
class _Turns:
    """The turns of a request.

    Attributes:
        encoded: The turns, as the API wants them.
        merged: Messages that stand in the turn of another one; the results of tools together are one message.
        added: Turns that the context does not have.
        dropped: Messages without any text, which are left out.
    """

    encoded: list[dict[str, Any]]
    merged: int
    added: int
    dropped: int


def _encode_messages(messages: Sequence[Message], tools: FittedTools, provider: str) -> _Turns:
    """Group messages into turns of alternating roles, a user's first and last; tool results come first in a turn."""
    ids = choose_call_ids(messages, provider, "", ANTHROPIC)
    encoded = [
        (message["role"], _encode_blocks(message, call_ids, tools, provider))
        for message, call_ids in zip(messages, ids, strict=True)
        if message["role"] != "system"
    ]
    shown = [(role, blocks) for role, blocks in encoded if blocks]
    turns: list[dict[str, Any]] = []
    merged = 0
    for is_assistant, group in groupby(shown, key=lambda pair: pair[0] == "assistant"):
        parts = list(group)
        blocks = [block for _, own in parts for block in own]
        if not is_assistant:
            blocks.sort(key=lambda block: block["type"] != "tool_result")
        roles = [role for role, _ in parts]
        merged += len(roles) - max(roles.count("tool"), 1)
        turns.append({"role": "assistant" if is_assistant else "user", "content": blocks})
    before = not turns or turns[0]["role"] == "assistant"
    if before:
        turns.insert(0, {"role": "user", "content": [_make_text(OMITTED)]})
    after = turns[-1]["role"] == "assistant"
    if after:
        turns.append({"role": "user", "content": [_make_text(CONTINUE)]})
    return _Turns(turns, merged, before + after, len(encoded) - len(shown))


def _is_blank_system(message: Message) -> bool:
    return message["role"] == "system" and not get_text(message["content"]).strip()


def _encode_blocks(
    message: Message, call_ids: Sequence[str], tools: FittedTools, provider: str
) -> list[dict[str, Any]]:
    """Encode a message as content blocks. The API refuses a text block of white space alone, so it is omitted."""
    content = get_text(message["content"])
    if message["role"] == "tool":
        result = {"type": "tool_result", "tool_use_id": call_ids[0]}
        return [result | ({"content": content} if content.strip() else {})]
    if message["role"] == "user":
        return [_make_text(content)] if content.strip() else []
    blocks = _find_own_blocks(message, provider)
    text_of_blocks = "".join(block["text"] for block in blocks if block["type"] == "text")
    if content.startswith(text_of_blocks):
        content = content[len(text_of_blocks) :]
    else:
        blocks = [block for block in blocks if block["type"] != "text"]
    # The API sends such blocks before and between others, and refuses them.
    blocks = [block for block in blocks if block["type"] != "text" or block["text"].strip()]
    if content.strip():
        blocks.append(_make_text(content))
    for call, call_id in zip(message.get("tool_calls", []), call_ids, strict=True):
        name, arguments = tools.encode_call(call["name"], call["arguments"], ANTHROPIC.tools)
        blocks.append({"type": "tool_use", "id": call_id, "name": name, "input": arguments})
    return blocks


def _find_own_blocks(message: Message, provider: str) -> list[dict[str, Any]]:
    """Select the blocks that this provider sent and expects back unchanged; none if another provider sent them."""
    data = get_own_data(message, provider)
    return [block for block in data["blocks"] if block.get("type") in _BLOCKS_SENT_BACK] if data else []


def _make_text(text: str) -> dict[str, Any]:
    return {"type": "text", "text": text}


def _encode_tool(spec: ToolSpec) -> dict[str, Any]:
    return {"name": spec["name"], "description": spec["description"], "input_schema": spec["parameters"]}


def _encode_tool_choice(choice: str | None, tools: FittedTools) -> dict[str, Any] | None:
    kinds = {"auto": "auto", "none": "none", "required": "any"}
    if choice in kinds:
        return {"type": kinds[choice]}
    tool = tools.by_name.get(choice or "")
    return {"type": "tool", "name": tool.spec["name"]} if tool else None
