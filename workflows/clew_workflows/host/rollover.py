"""Rollover: before its history is full, a session archives its entries and continues in a new workflow run.

The next run begins on the version of the workers that is current then, if they have versions. If that is another one
than the session's, it rolls over before its next step.

`due` says when, by the thresholds `protocol.RolloverThresholds` and the history that `tasks` measures. `roll` does
it. `put_away` archives a session that hibernates or closes.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from dataclasses import replace
from datetime import timedelta
from typing import Any

from pydantic_core import to_json
from temporalio import workflow

from clew_workflows.contract.errors import ArchiveUnavailable, Busy, Refusal, TooLarge, make_refusal
from clew_workflows.contract.outputs import CloseReceipt, HibernateReceipt
from clew_workflows.host import execution, telemetry
from clew_workflows.host.duties import LastingDuty
from clew_workflows.host.effects import Recalling
from clew_workflows.host.intake import Intake
from clew_workflows.host.runtime import Runtime
from clew_workflows.host.startup import make_unavailable
from clew_workflows.host.tasks import FULL, PRESSING, SPENT, Fullness
from clew_workflows.host.visibility import Visibility
from clew_workflows.host.waiters import Waiters
from clew_workflows.protocol import Archiving, Failure, WrittenArchive
from clew_workflows.session import carried, decisions, ui
from clew_workflows.session.advance import Session
from clew_workflows.temporal_faults.task_commands import TaskCommands

# Phases that must end in this workflow run. A summary adds few events, and its caller waits for the answer.
_STAYING = ("summarizing", "hibernating", "closed")


class Rollover:
    """Archives one session, and continues it in a new workflow run when its history is full.

    Attributes:
        away: Why the last rollover could not archive the session; None if it could.
    """

    def __init__(
        self,
        runtime: Runtime,
        fullness: Fullness,
        recalling: Recalling,
        waiters: Waiters,
        task_commands: TaskCommands,
        *,
        visibility: Visibility,
        intake: Intake,
    ) -> None:
        self.away: Refusal | None = None
        self._runtime = runtime
        self._intake = intake
        self._recalling = recalling
        self._fullness = fullness
        self._waiters = waiters
        self._task_commands = task_commands
        self._visibility = visibility
        self._ask_again_at = 0.0
        self._waited_when_asked = False
        self._writing = asyncio.Lock()
        self._put_away_upto: int | None = None
        self._says_closed = False

    @property
    def due(self) -> bool:
        """Whether the next workflow run should begin: between requests, between steps if it is urgent.

        It is urgent if the history is nearly full, and if the session has to move to another worker version.
        """
        state = self._runtime.state
        if state.archive is None or self.store_retry_delay:
            return False
        if state.phase in _STAYING:
            return False
        if self._says_closed or self._must_move:
            return True
        enough = PRESSING if state.busy or state.late_calls or state.phase == "preparing" else 1.0
        return self._fullness.measure(state.archive.thresholds) >= enough

    @property
    def _must_move(self) -> bool:
        """Whether another version of the workers is to serve the session. The results of late calls are awaited."""
        return self._fullness.task.is_moving and not self._runtime.state.late_calls

    @property
    def full(self) -> bool:
        """Whether no new message is accepted until the archive can be written again."""
        archive = self._runtime.state.archive
        return archive is not None and self._fullness.measure(archive.thresholds) >= FULL

    @property
    def store_retry_delay(self) -> timedelta | None:
        """The time until the next attempt, after the store did not answer; None: try now.

        A session that has become unable to go on since the last attempt tries at once.
        """
        left = self._ask_again_at - self._fullness.task.time
        return timedelta(seconds=left) if left > 0 and (self._waited_when_asked or not self._must_wait) else None

    @property
    def _has_answered(self) -> bool:
        """Whether all updates and signals that have arrived are decided and answered."""
        return workflow.all_handlers_finished() and self._intake.is_settled

    @property
    def _must_wait(self) -> bool:
        """Whether nothing goes on without the archive. Accepted work goes on longer than new messages are taken."""
        archive = self._runtime.state.archive
        enough = SPENT if self._runtime.state.busy else FULL
        return archive is not None and self._fullness.measure(archive.thresholds) >= enough

    async def roll(self) -> None:
        """Archive all entries and continue as new. Returns if that cannot be done at present."""
        runtime = self._runtime
        self._ask_again_at = workflow.time() + runtime.waits.store_retry_interval.total_seconds()
        self._waited_when_asked = self._must_wait
        answer = await self._archive(None if self._waited_when_asked else runtime.waits.store_timeout)
        if isinstance(answer, Failure):
            self.away = make_unavailable(answer)
            return
        self.away = None
        if runtime.state.late_calls:
            # Their workers learn by a heartbeat that the session has gone on, and send late results from then on.
            with suppress(TimeoutError):
                await workflow.wait_condition(
                    lambda: not runtime.state.late_calls or runtime.state.closed, timeout=execution.HEARTBEAT_TIMEOUT
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
        self._waiters.dismiss()
        if not self._has_answered or runtime.unconfirmed:
            self._task_commands.ensure()
        # A close that arrives now is answered in this workflow run, after the session has ended.
        await workflow.wait_condition(
            lambda: runtime.state.closed or runtime.state.stopping or (self._has_answered and not runtime.unconfirmed)
        )
        if runtime.state.stopping:
            # Handlers wait for the end of the run that is being stopped, which the caller of `roll` brings about.
            runtime.rolling, self._ask_again_at = False, 0.0
        elif not runtime.state.closed:
            self._visibility.update(shows_all=True)
            telemetry.count_rollover()
            workflow.continue_as_new(
                args=[start if self._snapshot == measured else self._make_start()],
                memo=self._visibility.memo,
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


class Hibernation(LastingDuty):
    """Archives one session before its workflow completes."""

    def __init__(self, runtime: Runtime, rollover: Rollover, task_commands: TaskCommands) -> None:
        super().__init__()
        self._runtime = runtime
        self._rollover = rollover
        self._task_commands = task_commands
        self._ended = False
        self._refusal: Refusal | None = None

    async def hibernate(self, reason: str | None) -> dict[str, Any]:
        """Archive the session and end it. If that fails the session continues.

        Raises:
            ArchiveUnavailable: The archive cannot be written at present, or there is none.
            Busy: A run is active or may still get results, a request waits, or the session continues as new.
            Closed: The session hibernates or is closed.
            ThreadMismatch: The archive belongs to another execution.
        """
        runtime = self._runtime
        await workflow.wait_condition(lambda: runtime.state.phase != "preparing" or runtime.rolling)
        if runtime.state.phase == "preparing" or runtime.rolling:
            raise Busy("the session goes on in a new run of its workflow: try again in a moment")
        runtime.apply(decisions.hibernate(runtime.state, reason))
        try:
            await self._rollover.put_away(runtime.waits.store_timeout)
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
            await self._rollover.put_away()
        except BaseException as error:
            unfinished = ArchiveUnavailable("the workflow was cancelled before all of the session was archived")
            self._refusal = error if isinstance(error, Refusal) else unfinished
            raise
        finally:
            self._ended = True

    async def wait_for_end(self) -> dict[str, Any]:
        """Wait until the closed session is archived, and answer the close. The workflow completes right after it.

        Raises:
            ArchiveUnavailable: The store is away. The session is closed; its workflow ends once the store is back.
            ThreadMismatch: The archive belongs to another execution. The workflow fails with the same type.
        """
        try:
            await workflow.wait_condition(lambda: self._ended, timeout=self._runtime.waits.store_timeout)
        except TimeoutError:
            raise ArchiveUnavailable(
                "the session is closed, and its workflow goes on until its archive can be written: "
                "send close_session again to wait for that"
            ) from None
        if self._refusal:
            raise self._refusal
        return CloseReceipt(last_seq=self._runtime.thread.last_seq).as_dict()

    @property
    def _is_wanted(self) -> bool:
        state = self._runtime.state
        if state.busy or state.late_calls or state.closed:
            return False
        # A new version of the agent may set, change or remove it.
        return state.settings.config.idle_timeout_seconds is not None

    async def _perform(self) -> None:
        """Hibernate after the idle time; after a failure try again when it has passed once more."""
        runtime = self._runtime
        seconds = runtime.state.settings.config.idle_timeout_seconds or 0
        left = runtime.active_at + seconds - workflow.time()
        if left <= 0 and runtime.state.phase == "idle" and not runtime.rolling:
            with suppress(Refusal):
                await self.hibernate(f"nothing has happened for {seconds} seconds")
                # The end may wait for handlers alone: the task would have no command.
                self._task_commands.ensure()
                return
        await workflow.sleep(left if left > 0 else seconds, summary="hibernates then, if nothing happens")
        if not self._is_wanted:
            # Nothing follows from the timer: the task that handles it would have no command.
            self._task_commands.ensure()
