"""What each model call had in its window, and why it had no more."""

from __future__ import annotations

import pytest
from hypothesis import given

from clew.errors import ContextOverflow
from clew.report import make_report
from clew.report.report_types import Call, CallWindow, Segment
from clew.report.windows import MAX_SEGMENTS, make_window
from clew_workflows.contract.policy import ClearToolResults, ContextPolicy
from clew_workflows.thread.thread import Thread
from tests.support.examples import examples
from tests.support.generated_threads import Step, histories, policies, write
from tests.support.recorded import RecordedSession, record_replies
from tests.support.threads import assistant_calls, assistant_says, make_recipe, tool_returns, user_says

NARROW = ContextPolicy(max_input_tokens=600, reserve_output_tokens=0, keep_last_turns=1)


def make_last_window(session: RecordedSession) -> CallWindow:
    """The window of the session's newest call."""
    call = list_calls(session.thread)[-1]
    assert call.window
    return call.window


def list_calls(thread: Thread) -> tuple[Call, ...]:
    return make_report(thread, made_at="2026-01-01T00:00:00Z").calls


def states(window: CallWindow) -> dict[str, int]:
    """The messages that the window left out, by the reason."""
    found: dict[str, int] = {}
    for segment in window.left_out:
        found[segment.state] = found.get(segment.state, 0) + segment.messages
    return found


def test_a_window_and_what_had_no_room() -> None:
    """The segments add up to the recorded tokens, and with the left-out messages to the whole lane."""
    session = RecordedSession(NARROW).turns(12)
    window, recorded = make_last_window(session), session.calls[-1]
    assert window.matches_record
    assert window.tokens == recorded.meta.estimated_tokens == sum(segment.tokens for segment in window.segments)
    assert [segment.kind for segment in window.segments[:2]] == ["tools", "system"]
    assert states(window).keys() == {"dropped"}
    own = [segment for segment in window.segments if segment.first_seq is not None]
    assert sum(segment.messages for segment in (*own, *window.left_out)) == 12 * 4 - 1
    assert window.budget == 600


def test_what_a_summary_or_a_snapshot_stands_for() -> None:
    """Messages that a summary covers are `summarized`, those under a snapshot `replaced`; a pinned one stays."""
    session = RecordedSession(ContextPolicy()).turns(4)
    session.writer.pin(1)
    session.writer.summary(8)
    session.turns(1)
    summarized = make_last_window(session)
    assert states(summarized) == {"summarized": 7}
    assert [segment.first_seq for segment in summarized.segments if segment.pinned] == [1]
    assert next(segment for segment in summarized.segments if segment.kind == "summary").first_seq == 18
    session.writer.replace([user_says("In short."), assistant_says("Yes.")], base_seq=session.thread.last_seq)
    session.turns(1)
    replaced = make_last_window(session)
    assert states(replaced) == {"replaced": 20}
    assert [segment.kind for segment in replaced.segments[2:5]] == ["snapshot", "snapshot", "user"]


def test_what_the_policy_excludes_or_clears() -> None:
    """Kinds that the policy does not include are `excluded`; cleared results are counted."""
    talk = RecordedSession(ContextPolicy(include_kinds=("message",))).turns(3)
    assert states(make_last_window(talk)) == {"excluded": 6}
    clearing = RecordedSession(ContextPolicy(clear_tool_results=ClearToolResults(keep=1))).turns(3)
    cleared = [segment for segment in make_last_window(clearing).segments if segment.state == "cleared"]
    assert [segment.results for segment in cleared] == [1, 1]


def test_a_context_that_differs_from_the_record_is_marked() -> None:
    """A digest that does not match is reported, and a policy that this release cannot read is a problem."""
    session = RecordedSession(ContextPolicy()).turns(1)
    session.writer.message(user_says("and now?"), run="run-2")
    session.call(assistant_says("x"), run="run-2", digest="other")
    recipe = make_recipe(session.thread.last_seq, context_policy={"of_a_later_release": 1})
    message = {"context_ref": "default", **assistant_says("x"), "recipe": recipe}
    session.writer.commit("ai_message", message, run_id="run-2", call_id="call-9")
    *_, differs, unreadable = list_calls(session.thread)
    assert differs.window is not None
    assert not differs.window.matches_record
    assert unreadable.window is None
    assert unreadable.problem == "its policy has fields of a later release"


@pytest.mark.slow
def test_a_long_window_has_few_segments() -> None:
    """The oldest messages are put together, also where their states alternate; nothing is lost."""
    policy = ContextPolicy(max_input_tokens=1_000_000, include_kinds=("message",))
    session = RecordedSession(policy).turns(150)
    window = make_last_window(session)
    assert len(window.segments) <= MAX_SEGMENTS
    assert len(window.left_out) <= MAX_SEGMENTS
    assert window.tokens == sum(segment.tokens for segment in window.segments)
    assert sum(segment.messages for segment in (*window.segments, *window.left_out)) == 150 * 4 - 1 + 1


@given(steps=histories, policy=policies)
@examples(60)
def test_every_message_of_a_lane_is_in_or_out(steps: list[Step], policy: ContextPolicy) -> None:
    """In any history, the groups of the lane are each in the window or left out, never both."""
    thread = record_replies(write(steps), policy)
    for entry in thread:
        recipe = entry.recipe if entry.kind == "ai_message" else None
        if recipe is None or recipe.basis_seq < 0:
            continue
        try:
            window = make_window(thread, recipe)
        except ContextOverflow:
            continue
        lane = thread.get_lane(recipe.context_ref)
        assert lane
        seqs = [_list_seqs(segment) for segment in (*window.segments, *window.left_out) if segment.kind != "summary"]
        for start in lane.group_starts:
            if start <= recipe.basis_seq:
                assert sum(start in row for row in seqs) == 1


def _list_seqs(segment: Segment) -> range:
    if segment.first_seq is None or segment.last_seq is None:
        return range(0)
    return range(segment.first_seq, segment.last_seq + 1)


def test_late_results_belong_to_their_calls() -> None:
    """A result that comes after the end of its run is no part of its own."""
    session = RecordedSession(ContextPolicy())
    session.writer.message(user_says("go"), run="run-1")
    session.call(assistant_calls("t"))
    session.writer.message(tool_returns("t", "in doubt"), run="run-1", in_doubt=True)
    session.writer.message(user_says("and?"), run="run-2")
    session.writer.message(tool_returns("t", "12"), run="run-1", late=True)
    session.call(assistant_says("fine"), run="run-2")
    window = make_last_window(session)
    assert [(segment.kind, segment.messages) for segment in window.segments[3:]] == [("tool_calls", 2), ("user", 1)]
    assert not window.left_out
