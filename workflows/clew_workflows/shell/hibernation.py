"""Hibernation and close: all of a session is archived before its workflow completes."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

from temporalio import workflow

from clew.contract.receipts import CloseReceipt, HibernateReceipt
from clew.errors import ArchiveUnavailable, Busy, Refusal
from clew_workflows.core import decisions
from clew_workflows.shell.background import LastingDuty
from clew_workflows.shell.rollover import Rollover
from clew_workflows.shell.runtime import Runtime
from clew_workflows.shell.task_commands import TaskCommands


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
        return state.config.idle_timeout_seconds is not None

    async def _perform(self) -> None:
        """Hibernate after the idle time; after a failure try again when it has passed once more."""
        runtime = self._runtime
        seconds = runtime.state.config.idle_timeout_seconds or 0
        left = runtime.active_at + seconds - workflow.time()
        if left <= 0 and runtime.state.phase == "idle" and not runtime.rolling:
            with suppress(Refusal):
                await self.hibernate(f"nothing has happened for {seconds} seconds")
                return
        await workflow.sleep(left if left > 0 else seconds, summary="hibernates then, if nothing happens")
        state = runtime.state
        if state.busy or state.late_calls or state.closed:
            # Nothing follows from the timer: the task that handles it would have no command.
            self._task_commands.ensure()
