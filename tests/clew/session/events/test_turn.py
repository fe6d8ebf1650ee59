"""The fold of events to changes: pure, over random texts, and random rounds of tool calls."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Literal

from hypothesis import given
from hypothesis import strategies as st

from clew.contract.payloads import ApprovalPayload, AssistantMessage, Payload, ToolMessage
from clew.session.events import (
    Change,
    EntryCommitted,
    LiveTurn,
    Restarted,
    SessionEvent,
    TextAdded,
    ThinkingAdded,
    Voided,
    Waits,
)
from clew.session.events.feed import Feed, Snapshot
from clew.session.events.turn import Growing
from clew_workflows.contract.outputs import LiveStatus, PendingCall, PendingExternalCall
from clew_workflows.thread.entries import Entry

State = Literal["approval", "ready", "running", "result", "done"]
"""`ready`: the call runs as soon as nothing holds it."""
REFS = {"request_id": "r", "run_id": "run-1"}


@dataclass
class Round:
    """A session with one round of tool calls, which one step after the other changes.

    Attributes:
        states: What each call waits for.
        external: The calls whose results come from outside.
        as_whole: No call begins before the last decision.
        rev: The length of the thread.
    """

    states: dict[str, State]
    external: set[str]
    as_whole: bool
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
            case "ready" if not self.is_held:
                self.states[name] = "result" if name in self.external else "running"
            case "running" | "result":
                self.states[name] = "done"
                return self._answer(name)
        return []

    def look(self) -> list[SessionEvent | LiveStatus]:
        """Read the session's status. Calls that nothing holds have begun by then."""
        for name, state in self.states.items():
            if state == "ready" and not self.is_held:
                self.states[name] = "result" if name in self.external else "running"

        def describe(state: State) -> Iterator[dict[str, Any]]:
            for name in self.list_in(state):
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
        return [*self.feed.take_snapshot(Snapshot(self.rev, status)), status]

    def list_in(self, state: State) -> list[str]:
        """List the calls in a state."""
        return [name for name, known in self.states.items() if known == state]

    @property
    def is_held(self) -> bool:
        """Whether calls wait for the decisions about others."""
        return self.as_whole and "approval" in self.states.values()

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
    as_whole=st.booleans(),
)
def test_all_calls_that_wait_are_told_at_once(
    kinds: list[tuple[bool, bool]], steps: list[tuple[int, bool, bool]], *, as_whole: bool
) -> None:
    """For each mixture of calls, each decision in between, and viewers that look rarely: a stream may end then.

    Also where calls that need no approval, or have it, wait for the decisions about others.
    """
    names = [f"c{number}" for number in range(len(kinds))]
    made = Round(
        {name: "approval" if guarded else "ready" for name, (guarded, _) in zip(names, kinds, strict=True)},
        {name for name, (_, external) in zip(names, kinds, strict=True) if external},
        as_whole,
    )
    turn, last = LiveTurn(), None

    def take(*events: SessionEvent | LiveStatus) -> list[Change]:
        return [change for event in events for change in turn.take(event)]

    take(*made.begin())
    for number, denies, looks in steps:
        assert not [
            change for change in take(*made.step(names[number % len(names)], denies=denies)) if is_wait(change)
        ]
        if looks:
            told = next(filter(is_wait, take(*made.look())), None)
            approvals, results = made.list_in("approval"), made.list_in("result")
            wanted = (approvals, results, bool(made.list_in("running"))) if approvals or results else None
            assert list(turn.calls) == [name for name, state in made.states.items() if state != "done"]
            assert (show(told) if told else None) == (wanted if wanted != last else None)
            last = wanted


def is_wait(change: Change) -> bool:
    """Whether a change tells of calls that wait."""
    return isinstance(change, Waits)


def show(waits: Any) -> tuple[list[str], list[str], bool]:
    """Show the names of the calls that wait."""
    approvals, results = ([call.name for call in calls] for calls in (waits.approvals, waits.results))
    return approvals, results, waits.others_run


def commit(text: str, thinking: str | None = None) -> EntryCommitted:
    """Make the event of a reply's entry."""
    payload = AssistantMessage(context_ref="default", role="assistant", content=text, thinking=thinking).as_dict()
    row = {"seq": 1, "id": "e1", "kind": "ai_message", "at": "", "refs": REFS | {"call_id": "c"}, "tokens": 1}
    return EntryCommitted(seq=1, entry=Entry.from_json({**row, "payload": payload}))


def add(text: str, offset: int, attempt: int = 1) -> TextAdded:
    """Make the event of more text."""
    return TextAdded(call_id="c", attempt=attempt, offset=offset, text=text)


def think(text: str, offset: int, attempt: int = 1) -> ThinkingAdded:
    """Make the event of more reasoning."""
    return ThinkingAdded(call_id="c", attempt=attempt, offset=offset, text=text)


PIECES = st.tuples(st.sampled_from([add, think]), st.integers(0, 12), st.text("ab", max_size=4), st.booleans())


@given(pieces=st.lists(PIECES, max_size=10), text=st.text("ab", max_size=12), thinking=st.text("ab", max_size=3))
def test_what_is_added_and_taken_back_gives_the_reply(pieces: list[Any], text: str, thinking: str) -> None:
    """Whatever came before, also of other attempts, with gaps and replaced: a face that only adds has the entry."""
    turn, shown, attempt = LiveTurn(), {"thinking": "", "text": ""}, 1
    events: list[SessionEvent] = []
    for make, offset, piece, restarts in pieces:
        attempt += restarts
        events += [Restarted(call_id="c", attempt=attempt)] if restarts else []
        events.append(make(piece, offset, attempt))
    for event in (*events, commit(text, thinking)):
        for change in turn.take(event):
            match change:
                case TextAdded() | ThinkingAdded():
                    part = "text" if isinstance(change, TextAdded) else "thinking"
                    grown: Growing = getattr(turn, part)
                    if not grown.has_gap:
                        assert change.offset == len(shown[part])
                        shown[part] += change.text
                        assert shown[part] == grown.text
                case Voided(thinking=left, text=rest):
                    assert all(map(str.startswith, shown.values(), (left, rest)))
                    shown = {"thinking": left, "text": rest}
    assert shown == {"thinking": thinking, "text": text}


def test_a_new_attempt_takes_back_what_was_told() -> None:
    """Once, and nothing where nothing was told."""
    turn = LiveTurn()
    assert not turn.take(Restarted(call_id="c", attempt=2))
    assert turn.take(add("one", 0, 2)) == (add("one", 0, 2),)
    assert turn.take(Restarted(call_id="c", attempt=3)) == (Voided("c", 3, starts_over=True),)
    assert turn.take(add("two", 0, 3)) == (add("two", 0, 3),)
    assert turn.take(Restarted(call_id="c", attempt=3)) == ()


def test_a_part_that_is_missing_is_known_to_be() -> None:
    """The rest comes with the entry."""
    turn = LiveTurn()
    turn.take(add("one", 0))
    for late in (add("nine", 40), add("ten", 44)):
        assert turn.take(late) == (late,)
        assert turn.text.has_gap
    (rest, _) = turn.take(commit("one two"))
    assert rest == add(" two", 3)
    assert not turn.text.has_gap
