"""The session that a workflow run hosts: advanced by decisions, with the workflow's clock and random numbers."""

from __future__ import annotations

import asyncio
from datetime import timedelta

from temporalio import workflow

from clew.context.projection import Projection
from clew.contract import ContextQuery
from clew.thread.thread import Thread
from clew_workflows.core import labels, views
from clew_workflows.core.advance import Session, advance
from clew_workflows.core.decision import Decision
from clew_workflows.core.stamps import Stamps
from clew_workflows.core.state import Moment, State
from clew_workflows.protocol import Event, SessionEffect
from clew_workflows.shell.waits import Waits

PREPARE_TIMEOUT = timedelta(minutes=10)

STAMPS = Stamps(now=workflow.now, random_bits=lambda bits: workflow.random().getrandbits(bits))
"""The clock and the random numbers of the workflow that runs."""


class Runtime:
    """Hosts one session.

    Attributes:
        state: What the session is at the moment, beside its thread.
        thread: The session's log.
        effect: What is being carried out, or is to be next.
        task: What carries the effect out.
        changed_lanes: Lanes that context operations have changed: their contexts may need more of the archive than is
            held.
        active_at: When something was last decided, in seconds of the workflow's clock.
        rolling: This workflow run is about to give way to the next one.
        waits: How long the session waits, and lets others wait.
    """

    def __init__(self, session: Session, waits: Waits) -> None:
        self.waits = waits
        self.state: State
        self.thread: Thread
        self.effect: SessionEffect | None
        self.resume(session)
        self.task: asyncio.Task[Event] | None = None
        self.changed_lanes: list[str] = []
        self.active_at = workflow.time()
        self.rolling = False
        self._memo: tuple[int, int, ContextQuery, Projection] | None = None

    @property
    def session(self) -> Session:
        """The session as it is now."""
        return Session(self.state, self.thread, self.effect)

    def resume(self, session: Session) -> None:
        """Go on with another session."""
        self.state, self.thread, self.effect = session.state, session.thread, session.effect
        workflow.set_current_details(labels.describe_session(self.state, self.thread))

    def apply(self, decision: Decision) -> None:
        """Commit, then act: the loop carries out what the decision asks for."""
        step = advance(self.session, decision, STAMPS)
        for entry in step.entries:
            if (
                entry.kind == "ai_context_operation"
                and entry.lane is not None
                and entry.lane not in self.changed_lanes
            ):
                self.changed_lanes.append(entry.lane)
        if step.gave_up and self.task:
            self.task.cancel()
        self.active_at = workflow.time()
        self.resume(step.session)

    def projection(self, query: ContextQuery) -> Projection:
        """The projection that a query asks for; its next pages come from the same one.

        Raises:
            ClewError: no context can be made, or what it needs is in the archive.
        """
        key = query.model_copy(update={"page": 0})
        known = (self.thread.rev, len(self.thread.retained.entries), key)
        if self._memo is None or self._memo[:3] != known:
            self._memo = (*known, views.build_projection(self.state, self.thread, key))
        return self._memo[3]

    @property
    def now(self) -> Moment:
        """Where and when a decision is taken."""
        return Moment(self.thread.rev, workflow.time())

    @property
    def time_left(self) -> timedelta:
        """How long what is carried out for the current run may take."""
        if self.state.run is None:
            return PREPARE_TIMEOUT
        return timedelta(seconds=max(self.state.run.deadline - workflow.time(), 1))
