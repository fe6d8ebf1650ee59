"""Contexts of sessions that roll over and recall what they need, whatever happens to them and to their policies."""

from __future__ import annotations

from collections import Counter

import pytest

from clew.contract import ContextPolicy
from tests.support.rolled_sessions import RolledSession, run_session

SHORT, LONG = range(1, 5), range(5, 45)


@pytest.mark.parametrize(
    "seeds", [SHORT, pytest.param(LONG, marks=[pytest.mark.slow, pytest.mark.long])], ids=["short", "long"]
)
def test_every_context_is_that_of_the_complete_thread(seeds: range) -> None:
    """So are the contexts of earlier calls, those that readers and the audit build, and the ranges of summaries."""
    counts = sum(map(run_session, seeds), Counter[str]())
    for compared in ("call", "reference", "live", "read", "audited", "query", "summary", "recalled", "rolled over"):
        assert counts[compared] > len(seeds), compared


@pytest.mark.parametrize("seed", [20129, 20229], ids=["a round that may still return", "a pinned entry"])
def test_what_the_archive_alone_has_changes_no_summary(seed: int) -> None:
    """Its range is the complete thread's."""
    assert run_session(seed)["summary"] > 0


@pytest.mark.slow
def test_a_change_to_epochs_measures_what_the_session_holds_once() -> None:
    """The size of an epoch's lane is what the session holds of it and what a recall counts, without an overlap."""
    rolled = RolledSession(1, ContextPolicy(max_input_tokens=1_500, reserve_output_tokens=200))
    for number in range(36):
        if number == 28:
            rolled.session.configure(context_policy=ContextPolicy(window="epoch"))
        rolled.session.ask(f"{number} " + "some words of a user " * 40, f"request-{number}")
        while rolled.session.effect is not None:
            rolled.answer()
        if number % 5 == 4:
            rolled.roll_over()
        rolled.look_around()
    assert rolled.counts["recalled"] > 0
