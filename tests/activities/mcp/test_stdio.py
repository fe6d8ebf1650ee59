"""The processes of MCP servers."""

from __future__ import annotations

import asyncio
import sys

import anyio
from mcp.shared.message import SessionMessage
from mcp_types import JSONRPCNotification

from clew_activities.mcp.stdio import ServerProcess


async def test_a_process_that_has_ended_is_not_one_that_reads_no_more() -> None:
    """Whichever is noticed first: that nothing more comes from it, or that nothing more can be written to it."""
    child = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", "pass"),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    await child.wait()
    process = ServerProcess(child)
    sender, receiver = anyio.create_memory_object_stream[SessionMessage](2)
    async with sender, asyncio.TaskGroup() as tasks:
        tasks.create_task(process.write(receiver))
        while not process.ended.is_set():
            try:
                await sender.send(SessionMessage(JSONRPCNotification(jsonrpc="2.0", method="notifications/any")))
            except anyio.BrokenResourceError:
                await process.ended.wait()
    assert process.problem == "its process has ended"
