"""Shrinking: find a small plan that still breaks a promise, by leaving out families of actions and then halves."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable

from tests.chaos.plan import Action, Plan

Breaks = Callable[[Plan], Awaitable[bool]]
"""Whether a plan still breaks a promise. It may be wrong now and then: processes are not deterministic."""


async def shrink(plan: Plan, breaks: Breaks, seconds: float) -> Plan:
    """Make a plan smaller while it breaks a promise, for at most so many seconds and one more try."""
    give_up_at = time.monotonic() + seconds

    def is_over() -> bool:
        return time.monotonic() > give_up_at

    for family in plan.families:
        candidate = plan.keep(action for action in plan.actions if action.family != family)
        if not is_over() and len(candidate.actions) < len(plan.actions) and await breaks(candidate):
            plan = candidate
    size = len(plan.actions) // 2
    while size and not is_over():
        start, smaller = 0, False
        while start < len(plan.actions) and not is_over():
            rest: tuple[Action, ...] = plan.actions[:start] + plan.actions[start + size :]
            candidate = plan.keep(rest)
            if await breaks(candidate):
                plan, smaller = candidate, True
            else:
                start += size
        size = min(size, len(plan.actions)) if smaller and size == 1 else size // 2
    return plan
