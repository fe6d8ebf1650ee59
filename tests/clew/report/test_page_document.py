"""The page of a report as a file: its data, and the policy that lets nothing but the page's own script run."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from html.parser import HTMLParser
from typing import Any

import pytest

from clew.report import make_report
from clew.report.page_document import render_page
from clew_workflows.contract.policy import ContextPolicy
from clew_workflows.thread.thread import Thread
from tests.support.hostile_thread import write_hostile_thread
from tests.support.recorded import RecordedSession
from tests.support.report_page import read_data
from tests.support.threads import user_says

_HIDDEN = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u200b\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb\U000e0000-\U000e007f]"
)


class Elements(HTMLParser):
    """Collects the elements of a page, and checks that they are nested."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self._open: list[str] = []
        self.feed(page)
        assert not self._open

    def handle_starttag(self, tag: str, attrs: Any) -> None:
        assert not [name for name, _ in attrs if name.startswith("on") or name in ("src", "style", "href")]
        self.tags.append(tag)
        if tag != "meta":
            self._open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop() == tag


def render(thread: Thread, **options: Any) -> str:
    return render_page(make_report(thread, made_at="2026-01-02T00:00:00Z", session_id="s-1", **options))


def test_the_data_of_a_session_make_no_element() -> None:
    """The elements of a page are the same for every session, and no character of its file is hidden."""
    plain, hostile = render(RecordedSession(ContextPolicy()).turns(1).thread), render(write_hostile_thread())
    assert Elements(hostile).tags == Elements(plain).tags
    assert hostile.count("<!--") == plain.count("<!--")
    assert not _HIDDEN.search(hostile)


@pytest.mark.parametrize("thread", [write_hostile_thread(), Thread()], ids=["hostile", "empty"])
def test_the_page_has_the_report_inside(thread: Thread) -> None:
    """All of its values but defaults, character for character."""
    report = make_report(thread, made_at="2026-01-02T00:00:00Z", session_id="s-1")
    expected = report.model_dump(mode="json", exclude_none=True, exclude_defaults=True)
    assert read_data(render(thread))["report"] == json.loads(json.dumps(expected))


def test_letters_of_all_scripts_stay_as_they_are() -> None:
    """A page of such texts is no larger than the texts."""
    text = "naïve 日本語 👩\u200d👩\u200d👧 עברית\u200f"
    session = RecordedSession(ContextPolicy())
    session.writer.message(user_says(text))
    assert text in render(session.thread)


def test_the_policy_names_the_only_script() -> None:
    """The page has one script, whose hash is in the policy: a script of the session has another, and does not run."""
    page = render(write_hostile_thread())
    (script,) = re.findall("<script>(.*?)</script>", page, re.DOTALL)
    (style,) = re.findall("<style>(.*?)</style>", page, re.DOTALL)
    (policy,) = re.findall('Content-Security-Policy" content="(.*?)"', page)
    for kind, source in (("script", script), ("style", style)):
        digest = base64.b64encode(hashlib.sha256(source.encode()).digest()).decode()
        assert f"{kind}-src 'sha256-{digest}';" in policy
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
