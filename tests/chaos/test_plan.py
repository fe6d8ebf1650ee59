"""Plans come from their seeds alone, and shrink to what breaks a promise."""

from __future__ import annotations

from tests.chaos.plan import CALLS, FAULT_PAUSES, PROVIDER_FAULTS, STORE_FAULTS, Plan, make_plan, shrink


def test_a_seed_makes_one_plan() -> None:
    """Equal seeds make equal plans, and a plan that was written and read is the same."""
    plan = make_plan(7, 120)
    assert plan == make_plan(7, 120)
    assert plan != make_plan(8, 120)
    assert Plan.load(plan.dump()) == plan


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


async def test_shrinking_ends_in_time() -> None:
    """Without time left, a plan stays as it is."""

    async def breaks(_candidate: Plan) -> bool:
        return True

    plan = make_plan(3, 20)
    assert await shrink(plan, breaks, -1) == plan
