"""Effects in flight: each runs as a task of the workflow, and its result is an event for the next decision."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta
from functools import partial
from typing import Any

from temporalio import workflow
from temporalio.exceptions import ApplicationError

from clew_workflows.contract import ContextQuery
from clew_workflows.contract.content import iterate_blobs
from clew_workflows.contract.errors import Archived, ClewError, Refusal
from clew_workflows.contract.outputs import SummaryReceipt
from clew_workflows.contract.payloads import ErrorPayload, SummaryPayload
from clew_workflows.contract.policy import ContextPolicy
from clew_workflows.host import execution
from clew_workflows.host.duties import start_background_task
from clew_workflows.host.execution import await_remote_result
from clew_workflows.host.runtime import LOCAL_CONTEXTS, Runtime
from clew_workflows.host.tasks import Fullness, TaskBudget
from clew_workflows.protocol import (
    CallModel,
    CheckBlobs,
    DescribeModel,
    Event,
    Failure,
    ModelStopped,
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
from clew_workflows.session import budgets, carried, decisions, media, summaries, tool_rounds
from clew_workflows.temporal_faults.task_commands import TaskCommands
from clew_workflows.thread.context.contexts import find_lane_prompt
from clew_workflows.thread.entries import Entry

# Recalling: fetching archived entries that a context needs, before the context is built.


class Recalling:
    """Fetches archived parts of lanes into the thread of one session."""

    def __init__(self, runtime: Runtime, fullness: Fullness) -> None:
        self._runtime = runtime
        self._fullness = fullness

    async def recall(
        self,
        context_ref: str,
        policy: ContextPolicy,
        build: Callable[[], object],
        time_limit: timedelta | None = None,
    ) -> Failure | None:
        """Fetch archived entries of a lane until `build` has all that it needs; return a failure if that cannot be.

        `build` needs at most what contexts under the policy need.
        """
        runtime = self._runtime
        while (archive := runtime.state.archive) and not self._covers(build):
            before = runtime.thread.get_lane(context_ref)
            info = workflow.info()
            events, size = info.get_current_history_length(), info.get_current_history_size()
            effect = carried.make_recall(runtime.thread, archive, context_ref, policy)
            fetched = await execution.carry_out(effect, time_limit or runtime.waits.store_timeout, runtime.state)
            if isinstance(fetched, Failure):
                return fetched
            runtime.thread = carried.add_recalled(runtime.thread, context_ref, fetched)
            self._fullness.count_fetched(
                info.get_current_history_length() - events, info.get_current_history_size() - size
            )
            held = runtime.thread.get_lane(context_ref)
            if not self._covers(build) and held and before and held.gap == before.gap:
                return Failure(type="archived", message="the context needs more of the archive than can be fetched")
        return None

    @property
    def due(self) -> bool:
        """Whether operations have changed lanes, and no run is active: a model call recalls its own lane."""
        return bool(self._runtime.changed_lanes) and not (self._runtime.state.busy or self._runtime.state.closed)

    async def recall_changed(self) -> None:
        """Fetch archived entries of lanes that operations have changed.

        Best effort: without them the query `context` is refused as `archived`.
        """
        lanes, runtime = self._runtime.changed_lanes, self._runtime
        while self.due:
            build = partial(runtime.project, ContextQuery(context_ref=lanes[0]))
            await self.recall(lanes[0], runtime.state.settings.policy, build)
            del lanes[0]

    async def wait_for_changed(self) -> None:
        """Wait until contexts of the changed lanes can be built, or until the time for the store is over."""
        runtime = self._runtime
        queries = (ContextQuery(context_ref=lane) for lane in runtime.changed_lanes)
        if all(self._covers(partial(runtime.project, query)) for query in queries):
            return
        with suppress(TimeoutError):
            await workflow.wait_condition(
                lambda: not self.due or runtime.rolling, timeout=runtime.waits.store_timeout
            )

    def _covers(self, build: Callable[[], object]) -> bool:
        """Whether the thread holds all entries that a context, or the range of a summary, needs."""
        if self._runtime.thread.retained.upto < 0:
            return True
        try:
            build()
        except Archived:
            return False
        except ClewError:
            pass
        return True


# Summarizing: determining the range of a summary in the present thread, and having it written.


async def summarize(runtime: Runtime, recalling: Recalling, effect: Summarize) -> Event:
    """Determine the range of a summary and run the activity that writes it; returns the summary or a failure."""
    lane = effect.context_ref
    if problem := budgets.find_reached_limit(*budgets.find_limits(runtime.state), runtime.state.spent):
        return problem

    def find_range() -> Summarize:
        return summaries.find_range(runtime.state, runtime.thread, effect)

    if failure := await recalling.recall(lane, budgets.find_policy(runtime.state.settings), find_range):
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


def find_summary(runtime: Runtime, summary_id: str) -> Entry:
    """Find the entry of a summary or a compaction that has been written.

    Raises:
        ApplicationError: There is none: the type and the message are those of its `error` entry.
    """
    entry = runtime.thread.filter_by_ref("summary_id", summary_id)[-1]
    if isinstance(held := entry.body, ErrorPayload):
        raise ApplicationError(held.message, type=held.type, non_retryable=True)
    return entry


def make_receipt(runtime: Runtime, summary_id: str) -> dict[str, Any]:
    """Make the answer to the update `summarize`.

    Raises:
        ApplicationError: There is no summary: the type and the message are those of its `error` entry.
    """
    entry = find_summary(runtime, summary_id)
    summary = entry.read(SummaryPayload)
    return SummaryReceipt(
        seq=entry.seq,
        from_seq=summary.from_seq,
        to_seq=summary.to_seq,
        tokens=entry.tokens,
    ).as_dict()


# Tool calls in flight: each is an activity, and its result is committed as soon as it arrives.


class ToolCalls:
    """Starts the tool calls of one session, and commits their results, those of ended runs included."""

    def __init__(self, runtime: Runtime, budget: TaskBudget, task_commands: TaskCommands) -> None:
        self._runtime = runtime
        self._budget = budget
        self._task_commands = task_commands

    async def run(self, effect: RunTools) -> None:
        """Run the calls of a round in parallel. Returns when all have returned, or when their run has ended.

        A call of the round that is approved meanwhile begins beside them. The activities of an ended run are
        cancelled. One that cannot stop may still return a result.
        """
        runtime = self._runtime
        activities: list[workflow.ActivityHandle[Any]] = []
        current: SessionEffect | None = effect
        try:
            while isinstance(current, RunTools):
                starting = tool_rounds.list_starting(runtime.state, current)
                runtime.apply(tool_rounds.mark_scheduled(runtime.state, current))
                for planned in starting:
                    activity = execution.start(planned, runtime.time_left, runtime.state)
                    activities.append(activity)
                    start_background_task(self._commit(planned, activity))
                await workflow.wait_condition(partial(self._has_changed, current))
                current = runtime.effect
        finally:
            # Also where the workflow is cancelled.
            for activity in activities:
                if not activity.done():
                    activity.cancel()

    def _has_changed(self, effect: RunTools) -> bool:
        return self._runtime.effect is not effect

    async def _commit(self, planned: PlannedCall, activity: workflow.ActivityHandle[Any]) -> None:
        is_remote = isinstance(planned.tool.route, RemoteRoute)
        event = await (await_remote_result if is_remote else _await_result)(planned, activity)
        if is_remote and event.answer is not None:
            event = event.model_copy(update={"answer": await self._check_blobs(planned, event.answer)})
        if size := _measure_uncounted(event):
            await self._budget.wait_to_spend(size)
        runtime, before = self._runtime, self._runtime.effect
        runtime.apply(decisions.take_event(runtime.state, event, runtime.now))
        if runtime.effect is before:
            # Nothing follows from the result yet: the task that commits it would have no command.
            self._task_commands.ensure()

    async def _check_blobs(self, planned: PlannedCall, answer: ToolAnswered) -> ToolAnswered:
        """Have a worker check the blobs that a remote result names; otherwise the model reads what is wrong."""
        state = self._runtime.state
        blobs = tuple(iterate_blobs((answer.content,)))
        if not blobs:
            return answer
        try:
            media.check_result(state, planned.call, answer.content)
            family = planned.call.family or state.session_id
            checked = await execution.carry_out(CheckBlobs.make(family, blobs), None, state)
        except Refusal as refusal:
            checked = Failure(type=refusal.type, message=refusal.message)
        wrong = (checked,) if isinstance(checked, Failure) else checked.problems
        if not wrong:
            return answer
        problem = f"error: the tool has run, but its result cannot be used: {wrong[0].type}: {wrong[0].message}"
        return ToolAnswered(content=problem, is_error=True)


def _measure_uncounted(event: ToolReturned) -> int:
    """Measure what is tokenized when the result is committed, in bytes: its text, complete and in pieces."""
    if event.answer:
        return 2 * len(event.answer.text.encode()) if event.answer.tokens is None else 0
    return 2 * len(event.failure.message.encode()) if event.failure else 0


async def _await_result(planned: PlannedCall, activity: workflow.ActivityHandle[ToolAnswered]) -> ToolReturned:
    """Wait for a call of a function; return its answer or its failure, neither if it was cancelled."""
    call = planned.call
    try:
        answer = await execution.await_answer(activity)
    except asyncio.CancelledError:
        return ToolReturned(tool_call_id=call.tool_call_id)
    if isinstance(answer, Failure):
        return ToolReturned(tool_call_id=call.tool_call_id, failure=answer)
    return ToolReturned(tool_call_id=call.tool_call_id, answer=answer)


class Effects:
    """Carries out the effects of one session's decisions, one at a time."""

    def __init__(self, runtime: Runtime, recalling: Recalling, tool_calls: ToolCalls) -> None:
        self._runtime = runtime
        self._recalling = recalling
        self._tool_calls = tool_calls

    async def carry_out(self, effect: SessionEffect) -> None:
        """Carry out an effect and apply the decision that follows from its result."""
        if isinstance(effect, RunTools):
            await self._tool_calls.run(effect)
            return
        runtime = self._runtime
        if runtime.state.stopping:
            # It was stopped before it began.
            self._take(ModelStopped())
            return
        runtime.task = task = asyncio.create_task(self._perform(effect))
        # The task is not awaited here: if the workflow is cancelled, the decision to close the session stops it.
        await workflow.wait_condition(lambda: task.done() or runtime.effect is not effect)
        # Handlers may have decided while the activity ran. If they gave this effect up, its event no longer matters.
        if runtime.effect is effect:
            self._take(await self._await_event(task))
        else:
            runtime.task = None

    async def settle(self) -> None:
        """Wait until a model call that is being stopped has ended, and apply what follows."""
        runtime = self._runtime
        if runtime.state.stopping:
            task = runtime.task
            self._take(ModelStopped() if task is None else await self._await_event(task))

    def _take(self, event: Event) -> None:
        runtime = self._runtime
        runtime.effect = runtime.task = None
        runtime.apply(decisions.take_event(runtime.state, event, runtime.now))

    async def _await_event(self, task: asyncio.Task[Event]) -> Event:
        try:
            return await task
        except asyncio.CancelledError:
            if self._runtime.state.stopping and task.cancelled():
                return ModelStopped()
            raise

    async def _perform(self, effect: Prepare | DescribeModel | RunHooks | CallModel | Summarize) -> Event:
        if isinstance(effect, CallModel):
            policy = self._runtime.state.settings.policy.overlay(effect.context_policy)
            build = partial(self._runtime.project, ContextQuery(call_id=effect.call_id))
            if failure := await self._recalling.recall(effect.context_ref, policy, build, self._runtime.time_left):
                return failure
            self._post_context(effect)
        if isinstance(effect, Summarize):
            return await summarize(self._runtime, self._recalling, effect)
        return await execution.carry_out(effect, self._runtime.time_left, self._runtime.state)

    def _post_context(self, call: CallModel) -> None:
        """Leave the context for the activity, if it may run in this process. On a replay it is already scheduled."""
        if not LOCAL_CONTEXTS.is_open or workflow.unsafe.is_replaying():
            return
        # A context that cannot be built fails the call, not the workflow task: the activity asks for it.
        with suppress(Exception):
            context = self._runtime.project(ContextQuery(call_id=call.call_id))
            LOCAL_CONTEXTS.post(workflow.info().run_id, call, context)
