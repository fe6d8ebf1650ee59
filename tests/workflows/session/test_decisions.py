"""The session's decisions, without a workflow: what follows from what is and what happened."""

from __future__ import annotations

import copy
import dataclasses
from typing import Any

import pytest
from pydantic import ValidationError

from clew.contract import CloseInput, MessageInput, SessionConfig
from clew.errors import ClewError, InvalidInput, InvalidTokenBudget
from clew_workflows.contract.policy import ContextPolicy
from clew_workflows.protocol import Failure, Prepare, Prepared, RequestedTool
from clew_workflows.session import decisions, requests, runs
from clew_workflows.session.state import Moment
from clew_workflows.thread.context.contexts import build_context
from tests.support.session_harness import UNKNOWN, SessionHarness, make_reply
from tests.support.threads import assert_valid


def test_a_session_begins_unprepared() -> None:
    """Nothing is committed until a worker has resolved the model and the tools."""
    session = SessionHarness(prepare=False)
    assert session.state.phase == "preparing"
    assert session.entry_names == []


def test_a_preparation_that_only_counts_schemas_commits_nothing() -> None:
    """A session that was built from its entries has the tools' schemas without their tokens."""
    state = SessionHarness().state
    tools = tuple(tool.model_copy(update={"tokens": 7}) for tool in state.settings.tools or ())
    uncounted = tuple(tool.model_copy(update={"tokens": None}) for tool in tools)
    state = dataclasses.replace(state, settings=dataclasses.replace(state.settings, tools=uncounted))
    decision = decisions.take_preparation(state, Prepared(tools=tools), Moment(1, 0.0))
    assert tools
    assert decision.state.settings.tools == tools
    assert decision.commit == ()


@pytest.mark.parametrize(
    ("policy", "error"),
    [
        (ContextPolicy(max_input_tokens=10, reserve_output_tokens=10), InvalidTokenBudget),
        (ContextPolicy(reserve_output_tokens=-1), InvalidTokenBudget),
        (ContextPolicy(window="epoch", token_estimator="heuristic"), InvalidInput),
        (ContextPolicy(projector="psychic"), InvalidInput),
    ],
)
def test_a_policy_that_cannot_be_used_is_refused_before_anything(
    policy: ContextPolicy, error: type[ClewError]
) -> None:
    """Neither a session nor a request begins under it, and a request refused leaves the session as it was."""
    with pytest.raises(error):
        decisions.begin("s-1", SessionConfig(model="openai:gpt-4o", context_policy=policy))
    session = SessionHarness()
    with pytest.raises(error):
        requests.make_request(session.state, MessageInput(content="hello", context_policy=policy), "r")


def test_an_encoding_that_the_worker_does_not_have_is_refused_before_anything() -> None:
    """The error names those that it has. A name of another form is refused by every process."""
    with pytest.raises(InvalidInput, match="unknown encoding 'gpt2': one of o200k_base"):
        decisions.begin("s-1", SessionConfig(model="openai:gpt-4o", encoding="gpt2"))
    with pytest.raises(ValidationError, match="encoding"):
        SessionConfig(model="openai:gpt-4o", encoding="gpt 2")


def test_a_message_is_committed_before_a_model_is_called() -> None:
    """The call is pinned to the seq of the question, which is the last fact there is."""
    session = SessionHarness()
    request_id = session.ask("hello", metadata={"from": "a test"})
    assert session.entry_names == ["config", "user"]
    asked = session.thread[1]
    assert asked.payload["content"] == "hello"
    assert asked.payload["metadata"] == {"from": "a test"}
    assert asked.refs == {"session_id": "s-1", "request_id": request_id, "run_id": "run-1", "call_id": "call-1"}
    assert (session.call.at_seq, session.call.iteration, session.call.parent_call_id) == (1, 1, None)
    assert session.state.phase == "awaiting_model"
    assert session.state.request_id == request_id


@pytest.mark.parametrize(
    "error", [UNKNOWN, Failure(type="unknown_tool", message="no tool 'look'"), Failure(type="timeout", message="?")]
)
def test_what_the_worker_does_not_know_fails_the_request_and_is_asked_again(error: Failure) -> None:
    """The session lives; every later message asks the worker again, and is served once it knows."""
    session = SessionHarness(prepare=False)
    session.answer_preparation(error, tools=("add",))
    assert (session.entry_names, session.state.phase, session.effect) == (["config"], "idle", None)
    first = session.ask("one")
    assert isinstance(session.effect, Prepare)
    assert session.state.phase == "preparing"
    session.answer_preparation(error, tools=("add",))
    assert session.entry_names == ["config", "user", "error", "run"]
    assert session.find_outcome(first)["error"] == {"type": error.type, "message": error.message, "retryable": False}
    second = session.ask("two")
    session.answer_preparation()
    assert session.entry_names == ["config", "user", "error", "run", "user", "config"]
    assert [tool["name"] for tool in session.thread[5].payload["tools"]] == ["add", "look"]
    assert session.call.at_seq == 5
    assert [tool["name"] for tool in session.build_context(session.call).tool_spec] == ["add", "look"]
    session.reply("fine")
    assert session.find_outcome(second)["status"] == "completed"
    session.ask("three")
    assert session.call.at_seq == 8


def test_a_model_that_comes_to_be_known_changes_no_configuration() -> None:
    """Only a fact that is new is committed: the tools were resolved the first time."""
    session = SessionHarness(prepare=False)
    session.answer_preparation(UNKNOWN)
    session.ask()
    session.answer_preparation()
    assert session.entry_names == ["config", "user"]
    assert session.call.at_seq == 1


def test_a_waiting_request_fails_with_the_answer_it_waited_for() -> None:
    """The worker has just been asked: it is not asked a second time for the same request."""
    session = SessionHarness()
    session.configure(tools=())
    request_id = session.ask()
    session.answer_preparation(UNKNOWN, tools=())
    assert session.entry_names == ["config", "config", "user", "error", "run"]
    assert session.find_outcome(request_id)["termination_reason"] == "unknown_model"
    assert session.effect is None
    assert session.state.phase == "idle"


def test_closing_an_idle_session_says_so_and_why() -> None:
    """The reason that the caller gave is in the thread."""
    session = SessionHarness()
    session.do(CloseInput(reason="the customer is happy"))
    assert session.entry_names == ["config", "session"]
    assert session.thread[1].payload == {"event": "closed", "reason": "the customer is happy"}
    assert session.state.closed


@pytest.mark.parametrize("phase", ["preparing", "awaiting_model", "awaiting_tools"])
def test_closing_cancels_what_runs(phase: str) -> None:
    """One outcome, `cancelled`; open tool calls are closed first."""
    session = SessionHarness(prepare=phase != "preparing")
    if phase == "preparing":
        session.answer_preparation(UNKNOWN)
    request_id = session.ask()
    if phase == "awaiting_tools":
        session.reply("", "add", "look")
    assert session.state.phase == phase
    session.close()
    expected = ["config", "user", *(["assistant", "tool", "tool"] if phase == "awaiting_tools" else []), "run"]
    assert session.entry_names == [*expected, "session"]
    assert session.effect is None
    outcome = session.find_outcome(request_id)
    assert (outcome["status"], outcome["termination_reason"]) == ("cancelled", "closed")
    assert_valid(build_context(session.thread).messages)


def test_a_session_that_was_never_prepared_closes_without_an_entry() -> None:
    """A thread begins with a `config` entry. A request that waits has its outcome all the same."""
    session = SessionHarness(prepare=False)
    session.close()
    assert (session.state.phase, session.entry_names) == ("closed", [])
    waited = SessionHarness(prepare=False)
    request_id = waited.ask("hello")
    waited.close()
    assert waited.entry_names == ["input", "run"]
    assert waited.find_ending(request_id) == ("cancelled", "closed")


@pytest.mark.parametrize("late", ["prepared", "reply", "results", "fail"])
def test_what_comes_after_the_close_changes_nothing(late: str) -> None:
    """An activity that was cancelled may still answer, or fail: the outcome is told already."""
    session = SessionHarness()
    session.ask()
    if late == "results":
        session.reply("", "add")
    session.close()
    before, facts = session.state, session.entry_names
    match late:
        case "prepared":
            session.answer_preparation(UNKNOWN, tools=())
        case "reply":
            session.reply("hi")
        case "results":
            session.answer_call("tool00001", "4")
        case _:
            session.fail()
    assert (session.state, session.entry_names, session.effect) == (before, facts, None)


def test_a_decision_is_a_value_of_what_it_was_given() -> None:
    """The same state and the same event give the same decision, and leave what they were given as it was."""
    session = SessionHarness()
    session.ask()
    arguments: dict[str, Any] = {"nested": {"list": [1]}}
    answer = make_reply(tool_calls=(RequestedTool(name="add", arguments=arguments), RequestedTool(name="fly")))
    state, now = session.state, session.now
    kept = copy.deepcopy((state, answer))
    first = runs.take_reply(state, now, answer)
    assert first == runs.take_reply(state, now, answer)
    assert (state, answer) == kept
    for value in (state, first, state.run, now):
        assert value is not None
        with pytest.raises(dataclasses.FrozenInstanceError):
            setattr(value, dataclasses.fields(value)[0].name, None)


def test_a_recovered_session_lives_with_all_that_ran_and_waited_ended() -> None:
    """One outcome for every request, `cancelled` and `recovered`; nothing waits, and a configuration is still due."""
    session = SessionHarness()
    running = session.ask()
    session.reply("", RequestedTool(name="add", arguments={"a": 1, "b": 2}))
    waiting = session.ask(on_busy="queue")
    session.steer("hurry")
    session.configure(system_prompt="Be brief.")
    session.apply(decisions.recover(session.state, session.now))
    for request_id in (running, waiting):
        assert session.find_ending(request_id) == ("cancelled", "recovered")
    assert {dropped["kind"] for dropped in session.events("dropped")} == {"steer", "message", "configure"}
    state = session.state
    assert (state.phase, state.run, state.queue, state.inbox, state.deferred.config) == ("idle", None, (), (), None)
    assert_valid(build_context(session.thread).messages)
    unprepared = SessionHarness(prepare=False)
    unprepared.apply(decisions.recover(unprepared.state, unprepared.now))
    assert unprepared.state.settings.due
    assert not unprepared.entry_names
