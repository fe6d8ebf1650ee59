"""Subagents: calls that start sessions, their shares of the limits, the requests' clocks, and the results."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from clew.contract import SubagentResultInput, Task, ToolResultInput
from clew.contract.limits import MAX_SUBAGENT_DEPTH
from clew.errors import Busy, UnknownToolCall
from clew_workflows.contract.names import make_child_id
from clew_workflows.contract.outcomes import Usage
from clew_workflows.protocol import ArchiveRef, Failure, RequestedTool
from clew_workflows.session import decisions, outside, runs, subagents, views
from clew_workflows.session.state import Child, Decision
from tests.support.session_harness import SessionHarness, carry_over
from tests.support.threads import assert_valid

TOOLS = ("add", "order_outside", "look_agent", "ask_agent")
SPENT = Usage(input_tokens=30, output_tokens=10, cost_usd=0.5, model_calls=2)
TASK = Task(
    content="find it",
    request_id="task",
    session_id="boss",
    tool_call_id="tool00007",
    depth=1,
    timeout_seconds=60,
    max_result_bytes=256,
)


def waiting(*tools: RequestedTool | str, started: bool = True, **config: Any) -> SessionHarness:
    """A session whose model has called tools. Its children are started unless `started` is false."""
    session = SessionHarness(tools=TOOLS, **config)
    session.ask(request_id="r")
    session.reply("", *tools, usage=Usage(input_tokens=100, output_tokens=20, cost_usd=1.0))
    if started:
        for child in session.state.children:
            session.apply(subagents.mark_started(session.state, child))
    return session


def report(session: SessionHarness, tool_call_id: str, content: str = "done", **fields: Any) -> None:
    values: dict[str, Any] = {
        "status": "completed",
        "reason": "final_answer",
        "usage": SPENT,
        "worked_seconds": 0.0,
    } | fields
    session_id = values.pop("session_id", f"s-1.{tool_call_id}")
    session.do(SubagentResultInput(tool_call_id=tool_call_id, session_id=session_id, content=content, **values))


def read_results(session: SessionHarness) -> dict[str, str]:
    tools = [entry.payload for entry in session.thread if entry.payload.get("role") == "tool"]
    return {tool["tool_call_id"]: tool["content"] for tool in tools}


def list_steps(session: SessionHarness) -> dict[str, str]:
    return {child.tool_call_id: child.step for child in session.state.children}


def start(session: SessionHarness, child: Child) -> Task:
    """Return the task with which a child starts."""
    argument = subagents.make_start(session.state, child, session.now)
    assert argument
    assert argument.task
    return argument.task


def test_a_call_waits_for_its_subagent() -> None:
    """The status names the subagent's session. Its answer is the result; its usage counts beside the session's."""
    session = waiting("look_agent")
    assert (session.state.phase, session.effect) == ("awaiting_external", None)
    status = views.answer_status(session.state, session.thread)
    assert status["subagents"] == [
        {"tool_call_id": "tool00001", "agent": "look", "session_id": "s-1.tool00001", "status": "working"}
    ]
    assert status["pending_external_calls"] == []
    report(session, "tool00001", "it is here")
    assert read_results(session) == {"tool00001": "it is here"}
    assert session.thread[3].payload["subagent"]["session_id"] == "s-1.tool00001"
    assert session.thread[3].payload["subagent"]["usage"]["input_tokens"] == 30
    assert session.call.iteration == 2
    session.reply("thanks")
    outcome = session.find_outcome("r")
    assert (outcome["usage"]["input_tokens"], outcome["subagent_usage"]["input_tokens"]) == (100, 30)
    assert session.state.spent.subagents == SPENT
    assert session.state.children == ()


def test_a_child_starts_with_the_task_and_what_its_parent_has_left() -> None:
    """The agent, the metadata, the time that is left, and the depth."""
    task = RequestedTool(name="look_agent", arguments={"task": "find it"})
    session = waiting(task, started=False, request_timeout_seconds=100, metadata={"a": "b"})
    session.time = 0.0
    (child,) = session.state.children
    argument = subagents.make_start(session.state, child, session.now)
    assert argument
    assert argument.config.model_dump(exclude_unset=True) == {"agent": "look", "metadata": {"a": "b"}}
    assert argument.task == Task(
        content="find it",
        request_id="task",
        session_id="s-1",
        tool_call_id="tool00001",
        depth=1,
        timeout_seconds=100,
        max_result_bytes=session.state.settings.config.limits.max_tool_result_bytes,
    )


def test_the_ids_of_children_are_session_ids() -> None:
    """Also below a session whose id is as long as it may be."""
    assert make_child_id("s-1", "tool00001") == "s-1.tool00001"
    long = make_child_id("s" * 200, "tool1000000000000000")
    assert len(long) <= 200
    assert long != make_child_id("s" * 199, "tool1000000000000000")


@pytest.mark.parametrize(
    ("status", "reason", "content", "text"),
    [
        ("completed", "max_iterations", "", "[the subagent ended without a text (max_iterations)]"),
        ("failed", "timeout", "no answer within 3 seconds", "error: the subagent failed: timeout"),
        ("failed", "token_limit", "9 tokens are used", "error: the subagent failed: token_limit: 9 tokens are used"),
        ("cancelled", "cancelled", "", "error: the subagent was cancelled: cancelled"),
    ],
)
def test_a_task_without_an_answer_is_an_error_that_the_model_reads(
    status: str, reason: str, content: str, text: str
) -> None:
    """With the reason. What else is wrong with the operator's setup is the operator's to read."""
    session = waiting("look_agent")
    report(session, "tool00001", content, status=status, reason=reason)
    assert read_results(session)["tool00001"] == text
    problems = [e.payload.get("problem") for e in session.thread if e.payload.get("role") == "tool"]
    assert problems == [content if reason == "timeout" else None]
    assert session.thread[3].payload.get("is_error", False) is (status != "completed")


def test_a_result_is_taken_once_and_only_from_the_child() -> None:
    """A repetition leaves no entry; a result of another session is refused."""
    session = waiting("look_agent", "look_agent")
    with pytest.raises(UnknownToolCall):
        report(session, "tool00001", session_id="s-2.tool00001")
    with pytest.raises(UnknownToolCall):
        report(session, "tool00001", session_id="s-1.tool00002")
    report(session, "tool00001")
    rev = session.thread.rev
    report(session, "tool00001", "again")
    assert session.thread.rev == rev
    assert session.state.spent.subagents == SPENT


def test_limits_are_shared_by_the_tree() -> None:
    """Each child of a round gets an equal part of what is left; it is reserved until the child has reported."""
    limits = {"max_total_tokens": 1001, "max_cost_usd": 3.0}
    session = waiting("look_agent", "look_agent", "add", limits=limits)
    assert [(child.max_total_tokens, child.max_cost_usd) for child in session.state.children] == [(440, 1.0)] * 2
    session.answer_call("tool00003", "3")
    report(session, "tool00001")
    report(session, "tool00002")
    session.reply("", "look_agent", usage=Usage(input_tokens=60, output_tokens=20, cost_usd=0.25))
    assert [(child.max_total_tokens, child.max_cost_usd) for child in session.state.children] == [(721, 0.75)]


def test_what_works_children_have_reserved_is_not_granted_again() -> None:
    """A call that nothing is left for is an error, with the word of the limit."""
    session = waiting("look_agent", limits={"max_total_tokens": 1000})
    session.cancel()
    assert list_steps(session) == {"tool00001": "cancel"}
    session.ask(request_id="r-2")
    session.reply("", "look_agent")
    assert read_results(session)["tool00002"].startswith("error: token_limit")
    assert session.call.iteration == 2
    assert_valid(session.build_context(session.call).messages)


def test_a_subagents_usage_counts_to_the_limits_of_its_parent() -> None:
    """The request fails with the word of the limit."""
    session = waiting("look_agent", limits={"max_total_tokens": 150})
    report(session, "tool00001")
    assert session.find_ending("r") == ("failed", "token_limit")


def test_a_subagent_has_the_lower_of_its_own_limits_and_its_grant() -> None:
    """Of tokens, cost and time. A `configure` does not raise the grant."""
    task = TASK.model_copy(update={"max_total_tokens": 100, "max_cost_usd": 1.0})
    session = SessionHarness(task=task, limits={"max_total_tokens": 1000}, request_timeout_seconds=900)
    assert session.state.run
    assert session.state.run.request.timeout_seconds == 60
    assert session.call.priced
    session.reply("", "add", usage=Usage(input_tokens=90, output_tokens=10, cost_usd=0.5))
    session.answer_calls("1")
    assert session.find_ending("task") == ("failed", "token_limit")


@pytest.mark.parametrize(("worked", "deadline"), [(0.0, 150.0), (20.0, 130.0), (50.0, 100.0), (70.0, 100.0)])
def test_working_time_counts_once_and_waiting_time_never(worked: float, deadline: float) -> None:
    """While only subagents are open the clock stands still; then the longest work of one of them counts."""
    session = waiting("look_agent", "look_agent", request_timeout_seconds=100)
    session.time = 50
    report(session, "tool00001", worked_seconds=worked)
    report(session, "tool00002", worked_seconds=worked / 2)
    assert session.state.run
    assert session.state.run.clock.deadline == deadline


def test_the_work_of_a_subagent_counts_in_its_round_alone() -> None:
    """It worked while the clock ran. A later wait for a person does not count at all."""
    session = waiting("look_agent", "add", request_timeout_seconds=100)
    report(session, "tool00001", worked_seconds=20.0)
    session.answer_call("tool00002", "3")
    session.reply("", "order_outside")
    session.time = 30
    session.do(_submit("tool00003"))
    assert session.state.run
    assert session.state.run.clock.deadline == 130.0


def test_a_subagent_reports_how_long_it_has_worked() -> None:
    """Without the time in which its own clock stood still."""
    session = SessionHarness(task=TASK, tools=TOOLS)
    session.time = 5
    session.reply("", "order_outside")
    session.time = 500
    session.do(_submit("tool00001"))
    session.time = 510
    session.reply("found")
    result = subagents.find_task_result(session.state, session.thread)
    assert result
    assert (result.content, result.worked_seconds, result.session_id) == ("found", 15.0, "s-1")


def _submit(tool_call_id: str) -> ToolResultInput:
    return ToolResultInput(tool_call_id=tool_call_id, content="ok")


def test_a_subagent_reports_once_and_is_over() -> None:
    """Its status names its parent. It does not hibernate before, and one that is opened again stays open."""
    session = SessionHarness(task=TASK)
    status = views.answer_status(session.state, session.thread)
    assert status["parent"] == {"session_id": "boss", "tool_call_id": "tool00007", "depth": 1}
    assert subagents.find_task_result(session.state, session.thread) is None
    session.reply("é" * 300)
    result = subagents.find_task_result(session.state, session.thread)
    assert result
    assert len(result.content.encode()) <= 256
    assert "session s-1 has all of it" in result.content
    archived = replace(session.state, archive=ArchiveRef(execution="x", family="s-1"))
    with pytest.raises(Busy):
        decisions.hibernate(archived, None)
    assert not subagents.is_task_over(session.state)
    session.apply(subagents.note_reported(session.state))
    assert subagents.find_task_result(session.state, session.thread) is None
    assert subagents.is_task_over(session.state)
    session.close()
    again = carry_over(session)
    assert again.state.phase == "idle"
    assert not subagents.is_task_over(again.state)


def test_a_subagent_with_other_work_stays_until_that_is_over() -> None:
    """It has reported; a message that a person sent is answered first."""
    session = SessionHarness(task=TASK)
    session.ask(request_id="mine", on_busy="queue")
    session.reply("found")
    session.apply(subagents.note_reported(session.state))
    assert not subagents.is_task_over(session.state)
    session.reply("and this")
    assert subagents.is_task_over(session.state)


@pytest.mark.parametrize("ending", ["cancel", "close", "interrupt", "recover", "fail"])
def test_the_end_of_the_run_ends_its_subagents(ending: str) -> None:
    """Those that work are to be cancelled; those that were not started never are. A late result leaves no entry."""
    session = waiting("look_agent", "look_agent", started=False)
    session.apply(subagents.mark_started(session.state, session.state.children[0]))
    match ending:
        case "cancel":
            session.cancel()
        case "close":
            session.close()
        case "interrupt":
            session.ask("now", on_busy="interrupt")
        case "recover":
            session.apply(decisions.recover(session.state, session.now))
        case _:
            session.apply(runs.fail_run(session.state, session.now, Failure(type="x", message="y")))
    assert list_steps(session) == {"tool00001": "cancel"}
    payloads = [entry.payload for entry in session.thread if entry.payload.get("role") == "tool"]
    assert payloads[0]["content"].startswith("[not answered")
    assert payloads[0]["subagent"] == {"session_id": "s-1.tool00001", "agent": "look"}
    assert "subagent" not in payloads[1]
    session.apply(subagents.mark_cancelled(session.state, session.state.children[0]))
    if ending != "close":
        rev = session.thread.rev
        report(session, "tool00001", status="cancelled", reason="cancelled")
        assert session.thread.rev == rev
        assert (session.state.children, session.state.spent.subagents) == ((), SPENT)


def test_a_session_hibernates_when_its_subagents_have_been_cancelled() -> None:
    """Not before. It waits for no report, and one that comes meanwhile is ignored."""
    session = waiting("look_agent")
    session.cancel()
    session.state = replace(session.state, archive=ArchiveRef(execution="x", family="s-1"))
    with pytest.raises(Busy):
        decisions.hibernate(session.state, None)
    session.apply(subagents.mark_cancelled(session.state, session.state.children[0]))
    session.apply(decisions.hibernate(session.state, None))
    assert session.state.children == ()
    rev = session.thread.rev
    report(session, "tool00001", status="cancelled")
    assert (session.thread.rev, session.state.spent.subagents) == (rev, Usage())


def test_a_session_that_is_opened_again_has_forgotten_its_cancelled_subagents() -> None:
    """They report to the workflow run that has cancelled them, or to none."""
    session = waiting("look_agent")
    session.close()
    session.apply(subagents.mark_cancelled(session.state, session.state.children[0]))
    assert carry_over(session).state.children == ()


def test_a_call_that_ends_without_its_subagent_cancels_it() -> None:
    """At the timeout of the tool, and when an operator answers instead."""
    session = waiting("look_agent", "look_agent")
    session.do(_submit("tool00001"))
    assert list_steps(session) == {"tool00001": "cancel", "tool00002": "working"}
    session.time = 60
    session.apply(outside.expire_calls(session.state, session.now).then(runs.proceed, session.now))
    assert list_steps(session) == {"tool00001": "cancel", "tool00002": "cancel"}
    assert "timed out" in read_results(session)["tool00002"]
    assert session.call.iteration == 2


def test_a_child_that_fails_as_a_workflow_is_an_error_that_the_model_reads() -> None:
    """Once: after a result it is nothing."""
    session = waiting("look_agent")
    (child,) = session.state.children
    failed = subagents.take_failure(session.state, child, "it was terminated")
    session.apply(failed.then(runs.proceed, session.now))
    assert read_results(session) == {"tool00001": "error: the subagent gave no result"}
    rev = session.thread.rev
    failed = subagents.take_failure(session.state, child, "it was terminated")
    session.apply(failed.then(runs.proceed, session.now))
    assert session.thread.rev == rev


def test_subagents_have_a_greatest_depth() -> None:
    """A session at that depth gets an error instead."""
    task = TASK.model_copy(update={"depth": MAX_SUBAGENT_DEPTH})
    session = SessionHarness(task=task, tools=TOOLS)
    session.reply("", "look_agent")
    assert "depth 5" in read_results(session)["tool00001"]
    assert session.state.children == ()
    above = SessionHarness(task=TASK.model_copy(update={"depth": MAX_SUBAGENT_DEPTH - 1}), tools=TOOLS)
    above.reply("", RequestedTool(name="look_agent", arguments={"task": "x"}))
    assert start(above, above.state.children[0]).depth == MAX_SUBAGENT_DEPTH


def test_a_call_that_waits_for_approval_keeps_its_share() -> None:
    """A subagent that begins before it leaves it as much as it has itself. A denied call starts none."""
    session = waiting("ask_agent", "look_agent", "ask_agent", started=False, limits={"max_total_tokens": 1000})
    assert list_steps(session) == {"tool00002": "start"}
    session.approve("tool00001")
    first, second = session.state.children
    assert first.max_total_tokens == second.max_total_tokens
    session.approve("tool00003", decision="deny")
    assert list_steps(session) == {"tool00002": "start", "tool00001": "start"}


def test_children_survive_a_rollover() -> None:
    """With what is reserved for them, and with starts and cancellations that are due."""
    session = waiting("look_agent", "look_agent", started=False, limits={"max_total_tokens": 1000})
    session.apply(subagents.mark_started(session.state, session.state.children[0]))
    resumed = carry_over(session)
    assert resumed.state.children == session.state.children
    session.state, session.thread = resumed.state, resumed.thread
    report(session, "tool00001")
    assert json.loads(json.dumps(list_steps(session))) == {"tool00002": "start"}
    assert start(session, session.state.children[0]).max_total_tokens == 440


def test_a_child_that_fails_after_its_parent_was_closed_changes_nothing() -> None:
    """The parent cancels its children when it is closed, and has no call that waits."""
    session = waiting("look_agent")
    (child,) = session.state.children
    session.close()
    (cancelled,) = session.state.children
    assert subagents.take_failure(session.state, cancelled, "it could not start") == Decision(session.state)
    answered = waiting("look_agent", "add")
    report(answered, "tool00001")
    assert subagents.take_failure(answered.state, child, "it is gone") == Decision(answered.state)
