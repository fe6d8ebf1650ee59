"""Text for terminals, and the events of a request on the screen."""

from __future__ import annotations

import io
import re
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from clew.cli import show
from clew.cli.talk import View
from clew.session.events import Restarted, Retrying, SessionEvent, TextAdded
from clew_workflows.contract.messages import Citation, ProviderCall
from clew_workflows.contract.outcomes import Usage


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("plain\ttext\nin lines, 日本語 and 👩‍🚀", "plain\ttext\nin lines, 日本語 and 👩‍🚀"),
        ("a\x1b[1;31mred\x1b[0m", "ared"),
        ("a\x1b]0;a title\x07b\x1b]8;;http://x\x1b\\c", "abc"),
        ("a\x1bPdevice\x1b\\b\x9b2Jc\x9d0;t\x9cd", "abcd"),
        ("a\x1bcb\x1b(0c\x1b=d", "abcd"),
        ("never closed: \x1b]0;text", "never closed: ]0;text"),
        ("a\r\nb\rc\x08\x00\x7f\x85d", "a\nbcd"),
        ("a\u202eb\u2066c\u2028d\ud800e", "abcde"),
        ("[bold]markup[/] stays", "[bold]markup[/] stays"),
    ],
)
def test_control_sequences_are_taken_out(text: str, expected: str) -> None:
    """Escape sequences and control characters are removed; all other text stays."""
    assert show.strip_controls(text) == expected


@given(st.text(alphabet=st.sampled_from("\x1b\x9b\x9d[]()0;mHJ\\\x07\x9c ab\n\u202e")))
def test_no_control_character_survives(text: str) -> None:
    """No control character remains, however sequences are nested or cut."""
    assert not set(show.strip_controls(text)) & set("\x1b\x9b\x9d\x07\x9c\u202e")


@pytest.mark.parametrize(
    ("usage", "expected"),
    [
        (Usage(model_calls=1, input_tokens=1200, output_tokens=30), "1 model call, 1 200 → 30 tokens"),
        (
            Usage(model_calls=2, input_tokens=9, cached_input_tokens=4, output_tokens=1, cost_usd=0.1234),
            "2 model calls, 9 (4 cached) → 1 tokens, $0.1234",
        ),
    ],
)
def test_a_usage_has_its_cost_where_it_is_known(usage: Usage, expected: str) -> None:
    """A usage is one line of calls and tokens, with the cost if the list price is known."""
    assert show.format_usage(usage) == expected


def show_events(*events: SessionEvent) -> str:
    """Show events on a terminal that keeps its text."""
    out = io.StringIO()
    view = View(Console(file=out, width=100), "s")
    for event in events:
        view.show(event)
    return out.getvalue()


def add_text(text: str, offset: int = 0, *, call: str = "c-1", attempt: int = 1) -> TextAdded:
    """Make the event of more text."""
    return TextAdded(request_id="r", run_id="run-1", call_id=call, attempt=attempt, offset=offset, text=text)


def test_new_text_is_appended() -> None:
    """The pieces of one reply are one text; the next model call begins a line."""
    assert show_events(add_text("The "), add_text("thread", 4), add_text("Two", call="c-2")) == "The thread\nTwo"


def test_a_reply_that_starts_over_says_so() -> None:
    """A new attempt, a gap and a replaced text print a note."""
    started_over = Restarted(call_id="c-1", attempt=2)
    assert show_events(add_text("One"), started_over, add_text("Uno", attempt=2)) == (
        "One\n[attempt 2: the reply starts over]\nUno"
    )
    assert show_events(add_text("One"), add_text("later", 100)) == "One\n[100 characters before this]\nlater"
    assert show_events(add_text("One"), add_text("Another")) == "One\n[the reply is replaced]\nAnother"


def test_a_retry_says_why() -> None:
    """The note has the attempt and the reason."""
    retrying = Retrying(call_id="c-1", attempt=2, error="rate_limited", message="slow down")
    assert "[attempt 2 follows: slow down]\n" in show_events(retrying)
    later = (datetime.now(UTC) + timedelta(seconds=90)).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    assert re.search(r"attempt 2 follows in (90|89|88) s: slow down", show_events(replace(retrying, next_at=later)))


def test_sources_are_numbered_once_each() -> None:
    """After the calls of the provider's own tools; controls and line breaks of pages do nothing."""
    calls: list[ProviderCall] = [
        {"tool": "web_search", "input": "tea\nleaves", "sources": [{"url": "https://a.example"}] * 3},
        {"tool": "web_fetch", "input": "https://b.example", "error": "not\x1b[31m found"},
        {"tool": "code_execution", "input": "1 + 1", "output": "2"},
        {"tool": "other"},
    ]
    citations: list[Citation] = [
        {"url": "https://a.example", "title": "A\x1b]0;x\x07\nB"},
        {"url": "https://b.example/\u202ex\ny"},
        {"url": "https://a.example", "quote": "a"},
    ]
    assert [line.plain for line in show.list_source_lines(calls, citations)] == [
        "↗ web_search: tea leaves · 3 sources",
        "↗ web_fetch: https://b.example · failed: not found",
        "↗ code_execution: 1 + 1 · 2",
        "↗ other",
        "[1] A B — https://a.example",
        "[2] https://b.example/x y",
    ]
    assert show.list_source_lines(None, None) == []
