"""Heartbeats: often where there are few, and never more than a server takes."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from temporalio.testing import ActivityEnvironment

from clew_activities.heartbeats import BEATS_PER_SECOND, MAX_INTERVAL_SECONDS, compute_interval, send_heartbeats
from clew_workflows.host.execution import HEARTBEAT_TIMEOUT


def test_few_activities_beat_often_and_many_share_what_there_is() -> None:
    """Few calls beat often, so that a cancellation arrives quickly; many calls beat rarely."""
    assert [compute_interval(number) for number in (1, 20)] == [0.2, 0.2]
    for number in range(20, 200):
        assert number / compute_interval(number) <= BEATS_PER_SECOND + 1e-6


def test_no_activity_is_taken_for_lost() -> None:
    """However many there are: a beat may come late, and even so before the session's patience ends."""
    assert compute_interval(100_000) == MAX_INTERVAL_SECONDS
    assert HEARTBEAT_TIMEOUT.total_seconds() > 2 * MAX_INTERVAL_SECONDS


@pytest.mark.parametrize(("attempt", "sent"), [(1, []), (2, ["half"])])
async def test_an_activity_that_ends_at_once_sends_no_heartbeat(attempt: int, sent: list[str]) -> None:
    """A repeated attempt sends one: until then the server has that of the attempt before."""
    beats: list[Any] = []
    environment = ActivityEnvironment()
    environment.info = replace(environment.info, attempt=attempt)
    environment.on_heartbeat = lambda *details: beats.extend(details)

    async def end_at_once() -> None:
        async with send_heartbeats(lambda: ["half"]):
            pass

    await environment.run(end_at_once)
    assert beats == sent
