"""What lists show of a session, and when its search attributes are to be updated."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from clew_workflows.contract.lists import SEARCH_ATTRIBUTES, cut_keyword, cut_tags
from clew_workflows.session import outside, ui
from clew_workflows.session.state import State
from tests.support.session_harness import SessionHarness


def register(state: State) -> State:
    """The state of a session whose namespace has the search attributes."""
    return replace(state, settings=replace(state.settings, attributes=tuple(SEARCH_ATTRIBUTES)))


def is_due(harness: SessionHarness, shown: State, *, is_recent: bool = False, is_long: bool = False) -> bool:
    state = register(harness.state)
    attributes = ui.select_attributes(register(shown))
    return ui.is_update_due(state, attributes, shown.listed.finished, is_recent=is_recent, is_long=is_long)


def test_a_turn_is_shown_at_its_end() -> None:
    """While the call is in flight nothing is, unless it has been for long."""
    harness = SessionHarness()
    idle = harness.state
    assert not is_due(harness, idle)
    harness.ask()
    assert ui.find_status(harness.state) == "working"
    assert not is_due(harness, idle)
    assert is_due(harness, idle, is_long=True)
    harness.reply("fine")
    assert is_due(harness, idle)
    assert not is_due(harness, harness.state)


def test_a_long_run_with_tools_is_shown_as_working_once() -> None:
    """A step of it after some time: shown. The next model call: nothing has changed."""
    harness = SessionHarness(tools=("add",))
    idle = harness.state
    harness.ask()
    harness.reply("", "add")
    assert not is_due(harness, idle)
    assert is_due(harness, idle, is_recent=True, is_long=True)
    shown = harness.state
    harness.answer_calls("3")
    assert not is_due(harness, shown, is_long=True)


def test_waits_for_people_are_shown_at_once() -> None:
    """Also soon after other updates. So is that a session goes on: nobody finds it in lists of those that wait."""
    harness = SessionHarness(tools=("ask_me",))
    idle = harness.state
    harness.ask()
    harness.reply("", "ask_me")
    waiting = harness.state
    assert ui.find_status(waiting) == "awaiting_approval"
    assert is_due(harness, idle, is_recent=True)
    harness.approve(outside.list_pending_approvals(waiting)[0].tool_call_id)
    assert ui.find_status(harness.state) == "working"
    assert is_due(harness, waiting, is_recent=True)


def test_figures_can_wait() -> None:
    """The status cannot, and of two requests in a row the first one's figures can, too."""
    harness = SessionHarness()
    shown = harness.state
    harness.ask()
    harness.reply("fine")
    assert not is_due(harness, shown, is_recent=True)
    assert is_due(harness, shown)
    harness.ask()
    assert not is_due(harness, shown, is_recent=True)
    assert is_due(harness, shown)
    harness.fail()
    assert is_due(harness, shown, is_recent=True)


def test_a_namespace_without_search_attributes_is_left_alone() -> None:
    """Nothing is due, whatever changes."""
    harness = SessionHarness()
    harness.ask()
    harness.reply("fine")
    assert not ui.is_update_due(harness.state, {}, 0, is_recent=False)
    assert ui.select_attributes(harness.state) == {}


@pytest.mark.parametrize(
    ("metadata", "title"),
    [({}, "hello"), ({"title": "Refund of 4711"}, "Refund of 4711"), ({"title": ""}, None)],
)
def test_the_title(metadata: dict[str, str], title: str | None) -> None:
    """It is metadata `title`, or else the first words; an empty one means none."""
    harness = SessionHarness(metadata=metadata)
    harness.ask("hello")
    assert ui.find_title(harness.state) == title
    assert ui.make_memo(harness.state).get("title") == title


def test_the_memo_is_made_once_the_title_is_known() -> None:
    """So that one update has all of it."""
    harness = SessionHarness(metadata={"user": "ann"})
    assert ui.make_memo(harness.state) == {}
    harness.ask("hello")
    assert ui.make_memo(harness.state) == {
        "title": "hello",
        "metadata": {"user": "ann"},
        "started_at": "2026-01-01T00:00:00.000Z",
    }


@pytest.mark.parametrize("text", ["a" * 2000, "\U0001f600" * 2000, "é" * 2000, "\x00\n\x1f" * 100, ""])
def test_keywords_are_bounded(text: str) -> None:
    """No value is longer than a column of a visibility store, or than what the server takes."""
    keyword = cut_keyword(text)
    assert len(keyword) <= 255
    assert len(json.dumps(keyword)) <= 1000
    assert "\x00" not in keyword
    assert len(json.dumps(cut_tags((text, *(f"{number}{text}" for number in range(100)))))) <= 2000
