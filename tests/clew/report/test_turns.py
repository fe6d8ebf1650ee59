"""The turns in which a page folds a conversation."""

from __future__ import annotations

from typing import Any

from clew.report import make_report
from clew.report.turns import LONG_TURN, OPEN_TURNS, Turn, list_turns
from clew_workflows.contract.policy import ContextPolicy
from tests.support.recorded import RecordedSession
from tests.support.threads import assistant_calls, tool_returns, user_says


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
