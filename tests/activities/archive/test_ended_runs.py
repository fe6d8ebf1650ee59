"""A store that has lost a session, or an older part of it, is not believed: the server remembers that it existed."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from temporalio.client import WorkflowExecutionDescription, WorkflowFailureError, WorkflowHandle
from temporalio.testing import ActivityEnvironment

from clew import Clew, Session
from clew.contract import SessionConfig
from clew.errors import ArchiveDamaged, ClewError, Refusal, ThreadMismatch
from clew.session.events.history_polls import persist
from clew_activities.archive import Archive, Store, ended_runs
from clew_activities.archive.thread_source import Threads
from clew_audit.recovery import recover
from clew_workflows.contract.config import make_start_arguments
from clew_workflows.host.ingress import make_application_error
from tests.support.other_workflows import IMPATIENT
from tests.support.rolling import make_id
from tests.support.s3 import BUCKET, make_s3_env, run_s3
from tests.support.stack import Stack, make_client, serve

NAMESPACE = "default"
LOSSES = pytest.mark.parametrize("loss", ["deleted", "older"])
ERRORS: dict[str, type[Refusal]] = {"deleted": ArchiveDamaged, "older": ThreadMismatch}


@pytest.fixture(autouse=True)
def impatience(monkeypatch: pytest.MonkeyPatch) -> None:
    """The stores here show no old heads: what they have lost stays lost."""
    monkeypatch.setattr(ended_runs, "OLD_HEAD_SECONDS", 0.3)


@pytest.fixture(scope="module", params=["folder", pytest.param("s3", marks=pytest.mark.slow)])
def store(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Store]:
    """A store in a folder, and one in a bucket."""
    if request.param == "folder":
        folder: Path = tmp_path_factory.mktemp("store")
        yield Store.from_url(folder.as_uri())
        return
    with run_s3() as address, pytest.MonkeyPatch.context() as patch:
        for name, value in make_s3_env(address).items():
            patch.setenv(name, value)
        yield Store.from_url(f"s3://{BUCKET}")


@pytest.fixture(scope="module")
async def clew(stack: Stack, store: Store) -> AsyncIterator[Clew]:
    """A deployment whose workers use the store."""
    async with serve(make_client(stack), stack.environ, store=store, workflows=IMPATIENT) as clew:
        yield clew


@pytest.fixture(scope="module")
def archive(clew: Clew, store: Store) -> Archive:
    return Archive(store, clew.temporal.namespace)


async def back_up(store: Store) -> dict[str, bytes]:
    """Read all objects of a store."""
    return {path: await store.get(path) async for path in store.list(NAMESPACE)}


async def end_and_lose(stack: Stack, clew: Clew, store: Store, loss: str) -> tuple[Session, list[Any]]:
    """Bring a session to its end, and have the store lose its head, or all since its first hibernation."""
    session = await clew.open(make_id(), model=stack.add_model("fine"))
    await session.ask("one")
    await session.hibernate()
    before = await back_up(store)
    session = await clew.open(session.id)
    await session.ask("two")
    await session.hibernate()
    entries = [entry.as_dict() for entry in await session.entries()]
    if loss == "deleted":
        await store.delete(f"{clew.temporal.namespace}/sessions/s-{session.id}.json")
    else:
        for path in [path async for path in store.list(NAMESPACE)]:
            if session.id in path and path not in before:
                await store.delete(path)
        for path, data in before.items():
            if session.id in path:
                await store.put(path, data)
    return session, entries


@pytest.mark.slow
@LOSSES
async def test_every_door_refuses_a_session_that_the_store_has_lost(
    stack: Stack, clew: Clew, store: Store, loss: str
) -> None:
    """A session is not begun empty, does not go on without its newest entries, and is not read or forked so."""
    session, _ = await end_and_lose(stack, clew, store, loss)

    async def read_thread() -> None:
        _ = [entry async for entry in clew.read_thread(session.id)]

    async def open_again() -> None:
        await (await clew.open(session.id, model="scripted:any")).ask("three")

    async def start_without_the_client() -> None:
        start = make_start_arguments(session.id, SessionConfig(model="scripted:any"))
        await clew.temporal.start_workflow(start.workflow, start.argument, id=start.id, task_queue=clew.task_queue)
        await session.ask("three")

    doors: dict[str, Callable[[], Awaitable[Any]]] = {
        "read": read_thread,
        "fork": lambda: session.fork(1),
        "open": open_again,
        "open again": open_again,
        "start": start_without_the_client,
        "entries": session.entries,
        "context": session.context,
        "transcript": session.transcript,
        "read again": read_thread,
    }
    found = {name: await find_refusal(door) for name, door in doors.items()}
    assert found == dict.fromkeys(doors, ERRORS[loss].type)


async def find_refusal(door: Callable[[], Awaitable[Any]]) -> str:
    """Find the word with which a door refuses a session: it must say how it is repaired."""
    try:
        await door()
    except ClewError as error:
        word = str(make_application_error(error).type)
        return word if "clew recover" in str(error) else str(error)
    return "open"


@pytest.mark.slow
@LOSSES
async def test_a_recovery_brings_back_what_the_store_has_lost(
    stack: Stack, clew: Clew, store: Store, archive: Archive, loss: str
) -> None:
    """The server's histories have the entries; the session goes on after its newest one."""
    session, entries = await end_and_lose(stack, clew, store, loss)
    with pytest.raises(ERRORS[loss]):
        await (await clew.open(session.id, model="scripted:any")).ask("three")
    done = await recover(clew.temporal, archive, session.id, task_queue=clew.task_queue)
    assert (done.status, done.source) == ("recovered", "history")
    session = await clew.open(session.id)
    assert await session.ask("three") == "fine"
    assert [entry.as_dict() for entry in await session.entries()][: len(entries)] == entries
    await session.hibernate()
    assert await (await clew.open(session.id)).ask("four") == "fine"


@pytest.mark.slow
@pytest.mark.parametrize("refused", [False, True])
async def test_an_operator_may_give_the_newest_entries_up(
    stack: Stack, clew: Clew, store: Store, archive: Archive, refused: bool
) -> None:
    """With `keep="archive"` the session goes on after what the store has, also after its next end."""
    session, entries = await end_and_lose(stack, clew, store, "older")
    if refused:
        with pytest.raises(ThreadMismatch):
            await (await clew.open(session.id, model="scripted:any")).ask("three")
    head = await archive.read_head(session.id)
    assert head
    done = await recover(clew.temporal, archive, session.id, task_queue=clew.task_queue, keep="archive")
    assert (done.source, done.dropped) == ("archive", len(entries) - head.last_seq - 1)
    session = await clew.open(session.id)
    assert await session.ask("three") == "fine"
    await session.hibernate()
    session = await clew.open(session.id)
    kept = [entry.as_dict() for entry in await session.entries()]
    assert kept[: head.last_seq + 1] == entries[: head.last_seq + 1]
    assert [entry["seq"] for entry in kept] == list(range(len(kept)))


@pytest.mark.slow
async def test_a_session_that_is_deleted_may_begin_anew(stack: Stack, clew: Clew, store: Store) -> None:
    """Its name is free: of one that the store had, and of one that it has lost."""
    lost, _ = await end_and_lose(stack, clew, store, "deleted")
    whole = await clew.open(make_id(), model=stack.add_model("fine"))
    await whole.ask("one")
    for session in (lost, whole):
        await clew.delete(session.id)
        again = await clew.open(session.id, model=stack.add_model("anew"))
        assert await again.ask("hello") == "anew"
        assert [entry.seq for entry in await again.entries()] == list(range(4))


@pytest.mark.slow
async def test_a_cancelled_session_is_remembered(stack: Stack, clew: Clew, store: Store) -> None:
    """Its workflow has no result: the last archive that it has written counts."""
    session = await clew.open(make_id(), model=stack.add_model("fine"))
    await session.ask("one")
    handle = clew.temporal.get_workflow_handle(session.id)
    await handle.cancel()
    with pytest.raises(WorkflowFailureError):
        await handle.result()
    again = await clew.open(session.id)
    # While a store is slow, the session refuses.
    assert await persist(lambda: again.ask("two")) == "fine"
    await clew.temporal.get_workflow_handle(session.id).cancel()
    with pytest.raises(WorkflowFailureError):
        await clew.temporal.get_workflow_handle(session.id).result()
    await store.delete(f"{clew.temporal.namespace}/sessions/s-{session.id}.json")
    with pytest.raises(ArchiveDamaged):
        await (await clew.open(session.id, model="scripted:any")).ask("three")


@pytest.mark.slow
async def test_a_missing_state_is_told_to_readers_while_a_start_waits(
    stack: Stack, clew: Clew, store: Store, archive: Archive
) -> None:
    """The start waits until the state is back. Readers and callers are told meanwhile, by the same word."""
    session = await clew.open(make_id(), model=stack.add_model("fine"))
    await session.ask("one")
    await session.hibernate()
    head = await archive.read_head(session.id)
    assert head
    (path,) = [path async for path in store.list(NAMESPACE) if head.state and head.state in path]
    state = await store.get(path)
    await store.delete(path)
    session = await clew.open(session.id, model="scripted:any")

    async def read_thread() -> None:
        _ = [entry async for entry in clew.read_thread(session.id)]

    doors: list[Callable[[], Awaitable[Any]]] = [
        read_thread,
        session.entries,
        session.context,
        session.transcript,
        lambda: session.fork(1),
        lambda: session.ask("two"),
    ]
    for door in doors:
        with pytest.raises(ArchiveDamaged):
            await door()
    await store.put(path, state)
    while True:
        try:
            assert await session.ask("two") == "fine"
            break
        except ArchiveDamaged:
            continue


async def test_a_read_of_an_ended_session_describes_its_run_once(
    stack: Stack, clew: Clew, archive: Archive, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the server has said of the run is not asked for again."""
    session = await clew.open(make_id(), model=stack.add_model("fine"))
    await session.ask("one")
    await session.hibernate()
    asked: list[str] = []
    describe = WorkflowHandle.describe

    async def note(handle: WorkflowHandle[Any, Any], **options: Any) -> WorkflowExecutionDescription:
        asked.append(handle.id)
        return await describe(handle, **options)

    monkeypatch.setattr(WorkflowHandle, "describe", note)
    location = await ActivityEnvironment(clew.temporal).run(Threads(archive).find, session.id)
    assert location.archived_upto > 0
    assert asked == [session.id]
