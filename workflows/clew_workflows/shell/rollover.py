"""The archivist: moves what a session has said out of its history, and fetches back what is needed of it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import replace
from datetime import timedelta
from typing import Any, TypeVar

from pydantic_core import to_json
from temporalio import workflow
from temporalio.exceptions import ActivityError

from clew.contract import ContextQuery
from clew.contract.policy import ContextPolicy
from clew.errors import Archived, ArchiveUnavailable, ClewError, Refusal, ThreadMismatch, TooLarge, refusal
from clew.thread.entries import Entry
from clew.thread.layers import Ground
from clew_workflows.core import carried, decisions
from clew_workflows.core.advance import Session
from clew_workflows.protocol import ArchiveRef, Archiving, Failure, Prepared, Recall, Thaw
from clew_workflows.shell import execution
from clew_workflows.shell.failures import failure_of
from clew_workflows.shell.fullness import FULL, PRESSING, Fullness
from clew_workflows.shell.runtime import Runtime
from clew_workflows.shell.waiters import Waiters

T = TypeVar("T")

# What is being done ends in this run of the workflow. A summary adds next to nothing, and who asked for it waits.
_STAYING = ("summarizing", "hibernating", "closed")
PATIENCE = timedelta(seconds=15)
"""How long a session that could do without waits for the archive's store, and its callers with it."""
PAUSE_SECONDS = 60
"""Until a store is asked again that did not answer."""


class Archivist:
    """Keeps the history of every run of the workflow short, and the thread whole."""

    def __init__(self, runtime: Runtime, fullness: Fullness, waiters: Waiters) -> None:
        self.rolling = False
        self.away: Refusal | None = None
        self._runtime = runtime
        self._fullness = fullness
        self._waiters = waiters
        self._ask_again_at = 0.0
        self._full_when_asked = False
        self._writing = asyncio.Lock()
        self._put_away_upto: int | None = None
        self._says_closed = False

    @property
    def due(self) -> bool:
        """Whether it is time to go on in a new run: between requests if that can be had, else between steps."""
        state = self._runtime.state
        if state.archive is None or self.pause:
            return False
        if state.phase in _STAYING:
            return False
        if self._says_closed:
            return True
        enough = PRESSING if state.busy or state.late_calls or state.phase == "preparing" else 1.0
        return self._fullness.share(state.archive.thresholds) >= enough

    @property
    def full(self) -> bool:
        """Whether nothing new can be taken until the archive is there again."""
        archive = self._runtime.state.archive
        return archive is not None and self._fullness.share(archive.thresholds) >= FULL

    @property
    def pause(self) -> timedelta | None:
        """How long until the store is asked again, where it did not answer.

        A session that has become full since then asks at once, and waits for the answer: it can do nothing else.
        """
        left = self._ask_again_at - workflow.time()
        return timedelta(seconds=left) if left > 0 and (self._full_when_asked or not self.full) else None

    async def awake(self) -> None:
        """Find out what the session is: new, or one that was archived and goes on with every seq intact.

        Raises:
            Refusal: it cannot go on from its archive.
        """
        runtime = self._runtime
        look = runtime.state.preparation.model_copy(update={"look": workflow.info().first_execution_run_id})
        found = await self._insisting(lambda patience: execution.carry_out(look, patience))
        assert isinstance(found, Prepared)
        if found.mismatch:
            raise ThreadMismatch(found.mismatch)
        runtime.effect = None
        if found.state and found.archive:
            runtime.resume(await self._thawed(found.archive, found.state))
        else:
            runtime.state = replace(runtime.state, archive=found.archive)
            runtime.apply(decisions.happened(runtime.state, found, runtime.now))

    async def _insisting(self, attempt: Callable[[timedelta | None], Awaitable[T | Failure]]) -> T:
        """What comes of an attempt, however long that takes; whoever comes meanwhile is told soon.

        Raises:
            Refusal: nothing will ever come of it.
        """
        found = await attempt(PATIENCE)
        if isinstance(found, Failure) and found.retryable:
            self.away = _unavailable(found)
            found = await attempt(None)
            self.away = None
        if isinstance(found, Failure):
            raise refusal(found.type, found.message)
        return found

    async def _thawed(self, archive: ArchiveRef, state: str) -> Session:
        """What an archived session goes on from. Its tools are those of the worker that it finds."""
        thawed = await self._insisting(lambda patience: execution.thaw(Thaw(archive=archive, state=state), patience))
        begun = carried.restore({"version": carried.VERSION, "zlib": thawed.zlib})
        for row in thawed.newer:
            begun.thread.append(Entry.from_json(row))
        waking = replace(begun.state, archive=thawed.archive or archive, phase="preparing")
        return replace(begun, state=waking, effect=waking.preparation)

    async def roll(self) -> None:
        """Go on in a new run of the workflow, once all is in the archive. Back where that could not be done."""
        runtime = self._runtime
        self._ask_again_at = workflow.time() + PAUSE_SECONDS
        self._full_when_asked = self.full
        with suppress(ActivityError):
            await self._archive(None if self.full else PATIENCE)
            # What operations have just brought back into contexts goes along to the next run.
            await self.recall_changed()
            if runtime.state.phase in _STAYING:
                self._ask_again_at = 0.0
                return
            # What waits for its turn may be too much to be carried; it becomes less.
            if len(to_json(self._start())) > (carried.MOST_BYTES if self.full else carried.ENOUGH_BYTES):
                return
            self.rolling = True
            self._waiters.dismiss()
            # The caller of a close is answered when the session has ended: in this run of the workflow.
            await workflow.wait_condition(lambda: runtime.state.closed or workflow.all_handlers_finished())
            if not runtime.state.closed:
                workflow.continue_as_new(args=[self._start()])

    async def put_away(self, patience: timedelta | None = None) -> None:
        """Archive the whole session: it goes on in another execution, if ever.

        Raises:
            ArchiveUnavailable: that could not be done within the time.
            ThreadMismatch: the archive is another execution's.
        """
        if self._runtime.state.archive is None:
            return
        try:
            if self._writing.locked():
                # What is being written for another reason may wait for the store without an end.
                await workflow.wait_condition(lambda: not self._writing.locked(), timeout=patience)
            while self._put_away_upto != self._runtime.thread.last_seq:
                self._put_away_upto = (await self._archive(patience, closed=True)).upto
        except TimeoutError:
            raise _unavailable(None) from None
        except ActivityError as error:
            self._put_away_upto = None
            # Who cannot be told that it was done may have done it: the archive is not to say so for long.
            self._says_closed = True
            failure = failure_of(error)
            if failure.retryable:
                raise _unavailable(failure) from None
            raise refusal(failure.type, failure.message) from None

    async def recall(self, context_ref: str, policy: ContextPolicy, asked: ContextQuery) -> Failure | None:
        """Fetch what a context of a lane needs of the archive, or say why that could not be done."""
        runtime = self._runtime
        while (archive := runtime.state.archive) and not self._covers(asked):
            info = workflow.info()
            events, size = info.get_current_history_length(), info.get_current_history_size()
            before = runtime.thread.held_from(context_ref)
            lane = runtime.thread.lane(context_ref)
            ground = lane.grounds[-1] if lane else Ground()
            effect = Recall(
                archive=archive,
                context_ref=context_ref,
                policies=(policy,),
                before=before,
                ground=ground if ground.known else None,
            )
            try:
                fetched = await execution.recall(effect, runtime.time_left if runtime.state.run else PATIENCE)
            except ActivityError as error:
                return failure_of(error)
            runtime.thread = carried.recalled(runtime.thread, context_ref, fetched)
            self._fullness.fetched(info.get_current_history_length() - events, info.get_current_history_size() - size)
            if not self._covers(asked) and runtime.thread.held_from(context_ref) >= before:
                return Failure(type="archived", message="the context needs more of the archive than can be fetched")
        return None

    @property
    def recall_due(self) -> bool:
        """Whether lanes have changed, and no request is served: a model call recalls its own lane."""
        return bool(self._runtime.changed_lanes) and not (self._runtime.state.busy or self._runtime.state.closed)

    async def recall_changed(self) -> None:
        """Fetch what lanes need that operations have changed.

        Best effort: where it cannot be fetched the query `context` says `archived`.
        """
        lanes, runtime = self._runtime.changed_lanes, self._runtime
        while self.recall_due:
            await self.recall(lanes[0], runtime.state.policy, ContextQuery(context_ref=lanes[0]))
            del lanes[0]

    async def changes_recalled(self) -> None:
        """Back when the lanes that operations have changed can be told, or when that takes too long."""
        runtime = self._runtime
        if all(self._covers(ContextQuery(context_ref=lane)) for lane in runtime.changed_lanes):
            return
        with suppress(TimeoutError):
            await workflow.wait_condition(
                lambda: not self.recall_due or self.rolling,
                timeout=PATIENCE,
            )

    def _covers(self, asked: ContextQuery) -> bool:
        if self._runtime.thread.past.upto < 0:
            return True
        try:
            self._runtime.projection(asked)
        except Archived:
            return False
        except ClewError:
            pass
        return True

    def whole(self) -> dict[str, Any]:
        """The session as it is archived: what it goes on from when all its entries are there."""
        runtime, state = self._runtime, self._runtime.state
        last_seq = runtime.thread.last_seq
        if state.archive:
            state = replace(state, archive=state.archive.model_copy(update={"upto": last_seq}))
        whole = carried.carry(replace(runtime.session, state=state))
        if carried.size_of(whole) > carried.MOST_BYTES:
            raise TooLarge("more waits for its turn than can be carried: it becomes less as the session works")
        return {"last_seq": last_seq, "carried": whole}

    def _start(self) -> dict[str, Any]:
        """What the next run of the workflow starts with."""
        runtime = self._runtime
        config = runtime.state.config.model_dump(mode="json", exclude_unset=True)
        return {"config": config, "carried": carried.carry(runtime.session)}

    async def _archive(self, patience: timedelta | None, closed: bool = False) -> ArchiveRef:
        runtime = self._runtime
        # One after the other: what is written last says whether the session goes on in this execution.
        async with self._writing:
            assert runtime.state.archive is not None
            written = await execution.archive(Archiving(archive=runtime.state.archive, closed=closed), patience)
            runtime.state = replace(runtime.state, archive=written)
            self._says_closed = self._says_closed and closed
        return written


def _unavailable(event: object) -> ArchiveUnavailable:
    said = event.message if isinstance(event, Failure) else "no answer"
    return ArchiveUnavailable(f"the session's archive cannot be reached, try again later: {said}")
