"""Calls of models and tools on a worker's activities, without a server."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import timedelta
from typing import Any
from unittest.mock import AsyncMock, MagicMock

import httpx
from temporalio.client import Client, Interceptor, OutboundInterceptor, QueryWorkflowInput, WorkflowQueryFailedError
from temporalio.contrib.pydantic import pydantic_data_converter
from temporalio.service import RPCError, RPCStatusCode
from temporalio.testing import ActivityEnvironment

from clew import Tool, tool
from clew.contract import ContextQuery
from clew_activities.archive import Archive, Store
from clew_activities.archive.blob_store import Blobs
from clew_activities.archive.thread_source import Threads
from clew_activities.model.call_model import ModelActivities
from clew_activities.model.load_media import MediaLoader
from clew_activities.providers import Providers
from clew_activities.tools.mcp.mcp_tools import McpTools
from clew_activities.tools.registry import Deployment
from clew_activities.tools.run_tool import ToolActivities
from clew_activities.tools.stored_results import Results
from clew_workflows.contract.content import Content
from clew_workflows.contract.hooks import HookPoint
from clew_workflows.protocol import Prepare, RunTool, ToolAnswered
from clew_workflows.session import views
from clew_workflows.thread.context.contexts import take_page
from tests.support.session_harness import SessionHarness
from tests.support.waiting import PATIENCE_SECONDS

Answer = dict[str, Any] | Exception


def make_refusal(message: str) -> WorkflowQueryFailedError:
    return WorkflowQueryFailedError(message)


def make_rpc_error(status: RPCStatusCode) -> RPCError:
    return RPCError("not now", status, b"")


class Queried(Interceptor):
    """A client's way to the server, where sessions answer queries from a list, then from their thread."""

    def __init__(self, session: SessionHarness, *first: Answer) -> None:
        self.session = session
        self.first = list(first)
        self.queries: list[QueryWorkflowInput] = []
        self.on_query: Callable[[], None] = lambda: None

    def intercept_client(self, next: OutboundInterceptor) -> OutboundInterceptor:  # noqa: A002 - the SDK's name
        interceptor = self

        class Outbound(OutboundInterceptor):
            async def query_workflow(self, input: QueryWorkflowInput) -> Any:  # noqa: A002 - the SDK's name
                return interceptor.answer(input)

        return Outbound(next)

    def answer(self, query_input: QueryWorkflowInput) -> Any:
        if query_input.query == "followed":
            return {"queries": 0}
        self.queries.append(query_input)
        self.on_query()
        if self.first:
            answer = self.first.pop(0)
            if isinstance(answer, Exception):
                raise answer
            return answer
        query = ContextQuery.model_validate(query_input.args[0])
        projection = views.build_projection(self.session.state, self.session.thread, query)
        return take_page(projection, query.page)


def make_activities(
    providers: Providers,
    http: httpx.AsyncClient,
    digest: str = "d-1",
    hooks: tuple[HookPoint, ...] = (),
    blobs: Blobs | None = None,
) -> ModelActivities:
    media = MediaLoader(blobs or Blobs(Archive(Store.from_url("memory://"), "default")))
    return ModelActivities(providers, http, Deployment(digest, McpTools()), hooks, media=media, blobs=blobs)


async def make_environment(queried: Queried, attempt: int = 1, beats: Sequence[Any] = ()) -> ActivityEnvironment:
    """Make the environment of an attempt. `beats`: the details of the last heartbeat of the one before."""
    client = await Client.connect(
        "127.0.0.1:1", lazy=True, interceptors=[queried], data_converter=pydantic_data_converter
    )
    made = ActivityEnvironment(client)
    # The SDK's own times are a second, which a busy machine may take. A call ends itself before the second of them.
    time = timedelta(seconds=PATIENCE_SECONDS)
    made.info = replace(
        made.info,
        workflow_id="s-1",
        workflow_run_id="run-of-s-1",
        attempt=attempt,
        heartbeat_details=beats,
        start_to_close_timeout=time,
        schedule_to_close_timeout=time,
    )
    return made


def open_session(content: Content = "hello", **config: Any) -> SessionHarness:
    """A session that waits for its model."""
    settings: dict[str, Any] = {"model": "scripted:m"} | config
    session = SessionHarness(**settings)
    session.ask(content)
    if isinstance(session.session.effect, Prepare):  # the first message with media
        session.answer_preparation()
    return session


KIB64 = 65_536


def make_call(name: str, arguments: dict[str, Any] | None = None, limit: int = KIB64, **fields: Any) -> RunTool:
    return RunTool(
        encoding="heuristic",
        request_id="request-1",
        run_id="run-1",
        call_id="call-1",
        tool_call_id="tool00001",
        name=name,
        arguments=arguments or {},
        max_result_bytes=limit,
        **fields,
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
        # The time between two heartbeats is half of it.
        beats = timedelta(seconds=0.4)
        self.environment.info = replace(info, workflow_id="session-1", attempt=attempt, heartbeat_timeout=beats)
        self.heartbeats: list[dict[str, str]] = []
        self.environment.on_heartbeat = self.heartbeats.append
        archive = Archive(Store.from_url("memory://"), "default")
        self.blobs = Blobs(archive)
        results = Results(archive, Threads(archive))
        settings = {"blobs": self.blobs, **settings}
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
