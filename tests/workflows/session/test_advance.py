"""The one step of a session: what was decided is committed, and what follows is said."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime

from clew.contract import CloseInput, MessageInput
from clew_workflows.session import advance, commands, decisions
from clew_workflows.session.advance import Stamps
from clew_workflows.session.state import Decision
from clew_workflows.thread.thread import Thread
from tests.support.session_harness import SessionHarness, make_stamps


def test_what_was_decided_is_committed_in_order() -> None:
    """Each entry gets the next seq, an id of its own and the time; the state and the effect are the decision's."""
    harness = SessionHarness()
    before = harness.thread.rev
    message = MessageInput(content="hello", request_id="r-1")
    decision, _ = commands.decide(harness.state, harness.thread, message, None, harness.now)
    step = advance.advance(harness.session, decision, make_stamps())
    assert [entry.seq for entry in step.entries] == list(range(before, harness.thread.rev))
    assert [entry.kind for entry in step.entries] == [draft.kind for draft in decision.commit]
    assert {entry.at for entry in step.entries} == {"2026-01-01T00:00:00.000Z"}
    assert replace(step.session.state, listed=decision.state.listed) == decision.state
    assert step.session.effect is decision.effect is not None
    assert not step.gave_up


def test_what_is_carried_out_goes_on_unless_it_is_given_up() -> None:
    """A decision without an effect leaves the one in progress; the end of its run does not."""
    harness = SessionHarness()
    harness.ask()
    call = harness.call
    step = advance.advance(harness.session, decisions.reject(harness.state, "x", "unknown", ""), make_stamps())
    assert (step.gave_up, step.stops, step.session.effect) == (False, False, call)
    for gave_up, stops, effect in ((False, True, call), (True, False, None)):
        # The first close stops the call and awaits its answer; the second one gives it up.
        decision, _ = commands.decide(step.session.state, step.session.thread, CloseInput(), None, harness.now)
        step = advance.advance(step.session, decision, make_stamps())
        assert (step.gave_up, step.stops, step.session.effect) == (gave_up, stops, effect)


def test_a_decision_that_changes_nothing_leaves_no_entry() -> None:
    """And no random number is asked for: a replay has to ask for as many."""

    def none_left(_bits: int) -> int:
        raise AssertionError("a random number was asked for")

    harness = SessionHarness()
    given = Stamps(now=lambda: datetime(2026, 1, 1, tzinfo=UTC), random_bits=none_left)
    step = advance.advance(harness.session, Decision(harness.state), given)
    assert (step.entries, step.session) == ((), harness.session)
    assert isinstance(step.session.thread, Thread)


def test_ids_and_times_have_one_form_wherever_they_come_from() -> None:
    """Milliseconds in UTC with a Z, and 16 hexadecimal digits."""
    given = Stamps(now=lambda: datetime(2026, 1, 2, 3, 4, 5, 678901, tzinfo=UTC), random_bits=lambda _bits: 255)
    assert given.make_timestamp() == "2026-01-02T03:04:05.678Z"
    assert given.make_entry_id() == "e-00000000000000ff"
