"""Webhooks: a session starts a workflow for each notice, which outlives it and sends the notice for days.

A notice is a part of the session's state until the server has confirmed the start of its workflow. So none is lost
when a worker dies or the session rolls over, and no turn waits for a receiver. The workflow is
`services.DeliverWebhook`.
"""

from __future__ import annotations

from contextlib import suppress
from typing import Any

from temporalio import workflow
from temporalio.common import RawValue, WorkflowIDReusePolicy
from temporalio.exceptions import ChildWorkflowError, WorkflowAlreadyStartedError

from clew_workflows.contract.names import DELIVER_WORKFLOW, DELIVERY_PREFIX
from clew_workflows.host.duties import start_background_task
from clew_workflows.host.execution import make_priority
from clew_workflows.host.runtime import Runtime
from clew_workflows.protocol import Delivery
from clew_workflows.session import webhooks
from clew_workflows.temporal_faults.task_commands import TaskCommands


class Webhooks:
    """Starts the deliveries of one session's notices."""

    def __init__(self, runtime: Runtime, task_commands: TaskCommands) -> None:
        self._runtime = runtime
        self._task_commands = task_commands

    @property
    def is_due(self) -> bool:
        """Whether there are notices. While the session rolls over, they are the next workflow run's."""
        state = self._runtime.state
        return bool(state.notices) and not (self._runtime.rolling and not state.closed)

    def begin(self) -> None:
        """Start a delivery of each notice."""
        runtime = self._runtime
        for notice in runtime.state.notices:
            receivers = webhooks.list_webhooks(runtime.state, notice.message.type)
            if receivers:
                runtime.unconfirmed += 1
                start_background_task(self._deliver(Delivery(notice=notice, webhooks=receivers)))
        runtime.apply(webhooks.take_notices(runtime.state))

    async def settle(self) -> None:
        """Start the remaining deliveries before the session ends; wait for the server's confirmation."""
        if self.is_due:
            self.begin()
        await workflow.wait_condition(lambda: not (self._runtime.unconfirmed or self.is_due))

    async def _deliver(self, delivery: Delivery) -> None:
        """Start the workflow of a delivery, and see its end while this workflow run lasts."""
        session_id, notice = self._runtime.state.session_id, delivery.notice
        event = notice.message.type
        sending: workflow.ChildWorkflowHandle[Any, RawValue] | None = None
        # It has been sent before if there is one: its receivers know the id.
        with suppress(WorkflowAlreadyStartedError):
            sending = await workflow.start_child_workflow(
                DELIVER_WORKFLOW,
                delivery.model_dump(mode="json"),
                id=f"{DELIVERY_PREFIX}{session_id}/{notice.notice_id}",
                result_type=RawValue,
                parent_close_policy=workflow.ParentClosePolicy.ABANDON,
                cancellation_type=workflow.ChildWorkflowCancellationType.ABANDON,
                id_reuse_policy=WorkflowIDReusePolicy.REJECT_DUPLICATE,
                priority=make_priority(self._runtime.state),
                memo={"session_id": session_id, "event": event},
                static_summary=f"webhook · {event} · {session_id}"[:200],
                static_details="A service workflow of Clew, DeliverWebhook: no session.",
            )
        self._runtime.unconfirmed -= 1
        self._task_commands.ensure()
        if sending is not None:
            # A failure is the delivery's own, where operators find it.
            with suppress(ChildWorkflowError):
                await sending
            self._task_commands.ensure()
