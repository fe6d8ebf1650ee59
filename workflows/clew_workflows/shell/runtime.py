"""The journal: what a session is at the moment, and its thread, changed by nothing but decisions."""

from __future__ import annotations

import asyncio
from datetime import timedelta

from temporalio import workflow

from clew.context.projection import Projection
from clew.contract import ContextQuery
from clew.model.tokens import encoding
from clew.thread.entries import Draft, Entry
from clew.thread.thread import Thread
from clew_workflows.core import labels, views
from clew_workflows.core.carried import Carried
from clew_workflows.core.decision import Decision
from clew_workflows.core.state import Moment, State
from clew_workflows.protocol import Effect, Event

PREPARE_TIMEOUT = timedelta(minutes=10)


class Journal:
    """State and thread of one session.

    `effect` is what the session asks of the world, `task` what carries it out. `changed_lanes` are those that context
    operations have changed: their contexts may need more of the archive than is held.
    """

    def __init__(self, begun: Carried) -> None:
        self.state: State
        self.thread: Thread
        self.effect: Effect | None
        self.resume(begun)
        self.task: asyncio.Task[Event] | None = None
        self.changed_lanes: list[str] = []
        self.active_at = workflow.time()
        self._memo: tuple[int, int, ContextQuery, Projection] | None = None

    def resume(self, begun: Carried) -> None:
        """Go on from another state and thread."""
        self.state, self.thread, self.effect = begun.state, begun.thread, begun.effect
        workflow.set_current_details(labels.current(self.state, self.thread))

    def apply(self, decision: Decision) -> None:
        """Commit, then act: the loop carries out what the decision asks for."""
        before, self.state = self.state, decision.state
        for draft in decision.commit:
            self._commit(draft)
        if _gave_up(before, self.state):
            self.effect = None
            if self.task:
                self.task.cancel()
        if decision.effect:
            self.effect = decision.effect
        self.active_at = workflow.time()
        workflow.set_current_details(labels.current(self.state, self.thread))

    def _commit(self, draft: Draft) -> None:
        payload, tokens = draft.counted(encoding(self.state.config.encoding))
        at = workflow.now().isoformat(timespec="milliseconds").replace("+00:00", "Z")
        entry_id = f"e-{workflow.random().getrandbits(64):016x}"
        self.thread.append(Entry(self.thread.rev, entry_id, draft.kind, at, payload, draft.refs, tokens))
        lane = payload["context_ref"] if draft.kind == "ai_context_operation" else None
        if lane is not None and lane not in self.changed_lanes:
            self.changed_lanes.append(lane)

    def projection(self, asked: ContextQuery) -> Projection:
        """The projection that a query asks for; its next pages come from the same one.

        Raises:
            ClewError: no context can be made, or what it needs is in the archive.
        """
        key = asked.model_copy(update={"page": 0})
        known = (self.thread.rev, len(self.thread.past.entries), key)
        if self._memo is None or self._memo[:3] != known:
            self._memo = (*known, views.projection(self.state, self.thread, key))
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


def _gave_up(before: State, after: State) -> bool:
    """Whether what is being carried out was for a run that is over, or for a session that has ended."""
    if after.closed:
        return True
    if before.summarizing is not None and after.summarizing is not before.summarizing:
        return True
    return before.run is not None and (after.run is None or after.run.run_id != before.run.run_id)
