"""Commands between sessions: a session starts its subagents, cancels them, and reports to its parent.

The state lists the commands that are due. This module sends each and records it, so that none is lost when a worker
dies or the session rolls over.
"""

from __future__ import annotations

from collections.abc import Callable

from temporalio import workflow
from temporalio.common import RawValue, WorkflowIDReusePolicy
from temporalio.exceptions import ChildWorkflowError, FailureError, WorkflowAlreadyStartedError

from clew_workflows.contract import CancelInput, SessionStart
from clew_workflows.contract.names import WORKFLOW_TYPE
from clew_workflows.host.duties import start_background_task
from clew_workflows.host.execution import make_priority
from clew_workflows.host.intake import Intake
from clew_workflows.host.runtime import Runtime
from clew_workflows.session import decisions, runs, subagents
from clew_workflows.session.state import Child, Decision, State
from clew_workflows.temporal_faults.task_commands import TaskCommands

REPORTED = "the task is over, and its result is reported"
"""The reason with which a subagent's session closes."""


class Subagents:
    """Sends a session's commands to its subagents, and its result to its parent."""

    def __init__(self, runtime: Runtime, intake: Intake, task_commands: TaskCommands) -> None:
        self._runtime = runtime
        self._intake = intake
        self._task_commands = task_commands
        self._starting: set[str] = set()
        self._reporting = False

    async def settle(self) -> None:
        """Send the remaining commands before the session ends; wait for the server's confirmation."""
        self.begin()
        await workflow.wait_condition(lambda: not (self._runtime.unconfirmed or self.is_due))

    @property
    def is_due(self) -> bool:
        """Whether a command is to be sent."""
        return bool(self._due_children) or self._report_is_due or subagents.is_task_over(self._runtime.state)

    @property
    def _due_children(self) -> list[Child]:
        runtime = self._runtime
        if runtime.rolling and not runtime.state.closed:
            # The next workflow run sends it.
            return []
        return [child for child in runtime.state.children if child.step in ("start", "cancel")]

    @property
    def _report_is_due(self) -> bool:
        runtime = self._runtime
        if self._reporting or (runtime.rolling and not runtime.state.closed):
            return False
        return subagents.find_task_result(runtime.state, runtime.thread) is not None

    def begin(self) -> None:
        """Send the commands that are due."""
        runtime = self._runtime
        for child in self._due_children:
            if child.step == "start":
                self._start(child)
            else:
                runtime.apply(subagents.mark_cancelled(runtime.state, child))
                runtime.unconfirmed += 1
                start_background_task(self._cancel(child))
        if self._report_is_due:
            self._reporting = True
            runtime.unconfirmed += 1
            start_background_task(self._report())
        if subagents.is_task_over(runtime.state):
            runtime.apply(decisions.close(runtime.state, runtime.now, REPORTED))

    def _start(self, child: Child) -> None:
        runtime = self._runtime
        start = subagents.make_start(runtime.state, child, runtime.now)
        if start is None:
            runtime.apply(Decision(subagents.update_child(runtime.state, child, None)))
            return
        runtime.apply(subagents.mark_started(runtime.state, child))
        runtime.unconfirmed += 1
        self._starting.add(child.session_id)
        start_background_task(self._run_child(child, start))

    async def _run_child(self, child: Child, start: SessionStart) -> None:
        """Start a subagent's session and watch it while this workflow run lasts."""
        parent = self._runtime.state.session_id
        reason = "its session has ended"
        try:
            try:
                session = await workflow.start_child_workflow(
                    WORKFLOW_TYPE,
                    start.model_dump(mode="json", exclude_unset=True, exclude_none=True),
                    id=child.session_id,
                    result_type=RawValue,
                    # It outlives this workflow run, which may continue as new, and reports by a signal.
                    parent_close_policy=workflow.ParentClosePolicy.ABANDON,
                    cancellation_type=workflow.ChildWorkflowCancellationType.ABANDON,
                    id_reuse_policy=WorkflowIDReusePolicy.REJECT_DUPLICATE,
                    priority=make_priority(self._runtime.state),
                    static_summary=f"subagent · {child.agent} · {child.tool_call_id} of {parent}"[:200],
                )
            finally:
                self._starting.discard(child.session_id)
                self._runtime.unconfirmed -= 1
                self._task_commands.ensure()
            await session
        except WorkflowAlreadyStartedError:
            reason = f"there is a session {child.session_id!r} already"
        except ChildWorkflowError as error:
            reason = f"its session has ended: {error.cause or error}"[:1000]
        self._task_commands.ensure()
        # The result's signal may still wait for its decision: take it before a failure.
        await workflow.wait_condition(lambda: not self._intake.is_behind)
        self._apply(lambda state: subagents.take_failure(state, child, reason).then(runs.proceed, self._runtime.now))

    async def _cancel(self, child: Child) -> None:
        await workflow.wait_condition(lambda: child.session_id not in self._starting)
        command = CancelInput(request_id=subagents.TASK_REQUEST, reason=subagents.CANCELLED)
        if not await self._signal(child.session_id, "cancel", command.model_dump(mode="json", exclude_unset=True)):
            self._apply(lambda state: Decision(subagents.update_child(state, child, None)))

    async def _report(self) -> None:
        runtime = self._runtime
        result = subagents.find_task_result(runtime.state, runtime.thread)
        assignment = runtime.state.assignment
        assert result is not None
        assert assignment is not None
        # The parent may have ended; then the result is dropped.
        await self._signal(
            assignment.task.session_id, "subagent_result", result.model_dump(mode="json", exclude_none=True)
        )
        self._reporting = False
        self._apply(subagents.note_reported)

    async def _signal(self, session_id: str, name: str, argument: dict[str, object]) -> bool:
        """Signal a subagent or the parent. Returns whether that session exists."""
        try:
            await workflow.get_external_workflow_handle(session_id).signal(name, argument)
        except FailureError:
            return False
        finally:
            self._runtime.unconfirmed -= 1
            self._task_commands.ensure()
        return True

    def _apply(self, decide: Callable[[State], Decision]) -> None:
        self._runtime.apply(decide(self._runtime.state))
