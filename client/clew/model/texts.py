"""Texts in UTF-8: truncated to a size in bytes, and without the data that programs write as text.

Sessions take text. An image as base64 costs a token for each one or two of its characters, and a model cannot see it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

MIN_DATA_CHARACTERS = 1000
"""Fewest characters of base64 that are data. Shorter ones are part of a text, such as an icon in a style sheet."""
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
