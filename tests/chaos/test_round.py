"""A round on real processes: what is broken on purpose is found, and nothing else; `make chaos` has the long ones."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest

from clew import Clew
from clew.local import Reply
from clew.operators import Archive
from clew_activities.archive import Store
from tests.chaos.breaks import BREAKS
from tests.chaos.callers import Callers
from tests.chaos.inspection import Figures, Inspection
from tests.chaos.last_cases import CERTAIN_FIGURES
from tests.chaos.oracle import Oracle
from tests.chaos.plan import ROTATE, Action, Plan, make_plan
from tests.chaos.rest import come_to_rest
from tests.chaos.round import AN_HOUR_LATER, FULL_FIGURES, FULL_SECONDS, list_lacking, run_round
from tests.support.rolling import make_id, run_rolling_worker
from tests.support.stack import Stack


def test_a_long_round_has_seen_every_fault() -> None:
    """A short one its last cases alone."""
    figures, plan = Figures(), make_plan(1, FULL_SECONDS)
    assert {"kill", "server", "provider", "store"} <= {family.partition(" ")[0] for family in plan.families}
    assert list_lacking(plan, figures) == [*CERTAIN_FIGURES, *FULL_FIGURES]
    figures.counts.update(dict.fromkeys(CERTAIN_FIGURES, 1))
    assert list_lacking(plan, figures) == [*FULL_FIGURES]
    assert list_lacking(make_plan(1, FULL_SECONDS - 1), figures) == []


@pytest.mark.slow
@pytest.mark.long
async def test_a_round_that_an_error_ends_is_explained(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """It counts as broken, and its evidence is kept."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    result = await run_round(Plan(3, 1.0, (Action(1, 0.1, "kill"),)))
    (violation,) = result.violations
    assert violation.kind == "round"
    assert "KeyError" in violation.text
    assert list((tmp_path / "clew-chaos-3").glob("history-*.json"))


@pytest.mark.slow
async def test_a_session_that_never_comes_to_rest_is_a_violation(stack: Stack) -> None:
    """A run that does not end is reported as wedged, with the session's status."""
    oracle = Oracle()
    session = await stack.open(lambda _body: Reply(hangs=True))
    await session.message("go", request_id="r-1")
    callers = Callers(Clew(stack.clew.temporal), Archive(stack.store, "default"), oracle, session.id)
    await come_to_rest(callers, seed=1, seconds=2)
    (violation,) = oracle.violations
    assert violation.kind == "wedged"
    assert "awaiting_model" in violation.text
    await session.close()


@pytest.mark.slow
async def test_a_session_that_answers_comes_to_rest(stack: Stack) -> None:
    """A session whose caller left gets its outcome, and a last message is answered."""
    oracle = Oracle()
    session = await stack.clew.open(make_id(), model=stack.add_model("fine"))
    request = await session.message("r-1: go", request_id="r-1")
    callers = Callers(Clew(stack.clew.temporal), Archive(stack.store, "default"), oracle, session.id)
    callers.promises.ledger.requests["r-1"] = "r-1: go"
    await come_to_rest(callers, seed=1, seconds=60)
    assert oracle.violations == []
    assert callers.promises.ledger.outcomes["r-1"] == await request.result()
    oracle.check_thread(session.id, await session.entries(), None)
    assert oracle.violations == []
    await session.close()


@pytest.mark.parametrize("is_confirmed", [False, True])
async def test_only_a_fork_that_was_given_up_may_keep_its_family(stack: Stack, is_confirmed: bool) -> None:
    """Its marker seems to be that of a fork in the making: after an hour a deletion is repeated, and finishes."""
    oracle, store = Oracle(), Store.from_url("memory://")
    archive, later = Archive(store, "default"), Archive(store, "default", AN_HOUR_LATER)
    async with run_rolling_worker(stack, store=store) as clew:
        session = await clew.open(make_id(), model=stack.add_model("fine"))
        await session.ask("go")
        await session.hibernate()
        await archive.enroll(session.id, "fork-9")
        known = {session.id: Callers(clew, archive, oracle, session.id)}
        inspection = Inspection(clew, archive, oracle, Figures(), known)
        await inspection.check_deletion(() if is_confirmed else ("fork-9",), later)
    assert bool(oracle.violations) is is_confirmed
    assert bool([path async for path in archive.list_paths()]) is is_confirmed


@pytest.mark.slow
@pytest.mark.long
async def test_a_round_notices_what_is_broken(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Also a short one, in which callers do nothing at random: each mechanism that is broken on purpose is named."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    plan = Plan(2, 2.0, (Action(1, 0.5, ROTATE),), encrypts=True)
    result = await run_round(plan, breaks=tuple(BREAKS))
    texts = "\n".join(map(str, result.violations))
    for words in (
        "whose model is down",
        "cannot be read",
        "the newest key does not open",
        "the fork was deleted, but",
    ):
        assert words in texts, f"{words!r} is not in:\n{texts}"


@pytest.mark.slow
@pytest.mark.long
async def test_a_round_in_which_nothing_is_broken_has_no_violation() -> None:
    """The same round keeps every promise."""
    result = await run_round(Plan(2, 2.0, (Action(1, 0.5, ROTATE),), encrypts=True))
    assert [str(violation) for violation in result.violations] == []
    counts = result.figures.counts
    old = {name.rpartition(" ")[2] for name in counts if name.startswith("objects with an old key")}
    assert old >= {"segments", "nodes", "states", "results", "blobs", "sessions"}
    assert counts["runs with a fallback"] > 0
