"""The session that a workflow run hosts. Decisions change it, with the workflow's clock and random numbers."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from datetime import timedelta
from threading import Lock

from temporalio import workflow

from clew_workflows.contract import ContextQuery
from clew_workflows.host import telemetry
from clew_workflows.host.execution import TimeLimits
from clew_workflows.host.local_runs import LOCAL_RUNS
from clew_workflows.host.tasks import Fullness
from clew_workflows.protocol import CallModel, Event, SessionEffect
from clew_workflows.session import views
from clew_workflows.session.advance import Session, Stamps, advance
from clew_workflows.session.state import Decision, Moment, State
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


LONGEST_PREPARATION = timedelta(minutes=10)

STAMPS = Stamps(now=workflow.now, random_bits=lambda bits: workflow.random().getrandbits(bits))
"""The clock and the random numbers of the workflow."""


class Runtime:
    """Hosts one session.

    Attributes:
        state: The session's state beside the thread.
        thread: The session's thread.
        effect: The effect that is being carried out, or is next.
        task: The asyncio task that carries the effect out.
        changed_lanes: Lanes that context operations have changed. Their contexts may need archived entries that the
            thread does not hold.
        active_at: The time of the last decision, in seconds of the workflow's clock.
        rolling: This workflow run is about to continue as new.
        unconfirmed: Commands to other sessions that the server has not confirmed. The end of this workflow run waits
            for them.
        waits: The time limits of the session's waits.
    """

    def __init__(self, session: Session, waits: TimeLimits, fullness: Fullness) -> None:
        self.waits = waits
        self._fullness = fullness
        self.state: State
        self.thread: Thread
        self.effect: SessionEffect | None
        self.resume(session)
        self.task: asyncio.Task[Event] | None = None
        self.changed_lanes: list[str] = []
        self.active_at = workflow.time()
        self.rolling = False
        self.unconfirmed = 0
        self._memo: tuple[int, int, ContextQuery, Projection] | None = None

    @property
    def session(self) -> Session:
        """The session as it is now."""
        return Session(self.state, self.thread, self.effect)

    def resume(self, session: Session) -> None:
        """Replace the hosted session."""
        self.state, self.thread, self.effect = session.state, session.thread, session.effect

    def apply(self, decision: Decision) -> None:
        """Commit a decision. The loop of `AgentSession` carries out its effect."""
        step = advance(self.session, decision, STAMPS)
        for entry in step.entries:
            if (
                entry.kind == "ai_context_operation"
                and entry.lane is not None
                and entry.lane not in self.changed_lanes
            ):
                self.changed_lanes.append(entry.lane)
        if (step.gave_up or step.stops) and self.task:
            self.task.cancel()
        if (step.gave_up or step.stops) and not workflow.unsafe.is_replaying():
            LOCAL_RUNS.tell(workflow.info().run_id, "stopping")
        self.active_at = workflow.time()
        self._fullness.task.note()
        telemetry.report_turns(step.entries, self.state)
        self.resume(step.session)

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
