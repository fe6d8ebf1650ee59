"""The session: one long-running workflow whose event history is the conversation thread.

Here are the handlers and the loop, and nothing is decided: what arrives goes through the door, what follows is
said by the decisions, the runtime commits it, and the loop carries it out.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Sequence
from contextlib import suppress
from typing import Any

from temporalio import workflow
from temporalio.common import RawValue
from temporalio.exceptions import FailureError

with workflow.unsafe.imports_passed_through():
    from clew.context.contexts import context_page
    from clew.contract import (
        WORKFLOW_TYPE,
        AwaitRequestInput,
        CloseInput,
        ContextQuery,
        EntriesQuery,
        MessageInput,
        TranscriptQuery,
        WindowQuery,
    )
    from clew.contract.outputs import ConfigureReceipt, OperationReceipt
    from clew.errors import ArchiveUnavailable, ClewError, Closed, InvalidInput, Refusal, Starting
    from clew.thread.thread import Thread
    from clew_workflows.core import carried, commands, decisions, outcomes, summaries, views
    from clew_workflows.core.advance import Session
    from clew_workflows.core.commands import Command
    from clew_workflows.protocol import (
        CallModel,
        DescribeModel,
        DraftQuery,
        Effect,
        Event,
        Prepare,
        RunTools,
        Summarize,
    )
    from clew_workflows.shell import execution, ingress, summarizing
    from clew_workflows.shell.fullness import Fullness
    from clew_workflows.shell.hibernation import Hibernation
    from clew_workflows.shell.intake import Arrival, Intake
    from clew_workflows.shell.rollover import Archivist
    from clew_workflows.shell.runtime import Runtime
    from clew_workflows.shell.signing import Signing
    from clew_workflows.shell.task_commands import TaskCommands
    from clew_workflows.shell.tool_calls import ToolCalls
    from clew_workflows.shell.waiters import Waiter, Waiters


# Dynamic, because only so does a start that cannot be decoded reach the code that refuses it. Every type but
# `AgentSession` is refused.
@workflow.defn(dynamic=True)
class AgentSession:
    """A durable LLM-agent session. Its workflow id is the session id."""

    @workflow.init
    def __init__(self, args: Sequence[RawValue]) -> None:
        self._waiters = Waiters()
        self._fullness = Fullness()
        self._task_commands = TaskCommands()
        self._refusal: ClewError | None = None
        # The newest validated update, by its id: its handler need not decode it again. A replay validates nothing.
        self._validated: dict[str, Command] = {}
        info = workflow.info()
        try:
            if info.workflow_type != WORKFLOW_TYPE:
                raise InvalidInput(f"unknown workflow type {info.workflow_type[:200]!r}: it is {WORKFLOW_TYPE!r}")
            if info.cron_schedule:
                raise InvalidInput("a session lives until it is closed: start it without a cron schedule")
            start = ingress.session_start(info.workflow_id, args, is_continued=ingress.is_continued(info))
            if start.carried is not None:
                begun = carried.restore(start.carried)
                self._fullness.fetched(events=0, size=len(args[0].payload.data))
            else:
                begun = Session(decisions.begin(info.workflow_id, start.config), Thread())
            self._runtime = Runtime(begun)
            self._intake = Intake(self._runtime, is_open=start.carried is not None)
            self._archivist = Archivist(self._runtime, self._fullness, self._waiters)
            self._hibernation = Hibernation(self._runtime, self._archivist)
            self._signing = Signing(self._runtime, self._archivist)
            self._tool_calls = ToolCalls(self._runtime, self._task_commands)
        except Refusal as refusal:
            self._refusal = refusal

    @workflow.run
    async def run(self, _args: Sequence[RawValue]) -> dict[str, Any]:
        """Serve until closed; answers the seq of the last entry."""
        if self._refusal:
            raise ingress.application_error(self._refusal)
        try:
            return await self._live()
        except Refusal as refusal:
            await self._answered()
            raise ingress.application_error(refusal) from None
        # And nothing else: a worker that ends throws GeneratorExit at whatever it still holds.
        except (FailureError, asyncio.CancelledError):
            await self._answered()
            raise

    async def _answered(self) -> None:
        """Back when every caller has got an answer."""
        self._waiters.dismiss()
        await workflow.wait_condition(workflow.all_handlers_finished)

    async def _live(self) -> dict[str, Any]:
        runtime, intake = self._runtime, self._intake
        try:
            if not intake.is_open:
                await self._awake()
            if self._refusal:
                raise ingress.application_error(self._refusal)
            if intake.is_open:
                await self._serve()
        except asyncio.CancelledError:
            intake.turn_away(Closed("the session was cancelled before it had begun"))
            if intake.is_open:
                reason = f"the workflow was cancelled: {workflow.cancellation_reason() or 'no reason was given'}"
                runtime.apply(decisions.close(runtime.state, runtime.now, reason))
                await self._hibernation.end()
            raise
        self._waiters.dismiss()
        await self._hibernation.end()
        await self._answered()
        return {"last_seq": runtime.thread.last_seq}

    @workflow.update(dynamic=True)
    async def update(self, name: str, args: Sequence[RawValue]) -> dict[str, Any]:
        """Every update of the contract. What is refused was refused by the validator and left nothing."""
        self._fullness.updates += 1
        update_id = self._update_id()
        command = self._validated.pop(update_id, None) or ingress.update(name, args, self._runtime.state.config)
        waiter = self._waiters.enter() if isinstance(command, MessageInput | AwaitRequestInput) else None
        arrival = Arrival(name, command, update_id)
        self._intake.take(arrival)
        if not arrival.settled:
            await workflow.wait_condition(lambda: arrival.settled)
        if arrival.refusal:
            self._waiters.leave(waiter)
            raise ingress.application_error(arrival.refusal)
        match arrival.answer:
            case commands.Outcome(request_id):
                return await self._outcome(request_id, waiter)
            case commands.Configured():
                return await self._configured()
            case commands.SummaryAwaited(summary_id):
                return await self._summed_up(summary_id)
            case commands.Checkpointing() as asked:
                return await self._signing.checkpoint(asked)
            case commands.Hibernating(reason):
                return await self._or_refused(self._hibernation.hibernate(reason))
            case commands.Closing():
                return await self._or_refused(self._hibernation.closed())
            case None:
                return {}
            case receipt:
                if isinstance(receipt, OperationReceipt):
                    await self._archivist.changes_recalled()
                return receipt.as_json()

    @update.validator
    def validate(self, name: str, args: Sequence[RawValue]) -> None:
        """Refuse before anything is written: neither the thread nor the history knows of it."""
        try:
            if self._refusal:
                raise self._refusal
            update_id = self._update_id()
            command = ingress.update(name, args, self._runtime.state.config)
            if self._intake.is_open:
                _, answer = self._intake.decide(command, update_id)
                if self._archivist.full and isinstance(answer, commands.Outcome) and answer.is_new:
                    raise ArchiveUnavailable("older entries cannot be archived at present: send it again later")
            elif self._archivist.away and not isinstance(command, CloseInput):
                raise self._archivist.away
            self._validated = {update_id: command}
        except ClewError as refusal:
            raise ingress.application_error(refusal) from None

    @workflow.signal(dynamic=True)
    def signal(self, name: str, args: Sequence[RawValue]) -> None:
        """Every signal of the contract; one that cannot be used becomes an `input` entry."""
        self._fullness.signals += 1
        if self._refusal or self._runtime.state.closed:
            return
        self._task_commands.ensure()
        arrival = Arrival(name, excerpt=ingress.excerpt(args))
        try:
            arrival.command = ingress.signal(name, args, self._runtime.state.config)
        except ClewError as refusal:
            arrival.refusal = refusal
        self._intake.take(arrival)

    @workflow.query(dynamic=True)
    def query(self, name: str, args: Sequence[RawValue]) -> dict[str, Any]:
        """Every query of the contract, and those of the session's own activities."""
        try:
            if self._refusal:
                raise self._refusal
            state, thread = self._runtime.state, self._runtime.thread
            asked = None if name == "carried" else ingress.query(name, args)
            if not self._intake.is_open and name != "status":
                raise Starting("the session is looking for its archive: ask again in a moment")
            if name == "carried":
                return self._archivist.whole()
            match asked:
                case None:
                    return views.status(state, thread)
                case DraftQuery():
                    return self._signing.draft(asked.number)
                case ContextQuery():
                    return context_page(self._runtime.projection(asked), asked.page)
                case TranscriptQuery():
                    return views.transcript(state, thread, asked)
                case EntriesQuery():
                    return views.entries(thread, asked)
                case WindowQuery():
                    return views.window(state, thread, asked)
        except ClewError as error:
            raise ingress.query_error(error) from None

    async def _awake(self) -> None:
        """Whoever comes before the session knows what it is waits for that, unless it takes too long."""
        archivist, intake = self._archivist, self._intake
        waking = asyncio.create_task(archivist.awake())
        while not waking.done():
            await workflow.wait_condition(lambda: waking.done() or archivist.away is not None)
            if archivist.away and not waking.done():
                if intake.asked_to_close:
                    intake.confirm_close()
                intake.turn_away(archivist.away)
                await workflow.wait_condition(
                    lambda: waking.done() or archivist.away is None or intake.asked_to_close
                )
                if intake.asked_to_close and not waking.done():
                    waking.cancel()
                    intake.confirm_close()
                    return
        if isinstance(refusal := waking.exception(), Refusal):
            self._refusal = refusal
            intake.turn_away(refusal)
            return
        await waking
        intake.open()

    async def _serve(self) -> None:
        runtime, archivist = self._runtime, self._archivist
        # The live window is whole again, whatever of it could be carried; without the archive it stays as it is.
        await archivist.recall(runtime.state.context_ref, runtime.state.policy, ContextQuery())
        if seconds := runtime.state.config.idle_timeout_seconds:
            asyncio.create_task(self._hibernation.doze(seconds))  # noqa: RUF006 - the workflow's loop holds its tasks
        while True:
            self._before_waiting()
            # Woken by whatever decides: a message that opens a run, a signal that closes the session, a full history.
            with suppress(asyncio.TimeoutError):
                await workflow.wait_condition(
                    lambda: bool(runtime.effect or runtime.state.closed or archivist.due or archivist.recall_due),
                    timeout=archivist.pause,
                )
            if archivist.due and not runtime.state.closed:
                await archivist.roll()
            if runtime.state.closed:
                return
            if (effect := runtime.effect) is not None:
                await self._carry_out(effect)
            else:
                await archivist.recall_changed()

    def _before_waiting(self) -> None:
        """Give the current task a command, unless an activity is to be scheduled or callers are answered in it."""
        answering = self._waiters.any and not self._runtime.state.busy
        if self._runtime.effect is None and not answering:
            self._task_commands.ensure()

    async def _carry_out(self, effect: Effect) -> None:
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
        # Handlers may have run since the event came about. What they decided stands, and is built upon; what
        # they gave up is over, whatever came of it.
        if runtime.effect is effect:
            runtime.effect = None
            runtime.apply(decisions.happened(runtime.state, event, runtime.now))

    async def _perform(self, effect: Prepare | DescribeModel | CallModel | Summarize) -> Event:
        if isinstance(effect, CallModel):
            policy = self._runtime.state.policy.overlaid(effect.context_policy)
            asked = ContextQuery(call_id=effect.call_id)
            if failure := await self._archivist.recall(effect.context_ref, policy, asked):
                return failure
        if isinstance(effect, Summarize):
            return await summarizing.summarize(self._runtime, self._archivist, effect)
        return await execution.carry_out(effect, self._runtime.time_left)

    async def _outcome(self, request_id: str, waiter: Waiter | None) -> dict[str, Any]:
        """The outcome of a request as soon as it has one; `running` when the wait is long or crowded."""
        runtime = self._runtime

        def known() -> bool:
            return outcomes.outcome_of(runtime.state, runtime.thread, request_id) is not None

        await self._waiters.wait(waiter, known)
        ended = outcomes.outcome_of(runtime.state, runtime.thread, request_id)
        return (ended or outcomes.running(runtime.state, runtime.thread, request_id)).as_json()

    async def _configured(self) -> dict[str, Any]:
        """A new model or new tools are resolved by a worker first."""
        runtime = self._runtime
        await workflow.wait_condition(
            lambda: not runtime.state.config_due or runtime.state.closed or self._archivist.rolling
        )
        if not runtime.state.config_due:
            config = runtime.thread.config_at(runtime.thread.last_seq)
            return ConfigureReceipt(seq=config.seq if config else None, status="applied").as_json()
        if runtime.state.closed:
            raise ingress.application_error(Closed("the session closed before the change took effect"))
        return ConfigureReceipt(status="deferred").as_json()

    async def _summed_up(self, summary_id: str) -> dict[str, Any]:
        runtime = self._runtime
        await workflow.wait_condition(
            lambda: not summaries.is_making(runtime.state, summary_id) or self._archivist.rolling
        )
        return summarizing.receipt(runtime, summary_id)

    async def _or_refused(self, answer: Awaitable[dict[str, Any]]) -> dict[str, Any]:
        try:
            return await answer
        except Refusal as refusal:
            raise ingress.application_error(refusal) from None

    def _update_id(self) -> str:
        info = workflow.current_update_info()
        assert info is not None
        return info.id
