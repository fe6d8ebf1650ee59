"""A store that shows old objects for a moment: a session that has ended is read to its end."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest
from obstore.store import MemoryStore

from clew import Clew, Session
from clew.errors import ArchiveUnavailable
from clew.session.events.event_types import EntryCommitted
from clew_activities.archive import Store, ended_runs
from clew_activities.archive.backends import Bucket
from clew_workflows.protocol import RolloverThresholds
from tests.support.other_workflows import IMPATIENT
from tests.support.rolling import FailingStore, list_runs, make_id, run_rolling_worker
from tests.support.stack import Stack
from tests.support.waiting import PATIENCE_SECONDS, wait_until

SOME_UPDATES = RolloverThresholds(updates=5)


class OldStore(Store):
    """A store that shows the heads of sessions as they were before their newest write.

    Attributes:
        old_reads: How many more reads of each head show an old one.
        fresh_reads: How many reads of each head come before those.
    """

    def __init__(self) -> None:
        super().__init__(Bucket(MemoryStore()))
        self.old_reads: dict[str, int] = {}
        self.fresh_reads: dict[str, int] = {}
        self._before: dict[str, bytes] = {}

    async def replace(self, path: str, data: bytes, accepts: Callable[[bytes | None], bool]) -> None:
        def keep(present: bytes | None) -> bool:
            if present is not None:
                self._before[path] = present
            return accepts(present)

        await super().replace(path, data, keep)

    async def get(self, path: str) -> bytes:
        session_id = path.rpartition("/s-")[2].removesuffix(".json")
        if self.fresh_reads.get(session_id, 0) > 0:
            self.fresh_reads[session_id] -= 1
        elif self.old_reads.get(session_id, 0) > 0 and path in self._before:
            self.old_reads[session_id] -= 1
            return self._before[path]
        return await super().get(path)


@pytest.fixture(autouse=True)
def patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """Readers wait long enough on a busy machine, too."""
    monkeypatch.setattr(ended_runs, "OLD_HEAD_SECONDS", 20.0)


async def open_rolled(stack: Stack, clew: Clew) -> Session:
    """Open a session whose archive has all but its newest turn."""
    session = await clew.open(make_id(), model=stack.add_model("fine"))
    for turn in range(5):
        await session.ask(f"turn {turn}")

    async def has_rolled() -> bool:
        return len(await list_runs(clew, session.id)) > 1

    await wait_until(has_rolled)
    await session.ask("the newest")
    return session


@pytest.mark.slow
async def test_a_session_that_hibernates_is_read_to_its_end(stack: Stack) -> None:
    """The workflow has completed, so the head is closed: readers wait until the store shows it."""
    store = OldStore()
    async with run_rolling_worker(stack, SOME_UPDATES, store) as clew:
        session = await open_rolled(stack, clew)
        receipt = await session.hibernate()
        for newest in (None, 3):
            store.old_reads[session.id] = 2
            entries = [entry async for entry in clew.read_thread(session.id, newest=newest)]
            assert store.old_reads[session.id] == 0
            assert (entries[-1].seq, entries[-1].kind) == (receipt.last_seq, "session")


@pytest.mark.slow
@pytest.mark.parametrize(("back", "fresh", "old"), [(0, 0, 4), (9, 0, 4), (0, 1, 1)])
async def test_a_session_that_hibernates_is_forked(stack: Stack, back: int, fresh: int, old: int) -> None:
    """At its newest entry, which an old head does not have, and before it, where an old head's state is deleted."""
    store = OldStore()
    async with run_rolling_worker(stack, SOME_UPDATES, store) as clew:
        session = await open_rolled(stack, clew)
        receipt = await session.hibernate()
        store.fresh_reads[session.id], store.old_reads[session.id] = fresh, old
        fork = await session.fork(receipt.last_seq - back)
        assert store.old_reads[session.id] == 0
        assert len(await fork.entries()) == receipt.last_seq - back + 2
        assert [entry.payload["session_id"] for entry in await session.entries(kind="fork")] == [fork.id]


@pytest.mark.slow
async def test_the_events_of_a_closed_session_end(stack: Stack) -> None:
    """They end with the last entry, although the archive seems to end earlier when it is read first."""
    store = OldStore()
    async with run_rolling_worker(stack, SOME_UPDATES, store) as clew:
        session = await open_rolled(stack, clew)
        receipt = await session.close()
        store.old_reads[session.id] = 8
        async with asyncio.timeout(PATIENCE_SECONDS):
            events = [event async for event in session.follow(from_seq=0)]
        assert store.old_reads[session.id] == 0
        assert [event.seq for event in events if isinstance(event, EntryCommitted)] == list(
            range(receipt.last_seq + 1)
        )


@pytest.mark.slow
async def test_a_session_that_was_closed_before_it_had_woken_is_forked(stack: Stack) -> None:
    """Its head stays open, and the archive has all of it: the fork is recorded, and the session can go on."""
    store = FailingStore()
    async with run_rolling_worker(stack, store=store, workflows=IMPATIENT) as clew:
        session = await clew.open(make_id(), model=stack.add_model("fine"))
        await session.ask("one")
        receipt = await session.hibernate()
        store.silent = True
        waking = await clew.open(session.id)
        with pytest.raises(ArchiveUnavailable):
            await waking.ask("lost")
        await waking.close()
        store.silent = False
        fork = await session.fork(receipt.last_seq)
        again = await clew.open(session.id)
        assert await again.ask("two") == "fine"
        entries = await again.entries()
        assert [entry.seq for entry in entries] == list(range(len(entries)))
        assert [entry.payload["session_id"] for entry in entries if entry.kind == "fork"] == [fork.id]
