"""The session: one long-running workflow, whose event history holds the conversation thread.

Handlers decode updates, signals and queries. `clew_workflows.session` decides. `Runtime` commits the decisions, and
`Reconciler` carries out what the session wants then. This module decides nothing itself.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from typing import Any, ClassVar

from temporalio import workflow
from temporalio.common import RawValue
from temporalio.exceptions import FailureError

with workflow.unsafe.imports_passed_through():
    from clew_workflows.contract import (
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
    from clew_workflows.contract.errors import (
        ArchiveUnavailable,
        ClewError,
        Closed,
        InvalidInput,
        NewerVersion,
        Refusal,
        UnknownKey,
    )
    from clew_workflows.host import ingress
    from clew_workflows.host.answers import Answers, Signing, Waiters
    from clew_workflows.host.execution import TimeLimits
    from clew_workflows.host.handlers import serve_metadata
    from clew_workflows.host.intake import Arrival, Intake
    from clew_workflows.host.local_runs import LOCAL_RUNS
    from clew_workflows.host.recalling import Recalling
    from clew_workflows.host.reconciler import Reconciler
    from clew_workflows.host.rollover import Rollover, Startup
    from clew_workflows.host.row import Row
    from clew_workflows.host.runtime import Runtime
    from clew_workflows.protocol import DraftQuery
    from clew_workflows.session import carried, commands, decisions, ui, views
    from clew_workflows.session.advance import Session
    from clew_workflows.session.commands import Command
    from clew_workflows.thread.context.contexts import take_page
    from clew_workflows.thread.thread import Thread


# Dynamic, so that a start with an argument that the SDK cannot decode reaches the code that refuses it. Every
# workflow type but `AgentSession` is refused.
@workflow.defn(dynamic=True, sandboxed=False)
class AgentSession:
    """A durable LLM-agent session. Its workflow id is the session id, its argument a `SessionStart`.

    `clew_workflows.host.handlers` lists its updates, signals and queries.

    Attributes:
        waits: The time limits of the session's waits.
    """

    waits: ClassVar[TimeLimits] = TimeLimits()

    @workflow.init
    def __init__(self, args: Sequence[RawValue]) -> None:
        self._refusal: ClewError | None = None
        self._key_missing: ingress.KeyMissing | None = None
        # The newest validated update, by its id, so that its handler need not decode it again. During a replay
        # validators do not run: the handler decodes.
        self._validated: dict[str, Command] = {}
        serve_metadata(self._describe)
        info = workflow.info()
        try:
            if info.workflow_type != WORKFLOW_TYPE:
                raise InvalidInput(f"unknown workflow type {info.workflow_type[:200]!r}: send {WORKFLOW_TYPE!r}")
            if info.cron_schedule:
                raise InvalidInput("a session runs until it is closed: start it without a cron schedule")
            is_continued = ingress.is_continued(info)
            if is_continued:
                ingress.require_own(args)
            elif refusal := ingress.settle(args, "start", waits_for_key=info.parent is not None):
                raise refusal
            start = ingress.decode_start(
                info.workflow_id,
                args,
                is_continued=is_continued,
                parent_id=info.parent.workflow_id if info.parent else None,
            )
            if start.carried is not None:
                session = carried.restore(start.carried)
            else:
                session = Session(decisions.begin(info.workflow_id, start.config, start.task), Thread())
            self._runtime = runtime = Runtime(session, self.waits)
            if start.carried is not None:
                runtime.fullness.count_fetched(events=0, size=len(args[0].payload.data))
            self._intake = Intake(runtime, is_open=start.carried is not None)
            self._startup = Startup(runtime, self._intake, start.after)
            self._recalling = Recalling(runtime)
            self._row = Row(runtime)
            self._rollover = Rollover(runtime, self._intake, self._recalling, self._row)
            self._reconciler = Reconciler(runtime, self._intake, self._recalling, self._rollover, self._row)
            self._waiters = Waiters(runtime)
            self._rollover.dismiss_waiters = self._waiters.dismiss
            self._signing = Signing(runtime, self._recalling)
            self._answers = Answers(runtime, self._waiters, self._recalling, self._signing, self._rollover)
        except Refusal as refusal:
            self._refusal = refusal
        except ingress.KeyMissing as error:
            # `run` raises it: after an error in `__init__`, the SDK leaves a coroutine that is never awaited.
            self._key_missing, self._refusal = error, UnknownKey(str(error))

    @workflow.run
    async def run(self, _args: Sequence[RawValue]) -> dict[str, Any]:
        """Serve callers until the session closes or hibernates; answers the seq of the last entry."""
        # The workflow task fails, and the server repeats it until another worker takes it.
        if self._key_missing:
            raise self._key_missing
        if isinstance(self._refusal, NewerVersion):
            raise self._refusal
        if self._refusal:
            raise ingress.make_application_error(self._refusal)
        try:
            with LOCAL_RUNS.serve(workflow.info().run_id):
                return await self._run_session()
        # Not BaseException: a worker that shuts down throws GeneratorExit into its workflows, which must not await
        # then.
        except (FailureError, asyncio.CancelledError):
            await self._wait_for_answers()
            raise

    async def _wait_for_answers(self) -> None:
        """Release the waiting callers, and wait until every handler has answered."""
        self._waiters.dismiss()
        await workflow.wait_condition(lambda: workflow.all_handlers_finished() and self._intake.is_settled)

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
            if workflow.cancellation_reason() is None:
                # The worker evicts the workflow, which must end at once.
                raise
            intake.turn_away(Closed("the session was cancelled before it had started"))
            if intake.is_open:
                reason = f"the workflow was cancelled: {workflow.cancellation_reason() or 'no reason was given'}"
                runtime.reconcile = self._reconciler.reconcile
                # A run that is being stopped ends first. Closing may stop the next one.
                await runtime.wait_until(lambda: not runtime.state.stopping)
                runtime.apply(decisions.close(runtime.state, runtime.now, reason))
                await runtime.wait_until(lambda: runtime.state.closed)
                await self._end()
                self._row.end()
            raise
        self._waiters.dismiss()
        await self._end()
        await self._wait_for_answers()
        self._row.end()
        return {"last_seq": runtime.thread.last_seq}

    async def _end(self) -> None:
        """Send what other sessions wait for, and archive the closed session.

        Raises:
            ApplicationError: The archive belongs to another execution.
        """
        await self._runtime.wait_until(lambda: self._reconciler.is_settled)
        try:
            await self._rollover.end()
        except Refusal as refusal:
            raise ingress.make_application_error(refusal) from None

    @workflow.update(dynamic=True)
    async def update(self, name: str, args: Sequence[RawValue]) -> dict[str, Any]:
        """Handle any update. The validator has refused most of what cannot be done; the rest is refused here."""
        if self._key_missing:
            raise self._key_missing
        self._runtime.note_handled()
        self._runtime.fullness.updates += 1
        update_id = self._update_id()
        command = self._validated.pop(update_id, None)
        if command is None:
            ingress.require_key(args)
            command = ingress.decode_update(name, args, self._runtime.state.settings.config)
        arrival = Arrival(name, command, update_id, ingress.find_seal(args), size=ingress.measure(args))
        self._intake.take(arrival)
        await self._runtime.wait_until(lambda: arrival.settled)
        if arrival.refusal:
            raise ingress.make_application_error(arrival.refusal)
        # Not before: a caller whose message waits for its decision is not answered when the session comes to rest.
        waiter = self._waiters.enter() if isinstance(command, MessageInput | AwaitRequestInput) else None
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
            if refusal := ingress.find_refusal(args):
                raise refusal
            update_id = self._update_id()
            command = ingress.decode_update(name, args, self._runtime.state.settings.config)
            if not self._intake.is_behind:
                answer = self._intake.foresee(command, update_id, ingress.find_seal(args))
                if self._rollover.full and isinstance(answer, commands.Outcome) and answer.is_new:
                    full = ArchiveUnavailable("older entries cannot be archived at present: send it again later")
                    raise self._rollover.away or full
            elif self._startup.away and not isinstance(command, CloseInput):
                raise self._startup.away
            else:
                self._intake.refuse_reused(command)
            self._validated = {update_id: command}
        except ClewError as refusal:
            raise ingress.make_application_error(refusal) from None

    @workflow.signal(dynamic=True)
    async def signal(self, name: str, args: Sequence[RawValue]) -> None:
        """Handle any signal. One that cannot be decoded becomes an `input` entry."""
        if self._refusal:
            return
        self._runtime.note_handled()
        if self._runtime.state.closed:
            return
        self._runtime.fullness.signals += 1
        if self._intake.leave_out(name):
            return
        # A refused one has neither an excerpt nor a size: workers with different keys see different bytes.
        arrival = Arrival(name, refusal=ingress.settle(args, f"signal-{self._runtime.fullness.signals}"))
        if arrival.refusal is None:
            arrival.size, arrival.seal, arrival.undecoded = ingress.measure(args), ingress.find_seal(args), args
        # It does not wait: each of thousands of signals that came while no worker ran would be a coroutine, and a
        # condition to check. The workflow waits for the intake before it ends.
        self._intake.take(arrival)

    @workflow.query(dynamic=True)
    def query(self, name: str, args: Sequence[RawValue]) -> dict[str, Any]:
        """Answer any query, those of the session's own activities included."""
        try:
            if self._refusal:
                raise self._refusal
            state, thread = self._runtime.state, self._runtime.thread
            query = ingress.decode_query(name, args)
            if not self._intake.is_open and name != "status":
                raise self._startup.refusal_of_readers
            if name == "carried":
                return self._rollover.archive_state()
            if name == "followed":
                return {"queries": LOCAL_RUNS.count_follows(workflow.info().run_id)}
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
                    return self._answer_follow(query)
                case WindowQuery():
                    return views.answer_window(state, thread, query)
        except ClewError as error:
            raise ingress.make_query_error(error) from None

    def _answer_follow(self, query: FollowQuery) -> dict[str, Any]:
        if query.heartbeats:
            LOCAL_RUNS.tell(workflow.info().run_id, "followed")
        return views.answer_follow(self._runtime.state, self._runtime.thread, query)

    def _describe(self) -> str:
        """Describe the session for the Temporal UI."""
        if self._refusal:
            return ingress.make_query_error(self._refusal).message
        state = self._runtime.state
        return ui.describe_session(state, self._runtime.thread, texts=state.settings.shows_texts)

    async def _serve(self) -> None:
        """Serve callers until the session closes. What it wants goes on beside this coroutine."""
        runtime, rollover = self._runtime, self._rollover
        # Best effort: fetch the part of the active lane that the last workflow run could not carry over.
        build = partial(runtime.project, ContextQuery())
        await self._recalling.recall(runtime.state.context_ref, runtime.state.settings.policy, build)
        runtime.reconcile = self._reconciler.reconcile
        while not runtime.state.closed:
            runtime.settle_soon()
            with suppress(TimeoutError):
                await runtime.wait_until(
                    lambda: rollover.is_wanted or runtime.state.closed, rollover.store_retry_delay
                )
            # A handler may have decided since it was wanted.
            if rollover.is_wanted and rollover.due:
                await rollover.roll()
            rollover.is_wanted = False

    def _update_id(self) -> str:
        info = workflow.current_update_info()
        assert info is not None
        return info.id
