"""Other servers with Anthropic's Messages API: what they refuse, and how their streams differ from Anthropic's.

The words are the real servers'; the comments say where a rule is from if it is not in the server's documentation.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, replace
from typing import Any, Literal

from anthropic.types.message_create_params import MessageCreateParamsStreaming

from tests.providers import anthropic_messages as messages_api
from tests.providers.anthropic_messages import AnthropicMessages, get_blocks
from tests.providers.official_types import match_type
from tests.providers.strict_server import Billing, Exchange, Refusal, Rule, Sent, Turn


@dataclass(frozen=True)
class ForeignMessages(AnthropicMessages):
    """The Messages API of another server: its thinking has no signature, and it says nothing between its events.

    Attributes:
        thinks: Whether the model thinks where a request does not say that it should not.
        indices: The indices of blocks: as Anthropic's, 0 for all, or none.
        stops: Whether the server says that a block is complete.
        whole: Whether the arguments of a call stand in the beginning of its block, and not in deltas.
    """

    thinks: bool = True
    indices: Literal["right", "zero", "absent"] = "right"
    stops: bool = True
    whole: bool = False

    def encode(self, turn: Turn, exchange: Exchange, thinking: str, billing: Billing) -> tuple[list[Any], Sent]:
        """Encode a reply."""
        wanted = exchange.body.get("thinking") or {"type": "enabled" if self.thinks else "disabled"}
        asked = replace(exchange, body={**exchange.body, "thinking": wanted})
        events, sent = super().encode(replace(turn, searches=()), asked, thinking, billing)
        dropped = {
            event["index"]
            for event in events
            if isinstance(event, dict) and (event.get("content_block") or {}).get("type") == "redacted_thinking"
        }
        thoughts = [{"type": "thinking", "thinking": sent.thinking}] if sent.thinking else []
        changed = [
            self._change(event) for event in events if not (isinstance(event, dict) and event.get("index") in dropped)
        ]
        returns = {**sent.returns, "thinking": thoughts} if thoughts else sent.returns
        return [event for each in self._move(changed) for event in each], replace(sent, returns=returns)

    def _change(self, event: Any) -> Any:
        if not isinstance(event, dict):
            return event
        delta, block = event.get("delta") or {}, event.get("content_block") or {}
        is_left_out = event["type"] == "ping" or delta.get("type") == "signature_delta"
        if is_left_out or (event["type"] == "content_block_stop" and not self.stops):
            return None
        changed = dict(event)
        if "index" in changed and self.indices != "right":
            changed["index"] = 0
            if self.indices == "absent":
                del changed["index"]
        if block.get("type") == "thinking":
            changed["content_block"] = {"type": "thinking", "thinking": ""}
        return changed

    def _move(self, events: list[Any]) -> Iterator[list[Any]]:
        """Move the arguments of calls to the beginnings of their blocks."""
        left = [event for event in events if event is not None]
        while left:
            event = left.pop(0)
            block = event.get("content_block") or {} if isinstance(event, dict) else {}
            if self.whole and block.get("type") == "tool_use":
                raw = ""
                while left and isinstance(left[0], dict) and left[0]["type"] == "content_block_delta":
                    raw += left.pop(0)["delta"]["partial_json"]
                try:
                    event["content_block"] = {**block, "input": json.loads(raw or "{}")}
                except ValueError:
                    # Arguments that a limit cuts, or that are malformed, stand there as the text that they are.
                    event["content_block"] = {**block, "input": raw}
            yield [event]


# Gateways to Anthropic's models. They pass streams on as they are, and wrap the errors of the server behind them.


@dataclass(frozen=True, kw_only=True)
class GatewayMessages(AnthropicMessages):
    """The Messages API of a gateway to Anthropic's models.

    Attributes:
        wrap: Makes the JSON of an error response from the refusal and the error of the server behind the gateway.
    """

    wrap: Callable[[Refusal, Any], Any]

    def encode_refusal(self, refusal: Refusal) -> Any:
        """Make the JSON of an error response."""
        return self.wrap(refusal, super().encode_refusal(refusal))


def wrap_for_litellm(refusal: Refusal, _error: Any) -> Any:
    """Wrap an error of Bedrock as LiteLLM does."""
    # gh:anthropics/claude-code#49548, gh:anthropics/claude-code#31063
    raw = json.dumps({"message": refusal.message})
    message = f"{raw}. Received Model Group=claude-sonnet-4-5\nAvailable Model Group Fallbacks=None"
    return {"error": {"message": message, "type": "None", "param": "None", "code": str(refusal.status)}}


def wrap_for_openrouter(refusal: Refusal, error: Any) -> Any:
    """Wrap an error of Anthropic as OpenRouter does."""
    # gh:zed-industries/zed#35341
    metadata = {"raw": json.dumps(error), "provider_name": "Anthropic"}
    fields = {"message": "Provider returned error", "code": refusal.status, "metadata": metadata}
    return {"error": fields, "user_id": "user_1"}


def wrap_for_vertex(refusal: Refusal, error: Any) -> Any:
    """Wrap an error of Anthropic's models at Vertex AI as servers before them do."""
    # gh:lbjlaq/Antigravity-Manager#498
    message = json.dumps({**error, "request_id": "req_vrtx_1"})
    return {"error": {"code": refusal.status, "message": message, "status": "INVALID_ARGUMENT"}}


def refuse_newest_fields(exchange: Exchange) -> Iterator[Refusal]:
    """Refuse what Anthropic takes and the servers behind gateways do not."""
    body = exchange.body
    if "format" in (body.get("output_config") or {}):
        yield Refusal("output_config.format: Extra inputs are not permitted")
    if (choice := body.get("tool_choice") or {}).get("type") == "none" and len(choice) > 1:
        # gh:zed-industries/zed#35341
        yield Refusal("tool_choice.none.disable_parallel_tool_use: Extra inputs are not permitted")
    for name in ("context_management", "container", "mcp_servers"):
        if name in body:
            # gh:anthropics/claude-code#49548
            yield Refusal(f"{name}: Extra inputs are not permitted")
    for index, tool in enumerate(body.get("tools") or ()):
        for name in ("defer_loading", "eager_input_streaming", "strict", "allowed_callers"):
            if name in tool:
                # gh:anthropics/claude-code#31033, gh:anomalyco/opencode#23193
                yield Refusal(f"tools.{index}.custom.{name}: Extra inputs are not permitted")


def refuse_newer_tools(exchange: Exchange) -> Iterator[Refusal]:
    """Refuse the tools that Anthropic runs itself, but for its first search."""
    for index, tool in enumerate(exchange.body.get("tools") or ()):
        if tool.get("type", "custom") not in ("custom", "web_search_20250305"):
            # gh:BerriAI/litellm#15299
            yield Refusal(
                f"tools.{index}: Input tag '{tool['type']}' found using 'type' does not match any of the expected "
                "tags: 'bash_20250124', 'custom', 'text_editor_20250124', 'text_editor_20250429', "
                "'text_editor_20250728', 'web_search_20250305'"
            )


def refuse_cache_control(exchange: Exchange) -> Iterator[Refusal]:
    """Refuse marks of a cache."""
    if '"cache_control"' in json.dumps(exchange.body):
        # gh:BerriAI/litellm#22963
        yield Refusal("cache_control: Extra inputs are not permitted")


def refuse_top_level_cache_control(exchange: Exchange) -> Iterator[Refusal]:
    """Refuse a mark that stands for the whole request."""
    if "cache_control" in exchange.body:
        yield Refusal("cache_control: Extra inputs are not permitted")


def know_fields(names: Collection[str]) -> Rule:
    """Refuse other fields of the body."""

    def rule(exchange: Exchange) -> Iterator[Refusal]:
        for name in sorted(exchange.body.keys() - set(names)):
            yield Refusal(f"unsupported parameter: {name}")

    return rule


def know_blocks(kinds: Collection[str]) -> Rule:
    """Refuse other types of blocks, also in the results of tools."""

    def rule(exchange: Exchange) -> Iterator[Refusal]:
        for index, message in enumerate(exchange.body["messages"]):
            for block in get_blocks(message):
                content = block.get("content") if block["type"] == "tool_result" else ()
                for each in (block, *(content if isinstance(content, list) else ())):
                    if each["type"] not in kinds:
                        # gh:MoonshotAI/Kimi-K2#118
                        yield Refusal(
                            f"messages.{index}: unsupported content type in ContentBlockParamUnion: {each['type']}"
                        )

    return rule


def demand_thinking(message: str) -> Rule:
    """Refuse an assistant's message with tool calls that has no thinking, unless the request wants none."""

    def rule(exchange: Exchange) -> Iterator[Refusal]:
        if (exchange.body.get("thinking") or {}).get("type") == "disabled":
            return
        for index, one in enumerate(exchange.body["messages"]):
            blocks = get_blocks(one)
            kinds = [block["type"] for block in blocks]
            if one["role"] == "assistant" and "tool_use" in kinds and "thinking" not in kinds:
                yield Refusal(message.format(index=index))

    return rule


def take_thinking(kinds: Collection[str], message: str) -> Rule:
    """Refuse other types of thinking, and thinking of another provider."""

    def rule(exchange: Exchange) -> Iterator[Refusal]:
        kind = (exchange.body.get("thinking") or {}).get("type")
        if kind is not None and kind not in kinds:
            yield Refusal(message.format(kind=kind))

    return rule


def keep_thinking(exchange: Exchange) -> Iterator[Refusal]:
    """Say that the thinking of an earlier reply in a loop is missing, or is another one."""
    for index, one in enumerate(exchange.body["messages"]):
        blocks = get_blocks(one)
        sent = exchange.find_sent(block["id"] for block in blocks if block["type"] == "tool_use")
        thoughts = [block["thinking"] for block in blocks if block["type"] == "thinking"]
        expected = [block["thinking"] for block in sent.returns.get("thinking", ())] if sent else []
        if expected and (exchange.body.get("thinking") or {}).get("type") != "disabled" and thoughts != expected:
            yield Refusal(f"messages.{index}: the thinking was {expected} and came back as {thoughts}")


def choose_tools(kinds: Collection[str]) -> Rule:
    """Refuse other choices of tools, and a forced one beside thinking."""

    def rule(exchange: Exchange) -> Iterator[Refusal]:
        kind = (exchange.body.get("tool_choice") or {}).get("type", "auto")
        if kind not in kinds:
            yield Refusal(f"tool_choice: {kind!r} is not supported")
        if kind in ("any", "tool") and (exchange.body.get("thinking") or {}).get("type") == "enabled":
            yield Refusal("Thinking mode does not support this tool_choice")

    return rule


def take_temperatures(least: float, most: float) -> Rule:
    """Refuse temperatures out of bounds."""

    def rule(exchange: Exchange) -> Iterator[Refusal]:
        if not least <= exchange.body.get("temperature", 1) <= most:
            yield Refusal(f"invalid params, temperature must be in [{least}, {most}]")

    return rule


def refuse_betas(exchange: Exchange) -> Iterator[Refusal]:
    """Refuse beta features."""
    if betas := exchange.headers.get("anthropic-beta"):
        yield Refusal(f"Unexpected value(s) `{betas}` for the `anthropic-beta` header")


_FIELDS = ("model", "messages", "max_tokens", "stream", "system", "tools", "temperature", "top_p", "stop_sequences")
_BLOCKS = ("text", "thinking", "tool_use", "tool_result")
_COMMON: tuple[Rule, ...] = (
    messages_api.demand_headers,
    messages_api.order_messages,
    messages_api.pair_calls,
    messages_api.have_content,
    messages_api.take_tools,
    refuse_betas,
)

# api-docs.deepseek.com/guides/anthropic_api; gh:NousResearch/hermes-agent#16748
DEEPSEEK: tuple[Rule, ...] = (
    *_COMMON,
    refuse_cache_control,
    know_fields((*_FIELDS, "thinking", "tool_choice")),
    know_blocks(_BLOCKS),
    demand_thinking("The `content[].thinking` in the thinking mode must be passed back to the API."),
    take_thinking(("enabled", "disabled"), "thinking.type: {kind} is not supported"),
    choose_tools(("auto", "none", "any", "tool")),
    take_temperatures(0.0, 2.0),
)
# gh:anthropics/claude-code#37757, gh:MoonshotAI/Kimi-K2#141
KIMI: tuple[Rule, ...] = (
    *_COMMON,
    refuse_cache_control,
    know_fields((*_FIELDS, "thinking", "tool_choice")),
    know_blocks((*_BLOCKS, "image")),
    demand_thinking(
        "thinking is enabled but reasoning_content is missing in assistant tool call message at index {index}"
    ),
    take_thinking(("enabled",), "invalid thinking: only type=enabled is allowed for this model"),
    choose_tools(("auto", "none")),
    take_temperatures(0.0, 1.0),
)
# platform.minimax.io/docs/api-reference/text-anthropic-api
MINIMAX: tuple[Rule, ...] = (
    *_COMMON,
    refuse_top_level_cache_control,
    know_fields((*_FIELDS, "thinking", "tool_choice", "metadata")),
    know_blocks(_BLOCKS),
    take_thinking(("enabled", "disabled"), "invalid params, thinking type {kind}"),
    choose_tools(("auto", "none", "any", "tool")),
    take_temperatures(0.01, 1.0),
)
# docs.ollama.com/api/anthropic-compatibility
OLLAMA: tuple[Rule, ...] = (
    *_COMMON,
    refuse_cache_control,
    know_fields((*_FIELDS, "thinking")),
    know_blocks((*_BLOCKS, "image")),
    take_thinking(("enabled", "disabled"), "thinking: unknown type {kind}"),
    take_temperatures(0.0, 2.0),
)
# docs.z.ai. The row sends texts alone: of images the server says 1210 (gh:dyad-sh/dyad#1353).
GLM: tuple[Rule, ...] = (
    *_COMMON,
    refuse_cache_control,
    know_fields((*_FIELDS, "thinking")),
    know_blocks(_BLOCKS),
    take_thinking(("enabled", "disabled"), "Invalid API parameter, please check the documentation."),
    take_temperatures(0.0, 1.0),
)
# gh:vllm-project/vllm#22627, vllm/entrypoints/anthropic/protocol.py: other types of blocks are refused.
VLLM: tuple[Rule, ...] = (
    *_COMMON,
    know_blocks((*_BLOCKS, "redacted_thinking", "image")),
    choose_tools(("auto", "none", "any", "tool")),
    take_temperatures(0.0, 2.0),
)
# gh:ggml-org/llama.cpp#17570: it has no `none`, and leaves out what it does not know; here that is refused.
LLAMACPP: tuple[Rule, ...] = (
    *_COMMON,
    refuse_cache_control,
    know_fields((*_FIELDS, "thinking", "tool_choice")),
    know_blocks((*_BLOCKS, "image")),
    choose_tools(("auto", "any", "tool")),
    take_temperatures(0.0, 2.0),
)
# Bedrock or Vertex AI behind a gateway: gh:BerriAI/litellm#26320, gh:mlflow/mlflow#25792
GATEWAY: tuple[Rule, ...] = (
    *messages_api.RULES,
    match_type(MessageCreateParamsStreaming, "{}: Extra inputs are not permitted", "temperature", "top_p"),
    refuse_top_level_cache_control,
    refuse_newest_fields,
    refuse_newer_tools,
    refuse_betas,
)
LOSSES: tuple[Rule, ...] = (keep_thinking, messages_api.keep_ids)
