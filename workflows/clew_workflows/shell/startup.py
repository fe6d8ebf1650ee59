"""Start-up: what a session is, new or archived, is found out before anything is decided."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from datetime import timedelta
from typing import TypeVar

from temporalio import workflow

from clew.errors import ArchiveUnavailable, Refusal, ThreadMismatch, make_refusal
from clew.thread.entries import Entry
from clew_workflows.core import carried, decisions
from clew_workflows.core.advance import Session
from clew_workflows.protocol import ArchiveRef, Failure, Thaw
from clew_workflows.shell import execution
from clew_workflows.shell.intake import Intake
from clew_workflows.shell.runtime import Runtime

T = TypeVar("T")


class Startup:
    """Finds out what one session is.

    Attributes:
        away: The store does not answer: callers are refused with this until it does.
    """

    def __init__(self, runtime: Runtime, intake: Intake) -> None:
        self.away: Refusal | None = None
        self._runtime = runtime
        self._intake = intake

    async def open_session(self) -> Refusal | None:
        """Open the intake once it is known what the session is.

        Callers wait for that, unless the store is slow: then they are refused, and a close is confirmed. After a
        close the intake stays closed. The answer is the refusal that ends the session where it cannot begin.
        """
        intake = self._intake
        finding = asyncio.create_task(self._find())
        while not finding.done():
            await workflow.wait_condition(lambda: finding.done() or self.away is not None)
            if self.away and not finding.done():
                if intake.asked_to_close:
                    intake.confirm_close()
                intake.turn_away(self.away)
                await workflow.wait_condition(lambda: finding.done() or self.away is None or intake.asked_to_close)
                if intake.asked_to_close and not finding.done():
                    finding.cancel()
                    intake.confirm_close()
                    return None
        if isinstance(refused := finding.exception(), Refusal):
            intake.turn_away(refused)
            return refused
        await finding
        intake.open()
        return None

    async def _find(self) -> None:
        """Go on from the session's archive, with every seq intact, or begin a new session.

        Raises:
            Refusal: it cannot go on from its archive.
        """
        runtime = self._runtime
        effect = runtime.state.preparation.model_copy(update={"execution": workflow.info().first_execution_run_id})
        prepared = await self._insist(lambda time_limit: execution.carry_out(effect, time_limit))
        if prepared.mismatch:
            raise ThreadMismatch(prepared.mismatch)
        runtime.effect = None
        if prepared.state and prepared.archive:
            runtime.resume(await self._thaw(prepared.archive, prepared.state))
        else:
            runtime.state = replace(runtime.state, archive=prepared.archive)
            runtime.apply(decisions.take_event(runtime.state, prepared, runtime.now))

    async def _thaw(self, archive: ArchiveRef, state: str) -> Session:
        """What an archived session goes on from. Its tools are those of the worker that it finds."""
        effect = Thaw(archive=archive, state=state)
        thawed = await self._insist(lambda time_limit: execution.carry_out(effect, time_limit))
        session = carried.restore({"version": carried.VERSION, "zlib": thawed.zlib})
        for row in thawed.newer:
            session.thread.append(Entry.from_json(row))
        waking = replace(session.state, archive=thawed.archive or archive, phase="preparing")
        return replace(session, state=waking, effect=waking.preparation)

    async def _insist(self, attempt: Callable[[timedelta | None], Awaitable[T | Failure]]) -> T:
        """The answer of an attempt, however long that takes; callers are refused if it is not there soon.

        Raises:
            Refusal: nothing will ever come of it.
        """
        answer = await attempt(self._runtime.waits.store)
        if isinstance(answer, Failure) and answer.retryable:
            self.away = make_unavailable(answer)
            answer = await attempt(None)
            self.away = None
        if isinstance(answer, Failure):
            raise make_refusal(answer.type, answer.message)
        return answer


def make_unavailable(failure: Failure | None) -> ArchiveUnavailable:
    """The refusal while a store does not answer, or fails."""
    reason = failure.message if failure else "no answer"
    return ArchiveUnavailable(f"the session's archive cannot be reached, try again later: {reason}")
