"""Texts of strangers in the Markdown of the Temporal UI."""

from __future__ import annotations

import html

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clew_workflows.session.ui import escape, format_arguments, format_code, link_session, shorten

HOSTILE = (
    "<script>alert(1)</script>",
    "[x](javascript:alert(1))",
    "![i](http://127.0.0.1/y.png)",
    "# head\n\n- item",
    "a $x$ and `code`",
    "&lt;b&gt;",
    "https://evil.example",
    "**b** __c__ ~~d~~ | e |",
)


@pytest.mark.parametrize("text", HOSTILE)
def test_no_text_has_a_meaning(text: str) -> None:
    """What renderers give a meaning to is a reference, which they show as the character."""
    escaped = escape(text, 200)
    assert not set("<>[]()*_`~$|\\&#") & set(html.unescape("") + escaped.replace("&#", "").replace(";", ""))
    assert html.unescape(escaped) == shorten(text, 200)


@given(st.text(max_size=60), st.integers(min_value=1, max_value=40))
def test_a_shortened_text_is_one_visible_line(text: str, limit: int) -> None:
    """Of at most as many characters, whatever the text is."""
    line = shorten(text, limit)
    assert len(line) <= limit
    assert line.isprintable()
    assert html.unescape(escape(text, limit)) == line


def test_code_ends_where_it_should() -> None:
    """A backtick in it is replaced."""
    assert format_code("a `b` ``", 100).count("`") == 2
    assert format_code("line\nbreak", 100) == "`line break`"


def test_arguments_are_json_on_one_line() -> None:
    """Also those that JSON has no word for."""
    assert format_arguments({"a": 1, "b": "x\ny"}, 80) == '{"a":1,"b":"x\\ny"}'
    assert format_arguments({"a": float("nan")}, 80) == '{"a":NaN}'
    assert len(format_arguments({"a": "x" * 10_000}, 80)) == 80


def test_a_session_has_a_link() -> None:
    """Its path cannot leave the page of a workflow."""
    assert link_session("a:b") == "[a&#58;b](/namespaces/{namespace}/workflows/a%3Ab)"
