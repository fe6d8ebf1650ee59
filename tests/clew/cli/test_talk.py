"""`clew ask` and `clew chat`, in scripts and on a terminal."""

from __future__ import annotations

import asyncio
import json
import re
import time
import uuid
from dataclasses import replace
from http import HTTPStatus
from io import StringIO
from typing import Any

import pytest
from rich.console import Console

from clew import Agent, RequestOutcome
from clew.cli import talk
from clew.local import Reply, ToolCall
from clew.session.events import follow
from tests.support import toolbox
from tests.support.command_line import open_terminal, run_clew
from tests.support.scripts import FOUNDED, PAGE, make_boss, make_tool_script
from tests.support.stack import Stack, get_last_message, make_client, run_deployment
from tests.support.waiting import wait_until


def adder(body: dict[str, Any]) -> Reply:
    """A model that calls `add` and then answers the sum."""
    if get_last_message(body)["role"] == "user":
        return Reply("One moment.", (ToolCall("add", {"a": 40, "b": 2}),))
    return Reply(f"It is {get_last_message(body)['content']}.")


async def test_ask_opens_a_session_and_prints_its_answer(stack: Stack) -> None:
    """stdout has only the answer, as the model wrote it; a later message needs no --model."""
    address, model = stack.server.address, stack.add_model("[bold]fine[/]\n\x1b[31mred 日本語")
    first = await run_clew(
        "ask", "piped-1", "How are you?", "--model", model, "--system", "Be brief.", address=address
    )
    assert (first.code, first.out, first.err) == (0, "[bold]fine[/]\n\x1b[31mred 日本語\n", "")
    again = await run_clew("ask", "piped-1", "And now?", address=address)
    assert (again.code, again.err) == (0, "")
    messages = await stack.clew.session("piped-1").transcript(include_system=True)
    assert [message["content"] for message in messages if message["role"] != "assistant"] == [
        *("Be brief.", "How are you?", "And now?")
    ]


async def test_ask_json_is_the_outcome_and_the_answer(stack: Stack) -> None:
    """One object: the contract's `RequestOutcome` with the answer's text."""
    ended = await run_clew(
        *("ask", "piped-2", "40 + 2?", "--model", stack.add_model(adder), "--tool", "add", "--json"),
        address=stack.server.address,
    )
    assert ended.code == 0
    assert ended.json.pop("answer") == "It is 42."
    outcome = RequestOutcome.model_validate(ended.json)
    assert (outcome.status, outcome.iterations, outcome.answer_seq) == ("completed", 2, 4)
    assert outcome == await stack.clew.session("piped-2").request(outcome.request_id).result()


async def test_ask_reads_its_text_from_stdin(stack: Stack) -> None:
    """A dash reads all lines of stdin."""
    model = stack.add_model(lambda body: Reply(get_last_message(body)["content"].upper()))
    ended = await run_clew("ask", "piped-3", "-", "--model", model, stdin="one\ntwo\n", address=stack.server.address)
    assert (ended.code, ended.out) == (0, "ONE\nTWO\n")


async def test_every_reading_command_prints_the_contracts_json(stack: Stack) -> None:
    """With --json each prints one document: the session's answer to the query of the same name."""
    session = await stack.open(adder, tools=["add"])
    await session.ask("40 + 2?")
    address, handle = stack.server.address, stack.clew.temporal.get_workflow_handle(session.id)
    cases: dict[tuple[str, ...], dict[str, Any] | None] = {
        ("status",): None,
        ("transcript",): {},
        ("transcript", "--limit", "1", "--system"): {"limit": 1, "include_system": True},
        ("context",): {},
        ("context", "--at", "1"): {"at_seq": 1},
        ("context", "--call", "call-1"): {"call_id": "call-1"},
        ("context", "--pending", "And 1?"): {"pending": [{"role": "user", "content": "And 1?"}]},
        ("entries",): {},
        ("entries", "--from", "2", "--limit", "2"): {"from_seq": 2, "limit": 2},
    }
    printed = await asyncio.gather(
        *(run_clew(name, session.id, *options, "--json", address=address) for name, *options in cases)
    )
    for ended, (command, argument) in zip(printed, cases.items(), strict=True):
        assert (ended.code, ended.err) == (0, "")
        assert ended.json == await handle.query(command[0], args=[] if argument is None else [argument])


async def test_entries_are_filtered(stack: Stack) -> None:
    """Each filter selects entries by their refs or payloads; several filters must all match."""
    session = await stack.open(adder, tools=["add"])
    request = await session.message("40 + 2?", request_id="r-1")
    await request.result()
    filters: dict[str, tuple[str, ...]] = {
        "0": ("--kind", "config"),
        "1,2,3,4,5": ("--request", "r-1"),
        "1,2,3,4": ("--run", "run-1", "--lane", "default"),
        "1,2,3": ("--call", "call-1"),
        "3": ("--tool-call", "tool00001"),
        "4": ("--parent-call", "call-1", "--iteration", "2"),
        "": ("--kind", "error"),
    }
    answers = await asyncio.gather(
        *(
            run_clew("entries", session.id, *options, "--json", address=stack.server.address)
            for options in filters.values()
        )
    )
    assert [",".join(str(entry["seq"]) for entry in answer.json["entries"]) for answer in answers] == list(filters)


async def test_a_pipe_receives_lines(stack: Stack) -> None:
    """In a pipe there are no boxes and no colours, and each entry is a line."""
    session = await stack.open(adder, tools=["add"])
    await session.ask("40 + 2?")
    commands = ("status", "transcript", "context", "entries")
    status, transcript, context, entries = await asyncio.gather(
        *(run_clew(command, session.id, address=stack.server.address) for command in commands)
    )
    assert status.out.startswith("status: idle\nmodel: scripted:")
    assert "user  #1\n40 + 2?\n\nassistant  #2\nOne moment.\n→ add(a=40, b=2)\n" in transcript.out
    assert "tool add\n42\n\nassistant\nIt is 42.\n" in context.out
    assert "\nentries_total: 6\n" in context.out
    assert [line.split("\t")[0] for line in entries.out.splitlines()] == list("012345")
    assert not [ended.out for ended in (status, transcript, context, entries) if "\x1b" in ended.out]


async def test_chat_takes_a_message_a_line(stack: Stack) -> None:
    """Each line from a pipe is a message; stdout has only the answers; /quit ends the chat."""
    model = stack.add_model(lambda body: Reply(f"<{get_last_message(body)['content']}>"))
    ended = await run_clew(
        "chat",
        "piped-chat",
        "--model",
        model,
        stdin="one\n\n two \n/quit\nthree\n",
        address=stack.server.address,
    )
    assert (ended.code, ended.out, ended.err) == (0, "<one>\n<two>\n", "")


async def test_chat_json_is_an_object_a_line(stack: Stack) -> None:
    """Answers, failures and receipts are a line each; the exit code is that of the last failure."""

    def script(body: dict[str, Any]) -> Reply:
        return (
            Reply("no", status=HTTPStatus.BAD_REQUEST)
            if get_last_message(body)["content"] == "fail"
            else Reply("yes")
        )

    session = await stack.open(script)
    ended = await run_clew(
        "chat", session.id, "--json", stdin="one\n/status\nfail\n/bogus\ntwo\n", address=stack.server.address
    )
    one, status, failed, refused, two = ended.lines
    assert (one["answer"], two["answer"]) == ("yes", "yes")
    assert status["session_id"] == session.id
    assert (failed["status"], failed["error"]["message"]) == ("failed", "no")
    assert refused["error"]["type"] == "invalid_input"
    assert refused["error"]["message"] == "unknown command /bogus: /help lists the commands"
    assert (ended.code, ended.err) == (1, "")


async def test_a_session_keeps_its_configuration(stack: Stack) -> None:
    """Options for new sessions are reported as ignored if the session exists."""
    session = await stack.open("fine")
    ended = await run_clew("ask", session.id, "Hi", "--model", "scripted:other", address=stack.server.address)
    assert (ended.code, ended.out) == (0, "fine\n")
    assert f"session {session.id} exists and keeps its configuration" in ended.err


async def test_ask_says_why_a_call_is_retried(stack: Stack) -> None:
    """While the answer is awaited, stderr has the reason, the provider's address, and when it is tried again."""
    replies = [Reply("too busy", status=HTTPStatus.SERVICE_UNAVAILABLE, headers={"Retry-After": "3"}), Reply("fine")]
    model = stack.add_model(lambda _body: replies.pop(0))
    ended = await run_clew("ask", "piped-retried", "hi", "--model", model, address=stack.server.address)
    assert (ended.code, ended.out) == (0, "fine\n")
    assert re.fullmatch(r"attempt 2 follows in \d s: .*\n", ended.err)
    assert "127.0.0.1" in ended.err
    assert "too busy" in ended.err


async def test_a_model_server_that_was_never_there_fails_within_seconds(stack: Stack) -> None:
    """The error names its address and the variable that has it."""
    started_at = time.monotonic()
    ended = await run_clew("ask", "piped-down", "hi", "--model", "unreachable:m", address=stack.server.address)
    assert time.monotonic() - started_at < 15
    assert (ended.code, ended.out) == (1, "")
    error = ended.err.splitlines()[-1]
    assert error.startswith("provider_unavailable: ")
    assert "http://127.0.0.1:1" in error
    assert "CLEW_PROVIDER_UNREACHABLE_BASE_URL" in error


LONG = " ".join(f"word{number}" for number in range(30))


def paced(_body: dict[str, Any]) -> Reply:
    """A model that writes its reply over a second."""
    return Reply(LONG, tokens_per_second=30)


@pytest.mark.slow
async def test_a_reply_is_shown_as_it_grows(stack: Stack) -> None:
    """The beginning is on the screen before the end is written; the whole reply is printed once."""
    session = await stack.open(paced)
    async with open_terminal("ask", session.id, "Count", address=stack.server.address, anew=True) as screen:
        await screen.wait_for("word3")
        assert "word29" not in screen.screen
        await screen.wait_for("word29")
        assert await screen.wait_for_end() == 0
    assert screen.screen.count("word3 ") == 1
    assert LONG in screen.screen


async def test_tools_are_shown_as_they_happen(stack: Stack) -> None:
    """A tool call is shown while the tool runs, its result before the answer."""

    def script(body: dict[str, Any]) -> Reply:
        if get_last_message(body)["role"] == "user":
            return Reply("Let me see.", (ToolCall("wait_for", {"gate": "shown"}),))
        return Reply("It was open.")

    session = await stack.open(script, tools=["wait_for"])
    async with open_terminal("ask", session.id, "Is it open?", address=stack.server.address) as screen:
        await screen.wait_for("Let me see.\n")
        await screen.wait_for('→ wait_for(gate="shown")')
        toolbox.get_gate("shown").set()
        await screen.wait_for("← shown is open\n")
        await screen.wait_for("It was open.\n")
        assert await screen.wait_for_end() == 0


async def test_the_progress_of_a_tool_is_shown_while_it_runs(stack: Stack) -> None:
    """Its newest report, and how much is done."""
    call = ToolCall("report_and_wait", {"gate": "half-way"})
    session = await stack.open(make_tool_script(call), tools=["report_and_wait"])
    async with open_terminal("ask", session.id, "Do it.", address=stack.server.address) as screen:
        await screen.wait_for("report_and_wait: half of it (50%)")
        toolbox.get_gate("half-way").set()
        assert await screen.wait_for_end() == 0


@pytest.mark.slow
async def test_a_conversation(stack: Stack) -> None:
    """A real terminal: a chat opens a session, Ctrl-C cancels and ends no chat, Ctrl-D leaves; it is resumed."""
    release = asyncio.Event()

    async def script(body: dict[str, Any]) -> Reply:
        content = get_last_message(body)["content"]
        if content == "fail":
            return Reply("no", status=HTTPStatus.BAD_REQUEST)
        if content == "slowly":
            await release.wait()
        return Reply(f"[b]You said {content}[/b]")

    model, session_id = stack.add_model(script), "opened-by-hand"
    async with open_terminal("chat", session_id, "--model", model, address=stack.server.address, anew=True) as screen:
        await screen.wait_until_shown(f"session {session_id} · {model} · new")
        await screen.wait_until_shown("· idle")
        screen.type("hello\r")
        await screen.wait_until_shown("[b]You said hello[/b]")
        screen.type("fail\r")
        await screen.wait_until_shown("bad_request: no")
        screen.type("slowly\r")
        await screen.wait_until_shown("waiting for the model")
        screen.type("\x03")
        await screen.wait_until_shown("cancelled")
        screen.type("\x03")
        await screen.wait_until_shown("nothing is running")
        screen.resize(columns=40)
        screen.type("\x1b[200~a line\nand another\x1b[201~")
        await screen.wait_until_shown("another")
        screen.type("\r")
        await screen.wait_until_shown("You said a line")
        assert await screen.leave() == 0
        assert f"`clew chat {session_id} --model {model}`" in screen.screen
    assert "Traceback" not in screen.screen
    async with open_terminal("chat", session_id, address=stack.server.address) as screen:
        await screen.wait_until_shown("resumed, ")
        await screen.wait_until_shown("slowly")
        await screen.wait_until_shown("[b]You said a line")
        assert await screen.leave() == 0


@pytest.mark.slow
async def test_what_a_model_writes_is_shown_and_not_obeyed(stack: Stack) -> None:
    """No escape sequence, control character or markup from a model or a tool reaches the terminal."""
    evil = "[red]a[/] :smile: \x1b[2J\x1b]0;owned\x07\x9b31m\x08\u202eb \x1b"
    session = await stack.open(evil)
    async with open_terminal("ask", session.id, evil, address=stack.server.address) as screen:
        await screen.wait_for("[red]a[/] :smile: b")
        assert await screen.wait_for_end() == 0
    outputs = [screen.raw]
    for command in ("transcript", "context", "entries"):
        async with open_terminal(command, session.id, address=stack.server.address) as screen:
            assert await screen.wait_for_end() == 0
            await screen.wait_for("[red]a[/] :smile: b")
        outputs.append(screen.raw)
    for raw in outputs:
        assert not [sign for sign in ("\x1b[2J", "\x1b]0", "\x07", "\x9b", "\x08", "\u202e") if sign in raw]


async def test_tables_on_a_terminal(stack: Stack) -> None:
    """Each entry is one line; JSON is the same document, indented."""
    session = await stack.open("y" * 400)
    await session.ask("x\n" * 200)
    async with open_terminal("entries", session.id, address=stack.server.address) as screen:
        await screen.wait_for("seq  at (UTC)")
        assert await screen.wait_for_end() == 0
    rows = [line for line in screen.screen.splitlines() if line.strip()]
    assert [len(row) <= 100 for row in rows] == [True] * (4 + 2)
    async with open_terminal("status", session.id, "--json", address=stack.server.address) as screen:
        assert await screen.wait_for_end() == 0
        await screen.wait_for("\n}\n")
    piped = await run_clew("status", session.id, "--json", address=stack.server.address)
    assert screen.screen.startswith('{\n  "session_id"')
    assert json.loads(screen.screen) == piped.json


async def test_a_session_is_opened_with_an_agent(stack: Stack) -> None:
    """`status` shows the agent. Options whose value differs in a session that exists are named on stderr."""
    clew, agent = make_client(stack), Agent("support", model=stack.add_model("fine"), version="1.2")
    options = {"address": stack.server.address}
    async with run_deployment(stack, clew, agent):
        queue = ("--task-queue", clew.task_queue)
        opened = await run_clew("ask", "cli-agent", "Hi", "--agent", "support", "--pin", *queue, **options)
        assert (opened.code, opened.out, opened.err) == (0, "fine\n", "")
        status = await run_clew("status", "cli-agent", **options)
        assert "support · 1.2 · " in status.out
        again = await run_clew("ask", "cli-agent", "Hi", "--agent", "billing", "--pin", *queue, **options)
        assert (again.code, again.out) == (0, "fine\n")
        assert "so --agent had no effect: `clew configure cli-agent --agent billing " in again.err


SOURCE_LINES = [
    "↗ web_search: where tea grows · 1 source",
    "↗ code_execution: print(1 + 1) · 2",
    f"[1] Assam — {PAGE}",
    "[2] Click me — javascript:alert(1)",
]
"""What is shown of the calls and the citations of `FOUNDED`."""


async def test_sources_stand_beside_the_answer(stack: Stack) -> None:
    """In a pipe stdout has only the answer, and stderr the provider's calls and each page once; JSON has all."""
    address, model = stack.server.address, stack.add_model(lambda _: FOUNDED)
    begun = ("founded-1", "Where?", "--model", model, "--provider-tool", "web_search")
    piped = await run_clew("ask", *begun, address=address)
    assert (piped.code, piped.out, piped.err.splitlines()) == (0, f"{FOUNDED.text}\n", SOURCE_LINES)
    chatted = await run_clew("chat", "founded-1", stdin="Where?\n", address=address)
    assert (chatted.out, chatted.err.splitlines()) == (f"{FOUNDED.text}\n", SOURCE_LINES)
    document = (await run_clew("ask", "founded-1", "Where?", "--json", address=address)).json
    assert (document["answer"], document["citations"]) == (FOUNDED.text, list(FOUNDED.citations))
    assert document["provider_calls"] == list(FOUNDED.provider_calls)
    transcript = await run_clew("transcript", "founded-1", "--limit", "1", address=address)
    assert transcript.out.splitlines()[1:] == [FOUNDED.text, *SOURCE_LINES]
    entries = await run_clew("entries", "founded-1", "--call", "call-1", address=address)
    assert all(line in entries.out for line in SOURCE_LINES)
    assert "tools of the provider: web_search" in (await run_clew("entries", "founded-1", address=address)).out
    assert "provider tools: web_search" in (await run_clew("status", "founded-1", address=address)).out


async def test_sources_follow_the_answer_on_a_terminal(stack: Stack) -> None:
    """Both of `ask` and of `chat`; the text has no markers."""
    address, model = stack.server.address, stack.add_model(lambda _: FOUNDED)
    async with open_terminal("ask", "founded-2", "Where?", "--model", model, address=address) as terminal:
        await terminal.wait_for(FOUNDED.text)
        for line in SOURCE_LINES:
            await terminal.wait_for(line)
        assert await terminal.wait_for_end() == 0
    async with open_terminal("chat", "founded-2", address=address) as terminal:
        await terminal.wait_until_shown("founded-2")
        terminal.type("And now?\r")
        for line in (FOUNDED.text, *SOURCE_LINES):
            await terminal.wait_until_shown(line)
        assert await terminal.leave() == 0


async def test_what_was_searched_before_a_tool_is_shown_with_the_answer(stack: Stack) -> None:
    """The provider's calls of all replies of the request, and the citations of the answer alone."""

    def search_and_add(body: dict[str, Any]) -> Reply:
        if get_last_message(body)["role"] == "user":
            return replace(FOUNDED, tool_calls=(ToolCall("add", {"a": 40, "b": 2}),))
        return Reply("It is 42.", citations=[{"url": PAGE}])

    begun = ("founded-3", "Add", "--model", stack.add_model(search_and_add), "--tool", "add")
    ended = await run_clew("ask", *begun, address=stack.server.address)
    assert (ended.out, ended.err.splitlines()) == ("It is 42.\n", [*SOURCE_LINES[:2], f"[1] {PAGE}"])
    again = await run_clew("ask", "founded-3", "Add", "--json", address=stack.server.address)
    assert again.json["provider_calls"] == list(FOUNDED.provider_calls)
    assert again.json["citations"] == [{"url": PAGE}]


@pytest.mark.parametrize("live", [True, False])
async def test_a_call_that_waits_in_a_subagent_is_told(
    stack: Stack, live: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the command that decides it: its events are not those of the request that is waited for."""
    monkeypatch.setattr(follow, "SUBAGENTS_SECONDS", 0.2)
    clew = make_client(stack)
    async with run_deployment(stack, clew, make_boss(stack), tools=(toolbox.guarded,)):
        session = await clew.open(f"test-{uuid.uuid4().hex}", agent="boss")
        request = await session.message("go")
        printed = StringIO()
        told: list[str] = []
        to = Console(file=printed, width=200)
        waiting = asyncio.create_task(
            talk.follow_session(to, request)
            if live
            else talk.wait_for_outcome(request, lambda text: told.append(text.plain))
        )
        child = f"{session.id}.tool00001"
        await wait_until(lambda: f"guarded of {child} waits for approval" in printed.getvalue() + "".join(told))
        await clew.session(child).approve("tool00001")
        assert (await waiting).status == "completed"
        shown = printed.getvalue() + "".join(told)
        assert shown.count(f"clew approve {child} tool00001") == 1
