"""Forks and deletion: what a family shares stays as long as one member needs it, and no longer."""

from __future__ import annotations

import asyncio
import itertools
import random
from collections.abc import AsyncIterator
from contextlib import suppress
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from temporalio.client import WorkflowExecutionStatus
from temporalio.service import RPCError, RPCStatusCode

from clew.errors import NotFound, UnknownBlob, WorkerUnavailable
from clew_activities.archive import (
    Archive,
    ArchiveSettings,
    Head,
    ObjectDamaged,
    ObjectMissing,
    Store,
    StoreUnavailable,
    deletion,
)
from clew_activities.archive.thread_source import QUERY_TIMEOUT
from clew_workflows.contract import WORKFLOW_TYPE
from clew_workflows.host import services
from clew_workflows.thread.entries import Entry
from tests.support.archives import (
    FOLDER,
    Failing,
    begin_archive,
    extend_archive,
    fork_archive,
    list_objects,
    make_entries,
    read_thread,
)
from tests.support.examples import examples, mark_slow_except
from tests.support.media import make_png
from tests.support.rolling import make_id, run_rolling_worker
from tests.support.stack import Stack
from tests.support.waiting import wait_until

SMALL = ArchiveSettings(fanout=2)


async def list_segments(store: Store, *heads: Head) -> set[str]:
    """The segments that these sessions need."""
    archive = Archive(store, "default")
    return {
        path for head in heads for path in await archive.list_objects(head.family, head.root) if "/segments/" in path
    }


async def make_family(archive: Archive) -> dict[str, tuple[Head, list[Entry]]]:
    """A session, two forks of it, and a fork of one of these, each grown on its own, with what each must hold."""
    root = await begin_archive(archive, "root", make_entries(0, 4))
    root = await extend_archive(archive, root, make_entries(4, 4, "a"))
    left = await fork_archive(archive, "root", "left", 5)
    right = await fork_archive(archive, "root", "right", 7)
    left = await extend_archive(archive, left, make_entries(6, 3, "left"))
    deep = await fork_archive(archive, "left", "deep", 7)
    right = await extend_archive(archive, right, make_entries(8, 1, "right"))
    root = await extend_archive(archive, root, make_entries(8, 2, "root"))
    deep = await extend_archive(archive, deep, make_entries(8, 2, "deep"))
    trunk = make_entries(0, 4) + make_entries(4, 4, "a")
    return {
        "root": (root, trunk + make_entries(8, 2, "root")),
        "left": (left, trunk[:6] + make_entries(6, 3, "left")),
        "right": (right, trunk + make_entries(8, 1, "right")),
        "deep": (deep, trunk[:6] + make_entries(6, 2, "left") + make_entries(8, 2, "deep")),
    }


async def test_forks_share_what_they_have_in_common(store: Store) -> None:
    """A fork writes no segment; every member reads its own thread; each is whole."""
    archive = Archive(store, "default")
    family = await make_family(archive)
    for head, expected in family.values():
        assert await archive.read_head(head.session_id) == head
        assert await read_thread(archive, head) == expected
        assert not [check async for check in archive.verify("root", head.root) if check.problem]
    assert len([path for path in await list_objects(store) if "/segments/" in path]) == 6


@pytest.mark.parametrize("store", mark_slow_except(("folder", "memory"), ("folder", "s3", "memory")), indirect=True)
@pytest.mark.parametrize(
    "order", [("root", "left", "right", "deep"), ("deep", "right", "left", "root"), ("left", "deep", "root", "right")]
)
async def test_deletion_leaves_what_others_need(store: Store, order: tuple[str, ...]) -> None:
    """In any order of deletions, remaining sessions read their full threads, and unneeded segments are deleted."""
    archive = Archive(store, "default")
    family = await make_family(archive)
    result = await archive.put_result("root", b"large")
    for name in order:
        before = {path for path in await list_objects(store) if "/segments/" in path}
        deleted = await archive.delete(name)
        del family[name]
        assert await archive.read_head(name) is None
        for head, expected in family.values():
            assert await read_thread(archive, head) == expected
        after = {path for path in await list_objects(store) if "/segments/" in path}
        assert after == await list_segments(store, *(head for head, _ in family.values()))
        assert deleted == len(before) - len(after)
        if family:
            assert await archive.get_result("root", result) == (b"large", 5)
            assert len(await list_objects(store, f"{FOLDER}/states")) == len(family)
    assert await list_objects(store) == set()
    assert [await archive.delete(name) for name in order] == [0, 0, 0, 0]


steps = st.lists(
    st.tuples(st.sampled_from(["extend", "extend", "fork", "delete"]), st.integers(0, 99), st.floats(0, 1)),
    max_size=40,
)


@pytest.mark.slow
@examples(60)
@given(steps, st.integers(2, 3))
async def test_any_life_of_a_family(life: list[tuple[str, int, float]], fanout: int) -> None:
    """After any order of appends, forks and deletions every member reads like its own list."""
    store = Store.from_url("memory://")
    archive = Archive(store, "default", ArchiveSettings(fanout=fanout))
    family = {"root": (await begin_archive(archive, "root", make_entries(0, 2)), make_entries(0, 2))}
    for number, (step, who, where) in enumerate(life):
        if not family:
            break
        name = sorted(family)[who % len(family)]
        head, entries = family[name]
        match step:
            case "extend":
                new = make_entries(len(entries), 1 + who % 3, f"{name}-{number}-")
                family[name] = await extend_archive(archive, head, new), entries + new
            case "fork":
                at_seq = int(where * (len(entries) - 1))
                family[f"s{number}"] = await fork_archive(archive, name, f"s{number}", at_seq), entries[: at_seq + 1]
            case _:
                await archive.delete(name)
                del family[name]
        for member, expected in family.values():
            assert await read_thread(archive, member) == expected
        present = {path for path in await list_objects(store) if "/segments/" in path}
        assert present == await list_segments(store, *(member for member, _ in family.values()))
    for name in sorted(family):
        await archive.delete(name)
    assert await list_objects(store) == set()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "alone", "lost"),
    mark_slow_except(
        (("root", False, False), ("left", True, True)),
        itertools.product(("root", "left"), (False, True), (False, True)),
    ),
)
async def test_a_deletion_is_finished_after_a_crash_anywhere(name: str, alone: bool, lost: bool) -> None:
    """At any failing operation, the other sessions read their full threads; the repeated deletion leaves nothing."""

    async def before() -> tuple[Store, dict[str, tuple[Head, list[Entry]]]]:
        store = Store.from_url("memory://")
        family = await make_family(Archive(store, "default", SMALL))
        for other in set(family) - {name} if alone else ():
            await Archive(store, "default").delete(other)
            del family[other]
        return store, family

    store, _ = await before()
    await Archive(store, "default").delete(name)
    expected = await list_objects(store)
    assert (expected == set()) == alone
    crashes = 0
    for n in itertools.count():
        store, family = await before()
        del family[name]
        failing = Failing(store, n, lost=lost)
        try:
            await Archive(failing, "default").delete(name)
        except StoreUnavailable:
            crashes += 1
            for head, entries in family.values():
                assert await read_thread(Archive(store, "default"), head) == entries
            await Archive(store, "default").delete(name)
            assert await list_objects(store) == expected
        else:
            assert await list_objects(store) == expected
            if failing.exhausted:
                break
    assert crashes > 5


class Interleaved(Store):
    """A store in a dictionary whose operations finish in an order that a number determines."""

    def __init__(self, contents: dict[str, bytes], order: int) -> None:
        self.contents = contents
        self.random = random.Random(order)

    async def _turn(self) -> None:
        for _ in range(self.random.randrange(8)):
            await asyncio.sleep(0)

    async def get(self, path: str) -> bytes:
        await self._turn()
        if path not in self.contents:
            raise ObjectMissing(path)
        return self.contents[path]

    async def get_size(self, path: str) -> int:
        return len(await self.get(path))

    async def delete(self, path: str) -> None:
        await self._turn()
        self.contents.pop(path, None)

    async def list(self, prefix: str) -> AsyncIterator[str]:
        await self._turn()
        for path in sorted(self.contents):
            if path.startswith(f"{prefix}/"):
                yield path


@pytest.mark.parametrize(
    "orders", mark_slow_except([range(100)], [range(start, start + 100) for start in range(0, 500, 100)])
)
async def test_members_deleted_at_the_same_time_leave_nothing(orders: range) -> None:
    """In any interleaving, the remaining sessions read their full threads; the last deletion removes the rest."""
    origin = Store.from_url("memory://")
    family = await make_family(Archive(origin, "default"))
    contents = {path: await origin.get(path) for path in await list_objects(origin)}
    deep, entries = family["deep"]
    for order in orders:
        store = Interleaved(dict(contents), order)
        archive = Archive(store, "default")
        await asyncio.gather(*(archive.delete(name) for name in ("root", "left", "right")))
        assert await read_thread(archive, deep) == entries
        assert {path for path in store.contents if "/segments/" in path} == await list_segments(store, deep)
        await asyncio.gather(archive.delete("deep"), archive.delete("deep"))
        assert not store.contents
        store.contents |= contents
        await asyncio.gather(*(archive.delete(name) for name in family))
        assert not store.contents


async def test_a_sibling_that_goes_while_it_is_looked_at_holds_nothing_back() -> None:
    """A member listed and then deleted, before its head was read, is not one in the making."""
    store = Store.from_url("memory://")
    archive = Archive(store, "default")
    family = await make_family(archive)

    class Overtaken(Failing):
        async def get(self, path: str) -> bytes:
            if path == "default/sessions/s-left.json":
                await archive.delete("left")
            return await super().get(path)

    await Archive(Overtaken(store), "default").delete("root")
    rest = [family[name][0] for name in ("right", "deep")]
    assert {path for path in await list_objects(store) if "/segments/" in path} == await list_segments(store, *rest)


async def test_a_real_store_takes_deletions_at_the_same_time(local_store: Store) -> None:
    """What is true of every interleaving in a dictionary is true in a store."""
    archive = Archive(local_store, "default")
    family = await make_family(archive)
    await asyncio.gather(*(archive.delete(name) for name in family))
    assert await list_objects(local_store) == set()


async def test_a_fork_in_the_making_keeps_what_it_will_need() -> None:
    """Between joining the family and its own head a fork's source may be deleted, and the fork is whole."""
    store = Store.from_url("memory://")
    archive = Archive(store, "default")
    head = await begin_archive(archive, "root", make_entries(0, 4))
    assert head.root
    assert await archive.join("root", "branch") == head
    head = await extend_archive(archive, head, make_entries(4, 1))
    assert await archive.delete("root") == 0
    root = await archive.truncate("root", head.root or "", 2)
    branch = Head(session_id="branch", family="root", root=root, last_seq=2)
    await archive.set_head(branch, None)
    assert await read_thread(archive, branch) == make_entries(0, 3)
    await archive.delete("branch")
    assert await list_objects(store) == set()


async def test_a_fork_of_what_is_being_deleted_is_refused() -> None:
    """Once a deletion has begun, no session can join the family, and the attempt leaves no object."""
    store = Store.from_url("memory://")
    archive = Archive(store, "default")
    await begin_archive(archive, "root", make_entries(0, 4))
    await store.delete(f"{FOLDER}/members/s-root")
    with pytest.raises(ObjectMissing, match="members/s-root"):
        await archive.join("root", "branch")
    assert await list_objects(store, f"{FOLDER}/members") == set()
    await archive.delete("root")
    with pytest.raises(ObjectMissing, match=r"sessions/s-root\.json"):
        await archive.join("root", "branch")
    assert await list_objects(store) == set()


async def test_a_fork_that_is_not_made_leaves() -> None:
    """A session that joined and left does not delay the deletion of segments."""
    store = Store.from_url("memory://")
    archive = Archive(store, "default")
    await begin_archive(archive, "root", make_entries(0, 4))
    await archive.join("root", "branch")
    await archive.leave("root", "branch")
    assert await archive.delete("root") == 1
    assert await list_objects(store) == set()


async def test_a_fork_that_was_given_up_midway_holds_nothing_back_for_ever() -> None:
    """Its marker counts for as long as a fork may take; the founder's counts always: it may archive at any time."""
    store = Store.from_url("memory://")
    archive = Archive(store, "default")
    await begin_archive(archive, "root", make_entries(0, 4))
    await archive.join("root", "given-up")
    await fork_archive(archive, "root", "branch", 1)
    assert await archive.delete("root") == 0
    archive = Archive(store, "default", ArchiveSettings(fork_time=timedelta(0)))
    assert await archive.delete("branch") == 1
    assert await list_objects(store) == set()
    await archive.enroll("young", "young")
    await archive.enroll("young", "branch")
    await archive.set_head(
        (await begin_archive(archive, "other", make_entries(0, 1))).model_copy(
            update={"session_id": "branch", "family": "young"}
        ),
        None,
    )
    assert await archive.delete("branch") == 0


async def test_what_no_session_has_is_deleted() -> None:
    """Objects of a family without a session are deleted: uploads before it, a failed import, a given-up fork's."""
    store = Store.from_url("memory://")
    archive = Archive(store, "default")
    assert not await archive.delete_rest("root")
    await archive.put_blob("root", b"data", b"{}")
    await archive.append("root", None, make_entries(0, 4))
    assert await archive.delete_rest("root")
    assert await list_objects(store) == set()
    await begin_archive(archive, "root", make_entries(0, 4))
    await archive.join("root", "given-up")
    assert await archive.delete("root") == 0
    assert not await archive.delete_rest("root")
    assert await Archive(store, "default", ArchiveSettings(fork_time=timedelta(0))).delete_rest("root")
    assert await list_objects(store) == set()


async def test_what_a_fork_needs_stays_when_its_deleted_origin_is_deleted_again() -> None:
    """The family still has a session."""
    store = Store.from_url("memory://")
    archive = Archive(store, "default")
    await begin_archive(archive, "root", make_entries(0, 4))
    branch = await fork_archive(archive, "root", "branch", 3)
    await archive.delete("root")
    assert not await archive.delete_rest("root")
    assert await read_thread(archive, branch) == make_entries(0, 4)


@pytest.mark.slow
async def test_uploads_for_a_session_that_was_never_opened_are_deleted(stack: Stack) -> None:
    """Their bytes are gone, and a second deletion finds nothing."""
    session = stack.clew.session(make_id())
    blob = await session.put_blob(make_png())
    assert (await stack.clew.delete(session.id)).deleted_segments == 0
    with pytest.raises(UnknownBlob):
        await session.read_blob(blob)
    with pytest.raises(NotFound):
        await stack.clew.delete(session.id)


async def test_another_workflow_of_that_id_is_left_alone(stack: Stack, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also if the deletion is attempted again, after the store was away."""
    other = await stack.clew.temporal.start_workflow("Other", id=make_id(), task_queue=make_id())
    read_head, calls = Archive.read_head, itertools.count()

    async def fail_once(archive: Archive, session_id: str) -> Head | None:
        if session_id == other.id and next(calls) == 0:
            raise StoreUnavailable("sessions", "it is away")
        return await read_head(archive, session_id)

    monkeypatch.setattr(Archive, "read_head", fail_once)
    await stack.clew.delete(other.id)
    assert next(calls) > 1
    assert (await other.describe()).status == WorkflowExecutionStatus.RUNNING
    await other.terminate()


async def test_what_is_damaged_can_be_deleted_and_what_others_need_is_not_guessed() -> None:
    """A damaged session can be deleted; the family's segments stay while a damaged sibling's needs are unknown."""
    store = Store.from_url("memory://")
    archive = Archive(store, "default", SMALL)
    family = await make_family(archive)
    left = family["left"][0]
    await store.delete(f"{FOLDER}/nodes/{left.root}.json")
    with pytest.raises(ObjectMissing, match=f"nodes/{left.root}"):
        await archive.delete("root")
    await archive.delete("left")
    await archive.delete("root")
    for name in ("right", "deep"):
        assert await read_thread(archive, family[name][0]) == family[name][1]
    await store.put("default/sessions/s-deep.json", b"{}")
    with pytest.raises(ObjectDamaged, match="sessions/s-deep"):
        await archive.delete("right")


@pytest.mark.slow
async def test_a_session_without_a_worker_is_not_deleted(stack: Stack, monkeypatch: pytest.MonkeyPatch) -> None:
    """The worker of another task queue says so. When the session has a worker again, it is deleted."""
    queue = f"queue-{make_id()}"
    async with run_rolling_worker(stack, task_queue=queue) as clew:
        session = await clew.open(make_id(), model=stack.add_model("fine"))
        await session.ask("hello")
    with monkeypatch.context() as impatient:
        impatient.setattr(services, "CHANGE_TIMEOUT", QUERY_TIMEOUT + timedelta(seconds=3))
        with pytest.raises(WorkerUnavailable, match="once a worker serves its task queue"):
            await stack.clew.delete(session.id)
    async with run_rolling_worker(stack, task_queue=queue):
        assert (await stack.clew.delete(session.id)).deleted_segments > 0


async def test_a_deletion_that_has_not_ended_in_time_is_not_told_as_refused(
    stack: Stack, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The session's data may be gone: the error says that it is to be repeated, which deletes the rest."""
    session = await stack.open()
    await session.ask("hello")
    await session.close()

    async def fail(*_arguments: Any) -> None:
        raise RPCError("the server is busy", RPCStatusCode.RESOURCE_EXHAUSTED, b"")

    with monkeypatch.context() as failing:
        failing.setattr(services, "CHANGE_TIMEOUT", timedelta(seconds=2))
        failing.setattr(deletion, "_delete_histories", fail)
        with pytest.raises(WorkerUnavailable):
            await stack.clew.delete(session.id)
    # All but the histories is gone by now, unless no attempt has come so far.
    with suppress(NotFound):
        await stack.clew.delete(session.id)

    async def is_gone() -> bool:
        query = f'WorkflowId = "{session.id}" AND WorkflowType = "{WORKFLOW_TYPE}"'
        return not [run async for run in stack.clew.temporal.list_workflows(query)]

    await wait_until(is_gone)
