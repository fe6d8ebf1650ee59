"""The session in a world that does whatever it may: what holds at every point, whatever comes and goes."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import initialize, precondition, rule
from pydantic_core import to_json

from clew.contract import ContextQuery, ToolResultInput
from clew.errors import ClewError
from clew_workflows.contract.outcomes import Usage
from clew_workflows.contract.policy import ContextPolicy
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
from clew_workflows.session import decisions, outside, requests, runs, tool_rounds, views
from clew_workflows.session.carried import carry, restore
from clew_workflows.thread.context.contexts import build_context
from clew_workflows.thread.context.projection import Projection
from clew_workflows.thread.thread import Thread
from tests.support.examples import examples
from tests.support.session_harness import UNKNOWN, SessionHarness, interrupt_reply
from tests.support.session_invariants import SessionInvariants

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
TOOLS = [
    RequestedTool(name=name) for name in ("add", "add", "ask_first", "ask_first", "hold_all", "order_outside", "fly")
] + [RequestedTool(name="add", malformed="{")]

EVENTS = st.fixed_dictionaries(
    {
        "content": st.sampled_from(["", "well", "truncated", "a longer answer " * 20]),
        "tools": st.just([]) | st.lists(st.sampled_from(TOOLS), max_size=4),
        "error": st.sampled_from([*[None] * 9, "timeout", "bad_request"]),
        "problem": st.booleans(),
        "refused": st.sampled_from([None, None, Outdated(deployment="d-2"), Declined(calls_models=True)]),
    }
)


def is_open(machine: AnySession) -> bool:
    return not machine.session.state.closed


def build_or_refuse(thread: Thread, lane: str) -> Projection | str:
    """A lane's context, or why there is none."""
    try:
        return build_context(thread, context_ref=lane)
    except ClewError as error:
        return str(error)


class AnySession(SessionInvariants):
    """Every rule asks for what it likes; a refusal must leave everything as it was."""

    @initialize(
        max_iterations=st.integers(1, 4),
        limit=st.sampled_from([None, None, None, 60]),
        prompt=st.sampled_from([None, "Be brief."]),
        steering=st.sampled_from(["terminal", "step"]),
        on_busy=st.sampled_from(["reject", "queue", "interrupt", "steer"]),
        approval_scope=st.sampled_from(["call", "call", "round"]),
    )
    def start(self, limit: int | None, prompt: str | None, **config: Any) -> None:
        self.session = SessionHarness(
            tools=("add", "ask_first", "hold_all", "order_outside"),
            request_timeout_seconds=400,
            system_prompt=prompt,
            limits={"max_total_tokens": limit},
            **config,
        )
        self.requests = []
        self.first_message: tuple[str, dict[str, Any]] | None = None
        self.inputs = []
        self.shown = {}
        self.under_way = None
        self.look()

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
        message = (content, own | given)
        done = self.ask_for(self.session.ask, content, request_id, on_busy=on_busy, **own, **given)
        if known:
            # The same message is a repetition, another one is refused.
            assert done == (request_id if message == self.first_message else None)
            assert (self.session.thread.rev, self.session.state) == (rev, state)
        elif done:
            self.first_message = message if not self.requests else self.first_message
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
        pending = outside.list_pending_approvals(self.session.state)
        call = data.draw(st.sampled_from(pending))
        self.ask_for(self.session.approve, call.tool_call_id, **given)

    @rule(data=st.data(), is_error=st.booleans())
    @precondition(lambda self: bool(outside.list_pending_results(self.session.state)))
    def a_result_is_submitted(self, data: st.DataObject, is_error: bool) -> None:
        call = data.draw(st.sampled_from(outside.list_pending_results(self.session.state)))
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
            case RunTools() if problem:
                session.answer_call(session.effect.calls[0].call.tool_call_id, "the first of them")
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
        expired = outside.expire_calls(self.session.state, self.session.now)
        self.session.apply(expired.then(runs.proceed, self.session.now))
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
        # What a call returns reaches the next run of the workflow as a signal alone.
        detached = dataclasses.replace(
            state, late_calls=(), detached_calls=tool_rounds.detach_calls(state, self.session.thread)
        )
        memory = dataclasses.replace(arrived.state.memory, outcomes=state.memory.outcomes)
        assert dataclasses.replace(arrived.state, memory=memory) == detached
        assert arrived.effect == session.effect
        for request_id in self.requests:
            assert requests.find_outcome(arrived.state, arrived.thread, request_id) == requests.find_outcome(
                state, session.thread, request_id
            )
        for lane in {state.context_ref, state.run.request.context_ref if state.run else state.context_ref}:
            assert build_or_refuse(arrived.thread, lane) == build_or_refuse(session.thread, lane)
        session.state = arrived.state

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
                case None if pending := outside.list_pending_approvals(session.state):
                    session.approve(pending[0].tool_call_id)
                case None if waiting := outside.list_pending_results(session.state):
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
