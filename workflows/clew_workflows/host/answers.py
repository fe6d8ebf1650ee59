"""Answers to updates, which may follow later than the decision."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Any

from temporalio import workflow

from clew_workflows.contract import ContextQuery
from clew_workflows.contract.errors import CheckpointUnavailable, ClewError, Closed, make_refusal
from clew_workflows.contract.outputs import CheckpointReceipt, ConfigureReceipt, OperationReceipt
from clew_workflows.host import effects, execution
from clew_workflows.host.effects import Recalling
from clew_workflows.host.rollover import Hibernation
from clew_workflows.host.runtime import Runtime
from clew_workflows.host.waiters import Waiter, Waiters
from clew_workflows.protocol import Failure, SignCheckpoint
from clew_workflows.session import checkpoints, commands, requests, summaries
from clew_workflows.session.commands import Answer, Checkpointing
from clew_workflows.temporal_faults.task_commands import TaskCommands

# Signing: a worker signs the checkpoint that a session has drafted.


class Signing:
    """Has checkpoints signed. The worker fetches a draft by query, so that the history holds the token alone."""

    def __init__(self, runtime: Runtime, recalling: Recalling, task_commands: TaskCommands) -> None:
        self._runtime = runtime
        self._recalling = recalling
        self._task_commands = task_commands
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
        if self._signing.locked():
            # Nothing follows from recalled entries yet: the task that handles them would have no command.
            self._task_commands.ensure()
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
        self,
        runtime: Runtime,
        waiters: Waiters,
        recalling: Recalling,
        signing: Signing,
        hibernation: Hibernation,
    ) -> None:
        self._runtime = runtime
        self._waiters = waiters
        self._recalling = recalling
        self._signing = signing
        self._hibernation = hibernation

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
                seq = effects.find_summary(self._runtime, summary_id).seq
                return OperationReceipt(op_id=op_id, status="applied", seq=seq).as_dict()
            case commands.Checkpointing() as checkpointing:
                return await self._signing.sign_checkpoint(checkpointing)
            case commands.Hibernating(reason):
                return await self._hibernation.hibernate(reason)
            case commands.Closing():
                return await self._hibernation.wait_for_end()
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
        await workflow.wait_condition(
            lambda: not runtime.state.settings.due or runtime.state.closed or runtime.rolling
        )
        if not runtime.state.settings.due:
            config = runtime.thread.find_config(runtime.thread.last_seq)
            return ConfigureReceipt(seq=config.seq if config else None, status="applied").as_dict()
        if runtime.state.closed:
            raise Closed("the session closed before the change took effect")
        return ConfigureReceipt(status="deferred").as_dict()

    async def _answer_summarize(self, summary_id: str) -> dict[str, Any]:
        await self._wait_for_summary(summary_id)
        return effects.make_receipt(self._runtime, summary_id)

    async def _wait_for_summary(self, summary_id: str) -> None:
        await workflow.wait_condition(lambda: not summaries.is_making(self._runtime.state, summary_id))
