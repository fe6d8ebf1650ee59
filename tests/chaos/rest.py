"""The end of a round: without faults, every session comes to rest, and answers again."""

from __future__ import annotations

import asyncio
import random
from contextlib import suppress
from functools import partial

from clew.errors import ClewError, Closed, UnknownRequest
from clew.session.transport import Pauses
from tests.chaos.actions import resolve, submit
from tests.chaos.callers import Callers, GaveUp
from tests.chaos.plan import Action

REST_SECONDS = 300.0
"""Seconds within which everything has come to rest. A session may wait a minute until it tries its store again."""
LAST = "r-last"
"""The id of the last request of a session."""
FIRST_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS = 0.3, 5.0
"""Seconds between two questions. A worker without a cache replays the session for each: constant ones of all sessions
would take the time in which they come to rest."""


async def come_to_rest(callers: Callers, seed: int, seconds: float = REST_SECONDS) -> None:
    """Let a session come to rest: decide what waits for people, read all outcomes, and send a last message.

    A session that does not, within the time, is reported as wedged. One that was to be deleted is deleted now.
    """
    callers.at_rest = True
    try:
        async with asyncio.timeout(seconds):
            if callers.promises.deleted:
                return await callers.delete()
            await _decide_until_idle(callers, random.Random(seed))
            await _read_outcomes(callers)
            await callers.read_missing_answers()
            await _say_goodbye(callers)
    except TimeoutError:
        callers.oracle.report("wedged", callers.name, await _describe(callers))
    except (ClewError, GaveUp) as error:
        callers.oracle.report("wedged", callers.name, f"it does not come to rest: {error!r}")
    return None


async def _decide_until_idle(callers: Callers, chance: random.Random) -> None:
    action, pauses = Action(0, 0, "resolve"), Pauses(FIRST_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS)
    while True:
        await resolve(callers, action, chance)
        await submit(callers, action, chance)
        status = await callers.persist(callers.session.status)
        if status.closed:
            await callers.open()
        elif status.status == "idle" and not (status.queued_messages or status.subagents):
            return
        await pauses.wait()


async def _read_outcomes(callers: Callers) -> None:
    ledger = callers.promises.ledger
    for request_id in ledger.requests.keys() - ledger.outcomes.keys():
        try:
            await callers.persist(partial(_read_outcome, callers, request_id))
        except UnknownRequest:
            callers.oracle.report("thread", callers.name, f"{request_id} was accepted, and is not known any more")


async def _read_outcome(callers: Callers, request_id: str) -> None:
    if request_id in callers.waiting:
        try:
            return await callers.read_outcome(request_id)
        except (Closed, UnknownRequest):
            # The workflow run that had the caller's update has ended.
            del callers.waiting[request_id]
    outcome = await callers.session.request(request_id).result()
    return callers.note_outcome(request_id, outcome)


async def _say_goodbye(callers: Callers) -> None:
    outcome = await callers.ask(LAST, {"content": f"{LAST}: say goodbye", "on_busy": "queue"})
    if outcome.status != "completed":
        callers.oracle.report("wedged", callers.name, f"the last message got {outcome}")


async def _describe(callers: Callers) -> str:
    with suppress(ClewError):
        return f"it does not come to rest: {(await callers.session.status()).as_dict()}"[:1500]
    return "it does not come to rest, and its status cannot be read"
