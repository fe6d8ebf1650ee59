"""The session that a workflow run hosts. Decisions change it, with the workflow's clock and random numbers."""

from __future__ import annotations

import asyncio
from datetime import timedelta

from temporalio import workflow

from clew.context.projection import Projection
from clew.contract import ContextQuery
from clew.thread.thread import Thread
from clew_workflows.core import views
from clew_workflows.core.advance import Session, advance
from clew_workflows.core.decision import Decision
from clew_workflows.core.stamps import Stamps
from clew_workflows.core.state import Moment, State
from clew_workflows.protocol import Event, SessionEffect
from clew_workflows.shell import telemetry
from clew_workflows.shell.fullness import Fullness
from clew_workflows.shell.time_limits import TimeLimits

PREPARE_TIMEOUT = timedelta(minutes=10)

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
        self.active_at = workflow.time()
        self._fullness.note_sizes()
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
            return PREPARE_TIMEOUT
        return timedelta(seconds=max(self.state.run.deadline - workflow.time(), 1))
