"""The session: one long-running workflow whose event history is the conversation thread.

Here are the handlers and the loop, and nothing is decided: what arrives goes through the door, what follows is
said by the decisions, and this class commits it and carries it out.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from temporalio import workflow
from temporalio.common import RawValue

with workflow.unsafe.imports_passed_through():
    from clew.contract import (
        MAX_WAIT_SECONDS,
        MAX_WAITERS,
        WORKFLOW_TYPE,
        ConfigureReceipt,
        ContextQuery,
        EntriesQuery,
        TranscriptQuery,
        WindowQuery,
    )
    from clew.entries import Draft, Entry
    from clew.errors import ClewError, Closed, InvalidInput, Refusal
    from clew.projection import Projection
    from clew.thread import Thread
    from clew.tokens import encoding
    from workflows import commands, decisions, details, door, views, world
    from workflows.decision import Decision
    from workflows.effects import Effect, Event
    from workflows.state import Moment, State

PREPARE_TIMEOUT = timedelta(minutes=10)


@dataclass(eq=False, slots=True)
class _Waiter:
    """A caller who waits for an outcome, since a time of the workflow's clock."""

    since: float
    expired: bool = False


# Dynamic, because only so does a start that cannot be decoded reach the code that refuses it. Every type but
# `AgentSession` is refused.
@workflow.defn(dynamic=True)
class AgentSession:
    """A durable LLM-agent session. Its workflow id is the session id."""

    @workflow.init
    def __init__(self, args: Sequence[RawValue]) -> None:
        self._thread = Thread()
        self._effect: Effect | None = None
        self._task: asyncio.Task[Event] | None = None
        self._waiters: set[_Waiter] = set()
        self._sweeping = False
        self._memo: tuple[int, ContextQuery, Projection] | None = None
        self._refusal: ClewError | None = None
        self._state: State
        info = workflow.info()
        try:
            if info.workflow_type != WORKFLOW_TYPE:
                raise InvalidInput(f"unknown workflow type {info.workflow_type[:200]!r}: it is {WORKFLOW_TYPE!r}")
            config = door.session_start(info.workflow_id, args)
            self._encoding = encoding(config.encoding)
            begun = decisions.begin(info.workflow_id, config)
            self._state, self._effect = begun.state, begun.effect
        except Refusal as refusal:
            self._refusal = refusal

    @workflow.run
    async def run(self, _args: Sequence[RawValue]) -> dict[str, Any]:
        """Serve until closed; answers the seq of the last entry."""
        if self._refusal:
            raise door.application_error(self._refusal)
        try:
            await self._serve()
        except asyncio.CancelledError:
            self._apply(decisions.close(self._state, self._now()))
            await workflow.wait_condition(workflow.all_handlers_finished)
            raise
        await workflow.wait_condition(workflow.all_handlers_finished)
        return {"last_seq": self._thread.last_seq}

    @workflow.update(dynamic=True)
    async def update(self, name: str, args: Sequence[RawValue]) -> dict[str, Any]:
        """Every update of the contract. What is refused was refused by the validator and left nothing."""
        command = door.update(name, args, self._state.config)
        decision, answer = commands.decide(self._state, self._thread, command, self._update_id(), self._now())
        self._apply(decision)
        match answer:
            case commands.Outcome():
                return await self._outcome(answer.request_id)
            case commands.Configured():
                # A new model or new tools are resolved by a worker first.
                await workflow.wait_condition(lambda: not self._state.config_due or self._state.closed)
                if self._state.config_due:
                    raise door.application_error(Closed("the session closed before the change took effect"))
                config = self._thread.config_at(self._thread.last_seq)
                return ConfigureReceipt(seq=config.seq if config else None, status="applied").as_json()
            case None:
                return {}
            case _:
                return answer.as_json()

    @update.validator
    def validate(self, name: str, args: Sequence[RawValue]) -> None:
        """Refuse before anything is written: neither the thread nor the history knows of it."""
        try:
            if self._refusal:
                raise self._refusal
            if self._state.closed:
                raise Closed("the session is closed: open it again, or another one")
            command = door.update(name, args, self._state.config)
            commands.check(self._state, self._thread, command, self._update_id())
        except ClewError as refusal:
            raise door.application_error(refusal) from None

    @workflow.signal(dynamic=True)
    def signal(self, name: str, args: Sequence[RawValue]) -> None:
        """Every signal of the contract; one that cannot be used becomes an `input` entry."""
        if self._refusal or self._state.closed:
            return
        try:
            command = door.signal(name, args, self._state.config)
            commands.check(self._state, self._thread, command, None)
        except ClewError as refusal:
            self._apply(decisions.reject(self._state, name, str(refusal), door.excerpt(args)))
            return
        decision, _ = commands.decide(self._state, self._thread, command, None, self._now())
        self._apply(decision)

    @workflow.query(dynamic=True)
    def query(self, name: str, args: Sequence[RawValue]) -> dict[str, Any]:
        """Every query of the contract."""
        try:
            if self._refusal:
                raise self._refusal
            match door.query(name, args):
                case None:
                    return views.status(self._state, self._thread)
                case ContextQuery() as asked:
                    return views.context_page(self._projection(asked), asked.page)
                case TranscriptQuery() as asked:
                    return views.transcript(self._state, self._thread, asked)
                case EntriesQuery() as asked:
                    return views.entries(self._thread, asked)
                case WindowQuery() as asked:
                    return views.window(self._state, self._thread, asked)
        except ClewError as error:
            raise door.query_error(error) from None

    async def _serve(self) -> None:
        while True:
            # Woken by whatever decides: a message that opens a run, or a signal that closes the session.
            await workflow.wait_condition(lambda: self._effect is not None or self._state.closed)
            if self._state.closed or self._effect is None:
                return
            effect = self._effect
            self._task = asyncio.create_task(world.carry_out(effect, self._time_left()))
            try:
                event = await self._task
            except asyncio.CancelledError:
                if self._effect is effect:
                    raise
                continue
            # Handlers may have run since the event came about. What they decided stands, and is built upon; what
            # they gave up is over, whatever came of it.
            if self._effect is effect:
                self._effect = None
                self._apply(decisions.happened(self._state, event, self._now()))

    def _apply(self, decision: Decision) -> None:
        """Commit, then act: the loop carries out what the decision asks for."""
        before, self._state = self._state, decision.state
        for draft in decision.commit:
            self._commit(draft)
        if _gave_up(before, self._state):
            self._effect = None
            if self._task:
                self._task.cancel()
        if decision.effect:
            self._effect = decision.effect
        workflow.set_current_details(details.current(self._state, self._thread))

    def _commit(self, draft: Draft) -> None:
        payload, tokens = draft.counted(self._encoding)
        at = workflow.now().isoformat(timespec="milliseconds").replace("+00:00", "Z")
        entry_id = f"e-{workflow.random().getrandbits(64):016x}"
        self._thread.append(Entry(self._thread.rev, entry_id, draft.kind, at, payload, draft.refs, tokens))

    async def _outcome(self, request_id: str) -> dict[str, Any]:
        """The outcome of a request as soon as it has one; `running` when the wait is long or crowded."""
        if len(self._waiters) < MAX_WAITERS:
            waiter = _Waiter(since=workflow.time())
            self._waiters.add(waiter)
            if not self._sweeping:
                self._sweeping = True
                asyncio.create_task(self._sweep())  # noqa: RUF006 - the workflow's loop holds its tasks
            await workflow.wait_condition(lambda: waiter.expired or self._thread.outcome_of(request_id) is not None)
            self._waiters.discard(waiter)
        outcome = views.outcome(self._thread, request_id) or views.running(self._state, self._thread, request_id)
        return outcome.as_json()

    async def _sweep(self) -> None:
        """Tell those who have waited long enough. One timer serves them all, so that a turn costs none."""
        while waiting := [waiter for waiter in self._waiters if not waiter.expired]:
            oldest = min(waiter.since for waiter in waiting)
            await workflow.sleep(max(oldest + MAX_WAIT_SECONDS - workflow.time(), 1), summary="long waits end")
            for waiter in self._waiters:
                waiter.expired = workflow.time() - waiter.since >= MAX_WAIT_SECONDS
        self._sweeping = False

    def _projection(self, asked: ContextQuery) -> Projection:
        """The projection that a query asks for; its next pages come from the same one."""
        key = asked.model_copy(update={"page": 0})
        if self._memo is None or self._memo[:2] != (self._thread.rev, key):
            self._memo = (self._thread.rev, key, views.projection(self._state, self._thread, key))
        return self._memo[2]

    def _now(self) -> Moment:
        return Moment(self._thread.rev, workflow.time())

    def _time_left(self) -> timedelta:
        if self._state.run is None:
            return PREPARE_TIMEOUT
        return timedelta(seconds=max(self._state.run.deadline - workflow.time(), 1))

    def _update_id(self) -> str:
        info = workflow.current_update_info()
        assert info is not None
        return info.id


def _gave_up(before: State, after: State) -> bool:
    """Whether what is being carried out was for a run that is over, or for a session that has ended."""
    if after.closed:
        return True
    return before.run is not None and (after.run is None or after.run.run_id != before.run.run_id)
