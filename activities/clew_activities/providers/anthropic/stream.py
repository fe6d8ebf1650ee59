"""Folds the Messages API's event stream into a reply.

A reply's `provider_data` holds the ids of its tool calls, and in their order the blocks that the API wants back: its
thinking, the calls of tools that the provider ran itself with their results, texts with citations, and the texts
before the last of these; all blocks of a paused reply. The API verifies that thinking and what its tools have found
come back unchanged and in their positions. The container in which code ran is noted among the blocks.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from typing import Any

from clew_activities.providers.anthropic.messages import CONTAINER
from clew_activities.providers.anthropic.tools import RESULTS, SERVER_USE, ServerCalls
from clew_activities.providers.fit_tools import FittedTools
from clew_activities.providers.provider_errors import classify_event
from clew_activities.providers.reply import (
    PROVIDER_DATA_LIMIT,
    Call,
    DraftDecoder,
    StopReason,
    get_list,
    get_member,
    limit_id,
    measure,
    parse_event,
    read_count,
    read_index,
    read_string,
)
from clew_activities.providers.sanitize import BoundedText, Budget, clean, clean_value, parse_object
from clew_workflows.contract.messages import ProviderData
from clew_workflows.contract.outcomes import Usage
from clew_workflows.protocol import ModelReply

# A full context window leaves a reply unfinished, as the limit of tokens does.
_STOP_REASONS: Mapping[str, StopReason] = {
    "end_turn": "stop",
    "max_tokens": "length",
    "model_context_window_exceeded": "length",
    "pause_turn": "paused",
    "stop_sequence": "stop",
    "tool_use": "tool_calls",
}

_KINDS: Mapping[str, tuple[str, ...]] = {
    "text_delta": ("text",),
    "citations_delta": ("text",),
    "thinking_delta": ("thinking",),
    "signature_delta": ("thinking", "redacted_thinking"),
    "input_json_delta": ("tool_use", SERVER_USE),
}
"""The types of the blocks that a delta may belong to."""

_TEXT_FIELDS = {"text": "text", "thinking": "thinking", SERVER_USE: "partial_json"}
"""The field of a delta that holds a block's text, by the type of the block."""

MAX_BLOCKS = 4096
"""Most content blocks in a reply's provider data; a reply with more has no provider data.

A block takes about 1 KB of memory while it grows.
"""


class _Block:
    """A content block that is still arriving. All blocks of a reply share one budget of provider data.

    Attributes:
        kind: Its type.
        start: The call of a server's tool as it began, or its whole result; empty: it is another block.
        text: Its text, or the arguments of a call of a server's tool.
        seal: A signature, or redacted thinking: opaque, so a truncated one is useless.
        citations: The citations of a text, as they came.
        offset: The characters of the reply's text before this one.
        call: The tool call that it is.
        start_input: Whether the call has the arguments of its beginning.
        has_stopped: Whether the server has said that it is complete.
        is_closed: Whether it has been read as a complete block.
        is_late: Whether it took arguments after the next block had begun.
        is_cut: Whether something of it is left out, since it was too large.
    """

    def __init__(self, kind: str, start: Mapping[str, Any], budget: Budget, offset: int) -> None:
        self.kind = kind
        self.start = start if kind == SERVER_USE or kind in RESULTS else {}
        self.is_cut = False
        self._budget = budget
        self.text = BoundedText(budget)
        self.seal = BoundedText(budget)
        self.citations: list[Any] = []
        self.offset = offset
        self.call: Call | None = None
        self.start_input = False
        self.has_stopped = False
        self.is_closed = False
        self.is_late = False

    def takes(self, kinds: Collection[str]) -> bool:
        """Whether a delta for blocks of these types may belong to it."""
        is_full = self.call is not None and self.call.has_all_arguments and not self.start_input
        return self.kind in kinds and not self.has_stopped and not is_full

    @property
    def needs_seal(self) -> bool:
        return self.kind in ("thinking", "redacted_thinking")

    @property
    def is_own(self) -> bool:
        """Whether only the provider can have written it."""
        return self.needs_seal or self.kind == SERVER_USE or self.kind in RESULTS or bool(self.citations)

    def is_damaged(self, *, signs_thinking: bool) -> bool:
        """Whether the provider would refuse it."""
        if self.is_cut or self.text.overflowed or self.seal.overflowed:
            return True
        if not isinstance(self.start.get("id" if self.kind == SERVER_USE else "tool_use_id", ""), str):
            return True
        # The API refuses a thinking block without its signature, and the other blocks without that block.
        needs_seal = self.needs_seal and (signs_thinking or self.kind == "redacted_thinking")
        return (needs_seal and not self.seal.so_far) or (self.kind == SERVER_USE and self.read_input() is None)

    def cite(self, citations: list[Any]) -> None:
        """Take citations, if the budget has as much left."""
        if self._take(citations):
            self.citations += citations

    def close(self) -> None:
        """Keep the call or the result, if the budget has as much left."""
        self.is_closed = True
        if self.start and not self._take(self.start):
            self.start = {}

    def _take(self, value: object) -> bool:
        size = measure(value)
        self.is_cut = self.is_cut or size > self._budget.left
        if not self.is_cut:
            self._budget.left -= size
        return not self.is_cut

    def read_input(self) -> dict[str, Any] | None:
        """Read the arguments of a call of a server's tool; None: they are incomplete."""
        raw = self.text.so_far
        if raw.strip():
            return parse_object(raw, PROVIDER_DATA_LIMIT)
        value = self.start.get("input")
        return value if isinstance(value, dict) else {}

    def encode(self) -> dict[str, Any]:
        """Make the block as it goes back.

        Raises:
            ValueError: It is nested too deeply.
        """
        if self.kind == "text":
            text = {"type": "text", "text": self.text.finish()}
            return text | ({"citations": clean_value(self.citations)} if self.citations else {})
        if self.kind == "thinking":
            return {"type": "thinking", "thinking": self.text.finish(), "signature": self.seal.finish()}
        if self.kind == "redacted_thinking":
            return {"type": "redacted_thinking", "data": self.seal.finish()}
        block: dict[str, Any] = clean_value(dict(self.start))
        return block | {"input": self.read_input()} if self.kind == SERVER_USE else block


class AnthropicDecoder(DraftDecoder):
    """Folds the events of a message, or one complete `message`.

    `open_uses`: the calls of a server's tools whose results come with this reply, by their ids. `signs_thinking`: the
    server takes no thinking back without its signature.
    """

    def __init__(
        self,
        provider: str,
        tools: FittedTools | None = None,
        open_uses: Mapping[str, Mapping[str, Any]] | None = None,
        *,
        signs_thinking: bool = True,
    ) -> None:
        super().__init__(tools)
        self._signs_thinking = signs_thinking
        self._provider = provider
        self._budget = Budget(PROVIDER_DATA_LIMIT)
        self._blocks: list[_Block] = []
        self._by_index: dict[int, _Block] = {}
        self._too_many_blocks = False
        self._usage: dict[str, int] = {}
        self._server_calls = ServerCalls(dict(open_uses or {}))
        self._newest: _Block | None = None
        self._characters = 0
        self._container = ""

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
        index = read_index(payload.get("index"))
        if kind == "message_start":
            self._count(get_member(payload.get("message"), "usage"))
        elif kind == "content_block_start":
            self._open(index, payload.get("content_block"))
        elif kind == "content_block_delta":
            self._extend(self._find(index, payload.get("delta")), payload.get("delta"))
        elif kind == "content_block_stop":
            self._end(self._newest if index is None else self._by_index.get(index))
        elif kind == "message_delta":
            self._count(payload.get("usage"))
            self._stop(payload.get("delta"))
        elif kind == "message_stop":
            self.ended = True
        elif kind == "message":
            self._take_message(payload)

    def _take_message(self, message: Mapping[str, Any]) -> None:
        for index, block in enumerate(get_list(message, "content")):
            self._open(index, block)
        self._count(message.get("usage"))
        self._stop(message)
        self.ended = True

    def _find(self, index: int | None, delta: object) -> _Block | None:
        """Find the block of a delta; None: there is none.

        It is the one that has the index. Servers also leave indices out, or count another way: then it is the newest
        block of the delta's kind. A text needs no beginning.
        """
        kinds = _KINDS.get(read_string(get_member(delta, "type")), ())
        indexed = None if index is None else self._by_index.get(index)
        if indexed is not None and indexed.takes(kinds):
            indexed.is_late = indexed.is_late or (indexed is not self._newest and indexed.call is not None)
            return indexed
        # A call that has an index of its own is another one.
        is_unknown = index is not None and indexed is None and "tool_use" in kinds
        if self._newest is not None and self._newest.takes(kinds) and not is_unknown:
            return self._newest
        if kinds and kinds[0] in ("text", "thinking") and read_string(get_member(delta, kinds[0])):
            return self._open(index, {"type": kinds[0]})
        if read_string(get_member(delta, "partial_json")).strip():
            self.break_reply("the server did not say which call some arguments belong to")
        return None

    def _end(self, block: _Block | None) -> None:
        if block is not None:
            block.has_stopped = True
        self._close(block)

    def _open(self, index: int | None, start: object) -> _Block:
        # Some servers do not say that a block has ended.
        self._close(self._newest)
        if len(self._blocks) == MAX_BLOCKS:
            # Blocks arrive one after another, so the earlier ones are complete and already in the draft.
            self._blocks.clear()
            self._by_index.clear()
            self._too_many_blocks = True
        fields = start if isinstance(start, dict) else {}
        block = _Block(read_string(fields.get("type")), fields, self._budget, self._characters)
        self._newest = block
        self._blocks.append(block)
        if index is not None:
            self._by_index[index] = block
        if block.kind == "tool_use":
            block.call = self.open_call(fields.get("id"), fields.get("name"))
            block.start_input = bool(fields.get("input"))
            self.add_arguments(block.call, fields.get("input"))
        self._extend(block, start)
        return block

    def _extend(self, block: _Block | None, delta: object) -> None:
        """Append a delta, or a block's initial content, to the block: both use the same field names."""
        if block is None:
            return
        if block.call is not None:
            piece = read_string(get_member(delta, "partial_json"))
            if piece.strip() and block.start_input:
                # They stand in the beginning already, of servers that repeat them.
                block.start_input = False
                block.call.restart()
            self.add_arguments(block.call, piece)
            return
        piece = read_string(get_member(delta, _TEXT_FIELDS.get(block.kind, "")))
        block.text.add(piece)
        if block.kind == "text":
            self.add_text(piece)
            self._characters += len(clean(piece))
            if citation := get_member(delta, "citation"):
                block.cite([citation])
            if isinstance(known := get_member(delta, "citations"), list):
                block.cite(known)
        elif block.kind == "thinking":
            self.add_thinking(piece)
            block.seal.add(read_string(get_member(delta, "signature")))
        elif block.kind == "redacted_thinking":
            block.seal.add(read_string(get_member(delta, "data")))

    def _close(self, block: _Block | None) -> None:
        """Take from a complete block what people read: the calls of the provider's tools, and citations."""
        if block is None or block.is_closed:
            return
        if block.kind == SERVER_USE:
            self._server_calls.take_use({**block.start, "input": block.read_input()})
        elif block.kind in RESULTS:
            self._server_calls.take_result(block.start, self)
        for citation in block.citations:
            self.add_citation(
                get_member(citation, "url"),
                get_member(citation, "title"),
                get_member(citation, "cited_text"),
                start=block.offset,
                end=self._characters,
            )
        block.close()

    def _stop(self, delta: object) -> None:
        self._container = limit_id(read_string(get_member(get_member(delta, "container"), "id"))) or self._container
        reason = get_member(delta, "stop_reason")
        if not isinstance(reason, str):
            return
        self._close(self._newest)
        if reason == "refusal":
            self.refusal = clean(_describe_refusal(get_member(delta, "stop_details")))
        self.stop_reason = _STOP_REASONS.get(reason, "stop")
        if self.calls and self.stop_reason == "paused":
            # Their results come first; the API goes on after these.
            self.stop_reason = "tool_calls"
        if self.stop_reason not in ("paused", "tool_calls"):
            self._server_calls.drop_open(self)

    def _count(self, usage: object) -> None:
        """Store token counts. Each is of the complete message so far; compatible servers also send zeros later."""
        for name in ("input_tokens", "cache_creation_input_tokens", "cache_read_input_tokens", "output_tokens"):
            count = read_count(get_member(usage, name))
            if count is not None:
                self._usage[name] = max(count, self._usage.get(name, 0))
        read_tokens = self._usage.get("cache_read_input_tokens", 0)
        written_tokens = self._usage.get("cache_creation_input_tokens", 0)
        long_written = read_count(get_member(get_member(usage, "cache_creation"), "ephemeral_1h_input_tokens"))
        self._usage["long"] = max(long_written or 0, self._usage.get("long", 0))
        self.usage = Usage(
            input_tokens=self._usage.get("input_tokens", 0) + written_tokens + read_tokens,
            output_tokens=self._usage.get("output_tokens", 0),
            cached_input_tokens=read_tokens,
            written_input_tokens=written_tokens or None,
            long_written_input_tokens=self._usage["long"] or None,
        )

    def finish(self) -> ModelReply:
        """Return the reply; raises as `Decoder.finish` does."""
        calls = [block for block in self._blocks if block.call is not None]
        late = next((place for place, block in enumerate(calls) if block.is_late), None)
        if late is not None and any(not block.call.raw.so_far.strip() for block in calls[late + 1 :] if block.call):
            self.break_reply("the server did not say which call some arguments belong to")
        self._drop_repeated_calls()
        return super().finish()

    def _drop_repeated_calls(self) -> None:
        """Drop the calls that a server has sent twice, with one id: once without arguments, or the same again."""
        kept: dict[tuple[str, str], list[Call]] = {}
        for call in sorted(self.calls, key=lambda call: not call.raw.so_far.strip()):
            others = kept.setdefault((call.id, call.name), [])
            arguments = call.raw.so_far.strip()
            if not (call.id and others and (not arguments or any(other.repeats(arguments) for other in others))):
                others.append(call)
        self.calls = [call for call in self.calls if any(call is one for one in kept[call.id, call.name])]

    def make_provider_data(self) -> ProviderData | None:
        """Make what the API wants back: the ids of the calls, and the blocks; None: there are none."""
        blocks, calls = self._list_own_blocks(), [{"id": limit_id(call.id)} for call in self.calls]
        data: ProviderData = {"provider": self._provider, "blocks": blocks}
        if any(call["id"] for call in calls):
            data["calls"] = calls
        return data if blocks or "calls" in data else None

    def _list_own_blocks(self) -> list[dict[str, Any]]:
        """List the blocks that go back; none if one of them is incomplete, or they are too large."""
        if self._too_many_blocks:
            return []
        blocks = self._blocks
        # A paused reply goes back as it came.
        is_last = [block.is_own or self.stop_reason == "paused" for block in blocks]
        last = max((index for index, holds in enumerate(is_last) if holds), default=-1)
        retained = [block for block in blocks[: last + 1] if block.is_own or block.kind == "text"]
        if not retained or any(block.is_damaged(signs_thinking=self._signs_thinking) for block in retained):
            return []
        try:
            encoded = [block.encode() for block in retained]
            if self._container:
                encoded.append({"type": CONTAINER, "id": self._container})
            size = len(json.dumps(encoded, ensure_ascii=False).encode())
        except ValueError:
            return []
        return encoded if size <= PROVIDER_DATA_LIMIT else []


def _describe_refusal(details: object) -> str:
    reasons = (read_string(get_member(details, "category")), read_string(get_member(details, "explanation")))
    return ": ".join(("the model refused", *filter(None, reasons)))
