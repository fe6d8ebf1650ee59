"""A worker in this process that can die: what runs on it then is never reported, as after SIGKILL."""

from __future__ import annotations

import asyncio
import atexit
import threading
import time
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import AsyncExitStack, suppress
from dataclasses import replace
from datetime import timedelta
from typing import Any, TypeVar

from google.protobuf.duration_pb2 import Duration
from google.protobuf.field_mask_pb2 import FieldMask
from temporalio import activity
from temporalio.api.activity.v1 import ActivityOptions
from temporalio.api.enums.v1 import PendingActivityState
from temporalio.api.workflowservice.v1 import UpdateActivityExecutionOptionsRequest
from temporalio.client import Client, OutboundInterceptor, StartWorkflowUpdateInput, WorkflowUpdateHandle
from temporalio.client import Interceptor as ClientInterceptor
from temporalio.common import RetryPolicy
from temporalio.service import RPCError, RPCStatusCode
from temporalio.worker import (
    ActivityInboundInterceptor,
    ExecuteActivityInput,
    Interceptor,
    StartActivityInput,
    WorkflowInboundInterceptor,
    WorkflowInterceptorClassInput,
    WorkflowOutboundInterceptor,
)
from temporalio.workflow import ActivityHandle

from clew.local import TemporalServer, temporal_server
from clew.testing.scripts import Stuck
from clew_activities.worker import SessionWorker
from clew_workflows.host.execution import HEARTBEAT_TIMEOUT
from clew_workflows.temporal_faults.cancelled_calls import wait_at_most
from clew_workflows.temporal_faults.refused_updates import has_outcome

# An event loop in a thread of its own, with a Temporal server that all stacks of the process share.
#
# The stacks live on this loop, so that they run whatever the loop of a test does, and outlive it.


T = TypeVar("T")

START_SECONDS = 60.0
BACKGROUND_STOP_SECONDS = 10.0
CANCEL_SECONDS = 1.0
DYNAMIC_CONFIG = {"frontend.WorkflowTimeSkippingEnabled": True, "history.timerProcessorMaxTimeShift": "10ms"}
"""The settings of the server: it can skip time, and its timers fire 10 ms late at most, not a second."""


class Background:
    """The loop, its thread and the server. Other threads call its methods."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="clew-testing", daemon=True)
        self._thread.start()
        self._open = AsyncExitStack()
        self._server: TemporalServer | None = None
        self._starting = asyncio.Lock()
        atexit.register(self._stop)

    async def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine on the loop, for a caller on another loop."""
        return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(work, self._loop))

    def run_blocking(self, work: Coroutine[Any, Any, T], timeout_seconds: float = START_SECONDS) -> T:
        """Run a coroutine on the loop, and block this thread until it returns."""
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(timeout_seconds)

    async def start_server(self) -> TemporalServer:
        """Start the server, once. To be awaited on this loop."""
        async with self._starting:
            if self._server is None:
                self._server = await self._open.enter_async_context(
                    temporal_server(ui=False, dynamic_config=DYNAMIC_CONFIG)
                )
        return self._server

    async def _end(self) -> None:
        """Cancel what still runs, such as workers that wait for polls, and stop the server."""
        tasks = asyncio.all_tasks() - {asyncio.current_task()}
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks, timeout=CANCEL_SECONDS)
        await self._open.aclose()

    def _stop(self) -> None:
        self.run_blocking(self._end(), BACKGROUND_STOP_SECONDS)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(BACKGROUND_STOP_SECONDS)
        self._loop.close()


_lock = threading.Lock()
_backgrounds: list[Background] = []


def get_background() -> Background:
    """Get the background of this process; the first call starts it."""
    with _lock:
        if not _backgrounds:
            _backgrounds.append(Background())
        return _backgrounds[0]


# Waits with an end: a test that waits in vain for an answer fails, and says what the session waits for.


class BoundedWaits(ClientInterceptor):
    """Bounds the waits of a client for the answers of updates.

    A session answers `running` after a minute, and the client asks again: all of that is one wait.
    """

    def __init__(self, seconds: float, describe: Callable[[str], Awaitable[str]]) -> None:
        self._seconds = seconds
        self._describe = describe
        self._began: dict[str, float] = {}

    def intercept_client(self, next: OutboundInterceptor) -> OutboundInterceptor:  # noqa: A002 - the SDK's
        """Bound the waits of a client."""
        return _Outbound(next, self)

    async def wait(self, update: _Update) -> Any:
        """Wait for the answer of an update.

        Raises:
            Stuck: It did not come in time.
        """
        session_id = update.workflow_id
        began = self._began.setdefault(session_id, time.monotonic())
        try:
            answer = await wait_at_most(max(began + self._seconds - time.monotonic(), 0.01), update.fetch())
        except TimeoutError:
            del self._began[session_id]
            described = await self._describe(session_id)
            raise Stuck(f"session {session_id!r} has not answered within {self._seconds:g} s; {described}") from None
        except BaseException:
            self._began.pop(session_id, None)
            raise
        if not (isinstance(answer, dict) and answer.get("status") == "running"):
            self._began.pop(session_id, None)
        return answer


class _Outbound(OutboundInterceptor):
    def __init__(self, inner: OutboundInterceptor, waits: BoundedWaits) -> None:
        super().__init__(inner)
        self._waits = waits

    async def start_workflow_update(self, input: StartWorkflowUpdateInput) -> WorkflowUpdateHandle[Any]:  # noqa: A002 - the SDK's
        """Send an update."""
        return _Update(await super().start_workflow_update(input), self._waits)


class _Update(WorkflowUpdateHandle[Any]):
    def __init__(self, update: WorkflowUpdateHandle[Any], waits: BoundedWaits) -> None:
        self.__dict__ = update.__dict__
        self._waits = waits

    async def fetch(self) -> Any:
        """Wait for the answer without a bound."""
        return await super().result()

    async def result(self, **options: Any) -> Any:
        """Wait for the answer."""
        return await super().result(**options) if has_outcome(self) else await self._waits.wait(self)


FIRST_RETRY = timedelta(milliseconds=10)
"""Time before an activity's first retry, instead of a second."""
LAST_RETRY = timedelta(milliseconds=200)
"""Longest time before a retry. Each is twice as long as the one before."""
OVERDUE = timedelta(milliseconds=400)
"""Heartbeat timeout of an activity whose worker is dead, until its next attempt begins."""
POLL_SECONDS = 0.02
"""Seconds between two looks at such an activity."""
STOP_SECONDS = 3.0
"""Seconds that a worker has to stop."""
LEAVE_SECONDS = 2.0
"""Seconds that the calls of a dead worker have to end. Threads of sync tools may run on."""


class MortalWorker:
    """A worker that polls from `start` until `stop` or `kill`. Not to be started again."""

    def __init__(self, client: Client, make_worker: Callable[[Client], SessionWorker]) -> None:
        self._client = client
        self._calls = _Calls()
        config = client.config()
        config["interceptors"] = [*config["interceptors"], _Interceptor(client, self._calls)]
        self._worker = make_worker(Client(**config))

    async def start(self) -> None:
        """Start to poll."""
        await self._worker.__aenter__()

    async def stop(self) -> None:
        """Stop polling and cancel what runs; its retries wait for another worker.

        The SDK waits for the answers of polls that the server may hold for a minute. After `STOP_SECONDS` it goes on
        in the background, and reports nothing of what such a poll still brings.
        """
        self._stopping = asyncio.ensure_future(self._worker.__aexit__(None, None, None))
        await asyncio.wait({self._stopping}, timeout=STOP_SECONDS)
        if self._stopping.done():
            await self._stopping
        self._calls.killed.set()

    async def kill(self) -> None:
        """Stop without reporting what runs, and let the server notice it.

        The server notices a lost worker by its missing heartbeats, after 8 seconds. Here they are overdue at once.
        """
        self._calls.killed.set()
        await self.stop()
        await asyncio.gather(*map(self._await_timeout, self._calls.lost))

    async def _await_timeout(self, lost: activity.Info) -> None:
        """Let an activity's heartbeats be overdue, and return when the server has noticed."""
        try:
            await _set_heartbeat_timeout(self._client, lost, OVERDUE)
            while await self._still_runs(lost):  # noqa: ASYNC110 - the server sends no event
                await asyncio.sleep(POLL_SECONDS)
        except RPCError as error:
            # The activity or its workflow has ended.
            if error.status not in (RPCStatusCode.NOT_FOUND, RPCStatusCode.FAILED_PRECONDITION):
                raise

    async def _still_runs(self, lost: activity.Info) -> bool:
        handle = self._client.get_workflow_handle(lost.workflow_id or "", run_id=lost.workflow_run_id)
        pending = (await handle.describe()).raw_description.pending_activities
        return any(
            other.activity_id == lost.activity_id
            and other.attempt == lost.attempt
            and other.state == PendingActivityState.PENDING_ACTIVITY_STATE_STARTED
            for other in pending
        )


async def _set_heartbeat_timeout(client: Client, info: activity.Info, value: timedelta) -> None:
    """Change the heartbeat timeout of an activity that runs, also for its next attempts."""
    duration = Duration()
    duration.FromTimedelta(value)
    await client.workflow_service.update_activity_execution_options(
        UpdateActivityExecutionOptionsRequest(
            namespace=client.namespace,
            workflow_id=info.workflow_id or "",
            run_id=info.workflow_run_id or "",
            activity_id=info.activity_id,
            identity=client.identity,
            activity_options=ActivityOptions(heartbeat_timeout=duration),
            update_mask=FieldMask(paths=["heartbeat_timeout"]),
        )
    )


class _Calls:
    """The activities of a worker, and whether it is dead.

    Attributes:
        killed: Set when the worker dies.
        lost: The activities that ran then.
    """

    def __init__(self) -> None:
        self.killed = asyncio.Event()
        self.lost: list[activity.Info] = []


class _Interceptor(ClientInterceptor, Interceptor):
    """Watches activities, and shortens the time between their attempts.

    A client passes an interceptor that is both kinds to its workers.
    """

    def __init__(self, client: Client, calls: _Calls) -> None:
        self._client = client
        self._calls = calls

    def intercept_activity(self, next: ActivityInboundInterceptor) -> ActivityInboundInterceptor:  # noqa: A002 - the SDK's
        return _WatchedActivity(next, self._client, self._calls)

    def workflow_interceptor_class(self, input: WorkflowInterceptorClassInput) -> type[WorkflowInboundInterceptor]:  # noqa: A002, ARG002 - the SDK's
        return _Workflow


class _WatchedActivity(ActivityInboundInterceptor):
    def __init__(self, inner: ActivityInboundInterceptor, client: Client, calls: _Calls) -> None:
        super().__init__(inner)
        self._client = client
        self._calls = calls

    async def execute_activity(self, input: ExecuteActivityInput) -> Any:  # noqa: A002 - the SDK's
        """Run an activity; if the worker dies meanwhile, report no result."""
        # The attempt before may have been lost, and its heartbeats overdue.
        if activity.info().attempt > 1:
            await _set_heartbeat_timeout(self._client, activity.info(), HEARTBEAT_TIMEOUT)
        call = asyncio.ensure_future(self.next.execute_activity(input))
        if await self._await_end(call):
            return await call
        self._calls.lost.append(activity.info())
        # The worker reports nothing of such an activity.
        return activity.raise_complete_async()

    async def _await_end(self, call: asyncio.Future[Any]) -> bool:
        """Wait until the call ends or the worker dies, and return whether the call ended first; cancel it if not."""
        death = asyncio.ensure_future(self._calls.killed.wait())
        try:
            await asyncio.wait({call, death}, return_when=asyncio.FIRST_COMPLETED)
        except asyncio.CancelledError:
            # The call decides what follows: it may return a result although it was cancelled.
            call.cancel()
        finally:
            death.cancel()
        if self._calls.killed.is_set():
            call.cancel()
            with suppress(asyncio.CancelledError):
                await asyncio.wait({call}, timeout=LEAVE_SECONDS)
            if call.done() and not call.cancelled():
                call.exception()  # asyncio logs an exception that is not read
        return not self._calls.killed.is_set()


class _Workflow(WorkflowInboundInterceptor):
    def init(self, outbound: WorkflowOutboundInterceptor) -> None:
        super().init(_ShortRetries(outbound))


class _ShortRetries(WorkflowOutboundInterceptor):
    """Starts activities with a short time between their attempts. Replays do not depend on it."""

    def start_activity(self, input: StartActivityInput) -> ActivityHandle[Any]:  # noqa: A002 - the SDK's
        """Start an activity."""
        policy = input.retry_policy or RetryPolicy()
        input.retry_policy = replace(
            policy, initial_interval=min(policy.initial_interval, FIRST_RETRY), maximum_interval=LAST_RETRY
        )
        return super().start_activity(input)
