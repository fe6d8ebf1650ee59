"""Tools of MCP servers: real ones, by both transports, and one that misbehaves in every way."""

from __future__ import annotations

import asyncio
import base64
import os
import socket
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from fastapi import FastAPI, Request, Response
from fastapi.responses import JSONResponse
from starlette.routing import Route

from clew_activities.providers import Redaction
from clew_activities.received_media import NewMedia, Unusable
from clew_activities.tools.mcp import mcp_connection, transports
from clew_activities.tools.mcp import mcp_tools as tools_module
from clew_activities.tools.mcp.mcp_settings import (
    HttpSettings,
    McpSettings,
    McpUnavailable,
    ProcessSettings,
    ServerSettings,
)
from clew_activities.tools.mcp.mcp_tools import McpTool, McpTools, UnknownMcpTool, make_catalog
from clew_activities.tools.registry import Deployment
from tests.support import bad_mcp_server
from tests.support.media import make_pdf, make_png, make_wav
from tests.support.waiting import PATIENCE_SECONDS
from tests.support.web import serve

pytestmark = pytest.mark.usefixtures("patient_connections")

SECRET = "s3cret-of-the-server"
GOOD = ProcessSettings(
    command=sys.executable, args=("-m", "tests.support.mcp_server"), env={"PYTHONPATH": os.pathsep.join(sys.path)}
)


def make_bad(folder: Path, *args: str) -> ProcessSettings:
    env = {"BAD_MCP_PID": str(folder / "pids"), "MCP_SECRET": SECRET}
    return ProcessSettings(command=sys.executable, args=(bad_mcp_server.__file__, *args), env=env)


def is_running(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def read_pids(folder: Path) -> list[int]:
    return [int(line) for line in (folder / "pids").read_text().split()]


@pytest.fixture
async def bad(tmp_path: Path) -> AsyncIterator[McpTools]:
    tools = McpTools(McpSettings({"bad": make_bad(tmp_path)}), Redaction([SECRET]))
    yield tools
    await tools.close()
    assert not [pid for pid in read_pids(tmp_path) if is_running(pid)]


@contextmanager
def run_http_server(port: int, *arguments: str) -> Iterator[HttpSettings]:
    """Run the official server on loopback."""
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-m", "tests.support.mcp_server", "--port", str(port), *arguments]
    process = subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        give_up_at = time.monotonic() + 60
        while True:
            try:
                httpx.get(f"http://127.0.0.1:{port}/")
                break
            except httpx.TransportError:
                assert process.poll() is None
                assert time.monotonic() < give_up_at
        yield HttpSettings(url=f"http://127.0.0.1:{port}/mcp")
    finally:
        process.kill()
        process.wait()


def find_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port: int = free.getsockname()[1]
        return port


@pytest.fixture(scope="module")
def http_server() -> Iterator[HttpSettings]:
    """The official server on loopback."""
    with run_http_server(find_port()) as settings:
        yield settings


@pytest.fixture(scope="module", params=["stdio", "http"])
async def good(request: pytest.FixtureRequest) -> AsyncIterator[McpTools]:
    """A connection to the official server, which all tests use that neither break nor change it."""
    settings: ServerSettings = GOOD if request.param == "stdio" else request.getfixturevalue("http_server")
    tools = McpTools(McpSettings({"good": settings}))
    yield tools
    await tools.close()


async def call(tools: McpTools, tool: str, **arguments: object) -> tuple[Any, bool]:
    (found,) = await tools.select(f"mcp:bad/{tool}")
    return await tools.call(found, dict(arguments))


@pytest.mark.slow
async def test_a_real_server_serves_its_tools(good: McpTools) -> None:
    """Schemas, hints, results of each kind, errors, and a list that changes while it is used."""
    tools = {tool.tool: tool for tool in await good.select("mcp:good/*")}
    add = tools["add"]
    assert (add.name, add.spec["description"], add.idempotent) == ("mcp__good__add", "Add two numbers.", True)
    assert add.spec["parameters"]["required"] == ["a", "b"]
    assert not tools["fail"].idempotent
    assert await good.call(add, {"a": 1, "b": 2}) == ("3", False)
    assert await good.call(tools["picture"], {}) == (["a picture:", NewMedia("image", make_png(12, 11))], False)
    assert await good.call(tools["everything"], {}) == (
        [
            NewMedia("audio", make_wav(1)),
            NewMedia("file", make_pdf(2), None, "march 2026.pdf"),
            "buy milk",
            "[link to today: notes://today]",
        ],
        False,
    )
    text, is_error = await good.call(tools["fail"], {"reason": "no"})
    assert is_error
    assert "fail" in text
    assert (await good.find("mcp__good__add")) is not None
    assert (await good.find("mcp__good__none")) is None
    with pytest.raises(UnknownMcpTool, match="'mcp:good/none'"):
        await good.select("mcp:good/none")


@pytest.mark.parametrize(
    "part",
    [
        {"type": "image", "data": "***", "mimeType": "image/png"},
        {"type": "image", "data": "", "mimeType": "image/png"},
        {"type": "resource", "resource": {"uri": "f:x", "blob": "%%%"}},
    ],
)
async def test_hostile_base64_is_named(bad: McpTools, part: dict[str, Any]) -> None:
    """What is not base64 is no media, and the texts beside it are kept."""
    (text, unusable), is_error = await call(bad, "show", part=part)
    assert (text, is_error) == ("look:", False)
    assert isinstance(unusable, Unusable)


@pytest.mark.parametrize("encoding", ["utf-8", "utf-16", "utf-32"])
async def test_secrets_within_files_and_names_are_redacted(bad: McpTools, encoding: str) -> None:
    """A text file that holds a secret of the worker is stored without it, whatever its encoding is."""
    blob = base64.b64encode(f"the key is {SECRET}".encode(encoding)).decode()
    part = {"type": "resource", "resource": {"uri": f"f:///{SECRET}.txt", "blob": blob, "mimeType": "text/plain"}}
    (_, file), _ = await call(bad, "show", part=part)
    assert isinstance(file, NewMedia)
    assert SECRET not in f"{file.name} {file.data.decode(encoding)}"
    assert file.media_type == "text/plain"


async def test_progress_of_a_call_is_reported(good: McpTools) -> None:
    """With the server's words, or the numbers; and the part that is done."""
    (tool,) = await good.select("mcp:good/count_slowly")
    reports: list[tuple[str, float | None]] = []
    assert await good.call(tool, {}, lambda text, fraction: reports.append((text, fraction))) == ("counted", False)
    assert reports == [("one of them", 0.25), ("2 of 4", 0.5)]


async def test_a_link_in_a_result_can_be_read(good: McpTools) -> None:
    """By a tool that every server with resources has. What is not there is an error."""
    tools = {tool.tool: tool for tool in await good.select("mcp:good/*")}
    text, _ = await good.call(tools["find_notes"], {})
    assert text == "[link to today: notes://today]"
    assert tools["read_resource"].idempotent
    assert await good.call(tools["read_resource"], {"uri": "notes://today"}) == ("buy milk", False)
    with pytest.raises(McpUnavailable):
        await good.call(tools["read_resource"], {"uri": "notes://never"})


@pytest.mark.slow
async def test_a_changed_list_of_tools_is_noticed() -> None:
    """The server's notification makes the worker read the list again: the next preparation and model call see it."""
    tools = McpTools(McpSettings({"good": GOOD}))
    try:
        (grow,) = await tools.select("mcp:good/grow")
        before = await tools.find_version("good")
        assert await tools.find_version("good") == before
        with pytest.raises(UnknownMcpTool):
            await tools.select("mcp:good/added")
        await tools.call(grow, {})
        assert await tools.find_version("good") not in (before, None)
        assert await tools.select("mcp:good/added")
    finally:
        await tools.close()


@pytest.mark.slow
async def test_a_server_that_restarts_with_other_tools_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The worker has no sign of the restart of a server at a URL. While it is down its last list stands."""
    monkeypatch.setattr(mcp_connection, "LIST_LIFE_SECONDS", 0)
    monkeypatch.setattr(tools_module, "LOOK_SECONDS", 60)
    port = find_port()
    with run_http_server(port) as settings:
        tools = McpTools(McpSettings({"good": settings}))
        try:
            (add,) = await tools.select("mcp:good/add")
            before = await tools.find_version("good")
        except BaseException:
            await tools.close()
            raise
    try:
        assert await tools.find_version("good") == before
        assert [tool.spec for tool in await tools.select("mcp:good/add")] == [add.spec]
        with pytest.raises(McpUnavailable):
            await tools.find(add.name)
        with run_http_server(port, "--grown"):
            assert await tools.find_version("good") not in (before, None)
            assert await tools.call(add, {"a": 1, "b": 2}) == ("3", False)
    finally:
        await tools.close()


async def test_a_server_that_is_slow_to_list_its_tools_delays_no_model_call(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is known of it, and of a server that the worker does not have."""
    monkeypatch.setattr(tools_module, "LOOK_SECONDS", 0.1)
    monkeypatch.setattr(transports, "GRACE_SECONDS", 0.2)
    tools = McpTools(McpSettings({"mute": make_bad(tmp_path, "mute")}))
    assert await tools.find_version("mute") is None
    assert await tools.find_version("other") is None
    deployment = Deployment("d", tools)
    assert await deployment.describe_again("d/mute:v-1") == "d/mute:v-1"
    assert await deployment.describe_again("d/mute:v-1/other:v-2") == "d/mute:v-1"
    assert await deployment.describe_again("before") == "d"
    await tools.close()


@pytest.mark.slow
async def test_a_process_has_no_variables_of_the_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    """A server's process gets the variables of its settings, and a few like `PATH`."""
    monkeypatch.setenv("OPENAI_API_KEY", SECRET)
    tools = McpTools(McpSettings({"good": GOOD}))
    try:
        (environment,) = await tools.select("mcp:good/environment")
        text, _ = await tools.call(environment, {})
        assert "PYTHONPATH" in text
        assert SECRET not in text
    finally:
        await tools.close()


@pytest.mark.parametrize(
    ("tool", "problem"),
    [
        ("die", "its process has ended"),
        ("flood", "a message of over"),
        ("chatter", "messages in a second"),
        ("babble", "other lines than JSON-RPC"),
    ],
)
async def test_a_call_that_a_server_breaks_ends_with_its_problem(
    bad: McpTools, tool: str, problem: str, caplog: pytest.LogCaptureFixture
) -> None:
    """The next call has a server again. The log has no traceback."""
    async with asyncio.timeout(PATIENCE_SECONDS):
        with pytest.raises(McpUnavailable, match=f"'bad' cannot be used: .*{problem}"):
            await call(bad, tool)
        assert all(record.exc_info is None for record in caplog.records)
        assert await call(bad, "number", n=1) == ('{"n": 1}', False)


async def call_in_time(tools: McpTools, tool: str, seconds: float) -> tuple[Any, bool]:
    """Call a tool as `run_tool` does: its time begins when the tool has been found."""
    found = await tools.find(f"mcp__bad__{tool}")
    assert found is not None
    async with asyncio.timeout(seconds):
        return await tools.call(found, {"n": 1})


async def test_a_server_that_hangs_in_a_call_is_replaced(
    bad: McpTools, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A call times out, a ping gets no answer: the next call has a new process, and the log says why, once."""
    monkeypatch.setattr(mcp_connection, "PING_SECONDS", 0.2)
    for _ in range(2):
        with pytest.raises(TimeoutError):
            await call_in_time(bad, "hang", 0.2)
        assert await call_in_time(bad, "number", 30) == ('{"n": 1}', False)
    assert len(read_pids(tmp_path)) == 3
    messages = [record.message for record in caplog.records if "unanswered" in record.message]
    assert len(messages) == 2


async def test_a_server_that_answers_pings_and_no_calls_is_replaced(bad: McpTools, tmp_path: Path) -> None:
    """It is replaced after a few calls in a row without an answer."""
    for _ in range(mcp_connection.MAX_UNANSWERED):
        with pytest.raises(TimeoutError):
            await call_in_time(bad, "lose", 0.1)
    assert await call_in_time(bad, "number", 30) == ('{"n": 1}', False)
    assert len(read_pids(tmp_path)) == 2


async def test_a_slow_call_costs_no_server_that_goes_on_answering(good: McpTools) -> None:
    """A call that times out, or whose request is cancelled, leaves the server's process and its state."""
    await good.select("mcp:good/*")
    started = good._servers["good"]._connection
    slow = await good.find("mcp__good__wait")
    add = await good.find("mcp__good__add")
    assert slow is not None
    assert add is not None
    for _ in range(mcp_connection.MAX_UNANSWERED + 1):
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.2):
                await good.call(slow, {})
        assert await good.find("mcp__good__add") is not None
        assert await good.call(add, {"a": 1, "b": 2}) == ("3", False)
    assert good._servers["good"]._connection is started


@pytest.mark.slow
async def test_a_server_at_a_url_that_hangs_is_connected_to_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its session hangs, with each further request of it: the next call begins another one."""
    monkeypatch.setattr(mcp_connection, "PING_SECONDS", 0.2)
    hung: set[str] = set()
    sessions = 0

    async def answer(request: Request) -> Response:
        nonlocal sessions
        if request.method != "POST":
            return Response(status_code=405)
        message = await request.json()
        session = request.headers.get("mcp-session-id", "")
        if session in hung or message.get("params", {}).get("name") == "hang":
            hung.add(session)
            await released.wait()
        if "id" not in message:
            return Response(status_code=202)
        headers: dict[str, str] = {}
        result: dict[str, Any] = {}
        match message["method"]:
            case "initialize":
                sessions += 1
                headers = {"mcp-session-id": f"s-{sessions}"}
                result = {
                    "protocolVersion": "2025-06-18",
                    "capabilities": {"tools": {}},
                    "serverInfo": {"name": "bad", "version": "1"},
                }
            case "tools/list":
                result = {"tools": [{"name": name, "inputSchema": {"type": "object"}} for name in ("hang", "number")]}
            case "tools/call":
                result = {"content": [{"type": "text", "text": session}]}
        return JSONResponse({"jsonrpc": "2.0", "id": message["id"], "result": result}, headers=headers)

    released = asyncio.Event()
    app = FastAPI(routes=[Route("/mcp", answer, methods=["POST", "GET", "DELETE"])])
    async with serve(app) as address:
        tools = McpTools(McpSettings({"bad": HttpSettings(url=f"http://{address}/mcp")}))
        try:
            assert await call_in_time(tools, "number", 30) == ("s-1", False)
            with pytest.raises(TimeoutError):
                await call_in_time(tools, "hang", 0.2)
            assert await call_in_time(tools, "number", 30) == ("s-2", False)
        finally:
            await tools.close()
            released.set()


async def test_a_call_that_is_cancelled_leaves_the_server_to_others(bad: McpTools) -> None:
    """A server that works on one call at a time is stopped with the worker all the same."""
    (hang,) = await bad.select("mcp:bad/hang")
    task = asyncio.create_task(bad.call(hang, {}))
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_a_secret_in_a_result_is_redacted(bad: McpTools) -> None:
    """The session never has what the file of servers takes from the worker's environment."""
    assert await call(bad, "repeat") == ("[redacted]", False)


async def test_a_tool_with_a_schema_that_cannot_be_used_is_left_out(bad: McpTools) -> None:
    """By name it is refused with the reason. A name that providers refuse gets another one."""
    tools = {tool.tool: tool.name for tool in await bad.select("mcp:bad/*")}
    assert "costly" not in tools
    assert tools["a name with spaces"].startswith("mcp__bad__a-name-with-spaces-")
    with pytest.raises(UnknownMcpTool, match=r"'mcp:bad/costly' cannot be used: .*dynamicRef"):
        await bad.select("mcp:bad/costly")


@pytest.mark.parametrize("status", [301, 307, 308])
async def test_a_redirect_takes_the_headers_to_no_other_host(status: int) -> None:
    """A server that sends the worker on to another address, within its network for instance, gets an error."""
    reached: list[bytes] = []

    async def record(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        reached.append(await reader.read(65536))
        writer.close()

    async def redirect(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        head = f"HTTP/1.1 {status} Moved\r\nlocation: http://127.0.0.1:{inner_port}/\r\ncontent-length: 0\r\n\r\n"
        writer.write(head.encode())
        await writer.drain()
        writer.close()

    inner = await asyncio.start_server(record, "127.0.0.1", 0)
    inner_port = inner.sockets[0].getsockname()[1]
    outer = await asyncio.start_server(redirect, "127.0.0.1", 0)
    url = f"http://127.0.0.1:{outer.sockets[0].getsockname()[1]}/mcp"
    tools = McpTools(McpSettings({"moved": HttpSettings(url=url, headers={"Authorization": f"Bearer {SECRET}"})}))
    try:
        with pytest.raises(McpUnavailable):
            await tools.select("mcp:moved/*")
        assert not reached
    finally:
        await tools.close()
        outer.close()
        inner.close()


@pytest.mark.parametrize(
    ("settings", "problem"),
    [
        (ProcessSettings(command="/no/such/program"), "FileNotFoundError"),
        (ProcessSettings(command=sys.executable, args=("-c", "raise SystemExit('no key')")), "has ended: no key"),
        (HttpSettings(url="http://127.0.0.1:9/mcp"), "ConnectError|Connection closed"),
    ],
)
async def test_a_server_that_cannot_be_reached_is_named(settings: ServerSettings, problem: str) -> None:
    tools = McpTools(McpSettings({"gone": settings}))
    async with asyncio.timeout(PATIENCE_SECONDS):
        with pytest.raises(McpUnavailable, match=rf"the MCP server 'gone' cannot be used: .*({problem})"):
            await tools.select("mcp:gone/*")
        await tools.close()


async def test_a_server_that_never_answers_is_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A call of a server that never answers fails; its process ends although it ignores the end of its input."""
    monkeypatch.setattr(mcp_connection, "CONNECT_SECONDS", 0.5)
    monkeypatch.setattr(transports, "GRACE_SECONDS", 0.2)
    tools = McpTools(McpSettings({"mute": make_bad(tmp_path, "mute")}))
    with pytest.raises(McpUnavailable, match="has not answered within"):
        await tools.select("mcp:mute/*")
    await tools.close()
    assert not [pid for pid in read_pids(tmp_path) if is_running(pid)]


async def test_a_stubborn_process_is_killed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A server process that ignores the end of its input and SIGTERM gets SIGKILL."""
    monkeypatch.setattr(transports, "GRACE_SECONDS", 0.2)
    tools = McpTools(McpSettings({"bad": make_bad(tmp_path, "stubborn")}))
    assert not (await call(tools, "number", n=1))[1]
    await tools.close()
    assert not [pid for pid in read_pids(tmp_path) if is_running(pid)]


def test_a_tool_that_needs_what_clew_lacks_is_not_offered() -> None:
    """A tool that runs as a task only. One that may is called as usual."""
    listed = [
        {"name": name, "inputSchema": {"type": "object"}, "execution": {"taskSupport": support}}
        for name, support in (("a", "required"), ("b", "optional"), ("c", "forbidden"))
    ]
    catalog = make_catalog("s", listed, 5)
    assert list(catalog.tools) == ["b", "c"]
    assert "task" in catalog.problems["a"]


def test_hints_decide_whether_a_call_may_be_repeated() -> None:
    listed = {"name": "a", "inputSchema": {"type": "object"}}
    assert not McpTool("s", listed, 5).idempotent
    assert McpTool("s", listed | {"annotations": {"idempotentHint": True}}, 5).idempotent
    assert McpTool("s", listed | {"annotations": {"readOnlyHint": True}}, 5).idempotent
