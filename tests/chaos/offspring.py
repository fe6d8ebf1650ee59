"""What callers do to make sessions of others, and to delete them; and how they try to read what was deleted."""

from __future__ import annotations

import asyncio
import io
import random
from collections.abc import Awaitable, Callable, Mapping
from contextlib import aclosing, suppress
from typing import Any

import httpx

from clew import Session
from clew.errors import NotEncrypted, NotFound, Refusal
from clew.operators import export_session, import_session, read_export
from clew_workflows.encryption import find_sealer
from tests.chaos.callers import Callers, make_words
from tests.chaos.model import FIRST
from tests.chaos.oracle import Origin
from tests.chaos.plan import Action, name_offspring
from tests.chaos.web import PATHS, find_own, make_path, says_nothing, upload_bytes
from tests.support.media import make_png

_EVENTS_SECONDS = 5.0
DOORS: Mapping[str, Callable[[Session], Awaitable[Any]]] = {
    "status": Session.status, "entries": Session.entries, "context": Session.context,
    "transcript": Session.transcript, "window": lambda session: session.window(1000),
}  # fmt: skip
"""Where the Python client reads a session."""


def check_gone(door: str, answer: object) -> str | None:
    """Check the answer of a door to a deleted session; returns what is wrong.

    Args:
        door: The door.
        answer: What was read, or the error. A door that did not answer says nothing.
    """
    return None if says_nothing(answer) else f"it was deleted, but {door} answers {str(answer)[:150]!r}"


async def fork(callers: Callers, action: Action, chance: random.Random) -> Callers | None:
    """Fork the session at one of its entries. The fork is there only if it is confirmed."""
    status = await callers.persist(callers.session.status)
    if not status.rev:
        return None
    at_seq, name = chance.choice((status.rev - 1, chance.randrange(status.rev))), name_offspring(action)
    await callers.persist(lambda: callers.session.fork(at_seq, name))
    callers.promises.forks[name] = at_seq
    return callers.call_offspring(name, Origin(callers.name, at_seq))


async def checkpoint(callers: Callers, action: Action, chance: random.Random) -> Callers | None:
    """Make a checkpoint of the active lane, and restore it as a new session."""
    token = await callers.persist(callers.session.checkpoint)
    name = name_offspring(action)
    await callers.persist(lambda: callers.clew.restore(token, name))
    return callers.call_offspring(name)


async def import_export(callers: Callers, action: Action, chance: random.Random) -> Callers | None:
    """Export the session, and make another one of the file."""
    name, client, file = name_offspring(action), callers.clew.temporal, io.BytesIO()
    count = await export_session(client, callers.archive, callers.name, file)
    file.seek(0)
    callers.oracle.see_page(callers.name, read_export(file, find_sealer(client.data_converter)), 0)
    file.seek(0)
    await import_session(client, callers.archive, file, session_id=name, task_queue=callers.clew.task_queue)
    return callers.call_offspring(name, Origin(callers.name, count - 1))


async def delete(callers: Callers, action: Action, chance: random.Random) -> None:
    """Delete the session: nobody reads it from then on."""
    await callers.delete()
    await check_doors(callers)


async def burn(callers: Callers, action: Action, chance: random.Random) -> Callers:
    """Make a session over HTTP, use it, delete it, and try to read it at every door at once."""
    made = callers.call_offspring(name_offspring(action))
    web, path = find_own(made), make_path(made)
    await made.persist(lambda: web.call("PUT", path, json={"model": FIRST}))
    text = f"burnt-{action.number}: say {make_words(chance)}"
    key = {"Idempotency-Key": f"burnt-{action.number}"}
    with suppress(Refusal):
        await made.persist(lambda: web.call("POST", f"{path}/messages", json={"content": text}, headers=key))
        with suppress(NotEncrypted):
            await upload_bytes(made, make_png(3, 5, size=2000))
    await made.delete(lambda: web.call("DELETE", path))
    await check_doors(made)
    return made


async def check_doors(callers: Callers) -> None:
    """Read a session that was deleted at every door: all say that there is none."""
    if callers.service is None:
        return
    web, path = callers.service.operator, f"/v1/sessions/{callers.name}"

    async def read_thread(session: Session) -> Any:
        return [entry async for entry in callers.clew.read_thread(session.id)] or NotFound("it has no entry")

    async def read_events(session: Session) -> Any:
        events = web.receive(f"{path}/events", from_seq=0)
        with suppress(TimeoutError):
            async with asyncio.timeout(_EVENTS_SECONDS), aclosing(events):
                async for event in events:
                    if '"entry"' in event.data:
                        return event.data
        return NotFound("there was no entry")

    def read_path(behind: str) -> Callable[[Session], Awaitable[Any]]:
        return lambda _session: web.call("GET", f"{path}{behind}")

    doors = {**DOORS, "read_thread": read_thread, "GET /events": read_events}
    doors |= {f"GET {behind or '/'}": read_path(behind) for behind in PATHS}
    answers = await asyncio.gather(*(read(callers.session) for read in doors.values()), return_exceptions=True)
    for door, answer in zip(doors, answers, strict=True):
        read = answer.text if isinstance(answer, httpx.Response) else answer
        if problem := check_gone(door, read):
            callers.oracle.report("reader", callers.name, problem)
