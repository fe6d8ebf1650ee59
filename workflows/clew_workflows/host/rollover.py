"""The beginning and the end of a workflow run: start-up, rollover, hibernation and close.

Before its history is full, a session archives its entries and continues in a new workflow run. The next run begins on
the version of the workers that is current then, if they have versions. If that is another one than the session's, it
rolls over before its next step.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import replace
from datetime import timedelta
from typing import Any, TypeVar

from pydantic_core import to_json
from temporalio import workflow

from clew_workflows.contract.errors import (
    ArchiveDamaged,
    ArchiveUnavailable,
    Busy,
    Interrupted,
    InvalidInput,
    NewerVersion,
    Refusal,
    Starting,
    TooLarge,
    make_refusal,
)
from clew_workflows.contract.outputs import CloseReceipt, HibernateReceipt
from clew_workflows.host import execution, telemetry
from clew_workflows.host.intake import Intake
from clew_workflows.host.recalling import Recalling
from clew_workflows.host.row import Row
from clew_workflows.host.runtime import FULL, PRESSING, SPENT, Runtime
from clew_workflows.protocol import ArchiveRef, Archiving, Failure, Thaw, WrittenArchive
from clew_workflows.session import carried, decisions, ui
from clew_workflows.session.advance import Session

T = TypeVar("T")

# Start-up: a session finds out whether it is new or archived, before it decides anything.


class Startup:
    """Finds out whether one session is new or archived.

    Attributes:
        away: The refusal that callers get while the store does not answer; None if it does.
    """

    def __init__(self, runtime: Runtime, intake: Intake, after: str | None) -> None:
        self.away: Refusal | None = None
        self._runtime = runtime
        self._intake = intake
        self._after = after

    @property
    def refusal_of_readers(self) -> Refusal:
        """The refusal that readers get before the session has started. They need not wait for a repair."""
        is_damaged = self.away is not None and self.away.type == ArchiveDamaged.type
        waits = Starting("the session is looking for its archive: ask again in a moment")
        return self.away if self.away and is_damaged else waits

    async def open_session(self) -> Refusal | None:
        """Hold callers until we know whether the session is new or archived, and open the intake then.

        If the store is slow, callers are refused, and a close is confirmed; the intake stays closed after it. The
        answer is the refusal that ends the session, if it cannot begin.
        """
        intake = self._intake
        runtime, finding = self._runtime, asyncio.create_task(self._find())
        finding.add_done_callback(lambda _: runtime.settle_soon())
        while not finding.done():
            await runtime.wait_until(lambda: finding.done() or self.away is not None)
            if self.away and not finding.done():
                if intake.asked_to_close:
                    intake.confirm_close()
                intake.turn_away(self.away)
                await runtime.wait_until(lambda: finding.done() or self.away is None or intake.asked_to_close)
                if intake.asked_to_close and not finding.done():
                    finding.cancel()
                    intake.confirm_close()
                    return None
        # A worker that is too old for the state fails the workflow task: the session waits for a newer one.
        if isinstance(refused := finding.exception(), Refusal) and not isinstance(refused, NewerVersion):
            intake.turn_away(refused)
            return refused
        await finding
        intake.open()
        return None

    async def _find(self) -> None:
        """Continue the session from its archive, with the same seqs, or begin a new one.

        Raises:
            Interrupted: The archive belongs to another execution, whose last entries it lacks.
            InvalidInput: The session is a subagent's, and has an archive.
            Refusal: The archive cannot be used.
        """
        runtime = self._runtime
        own = {"execution": workflow.info().first_execution_run_id, "after": self._after}
        effect = runtime.state.preparation.model_copy(update=own)
        prepared = await self._retry_until_answered(
            lambda time_limit: execution.carry_out(effect, time_limit, runtime.state)
        )
        if prepared.interrupted:
            raise Interrupted(prepared.interrupted)
        runtime.effect = None
        if prepared.state and runtime.state.assignment:
            raise InvalidInput("there is an archived session of this id: a subagent begins with a new one")
        if prepared.state and prepared.archive:
            runtime.resume(await self._thaw(prepared.archive, prepared.state, prepared.search_attributes))
        else:
            runtime.state = replace(runtime.state, archive=prepared.archive)
            runtime.apply(decisions.take_event(runtime.state, prepared, runtime.now))

    async def _thaw(self, archive: ArchiveRef, state: str, attributes: tuple[str, ...]) -> Session:
        """Fetch the archived session. A worker will resolve its configuration again."""
        effect = Thaw(archive=archive, state=state)
        thawed = await self._retry_until_answered(
            lambda time_limit: execution.carry_out(effect, time_limit, self._runtime.state)
        )
        session = carried.restore({"version": thawed.version, "zlib": thawed.zlib})
        waking = replace(
            session.state,
            archive=thawed.archive or archive,
            phase="preparing",
            settings=replace(session.state.settings, attributes=attributes),
        )
        return replace(session, state=waking, effect=waking.preparation)

    async def _retry_until_answered(self, attempt: Callable[[timedelta | None], Awaitable[T | Failure]]) -> T:
        """Attempt something until the store answers. After the first timeout callers are refused meanwhile.

        Raises:
            Refusal: It failed for a reason that no retry changes.
        """
        answer = await attempt(self._runtime.waits.store_timeout)
        if isinstance(answer, Failure) and answer.retryable:
            self.away = make_unavailable(answer)
            self._runtime.settle_soon()
            answer = await attempt(None)
            self.away = None
        if isinstance(answer, Failure):
            raise make_refusal(answer.type, answer.message)
        return answer


def make_unavailable(failure: Failure | None) -> Refusal:
    """Make the refusal for callers while the archive cannot be used.

    The store fails, an object is damaged, or the worker is too old for it.
    """
    if failure and failure.type == ArchiveDamaged.type:
        return ArchiveDamaged(
            f"the session's archive is damaged: {failure.message}. Restore the object from a backup of the store: "
            "the session goes on by itself then"
        )
    # When the time for the attempts is over, the failure's message begins with the type of the last one.
    if failure and failure.message.startswith(prefix := f"{NewerVersion.type}: "):
        return NewerVersion(failure.message.removeprefix(prefix))
    reason = failure.message if failure else "no answer"
    return ArchiveUnavailable(f"the session's archive cannot be reached, try again later: {reason}")


# Rollover, hibernation and close.


# Phases that must end in this workflow run. A summary adds few events, and its caller waits for the answer.
_STAYING = ("summarizing", "hibernating", "closed")


class Rollover:
    """Archives one session: it continues in a new workflow run when its history is full, hibernates or closes.

    Attributes:
        away: Why the last rollover could not archive the session; None if it could.
        is_wanted: The next workflow run is to begin: no step of the session begins in this one.
        dismiss_waiters: Releases the callers that wait for the outcome of a request.
    """

    def __init__(self, runtime: Runtime, intake: Intake, recalling: Recalling, row: Row) -> None:
        self.away: Refusal | None = None
        self.is_wanted = False
        self.dismiss_waiters: Callable[[], None] = _dismiss_none
        self._runtime, self._intake, self._recalling, self._row = runtime, intake, recalling, row
        self._fullness = 0.0
        self._ask_again_at = 0.0
        self._waited_when_asked = False
        self._writing = asyncio.Lock()
        self._put_away_upto: int | None = None
        self._says_closed = False
        self._has_ended = False
        self._refusal: Refusal | None = None

    @property
    def due(self) -> bool:
        """Whether the next workflow run should begin: between requests, between steps if it is urgent.

        It is urgent if the history is nearly full, and if the session has to move to another worker version.
        """
        state = self._runtime.state
        if state.archive is None or self.store_retry_delay:
            return False
        if state.phase in _STAYING or state.stopping:
            return False
        if self._says_closed or self._must_move:
            return True
        enough = PRESSING if state.busy or state.late_calls or state.phase == "preparing" else 1.0
        return self._fullness >= enough

    def measure(self) -> None:
        """Measure the event history, after each commit.

        A task that only refuses an update leaves no trace in the history: nothing may follow from what it sees. So
        messages are refused by the measure by which the next attempt is made.
        """
        if archive := self._runtime.state.archive:
            self._fullness = self._runtime.fullness.measure(archive.thresholds)

    @property
    def _must_move(self) -> bool:
        """Whether another version of the workers is to serve the session. The results of late calls are awaited."""
        return workflow.info().is_target_worker_deployment_version_changed() and not self._runtime.state.late_calls

    @property
    def full(self) -> bool:
        """Whether no new message is accepted until the archive can be written again."""
        return self._fullness >= FULL

    @property
    def store_retry_delay(self) -> timedelta | None:
        """The time until the next attempt, after the store did not answer; None: try now.

        A session that has become unable to go on since the last attempt tries at once.
        """
        left = self._ask_again_at - workflow.time()
        return timedelta(seconds=left) if left > 0 and (self._waited_when_asked or not self._must_wait) else None

    @property
    def _has_answered(self) -> bool:
        """Whether all updates and signals that have arrived are decided and answered."""
        return workflow.all_handlers_finished() and self._intake.is_settled

    @property
    def _must_wait(self) -> bool:
        """Whether nothing goes on without the archive. Accepted work goes on longer than new messages are taken."""
        return self._fullness >= (SPENT if self._runtime.state.busy else FULL)

    async def roll(self) -> None:
        """Archive all entries and continue as new. Returns if that cannot be done at present."""
        runtime = self._runtime
        self._waited_when_asked = self._must_wait
        answer = await self._archive(None if self._waited_when_asked else runtime.waits.store_timeout)
        # Counted from the end of the attempt: between two attempts the session goes on, however long one lasts.
        self._ask_again_at = workflow.time() + runtime.waits.store_retry_interval.total_seconds()
        if isinstance(answer, Failure):
            self.away = make_unavailable(answer)
            return
        self.away = None
        if runtime.state.late_calls:
            # Their workers learn by a heartbeat that the session has gone on, and send late results from then on.
            with suppress(TimeoutError):
                await runtime.wait_until(
                    lambda: not runtime.state.late_calls or runtime.state.closed, execution.HEARTBEAT_TIMEOUT
                )
        # Entries that operations have just brought back into contexts are carried to the next workflow run.
        await self._recalling.recall_changed()
        if runtime.state.phase in _STAYING or runtime.state.stopping:
            self._ask_again_at = 0.0
            return
        # The queues may be too large to be carried. They shrink as the session works.
        measured, start = self._snapshot, self._make_start()
        if len(to_json(start)) > (carried.MAX_START_BYTES if self.full else carried.MAX_ROLLED_BYTES):
            return
        runtime.rolling = True
        self.dismiss_waiters()
        # A close that arrives now is answered in this workflow run, after the session has ended.
        await workflow.wait_condition(
            lambda: runtime.state.closed or runtime.state.stopping or (self._has_answered and not runtime.unconfirmed)
        )
        if runtime.state.stopping:
            # Handlers wait for the end of the run that is being stopped, which the caller of `roll` brings about.
            runtime.rolling, self._ask_again_at = False, 0.0
        elif not runtime.state.closed:
            self._row.update(shows_all=True)
            telemetry.count_rollover()
            workflow.continue_as_new(
                args=[start if self._snapshot == measured else self._make_start()],
                memo=self._row.memo,
                initial_versioning_behavior=workflow.ContinueAsNewVersioningBehavior.AUTO_UPGRADE,
            )

    async def put_away(self, time_limit: timedelta | None = None) -> None:
        """Archive the session at its end in this execution.

        Raises:
            ArchiveUnavailable: The archive could not be written within the time.
            ThreadMismatch: The archive belongs to another execution.
        """
        if self._runtime.state.archive is None:
            return
        try:
            if self._writing.locked():
                # Another write is under way, which may wait for the store without a limit.
                await workflow.wait_condition(lambda: not self._writing.locked(), timeout=time_limit)
            while self._put_away_upto != self._runtime.thread.last_seq:
                answer = await self._archive(time_limit, closed=True)
                if isinstance(answer, Failure):
                    self._put_away_upto = None
                    # The write may have succeeded although its answer was lost. Mark the head live again at the next
                    # chance.
                    self._says_closed = True
                    raise (
                        make_unavailable(answer) if answer.retryable else make_refusal(answer.type, answer.message)
                    )
                self._put_away_upto = answer.archive.upto
        except TimeoutError:
            raise make_unavailable(None) from None

    def archive_state(self) -> dict[str, Any]:
        """Return the state to archive, from which the session continues once all its entries are archived.

        Raises:
            TooLarge: The queues are too large to be carried.
        """
        runtime, state = self._runtime, self._runtime.state
        last_seq = runtime.thread.last_seq
        if state.archive:
            state = replace(state, archive=state.archive.model_copy(update={"upto": last_seq}))
        packed = carried.carry(replace(runtime.session, state=state))
        if carried.measure_size(packed) > carried.MAX_START_BYTES:
            raise TooLarge("the queues are too large to be archived: they shrink as the session works")
        summary = ui.summarize_session(state).as_dict()
        return {"last_seq": last_seq, "carried": packed, "summary": summary}

    @property
    def _snapshot(self) -> tuple[Session, int]:
        """What the argument of the next workflow run is made from. A thread only grows."""
        return self._runtime.session, self._runtime.thread.rev

    def _make_start(self) -> dict[str, Any]:
        """Make the argument of the next workflow run."""
        runtime = self._runtime
        config = runtime.state.settings.own.model_dump(mode="json", exclude_unset=True)
        return {"config": config, "carried": carried.carry(runtime.session)}

    async def _archive(self, time_limit: timedelta | None, closed: bool = False) -> WrittenArchive | Failure:
        runtime = self._runtime
        # One write at a time: the last one decides whether the head says that the session ended.
        async with self._writing:
            assert runtime.state.archive is not None
            effect = Archiving(archive=runtime.state.archive, closed=closed)
            answer = await execution.carry_out(effect, time_limit, runtime.state)
            if isinstance(answer, WrittenArchive):
                runtime.state = replace(
                    runtime.state,
                    archive=answer.archive,
                    settings=replace(runtime.state.settings, attributes=answer.search_attributes),
                )
                self._says_closed = self._says_closed and closed
        return answer

    # Hibernation and close: all of a session is archived before its workflow completes.

    async def hibernate(self, reason: str | None) -> dict[str, Any]:
        """Archive the session and end it. If that fails the session continues.

        Raises:
            ArchiveUnavailable: The archive cannot be written at present, or there is none.
            Busy: A run is active or may still get results, a request waits, or the session continues as new.
            Closed: The session hibernates or is closed.
            ThreadMismatch: The archive belongs to another execution.
        """
        runtime = self._runtime
        await runtime.wait_until(lambda: runtime.state.phase != "preparing" or runtime.rolling)
        if runtime.state.phase == "preparing" or runtime.rolling:
            raise Busy("the session goes on in a new run of its workflow: try again in a moment")
        runtime.apply(decisions.hibernate(runtime.state, reason))
        try:
            await self.put_away(runtime.waits.store_timeout)
        except Refusal as refusal:
            if not runtime.state.closed:
                runtime.apply(decisions.wake(runtime.state, str(refusal)))
            raise
        if not runtime.state.closed:
            runtime.apply(decisions.end(runtime.state))
        return HibernateReceipt(last_seq=runtime.thread.last_seq).as_dict()

    async def end(self) -> None:
        """Archive a closed session. While the store is away it waits, without a time limit.

        Raises:
            ThreadMismatch: The archive belongs to another execution.
        """
        try:
            await self.put_away()
        except BaseException as error:
            unfinished = ArchiveUnavailable("the workflow was cancelled before all of the session was archived")
            self._refusal = error if isinstance(error, Refusal) else unfinished
            raise
        finally:
            self._has_ended = True
            self._runtime.settle_soon()

    async def wait_for_end(self) -> dict[str, Any]:
        """Wait until the closed session is archived, and answer the close. The workflow completes right after it.

        Raises:
            ArchiveUnavailable: The store is away. The session is closed; its workflow ends once the store is back.
            ThreadMismatch: The archive belongs to another execution. The workflow fails with the same type.
        """
        try:
            await self._runtime.wait_until(lambda: self._has_ended, self._runtime.waits.store_timeout)
        except TimeoutError:
            raise ArchiveUnavailable(
                "the session is closed, and its workflow goes on until its archive can be written: "
                "send close_session again to wait for that"
            ) from None
        if self._refusal:
            raise self._refusal
        return CloseReceipt(last_seq=self._runtime.thread.last_seq).as_dict()


def _dismiss_none() -> None:
    """Release nobody: no caller can wait yet."""
