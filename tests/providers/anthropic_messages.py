"""The Messages API: its streams, its errors, and what it refuses."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import jsonschema_rs
from anthropic.types import RawMessageStreamEvent

from tests.providers.chat_completions import make_id, make_signature, make_thinking_block
from tests.providers.official_types import build_event
from tests.providers.strict_server import DROP, Billing, Exchange, Refusal, Rule, Sent, ServerSentEvents, Turn

Block = dict[str, Any]


@dataclass(frozen=True)
class AnthropicMessages(ServerSentEvents):
    """The Messages API.

    Attributes:
        path: The path of a request.
        cut_reason: The stop reason of a reply that the token limit cuts.
    """

    path: str = "/v1/messages"
    cut_reason: str = "max_tokens"

    def encode_refusal(self, refusal: Refusal) -> Any:
        """Make the JSON of an error response."""
        return {
            "type": "error",
            "error": {"type": refusal.type, "message": refusal.message, "details": None},
            "request_id": "req_1",
        }

    def encode(self, turn: Turn, exchange: Exchange, thinking: str, billing: Billing) -> tuple[list[Any], Sent]:
        """Encode a reply. The model thinks only if the request says so."""
        number = sum(len(sent.calls) for sent in exchange.sent)
        thinking = thinking if is_thinking(exchange.body) else ""
        name = make_id("toolu_01", 22)
        ids = [name(number + place, call.name) for place, call in enumerate(turn.calls)]
        blocks: list[tuple[Block, list[dict[str, Any]]]] = []
        if thinking:
            half = len(thinking) // 2
            blocks.append(
                (
                    {"type": "thinking", "thinking": "", "signature": ""},
                    [
                        *[
                            {"type": "thinking_delta", "thinking": part}
                            for part in (thinking[:half], thinking[half:])
                        ],
                        {"type": "signature_delta", "signature": make_signature(number)},
                    ],
                )
            )
            blocks.append(({"type": "redacted_thinking", "data": make_signature(number + 1000)}, []))
        searches = _search(turn, exchange)
        blocks += searches
        pages = [block["content"][0] for block, _ in searches if block["type"] == "web_search_tool_result"]
        if turn.text:
            blocks.append(_write_text(turn.text, pages[-1:]))
        for call, call_id in zip(turn.calls, ids, strict=True):
            raw = call.arguments if isinstance(call.arguments, str) else json.dumps(dict(call.arguments))
            pieces = ["", raw[: len(raw) // 2], raw[len(raw) // 2 :]] if raw != "{}" else [""]
            start = {"type": "tool_use", "id": call_id, "name": call.name, "input": {}}
            blocks.append((start, [{"type": "input_json_delta", "partial_json": piece} for piece in pieces]))
        # A part of the prompt was read from the cache, a part was written to it.
        cached, written = billing.input_tokens // 2, billing.input_tokens // 4
        counts = {
            "input_tokens": billing.input_tokens - cached - written,
            "cache_read_input_tokens": cached,
            "cache_creation_input_tokens": written,
        }
        message = {
            "id": "msg_01",
            "type": "message",
            "role": "assistant",
            "model": exchange.body["model"],
            "content": [],
            "stop_reason": None,
            "stop_sequence": None,
            "usage": {**counts, "output_tokens": 1},
        }
        events: list[Any] = [{"type": "message_start", "message": message}]
        for index, (block, deltas) in enumerate(blocks):
            events.append({"type": "content_block_start", "index": index, "content_block": block})
            events += [{"type": "content_block_delta", "index": index, "delta": delta} for delta in deltas]
            events.append({"type": "content_block_stop", "index": index})
        middle = len(events) - 1
        reason = {"length": self.cut_reason, "pause": "pause_turn"}.get(turn.ending) or (
            "tool_use" if turn.calls else "end_turn"
        )
        # Servers between say 0 here, after the real count at the beginning.
        usage: dict[str, Any] = {"input_tokens": 0, "output_tokens": billing.output_tokens}
        if turn.searches:
            usage["server_tool_use"] = {"web_search_requests": len(turn.searches), "web_fetch_requests": 0}
        events.append(
            {"type": "message_delta", "delta": {"stop_reason": reason, "stop_sequence": None}, "usage": usage}
        )
        events.append({"type": "message_stop"})
        for event in events:
            build_event(RawMessageStreamEvent, event)
        # The package's client reads past it.
        events.insert(1, {"type": "ping"})
        match turn.fault.when if turn.fault else None:
            case "inside":
                error = {"details": None, "type": "overloaded_error", "message": "Overloaded"}
                events = [*events[:middle], {"type": "error", "error": error, "request_id": "req_1"}]
            case "cut":
                events = [*events[:middle], DROP]
            case "after":
                events.append(DROP)
        kept = [block for block, _ in blocks if block["type"] == "redacted_thinking"]
        returns: dict[str, Any] = {"thinking": [make_thinking_block(thinking, number), *kept]} if thinking else {}
        if searches:
            returns["server"] = [_fold(block, deltas) for block, deltas in searches]
        return events, Sent(thinking, returns, {call_id: {} for call_id in ids}, turn.text)


def _search(turn: Turn, exchange: Exchange) -> list[tuple[Block, list[dict[str, Any]]]]:
    """Encode the searches: the result of one that paused before, then calls with their results."""
    first = _count_searches(exchange) + 1
    results = [_make_result(use_id, number) for number, use_id in enumerate(_list_open(exchange), first)]
    blocks: list[tuple[Block, list[dict[str, Any]]]] = [(result, []) for result in results]
    for number, query in enumerate(turn.searches, first + len(results)):
        use_id = make_id("srvtoolu_01", 22)(number, "web_search")
        raw = json.dumps({"query": query})
        pieces = ["", raw[: len(raw) // 2], raw[len(raw) // 2 :]]
        start = {"type": "server_tool_use", "id": use_id, "name": "web_search", "input": {}}
        blocks.append((start, [{"type": "input_json_delta", "partial_json": piece} for piece in pieces]))
        if turn.ending != "pause" or query != turn.searches[-1]:
            blocks.append((_make_result(use_id, number), []))
    return blocks


def _write_text(text: str, pages: list[Block]) -> tuple[Block, list[dict[str, Any]]]:
    """Encode a text in two pieces, with a citation of each page between them."""
    half = len(text) // 2
    first, *rest = [{"type": "text_delta", "text": part} for part in (text[:half], text[half:]) if part]
    citations = [{"type": "citations_delta", "citation": _cite(page)} for page in pages]
    start = {"type": "text", "text": "", **({"citations": []} if pages else {})}
    return start, [first, *citations, *rest]


def _make_result(use_id: str, number: int) -> Block:
    page = {
        "type": "web_search_result",
        "url": f"https://example.com/{number}",
        "title": f"Example {number}",
        "encrypted_content": make_signature(number + 2000),
        "page_age": None,
    }
    return {"type": "web_search_tool_result", "tool_use_id": use_id, "content": [page]}


def _cite(page: Block) -> Block:
    """Make the citation of a page."""
    return {
        "type": "web_search_result_location",
        "url": page["url"],
        "title": page["title"],
        "encrypted_index": page["encrypted_content"][::-1],
        "cited_text": f"The words of {page['title']}.",
    }


def _fold(block: Block, deltas: list[dict[str, Any]]) -> Block:
    """Make a block as it must come back."""
    raw = "".join(delta.get("partial_json", "") for delta in deltas)
    return {**block, "input": json.loads(raw)} if raw else block


def _count_searches(exchange: Exchange) -> int:
    """Count the results that the server has sent."""
    sent = [block for one in exchange.sent for block in one.returns.get("server", ())]
    return sum(block["type"] == "web_search_tool_result" for block in sent)


def _list_open(exchange: Exchange) -> list[str]:
    """List the searches that a request leaves open, in its last assistant's turn."""
    blocks = next((own for role, own in reversed(_merge_turns(exchange.body)) if role == "assistant"), [])
    answered = {block["tool_use_id"] for block in blocks if block["type"] == "web_search_tool_result"}
    return [b["id"] for b in blocks if b["type"] == "server_tool_use" and b["id"] not in answered]


def is_thinking(body: Mapping[str, Any]) -> bool:
    """Whether the request wants the model to think."""
    return (body.get("thinking") or {}).get("type") in ("enabled", "adaptive")


def get_blocks(message: Mapping[str, Any]) -> list[Block]:
    """Return the blocks of a message."""
    content = message["content"]
    return [{"type": "text", "text": content}] if isinstance(content, str) else content


def _merge_turns(body: Mapping[str, Any]) -> list[tuple[str, list[Block]]]:
    """Merge consecutive messages of one role, as the API does."""
    turns: list[tuple[str, list[Block]]] = []
    for message in body["messages"]:
        if turns and turns[-1][0] == message["role"]:
            turns[-1][1].extend(get_blocks(message))
        else:
            turns.append((message["role"], list(get_blocks(message))))
    return turns


VERSIONS = ("2023-06-01", "2026-10-21")
"""The versions of the API. The newer one has no sampling parameters (platform.claude.com/docs/en/api/versioning)."""


def demand_headers(exchange: Exchange) -> Iterator[Refusal]:
    """Refuse requests without the key or a version, or with what the version does not have."""
    headers = exchange.headers
    if "key-of-the-tests" not in (headers.get("x-api-key"), headers.get("authorization", "").removeprefix("Bearer ")):
        yield Refusal("invalid x-api-key", status=401, type="authentication_error")
    version = headers.get("anthropic-version")
    if version not in VERSIONS:
        yield Refusal("anthropic-version: header is required")
    for name in ("temperature", "top_p", "top_k"):
        if name in exchange.body and version == VERSIONS[-1]:
            yield Refusal(f"{name}: Extra inputs are not permitted")


def order_messages(exchange: Exchange) -> Iterator[Refusal]:
    """Refuse messages in a wrong order."""
    body = exchange.body
    for index, message in enumerate(body["messages"]):
        if message["role"] not in ("user", "assistant"):
            yield Refusal(f"messages.{index}.role: Input should be 'user' or 'assistant'")
    turns = _merge_turns(body)
    if not turns or turns[0][0] != "user":
        yield Refusal('messages: first message must use the "user" role')
    # From 4.6 on; gh:anomalyco/opencode#13768. A paused turn goes on: gh:anthropics/anthropic-sdk-python#1339
    if turns and turns[-1][0] != "user" and not _list_open(exchange):
        yield Refusal(
            "This model does not support assistant message prefill. The conversation must end with a user message."
        )


def pair_calls(exchange: Exchange) -> Iterator[Refusal]:
    """Refuse calls without results right after them, and results without calls."""
    turns = _merge_turns(exchange.body)
    used: list[str] = []
    for index, (role, blocks) in enumerate(turns):
        calls = [block["id"] for block in blocks if block["type"] == "tool_use"]
        used += calls
        after = turns[index + 1][1] if index + 1 < len(turns) else []
        leading = []
        for block in after:
            if block["type"] != "tool_result":
                break
            leading.append(block["tool_use_id"])
        if missing := [call for call in calls if call not in leading]:
            # gh:anthropics/claude-code#8612
            yield Refusal(
                f"messages.{index}: `tool_use` ids were found without `tool_result` blocks immediately after: "
                f"{', '.join(missing)}. Each `tool_use` block must have a corresponding `tool_result` block in "
                f"the next "
                "message."
            )
        before = [b["id"] for b in turns[index - 1][1] if b["type"] == "tool_use"] if index else []
        results = [block["tool_use_id"] for block in blocks if block["type"] == "tool_result"]
        for call_id in results:
            if call_id not in before or role != "user":
                # gh:anthropics/claude-code#18947
                yield Refusal(
                    f"messages.{index}.content.0: unexpected `tool_use_id` found in `tool_result` blocks: {call_id}. "
                    "Each `tool_result` block must have a corresponding `tool_use` block in the previous message."
                )
        if len(set(results)) < len(results):
            yield Refusal(f"messages.{index}: each tool_use must have a single result. Found multiple `tool_result`")
    if len(set(used)) < len(used):
        yield Refusal("messages: `tool_use` ids must be unique")


def pair_searches(exchange: Exchange) -> Iterator[Refusal]:
    """Refuse searches without a result where the turn does not go on, results without searches, and changed ones."""
    turns = _merge_turns(exchange.body)
    server = [block for sent in exchange.sent for block in sent.returns.get("server", ())]
    own = {page["encrypted_content"] for block in server for page in block.get("content", ())}
    blocks = [block for _, own_blocks in turns for block in own_blocks]
    uses = {block["id"] for block in blocks if block["type"] == "server_tool_use"}
    answered = {block["tool_use_id"] for block in blocks if block["type"] == "web_search_tool_result"}
    after = [block["type"] for role, own_blocks in turns[-1:] if role == "user" for block in own_blocks]
    goes_on = _list_open(exchange) if set(after) <= {"tool_result"} else []
    for index, (_, own_blocks) in enumerate(turns):
        for place, block in enumerate(own_blocks):
            where = f"messages.{index}.content.{place}"
            match block["type"]:
                case "server_tool_use" if block["id"] not in answered and block["id"] not in goes_on:
                    # gh:anthropics/anthropic-sdk-python#1339, gh:anthropics/anthropic-sdk-typescript#1090
                    yield Refusal(
                        f"messages.{index}: `web_search` tool use with id `{block['id']}` was found without a "
                        "corresponding `web_search_tool_result` block"
                    )
                case "web_search_tool_result" if block["tool_use_id"] not in uses:
                    yield Refusal(f"{where}: unexpected `tool_use_id` found in `web_search_tool_result` blocks")
                case "web_search_tool_result" if any(p["encrypted_content"] not in own for p in block["content"]):
                    yield Refusal(f"{where}: Invalid `encrypted_content` in `search_result` block")
                case "text" if any(c["encrypted_index"][::-1] not in own for c in block.get("citations") or ()):
                    yield Refusal(f"{where}: Invalid `encrypted_index` in `citations`")


def keep_searches(exchange: Exchange) -> Iterator[Refusal]:
    """Say that the searches of a reply in a loop, or of a paused one, did not come back as they were sent."""
    turns = _merge_turns(exchange.body)
    assistants = [blocks for role, blocks in turns if role == "assistant"]
    for sent in exchange.sent:
        expected = sent.returns.get("server", [])
        is_last = sent is exchange.sent[-1] and turns[-1][0] == "assistant"
        if not expected or not (sent.calls or is_last):
            continue
        found = [block for blocks in assistants for block in blocks]
        if sent.calls and not set(sent.calls) & {block.get("id") for block in found}:
            continue
        if lost := [block for block in expected if block not in found]:
            yield Refusal(f"the searches {lost} did not come back as they were sent")


def order_ttls(exchange: Exchange) -> Iterator[Refusal]:
    """Refuse breakpoints of the cache that last longer than one before them."""
    body = exchange.body
    system = body.get("system")
    parts = [*(body.get("tools") or ()), *(system if isinstance(system, list) else ())]
    parts += [block for message in body["messages"] for block in get_blocks(message)]
    ttls = [part["cache_control"].get("ttl", "5m") for part in (*parts, body) if "cache_control" in part]
    if ttls != sorted(ttls):
        # platform.claude.com/docs/en/build-with-claude/prompt-caching: longer ones must stand first
        yield Refusal("a ttl='1h' cache_control block must not come after a ttl='5m' cache_control block")


BETAS = {"block_binding": "thinking-binding-controls-2026-08-01"}
"""The beta features that fields of `thinking` need."""


def demand_betas(exchange: Exchange) -> Iterator[Refusal]:
    """Refuse fields of features whose header is missing."""
    named = exchange.headers.get("anthropic-beta", "").split(",")
    for name in BETAS.keys() & (exchange.body.get("thinking") or {}).keys():
        if BETAS[name] not in named:
            yield Refusal(f"thinking.adaptive.{name}: Extra inputs are not permitted")


def have_content(exchange: Exchange) -> Iterator[Refusal]:
    """Refuse empty contents and malformed ids."""
    messages = exchange.body["messages"]
    system = exchange.body.get("system") or []
    for block in system if isinstance(system, list) else []:
        if not block["text"]:
            yield Refusal("system: text content blocks must be non-empty")
    for index, message in enumerate(messages):
        if not message["content"]:
            yield Refusal(
                f"messages.{index}: all messages must have non-empty content except for the optional final assistant "
                "message"
            )
        for place, block in enumerate(get_blocks(message)):
            where = f"messages.{index}.content.{place}"
            match block["type"]:
                case "text" if not block["text"]:
                    yield Refusal("messages: text content blocks must be non-empty")
                case "text" if not block["text"].strip():
                    yield Refusal("messages: text content blocks must contain non-whitespace text")
                case "tool_use" if not re.fullmatch(r"[a-zA-Z0-9_-]+", block["id"]):
                    yield Refusal(f"{where}.tool_use.id: String should match pattern '^[a-zA-Z0-9_-]+$'")
                case "tool_use" if not re.fullmatch(r"[a-zA-Z0-9_-]{1,200}", block["name"]):
                    yield Refusal(f"{where}.tool_use.name: String should match pattern '^[a-zA-Z0-9_-]{{1,200}}$'")
                case "tool_use" if not isinstance(block["input"], dict):
                    yield Refusal(f"{where}.tool_use.input: Input should be a valid dictionary")
                case "tool_result" if block.get("is_error") and not block.get("content"):
                    yield Refusal(f"{where}: content cannot be empty if `is_error` is true")
    last = messages[-1] if messages else None
    if last and last["role"] == "assistant" and get_blocks(last)[-1].get("text", "x")[-1:].isspace():
        yield Refusal("messages: final assistant content cannot end with trailing whitespace")


def return_thinking(exchange: Exchange) -> Iterator[Refusal]:
    """Refuse thinking that is missing, changed or another provider's."""
    own = {
        block.get("signature") or block.get("data")
        for sent in exchange.sent
        for block in sent.returns.get("thinking", ())
    }
    turns = _merge_turns(exchange.body)
    assistants = [index for index, (role, _) in enumerate(turns) if role == "assistant"]
    for index in assistants:
        blocks = turns[index][1]
        for place, block in enumerate(blocks):
            if block["type"] == "thinking" and block["signature"] not in own:
                yield Refusal(f"messages.{index}.content.{place}: Invalid `signature` in `thinking` block")
            if block["type"] == "redacted_thinking" and block["data"] not in own:
                yield Refusal(f"messages.{index}.content.{place}: Invalid `data` in `redacted_thinking` block")
        sent = exchange.find_sent(block["id"] for block in blocks if block["type"] == "tool_use")
        thoughts = [block for block in blocks if block["type"] in ("thinking", "redacted_thinking")]
        if sent and index == assistants[-1] and thoughts and thoughts != sent.returns.get("thinking"):
            # gh:anthropics/claude-code#63259
            yield Refusal(
                f"messages.{index}.content.0: `thinking` or `redacted_thinking` blocks in the latest assistant "
                f"message "
                "cannot be modified. These blocks must remain as they were in the original response."
            )
    # With adaptive thinking a reply need not begin with it.
    if (exchange.body.get("thinking") or {}).get("type") != "enabled" or not assistants:
        return
    index = assistants[-1]
    in_loop = any(block["type"] == "tool_result" for block in turns[-1][1])
    first = turns[index][1][0]["type"]
    if in_loop and first not in ("thinking", "redacted_thinking"):
        yield Refusal(
            f"messages.{index}.content.0.type: Expected `thinking` or `redacted_thinking`, but found `{first}`. When "
            "`thinking` is enabled, a final `assistant` message must start with a thinking block (preceeding the "
            "lastmost set of `tool_use` and `tool_result` blocks)."
        )


def keep_thinking(exchange: Exchange) -> Iterator[Refusal]:
    """Say that the thinking of an earlier reply in a loop is missing, or has another order."""
    for index, (_, blocks) in enumerate(_merge_turns(exchange.body)):
        sent = exchange.find_sent(block["id"] for block in blocks if block["type"] == "tool_use")
        thoughts = [block for block in blocks if block["type"] in ("thinking", "redacted_thinking")]
        expected = sent.returns.get("thinking") if sent else None
        if expected and is_thinking(exchange.body) and thoughts != expected:
            yield Refusal(f"messages.{index}: the thinking was {expected} and came back as {thoughts}")


def keep_ids(exchange: Exchange) -> Iterator[Refusal]:
    """Say that a call of this server has another id than the server gave it."""
    turns = _merge_turns(exchange.body)
    received = {block["id"] for _, blocks in turns for block in blocks if block["type"] == "tool_use"}
    history = sum(any(block["type"] == "tool_use" for block in blocks) for _, blocks in turns)
    own = {call_id for sent in exchange.sent for call_id in sent.calls}
    if history >= sum(bool(sent.calls) for sent in exchange.sent) and (lost := own - received):
        yield Refusal(f"the ids {sorted(lost)} came back as {sorted(received - own)}")


def take_tools(exchange: Exchange) -> Iterator[Refusal]:
    """Refuse tools that the API does not take."""
    body = exchange.body
    tools = body.get("tools") or []
    for index, tool in enumerate(tools):
        if "input_schema" not in tool:
            # Which types there are is in the official package.
            continue
        where, schema = f"tools.{index}.custom", tool["input_schema"]
        if not re.fullmatch(r"[a-zA-Z0-9_-]{1,128}", tool["name"]):
            yield Refusal(f"{where}.name: String should match pattern '^[a-zA-Z0-9_-]{{1,128}}$'")
        if schema.get("type") != "object":
            yield Refusal(f"{where}.input_schema.type: Input should be 'object'")
        if schema.keys() & {"oneOf", "allOf", "anyOf"}:
            # gh:anthropics/claude-code#44788
            text = "input_schema does not support oneOf, allOf, or anyOf at the top level"
            yield Refusal(f"{where}.input_schema: {text}")
        for name in schema.get("properties") or ():
            if not re.fullmatch(r"[a-zA-Z0-9_.-]{1,64}", name):
                # gh:anthropics/claude-code#79418
                yield Refusal(
                    f"{where}.input_schema.properties: Property keys should match pattern '^[a-zA-Z0-9_.-]{{1,64}}$'"
                )
        try:
            jsonschema_rs.Draft202012Validator(schema)
        except (jsonschema_rs.ValidationError, ValueError):
            yield Refusal(
                f"{where}.input_schema: JSON schema is invalid. It must match JSON Schema draft 2020-12 "
                "(https://json-schema.org/draft/2020-12)."
            )
    names = [tool["name"] for tool in tools]
    if len(set(names)) < len(names):
        yield Refusal("tools: Tool names must be unique.")
    if body.get("tool_choice") and not tools:
        yield Refusal("tool_choice: tool_choice may only be specified while providing tools.")


def take_options(exchange: Exchange) -> Iterator[Refusal]:
    """Refuse options that the API does not take."""
    body = exchange.body
    if not isinstance(body.get("max_tokens"), int):
        yield Refusal("max_tokens: Field required")
    if not 0 <= body.get("temperature", 1) <= 1:
        yield Refusal("temperature: range: 0..1")
    if "temperature" in body and "top_p" in body:
        # gh:infiniflow/ragflow#11815
        yield Refusal("`temperature` and `top_p` cannot both be specified for this model. Please use only one.")
    for text in body.get("stop_sequences") or ():
        if not text.strip():
            yield Refusal("stop_sequences: each stop sequence must contain non-whitespace")
    if is_thinking(body):
        if body.get("temperature", 1) != 1:
            yield Refusal("`temperature` may only be set to 1 when thinking is enabled.")
        if (body.get("tool_choice") or {}).get("type") in ("any", "tool"):
            yield Refusal("Thinking may not be enabled when tool_choice forces tool use.")
        budget = body["thinking"].get("budget_tokens", 1024)
        if budget < 1024:
            yield Refusal("thinking.enabled.budget_tokens: Input should be greater than or equal to 1024")
        if budget >= body["max_tokens"]:
            yield Refusal("`max_tokens` must be greater than `thinking.budget_tokens`.")
    if (found := json.dumps(body).count('"cache_control"')) > 4:
        # gh:agentjido/req_llm#503
        yield Refusal(f"A maximum of 4 blocks with cache_control may be provided. Found {found}.")


RULES: tuple[Rule, ...] = (
    demand_headers,
    demand_betas,
    order_messages,
    pair_calls,
    pair_searches,
    have_content,
    return_thinking,
    take_tools,
    take_options,
    order_ttls,
)
"""What the Messages API refuses."""

LOSSES: tuple[Rule, ...] = (keep_thinking, keep_ids, keep_searches)
"""What the Messages API takes although something is lost."""
