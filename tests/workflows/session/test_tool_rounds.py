"""Tool calls: what the thread says of each is what happened to it, its arguments, and results of remote calls."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel
from pydantic_core import to_json

from clew import tool
from clew.contract import HibernateInput, LateResultInput
from clew.errors import Busy
from clew_workflows.contract.content import get_text
from clew_workflows.contract.messages import ToolSpec
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
from clew_workflows.session import advance, decisions, tool_rounds
from clew_workflows.session.carried import carry, restore
from clew_workflows.session.state import RequestedCall
from clew_workflows.session.tool_rounds import (
    MAX_DETACHED_CALLS,
    MAX_PATTERNS,
    check_arguments,
    find_argument_problem,
    read_remote_result,
)
from clew_workflows.thread.context.contexts import build_context
from clew_workflows.thread.entries import Entry
from tests.support.images import PARTS, PNG
from tests.support.session_harness import SessionHarness, make_reply, make_tool
from tests.support.threads import assert_valid

# Tool calls: what the thread says of each is what happened to it.


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


@pytest.mark.parametrize(
    ("idempotent", "failure", "content"),
    [
        (True, "tool_failed", "error: tool_failed: no funds"),
        (True, "internal", "error: internal"),
        (True, "worker_lost", "interrupted (worker_lost): this call may have run"),
        (False, "tool_failed", "in doubt (tool_failed): it is not known whether this call took effect"),
    ],
)
def test_only_an_idempotent_call_may_fail_without_a_doubt(idempotent: bool, failure: str, content: str) -> None:
    """The model reads the words of a tool that has failed, and of other failures the type alone."""
    session = begin_round(idempotent)
    session.answer_call("tool00002", failure=Failure(type=failure, message="no funds"))
    assert list_results(session)[1].startswith(content)
    assert ("no funds" in list_results(session)[1]) == ("no funds" in content)


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


# Arguments against a tool's parameters in workflow code: what is wrong with them, within milliseconds.


class Sum(BaseModel):
    """One of two alternatives that no field tells apart."""

    left: Sum | Product | int
    right: Sum | Product | int


class Product(BaseModel):
    """The other one."""

    left: Sum | Product | int
    right: Sum | Product | int


@tool
def compute(term: Sum, unit: str, digits: int = 2) -> None:
    """Compute a term."""


def term(depth: int, innermost: Any) -> dict[str, Any]:
    value = {"left": innermost, "right": 1}
    for _ in range(depth):
        value = {"left": value, "right": 1}
    return value


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        ({"term": term(3, 1), "unit": "m"}, None),
        ({"term": term(3, 1)}, "unit: it is missing"),
        ({"term": term(3, 1), "unit": 1}, 'unit: it is not of the form {"type":"string"}'),
        ({"term": term(3, "x"), "unit": "m"}, 'term: it is not of the form {"$ref":"#/$defs/Sum"}'),
        ({"term": term(3, 1), "unit": "m", "digit": 1}, "digit: the tool has no such argument"),
        ({"term": term(60, 1), "unit": "m"}, "validating them takes over 100000 steps"),
        ({"term": term(190, "x"), "unit": "m"}, "validating them takes over 100000 steps"),
    ],
)
def test_the_problem_is_told_by_its_argument(arguments: dict[str, Any], problem: str | None) -> None:
    begun = time.process_time()
    found = find_argument_problem(arguments, compute.spec["parameters"])
    assert found is None if problem is None else (found or "").startswith(problem)
    assert time.process_time() - begun < 10


def test_the_largest_term_that_is_taken_costs_milliseconds() -> None:
    """Also when it is wrong in its innermost part, where a list of all errors would have a hundred thousand."""
    depth = 0
    begun = time.process_time()
    while "takes over" not in (
        find_argument_problem({"term": term(depth, "x"), "unit": "m"}, compute.spec["parameters"]) or ""
    ):
        depth += 1
    assert 10 < depth < 30
    assert time.process_time() - begun < 10


def test_a_schema_that_cannot_be_used_is_a_problem() -> None:
    assert "is not supported" in (find_argument_problem({}, {"$dynamicRef": "#"}) or "")
    assert "regex" in (find_argument_problem({"a": "b"}, {"properties": {"a": {"pattern": "("}}}) or "")


@pytest.mark.parametrize(
    ("schema", "problem"),
    [
        ({"properties": {str(n): {"pattern": r"\p{L}{1,20}"} for n in range(MAX_PATTERNS)}}, None),
        ({"properties": {str(n): {"pattern": "a"} for n in range(MAX_PATTERNS + 1)}}, "101 patterns, at most 100"),
        ({"anyOf": [{"patternProperties": {f"a{n}": {} for n in range(60)}}] * 2}, "120 patterns, at most 100"),
        ({"properties": {"a": {"pattern": r"\p{L}{1,200}"}}}, "not valid, or too large"),
    ],
)
def test_patterns_are_compiled_within_the_time_of_a_workflow_task(
    schema: dict[str, Any], problem: str | None
) -> None:
    """There are a hundred of a megabyte at most."""
    begun = time.process_time()
    found = find_argument_problem({"a": "b"}, schema)
    assert found is None if problem is None else problem in (found or "")
    assert time.process_time() - begun < 2


def test_the_calls_of_a_round_share_the_steps() -> None:
    """However many calls a reply has, their validation together takes no more steps than that of one may take."""
    schema = {"type": "object", "properties": {"x": {"type": "array", "items": {"type": "integer"}}}}
    arguments = {"x": list(range(2000))}
    spec: ToolSpec = {"name": "look", "description": "", "parameters": schema}
    large = RequestedTool(name="look", arguments=arguments)
    assert check_arguments([large], [spec])[0].problem is None
    small, *rest = check_arguments([RequestedTool(name="look", arguments={"x": [1]}), *[large] * 63], [spec])
    assert small.problem is None
    assert all("over 1562 steps" in str(call.problem) for call in rest)


def test_a_schema_that_is_none_is_a_problem() -> None:
    """A worker refuses it at its start; a session that meets one all the same goes on."""
    assert "thing" in str(find_argument_problem({}, {"type": "thing"}))


# Results of remote calls: every payload becomes a text that the model reads.


LIMIT = 256


@given(st.sampled_from(["json/plain", "json/protobuf", "binary/null", "binary/plain", "", "é"]), st.binary())
def test_no_payload_is_too_odd(encoding: str, data: bytes) -> None:
    """The answer is short enough, and can be written."""
    answer = read_remote_result(encoding, data, LIMIT)
    assert len(answer.text.encode()) <= LIMIT or answer.is_error


@given(st.text(alphabet=st.characters(exclude_categories=["Cs"])))
def test_a_string_is_the_text_itself(text: str) -> None:
    """Without quotes, as the result of a Python function is."""
    answer = read_remote_result("json/plain", to_json(text), 10_000)
    assert (answer.content, answer.is_error) == (text, False)


def test_other_values_are_their_json() -> None:
    """As the worker has written it."""
    assert read_remote_result("json/plain", b'{"a": [1.50, null]}', LIMIT).content == '{"a": [1.50, null]}'
    assert read_remote_result("json/protobuf", b'{"a":1}', LIMIT).content == '{"a":1}'
    assert read_remote_result("binary/null", b"", LIMIT).content == "null"


def test_a_result_over_the_limit_is_truncated() -> None:
    """The mark names the size of all of it."""
    content = read_remote_result("json/plain", b'"' + b"x" * 300 + b'"', LIMIT).text
    assert content.endswith("x\n[truncated: the first 186 of 300 bytes are shown]")
    assert len(read_remote_result("json/plain", b'"' + b"x" * LIMIT + b'"', LIMIT).content) == LIMIT


@pytest.mark.parametrize("form", PARTS)
def test_an_image_is_described(form: str) -> None:
    """The model reads what was left out, as of the result of a Python function."""
    content = read_remote_result("json/plain", to_json(PARTS[form]), 100_000).content
    assert f"{len(PNG)} bytes: left out" in content
    assert len(content) < 300


@pytest.mark.parametrize("odd", [7, None, "text", {"type": "video"}, {"type": "image", "blob": {}}, {"type": "text"}])
def test_a_part_that_cannot_be_used_costs_no_other(odd: object) -> None:
    """It is a text, and the image beside it stays an image."""
    image = {"type": "image", "url": "https://h.example/a.png"}
    answer = read_remote_result("json/plain", to_json([{"type": "text", "text": "look"}, odd, image]), 10_000)
    assert not isinstance(answer.content, str)
    assert [part["type"] for part in answer.content] == ["text", "text", "image"]
    assert answer.content[0] == {"type": "text", "text": "look"}


def test_a_call_is_started_once() -> None:
    """Also if the round's effect is carried out again, in the next workflow run."""
    session = SessionHarness()
    session.dispatching = False
    session.ask()
    session.reply("", "add", "look")
    effect = session.round
    assert tool_rounds.list_starting(session.state, effect) == effect.calls
    session.apply(tool_rounds.mark_scheduled(session.state, effect))
    assert tool_rounds.list_starting(session.state, effect) == ()
