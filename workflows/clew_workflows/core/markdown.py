"""Texts of strangers in Markdown: none of them can add a heading, a link, an image or HTML, or end its line.

The Temporal UI's renderer passes HTML on, scripts included, and does not know every escape of CommonMark. Character
references work everywhere.
"""

from __future__ import annotations

import re
from typing import Any
from urllib.parse import quote

from pydantic_core import to_json

_PUNCTUATION = re.compile(r"[\"-+\-/:<->@\[-`{-~]")
"""The ASCII punctuation but for `!`, `,`, `.`, `;` and `?`."""


def shorten(text: str, limit: int) -> str:
    """Put a text on one line of at most `limit` characters, without characters that are not visible."""
    # Twice the limit, so that a megabyte is not read for a line.
    begin = text[: 2 * limit]
    if not begin.isprintable():
        begin = "".join(char if char.isprintable() else " " for char in begin)
    line = " ".join(begin.split())
    return line if len(line) <= limit and len(text) <= 2 * limit else f"{line[: limit - 1]}…"


def escape(text: str, limit: int) -> str:
    """Shorten a text, and write every character that could mean something in Markdown or HTML as a reference."""
    return _PUNCTUATION.sub(lambda match: f"&#{ord(match[0])};", shorten(text, limit))


def format_code(text: str, limit: int) -> str:
    """Shorten a text, and make it a code span. A backtick in it is replaced by a character that looks like one."""
    return f"`{shorten(text, limit).replace('`', 'ˋ')}`"  # noqa: RUF001 - the look-alike is meant


def format_arguments(arguments: Any, limit: int) -> str:
    """Write a call's arguments on one line of JSON."""
    return shorten(to_json(arguments, inf_nan_mode="constants").decode(errors="replace"), limit)


def link_session(session_id: str) -> str:
    """Link the page of a session; the Temporal UI puts the namespace in."""
    return f"[{escape(session_id, 200)}](/namespaces/{{namespace}}/workflows/{quote(session_id, safe='')})"
