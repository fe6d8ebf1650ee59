"""The session: one long-running workflow, whose event history holds the conversation thread.

Handlers decode updates, signals and queries. `clew_workflows.core` decides. `Runtime` commits the decisions, and the
loop in `_serve` carries out their effects. This module decides nothing itself.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, ClassVar

from temporalio import workflow
from temporalio.common import RawValue
from temporalio.exceptions import FailureError

with workflow.unsafe.imports_passed_through():
    from clew.context.contexts import take_page
    from clew.contract import (
        WORKFLOW_TYPE,
        AwaitRequestInput,
        CloseInput,
        ContextQuery,
        EntriesQuery,
        FollowQuery,
        MessageInput,
        TranscriptQuery,
        WindowQuery,
    )
    from clew.errors import ArchiveUnavailable, ClewError, Closed, InvalidInput, Refusal, Starting
    from clew.thread.thread import Thread
    from clew_workflows.core import carried, commands, decisions, views
    from clew_workflows.core.advance import Session
    from clew_workflows.core.commands import Command
    from clew_workflows.protocol import (
        CallModel,
        DescribeModel,
        DraftQuery,
        Event,
        Prepare,
        RunTools,
        SessionEffect,
        Summarize,
    )
    from clew_workflows.shell import execution, ingress, summarizing
    from clew_workflows.shell.answers import Answers
    from clew_workflows.shell.background import start_background_task
    from clew_workflows.shell.external_calls import ExternalCalls
    from clew_workflows.shell.fullness import Fullness
    from clew_workflows.shell.hibernation import Hibernation
    from clew_workflows.shell.intake import Arrival, Intake
    from clew_workflows.shell.recalling import Recalling
    from clew_workflows.shell.rollover import Rollover
    from clew_workflows.shell.runtime import Runtime
    from clew_workflows.shell.signing import Signing
    from clew_workflows.shell.startup import Startup
    from clew_workflows.shell.subagents import Subagents
    from clew_workflows.shell.task_budget import TaskBudget
    from clew_workflows.shell.task_commands import TaskCommands
    from clew_workflows.shell.time_limits import TimeLimits
    from clew_workflows.shell.tool_calls import ToolCalls
    from clew_workflows.shell.waiters import Waiters


# Dynamic, so that a start with an argument that the SDK cannot decode reaches the code that refuses it. Every
# workflow type but `AgentSession` is refused.
@workflow.defn(dynamic=True)
class AgentSession:
    """A durable LLM-agent session. Its workflow id is the session id, its argument a `SessionStart`.

    Updates:
        message: Send a message. The answer is the outcome of its request, or `running` after a long wait.
        await_request: Wait again for the outcome of a request.
        submit_input: Steer the active run, or inject into it.
        cancel_request: Cancel the active run, or drop a queued request.
        resolve_approval: Approve or deny a tool call.
        submit_tool_result: Answer an external tool call.
        submit_context_operation: Replace, switch or expand a lane; pin or unpin its messages.
        summarize: Have a summary of a lane written.
        configure: Change the configuration.
        checkpoint: Return a lane's context and the configuration as a signed token.
        hibernate: Archive the session and end the workflow. The session can be started again.
        close_session: Cancel the active run, archive the session and end the workflow.

    Signals:
        steer, inject, modify_context, cancel, close: Like their updates. A refused signal becomes an `input` entry.
        forked: Record a fork. Clew sends it.
        subagent_result: Take the result of a subagent. Its session sends it.

    Queries:
        status: The session's status and configuration.
        context: The context of a past, the current or a future model call.
        transcript: The messages of a lane, unabridged.
        entries: The entries of the thread, in pages.
        follow: The entries from a seq on, and the status after them.
        window: The newest messages that fit a number of tokens.
        carried: The state to archive, for Clew's own activity.
        checkpoint: A drafted checkpoint to sign, for Clew's own activity.

    Attributes:
        waits: The time limits of the session's waits.
    """

    waits: ClassVar[TimeLimits] = TimeLimits()

    @workflow.init
    def __init__(self, args: Sequence[RawValue]) -> None:
        self._task_commands = TaskCommands()
        self._waiters = Waiters(self.waits.caller_timeout, self._task_commands)
        self._fullness = Fullness()
        self._refusal: ClewError | None = None
        # The newest validated update, by its id, so that its handler need not decode it again. During a replay
        # validators do not run: the handler decodes.
        self._validated: dict[str, Command] = {}
        info = workflow.info()
        try:
            if info.workflow_type != WORKFLOW_TYPE:
                raise InvalidInput(f"unknown workflow type {info.workflow_type[:200]!r}: send {WORKFLOW_TYPE!r}")
            if info.cron_schedule:
                raise InvalidInput("a session runs until it is closed: start it without a cron schedule")
            start = ingress.decode_start(
                info.workflow_id,
                args,
                is_continued=ingress.is_continued(info),
                parent_id=info.parent.workflow_id if info.parent else None,
            )
            if start.carried is not None:
                session = carried.restore(start.carried)
                self._fullness.count_fetched(events=0, size=len(args[0].payload.data))
            else:
                session = Session(decisions.begin(info.workflow_id, start.config, start.task), Thread())
            self._runtime = Runtime(session, self.waits)
            budget = TaskBudget(self._task_commands)
            self._intake = Intake(self._runtime, budget, is_open=start.carried is not None)
            self._startup = Startup(self._runtime, self._intake)
            self._recalling = Recalling(self._runtime, self._fullness)
            self._rollover = Rollover(
                self._runtime, self._fullness, self._recalling, self._waiters, self._task_commands
            )
            self._hibernation = Hibernation(self._runtime, self._rollover, self._task_commands)
            self._signing = Signing(self._runtime, self._recalling)
            self._answers = Answers(self._runtime, self._waiters, self._recalling, self._signing, self._hibernation)
            self._tool_calls = ToolCalls(self._runtime, budget, self._task_commands)
            self._external_calls = ExternalCalls(self._runtime, self._task_commands)
            self._subagents = Subagents(self._runtime, self._intake, self._task_commands)
        except Refusal as refusal:
            self._refusal = refusal

    @workflow.run
    async def run(self, _args: Sequence[RawValue]) -> dict[str, Any]:
        """Serve callers until the session closes or hibernates; answers the seq of the last entry."""
        if self._refusal:
            raise ingress.make_application_error(self._refusal)
        try:
            return await self._run_session()
        # Not BaseException: a worker that shuts down throws GeneratorExit into its workflows, which must not await
        # then.
        except (FailureError, asyncio.CancelledError):
            await self._wait_for_answers()
            raise

    async def _wait_for_answers(self) -> None:
        """Release the waiting callers, and wait until every handler has answered."""
        self._waiters.dismiss()
        await workflow.wait_condition(workflow.all_handlers_finished)

    async def _run_session(self) -> dict[str, Any]:
        runtime, intake = self._runtime, self._intake
        try:
            if not intake.is_open:
                self._refusal = await self._startup.open_session()
            if self._refusal:
                raise ingress.make_application_error(self._refusal)
            if intake.is_open:
                await self._serve()
        except asyncio.CancelledError:
            intake.turn_away(Closed("the session was cancelled before it had started"))
            if intake.is_open:
                reason = f"the workflow was cancelled: {workflow.cancellation_reason() or 'no reason was given'}"
                runtime.apply(decisions.close(runtime.state, runtime.now, reason))
                await self._end()
            raise
        self._waiters.dismiss()
        await self._end()
        await self._wait_for_answers()
        return {"last_seq": runtime.thread.last_seq}

    async def _end(self) -> None:
        """Send what other sessions wait for, and archive the closed session.

        Raises:
            ApplicationError: The archive belongs to another execution.
        """
        await self._subagents.settle()
        try:
            await self._hibernation.end()
        except Refusal as refusal:
            raise ingress.make_application_error(refusal) from None

    @workflow.update(dynamic=True)
    async def update(self, name: str, args: Sequence[RawValue]) -> dict[str, Any]:
        """Handle any update. The validator has refused most of what cannot be done; the rest is refused here."""
        self._fullness.updates += 1
        update_id = self._update_id()
        command = self._validated.pop(update_id, None) or ingress.decode_update(
            name, args, self._runtime.state.config
        )
        waiter = self._waiters.enter() if isinstance(command, MessageInput | AwaitRequestInput) else None
        arrival = Arrival(name, command, update_id, size=ingress.measure(args))
        self._intake.take(arrival)
        if not arrival.settled:
            await workflow.wait_condition(lambda: arrival.settled)
        if arrival.refusal:
            self._waiters.leave(waiter)
            raise ingress.make_application_error(arrival.refusal)
        try:
            return await self._answers.answer(arrival.answer, waiter)
        except ClewError as refusal:
            raise ingress.make_application_error(refusal) from None

    @update.validator
    def validate(self, name: str, args: Sequence[RawValue]) -> None:
        """Refuse an update before the history and the thread record it."""
        try:
            if self._refusal:
                raise self._refusal
            update_id = self._update_id()
            command = ingress.decode_update(name, args, self._runtime.state.config)
            if not self._intake.is_behind:
                _, answer = self._intake.decide(command, update_id)
                if self._rollover.full and isinstance(answer, commands.Outcome) and answer.is_new:
                    raise ArchiveUnavailable("older entries cannot be archived at present: send it again later")
            elif self._startup.away and not isinstance(command, CloseInput):
                raise self._startup.away
            self._validated = {update_id: command}
        except ClewError as refusal:
            raise ingress.make_application_error(refusal) from None

    @workflow.signal(dynamic=True)
    async def signal(self, name: str, args: Sequence[RawValue]) -> None:
        """Handle any signal. One that cannot be decoded becomes an `input` entry."""
        self._fullness.signals += 1
        if self._refusal or self._runtime.state.closed:
            return
        self._task_commands.ensure()
        arrival = Arrival(name, excerpt=ingress.make_excerpt(args), size=ingress.measure(args))
        try:
            arrival.command = ingress.decode_signal(name, args, self._runtime.state.config)
        except ClewError as refusal:
            arrival.refusal = refusal
        self._intake.take(arrival)
        if self._intake.is_open and not arrival.settled:
            # The workflow waits for its handlers before it ends.
            await workflow.wait_condition(lambda: arrival.settled)

    @workflow.query(dynamic=True)
    def query(self, name: str, args: Sequence[RawValue]) -> dict[str, Any]:
        """Answer any query, those of the session's own activities included."""
        try:
            if self._refusal:
                raise self._refusal
            state, thread = self._runtime.state, self._runtime.thread
            query = None if name == "carried" else ingress.decode_query(name, args)
            if not self._intake.is_open and name != "status":
                raise Starting("the session is looking for its archive: ask again in a moment")
            if name == "carried":
                return self._rollover.archive_state()
            match query:
                case None:
                    return views.answer_status(state, thread)
                case DraftQuery():
                    return self._signing.get_draft(query.number)
                case ContextQuery():
                    return take_page(self._runtime.project(query), query.page)
                case TranscriptQuery():
                    return views.answer_transcript(state, thread, query)
                case EntriesQuery():
                    return views.answer_entries(thread, query)
                case FollowQuery():
                    return views.answer_follow(state, thread, query)
                case WindowQuery():
                    return views.answer_window(state, thread, query)
        except ClewError as error:
            raise ingress.make_query_error(error) from None

    async def _serve(self) -> None:
        runtime, rollover, recalling = self._runtime, self._rollover, self._recalling
        if self._intake.is_behind:
            # Signals from before the end of start-up have no handler that would delay the end of the workflow.
            await workflow.wait_condition(lambda: not self._intake.is_behind)
        # Best effort: fetch the part of the active lane that the last workflow run could not carry over.
        await recalling.recall(runtime.state.context_ref, runtime.state.policy, ContextQuery())
        start_background_task(self._hibernation.hibernate_when_idle())
        start_background_task(self._external_calls.expire())
        start_background_task(self._subagents.serve())
        while True:
            self._ensure_command()
            # A message that opens a run, a close, a full history or a changed lane ends the wait.
            with suppress(asyncio.TimeoutError):
                await workflow.wait_condition(
                    lambda: bool(runtime.effect or runtime.state.closed or rollover.due or recalling.due),
                    timeout=rollover.store_retry_delay,
                )
            if rollover.due and not runtime.state.closed:
                await rollover.roll()
            if runtime.state.closed:
                return
            if (effect := runtime.effect) is not None:
                await self._carry_out(effect)
            else:
                await recalling.recall_changed()

    def _ensure_command(self) -> None:
        """Give the current task a command, unless it schedules an activity or answers callers: those are commands."""
        answering = self._waiters.has_any and not self._runtime.state.busy
        if self._runtime.effect is None and not answering:
            self._task_commands.ensure()

    async def _carry_out(self, effect: SessionEffect) -> None:
        runtime = self._runtime
        if isinstance(effect, RunTools):
            await self._tool_calls.run(effect)
            return
        runtime.task = asyncio.create_task(self._perform(effect))
        try:
            event = await runtime.task
        except asyncio.CancelledError:
            if runtime.effect is effect:
                raise
            return
        # Handlers may have decided while the activity ran. If they gave this effect up, its event no longer matters.
        if runtime.effect is effect:
            runtime.effect = None
            runtime.apply(decisions.take_event(runtime.state, event, runtime.now))

    async def _perform(self, effect: Prepare | DescribeModel | CallModel | Summarize) -> Event:
        if isinstance(effect, CallModel):
            policy = self._runtime.state.policy.overlay(effect.context_policy)
            query = ContextQuery(call_id=effect.call_id)
            if failure := await self._recalling.recall(effect.context_ref, policy, query, self._runtime.time_left):
                return failure
        if isinstance(effect, Summarize):
            return await summarizing.summarize(self._runtime, self._recalling, effect)
        return await execution.carry_out(effect, self._runtime.time_left)

    def _update_id(self) -> str:
        info = workflow.current_update_info()
        assert info is not None
        return info.id
