"""Makes received data safe to store: encodable text, parsed JSON, bounded sizes."""

from __future__ import annotations

import json
import re
from contextlib import suppress
from typing import Any

from pydantic_core import from_json

from clew_workflows.contract.messages import canonicalize, truncate_utf8

MAX_DEPTH = 100
"""Most levels of nesting in a tool's arguments. Serializers fail between 200 and 1000."""


def clean(text: str) -> str:
    """Replace lone surrogates with U+FFFD and join split surrogate pairs."""
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
    return text


def parse_json(text: str) -> Any:
    """Parse a JSON text; None: it is `null`, malformed, or nested beyond the parser's depth."""
    try:
        # Servers repeat names, and seldom values.
        return from_json(text, cache_strings="keys")
    except (TypeError, ValueError):
        # The fast parser takes no lone surrogates, for which it raises TypeError, and not as many levels.
        with suppress(ValueError, RecursionError):
            return json.loads(text)
    return None


def parse_object(text: str, limit: int) -> dict[str, Any] | None:
    """The JSON object of a text, clean, or None.

    None too for what only Python calls JSON (NaN, Infinity), for numbers beyond a double, for more than
    `MAX_DEPTH` levels, and for what takes more than `limit` bytes once written out again: `1E15` has 4
    characters and returns with 16.
    """
    try:
        value = clean_value(json.loads(text), MAX_DEPTH)
        if not isinstance(value, dict) or len(canonicalize(value)) > limit:
            return None
    except (ValueError, RecursionError):
        return None
    return value


class Budget:
    """Bytes that one text, or several texts together, may still take."""

    def __init__(self, size: int) -> None:
        self.left = size


class BoundedText:
    """A text that arrives in pieces, of which as many UTF-8 bytes are kept as its budget has left.

    A character may be split over two pieces: JSON escapes it as two surrogates, and servers stream escapes.
    """

    def __init__(self, budget: Budget) -> None:
        self._budget = budget
        self._kept: list[str] = []
        self._dropped = 0
        self._half = ""

    def add(self, piece: str) -> None:
        """Take a piece."""
        if not piece:
            return
        if not self._half and not self._dropped:
            # Nearly every piece: it has no surrogates, and fits.
            try:
                size = len(piece.encode())
            except UnicodeEncodeError:
                pass
            else:
                if size <= self._budget.left:
                    self._kept.append(piece)
                    self._budget.left -= size
                    return
        piece = self._half + piece
        self._half = ""
        if piece and "\ud800" <= piece[-1] <= "\udbff":
            piece, self._half = piece[:-1], piece[-1]
        data = clean(piece).encode()
        piece_kept = truncate_utf8(data, self._budget.left) if not self._dropped else ""
        size = len(piece_kept.encode())
        if piece_kept:
            self._kept.append(piece_kept)
            self._budget.left -= size
        self._dropped += len(data) - size

    @property
    def so_far(self) -> str:
        """What was kept until now."""
        return "".join(self._kept)

    @property
    def overflowed(self) -> bool:
        """Whether something was dropped."""
        return self._dropped > 0

    def give_back(self) -> None:
        """Leave the budget to another text, which takes this one's place."""
        self._budget.left += len(self.so_far.encode())
        self._kept = []

    def finish(self) -> str:
        """The whole text; where something was dropped it ends in `[truncated: N bytes]`, within the budget."""
        if self._half:
            self._half = ""
            self.add("\ufffd")
        if not self._dropped:
            return self.so_far
        data = self.so_far.encode()
        total = len(data) + self._dropped
        # Room for the marker at its longest: N has at most as many digits as the total.
        text = truncate_utf8(data, max(0, len(data) - len(f"[truncated: {total} bytes]")))
        return f"{text}[truncated: {total - len(text.encode())} bytes]"


class ObjectEnd:
    """Whether a JSON text that arrives in pieces is one whole object. Each character is looked at once."""

    def __init__(self) -> None:
        self.reached = False
        self._closed = False
        self._depth = 0
        self._in_string = False
        self._half = ""

    @property
    def is_open(self) -> bool:
        """Whether an object has begun and has not ended."""
        return self._depth > 0

    def add(self, piece: str) -> None:
        """Take a piece. Braces are counted, so a text that is not JSON may seem to be an object."""
        if self._closed:
            self.reached = self.reached and not piece.strip()
            return
        piece = self._half + piece
        self._half = ""
        for mark in _MARKS.finditer(piece):
            if mark[0] == "\\":
                self._half = mark[0]
            elif mark[0] == '"':
                self._in_string = not self._in_string
            elif not self._in_string and mark[0] in "{}":
                self._depth += 1 if mark[0] == "{" else -1
                if self._depth == 0:
                    self._closed = True
                    self.reached = not piece[mark.end() :].strip()
                    return


_MARKS = re.compile(r'\\.?|["{}]', re.DOTALL)


def clean_value(value: Any, depth: int = MAX_DEPTH) -> Any:
    """Clean all texts of a JSON value.

    Raises:
        ValueError: The value has more than `depth` levels.
    """
    if isinstance(value, str):
        return clean(value)
    if isinstance(value, dict | list):
        if depth == 0:
            raise ValueError("nested too deeply")
        if isinstance(value, list):
            return [clean_value(item, depth - 1) for item in value]
        return {clean(key): clean_value(item, depth - 1) for key, item in value.items()}
    return value
