"""What the decoders of all providers share: a draft of the reply, in which each size has a limit.

`DraftDecoder` folds pieces into a reply, and a provider's decoder derives from it. Two wrappers read from any
decoder: `AnswerDecoder` the value of an answer with a schema, `RedactedDecoder` a reply without the worker's secrets.

Text and thinking over their caps end in `[truncated: N bytes]`. Of more than `MAX_TOOL_CALLS` tool calls the first
are kept, and the text says how many were dropped. A call without a name is called `unnamed`, which no tool is, so
that the model reads that there is no such tool. Raw arguments share one cap; a call whose arguments do not
fit is malformed. Images and recordings share a cap of size and one of number; further ones are dropped. Provider data
over its cap is dropped: the provider would refuse a part of it. So is provider data that a session cannot store, such
as a number beyond a double.
"""

from __future__ import annotations

import base64
import json
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any, Literal

from clew_activities.providers.answer_object import find_value, read_growing_member, read_member
from clew_activities.providers.fit_tools import FittedTools
from clew_activities.providers.interface import Decoder
from clew_activities.providers.provider_errors import (
    ContentRefused,
    EmptyReply,
    OutputExhausted,
    PromptRefused,
    TruncatedStream,
)
from clew_activities.providers.redaction import GrowingText, Redaction
from clew_activities.providers.sanitize import BoundedText, Budget, ObjectEnd, clean, parse_json, parse_object
from clew_activities.received_media import NewMedia, Unusable, decode_base64, split_data_url, wrap_samples
from clew_workflows.contract.messages import Citation, ProviderCall, ProviderData, Source, canonicalize, truncate_utf8
from clew_workflows.contract.outcomes import Usage
from clew_workflows.contract.payloads import Fitting, SentRequest
from clew_workflows.protocol import ModelReply, RequestedTool

ARGUMENTS_LIMIT = 256 * 1024
PROVIDER_DATA_LIMIT = 512 * 1024
TEXT_LIMIT = 256 * 1024
THINKING_LIMIT = 256 * 1024
"""Largest parts of a reply, in bytes."""
MAX_MEDIA = 16
"""Most images and recordings that a reply keeps."""
MAX_MEDIA_CHARACTERS = 64 * 1024 * 1024
"""Most characters of base64 of all of them."""
SAMPLE_RATE = 24_000
"""Samples in a second of audio without a header, where the provider does not name the rate."""
MAX_TOOL_CALLS = 64
MAX_PROVIDER_CALLS = 64
"""Most calls of the provider's own tools that a reply keeps."""
MAX_SOURCES = 50
"""Most sources that such a call keeps."""
MAX_CITATIONS = 200
"""Most citations that a reply keeps."""
CALL_TEXT_LIMIT = 4000
"""Characters of the input, and of the output, of such a call."""
QUOTE_LIMIT = 500
"""Characters of a citation's quote."""
_TITLE_LIMIT = 300
_URL_LIMIT = 2000

_NAME_LIMIT = 256
"""Longest name of a called tool, in bytes."""
_ID_LIMIT = 256
"""Longest id of a call, in characters."""
_NO_ARGUMENTS = frozenset(("", "null", "nil", "none", "undefined", "[]", "''"))
"""What models and servers write for no arguments, in lower case.

gh:langchain-ai/langchain#34242 (an empty text, None), gh:langroid/langroid#988 (null), gh:agno-agi/agno#6303 (a
list), gh:aws-samples/bedrock-engineer#188 (quotation marks).
"""
_MOST_OF_EMPTY = 16
"""Characters below which arguments are looked at as those of an empty object."""


@dataclass(slots=True)
class DrawnMedia:
    """An image or a recording of a reply, as it arrives.

    Attributes:
        kind: `image` or `audio`.
        start: The character of the reply's text before which it stands.
        pieces: Its bytes, as pieces of base64.
        url: The address of an image that has no bytes.
        rate: The samples of a second, if the bytes are samples of 16 bits without a header.
    """

    kind: Literal["image", "audio"]
    start: int
    pieces: list[str]
    url: str = ""
    rate: int | None = None

    def read(self) -> NewMedia | Unusable:
        """Decode the bytes."""
        decoded = decode_base64(self.kind, _join_base64(self.pieces))
        if self.rate is not None and isinstance(decoded, NewMedia) and not decoded.data.startswith(_HEADERS):
            return NewMedia(self.kind, wrap_samples(decoded.data, self.rate))
        return decoded


_HEADERS = (b"RIFF", b"ID3", b"OggS", b"fLaC")
"""The beginnings of files with audio."""


def _join_base64(pieces: Sequence[str]) -> str:
    """Join pieces of base64, of which each may be padded."""
    joined: list[str] = []
    for piece in pieces:
        if joined and joined[-1].endswith("="):
            # Padding may stand at the end alone.
            before = decode_base64("file", "".join(joined))
            after = decode_base64("file", piece)
            if not (isinstance(before, NewMedia) and isinstance(after, NewMedia)):
                return "*"
            joined = [base64.b64encode(before.data + after.data).decode()]
        else:
            joined.append(piece)
    return "".join(joined)


StopReason = Literal["stop", "length", "tool_calls", "paused"]


class DraftDecoder:
    """The part of a decoder that does not depend on the provider. A provider's decoder adds `feed`.

    `tools` are the tools as the request has them: calls are changed back.

    Attributes:
        usage: The usage that the provider has reported so far.
        stop_reason: Why the reply ended; None: it has not said it.
        refusal: Why the model or the provider declined; None: neither did.
        refuses_prompt: What the model was asked is refused, not what it has replied.
        ended: Whether the provider's end marker has arrived.
        arguments_size: Characters of tool calls' arguments so far.
        calls: The tool calls that are kept.
        provider_calls: The calls of tools that the provider ran itself.
        citations: The sources that the reply names.
        media: The images and the recordings of the reply. `finish` leaves them out: their bytes are stored first.
    """

    def __init__(self, tools: FittedTools | None = None) -> None:
        self.usage = Usage()
        self.stop_reason: StopReason | None = None
        self.refusal: str | None = None
        self.refuses_prompt = False
        self.ended = False
        self.arguments_size = 0
        self.calls: list[Call] = []
        self.provider_calls: list[ProviderCall] = []
        self.citations: list[Citation] = []
        self.media: list[DrawnMedia] = []
        self._media_left = MAX_MEDIA_CHARACTERS
        self._tools = tools or FittedTools()
        self._own_names = self._tools.own_names
        self._text = BoundedText(Budget(TEXT_LIMIT))
        self._thinking = BoundedText(Budget(THINKING_LIMIT))
        self._arguments = Budget(ARGUMENTS_LIMIT)
        self._calls_dropped = 0
        self._broken = ""

    @property
    def text(self) -> str:
        """The reply's text so far."""
        return self._text.so_far

    @property
    def thinking(self) -> str:
        """The model's thinking so far."""
        return self._thinking.so_far

    @property
    def tool_name(self) -> str | None:
        """The session's name of the newest call's tool."""
        name = self.calls[-1].name if self.calls else None
        return None if name is None else self._own_names.get(name, name)

    def add_text(self, piece: object) -> None:
        """Take a piece of the text; a value that is not a string is ignored."""
        if isinstance(piece, str):
            self._text.add(piece)

    def replace_text(self, text: str) -> None:
        """Take another text for the one so far, a part of which was something else."""
        self._text = BoundedText(Budget(TEXT_LIMIT))
        self._text.add(text)

    def add_thinking(self, piece: object) -> None:
        """Take a piece of the thinking; a value that is not a string is ignored."""
        if isinstance(piece, str):
            self._thinking.add(piece)

    def add_media(
        self, kind: Literal["image", "audio"], data: object, *, rate: int | None = None, extends: bool = False
    ) -> None:
        """Take an image or a recording: base64, a data URL, or the address of an image.

        Args:
            kind: What it is.
            data: The data; a value that is not a string is ignored.
            rate: The samples of a second, if the bytes may be samples without a header.
            extends: It goes on with the recording before, if there is one.
        """
        if not isinstance(data, str) or not data:
            return
        url, content = "", data
        if split := split_data_url(data):
            content = split[1]
        elif data.startswith("https://"):
            url, content = data, ""
        self._media_left -= len(content) + len(url)
        if self._media_left < 0:
            return
        last = self.media[-1] if self.media else None
        if extends and last is not None and (last.kind, last.rate) == (kind, rate):
            last.pieces.append(content)
        elif len(self.media) < MAX_MEDIA:
            self.media.append(DrawnMedia(kind, len(self.text), [] if url else [content], url, rate))

    def break_reply(self, reason: str) -> None:
        """Note that the reply cannot be used: none of its calls runs, and the request is made again."""
        self._broken = self._broken or reason

    def open_call(self, call_id: object, name: object) -> Call | None:
        """Begin a tool call; None once there are as many as are kept. Only a call with a name counts as dropped."""
        if len(self.calls) == MAX_TOOL_CALLS:
            self._calls_dropped += bool(name)
            return None
        call = Call(read_string(call_id), read_string(name), self._arguments)
        self.calls.append(call)
        return call

    def add_arguments(self, call: Call | None, piece: object) -> None:
        """Take a piece of a call's raw arguments; some servers send the object itself."""
        if call is None or not piece:
            return
        text = write_json(piece)
        self.arguments_size += len(text)
        call.add(text)

    def add_provider_call(
        self,
        tool: str,
        *,
        input: object = None,  # noqa: A002 - the name of the field
        output: object = None,
        sources: Iterable[Source] = (),
        error: object = None,
    ) -> None:
        """Take a call of a tool that the provider ran itself. Texts are cleaned and cut, empty ones left out."""
        if len(self.provider_calls) == MAX_PROVIDER_CALLS:
            return
        call: ProviderCall = {"tool": limit_name(tool) or "unnamed"}
        if text := _limit_text(input, CALL_TEXT_LIMIT):
            call["input"] = text
        if text := _limit_text(output, CALL_TEXT_LIMIT):
            call["output"] = text
        if found := list(islice(filter(None, (_limit_source(source) for source in sources)), MAX_SOURCES)):
            call["sources"] = found
        if text := _limit_text(error, CALL_TEXT_LIMIT):
            call["error"] = text
        self.provider_calls.append(call)

    def add_citation(
        self,
        url: object,
        title: object = None,
        quote: object = None,
        *,
        start: int | None = None,
        end: int | None = None,
    ) -> None:
        """Take a source that the reply names for its characters from `start` to `end`. It needs a URL."""
        source = _limit_source({"url": read_string(url), "title": read_string(title)})
        if source is None or len(self.citations) == MAX_CITATIONS:
            return
        citation: Citation = {"url": source["url"]}
        if "title" in source:
            citation["title"] = source["title"]
        if text := _limit_text(quote, QUOTE_LIMIT):
            citation["quote"] = text
        if start is not None and end is not None and 0 <= start <= end:
            citation["start"], citation["end"] = start, end
        if citation not in self.citations[-8:]:
            self.citations.append(citation)

    def make_provider_data(self) -> ProviderData | None:
        """Make what the provider wants back with the reply; None: nothing. A provider's decoder may override it."""
        return None

    def finish(self) -> ModelReply:
        """Return the reply; raises as `Decoder.finish` does."""
        if self.refusal is not None:
            refused = PromptRefused if self.refuses_prompt else ContentRefused
            raise refused(self.refusal or "the model refused, and said no more")
        if self.stop_reason is None and not self.ended:
            raise TruncatedStream("the stream ended before the reply did")
        if self._broken:
            raise TruncatedStream(self._broken)
        text = self._text.finish()
        if self._calls_dropped:
            text += f"[truncated: {self._calls_dropped} tool calls]"
        reason = self.stop_reason or "stop"
        if reason != "length" and any(call.has_ended is False and not call.raw.so_far.strip() for call in self.calls):
            raise TruncatedStream("the stream ended before the arguments of a tool call")
        calls = tuple(
            self._tools.decode_call(call.make_tool_request(reason == "length" and call is self.calls[-1]))
            for call in self.calls
        )
        if not calls and not text.strip() and not self.media and self.stop_reason != "paused":
            if reason == "length":
                raise OutputExhausted("the reply reached its limit before any text: raise max_output_tokens")
            raise EmptyReply("the reply has neither text nor a tool call")
        # Servers disagree on the reason that goes with tool calls; that there are some is what counts.
        if reason not in ("length", "paused"):
            reason = "tool_calls" if calls else "stop"
        return ModelReply(
            content=text,
            thinking=self._thinking.finish() or None,
            tool_calls=calls,
            provider_data=self.make_provider_data(),
            provider_calls=tuple(self.provider_calls),
            citations=tuple(self.citations),
            stop_reason=reason,
            usage=self.usage,
        )


class Call:
    """An unfinished tool call.

    Attributes:
        id: The provider's id; it goes back to that provider alone.
        name: The tool, as the provider knows it.
        own: Further fields that the provider sent with the call, and wants back.
        is_cumulative: Whether each piece of the arguments has all before it, too.
        has_ended: Whether the server has said that the arguments are complete; None: its API does not say it.
    """

    def __init__(self, call_id: str, name: str, budget: Budget) -> None:
        self.id = call_id
        self.has_ended: bool | None = None
        self.own: dict[str, Any] = {}
        self.rename(name)
        self._budget = budget
        self.raw = BoundedText(budget)
        self.restart()

    def restart(self, *, cumulative: bool = False) -> None:
        """Forget the arguments so far."""
        self.is_cumulative = cumulative
        self.raw.give_back()
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

    def extends(self, arguments: object) -> bool:
        """Whether a piece has all arguments so far and more, which no piece of JSON that goes on with them has.

        The beginning of an object may also come once more without more.
        """
        # The text is put together only for a piece that is as long.
        if not isinstance(arguments, str) or not 0 < self._characters <= len(arguments):
            return False
        if self._characters == len(arguments) and self.has_all_arguments:
            return False
        so_far = self.raw.so_far
        if self.raw.overflowed or not so_far.lstrip().startswith("{") or not arguments.startswith(so_far):
            return False
        # After these another object may begin as the outer one did.
        return self.is_cumulative or not so_far.rstrip().endswith((":", "[", ","))

    def repeats(self, arguments: object) -> bool:
        """Whether a piece has all arguments so far once more."""
        # The text is put together only for a piece of its length.
        return isinstance(arguments, str) and len(arguments) == self._characters and arguments == self.raw.so_far

    @property
    def has_all_arguments(self) -> bool:
        """Whether the arguments so far are a whole JSON object, so that no more of them can follow."""
        if self.raw.overflowed or not self._end.reached:
            return False
        # Parsed once: only white space follows a real end.
        if self._is_object is None:
            self._is_object = isinstance(parse_json(self.raw.so_far), dict)
        return self._is_object

    def make_tool_request(self, reached_limit: bool) -> RequestedTool:
        """The call as the session sees it. No arguments at all mean an empty object.

        A reply may be cut behind arguments that are complete. An object whose last brace has come is, and that call
        runs: no JSON goes on behind it, and what does, such as a second object, is malformed. A number could go on,
        but is no object. Empty arguments alone may be those with which a server begins each call.

        `reached_limit`: the reply reached its limit of tokens within this call, so empty arguments are missing ones.
        """
        name = self.name or "unnamed"
        raw = self.raw.finish()
        arguments = None if self.raw.overflowed else _parse_arguments(raw)
        if arguments == {} and self.has_ended is not True and (reached_limit or self.has_ended is False):
            return RequestedTool(name=name, malformed=raw, cut=True)
        if arguments is not None:
            return RequestedTool(name=name, arguments=arguments)
        return RequestedTool(name=name, malformed=raw, cut=self._end.is_open and not self.raw.overflowed)


def _parse_arguments(raw: str) -> dict[str, Any] | None:
    """Parse the arguments of a call; None: they are not an object.

    Some servers write the object as a text of JSON, or twice, and some write another word for no arguments.
    """
    text = raw.strip()
    if text.lower() in _NO_ARGUMENTS or not "".join(text.split()).replace("{}", ""):
        return {}
    if (arguments := parse_object(raw, ARGUMENTS_LIMIT)) is not None:
        return arguments
    if text.startswith('"'):
        inner = parse_json(text)
        if not isinstance(inner, str):
            return None
        return {} if inner.strip().lower() in _NO_ARGUMENTS else parse_object(inner, ARGUMENTS_LIMIT)
    half = text[: len(text) // 2]
    return parse_object(half, ARGUMENTS_LIMIT) if half and half * 2 == text else None


class _DecoderWrapper:
    """Forwards to another decoder what a wrapper does not change."""

    def __init__(self, decoder: Decoder) -> None:
        self._decoder = decoder

    def feed(self, event: str, data: str) -> None:
        self._decoder.feed(event, data)

    @property
    def text(self) -> str:
        return self._decoder.text

    @property
    def thinking(self) -> str:
        return self._decoder.thinking

    @property
    def tool_name(self) -> str | None:
        return self._decoder.tool_name

    @property
    def arguments_size(self) -> int:
        return self._decoder.arguments_size

    @property
    def usage(self) -> Usage:
        return self._decoder.usage

    @property
    def ended(self) -> bool:
        return self._decoder.ended

    @property
    def media(self) -> Sequence[DrawnMedia]:
        # A provider of another package may have none.
        media: Sequence[DrawnMedia] = getattr(self._decoder, "media", ())
        return media

    def finish(self) -> ModelReply:
        return self._decoder.finish()


class AnswerDecoder(_DecoderWrapper):
    """Reads the value of an answer with a schema from the reply; if it `is_wrapped`, from the object around it.

    A model may answer with the bare value, since some servers ignore the schema.
    """

    def __init__(self, decoder: Decoder, *, is_wrapped: bool = True) -> None:
        super().__init__(decoder)
        self._is_wrapped = is_wrapped

    @property
    def text(self) -> str:
        """The value's text so far, without an end that may belong to the object."""
        text = self._decoder.text
        return read_growing_member(text) if self._is_wrapped else text

    def finish(self) -> ModelReply:
        """Return the reply with the value as its text; raises as `Decoder.finish` does."""
        reply = self._decoder.finish()
        if reply.tool_calls or reply.stop_reason == "paused":
            return reply
        text = find_value(reply.text)
        return _replace_content(reply, read_member(text) if self._is_wrapped else text)


class RedactedDecoder(_DecoderWrapper):
    """Redacts the worker's secrets in everything that is read of a reply, while it grows and at its end.

    Attributes:
        redaction: The redaction of the worker's secrets.
        begun_after: Seconds until the reply began; None: it has not begun.
        fitting: What the request had otherwise than its context; None until it is sent.
        sent: What the provider received; None until it is sent.
        note_growth: Called when more was read; None: nobody is told.
    """

    def __init__(self, decoder: Decoder, redaction: Redaction) -> None:
        super().__init__(decoder)
        self.note_growth: Callable[[], None] | None = None
        self.redaction = redaction
        self.begun_after: float | None = None
        self.fitting: Fitting | None = None
        self.sent: SentRequest | None = None
        self._text = GrowingText(redaction)
        self._thinking = GrowingText(redaction)
        self._made_at = time.monotonic()

    def hide(self, secrets: Iterable[str]) -> None:
        """Redact further secrets of the call. Nothing of the reply has been read yet."""
        self.redaction = self.redaction.extend(secrets)
        self._text, self._thinking = GrowingText(self.redaction), GrowingText(self.redaction)

    def feed(self, event: str, data: str) -> None:
        """Fold one event, as `Decoder.feed` says. Its errors may quote what was received."""
        self._decoder.feed(event, data)
        if self.begun_after is None and (self._decoder.text or self._decoder.thinking or self._decoder.tool_name):
            self.begun_after = time.monotonic() - self._made_at
        if self.note_growth:
            self.note_growth()

    @property
    def text(self) -> str:
        """The reply's text so far, without an end that may become a secret."""
        return self._text.show(self._decoder.text)

    @property
    def thinking(self) -> str:
        """The thinking so far, without an end that may become a secret."""
        return self._thinking.show(self._decoder.thinking)

    @property
    def tool_name(self) -> str | None:
        """The tool whose arguments are arriving, or arrived last."""
        name = self._decoder.tool_name
        return None if name is None else self.redaction.redact_text(name)

    def has_text_as_sent(self, reply: ModelReply) -> bool:
        """Whether the text of the finished reply is the one that arrived, so that media keeps its place in it."""
        return reply.text == self._decoder.text

    @property
    def size(self) -> int:
        """The characters received so far."""
        return len(self._decoder.text) + len(self._decoder.thinking) + self._decoder.arguments_size

    def finish(self) -> ModelReply:
        """Return the reply; raises as `Decoder.finish` does. Its errors may quote what was received."""
        reply = self._decoder.finish()
        data = reply.provider_data
        reply = _replace_content(reply, self.redaction.redact_text(reply.text))
        return reply.model_copy(
            update={
                "thinking": None if reply.thinking is None else self.redaction.redact_text(reply.thinking),
                "tool_calls": tuple(map(self._redact_call, reply.tool_calls)),
                "provider_calls": tuple(map(self.redaction.redact_value, reply.provider_calls)),
                "citations": tuple(map(self.redaction.redact_value, reply.citations)),
                # A provider refuses its data if it was changed, so drop it.
                "provider_data": data if _is_storable(data) and self.redaction.redact_value(data) == data else None,
            }
        )

    def _redact_call(self, call: RequestedTool) -> RequestedTool:
        malformed = call.malformed
        return call.model_copy(
            update={
                "name": self.redaction.redact_text(call.name),
                "arguments": self.redaction.redact_value(call.arguments),
                "malformed": None if malformed is None else self.redaction.redact_text(malformed),
            }
        )


def _replace_content(reply: ModelReply, content: str) -> ModelReply:
    """Replace the text of a reply. Citations keep their part of the text only if it is the same text."""
    if content == reply.content:
        return reply
    citations = tuple({**citation} for citation in reply.citations)
    for citation in citations:
        citation.pop("start", None)
        citation.pop("end", None)
    return reply.model_copy(update={"content": content, "citations": citations})


def _is_storable(data: ProviderData | None) -> bool:
    """Whether sessions can store the data and make digests of it: texts, depth and numbers are as they must be."""
    try:
        canonicalize(data)
    except ValueError:
        return False
    return True


def parse_event(data: str) -> dict[str, Any]:
    """Parse the JSON object of an event's data.

    Raises:
        TruncatedStream: The data is not a complete JSON object.
    """
    value = parse_json(data)
    if not isinstance(value, dict):
        raise TruncatedStream(f"the provider sent an event that is not a JSON object: {repr(data)[1:-1]}")
    return value


def _limit_text(value: object, limit: int) -> str:
    """Clean a text and cut it; empty: the value is not a text."""
    text = clean(read_string(value)[: 2 * limit])
    return text if len(text) <= limit else f"{text[: limit - 1]}…"


def _limit_source(source: Source) -> Source | None:
    """Clean and cut a source; None: it has no address that can be used."""
    url = clean(read_string(source.get("url")))
    if not url or len(url) > _URL_LIMIT:
        return None
    title = _limit_text(source.get("title"), _TITLE_LIMIT)
    return {"url": url, "title": title} if title else {"url": url}


def measure(value: object) -> int:
    """Measure a JSON value, in characters. One that is nested too deeply is larger than any limit."""
    try:
        return len(value) if isinstance(value, str) else len(json.dumps(value))
    except (RecursionError, ValueError):
        return 2 * PROVIDER_DATA_LIMIT


def limit_name(name: str) -> str:
    """Clean a tool's name and truncate it to its limit."""
    return truncate_utf8(clean(name).encode(), _NAME_LIMIT)


def limit_id(call_id: str) -> str:
    """Clean the id of a tool call and truncate it to its limit."""
    return clean(call_id)[:_ID_LIMIT]


def get_member(value: object, key: str) -> Any:
    """Return a member of a JSON object; None: it is absent, or the value is not an object."""
    return value.get(key) if isinstance(value, dict) else None


def get_list(value: object, key: str) -> list[Any]:
    """Return a member that is a list; empty: it is absent, or something else."""
    members = value.get(key) if isinstance(value, dict) else None
    return members if isinstance(members, list) else []


def list_objects(value: object, key: str) -> list[dict[str, Any]]:
    """List the objects of a member that is a list."""
    members = value.get(key) if isinstance(value, dict) else None
    return [item for item in members if isinstance(item, dict)] if members and isinstance(members, list) else []


def write_json(value: object) -> str:
    """Write a JSON value as text; a text is itself."""
    try:
        return value if isinstance(value, str) else json.dumps(value)
    except RecursionError:
        return "[nested too deeply]"


def read_list(value: object) -> list[Any]:
    """Return a list; empty: the value is not a list."""
    return value if isinstance(value, list) else []


def read_count(value: object) -> int | None:
    """Return a number of tokens; None: the value is not one."""
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**53 else None


def read_string(value: object) -> str:
    """Return a string; empty: the value is not a string."""
    return value if isinstance(value, str) else ""


def read_index(index: object) -> int | None:
    """Read the number of a call or of a block, which some servers write as a text; None: it has none."""
    if isinstance(index, str) and index.strip().isdecimal():
        return int(index.strip()[:9])
    return index if isinstance(index, int) and not isinstance(index, bool) else None
