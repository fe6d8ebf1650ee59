"""Queries that the server refuses for now are repeated soon."""

from __future__ import annotations

import asyncio
import time
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
from clew.errors import Starting, WorkerUnavailable
from clew.session import connection
from clew.session.handle import SessionHandle
from clew.session.session_reads import read_status
from clew_workflows.temporal_faults.query_ahead import QUERY_AHEAD
from clew_workflows.temporal_faults.query_buffer import retry_queries_soon
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


def refuse_queries(
    client: Client, monkeypatch: pytest.MonkeyPatch, status: RPCStatusCode, times: int, message: str = "not now"
) -> list[bool]:
    """Have the server refuse the next `times` queries. Returns the `retry` flag of each query, as it arrives."""
    retries: list[bool] = []
    service = client.workflow_service
    through = service.query_workflow

    async def query_workflow(request: Any, *, retry: bool = False, **options: Any) -> Any:
        retries.append(retry)
        if len(retries) <= times:
            raise RPCError(message, status, b"")
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


async def test_a_query_that_a_worker_cannot_answer_yet_is_asked_again(
    stack: Stack, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The worker's history has a task that may be another one's. When patience ends, its caller reads so."""
    session = await stack.open()
    client, refused = stack.clew.temporal, RPCStatusCode.INVALID_ARGUMENT
    retries = refuse_queries(client, monkeypatch, refused, times=3, message=QUERY_AHEAD)
    assert (await session.status()).session_id == session.id
    assert len(retries) == 4
    client = retry_queries_soon(await Client.connect(stack.server.address), busy_seconds=0.1)
    refuse_queries(client, monkeypatch, refused, times=1000, message=QUERY_AHEAD)
    started = time.monotonic()
    with pytest.raises(Starting, match="ask again in a moment"):
        await read_status(SessionHandle(client, session.id, stack.clew.task_queue), seconds=0.5)
    assert time.monotonic() - started < 20


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


@pytest.mark.parametrize(
    ("status", "message"),
    [
        (RPCStatusCode.RESOURCE_EXHAUSTED, "consistent query buffer is full"),
        (RPCStatusCode.INVALID_ARGUMENT, QUERY_AHEAD),
    ],
)
async def test_a_session_that_cannot_answer_yet_is_opened(
    stack: Stack, monkeypatch: pytest.MonkeyPatch, status: RPCStatusCode, message: str
) -> None:
    """The comparison with its configuration is left out."""
    session = await stack.open()
    monkeypatch.setattr(connection, "COMPARISON_SECONDS", 0.2)
    refuse_queries(stack.clew.temporal, monkeypatch, status, times=1000, message=message)
    assert (await stack.clew.open(session.id, model="scripted:other")).id == session.id
    with pytest.raises((Starting, WorkerUnavailable)):
        await read_status(SessionHandle(stack.clew.temporal, session.id, stack.clew.task_queue), seconds=0.2)


@pytest.mark.parametrize(
    ("status", "busy"), [(RPCStatusCode.RESOURCE_EXHAUSTED, True), (RPCStatusCode.UNAVAILABLE, False)]
)
async def test_a_busy_session_is_waited_for_longer_than_a_server(
    stack: Stack, monkeypatch: pytest.MonkeyPatch, status: RPCStatusCode, busy: bool
) -> None:
    """A lost worker's task may block queries for longer than the SDK waits for the server."""
    session = await stack.open()
    client = retry_queries_soon(await Client.connect(stack.server.address), patience_seconds=0.05)
    handle = client.get_workflow_handle(session.id)
    retries = refuse_queries(client, monkeypatch, status, times=5)
    if busy:
        assert (await handle.query("status"))["session_id"] == session.id
        assert len(retries) == 6
    else:
        with pytest.raises(RPCError, match="not now"):
            await handle.query("status")


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
