"""Rollover: entries are archived, and the session goes on in a new workflow run, before a history is full."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from datetime import timedelta
from typing import Any

from pydantic_core import to_json
from temporalio import workflow

from clew.errors import TooLarge, make_refusal
from clew_workflows.core import carried
from clew_workflows.protocol import ArchiveRef, Archiving, Failure
from clew_workflows.shell import execution
from clew_workflows.shell.fullness import FULL, PRESSING, Fullness
from clew_workflows.shell.recalling import Recalling
from clew_workflows.shell.runtime import Runtime
from clew_workflows.shell.startup import make_unavailable
from clew_workflows.shell.task_commands import TaskCommands
from clew_workflows.shell.waiters import Waiters

# Phases that end in this workflow run. A summary adds next to nothing to the history, and its caller waits.
_STAYING = ("summarizing", "hibernating", "closed")


class Rollover:
    """Archives one session, and lets it go on in a new workflow run when the history of the present one is full."""

    def __init__(
        self,
        runtime: Runtime,
        fullness: Fullness,
        recalling: Recalling,
        waiters: Waiters,
        task_commands: TaskCommands,
    ) -> None:
        self._runtime = runtime
        self._recalling = recalling
        self._fullness = fullness
        self._waiters = waiters
        self._task_commands = task_commands
        self._ask_again_at = 0.0
        self._full_when_asked = False
        self._writing = asyncio.Lock()
        self._put_away_upto: int | None = None
        self._says_closed = False

    @property
    def due(self) -> bool:
        """Whether the next workflow run should begin: between requests if that can be had, else between steps."""
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
        """Whether no new message is accepted until the archive can be written again."""
        archive = self._runtime.state.archive
        return archive is not None and self._fullness.share(archive.thresholds) >= FULL

    @property
    def pause(self) -> timedelta | None:
        """How long until the store is asked again, where it did not answer.

        A session that has become full since then asks at once, and waits for the answer: it can do nothing else.
        """
        left = self._ask_again_at - workflow.time()
        return timedelta(seconds=left) if left > 0 and (self._full_when_asked or not self.full) else None

    async def roll(self) -> None:
        """Archive all entries and continue as new. Returns where that cannot be done at present."""
        runtime = self._runtime
        self._ask_again_at = workflow.time() + runtime.waits.pause.total_seconds()
        self._full_when_asked = self.full
        if isinstance(await self._archive(None if self.full else runtime.waits.store), Failure):
            return
        # What operations have just brought back into contexts goes along to the next run.
        await self._recalling.recall_changed()
        if runtime.state.phase in _STAYING:
            self._ask_again_at = 0.0
            return
        # What waits for its turn may be too much to be carried; it becomes less.
        if len(to_json(self._start())) > (carried.MAX_START_BYTES if self.full else carried.MAX_ROLLED_BYTES):
            return
        runtime.rolling = True
        self._waiters.dismiss()
        if not workflow.all_handlers_finished():
            self._task_commands.ensure()
        # The caller of a close is answered when the session has ended: in this run of the workflow.
        await workflow.wait_condition(lambda: runtime.state.closed or workflow.all_handlers_finished())
        if not runtime.state.closed:
            workflow.continue_as_new(args=[self._start()])

    async def put_away(self, time_limit: timedelta | None = None) -> None:
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
                await workflow.wait_condition(lambda: not self._writing.locked(), timeout=time_limit)
            while self._put_away_upto != self._runtime.thread.last_seq:
                written = await self._archive(time_limit, closed=True)
                if isinstance(written, Failure):
                    self._put_away_upto = None
                    # The write may have succeeded although its answer was lost. Mark the head live again at the next
                    # chance.
                    self._says_closed = True
                    raise (
                        make_unavailable(written)
                        if written.retryable
                        else make_refusal(written.type, written.message)
                    )
                self._put_away_upto = written.upto
        except TimeoutError:
            raise make_unavailable(None) from None

    def archive_state(self) -> dict[str, Any]:
        """The session as it is archived: what it goes on from when all its entries are there."""
        runtime, state = self._runtime, self._runtime.state
        last_seq = runtime.thread.last_seq
        if state.archive:
            state = replace(state, archive=state.archive.model_copy(update={"upto": last_seq}))
        state_to_keep = carried.carry(replace(runtime.session, state=state))
        if carried.measure_size(state_to_keep) > carried.MAX_START_BYTES:
            raise TooLarge("more waits for its turn than can be carried: it becomes less as the session works")
        return {"last_seq": last_seq, "carried": state_to_keep}

    def _start(self) -> dict[str, Any]:
        """What the next run of the workflow starts with."""
        runtime = self._runtime
        config = runtime.state.config.model_dump(mode="json", exclude_unset=True)
        return {"config": config, "carried": carried.carry(runtime.session)}

    async def _archive(self, time_limit: timedelta | None, closed: bool = False) -> ArchiveRef | Failure:
        runtime = self._runtime
        # One after the other: what is written last says whether the session goes on in this execution.
        async with self._writing:
            assert runtime.state.archive is not None
            effect = Archiving(archive=runtime.state.archive, closed=closed)
            written = await execution.carry_out(effect, time_limit)
            if isinstance(written, ArchiveRef):
                runtime.state = replace(runtime.state, archive=written)
                self._says_closed = self._says_closed and closed
        return written
