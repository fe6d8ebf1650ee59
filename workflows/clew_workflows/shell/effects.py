"""Effects in flight: each runs as a task of the workflow, and its result is an event for the next decision."""

from __future__ import annotations

import asyncio
from contextlib import suppress

from temporalio import workflow

from clew.contract import ContextQuery
from clew_workflows.core import decisions
from clew_workflows.protocol import (
    CallModel,
    DescribeModel,
    Event,
    ModelStopped,
    Prepare,
    RunHooks,
    RunTools,
    SessionEffect,
    Summarize,
)
from clew_workflows.shell import execution, summarizing
from clew_workflows.shell.board import BOARD
from clew_workflows.shell.recalling import Recalling
from clew_workflows.shell.runtime import Runtime
from clew_workflows.shell.tool_calls import ToolCalls


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
            policy = self._runtime.state.policy.overlay(effect.context_policy)
            query = ContextQuery(call_id=effect.call_id)
            if failure := await self._recalling.recall(effect.context_ref, policy, query, self._runtime.time_left):
                return failure
            self._post_context(effect)
        if isinstance(effect, Summarize):
            return await summarizing.summarize(self._runtime, self._recalling, effect)
        return await execution.carry_out(effect, self._runtime.time_left, self._runtime.state)

    def _post_context(self, call: CallModel) -> None:
        """Leave the context for the activity, if it may run in this process. On a replay it is already scheduled."""
        if not BOARD.is_open or workflow.unsafe.is_replaying():
            return
        # A context that cannot be built fails the call, not the workflow task: the activity asks for it.
        with suppress(Exception):
            context = self._runtime.project(ContextQuery(call_id=call.call_id))
            BOARD.post(workflow.info().run_id, call, context)
