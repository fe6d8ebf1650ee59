"""How far a summary reaches where a tool call returns after the end of its run."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic_core import to_json

from clew.contract import ContextPolicy, LateResultInput, SummarizeInput
from clew.errors import NothingToSummarize
from clew_workflows.contract.content import get_text
from clew_workflows.contract.outcomes import Usage
from clew_workflows.protocol import Summarize, Summarized, WrittenSummary
from clew_workflows.session import summaries
from clew_workflows.session.carried import carry, restore
from clew_workflows.thread.context.archived import retain
from clew_workflows.thread.thread import Thread
from tests.support.session_harness import SessionHarness, begin_small, make_refusal

POLICY = ContextPolicy(max_input_tokens=8000, reserve_output_tokens=100, keep_last_turns=1)

MANY = ContextPolicy(max_input_tokens=8000, reserve_output_tokens=100, keep_last_turns=1)


def open_doubting_session(turns: int = 1) -> SessionHarness:
    """A session that has had some turns, then a round with a call in doubt, then another turn."""
    session = SessionHarness(context_policy=POLICY)
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
    """Its worker sends the result by a signal. A call that has not returned for many runs may never return."""
    session = open_doubting_session()
    session.state = restore(carry(session.session)).state
    assert session.state.detached_calls
    assert sum_up(session).to_seq == find_seq(session, "pay")
    session.do(LateResultInput(tool_call_id="tool00002", content="paid 500"))
    assert "paid 500" in list_contents(session)

    lost = open_doubting_session()
    lost.state = restore(carry(lost.session)).state
    for number in range(summaries.RUNS_BEFORE_LOSS):
        lost.ask(f"turn {number}")
        lost.reply("fine")
    assert (sum_up(lost).to_seq or 0) > find_seq(lost, "5, and 500 is in doubt")


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
    session = SessionHarness(context_policy=POLICY.model_copy(update={"summarization": "request_new"}))
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
    session = SessionHarness(context_policy=POLICY)
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
