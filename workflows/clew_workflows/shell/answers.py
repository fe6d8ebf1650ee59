"""Answers to updates, which may follow later than the decision."""

from __future__ import annotations

from typing import Any

from temporalio import workflow

from clew.contract.receipts import ConfigureReceipt, OperationReceipt
from clew.errors import Closed
from clew_workflows.core import commands, outcomes, summaries
from clew_workflows.core.commands import Answer
from clew_workflows.shell import summarizing
from clew_workflows.shell.hibernation import Hibernation
from clew_workflows.shell.recalling import Recalling
from clew_workflows.shell.runtime import Runtime
from clew_workflows.shell.signing import Signing
from clew_workflows.shell.waiters import Waiter, Waiters


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
            return outcomes.has_ended(runtime.state, runtime.thread, request_id)

        await self._waiters.wait(waiter, has_ended)
        outcome = outcomes.find_outcome(runtime.state, runtime.thread, request_id)
        return (outcome or outcomes.make_running_outcome(runtime.state, runtime.thread, request_id)).as_dict()

    async def _answer_configure(self) -> dict[str, Any]:
        """Wait until a worker has resolved the change, if it names a new model or new tools."""
        runtime = self._runtime
        await workflow.wait_condition(lambda: not runtime.state.config_due or runtime.state.closed or runtime.rolling)
        if not runtime.state.config_due:
            config = runtime.thread.find_config(runtime.thread.last_seq)
            return ConfigureReceipt(seq=config.seq if config else None, status="applied").as_dict()
        if runtime.state.closed:
            raise Closed("the session closed before the change took effect")
        return ConfigureReceipt(status="deferred").as_dict()

    async def _answer_summarize(self, summary_id: str) -> dict[str, Any]:
        runtime = self._runtime
        await workflow.wait_condition(lambda: not summaries.is_making(runtime.state, summary_id) or runtime.rolling)
        return summarizing.make_receipt(runtime, summary_id)
