"""Summaries: what they cover, when a session writes one by itself, and what becomes of it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError
from pydantic_core import to_json

from clew.contract import CheckpointInput, HibernateInput, LateResultInput, SummarizeInput
from clew.errors import Busy, InvalidInput, NothingToSummarize
from clew_workflows.contract.content import get_text
from clew_workflows.contract.outcomes import Usage
from clew_workflows.contract.policy import ContextPolicy
from clew_workflows.protocol import ArchiveRef, CallModel, Failure, Summarize, Summarized, WrittenSummary
from clew_workflows.session import commands, decisions, summaries
from clew_workflows.session.carried import carry, restore
from clew_workflows.thread.context.archived import retain
from clew_workflows.thread.thread import Thread
from tests.support.session_harness import SessionHarness, begin_small, make_refusal
from tests.support.threads import Writer, assistant_calls, tool_returns, user_says

# Decisions on summaries and compactions: when they are written, their range, and their results.


POLICY = ContextPolicy(max_input_tokens=400, reserve_output_tokens=100, keep_last_turns=1)
AUTOMATIC = POLICY.model_copy(update={"summarization": "request_new"})


def open_session(policy: ContextPolicy = POLICY, turns: int = 3, **config: Any) -> SessionHarness:
    """A session that has had some turns."""
    made = SessionHarness(context_policy=policy, **config)
    for number in range(turns):
        take_turn(made, f"question {number}")
    return made


def take_turn(of: SessionHarness, content: str, needs_summary: bool = False) -> None:
    of.ask(content)
    of.reply(f"answer to {content}", needs_summary=needs_summary)


def summarize(of: SessionHarness, **given: Any) -> Summarize:
    """Decide a summary; returns its effect, as the workflow completes it."""
    of.do(SummarizeInput(**given))
    return get_effect(of)


def get_effect(of: SessionHarness) -> Summarize:
    assert isinstance(of.effect, Summarize)
    return summaries.find_range(of.state, of.thread, of.effect)


def begin_summary(request_id: str | None = None) -> SessionHarness:
    """Open a session that writes a summary by itself."""
    of = open_session(AUTOMATIC, turns=2)
    of.ask("question", request_id)
    of.reply("answer", needs_summary=True)
    assert of.state.own_summary
    return of


def answer_summary(of: SessionHarness, content: str = "They talked.", prompt: str | None = None) -> None:
    answer = WrittenSummary(content=content, source_digest="d", source_tokens=99)
    of.take_event(Summarized(effect=get_effect(of), summary=answer, system_prompt=prompt))


def list_turn_starts(of: SessionHarness) -> list[int]:
    """List the seqs of the user messages."""
    lane = of.thread.get_lane("default")
    assert lane
    return lane.turn_starts


def list_texts(of: SessionHarness) -> list[str]:
    """The context as it is now."""
    return [get_text(message["content"]) for message in of.context().messages]


def list_shown(of: SessionHarness) -> list[str]:
    of.ask("next")
    return [get_text(message["content"]) for message in of.build_context(of.call).messages]


def test_a_summary_stands_for_all_but_the_last_turns() -> None:
    """It is committed with its range and source, and the next context begins with it."""
    of = open_session()
    given = summarize(of)
    last = list_turn_starts(of)[-1]
    assert of.thread[given.to_seq or 0].payload["content"] == "answer to question 1"
    assert (given.from_seq, given.builds_on) == (0, None)
    answer_summary(of)
    entry = of.thread.filter_by_kind("summary")[0]
    assert (entry.payload["from_seq"], entry.payload["to_seq"]) == (0, given.to_seq)
    assert entry.payload["source_digest"] == "d"
    assert entry.refs["summary_id"] == "summary-1"
    assert given.to_seq in range(last)
    assert list_shown(of) == [
        "Summary of earlier conversation:\nThey talked.", "question 2", "answer to question 2", "next",
    ]  # fmt: skip


def test_a_later_summary_builds_on_the_one_before() -> None:
    """It covers only newer messages, unless the command asks for all."""
    of = open_session()
    first = summarize(of)
    answer_summary(of)
    take_turn(of, "question 3")
    then = summarize(of)
    summary = of.thread.filter_by_kind("summary")[0]
    assert (then.from_seq, then.builds_on) == ((first.to_seq or 0) + 1, summary.seq)
    answer_summary(of)
    again = summarize(of, from_seq=0, to_seq=then.to_seq)
    assert (again.from_seq, again.builds_on) == (0, None)


def test_a_summary_never_gives_way_to_one_of_less() -> None:
    """A range that ends before the current summary's is refused, when requested and when its turn comes."""
    of = open_session(turns=4)
    summarize(of)
    answer_summary(of)
    entry = of.thread.filter_by_kind("summary")[0]
    upto = entry.payload["to_seq"]
    for fields in ({"to_seq": upto - 1}, {"from_seq": 0, "to_seq": upto - 1}):
        with pytest.raises(InvalidInput, match=rf"before {upto}, .* \(entry {entry.seq}\) .* expand"):
            of.do(SummarizeInput(**fields))
        late = Summarize(
            summary_id="s", context_ref="default", model="m", encoding="heuristic",
            max_input_tokens=1000, max_output_tokens=100, **fields,
        )  # fmt: skip
        with pytest.raises(InvalidInput):
            summaries.find_range(of.state, of.thread, late)
    with pytest.raises(ValidationError, match="must not be before from_seq"):
        SummarizeInput(from_seq=5, to_seq=4)


def test_all_that_is_summed_up_already_is_summed_up_again() -> None:
    """Without `to_seq` a range from further back ends where the summary in force does, or later."""
    of = open_session(turns=3)
    upto = of.thread.last_seq - 1
    wide = summarize(of, to_seq=upto)
    answer_summary(of)
    again = summarize(of, from_seq=0)
    assert (again.from_seq, again.to_seq, again.builds_on) == (0, wide.to_seq, None)


def test_whole_groups_are_summed_up() -> None:
    """A range that ends between a tool call and its result is extended to the result."""
    of = open_session(turns=0)
    of.ask("add")
    of.reply("", "add")
    of.answer_calls("4")
    of.reply("it is 4")
    call = next(entry for entry in of.thread if entry.payload.get("tool_calls"))
    given = summarize(of, to_seq=call.seq)
    assert of.thread[given.to_seq or 0].payload["role"] == "tool"


def test_what_cannot_be_summed_up_is_refused() -> None:
    """An empty thread, only the last turns, an unknown lane, and a busy session are refused."""
    with pytest.raises(NothingToSummarize):
        open_session(turns=0).do(SummarizeInput())
    with pytest.raises(NothingToSummarize, match="name a later to_seq"):
        open_session(turns=1).do(SummarizeInput())
    with pytest.raises(NothingToSummarize, match="'other'"):
        open_session().do(SummarizeInput(context_ref="other"))
    of = open_session()
    summarize(of)
    with pytest.raises(Busy):
        of.do(SummarizeInput())
    answer_summary(of)
    of.ask()
    with pytest.raises(Busy):
        of.do(SummarizeInput())


def test_a_session_sums_up_by_itself_where_its_window_was_truncated() -> None:
    """After a completed run, once nothing waits, and only where the policy gives leave."""
    of = open_session(AUTOMATIC, turns=0, on_busy="queue")
    for number in range(6):
        take_turn(of, f"question {number} " + "word " * 40)
    of.ask("long " * 50)
    of.ask("and then")
    of.reply("done", needs_summary=True)
    assert isinstance(of.effect, CallModel)
    of.reply("that too", needs_summary=True)
    assert of.state.phase == "summarizing"
    assert get_effect(of).compacts is False
    answer_summary(of)
    assert of.thread.filter_by_kind("summary")

    plain = open_session(turns=0)
    take_turn(plain, "long " * 50, needs_summary=True)
    assert plain.state.phase == "idle"


def test_too_little_is_not_summed_up_by_itself() -> None:
    """A window that is truncated in spite of a summary does not have one written after each run."""
    of = open_session(AUTOMATIC, turns=0)
    for number in range(2):
        take_turn(of, f"question {number} " + "x" * 40, needs_summary=number == 1)
    with pytest.raises(NothingToSummarize, match="too few"):
        get_effect(of)
    of.take_event(Failure(type="nothing_to_summarize", message="too few"))
    assert of.state.phase == "idle"
    assert "error" not in of.entry_names


def test_a_summary_that_fails_stops_nothing() -> None:
    """The thread has the reason, waiting commands follow, and the session retries some runs later."""
    of = begin_summary()
    of.take_event(Failure(type="unusable_summary", message="it is empty"))
    (error,) = of.thread.filter_by_kind("error")
    assert (error.payload["type"], error.refs["summary_id"]) == ("unusable_summary", "summary-1")
    assert of.state.phase == "idle"
    take_turn(of, "again", needs_summary=True)
    for _ in range(summaries.RUNS_BEFORE_RETRY - 1):
        assert of.state.summaries.writing is None
        take_turn(of, "again", needs_summary=True)
    assert of.state.summaries.writing


@pytest.mark.parametrize("ending", ["cancel", "fail", "interrupt"])
def test_no_summary_begins_after_a_run_that_did_not_complete(ending: str) -> None:
    """Stop means stop: the session does not call a model by itself."""
    of = open_session(AUTOMATIC, turns=1)
    of.ask("long")
    of.reply("let me see", "add", needs_summary=True)
    match ending:
        case "cancel":
            of.cancel()
        case "fail":
            of.answer_calls("4")
            of.fail()
        case "interrupt":
            of.ask("stop", on_busy="interrupt")
            assert isinstance(of.effect, CallModel)
            of.cancel()
    assert (of.state.phase, of.effect) == ("idle", None)


ARRIVALS: dict[str, Callable[[SessionHarness], Any]] = {
    "message": lambda of: of.ask("now"),
    "operation": lambda of: of.operate("o-1"),
    "configure": lambda of: of.configure(system_prompt="Be brief."),
    "summarize": lambda of: of.do(SummarizeInput(to_seq=of.thread.last_seq)),
    "checkpoint": lambda of: of.do(CheckpointInput()),
    "hibernate": lambda of: of.do(HibernateInput()),
}


@pytest.mark.parametrize("arrival", ARRIVALS)
def test_whatever_arrives_takes_the_place_of_an_automatic_summary(arrival: str) -> None:
    """A command cancels an automatic summary at once, under any `on_busy`."""
    of = begin_summary()
    assert not of.state.busy
    if arrival == "hibernate":
        of.state = replace(of.state, archive=ArchiveRef(execution="x", family="s"))
    ARRIVALS[arrival](of)
    (error,) = of.thread.filter_by_kind("error")
    assert (error.payload["type"], error.refs["summary_id"]) == ("cancelled", "summary-1")
    match arrival:
        case "message":
            assert of.call.at_seq == of.thread.last_seq
        case "summarize":
            assert get_effect(of).summary_id == "summary-2"
        case _:
            assert (of.state.phase, of.effect) == ("idle", None)


def test_a_summary_that_was_given_up_is_tried_again_after_the_next_run() -> None:
    """It did not fail."""
    of = begin_summary()
    take_turn(of, "now", needs_summary=True)
    assert of.state.own_summary


def test_what_is_already_known_leaves_an_automatic_summary_alone() -> None:
    """A repetition asks for nothing new."""
    of = begin_summary("r-1")
    before = of.state
    of.ask("question", "r-1")
    assert of.state == before


def test_an_interrupting_message_does_not_wait_for_a_compaction() -> None:
    """The compaction waits on, and begins when the interrupting run has ended."""
    of = open_session()
    of.ask("busy")
    of.operate("p-1", "pin", seqs=list_turn_starts(of)[:1])
    of.operate("c-1", result_context=None, reason="compaction")
    of.ask("stop", on_busy="interrupt")
    assert isinstance(of.effect, CallModel)
    assert [waiting.op_id for waiting in of.state.deferred.operations] == ["c-1"]
    of.reply("stopped")
    assert of.state.phase == "summarizing"


def test_a_message_meets_a_summary_in_the_making_as_it_meets_a_run() -> None:
    """Refused, queued, or in place of the summary, which then leaves its reason."""
    of = open_session()
    summarize(of)
    with pytest.raises(Busy, match="a summary is being written"):
        of.ask("now")
    of.ask("later", "r-1", on_busy="queue")
    assert of.state.summaries.writing
    of.ask("at once", "r-2", on_busy="interrupt")
    assert isinstance(of.effect, CallModel)
    assert [entry.payload["type"] for entry in of.thread.filter_by_kind("error")] == ["cancelled"]
    of.reply("done")
    assert of.build_context(of.call).messages[-1]["content"] == "later"


def test_a_summary_builds_on_a_snapshot_that_is_the_first_entry() -> None:
    """A session applies operations before its configuration is prepared."""
    of = SessionHarness(prepare=False, context_policy=POLICY)
    of.operate("o-1")
    of.answer_preparation()
    assert of.entry_names == ["ai_context_operation", "config"]
    take_turn(of, "question 0")
    take_turn(of, "question 1")
    assert summarize(of).builds_on == 0


def test_a_compaction_puts_the_summary_under_the_lane() -> None:
    """The operation has the summary's source; later messages follow it, and its id is known from the start."""
    of = open_session()
    assert of.operate("c-1", result_context=None, reason="compaction").status == "deferred"
    assert of.operate("c-1", result_context=None, reason="compaction").status == "duplicate"
    given = get_effect(of)
    assert given.compacts
    answer_summary(of, prompt="Be terse.")
    (entry,) = of.thread.filter_by_kind("ai_context_operation")
    operation = entry.payload["operation"]
    assert (entry.payload["op_id"], operation["reason"]) == ("c-1", "compaction")
    assert operation["base_seq"] == given.to_seq
    assert operation["meta"]["source_digest"] == "d"
    assert operation["result_context"]["system_prompt"] == "Be terse."
    assert [text.partition("\n")[0] for text in list_shown(of)][-4:] == [
        "Summary of earlier conversation:", "question 2", "answer to question 2", "next",
    ]  # fmt: skip


@pytest.mark.parametrize("end", ["completed", "cancelled"])
def test_a_compaction_waits_for_the_run_and_what_waits_with_it_follows(end: str) -> None:
    """After the run come the compaction, then the configuration change, then the queue."""
    of = open_session(on_busy="queue")
    of.ask("busy")
    of.operate("c-1", result_context=None, reason="compaction")
    of.configure(system_prompt="Another.")
    of.ask("queued")
    if end == "completed":
        of.reply("done")
    else:
        of.cancel()
    assert of.state.phase == "summarizing"
    answer_summary(of)
    assert of.entry_names[-3:] == ["ai_context_operation", "config", "user"]


def test_expand_brings_back_what_was_there() -> None:
    """One compaction after the other, be it a summary or a snapshot; then there is nothing more."""
    of = open_session()
    before = list_texts(of)
    of.operate("c-1", result_context=None, reason="compaction")
    answer_summary(of)
    summarize(of, to_seq=of.thread.last_seq)
    answer_summary(of, "All of it.")
    assert list_texts(of) == ["Summary of earlier conversation:\nAll of it."]
    assert of.operate("x-1", "expand").status == "applied"
    assert len(list_texts(of)) == 3
    of.operate("x-2", "expand")
    assert list_texts(of) == before
    with pytest.raises(Exception, match="nothing of the lane"):
        of.operate("x-3", "expand")


def test_what_is_pinned_survives() -> None:
    """Pinned messages stay in truncated contexts and after a compaction until they are unpinned."""
    of = open_session(turns=1)
    pinned = list_turn_starts(of)[0]
    of.operate("p-1", "pin", seqs=[pinned])
    for number in range(20):
        take_turn(of, f"filler {number}")
    of.operate("c-1", result_context=None, reason="compaction")
    assert get_effect(of).pinned == (pinned,)
    answer_summary(of)
    assert list_texts(of)[0] == "question 0"
    of.operate("p-2", "unpin", seqs=[pinned])
    assert "question 0" not in list_texts(of)


def test_more_than_half_of_the_budget_is_not_pinned() -> None:
    """A pin is refused if all pins together would exceed half of the budget."""
    of = open_session(turns=1)
    of.ask("word " * 150)
    of.reply("yes")
    long = list_turn_starts(of)[-1]
    with pytest.raises(Exception, match="at most half of the budget"):
        of.operate("p-1", "pin", seqs=[long])


def test_a_session_that_ends_gives_its_summary_up() -> None:
    of = open_session()
    summarize(of)
    of.apply(decisions.close(of.state, of.now))
    assert of.state.closed
    assert not of.state.summaries.writing


def test_a_summary_can_be_cancelled() -> None:
    """The next waiting command follows, and the thread records the cancellation."""
    of = open_session(on_busy="queue")
    summarize(of)
    of.ask("waiting")
    assert of.cancel().cancelled
    assert isinstance(of.effect, CallModel)
    (error,) = of.thread.filter_by_kind("error")
    assert error.payload["type"] == "cancelled"


def test_the_answer_names_the_summary() -> None:
    of = open_session()
    assert of.do(SummarizeInput()) == commands.SummaryAwaited("summary-1")
    assert summaries.is_making(of.state, "summary-1")
    answer_summary(of)
    assert not summaries.is_making(of.state, "summary-1")


# How far a summary reaches where a tool call returns after the end of its run.


MANY = ContextPolicy(max_input_tokens=8000, reserve_output_tokens=100, keep_last_turns=1)


def open_doubting_session(turns: int = 1) -> SessionHarness:
    """A session that has had some turns, then a round with a call in doubt, then another turn."""
    session = SessionHarness(context_policy=MANY)
    for number in range(turns):
        session.ask(f"question {number}")
        session.reply(f"answer {number}")
    session.ask("pay")
    session.reply("", "add", "look")
    session.answer_call("tool00001", "paid 5")
    session.cancel()
    session.ask("what was paid?")
    session.reply("5, and 500 is in doubt")
    return session


def sum_up(session: SessionHarness, to_seq: int | None = None) -> Summarize:
    """Have all summed up that can be; the range that this comes to."""
    session.do(SummarizeInput(to_seq=session.thread.last_seq if to_seq is None else to_seq))
    assert isinstance(session.effect, Summarize)
    effect = summaries.find_range(session.state, session.thread, session.effect)
    session.take_event(Summarized(effect=effect, summary=_SUMMARY))
    return effect


_SUMMARY = WrittenSummary(content="They talked.", source_digest="d", source_tokens=99)


def list_contents(session: SessionHarness) -> list[str]:
    return [get_text(message["content"]) for message in session.context().messages]


def find_seq(session: SessionHarness, content: str) -> int:
    return next(entry.seq for entry in session.thread if entry.payload.get("content") == content)


def test_a_round_that_may_still_return_is_not_summed_up() -> None:
    """The summary would say that the call is in doubt, and what it returns would be shown to no model."""
    session = open_doubting_session()
    assert sum_up(session).to_seq == find_seq(session, "pay")
    session.answer_call("tool00002", "paid 500")
    assert "paid 500" in list_contents(session)


def test_a_round_that_may_return_after_a_rollover_is_not_summed_up() -> None:
    """Its worker sends the result by a signal."""
    session = open_doubting_session()
    session.state = restore(carry(session.session)).state
    assert session.state.detached_calls
    assert sum_up(session).to_seq == find_seq(session, "pay")
    session.do(LateResultInput(tool_call_id="tool00002", content="paid 500"))
    assert "paid 500" in list_contents(session)


@pytest.mark.parametrize("is_lost", [False, True])
def test_a_call_that_has_not_returned_for_many_runs_is_lost(is_lost: bool) -> None:
    """Summaries wait for it as long as it may return. The run of its round, and the next one, are two of these."""
    session = open_doubting_session()
    session.state = restore(carry(session.session)).state
    for number in range(summaries.RUNS_BEFORE_LOSS - 2 + is_lost):
        session.ask(f"turn {number}")
        session.reply("fine")
    to_seq = sum_up(session).to_seq
    assert to_seq is not None
    assert (to_seq > find_seq(session, "5, and 500 is in doubt")) == is_lost


def test_a_round_with_an_approved_call_is_not_summed_up_after_a_rollover() -> None:
    """The approval, which names the call too, is not its result."""
    session = SessionHarness(context_policy=MANY, tools=("ask_first",))
    session.ask("pay")
    session.reply("", "ask_first")
    session.approve("tool00001")
    session.cancel()
    session.ask("what was paid?")
    session.reply("it is in doubt")
    session.state = restore(carry(session.session)).state
    assert sum_up(session).to_seq == find_seq(session, "pay")
    session.do(LateResultInput(tool_call_id="tool00001", content="paid 500"))
    assert "paid 500" in list_contents(session)


def test_a_compaction_reaches_no_further_either() -> None:
    """A compaction ends before such a round, also if its `base_seq` is later."""
    session = open_doubting_session()
    session.operate(
        "c-1", reason="compaction", result_context=None, base_seq=find_seq(session, "5, and 500 is in doubt")
    )
    assert isinstance(session.effect, Summarize)
    effect = summaries.find_range(session.state, session.thread, session.effect)
    assert effect.to_seq == find_seq(session, "pay")
    session.take_event(Summarized(effect=effect, summary=_SUMMARY))
    session.answer_call("tool00002", "paid 500")
    assert "paid 500" in list_contents(session)


def test_a_compaction_keeps_its_senders_meta() -> None:
    """Beside what the session says of its origin."""
    session = open_doubting_session(turns=3)
    session.operate("c-1", reason="compaction", result_context=None, meta={"ticket": 7})
    assert isinstance(session.effect, Summarize)
    effect = summaries.find_range(session.state, session.thread, session.effect)
    session.take_event(Summarized(effect=effect, summary=_SUMMARY))
    meta = session.thread[session.thread.last_seq].payload["operation"]["meta"]
    assert (meta["ticket"], meta["base_seq"]) == (7, effect.to_seq)


@pytest.mark.parametrize("ends", ["written", "failed"])
def test_an_automatic_summary_names_the_run_that_it_follows(ends: str) -> None:
    """Its entry has the request, the run and the call, and so has the error if there is none."""
    session = SessionHarness(context_policy=MANY.model_copy(update={"summarization": "request_new"}))
    for number in range(2):
        session.ask(f"question {number} " + "word " * 3000)
        session.reply(f"answer {number}", needs_summary=False)
    request_id = session.ask("question 2 " + "word " * 3000)
    session.reply("answer 2", needs_summary=True)
    assert isinstance(session.effect, Summarize)
    if ends == "written":
        effect = summaries.find_range(session.state, session.thread, session.effect)
        session.take_event(Summarized(effect=effect, summary=_SUMMARY))
    else:
        session.fail("overloaded")
    refs = session.thread[session.thread.last_seq].refs
    assert (refs["request_id"], refs["run_id"], refs["call_id"]) == (request_id, "run-3", "call-3")
    assert refs["summary_id"] == "summary-1"


def test_where_nothing_comes_before_that_round_there_is_nothing_to_summarize() -> None:
    """Until the call has returned: then all can be summed up."""
    session = open_doubting_session(turns=0)
    assert sum_up(session).to_seq == find_seq(session, "pay")
    with pytest.raises(NothingToSummarize, match="may still return"):
        session.do(SummarizeInput(to_seq=session.thread.last_seq))
    session.answer_call("tool00002", "paid 500")
    late = find_seq(session, "paid 500")
    assert sum_up(session).to_seq == late


def test_a_late_result_is_summed_up_together_with_its_round() -> None:
    """A range that ends between the two would have the summary say that it is in doubt, and no model see more."""
    session = open_doubting_session()
    session.answer_call("tool00002", "paid 500")
    session.ask("and now?")
    session.reply("505")
    assert sum_up(session, find_seq(session, "5, and 500 is in doubt")).to_seq == find_seq(session, "pay")
    assert "paid 500" in list_contents(session)
    late = find_seq(session, "paid 500")
    assert sum_up(session, late).to_seq == late


@pytest.mark.parametrize("content", ["a page", "another page"])
def test_a_round_that_is_partly_in_the_archive_is_summed_up_with_all_of_its_results(content: str) -> None:
    """A range that ends inside the round would leave results that neither the summary nor a context includes."""
    session = SessionHarness(context_policy=MANY)
    session.ask("read")
    session.reply("", "look", "look")
    session.answer_call("tool00001", "a page")
    session.answer_call("tool00002", "another page")
    session.reply("read both")
    session.ask("thanks")
    session.reply("welcome")
    to_seq, end = find_seq(session, content), find_seq(session, "another page")
    held = [entry for entry in session.thread.filter_by_kind("ai_message") if entry.seq >= end]
    room = sum(len(to_json(entry.as_dict())) for entry in held)
    first_seq = session.thread.rev
    retained = retain(session.thread, first_seq, {"default": [session.state.settings.policy]}, room)
    assert retained.gaps["default"].newest_seq == find_seq(session, "a page")
    session.thread = Thread((), first_seq, retained)
    assert sum_up(session, to_seq).to_seq == end


@pytest.mark.slow
@given(
    limit=st.integers(1_500, 8_000),
    policy=st.builds(
        ContextPolicy,
        max_input_tokens=st.just(32_768),
        reserve_output_tokens=st.sampled_from((100, 200)),
        keep_last_turns=st.integers(0, 10),
        window=st.sampled_from(("sliding", "epoch")),
        low_water=st.sampled_from((0.1, 0.5, 0.9)),
        summarization=st.just("request_new"),
    ),
    shares=st.lists(st.integers(1, 12), min_size=30, max_size=60),
)
def test_what_a_learned_window_drops_is_summarized(limit: int, policy: ContextPolicy, shares: list[int]) -> None:
    """A call whose window drops messages is followed by a summary, after which the next window drops none.

    So it is under a policy for a much larger window than the model has, whatever the turns are that should stay.
    """
    session = begin_small(policy)
    has_summary = False
    for share in shares:
        session.ask("x" * (4 * limit * share // 100))
        while (meta := session.build_context(session.call).meta).estimated_tokens > limit - 50:
            session.take_event(make_refusal(session, limit=limit, actual=meta.estimated_tokens))
        assert not (meta.truncated and has_summary)
        usage = Usage(input_tokens=meta.estimated_tokens, output_tokens=1)
        session.reply("fine", usage=usage, needs_summary=meta.needs_summary)
        if has_summary := isinstance(session.effect, Summarize):
            effect = summaries.find_range(session.state, session.thread, session.effect)
            session.take_event(Summarized(effect=effect, summary=_SUMMARY))
        assert has_summary == meta.truncated


def test_of_a_turn_that_begins_in_the_archive_the_newest_rounds_stay_that_fit() -> None:
    """As of a turn that the thread holds: a summary ends before them."""
    policy = ContextPolicy(max_input_tokens=500, reserve_output_tokens=0, keep_last_turns=1)
    session = SessionHarness(context_policy=policy)
    writer = Writer().talk(user_says("go"), run="r1")
    for name in "abcde":
        writer.talk(assistant_calls(name), tool_returns(name, "word " * 400), run="r1")
    full = writer.thread
    effect = Summarize(
        summary_id="s", context_ref="default", model="m", encoding="heuristic",
        max_input_tokens=500, max_output_tokens=50,
    )  # fmt: skip
    reduced = Thread(full.slice(3, full.last_seq), 3, retain(full, 3, {"default": [policy]}, 0, full.last_seq))
    for thread in (full, reduced):
        assert summaries.find_bounds(session.state, thread, effect) == (0, 6, None)


@pytest.mark.parametrize(("keep_tokens", "kept"), [(0, 2), (35, 3), (45, 4), (50, 5)])
def test_the_last_turns_stay_and_older_ones_that_are_small_enough(keep_tokens: int, kept: int) -> None:
    """The policy's number of turns stays in any case."""
    policy = ContextPolicy(max_input_tokens=4000, reserve_output_tokens=0, keep_last_turns=2)
    session, thread = SessionHarness(context_policy=policy), Writer().talk(*map(user_says, "abcdef")).thread
    effect = Summarize(
        summary_id="s", context_ref="default", model="m", encoding="heuristic",
        max_input_tokens=4000, max_output_tokens=50,
    )  # fmt: skip
    assert thread[0].tokens * 3 < 35 < thread[0].tokens * 4 < 45
    assert summaries.find_bounds(session.state, thread, effect, keep_tokens)[1] == 5 - kept
