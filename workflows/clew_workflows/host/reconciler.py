"""The reconciler: it carries out what a session wants, and brings each end back as an event for the next decision.

A session wants one effect at a time, and beside it what `session.plan` lists. After each commit the reconciler begins
what is new, cancels what is gone, and updates the session's row in lists.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import timedelta
from functools import partial
from typing import Any

from temporalio import workflow
from temporalio.common import RawValue, WorkflowIDReusePolicy
from temporalio.exceptions import ChildWorkflowError, FailureError, WorkflowAlreadyStartedError

from clew_workflows.contract import CancelInput, ContextQuery, SubagentResultInput
from clew_workflows.contract.content import iterate_blobs
from clew_workflows.contract.errors import Refusal
from clew_workflows.contract.names import DELIVER_WORKFLOW, DELIVERY_PREFIX, WORKFLOW_TYPE
from clew_workflows.host import execution
from clew_workflows.host.intake import Intake
from clew_workflows.host.recalling import Recalling
from clew_workflows.host.rollover import Rollover
from clew_workflows.host.row import Row
from clew_workflows.host.runtime import LOCAL_CONTEXTS, Runtime
from clew_workflows.protocol import (
    CallModel,
    CheckBlobs,
    Delivery,
    DescribeModel,
    Event,
    Failure,
    ModelStopped,
    Notice,
    PlannedCall,
    Prepare,
    RemoteRoute,
    RunHooks,
    RunTools,
    SessionEffect,
    Summarize,
    Summarized,
    ToolAnswered,
    ToolReturned,
)
from clew_workflows.session import (
    budgets,
    decisions,
    named_blobs,
    outside,
    runs,
    subagents,
    summaries,
    tool_rounds,
    ui,
    webhooks,
)
from clew_workflows.session.plan import (
    CancelChild,
    CloseTask,
    Deliver,
    Expire,
    HibernateWhenIdle,
    Key,
    Plan,
    ReportResult,
    ShowApproval,
    StartChild,
    Wanted,
)
from clew_workflows.session.state import Child, Decision, get_run
from clew_workflows.thread.context.contexts import find_lane_prompt

LONGEST_BAR = timedelta(days=365)
"""The time of one timer. Approvals have no time limit: the next timer follows."""
REPORTED = "the task is over, and its result is reported"
"""The reason with which a subagent's session closes."""
_LEFT = (StartChild, CancelChild, ReportResult, CloseTask, Deliver, HibernateWhenIdle)
"""What the next workflow run does if the session is about to continue as new."""
_CONFIRMED = (StartChild, CancelChild, ReportResult, Deliver)
"""What the end of a session waits for: commands to other sessions."""


@dataclass(slots=True)
class _Going:
    """Something that goes on.

    Attributes:
        cancel: Cancels it; None: it goes on to its end.
        is_cancelled: It was cancelled.
    """

    cancel: Callable[[], object] | None = None
    is_cancelled: bool = False


@dataclass(eq=False, slots=True)
class _Step:
    """The effect that is being carried out, or the recall of changed lanes (None)."""

    effect: SessionEffect | None
    task: asyncio.Task[None] | None = None
    is_cancelled: bool = False


class Reconciler:
    """Carries out what one session wants."""

    def __init__(self, runtime: Runtime, intake: Intake, recalling: Recalling, rollover: Rollover, row: Row) -> None:
        self._runtime, self._intake, self._recalling = runtime, intake, recalling
        self._rollover, self._row = rollover, row
        self._plan = Plan()
        self._wanted = self._plan.wanted
        self._going: dict[Key, _Going] = {}
        self._step: _Step | None = None
        self._starting: set[str] = set()

    def reconcile(self) -> None:
        """Begin what is new, and cancel what is gone."""
        runtime = self._runtime
        self._plan.update(runtime.session)
        if self._wanted is not self._plan.wanted:
            self._wanted = self._plan.wanted
            for key, going in self._going.items():
                if key not in self._wanted and going.cancel and not going.is_cancelled:
                    going.is_cancelled = True
                    going.cancel()
        self._cancel_step()
        self._rollover.measure()
        if not (self._is_working or runtime.state.closed) and self._rollover.due:
            self._rollover.is_wanted = True
        is_leaving = runtime.rolling and not runtime.state.closed
        starting: list[tuple[Key, PlannedCall]] = []
        for key, want in self._wanted.items():
            if key in self._going or (is_leaving and isinstance(want, _LEFT)):
                continue
            if not isinstance(want, PlannedCall):
                self._begin(key, want)
            elif not self._rollover.is_wanted:
                starting.append((key, want))
        self._begin_calls(starting)
        self._begin_step()
        self._row.update()

    @property
    def is_settled(self) -> bool:
        """Whether all that is gone is cancelled, and the server has confirmed all commands to other sessions."""
        if self._runtime.is_settling or self._runtime.unconfirmed:
            return False
        self._plan.update(self._runtime.session)
        return not any(isinstance(want, _CONFIRMED) for want in self._plan.wanted.values())

    @property
    def _is_working(self) -> bool:
        """Whether a step of the session goes on, which ends in this workflow run."""
        return self._step is not None or any(key in self._going and key[0] == "call" for key in self._wanted)

    def _begin(self, key: Key, wanted: Wanted) -> None:
        match wanted:
            case ShowApproval():
                self._go(key, self._show_approval(), cancels=True)
            case Expire():
                self._go(key, self._expire(wanted.at), cancels=True)
            case StartChild():
                self._start_child(wanted.child)
            case CancelChild():
                self._runtime.apply(subagents.mark_cancelled(self._runtime.state, wanted.child))
                self._runtime.unconfirmed += 1
                self._runtime.start(self._cancel_child(wanted.child))
            case ReportResult():
                self._runtime.unconfirmed += 1
                self._go(key, self._report(wanted.result))
            case CloseTask():
                self._runtime.apply(decisions.close(self._runtime.state, self._runtime.now, REPORTED))
            case Deliver():
                self._runtime.unconfirmed += 1
                self._go(key, self._deliver(wanted.notice))
            case HibernateWhenIdle():
                self._go(key, self._hibernate_when_idle())
            case _:
                raise AssertionError(wanted)

    def _go(self, key: Key, work: Coroutine[Any, Any, None], *, cancels: bool = False) -> _Going:
        going = self._going[key] = _Going()
        task = self._runtime.start(self._run(key, going, work))
        going.cancel = task.cancel if cancels else None
        return going

    async def _run(self, key: Key, going: _Going, work: Coroutine[Any, Any, None]) -> None:
        # After an error, and where the workflow is evicted, nothing follows.
        try:
            await work
        except asyncio.CancelledError:
            if not going.is_cancelled:
                raise
        del self._going[key]
        self._runtime.settle_soon()

    # Steps: the session's one effect, and the recall of lanes that operations have changed.

    def _cancel_step(self) -> None:
        step, runtime = self._step, self._runtime
        if step is None or step.effect is None or step.task is None:
            return
        if runtime.effect is not step.effect:
            # It was given up: its answer no longer matters.
            self._step = None
            step.task.cancel()
        elif runtime.state.stopping and not step.is_cancelled:
            step.is_cancelled = True
            step.task.cancel()

    def _begin_step(self) -> None:
        runtime = self._runtime
        if self._step is not None or self._rollover.is_wanted or runtime.state.closed:
            return
        if runtime.effect is None and self._recalling.is_due:
            self._step = step = _Step(None)
            step.task = runtime.start(self._recall(step))
        elif runtime.effect is not None and not isinstance(runtime.effect, RunTools):
            self._step = step = _Step(runtime.effect)
            step.task = runtime.start(self._carry_out(step, runtime.effect))

    async def _recall(self, step: _Step) -> None:
        await self._recalling.recall_changed()
        self._end_step(step)

    async def _carry_out(
        self, step: _Step, effect: Prepare | DescribeModel | RunHooks | CallModel | Summarize
    ) -> None:
        runtime = self._runtime
        event: Event = ModelStopped()
        try:
            if not runtime.state.stopping:
                event = await self._perform(effect)
        except asyncio.CancelledError:
            if not step.is_cancelled:
                raise
        if runtime.effect is effect:
            runtime.effect = None
            runtime.apply(decisions.take_event(runtime.state, event, runtime.now))
        self._end_step(step)

    def _end_step(self, step: _Step) -> None:
        if self._step is step:
            self._step = None
        self._runtime.settle_soon()

    async def _perform(self, effect: Prepare | DescribeModel | RunHooks | CallModel | Summarize) -> Event:
        runtime = self._runtime
        if isinstance(effect, CallModel):
            policy = get_run(runtime.state).policy
            build = partial(runtime.project, ContextQuery(call_id=effect.call_id))
            if failure := await self._recalling.recall(effect.context_ref, policy, build, runtime.time_left):
                return failure
            self._post_context(effect)
        if isinstance(effect, Summarize):
            return await self._summarize(effect)
        return await execution.carry_out(effect, runtime.time_left, runtime.state)

    def _post_context(self, call: CallModel) -> None:
        """Leave the context for the activity, if it may run in this process. On a replay it is already scheduled."""
        if not LOCAL_CONTEXTS.is_open or workflow.unsafe.is_replaying():
            return
        # A context that cannot be built fails the call, not the workflow task: the activity asks for it.
        with suppress(Exception):
            context = self._runtime.project(ContextQuery(call_id=call.call_id))
            LOCAL_CONTEXTS.post(workflow.info().run_id, call, context)

    async def _summarize(self, effect: Summarize) -> Event:
        """Determine the range of a summary in the present thread, and have it written."""
        runtime, lane = self._runtime, effect.context_ref
        if problem := budgets.find_reached_limit(*budgets.find_limits(runtime.state), runtime.state.spent):
            return problem

        def find_range() -> Summarize:
            return summaries.find_range(runtime.state, runtime.thread, effect)

        if failure := await self._recalling.recall(lane, budgets.find_policy(runtime.state.settings), find_range):
            return failure
        try:
            ranged = find_range()
        except Refusal as refused:
            return Failure(type=refused.type, message=str(refused))
        match await execution.carry_out(ranged, None, runtime.state):
            case Failure() as failure:
                return failure
            case summary:
                prompt, tokens = find_lane_prompt(runtime.thread, lane)
                return Summarized(effect=ranged, summary=summary, system_prompt=prompt, system_prompt_tokens=tokens)

    # Tool calls: each is an activity, and its result is committed when it comes, that of an ended run, too.

    def _begin_calls(self, starting: list[tuple[Key, PlannedCall]]) -> None:
        runtime, effect = self._runtime, self._runtime.effect
        calls = runtime.state.run.tool_calls if runtime.state.run else ()
        begun = {call.tool_call_id for call in calls if call.scheduled}
        starting = [(key, planned) for key, planned in starting if planned.call.tool_call_id not in begun]
        if not (starting and isinstance(effect, RunTools)):
            return
        runtime.apply(tool_rounds.mark_scheduled(runtime.state, effect))
        for key, planned in starting:
            activity = execution.start(planned, runtime.time_left, runtime.state)
            # One that cannot stop may still return a result.
            self._go(key, self._take_result(planned, activity)).cancel = activity.cancel

    async def _take_result(self, planned: PlannedCall, activity: workflow.ActivityHandle[Any]) -> None:
        runtime = self._runtime
        if isinstance(planned.tool.route, RemoteRoute):
            event = await execution.await_remote_result(planned, activity)
            if event.answer is not None:
                event = event.model_copy(update={"answer": await self._check_blobs(planned, event.answer)})
        else:
            event = await execution.await_result(planned, activity)
        if size := _measure_uncounted(event):
            await self._intake.budget.wait_to_spend(size)
        runtime.apply(decisions.take_event(runtime.state, event, runtime.now))

    async def _check_blobs(self, planned: PlannedCall, answer: ToolAnswered) -> ToolAnswered:
        """Have a worker check the blobs that a remote result names; otherwise the model reads what is wrong."""
        state = self._runtime.state
        blobs = tuple(iterate_blobs((answer.content,)))
        if not blobs:
            return answer
        try:
            named_blobs.check_result(state, planned.call, answer.content)
            family = planned.call.family or state.session_id
            checked = await execution.carry_out(CheckBlobs.make(family, blobs), None, state)
        except Refusal as refusal:
            checked = Failure(type=refusal.type, message=refusal.message)
        wrong = (checked,) if isinstance(checked, Failure) else checked.problems
        if not wrong:
            return answer
        problem = f"error: the tool has run, but its result cannot be used: {wrong[0].type}: {wrong[0].message}"
        return ToolAnswered(content=problem, is_error=True)

    # Waits for people and programs outside.

    async def _show_approval(self) -> None:
        """Show the wait in the Temporal UI: a timer, which is cancelled when the last call has been decided."""
        state = self._runtime.state
        label = ui.label_approval(outside.list_pending_approvals(state), state)
        await workflow.sleep(LONGEST_BAR, summary=label, event_groups=execution.group_by_run(state))

    async def _expire(self, at: float) -> None:
        """End the calls whose time is over: one timer, for the call that expires next."""
        runtime = self._runtime
        await workflow.sleep(
            max(at - workflow.time(), 0.001),
            summary=ui.label_external(tool_rounds.list_outside(runtime.state), runtime.state),
            event_groups=execution.group_by_run(runtime.state),
        )
        # The server may fire a timer a fraction of a millisecond early.
        now = replace(runtime.now, time=max(at, workflow.time()))
        runtime.apply(outside.expire_calls(runtime.state, now).then(runs.proceed, now))

    async def _hibernate_when_idle(self) -> None:
        """Hibernate after the idle time; after a failure try again when it has passed once more."""
        runtime = self._runtime
        seconds = runtime.state.settings.config.idle_timeout_seconds or 0
        left = runtime.active_at + seconds - workflow.time()
        if left <= 0 and runtime.state.phase == "idle" and not runtime.rolling:
            with suppress(Refusal):
                await self._rollover.hibernate(f"nothing has happened for {seconds} seconds")
                return
        # A turn does not cancel it: each timer costs as much as an update.
        await workflow.sleep(left if left > 0 else seconds, summary="hibernates then, if nothing happens")

    # Other workflows: subagents, the session that has started this one, and the deliveries of webhooks.

    def _start_child(self, child: Child) -> None:
        runtime = self._runtime
        start = subagents.make_start(runtime.state, child, runtime.now)
        if start is None:
            runtime.apply(Decision(subagents.update_child(runtime.state, child, None)))
            return
        runtime.apply(subagents.mark_started(runtime.state, child))
        runtime.unconfirmed += 1
        self._starting.add(child.session_id)
        runtime.start(self._run_child(child, start.model_dump(mode="json", exclude_unset=True, exclude_none=True)))

    async def _run_child(self, child: Child, start: dict[str, Any]) -> None:
        """Start a subagent's session and watch it while this workflow run lasts."""
        runtime = self._runtime
        reason = "its session has ended"
        try:
            try:
                session = await workflow.start_child_workflow(
                    WORKFLOW_TYPE,
                    start,
                    id=child.session_id,
                    result_type=RawValue,
                    # It outlives this workflow run, which may continue as new, and reports by a signal.
                    parent_close_policy=workflow.ParentClosePolicy.ABANDON,
                    cancellation_type=workflow.ChildWorkflowCancellationType.ABANDON,
                    id_reuse_policy=WorkflowIDReusePolicy.REJECT_DUPLICATE,
                    priority=execution.make_priority(runtime.state),
                    static_summary=f"subagent · {child.agent} · {child.tool_call_id} of {runtime.state.session_id}"[
                        :200
                    ],
                )
            finally:
                self._starting.discard(child.session_id)
                runtime.confirm()
            await session
        except WorkflowAlreadyStartedError:
            reason = f"there is a session {child.session_id!r} already"
        except ChildWorkflowError as error:
            reason = f"its session has ended: {error.cause or error}"[:1000]
        # The result's signal may still wait for its decision: take it before a failure.
        await runtime.wait_until(lambda: not self._intake.is_behind)
        runtime.apply(subagents.take_failure(runtime.state, child, reason).then(runs.proceed, runtime.now))

    async def _cancel_child(self, child: Child) -> None:
        runtime = self._runtime
        await runtime.wait_until(lambda: child.session_id not in self._starting)
        command = CancelInput(request_id=subagents.TASK_REQUEST, reason=subagents.CANCELLED)
        if not await self._signal(child.session_id, "cancel", command.model_dump(mode="json", exclude_unset=True)):
            runtime.apply(Decision(subagents.update_child(runtime.state, child, None)))

    async def _report(self, result: SubagentResultInput) -> None:
        runtime, assignment = self._runtime, self._runtime.state.assignment
        assert assignment is not None
        # The parent may have ended; then the result is dropped.
        await self._signal(
            assignment.task.session_id, "subagent_result", result.model_dump(mode="json", exclude_none=True)
        )
        runtime.apply(subagents.note_reported(runtime.state))

    async def _signal(self, session_id: str, name: str, argument: dict[str, object]) -> bool:
        """Signal a subagent or the parent. Returns whether that session exists."""
        try:
            await workflow.get_external_workflow_handle(session_id).signal(name, argument)
        except FailureError:
            return False
        finally:
            self._runtime.confirm()
        return True

    async def _deliver(self, notice: Notice) -> None:
        """Start the workflow that sends a notice, for days. The notice is a part of the state until then."""
        runtime, event = self._runtime, notice.message.type
        receivers = webhooks.list_webhooks(runtime.state, event)
        try:
            if receivers:
                # It has been sent before if there is one: its receivers know the id.
                with suppress(WorkflowAlreadyStartedError):
                    sending = await workflow.start_child_workflow(
                        DELIVER_WORKFLOW,
                        Delivery(notice=notice, webhooks=receivers).model_dump(mode="json"),
                        id=f"{DELIVERY_PREFIX}{runtime.state.session_id}/{notice.notice_id}",
                        result_type=RawValue,
                        parent_close_policy=workflow.ParentClosePolicy.ABANDON,
                        cancellation_type=workflow.ChildWorkflowCancellationType.ABANDON,
                        id_reuse_policy=WorkflowIDReusePolicy.REJECT_DUPLICATE,
                        priority=execution.make_priority(runtime.state),
                        memo={"session_id": runtime.state.session_id, "event": event},
                        static_summary=f"webhook · {event} · {runtime.state.session_id}"[:200],
                        static_details="A service workflow of Clew, DeliverWebhook: no session.",
                    )
                    runtime.start(self._see_end(sending))
        finally:
            runtime.confirm()
        runtime.apply(webhooks.drop_notice(runtime.state, notice))

    async def _see_end(self, sending: workflow.ChildWorkflowHandle[Any, RawValue]) -> None:
        """See a delivery's end while this workflow run lasts. A failure is its own, where operators find it."""
        with suppress(ChildWorkflowError):
            await sending
        self._runtime.note_handled()


def _measure_uncounted(event: ToolReturned) -> int:
    """Measure what is tokenized when the result is committed, in bytes: its text, complete and in pieces."""
    if event.answer:
        return 2 * len(event.answer.text.encode()) if event.answer.tokens is None else 0
    return 2 * len(event.failure.message.encode()) if event.failure else 0
