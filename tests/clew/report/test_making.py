"""The report of a session, as values."""

from __future__ import annotations

import json
from typing import Any

import pytest

from clew.report import Report, make_report
from clew.report.conversation import MAX_CHARACTERS, MAX_TEXT_CHARACTERS
from clew.report.report_types import EventItem, MessageItem, Text
from clew_workflows.contract.policy import ContextPolicy
from clew_workflows.thread.thread import Thread
from tests.support.recorded import RecordedSession
from tests.support.threads import (
    OTHER_PAYLOADS,
    Writer,
    assistant_calls,
    assistant_says,
    rebuild,
    tool_returns,
    user_says,
)

NOW = "2026-01-02T00:00:00.000Z"


def report(thread: Thread, **options: Any) -> Report:
    return make_report(thread, made_at=NOW, **options)


def finish(writer: Writer, run: str, status: str = "completed") -> None:
    """End a run."""
    payload = OTHER_PAYLOADS["run"] | {"status": status}
    writer.commit("run", payload, run_id=run, request_id=f"request-{run}", session_id="s-1")


@pytest.fixture(scope="module")
def session() -> RecordedSession:
    """A session with a summary, a second lane, a fork, a subagent and a failed request."""
    session = RecordedSession(ContextPolicy(), metadata={"title": "Refunds", "user": "ada"})
    writer = session.writer
    session.turns(2)
    finish(writer, "run-0")
    finish(writer, "run-1", "failed")
    usage = {"input_tokens": 50, "output_tokens": 5, "cost_usd": 0.5}
    summary = {"context_ref": "default", "from_seq": 0, "to_seq": 4, "content": "They talked.", "format": "text"}
    writer.commit("summary", summary | {"model": "openai:small", "usage": usage}, summary_id="summary-1")
    writer.switch("draft")
    writer.message(user_says("research it"), lane="draft", run="run-9")
    session.call(assistant_calls("sub-1", name="researcher"), lane="draft", run="run-9")
    child = {"session_id": "s-1.sub-1", "agent": "researcher", "usage": {"input_tokens": 7, "output_tokens": 3}}
    result = {"context_ref": "draft", **tool_returns("sub-1", "three", "researcher"), "subagent": child}
    writer.commit("ai_message", result, run_id="run-9")
    writer.commit("fork", OTHER_PAYLOADS["fork"])
    return session


def test_the_numbers(session: RecordedSession) -> None:
    """Sums over all model calls, those of summaries included; calls without a price are counted."""
    made = report(session.thread)
    assert made.requests == {"completed": 1, "failed": 1}
    assert (made.usage.model_calls, made.usage.input_tokens, made.usage.cost_usd) == (6, 550, 0.5)
    assert (made.unpriced_calls, made.tool_calls, made.entries) == (5, 3, len(session.thread))
    assert made.subagent_usage is not None
    assert made.subagent_usage.input_tokens == 7
    assert (made.title.content, made.session_id, made.status) == ("Refunds", "s-1", "failed")
    assert [call.call_id for call in made.calls if call.is_summary] == ["summary-1"]
    assert {call.seconds for call in made.calls if not call.is_summary} == {1.0}


def test_lanes_runs_and_operations(session: RecordedSession) -> None:
    """The timeline has the stretches of the active lane, every run and every operation."""
    timeline = report(session.thread).timeline
    assert timeline.lanes == ("default", "draft")
    switched = timeline.active[1].first_seq
    assert [(stretch.lane, stretch.first_seq) for stretch in timeline.active] == [("default", 0), ("draft", switched)]
    assert [(run.run_id, run.status) for run in timeline.runs] == [
        ("run-0", "completed"),
        ("run-1", "failed"),
        ("run-9", None),
    ]
    assert [operation.kind for operation in timeline.operations] == ["configuration", "summary", "switch", "fork"]


def test_forks_and_subagents(session: RecordedSession) -> None:
    """Each relative has its relation, and a subagent what its task came to."""
    subagent, fork = report(session.thread).relatives
    assert (subagent.relation, subagent.agent, subagent.status) == ("subagent", "researcher", "completed")
    assert (fork.relation, fork.session_id, fork.fork_seq) == ("forked_to", "s-2", 3)


def test_a_tool_call_has_its_result(session: RecordedSession) -> None:
    """Results stand with their calls; one whose call is not shown stands alone."""
    items = report(session.thread).items
    tools = [tool for item in items if isinstance(item, MessageItem) for tool in item.tools]
    assert [tool.name for tool in tools] == ["calculator", "calculator", "researcher"]
    assert tools[-1].result is not None
    assert (tools[-1].result.content, tools[-1].subagent, tools[-1].seconds) == ("three", "s-1.sub-1", 1.0)
    alone = report(session.thread, from_seq=3, limit=1).items
    assert [item.result_of for item in alone if isinstance(item, MessageItem)] == ["tool00001"]


def test_a_late_result_replaces_the_one_in_doubt() -> None:
    """The call has the late result, and its subagent is counted once."""
    session = RecordedSession(ContextPolicy())
    writer = session.writer
    writer.message(user_says("go"), run="run-1")
    session.call(assistant_calls("t", name="researcher"))
    child = {"session_id": "s-1.t", "agent": "researcher", "usage": {"input_tokens": 7}}
    for content, mark in (("not known", "in_doubt"), ("three", "late")):
        result = {"context_ref": "default", **tool_returns("t", content, "researcher"), "subagent": child}
        writer.commit("ai_message", result | {mark: True}, run_id="run-1")
    made = report(writer.thread)
    assert made.subagent_usage is not None
    assert made.subagent_usage.input_tokens == 7
    assert [relative.status for relative in made.relatives] == ["completed"]
    (tool,) = [tool for item in made.items if isinstance(item, MessageItem) for tool in item.tools]
    assert tool.result is not None
    assert (tool.result.content, tool.late, tool.in_doubt, tool.result_seq) == ("three", True, False, 4)


def test_the_shown_entries(session: RecordedSession) -> None:
    """By default the newest are shown; numbers include all entries, windows only those shown."""
    thread = session.thread
    newest = report(thread, limit=4)
    assert (newest.first_shown, newest.last_shown) == (thread.rev - 4, thread.last_seq)
    assert newest.usage == report(thread).usage
    assert [call.call_id for call in newest.calls if call.window] == ["call-5"]
    first = report(thread, from_seq=0, limit=3)
    assert [item.seq for item in first.items] == [0, 1, 2]
    beyond = report(thread, from_seq=10_000)
    assert (beyond.items, beyond.entries) == ((), thread.rev)


def test_long_texts_are_cut_and_say_so() -> None:
    """A text has a limit, and all texts together; the newest have priority."""
    writer = Writer()
    long = MAX_TEXT_CHARACTERS + 5
    for _ in range(MAX_CHARACTERS // MAX_TEXT_CHARACTERS + 2):
        writer.message(user_says("x" * long), run="run-1")
    items = [item for item in report(writer.thread).items if isinstance(item, MessageItem)]
    assert (len(items[-1].text.content), items[-1].text.left_out) == (MAX_TEXT_CHARACTERS, 5)
    assert (items[0].text.content, items[0].text.left_out) == ("", long)
    assert sum(len(item.text.content) for item in items) <= MAX_CHARACTERS


def test_a_report_without_texts() -> None:
    """No word of the conversation is in it; names, numbers and times are."""
    secret = "secret"
    session = RecordedSession(ContextPolicy(), system_prompt=secret, metadata={"user": secret})
    writer = session.writer
    writer.message(user_says(secret), run="run-1")
    calls: Any = assistant_calls("t-1")
    calls["tool_calls"][0]["arguments"] = {secret: secret}
    calls["thinking"] = secret
    session.call(calls)
    writer.commit("approval", {"tool_call_id": "t-1", "decision": "approve", "reason": secret})
    writer.message(tool_returns("t-1", secret), run="run-1", edited_arguments={secret: secret})
    session.call(assistant_says(secret))
    writer.commit("error", {"type": "timeout", "message": secret, "details": {}})
    writer.commit("input", {"event": "rejected", "kind": "steer", "reason": f"not {secret}", "content": secret})
    writer.commit("session", {"event": "closed", "reason": secret})
    writer.summary(2, secret)
    writer.replace([user_says(secret)], system_prompt=secret)
    made = report(writer.thread, with_texts=False)
    assert secret not in json.dumps(made.as_dict())
    assert "calculator" in json.dumps(made.as_dict())


@pytest.mark.parametrize(
    ("event", "status"), [("closed", "closed"), ("hibernated", "hibernated"), ("woken", "working")]
)
def test_the_status_is_that_of_the_last_entry(event: str, status: str) -> None:
    """A request without an outcome is at work, unless the session ended after it."""
    writer = Writer()
    writer.commit("ai_message", {"context_ref": "default", **user_says("hi"), "request_id": "r"}, run_id="run-1")
    writer.commit("session", {"event": event})
    assert report(writer.thread).status == status


def test_the_title_is_the_first_words_of_the_first_message() -> None:
    """Without a title in the metadata; an empty title does not count."""
    writer = Writer()
    writer.message(user_says("Where  is my\norder? " + "Tell me. " * 20))
    assert report(writer.thread).title.content == f"Where is my order? {'Tell me. ' * 6}Tell…"
    writer.config(metadata={"title": ""})
    assert report(writer.thread).title.content == ""


def test_it_is_the_same_from_an_export(session: RecordedSession) -> None:
    """Entries that were read from JSON give the same report; no entries give an empty one."""
    assert report(rebuild(session.thread)) == report(session.thread)
    empty = report(Thread())
    assert (empty.entries, empty.items, empty.status, empty.model) == (0, (), "idle", None)


def test_other_entries_are_events() -> None:
    """Each kind of entry that is no message is an event of the conversation."""
    writer = Writer()
    for kind, payload in OTHER_PAYLOADS.items():
        writer.commit(kind, payload, request_id="r")
    items = report(writer.thread).items
    assert [item.kind for item in items if isinstance(item, EventItem)] == [
        "error",
        "outcome",
        "input",
        "approval",
        "fork",
        "hibernated",
    ]


def test_an_interrupted_reply_is_marked() -> None:
    """It is part of the conversation, and its estimated usage is counted as such."""
    session = RecordedSession(ContextPolicy())
    session.writer.message(user_says("tell me"), run="run-1")
    cut: Any = {**assistant_says("Once upon"), "interrupted": True}
    session.call(cut, stop_reason="interrupted", usage={"input_tokens": 9, "output_tokens": 2, "estimated_calls": 1})
    made = report(session.thread)
    assert [item.interrupted for item in made.items if isinstance(item, MessageItem)] == [False, True]
    assert made.usage.estimated_calls == 1


def test_failures_are_listed() -> None:
    """Failed requests, tool calls and errors, each once. A denied call is not one, and a late result ends a doubt."""
    session = RecordedSession(ContextPolicy())
    writer, error = session.writer, {"type": "rate_limited", "message": "too many requests"}
    writer.message(user_says("go"), run="run-1")
    for call, mark in (("bad", {"is_error": True}), ("lost", {"in_doubt": True}), ("denied", {"is_error": True})):
        session.call(assistant_calls(call), run="run-1")
        if call == "denied":
            writer.commit("approval", {"tool_call_id": call, "decision": "deny", "reason": "no"})
        writer.commit("ai_message", {"context_ref": "default", **tool_returns(call, "x" * 1000)} | mark)
    session.call(assistant_calls("late"), run="run-1")
    for mark in ({"in_doubt": True}, {"late": True}):
        writer.commit("ai_message", {"context_ref": "default", **tool_returns("late", "three")} | mark)
    writer.commit("error", {"type": "provider_unavailable", "message": "no", "details": {}}, run_id="run-1")
    writer.commit("error", {**error, "details": {}}, run_id="run-1")
    failed = OTHER_PAYLOADS["run"] | {"status": "failed", "termination_reason": "rate_limited", "error": error}
    writer.commit("run", failed, run_id="run-1", request_id="r-1")
    failures = report(writer.thread).failures
    assert [(failure.kind, failure.in_doubt) for failure in failures] == [
        *(("tool_call", False), ("tool_call", True), ("error", False), ("request", False))
    ]
    assert [failure.title for failure in failures[2:]] == ["provider_unavailable", "rate_limited"]
    assert failures[0].text is not None
    assert (len(failures[0].text.content), failures[0].text.left_out) == (300, 700)
    without = report(writer.thread, with_texts=False).failures[-1].text
    assert without is not None
    assert without.content == ""


def test_a_reply_has_its_sources_and_what_its_provider_ran() -> None:
    """Each page once with all its quotes; the call has what its provider received."""
    page, other = "https://a.example", "https://b.example"
    citations = [
        {"url": page, "quote": "one"}, {"url": other, "title": "B"}, {"url": page, "title": "A", "quote": "two"},
        {"url": page, "quote": "one"},
    ]  # fmt: skip
    failed = {"tool": "web_fetch", "input": other, "error": "not found"}
    search = {"tool": "web_search", "input": "tea", "sources": [{"url": page}], "output": "text"}
    session = RecordedSession(ContextPolicy())
    session.writer.message(user_says("Where?"))
    reply: Any = {
        "role": "assistant",
        "content": "There.",
        "citations": citations,
        "provider_calls": [search, failed],
    }
    sent = {"digest": "5d41", "encoder": "openai-chat/1", "dialect": "openai"}
    session.call(reply, request=sent, provider_tools=["web_search"])
    made = report(session.thread)
    item = made.items[-1]
    assert isinstance(item, MessageItem)
    listed = [
        (one.url.content, one.title and one.title.content, [q.content for q in one.quotes]) for one in item.sources
    ]
    assert listed == [(page, "A", ["one", "two"]), (other, "B", [])]
    found, missing = item.provider_calls
    assert (found.name, found.input, found.output, len(found.pages)) == (
        "web_search",
        Text(content="tea"),
        Text(content="text"),
        1,
    )
    assert (missing.error, missing.pages) == (Text(content="not found"), ())
    (call,) = made.calls
    assert (call.provider_tools, call.request_digest) == (("web_search",), "5d41")
    assert (call.encoder, call.dialect) == ("openai-chat/1", "openai")
    bare = report(session.thread, with_texts=False).items[-1].model_dump_json()
    assert not any(text in bare for text in (page, "tea", "one", "not found"))
