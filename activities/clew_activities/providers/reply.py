"""The draft of a reply that every decoder fills: each size has a limit, each string can be encoded.

Text and thinking over their caps end in `[truncated: N bytes]`. Of more than `MAX_TOOL_CALLS` tool calls the first
are kept, and the text says how many were dropped. A call without a name is called `unnamed`, which no tool is, so
that the model reads that there is no such tool. Raw arguments share one cap; a call whose arguments do not
fit is malformed. Provider data over its cap is dropped: the provider would refuse a part of it.
"""

from __future__ import annotations

import json
from typing import Any, Literal

from clew.model.messages import ProviderData
from clew.model.texts import truncate_utf8
from clew.outcomes import Usage
from clew_activities.providers.errors import ContentRefused, EmptyReply, OutputExhausted, TruncatedStream
from clew_activities.providers.sanitize import (
    BoundedText,
    Budget,
    ObjectEnd,
    clean,
    parse_json,
    parse_object,
)
from clew_workflows.protocol import ModelReply, RequestedTool

ARGUMENTS_LIMIT = 256 * 1024
PROVIDER_DATA_LIMIT = 512 * 1024
TEXT_LIMIT = 256 * 1024
THINKING_LIMIT = 256 * 1024
MAX_TOOL_CALLS = 64

_NAME_LIMIT = 256

StopReason = Literal["stop", "length", "tool_calls"]


class Call:
    """An unfinished tool call. `id` is the provider's, and only distinguishes calls."""

    def __init__(self, call_id: str, name: str, budget: Budget) -> None:
        self.id = call_id
        self.rename(name)
        self.raw = BoundedText(budget)
        self._end = ObjectEnd()
        self._is_object: bool | None = None

    def rename(self, name: str) -> None:
        """Give the call its name, which may come after its id."""
        self.name = limit_name(name)

    def add(self, piece: str) -> None:
        """Take a piece of the raw arguments."""
        self.raw.add(piece)
        if not self.raw.overflowed:
            self._end.add(piece)

    @property
    def has_all_arguments(self) -> bool:
        """Whether the arguments so far are a whole JSON object, so that no more of them can follow."""
        if self.raw.overflowed or not self._end.reached:
            return False
        # Parsed once: what comes after the end is white space, or the end is none.
        if self._is_object is None:
            self._is_object = isinstance(parse_json(self.raw.so_far), dict)
        return self._is_object

    def make_tool_request(self) -> RequestedTool:
        """The call as the session sees it. No arguments at all mean an empty object."""
        name = self.name or "unnamed"
        raw = self.raw.finish()
        if not raw.strip():
            return RequestedTool(name=name)
        arguments = None if self.raw.overflowed else parse_object(raw, ARGUMENTS_LIMIT)
        return (
            RequestedTool(name=name, malformed=raw)
            if arguments is None
            else RequestedTool(name=name, arguments=arguments)
        )


class ReplyDraft:
    """The state of a decoder that does not depend on the provider."""

    def __init__(self) -> None:
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
        """The name of the newest tool call."""
        return self._calls[-1].name if self._calls else None

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
        calls = tuple(call.make_tool_request() for call in self._calls)
        reason = self.stop_reason or "stop"
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
    """The part of a decoder that every provider's decoder shares: what has arrived stands in a `ReplyDraft`."""

    def __init__(self) -> None:
        self._draft = ReplyDraft()

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


def get_member(value: object, key: str) -> Any:
    """Return a member of a JSON object; None: it is absent, or the value is not an object."""
    return value.get(key) if isinstance(value, dict) else None


def read_count(value: object) -> int | None:
    """Return a number of tokens; None: the value is not one."""
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**53 else None


def read_string(value: object) -> str:
    """Return a string; empty: the value is not a string."""
    return value if isinstance(value, str) else ""
