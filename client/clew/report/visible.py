"""Characters that a page must not hide: controls, invisible characters, and those that reorder what is read."""

from __future__ import annotations

import re

# C0 controls but tab and line feed, DEL, C1; zero-width space, line and paragraph separators, the embeddings,
# overrides and isolates of bidirectional text, invisible operators, the byte order mark, interlinear annotations,
# tags, and lone surrogates. The joiners and the marks of direction stay: emoji and right-to-left scripts need them.
_HIDDEN = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u200b\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb\ud800-\udfff\U000e0000-\U000e007f]"
)
_PICTURES = 0x2400
"""The code point of the picture of NUL; those of the other C0 controls follow."""


def make_visible(text: str) -> str:
    """Replace hidden characters by visible ones: U+0000 by its picture, U+202E by `[U+202E]`."""
    return _HIDDEN.sub(_name, text.replace("\r\n", "\n"))


def _name(match: re.Match[str]) -> str:
    code = ord(match[0])
    if code < 0x20:
        return chr(_PICTURES + code)
    return f"[U+{code:04X}]"
