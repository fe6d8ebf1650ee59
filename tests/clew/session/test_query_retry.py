"""Queries that the server refuses for now are repeated soon."""

from __future__ import annotations

import asyncio
import uuid
from datetime import timedelta
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
from tests.support.waiting import wait_until

TIMED_OUT = (RPCStatusCode.CANCELLED, RPCStatusCode.DEADLINE_EXCEEDED)
"""How the end of `rpc_timeout` is reported: by the SDK, and by the server where that is quicker."""


class Recorder(Interceptor):
    """An interceptor that records a client's queries, as tracing does."""

    def __init__(self) -> None:
        self.seen: list[str] = []

    def intercept_client(self, next: OutboundInterceptor) -> OutboundInterceptor:  # noqa: A002 - the SDK's name
        seen = self.seen

        class Outbound(OutboundInterceptor):
            async def query_workflow(self, input: QueryWorkflowInput) -> Any:  # noqa: A002 - the SDK's name
                seen.append(input.query)
                return await super().query_workflow(input)

        return Outbound(next)


def refuse_queries(client: Client, monkeypatch: pytest.MonkeyPatch, status: RPCStatusCode, times: int) -> list[bool]:
    """Have the server refuse the next `times` queries. Returns the `retry` flag of each query, as it arrives."""
    retries: list[bool] = []
    service = client.workflow_service
    through = service.query_workflow

    async def query_workflow(request: Any, *, retry: bool = False, **options: Any) -> Any:
        retries.append(retry)
        if len(retries) <= times:
            raise RPCError("not now", status, b"")
        return await through(request, retry=retry, **options)

    monkeypatch.setattr(service, "query_workflow", query_workflow)
    return retries


@pytest.mark.parametrize(
    "status",
    [
        RPCStatusCode.RESOURCE_EXHAUSTED,
        RPCStatusCode.UNAVAILABLE,
        # The connection closed.
        RPCStatusCode.CANCELLED,
    ],
)
async def test_a_query_that_is_refused_for_now_is_asked_again(
    stack: Stack, monkeypatch: pytest.MonkeyPatch, status: RPCStatusCode
) -> None:
    """The client repeats the query itself; the SDK's own retry is off."""
    session = await stack.open()
    retries = refuse_queries(stack.clew.temporal, monkeypatch, status, times=3)
    assert (await session.status()).session_id == session.id
    assert retries == [False] * 4


async def test_nobody_is_asked_for_ever(stack: Stack, monkeypatch: pytest.MonkeyPatch) -> None:
    """The client gives up after its patience, and at once after an error that a retry cannot change."""
    session = await stack.open()
    client = retry_queries_soon(await Client.connect(stack.server.address), patience_seconds=0.5)
    handle = client.get_workflow_handle(session.id)
    retries = refuse_queries(client, monkeypatch, RPCStatusCode.UNAVAILABLE, times=1000)
    with pytest.raises(RPCError, match="not now"):
        await handle.query("status")
    assert 2 <= len(retries) < 10
    retries = refuse_queries(client, monkeypatch, RPCStatusCode.PERMISSION_DENIED, times=1000)
    with pytest.raises(RPCError, match="not now"):
        await handle.query("status")
    assert len(retries) == 1


async def test_a_query_ends_at_its_own_timeout(stack: Stack, monkeypatch: pytest.MonkeyPatch) -> None:
    """The end of `rpc_timeout` may look like a closed connection; such a query is not repeated."""
    client = stack.clew.temporal
    handle = await client.start_workflow("Unserved", id=uuid.uuid4().hex, task_queue="unserved")
    retries = refuse_queries(client, monkeypatch, RPCStatusCode.CANCELLED, times=0)
    with pytest.raises(RPCError) as caught:
        await handle.query("status", rpc_timeout=timedelta(seconds=0.2))
    assert caught.value.status in TIMED_OUT
    assert len(retries) == 1
    await handle.terminate()


async def test_a_pause_may_outlast_the_timeout(stack: Stack, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a busy machine a pause takes longer than it should: the query ends then, as timed out."""
    client = stack.clew.temporal
    handle = await client.start_workflow("Unserved", id=uuid.uuid4().hex, task_queue="unserved")
    retries = refuse_queries(client, monkeypatch, RPCStatusCode.UNAVAILABLE, times=1)
    sleep = asyncio.sleep
    monkeypatch.setattr(asyncio, "sleep", lambda _seconds: sleep(0.3))
    with pytest.raises(RPCError) as caught:
        await handle.query("status", rpc_timeout=timedelta(seconds=0.2))
    assert caught.value.status in TIMED_OUT
    assert len(retries) == 2
    monkeypatch.undo()
    await handle.terminate()


@pytest.mark.parametrize("refused", [True, False])
async def test_a_caller_cancels_its_query(stack: Stack, monkeypatch: pytest.MonkeyPatch, refused: bool) -> None:
    """Cancelling the task ends the query, in flight or between two attempts, and no other follows."""
    client = stack.clew.temporal
    handle = await client.start_workflow("Unserved", id=uuid.uuid4().hex, task_queue="unserved")
    retries = refuse_queries(client, monkeypatch, RPCStatusCode.CANCELLED, times=1000 if refused else 0)
    query = asyncio.create_task(handle.query("status"))
    await wait_until(lambda: len(retries) >= (3 if refused else 1))
    query.cancel()
    with pytest.raises(asyncio.CancelledError):
        await query
    attempts = len(retries)
    await asyncio.wait([query], timeout=0)
    assert len(retries) == attempts
    await handle.terminate()


async def test_refusals_and_rejections_are_the_sdks(stack: Stack) -> None:
    """Refused and rejected queries raise the same errors as with the SDK's own client."""
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
    """A client keeps its interceptors, and the retry is added once only."""
    recorder = Recorder()
    config = stack.clew.temporal.config()
    config["interceptors"] = [recorder]
    clew = Clew(Client(**config))
    assert retry_queries_soon(clew.temporal) is clew.temporal
    session = await stack.open()
    again = await clew.open(session.id)
    await asyncio.gather(*(again.status() for _ in range(10)))
    assert recorder.seen.count("status") >= 10
