"""What a session answers to queries: pages under 1 MB that together are everything, each thing once."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from pydantic_core import to_json

from clew.contract import ContextQuery, EntriesQuery, FollowQuery, PendingMessage, TranscriptQuery, WindowQuery
from clew.contract.limits import MAX_MESSAGE_BYTES
from clew.contract.payloads import OperationPayload
from clew.errors import InvalidInput, InvalidTokenBudget
from clew_activities.model.reply_in_progress import MAX_REPLY_BYTES
from clew_workflows.contract.messages import compute_digest
from clew_workflows.contract.outcomes import Usage
from clew_workflows.contract.outputs import Context, SessionStatus, Window
from clew_workflows.contract.policy import ContextPolicy
from clew_workflows.protocol import RequestedTool
from clew_workflows.session import decisions, drafts, requests, views
from clew_workflows.session.state import Learned
from clew_workflows.thread.context.contexts import take_page
from clew_workflows.thread.entries import Draft
from tests.support.examples import mark_slow_except
from tests.support.session_harness import SessionHarness

MB = 1_000_000
WIDE = ContextPolicy(max_input_tokens=100_000_000, reserve_output_tokens=0, keep_last_turns=100)

# What a payload of 256 KiB can hold, from plain to what takes most room as JSON.
CONTENTS = {
    "plain": "x" * (MAX_MESSAGE_BYTES - 100),
    "emoji": "\U0001f43b" * ((MAX_MESSAGE_BYTES - 100) // 4),
    "quotes": '"' * ((MAX_MESSAGE_BYTES - 100) // 2),
    "control characters": "\x01" * ((MAX_MESSAGE_BYTES - 100) // 6),
}
# A tool's result is capped in UTF-8, and may be six times that as JSON.
ESCAPING = "\x01" * 65_536


def open_chat(*turns: tuple[str, str], **config: Any) -> SessionHarness:
    """A session with some turns behind it."""
    settings: dict[str, Any] = {"context_policy": WIDE} | config
    session = SessionHarness(**settings)
    for question, answer in turns:
        session.ask(question)
        session.reply(answer)
    return session


def open_session_with_tools() -> SessionHarness:
    """Two runs, of which the first used tools."""
    session = SessionHarness(system_prompt="Be brief.")
    session.ask("what is 2 + 2?", request_id="r-1")
    session.reply("let me see", RequestedTool(name="add", arguments={"a": 2}), "look", usage=Usage(input_tokens=5))
    session.answer_calls("4", "clear")
    session.reply("it is 4", thinking="easy")
    session.ask("thanks", request_id="r-2")
    session.reply("you are welcome")
    return session


def walk(ask: Callable[[int], dict[str, Any]], rows: str, first: int = 0) -> list[dict[str, Any]]:
    """All rows of all pages, each page being small enough."""
    found: list[dict[str, Any]] = []
    start: int | None = first
    while start is not None:
        page = ask(start)
        assert len(to_json(page)) < MB
        assert page[rows]
        found += page[rows]
        next_start = page.get("next_seq", page.get("next_page"))
        assert next_start is None or next_start > start
        start = next_start
    return found


def read_all_entries(session: SessionHarness, **asked: Any) -> list[dict[str, Any]]:
    return walk(lambda seq: views.answer_entries(session.thread, EntriesQuery(from_seq=seq, **asked)), "entries")


def read_all_messages(session: SessionHarness, **asked: Any) -> list[dict[str, Any]]:
    def page(seq: int) -> dict[str, Any]:
        return views.answer_transcript(session.state, session.thread, TranscriptQuery(from_seq=seq, **asked))

    return walk(page, "messages")


def read_whole_context(session: SessionHarness, **asked: Any) -> dict[str, Any]:
    whole = views.build_projection(session.state, session.thread, ContextQuery(**asked))
    messages = walk(lambda page: take_page(whole, page), "messages")
    first = take_page(whole, 0)
    return {"messages": messages, "tool_spec": first["tool_spec"], "meta": first["meta"]}


@pytest.mark.parametrize("content", CONTENTS.values(), ids=CONTENTS.keys())
def test_pages_of_the_largest_messages_hold_everything_once(content: str) -> None:
    """Entries, transcript and context, whatever the characters weigh as JSON."""
    session = open_chat(*[(content, content)] * 4, system_prompt="\x01" * 65_536)
    assert read_all_entries(session) == [entry.as_dict() for entry in session.thread]
    said = read_all_messages(session, include_system=True)
    assert [message["seq"] for message in said] == [0, *(e.seq for e in session.thread if e.kind == "ai_message")]
    context = read_whole_context(session)
    assert [message["content"] for message in context["messages"][1:]] == [content] * 8
    Context.model_validate(context)


def test_pages_of_the_largest_tool_results_hold_everything_once() -> None:
    """Eight at their cap, of characters that JSON escapes sixfold."""
    session = open_chat()
    session.ask("go")
    session.reply("", *["look"] * 8)
    session.answer_calls(*[ESCAPING] * 8)
    session.reply("done")
    assert len(read_all_entries(session)) == session.thread.rev
    assert len(read_all_messages(session)) == 11
    context = read_whole_context(session)
    sent = {"messages": context["messages"], "tool_spec": context["tool_spec"], "output_schema": None}
    assert compute_digest(sent) == context["meta"]["digest"]


def test_the_largest_reply_with_the_largest_policy_is_one_page() -> None:
    """An entry cannot be divided: a reply at its cap, and beside it the policy that the request brought."""
    session = SessionHarness()
    session.ask(context_policy=ContextPolicy(system_prompt="\x01" * 40_000))
    session.reply("\x01" * (MAX_REPLY_BYTES // 6 - 100))
    assert len(read_all_entries(session, kind="ai_message")) == 2
    assert len(to_json(views.answer_entries(session.thread, EntriesQuery(from_seq=2)))) < MB


def test_the_tool_schemas_are_on_the_first_page_alone() -> None:
    """And count towards its size."""
    session = open_chat(*[(CONTENTS["plain"], "ok")] * 4)
    whole = views.build_projection(session.state, session.thread, ContextQuery())
    first = take_page(whole, 0)
    assert [tool["name"] for tool in first["tool_spec"]] == ["add", "look"]
    second = take_page(whole, first["next_page"])
    assert second["tool_spec"] == []
    assert second["meta"] == first["meta"]


@pytest.mark.parametrize("page", [3, 4, 10**6, 2**63, 2**200])
def test_a_page_behind_the_last_is_empty(page: int) -> None:
    """Never an error, however far."""
    session = open_chat(("a", "b"))
    whole = views.build_projection(session.state, session.thread, ContextQuery(page=page))
    answer = take_page(whole, page)
    assert (answer["messages"], "next_page" in answer) == ([], False)


@pytest.mark.parametrize("seq", [3 + 1, 10**6, 2**63, 2**200])
def test_what_lies_behind_the_end_is_empty(seq: int) -> None:
    """Never an error, however far."""
    session = open_chat(("a", "b"))
    assert views.answer_entries(session.thread, EntriesQuery(from_seq=seq)) == {"entries": []}
    assert views.answer_transcript(session.state, session.thread, TranscriptQuery(from_seq=seq)) == {"messages": []}
    at_seq = views.build_projection(session.state, session.thread, ContextQuery(at_seq=seq))
    assert at_seq.meta.basis_last_seq == session.thread.last_seq


@pytest.mark.parametrize("limit", [1, 2, 3, 100, 2**70])
def test_a_limit_bounds_a_page_and_the_next_one_goes_on(limit: int) -> None:
    """Of entries; of messages a limit selects the newest, beside the system prompt."""
    session = open_session_with_tools()
    assert read_all_entries(session, limit=limit) == [entry.as_dict() for entry in session.thread]
    first = views.answer_entries(session.thread, EntriesQuery(limit=limit))
    assert len(first["entries"]) == min(limit, session.thread.rev)
    assert ("next_seq" in first) == (limit < session.thread.rev)
    said = read_all_messages(session)
    newest = views.answer_transcript(session.state, session.thread, TranscriptQuery(limit=limit))
    assert newest == {"messages": said[-limit:]}
    page = views.answer_transcript(session.state, session.thread, TranscriptQuery(limit=limit, include_system=True))
    assert page["messages"][0]["role"] == "system"
    assert page["messages"][1:] == said[-limit:]


@pytest.mark.parametrize(
    ("asked", "seqs"),
    [
        ({}, list(range(10))),
        ({"kind": "ai_message"}, [1, 2, 3, 4, 5, 7, 8]),
        ({"kind": "run"}, [6, 9]),
        ({"kind": "nothing"}, []),
        ({"request_id": "r-1"}, [1, 2, 3, 4, 5, 6]),
        ({"request_id": "r-1", "kind": "run"}, [6]),
        ({"run_id": "run-2"}, [7, 8, 9]),
        ({"call_id": "call-1"}, [1, 2, 3, 4]),
        ({"tool_call_id": "tool00002"}, [4]),
        ({"tool_call_id": "tool00002", "request_id": "r-2"}, []),
        ({"parent_call_id": "call-1"}, [5]),
        ({"iteration": 1}, [2, 3, 4, 8]),
        ({"iteration": 2, "call_id": "call-1"}, []),
        ({"source": "ci"}, []),
        ({"context_ref": "default", "from_seq": 5}, [5, 7, 8]),
        ({"context_ref": "draft"}, []),
        ({"from_seq": 8, "limit": 1}, [8]),
    ],
)
def test_entries_meet_every_filter(asked: dict[str, Any], seqs: list[int]) -> None:
    """In order; `next_seq` only where more meet them."""
    session = open_session_with_tools()
    assert session.entry_names == [
        *("config", "user", "assistant", "tool", "tool", "assistant", "run", "user", "assistant", "run")
    ]
    answer = views.answer_entries(session.thread, EntriesQuery(**asked))
    assert [entry["seq"] for entry in answer["entries"]] == seqs
    assert answer.get("next_seq") == (9 if "limit" in asked else None)


def test_entries_are_found_by_who_said_so() -> None:
    """An input's source is a ref: the one it named, or what kind of input it is."""
    session = SessionHarness()
    session.ask()
    session.steer("a", source="ci")
    session.steer("b")
    session.reply("done")
    for source, content in (("ci", "a"), ("steer", "b")):
        (found,) = read_all_entries(session, source=source)
        assert found["payload"]["content"] == content


def test_a_page_has_as_many_rows_as_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    """Small rows count with what stands between them."""
    monkeypatch.setattr(views, "MAX_PAGE_BYTES", 20_000)
    session = SessionHarness()
    for _ in range(200):
        session.apply(decisions.reject(session.state, "x", "unknown", ""))
    page = views.answer_entries(session.thread, EntriesQuery())
    size, following = len(to_json(page["entries"])), session.thread[page["next_seq"]].as_dict()
    assert size <= 20_000 <= size + len(to_json(following)) + 1


def test_a_viewer_gets_the_new_entries_and_then_the_status() -> None:
    """Without a seq it gets the status alone, which has the seq to go on from. A page before the last has none."""
    session = open_session_with_tools()
    seqs_and_revs = []
    for from_seq in (None, 8, 10):
        page = views.answer_follow(session.state, session.thread, FollowQuery(from_seq=from_seq))
        seqs_and_revs.append(([entry["seq"] for entry in page["entries"]], page["status"]["rev"]))
    assert seqs_and_revs == [([], 10), ([8, 9], 10), ([], 10)]
    session = open_chat(*[(CONTENTS["plain"], "ok")] * 4)
    first = views.answer_follow(session.state, session.thread, FollowQuery(from_seq=0))
    assert "status" not in first
    assert "status" in views.answer_follow(session.state, session.thread, FollowQuery(from_seq=first["next_seq"]))


def test_a_transcript_is_what_was_said() -> None:
    """Each message with its seq; the system prompt only where it is wanted, and on the first page."""
    session = open_session_with_tools()
    said = read_all_messages(session)
    assert [(message["seq"], message["role"], message["content"]) for message in said] == [
        (1, "user", "what is 2 + 2?"),
        (2, "assistant", "let me see"),
        (3, "tool", "4"),
        (4, "tool", "clear"),
        (5, "assistant", "it is 4"),
        (7, "user", "thanks"),
        (8, "assistant", "you are welcome"),
    ]
    assert said[1]["tool_calls"][0] == {"id": "tool00001", "name": "add", "arguments": {"a": 2}}
    assert (said[2]["tool_call_id"], said[2]["name"]) == ("tool00001", "add")
    with_system = read_all_messages(session, include_system=True)
    assert with_system == [{"role": "system", "content": "Be brief.", "seq": 0}, *said]
    later = TranscriptQuery(from_seq=5, include_system=True)
    assert [m["seq"] for m in views.answer_transcript(session.state, session.thread, later)["messages"]] == [5, 7, 8]
    assert views.answer_transcript(session.state, session.thread, TranscriptQuery(context_ref="draft")) == {
        "messages": []
    }


def test_before_it_is_prepared_a_session_answers_empty_lists() -> None:
    """Never an error."""
    session = SessionHarness(prepare=False)
    session.ask("hello", request_id="r")
    assert views.answer_entries(session.thread, EntriesQuery()) == {"entries": []}
    assert views.answer_transcript(session.state, session.thread, TranscriptQuery(include_system=True)) == {
        "messages": []
    }
    context = take_page(views.build_projection(session.state, session.thread, ContextQuery()), 0)
    assert (context["messages"], context["tool_spec"], context["meta"]["basis_last_seq"]) == ([], [], -1)
    window = views.answer_window(session.state, session.thread, WindowQuery(token_budget=100))
    assert window["messages"] == []
    status = views.answer_status(session.state, session.thread)
    assert (status["status"], status["rev"], status["projection_cursor_seq"]) == ("preparing", 0, -1)
    assert (status["request_id"], status["queued_messages"]) == ("r", 1)
    assert requests.make_running_outcome(session.state, session.thread, "r").last_seq == -1


def test_a_window_is_the_newest_that_fits() -> None:
    """Without system prompt and tools; a budget that holds nothing gives nothing."""
    session = open_chat(*[(f"question {n}", f"answer {n}") for n in range(5)], system_prompt="Be brief.")
    thread = session.thread
    budget = sum(entry.tokens for entry in list(thread)[-3:])
    window = views.answer_window(session.state, thread, WindowQuery(token_budget=budget))
    assert [message["content"] for message in window["messages"]] == ["question 4", "answer 4"]
    assert window["meta"]["truncated"] is True
    assert views.answer_window(session.state, thread, WindowQuery(token_budget=1))["messages"] == []
    everything = views.answer_window(session.state, thread, WindowQuery(token_budget=10**30))
    assert everything["messages"][0]["content"] == "question 0"
    assert everything["meta"]["truncated"] is False
    Window.model_validate(everything)


@pytest.mark.parametrize(
    "content",
    mark_slow_except([CONTENTS["quotes"]], [*CONTENTS.values(), " " * 50_000 + "x"]),
    ids=[*CONTENTS, "white space"],
)
def test_a_window_that_is_more_than_a_page_loses_its_oldest(content: str) -> None:
    """What is asked for is the newest, and what is said of it holds for what is shown."""
    session = open_chat(*[(f"{n}{content}", f"answer {n}") for n in range(20)])
    window = views.answer_window(session.state, session.thread, WindowQuery(token_budget=10**9))
    assert len(to_json(window)) < MB
    assert window["messages"][-1]["content"] == "answer 19"
    assert 2 <= len(window["messages"]) < 40 or content.startswith(" ")
    sent = {"messages": window["messages"], "tool_spec": [], "output_schema": None}
    assert window["meta"]["digest"] == compute_digest(sent)
    assert window["meta"]["entries_included"] == len(window["messages"])
    assert window["meta"]["truncated"] is (len(window["messages"]) < 40)


def test_a_status_says_where_the_session_stands() -> None:
    """Field by field, in every phase."""
    session = SessionHarness()
    idle = views.answer_status(session.state, session.thread)
    assert idle == {
        "session_id": "s-1",
        "status": "idle",
        "active_context_ref": "default",
        "iteration": 0,
        "rev": 1,
        "projection_cursor_seq": -1,
        "pending_operations": [],
        "pending_inputs": 0,
        "queued_messages": 0,
        "queued_request_ids": [],
        "pending_config": [],
        "pending_approvals": [],
        "pending_external_calls": [],
        "subagents": [],
        "usage": {"input_tokens": 0, "output_tokens": 0, "cached_input_tokens": 0, "model_calls": 0},
        "model": "openai:gpt-4o",
        "config": drafts.dump_configuration(session.state.settings),
        "metadata": {},
        "first_live_seq": 0,
        "closed": False,
    }
    session.ask(request_id="r-1")
    session.reply("", "add", usage=Usage(input_tokens=5, output_tokens=2, cached_input_tokens=1))
    busy = SessionStatus.model_validate(views.answer_status(session.state, session.thread))
    assert (busy.status, busy.request_id, busy.run_id, busy.iteration) == ("awaiting_tools", "r-1", "run-1", 1)
    assert (busy.rev, busy.projection_cursor_seq) == (3, 2)
    assert busy.usage == Usage(input_tokens=5, output_tokens=2, cached_input_tokens=1, model_calls=1)
    session.close()
    closed = SessionStatus.model_validate(views.answer_status(session.state, session.thread))
    assert (closed.status, closed.closed, closed.request_id) == ("closed", True, None)


def test_an_outcome_is_read_from_the_thread() -> None:
    """From its `run` entry alone, as often as it is asked for."""
    session = open_session_with_tools()
    outcome = requests.find_outcome(session.state, session.thread, "r-1")
    assert outcome is not None
    assert outcome.as_dict() == {
        "request_id": "r-1",
        "run_id": "run-1",
        "status": "completed",
        "termination_reason": "final_answer",
        "answer_seq": 5,
        "last_seq": 6,
        "iterations": 2,
        "usage": {"input_tokens": 5, "output_tokens": 0, "cached_input_tokens": 0, "model_calls": 2},
    }
    assert requests.find_outcome(session.state, session.thread, "r-3") is None


def test_a_request_that_runs_says_how_far_it_is() -> None:
    session = SessionHarness()
    session.ask(request_id="r")
    session.reply("", "add", usage=Usage(input_tokens=5))
    running = requests.make_running_outcome(session.state, session.thread, "r")
    assert (running.status, running.run_id, running.iterations, running.last_seq) == ("running", "run-1", 1, 2)
    assert running.usage.input_tokens == 5


@pytest.mark.parametrize("own", [None, ContextPolicy(keep_last_turns=0, max_messages=1)])
def test_what_a_call_was_shown_can_be_shown_again(own: ContextPolicy | None) -> None:
    """By its id: while it runs, while its tools run, and ever after, whatever has come since."""
    session = open_chat(("a", "b"), system_prompt="Be brief.")
    session.ask("with tools", context_policy=own)
    call = session.call
    shown = session.build_context(call)

    def again() -> Any:
        return views.build_projection(session.state, session.thread, ContextQuery(call_id=call.call_id))

    assert again() == shown
    session.reply("", "add")
    assert again() == shown
    session.answer_calls("4")
    assert again() == shown
    session.reply("4")
    session.ask("more")
    session.reply("no")
    session.apply(decisions.reject(session.state, "x", "unknown", ""))
    assert again() == shown
    assert json.loads(to_json(shown.messages)) == shown.messages


def test_a_call_to_another_provider_is_shown_again_as_that_one_saw_it() -> None:
    """What a provider wants back verbatim goes to that provider alone, then and ever after."""
    data: Any = {"provider": "anthropic", "blocks": [{"signature": "abc"}]}
    session = SessionHarness(model="openai:gpt-4o")
    session.ask(model="anthropic:claude-sonnet-4-5")
    session.reply("", "add", provider_data=data)
    session.answer_calls("4")
    there = session.build_context(session.call)
    assert there.messages[1].get("provider_data") == data
    session.reply("4")
    session.ask("and now?")
    here = session.build_context(session.call)
    session.reply("fine")
    assert not any("provider_data" in message for message in here.messages)
    for call_id, shown in (("call-2", there), ("call-3", here)):
        assert views.build_projection(session.state, session.thread, ContextQuery(call_id=call_id)) == shown


def test_a_call_that_nobody_made_is_refused() -> None:
    """Also one that failed: there is no entry that says what it was shown."""
    session = SessionHarness()
    session.ask()
    session.fail()
    for call_id in ("call-1", "call-99"):
        with pytest.raises(InvalidInput, match="no model call"):
            views.build_projection(session.state, session.thread, ContextQuery(call_id=call_id))


def test_a_context_at_a_seq_is_as_it_was() -> None:
    """Entries after it do not exist for it, and a round that ends inside is repaired."""
    session = open_session_with_tools()
    context = views.build_projection(session.state, session.thread, ContextQuery(at_seq=3))
    assert [message["role"] for message in context.messages] == ["system", "user", "assistant", "tool", "tool"]
    assert "no result" in context.messages[-1]["content"]
    assert context.meta.basis_rev == 4


def test_the_cursor_is_the_last_seq_of_the_active_lane() -> None:
    """What the thread holds besides, outcomes and rejected signals, moves no context."""
    session = open_session_with_tools()
    session.apply(decisions.reject(session.state, "x", "unknown", ""))
    assert views.answer_status(session.state, session.thread)["projection_cursor_seq"] == 8
    snapshot = {"messages": [{"role": "user", "content": "a"}]}
    operation = {"type": "replace", "reason": "manual", "result_context": snapshot}
    payload = {"op_id": "o", "context_ref": "default", "operation": operation}
    session.commit(Draft(OperationPayload.from_json(payload)))
    assert views.answer_status(session.state, session.thread)["projection_cursor_seq"] == session.thread.last_seq


# Previews: the context of a message that has not been sent, whether it fits, and its cost.


SHORT = ContextPolicy(max_input_tokens=700, reserve_output_tokens=100, keep_last_turns=2)


def query(*contents: str, **asked: Any) -> ContextQuery:
    pending = tuple(PendingMessage(role="user", content=content) for content in contents)
    return ContextQuery(pending=pending, **asked)


def test_a_preview_commits_nothing() -> None:
    """Thread and state do not change; the answer has the seq at which it was made."""
    session = SessionHarness()
    session.ask("one")
    session.reply("yes")
    state, rev = session.state, session.thread.rev
    shown = views.build_projection(session.state, session.thread, query("two", "three"))
    assert (session.state, session.thread.rev) == (state, rev)
    assert [message["content"] for message in shown.messages] == ["one", "yes", "two", "three"]
    meta = shown.meta
    assert (meta.pending_count, meta.fits, meta.basis_last_seq, meta.basis_rev) == (2, True, rev - 1, rev)
    assert (meta.entries_total, meta.entries_included) == (rev, 2)
    assert (meta.model, meta.budget) == ("openai:gpt-4o", session.state.settings.policy.budget)
    assert meta.max_output_tokens == session.state.settings.policy.reserve_output_tokens
    earlier = views.build_projection(session.state, session.thread, query("two", at_seq=2)).meta
    assert (earlier.basis_last_seq, earlier.entries_total, earlier.entries_included) == (2, 3, 2)


def test_what_does_not_fit_is_answered() -> None:
    """The answer names the part that is too large; an invalid policy is refused."""
    session = SessionHarness(table=True, context_policy=SHORT)
    shown = views.build_projection(session.state, session.thread, query("word " * 2000))
    meta = shown.meta
    assert (shown.messages, meta.fits, meta.truncated) == ([], False, True)
    assert meta.overflow
    assert meta.overflow.part == "request"
    assert meta.overflow.needed > meta.overflow.available
    assert meta.estimated_tokens > (meta.budget or 0)
    assert meta.input_cost_usd is None
    roomy = query("word " * 2000, context_policy=ContextPolicy(max_input_tokens=100_000))
    fitting = views.build_projection(session.state, session.thread, roomy).meta
    assert (fitting.fits, fitting.estimated_tokens) == (True, meta.estimated_tokens)
    none = query("one", context_policy=ContextPolicy(max_input_tokens=50))
    with pytest.raises(InvalidTokenBudget):
        views.build_projection(session.state, session.thread, none)


def test_it_is_priced_by_what_a_worker_has_told() -> None:
    """Input by its tokens, as the provider counts them, and at most a reply of full length; unknown is not 0."""
    session = SessionHarness(table=True)
    (price,) = session.state.settings.profiles["openai:gpt-4o"].prices
    meta = views.build_projection(session.state, session.thread, query("one")).meta
    tokens, reply = meta.estimated_tokens, meta.max_output_tokens or 0
    assert meta.input_cost_usd == pytest.approx(tokens * price.input / 1e6)
    assert meta.cost_usd_at_most == pytest.approx((tokens * price.input + reply * price.output) / 1e6)
    state = replace(
        session.state, settings=replace(session.state.settings, learned={"openai:gpt-4o": Learned(eighths=16)})
    )
    assert views.build_projection(state, session.thread, query("one")).meta.input_cost_usd == pytest.approx(
        2 * tokens * price.input / 1e6
    )
    unknown = SessionHarness(table=True, model="local:unheard-of")
    assert views.build_projection(unknown.state, unknown.thread, query("one")).meta.input_cost_usd is None
