"""Sessions that a newer version of Clew has written, on workers that are too old for them."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from unittest.mock import patch

import pytest

from clew.errors import ClewError, NewerVersion
from clew_activities.archive import Archive, Store, formats
from clew_audit import audit, recovery
from clew_workflows.protocol import RolloverThresholds
from clew_workflows.session import carried
from clew_workflows.values import Format
from tests.support.encrypted import connect, make_encryption
from tests.support.rolling import list_runs, make_id, run_rolling_worker, wait_for_failed_task
from tests.support.stack import Stack
from tests.support.waiting import wait_until

OFTEN = RolloverThresholds(events=50)
NEXT = Format("carried state", carried.FORMAT.version + 1, (lambda value: value,))
"""The format of a newer worker, which reads today's states, too."""


@contextmanager
def newer_version() -> Iterator[None]:
    """Make this process one of a newer version of Clew, whose carried states have another version."""
    with patch.object(carried, "FORMAT", NEXT):
        yield


@pytest.mark.slow
@pytest.mark.parametrize("kids", [pytest.param((), marks=pytest.mark.long), ("k1",)], ids=["plain", "encrypted"])
async def test_a_session_of_a_newer_worker_waits_for_one(stack: Stack, kids: tuple[str, ...]) -> None:
    """An older worker can neither continue nor end it. It says why, and what arrives meanwhile is served later."""
    if kids:
        stack = replace(stack, clew=await connect(stack, make_encryption(*kids)))
    with newer_version():
        async with run_rolling_worker(stack, OFTEN) as clew:
            session = await clew.open(make_id(), model=stack.add_model("fine"))
            while len(await list_runs(clew, session.id)) < 2:
                await session.ask("hello")
            before = await session.entries(kind="ai_message")
    async with run_rolling_worker(stack, OFTEN, task_queue=clew.task_queue):
        with pytest.raises(ClewError, match="version 2"):
            await session.status()
        sending = asyncio.ensure_future(session.message("one more"))
        await wait_for_failed_task(clew, session.id)
        await clew.temporal.get_workflow_handle(session.id).signal("inject", {"content": "by the way"})
    with newer_version():
        async with run_rolling_worker(stack, OFTEN, task_queue=clew.task_queue):
            assert await (await sending).answer() == "fine"
            after = await session.entries(kind="ai_message")
            assert after[: len(before)] == before
            assert {entry.payload["content"] for entry in after[len(before) :]} >= {"one more", "fine"}
            signals = [entry.payload.get("content") for entry in await session.entries(from_seq=before[-1].seq)]
            assert "by the way" in str(signals)


@pytest.mark.slow
async def test_an_archived_session_of_a_newer_worker_is_refused_and_waits(stack: Stack) -> None:
    """Callers read why. The session is started nevertheless, and a newer worker opens it without their help."""
    store = Store.from_url("memory://")
    with newer_version():
        async with run_rolling_worker(stack, store=store) as clew:
            session = await clew.open(make_id(), model=stack.add_model("fine"))
            await session.ask("hello")
            await session.hibernate()
    async with run_rolling_worker(stack, store=store, task_queue=clew.task_queue):
        with pytest.raises(NewerVersion):
            await clew.session(session.id).fork(0, make_id())
        waking = await clew.open(session.id)
        with pytest.raises(NewerVersion, match="version 2"):
            await waking.ask("are you there?")
    with newer_version():
        async with run_rolling_worker(stack, store=store, task_queue=clew.task_queue):

            async def is_answered() -> bool:
                # Callers are refused until the next attempt to read the archive.
                with suppress(NewerVersion):
                    return await waking.ask("are you there?") == "fine"
                return False

            await wait_until(is_answered)
            texts = [entry.payload["content"] for entry in await waking.entries(kind="ai_message")]
            assert texts == ["hello", "fine", "are you there?", "fine"]


async def test_recover_writes_nothing_over_a_newer_state(stack: Stack) -> None:
    """The command is refused by both versions, and so is the audit of a session with a newer head."""
    store = Store.from_url("memory://")
    archive = Archive(store, "default")
    async with run_rolling_worker(stack, store=store) as clew:
        with newer_version():
            session = await clew.open(make_id(), model=stack.add_model("fine"))
            await session.ask("hello")
            await session.hibernate()
        await clew.temporal.start_workflow(
            "AgentSession", {"config": {"model": "scripted:any"}}, id=session.id, task_queue="nobody-listens"
        )
        await clew.temporal.get_workflow_handle(session.id).terminate()
        before = await archive.read_head(session.id)
        with pytest.raises(NewerVersion, match=r"carried state is of version 2, .* reads 1"):
            await recovery.recover(clew.temporal, archive, session.id, task_queue=clew.task_queue)
        assert await archive.read_head(session.id) == before
        with patch.object(formats, "HEAD", Format("archive head", 2)):
            newer = before and before.model_copy(update={"version": 2})
            assert newer
            path = f"default/sessions/s-{session.id}.json"
            await store.put(path, newer.encode())
        with pytest.raises(NewerVersion, match=f"^{path} is of version 2"):
            await audit.audit_session(clew.temporal, archive, session.id)
