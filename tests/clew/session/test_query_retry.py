"""Queries that a server refuses for a moment."""

from __future__ import annotations

import asyncio
import uuid
from typing import Any

import pytest
from temporalio.client import (
    Client,
    Interceptor,
    OutboundInterceptor,
    QueryWorkflowInput,
    WorkflowQueryFailedError,
    WorkflowQueryRejectedError,
)
from temporalio.common import QueryRejectCondition
from temporalio.service import RPCError, RPCStatusCode

from clew import Clew
from clew.session._query_retry import retry_queries_soon
from tests.support.stack import Stack


class Watched(Interceptor):
    """Sees the queries of a client, as tracing does."""

    def __init__(self) -> None:
        self.seen: list[str] = []

    def intercept_client(self, next: OutboundInterceptor) -> OutboundInterceptor:  # noqa: A002 - the SDK's name
        seen = self.seen

        class Outbound(OutboundInterceptor):
            async def query_workflow(self, input: QueryWorkflowInput) -> Any:  # noqa: A002 - the SDK's name
                seen.append(input.query)
                return await super().query_workflow(input)

        return Outbound(next)


def refusing(client: Client, monkeypatch: pytest.MonkeyPatch, status: RPCStatusCode, times: int) -> list[bool]:
    """Have the server refuse the next queries; whether the SDK was to ask again by itself, for each that came."""
    asked: list[bool] = []
    service = client.workflow_service
    through = service.query_workflow

    async def query_workflow(request: Any, *, retry: bool = False, **options: Any) -> Any:
        asked.append(retry)
        if len(asked) <= times:
            raise RPCError("not now", status, b"")
        return await through(request, retry=retry, **options)

    monkeypatch.setattr(service, "query_workflow", query_workflow)
    return asked


@pytest.mark.parametrize("status", [RPCStatusCode.RESOURCE_EXHAUSTED, RPCStatusCode.UNAVAILABLE])
async def test_a_query_that_is_refused_for_now_is_asked_again(
    stack: Stack, monkeypatch: pytest.MonkeyPatch, status: RPCStatusCode
) -> None:
    """By the client itself, which knows how soon that makes sense."""
    session = await stack.open()
    asked = refusing(stack.clew.temporal, monkeypatch, status, times=3)
    assert (await session.status()).session_id == session.id
    assert asked == [False] * 4


async def test_nobody_is_asked_for_ever(stack: Stack, monkeypatch: pytest.MonkeyPatch) -> None:
    """A server that goes on refusing is reported; and at once where another attempt would change nothing."""
    session = await stack.open()
    client = retry_queries_soon(await Client.connect(stack.server.address), patience_seconds=0.05)
    handle = client.get_workflow_handle(session.id)
    asked = refusing(client, monkeypatch, RPCStatusCode.UNAVAILABLE, times=1000)
    with pytest.raises(RPCError, match="not now"):
        await handle.query("status")
    assert 2 <= len(asked) < 10
    asked = refusing(client, monkeypatch, RPCStatusCode.PERMISSION_DENIED, times=1000)
    with pytest.raises(RPCError, match="not now"):
        await handle.query("status")
    assert len(asked) == 1


async def test_refusals_and_rejections_are_the_sdks(stack: Stack) -> None:
    """Whoever asks through a handle of this client gets what every client gives."""
    session = await stack.open()
    handle = stack.clew.temporal.get_workflow_handle(session.id)
    with pytest.raises(WorkflowQueryFailedError, match="invalid_input"):
        await handle.query("transcript", {"limit": "many"})
    await session.close()
    with pytest.raises(WorkflowQueryRejectedError):
        await handle.query("status", reject_condition=QueryRejectCondition.NOT_OPEN)
    assert (await handle.query("status", reject_condition=QueryRejectCondition.NONE))["closed"] is True
    missing = stack.clew.temporal.get_workflow_handle(uuid.uuid4().hex)
    with pytest.raises(RPCError) as caught:
        await missing.query("status")
    assert caught.value.status == RPCStatusCode.NOT_FOUND


async def test_who_traces_queries_sees_them(stack: Stack) -> None:
    """A client's own interceptors stay where they were, and it is not changed a second time."""
    watched = Watched()
    config = stack.clew.temporal.config()
    config["interceptors"] = [watched]
    clew = Clew(Client(**config))
    assert retry_queries_soon(clew.temporal) is clew.temporal
    session = await stack.open()
    again = await clew.open(session.id)
    await asyncio.gather(*(again.status() for _ in range(10)))
    assert watched.seen.count("status") >= 10
