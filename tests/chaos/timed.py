"""Schedules that run through a round: one sends messages to a session, one makes a session each time."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from temporalio.client import Client, WorkflowExecutionStatus
from temporalio.service import RPCError

from clew import Clew
from clew.contract.payloads import RunPayload, UserMessage
from clew.errors import ClewError, NotFound
from clew.schedules import ACTION_PREFIX, Schedules
from clew_workflows.thread.entries import Entry
from tests.chaos.callers import Callers
from tests.chaos.model import FIRST

TIMED = "timed-1"
"""The session that one of the schedules sends messages to."""
FRESH = "fresh"
"""The beginning of the ids of the sessions that the other one makes."""
_EVERY, _EVERY_FRESH = timedelta(seconds=20), timedelta(seconds=40)
_PAUSE_SECONDS, _LISTED_SECONDS = 0.5, 60.0


@dataclass(frozen=True)
class Firing:
    """A time at which a schedule has started its workflow.

    Attributes:
        request: The workflow, which is the id of the request, too.
        session: The session that it sends its message to.
        is_completed: Whether it has completed; else it has failed.
    """

    request: str
    session: str
    is_completed: bool


class Timed:
    """The schedules of a round. One that sends to a session has its name.

    Attributes:
        firings: What they have started.
    """

    def __init__(self, clew: Clew) -> None:
        self.firings: list[Firing] = []
        self._clew = clew
        self._schedules = Schedules(clew)

    async def begin(self) -> None:
        """Make the schedules. The session of the first one exists."""
        await self._schedules.create(TIMED, _make_content(TIMED), session_id=TIMED, every=_EVERY)
        config: Any = {"model": FIRST, "request_timeout_seconds": 120}
        await self._schedules.create(
            FRESH, _make_content(FRESH), session_prefix=FRESH, config=config, every=_EVERY_FRESH
        )

    async def end(self, callers: Callers) -> tuple[list[Callers], list[str]]:
        """End the schedules once the faults are over, and wait until their workflows have ended.

        Returns the callers of the sessions that were made, with promises of what was sent, and what is wrong.
        """
        made: dict[str, Callers] = {TIMED: callers}
        problems: list[str] = []
        for name in (TIMED, FRESH):
            started = await self._stop(name)
            firings = await list_firings(self._clew.temporal, name, started)
            if started != len(firings):
                problems.append(f"the schedule {name} has started {started} times, but has {len(firings)} workflows")
            for firing in firings:
                if firing.session not in made:
                    made[firing.session] = callers.call_offspring(firing.session)
                ledger = made[firing.session].promises.ledger
                sent = ledger.requests if firing.is_completed else ledger.uncertain
                sent[firing.request] = _make_content(name)
            self.firings += firings
        return [one for name, one in made.items() if name != TIMED], problems

    async def _stop(self, name: str) -> int:
        """Pause a schedule, delete it once nothing of it runs, and return how often it has started its workflow."""
        while True:
            try:
                await self._schedules.pause(name)
                details = await self._schedules.show(name)
                if not details.running:
                    await self._schedules.delete(name)
                    return details.runs
            except NotFound:
                raise
            except ClewError:
                pass
            await asyncio.sleep(_PAUSE_SECONDS)


async def list_firings(client: Client, name: str, started: int) -> list[Firing]:
    """List the workflows that a schedule has started. The server lists new ones, and their ends, a moment later."""
    give_up_at = time.monotonic() + _LISTED_SECONDS
    while True:
        firings: list[tuple[Firing, Any]] = []
        is_complete = False
        with suppress(RPCError):
            async for run in client.list_workflows(f"WorkflowId STARTS_WITH '{ACTION_PREFIX}{name}-'"):
                at = run.id.removeprefix(f"{ACTION_PREFIX}{name}-")
                session = TIMED if name == TIMED else f"{FRESH}-{at.replace('-', '').replace(':', '')}"
                firings.append((Firing(run.id, session, run.status is WorkflowExecutionStatus.COMPLETED), run.status))
            is_complete = len(firings) >= started
        runs = any(status is WorkflowExecutionStatus.RUNNING for _, status in firings)
        if (is_complete and not runs) or time.monotonic() > give_up_at:
            return [firing for firing, _ in firings]
        await asyncio.sleep(_PAUSE_SECONDS)


def check_firings(firings: Sequence[Firing], entries: Sequence[Entry]) -> Iterator[str]:
    """Check that each time of a schedule has led to one message and one outcome in its session, and to no other."""
    said = [entry for entry in entries if isinstance(entry.body, UserMessage) and not entry.body.input_id]
    asked = Counter(entry.refs.get("request_id") for entry in said)
    ended: Mapping[str, list[str]] = {firing.request: [] for firing in firings}
    for entry in entries:
        request = entry.refs.get("request_id", "")
        if isinstance(entry.body, RunPayload) and request.startswith(ACTION_PREFIX):
            if request in ended:
                ended[request].append(entry.body.status)
            else:
                yield f"{request} was sent by a schedule that did not start it"
    for firing in firings:
        statuses = ended[firing.request]
        expected = [["completed"]] if firing.is_completed else [[], ["failed"], ["cancelled"]]
        if statuses not in expected or asked[firing.request] > 1:
            how = "completed" if firing.is_completed else "failed"
            yield (
                f"the schedule's {firing.request} has {how}, with {asked[firing.request]} messages and the outcomes "
                f"{statuses}"
            )


def _make_content(name: str) -> str:
    return f"{name}: say what time it is"
