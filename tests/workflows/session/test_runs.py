"""The run: model call, tools, model call, … until terminal."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import pytest

from clew.contract import ModelOptions
from clew_workflows.contract.outcomes import Usage
from clew_workflows.protocol import CallModel, Declined, Failure, RequestedTool, RunTools
from clew_workflows.session import runs
from tests.support.session_harness import SessionHarness
from tests.support.threads import assert_valid

ID = re.compile(r"[A-Za-z0-9_-]{1,40}")


def test_a_final_answer_completes_the_run() -> None:
    """Answer, then outcome, with the usage of the whole run; the session is idle again."""
    session = SessionHarness()
    request_id = session.ask()
    session.reply("hi", usage=Usage(input_tokens=10, output_tokens=2))
    assert session.entry_names == ["config", "user", "assistant", "run"]
    assert session.effect is None
    assert session.state.phase == "idle"
    assert session.state.request_id is None
    outcome = session.find_outcome(request_id)
    assert (outcome["status"], outcome["termination_reason"]) == ("completed", "final_answer")
    assert (outcome["answer_seq"], outcome["last_seq"], outcome["iterations"]) == (2, 3, 1)
    assert outcome["usage"] == Usage(input_tokens=10, output_tokens=2, model_calls=1).model_dump()


def test_tools_of_one_round_run_together_and_are_committed_in_call_order() -> None:
    """One effect holds them all; the results follow the calls in their order, and the next call reads them."""
    session = SessionHarness()
    session.ask()
    first = RequestedTool(name="look", arguments={"at": "sky"})
    session.reply("let me see", first, "add", "look")
    assert session.state.phase == "awaiting_tools"
    calls = [call for call, _ in session.round.calls]
    assert [(call.name, call.tool_call_id) for call in calls] == [
        ("look", "tool00001"),
        ("add", "tool00002"),
        ("look", "tool00003"),
    ]
    assert calls[0].arguments == {"at": "sky"}
    assert {call.max_result_bytes for call in calls} == {65536}
    session.answer_calls("blue", "4", "green")
    assert session.entry_names == ["config", "user", "assistant", "tool", "tool", "tool"]
    assert [session.thread[seq].payload["content"] for seq in (3, 4, 5)] == ["blue", "4", "green"]
    assert [session.thread[seq].refs["tool_call_id"] for seq in (3, 4, 5)] == ["tool00001", "tool00002", "tool00003"]
    assert (session.call.at_seq, session.call.iteration, session.call.parent_call_id) == (5, 2, "call-1")
    assert_valid(session.build_context(session.call).messages)


@pytest.mark.parametrize("calls_models", [True, False])
def test_a_declined_call_is_made_by_a_worker_for_model_calls(calls_models: bool) -> None:
    """It is the same call. The next one is declined again only where the workers for sessions make model calls."""
    session = SessionHarness()
    session.state = replace(session.state, settings=replace(session.state.settings, calls_models=True))
    session.ask()
    declined = session.call
    session.take_event(Declined(calls_models=calls_models))
    assert session.call == declined.model_copy(update={"declined": True})
    session.reply("fine")
    session.ask()
    assert (session.call.call_id, session.call.declined) == ("call-2", False)
    assert session.state.settings.calls_models is calls_models
    assert session.entry_names == ["config", "user", "assistant", "run", "user"]


def test_ids_are_unique_in_the_thread() -> None:
    """Providers repeat theirs; the session's own never repeat, over rounds and runs, and every provider takes one."""
    session = SessionHarness()
    for _ in range(3):
        session.ask()
        for _ in range(2):
            session.reply("", "add", "look")
            session.answer_calls("1", "2")
        session.reply("done")
    calls = [call["id"] for entry in session.thread for call in entry.payload.get("tool_calls", [])]
    assert len(calls) == 12
    assert len(set(calls)) == 12
    assert all(ID.fullmatch(call) for call in calls)
    call_ids = [effect.call_id for effect in session.effects if isinstance(effect, CallModel)]
    assert len(set(call_ids)) == len(call_ids) == 9
    assert len({entry.refs["run_id"] for entry in session.thread if "run_id" in entry.refs}) == 3


def test_an_unknown_tool_is_answered_beside_those_that_run() -> None:
    """Known tools run; the error of an unknown one keeps its place in the call order and names the known tools."""
    session = SessionHarness()
    session.ask()
    session.reply("", "fly", "add")
    assert [call.tool_call_id for call, _ in session.round.calls] == ["tool00002"]
    session.answer_calls("4")
    unknown, known = session.thread[3].payload, session.thread[4].payload
    assert unknown["is_error"] is True
    assert unknown["content"] == "error: unknown tool 'fly'; the tools are: add, look"
    assert (known["content"], "is_error" in known) == ("4", False)


def test_where_nothing_can_be_run_the_model_is_called_again_at_once() -> None:
    """Malformed arguments and unknown tools cost no activity: their errors are committed with the reply."""
    session = SessionHarness(tools=())
    session.ask()
    session.reply("", "add")
    assert session.call.iteration == 2
    assert "there are no tools" in session.thread[3].payload["content"]
    session = SessionHarness()
    session.ask()
    session.reply("", RequestedTool(name="add", malformed='{"a": ' + "9" * 5000))
    assert session.entry_names == ["config", "user", "assistant", "tool"]
    assert (session.call.at_seq, session.call.iteration) == (3, 2)
    result = session.thread[3].payload
    assert result["is_error"] is True
    assert result["content"].startswith('error: the arguments were not a JSON object: {"a": 9')
    assert len(result["content"]) < 1100
    assert session.thread[2].payload["tool_calls"][0]["arguments"] == {}


def test_at_max_iterations_the_run_completes_with_all_it_has() -> None:
    """Tools of the last call are not run; their calls are closed, and the text beside them is the answer."""
    session = SessionHarness(max_iterations=2)
    request_id = session.ask()
    session.reply("", "add")
    session.answer_calls("4")
    session.reply("so far: 4", "add", "fly")
    assert session.effect is None
    assert session.entry_names == ["config", "user", "assistant", "tool", "assistant", "tool", "tool", "run"]
    outcome = session.find_outcome(request_id)
    assert (outcome["status"], outcome["termination_reason"]) == ("completed", "max_iterations")
    assert (outcome["iterations"], outcome["answer_seq"]) == (2, 4)
    results = {entry.payload["tool_call_id"]: entry.payload["content"] for entry in session.thread.slice(5, 6)}
    assert "not run" in results["tool00002"]
    assert "unknown tool" in results["tool00003"]
    session.ask("go on")
    assert_valid(session.build_context(session.call).messages)


def test_a_failure_is_a_fact_and_then_the_outcome() -> None:
    """A failed run commits an `error` and a `run` entry; the user's message stays, and the next request is served."""
    session = SessionHarness()
    request_id = session.ask("do it")
    session.take_event(Failure(type="rate_limited", message="slow down", retryable=True, details={"status": 429}))
    assert session.entry_names == ["config", "user", "error", "run"]
    assert session.thread[2].payload == {
        "type": "rate_limited",
        "message": "slow down",
        "details": {"status": 429},
    }
    outcome = session.find_outcome(request_id)
    assert (outcome["status"], outcome["termination_reason"]) == ("failed", "rate_limited")
    error = session.thread.filter_by_kind("error")[0]
    assert (error.refs["request_id"], error.refs["call_id"]) == (request_id, "call-1")
    assert outcome["error"] == {"type": "rate_limited", "message": "slow down", "retryable": True}
    session.ask("again")
    assert [message["content"] for message in session.build_context(session.call).messages] == ["do it", "again"]


def test_a_failure_closes_the_calls_that_were_open() -> None:
    """A run that fails while its tools are out leaves a thread that every provider still takes."""
    session = SessionHarness()
    session.ask()
    session.reply("", "add", "look")
    session.fail("worker_lost")
    assert session.entry_names == ["config", "user", "assistant", "error", "tool", "tool", "run"]
    session.ask("go on")
    assert_valid(session.build_context(session.call).messages)


def test_a_request_has_its_time() -> None:
    """What is left of the time is asked before every call: after it the run fails, with what it has committed."""
    session = SessionHarness(request_timeout_seconds=60)
    request_id = session.ask()
    session.time = 59.9
    session.reply("", "add")
    session.time = 60.0
    session.answer_calls("4")
    assert session.entry_names == ["config", "user", "assistant", "tool", "error", "run"]
    outcome = session.find_outcome(request_id)
    assert (outcome["status"], outcome["termination_reason"]) == ("failed", "timeout")
    assert outcome["error"]["message"] == "no answer within 60 seconds"
    assert outcome["error"]["retryable"] is True


def test_a_timeout_says_what_stood_in_its_way() -> None:
    """The last failure of the retries that used the time up is part of the message."""
    session = SessionHarness()
    session.ask(timeout_seconds=5)
    assert session.state.run is not None
    failure = runs.make_timeout(session.state.run, "overloaded: try later")
    assert failure.message == "no answer within 5 seconds: overloaded: try later"


def test_a_session_spends_no_more_tokens_than_its_limit() -> None:
    """The limit is over all runs; once it is met, requests fail before a model is called."""
    session = SessionHarness(limits={"max_total_tokens": 100})
    session.ask()
    session.reply("", "add", usage=Usage(input_tokens=90, output_tokens=9))
    session.answer_calls("4")
    session.reply("4", usage=Usage(input_tokens=1))
    request_id = session.ask("more")
    assert session.effect is None
    outcome = session.find_outcome(request_id)
    assert (outcome["status"], outcome["termination_reason"], outcome["iterations"]) == ("failed", "token_limit", 0)
    assert "100 tokens of the 100" in outcome["error"]["message"]


def test_a_session_costs_no_more_than_its_limit() -> None:
    """The call that passes the limit is the last; calls say that they must be priced."""
    session = SessionHarness(limits={"max_cost_usd": 0.5})
    session.ask()
    assert session.call.priced
    session.reply("", "add", usage=Usage(cost_usd=0.3))
    session.answer_calls("4")
    session.reply("4", usage=Usage(cost_usd=0.3))
    assert session.state.spent.own.cost_usd == 0.6
    request_id = session.ask("more")
    assert session.find_ending(request_id) == ("failed", "cost_limit")
    assert "0.6000 USD of the 0.5" in session.find_outcome(request_id)["error"]["message"]
    session.configure(limits={"max_cost_usd": 1})
    session.ask("more")
    assert session.call.priced


def test_an_answer_truncated_by_its_limit_says_so() -> None:
    """`completed`, and the reason is `max_output_tokens`."""
    session = SessionHarness()
    request_id = session.ask()
    session.reply("once upon", stop_reason="length")
    assert session.find_outcome(request_id)["termination_reason"] == "max_output_tokens"


def test_tool_calls_of_a_truncated_reply_still_run() -> None:
    """What arrived whole is run, what broke off is malformed and answered."""
    session = SessionHarness()
    session.ask()
    session.reply("", "add", RequestedTool(name="look", malformed='{"at": "s'), stop_reason="length")
    assert [call.name for call, _ in session.round.calls] == ["add"]


def test_an_empty_reply_is_no_answer() -> None:
    """`answer_seq` is the seq of the newest reply with content."""
    session = SessionHarness()
    request_id = session.ask()
    session.reply("thinking aloud", "add")
    session.answer_calls("4")
    session.reply("", "add")
    session.fail()
    assert session.find_outcome(request_id)["answer_seq"] == 2


def test_a_request_that_ends_unopened_has_a_run_id_of_its_own() -> None:
    """Ids of runs count up, also of those that never began."""
    session = SessionHarness()
    first = session.ask()
    waiting = session.ask(on_busy="queue")
    session.cancel(waiting)
    session.reply("fine")
    last = session.ask()
    session.reply("fine")
    ids = [session.find_outcome(request_id)["run_id"] for request_id in (first, waiting, last)]
    assert ids == ["run-1", "run-2", "run-3"]


@pytest.mark.parametrize(
    ("stop_reason", "reason"),
    [("length", "the reply reached its limit of 900 tokens"), ("stop", "the reply ended")],
)
def test_a_call_that_ends_within_its_arguments_is_answered_with_the_reason(stop_reason: Any, reason: str) -> None:
    """The model learns whether it was the limit of its reply, and how large that is."""
    session = SessionHarness()
    session.ask(model_options=ModelOptions(max_output_tokens=900))
    session.reply("", RequestedTool(name="add", arguments={}, cut=True), stop_reason=stop_reason)
    result = next(entry for entry in session.thread if entry.payload.get("role") == "tool")
    assert result.payload["content"].startswith(f"error: {reason} within the arguments of this call")
    assert result.payload["is_error"]


def test_replies_that_end_within_a_tool_call_are_paid_for_three_times_at_most() -> None:
    """In a row: the limit that cuts them would cut the next one, too."""
    session = SessionHarness()
    request_id = session.ask()
    cut = RequestedTool(name="add", arguments={}, cut=True)
    for tool in (cut, cut, RequestedTool(name="add"), cut, cut):
        session.reply("", tool)
        if isinstance(session.effect, RunTools):
            session.answer_calls("3")
    assert session.state.run
    session.reply("", cut)
    assert session.find_ending(request_id) == ("failed", "max_output_tokens")
