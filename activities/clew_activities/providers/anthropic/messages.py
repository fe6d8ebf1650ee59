"""A context as the turns that the Messages API accepts. Pure.

The API wants alternating roles, a user's turn first, and a user's turn last. A paused reply is the exception: it is
the last turn, as it came, and the model goes on with it.

Of the provider's own blocks, a call of a server's tool goes back only with its result, or while the reply that it
belongs to is open: the reply is paused, or its other tools have just returned. The API refuses such a call elsewhere.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from typing import Any

from clew_activities.providers.anthropic.tools import RESULTS, SERVER_USE, list_open_uses
from clew_activities.providers.dialects import MessagesDialect
from clew_activities.providers.fit_messages import (
    EncodedMessage,
    Turns,
    choose_call_ids,
    get_own_data,
    group_turns,
    iterate_open_turn,
)
from clew_activities.providers.fit_tools import FittedTools
from clew_activities.providers.request_media import encode_base64, get_media_type, get_url, name_file, read_text
from clew_workflows.contract.content import Part, describe_part, find_sort, get_text
from clew_workflows.contract.messages import Message

CONTAINER = "container"
"""The type of the block that holds the id of the container in which code runs. It is not part of a message."""

_THINKING = frozenset({"thinking", "redacted_thinking"})
_SENT_BACK = frozenset({*_THINKING, "text", SERVER_USE, *RESULTS})


def encode_messages(
    messages: Sequence[Message],
    tools: FittedTools,
    provider: str,
    blobs: Mapping[str, bytes],
    dialect: MessagesDialect,
    *,
    returns_thinking: bool = True,
    fills_thinking: bool = False,
) -> Turns:
    """Encode messages as turns.

    `fills_thinking`: messages with tool calls, that another model has written, begin with a thought, too.
    """
    ids = choose_call_ids(messages, provider, "", dialect)
    kinds = _SENT_BACK if dialect.is_claude else _SENT_BACK - {SERVER_USE, *RESULTS}
    own_blocks = _list_own_blocks(messages, provider, kinds if returns_thinking else kinds - _THINKING)
    encoded = [
        EncodedMessage(
            message["role"],
            _encode_blocks(
                message, call_ids, _fill(message, blocks, fills_thinking), tools, blobs=blobs, dialect=dialect
            ),
        )
        for message, call_ids, blocks in zip(messages, ids, own_blocks, strict=True)
        if message["role"] != "system"
    ]
    goes_on = bool(messages) and bool(own_blocks[-1]) and _is_paused(messages[-1])
    return group_turns(encoded, make_text, goes_on=goes_on)


def _fill(message: Message, blocks: list[dict[str, Any]], fills_thinking: bool) -> list[dict[str, Any]]:
    has_thinking = any(block["type"] in _THINKING for block in blocks)
    if has_thinking or not fills_thinking or not message.get("tool_calls"):
        return blocks
    return [{"type": "thinking", "thinking": " ", "signature": ""}, *blocks]


def make_text(text: str) -> dict[str, Any]:
    """Make a block of text."""
    return {"type": "text", "text": text}


def lacks_thinking_in_round(messages: Sequence[Message], provider: str) -> bool:
    """Whether an assistant's message since the newest user's message has no thinking of this provider.

    With a thinking budget, the API refuses an assistant's message of an open tool round that does not begin with
    thinking.
    """
    return any(
        not any(block.get("type") in _THINKING for block in _get_blocks(message, provider))
        for message in iterate_open_turn(messages)
        if message["role"] == "assistant"
    )


def find_container(messages: Sequence[Message], provider: str) -> str | None:
    """Find the container in which the code of the turn that is still open has run; None: there is none."""
    for message in iterate_open_turn(messages):
        for block in _get_blocks(message, provider):
            if block.get("type") == CONTAINER:
                return str(block.get("id"))
    return None


def find_open_uses(messages: Sequence[Message], provider: str) -> dict[str, Any]:
    """Find the calls of a server's tools whose results come with the next reply, by their ids."""
    newest = next((one for one in iterate_open_turn(messages) if one["role"] == "assistant"), None)
    return {} if newest is None else dict(list_open_uses(_get_blocks(newest, provider)))


def _is_paused(message: Message) -> bool:
    """Whether a message is a paused reply: no other one without tool calls has data of its provider."""
    return message["role"] == "assistant" and not message.get("tool_calls")


def _get_blocks(message: Message, provider: str) -> list[dict[str, Any]]:
    data = get_own_data(message, provider)
    return data["blocks"] if data else []


def _list_own_blocks(messages: Sequence[Message], provider: str, kinds: Set[str]) -> list[list[dict[str, Any]]]:
    """List, for each message, the blocks that this provider sent and takes back unchanged."""
    own = [_get_blocks(message, provider) for message in messages]
    uses = {block.get("id") for blocks in own for block in blocks if block.get("type") == SERVER_USE}
    answered = {block.get("tool_use_id") for blocks in own for block in blocks if block.get("type") in RESULTS}
    kept = (uses & answered) | find_open_uses(messages, provider).keys()
    return [
        [block for block in blocks if block.get("type") in kinds and _get_use_id(block) in (None, *kept)]
        for blocks in own
    ]


def _get_use_id(block: dict[str, Any]) -> Any:
    """Return the id of a server's tool call in a block of the call or of its result; None: it is another block."""
    kind = block.get("type")
    return block.get("id") if kind == SERVER_USE else block.get("tool_use_id") if kind in RESULTS else None


def _encode_blocks(
    message: Message,
    call_ids: Sequence[str],
    own_blocks: Sequence[dict[str, Any]],
    tools: FittedTools,
    *,
    blobs: Mapping[str, bytes],
    dialect: MessagesDialect,
) -> list[dict[str, Any]]:
    """Encode a message as content blocks. The API refuses a text block of white space alone, so it is omitted."""
    parts = message["content"]
    if message["role"] == "tool":
        result: dict[str, Any] = {"type": "tool_result", "tool_use_id": call_ids[0]}
        if not isinstance(parts, str):
            return [result | {"content": [_encode_part(part, blobs) for part in parts]}]
        return [result | ({"content": parts} if parts.strip() else {})]
    if message["role"] == "user" and not isinstance(parts, str):
        return [_encode_part(part, blobs) for part in parts]
    content = get_text(parts)
    if message["role"] == "user":
        return [make_text(content)] if content.strip() else []
    text_of_blocks = "".join(block["text"] for block in own_blocks if block["type"] == "text")
    if content.startswith(text_of_blocks):
        content = content[len(text_of_blocks) :]
    else:
        own_blocks = [block for block in own_blocks if block["type"] != "text"]
    # The API sends such blocks before and between others, and refuses them.
    blocks = [block for block in own_blocks if block["type"] != "text" or block["text"].strip()]
    if content.strip():
        blocks.append(make_text(content))
    for call, call_id in zip(message.get("tool_calls", []), call_ids, strict=True):
        name, arguments = tools.encode_call(call["name"], call["arguments"], dialect.tools)
        blocks.append({"type": "tool_use", "id": call_id, "name": name, "input": arguments})
    return blocks


def _encode_part(part: Part, blobs: Mapping[str, bytes]) -> dict[str, Any]:
    """Encode a part that is not blank as a content block."""
    if part["type"] == "text":
        return make_text(part["text"])
    if (url := get_url(part)) is not None:
        return {"type": "image", "source": {"type": "url", "url": url}}
    match find_sort(part):
        case "image":
            return {"type": "image", "source": _encode_source(part, blobs)}
        case "pdf":
            return {"type": "document", "source": _encode_source(part, blobs), "title": name_file(part, ".pdf")}
    text = read_text(part, blobs)
    if not text.strip():
        return make_text(describe_part(part))
    source = {"type": "text", "media_type": "text/plain", "data": text}
    return {"type": "document", "source": source, "title": name_file(part, ".txt")}


def _encode_source(part: Part, blobs: Mapping[str, bytes]) -> dict[str, Any]:
    return {"type": "base64", "media_type": get_media_type(part), "data": encode_base64(part, blobs)}
