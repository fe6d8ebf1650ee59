"""Each guarantee of README.md has rules of the oracle, and each rule finds a fault that is planted for it."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from clew_audit.audit import Report
from clew_workflows.thread.entries import Entry
from tests.chaos.bounds import (
    FLOOD_SECONDS,
    MAX_COPIES,
    PROVIDER_KEY,
    TAKEOVER_SECONDS,
    check_costs,
    check_deadlines,
    check_flood,
    check_growth,
    check_secret,
    check_takeover,
)
from tests.chaos.oracle import Oracle
from tests.chaos.rules import Span
from tests.chaos.test_bounds import make_paid_thread
from tests.chaos.test_oracle import SESSION, double, drop, find, keep_promises, make_thread

README = Path(__file__).resolve().parents[2] / "README.md"
LATER = "2026-01-02T00:00:00.000Z"


@dataclass(frozen=True)
class Case:
    """A rule, as a function of whether a fault is planted: it lists what it finds.

    Attributes:
        rule: Applies the rule.
        words: Words of what it finds.
    """

    rule: Callable[[bool], list[str]]
    words: str


def damage(change: Callable[[list[Entry]], list[Entry]]) -> Callable[[bool], list[str]]:
    """The rules of threads, of a thread that a change has damaged."""

    def check(planted: bool) -> list[str]:
        entries = make_thread()
        oracle, _ = keep_promises(entries)
        oracle.check_thread(SESSION, change(entries) if planted else entries, None)
        return find(oracle)

    return check


def lose_signal(planted: bool) -> list[str]:
    """A signal without an entry, of a session that was closed an hour later."""
    oracle, promises = keep_promises(make_thread())
    last = make_thread()[-1]
    entries = [replace(entry, at="2026-01-01T00:00:00.000Z") for entry in make_thread()]
    entries.append(
        replace(last, seq=last.seq + 1, id="e-closed", kind="session", at=LATER, payload={"event": "closed"}, refs={})
    )
    if planted:
        promises.ledger.signalled.add("s-1")
        promises.signals["s-1"] = Span(0, 1)
    oracle.check_thread(SESSION, entries, None)
    return find(oracle)


def accept_refused(planted: bool) -> list[str]:
    """An input that was refused, and has an entry."""
    entries = make_thread()
    oracle, promises = keep_promises(entries)
    if planted:
        promises.ledger.inputs.clear()
        promises.ledger.refused.add("i-1")
    oracle.check_thread(SESSION, entries, None)
    return find(oracle)


def answer_otherwise(planted: bool) -> list[str]:
    """An answer that a caller has read, and the thread does not have."""
    entries = make_thread()
    oracle, promises = keep_promises(entries)
    seq = max(entry.seq for entry in entries if entry.payload.get("role") == "assistant")
    promises.answers[seq] = "another answer" if planted else entries[seq].payload["content"]
    oracle.check_thread(SESSION, entries, None)
    return find(oracle)


def run_again(planted: bool) -> list[str]:
    """Two usages of one request that the provider has served."""
    entries = make_paid_thread()
    threads = {"s-1": entries, "s-2": entries} if planted else {"s-1": entries}
    return [problem for _, problem in check_costs(threads, {}, Counter([(40, 9)]))]


def end_late(planted: bool) -> list[str]:
    """An outcome a day after its message."""
    entries = [replace(entry, at="2026-01-01T00:00:00.000Z") for entry in make_paid_thread()]
    return list(check_deadlines([*entries[:-1], replace(entries[-1], at=LATER)] if planted else entries))


def repeat_conversation(planted: bool) -> list[str]:
    """Model calls with the conversation, and not with a reference."""
    inputs = ['{"content": "r-1: hello"}' if planted else '{"basis_seq": 3}'] * (MAX_COPIES + 1)
    return list(check_growth(inputs, make_thread()))


def forget_call(planted: bool) -> list[str]:
    """A model call whose request cannot be made again."""
    oracle, report = Oracle(), Report(SESSION)
    if planted:
        report.calls.unverified.append("call-1")
    oracle.check_audit(report)
    return find(oracle)


def lose_archived(planted: bool) -> list[str]:
    """A session that has fewer entries after a rollover than before."""
    oracle, _ = keep_promises(make_thread())
    oracle.check_rev(SESSION, 3, 4 if planted else 3)
    return find(oracle)


GUARANTEES: Mapping[str, tuple[Case, ...]] = {
    "Clew loses no accepted message.": (
        Case(damage(drop(lambda entry: entry.payload.get("content") == "r-2: again")), "is there 0 times"),
        Case(damage(lambda entries: entries[:-3]), "were answered or seen"),
        Case(answer_otherwise, "a caller read another answer"),
        Case(lambda planted: list(check_takeover(TAKEOVER_SECONDS + planted)), "to take it over"),
    ),
    "Every request ends once": (
        Case(damage(double(lambda entry: entry.kind == "run")), "has 2 outcomes"),
        Case(damage(drop(lambda entry: entry.kind == "run")), "has 0 outcomes"),
        Case(end_late, "seconds, of"),
        Case(run_again, "which no request has served"),
    ),
    "A session has no last turn.": (
        Case(lose_archived, "had been answered"),
        Case(damage(lambda entries: entries[:4] + entries[5:]), "seq 5 is at index 4"),
    ),
    "The history grows only by new content.": (Case(repeat_conversation, "activities of a history"),),
    "Clew can prove what a model got.": (Case(forget_call, "cannot be verified"),),
    "No input can stop a session.": (
        Case(lose_signal, "the signal s-1 has 0 entries"),
        Case(accept_refused, "was refused, but has an entry"),
        Case(lambda planted: list(check_flood(FLOOD_SECONDS + planted)), "was flooded"),
    ),
    "Provider keys never reach": (
        Case(lambda planted: list(check_secret("a log", f"{planted and PROVIDER_KEY}".encode())), "has the key"),
    ),
}
"""The rules of each guarantee, by its first words. `test_round` has the rules that need real processes: that
everything comes to rest."""


def list_guarantees() -> list[str]:
    """List the first words of the guarantees in README.md."""
    section = README.read_text().partition("## Guarantees\n")[2].partition("\n## ")[0]
    return re.findall(r"^- \*\*(.+?)\*\*", section, re.MULTILINE)


def test_each_guarantee_has_a_rule() -> None:
    """A guarantee that the page adds needs a rule here, and one that it drops takes its rules along."""
    assert list_guarantees() == list(GUARANTEES)


@pytest.mark.parametrize(
    "case", [case for cases in GUARANTEES.values() for case in cases], ids=lambda case: case.words.replace(" ", "-")
)
def test_each_rule_finds_the_fault_that_is_planted(case: Case) -> None:
    """It finds that, and nothing where it is not planted."""
    assert case.rule(False) == []
    assert any(case.words in problem for problem in case.rule(True)), case.rule(True)
