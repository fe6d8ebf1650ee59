"""Model calls without a server: a session whose thread answers the activity's queries."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import httpx
from temporalio.client import Client, Interceptor, OutboundInterceptor, QueryWorkflowInput, WorkflowQueryFailedError
from temporalio.contrib.pydantic import pydantic_data_converter
from temporalio.service import RPCError, RPCStatusCode
from temporalio.testing import ActivityEnvironment

from clew.contract import ContextQuery
from clew_activities.model.call_model import ModelActivities
from clew_activities.providers import Providers
from clew_activities.tools.mcp.tools import McpTools
from clew_activities.tools.registry import Deployment
from clew_workflows.contract.hooks import HookPoint
from clew_workflows.session import views
from clew_workflows.thread.context.contexts import take_page
from tests.support.session_harness import SessionHarness

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
    providers: Providers, http: httpx.AsyncClient, digest: str = "d-1", hooks: tuple[HookPoint, ...] = ()
) -> ModelActivities:
    return ModelActivities(providers, http, Deployment(digest, McpTools()), hooks)


async def make_environment(queried: Queried, attempt: int = 1) -> ActivityEnvironment:
    client = await Client.connect(
        "127.0.0.1:1", lazy=True, interceptors=[queried], data_converter=pydantic_data_converter
    )
    made = ActivityEnvironment(client)
    made.info = replace(made.info, workflow_id="s-1", workflow_run_id="run-of-s-1", attempt=attempt)
    return made


def open_session(content: str = "hello", **config: Any) -> SessionHarness:
    """A session that waits for its model."""
    settings: dict[str, Any] = {"model": "scripted:m"} | config
    session = SessionHarness(**settings)
    session.ask(content)
    return session
