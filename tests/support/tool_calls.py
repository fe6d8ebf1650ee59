"""Calls of tools on a worker's activities, without a server."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any
from unittest.mock import AsyncMock, MagicMock

from temporalio.client import Client
from temporalio.testing import ActivityEnvironment

from clew import Tool, tool
from clew_activities.archive import Archive, Store
from clew_activities.archive.thread_source import Threads
from clew_activities.tools.run_tool import ToolActivities
from clew_activities.tools.stored_results import Results
from clew_workflows.protocol import RunTool, ToolAnswered

KIB64 = 65_536


def make_call(name: str, arguments: dict[str, Any] | None = None, limit: int = KIB64) -> RunTool:
    return RunTool(
        encoding="heuristic",
        request_id="request-1",
        run_id="run-1",
        call_id="call-1",
        tool_call_id="tool00001",
        name=name,
        arguments=arguments or {},
        max_result_bytes=limit,
    )


class Worker:
    """A worker with some tools, and one attempt of a call on it."""

    def __init__(self, *tools: Tool[..., Any], attempt: int = 1, **settings: Any) -> None:
        # The session's handle, to which the activity sends signals.
        self.session = AsyncMock()
        client = MagicMock(spec=Client)
        client.get_workflow_handle.return_value = self.session
        self.environment = ActivityEnvironment(client=client)
        info = self.environment.info
        self.environment.info = replace(info, workflow_id="session-1", attempt=attempt)
        self.heartbeats: list[dict[str, str]] = []
        self.environment.on_heartbeat = self.heartbeats.append
        archive = Archive(Store.from_url("memory://"), "default")
        results = Results(archive, Threads(archive))
        self._activities = ToolActivities({tool.name: tool for tool in tools}, results, **settings)

    async def run(self, command: RunTool) -> ToolAnswered:
        return await self.environment.run(self._activities.run_tool, command)


async def run_function(
    function: Callable[..., Any], limit: int = KIB64, attempt: int = 1, **arguments: Any
) -> ToolAnswered:
    """Run a call, and return the text for the model."""
    made = function if isinstance(function, Tool) else tool(name="it")(function)
    return await Worker(made, attempt=attempt).run(make_call(made.name, arguments, limit))


async def run_returning(value: Any, limit: int = KIB64) -> ToolAnswered:
    """Run a tool that returns a value, and return the text for the model."""

    def it() -> Any:
        return value

    return await run_function(it, limit)


class Unspeakable(Exception):
    """An error without a text."""

    def __str__(self) -> str:
        raise ValueError("not even that")
