"""Replies as HTML: Markdown that loads nothing, links nowhere and hides nothing."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

from markdown_it import MarkdownIt
from markdown_it.common.utils import escapeHtml
from markdown_it.renderer import RendererHTML
from markdown_it.token import Token
from markupsafe import Markup

from clew.report.visible import make_visible

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
