"""Tool calls: what the thread says of each is what happened to it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from clew.contract import HibernateInput, LateResultInput
from clew.errors import Busy
from clew_workflows.contract.content import get_text
from clew_workflows.contract.policy import ContextPolicy
from clew_workflows.protocol import (
    ArchiveRef,
    Failure,
    FunctionRoute,
    Prepared,
    RequestedTool,
    ToolAnswered,
    ToolReturned,
)
from clew_workflows.session import advance, decisions
from clew_workflows.session.carried import carry, restore
from clew_workflows.session.state import RequestedCall
from clew_workflows.session.tool_rounds import MAX_DETACHED_CALLS
from clew_workflows.thread.context.contexts import build_context
from clew_workflows.thread.entries import Entry
from tests.support.session_harness import SessionHarness, make_reply, make_tool
from tests.support.threads import assert_valid


def begin_round(idempotent: bool = False) -> SessionHarness:
    """A session in the middle of a round of two payments, the first of which has returned."""
    session = SessionHarness(prepare=False, tools=("pay",))
    session.take_event(Prepared(tools=(make_tool("pay").model_copy(update={"idempotent": idempotent}),)))
    session.ask("pay", "r-1")
    calls = [RequestedTool(name="pay", arguments={"a": amount}) for amount in (5, 500)]
    session.reply("", *calls)
    session.answer_call("tool00001", "paid 5")
    return session


def list_results(session: SessionHarness) -> list[str]:
    """What the session's model would read of its tools now, in order."""
    messages = build_context(session.thread).messages
    assert_valid(messages)
    return [get_text(message["content"]) for message in messages if message["role"] == "tool"]


def list_entries(session: SessionHarness, tool_call_id: str) -> list[Entry]:
    return [entry for entry in session.thread if entry.payload.get("tool_call_id") == tool_call_id]


def end_run(session: SessionHarness, how: str) -> None:
    """The run ends in the middle of its round."""
    match how:
        case "interrupt":
            session.ask("stop", "r-2", on_busy="interrupt")
        case "cancel":
            session.cancel()
        case "close":
            session.close()
        case "recover":
            session.apply(decisions.recover(session.state, session.now))


ENDS = ["interrupt", "cancel", "close", "recover"]


def test_a_result_is_committed_as_it_arrives() -> None:
    """The second call may return first; every context shows the results in the order of the calls."""
    session = SessionHarness()
    session.ask()
    session.reply("", "add", "look")
    session.answer_call("tool00002", "second")
    assert session.thread[session.thread.last_seq].payload["content"] == "second"
    assert session.state.phase == "awaiting_tools"
    session.answer_call("tool00001", "first")
    assert [message["content"] for message in session.build_context(session.call).messages[-2:]] == [
        "first",
        "second",
    ]


@pytest.mark.parametrize("how", ENDS)
def test_a_call_that_has_returned_keeps_its_result(how: str) -> None:
    """Also where its run ends before the others of its round have returned."""
    session = begin_round()
    end_run(session, how)
    assert list_results(session)[0] == "paid 5"
    assert len(list_entries(session, "tool00001")) == 1


@pytest.mark.parametrize("how", ENDS)
def test_a_call_in_flight_is_in_doubt(how: str) -> None:
    """With the key under which it can be looked up; the model is never told that it was not run."""
    session = begin_round()
    end_run(session, how)
    doubt = list_entries(session, "tool00002")[0].payload
    assert doubt["in_doubt"] is True
    assert doubt["content"].startswith("in doubt (")
    assert "idempotency key is s-1/tool00002" in doubt["content"]
    assert "not run" not in " ".join(list_results(session))


@pytest.mark.parametrize("how", ENDS)
def test_an_idempotent_call_in_flight_may_have_run(how: str) -> None:
    """It may be repeated, so that it needs no key."""
    session = begin_round(idempotent=True)
    end_run(session, how)
    assert list_results(session)[1].startswith("interrupted (")
    assert list_results(session)[1].endswith("this call may have run")


@pytest.mark.parametrize("how", ENDS)
def test_only_a_call_that_was_never_started_was_not_run(how: str) -> None:
    """The round was decided upon, and its run ended before an activity was started for it."""
    session = SessionHarness()
    session.dispatching = False
    session.ask()
    session.reply("", "add")
    end_run(session, how)
    assert list_results(session)[0].startswith("[not run: the run ended (")
    assert "in_doubt" not in list_entries(session, "tool00001")[0].payload


def test_a_call_that_waits_for_approval_was_not_run() -> None:
    """Those beside it may have run."""
    session = SessionHarness(tools=("add", "ask_first"))
    session.ask()
    session.reply("", "add", "ask_first")
    session.cancel()
    assert [result.partition(" (")[0] for result in list_results(session)] == [
        "interrupted",
        "[not run: the run ended",
    ]


def test_a_result_that_arrives_after_the_end_takes_the_place_of_the_doubt() -> None:
    """It is a fact of its own; contexts before it show the doubt, and later ones the result."""
    session = begin_round()
    session.cancel()
    before = session.thread.last_seq
    session.ask("and now?", "r-2")
    session.reply("let me see")
    session.answer_call("tool00002", "paid 500")
    late = session.thread[session.thread.last_seq]
    assert late.payload["late"] is True
    assert (late.refs["run_id"], late.refs["tool_call_id"], late.refs["call_id"]) == ("run-1", "tool00002", "call-1")
    assert list_results(session) == ["paid 5", "paid 500"]
    assert "in doubt" in build_context(session.thread, at_seq=before).messages[-1]["content"]
    assert session.state.late_calls == ()
    session.answer_call("tool00002", "again")
    assert session.thread.last_seq == late.seq


def test_a_late_result_changes_what_calls_share() -> None:
    """A context that shows it does not begin like the one before it, though its window has not been truncated."""
    session = begin_round()
    session.configure(context_policy=ContextPolicy(window="epoch"))
    session.cancel()
    for request_id in ("r-2", "r-3"):
        session.ask("and now?", request_id)
        epoch = session.build_context(session.call).meta.epoch
        answer = make_reply(content="let me see").model_copy(update={"epoch": epoch, "policy_hash": _hash(session)})
        session.take_event(answer)
    session.ask("well?", "r-4")
    assert session.build_context(session.call).meta.shared_prefix_tokens == 7
    session.cancel()
    session.answer_call("tool00002", "paid 500")
    assert build_context(session.thread).meta.shared_prefix_tokens == 0


def _hash(session: SessionHarness) -> str:
    return session.build_context(session.call).meta.policy_hash


@pytest.mark.parametrize("failure", [None, Failure(type="timeout", message="no answer")])
def test_what_never_returns_stays_in_doubt(failure: Failure | None) -> None:
    """The activity was cancelled, or its time was over: nothing more is known, and nothing more is said."""
    session = begin_round()
    session.cancel()
    last_seq = session.thread.last_seq
    session.answer_call("tool00002", failure=failure)
    assert session.thread.last_seq == last_seq
    assert session.state.late_calls == ()
    assert list_results(session)[1].startswith("in doubt")


def test_a_late_result_in_doubt_adds_nothing() -> None:
    """The tool itself could not tell."""
    session = begin_round()
    session.cancel()
    last_seq = session.thread.last_seq
    answer = ToolAnswered(content="who knows", is_error=True, in_doubt=True)
    session.apply(
        decisions.take_event(session.state, ToolReturned(tool_call_id="tool00002", answer=answer), session.now)
    )
    assert session.thread.last_seq == last_seq


def test_a_session_is_not_put_away_while_a_call_may_still_return() -> None:
    """What it says would be lost. Once it has returned, or is known not to, the session may hibernate."""
    session = begin_round()
    session.state = replace(session.state, archive=ArchiveRef(execution="x", family="s-1", upto=-1))
    session.cancel()
    with pytest.raises(Busy, match="may still return"):
        session.do(HibernateInput())
    session.answer_call("tool00002", "paid 500")
    session.do(HibernateInput())


def test_a_late_result_outlives_a_rollover() -> None:
    """The tool's worker sends it to the next workflow run, which has the call in doubt. It is committed once."""
    session = begin_round()
    session.cancel()
    before = session.thread.last_seq
    begun = restore(carry(advance.Session(session.state, session.thread)))
    session.state, session.thread = begun.state, begun.thread
    for content in ("paid 500", "again"):
        session.do(LateResultInput(tool_call_id="tool00002", content=content))
    late = session.thread[session.thread.last_seq]
    assert (late.seq, late.payload["late"], late.refs["tool_call_id"]) == (before + 1, True, "tool00002")
    assert list_results(session) == ["paid 5", "paid 500"]


def test_a_late_result_that_was_committed_is_ignored_when_its_worker_sends_it_too() -> None:
    """So is one of a call that is not in doubt."""
    session = begin_round()
    session.do(LateResultInput(tool_call_id="tool00002", content="too soon"))
    session.cancel()
    session.answer_call("tool00002", "paid 500")
    last_seq = session.thread.last_seq
    session.do(LateResultInput(tool_call_id="tool00002", content="again"))
    assert session.thread.last_seq == last_seq
    assert list_results(session) == ["paid 5", "paid 500"]


def test_calls_of_earlier_workflow_runs_are_bounded() -> None:
    """The newest are remembered. Nothing waits for them."""
    session = begin_round()
    session.state = replace(session.state, archive=ArchiveRef(execution="x", family="s-1", upto=-1))
    session.cancel()
    late = session.state.late_calls
    many = tuple(replace(late[0], doubt=replace(late[0].doubt, tool_call_id=f"tool{n:05d}")) for n in range(200))
    session.state = replace(session.state, late_calls=(), detached_calls=many)
    detached = restore(carry(session.session)).state.detached_calls
    assert detached == many[-MAX_DETACHED_CALLS:]
    session.do(HibernateInput())


def test_a_rollover_in_the_middle_of_a_doubt_keeps_it() -> None:
    """The next run of the workflow shows what the one before showed."""
    session = begin_round()
    session.cancel()
    shown = list_results(session)
    begun = restore(carry(advance.Session(session.state, session.thread)))
    assert begun.state.late_calls == ()
    session.state, session.thread = begun.state, begun.thread
    assert list_results(session) == shown


def test_a_round_carried_into_the_next_run_knows_what_has_returned() -> None:
    """The next workflow run starts only the calls without a result."""
    session = SessionHarness()
    session.dispatching = False
    session.ask()
    session.reply("", "fly", "add")
    begun = restore(carry(session.session))
    assert begun.state.run
    assert begun.state.run.tool_calls == (
        RequestedCall("tool00001", "fly", {}, returned=True),
        RequestedCall("tool00002", "add", {}, idempotent=True),
    )


@pytest.mark.parametrize("idempotent", [True, False])
def test_a_call_that_the_deadline_interrupted_is_in_doubt_and_named(idempotent: bool) -> None:
    """The outcome names the tool whose call had not returned."""
    session = begin_round(idempotent)
    assert session.state.run
    session.time = session.state.run.clock.deadline
    session.answer_call("tool00002", failure=Failure(type="timeout", message="the work was under way"))
    assert "in_doubt" in list_entries(session, "tool00002")[0].payload
    error = session.find_outcome("r-1")["error"]
    assert error["type"] == "timeout"
    assert error["message"] == "no answer within 900 seconds: tool 'pay' (tool00002) had not returned"


def test_only_a_tool_that_takes_a_context_gets_the_metadata() -> None:
    """The history holds them once for each such call, and for no other."""
    session = SessionHarness(prepare=False, tools=("add", "look"), metadata={"customer": "4711"})
    takes_context = FunctionRoute(type="function", takes_context=True)
    asking = make_tool("look").model_copy(update={"route": takes_context})
    session.take_event(Prepared(tools=(make_tool("add"), asking)))
    session.ask("go", "r-1", metadata={"channel": "mail"})
    session.reply("", "add", "look")
    add, look = (planned.call for planned in session.round.calls)
    assert (add.metadata, add.request_metadata, add.agent, add.iteration) == (None, None, None, 1)
    assert (look.metadata, look.request_metadata) == ({"customer": "4711"}, {"channel": "mail"})
