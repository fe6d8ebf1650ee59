"""Folds the Messages API's event stream into a reply.

A reply's `provider_data` holds the ids of its tool calls, its thinking blocks unchanged, and the text blocks before
the last of them: the API verifies that thinking blocks come back unchanged and in their positions.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from clew_activities.providers.errors import classify_event
from clew_activities.providers.fit_tools import FittedTools
from clew_activities.providers.reply import (
    PROVIDER_DATA_LIMIT,
    Call,
    DraftDecoder,
    StopReason,
    get_member,
    limit_id,
    parse_event,
    read_count,
    read_string,
)
from clew_activities.providers.sanitize import BoundedText, Budget, clean
from clew_workflows.contract.messages import ProviderData
from clew_workflows.contract.outcomes import Usage

# `pause_turn` and a full context window leave a reply unfinished, as the limit of tokens does.
_STOP_REASONS: Mapping[str, StopReason] = {
    "max_tokens": "length",
    "model_context_window_exceeded": "length",
    "pause_turn": "length",
    "tool_use": "tool_calls",
}

MAX_BLOCKS = 4096
"""Most content blocks in a reply's provider data; a reply with more has no provider data.

A block takes about 1 KB of memory while it grows.
"""


class _Block:
    """A content block that is still arriving. All blocks of a reply share one budget of provider data."""

    def __init__(self, kind: str, budget: Budget) -> None:
        self.kind = kind
        self.text = BoundedText(budget)
        # A signature, or redacted thinking: opaque, so a truncated one is useless.
        self.seal = BoundedText(budget)
        self.call: Call | None = None

    @property
    def needs_seal(self) -> bool:
        return self.kind in ("thinking", "redacted_thinking")

    @property
    def overflowed(self) -> bool:
        return self.text.overflowed or self.seal.overflowed

    def encode(self) -> dict[str, Any]:
        if self.kind == "text":
            return {"type": "text", "text": self.text.finish()}
        if self.kind == "thinking":
            return {"type": "thinking", "thinking": self.text.finish(), "signature": self.seal.finish()}
        return {"type": "redacted_thinking", "data": self.seal.finish()}


class AnthropicDecoder(DraftDecoder):
    """Folds the events of a message, or one complete `message`."""

    def __init__(self, provider: str, tools: FittedTools | None = None) -> None:
        super().__init__(tools)
        self._provider = provider
        self._budget = Budget(PROVIDER_DATA_LIMIT)
        self._blocks: dict[int, _Block] = {}
        self._too_many_blocks = False
        self._usage: dict[str, int] = {}

    def feed(self, event: str, data: str) -> None:
        """Fold one event; ignore unknown kinds of event.

        Raises:
            ProviderError: The event is an error.
            TruncatedStream: The event cannot be parsed.
        """
        payload = parse_event(data)
        kind = payload.get("type")
        if kind == "error" or event == "error" or payload.get("error"):
            raise classify_event(payload)
        index = payload.get("index")
        if kind == "message_start":
            self._count(get_member(payload.get("message"), "usage"))
        elif kind == "content_block_start" and isinstance(index, int):
            self._open(index, payload.get("content_block"))
        elif kind == "content_block_delta" and isinstance(index, int):
            self._extend(self._blocks.get(index), payload.get("delta"))
        elif kind == "message_delta":
            self._count(payload.get("usage"))
            self._stop(payload.get("delta"))
        elif kind == "message_stop":
            self.ended = True
        elif kind == "message":
            self._take_message(payload)

    def _take_message(self, message: Mapping[str, Any]) -> None:
        content = message.get("content")
        for index, block in enumerate(content if isinstance(content, list) else ()):
            self._open(index, block)
        self._count(message.get("usage"))
        self._stop(message)
        self.ended = True

    def _open(self, index: int, start: object) -> None:
        if len(self._blocks) == MAX_BLOCKS:
            # Blocks arrive one after another, so the earlier ones are complete and already in the draft.
            self._blocks.clear()
            self._too_many_blocks = True
        block = self._blocks[index] = _Block(read_string(get_member(start, "type")), self._budget)
        if block.kind == "tool_use":
            block.call = self.open_call(get_member(start, "id"), get_member(start, "name"))
            self.add_arguments(block.call, get_member(start, "input"))
        self._extend(block, start)

    def _extend(self, block: _Block | None, delta: object) -> None:
        """Append a delta, or a block's initial content, to the block: both use the same field names."""
        if block is None:
            return
        if block.kind == "text":
            text = read_string(get_member(delta, "text"))
            self.add_text(text)
            block.text.add(text)
        elif block.kind == "thinking":
            thinking = read_string(get_member(delta, "thinking"))
            self.add_thinking(thinking)
            block.text.add(thinking)
            block.seal.add(read_string(get_member(delta, "signature")))
        elif block.kind == "redacted_thinking":
            block.seal.add(read_string(get_member(delta, "data")))
        elif block.call is not None:
            self.add_arguments(block.call, get_member(delta, "partial_json"))

    def _stop(self, delta: object) -> None:
        reason = get_member(delta, "stop_reason")
        if not isinstance(reason, str):
            return
        if reason == "refusal":
            self.refusal = clean(_describe_refusal(get_member(delta, "stop_details")))
        self.stop_reason = _STOP_REASONS.get(reason, "stop")

    def _count(self, usage: object) -> None:
        """Store token counts. Each is of the complete message so far; compatible servers also send zeros later."""
        for name in ("input_tokens", "cache_creation_input_tokens", "cache_read_input_tokens", "output_tokens"):
            count = read_count(get_member(usage, name))
            if count is not None:
                self._usage[name] = max(count, self._usage.get(name, 0))
        read_tokens = self._usage.get("cache_read_input_tokens", 0)
        written_tokens = self._usage.get("cache_creation_input_tokens", 0)
        self.usage = Usage(
            input_tokens=self._usage.get("input_tokens", 0) + written_tokens + read_tokens,
            output_tokens=self._usage.get("output_tokens", 0),
            cached_input_tokens=read_tokens,
            written_input_tokens=written_tokens or None,
        )

    def make_provider_data(self) -> ProviderData | None:
        """Make what the API wants back: the ids of the calls, and the blocks; None: there are none."""
        blocks, calls = self._list_signed_blocks(), [{"id": limit_id(call.id)} for call in self.calls]
        data: ProviderData = {"provider": self._provider, "blocks": blocks}
        if any(call["id"] for call in calls):
            data["calls"] = calls
        return data if blocks or "calls" in data else None

    def _list_signed_blocks(self) -> list[dict[str, Any]]:
        """List the blocks that go back; none if one of them is incomplete, or they are too large."""
        if self._too_many_blocks:
            return []
        blocks = list(self._blocks.values())
        last = max((index for index, block in enumerate(blocks) if block.needs_seal), default=-1)
        retained = [block for block in blocks[: last + 1] if block.needs_seal or block.kind == "text"]
        # The API refuses a thinking block without its signature, and the other blocks without that block.
        if not retained or any(
            block.overflowed or (block.needs_seal and not block.seal.so_far) for block in retained
        ):
            return []
        encoded = [block.encode() for block in retained]
        return encoded if len(json.dumps(encoded, ensure_ascii=False).encode()) <= PROVIDER_DATA_LIMIT else []


def _describe_refusal(details: object) -> str:
    reasons = (read_string(get_member(details, "category")), read_string(get_member(details, "explanation")))
    return ": ".join(("the model refused", *filter(None, reasons)))
