"""Start-up: a session finds out whether it is new or archived, before it decides anything."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from datetime import timedelta
from typing import TypeVar

from temporalio import workflow

from clew_workflows.contract.errors import (
    ArchiveDamaged,
    ArchiveUnavailable,
    Interrupted,
    InvalidInput,
    NewerVersion,
    Refusal,
    Starting,
    make_refusal,
)
from clew_workflows.host import execution
from clew_workflows.host.intake import Intake
from clew_workflows.host.runtime import Runtime
from clew_workflows.protocol import ArchiveRef, Failure, Thaw
from clew_workflows.session import carried, decisions
from clew_workflows.session.advance import Session

T = TypeVar("T")


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
