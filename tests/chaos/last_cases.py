"""The cases that every round contains, however short it is. They come once everything is at rest.

What callers do at random meets some mechanisms rarely: a message that the hooks refuse, an answer of a form, a
fallback that has to be used, an import of images, a deleted fork whose parent stays. Without faults each of them has
one right end.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Iterator
from functools import partial
from typing import Any

from clew.contract.payloads import ToolMessage
from clew.errors import ArchiveDamaged, ClewError, ThreadMismatch
from clew.operators import Archive
from clew.session.session_reads import read_newest_entry
from clew_activities.archive import Store
from clew_workflows.contract.outcomes import RequestOutcome
from tests.chaos.actions import hibernate, submit
from tests.chaos.bounds import FLOOD_SIGNALS, check_flood, check_takeover
from tests.chaos.callers import PAUSE_SECONDS, Callers
from tests.chaos.keys import MARKER
from tests.chaos.model import FIRST, SPARE, Verdict
from tests.chaos.offspring import import_export
from tests.chaos.oracle import Origin
from tests.chaos.plan import Action
from tests.chaos.processes import Workers
from tests.chaos.store import NAMESPACE
from tests.support.media import make_png

FALLBACK_SECONDS = 30
"""Seconds for a message whose model is down. A fallback takes over after three attempts."""
CERTAIN_FIGURES = (
    "refusals of hooks", "runs with a fallback", "results from outside", "subagents", "blobs", "stored tool results",
    "deleted sessions", "webhooks",
)  # fmt: skip
"""Figures that no round has without, thanks to these cases."""
_IMAGE_BYTES = 3000
_OWN_KINDS = ("segments", "nodes", "states")
"""The kinds of objects that belong to members. Results and images are kept as long as the family has a member."""


async def perform_last_cases(
    callers: Callers, boss: Callers, workers: Workers, store: Store, number: int
) -> list[Callers]:
    """Perform them with two sessions, and sessions that are made of the first. Returns the callers of these.

    Args:
        callers: The first session's callers.
        boss: Those of a session whose agent has a subagent.
        workers: The workers.
        store: The store, without faults.
        number: The number of the first action; the next one has the number that follows.
    """
    archive = Archive(store, NAMESPACE)
    await asyncio.gather(check_messages(callers), check_subagent(boss))
    await check_flooded(boss, callers)
    await check_killed(callers, workers)
    await fill(callers)
    await _hibernate(callers)
    imported = await import_export(callers, _make_action(number, "import"), random.Random(number))
    await callers.persist(callers.open)
    forked = await check_deleted_fork(callers, archive, f"fork-{number + 1}")
    headed = await check_heads(callers, store, f"import-{number + 2}")
    return [one for one in (imported, forked, headed) if one]


async def check_messages(callers: Callers) -> None:
    """Check messages that the hooks refuse, with a schema, with an external call, and whose model is down."""
    refused = await _ask(callers, "rude")
    if refused.termination_reason != "refused_by_hook":
        callers.oracle.report("thread", callers.name, f"a message that the hooks refuse got {refused}")
    formed = await _ask(callers, "form", output_schema=Verdict.model_json_schema())
    if formed.status != "completed":
        callers.oracle.report("thread", callers.name, f"a message that asks for a form got {formed}")
    ordered = await _order(callers)
    if ordered.status != "completed":
        callers.oracle.report("thread", callers.name, f"a message with an external call got {ordered}")
    fallen = await _ask(callers, "down", fallbacks=[SPARE], timeout_seconds=FALLBACK_SECONDS)
    if (fallen.status, fallen.fallback) != ("completed", SPARE):
        callers.oracle.report("thread", callers.name, f"a message whose model is down got {fallen}, no fallback")


async def _ask(callers: Callers, behaviour: str, **settings: Any) -> RequestOutcome:
    request_id = f"r-{behaviour}"
    content = f"{request_id}: {behaviour} {MARKER.decode()}"
    return await callers.ask(request_id, {"content": content, "on_busy": "queue", **settings})


async def _order(callers: Callers) -> RequestOutcome:
    """Send a message whose run waits for a result from outside, and answer the call."""
    asking = asyncio.create_task(_ask(callers, "order"))
    try:
        while not asking.done():
            await submit(callers, _make_action(0, "submit"), random.Random(0))
            await asyncio.sleep(PAUSE_SECONDS)
        return await asking
    finally:
        asking.cancel()


async def check_flooded(callers: Callers, other: Callers) -> None:
    """Check that another session answers while one is flooded with signals, which it all keeps."""
    workflow = callers.session._handle.workflow
    names = [f"f-{number}" for number in range(FLOOD_SIGNALS)]
    sent = asyncio.gather(
        *(callers.persist(partial(workflow.signal, "inject", {"input_id": name, "content": name})) for name in names)
    )
    began = time.monotonic()
    await _ask(other, "say")
    for problem in check_flood(time.monotonic() - began):
        callers.oracle.report("wedged", callers.name, problem)
    await sent
    callers.promises.ledger.signalled.update(names)


async def check_killed(callers: Callers, workers: Workers) -> None:
    """Check that a request goes on when two of three workers die while it is answered."""
    began = time.monotonic()
    asking = asyncio.create_task(_ask(callers, "slow"))
    await asyncio.gather(asking, *(workers.kill(number, seconds=1.0) for number in (0, 1)))
    for problem in check_takeover(time.monotonic() - began):
        callers.oracle.report("wedged", callers.name, problem)


async def check_subagent(callers: Callers) -> None:
    """Check that a subagent does what it is told."""
    outcome = await _ask(callers, "delegate")
    entries = await callers.persist(lambda: callers.session.entries(request_id=outcome.request_id))
    results = [entry.body for entry in entries if isinstance(entry.body, ToolMessage)]
    if outcome.status != "completed" or not any(result.subagent for result in results):
        callers.oracle.report("thread", callers.name, f"a message for a subagent got {outcome}, with {results}")


async def fill(callers: Callers) -> None:
    """Give a session an image, and a tool result that is stored outside of its thread."""
    image = make_png(7, 9, size=_IMAGE_BYTES)
    blob = await callers.persist(lambda: callers.session.put_blob(image, name="last.png"))
    look = [{"type": "text", "text": "r-look: look at it"}, {"type": "image", "blob": blob}]
    for name, content in (("r-look", look), ("r-big", "r-big: big result")):
        await callers.ask(name, {"content": content, "on_busy": "queue"})


async def _hibernate(callers: Callers) -> None:
    """Hibernate, again and again: where the machine is busy, the archive may not answer in time."""
    await callers.persist(lambda: hibernate(callers, _make_action(0, "hibernate"), random.Random(0)))


async def check_heads(callers: Callers, store: Store, name: str) -> Callers:
    """Check that a session is not opened from a store that has lost its head, or has an old one, and then goes on."""
    session = callers.call_offspring(name)
    session.settings = {"model": FIRST}
    path = f"{NAMESPACE}/sessions/s-{name}.json"
    heads = []
    for request_id in ("r-first", "r-second"):
        await session.ask(request_id, {"content": f"{request_id}: say it", "on_busy": "queue"})
        await _hibernate(session)
        heads.append(await store.get(path))
    for state in ("lost", "old"):
        await (store.delete(path) if state == "lost" else store.put(path, heads[0]))
        answer: object = "it is opened"
        try:
            await callers.clew.open(name)
        except ClewError as error:
            answer = error
        for problem in check_head(state, answer):
            callers.oracle.report("thread", name, problem)
    await store.put(path, heads[1])
    await session.ask("r-third", {"content": "r-third: say it", "on_busy": "queue"})
    return session


def check_head(state: str, answer: object) -> Iterator[str]:
    """Check the answer to a caller that opens a session whose head is not the newest one."""
    if not isinstance(answer, (ArchiveDamaged, ThreadMismatch)):
        yield f"its head was {state}, and to open it is answered {str(answer)[:200]!r}"


async def check_deleted_fork(callers: Callers, archive: Archive, name: str) -> Callers:
    """Check that a deleted fork leaves nothing of its own, while its parent stays.

    A fork that was given up while the store was away seems to be in the making for an hour, and all is kept for it.
    """
    # Not its status: as long as the session looks for its archive, that counts no entries.
    newest = await callers.persist(lambda: read_newest_entry(callers.session._handle))
    assert newest, "a session that has answered has an entry"
    seq = newest.seq
    await callers.persist(lambda: callers.session.fork(seq, name))
    callers.promises.forks[name] = seq
    fork = callers.call_offspring(name, Origin(callers.name, seq))
    head = await archive.read_head(callers.name)
    family = head.family if head else callers.name
    before = await _list_family(archive, family)
    await fork.ask("r-fork", {"content": "r-fork: note that it is one", "on_busy": "queue"})
    await _hibernate(fork)
    own = await _list_family(archive, family) - before
    if not any("/segments/" in path for path in own):
        callers.oracle.report("thread", name, f"a fork that hibernates has archived nothing: {sorted(own)}")
    await fork.delete()
    if await _is_kept(archive, family, name):
        return fork
    # The parent may have archived something meanwhile.
    own -= await _list_needed(archive, family, name)
    for path in sorted(own & await _list_family(archive, family)):
        callers.oracle.report("thread", name, f"the fork was deleted, but its {path} is left")
    return fork


async def _list_family(archive: Archive, family: str) -> set[str]:
    """List the objects of a family that single members need, the markers and the heads of members."""
    folders = tuple(f"/families/s-{family}/{kind}/" for kind in (*_OWN_KINDS, "members"))
    return {
        path async for path in archive.list_paths() if "/sessions/" in path or any(part in path for part in folders)
    }


async def _is_kept(archive: Archive, family: str, deleted: str) -> bool:
    """Whether a family has the marker of a fork that has no head."""
    members = [_find_member(path, family) async for path in archive.list_paths()]
    return None in [await archive.read_head(member) for member in members if member not in ("", deleted)]


def _find_member(path: str, family: str) -> str:
    """Find the session whose marker the path is; empty: it is none of the family's."""
    return path.partition(f"/families/s-{family}/members/s-")[2]


async def _list_needed(archive: Archive, family: str, deleted: str) -> set[str]:
    """List the objects that the other members of a family need."""
    needed: set[str] = set()
    async for path in archive.list_paths():
        session = _find_member(path, family) or path.partition("/sessions/s-")[2].removesuffix(".json")
        if not session or session == deleted:
            continue
        needed.add(path)
        head = await archive.read_head(session)
        if head and head.family == family:
            needed |= (await archive.list_objects(family, head.root)).keys()
            needed |= {f"default/families/s-{family}/states/{head.state}.json"} if head.state else set()
    return needed


def _make_action(number: int, kind: str) -> Action:
    return Action(number, 0.0, kind)
