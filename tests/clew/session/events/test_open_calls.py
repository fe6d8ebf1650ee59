"""The fold of events to the calls that wait: pure, over random rounds of tool calls."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Literal

from hypothesis import given
from hypothesis import strategies as st

from clew.contract.payloads import ApprovalPayload, AssistantMessage, Payload, ToolMessage
from clew.session.events import ApprovalRequired, EntryCommitted, OpenCalls, ResultRequired, SessionEvent
from clew.session.events.feed import Feed, Snapshot
from clew_workflows.contract.outputs import LiveStatus, PendingCall, PendingExternalCall
from clew_workflows.thread.entries import Entry

State = Literal["approval", "ready", "running", "result", "done"]
REFS = {"request_id": "r", "run_id": "run-1"}


@dataclass
class Round:
    """A session with one round of tool calls, which one step after the other changes.

    Attributes:
        states: What each call waits for.
        external: The calls whose results come from outside.
        rev: The length of the thread.
    """

    states: dict[str, State]
    external: set[str]
    rev: int = 0
    feed: Feed = field(default_factory=lambda: Feed(0))

    def begin(self) -> list[SessionEvent]:
        """Commit the reply with the calls."""
        calls: Any = [{"id": name, "name": name, "arguments": {}} for name in self.states]
        reply = AssistantMessage(context_ref="default", role="assistant", content="", tool_calls=calls)
        return self._commit("ai_message", reply)

    def step(self, name: str, *, denies: bool) -> list[SessionEvent]:
        """Let one call go on; a call that has its result stays as it is."""
        match self.states[name]:
            case "approval":
                self.states[name] = "done" if denies else "ready"
                decision: Any = "deny" if denies else "approve"
                events = self._commit("approval", ApprovalPayload(tool_call_id=name, decision=decision))
                return events + (self._answer(name) if denies else [])
            case "ready":
                self.states[name] = "result" if name in self.external else "running"
            case "running" | "result":
                self.states[name] = "done"
                return self._answer(name)
        return []

    def look(self) -> list[SessionEvent]:
        """Read the session's status."""

        def describe(state: State) -> Iterator[dict[str, Any]]:
            for name, known in self.states.items():
                if known == state:
                    yield {"tool_call_id": name, "name": name, "arguments": {}}

        status = LiveStatus(
            rev=self.rev,
            status="awaiting_tools",
            request_id="r",
            run_id="run-1",
            running_calls=tuple(PendingCall(**call) for call in describe("running")),
            pending_approvals=tuple(PendingCall(**call) for call in describe("approval")),
            pending_external_calls=tuple(PendingExternalCall(**call, expires_at="") for call in describe("result")),
        )
        return list(self.feed.take_snapshot(Snapshot(self.rev, status)))

    def list_open(self) -> set[str]:
        """List the calls without a result."""
        return {name for name, state in self.states.items() if state != "done"}

    def _answer(self, name: str) -> list[SessionEvent]:
        return self._commit(
            "ai_message", ToolMessage(context_ref="default", role="tool", content="", tool_call_id=name)
        )

    def _commit(self, kind: str, body: Payload) -> list[SessionEvent]:
        row = {"seq": self.rev, "id": f"e{self.rev}", "kind": kind, "at": "", "refs": REFS, "tokens": 1}
        self.rev += 1
        return list(self.feed.take_entry(Entry.from_json({**row, "payload": body.as_dict()})))


@given(
    kinds=st.lists(st.tuples(st.booleans(), st.booleans()), min_size=1, max_size=4),
    steps=st.lists(st.tuples(st.integers(0, 3), st.booleans(), st.booleans()), max_size=24),
)
def test_all_calls_that_wait_are_told_before_a_stream_may_end(
    kinds: list[tuple[bool, bool]], steps: list[tuple[int, bool, bool]]
) -> None:
    """It holds for each mixture of waiting calls, each decision in between, and viewers that look rarely."""
    names = [f"c{number}" for number in range(len(kinds))]
    made = Round(
        {name: "approval" if guarded else "ready" for name, (guarded, _) in zip(names, kinds, strict=True)},
        {name for name, (_, external) in zip(names, kinds, strict=True) if external},
    )
    calls, told, answered = OpenCalls(), set[str](), set[str]()

    def take(events: list[SessionEvent]) -> None:
        for event in events:
            calls.take(event)
            if isinstance(event, ApprovalRequired | ResultRequired):
                told.add(event.tool_call_id)
            if isinstance(event, EntryCommitted) and isinstance(result := event.entry.body, ToolMessage):
                answered.add(result.tool_call_id)
            if calls.all_wait:
                assert set(calls) == set(names) - answered <= told

    take(made.begin())
    for number, denies, looks in steps:
        take(made.step(names[number % len(names)], denies=denies))
        if looks:
            take(made.look())
            assert set(calls) == made.list_open()
            assert {call.tool_call_id for call in calls.approvals} == list_in(made, "approval")
            assert {call.tool_call_id for call in calls.results} == list_in(made, "result")
            assert calls.are_told == (not list_in(made, "ready"))
            assert calls.all_wait == (
                bool(made.list_open()) and made.list_open() == list_in(made, "approval") | list_in(made, "result")
            )


def list_in(made: Round, state: State) -> set[str]:
    """List the calls in a state."""
    return {name for name, known in made.states.items() if known == state}
