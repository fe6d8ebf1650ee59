"""Tool calls in flight: each is an activity, and its result is committed as soon as it arrives."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Any

from temporalio import workflow

from clew_workflows.core import decisions, tool_rounds
from clew_workflows.protocol import (
    Failure,
    PlannedCall,
    RemoteRoute,
    RunTools,
    SessionEffect,
    ToolAnswered,
    ToolReturned,
)
from clew_workflows.shell import execution
from clew_workflows.shell.background import start_background_task
from clew_workflows.shell.remote_calls import await_remote_result
from clew_workflows.shell.runtime import Runtime
from clew_workflows.shell.task_budget import TaskBudget
from clew_workflows.shell.task_commands import TaskCommands


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
        if size := _measure_uncounted(event):
            await self._budget.wait_to_spend(size)
        runtime, before = self._runtime, self._runtime.effect
        runtime.apply(decisions.take_event(runtime.state, event, runtime.now))
        if runtime.effect is before:
            # Nothing follows from the result yet: the task that commits it would have no command.
            self._task_commands.ensure()


def _measure_uncounted(event: ToolReturned) -> int:
    """Measure what is tokenized when the result is committed, in bytes: its text, complete and in pieces."""
    if event.answer:
        return 2 * len(event.answer.content.encode()) if event.answer.tokens is None else 0
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
