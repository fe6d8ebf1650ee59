"""Answers to updates that are given later than the update is decided."""

from __future__ import annotations

from typing import Any

from temporalio import workflow

from clew.contract.outputs import ConfigureReceipt, OperationReceipt
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
        """The JSON that an update answers with, as soon as it is known.

        Raises:
            ApplicationError: a summary was not written, for the reason that the thread gives.
            ClewError: it could not be done.
        """
        match answer:
            case commands.Outcome(request_id):
                return await self._outcome(request_id, waiter)
            case commands.Configured():
                return await self._configured()
            case commands.SummaryAwaited(summary_id):
                return await self._summed_up(summary_id)
            case commands.Checkpointing() as checkpointing:
                return await self._signing.checkpoint(checkpointing)
            case commands.Hibernating(reason):
                return await self._hibernation.hibernate(reason)
            case commands.Closing():
                return await self._hibernation.wait_for_end()
            case None:
                return {}
            case receipt:
                if isinstance(receipt, OperationReceipt):
                    await self._recalling.wait_for_changed()
                return receipt.as_json()

    async def _outcome(self, request_id: str, waiter: Waiter | None) -> dict[str, Any]:
        """The outcome of a request as soon as it has one; `running` when the wait is long or crowded."""
        runtime = self._runtime

        def known() -> bool:
            return outcomes.find_outcome(runtime.state, runtime.thread, request_id) is not None

        await self._waiters.wait(waiter, known)
        ended = outcomes.find_outcome(runtime.state, runtime.thread, request_id)
        return (ended or outcomes.make_running_outcome(runtime.state, runtime.thread, request_id)).as_json()

    async def _configured(self) -> dict[str, Any]:
        """A new model or new tools are resolved by a worker first."""
        runtime = self._runtime
        await workflow.wait_condition(lambda: not runtime.state.config_due or runtime.state.closed or runtime.rolling)
        if not runtime.state.config_due:
            config = runtime.thread.find_config(runtime.thread.last_seq)
            return ConfigureReceipt(seq=config.seq if config else None, status="applied").as_json()
        if runtime.state.closed:
            raise Closed("the session closed before the change took effect")
        return ConfigureReceipt(status="deferred").as_json()

    async def _summed_up(self, summary_id: str) -> dict[str, Any]:
        runtime = self._runtime
        await workflow.wait_condition(lambda: not summaries.is_making(runtime.state, summary_id) or runtime.rolling)
        return summarizing.make_receipt(runtime, summary_id)
