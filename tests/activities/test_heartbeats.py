"""Heartbeats: rare where nobody has use of them, at once where a viewer or a cancellation waits."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from temporalio.testing import ActivityEnvironment

from clew_activities.heartbeats import (
    BEATS_PER_SECOND,
    MAX_SHOWN_SECONDS,
    REST_SECONDS,
    compute_check_interval,
    compute_rest_interval,
    compute_shown_interval,
    send_heartbeats,
)
from clew_workflows.host.execution import HEARTBEAT_TIMEOUT
from clew_workflows.host.local_runs import LOCAL_RUNS


def test_few_activities_show_much_and_many_share_what_there_is() -> None:
    """A reply begins quickly; many replies that are followed at once share the worker's heartbeats."""
    assert [compute_shown_interval(0, number) for number in (1, 20)] == [0.2, 0.2]
    assert [compute_shown_interval(seconds, 1) for seconds in (1, 2.5, 5, 100)] == [0.2, 0.5, 1, 1]
    for number in range(50, 200):
        assert number / compute_shown_interval(0, number) <= BEATS_PER_SECOND + 1e-6
    assert compute_shown_interval(0, 100_000) == MAX_SHOWN_SECONDS


def test_a_cancellation_is_found_within_two_seconds() -> None:
    """However many sessions of other processes a worker describes."""
    assert compute_check_interval(1) < compute_check_interval(100_000) < 2


def test_no_activity_is_taken_for_lost() -> None:
    """A heartbeat may come late. Activities of older sessions, whose timeout is shorter, send more of them."""
    assert HEARTBEAT_TIMEOUT.total_seconds() >= 2 * REST_SECONDS
    assert compute_rest_interval(HEARTBEAT_TIMEOUT) == compute_rest_interval(None) == REST_SECONDS
    assert compute_rest_interval(timedelta(seconds=5)) == 2.5


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


class Running:
    """An activity of a session that this process serves, until the test lets it end.

    Attributes:
        run_id: The session's workflow run.
        shown: What the activity shows.
        note: Notes that it may have changed.
        beats: Its heartbeats, not yet read.
    """

    def __init__(self) -> None:
        self.run_id = uuid.uuid4().hex
        self.shown = 0
        self.note: Callable[[], None] = lambda: None
        self.beats: asyncio.Queue[int] = asyncio.Queue()

    async def read_beat(self) -> int:
        """Wait for the next heartbeat, for less time than passes between those that nobody waits for."""
        async with asyncio.timeout(REST_SECONDS / 2):
            return await self.beats.get()


@asynccontextmanager
async def run_activity(shows: bool) -> AsyncIterator[Running]:
    running, over, begun = Running(), asyncio.Event(), asyncio.Event()
    environment = ActivityEnvironment()
    environment.info = replace(environment.info, workflow_run_id=running.run_id, heartbeat_timeout=HEARTBEAT_TIMEOUT)
    environment.on_heartbeat = running.beats.put_nowait

    async def work() -> None:
        async with send_heartbeats(lambda: [running.shown], shows=shows) as running.note:
            begun.set()
            await over.wait()

    with LOCAL_RUNS.serve(running.run_id):
        task = asyncio.ensure_future(environment.run(work))
        await begun.wait()
        try:
            yield running
        finally:
            over.set()
            await task
    assert not LOCAL_RUNS.is_served(running.run_id)


async def test_a_viewer_sees_what_is_new_at_once() -> None:
    """From when it follows on, also from another thread: that of the session."""
    async with run_activity(shows=True) as running:
        running.shown = 1
        running.note()
        await asyncio.to_thread(LOCAL_RUNS.tell, running.run_id, "followed")
        assert await running.read_beat() == 1
        running.shown = 2
        running.note()
        assert await running.read_beat() == 2
        assert running.beats.empty()


@pytest.mark.parametrize("shows", [True, False])
async def test_a_cancellation_is_asked_for_at_once(shows: bool) -> None:
    """Several times: the server knows of it when the session's workflow task has ended."""
    async with run_activity(shows) as running:
        LOCAL_RUNS.tell(running.run_id, "stopping")
        assert [await running.read_beat(), await running.read_beat()] == [0, 0]
