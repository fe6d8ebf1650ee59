"""What an operator reads of a session in the Temporal UI, and in lists."""

from __future__ import annotations

import html
import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clew.contract.payloads import ForkPayload
from clew_workflows.contract.content import Blob
from clew_workflows.contract.lists import SEARCH_ATTRIBUTES, cut_keyword, cut_tags
from clew_workflows.contract.messages import Citation, ProviderCall
from clew_workflows.contract.outcomes import Usage
from clew_workflows.protocol import (
    ArchiveRef,
    Archiving,
    CheckBlobs,
    Recall,
    RequestedTool,
    SignCheckpoint,
    Thaw,
)
from clew_workflows.session import outside, ui
from clew_workflows.session.state import Child, RequestedCall, State
from clew_workflows.session.ui import escape, format_arguments, format_code, link_session, shorten
from clew_workflows.thread.entries import Draft
from tests.support.session_harness import UNKNOWN, SessionHarness

# What an operator reads beside the events of a session in the Temporal UI.


BEAR = "\U0001f43b"
ARCHIVE = ArchiveRef(execution="x", family="s-1", upto=7)
BLOB: Blob = {"digest": "0" * 64, "media_type": "image/png", "bytes": 9}


def test_model_calls_count_through_the_session() -> None:
    """With the model, at the first call of a run its message, and what the session has used before."""
    session = SessionHarness(model="openai:gpt-4o")
    session.ask("Where is it?")
    assert ui.make_label(session.call, session.state) == "call 1 · gpt-4o · “Where is it?”"
    session.reply("", "add", usage=Usage(input_tokens=2104, output_tokens=180, cost_usd=0.0123, model_calls=1))
    session.answer_calls("3")
    so_far = "so far 2\u202f104 → 180 tokens, 0.0123 USD"
    assert ui.make_label(session.call, session.state) == f"call 2 · gpt-4o · {so_far}"
    session.reply("There.")
    session.ask("Thank you")
    assert ui.make_label(session.call, session.state).startswith("call 3 · gpt-4o · “Thank you” · so far 2")


def test_tool_calls_and_runs_have_names() -> None:
    """A tool call by its arguments and its id; a run by its message."""
    session = SessionHarness()
    session.ask("Add them")
    assert ui.label_run(session.state) == "run-1 · “Add them”"
    session.reply("", "add")
    assert ui.label_run(session.state) is None
    assert [ui.make_label(call, session.state) for call in session.round.calls] == ["add {} · tool00001"]


@pytest.mark.parametrize(
    ("effect", "label"),
    [
        (Archiving(archive=ARCHIVE), "entries from 8"),
        (Thaw(archive=ARCHIVE, state="s"), "entries up to 7"),
        (Recall(archive=ARCHIVE, context_ref="draft", policies=(), before=5), "lane draft before 5"),
        (SignCheckpoint(number=2, expires_seconds=9), "checkpoint 2"),
        (CheckBlobs(family="s-1", blobs=(BLOB,)), "1 blob of a message"),
        (CheckBlobs(family="s-1", blobs=(BLOB, BLOB)), "2 blobs of a message"),
    ],
)
def test_work_on_the_archive_says_what_it_is_about(effect: Any, label: str) -> None:
    """Its entries, its lane, or how many blobs it looks at."""
    assert ui.make_label(effect, SessionHarness().state) == label


def test_waits_name_the_calls() -> None:
    """The bar of an approval has the tool, its arguments and the id to approve."""
    session = SessionHarness(tools=("ask_bank",))
    session.ask("Pay")
    session.reply("", "ask_bank")
    calls = outside.list_pending_approvals(session.state)
    assert ui.label_approval(calls, session.state) == "waits for approval of ask_bank {} · tool00001"
    assert ui.label_external(calls, session.state) == "waits for the result of ask_bank {} · tool00001"


def test_texts_of_the_labels_can_be_left_out() -> None:
    """Where texts are encrypted labels have neither texts of the conversation nor arguments."""
    session = SessionHarness(model="openai:gpt-4o")
    session.state = replace(session.state, settings=replace(session.state.settings, shows_texts=False))
    session.ask("secret")
    assert ui.label_run(session.state) == "run-1"
    assert ui.make_label(session.call, session.state) == "call 1 · gpt-4o"
    session.reply("", "add")
    assert [ui.make_label(call, session.state) for call in session.round.calls] == ["add · tool00001"]


def test_a_label_is_short_whatever_it_names() -> None:
    """Temporal takes 400 bytes of it, of which three are left for what encodes it."""
    session = SessionHarness(model="openai:" + BEAR * 190)
    session.ask(BEAR * 1000)
    assert len(ui.make_label(session.call, session.state).encode()) <= 400
    assert 0 < len((ui.label_run(session.state) or "").encode()) <= 400
    session.reply("", *["add"] * 50)
    assert session.state.run
    for size in range(390, 410):
        call = RequestedCall("t", "x" * size, {})
        text = f"waits for the result of {call.name} {{}} · t"
        label = text if len(text.encode()) <= 397 else f"{text[:394]}…"
        assert ui.label_external((call,), session.state) == label


def test_a_call_names_the_tools_that_its_provider_may_run() -> None:
    """Also where texts are left out: they are the configuration's."""
    session = SessionHarness(model="openai:gpt-4o", provider_tools=("web_search", "web_fetch"))
    session.state = replace(session.state, settings=replace(session.state.settings, shows_texts=False))
    session.ask("secret")
    assert ui.make_label(session.call, session.state) == "call 1 · gpt-4o · may use web_search, web_fetch"


# The details of a session in the Temporal UI.


def describe(session: SessionHarness, *, texts: bool = True) -> str:
    return ui.describe_session(session.state, session.thread, texts=texts)


def test_a_session_at_a_glance() -> None:
    """Its status, its model, its lane, its last messages, what it has used, and how to get its report."""
    session = SessionHarness()
    assert describe(session).split("\n\n") == [
        "**idle** · `openai:gpt-4o` · lane `default`",
        "1 entries · 0 runs · 0 model calls · 0 → 0 tokens",
        "Everything, with each context: `clew report s-1 -o report.html`",
    ]
    session.ask("What is 1 + 2?", request_id="r-1")
    session.reply("", "add", usage=Usage(input_tokens=2104, output_tokens=180, cost_usd=0.5))
    text = describe(session)
    assert text.startswith(
        "**awaiting tools** · `openai:gpt-4o` · lane `default` · `run-1`, call 1 of 10, for request"
    )
    assert "**Runs**\n\n- `add` `tool00001` `{}`" in text
    assert "- **user** What is 1 &#43; 2?\n- **assistant** calls `add`" in text
    assert "2\u202f104 → 180 tokens, 0.5000 USD" in text
    assert "tab **Pending Activities**" in text
    session.answer_calls("3")
    session.reply("It is <b>3</b>.")
    assert describe(session).count("- **") == 3
    assert "- **assistant** It is &#60;b&#62;3&#60;&#47;b&#62;." in describe(session)


def test_pending_calls_have_their_arguments() -> None:
    """Those that wait for a person, and those that wait for a result."""
    session = SessionHarness(tools=("ask_bank", "look_outside"))
    session.ask("go")
    session.reply(
        "", RequestedTool(name="ask_bank", arguments={"a": 1}), RequestedTool(name="look_outside", arguments={"a": 2})
    )
    assert '**Waits for approval (update `resolve_approval`)**\n\n- `ask_bank` `tool00001` `{"a":1}`' in describe(
        session
    )
    session.approve("tool00001", decision="deny")
    waiting = '**Waits for results (update `submit_tool_result`)**\n\n- `look_outside` `tool00002` `{"a":2}`'
    assert waiting in describe(session)


def test_what_waits_for_its_turn_is_counted() -> None:
    """Only what there is."""
    session = SessionHarness(on_busy="queue")
    session.ask()
    assert "Waits for its turn" not in describe(session)
    session.ask("and then", "r-2")
    session.ask("and last", "r-3")
    session.steer()
    assert "Waits for its turn: 2 queued messages · 1 inputs" in describe(session)


def test_texts_of_the_details_can_be_left_out() -> None:
    """Then neither messages nor arguments nor the messages of errors are shown."""
    session = SessionHarness(tools=("ask_bank",))
    session.ask("my secret")
    session.reply("a secret", RequestedTool(name="ask_bank", arguments={"a": "secret"}))
    assert "secret" in describe(session)
    hidden = describe(session, texts=False)
    assert "secret" not in hidden
    assert "- `ask_bank` `tool00001`" in hidden


def test_failures_are_told() -> None:
    """Why the configuration cannot be used, and why the last request failed."""
    session = SessionHarness(prepare=False)
    session.answer_preparation(UNKNOWN)
    assert "⚠ `unknown_model` no such provider" in describe(session)
    session = SessionHarness()
    assert "Pending Activities" not in describe(session)
    session.ask("go")
    assert "Pending Activities" in describe(session)
    session.fail()
    assert "⚠ The last request failed: `bad_request` " in describe(session)
    session.ask("again")
    session.reply("fine")
    assert "⚠" not in describe(session)


def test_relatives_are_linked() -> None:
    """Its parent, its subagents, the session that it is a fork of, and its forks; the newest first."""
    session = SessionHarness()
    for event in ("forked_from", "forked_to"):
        session.commit(Draft(ForkPayload.from_json({"event": event, "session_id": event, "fork_seq": 0}), {}))
    session.state = replace(
        session.state,
        children=(
            Child("tool00001", "researcher", "s-1.tool00001", step="working"),
            Child("tool00002", "writer", "s-2", step="start"),
            Child("tool00003", "editor", "s-3", step="cancel"),
        ),
    )
    link = "/namespaces/{namespace}/workflows"
    assert describe(session).split("**Relatives**\n\n")[1].split("\n\n")[0].splitlines() == [
        f"- subagent [s&#45;3]({link}/s-3): `editor`, is cancelled",
        f"- subagent [s&#45;2]({link}/s-2): `writer`, starts",
        f"- subagent [s&#45;1.tool00001]({link}/s-1.tool00001): `researcher`, works",
        f"- fork [forked&#95;to]({link}/forked_to) at entry 0",
        f"- fork of [forked&#95;from]({link}/forked_from) at entry 0",
    ]


def test_details_stay_short() -> None:
    """Texts of any length are shortened: the Temporal UI puts the details into an address."""
    session = SessionHarness(tools=("look_outside",))
    for number in range(30):
        session.ask("<" * 100_000, request_id=f"{number}")
        session.reply("&" * 100_000)
    session.ask("more")
    session.reply("", *(RequestedTool(name="look_outside", arguments={"b": "$" * 5000}) for _ in range(40)))
    assert "and 32 more" in describe(session)
    assert len(describe(session)) < 12_000


def test_a_reply_names_what_its_provider_ran() -> None:
    """The tools with their inputs, and the number of pages; what pages say is no markup."""
    session = SessionHarness(provider_tools=("web_search",))
    session.ask("go")
    calls: list[ProviderCall] = [{"tool": "web_search", "input": "<b>tea</b>"}, {"tool": "a`b"}]
    citations: list[Citation] = [{"url": "https://a.example"}, {"url": "https://a.example", "title": "A"}]
    session.reply("There.", provider_calls=tuple(calls), citations=tuple(citations))
    text = describe(session)
    assert "the provider's `web_search`" in text
    assert "the provider ran `web_search` &#60;b&#62;tea&#60;&#47;b&#62;, `aˋb` (1 source)" in text  # noqa: RUF001
    assert "tea" not in describe(session, texts=False)


def make_file(name: str) -> Any:
    return {"type": "file", "blob": {"digest": "0" * 64, "media_type": "application/pdf", "bytes": 10, "name": name}}


def test_parts_are_named_by_markers() -> None:
    """Texts stand first, and a name of a file is no markup, in the details and in the labels of model calls."""
    session = SessionHarness()
    session.ask([make_file("<b>a<b>.pdf"), {"type": "text", "text": "What is *this*?"}])
    marker = "&#91;file&#58; &#60;b&#62;a&#60;b&#62;.pdf, application&#47;pdf, 10 bytes&#93;"
    assert f"- **user** What is &#42;this&#42;? {marker}" in describe(session)
    assert "file" not in describe(session, texts=False).partition("Everything")[0]
    # The session prepares the tool with which the model sees media again.
    session.answer_preparation()
    label = ui.label_run(session.state)
    assert label
    assert "What is *this*? [file: <b>a<b>.pdf]" in label
    session.reply("fine")
    assert ui.find_title(session.state) == "What is *this*?"
    session = SessionHarness()
    session.ask([make_file("a.pdf")])
    assert ui.find_title(session.state) == "[file: a.pdf, application/pdf, 10 bytes]"


def test_the_last_marker_has_all_the_room_that_is_left() -> None:
    """A marker that does not fit is a name."""
    content = [{"type": "text", "text": "Look"}, make_file("a.pdf")]
    line = "Look [file: a.pdf, application/pdf, 10 bytes]"
    assert ui.quote_content(content, len(line)) == line
    assert ui.quote_content(content, len(line) - 1) == "Look [file: a.pdf]"


@pytest.mark.parametrize("count", [1, 2, 3])
def test_markers_never_take_more_than_there_is(count: int) -> None:
    """Whatever is left when the number of the others must be named."""
    content = [{"type": "text", "text": "Look"}, *[make_file("report.pdf")] * count]
    lines = [ui.quote_content(content, limit) for limit in range(17, 200)]
    assert all(len(line) <= limit for limit, line in enumerate(lines, 17))
    assert (lines[0], lines[-1].count("10 bytes")) == (f"Look [{count} media]", count)


def test_names_of_files_leave_room() -> None:
    """A hundred parts with the longest names fit into the line of a message, and say how many they are."""
    names = ["\u202e" + "<" * 254 for _ in range(99)]
    content = [{"type": "text", "text": "x" * 10_000}, *map(make_file, names)]
    for limit in (ui.MAX_QUESTION, ui.MAX_TEXT):
        line = ui.quote_content(content, limit)
        assert len(line) <= limit
        assert line.startswith("xxx")
        assert line.endswith("[99 media]")
        only = ui.quote_content(content[1:], limit)
        assert len(only) <= limit
        assert only.endswith("media]")
        assert "\u202e" not in only
    session = SessionHarness()
    session.ask(content)
    assert len((ui.label_run(session.state) or "").encode()) <= ui.MAX_BYTES
    assert len(describe(session)) < 4_000


# What lists show of a session, and when its search attributes are to be updated.


def register(state: State) -> State:
    """The state of a session whose namespace has the search attributes."""
    return replace(state, settings=replace(state.settings, attributes=tuple(SEARCH_ATTRIBUTES)))


def is_due(harness: SessionHarness, shown: State, *, is_recent: bool = False, is_long: bool = False) -> bool:
    state = register(harness.state)
    attributes = ui.select_attributes(register(shown))
    return ui.is_update_due(state, attributes, shown.listed.finished, is_recent=is_recent, is_long=is_long)


def test_a_turn_is_shown_at_its_end() -> None:
    """While the call is in flight nothing is, unless it has been for long."""
    harness = SessionHarness()
    idle = harness.state
    assert not is_due(harness, idle)
    harness.ask()
    assert ui.find_status(harness.state) == "working"
    assert not is_due(harness, idle)
    assert is_due(harness, idle, is_long=True)
    harness.reply("fine")
    assert is_due(harness, idle)
    assert not is_due(harness, harness.state)


def test_a_long_run_with_tools_is_shown_as_working_once() -> None:
    """A step of it after some time: shown. The next model call: nothing has changed."""
    harness = SessionHarness(tools=("add",))
    idle = harness.state
    harness.ask()
    harness.reply("", "add")
    assert not is_due(harness, idle)
    assert is_due(harness, idle, is_recent=True, is_long=True)
    shown = harness.state
    harness.answer_calls("3")
    assert not is_due(harness, shown, is_long=True)


def test_waits_for_people_are_shown_at_once() -> None:
    """Also soon after other updates. So is that a session goes on: nobody finds it in lists of those that wait."""
    harness = SessionHarness(tools=("ask_me",))
    idle = harness.state
    harness.ask()
    harness.reply("", "ask_me")
    waiting = harness.state
    assert ui.find_status(waiting) == "awaiting_approval"
    assert is_due(harness, idle, is_recent=True)
    harness.approve(outside.list_pending_approvals(waiting)[0].tool_call_id)
    assert ui.find_status(harness.state) == "working"
    assert is_due(harness, waiting, is_recent=True)


def test_figures_can_wait() -> None:
    """The status cannot, and of two requests in a row the first one's figures can, too."""
    harness = SessionHarness()
    shown = harness.state
    harness.ask()
    harness.reply("fine")
    assert not is_due(harness, shown, is_recent=True)
    assert is_due(harness, shown)
    harness.ask()
    assert not is_due(harness, shown, is_recent=True)
    assert is_due(harness, shown)
    harness.fail()
    assert is_due(harness, shown, is_recent=True)


def test_search_attributes_say_what_lists_can_be_asked_for() -> None:
    """A session has an attribute where it has a value."""
    harness = SessionHarness()
    harness.ask()
    harness.reply("fine", usage=Usage(input_tokens=7, output_tokens=3, cost_usd=0.1 + 0.2, model_calls=1))
    assert ui.select_attributes(register(harness.state)) == {
        "ClewModel": "openai:gpt-4o",
        "ClewStatus": ui.find_status(harness.state),
        "ClewLastActive": "2026-01-01T00:00:00.000Z",
        "ClewTokens": 10,
        "ClewCostUsd": 0.3,
    }


def test_a_namespace_without_search_attributes_is_left_alone() -> None:
    """Nothing is due, whatever changes."""
    harness = SessionHarness()
    harness.ask()
    harness.reply("fine")
    assert not ui.is_update_due(harness.state, {}, 0, is_recent=False)
    assert ui.select_attributes(harness.state) == {}


@pytest.mark.parametrize(
    ("metadata", "title"),
    [({}, "hello"), ({"title": "Refund of 4711"}, "Refund of 4711"), ({"title": ""}, None)],
)
def test_the_title(metadata: dict[str, str], title: str | None) -> None:
    """It is metadata `title`, or else the first words; an empty one means none."""
    harness = SessionHarness(metadata=metadata)
    harness.ask("hello")
    assert ui.find_title(harness.state) == title
    assert ui.make_memo(harness.state).get("title") == title


def test_the_memo_is_made_once_the_title_is_known() -> None:
    """So that one update has all of it."""
    harness = SessionHarness(metadata={"user": "ann"})
    assert ui.make_memo(harness.state) == {}
    harness.ask("hello")
    assert ui.make_memo(harness.state) == {
        "title": "hello",
        "metadata": {"user": "ann"},
        "started_at": "2026-01-01T00:00:00.000Z",
    }


@pytest.mark.parametrize("text", ["a" * 2000, "\U0001f600" * 2000, "é" * 2000, "\x00\n\x1f" * 100, ""])
def test_keywords_are_bounded(text: str) -> None:
    """No value is longer than a column of a visibility store, or than what the server takes."""
    keyword = cut_keyword(text)
    assert len(keyword) <= 255
    assert len(json.dumps(keyword)) <= 1000
    assert "\x00" not in keyword
    assert len(json.dumps(cut_tags((text, *(f"{number}{text}" for number in range(100)))))) <= 2000


# Texts of strangers in the Markdown of the Temporal UI.


HOSTILE = (
    "<script>alert(1)</script>",
    "[x](javascript:alert(1))",
    "![i](http://127.0.0.1/y.png)",
    "# head\n\n- item",
    "a $x$ and `code`",
    "&lt;b&gt;",
    "https://evil.example",
    "**b** __c__ ~~d~~ | e |",
)


@pytest.mark.parametrize("text", HOSTILE)
def test_no_text_has_a_meaning(text: str) -> None:
    """What renderers give a meaning to is a reference, which they show as the character."""
    escaped = escape(text, 200)
    assert not set("<>[]()*_`~$|\\&#") & set(html.unescape("") + escaped.replace("&#", "").replace(";", ""))
    assert html.unescape(escaped) == shorten(text, 200)


def test_a_text_that_goes_on_unread_is_marked() -> None:
    """Of a long text only the beginning is read: if it is nearly empty, more may follow."""
    assert shorten(f"a{' ' * 18}b", 10) == "a b"
    assert shorten(f"a{' ' * 19}b", 10) == "a…"
    assert shorten("a" * 10, 10) == "a" * 10
    assert shorten("a" * 11, 10) == f"{'a' * 9}…"


@given(st.text(max_size=60), st.integers(min_value=1, max_value=40))
def test_a_shortened_text_is_one_visible_line(text: str, limit: int) -> None:
    """Of at most as many characters, whatever the text is."""
    line = shorten(text, limit)
    assert len(line) <= limit
    assert line.isprintable()
    assert html.unescape(escape(text, limit)) == line


def test_code_ends_where_it_should() -> None:
    """A backtick in it is replaced."""
    assert format_code("a `b` ``", 100).count("`") == 2
    assert format_code("line\nbreak", 100) == "`line break`"


def test_arguments_are_json_on_one_line() -> None:
    """Also those that JSON has no word for."""
    assert format_arguments({"a": 1, "b": "x\ny"}, 80) == '{"a":1,"b":"x\\ny"}'
    assert format_arguments({"a": float("nan")}, 80) == '{"a":NaN}'
    assert len(format_arguments({"a": "x" * 10_000}, 80)) == 80


def test_a_session_has_a_link() -> None:
    """Its path cannot leave the page of a workflow."""
    assert link_session("a:b") == "[a&#58;b](/namespaces/{namespace}/workflows/a%3Ab)"
