"""Recalling: fetching archived entries that a context needs, before the context is built."""

from __future__ import annotations

from contextlib import suppress
from datetime import timedelta

from temporalio import workflow

from clew.contract import ContextQuery
from clew.contract.policy import ContextPolicy
from clew.errors import Archived, ClewError
from clew.thread.layers import Layers
from clew_workflows.core import carried
from clew_workflows.protocol import ArchiveRef, Failure, Recall
from clew_workflows.shell import execution
from clew_workflows.shell.fullness import Fullness
from clew_workflows.shell.runtime import Runtime


class Recalling:
    """Fetches archived parts of lanes into the thread of one session."""

    def __init__(self, runtime: Runtime, fullness: Fullness) -> None:
        self._runtime = runtime
        self._fullness = fullness

    async def recall(
        self, context_ref: str, policy: ContextPolicy, query: ContextQuery, time_limit: timedelta | None = None
    ) -> Failure | None:
        """Fetch the archived entries that a context of a lane needs; return a failure if they cannot be fetched."""
        runtime = self._runtime
        while (archive := runtime.state.archive) and not self._covers(query):
            before = runtime.thread.find_first_held_seq(context_ref)
            info = workflow.info()
            events, size = info.get_current_history_length(), info.get_current_history_size()
            effect = self._make_effect(archive, context_ref, policy)
            fetched = await execution.carry_out(effect, time_limit or runtime.waits.store_timeout, runtime.state)
            if isinstance(fetched, Failure):
                return fetched
            runtime.thread = carried.add_recalled(runtime.thread, context_ref, fetched)
            self._fullness.count_fetched(
                info.get_current_history_length() - events, info.get_current_history_size() - size
            )
            if not self._covers(query) and runtime.thread.find_first_held_seq(context_ref) >= before:
                return Failure(type="archived", message="the context needs more of the archive than can be fetched")
        return None

    @property
    def due(self) -> bool:
        """Whether operations have changed lanes, and no run is active: a model call recalls its own lane."""
        return bool(self._runtime.changed_lanes) and not (self._runtime.state.busy or self._runtime.state.closed)

    async def recall_changed(self) -> None:
        """Fetch archived entries of lanes that operations have changed.

        Best effort: without them the query `context` is refused as `archived`.
        """
        lanes, runtime = self._runtime.changed_lanes, self._runtime
        while self.due:
            await self.recall(lanes[0], runtime.state.policy, ContextQuery(context_ref=lanes[0]))
            del lanes[0]

    async def wait_for_changed(self) -> None:
        """Wait until contexts of the changed lanes can be built, or until the time for the store is over."""
        runtime = self._runtime
        if all(self._covers(ContextQuery(context_ref=lane)) for lane in runtime.changed_lanes):
            return
        with suppress(TimeoutError):
            await workflow.wait_condition(
                lambda: not self.due or runtime.rolling, timeout=runtime.waits.store_timeout
            )

    def _make_effect(self, archive: ArchiveRef, context_ref: str, policy: ContextPolicy) -> Recall:
        thread = self._runtime.thread
        lane = thread.get_lane(context_ref)
        layers = lane.layers if lane else Layers()
        return Recall(
            archive=archive,
            context_ref=context_ref,
            policies=(policy,),
            before=thread.find_first_held_seq(context_ref),
            layers=layers if layers.is_complete else None,
        )

    def _covers(self, query: ContextQuery) -> bool:
        """Whether the thread holds all entries that a context needs."""
        if self._runtime.thread.retained.upto < 0:
            return True
        try:
            self._runtime.project(query)
        except Archived:
            return False
        except ClewError:
            pass
        return True
