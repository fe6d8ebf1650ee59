"""Restores from backups as `docs/data.md` describes them: a bucket with versions, and the server's database."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from clew import Clew, Session
from clew.local import temporal_server
from clew_activities.archive import Archive, Store
from clew_audit.audit import audit_session
from clew_audit.recovery import Source, recover
from tests.support.rolling import OFTEN, QUICK_ROLLOVERS, list_runs, make_id, run_rolling_worker
from tests.support.s3 import BUCKET, keep_versions, list_versions, make_s3_env, restore_versions, run_s3
from tests.support.stack import Stack

pytestmark = pytest.mark.slow


@pytest.fixture
def bucket(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The address of a bucket with versions."""
    with run_s3() as address:
        for name, value in make_s3_env(address).items():
            monkeypatch.setenv(name, value)
        keep_versions(address)
        yield address


@asynccontextmanager
async def run_site(stack: Stack, database: Path) -> AsyncIterator[tuple[Clew, Archive]]:
    """Run a server on a database, and a worker whose sessions are in the bucket."""
    store = Store.from_url(f"s3://{BUCKET}/sessions")
    async with temporal_server(ui=False, db_filename=database, dynamic_config=QUICK_ROLLOVERS) as server:
        site = replace(stack, server=server, clew=await Clew.connect(server.address))
        async with run_rolling_worker(site, OFTEN, store, task_queue="clew") as clew:
            yield clew, Archive(store, "default")


async def roll_over(clew: Clew, session: Session, text: str) -> None:
    """Send messages until the session has archived itself once more."""
    before = len(await list_runs(clew, session.id))
    while len(await list_runs(clew, session.id)) == before:
        await session.ask(text)
    await session.ask(text)


async def recover_session(clew: Clew, archive: Archive, session_id: str, keep: Source | None = None) -> Session:
    """Do what the page says, and check that the session goes on and its audit is clean."""
    await recover(clew.temporal, archive, session_id, task_queue=clew.task_queue, keep=keep)
    session = await clew.open(session_id)
    assert await session.ask("after") == "fine"
    return session


def copy_database(folder: Path, backup: Path, has_one: bool) -> None:
    """Copy the database of a server that has stopped, or make an empty folder."""
    backup.mkdir()
    for file in folder.glob("temporal.db*") if has_one else ():
        shutil.copy(file, backup)


@pytest.mark.parametrize("left", ["older", pytest.param("lost", marks=pytest.mark.long)])
async def test_an_archive_that_is_older_than_the_database(
    stack: Stack, bucket: str, tmp_path: Path, left: str
) -> None:
    """What the bucket has lost since its backup is in the histories of the server: no entry is lost."""
    async with run_site(stack, tmp_path / "temporal.db") as (clew, archive):
        is_open, hibernated = [await clew.open(make_id(), model=stack.add_model("fine")) for _ in range(2)]
        for session in (is_open, hibernated):
            await roll_over(clew, session, "before the backup")
        backup = list_versions(bucket) if left == "older" else {}
        for session in (is_open, hibernated):
            await roll_over(clew, session, "after the backup")
        threads = {session.id: await session.entries() for session in (is_open, hibernated)}
        await hibernated.hibernate()
        restore_versions(bucket, backup)
        for session_id, thread in threads.items():
            report = await audit_session(clew.temporal, archive, session_id)
            assert any("are not archived" in difference.problem for difference in report.differences), (
                report.differences
            )
            if session_id == is_open.id:
                await clew.temporal.get_workflow_handle(session_id).terminate()
            session = await recover_session(clew, archive, session_id)
            assert (await session.entries())[: len(thread)] == thread
            report = await audit_session(clew.temporal, archive, session_id)
            assert report.clean, report.differences


@pytest.mark.parametrize("left", ["older", pytest.param("lost", marks=pytest.mark.long)])
async def test_a_database_that_is_older_than_the_archive(
    stack: Stack, bucket: str, tmp_path: Path, left: str
) -> None:
    """Sessions go on after their last archived entry."""
    database, backup = tmp_path / "temporal.db", tmp_path / "backup"
    async with run_site(stack, database) as (clew, _):
        session = await clew.open(make_id(), model=stack.add_model("fine"))
        await roll_over(clew, session, "before the backup")
    await asyncio.to_thread(copy_database, tmp_path, backup, left == "older")
    async with run_site(stack, database) as (clew, archive):
        session = clew.session(session.id)
        await roll_over(clew, session, "after the backup")
        thread = await session.entries()
        head = await archive.read_head(session.id)
        assert head
    async with run_site(stack, backup / "temporal.db") as (clew, archive):
        if left == "older":
            report = await audit_session(clew.temporal, archive, session.id)
            assert any("no history has this entry" in difference.problem for difference in report.differences)
            await clew.temporal.get_workflow_handle(session.id).terminate()
        session = await recover_session(clew, archive, session.id, "archive" if left == "older" else None)
        kept = head.last_seq + 1
        assert (await session.entries())[:kept] == thread[:kept]
        texts = [entry.payload.get("content") for entry in await session.entries()]
        assert "after the backup" in texts
