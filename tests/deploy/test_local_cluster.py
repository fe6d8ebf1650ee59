"""The services of compose.yaml at work: Temporal on PostgreSQL, SeaweedFS, and workers apart."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import tempfile
from asyncio.subprocess import PIPE, STDOUT
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, suppress
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import yaml  # type: ignore[import-untyped]
from temporalio.api.enums.v1 import EventType

from clew import Clew, Session
from clew.local import Reply, StartFailed, ToolCall, scripted_model, worker_process
from clew_activities.archive import Archive, ObjectChanged, Store
from clew_activities.archive.archive_errors import KeyMissing
from clew_workflows.contract.lists import SEARCH_ATTRIBUTES
from deploy.local_cluster import COMPOSE, LocalCluster, local_cluster
from deploy.servers.programs import find_programs
from tests.support.encrypted import make_encryption, write_keys
from tests.support.processes import ROOT, is_running
from tests.support.rolling import list_runs, make_id
from tests.support.stack import get_last_message
from tests.support.versions import read_texts
from tests.support.waiting import wait_until

MODEL = "scripted:parrot"
TASK_QUEUE = "clew-of-the-cluster"
"""The task queue of the workers: not the one that workers have by default."""
OWN_ENVIRONMENT = {
    "AWS_SESSION_TOKEN": "the user's token",
    "AWS_PROFILE": "the user's profile",
    "AWS_BEARER_TOKEN_BEDROCK": "a model's key",
}
"""What the user's shell has when the cluster starts."""
PATIENCE_SECONDS = 180.0
"""Seconds for a start of the cluster on a busy machine."""

# One process of pytest-xdist runs them all, as each process starts a cluster.
pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("local cluster")]


def answer(body: dict[str, Any]) -> Reply:
    """Call the tool if the message names it; repeat the message otherwise."""
    message = get_last_message(body)
    if message["content"] == "add":
        return Reply(tool_calls=(ToolCall("add", {"a": 1, "b": 2}),))
    return Reply(message["content"])


@pytest.fixture(scope="module")
async def cluster() -> AsyncIterator[LocalCluster]:
    """Run the cluster, with workers that know a scripted model and the tools of the toolbox."""
    try:
        find_programs()
    except StartFailed as missing:
        pytest.skip(str(missing))
    async with AsyncExitStack() as stack:
        provider = await stack.enter_async_context(scripted_model(answer))
        env = {"CLEW_PROVIDER_SCRIPTED_BASE_URL": provider.base_url, "CLEW_TASK_QUEUE": TASK_QUEUE}
        with pytest.MonkeyPatch.context() as patch:
            for name, value in OWN_ENVIRONMENT.items():
                patch.setenv(name, value)
            running = await stack.enter_async_context(local_cluster(env=env, tools=["tests.support.toolbox"]))
        yield running


@pytest.fixture(scope="module")
async def clew(cluster: LocalCluster) -> Clew:
    """Connect a client."""
    return await Clew.connect(cluster.server.address, task_queue=TASK_QUEUE)


@pytest.fixture
def store(cluster: LocalCluster, monkeypatch: pytest.MonkeyPatch) -> Store:
    """Open the cluster's store."""
    for name, value in cluster.store_settings.items():
        monkeypatch.setenv(name, value)
    return Store.from_url(cluster.server.store)


def query_database(cluster: LocalCluster, database: str, statement: str) -> str:
    """Run a statement of SQL, and return what it selects."""
    command = ["psql", "--tuples-only", "--no-align", "--command", statement, f"{cluster.database}/{database}"]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


def read_compose(service: str) -> dict[str, str]:
    """Read the environment of a service of compose.yaml."""
    environment: dict[str, str] = yaml.safe_load(COMPOSE.read_text())["services"][service]["environment"]
    return environment


def is_same(present: bytes, there: bytes | None) -> bool:
    """Whether an object still has this content. An absent one has the first number."""
    return (there or b"0000") == present


def find_in_files(folder: Path, text: bytes) -> list[Path]:
    """Find the files of a folder that hold a text."""
    return [path for path in folder.rglob("*") if path.is_file() and text in path.read_bytes()]


async def list_pids(session: Session, activity: str) -> set[int]:
    """List the processes that ran a session's activities of one type."""
    history = await session._handle.workflow.fetch_history()
    scheduled = {
        event.event_id
        for event in history.events
        if event.event_type == EventType.EVENT_TYPE_ACTIVITY_TASK_SCHEDULED
        and event.activity_task_scheduled_event_attributes.activity_type.name == activity
    }
    started = [
        event.activity_task_started_event_attributes
        for event in history.events
        if event.event_type == EventType.EVENT_TYPE_ACTIVITY_TASK_STARTED
    ]
    return {int(one.identity.partition("@")[0]) for one in started if one.scheduled_event_id in scheduled}


async def test_each_worker_makes_the_calls_that_it_serves(cluster: LocalCluster, clew: Clew) -> None:
    """A session calls a model and a tool: each call is made by the worker for it."""
    session = await clew.open(make_id(), model=MODEL, tools=["add"])
    assert await session.ask("add") == "3"
    pids = {part: worker.pid for part, worker in cluster.workers.items()}
    assert await list_pids(session, "call_model") == {pids["models"]}
    assert await list_pids(session, "run_tool") == {pids["tools"]}


def test_workers_have_no_credentials_of_the_user_for_other_stores(cluster: LocalCluster) -> None:
    """They have those of the cluster's store, and of the shell's variables for AWS the key of a model alone."""
    for worker in cluster.workers.values():
        variables = Path("/proc", str(worker.pid), "environ").read_text().split("\0")
        environ = dict(variable.split("=", 1) for variable in variables if variable.startswith("AWS_"))
        key = {"AWS_BEARER_TOKEN_BEDROCK": OWN_ENVIRONMENT["AWS_BEARER_TOKEN_BEDROCK"]}
        assert environ == cluster.store_settings | key


async def test_sessions_are_spread_over_several_shards(cluster: LocalCluster, clew: Clew) -> None:
    """The history service has as many shards as compose.yaml says, and sessions are in more than one of them."""
    for _ in range(8):
        assert await (await clew.open(make_id(), model=MODEL)).ask("hello") == "hello"
    shards = read_compose("temporal")["NUM_HISTORY_SHARDS"]
    assert query_database(cluster, "temporal", "SELECT count(*) FROM shards") == shards
    used = query_database(cluster, "temporal", "SELECT count(DISTINCT shard_id) FROM executions")
    assert 1 < int(used) <= int(shards)


async def test_every_search_attribute_can_be_searched(clew: Clew) -> None:
    """The server compares each as its type says, and finds a session by all of them and by none that it has not."""
    user = make_id()
    parent = await clew.open(make_id(), model=MODEL, metadata={"user": user, "tags": "red,green"})
    await parent.ask("hello")
    session = await parent.fork()
    await session.ask("hello again")
    matching = {
        "ClewModel": f"= '{MODEL}'",
        "ClewStatus": "= 'idle'",
        "ClewUser": f"= '{user}'",
        "ClewTags": "IN ('green', 'blue')",
        "ClewTokens": "BETWEEN 1 AND 1000000",
        "ClewLastActive": "> '2020-01-01T00:00:00Z'",
        "ClewParent": f"= '{parent.id}'",
    }
    others = {
        "ClewModel": "= 'other'",
        "ClewStatus": "= 'failed'",
        "ClewUser": "= 'other'",
        "ClewTags": "= 'blue'",
        "ClewTokens": "> 1000000",
        "ClewLastActive": "> '2999-01-01T00:00:00Z'",
        "ClewParent": "= 'other'",
        "ClewAgent": "= 'other'",
        "ClewCostUsd": "> 0.0",
    }
    assert others.keys() == SEARCH_ATTRIBUTES.keys()

    async def find(query: str) -> list[str]:
        return [one.id async for one in clew.temporal.list_workflows(f"WorkflowId = '{session.id}' AND {query}")]

    async def is_listed() -> bool:
        return await find(" AND ".join(f"{name} {test}" for name, test in matching.items())) == [session.id]

    await wait_until(is_listed)
    for name, test in matching.items():
        assert await find(f"{name} {test}") == [session.id], name
    for name, test in others.items():
        assert await find(f"{name} {test}") == [], name
    assert {one.session_id async for one in clew.sessions(user=user)} == {parent.id, session.id}


async def test_a_session_comes_back_from_the_archive(clew: Clew, store: Store) -> None:
    """Hibernated, all of it is in SeaweedFS, and it goes on from there."""
    session = await clew.open(make_id(), model=MODEL, tools=["add"])
    await session.ask("one")
    await session.hibernate()
    archive = Archive(store, "default")
    head = await archive.read_head(session.id)
    assert head is not None
    archived = [entry.seq async for entry in archive.read(head.family, head.root)]
    assert archived == list(range(head.last_seq + 1))
    again = await clew.open(session.id)
    assert await again.ask("add") == "3"
    first, *_, last = await read_texts(again)
    assert (first, last) == ("one", "3")


async def test_writers_of_one_object_do_not_lose_each_others_writes(store: Store) -> None:
    """SeaweedFS checks the condition of a write: of two that read the same, one has to read again."""
    path, writers, rounds = f"{make_id()}/count", 6, 5
    refused = 0

    async def count() -> None:
        nonlocal refused
        won = 0
        while won < rounds:
            present = await store.get(path) if await store.holds(path, 4) else b"0000"
            try:
                await store.replace(path, b"%04d" % (int(present) + 1), partial(is_same, present))
                won += 1
            except ObjectChanged:
                refused += 1

    await asyncio.gather(*(count() for _ in range(writers)))
    assert int(await store.get(path)) == writers * rounds
    assert refused > 0


async def test_an_encrypted_session_is_encrypted_in_the_database_and_in_the_store(
    cluster: LocalCluster, clew: Clew, store: Store
) -> None:
    """PostgreSQL's files hold texts of other sessions, and none of it; its archive is not read without the key."""
    encryption = make_encryption("k1")
    queue, ids = make_id(), list[str]()
    env = {**cluster.settings, "CLEW_ENCRYPTION_KEYS": write_keys("k1")}
    async with worker_process(cluster.server.address, env=env, task_queue=queue):
        encrypted = await Clew.connect(cluster.server.address, task_queue=queue, encryption=encryption)
        for client, text in ((encrypted, "xylophone"), (clew, "glockenspiel")):
            session = await client.open(make_id(), model=MODEL, metadata={"title": text})
            assert await session.ask(text) == text
            await session.hibernate()
            ids.append(session.id)
    query_database(cluster, "temporal", "CHECKPOINT")
    assert find_in_files(cluster.folder / "postgresql", b"glockenspiel")
    assert not find_in_files(cluster.folder / "postgresql", b"xylophone")
    archive, (encrypted_id, plain_id) = Archive(store, "default"), ids
    assert await archive.read_head(plain_id)
    with pytest.raises(KeyMissing):
        await archive.read_head(encrypted_id)


async def test_what_is_prepared_at_each_start_changes_nothing_the_next_time(
    cluster: LocalCluster, clew: Clew
) -> None:
    """`docker compose up` runs the scripts again: the sessions are still there."""
    session = await clew.open(make_id(), model=MODEL)
    await session.ask("one")
    await cluster.prepare()
    assert await session.ask("two") == "two"
    assert len(await list_runs(clew, session.id)) == 1


def test_the_store_is_that_of_the_image(cluster: LocalCluster) -> None:
    """SeaweedFS has the version that compose.yaml names."""
    shown = subprocess.run([find_programs().weed, "version"], check=True, capture_output=True, text=True).stdout
    (image,) = {
        line.rpartition(":")[2] for line in COMPOSE.read_text().splitlines() if "chrislusf/seaweedfs:" in line
    }
    assert f" {image} " in shown


@pytest.fixture
def folder() -> Iterator[Path]:
    """Make a folder that PostgreSQL's user may enter, which it may not with `tmp_path`."""
    with tempfile.TemporaryDirectory(prefix="clew-interrupt-") as made:
        Path(made).chmod(0o711)
        yield Path(made)


async def test_an_interrupt_stops_all_of_it(folder: Path) -> None:
    """`make local-cluster` says where everything is; after Ctrl-C no process and no file is left."""
    try:
        find_programs()
    except StartFailed as missing:
        pytest.skip(str(missing))
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "deploy.local_cluster"),
        cwd=ROOT,
        env={**os.environ, "TMPDIR": str(folder), "PYTHONUNBUFFERED": "1"},
        stdout=PIPE,
        stderr=STDOUT,
    )
    assert process.stdout is not None
    shown = b""
    try:
        async with asyncio.timeout(PATIENCE_SECONDS):
            while b"Ctrl-C" not in shown:
                line = await process.stdout.readline()
                assert line, shown.decode()
                shown += line
        started = list_processes(folder)
        assert len(started) > 3
        process.send_signal(signal.SIGINT)
        async with asyncio.timeout(PATIENCE_SECONDS):
            assert await process.wait() == 0
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    await wait_until(lambda: not any(is_running(pid) for pid in started))
    assert os.listdir(folder) == []


def list_processes(folder: Path) -> list[str]:
    """List the processes whose command or environment names a folder."""
    named: list[str] = []
    for process in Path("/proc").iterdir():
        with suppress(OSError):
            if process.name.isdigit() and any(
                str(folder).encode() in (process / file).read_bytes() for file in ("cmdline", "environ")
            ):
                named.append(process.name)
    return named
