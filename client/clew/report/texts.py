"""Texts of the page: numbers, times, Markdown, and characters that nobody sees. Needs the extra `cli`."""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import datetime
from functools import cache
from typing import Any
from urllib.parse import urlsplit

from markdown_it import MarkdownIt
from markdown_it.common.utils import escapeHtml
from markdown_it.renderer import RendererHTML
from markdown_it.token import Token
from markupsafe import Markup

# Numbers and times as people read them.


THIN_SPACE = "\u202f"
"""Separates groups of three digits."""


def format_number(number: float) -> str:
    """Format a number with spaces between thousands."""
    return f"{number:,.0f}".replace(",", THIN_SPACE)


def format_percent(portion: float) -> str:
    """Format a share from 0 to 1."""
    return f"{portion:.0%}"


def format_dollars(amount: float | None) -> str:
    """Format an amount in dollars: to the cent, or to the hundredth of a cent below ten cents."""
    if amount is None:
        return "not known"
    return f"${amount:,.2f}" if amount >= 0.1 or not amount else f"${amount:.4f}"


def format_seconds(seconds: float | None) -> str:
    """Format a duration."""
    if seconds is None:
        return ""
    if 0 < seconds < 1:
        return f"{seconds * 1000:.0f} ms"
    if seconds < 10:
        return f"{seconds:.1f} s"
    if seconds < 120:
        return f"{seconds:.0f} s"
    if seconds < 7200:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.0f} h" if seconds < 172_800 else f"{seconds / 86_400:.0f} days"


def format_bytes(size: int) -> str:
    """Format a size."""
    return f"{size} bytes" if size < 2000 else f"{size / 1000:.0f} kB" if size < 2_000_000 else f"{size / 1e6:.1f} MB"


def format_time(at: str) -> str:
    """Format the time of an entry to the second, in UTC."""
    try:
        return datetime.fromisoformat(at).strftime("%Y-%m-%d %H:%M:%S")
    except ValueError:
        return at


# Characters that a page must not hide: controls, invisible characters, and those that reorder what is read.


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


def is_web_address(address: str) -> bool:
    """Whether a link may lead to an address: only to a page of the web, and only where people see which one it is."""
    try:
        parts = urlsplit(address)
        host = parts.hostname
    except ValueError:
        return False
    is_visible = address.isprintable() and not re.search(r"[\s\\]", address) and make_visible(address) == address
    return parts.scheme in ("http", "https") and bool(host) and "@" not in parts.netloc and is_visible


# Replies as HTML: Markdown that loads nothing, links nowhere and hides nothing.


# Raw HTML stays text. Reference definitions and entities would hide text, images would load something.
_DISABLED = ("html_block", "html_inline", "reference", "entity", "image")
_MAX_NESTING = 20


def render_markdown(text: str) -> Markup:
    """Render a reply. Links show their address and cannot be followed; headings are no headings of the page."""
    return Markup(_make_parser().render(make_visible(text)))


@cache
def _make_parser() -> MarkdownIt:
    parser = MarkdownIt("commonmark", {"html": False, "maxNesting": _MAX_NESTING}, renderer_cls=_Renderer)
    return parser.enable("table").disable(list(_DISABLED))


class _Renderer(RendererHTML):
    """Writes the HTML of a reply."""

    def heading_open(self, tokens: Sequence[Token], index: int, _options: Any, _env: Any) -> str:
        """Write a paragraph that looks like a heading: the page's own headings are in order without it."""
        return f'<p class="heading {tokens[index].tag}">'

    def heading_close(self, _tokens: Sequence[Token], _index: int, _options: Any, _env: Any) -> str:
        """End the paragraph."""
        return "</p>\n"

    def link_open(self, _tokens: Sequence[Token], _index: int, _options: Any, _env: Any) -> str:
        """Begin the text of a link."""
        return '<span class="link">'

    def link_close(self, tokens: Sequence[Token], index: int, _options: Any, _env: Any) -> str:
        """End the text of a link, and write its address."""
        depth = 0
        for token in reversed(tokens[: index + 1]):
            depth += (token.type == "link_close") - (token.type == "link_open")
            if depth == 0:
                parts = (token.attrGet("href"), token.attrGet("title"))
                address = make_visible(" ".join(str(part) for part in parts if part))
                return f'</span> <span class="address">({escapeHtml(address)})</span>'
        return "</span>"

    def table_open(self, _tokens: Sequence[Token], _index: int, _options: Any, _env: Any) -> str:
        """Begin a table in a box that scrolls by itself."""
        return '<div class="scroll" tabindex="0" role="group" aria-label="Table of the reply"><table>'

    def table_close(self, _tokens: Sequence[Token], _index: int, _options: Any, _env: Any) -> str:
        """End the table and its box."""
        return "</table></div>\n"

    def th_open(self, _tokens: Sequence[Token], _index: int, _options: Any, _env: Any) -> str:
        """Begin a cell of a table's head."""
        return '<th scope="col">'

    def td_open(self, _tokens: Sequence[Token], _index: int, _options: Any, _env: Any) -> str:
        """Begin a cell; its alignment would be a style, which the page does not permit."""
        return "<td>"

    def fence(self, tokens: Sequence[Token], idx: int, options: Any, env: Any) -> str:  # noqa: ARG002 - the parser's
        """Write a block of code, with its language as text."""
        token = tokens[idx]
        language = make_visible(token.info.strip())
        label = f'<span class="language">{escapeHtml(language)}</span>' if language else ""
        return f"<pre>{label}<code>{escapeHtml(token.content)}</code></pre>\n"
