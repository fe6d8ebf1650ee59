"""Answers to updates, which may follow later than the decision. Callers wait for them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

from temporalio import workflow
from temporalio.exceptions import ApplicationError

from clew_workflows.contract import ContextQuery
from clew_workflows.contract.errors import CheckpointUnavailable, ClewError, Closed, make_refusal
from clew_workflows.contract.limits import MAX_WAITERS
from clew_workflows.contract.outputs import CheckpointReceipt, ConfigureReceipt, OperationReceipt, SummaryReceipt
from clew_workflows.contract.payloads import ErrorPayload, SummaryPayload
from clew_workflows.host import execution
from clew_workflows.host.recalling import Recalling
from clew_workflows.host.rollover import Rollover
from clew_workflows.host.runtime import Runtime
from clew_workflows.protocol import Failure, SignCheckpoint
from clew_workflows.session import checkpoints, commands, requests, summaries
from clew_workflows.session.commands import Answer, Checkpointing
from clew_workflows.thread.entries import Entry

# Waiters: callers that wait for the outcome of a request.


@dataclass(eq=False, slots=True)
class Waiter:
    """A waiting caller.

    Attributes:
        since: When it arrived, in seconds of the workflow's clock.
        expired: It is to be answered `running`: it has given way to another one, or too many callers wait.
    """

    since: float
    expired: bool


class Waiters:
    """The waiters of one workflow run. Waiting adds nothing to the history: no timer ends a wait.

    A caller may have died while it waits. So when all places are taken, the oldest wait gives way once it has lasted
    for `patience`.
    """

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._patience_seconds = runtime.waits.caller_patience.total_seconds()
        # In the order of their arrival: a set has another order in each process, and a replay must choose the same.
        self._waiting: dict[Waiter, None] = {}
        self._dismissed = False

    def enter(self) -> Waiter:
        """Add a waiter; it expires at once if there is no place for it."""
        now = workflow.time()
        staying = [waiter for waiter in self._waiting if not waiter.expired]
        if len(staying) >= MAX_WAITERS:
            oldest = min(staying, key=lambda waiter: waiter.since)
            oldest.expired = now - oldest.since >= self._patience_seconds
            self._runtime.settle_soon()
        has_place = sum(not waiter.expired for waiter in staying) < MAX_WAITERS
        waiter = Waiter(since=now, expired=self._dismissed or not has_place)
        if not waiter.expired:
            self._waiting[waiter] = None
        return waiter

    async def wait(self, waiter: Waiter | None, done: Callable[[], bool]) -> None:
        """Wait until there is an answer, or until the waiter expires."""
        await self._runtime.wait_until(lambda: waiter is None or waiter.expired or done())
        if waiter:
            self._waiting.pop(waiter, None)

    def dismiss(self) -> None:
        """Release all waiters, present and future: this workflow run is about to end."""
        self._dismissed = True
        for waiter in self._waiting:
            waiter.expired = True
        self._runtime.settle_soon()


# Signing: a worker signs the checkpoint that a session has drafted.


class Signing:
    """Has checkpoints signed. The worker fetches a draft by query, so that the history holds the token alone."""

    def __init__(self, runtime: Runtime, recalling: Recalling) -> None:
        self._runtime = runtime
        self._recalling = recalling
        self._drafts: dict[int, checkpoints.CheckpointDraft] = {}
        self._number = 0
        self._signing = asyncio.Lock()

    def get_draft(self, number: int) -> dict[str, Any]:
        """Return a draft to a worker, which signs it.

        Raises:
            CheckpointUnavailable: There is no draft with this number, or it has been signed.
        """
        if number not in self._drafts:
            raise CheckpointUnavailable(f"there is no checkpoint {number} to be signed")
        draft = self._drafts[number]
        return {"payload": draft.payload, "fingerprinted": draft.fingerprinted}

    async def sign_checkpoint(self, checkpointing: Checkpointing) -> dict[str, Any]:
        """Draft the checkpoint of a lane as it was at the command, have it signed, and answer the update.

        Raises:
            CheckpointUnavailable: No worker has signed it in time.
            ClewError: The checkpoint cannot be made, or the worker refuses to sign it.
        """
        lane, policy = checkpointing.context_ref, checkpointing.state.settings.policy
        build = partial(self._runtime.project, ContextQuery(context_ref=lane, at_seq=checkpointing.at_seq))
        failure = await self._recalling.recall(lane, policy, build)
        if failure:
            raise _make_refusal(failure)
        # One at a time: a workflow task has room for 4 MB, which is less than ten tokens may have.
        async with self._signing:
            return await self._sign(checkpointing)

    async def _sign(self, checkpointing: Checkpointing) -> dict[str, Any]:
        number = self._number = self._number + 1
        try:
            draft = checkpoints.draft_checkpoint(
                checkpointing.state, self._runtime.thread, checkpointing.context_ref, checkpointing.at_seq
            )
            self._drafts[number] = draft
            effect = SignCheckpoint(number=number, expires_seconds=checkpointing.expires_seconds)
            signed = await execution.carry_out(effect, None, self._runtime.state)
            if isinstance(signed, Failure):
                raise _make_refusal(signed)
        finally:
            self._drafts.pop(number, None)
        token = f"{checkpoints.make_signed_part(draft.payload, signed)}.{signed.signature}"
        return CheckpointReceipt(token=token).as_dict()


def _make_refusal(failure: Failure) -> ClewError:
    if failure.type in ("timeout", "worker_lost"):
        return CheckpointUnavailable(f"no worker has signed the checkpoint in time: {failure.message}")
    return make_refusal(failure.type, failure.message)


class Answers:
    """Answers the callers of one session's updates."""

    def __init__(
        self, runtime: Runtime, waiters: Waiters, recalling: Recalling, signing: Signing, rollover: Rollover
    ) -> None:
        self._runtime, self._waiters, self._recalling = runtime, waiters, recalling
        self._signing, self._rollover = signing, rollover

    async def answer(self, answer: Answer, waiter: Waiter | None) -> dict[str, Any]:
        """Wait for an update's answer and return it as JSON.

        Raises:
            ApplicationError: A summary was not written; the type and the message are those of its `error` entry.
            ClewError: The session closed first, could not hibernate or close, or could not make the checkpoint.
        """
        match answer:
            case commands.Outcome(request_id):
                return await self._answer_request(request_id, waiter)
            case commands.Configured():
                return await self._answer_configure()
            case commands.SummaryAwaited(summary_id):
                return await self._answer_summarize(summary_id)
            case commands.CompactionAwaited(summary_id, op_id):
                await self._wait_for_summary(summary_id)
                seq = _find_summary(self._runtime, summary_id).seq
                return OperationReceipt(op_id=op_id, status="applied", seq=seq).as_dict()
            case commands.Checkpointing() as checkpointing:
                return await self._signing.sign_checkpoint(checkpointing)
            case commands.Hibernating(reason):
                return await self._rollover.hibernate(reason)
            case commands.Closing():
                return await self._rollover.wait_for_end()
            case None:
                return {}
            case receipt:
                if isinstance(receipt, OperationReceipt):
                    await self._recalling.wait_for_changed()
                return receipt.as_dict()

    async def _answer_request(self, request_id: str, waiter: Waiter | None) -> dict[str, Any]:
        """Wait for the outcome of a request; answer `running` after a long wait, or if too many callers wait."""
        runtime = self._runtime

        def has_ended() -> bool:
            return requests.has_ended(runtime.state, runtime.thread, request_id)

        await self._waiters.wait(waiter, has_ended)
        outcome = requests.find_outcome(runtime.state, runtime.thread, request_id)
        return (outcome or requests.make_running_outcome(runtime.state, runtime.thread, request_id)).as_dict()

    async def _answer_configure(self) -> dict[str, Any]:
        """Wait until a worker has resolved the change, if it names a new model or new tools."""
        runtime = self._runtime
        await runtime.wait_until(lambda: not runtime.state.settings.due or runtime.state.closed or runtime.rolling)
        if not runtime.state.settings.due:
            config = runtime.thread.find_config(runtime.thread.last_seq)
            return ConfigureReceipt(seq=config.seq if config else None, status="applied").as_dict()
        if runtime.state.closed:
            raise Closed("the session closed before the change took effect")
        return ConfigureReceipt(status="deferred").as_dict()

    async def _answer_summarize(self, summary_id: str) -> dict[str, Any]:
        await self._wait_for_summary(summary_id)
        entry = _find_summary(self._runtime, summary_id)
        summary = entry.read(SummaryPayload)
        return SummaryReceipt(
            seq=entry.seq, from_seq=summary.from_seq, to_seq=summary.to_seq, tokens=entry.tokens
        ).as_dict()

    async def _wait_for_summary(self, summary_id: str) -> None:
        await self._runtime.wait_until(lambda: not summaries.is_making(self._runtime.state, summary_id))


def _find_summary(runtime: Runtime, summary_id: str) -> Entry:
    """Find the entry of a summary or a compaction that has been written.

    Raises:
        ApplicationError: There is none: the type and the message are those of its `error` entry.
    """
    entry = runtime.thread.filter_by_ref("summary_id", summary_id)[-1]
    if isinstance(held := entry.body, ErrorPayload):
        raise ApplicationError(held.message, type=held.type, non_retryable=True)
    return entry
