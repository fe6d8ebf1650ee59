"""The session's decisions, without a workflow: what follows from what is and what happened."""

from __future__ import annotations

import copy
import dataclasses
import re
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from clew.context import context_of
from clew.contract import ContextQuery, MessageInput, ModelOptions, SessionConfig, Usage
from clew.entries import Draft, Entry
from clew.errors import ClewError, InvalidInput, InvalidTokenBudget
from clew.messages import Message
from clew.policy import ContextPolicy
from clew.projection import Projection
from clew.thread import Thread
from clew.tokens import encoding
from workflows import decisions, views
from workflows.decisions import Decision
from workflows.effects import (
    AskedTool,
    CallModel,
    Effect,
    Failure,
    ModelAnswered,
    ModelReply,
    Prepare,
    Prepared,
    ResolvedTool,
    RunTools,
    ToolAnswered,
    ToolsAnswered,
)
from workflows.state import Moment

ID = re.compile(r"[A-Za-z0-9_-]{1,40}")
UNKNOWN = Failure(type="unknown_model", message="no such provider")


def resolved(name: str) -> ResolvedTool:
    spec: Any = {"name": name, "description": "", "parameters": {"type": "object", "properties": {}}}
    return ResolvedTool(spec=spec, timeout_seconds=60, max_attempts=1)


class Session:
    """A session on paper: it commits what is decided and remembers what is asked of the world."""

    def __init__(self, *, prepare: bool = True, tools: tuple[str, ...] = ("add", "look"), **config: Any) -> None:
        self.thread = Thread()
        self.time = 0.0
        self.tools = tools
        self.config = SessionConfig(**{"model": "openai:gpt-4o", "encoding": "heuristic", "tools": tools} | config)
        self.effect: Effect | None = None
        self.asked_for: list[Effect] = []
        self.apply(decisions.begin("s-1", self.config))
        if prepare:
            self.prepared()

    @property
    def now(self) -> Moment:
        return Moment(self.thread.rev, self.time)

    def apply(self, decision: Decision) -> None:
        self.state, self.effect = decision.state, decision.effect
        if decision.effect:
            self.asked_for.append(decision.effect)
        for draft in decision.commit:
            self.commit(draft)

    def commit(self, draft: Draft) -> None:
        payload, tokens = draft.counted(encoding(self.config.encoding))
        seq = self.thread.rev
        self.thread.append(
            Entry(seq, f"e-{seq}", draft.kind, "2026-01-01T00:00:00.000Z", payload, draft.refs, tokens)
        )

    def prepared(self, problem: Failure | None = None, tools: tuple[str, ...] | None = None) -> None:
        known = self.tools if tools is None else tools
        answer = Prepared(tools=tuple(resolved(name) for name in known), problem=problem)
        self.apply(decisions.happened(self.state, answer, self.now))

    def ask(self, content: str = "hello", request_id: str | None = None, **own: Any) -> str:
        request_id = request_id or f"request-{self.thread.rev}"
        request = decisions.request_of(self.state, MessageInput(content=content, **own), request_id)
        self.apply(decisions.accept(self.state, request, self.now))
        return request_id

    def reply(self, content: str = "", *tools: AskedTool | str, **reply: Any) -> None:
        calls = tuple(AskedTool(name=tool) if isinstance(tool, str) else tool for tool in tools)
        self.apply(decisions.happened(self.state, answered(content=content, tool_calls=calls, **reply), self.now))

    def results(self, *contents: str) -> None:
        answers = [ToolAnswered(content=content) for content in contents]
        self.apply(decisions.happened(self.state, ToolsAnswered(answers=tuple(answers)), self.now))

    def fail(self, error: str = "bad_request") -> None:
        self.apply(decisions.happened(self.state, Failure(type=error, message=f"it was {error}"), self.now))

    def close(self) -> None:
        self.apply(decisions.close(self.state, self.now))

    @property
    def facts(self) -> list[str]:
        """Each entry in a word: the role of a message, else its kind."""
        return [entry.payload.get("role", entry.kind) for entry in self.thread]

    @property
    def call(self) -> CallModel:
        assert isinstance(self.effect, CallModel)
        return self.effect

    @property
    def round(self) -> RunTools:
        assert isinstance(self.effect, RunTools)
        return self.effect

    def outcome(self, request_id: str) -> dict[str, Any]:
        outcome = views.outcome(self.thread, request_id)
        assert outcome is not None, f"{request_id} has no outcome"
        return outcome.model_dump()

    def shown(self, call: CallModel) -> Projection:
        """What the model is shown for a call."""
        return context_of(
            self.thread,
            context_ref=call.context_ref,
            at_seq=call.at_seq,
            policy=call.context_policy,
            model=call.model,
        )


def answered(**reply: Any) -> ModelAnswered:
    return ModelAnswered(reply=ModelReply(**reply), digest="d", policy_hash="p", input_tokens=7, attempt=1)


def assert_valid(messages: list[Message]) -> None:
    """No call goes unanswered and no result is without its call: every provider takes such a context."""
    awaited: set[str] = set()
    for message in messages:
        if message["role"] == "tool":
            assert message.get("tool_call_id") in awaited
            awaited -= {message.get("tool_call_id", "")}
        else:
            assert not awaited
            awaited = {call["id"] for call in message.get("tool_calls", [])}
            assert len(awaited) == len(message.get("tool_calls", []))
    assert not awaited


def test_a_session_begins_by_resolving_what_it_was_given() -> None:
    """Before anything else a worker is asked for the model and the tools; nothing is committed until then."""
    session = Session(prepare=False)
    assert session.effect == Prepare(model="openai:gpt-4o", tools=("add", "look"))
    assert session.state.phase == "preparing"
    assert session.facts == []


def test_the_configuration_is_the_first_fact_and_complete() -> None:
    """Seq 0 holds all that shapes a context, defaults included, so that no later default can change it."""
    session = Session(system_prompt="Be brief.", model_options=ModelOptions(seed=3))
    config = session.thread[0]
    assert config.kind == "config"
    assert [tool["name"] for tool in config.payload["tools"]] == ["add", "look"]
    assert config.payload["model_options"] == {"seed": 3}
    assert config.payload["context_policy"] == session.state.policy.model_dump(mode="json")
    assert set(config.payload) == {
        *("model", "model_options", "system_prompt", "context_policy", "tools", "encoding", "limits", "tokens")
    }
    assert session.state.phase == "idle"


@pytest.mark.parametrize(
    ("policy", "error"),
    [
        (ContextPolicy(max_input_tokens=10, reserve_output_tokens=10), InvalidTokenBudget),
        (ContextPolicy(reserve_output_tokens=-1), InvalidTokenBudget),
        (ContextPolicy(window="epoch"), InvalidInput),
        (ContextPolicy.model_validate({"clear_tool_results": {"keep": 1}}), InvalidInput),
        (ContextPolicy(projector="psychic"), InvalidInput),
    ],
)
def test_a_policy_that_cannot_be_used_is_refused_before_anything(
    policy: ContextPolicy, error: type[ClewError]
) -> None:
    """Neither a session nor a request begins under it, and a request refused leaves the session as it was."""
    with pytest.raises(error):
        decisions.begin("s-1", SessionConfig(model="openai:gpt-4o", context_policy=policy))
    session = Session()
    with pytest.raises(error):
        decisions.request_of(session.state, MessageInput(content="hello", context_policy=policy), "r")


def test_a_message_is_committed_before_a_model_is_called() -> None:
    """The call is pinned to the seq of the question, which is the last fact there is."""
    session = Session()
    request_id = session.ask("hello", metadata={"from": "a test"})
    assert session.facts == ["config", "user"]
    asked = session.thread[1]
    assert asked.payload["content"] == "hello"
    assert asked.payload["metadata"] == {"from": "a test"}
    assert asked.refs == {"session_id": "s-1", "request_id": request_id, "run_id": "run-1"}
    assert (session.call.at_seq, session.call.iteration, session.call.parent_call_id) == (1, 1, None)
    assert session.state.phase == "awaiting_model"
    assert session.state.request_id == request_id


def test_a_message_that_comes_before_the_session_is_prepared_waits() -> None:
    """It counts as running at once, and enters the thread behind the configuration."""
    session = Session(prepare=False)
    request_id = session.ask("early bird")
    assert session.state.request_id == request_id
    assert (session.facts, session.effect) == ([], None)
    session.prepared()
    assert session.facts == ["config", "user"]
    assert session.call.at_seq == 1
    session.reply("good morning")
    assert session.outcome(request_id)["answer_seq"] == 2


def test_a_final_answer_completes_the_run() -> None:
    """Answer, then outcome, with the usage of the whole run; the session is idle again."""
    session = Session()
    request_id = session.ask()
    session.reply("hi", usage=Usage(input_tokens=10, output_tokens=2))
    assert session.facts == ["config", "user", "assistant", "run"]
    assert session.effect is None
    assert session.state.phase == "idle"
    assert session.state.request_id is None
    outcome = session.outcome(request_id)
    assert (outcome["status"], outcome["termination_reason"]) == ("completed", "final_answer")
    assert (outcome["answer_seq"], outcome["last_seq"], outcome["iterations"]) == (2, 3, 1)
    assert outcome["usage"] == {"input_tokens": 10, "output_tokens": 2, "cached_input_tokens": 0, "model_calls": 1}


def test_a_reply_keeps_its_recipe() -> None:
    """The assistant's entry says what the model was shown, in terms of the thread, and whose call it answers."""
    session = Session()
    session.ask(context_policy=ContextPolicy(keep_last_turns=1), model_options=ModelOptions(temperature=0))
    session.reply("hi", thinking="hm", stop_reason="stop")
    entry = session.thread[2]
    recipe = entry.payload["recipe"]
    assert (recipe["context_ref"], recipe["basis_seq"], recipe["model"]) == ("default", 1, "openai:gpt-4o")
    assert recipe["context_policy"] == {"keep_last_turns": 1}
    assert (recipe["digest"], recipe["policy_hash"], recipe["input_tokens"], recipe["attempt"]) == ("d", "p", 7, 1)
    assert recipe["model_options"]["temperature"] == 0
    assert entry.payload["thinking"] == "hm"
    assert (entry.refs["call_id"], entry.refs["iteration"]) == ("call-1", 1)


def test_tools_of_one_round_run_together_and_are_committed_in_call_order() -> None:
    """One effect holds them all; the results follow the calls in their order, and the next call reads them."""
    session = Session()
    session.ask()
    first = AskedTool(name="look", arguments={"at": "sky"})
    session.reply("let me see", first, "add", "look")
    assert session.state.phase == "awaiting_tools"
    calls = [call for call, _ in session.round.calls]
    assert [(call.name, call.tool_call_id) for call in calls] == [
        ("look", "tool-1"),
        ("add", "tool-2"),
        ("look", "tool-3"),
    ]
    assert calls[0].arguments == {"at": "sky"}
    assert {call.max_result_bytes for call in calls} == {65536}
    session.results("blue", "4", "green")
    assert session.facts == ["config", "user", "assistant", "tool", "tool", "tool"]
    assert [session.thread[seq].payload["content"] for seq in (3, 4, 5)] == ["blue", "4", "green"]
    assert [session.thread[seq].refs["tool_call_id"] for seq in (3, 4, 5)] == ["tool-1", "tool-2", "tool-3"]
    assert (session.call.at_seq, session.call.iteration, session.call.parent_call_id) == (5, 2, "call-1")
    assert_valid(session.shown(session.call).messages)


def test_ids_are_unique_in_the_thread() -> None:
    """Providers repeat theirs; the session's own never repeat, over rounds and runs, and every provider takes one."""
    session = Session()
    for _ in range(3):
        session.ask()
        for _ in range(2):
            session.reply("", "add", "look")
            session.results("1", "2")
        session.reply("done")
    calls = [call["id"] for entry in session.thread for call in entry.payload.get("tool_calls", [])]
    assert len(calls) == 12
    assert len(set(calls)) == 12
    assert all(ID.fullmatch(call) for call in calls)
    call_ids = [effect.call_id for effect in session.asked_for if isinstance(effect, CallModel)]
    assert len(set(call_ids)) == len(call_ids) == 9
    assert len({entry.refs["run_id"] for entry in session.thread if "run_id" in entry.refs}) == 3


def test_an_unknown_tool_is_answered_beside_those_that_run() -> None:
    """Only what is known runs; the error stands at its place in the call order and names the tools there are."""
    session = Session()
    session.ask()
    session.reply("", "fly", "add")
    assert [call.tool_call_id for call, _ in session.round.calls] == ["tool-2"]
    session.results("4")
    unknown, known = session.thread[3].payload, session.thread[4].payload
    assert unknown["is_error"] is True
    assert unknown["content"] == "error: unknown tool 'fly'; the tools are: add, look"
    assert (known["content"], "is_error" in known) == ("4", False)


def test_where_nothing_can_be_run_the_model_is_called_again_at_once() -> None:
    """Malformed arguments and unknown tools cost no activity: their errors are committed with the reply."""
    session = Session(tools=())
    session.ask()
    session.reply("", "add")
    assert session.call.iteration == 2
    assert "there are no tools" in session.thread[3].payload["content"]
    session = Session()
    session.ask()
    session.reply("", AskedTool(name="add", malformed='{"a": ' + "9" * 5000))
    assert session.facts == ["config", "user", "assistant", "tool"]
    assert (session.call.at_seq, session.call.iteration) == (3, 2)
    result = session.thread[3].payload
    assert result["is_error"] is True
    assert result["content"].startswith('error: the arguments were not a JSON object: {"a": 9')
    assert len(result["content"]) < 1100
    assert session.thread[2].payload["tool_calls"][0]["arguments"] == {}


def test_at_max_iterations_the_run_completes_with_all_it_has() -> None:
    """Tools of the last call are not run; their calls are closed, and the text beside them is the answer."""
    session = Session(max_iterations=2)
    request_id = session.ask()
    session.reply("", "add")
    session.results("4")
    session.reply("so far: 4", "add", "fly")
    assert session.effect is None
    assert session.facts == ["config", "user", "assistant", "tool", "assistant", "tool", "tool", "run"]
    outcome = session.outcome(request_id)
    assert (outcome["status"], outcome["termination_reason"]) == ("completed", "max_iterations")
    assert (outcome["iterations"], outcome["answer_seq"]) == (2, 4)
    assert all("not run" in session.thread[seq].payload["content"] for seq in (5, 6))
    session.ask("go on")
    assert_valid(session.shown(session.call).messages)


def test_a_failure_is_a_fact_and_then_the_outcome() -> None:
    """Error, then run; what the user asked stays, and the next request is served."""
    session = Session()
    request_id = session.ask("do it")
    session.apply(
        decisions.fail(
            session.state,
            Failure(type="rate_limited", message="slow down", retryable=True, details={"status": 429}),
        )
    )
    assert session.facts == ["config", "user", "error", "run"]
    assert session.thread[2].payload == {
        "type": "rate_limited",
        "message": "slow down",
        "details": {"status": 429},
    }
    outcome = session.outcome(request_id)
    assert (outcome["status"], outcome["termination_reason"]) == ("failed", "rate_limited")
    assert outcome["error"] == {"type": "rate_limited", "message": "slow down", "retryable": True}
    session.ask("again")
    assert [message["content"] for message in session.shown(session.call).messages] == ["do it", "again"]


def test_a_failure_closes_the_calls_that_were_open() -> None:
    """A run that fails while its tools are out leaves a thread that every provider still takes."""
    session = Session()
    session.ask()
    session.reply("", "add", "look")
    session.fail("worker_lost")
    assert session.facts == ["config", "user", "assistant", "error", "tool", "tool", "run"]
    session.ask("go on")
    assert_valid(session.shown(session.call).messages)


def test_a_request_has_its_time() -> None:
    """What is left of the time is asked before every call: after it the run fails, with what it has committed."""
    session = Session(request_timeout_seconds=60)
    request_id = session.ask()
    session.time = 59.9
    session.reply("", "add")
    session.time = 60.0
    session.results("4")
    assert session.facts == ["config", "user", "assistant", "tool", "error", "run"]
    outcome = session.outcome(request_id)
    assert (outcome["status"], outcome["termination_reason"]) == ("failed", "timeout")
    assert outcome["error"]["message"] == "no answer within 60 seconds"
    assert outcome["error"]["retryable"] is True


def test_a_timeout_says_what_stood_in_its_way() -> None:
    """The last failure of the retries that used the time up is part of the message."""
    session = Session()
    session.ask(timeout_seconds=5)
    assert session.state.run is not None
    failure = decisions.timed_out(session.state.run, "overloaded: try later")
    assert failure.message == "no answer within 5 seconds; last: overloaded: try later"


def test_a_session_spends_no_more_tokens_than_its_limit() -> None:
    """The limit is over all runs; once it is met, requests fail before a model is called."""
    session = Session(limits={"max_total_tokens": 100})
    session.ask()
    session.reply("", "add", usage=Usage(input_tokens=90, output_tokens=9))
    session.results("4")
    session.reply("4", usage=Usage(input_tokens=1))
    request_id = session.ask("more")
    assert session.effect is None
    outcome = session.outcome(request_id)
    assert (outcome["status"], outcome["termination_reason"], outcome["iterations"]) == ("failed", "token_limit", 0)
    assert "100 tokens of the 100" in outcome["error"]["message"]


def test_an_answer_cut_by_its_limit_says_so() -> None:
    """`completed`, and the reason is `max_output_tokens`."""
    session = Session()
    request_id = session.ask()
    session.reply("once upon", stop_reason="length")
    assert session.outcome(request_id)["termination_reason"] == "max_output_tokens"


def test_tool_calls_of_a_cut_reply_still_run() -> None:
    """What arrived whole is run, what broke off is malformed and answered."""
    session = Session()
    session.ask()
    session.reply("", "add", AskedTool(name="look", malformed='{"at": "s'), stop_reason="length")
    assert [call.name for call, _ in session.round.calls] == ["add"]


def test_an_empty_reply_is_no_answer() -> None:
    """`answer_seq` names the newest reply that said something."""
    session = Session()
    request_id = session.ask()
    session.reply("thinking aloud", "add")
    session.results("4")
    session.reply("", "add")
    session.fail()
    assert session.outcome(request_id)["answer_seq"] == 2


@pytest.mark.parametrize(
    "error", [UNKNOWN, Failure(type="unknown_tool", message="no tool 'look'"), Failure(type="timeout", message="?")]
)
def test_what_the_worker_does_not_know_fails_the_request_and_is_asked_again(error: Failure) -> None:
    """The session lives; every later message asks the worker again, and is served once it knows."""
    session = Session(prepare=False)
    session.prepared(error, tools=("add",))
    assert (session.facts, session.state.phase, session.effect) == (["config"], "idle", None)
    first = session.ask("one")
    assert isinstance(session.effect, Prepare)
    assert session.state.phase == "preparing"
    session.prepared(error, tools=("add",))
    assert session.facts == ["config", "user", "error", "run"]
    assert session.outcome(first)["error"] == {"type": error.type, "message": error.message, "retryable": False}
    second = session.ask("two")
    session.prepared()
    assert session.facts == ["config", "user", "error", "run", "user", "config"]
    assert [tool["name"] for tool in session.thread[5].payload["tools"]] == ["add", "look"]
    assert session.call.at_seq == 5
    assert [tool["name"] for tool in session.shown(session.call).tool_spec] == ["add", "look"]
    session.reply("fine")
    assert session.outcome(second)["status"] == "completed"
    session.ask("three")
    assert session.call.at_seq == 8


def test_a_model_that_comes_to_be_known_changes_no_configuration() -> None:
    """Only a fact that is new is committed: the tools were resolved the first time."""
    session = Session(prepare=False)
    session.prepared(UNKNOWN)
    session.ask()
    session.prepared()
    assert session.facts == ["config", "user"]
    assert session.call.at_seq == 1


def test_a_waiting_request_fails_with_the_answer_it_waited_for() -> None:
    """The worker has just been asked: it is not asked a second time for the same request."""
    session = Session(prepare=False)
    request_id = session.ask()
    session.prepared(UNKNOWN)
    assert session.facts == ["config", "user", "error", "run"]
    assert session.outcome(request_id)["termination_reason"] == "unknown_model"
    assert session.effect is None
    assert session.state.phase == "idle"


def test_a_rejected_signal_is_a_fact_and_disturbs_nothing() -> None:
    """In every phase: what came is recorded, and what runs goes on."""
    session = Session()
    session.ask()
    before = session.state
    session.apply(decisions.reject(session.state, "s" * 500, "unknown signal", "what came"))
    assert session.state == before
    entry = session.thread[2]
    assert entry.kind == "input"
    assert entry.payload == {
        "event": "rejected",
        "kind": "s" * 200,
        "reason": "unknown signal",
        "content": "what came",
    }
    session.reply("fine")
    assert session.thread[3].payload["recipe"]["basis_seq"] == 1


def test_signals_rejected_before_the_session_is_prepared_come_after_its_configuration() -> None:
    """Seq 0 is the configuration, whatever came first."""
    session = Session(prepare=False)
    session.apply(decisions.reject(session.state, "a", "unknown", "1"))
    session.ask()
    session.apply(decisions.reject(session.state, "b", "unknown", "2"))
    session.prepared()
    assert session.facts == ["config", "input", "input", "user"]
    assert [session.thread[seq].payload["kind"] for seq in (1, 2)] == ["a", "b"]
    assert session.call.at_seq == 3


def test_closing_an_idle_session_commits_nothing() -> None:
    """There is nothing to tell."""
    session = Session()
    session.close()
    assert session.facts == ["config"]
    assert session.state.closed


def test_closing_before_the_session_is_prepared_leaves_every_fact() -> None:
    """Configuration, rejected signals, and the outcome of the request that never ran."""
    session = Session(prepare=False)
    session.apply(decisions.reject(session.state, "a", "unknown", "1"))
    request_id = session.ask("x" * 300)
    session.close()
    assert session.facts == ["config", "input", "input", "run"]
    assert session.thread[0].payload["tools"] == []
    dropped = session.thread[2].payload
    assert (dropped["event"], dropped["reason"], dropped["content"]) == ("dropped", "closed", "x" * 200)
    outcome = session.outcome(request_id)
    assert (outcome["status"], outcome["termination_reason"], outcome["iterations"]) == ("cancelled", "closed", 0)


@pytest.mark.parametrize("phase", ["preparing", "awaiting_model", "awaiting_tools"])
def test_closing_cancels_what_runs(phase: str) -> None:
    """One outcome, `cancelled`; open tool calls are closed first."""
    session = Session(prepare=phase != "preparing")
    if phase == "preparing":
        session.prepared(UNKNOWN)
    request_id = session.ask()
    if phase == "awaiting_tools":
        session.reply("", "add", "look")
    assert session.state.phase == phase
    session.close()
    expected = ["config", "user", *(["assistant", "tool", "tool"] if phase == "awaiting_tools" else []), "run"]
    assert session.facts == expected
    assert session.effect is None
    outcome = session.outcome(request_id)
    assert (outcome["status"], outcome["termination_reason"]) == ("cancelled", "closed")
    assert_valid(context_of(session.thread).messages)


@pytest.mark.parametrize("late", ["prepared", "reply", "results", "fail"])
def test_what_comes_after_the_close_changes_nothing(late: str) -> None:
    """An activity that was cancelled may still answer, or fail: the outcome is told already."""
    session = Session()
    session.ask()
    if late == "results":
        session.reply("", "add")
    session.close()
    before, facts = session.state, session.facts
    match late:
        case "prepared":
            session.prepared(UNKNOWN, tools=())
        case "reply":
            session.reply("hi")
        case "results":
            session.results("4")
        case _:
            session.fail()
    assert (session.state, session.facts, session.effect) == (before, facts, None)


def test_a_request_may_bring_settings_of_its_own() -> None:
    """Model, options, iterations, time and policy are the request's where it names them, and no one else's."""
    session = Session(
        model_options=ModelOptions(temperature=1, seed=1), max_iterations=3, request_timeout_seconds=100
    )
    session.ask(
        model="anthropic:claude-sonnet-4-5",
        model_options=ModelOptions(temperature=0),
        max_iterations=1,
        timeout_seconds=7,
    )
    call = session.call
    assert call.model == "anthropic:claude-sonnet-4-5"
    assert (call.options.temperature, call.options.seed) == (0, 1)
    assert session.state.run is not None
    assert session.state.run.deadline == 7
    session.reply("", "add")
    assert session.thread[-1 + session.thread.rev].payload["termination_reason"] == "max_iterations"
    session.ask("plain")
    assert session.call.model == "openai:gpt-4o"
    assert (session.call.options.temperature, session.call.context_policy) == (1, None)
    assert session.state.run.deadline == 100


def test_max_output_tokens_is_always_set() -> None:
    """By the request, the session, or what the policy in force reserves for the output."""
    policy = ContextPolicy(reserve_output_tokens=1000)
    session = Session(context_policy=policy)
    session.ask()
    assert session.call.options.max_output_tokens == 1000
    session.reply("hi")
    session.ask(context_policy=ContextPolicy(reserve_output_tokens=500))
    assert session.call.options.max_output_tokens == 500
    session.reply("hi")
    session.ask(context_policy=ContextPolicy(reserve_output_tokens=0))
    assert session.call.options.max_output_tokens == decisions.DEFAULT_OUTPUT_TOKENS
    session.reply("hi")
    session.ask(model_options=ModelOptions(max_output_tokens=9))
    assert session.call.options.max_output_tokens == 9


def test_a_request_with_another_model_gets_the_policy_for_that_model() -> None:
    """Where the agent has chosen none: the window of the session's model says nothing about another's."""
    session = Session(model="openai:gpt-4o")
    session.ask(model="local:smollm2", context_policy=ContextPolicy(keep_last_turns=1))
    policy = session.call.context_policy
    assert policy is not None
    assert (policy.max_input_tokens, policy.keep_last_turns) == (8192, 1)
    assert session.shown(session.call).meta.policy_hash == policy.hash


def test_a_policy_that_the_agent_chose_holds_for_every_model() -> None:
    """Only the request's own policy stands above it: a request's model says nothing about it."""
    session = Session(context_policy=ContextPolicy(max_input_tokens=3000, include_kinds=("message",)))
    session.ask(model="openai:gpt-4.1")
    assert session.call.context_policy is None
    assert session.shown(session.call).meta.policy_hash == session.state.policy.hash


def test_the_policy_of_a_request_overlays_the_sessions_field_by_field() -> None:
    """What the request does not name stays as the session has it."""
    session = Session(context_policy=ContextPolicy(max_input_tokens=3000, keep_last_turns=7))
    session.ask(context_policy=ContextPolicy(keep_last_turns=1))
    expected = session.state.policy.model_copy(update={"keep_last_turns": 1})
    assert session.shown(session.call).meta.policy_hash == expected.hash


def test_a_decision_is_a_value_of_what_it_was_given() -> None:
    """The same state and the same event give the same decision, and leave what they were given as it was."""
    session = Session()
    session.ask()
    arguments: dict[str, Any] = {"nested": {"list": [1]}}
    answer = answered(tool_calls=(AskedTool(name="add", arguments=arguments), AskedTool(name="fly")))
    state, now = session.state, session.now
    kept = copy.deepcopy((state, answer))
    first = decisions.model_answered(state, answer, now)
    assert first == decisions.model_answered(state, answer, now)
    assert (state, answer) == kept
    for value in (state, first, state.run, now):
        assert value is not None
        with pytest.raises(dataclasses.FrozenInstanceError):
            setattr(value, dataclasses.fields(value)[0].name, None)


class AnySession(RuleBasedStateMachine):
    """A session in a world that does whatever it may."""

    @initialize(
        prepare=st.booleans(),
        max_iterations=st.integers(1, 4),
        limit=st.sampled_from([None, None, 200]),
        prompt=st.sampled_from([None, "Be brief."]),
    )
    def start(self, prepare: bool, max_iterations: int, limit: int | None, prompt: str | None) -> None:
        self.session = Session(
            prepare=prepare,
            max_iterations=max_iterations,
            request_timeout_seconds=100,
            system_prompt=prompt,
            limits={"max_total_tokens": limit},
        )
        self.requests: list[str] = []
        self.shown: dict[str, Projection] = {}
        # A `Prepare` that nobody has answered yet outlives the decisions made meanwhile.
        self.pending: Effect | None = self.session.asked_for[-1] if not prepare else None
        self.check()

    def check(self) -> None:
        """What is asked of the world can be done: a call's context is one that every provider takes."""
        session = self.session
        self.pending = session.effect or self.pending
        if session.state.closed or (session.state.run is None and session.state.tools is not None):
            self.pending = None
        if isinstance(session.effect, CallModel):
            call = session.effect
            try:
                shown = session.shown(call)
            except ClewError:
                session.fail("context_overflow")
                self.check()
                return
            assert_valid(shown.messages)
            assert session.thread[call.at_seq].seq == session.thread.last_seq
            self.shown[call.call_id] = shown

    def do(self, decision: Decision) -> None:
        kept = self.pending
        self.session.apply(decision)
        if self.session.effect is None and self.session.state.phase == "preparing":
            self.pending = kept
        self.check()

    @precondition(lambda self: not self.session.state.closed and self.session.state.request_id is None)
    @rule(
        content=st.text(min_size=1, max_size=50),
        policy=st.sampled_from(
            [
                None,
                None,
                ContextPolicy(keep_last_turns=0),
                ContextPolicy(max_messages=1),
                ContextPolicy(include_kinds=("message",)),
                ContextPolicy(max_input_tokens=120, reserve_output_tokens=40),
            ]
        ),
        model=st.sampled_from([None, "local:smollm2"]),
        iterations=st.sampled_from([None, 1, 2]),
    )
    def ask(self, content: str, policy: ContextPolicy | None, model: str | None, iterations: int | None) -> None:
        request_id = f"r-{len(self.requests)}"
        self.requests.append(request_id)
        kept = self.pending
        self.session.ask(content, request_id, context_policy=policy, model=model, max_iterations=iterations)
        self.pending = kept
        self.check()

    @precondition(lambda self: not self.session.state.closed)
    @rule()
    def reject_a_signal(self) -> None:
        state = self.session.state
        effect = self.session.effect
        kept = self.pending
        self.session.apply(decisions.reject(state, "nonsense", "unknown signal", "?"))
        self.session.effect, self.pending = effect, kept

    @precondition(lambda self: isinstance(self.pending, Prepare))
    @rule(problem=st.sampled_from([None, None, UNKNOWN]), tools=st.sampled_from([("add",), ("add", "look"), ()]))
    def prepare(self, problem: Failure | None, tools: tuple[str, ...]) -> None:
        self.pending = None
        self.session.prepared(problem, tools)
        self.check()

    @precondition(lambda self: isinstance(self.pending, CallModel))
    @rule(
        content=st.sampled_from(["", "well", "a longer answer " * 20]),
        tools=st.lists(
            st.sampled_from([AskedTool(name="add"), AskedTool(name="fly"), AskedTool(name="add", malformed="{")]),
            max_size=4,
        ),
        reason=st.sampled_from(["stop", "length"]),
    )
    def reply(self, content: str, tools: list[AskedTool], reason: str) -> None:
        if not content and not tools:
            content = "."
        self.pending = None
        self.session.reply(content, *tools, stop_reason=reason, usage=Usage(input_tokens=3, output_tokens=1))
        self.check()

    @precondition(lambda self: isinstance(self.pending, RunTools))
    @rule(data=st.data())
    def run_tools(self, data: st.DataObject) -> None:
        assert isinstance(self.pending, RunTools)
        contents = [data.draw(st.text(max_size=20)) for _ in self.pending.calls]
        self.pending = None
        self.session.results(*contents)
        self.check()

    @precondition(lambda self: self.session.state.run is not None)
    @rule(error=st.sampled_from(["timeout", "bad_request", "worker_lost"]))
    def fail(self, error: str) -> None:
        if isinstance(self.pending, Prepare):
            return
        self.pending = None
        self.session.fail(error)
        self.check()

    @rule(seconds=st.sampled_from([1, 60]))
    def wait(self, seconds: int) -> None:
        self.session.time += seconds

    @precondition(lambda self: len(self.requests) > 2)
    @rule()
    def close(self) -> None:
        late, was_closed = self.pending, self.session.state.closed
        self.session.close()
        self.pending = None
        if late and not was_closed:
            facts = self.session.facts
            self.session.prepared()
            self.session.reply("late")
            self.session.fail()
            assert self.session.facts == facts

    @invariant()
    def every_request_has_one_outcome_or_is_being_served(self) -> None:
        session = self.session
        ended = [entry.refs["request_id"] for entry in session.thread if entry.kind == "run"]
        open_requests = [session.state.request_id] if session.state.request_id else []
        assert ended + open_requests == self.requests
        for request_id in ended:
            outcome = session.outcome(request_id)
            if (answer := outcome["answer_seq"]) is not None:
                assert session.thread[answer].payload["content"]
                assert session.thread[answer].refs["request_id"] == request_id

    @invariant()
    def the_thread_is_whole(self) -> None:
        thread = self.session.thread
        assert [entry.seq for entry in thread] == list(range(thread.rev))
        assert all((entry.kind == "config") or entry.seq > 0 for entry in thread)
        calls = [call["id"] for entry in thread for call in entry.payload.get("tool_calls", [])]
        assert len(set(calls)) == len(calls)
        results = [entry.refs["tool_call_id"] for entry in thread if entry.payload.get("role") == "tool"]
        assert len(set(results)) == len(results)
        answered_calls = set(calls) if self.session.state.run is None else set(calls) & set(results)
        assert answered_calls == set(results)
        for entry in thread:
            assert entry.refs["session_id"] == "s-1"
            for name in ("request_id", "run_id", "tool_call_id"):
                assert entry.payload.get(name) in (None, entry.refs.get(name))
            assert ("call_id" in entry.refs) == ("iteration" in entry.refs)

    @invariant()
    def every_call_can_be_shown_again(self) -> None:
        session = self.session
        for entry in session.thread:
            if entry.payload.get("role") == "assistant":
                shown = self.shown[entry.refs["call_id"]]
                again = views.projection(session.state, session.thread, ContextQuery(call_id=entry.refs["call_id"]))
                assert again == shown
                assert entry.payload["recipe"]["basis_seq"] == shown.meta.basis_last_seq < entry.seq


TestAnySession = AnySession.TestCase
TestAnySession.settings = settings(
    max_examples=40, stateful_step_count=30, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
