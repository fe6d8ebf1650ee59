"""Heartbeats in the background, for every activity.

If heartbeats stop, the server retries the activity on another worker. Their details show clients the activity's
progress, and their answers bring cancellations. Temporal Cloud charges for each heartbeat. So an activity sends one
every 4 seconds, and more where somebody has use of them:

- While a viewer follows the session, what is new is sent at once, at first every 0.2 seconds. Readers of a long reply
  are behind it anyway: it comes more and more rarely, after five seconds every second.
- When the session cancels its calls, the next heartbeats follow at once: the first answer after the server knows of
  it brings the cancellation.

A session in the same process tells both (`LOCAL_RUNS`). Otherwise the activity asks: it describes its workflow, which
costs no heartbeat, and queries whether there are viewers once it has something to show. Viewers that have the live
channel follow by it, and ask for heartbeats only while it is silent.
"""

from __future__ import annotations

import asyncio
import contextvars
import math
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from contextlib import asynccontextmanager, suppress
from datetime import timedelta
from typing import Any

from temporalio import activity
from temporalio.api.common.v1 import WorkflowExecution
from temporalio.api.enums.v1 import PendingActivityState
from temporalio.api.workflowservice.v1 import DescribeWorkflowExecutionRequest
from temporalio.client import WorkflowQueryFailedError
from temporalio.service import RPCError

from clew_workflows.host.local_runs import LOCAL_RUNS, News

REST_SECONDS = 4.0
"""Seconds between two heartbeats of an activity that nobody follows; never more than half the heartbeat timeout."""
SHOWN_SECONDS = 0.2
"""Seconds between two heartbeats that show something new, at first; the worker's throttle, too."""
LONG_SHOWN_SECONDS = 1.0
"""The same of an activity that has shown what is new for five times as long."""
MAX_SHOWN_SECONDS = 2.0
"""Longest time between two of them in a worker with many activities that are followed."""
BEATS_PER_SECOND = 100
"""Most such heartbeats a second of all activities of a process. 500 take about a sixth of a CPU core of the worker,
and the server stores each of them."""
FOLLOWED_SECONDS = 30.0
"""Seconds after a viewer's query in which an activity counts as followed. Viewers repeat it every 20 seconds."""
STOP_SECONDS = (0.04, 0.3, 0.7, 1.5)
"""Seconds after a session in this process has cancelled its calls: the server may know it only after the workflow
task."""
CHECK_SECONDS = 1.2
"""Seconds between two descriptions of a session that another process serves."""
MAX_CHECK_SECONDS = 1.8
"""The same of a worker with many calls of such sessions."""
FIRST_QUESTION_SECONDS = 0.4
"""Seconds after the start of an activity in which it does not ask another process for viewers: they may only just
come."""
ASK_SECONDS = 5
"""Time for an answer of the server or of the session."""


@asynccontextmanager
async def send_heartbeats(
    details: Callable[[], Sequence[Any]] = lambda: (), *, shows: bool = False
) -> AsyncIterator[Callable[[], None]]:
    """Send heartbeats with `details()` while the body runs. The body calls the given function when they may be new.

    The first one follows after 4 seconds, so that the server has no work with an activity that ends soon. A repeated
    attempt sends one before the body starts: until then the server shows that of the attempt before.

    Args:
        details: Makes a heartbeat's details.
        shows: Viewers see the first of the details, and the session waits for the activity's end after a
            cancellation.
    """
    if activity.info().attempt > 1:
        activity.heartbeat(*details())
    beat = _Beat(details, shows=shows)
    try:
        with LOCAL_RUNS.listen(activity.info().workflow_run_id or "", beat.hear):
            beat.begin()
            yield beat.note
    finally:
        beat.end()


def compute_shown_interval(seconds: float, followed: int) -> float:
    """Compute the time until an activity may show more. It has for these seconds; `followed` are followed."""
    own = min(max(SHOWN_SECONDS, seconds / 5), LONG_SHOWN_SECONDS)
    return max(own, min(followed / BEATS_PER_SECOND, MAX_SHOWN_SECONDS))


def compute_check_interval(asking: int) -> float:
    """Compute the time between two descriptions of a session, when so many activities describe theirs."""
    return min(max(CHECK_SECONDS, asking / BEATS_PER_SECOND), MAX_CHECK_SECONDS)


def compute_rest_interval(timeout: timedelta | None) -> float:
    """Compute the time between two heartbeats that nobody waits for."""
    return min(REST_SECONDS, timeout.total_seconds() / 2) if timeout else REST_SECONDS


_followed: set[_Beat] = set()
_asking: set[_Beat] = set()


class _Beat:
    """The heartbeats of one activity: timers, as most activities end before one is due. A task would run twice."""

    def __init__(self, details: Callable[[], Sequence[Any]], *, shows: bool) -> None:
        self._info = activity.info()
        self._run_id = self._info.workflow_run_id or ""
        self._details, self._shows = details, shows
        self._loop, self._context = asyncio.get_running_loop(), contextvars.copy_context()
        self._rest = compute_rest_interval(self._info.heartbeat_timeout)
        self._begun_at = self._sent_at = self._checked_at = self._loop.time()
        self._followed_until = -math.inf
        self._shown: Sequence[Any] | None = None
        self._is_noted = False
        self._shown_from = math.inf
        # Of a session in another process: when viewers are asked for next, and the number of their queries.
        self._ask_at = self._begun_at + FIRST_QUESTION_SECONDS
        self._ask_pause = self._rest
        self._follows = 0
        self._timer: asyncio.TimerHandle | None = None
        self._stops: list[asyncio.TimerHandle] = []
        self._tasks: set[asyncio.Task[None]] = set()
        self._has_ended = False

    @property
    def is_followed(self) -> bool:
        """Whether viewers read the details."""
        return self._shows and self._loop.time() < self._followed_until

    def begin(self) -> None:
        """Begin to send."""
        if LOCAL_RUNS.count_follows(self._run_id):
            self._follow()
        self._schedule()

    def end(self) -> None:
        """Send no more heartbeats."""
        self._has_ended = True
        _followed.discard(self)
        _asking.discard(self)
        for timer in filter(None, (self._timer, *self._stops)):
            timer.cancel()
        for task in self._tasks:
            task.cancel()

    def note(self) -> None:
        """Note that the details may show something new."""
        self._is_noted = True

    def hear(self, news: News) -> None:
        """Take news of the session, in any thread."""
        # The loop may be closed while a worker stops.
        with suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self._take, news, context=self._context)

    def _take(self, news: News) -> None:
        if self._has_ended:
            return
        now = self._loop.time()
        match news:
            case "followed":
                self._follow()
                self._tick()
            case "stopping":
                self._stops += [
                    self._loop.call_at(now + seconds, self._send, context=self._context) for seconds in STOP_SECONDS
                ]
            case "left":
                # From now on it asks.
                self._checked_at = now
                self._schedule()

    def _follow(self) -> None:
        self._followed_until = self._loop.time() + FOLLOWED_SECONDS
        _followed.add(self)

    def _schedule(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        now = self._loop.time()
        due = self._sent_at + self._rest
        if self.is_followed:
            due = min(due, now + self._shown_interval)
        if self._asks:
            _asking.add(self)
            checked, looked = compute_check_interval(len(_asking)), compute_shown_interval(0, len(_asking))
            due = min(due, self._checked_at + checked, max(self._ask_at, now + looked))
        else:
            _asking.discard(self)
        self._timer = self._loop.call_at(max(due, now), self._tick, context=self._context)

    @property
    def _shown_interval(self) -> float:
        return compute_shown_interval(self._loop.time() - self._shown_from, len(_followed))

    @property
    def _has_news(self) -> bool:
        """Whether the details show something new."""
        return self._is_noted and self._details()[:1] != self._shown

    @property
    def _asks(self) -> bool:
        """Whether another process serves the session, and matters to its viewers or its cancellations."""
        return self._shows and not LOCAL_RUNS.is_served(self._run_id)

    def _tick(self) -> None:
        now = self._loop.time()
        if not self.is_followed:
            _followed.discard(self)
        if self._asks:
            self._ask(now)
        if now - self._sent_at >= self._rest - 0.001:
            self._send()
        elif self.is_followed and now - self._sent_at >= self._shown_interval - 0.001 and self._has_news:
            self._shown_from = min(self._shown_from, now)
            self._send()
        self._schedule()

    def _send(self) -> None:
        if self._has_ended:
            return
        self._sent_at = self._loop.time()
        details = self._details()
        self._is_noted, self._shown = False, details[:1]
        activity.heartbeat(*details)

    def _ask(self, now: float) -> None:
        """Ask the server and the session what a session in this process would tell."""
        if now - self._checked_at >= compute_check_interval(len(_asking)) - 0.001:
            self._checked_at = now
            self._start(self._check())
        if now >= self._ask_at and not self.is_followed and self._has_news:
            # Each question costs as much as a heartbeat: of a long call they become rare.
            self._ask_at, self._ask_pause = now + self._ask_pause, 2 * self._ask_pause
            self._start(self._look_for_viewers())

    def _start(self, work: Coroutine[Any, Any, None]) -> None:
        task = self._loop.create_task(work, context=self._context)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _check(self) -> None:
        """Send a heartbeat if the activity is to stop: its answer says so."""
        client, info = activity.client(), self._info
        request = DescribeWorkflowExecutionRequest(
            namespace=client.namespace,
            execution=WorkflowExecution(workflow_id=info.workflow_id or "", run_id=self._run_id),
        )
        # Without an answer a heartbeat is not missed: the next one follows anyway.
        with suppress(RPCError):
            answer = await client.workflow_service.describe_workflow_execution(
                request, timeout=timedelta(seconds=ASK_SECONDS)
            )
            if not any(
                pending.activity_id == info.activity_id
                and pending.state == PendingActivityState.PENDING_ACTIVITY_STATE_STARTED
                for pending in answer.pending_activities
            ):
                self._send()

    async def _look_for_viewers(self) -> None:
        session = activity.client().get_workflow_handle(self._info.workflow_id or "", run_id=self._run_id)
        # A session that does not answer has no viewers either.
        with suppress(RPCError, WorkflowQueryFailedError):
            answer = await session.query("followed", result_type=dict, rpc_timeout=timedelta(seconds=ASK_SECONDS))
            queries = answer["queries"]
            if queries and queries != self._follows:
                self._follow()
                self._ask_pause = self._rest
                # Asked again when the time of this answer is over.
                self._ask_at = self._followed_until
                self._tick()
            self._follows = queries
