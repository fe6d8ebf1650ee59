"""The draft of a reply that every decoder fills: each size has a limit, each string can be encoded.

Text and thinking over their caps end in `[truncated: N bytes]`. Of more than `MAX_TOOL_CALLS` tool calls the first
are kept, and the text says how many were dropped. A call without a name is called `unnamed`, which no tool is, so
that the model reads that there is no such tool. Raw arguments share one cap; a call whose arguments do not
fit is malformed. Provider data over its cap is dropped: the provider would refuse a part of it.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any, Literal

from clew_activities.providers.errors import ContentRefused, EmptyReply, OutputExhausted, TruncatedStream
from clew_activities.providers.fit_tools import FittedTools
from clew_activities.providers.sanitize import (
    BoundedText,
    Budget,
    ObjectEnd,
    clean,
    clean_value,
    parse_json,
    parse_object,
)
from clew_workflows.contract.messages import ProviderData, canonicalize, truncate_utf8
from clew_workflows.contract.outcomes import Usage
from clew_workflows.protocol import ModelReply, RequestedTool

ARGUMENTS_LIMIT = 256 * 1024
PROVIDER_DATA_LIMIT = 512 * 1024
TEXT_LIMIT = 256 * 1024
THINKING_LIMIT = 256 * 1024
MAX_TOOL_CALLS = 64

_NAME_LIMIT = 256
_MOST_OF_EMPTY = 16
"""Characters below which arguments are looked at as those of an empty object."""
_ID_LIMIT = 256

StopReason = Literal["stop", "length", "tool_calls"]


class Call:
    """An unfinished tool call.

    Attributes:
        id: The provider's id; it goes back to that provider alone.
        name: The tool, as the provider knows it.
        own: Further fields that the provider sent with the call, and wants back.
    """

    def __init__(self, call_id: str, name: str, budget: Budget) -> None:
        self.id = call_id
        self.own: dict[str, Any] = {}
        self.rename(name)
        self._budget = budget
        self.restart()

    def restart(self) -> None:
        """Forget the arguments so far."""
        self.raw = BoundedText(self._budget)
        self._end = ObjectEnd()
        self._is_object: bool | None = None
        self._characters = 0

    def rename(self, name: str) -> None:
        """Give the call its name, which may come after its id."""
        self.name = limit_name(name)

    def add(self, piece: str) -> None:
        """Take a piece of the raw arguments."""
        self.raw.add(piece)
        self._characters += len(piece)
        if not self.raw.overflowed:
            self._end.add(piece)

    @property
    def is_empty(self) -> bool:
        """Whether the arguments so far are an object without members."""
        return self._characters < _MOST_OF_EMPTY and self.has_all_arguments and not parse_json(self.raw.so_far)

    def repeats(self, arguments: object) -> bool:
        """Whether a piece has all arguments so far once more."""
        # The text is put together only for a piece of its length.
        return isinstance(arguments, str) and len(arguments) == self._characters and arguments == self.raw.so_far

    @property
    def has_all_arguments(self) -> bool:
        """Whether the arguments so far are a whole JSON object, so that no more of them can follow."""
        if self.raw.overflowed or not self._end.reached:
            return False
        # Parsed once: what comes after the end is white space, or the end is none.
        if self._is_object is None:
            self._is_object = isinstance(parse_json(self.raw.so_far), dict)
        return self._is_object

    def make_tool_request(self, reached_limit: bool) -> RequestedTool:
        """The call as the session sees it. No arguments at all mean an empty object.

        `reached_limit`: the reply reached its limit of tokens within this call, so that its arguments are missing if
        there are none.
        """
        name = self.name or "unnamed"
        raw = self.raw.finish()
        if not raw.strip():
            return RequestedTool(name=name, malformed="", cut=True) if reached_limit else RequestedTool(name=name)
        arguments = None if self.raw.overflowed else parse_object(raw, ARGUMENTS_LIMIT)
        if arguments is not None:
            return RequestedTool(name=name, arguments=arguments)
        return RequestedTool(name=name, malformed=raw, cut=self._end.is_open and not self.raw.overflowed)


class TaggedText:
    """Tells the thinking at the beginning of a text from the rest, where it stands between `<think>` and `</think>`.

    Attributes:
        opening: The text up to the first tag and a little more, as it came; empty: there is no such tag.
    """

    def __init__(self) -> None:
        self.opening = ""
        self._held = ""
        self._state: Literal["start", "thinking", "after", "text"] = "start"

    def split(self, piece: str) -> tuple[str, str]:
        """Take a piece. Returns what it adds to the thinking and to the text; a part that may be a tag is held."""
        if self._state == "text":
            return "", piece
        self._held += piece
        if self._state == "start":
            begun = self._held.lstrip()
            if _OPEN_TAG.startswith(begun) and len(self._held) < _MOST_HELD:
                return "", ""
            if not begun.startswith(_OPEN_TAG):
                return "", self._take_rest()
            self._state, self.opening, self._held = "thinking", self._held, begun[len(_OPEN_TAG) :]
        thinking = ""
        if self._state == "thinking":
            thinking, tag, rest = self._held.partition(_CLOSE_TAG)
            if not tag:
                held = next(n for n in range(len(_CLOSE_TAG), -1, -1) if thinking.endswith(_CLOSE_TAG[:n]))
                thinking, self._held = thinking[: len(thinking) - held], _CLOSE_TAG[:held]
                return thinking, ""
            self._state, self._held = "after", rest
        self._held = self._held.lstrip()
        return thinking, self._take_rest() if self._held else ""

    def finish(self) -> tuple[str, str]:
        """Take the end. Returns what was held, as thinking and as text."""
        held, self._held = self._held, ""
        return (held, "") if self._state == "thinking" else ("", held)

    def _take_rest(self) -> str:
        rest, self._held, self._state = self._held, "", "text"
        return rest


_OPEN_TAG, _CLOSE_TAG = "<think>", "</think>"
_MOST_HELD = 100
"""Characters after which white space at the beginning of a text is a part of it."""


class OwnData:
    """The fields of a message that its provider wants back, while they arrive. All share one budget.

    Texts are joined, and so are neighbours in a list that are pieces of one part: servers stream a part of
    `reasoning_details` in many of the same `type` and `index`.
    """

    def __init__(self) -> None:
        self._fields: dict[str, Any] = {}
        self._left = PROVIDER_DATA_LIMIT

    def has(self, name: str) -> bool:
        """Whether a field has come."""
        return name in self._fields

    @property
    def is_full(self) -> bool:
        """Whether there was too much of it, so that nothing more is kept."""
        return self._left < 0

    def add(self, name: str, value: object) -> None:
        """Take a piece of a field. After one too many nothing more is kept."""
        self._left -= _measure(value)
        if self._left < 0:
            return
        known = self._fields.get(name)
        if isinstance(value, str):
            pieces = known if isinstance(known, _Pieces) else _Pieces()
            pieces.append(value)
            self._fields[name] = pieces
        elif isinstance(value, list):
            parts = known if isinstance(known, list) and not isinstance(known, _Pieces) else []
            for part in value:
                _append_part(parts, part)
            self._fields[name] = parts
        elif isinstance(value, dict):
            self._fields[name] = (known if isinstance(known, dict) else {}) | value

    def make_provider_data(self, provider: str, model: str, calls: list[dict[str, Any]]) -> ProviderData | None:
        """Make the provider data of a message with tool calls; None: there is nothing, or too much.

        Of too much, the ids of the calls are kept: the provider refuses a part of its other data.
        """
        ids = [{"id": limit_id(call["id"])} if "id" in call else {} for call in calls]
        fields = _join_pieces(self._fields) if self._left >= 0 else {}
        own: tuple[dict[str, Any], list[dict[str, Any]]] = ({}, ids)
        with suppress(ValueError, RecursionError):
            cleaned = clean_value([fields, calls])
            if len(canonicalize(cleaned)) <= PROVIDER_DATA_LIMIT:
                own = (cleaned[0], cleaned[1])
        fields, calls = own
        if not fields and not any(calls):
            return None
        return {"provider": provider, "blocks": [fields] if fields else [], "calls": calls, "model": model}


def _measure(value: object) -> int:
    try:
        return len(value) if isinstance(value, str) else len(json.dumps(value))
    except RecursionError:
        return PROVIDER_DATA_LIMIT


class _Pieces(list[str]):
    """The pieces of a text.

    Attributes:
        size: Its characters.
    """

    def __init__(self, pieces: Iterable[str] = ()) -> None:
        super().__init__(pieces)
        self.size = sum(map(len, self))

    def append(self, piece: str) -> None:
        """Take a piece."""
        super().append(piece)
        self.size += len(piece)


def _append_part(parts: list[Any], part: Any) -> None:
    """Append a part, or join it to the last one if both are pieces of one part."""
    last = parts[-1] if parts else None
    if not isinstance(part, dict) or not isinstance(last, dict) or not _are_pieces(last, part):
        parts.append(_split_texts(part))
        return
    for name, value in part.items():
        known = last.get(name)
        if isinstance(known, _Pieces) and isinstance(value, str):
            # LiteLLM repeats all the thinking beside its signature.
            if not (part.get("signature") and len(value) == known.size and value == "".join(known)):
                known.append(value)
        elif name == "thinking" and isinstance(known, list) and isinstance(value, list):
            for inner in value:
                _append_part(known, inner)
        elif value is not None and not (value == "" and known):
            last |= _split_texts({name: value})


def _are_pieces(last: dict[str, Any], part: dict[str, Any]) -> bool:
    """Whether a part goes on with the last one. One that is signed has ended, and encrypted data come whole."""
    if any(part.get(name) != last.get(name) for name in ("type", "index")):
        return False
    if part.get("id") and last.get("id") and part["id"] != last["id"]:
        return False
    return not last.get("signature") and not (isinstance(last.get("data"), str) and isinstance(part.get("data"), str))


def _split_texts(part: Any) -> Any:
    """Copy a part, with its growing texts as pieces."""
    if not isinstance(part, dict):
        return part
    copy: dict[str, Any] = {}
    for name, value in part.items():
        if name in ("text", "summary", "thinking") and isinstance(value, str):
            copy[name] = _Pieces([value])
        elif name == "thinking" and isinstance(value, list):
            copy[name] = list(map(_split_texts, value))
        else:
            copy[name] = value
    return copy


def _join_pieces(value: Any) -> Any:
    if isinstance(value, _Pieces):
        return "".join(value)
    if isinstance(value, dict):
        return {name: _join_pieces(inner) for name, inner in value.items()}
    return list(map(_join_pieces, value)) if isinstance(value, list) else value


class ReplyDraft:
    """The state of a decoder that does not depend on the provider. `tools`: how the request has the tools."""

    def __init__(self, tools: FittedTools) -> None:
        self._tools = tools
        self._own_names = tools.own_names
        self.usage = Usage()
        self.stop_reason: StopReason | None = None
        self.refusal: str | None = None
        self.ended = False
        self.arguments_size = 0
        self._text = BoundedText(Budget(TEXT_LIMIT))
        self._thinking = BoundedText(Budget(THINKING_LIMIT))
        self._arguments = Budget(ARGUMENTS_LIMIT)
        self._calls: list[Call] = []
        self._calls_dropped = 0

    @property
    def text(self) -> str:
        """The text so far."""
        return self._text.so_far

    @property
    def thinking(self) -> str:
        """The thinking so far."""
        return self._thinking.so_far

    @property
    def tool_name(self) -> str | None:
        """The session's name of the newest call's tool."""
        name = self._calls[-1].name if self._calls else None
        return None if name is None else self._own_names.get(name, name)

    @property
    def calls(self) -> Sequence[Call]:
        """The tool calls that are kept."""
        return self._calls

    def add_text(self, piece: object) -> None:
        """Take a piece of the text; a value that is not a string is ignored."""
        if isinstance(piece, str):
            self._text.add(piece)

    def add_thinking(self, piece: object) -> None:
        """Take a piece of the thinking; a value that is not a string is ignored."""
        if isinstance(piece, str):
            self._thinking.add(piece)

    def open_call(self, call_id: object, name: object) -> Call | None:
        """Begin a tool call; None once there are as many as are kept. Only a call with a name counts as dropped."""
        if len(self._calls) == MAX_TOOL_CALLS:
            self._calls_dropped += bool(name)
            return None
        call = Call(read_string(call_id), read_string(name), self._arguments)
        self._calls.append(call)
        return call

    def add_arguments(self, call: Call | None, piece: object) -> None:
        """Take a piece of a call's raw arguments; some servers send the object itself."""
        if call is None or not piece:
            return
        try:
            text = piece if isinstance(piece, str) else json.dumps(piece)
        except RecursionError:
            text = "[nested too deeply]"
        self.arguments_size += len(text)
        call.add(text)

    def finish(self, provider_data: ProviderData | None = None) -> ModelReply:
        """The reply; raises as `Decoder.finish` says."""
        if self.refusal is not None:
            raise ContentRefused(self.refusal or "the model refused, and said no more")
        if self.stop_reason is None and not self.ended:
            raise TruncatedStream("the stream ended before the reply did")
        text = self._text.finish()
        if self._calls_dropped:
            text += f"[truncated: {self._calls_dropped} tool calls]"
        reason = self.stop_reason or "stop"
        calls = tuple(
            self._tools.decode_call(call.make_tool_request(reason == "length" and call is self._calls[-1]))
            for call in self._calls
        )
        if not calls and not text.strip():
            if reason == "length":
                raise OutputExhausted("the reply reached its limit before any text: raise max_output_tokens")
            raise EmptyReply("the reply has neither text nor a tool call")
        # Servers disagree on the reason that goes with tool calls; that there are some is what counts.
        if reason != "length":
            reason = "tool_calls" if calls else "stop"
        return ModelReply(
            content=text,
            thinking=self._thinking.finish() or None,
            tool_calls=calls,
            provider_data=provider_data,
            stop_reason=reason,
            usage=self.usage,
        )


class DraftDecoder:
    """The part of a decoder that every provider's decoder shares: what has arrived stands in a `ReplyDraft`.

    `tools`: how the request has the tools, if `fit_tools` changed them; their calls are changed back.
    """

    def __init__(self, tools: FittedTools | None = None) -> None:
        self._draft = ReplyDraft(tools or FittedTools())

    @property
    def text(self) -> str:
        """The reply's text so far."""
        return self._draft.text

    @property
    def thinking(self) -> str:
        """The model's thinking so far."""
        return self._draft.thinking

    @property
    def tool_name(self) -> str | None:
        """The newest tool call's name."""
        return self._draft.tool_name

    @property
    def arguments_size(self) -> int:
        """Characters of tool calls' arguments so far."""
        return self._draft.arguments_size

    @property
    def usage(self) -> Usage:
        """The usage that the provider has reported so far."""
        return self._draft.usage

    @property
    def ended(self) -> bool:
        """Whether the provider's end marker has arrived."""
        return self._draft.ended


def parse_event(data: str) -> dict[str, Any]:
    """Parse the JSON object of an event's data.

    Raises:
        TruncatedStream: The data is not a complete JSON object.
    """
    value = parse_json(data)
    if not isinstance(value, dict):
        raise TruncatedStream(f"the provider sent an event that is not a JSON object: {repr(data)[1:-1]}")
    return value


def limit_name(name: str) -> str:
    """Clean a tool's name and truncate it to its limit."""
    return truncate_utf8(clean(name).encode(), _NAME_LIMIT)


def limit_id(call_id: str) -> str:
    """Clean the id of a tool call and truncate it to its limit."""
    return clean(call_id)[:_ID_LIMIT]


def get_member(value: object, key: str) -> Any:
    """Return a member of a JSON object; None: it is absent, or the value is not an object."""
    return value.get(key) if isinstance(value, dict) else None


def read_count(value: object) -> int | None:
    """Return a number of tokens; None: the value is not one."""
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**53 else None


_INPUT_NAMES = ("prompt_tokens", "input_tokens", "prompt_eval_count")
_OUTPUT_NAMES = ("completion_tokens", "output_tokens", "eval_count", "predicted_n")


def find_best_usage(known: Usage, reported: Mapping[str, Any]) -> Usage:
    """Take the larger of the known figures and of those that a server of Chat Completions reports.

    Some servers report zeros before or after the real figures, or figures so far. Some leave the tokens of reasoning
    out of those of the reply, and only the total has them.
    """

    def read(*names: str) -> int:
        return max((count for name in names if (count := read_count(reported.get(name)))), default=0)

    prompt, output = read(*_INPUT_NAMES), read(*_OUTPUT_NAMES)
    # llama.cpp's `timings` count the part of the prompt that its cache had apart.
    prompt = max(prompt, read("prompt_n") + read("cache_n"))
    if prompt:
        output = max(output, read("total_tokens") - prompt)
    details = reported.get("prompt_tokens_details") or reported.get("input_tokens_details")
    cached = max(
        read_count(get_member(details, "cached_tokens")) or 0,
        read("prompt_cache_hit_tokens", "cached_tokens", "cache_n"),
    )
    prompt = max(known.input_tokens, prompt)
    return known.model_copy(
        update={
            "input_tokens": prompt,
            "output_tokens": max(known.output_tokens, output),
            "cached_input_tokens": max(known.cached_input_tokens, min(cached, prompt)),
        }
    )


def read_string(value: object) -> str:
    """Return a string; empty: the value is not a string."""
    return value if isinstance(value, str) else ""
