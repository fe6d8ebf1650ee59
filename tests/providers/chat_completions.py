"""The wire format of Chat Completions: streams with each server's quirks, and each server's form of an error."""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from tests.providers.official_types import build_event
from tests.providers.strict_server import DROP, Billing, Call, Exchange, Refusal, Sent, ServerSentEvents, Turn

Thinking = Literal["reasoning_content", "reasoning", "reasoning_details", "thinking_chunks", "tags", "closing_tag"]
Deltas = Literal["pieces", "whole", "same_index", "no_index", "pieces_without_index", "text_index", "cumulative"]
UsagePlace = Literal["own_chunk", "last_chunk", "every_chunk", "choice", "x_groq", "nowhere"]


def make_error(refusal: Refusal) -> Any:
    """Make an error in OpenAI's form."""
    error = {"message": refusal.message, "type": refusal.type, "param": refusal.param, "code": refusal.code}
    return {"error": error}


@dataclass(frozen=True)
class ChatCompletions(ServerSentEvents):
    """Chat Completions as one server speaks it.

    Attributes:
        thinking: The field of a delta that has the thinking. `tags`: the text has it between `<think>` tags;
            `closing_tag`: before the closing one alone.
        returns: Whether the thinking must come back with its message, in the same field.
        deltas: How tool calls are cut into deltas.
            `pieces`: as OpenAI does, with an index; the id and the name come first.
            `whole`: each in one chunk. `same_index`: so, but each has the index 0. `no_index`: so, without an index.
            `pieces_without_index`: in pieces, which only their order tells apart.
            `text_index`: as `pieces`, but the index is a text. `cumulative`: each piece has all before it, too.
        later: What later deltas of a call have beside their piece of the arguments, and in `function`.
        ends_with_null: Whether the last delta of a call has null for its arguments.
        beside: What every delta has beside its own fields, such as nulls, and the finish reason until there is one.
        cut_reason: The finish reason of a reply with calls that the token limit cuts.
        make_id: Makes a call's id from its number among the server's calls, and its name.
        signs: Makes what is the provider's own on a call, from its position in the reply; None: nothing.
        sign: The field of the delta and of the message that has a thinking's signature; None: there is none.
        usage: Where the usage is.
        usage_needs_option: Whether usage is only sent to a request with `stream_options.include_usage`.
        excludes_thinking: Whether `completion_tokens` has not those of the thinking, and only `total_tokens` does.
        finish_with_calls: The finish reason of a reply with tool calls.
        opening: Chunks before the reply.
        closing: Chunks after the reply.
        repeats_end: Whether the chunk with the finish reason comes twice.
        name_suffix: What stands after a tool's name.
        comments: Whether comments stand between the events.
        fault: The chunk that says that the reply failed, or a line of the stream that says it.
        leak: Makes the text of calls as the model writes them, which the server sometimes leaves there; None: never.
        refuse: Makes the JSON of an error response.
        data: What begins a line of data.
        chunk: The type of a chunk in the provider's own package; None: no package has one for all that is sent.
        path: The path of a request.
    """

    thinking: Thinking = "reasoning_content"
    returns: bool = False
    deltas: Deltas = "pieces"
    later: tuple[Mapping[str, Any], Mapping[str, Any]] = ({}, {})
    ends_with_null: bool = False
    beside: tuple[Mapping[str, Any], str | None] = ({}, None)
    cut_reason: str = "length"
    make_id: Callable[[int, str], str] = lambda number, _name: f"call_{_hash(number, 24)}"
    signs: Callable[[int, int], Mapping[str, Any] | None] = lambda _position, _number: None
    sign: str | None = None
    usage: UsagePlace = "own_chunk"
    usage_needs_option: bool = True
    excludes_thinking: bool = False
    finish_with_calls: str = "tool_calls"
    opening: tuple[Mapping[str, Any], ...] = ()
    closing: tuple[Mapping[str, Any], ...] = ()
    repeats_end: bool = False
    name_suffix: str = ""
    comments: bool = False
    leak: Callable[[Sequence[Call]], str] | None = None
    fault: Mapping[str, Any] | str = field(
        default_factory=lambda: {"error": {"message": "The server had an error", "type": "server_error", "code": 500}}
    )
    refuse: Callable[[Refusal], Any] = make_error
    data: str = "data: "
    chunk: Any = None
    path: str = "/chat/completions"

    def encode_refusal(self, refusal: Refusal) -> Any:
        """Make the JSON of an error response."""
        return self.refuse(refusal)

    def encode(self, turn: Turn, exchange: Exchange, thinking: str, billing: Billing) -> tuple[list[Any], Sent]:
        """Encode a reply as chunks."""
        if turn.leaks and self.leak:
            turn = replace(turn, text=f"{turn.text}{self.leak(turn.calls)}", calls=())
        number = sum(len(sent.calls) for sent in exchange.sent)
        ids = [self.make_id(number + place, call.name) for place, call in enumerate(turn.calls)]
        owned = [dict(self.signs(place, number + place) or {}) for place in range(len(turn.calls))]
        deltas = [
            {"role": "assistant", "content": ""},
            *self._think(thinking, number),
            *_split_text(turn.text),
            *self._call(turn.calls, ids, owned),
        ]
        reason: str = turn.ending
        if turn.calls:
            reason = self.finish_with_calls if turn.ending == "stop" else self.cut_reason
        envelope = {
            "id": "chatcmpl-1",
            "object": "chat.completion.chunk",
            "created": 1,
            "model": exchange.body["model"],
        }
        events: list[Any] = [{**envelope, **chunk} for chunk in self.opening]
        beside, unfinished = self.beside
        events += [
            {**envelope, "choices": [{"index": 0, "delta": {**beside, **delta}, "finish_reason": unfinished}]}
            for delta in deltas
        ]
        half = len(events) - 1
        events.append({**envelope, "choices": [{"index": 0, "delta": {}, "finish_reason": reason}]})
        if self.repeats_end:
            events.append(dict(events[-1]))
        events += [{**envelope, **chunk} for chunk in self.closing]
        self._add_usage(events, envelope, exchange, billing, len(thinking) // 4 + 1 if thinking else 0)
        if self.chunk:
            events = [build_event(self.chunk, event) for event in events]
        if self.comments:
            events = [piece for event in events for piece in (": PROCESSING", event)]
            half *= 2
        events.append("[DONE]")
        match turn.fault.when if turn.fault else None:
            case "inside":
                fault = self.fault if isinstance(self.fault, str) else {**envelope, **self.fault}
                events = [*events[:half], fault, *(["[DONE]"] if isinstance(fault, str) else [])]
            case "cut":
                events = [*events[:half], DROP]
            case "after":
                events[-1] = DROP
        calls = dict(zip(ids, owned, strict=True))
        names = {call_id: call.name for call_id, call in zip(ids, turn.calls, strict=True)}
        return events, Sent(thinking, self._keep(thinking, number, turn.text), calls, turn.text, names)

    def _think(self, thinking: str, number: int) -> Iterator[dict[str, Any]]:
        if not thinking:
            return
        half = len(thinking) // 2
        for is_first, piece in ((True, thinking[:half]), (False, thinking[half:])):
            match self.thinking:
                case "reasoning_details":
                    detail = {"type": "reasoning.text", "text": piece, "format": "google-gemini-v1", "index": 0}
                    yield {"content": "", "reasoning": piece, "reasoning_details": [detail]}
                case "thinking_chunks":
                    yield {"content": [{"type": "thinking", "thinking": [{"type": "text", "text": piece}]}]}
                case "tags":
                    text = f"<think>{piece}" if is_first else f"{piece}</think>\n\n"
                    # MiniMax sends it a second time: gh:vellum-ai/vellum-assistant#34556
                    yield {"content": text, "reasoning_content": piece}
                case "closing_tag":
                    yield {"content": piece if is_first else f"{piece}\n</think>\n\n"}
                case field_name:
                    yield {"content": None, field_name: piece}
        if self.thinking == "reasoning_details":
            yield {"content": "", "reasoning_details": [_make_encrypted(number)]}
        if self.sign:
            yield {"content": None, self.sign: [make_thinking_block(thinking, number)]}

    def _keep(self, thinking: str, number: int, text: str) -> dict[str, Any]:
        """Make the fields that must come back."""
        if not thinking or not self.returns:
            return {}
        if self.sign:
            return {self.sign: [make_thinking_block(thinking, number)]}
        match self.thinking:
            case "reasoning_details":
                detail = {"type": "reasoning.text", "text": thinking, "format": "google-gemini-v1", "index": 0}
                return {"reasoning_details": [detail, _make_encrypted(number)]}
            case "thinking_chunks":
                parts: list[Any] = [{"type": "thinking", "thinking": [{"type": "text", "text": thinking}]}]
                return {"content": parts + ([{"type": "text", "text": text}] if text else [])}
            case "tags":
                return {"content": f"<think>{thinking}</think>\n\n{text}"}
            case field_name:
                return {field_name: thinking}

    def _call(self, calls: tuple[Call, ...], ids: list[str], owned: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
        for position, (call, call_id, extra) in enumerate(zip(calls, ids, owned, strict=True)):
            raw = call.arguments if isinstance(call.arguments, str) else json.dumps(dict(call.arguments))
            index: dict[str, Any] = {"index": position}
            match self.deltas:
                case "same_index":
                    index = {"index": 0}
                case "no_index" | "pieces_without_index":
                    index = {}
                case "text_index":
                    index = {"index": str(position)}
            head = {**index, "id": call_id, "type": "function", **extra}
            if self.deltas in ("whole", "same_index", "no_index"):
                yield {"tool_calls": [{**head, "function": {"name": call.name + self.name_suffix, "arguments": raw}}]}
                continue
            yield {"tool_calls": [{**head, "function": {"name": call.name + self.name_suffix, "arguments": ""}}]}
            half = len(raw) // 2
            for piece in (raw[:1], raw[:half], raw) if self.deltas == "cumulative" else (raw[:half], raw[half:]):
                if piece:
                    beside, inside = self.later
                    yield {"tool_calls": [{**index, **beside, "function": {**inside, "arguments": piece}}]}
            if self.ends_with_null:
                yield {"tool_calls": [{**index, "id": "", "function": {"arguments": None}}]}

    def _add_usage(
        self, events: list[Any], envelope: Mapping[str, Any], exchange: Exchange, billing: Billing, thought: int
    ) -> None:
        wanted = (exchange.body.get("stream_options") or {}).get("include_usage")
        if self.usage == "nowhere" or (self.usage_needs_option and not wanted):
            return
        output = billing.output_tokens - (thought if self.excludes_thinking else 0)
        total = billing.input_tokens + billing.output_tokens
        usage = {"prompt_tokens": billing.input_tokens, "completion_tokens": output, "total_tokens": total}
        match self.usage:
            case "own_chunk":
                events.append({**envelope, "choices": [], "usage": usage})
            case "last_chunk":
                events[-1]["usage"] = usage
            case "choice":
                events[-1]["choices"][0]["usage"] = usage
            case "x_groq":
                events[-1]["x_groq"] = {"id": "req_1", "usage": usage}
            case "every_chunk":
                # It is cumulative: the last one counts.
                for number, event in enumerate(events, 1):
                    share = output * number // len(events)
                    counts = {"completion_tokens": share, "total_tokens": total - output + share}
                    event["usage"] = usage | counts


def _split_text(text: str) -> list[dict[str, Any]]:
    half = len(text) // 2
    return [{"content": piece} for piece in (text[:half], text[half:]) if piece]


def _make_encrypted(number: int) -> dict[str, Any]:
    data = make_signature(number)
    return {
        "type": "reasoning.encrypted",
        "data": data,
        "format": "google-gemini-v1",
        "index": 1,
        "id": f"rs_{number}",
    }


def make_thinking_block(thinking: str, number: int) -> dict[str, Any]:
    """Make a block of thinking with its signature, in Anthropic's form."""
    return {"type": "thinking", "thinking": thinking, "signature": make_signature(number)}


def make_signature(number: int) -> str:
    """Make a signature: base64 with its special characters and padding."""
    return base64.b64encode(hashlib.sha512(f"signature {number}".encode()).digest()[:61] + b"\xff\xfe").decode()


def _hash(number: int, size: int) -> str:
    """Make a text of letters and digits that only this number has."""
    digest = base64.b64encode(hashlib.sha512(str(number).encode()).digest()).decode()
    return digest.replace("+", "a").replace("/", "b")[:size]


def make_id(prefix: str, size: int) -> Callable[[int, str], str]:
    """Make ids of a prefix and so many letters and digits."""
    return lambda number, _name: prefix + _hash(number, size)
