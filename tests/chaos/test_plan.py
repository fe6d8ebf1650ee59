"""Plans come from their seeds alone, and shrink to what breaks a promise."""

from __future__ import annotations

import pytest

from tests.chaos.__main__ import main
from tests.chaos.plan import (
    CALLS,
    CLOCK,
    ENDS,
    FAULT_PAUSES,
    PROVIDER_FAULTS,
    ROTATE,
    STORE_FAULTS,
    Plan,
    make_plan,
    shrink,
)


def test_a_seed_makes_one_plan() -> None:
    """Equal seeds make equal plans, and a plan that was written and read is the same."""
    plan = make_plan(7, 120)
    assert plan == make_plan(7, 120)
    assert plan != make_plan(8, 120)
    assert Plan.load(plan.dump()) == plan


def test_most_actions_of_a_plan_meet_a_session_that_lives() -> None:
    """Few actions end a session, and its next caller opens it again."""
    for seed in range(1, 11):
        calls = [action for action in make_plan(seed, 300).actions if not action.is_fault]
        assert sum(action.kind in ENDS for action in calls) < 0.05 * len(calls)


def test_a_plan_without_clocks_is_the_same_otherwise() -> None:
    """A run that does without libfaketime leaves out the jumps of clocks alone."""
    plan, without = make_plan(7, 600), make_plan(7, 600, clocks=False)
    assert CLOCK in plan.families
    assert list(without.actions) == [action for action in plan.actions if action.kind != CLOCK]


def test_clocks_that_cannot_jump_fail_a_run_that_asks_for_them(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Without libfaketime a run begins only if it was told to do without."""
    monkeypatch.setattr("tests.chaos.__main__.find_faketime", lambda: None)
    with pytest.raises(SystemExit) as ended:
        main(["--minutes", "0"])
    assert ended.value.code == 2
    assert "install Debian's libfaketime" in capsys.readouterr().err
    assert main(["--minutes", "0", "--without-clocks"]) == 0
    assert "no clock has jumped" in capsys.readouterr().out


def test_half_of_the_plans_encrypt() -> None:
    """Those of even seeds have one rotation of the keys, in the middle."""
    assert not make_plan(7, 120).encrypts
    plan = make_plan(8, 120)
    assert plan.encrypts
    (rotation,) = [action for action in plan.actions if action.kind == ROTATE]
    assert 30 < rotation.at < 90


def test_an_hour_has_every_call_and_every_fault() -> None:
    """Nothing that callers do, and no fault, is left out of long plans."""
    families = set(make_plan(1, 3600).families)
    assert set(CALLS) <= families
    assert {f"provider {fault}" for fault in PROVIDER_FAULTS} <= families
    assert {f"store {fault}" for fault in STORE_FAULTS} <= families
    assert set(FAULT_PAUSES) - {"provider", "store"} <= families


async def test_a_plan_shrinks_to_what_breaks_a_promise() -> None:
    """Of a plan that fails by one message and one fault together, these two are left."""
    plan = make_plan(3, 120)
    message = next(action for action in plan.actions if action.kind == "message" and action.at > 40)
    fault = next(action for action in plan.actions if action.is_fault and action.at > 60)
    tried: list[Plan] = []

    async def breaks(candidate: Plan) -> bool:
        tried.append(candidate)
        return message in candidate.actions and fault in candidate.actions

    smallest = await shrink(plan, breaks, 60)
    assert sorted(action.number for action in smallest.actions) == sorted((message.number, fault.number))
    assert smallest.seconds <= max(message.at, fault.at) + 1
    assert len(tried) < 200


async def test_a_plan_that_fails_without_encryption_shrinks_to_one_without() -> None:
    """Encryption stays in a plan only if the promise is kept without it."""
    plan = make_plan(4, 60)
    assert plan.encrypts

    async def breaks(candidate: Plan) -> bool:
        return any(action.kind == "message" for action in candidate.actions)

    async def breaks_encrypted(candidate: Plan) -> bool:
        return candidate.encrypts

    assert not (await shrink(plan, breaks, 60)).encrypts
    smallest = await shrink(plan, breaks_encrypted, 60)
    assert (smallest.encrypts, smallest.actions) == (True, ())


async def test_shrinking_ends_in_time() -> None:
    """Without time left, a plan stays as it is."""

    async def breaks(_candidate: Plan) -> bool:
        return True

    plan = make_plan(3, 20)
    assert await shrink(plan, breaks, -1) == plan
