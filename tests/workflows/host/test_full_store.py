"""A store without space: sessions go on, nothing of the archive is damaged, and with space they archive again."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path

import pytest

from clew.errors import ArchiveUnavailable
from clew_activities.archive import Archive, Store, StoreUnavailable
from clew_audit.audit import audit_session
from clew_workflows.host.agent_session import AgentSession
from tests.support.other_workflows import Impatient
from tests.support.rolling import list_runs, make_id, run_rolling_worker
from tests.support.s3 import BUCKET, FullBucket, make_s3_env, run_s3
from tests.support.stack import Stack
from tests.support.waiting import wait_until

STORE_TIMEOUT = timedelta(seconds=1)
"""A message to a full session waits so long: the test sends dozens of them."""


@dataclass
class Space:
    """A store whose space a test takes and frees."""

    store: Store
    take: Callable[[], None]
    free: Callable[[], None]


@contextmanager
def run_folder(tmp_path: Path) -> Iterator[Space]:
    """A folder on a file system of a megabyte. Mounting it needs root."""
    disk = tmp_path / "disk"
    disk.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", disk], check=False, capture_output=True
    )
    if mounted.returncode:
        pytest.skip("only root may mount a file system")
    ballast = disk / "ballast"

    def take() -> None:
        with suppress(OSError), ballast.open("wb", buffering=0) as writing:
            while True:
                writing.write(bytes(4096))

    try:
        yield Space(Store.from_url((disk / "store").as_uri()), take, ballast.unlink)
    finally:
        subprocess.run(["umount", "--lazy", disk], check=True)


@contextmanager
def run_bucket(monkeypatch: pytest.MonkeyPatch) -> Iterator[Space]:
    """A bucket that answers 507 to writes."""
    with run_s3() as address, FullBucket(address).run() as bucket:
        for name, value in make_s3_env(bucket.address).items():
            monkeypatch.setenv(name, value)

        def free() -> None:
            assert bucket.refused
            bucket.full = False

        yield Space(Store.from_url(f"s3://{BUCKET}/sessions"), lambda: setattr(bucket, "full", True), free)


@pytest.fixture(params=["folder", "bucket"])
def space(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Space]:
    """A store of each kind."""
    with run_folder(tmp_path) if request.param == "folder" else run_bucket(monkeypatch) as running:
        yield running


@pytest.mark.slow
async def test_sessions_go_on_without_space_and_archive_when_there_is_some(
    stack: Stack, space: Space, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Full, a session refuses new messages; with space it rolls over by itself, and the audit finds nothing."""
    # The audit replays with this class, so its timeouts are those of the sessions.
    monkeypatch.setattr(AgentSession, "waits", replace(Impatient.waits, store_timeout=STORE_TIMEOUT))
    archive = Archive(space.store, "default")
    async with run_rolling_worker(stack, store=space.store) as clew:
        session = await clew.open(make_id(), model=stack.add_model("fine"))
        while len(await list_runs(clew, session.id)) < 2:
            await session.ask("before")
        before = await archive.read_head(session.id)
        space.take()
        with pytest.raises(StoreUnavailable):
            await space.store.put("default/probe", bytes(4096))
        runs, answered = len(await list_runs(clew, session.id)), 0
        with suppress(ArchiveUnavailable):
            while answered < 100:
                assert await session.ask("without space") == "fine"
                answered += 1
        assert 10 < answered < 100
        assert len(await list_runs(clew, session.id)) == runs
        assert await archive.read_head(session.id) == before
        space.free()

        async def has_rolled() -> bool:
            return len(await list_runs(clew, session.id)) > runs

        await wait_until(has_rolled)
        assert await session.ask("after") == "fine"
        report = await audit_session(clew.temporal, archive, session.id)
        assert report.clean, report.differences
        entries = await session.entries()
        assert [entry.seq for entry in entries] == list(range(len(entries)))
        texts = [entry.payload["content"] for entry in entries if entry.payload.get("role") == "user"]
        assert texts.count("without space") == answered
