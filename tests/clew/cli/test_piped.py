"""The command in a script: plain text in a pipe, the contract's JSON where it is asked for."""

from __future__ import annotations

import asyncio
from http import HTTPStatus
from typing import Any

from clew import RequestOutcome
from deploy.local import Reply, ToolCall
from tests.support.command_line import clew
from tests.support.stack import Stack, last


def adder(body: dict[str, Any]) -> Reply:
    """A model that adds with its tool and then says the sum."""
    if last(body)["role"] == "user":
        return Reply("One moment.", (ToolCall("add", {"a": 40, "b": 2}),))
    return Reply(f"It is {last(body)['content']}.")


async def test_ask_opens_a_session_and_prints_its_answer(stack: Stack) -> None:
    """The answer is all that a pipe receives, as the model wrote it; the session is resumed without a model."""
    address, model = stack.server.address, stack.model("[bold]fine[/]\n\x1b[31mred 日本語")
    first = await clew("ask", "piped-1", "How are you?", "--model", model, "--system", "Be brief.", address=address)
    assert (first.code, first.out, first.err) == (0, "[bold]fine[/]\n\x1b[31mred 日本語\n", "")
    again = await clew("ask", "piped-1", "And now?", address=address)
    assert (again.code, again.err) == (0, "")
    said = await stack.clew.session("piped-1").transcript(include_system=True)
    assert [message["content"] for message in said if message["role"] != "assistant"] == [
        *("Be brief.", "How are you?", "And now?")
    ]


async def test_ask_json_is_the_outcome_and_the_answer(stack: Stack) -> None:
    """One object: the contract's `RequestOutcome`, and the text that it names."""
    ended = await clew(
        *("ask", "piped-2", "40 + 2?", "--model", stack.model(adder), "--tool", "add", "--json"),
        address=stack.server.address,
    )
    assert ended.code == 0
    assert ended.json.pop("answer") == "It is 42."
    outcome = RequestOutcome.model_validate(ended.json)
    assert (outcome.status, outcome.iterations, outcome.answer_seq) == ("completed", 2, 4)
    assert outcome == await stack.clew.session("piped-2").request(outcome.request_id).result()


async def test_ask_reads_its_text_from_stdin(stack: Stack) -> None:
    """A dash is the text of stdin, all its lines."""
    model = stack.model(lambda body: Reply(last(body)["content"].upper()))
    ended = await clew("ask", "piped-3", "-", "--model", model, stdin="one\ntwo\n", address=stack.server.address)
    assert (ended.code, ended.out) == (0, "ONE\nTWO\n")


async def test_every_reading_command_prints_the_contracts_json(stack: Stack) -> None:
    """With --json each prints one document, the same that the session answers to the query of its name."""
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
        *(clew(name, session.id, *options, "--json", address=address) for name, *options in cases)
    )
    for ended, (command, argument) in zip(printed, cases.items(), strict=True):
        assert (ended.code, ended.err) == (0, "")
        assert ended.json == await handle.query(command[0], args=[] if argument is None else [argument])


async def test_entries_are_filtered(stack: Stack) -> None:
    """Each filter narrows the thread by what the entries' refs and payloads hold, and all of them must hold."""
    session = await stack.open(adder, tools=["add"])
    request = await session.message("40 + 2?", request_id="r-1")
    await request.result()
    filters: dict[str, tuple[str, ...]] = {
        "0": ("--kind", "config"),
        "1,2,3,4,5": ("--request", "r-1"),
        "1,2,3,4": ("--run", "run-1", "--lane", "default"),
        "2,3": ("--call", "call-1"),
        "3": ("--tool-call", "tool-1"),
        "4": ("--parent-call", "call-1", "--iteration", "2"),
        "": ("--kind", "error"),
    }
    answers = await asyncio.gather(
        *(clew("entries", session.id, *given, "--json", address=stack.server.address) for given in filters.values())
    )
    assert [",".join(str(entry["seq"]) for entry in answer.json["entries"]) for answer in answers] == list(filters)


async def test_a_pipe_receives_lines(stack: Stack) -> None:
    """Without --json and without a terminal there are no boxes and no colours, and an entry is a line."""
    session = await stack.open(adder, tools=["add"])
    await session.ask("40 + 2?")
    commands = ("status", "transcript", "context", "entries")
    status, transcript, context, entries = await asyncio.gather(
        *(clew(command, session.id, address=stack.server.address) for command in commands)
    )
    assert status.out.startswith("status: idle\nmodel: scripted:")
    assert "user  #1\n40 + 2?\n\nassistant  #2\nOne moment.\n→ add(a=40, b=2)\n" in transcript.out
    assert "tool add\n42\n\nassistant\nIt is 42.\n" in context.out
    assert "\nentries_total: 6\n" in context.out
    assert [line.split("\t")[0] for line in entries.out.splitlines()] == list("012345")
    assert not [ended.out for ended in (status, transcript, context, entries) if "\x1b" in ended.out]


async def test_chat_takes_a_message_a_line(stack: Stack) -> None:
    """From a pipe every line is a message, and the answers are all that comes back; /quit ends it."""
    model = stack.model(lambda body: Reply(f"<{last(body)['content']}>"))
    ended = await clew(
        "chat",
        "piped-chat",
        "--model",
        model,
        stdin="one\n\n two \n/quit\nthree\n",
        address=stack.server.address,
    )
    assert (ended.code, ended.out, ended.err) == (0, "<one>\n<two>\n", "")


async def test_chat_json_is_an_object_a_line(stack: Stack) -> None:
    """Answers, failures and what a slash command asks for are a line each; the last failure's code is the end's."""

    def script(body: dict[str, Any]) -> Reply:
        return Reply("no", status=HTTPStatus.BAD_REQUEST) if last(body)["content"] == "fail" else Reply("yes")

    session = await stack.open(script)
    ended = await clew(
        "chat", session.id, "--json", stdin="one\n/status\nfail\n/bogus\ntwo\n", address=stack.server.address
    )
    one, status, failed, two = ended.lines
    assert (one["answer"], two["answer"]) == ("yes", "yes")
    assert status["session_id"] == session.id
    assert (failed["status"], failed["error"]["message"]) == ("failed", "no")
    assert (ended.code, ended.err) == (1, "unknown command /bogus: /help lists the commands\n")


async def test_a_session_keeps_its_configuration(stack: Stack) -> None:
    """What only a new session takes is not dropped in silence where the session exists."""
    session = await stack.open("fine")
    ended = await clew("ask", session.id, "Hi", "--model", "scripted:other", address=stack.server.address)
    assert (ended.code, ended.out) == (0, "fine\n")
    assert f"session {session.id} exists and keeps its configuration" in ended.err
