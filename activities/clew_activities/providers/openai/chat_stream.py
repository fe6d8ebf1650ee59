"""Folds the event stream of Chat Completions, from any server, into a reply.

The `provider_data` of a reply with tool calls holds what the server sent for itself: the ids of the calls, its fields
with reasoning, signatures. What of it goes back is the dialect's matter.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from typing import Any, Literal

from clew_activities.providers.fit_tools import FittedTools
from clew_activities.providers.provider_errors import TruncatedStream, classify_event
from clew_activities.providers.reply import (
    CALL_TEXT_LIMIT,
    MAX_CITATIONS,
    MAX_PROVIDER_CALLS,
    MAX_SOURCES,
    PROVIDER_DATA_LIMIT,
    SAMPLE_RATE,
    Call,
    DraftDecoder,
    StopReason,
    get_list,
    get_member,
    limit_id,
    limit_name,
    list_objects,
    measure,
    parse_event,
    read_count,
    read_index,
    read_list,
    read_string,
    write_json,
)
from clew_activities.providers.sanitize import clean_value, parse_json
from clew_workflows.contract.messages import ProviderData, Source, canonicalize
from clew_workflows.contract.outcomes import Usage
from clew_workflows.protocol import ModelReply

# Characters of a refusal that are kept.
_REFUSAL_LIMIT = 4000
_LIMITS = ("length", "max_length", "max_output_tokens", "max_tokens", "model_context_window_exceeded", "model_length")
_STOP_REASONS: Mapping[str, StopReason] = {"tool_calls": "tool_calls", **dict.fromkeys(_LIMITS, "length")}
"""Reasons to stop, in lower case."""
_ABORTED = frozenset(
    ("abort", "canceled", "cancelled", "error", "insufficient_system_resource", "network_error", "timeout")
)
"""Reasons with which a server says that it has not finished the reply."""
_FILTERED = frozenset(
    ("blocklist", "content_filter", "prohibited_content", "recitation", "safety", "sensitive", "spii")
)
"""Reasons with which a server says that it has stopped the reply for its content; some add one after a colon."""

REASONING_FIELDS = ("reasoning_content", "reasoning", "reasoning_text")
"""Fields with the text of the model's reasoning; some servers send the same text under two of them."""
_FIELDS_BACK = (*REASONING_FIELDS, "reasoning_details", "thinking_blocks", "extra_content")
"""Fields of a message that some provider wants back."""
_OWN_MEMBERS = frozenset(("index", "type", "function", "id"))
"""Members of a tool call that the format itself defines."""
_UNREAD_OF_CHUNK = frozenset(
    ("id", "object", "created", "model", "choices", "system_fingerprint", "service_tier", "provider", "obfuscation")
)
_UNREAD_OF_CHOICE = frozenset(("delta", "logprobs"))
_UNREAD_OF_DELTA = frozenset(("role", "content"))
"""Members beside which a chunk, its choice and its delta have nothing but a piece of text."""


class OpenAIDecoder(DraftDecoder):
    """Folds `chat.completion.chunk` objects, or one complete `chat.completion`."""

    def __init__(self, provider: str = "openai", model: str = "", tools: FittedTools | None = None) -> None:
        super().__init__(tools)
        self._provider = provider
        self._model = model
        self._calls_by_key: dict[int | str, Call] = {}
        self._newest: Call | None = None
        self._refusal = ""
        self._has_deltas = False
        self._has_older_call = False
        self._has_guessed_call = False
        self._own = OwnData()
        self._tags = TaggedText()
        self._pages = Pages()

    def feed(self, event: str, data: str) -> None:
        """Fold one event.

        Raises:
            ProviderError: The event is an error.
            TruncatedStream: The event cannot be parsed, or the server aborted the reply.
        """
        chunk = parse_json(data)
        if not isinstance(chunk, dict):
            # Some servers leave the empty line between two events out.
            lines = data.split("\n") if chunk is None else (data,)
            for line in filter(str.strip, lines):
                if line.strip() == "[DONE]":
                    self.ended = True
                else:
                    self._take_chunk(event, parse_event(line))
        elif event != "error" and (text := _find_text_alone(chunk)) is not None:
            self._has_deltas = True
            self._add_tagged(text)
        else:
            self._take_chunk(event, chunk)

    def _take_chunk(self, event: str, chunk: Mapping[str, Any]) -> None:
        failure = chunk if event == "error" else _find_error(chunk)
        if failure is not None:
            raise classify_event(failure)
        self._read_usage(chunk)
        self._pages.add_listed(chunk)
        for choice in list_objects(chunk, "choices"):
            if choice.get("error"):
                raise classify_event(choice)
            # Requests ask for one choice; ignore further ones.
            if not (index := choice.get("index")) or read_index(index) in (0, None):
                self._read_usage(choice)
                self._add_delta(self._find_delta(choice))
                self._set_stop_reason(choice.get("finish_reason"))

    def _find_delta(self, choice: Mapping[str, Any]) -> object:
        """Find what a choice adds. Some servers repeat the whole message beside or after its deltas."""
        delta = choice.get("delta")
        self._has_deltas = self._has_deltas or bool(delta)
        return delta if self._has_deltas else choice.get("message")

    def finish(self) -> ModelReply:
        """Return the reply; raises as `Decoder.finish` does."""
        if self._refusal:
            self.refusal = self._refusal
        self._take_split(*self._tags.finish())
        split = None if self._tags.opening else split_unopened_thinking(self.text)
        if split:
            self.add_thinking(split[0])
            self.replace_text(split[1])
        self._pages.finish(self, has_positions=not (self._tags.opening or split))
        if (self._has_guessed_call or any(not call.name for call in self.calls)) and any(
            not call.raw.so_far.strip() for call in self.calls
        ):
            self.break_reply("the server did not say which call some arguments belong to")
        if self._tools.by_name and not self.calls and self.stop_reason != "length" and ends_in_call(self.text):
            raise TruncatedStream(
                "the server left the call of a tool in the text of the reply: it needs a parser of this model's calls"
            )
        return super().finish()

    def make_provider_data(self) -> ProviderData | None:
        """Make what goes back to the provider with the tool calls; None: nothing, or too much."""
        calls = [({"id": call.id} if call.id else {}) | call.own for call in self.calls]
        return self._own.make_provider_data(self._provider, self._model, calls) if calls else None

    def _add_delta(self, delta: object) -> None:
        if not isinstance(delta, dict):
            return
        if content := delta.get("content"):
            self._add_content(content)
        thinking = next((text for name in REASONING_FIELDS if (text := read_string(delta.get(name)))), "")
        self.add_thinking(thinking or join_texts(delta.get("reasoning_details")))
        for name in _FIELDS_BACK:
            if value := delta.get(name):
                self._own.add(name, value)
        self._pages.add_delta(delta)
        self._add_media(delta)
        if len(self._refusal) < _REFUSAL_LIMIT and (refusal := read_string(delta.get("refusal"))):
            self._refusal = (self._refusal + refusal)[:_REFUSAL_LIMIT]
        calls = list_objects(delta, "tool_calls")
        for call in calls:
            self._add_call(call)
        # The older form of a single call. Some servers send both.
        if not calls and isinstance(function := delta.get("function_call"), dict) and self._may_have_older_call:
            self._has_older_call = True
            self._add_call({"index": 0, "function": function})

    def _add_media(self, delta: Mapping[str, Any]) -> None:
        """Take OpenRouter's images, and OpenAI's audio, which is streamed as samples with a text of what it says."""
        for image in get_list(delta, "images"):
            self.add_media("image", _read_image_url(image))
        if isinstance(audio := delta.get("audio"), dict):
            self.add_media(
                "audio", audio.get("data"), rate=SAMPLE_RATE if self._has_deltas else None, extends=self._has_deltas
            )
            self.add_text(audio.get("transcript"))

    @property
    def _may_have_older_call(self) -> bool:
        return self._has_older_call or not self._calls_by_key

    def _add_content(self, content: object) -> None:
        """Take a text, or a list of parts: Mistral's thinking is a part, and goes back in its position."""
        if isinstance(content, str):
            self._add_tagged(content)
            return
        for part in read_list(content):
            text = read_string(get_member(part, "text"))
            if get_member(part, "type") == "thinking":
                if not self._own.has("content") and not self._own.is_full and self.text:
                    self._own.add("content", [{"type": "text", "text": self.text}])
                self.add_thinking(join_texts(get_member(part, "thinking")))
                self._own.add("content", [part])
            elif get_member(part, "type") == "image_url":
                self.add_media("image", _read_image_url(part))
            elif text:
                self.add_text(text)
                if self._own.has("content"):
                    self._own.add("content", [{"type": "text", "text": text}])

    def _add_tagged(self, content: str) -> None:
        """Take a text whose beginning may be thinking between tags: some servers leave them to their clients."""
        is_known = bool(self._tags.opening)
        if self._tags.is_over and not is_known and not self._own.has("content"):
            self._text.add(content)
            return
        self._take_split(*self._tags.split(content))
        if self._tags.opening:
            self._own.add("content", content if is_known else self._tags.opening)
        elif self._own.has("content"):
            self._own.add("content", [{"type": "text", "text": content}])

    def _take_split(self, thinking: str, text: str) -> None:
        # Some servers send the same thinking in a field of its own.
        if thinking and not any(map(self._own.has, REASONING_FIELDS)):
            self.add_thinking(thinking)
        self.add_text(text)

    def _add_call(self, delta: dict[str, Any]) -> None:
        """Find the call that a delta belongs to, or start a new one, and add the delta to it.

        OpenAI numbers calls with `index`. Other servers omit it, write it as a text or number every call 0, repeat
        ids and names in every delta, make a new id for each delta, or use one id for two calls. A delta without an
        index and without a known id goes on with the newest call, unless it starts another.
        """
        index = read_index(delta.get("index"))
        function = delta.get("function")
        call_id, name = read_string(delta.get("id")), limit_name(_clean_name(get_member(function, "name")))
        arguments = write_json(get_member(function, "arguments") or "")
        key = call_id if index is None else index
        own = {member: value for member, value in delta.items() if member not in _OWN_MEMBERS and value}
        call = self._calls_by_key.get(key, self._newest if index is None else None)
        if not (call_id or name) and arguments.strip() and self._is_newests(call, arguments):
            call = self._newest
        if call is None and not (call_id or name or arguments or own):
            return
        if call is not None and call_id and call_id == call.id and call.has_all_arguments and call.repeats(arguments):
            # Some servers send the whole call once more.
            return
        if call is not None and call.extends(arguments):
            # Some servers repeat all arguments so far in each delta.
            name, call_id = "", call.id
            call.restart(cumulative=True)
        if call is not None and call.is_cumulative and call.repeats(arguments):
            return
        if call is not None and _replaces_empty(call, call_id, name, arguments):
            call.restart()
        name = self._join_name(call, call_id, name)
        if call is None or _starts_another_call(call, call_id, name, arguments, numbered=index is not None):
            call = self._open_another(call, call_id, name)
        elif name and not call.name:
            call.rename(name)
        elif index is not None and call.has_all_arguments and call.repeats(arguments):
            # Some servers repeat all arguments at the end.
            return
        self._newest = call
        if call is None:
            return
        if key != "":
            self._calls_by_key[key] = call
        call.id = call.id or call_id
        call.own |= own
        self.add_arguments(call, arguments)

    def _join_name(self, call: Call | None, call_id: str, name: str) -> str:
        """Join the pieces of a call's name, if they are a tool's name together alone."""
        if call is None or not name or call.raw.so_far or call_id not in ("", call.id):
            return name
        names, joined = self._own_names, call.name + name
        if joined in names and call.name not in names and name not in names:
            call.rename(joined)
            return joined
        return name

    def _open_another(self, before: Call | None, call_id: str, name: str) -> Call | None:
        """Begin a call. One without a name or an id is taken for one of the tool before it."""
        if before is not None:
            self._has_guessed_call = self._has_guessed_call or not (call_id or name)
            name = name or before.name
        return self.open_call(call_id, name)

    def _is_newests(self, call: Call | None, arguments: str) -> bool:
        """Whether arguments go on with the newest call, although their index is that of another one, or of none."""
        newest = self._newest
        if newest is None or newest is call or newest.has_all_arguments:
            return False
        return call is None or (
            call.has_all_arguments and (not newest.raw.so_far.strip() or not _begins_object(arguments))
        )

    def _set_stop_reason(self, reason: object) -> None:
        if not isinstance(reason, str) or not reason:
            return
        kind = reason.lower().partition(":")[0]
        if kind in _ABORTED:
            raise TruncatedStream(f"the server aborted the reply ({reason[:40]})")
        if "MALFORMED_FUNCTION_CALL" in reason.upper():
            raise TruncatedStream("the model wrote a tool call that the server cannot read")
        if kind in _FILTERED:
            self.refusal = f"the provider's content filter stopped the reply ({reason[:80]})"
        # Some servers send a reason with each further chunk; the limit that the reply has reached stays.
        if self.stop_reason != "length":
            self.stop_reason = _STOP_REASONS.get(kind, "stop")

    def _read_usage(self, holder: Mapping[str, Any]) -> None:
        """Take the best figures: servers report usage at the end, in each chunk, within a choice, or beside it."""
        for usage in (holder.get("usage"), get_member(holder.get("x_groq"), "usage"), holder.get("timings")):
            if isinstance(usage, dict):
                self.usage = find_best_usage(self.usage, usage)


def _read_image_url(part: object) -> object:
    image = get_member(part, "image_url")
    return image if isinstance(image, str) else get_member(image, "url")


def _find_text_alone(chunk: Mapping[str, Any]) -> str | None:
    """Find the text of a chunk that has nothing else, as nearly every one; None: it is another chunk.

    A member without a value counts as absent. It calls little, since a reply has thousands of chunks.
    """
    choices = chunk.get("choices")
    if not isinstance(choices, list) or len(choices) != 1 or chunk.get("object") == "error":
        return None
    choice = choices[0]
    if not isinstance(choice, dict) or not isinstance(delta := choice.get("delta"), dict):
        return None
    if not isinstance(text := delta.get("content"), str):
        return None
    for fields, unread in ((chunk, _UNREAD_OF_CHUNK), (choice, _UNREAD_OF_CHOICE), (delta, _UNREAD_OF_DELTA)):
        for name, value in fields.items():
            if value and name not in unread:
                return None
    return text


def _find_error(chunk: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """Find the error that a chunk is, although its status was 200; None: it is not an error."""
    if chunk.get("error") or chunk.get("object") == "error":
        return chunk
    # MiniMax has this member in each reply, with the number 0.
    base = chunk.get("base_resp")
    if code := get_member(base, "status_code"):
        return {"message": read_string(get_member(base, "status_msg")), "code": code}
    has_message = isinstance(chunk.get("message") or chunk.get("msg"), str)
    return chunk if has_message and "code" in chunk and "choices" not in chunk else None


_NAME_AROUND = re.compile(r"^\s*functions\.|<\|.*|:\d+\s*$", re.DOTALL)


def _clean_name(name: object) -> str:
    """Read a tool's name without the marks of a template that some servers leave around it.

    gpt-oss writes `add<|channel|>commentary`, Kimi `functions.add:0`.
    """
    return _NAME_AROUND.sub("", read_string(name)).strip()


def _starts_another_call(call: Call, call_id: str, name: str, arguments: str, *, numbered: bool) -> bool:
    """Whether a delta starts another call than the one that its number, its id or its position names."""
    if not arguments.strip():
        arguments = ""
    if arguments and call.has_all_arguments and (name or _begins_object(arguments)):
        return not numbered or bool(name) or not call.repeats(arguments)
    if name and call.name and name != call.name:
        return True
    if not call_id or not call.id or call_id == call.id:
        return False
    # A server that makes a new id for each delta of one call repeats no name.
    return bool(name) or not (numbered or arguments)


def _replaces_empty(call: Call, call_id: str, name: str, arguments: str) -> bool:
    """Whether a delta has the arguments of a call that began with an empty object, as Anthropic's calls do."""
    is_same = not name and call_id in ("", call.id)
    return is_same and bool(arguments) and _begins_object(arguments) and call.is_empty


def _begins_object(arguments: str) -> bool:
    return arguments.lstrip().startswith("{")


def join_texts(parts: object) -> str:
    """Join the texts of a list of parts, such as `reasoning_details` and Mistral's thinking."""
    texts = [get_member(part, "text") or get_member(part, "summary") for part in read_list(parts)]
    return "".join(map(read_string, texts))


class OwnData:
    """The fields of a message that its provider wants back, while they arrive. All share one budget.

    Texts are joined, and so are neighbours in a list that are pieces of one part: servers stream a part of
    `reasoning_details` in many of the same `type` and `index`.
    """

    def __init__(self) -> None:
        self._fields: dict[str, Any] = {}
        self._sealed: set[tuple[str, str]] = set()
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
        self._left -= measure(value)
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
                _append_part(parts, part, self._sealed)
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


def _append_part(parts: list[Any], part: Any, sealed: set[tuple[str, str]]) -> None:
    """Append a part, or join it to the last one if both are pieces of one part.

    `sealed`: the types and the data of the sealed parts so far, of which each comes once.
    """
    last = parts[-1] if parts else None
    if isinstance(data := get_member(part, "data"), str):
        seal = (read_string(part.get("type")), data)
        if seal in sealed:
            # OpenRouter repeats it at the end, and OpenAI answers "Duplicate item found".
            return
        sealed.add(seal)
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
                _append_part(known, inner, sealed)
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


_INPUT_NAMES = ("prompt_tokens", "input_tokens", "prompt_eval_count")
_CACHED_NAMES = ("prompt_cache_hit_tokens", "cached_tokens", "cache_n", "cache_read_input_tokens")
_OUTPUT_NAMES = ("completion_tokens", "output_tokens", "eval_count", "predicted_n")


def find_best_usage(known: Usage, reported: Mapping[str, Any]) -> Usage:
    """Take the larger of the known figures and of those that a server of Chat Completions reports.

    Some servers report zeros before or after the real figures, or figures so far. Some leave the tokens of reasoning
    out of those of the reply, and only the total has them.
    """
    counts = {name: count for name, count in reported.items() if type(count) is int and 0 <= count < 2**53}

    def read(*names: str) -> int:
        return max([counts.get(name, 0) for name in names])

    prompt, output = read(*_INPUT_NAMES), read(*_OUTPUT_NAMES)
    # llama.cpp's `timings` count the part of the prompt that its cache had apart.
    prompt = max(prompt, counts.get("prompt_n", 0) + counts.get("cache_n", 0))
    if prompt:
        output = max(output, counts.get("total_tokens", 0) - prompt)
    details = reported.get("prompt_tokens_details") or reported.get("input_tokens_details")
    cached = max(read_count(get_member(details, "cached_tokens")) or 0, read(*_CACHED_NAMES))
    prompt = max(known.input_tokens, prompt)
    return known.model_copy(
        update={
            "input_tokens": prompt,
            "output_tokens": max(known.output_tokens, output),
            "cached_input_tokens": max(known.cached_input_tokens, min(cached, prompt)),
        }
    )


# Thinking and calls of tools that models write between tags, and servers without a parser for them leave in the
# text. Of some templates the opening tag stands in the prompt, so that the text has the closing one alone.


class TaggedText:
    """Tells the thinking at the beginning of a text from the rest, where it stands between tags as `<think>`.

    Attributes:
        opening: The text up to the first tag and a little more, as it came; empty: there is no such tag.
    """

    def __init__(self) -> None:
        self.opening = ""
        self._held = ""
        self._closing = ""
        self._state: Literal["start", "thinking", "after", "text"] = "start"

    @property
    def is_over(self) -> bool:
        """Whether all that follows is text."""
        return self._state == "text"

    def split(self, piece: str) -> tuple[str, str]:
        """Take a piece. Returns what it adds to the thinking and to the text; a part that may be a tag is held."""
        if self._state == "text":
            return "", piece
        self._held += piece
        if self._state == "start":
            begun = self._held.lstrip()
            if begun and begun[0] not in "<[":
                return "", self._take_rest()
            tag = next(filter(begun.startswith, _TAGS), None)
            if tag is None and len(self._held) < _MOST_HELD and any(one.startswith(begun) for one in _TAGS):
                return "", ""
            if tag is None:
                return "", self._take_rest()
            self._state, self.opening, self._held = "thinking", self._held, begun[len(tag) :]
            self._closing = _TAGS[tag]
        thinking = ""
        if self._state == "thinking":
            thinking, found, rest = self._held.partition(self._closing)
            if not found:
                held = next(n for n in range(len(self._closing), -1, -1) if thinking.endswith(self._closing[:n]))
                thinking, self._held = thinking[: len(thinking) - held], self._closing[:held]
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


_TAGS: Mapping[str, str] = {
    "<think>": "</think>",
    "<thought>": "</thought>",
    "[THINK]": "[/THINK]",
    "<seed:think>": "</seed:think>",
    "<|channel>thought\n": "<channel|>",
    "<|channel|>analysis<|message|>": "<|end|><|start|>assistant<|channel|>final<|message|>",
}
"""The tags of DeepSeek, Qwen, GLM and MiniMax; of Gemini's endpoint; of Mistral, Seed-OSS, Gemma 4 and gpt-oss."""
_MOST_HELD = 100
"""Characters after which white space at the beginning of a text is a part of it."""


_UNOPENED = re.compile(r"\n?</think>(?:\r?\n|$)")


def split_unopened_thinking(text: str) -> tuple[str, str] | None:
    """Split a text whose opening tag stands in the prompt, where some templates put it; None: it is no such text.

    The closing tag is the only one, ends a line, and stands in no block of code.
    """
    match = _UNOPENED.search(text) if text.count("</think>") == 1 and "<think>" not in text else None
    if match is None or text[: match.start()].count("```") % 2:
        return None
    return text[: match.start()].strip(), text[match.end() :].lstrip()


_BARS = r"[|\uff5c\u2016]{1,2}"
_CALL = re.compile(
    # Qwen and Hermes; Qwen's coders; GLM.
    r"<tool_call>\s{0,9}(?:\{|<function=|[\w.-]{1,64}\s{0,9}<arg_key>)"
    # Kimi; DeepSeek to V3.1, and from V3.2 on; Mistral.
    r"|<\|tool_calls_section_begin\|>|<\|tool_call_begin\|>|<\uff5ctool\u2581calls\u2581begin\uff5c>"
    rf"|<{_BARS}DSML{_BARS}(?:tool_calls|function_calls|invoke)\b|\[TOOL_CALLS\]\s{{0,9}}[\w.-]{{0,64}}[\[{{]"
)
_CALL_END = re.compile(
    r"</tool_call>|<\|tool_call_end\|>|<\|tool_calls_section_end\|>|<\uff5ctool\u2581calls\u2581end\uff5c>"
    rf"|</{_BARS}DSML{_BARS}\w{{1,32}}>"
)


def ends_in_call(text: str) -> bool:
    """Whether a text ends in the call of a tool, as a model writes it: nothing follows its end, or it has none.

    A call within a block of code, or with words behind it, is what the model says about calls.
    """
    begins = [match.start() for match in _CALL.finditer(text)]
    if not begins or text[: begins[-1]].count("```") % 2:
        return False
    ends = [match.end() for match in _CALL_END.finditer(text, begins[-1])]
    return not ends or not text[ends[-1] :].strip()


# The pages that servers name for a reply, and the calls of tools that they ran themselves: `annotations` of the type
# `url_citation` (OpenAI's search models, OpenRouter); `citations`, a list of URLs beside the choices (Perplexity,
# xAI), with titles in `search_results` (Perplexity); `executed_tools` in a message (Groq), of which a call comes in
# parts, by its `index`.


_TOOLS: Mapping[str, str] = {
    "browser.open": "web_fetch",
    "browser.search": "web_search",
    "code_interpreter": "code_execution",
    "python": "code_execution",
    "search": "web_search",
    "visit": "web_fetch",
    "visit_website": "web_fetch",
}
"""Clew's names of the servers' tools. Another tool keeps its own name."""
_INPUTS = ("query", "url", "code")
"""Members of a call's arguments that are its input where it has one of them."""


class Pages:
    """Collects the pages and the calls of one reply. What a server sends is bounded before it is kept."""

    def __init__(self) -> None:
        self._annotations: list[Mapping[str, Any]] = []
        self._listed: dict[str, str] = {}
        self._calls: dict[int, dict[str, Any]] = {}

    def add_listed(self, chunk: Mapping[str, Any]) -> None:
        """Take the pages that are listed beside the choices. Servers repeat the list in each chunk."""
        for name in ("citations", "search_results"):
            for page in get_list(chunk, name)[:MAX_CITATIONS]:
                url = read_string(page) or read_string(get_member(page, "url"))
                if url in self._listed or (url and len(self._listed) < MAX_CITATIONS):
                    self._listed[url] = read_string(get_member(page, "title")) or self._listed.get(url, "")

    def add_delta(self, delta: Mapping[str, Any]) -> None:
        """Take the annotations and the calls of a message, or of a part of it."""
        for annotation in list_objects(delta, "annotations"):
            if annotation.get("type") == "url_citation" and len(self._annotations) < MAX_CITATIONS:
                self._annotations.append(annotation)
        for number, call in enumerate(list_objects(delta, "executed_tools")):
            index = call["index"] if isinstance(call.get("index"), int) else number
            if index in self._calls or len(self._calls) < MAX_PROVIDER_CALLS:
                self._calls.setdefault(index, {}).update({name: value for name, value in call.items() if value})

    def finish(self, decoder: DraftDecoder, *, has_positions: bool = True) -> None:
        """Add the calls and the citations to the reply; its text may have lost the thinking that stood before it."""
        for _, call in sorted(self._calls.items()):
            tool = read_string(call.get("type"))
            decoder.add_provider_call(
                _TOOLS.get(tool, tool),
                input=_read_input(read_string(call.get("arguments"))[: 4 * CALL_TEXT_LIMIT]),
                # The output of a search is the text of its pages.
                output="" if call.get("search_results") else call.get("output"),
                sources=_list_sources(call),
            )
        cited = set()
        for annotation in self._annotations:
            # OpenRouter's models send the members of the citation with or without an object around them.
            page = annotation.get("url_citation")
            page = page if isinstance(page, dict) else annotation
            decoder.add_citation(
                page.get("url"),
                page.get("title"),
                page.get("content"),
                start=read_count(page.get("start_index")) if has_positions else None,
                end=read_count(page.get("end_index")) if has_positions else None,
            )
            cited.add(read_string(page.get("url")))
        for url, title in self._listed.items():
            if url not in cited:
                decoder.add_citation(url, title)


def _read_input(arguments: str) -> str:
    """Read what a call was made with: the query, the address or the code of its arguments, or all of them."""
    parsed = parse_json(arguments)
    return next((text for name in _INPUTS if (text := read_string(get_member(parsed, name)))), arguments)


def _list_sources(call: Mapping[str, Any]) -> Iterator[Source]:
    results = list_objects(call.get("search_results"), "results")
    for page in [*results, *list_objects(call, "browser_results")][:MAX_SOURCES]:
        yield {"url": read_string(page.get("url")), "title": read_string(page.get("title"))}
