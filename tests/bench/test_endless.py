"""The endless session and its checks: a short one passes them, and a damaged thread does not."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from io import StringIO

import pytest
from rich.console import Console

from bench.endless import run_benchmark, show
from bench.ledger import Ledger, check, check_tool_groups
from clew_workflows.thread.entries import Entry
from tests.support.session_harness import SessionHarness


@pytest.mark.slow
@pytest.mark.long
async def test_a_short_session_holds_every_check() -> None:
    """Fifty turns of four users over several workflow runs are read back in full, and reported in a table."""
    report = await run_benchmark(50, seed=1, thresholds="low", kill=False)
    assert report.problems == []
    assert report.turns == 50
    assert len(report.runs) > 1
    assert report.archived > 0
    assert report.audited.entries >= report.entries
    assert report.audited.calls.verified > 50
    screen = StringIO()
    show(report, Console(file=screen, width=160))
    assert "every check holds" in screen.getvalue()


@pytest.fixture
def session() -> SessionHarness:
    """A request with a tool's round, an input that was read, and an operation."""
    session = SessionHarness(tools=("add",))
    session.ask("r-1: hello", "r-1")
    session.reply("", "add")
    session.steer("also this", "i-1")
    session.answer_calls("3")
    session.reply("an answer")
    session.reply("another answer")
    session.operate("o-1")
    return session


def make_ledger() -> Ledger:
    """Make the callers' records of the thread."""
    return Ledger(requests={"r-1": "r-1: hello"}, inputs={"i-1": "also this"}, operations={"o-1": None})


def test_a_whole_thread_has_no_problem(session: SessionHarness) -> None:
    """A thread that holds each record of the callers once has no problem."""
    assert check(list(session.thread), make_ledger()) == []


def _renumber(entries: Iterator[Entry]) -> list[Entry]:
    return [replace(entry, seq=seq, id=f"e-{seq}") for seq, entry in enumerate(entries)]


DAMAGES: dict[str, tuple[Callable[[Entry], int], str]] = {
    "an outcome is lost": (lambda entry: entry.kind != "run", "has 0 outcomes"),
    "an outcome is there twice": (lambda entry: 1 + (entry.kind == "run"), "has 2 outcomes"),
    "a message is lost": (lambda entry: entry.payload.get("content") != "r-1: hello", "is there 0 times"),
    "an input is lost": (lambda entry: entry.payload.get("input_id") != "i-1", "read or dropped 0 times"),
    "an input is read twice": (lambda entry: 1 + ("input_id" in entry.payload), "read or dropped 2 times"),
    "an operation is lost": (lambda entry: "op_id" not in entry.payload, "superseded or failed 0 times"),
    "a tool's result is lost": (lambda entry: entry.payload.get("role") != "tool", "have no result before"),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_damage_is_found(session: SessionHarness, damage: str) -> None:
    """A lost or duplicated entry is reported."""
    times, expected = DAMAGES[damage]
    entries = _renumber(entry for entry in session.thread for _ in range(times(entry)))
    assert any(expected in problem for problem in check(entries, make_ledger()))


def test_a_gap_is_found(session: SessionHarness) -> None:
    """Gaps between seqs and duplicate ids are reported."""
    entries = list(session.thread)
    assert check(entries[:3] + entries[4:], make_ledger()) == ["seq 4 is at index 3"]
    same = [replace(entry, id="e") for entry in entries]
    assert any("the entry id e occurs" in problem for problem in check(same, make_ledger()))


def test_calls_that_were_open_at_a_fork_have_no_results(session: SessionHarness) -> None:
    """Also where the session it was forked from is itself a fork, from a point in the middle of a round of tools."""
    calling = next(entry for entry in session.thread if entry.payload.get("tool_calls"))
    question = next(entry for entry in session.thread if entry.payload.get("role") == "user")
    payload = {"event": "forked_from", "session_id": "s-0", "fork_seq": calling.seq}
    fork = replace(question, kind="fork", payload=payload)
    assert not list(check_tool_groups([calling, fork, question, fork, question]))
    assert list(check_tool_groups([calling, question, fork]))
