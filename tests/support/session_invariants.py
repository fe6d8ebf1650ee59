"""What holds of a session at every point, whatever its callers, models and tools do."""

from __future__ import annotations

import json
from typing import Any

from hypothesis.stateful import RuleBasedStateMachine, invariant
from pydantic_core import to_json

from clew.errors import ClewError, Refusal
from clew_workflows.protocol import CallModel, RunTools
from clew_workflows.session import requests as request_rules
from clew_workflows.session import tool_rounds, views
from clew_workflows.session.runs import FOLLOW_UP
from clew_workflows.thread.context.contexts import build_context
from clew_workflows.thread.context.projection import Projection
from clew_workflows.thread.entries import Entry
from clew_workflows.thread.thread import Thread
from tests.support.session_harness import SessionHarness
from tests.support.threads import assert_valid


class SessionInvariants(RuleBasedStateMachine):
    """A state machine without rules: it checks the session that the rules of a subclass drive.

    Attributes:
        session: The session.
        requests: The ids of the requests that it has accepted.
        inputs: The ids of the inputs that it has accepted.
        shown: The context of each model call, by the call's id.
        under_way: The run in progress with its settings; None if it has made no model call yet.
    """

    session: SessionHarness
    requests: list[str]
    inputs: list[str]
    shown: dict[str, Projection]
    under_way: tuple[Any, ...] | None

    def look(self) -> None:
        """What is asked of the world can be done: a call's context is one that every provider takes."""
        session = self.session
        while isinstance(session.effect, CallModel) and session.effect.call_id not in self.shown:
            call = session.effect
            try:
                shown = session.build_context(call)
            except ClewError:
                session.fail("context_overflow")
                continue
            assert_valid(shown.messages)
            assert call.at_seq == session.thread.last_seq
            self.shown[call.call_id] = shown

    def ask_for(self, what: Any, *args: Any, **given: Any) -> Any:
        """What comes of a command; None where it was refused, and then nothing has changed."""
        session = self.session
        before = session.state, session.thread.rev, session.effect
        try:
            answer = what(*args, **given)
        except Refusal:
            assert (session.state, session.thread.rev, session.effect) == before
            return None
        self.look()
        return answer

    @invariant()
    def every_request_has_one_outcome_or_is_unfinished(self) -> None:
        session = self.session
        ended = [entry.refs["request_id"] for entry in session.thread.filter_by_kind("run")]
        own = [request_id for request_id in ended if request_id.startswith(FOLLOW_UP)]
        waiting = session.state.unfinished
        asked = [r for r in (*ended, *waiting) if not r.startswith(FOLLOW_UP)]
        assert sorted(asked) == sorted(self.requests)
        assert len({*own, *waiting}) == len([*own, *waiting])
        if session.state.closed:
            assert not waiting
        for request_id in ended:
            outcome = session.find_outcome(request_id)
            if (answer := outcome["answer_seq"]) is not None:
                assert session.thread[answer].payload["content"]
                assert session.thread[answer].refs["run_id"] == outcome["run_id"]

    @invariant()
    def every_input_was_read_or_dropped_or_waits(self) -> None:
        session, state = self.session, self.session.state
        facts = [(entry.kind, entry.payload) for entry in session.thread]
        read = [p["input_id"] for _, p in facts if p.get("role") == "user" and str(p.get("input_id"))[:2] == "i-"]
        dropped = [p["input_id"] for kind, p in facts if kind == "input" and str(p.get("input_id"))[:2] == "i-"]
        waiting = (*state.inbox, *(i for request in state.queue for i in request.inputs))
        waits = [i.input_id for i in waiting if i.input_id.startswith("i-")]
        assert sorted([*read, *dropped, *waits]) == sorted(self.inputs)
        assert not state.inbox or state.busy
        assert not waits or not state.closed

    @invariant()
    def every_operation_is_applied_at_most_once(self) -> None:
        applied = [entry.payload["op_id"] for entry in self.session.thread.filter_by_kind("ai_context_operation")]
        assert len(set(applied)) == len(applied)

    @invariant()
    def nothing_stands_still(self) -> None:
        """A session has an effect under way exactly if it is not idle, closed or waiting for people or programs."""
        session = self.session
        runs = bool(tool_rounds.list_running(session.state)) and isinstance(session.effect, RunTools)
        at_rest = session.state.phase in ("idle", "closed", "awaiting_external") or (
            session.state.phase == "awaiting_approval" and not runs
        )
        assert (session.effect is None) == at_rest
        assert session.state.phase != "idle" or not session.state.busy
        assert (session.state.run is None) or session.state.phase not in ("idle", "closed")

    @invariant()
    def a_run_keeps_its_settings_from_its_first_call_on(self) -> None:
        """Before, a worker's profile of its model may still change them."""
        state = self.session.state
        now = (
            (state.run.run_id, state.run.request, state.settings.config, state.settings.policy, state.context_ref)
            if state.run and state.run.call
            else None
        )
        if now and self.under_way and now[0] == self.under_way[0]:
            assert now == self.under_way
        self.under_way = now

    @invariant()
    def the_thread_is_whole(self) -> None:
        thread = self.session.thread
        assert [entry.seq for entry in thread] == list(range(thread.rev))
        assert not thread.rev or thread[0].kind == "config"
        calls = [call["id"] for entry in thread for call in entry.payload.get("tool_calls", [])]
        tools = [entry for entry in thread if entry.payload.get("role") == "tool"]
        results = [entry.refs["tool_call_id"] for entry in tools if "late" not in entry.payload]
        late = [entry.refs["tool_call_id"] for entry in tools if "late" in entry.payload]
        doubts = [entry.refs["tool_call_id"] for entry in tools if "in_doubt" in entry.payload]
        assert len(set(late)) == len(late)
        assert set(late) <= set(doubts)
        assert len(set(calls)) == len(calls)
        assert len(set(results)) == len(results)
        assert set(results) == (set(calls) if self.session.state.run is None else set(calls) & set(results))
        for entry in thread:
            assert entry.refs["session_id"] == "s-1"
            for name in ("request_id", "run_id"):
                assert entry.kind == "input" or entry.payload.get(name) in (None, entry.refs.get(name))

    @invariant()
    def a_thread_read_back_gives_the_same_answers(self) -> None:
        session = self.session
        rows = json.loads(to_json([entry.as_dict() for entry in session.thread]))
        again = Thread(Entry.from_json(row) for row in rows)
        assert views.answer_status(session.state, again) == views.answer_status(session.state, session.thread)
        for request_id in self.requests:
            assert request_rules.find_outcome(session.state, again, request_id) == request_rules.find_outcome(
                session.state, session.thread, request_id
            )
        for lane in ("default", "draft"):
            try:
                shown = build_context(session.thread, context_ref=lane)
            except ClewError:
                continue
            assert_valid(shown.messages)
            assert build_context(again, context_ref=lane) == shown
