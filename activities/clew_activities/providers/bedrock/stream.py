"""Folds the event stream of Converse into a reply, and reads the errors of Amazon Bedrock.

A reply's `provider_data` holds the ids of its tool calls, its reasoning unchanged, and the text blocks before the
last of it: models verify that their reasoning comes back unchanged and in its position.
"""

from __future__ import annotations

import json
from base64 import b64decode, b64encode
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from clew_activities.providers.aws import EXCEPTION
from clew_activities.providers.fit_tools import FittedTools
from clew_activities.providers.provider_errors import (
    ErrorAnswer,
    ProviderError,
    TruncatedStream,
    classify_event,
    classify_response,
)
from clew_activities.providers.reply import (
    PROVIDER_DATA_LIMIT,
    Call,
    DraftDecoder,
    StopReason,
    get_list,
    get_member,
    limit_id,
    parse_event,
    read_count,
    read_index,
    read_string,
)
from clew_activities.providers.sanitize import BoundedText, Budget, parse_json
from clew_workflows.contract.messages import ProviderData
from clew_workflows.contract.outcomes import Usage
from clew_workflows.protocol import ModelReply

_STOP_REASONS: Mapping[str, StopReason] = {
    "max_tokens": "length",
    "model_context_window_exceeded": "length",
    "tool_use": "tool_calls",
}
_REFUSALS: Mapping[str, str] = {
    "content_filtered": "the content filter of Amazon Bedrock stopped the reply",
    "guardrail_intervened": "a guardrail of Amazon Bedrock intervened",
    "refusal": "the model refused",
}
_MALFORMED = ("malformed_tool_use", "malformed_model_output")
"""The model wrote what Bedrock cannot read; another attempt may succeed."""

MAX_BLOCKS = 4096
"""Most content blocks in a reply's provider data; a reply with more has no provider data."""


class _Block:
    """A content block that is still arriving. All blocks of a reply share one budget of provider data."""

    def __init__(self, budget: Budget) -> None:
        self.kind = ""
        self.text = BoundedText(budget)
        self.signature = BoundedText(budget)
        # Texts of base64, one a line.
        self.redacted = BoundedText(budget)
        self.call: Call | None = None
        self.has_stopped = False

    def takes(self, kind: str) -> bool:
        """Whether a delta of a kind may belong to it."""
        is_full = self.call is not None and self.call.has_all_arguments
        return self.kind in ("", kind) and not self.has_stopped and not is_full

    @property
    def overflowed(self) -> bool:
        return self.text.overflowed or self.signature.overflowed or self.redacted.overflowed

    def encode(self) -> dict[str, Any]:
        """Encode a text or reasoning as a block of a request.

        Raises:
            ValueError: The redacted reasoning is not base64.
        """
        if self.kind == "text":
            return {"text": self.text.finish()}
        if pieces := self.redacted.finish().split():
            whole = pieces[0] if len(pieces) == 1 else _join_base64(pieces)
            return {"reasoningContent": {"redactedContent": whole}}
        reasoning = {"text": self.text.finish()}
        if signature := self.signature.finish():
            reasoning["signature"] = signature
        return {"reasoningContent": {"reasoningText": reasoning}}


def _join_base64(pieces: list[str]) -> str:
    return b64encode(b"".join(b64decode(piece, validate=True) for piece in pieces)).decode()


class BedrockDecoder(DraftDecoder):
    """Folds the events of ConverseStream, or the one complete reply of Converse."""

    def __init__(self, provider: str, model: str, tools: FittedTools | None = None) -> None:
        super().__init__(tools)
        self._provider = provider
        self._model = model
        self._budget = Budget(PROVIDER_DATA_LIMIT)
        self._blocks: list[_Block] = []
        self._by_index: dict[int, _Block] = {}
        self._newest: _Block | None = None
        self._too_many_blocks = False
        self._was_guarded = False
        self._malformed: str | None = None

    def feed(self, event: str, data: str) -> None:
        """Fold one event; ignore unknown kinds of event.

        Raises:
            ProviderError: The event is an error.
            TruncatedStream: The event cannot be parsed.
        """
        payload = parse_event(data)
        if event == EXCEPTION:
            raise classify_event(payload)
        index = read_index(payload.get("contentBlockIndex"))
        if event == "contentBlockStart":
            self._open(index, payload.get("start"))
        elif event == "contentBlockDelta":
            self._extend(self._find(index, payload.get("delta")), payload.get("delta"))
        elif event == "contentBlockStop":
            block = self._newest if index is None else self._by_index.get(index)
            if block is not None:
                block.has_stopped = True
        elif event == "messageStop":
            self._stop(payload)
        elif event == "metadata":
            self._count(payload.get("usage"))
            # It is the last event. A stream without it has ended with a reason to stop.
            self.ended = True
        elif event == "message":
            self._take_message(payload)

    def _take_message(self, reply: Mapping[str, Any]) -> None:
        """Take a complete reply. Its reasoning and its arguments have other forms than in a stream."""
        for index, block in enumerate(get_list(get_member(reply.get("output"), "message"), "content")):
            opened = self._open(index, block)
            reasoning = get_member(block, "reasoningContent")
            text = get_member(reasoning, "reasoningText")
            self._extend(opened, {**block, "reasoningContent": text or reasoning} if reasoning else block)
        self._stop(reply)
        self._count(reply.get("usage"))
        self.ended = True

    def _find(self, index: int | None, delta: object) -> _Block | None:
        """Find the block of a delta: the one with its index, or else the newest of its kind; None: there is none.

        Blocks of text and of reasoning begin with their first delta.
        """
        kind = next((name for name in ("toolUse", "reasoningContent") if get_member(delta, name)), "text")
        indexed = None if index is None else self._by_index.get(index)
        if indexed is not None and indexed.takes(kind):
            return indexed
        is_unknown = indexed is None and index is not None
        if self._newest is not None and not is_unknown and self._newest.takes(kind):
            return self._newest
        if kind != "toolUse":
            return self._open(index, None)
        if get_member(get_member(delta, "toolUse"), "input"):
            self.break_reply("the server did not say which call some arguments belong to")
        return None

    def _open(self, index: int | None, start: object) -> _Block:
        if len(self._blocks) == MAX_BLOCKS:
            # Blocks arrive one after another, so the earlier ones are complete and already in the draft.
            self._blocks.clear()
            self._by_index.clear()
            self._too_many_blocks = True
        block = self._newest = _Block(self._budget)
        self._blocks.append(block)
        if index is not None:
            self._by_index[index] = block
        call = get_member(start, "toolUse")
        if isinstance(call, dict):
            block.kind = "toolUse"
        # The calls of tools that Bedrock runs itself are not the session's.
        if isinstance(call, dict) and call.get("type") != "server_tool_use":
            block.call = self.open_call(call.get("toolUseId"), call.get("name"))
        return block

    def _extend(self, block: _Block | None, delta: object) -> None:
        """Append a delta to its block."""
        if block is None:
            return
        if block.call is not None:
            self.add_arguments(block.call, get_member(get_member(delta, "toolUse"), "input"))
        elif text := read_string(get_member(delta, "text")):
            block.kind = block.kind or "text"
            self.add_text(text)
            block.text.add(text)
        elif isinstance(reasoning := get_member(delta, "reasoningContent"), dict):
            block.kind = block.kind or "reasoningContent"
            thinking = read_string(reasoning.get("text"))
            self.add_thinking(thinking)
            block.text.add(thinking)
            block.signature.add(read_string(reasoning.get("signature")))
            if redacted := read_string(reasoning.get("redactedContent")):
                block.redacted.add(f"{redacted}\n")
        elif isinstance(citation := get_member(delta, "citation"), dict):
            url = get_member(get_member(citation.get("location"), "web"), "url")
            self.add_citation(url or citation.get("source"), citation.get("title"))

    def _stop(self, payload: Mapping[str, Any]) -> None:
        reason = payload.get("stopReason")
        if not isinstance(reason, str):
            return
        if reason in _REFUSALS:
            # The text is what a guardrail says in the model's place.
            said = self.text.strip()
            self.refusal = f"{_REFUSALS[reason]}: {said}" if said else _REFUSALS[reason]
            self._was_guarded = reason == "guardrail_intervened"
        if reason in _MALFORMED:
            self._malformed = reason
        self.stop_reason = _STOP_REASONS.get(reason, "stop")

    def _count(self, usage: object) -> None:
        """Store token counts. The input's does not include what was read from the cache or written to it."""
        read_tokens = read_count(get_member(usage, "cacheReadInputTokens")) or 0
        written_tokens = read_count(get_member(usage, "cacheWriteInputTokens")) or 0
        self.usage = Usage(
            input_tokens=(read_count(get_member(usage, "inputTokens")) or 0) + written_tokens + read_tokens,
            output_tokens=read_count(get_member(usage, "outputTokens")) or 0,
            cached_input_tokens=read_tokens,
            written_input_tokens=written_tokens or None,
        )

    def finish(self) -> ModelReply:
        """Return the reply; raises as `Decoder.finish` does."""
        if self._malformed:
            raise TruncatedStream(f"the model wrote what Amazon Bedrock cannot read ({self._malformed})")
        # Of a prompt that a guardrail refuses, the model has written nothing.
        self.refuses_prompt = self._was_guarded and self.ended and not self.usage.output_tokens
        return super().finish()

    def make_provider_data(self) -> ProviderData | None:
        """Make what the model wants back: the ids of the calls, and the blocks; None: there are none."""
        blocks, calls = self._list_blocks_sent_back(), [{"id": limit_id(call.id)} for call in self.calls]
        data: ProviderData = {"provider": self._provider, "blocks": blocks, "model": self._model}
        if any(call["id"] for call in calls):
            data["calls"] = calls
        return data if blocks or "calls" in data else None

    def _list_blocks_sent_back(self) -> list[dict[str, Any]]:
        """List the blocks that go back; none if one of them is incomplete, or they are too large."""
        if self._too_many_blocks:
            return []
        blocks = self._blocks
        last = max((place for place, block in enumerate(blocks) if block.kind == "reasoningContent"), default=-1)
        retained = [block for block in blocks[: last + 1] if block.kind in ("text", "reasoningContent")]
        if not retained or any(block.overflowed for block in retained):
            return []
        try:
            encoded = [block.encode() for block in retained]
        except ValueError:
            return []
        return encoded if len(json.dumps(encoded, ensure_ascii=False).encode()) <= PROVIDER_DATA_LIMIT else []


def read_bedrock_error(answer: ErrorAnswer) -> ProviderError:
    """Classify an error response. A header names AWS's exception, sometimes with a namespace: `Name:http://…`."""
    value = parse_json(answer.body)
    fields = value if isinstance(value, dict) else {"message": answer.body}
    # `__type` is the same in the body, with a namespace before it.
    kind = answer.headers.get("x-amzn-errortype", "").partition(":")[0] or read_string(fields.get("__type"))
    message = read_string(fields.get("message")) or read_string(fields.get("Message"))
    payload = {"type": kind.rpartition("#")[2], "message": message or answer.body}
    return classify_response(replace(answer, body=json.dumps(payload)))
