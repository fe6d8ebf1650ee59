"""Recalling: a session fetches archived entries that a context needs, before the context is built."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta
from functools import partial

from temporalio import workflow

from clew_workflows.contract import ContextQuery
from clew_workflows.contract.errors import Archived, ClewError
from clew_workflows.contract.policy import ContextPolicy
from clew_workflows.host import execution
from clew_workflows.host.runtime import Runtime
from clew_workflows.protocol import Failure
from clew_workflows.session import carried


class Recalling:
    """Fetches archived parts of lanes into the thread of one session."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime

    async def recall(
        self,
        context_ref: str,
        policy: ContextPolicy,
        build: Callable[[], object],
        time_limit: timedelta | None = None,
    ) -> Failure | None:
        """Fetch archived entries of a lane until `build` has all that it needs; return a failure if that cannot be.

        `build` needs at most what contexts under the policy need.
        """
        runtime = self._runtime
        while (archive := runtime.state.archive) and not self._covers(build):
            before = runtime.thread.get_lane(context_ref)
            info = workflow.info()
            events, size = info.get_current_history_length(), info.get_current_history_size()
            effect = carried.make_recall(runtime.thread, archive, context_ref, policy)
            fetched = await execution.carry_out(effect, time_limit or runtime.waits.store_timeout, runtime.state)
            if isinstance(fetched, Failure):
                return fetched
            runtime.thread = carried.add_recalled(runtime.thread, context_ref, fetched)
            runtime.fullness.count_fetched(
                info.get_current_history_length() - events, info.get_current_history_size() - size
            )
            held = runtime.thread.get_lane(context_ref)
            if not self._covers(build) and held and before and held.gap == before.gap:
                return Failure(type="archived", message="the context needs more of the archive than can be fetched")
        return None

    @property
    def is_due(self) -> bool:
        """Whether operations have changed lanes, and no run is active: a model call recalls its own lane."""
        return bool(self._runtime.changed_lanes) and not (self._runtime.state.busy or self._runtime.state.closed)

    async def recall_changed(self) -> None:
        """Fetch archived entries of lanes that operations have changed.

        Best effort: without them the query `context` is refused as `archived`.
        """
        lanes, runtime = self._runtime.changed_lanes, self._runtime
        while self.is_due:
            build = partial(runtime.project, ContextQuery(context_ref=lanes[0]))
            await self.recall(lanes[0], runtime.state.settings.policy, build)
            del lanes[0]

    async def wait_for_changed(self) -> None:
        """Wait until contexts of the changed lanes can be built, or until the time for the store is over."""
        runtime = self._runtime
        queries = (ContextQuery(context_ref=lane) for lane in runtime.changed_lanes)
        if all(self._covers(partial(runtime.project, query)) for query in queries):
            return
        with suppress(TimeoutError):
            await runtime.wait_until(lambda: not self.is_due or runtime.rolling, runtime.waits.store_timeout)

    def _covers(self, build: Callable[[], object]) -> bool:
        """Whether the thread holds all entries that a context, or the range of a summary, needs."""
        if self._runtime.thread.retained.upto < 0:
            return True
        try:
            build()
        except Archived:
            return False
        except ClewError:
            pass
        return True
