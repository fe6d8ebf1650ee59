"""The page of a report: it is complete, escaped, and shows hidden characters."""

from __future__ import annotations

import base64
import hashlib
import re
from html.parser import HTMLParser
from itertools import pairwise
from typing import Any

import pytest

from clew.report import make_report
from clew.report.pictures import MAX_BARS, make_charts, round_up
from clew.report.rendering import LONG_TURN, OPEN_TURNS, Turn, list_turns, render_page
from clew.report.texts import format_dollars, format_seconds, is_web_address, make_visible, render_markdown
from clew_workflows.contract.policy import ContextPolicy
from clew_workflows.thread.thread import Thread
from tests.support.hostile_thread import HOSTILE_ADDRESSES, write_hostile_thread
from tests.support.recorded import RecordedSession
from tests.support.threads import assistant_calls, tool_returns, user_says

_VOID = {"meta", "br", "hr", "input"}
_ALLOWED = {
    *("html", "head", "title", "style", "body", "header", "main", "footer", "nav", "section", "article", "div"),
    *(
        "h1",
        "h2",
        "h3",
        "h4",
        "h5",
        "p",
        "ul",
        "ol",
        "li",
        "dl",
        "dt",
        "dd",
        "b",
        "em",
        "strong",
        "small",
        "code",
        "pre",
    ),
    *("a", "span", "time", "details", "summary", "figure", "figcaption", "blockquote"),
    *("svg", "defs", "pattern", "rect", "circle", "line", "path"),
    *("table", "caption", "thead", "tbody", "tr", "th", "td"),
    *("label", "button", "script"),
    *_VOID,
}


class Elements(HTMLParser):
    """Collects the elements and attributes of a page, and checks that they are nested."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: set[str] = set()
        self.attributes: list[tuple[str, str]] = []
        self.ids: list[str] = []
        self.headings: list[int] = []
        self._open: list[str] = []
        self.feed(page)
        assert not self._open

    def handle_starttag(self, tag: str, attrs: Any) -> None:
        self.tags.add(tag)
        self.attributes += ((name, value or "") for name, value in attrs)
        self.ids += (value for name, value in attrs if name == "id")
        if re.fullmatch("h[1-6]", tag):
            self.headings.append(int(tag[1]))
        if tag not in _VOID:
            self._open.append(tag)

    def handle_startendtag(self, tag: str, attrs: Any) -> None:
        self.tags.add(tag)
        self.attributes += ((name, value or "") for name, value in attrs)

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop() == tag


def render(thread: Thread, **options: Any) -> str:
    return render_page(make_report(thread, made_at="2026-01-02T00:00:00Z", session_id="s-1", **options))


def test_hostile_texts_stay_text() -> None:
    """In every place where text enters a page it makes no element and no attribute, and no character is hidden."""
    page = render(write_hostile_thread())
    elements = Elements(page)
    assert elements.tags <= _ALLOWED
    assert not [
        name for name, _ in elements.attributes if name.startswith("on") or name in ("src", "style", "action")
    ]
    assert {value[0] for name, value in elements.attributes if name == "href"} == {"#"}
    assert make_visible(page) == page
    assert len(elements.ids) == len(set(elements.ids))


def test_the_policy_names_the_only_script() -> None:
    """The page has one script, whose hash is in the policy: a script of the session has another, and does not run."""
    page = render(write_hostile_thread())
    (script,) = re.findall("<script>(.*?)</script>", page, re.DOTALL)
    (policy,) = re.findall('Content-Security-Policy" content="(.*?)"', page)
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    assert f"script-src 'sha256-{digest}';" in policy
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy


def test_links_lead_to_entries_of_the_page() -> None:
    """Each link leads to an element that exists, also where only a part of the session is shown."""
    session = RecordedSession(ContextPolicy()).turns(6)
    for options in ({}, {"from_seq": 9, "limit": 6}):
        elements = Elements(render(session.thread, **options))
        links = {value[1:] for name, value in elements.attributes if name == "href"}
        assert links <= set(elements.ids)


def test_headings_are_in_order() -> None:
    """One main heading, and no level is skipped."""
    headings = Elements(render(RecordedSession(ContextPolicy()).turns(2).thread)).headings
    assert headings.count(1) == 1
    assert all(after <= before + 1 for before, after in pairwise(headings))


@pytest.mark.parametrize("thread", [Thread(), RecordedSession(ContextPolicy()).thread], ids=["empty", "configured"])
def test_a_session_with_nothing_in_it(thread: Thread) -> None:
    """It has a page, too."""
    assert "No model was called" in render(thread)
    assert f"The session has no entry {thread.rev}" in render(thread, from_seq=thread.rev)


def test_a_part_says_how_to_see_the_rest() -> None:
    """The page names the entries that it shows, and the command for others."""
    thread = RecordedSession(ContextPolicy()).turns(5).thread
    page = render(thread, limit=4)
    assert f"shows the entries {thread.rev - 4} to {thread.last_seq} of {thread.rev}" in page
    assert f"clew report s-1 --from {thread.rev - 8}" in page
    assert "shows the entries" not in render(thread)


@pytest.mark.slow
def test_a_long_session_has_few_elements() -> None:
    """A turn with two model calls costs the page some hundred elements, however much was in their windows."""
    few, many = (
        len(re.findall("<[a-z]", render(RecordedSession(ContextPolicy()).turns(count).thread))) for count in (50, 100)
    )
    assert (many - few) / 50 < 150


@pytest.mark.slow
def test_many_calls_share_bars() -> None:
    """A chart has a limited number of bars; the text says how many calls each has."""
    made = make_report(RecordedSession(ContextPolicy()).turns(MAX_BARS).thread, made_at="", limit=1)
    tokens, cached, cost, latency = make_charts(made.calls)
    assert len({box.x for box in tokens.boxes}) == MAX_BARS
    assert "mean of 2 calls" in tokens.summary
    assert {box.height for box in cached.boxes} == {44.0}
    assert (cost.boxes, cost.note) == ((), "Not known of any call.")
    assert latency.top == "1.0 s"


def test_hidden_characters_are_shown() -> None:
    """Controls, bidirectional overrides, invisible characters and lone surrogates; letters and emoji stay."""
    assert make_visible("a\x00b\u202ec\u200bd\ud800e\x9b\U000e0041\r\n\t\x7f") == (
        "a\u2400b[U+202E]c[U+200B]d[U+D800]e[U+009B][U+E0041]\n\t[U+007F]"
    )
    kept = "naïve 日本語 👩\u200d👩\u200d👧 עברית\u200f"
    assert make_visible(kept) == kept


def test_markdown_loads_nothing_and_hides_nothing() -> None:
    """Links show their address, images and HTML stay text, definitions and entities are not swallowed."""
    html = str(
        render_markdown("# A [b](http://c 't') ![d](e) <i>f</i> &#x202E;\n\n[r]: http://hidden 'g'\n\n```py\nh\n```")
    )
    assert not re.search("<(a|img|i|h1)[ >]", html)
    for text in ("(http://c t)", "(e)", "&lt;i&gt;f&lt;/i&gt;", "&amp;#x202E;", "[r]: http://hidden 'g'", ">py<"):
        assert text in html


def test_amounts() -> None:
    """Numbers are rounded for people."""
    assert [format_dollars(value) for value in (None, 0.0, 0.00123, 12.5)] == [
        "not known",
        "$0.00",
        "$0.0012",
        "$12.50",
    ]
    assert [format_seconds(value) for value in (0.25, 75, 600, 9000, 400_000)] == [
        "250 ms",
        "75 s",
        "10 min",
        "2 h",
        "5 days",
    ]
    assert [round_up(value) for value in (0, 0.012, 7, 95)] == [1, 0.015, 8, 100]


# The turns in which a page folds a conversation.


def split(session: RecordedSession, **options: Any) -> list[Turn]:
    made = make_report(session.thread, made_at="2026-01-02T00:00:00Z", **options)
    return list_turns(made.items, made.failures)


def say(session: RecordedSession, text: str, request: str) -> None:
    session.writer.message({**user_says(text), "request_id": request}, run=request)  # type: ignore[typeddict-unknown-key]


def test_a_turn_has_all_until_the_next_message() -> None:
    """Its title is the message, its numbers are those of its items; a correction begins no turn."""
    session = RecordedSession(ContextPolicy())
    say(session, "first\n  line", "r-1")
    session.call(assistant_calls("t-1"), run="r-1")
    session.writer.message({**tool_returns("t-1", "no"), "is_error": True}, run="r-1")  # type: ignore[typeddict-unknown-key]
    say(session, "a correction", "r-1")
    say(session, "second " * 100, "r-2")
    before, first, second = split(session)
    assert (before.title, before.failures) == ("Before the first message", 0)
    assert (first.title, first.calls, first.tools, first.failures, first.seconds) == ("first line", 1, 1, 1, 3.0)
    assert (len(first.items), len(second.items)) == (3, 1)
    assert len(second.title) < 200
    assert split(session, with_texts=False)[1].title == "Message"


def test_new_and_short_turns_are_open() -> None:
    """The newest ones, unless they are long."""
    session = RecordedSession(ContextPolicy()).turns(OPEN_TURNS + 2)
    assert [turn.is_open for turn in split(session)] == [False] * 3 + [True] * OPEN_TURNS
    for _ in range(LONG_TURN):
        session.call(assistant_calls("again"), run="run-9")
    assert [turn.is_open for turn in split(session)][-2:] == [True, False]


@pytest.mark.parametrize("address", HOSTILE_ADDRESSES)
def test_a_hostile_address_is_no_link(address: str) -> None:
    """It runs something, hides where it leads, or leads nowhere."""
    assert not is_web_address(address)


@pytest.mark.parametrize(
    "address", ["https://a.example", "HTTP://a.example/b?c=d&e=f#g", "https://tea.example:8443/名", "http://[::1]/x"]
)
def test_an_address_of_the_web_is_a_link(address: str) -> None:
    """Also one with letters of other scripts, which the page shows."""
    assert is_web_address(address)


def test_sources_are_links_that_tell_their_pages_nothing() -> None:
    """Each page once, with its address, its words, and what the provider ran; a long address is cut and no link."""
    citations = [
        {"url": "https://a.example/?x=1&y=<2>", "title": "A & <b>", "quote": "the words"},
        {"url": "https://a.example/?x=1&y=<2>"},
        {"url": "https://c.example/" + "x" * 30_000, "title": "C"},
    ]
    search = {"tool": "web_search", "input": "tea", "sources": [{"url": "https://b.example"}]}
    session = RecordedSession(ContextPolicy())
    session.writer.message(user_says("Where?"))
    reply: Any = {"role": "assistant", "content": "There.", "citations": citations, "provider_calls": [search]}
    sent = {"digest": "5d41", "encoder": "openai-chat/1", "dialect": "openai"}
    session.call(reply, request=sent, provider_tools=["web_search"])
    page = render(session.thread)
    links = re.findall('<a href="(http[^"]*)" rel="noopener noreferrer" target="_blank">(.*?)</a>', page)
    assert links == [
        ("https://a.example/?x=1&amp;y=&lt;2&gt;", "A &amp; &lt;b&gt;"),
        ("https://b.example", "https://b.example"),
    ]
    assert len(re.findall('href="http', page)) == 2
    for text in ("the words", "run by the provider, 1 source", "might run web_search itself", "<code>5d41</code>"):
        assert text in page
    assert "encoded by openai-chat/1 in the dialect openai" in page
