"""The session that a workflow run hosts. Decisions change it, with the workflow's clock and random numbers."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from datetime import timedelta
from threading import Lock
from typing import Any

from temporalio import workflow

from clew_workflows.contract import ContextQuery, FollowQuery
from clew_workflows.host import telemetry
from clew_workflows.host.execution import TimeLimits
from clew_workflows.host.local_runs import LOCAL_RUNS, Decided
from clew_workflows.protocol import CallModel, RolloverThresholds, SessionEffect
from clew_workflows.session import views
from clew_workflows.session.advance import Session, Stamps, advance
from clew_workflows.session.state import Decision, Moment, State
from clew_workflows.temporal_faults.task_commands import TaskCommands
from clew_workflows.thread.context.projection import Projection
from clew_workflows.thread.thread import Thread

# Local contexts: sessions leave the contexts of their model calls here, for the activities of the same process.
#
# An activity that runs elsewhere, or finds nothing, queries its session: one more workflow task, and two trips to the
# server. The context is the same, since it depends on the call and on entries that never change.


MAX_TOKENS = 4_000_000
"""Most tokens of all contexts together. The oldest ones go first: their activities run elsewhere, or never."""


class LocalContexts:
    """Contexts by workflow run and call. Sessions post in their threads, activities take in theirs.

    Attributes:
        is_open: This process makes model calls.
    """

    def __init__(self, max_tokens: int = MAX_TOKENS) -> None:
        self.is_open = False
        self._max_tokens = max_tokens
        self._lock = Lock()
        self._posted: OrderedDict[tuple[str, str], tuple[CallModel, Projection]] = OrderedDict()
        self._tokens = 0

    def post(self, run_id: str, call: CallModel, context: Projection) -> None:
        """Leave the context of a call that is about to be scheduled by a workflow run."""
        with self._lock:
            self._remove((run_id, call.call_id))
            self._posted[run_id, call.call_id] = call, context
            self._tokens += context.meta.estimated_tokens
            while self._tokens > self._max_tokens:
                self._remove(next(iter(self._posted)))

    def take(self, run_id: str, call: CallModel) -> Projection | None:
        """Take the context of a call; None: it is not there, or that of another call with this id."""
        with self._lock:
            call_posted, context = self._remove((run_id, call.call_id)) or (None, None)
        return context if call_posted == call else None

    def _remove(self, key: tuple[str, str]) -> tuple[CallModel, Projection] | None:
        posted = self._posted.pop(key, None)
        if posted:
            self._tokens -= posted[1].meta.estimated_tokens
        return posted


LOCAL_CONTEXTS = LocalContexts()
"""The contexts that this process has made for its own model calls."""


# Measuring how full the event history of a workflow run is.


FULL = 3.0
"""Multiple of a threshold from which on no new message is accepted."""
PRESSING = 1.5
"""Multiple of a threshold from which on a rollover no longer waits for the end of a run."""
SPENT = 3.25
"""Multiple of a threshold from which on even the work that was accepted waits for the archive."""
SUGGESTED_EVENTS = 500
"""Events below which the server's suggestion to continue as new is ignored: fetched entries may have caused it."""


@dataclass(slots=True)
class Fullness:
    """Counters of a workflow run, and the sizes of its history.

    Attributes:
        updates: The updates so far.
        signals: The signals so far.
    """

    updates: int = 0
    signals: int = 0
    _fetched_events: int = 0
    _fetched_bytes: int = 0

    def measure(self, thresholds: RolloverThresholds) -> float:
        """Measure the history: 1.0 is the first threshold that is reached.

        Entries that were carried over or fetched from the archive do not count. The next workflow run would have to
        fetch them again, and so each run would continue as new at once, without end.
        """
        info = workflow.info()
        events = info.get_current_history_length() - self._fetched_events
        size = info.get_current_history_size() - self._fetched_bytes
        suggested = info.is_continue_as_new_suggested() and events > SUGGESTED_EVENTS
        return max(
            events / thresholds.events,
            size / thresholds.bytes,
            self.updates / thresholds.updates,
            self.signals / thresholds.signals,
            PRESSING if suggested else 0.0,
        )

    def count_fetched(self, events: int, size: int) -> None:
        """Count events and bytes that were carried over or fetched from the archive."""
        self._fetched_events += events
        self._fetched_bytes += size


LONGEST_PREPARATION = timedelta(minutes=10)

STAMPS = Stamps(now=workflow.now, random_bits=lambda bits: workflow.random().getrandbits(bits))
"""The clock and the random numbers of the workflow."""


class Runtime:
    """Hosts one session.

    Attributes:
        state: The session's state beside the thread.
        thread: The session's thread.
        effect: The effect that is being carried out, or is next.
        changed_lanes: Lanes that context operations have changed. Their contexts may need archived entries that the
            thread does not hold.
        active_at: The time of the last decision, in seconds of the workflow's clock.
        rolling: This workflow run is about to continue as new.
        unconfirmed: Commands to other sessions that the server has not confirmed. The end of this workflow run waits
            for them.
        waits: The time limits of the session's waits.
        fullness: How full the event history is.
        reconcile: Called when decisions were committed, to carry out what follows from them.
    """

    def __init__(self, session: Session, waits: TimeLimits) -> None:
        # Kept: a worker that stops closes the coroutines of its workflows in any thread, where no loop may run.
        self._loop = asyncio.get_running_loop()
        self.waits, self.fullness = waits, Fullness()
        self.state: State
        self.thread: Thread
        self.effect: SessionEffect | None
        self.changed_lanes: list[str] = []
        self.active_at = workflow.time()
        self.rolling = False
        self.unconfirmed = 0
        self.reconcile: Callable[[], None] = _wait_for_begin
        self._commands = TaskCommands()
        self._has_handled = False
        self._settling: asyncio.Handle | None = None
        self._waits: dict[asyncio.Future[None], Callable[[], bool]] = {}
        self._error: BaseException | None = None
        self._memo: tuple[int, int, ContextQuery, Projection] | None = None
        # The task that viewers were told of last, with the thread's length before it, and what it had decided.
        self._told_task = (0, 0)
        self._told_from = self._told_upto = session.thread.rev
        self._told: State | None = None
        self.resume(session)
        self.start(workflow.wait_condition(self._end_task))

    @property
    def session(self) -> Session:
        """The session as it is now."""
        return Session(self.state, self.thread, self.effect)

    def resume(self, session: Session) -> None:
        """Replace the hosted session."""
        self.state, self.thread, self.effect = session.state, session.thread, session.effect
        self.settle_soon()

    def apply(self, decision: Decision) -> None:
        """Commit a decision. What follows from it begins when all that has arrived with its event is decided."""
        step = advance(self.session, decision, STAMPS)
        for entry in step.entries:
            if (
                entry.kind == "ai_context_operation"
                and entry.lane is not None
                and entry.lane not in self.changed_lanes
            ):
                self.changed_lanes.append(entry.lane)
        if (step.gave_up or step.stops) and not workflow.unsafe.is_replaying():
            LOCAL_RUNS.tell(workflow.info().run_id, "stopping")
        self.active_at = workflow.time()
        telemetry.report_turns(step.entries, self.state)
        self.resume(step.session)

    # Waiting: no wait looks at the session while nothing of it changes.

    def settle_soon(self) -> None:
        """Carry out what follows, and look at the waits, when the handlers that are ready have run."""
        self.note_handled()
        if self._settling is None:
            self._settling = self._loop.call_soon(self._settle)

    def note_handled(self) -> None:
        """Note that the current workflow task handles something that the history has."""
        self._has_handled = True

    @property
    def is_settling(self) -> bool:
        """Whether what follows from a decision has not begun."""
        return self._settling is not None

    def _settle(self) -> None:
        self._settling = None
        try:
            self.reconcile()
            for future, is_over in list(self._waits.items()):
                if not future.done() and is_over():
                    future.set_result(None)
        except Exception as error:
            self._error = self._error or error

    async def wait_until(self, is_over: Callable[[], bool], limit: timedelta | None = None) -> None:
        """Wait for what a decision, or a call of `settle_soon`, brings about.

        Raises:
            TimeoutError: The time is over.
        """
        if is_over():
            return
        future = asyncio.get_running_loop().create_future()
        self._waits[future] = is_over
        try:
            async with asyncio.timeout(limit.total_seconds() if limit else None):
                await future
        finally:
            del self._waits[future]

    def start(self, coroutine: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Run a coroutine beside the others. Its error fails the workflow task: a corrected worker goes on."""
        task = asyncio.create_task(coroutine)
        task.add_done_callback(self._note_error)
        return task

    def _note_error(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled():
            self._error = self._error or task.exception()

    def _end_task(self) -> bool:
        """End a workflow task, when nothing is left to do: the only condition that is looked at in each.

        The SDK looks at it after the refusal of an update, too, before it hands over the task's timers and results. A
        replay, which knows nothing of the update, does not: nothing may follow from that.
        """
        if self._error is not None:
            raise self._error
        if self._has_handled:
            self._has_handled = False
            self._commands.ensure()
        self._tell_viewers()
        return False

    def _tell_viewers(self) -> None:
        """Tell the live channel what this workflow task has decided. It changes nothing in the workflow."""
        if workflow.unsafe.is_replaying() or LOCAL_RUNS.publish is None:
            self._told_upto = self.thread.rev
            return
        info = workflow.info()
        task = (info.get_current_history_length(), workflow.time_ns())
        if task != self._told_task:
            self._told_task, self._told_from = task, self._told_upto
        elif self.state is self._told:
            return
        self._told, self._told_upto = self.state, self.thread.rev
        page = views.answer_follow(self.state, self.thread, FollowQuery(from_seq=self._told_from))
        LOCAL_RUNS.publish(Decided(info.workflow_id, info.run_id, *task, page))

    def project(self, query: ContextQuery) -> Projection:
        """Build the context that a query names. The last one is kept for the queries of its other pages.

        Raises:
            ClewError: The context cannot be built, or needs entries that are in the archive alone (`Archived`).
        """
        key = query.model_copy(update={"page": 0})
        known = (self.thread.rev, len(self.thread.retained.entries), key)
        if self._memo is None or self._memo[:3] != known:
            self._memo = (*known, views.build_projection(self.state, self.thread, key))
        return self._memo[3]

    def confirm(self) -> None:
        """Note that the server has confirmed a command to another session, or refused it."""
        self.unconfirmed -= 1
        self.settle_soon()

    @property
    def now(self) -> Moment:
        """The moment of a decision that is taken now."""
        return Moment(self.thread.rev, workflow.time())

    @property
    def time_left(self) -> timedelta:
        """The time that is left for the active run."""
        if self.state.run is None:
            return LONGEST_PREPARATION
        return timedelta(seconds=max(self.state.run.clock.deadline - workflow.time(), 1))


def _wait_for_begin() -> None:
    """Carry out nothing: the session has not begun."""
