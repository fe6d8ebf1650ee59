"""Anthropic's Messages API.

What depends on the generation of a model is in one table, `_Generation`, read off the model's name:

| models              | thinking               | `reasoning_effort`     | temperature | thinking blocks are bound |
|---------------------|------------------------|------------------------|-------------|---------------------------|
| before 4.6          | `enabled`, with budget | the budget             | yes         | no                        |
| 4.6                 | `adaptive`             | `output_config.effort` | yes         | no                        |
| 4.7 to 5.0          | `adaptive`             | `output_config.effort` | no          | no                        |
| 5.1 and later       | `adaptive`             | `output_config.effort` | no          | to all that came before   |
| Claude, unversioned | `adaptive`             | `output_config.effort` | no          | no                        |
| other names         | `adaptive`             | `output_config.effort` | yes         | no                        |

Options that the API has no word for are left out: `seed` always, `temperature` where the table says so or
while the model thinks. API version 2026-10-21 has no temperature at all, so a request that has one goes under
the version before it.

Where thinking blocks are bound, a request whose earlier messages changed is refused; a context that slides
changes them by design, so the API is asked to drop such blocks instead.

`ANTHROPIC_API_KEY` and `ANTHROPIC_BASE_URL` are read as the official client reads them: the key or the URL is enough.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any

from clew.model.messages import Message, ToolSpec
from clew_activities.providers.anthropic_stream import AnthropicDecoder
from clew_activities.providers.errors import ErrorAnswer, ProviderError, classify_response
from clew_activities.providers.interface import HttpRequest, ModelRequest, make_safe_name
from clew_activities.providers.variables import read_key, read_url

_OFFICIAL_URL = "https://api.anthropic.com"
_VERSION = "2026-10-21"
_VERSION_WITH_TEMPERATURE = "2023-06-01"
_BINDING_BETA = "thinking-binding-controls-2026-08-01"

_EFFORT = {"minimal": "low", "low": "low", "medium": "medium", "high": "high"}
_BUDGET = {"minimal": 1024, "low": 2048, "medium": 8192, "high": 16384}
_SMALLEST_BUDGET = 1024

_BLOCKS_SENT_BACK = frozenset({"thinking", "redacted_thinking", "text"})

_BREAKPOINT = {"type": "ephemeral"}
_NOTHING_BEFORE = "(earlier messages are not shown)"


def make_providers(environ: Mapping[str, str]) -> Iterable[Anthropic]:
    """Anthropic, where it is configured.

    Raises:
        ValueError: a variable's value cannot be used.
    """
    key, url = read_key(environ, "ANTHROPIC_API_KEY"), read_url(environ, "ANTHROPIC_BASE_URL")
    if key or url:
        yield Anthropic("anthropic", url or _OFFICIAL_URL, key)


@dataclass(frozen=True)
class Anthropic:
    """The Messages API, or a server that speaks it.

    Attributes:
        name: What stands before the colon in a session's model.
        base_url: Without a slash at its end.
        api_key: Sent as `x-api-key`, where there is one.
    """

    name: str
    base_url: str
    api_key: str | None = field(default=None, repr=False)

    @property
    def secrets(self) -> tuple[str, ...]:
        """The key, where there is one."""
        return (self.api_key,) if self.api_key else ()

    @property
    def secret_headers(self) -> tuple[str, ...]:
        """The header that holds the key."""
        return ("x-api-key",)

    def encode(self, request: ModelRequest) -> HttpRequest:
        """The request as the body of `POST /v1/messages`."""
        body: dict[str, Any] = {
            "model": request.model,
            # The breakpoint that moves with the conversation: the prefix before it is read from the cache.
            "cache_control": _BREAKPOINT,
            "messages": _encode_messages(request.messages, self.name),
            "stream": True,
        }
        tools, system = [_encode_tool(spec) for spec in request.tools], _encode_system(request.messages)
        # What stays when the conversation is cut: tools and prompt, and up to the next one a summary. Four are taken.
        for stable in system[:2] or tools[-1:]:
            stable["cache_control"] = _BREAKPOINT
        if system:
            body["system"] = system
        if tools:
            body["tools"] = tools
        body |= _encode_options(request, self.name)
        version = _VERSION_WITH_TEMPERATURE if "temperature" in body else _VERSION
        headers = {"anthropic-version": version}
        if "block_binding" in body.get("thinking", {}):
            headers["anthropic-beta"] = _BINDING_BETA
        if self.api_key:
            headers["x-api-key"] = self.api_key
        return HttpRequest("/v1/messages", headers, body)

    def make_decoder(self) -> AnthropicDecoder:
        """A decoder for one reply."""
        return AnthropicDecoder(self.name)

    def read_error(self, answer: ErrorAnswer) -> ProviderError:
        """The error that an answer stands for, by the table in `errors`."""
        return classify_response(answer)


@dataclass(frozen=True)
class _Generation:
    """What a model's generation allows; the module's docstring has the table."""

    adaptive: bool
    temperature: bool
    binds: bool


def _find_generation(model: str) -> _Generation:
    """Read off `claude-sonnet-4-5-20250929`, `claude-opus-5` or `claude-3-7-sonnet-latest`, also behind a prefix."""
    match = re.search(r"claude-(?:[a-z]+-)?(\d{1,2})(?:[-.](\d{1,2}))?(?!\d)", model)
    if match is None:
        return _Generation(adaptive=True, temperature="claude" not in model, binds=False)
    version = (int(match[1]), int(match[2] or 0))
    return _Generation(adaptive=version >= (4, 6), temperature=version < (4, 7), binds=version >= (5, 1))


def _encode_options(request: ModelRequest, provider: str) -> dict[str, Any]:
    options = request.options
    generation = _find_generation(request.model)
    max_tokens = options.max_output_tokens
    assert max_tokens is not None  # as ModelRequest says
    thinking = _choose_thinking(request, generation, max_tokens, provider)
    output_config: dict[str, Any] = {}
    if options.reasoning_effort and generation.adaptive:
        output_config["effort"] = _EFFORT[options.reasoning_effort]
    if request.output_schema is not None:
        output_config["format"] = {"type": "json_schema", "schema": request.output_schema}
    options_by_name = {
        "max_tokens": max_tokens,
        "stop_sequences": list(options.stop) if options.stop else None,
        "temperature": options.temperature if generation.temperature and thinking is None else None,
        "thinking": thinking,
        "output_config": output_config or None,
        "tool_choice": _encode_tool_choice(options.tool_choice) if request.tools else None,
    }
    return {name: value for name, value in options_by_name.items() if value is not None}


def _choose_thinking(
    request: ModelRequest, generation: _Generation, max_tokens: int, provider: str
) -> dict[str, Any] | None:
    """How to think, or None to leave it to the model.

    A call that is forced cannot be thought about. A budget counts towards `max_tokens`, so it takes at most
    half of them, and below the least budget that the API takes there is none.
    """
    effort = request.options.reasoning_effort
    forced = bool(request.tools) and request.options.tool_choice not in (None, "auto", "none")
    if generation.binds:
        dropping = {"type": "adaptive", "block_binding": {"prefix_mismatch_behavior": "drop_block"}}
        return dropping | ({"display": "summarized"} if effort else {})
    if effort is None or forced:
        return None
    if generation.adaptive:
        return {"type": "adaptive", "display": "summarized"}
    budget = min(_BUDGET[effort], max_tokens // 2)
    if budget < _SMALLEST_BUDGET or _round_lacks_thinking(request.messages, provider):
        return None
    return {"type": "enabled", "budget_tokens": budget}


def _round_lacks_thinking(messages: Sequence[Message], provider: str) -> bool:
    """Whether tools are being used on an answer that came without thinking, from another provider perhaps.

    With a budget, such an answer has to begin with its thinking, and is refused if it does not.
    """
    since_user: list[Message] = []
    for message in reversed(messages):
        if message["role"] == "user":
            break
        since_user.append(message)
    return any(message["role"] == "assistant" and not _find_own_blocks(message, provider) for message in since_user)


def _encode_system(messages: Iterable[Message]) -> list[dict[str, Any]]:
    texts = (message["content"] for message in messages if message["role"] == "system")
    return [_make_text(text) for text in texts if text.strip()]


def _encode_messages(messages: Iterable[Message], provider: str) -> list[dict[str, Any]]:
    """Turns of alternating roles, a user's first, with the results of tools before what else the user says."""
    blocks = (
        (message["role"] == "assistant", block)
        for message in messages
        if message["role"] != "system"
        for block in _encode_blocks(message, provider)
    )
    turns = [
        {
            "role": "assistant" if assistant else "user",
            "content": sorted((block for _, block in group), key=lambda block: block["type"] != "tool_result")
            if not assistant
            else [block for _, block in group],
        }
        for assistant, group in groupby(blocks, key=lambda pair: pair[0])
    ]
    if not turns or turns[0]["role"] == "assistant":
        turns.insert(0, {"role": "user", "content": [_make_text(_NOTHING_BEFORE)]})
    return turns


def _encode_blocks(message: Message, provider: str) -> list[dict[str, Any]]:
    """A message's blocks. A text block of white space alone is refused, so it is none."""
    content = message["content"]
    if message["role"] == "tool":
        result = {"type": "tool_result", "tool_use_id": message.get("tool_call_id", "")}
        return [result | ({"content": content} if content.strip() else {})]
    if message["role"] == "user":
        return [_make_text(content)] if content.strip() else []
    blocks = _find_own_blocks(message, provider)
    text_of_blocks = "".join(block["text"] for block in blocks if block["type"] == "text")
    if content.startswith(text_of_blocks):
        content = content[len(text_of_blocks) :]
    else:
        blocks = [block for block in blocks if block["type"] != "text"]
    if content.strip():
        blocks.append(_make_text(content))
    blocks += [
        {"type": "tool_use", "id": call["id"], "name": make_safe_name(call["name"]), "input": call["arguments"]}
        for call in message.get("tool_calls", [])
    ]
    return blocks


def _find_own_blocks(message: Message, provider: str) -> list[dict[str, Any]]:
    """What this provider wants back, as it sent it; nothing where another did."""
    data = message.get("provider_data")
    if data is None or data["provider"] != provider:
        return []
    return [block for block in data["blocks"] if block.get("type") in _BLOCKS_SENT_BACK]


def _make_text(text: str) -> dict[str, Any]:
    return {"type": "text", "text": text}


def _encode_tool(spec: ToolSpec) -> dict[str, Any]:
    return {"name": spec["name"], "description": spec["description"], "input_schema": spec["parameters"]}


def _encode_tool_choice(choice: str | None) -> dict[str, Any] | None:
    if choice is None:
        return None
    kinds = {"auto": "auto", "none": "none", "required": "any"}
    return {"type": kinds[choice]} if choice in kinds else {"type": "tool", "name": choice}
