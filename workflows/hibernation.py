"""Hibernation: a session is put away whole, when it is asked to or when it has idled for long enough."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

from temporalio import workflow

from clew.answers import HibernateReceipt
from clew.errors import Busy, Refusal
from workflows import commands, decisions
from workflows.archivist import PATIENCE, Archivist
from workflows.journal import Journal


class Hibernation:
    """Puts one session away."""

    def __init__(self, journal: Journal, archivist: Archivist) -> None:
        self._journal = journal
        self._archivist = archivist

    async def hibernate(self) -> dict[str, Any]:
        """The session ends with all that it is in the archive, or goes on as before.

        Raises:
            ArchiveUnavailable, Busy, Closed, ThreadMismatch: as their words say.
        """
        journal, archivist = self._journal, self._archivist
        await workflow.wait_condition(lambda: journal.state.phase != "preparing" or archivist.rolling)
        if journal.state.phase == "preparing" or archivist.rolling:
            raise Busy("the session goes on in a new run of its workflow: try again in a moment")
        commands.check_hibernate(journal.state)
        journal.apply(decisions.hibernate(journal.state))
        try:
            await archivist.put_away(PATIENCE)
        except Refusal:
            if not journal.state.closed:
                journal.apply(decisions.wake(journal.state))
            raise
        if not journal.state.closed:
            journal.apply(decisions.close(journal.state, journal.now))
        return HibernateReceipt(last_seq=journal.thread.last_seq).as_json()

    async def doze(self, seconds: int) -> None:
        """Hibernate when nothing has happened for so long; if that cannot be done, try again after as long."""
        journal = self._journal
        while not journal.state.closed:
            await workflow.wait_condition(lambda: not journal.state.busy)
            left = journal.active_at + seconds - workflow.time()
            if left > 0:
                await workflow.sleep(left, summary="hibernates when idle")
            elif journal.state.phase == "idle" and not self._archivist.rolling:
                with suppress(Refusal):
                    await self.hibernate()
            else:
                await workflow.sleep(seconds, summary="hibernates when idle")
