"""The session in a world that does whatever it may: what holds at every point, whatever comes and goes."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from pydantic_core import to_json

from clew.context.contexts import build_context
from clew.context.projection import Projection
from clew.contract import ContextQuery, ToolResultInput
from clew.contract.policy import ContextPolicy
from clew.errors import ClewError, Refusal
from clew.outcomes import Usage
from clew.thread.entries import Entry
from clew.thread.thread import Thread
from clew_workflows.core import approvals, decisions, external_calls, outcomes, views
from clew_workflows.core.carried import carry, restore
from clew_workflows.core.closing import FOLLOW_UP
from clew_workflows.protocol import (
    ArchiveRef,
    CallModel,
    Declined,
    Failure,
    ModelStopped,
    Outdated,
    Prepare,
    RequestedTool,
    RunTools,
)
from tests.support.examples import examples
from tests.support.session_harness import UNKNOWN, SessionHarness, assert_valid, interrupt_reply

POLICIES = st.sampled_from(
    [
        None,
        None,
        ContextPolicy(keep_last_turns=0),
        ContextPolicy(max_messages=1),
        ContextPolicy(include_kinds=("message",)),
        ContextPolicy(max_input_tokens=250, reserve_output_tokens=40),
    ]
)
SNAPSHOTS: list[list[dict[str, Any]]] = [
    [],
    [{"role": "user", "content": "earlier"}],
    [
        {"role": "user", "content": "add"},
        {"role": "assistant", "content": "", "tool_calls": [{"id": "x", "name": "add", "arguments": {}}]},
        {"role": "tool", "content": "4", "tool_call_id": "x", "name": "add"},
    ],
]
TOOLS = [RequestedTool(name=name) for name in ("add", "add", "ask_first", "order_outside", "fly")] + [
    RequestedTool(name="add", malformed="{")
]

EVENTS = st.fixed_dictionaries(
    {
        "content": st.sampled_from(["", "well", "truncated", "a longer answer " * 20]),
        "tools": st.just([]) | st.lists(st.sampled_from(TOOLS), max_size=4),
        "error": st.sampled_from([*[None] * 9, "timeout", "bad_request"]),
        "problem": st.booleans(),
        "refused": st.sampled_from([None, None, Outdated(deployment="d-2"), Declined(calls_models=True)]),
    }
)
WORDS: list[dict[str, Any]] = [{}, {"decision": "deny"}, {"arguments": {"a": 2}}, {"arguments": {"a": "x"}}]


def is_open(machine: AnySession) -> bool:
    return not machine.session.state.closed


def is_running(machine: AnySession) -> bool:
    return machine.session.state.run is not None


def build_or_refuse(thread: Thread, lane: str) -> Projection | str:
    """A lane's context, or why there is none."""
    try:
        return build_context(thread, context_ref=lane)
    except ClewError as error:
        return str(error)


class AnySession(RuleBasedStateMachine):
    """Every rule asks for what it likes; a refusal must leave everything as it was."""

    @initialize(
        max_iterations=st.integers(1, 4),
        limit=st.sampled_from([None, None, None, 60]),
        prompt=st.sampled_from([None, "Be brief."]),
        steering=st.sampled_from(["terminal", "step"]),
        on_busy=st.sampled_from(["reject", "queue", "interrupt", "steer"]),
    )
    def start(self, limit: int | None, prompt: str | None, **config: Any) -> None:
        self.session = SessionHarness(
            tools=("add", "ask_first", "order_outside"),
            request_timeout_seconds=400,
            system_prompt=prompt,
            limits={"max_total_tokens": limit},
            **config,
        )
        self.requests: list[str] = []
        self.inputs: list[str] = []
        self.shown: dict[str, Projection] = {}
        self.under_way: tuple[Any, ...] | None = None
        self.look()

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

    @rule(
        content=st.text(min_size=1, max_size=30),
        context_policy=POLICIES,
        on_busy=st.sampled_from([None, "reject", "queue", "queue", "interrupt", "steer", "steer"]),
        again=st.sampled_from([False, False, False, True]),
        model=st.sampled_from([None, None, "local:smollm2"]),
        own=st.sampled_from([{}, {}, {"max_iterations": 1}, {"output_schema": {"type": "object"}}]),
    )
    @precondition(is_open)
    def message(self, content: str, on_busy: str | None, again: bool, own: dict[str, Any], **given: Any) -> None:
        known = again and bool(self.requests)
        request_id = self.requests[0] if known else f"r-{len(self.requests)}"
        rev, state = self.session.thread.rev, self.session.state
        done = self.ask_for(self.session.ask, content, request_id, on_busy=on_busy, **own, **given)
        if known:
            assert done == request_id
            assert (self.session.thread.rev, self.session.state) == (rev, state)
        elif done:
            self.requests.append(request_id)

    @rule(
        kind=st.sampled_from(["steer", "inject"]),
        at=st.sampled_from([None, "terminal", "step"]),
        on_failure=st.sampled_from(["follow_up", "drop"]),
        again=st.booleans(),
    )
    @precondition(is_open)
    def steer(self, again: bool, **given: Any) -> None:
        known = again and bool(self.inputs)
        input_id = self.inputs[-1] if known else f"i-{len(self.inputs)}"
        rev, state = self.session.thread.rev, self.session.state
        receipt = self.ask_for(self.session.steer, f"said {input_id}", input_id, **given)
        if known:
            assert receipt is not None
            assert (self.session.thread.rev, self.session.state) == (rev, state)
        elif receipt:
            assert receipt.request_id == self.session.state.request_id
            self.inputs.append(input_id)

    @rule(
        number=st.integers(0, 12),
        lane=st.sampled_from([None, "default", "draft"]),
        messages=st.sampled_from(SNAPSHOTS),
        base_seq=st.none() | st.integers(0, 30),
        switch=st.booleans(),
    )
    @precondition(is_open)
    def operate(self, number: int, lane: str | None, messages: Any, base_seq: int | None, switch: bool) -> None:
        given: dict[str, Any] = {} if switch else {"result_context": {"messages": messages}, "base_seq": base_seq}
        receipt = self.ask_for(self.session.operate, f"o-{number}", "switch" if switch else "replace", lane, **given)
        if receipt and receipt.status == "applied":
            assert self.session.thread[receipt.seq].payload["op_id"] == f"o-{number}"

    @rule(
        changed=st.sampled_from(
            [
                {"system_prompt": "Be kind."},
                {"tools": ()},
                {"tools": ("add",)},
                {"model": "openai:gpt-4.1"},
                {"context_policy": ContextPolicy(max_input_tokens=300, reserve_output_tokens=100)},
                {"context_policy": ContextPolicy(reserve_output_tokens=500)},
                {"require_approval": ("add",)},
                {"steering": "step", "on_busy": "queue"},
            ]
        )
    )
    @precondition(is_open)
    def configure(self, changed: dict[str, Any]) -> None:
        self.ask_for(self.session.configure, **changed)

    @rule(
        which=st.sampled_from([None, None, 0, -1, -2, 99]),
        left=st.sampled_from(["drop", "follow_up"]),
        read=st.sampled_from([None, "", "half an ans"]),
    )
    @precondition(is_open)
    def cancel(self, which: int | None, left: str, read: str | None) -> None:
        # A later message may interrupt, and a close end, with the same.
        self.session.stopped = ModelStopped(answer=None if read is None else interrupt_reply(read))
        open_requests = self.session.state.unfinished
        request_id = None
        if which is not None:
            request_id = open_requests[which] if -len(open_requests) <= which < len(open_requests) else "nobody"
        self.ask_for(self.session.cancel, request_id, inputs=left)

    @rule(
        data=st.data(),
        given=st.sampled_from(
            [{}, {"decision": "deny", "reason": "no"}, {"arguments": {"a": 2}}, {"arguments": {"a": "x"}}]
        ),
    )
    @precondition(lambda self: self.session.state.phase == "awaiting_approval")
    def approve(self, data: st.DataObject, given: dict[str, Any]) -> None:
        pending = approvals.list_pending(self.session.state)
        call = data.draw(st.sampled_from(pending))
        self.ask_for(self.session.approve, call.tool_call_id, **given)

    @rule(data=st.data(), is_error=st.booleans())
    @precondition(lambda self: bool(external_calls.list_pending(self.session.state)))
    def a_result_is_submitted(self, data: st.DataObject, is_error: bool) -> None:
        call = data.draw(st.sampled_from(external_calls.list_pending(self.session.state)))
        command = ToolResultInput(tool_call_id=call.tool_call_id, content={"a": 1}, is_error=is_error)
        self.ask_for(self.session.do, command)

    @precondition(lambda self: self.session.effect is not None)
    @rule(events=st.lists(EVENTS, min_size=1, max_size=4))
    def the_world_answers(self, events: list[dict[str, Any]]) -> None:
        for event in events:
            self.answer(**event)
            self.look()
            self.a_run_keeps_its_settings_from_its_first_call_on()

    def answer(
        self,
        content: str,
        tools: list[RequestedTool],
        error: str | None,
        problem: bool,
        refused: Outdated | Declined | None,
    ) -> None:
        """What is under way comes to its end, well or not."""
        session = self.session
        match session.effect:
            case None:
                return
            case Prepare() if error:
                session.answer_preparation(UNKNOWN, tools=session.effect.tools)
            case Prepare():
                session.answer_preparation(tools=session.effect.tools)
            case CallModel() if error and tools:
                failure = Failure(type=error, message=f"it was {error}")
                session.take_event(ModelStopped(failure=failure, answer=interrupt_reply(content)))
            case _ if error:
                session.fail(error)
            case RunTools():
                session.answer_calls(*(f"result of {call.name}" for call, _ in session.effect.calls))
            case CallModel(deployment=str()) if isinstance(refused, Outdated):
                # No model was called: another call will have the same id.
                del self.shown[session.effect.call_id]
                session.take_event(refused)
            case CallModel(declined=False) if isinstance(refused, Declined):
                session.take_event(refused)
            case CallModel():
                run = session.state.run
                form = run is not None and run.request.output_schema is not None and not tools
                session.reply(
                    content if content or tools else ".",
                    *tools,
                    stop_reason="length" if content == "truncated" else "stop",
                    usage=Usage(input_tokens=3, output_tokens=1),
                    schema_problem="it is not JSON" if problem and form else None,
                )

    @rule(seconds=st.sampled_from([1, 60, 60]), nonsense=st.booleans())
    def time_passes(self, seconds: int, nonsense: bool) -> None:
        self.session.time += seconds
        self.session.apply(external_calls.expire(self.session.state, self.session.now))
        self.look()
        if nonsense and is_open(self):
            self.session.apply(decisions.reject(self.session.state, "nonsense", "unknown signal", "?"))

    @precondition(lambda self: is_open(self) and len(self.requests) > 3)
    @rule(luck=st.integers(0, 3))
    def close(self, luck: int) -> None:
        if luck:
            return
        self.session.close()
        facts = self.session.entry_names
        self.session.answer_preparation()
        self.session.reply("late")
        self.session.fail()
        assert self.session.entry_names == facts
        self.session.effect = None

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
        at_rest = session.state.phase in ("idle", "closed", "awaiting_approval", "awaiting_external")
        assert (session.effect is None) == at_rest
        assert session.state.phase != "idle" or not session.state.busy
        assert (session.state.run is None) or session.state.phase not in ("idle", "closed")

    @invariant()
    def a_run_keeps_its_settings_from_its_first_call_on(self) -> None:
        """Before, a worker's profile of its model may still change them."""
        state = self.session.state
        now = (
            (state.run.run_id, state.run.request, state.config, state.policy, state.context_ref)
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

    @rule(says=st.sampled_from(["paid", None]))
    @precondition(lambda machine: bool(machine.session.state.late_calls))
    def returns_late(self, says: str | None) -> None:
        """A call returns after its run, or its activity ends without a word."""
        self.session.answer_call(self.session.state.late_calls[0].tool_call_id, says)

    @rule(live=st.integers(0, 30))
    @precondition(is_open)
    def goes_on_in_a_new_run(self, live: int) -> None:
        """All that it is arrives there; what the archive has is not missed."""
        session = self.session
        upto = max(session.thread.last_seq - live, -1)
        place = ArchiveRef(execution="x", family="s-1", upto=upto)
        state = dataclasses.replace(session.state, archive=place)
        arrived = restore(json.loads(to_json(carry(dataclasses.replace(session.session, state=state)))))
        # Nothing that a call returns reaches the next run of the workflow.
        assert arrived.state.late_calls == ()
        assert dataclasses.replace(arrived.state, outcomes=state.outcomes, late_calls=state.late_calls) == state
        assert arrived.effect == session.effect
        for request_id in self.requests:
            assert outcomes.find_outcome(arrived.state, arrived.thread, request_id) == outcomes.find_outcome(
                state, session.thread, request_id
            )
        for lane in {state.context_ref, state.run.request.context_ref if state.run else state.context_ref}:
            assert build_or_refuse(arrived.thread, lane) == build_or_refuse(session.thread, lane)
        session.state = arrived.state

    @invariant()
    def a_thread_read_back_gives_the_same_answers(self) -> None:
        session = self.session
        rows = json.loads(to_json([entry.as_json() for entry in session.thread]))
        again = Thread(Entry.from_json(row) for row in rows)
        assert views.answer_status(session.state, again) == views.answer_status(session.state, session.thread)
        for request_id in self.requests:
            assert outcomes.find_outcome(session.state, again, request_id) == outcomes.find_outcome(
                session.state, session.thread, request_id
            )
        for lane in ("default", "draft"):
            try:
                shown = build_context(session.thread, context_ref=lane)
            except ClewError:
                continue
            assert_valid(shown.messages)
            assert build_context(again, context_ref=lane) == shown

    def teardown(self) -> None:
        """Every call can be shown again; and a world that answers lets every request end."""
        session = self.session
        for entry in session.thread:
            if entry.payload.get("role") == "assistant":
                shown = self.shown[entry.refs["call_id"]]
                again = views.build_projection(
                    session.state, session.thread, ContextQuery(call_id=entry.refs["call_id"])
                )
                assert again == shown
                assert entry.payload["recipe"]["basis_seq"] == shown.meta.basis_last_seq < entry.seq
        for _ in range(200):
            match session.effect:
                case Prepare():
                    session.answer_preparation(tools=session.effect.tools)
                case CallModel():
                    session.reply("done")
                case RunTools():
                    session.answer_calls(*("4" for _ in session.effect.calls))
                case None if pending := approvals.list_pending(session.state):
                    session.approve(pending[0].tool_call_id)
                case None if waiting := external_calls.list_pending(session.state):
                    session.do(ToolResultInput(tool_call_id=waiting[0].tool_call_id, content="4"))
                case None:
                    break
            self.look()
        assert not session.state.unfinished
        self.every_request_has_one_outcome_or_is_unfinished()
        self.every_input_was_read_or_dropped_or_waits()
        self.the_thread_is_whole()


TestAnySession = AnySession.TestCase
TestAnySession.settings = settings(examples(60), stateful_step_count=40)
