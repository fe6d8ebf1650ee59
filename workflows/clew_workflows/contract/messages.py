"""Messages and tools as models see them, with their canonical JSON and their texts."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Iterator
from typing import Any, Literal, NotRequired, Required

import rfc8785
from typing_extensions import TypedDict

from clew_workflows.contract.content import Content
from clew_workflows.contract.limits import MAX_JSON_DEPTH, MIN_DATA_CHARACTERS

# The canonical bytes of a JSON value (RFC 8785), and the digest over them.


# Larger integers are not exact as IEEE 754 doubles, the numbers of RFC 8785.
_EXACT_INTEGER = 2**53 - 1
_ENCODER = json.JSONEncoder(ensure_ascii=False, check_circular=False, sort_keys=True, separators=(",", ":"))


def canonicalize(value: Any) -> bytes:
    """Encode a JSON value as RFC 8785 says.

    An integer beyond 2^53 becomes the nearest double, as it does for readers without big integers.

    Raises:
        ValueError: The value has a NaN, an infinity or a lone surrogate, or over 200 levels.
    """
    if _look_through(value, MAX_JSON_DEPTH):
        # The encoder takes a quarter of the library's time.
        return _ENCODER.encode(value).encode()
    try:
        return rfc8785.dumps(value)
    except rfc8785.IntegerDomainError:
        return rfc8785.dumps(_convert_large_integers(value))


def compute_digest(value: Any) -> str:
    """Compute the SHA-256 of the canonical form, as 64 hexadecimal digits."""
    return hashlib.sha256(canonicalize(value)).hexdigest()


def check_depth(value: Any, max_depth: int) -> None:
    """Check how deep a JSON value is nested.

    Raises:
        ValueError: The value has over `max_depth` levels.
    """
    _look_through(value, max_depth)


def _look_through(value: Any, max_depth: int) -> bool:
    """Check how deep a JSON value is nested. Returns whether Python's own encoder surely writes it as RFC 8785 says.

    The encoder writes fractions and large integers in another form, and may sort keys beyond ASCII in another order.
    """
    is_plain, level = True, [value]
    for _ in range(max_depth + 1):
        containers = False
        following: list[Any] = []
        for item in level:
            kind = type(item)
            if kind is str or item is None or kind is bool:
                continue
            if isinstance(item, dict):
                containers = True
                following.extend(item.values())
                for key in item:
                    if type(key) is not str or not key.isascii():
                        is_plain = False
            elif isinstance(item, list | tuple):
                containers = True
                following.extend(item)
            elif kind is not int or abs(item) > _EXACT_INTEGER:
                is_plain = False
        if not containers:
            return is_plain
        level = following
    raise ValueError(f"nested over {max_depth} levels deep")


def _convert_large_integers(value: Any) -> Any:
    if isinstance(value, int) and not isinstance(value, bool) and abs(value) > _EXACT_INTEGER:
        try:
            return float(value)
        except OverflowError:
            raise ValueError("an integer beyond the range of a double") from None
    if isinstance(value, dict):
        return {key: _convert_large_integers(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_convert_large_integers(item) for item in value]
    return value


# Texts in UTF-8: truncated to a size in bytes, and without the data that programs write as text.
#
# Sessions take text. An image as base64 costs a token for each one or two of its characters, and a model cannot see
# it.


_MIN_DIFFERENT = 40
"""Fewest different characters of base64 without a media type. Sequences of letters, hashes and rules have fewer."""
_SAMPLE_CHARACTERS = 10_000
_MOST_PREFIX_CHARACTERS = 200
# The look-behind keeps the search linear: it begins at the first character of a run alone.
_RUN = re.compile(rf"(?<![A-Za-z0-9+/_-])[A-Za-z0-9+/_-]{{{MIN_DATA_CHARACTERS},}}={{0,2}}")
_PREFIX = re.compile(r"data:([\w.+-]+/[\w.+-]+)?(?:;[\w.+=-]+)*;base64,\Z", re.IGNORECASE)


def truncate_utf8(data: bytes, size: int) -> str:
    """Truncate data in UTF-8 to at most `size` bytes, at the end of a character."""
    return data[:size].decode("utf-8", "ignore")


def truncate_result(data: bytes, limit: int, more: str = "") -> tuple[str, int]:
    """Truncate a tool's result in UTF-8 that is over a limit, and add a mark.

    Returns the text with the mark, and how many bytes of the result it shows. `more` is text for the mark; `{shown}`
    in it is replaced by the number of shown bytes.
    """
    mark = f"\n[truncated: the first {{shown}} of {len(data)} bytes are shown{more}]"
    text = truncate_utf8(data, limit - len(mark) - 16)
    shown = len(text.encode())
    return text + mark.format(shown=shown), shown


def describe_bytes(size: int, media_type: str = "data") -> str:
    """Describe data that a model cannot read."""
    return f"[{media_type}, {size} bytes: left out, a model reads text only]"


def replace_data(text: str) -> str:
    """Replace data URLs and long base64 in a text by their descriptions."""
    pieces, end = [], 0
    for start, stop, media_type in _find_data(text):
        pieces += [text[end:start], describe_bytes(_measure(text, start, stop), media_type or "data")]
        end = stop
    return "".join((*pieces, text[end:])) if pieces else text


def find_data_url(text: str) -> str | None:
    """Describe the first long data URL of a text: its media type and its size; None: there is none."""
    for start, stop, media_type in _find_data(text):
        if media_type:
            return f"{media_type}, {_measure(text, start, stop)} bytes"
    return None


def _find_data(text: str) -> Iterator[tuple[int, int, str | None]]:
    """Find data URLs and base64: where each begins and ends, and the media type of a data URL."""
    for run in _RUN.finditer(text):
        before = text[max(run.start() - _MOST_PREFIX_CHARACTERS, 0) : run.start()]
        if prefix := _PREFIX.search(before):
            yield run.start() - len(prefix[0]), run.end(), prefix[1] or "data"
        elif len(set(run[0][:_SAMPLE_CHARACTERS])) >= _MIN_DIFFERENT:
            yield run.start(), run.end(), None


def _measure(text: str, start: int, stop: int) -> int:
    """Measure the data of base64, which has four characters for three bytes."""
    encoded = text[start:stop].rpartition(",")[2].rstrip("=")
    return len(encoded) * 3 // 4


# Messages and tool schemas in Clew's own form; providers convert them to theirs.
#
# They are plain JSON objects: the same objects are stored, projected, hashed and sent.


Role = Literal["system", "user", "assistant", "tool"]


class ToolCall(TypedDict):
    """A tool call by a model.

    Attributes:
        id: Made by Clew: unique in its thread, at most 40 letters, digits, `_` or `-`.
        name: The tool.
        arguments: The arguments, always an object: an empty one if the model sent something else, which the tool's
            result then quotes.
    """

    id: str
    name: str
    arguments: dict[str, Any]


class ProviderData(TypedDict):
    """The part of a reply that goes back to its provider as it came; no other provider gets it.

    Attributes:
        provider: The provider.
        blocks: The content blocks, or the fields of the message, as the provider sent them.
        calls: What the provider sent with each tool call of the message, in order: its `id`, and signatures.
        model: The model that sent it, without its provider. Absent: any model of the provider takes it back.
    """

    provider: str
    blocks: list[dict[str, Any]]
    calls: NotRequired[list[dict[str, Any]]]
    model: NotRequired[str]


class Source(TypedDict):
    """A page that a provider's tool has read or found.

    Attributes:
        url: Its address.
        title: Its title.
    """

    url: str
    title: NotRequired[str]


class ProviderCall(TypedDict):
    """A call of a tool that the provider ran itself.

    Attributes:
        tool: The tool: `web_search`, `web_fetch`, `code_execution`, `image_generation`, or the provider's own name of
            another one.
        input: What it was called with: the query, the address or the code; at most 4 000 characters.
        output: What it returned, if that is a text: the output of code; at most 4 000 characters.
        sources: The pages that it has found or read; at most 50.
        error: Why it failed.
    """

    tool: str
    input: NotRequired[str]
    output: NotRequired[str]
    sources: NotRequired[list[Source]]
    error: NotRequired[str]


class Citation(TypedDict):
    """A source that a reply names for a part of its text.

    Attributes:
        url: The address of the page.
        title: Its title.
        quote: The words of the page; at most 500 characters.
        start: The first character of the part of the reply's text.
        end: The character after the last one of that part.
    """

    url: str
    title: NotRequired[str]
    quote: NotRequired[str]
    start: NotRequired[int]
    end: NotRequired[int]


def list_cited_pages(citations: Iterable[Citation]) -> list[Source]:
    """List the pages of citations, each once, in the order in which a text names them."""
    pages: dict[str, Source] = {}
    for citation in citations:
        page = pages.setdefault(citation["url"], {"url": citation["url"]})
        if "title" in citation:
            page.setdefault("title", citation["title"])
    return list(pages.values())


class Message(TypedDict, total=False):
    """One message of a context.

    Attributes:
        role: The speaker.
        content: The text, or the parts.
        tool_calls: The tool calls of an assistant message.
        tool_call_id: The call that a tool message answers.
        name: The tool of a tool message.
        provider_data: Blocks that go back to the provider with the message.
    """

    role: Required[Role]
    content: Required[Content]
    tool_calls: NotRequired[list[ToolCall]]
    tool_call_id: NotRequired[str]
    name: NotRequired[str]
    provider_data: NotRequired[ProviderData]


class ToolSpec(TypedDict):
    """A tool as a model knows it.

    Attributes:
        name: The tool.
        description: The purpose of the tool.
        parameters: The JSON Schema of its arguments.
    """

    name: str
    description: str
    parameters: dict[str, Any]


def list_call_ids(message: Message) -> list[str]:
    """List the ids of a message's tool calls, in order."""
    return [call["id"] for call in message.get("tool_calls", [])]
