"""The processes of MCP servers, on the worker's event loop and on asyncio's."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Coroutine
from typing import Any

import anyio
import pytest
from mcp.shared.message import SessionMessage
from mcp_types import JSONRPCNotification

from clew_activities.tools.mcp.mcp_settings import ProcessSettings
from clew_activities.tools.mcp.transports import ServerProcess, run_server_process
from clew_activities.worker.process import WorkerLoop
from tests.support.waiting import PATIENCE_SECONDS

Run = Callable[[Coroutine[Any, Any, None]], None]
MESSAGE = SessionMessage(
    JSONRPCNotification(jsonrpc="2.0", method="notifications/any", params={"text": "x" * 50_000})
)


@pytest.fixture(params=[asyncio.new_event_loop, WorkerLoop], ids=["asyncio", "worker"])
def run(request: pytest.FixtureRequest) -> Run:
    """Run a coroutine on an event loop."""

    async def run_for_a_minute(coroutine: Coroutine[Any, Any, None]) -> None:
        async with asyncio.timeout(PATIENCE_SECONDS):
            await coroutine

    def run_on_loop(coroutine: Coroutine[Any, Any, None]) -> None:
        with asyncio.Runner(loop_factory=request.param) as runner:
            runner.run(run_for_a_minute(coroutine))

    return run_on_loop


@pytest.mark.parametrize(
    ("code", "problem"),
    [
        ("pass", "its process has ended"),
        ("import os, time; os.close(0); time.sleep(60)", "its process reads no more"),
    ],
    ids=["ended", "reads no more"],
)
def test_what_cannot_be_written_to_a_process_ends_its_connection(run: Run, code: str, problem: str) -> None:
    """The problem is that of the process, whichever is noticed first: an end of reading, or of writing."""

    async def write() -> None:
        async with run_server_process(ProcessSettings(command=sys.executable, args=("-c", code))) as (
            process,
            streams,
        ):
            with anyio.move_on_after(30):
                while not process.ended.is_set():
                    await _send(process, streams[1])
            assert process.problem == problem

    run(write())


async def _send(process: ServerProcess, sent: anyio.abc.ObjectSendStream[SessionMessage]) -> None:
    try:
        await sent.send(MESSAGE)
    except anyio.BrokenResourceError:
        await process.ended.wait()


def test_a_process_can_open_its_standard_streams_by_their_names(run: Run) -> None:
    """As shell scripts do that write to /dev/stderr: they are pipes."""

    async def read_errors() -> None:
        script = "echo noted > /dev/stderr && cat /dev/stdin > /dev/null"
        async with run_server_process(ProcessSettings(command="sh", args=("-ec", script))) as (process, _):
            while not process.describe_errors():
                assert not process.ended.is_set()
                await asyncio.wait([asyncio.ensure_future(process.ended.wait())], timeout=0.05)
            assert process.describe_errors() == "noted"

    run(read_errors())
