"""The details of a session in the Temporal UI."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from clew.contract.payloads import ForkPayload
from clew_workflows.contract.messages import Citation, ProviderCall
from clew_workflows.contract.outcomes import Usage
from clew_workflows.protocol import RequestedTool
from clew_workflows.session import ui
from clew_workflows.session.state import Child
from clew_workflows.thread.entries import Draft
from tests.support.session_harness import UNKNOWN, SessionHarness


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


def test_texts_can_be_left_out() -> None:
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
    session.ask("go")
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
        session.state, children=(Child("tool00001", "researcher", "s-1.tool00001", step="working"),)
    )
    link = "/namespaces/{namespace}/workflows"
    assert describe(session).split("**Relatives**\n\n")[1].split("\n\n")[0].splitlines() == [
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
