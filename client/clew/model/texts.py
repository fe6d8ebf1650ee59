"""Texts in UTF-8 that are truncated to a size in bytes."""

from __future__ import annotations


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
