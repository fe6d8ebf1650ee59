"""The commands that change a session: effects, receipts, refusals, and what waits for a person."""

from __future__ import annotations

import asyncio
import getpass
import itertools
import json
import re
import uuid
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from clew import Session
from clew.cli import reach, talk
from clew.cli.app import app
from clew.errors import WorkerUnavailable
from clew.local import Reply, ToolCall
from clew.local.child import free_ports
from clew_workflows.contract.content import get_text
from clew_workflows.contract.outputs import OperationReceipt
from tests.support.command_line import read_error, run_clew, start_command
from tests.support.examples import mark_slow_except
from tests.support.rolling import make_id
from tests.support.scripts import PausedModel, call_add_twice, wait_for_approvals
from tests.support.stack import Stack, get_last_message
from tests.support.waiting import PATIENCE_SECONDS, wait_until


async def test_steer_and_inject_reach_the_run(stack: Stack) -> None:
    """Both print the contract's receipt, the same one for a repeated id; the run reads inputs in order."""
    model, address = PausedModel(), stack.server.address
    session = await stack.open(model)
    request = await session.message("begin", request_id="r-1")
    await model.called.wait()
    steered = await run_clew("steer", session.id, "Only the last", "--input-id", "i-1", "--json", address=address)
    assert (steered.code, steered.err) == (0, "")
    assert steered.json == {"input_id": "i-1", "request_id": "r-1", "position": 1}
    again = await run_clew("steer", session.id, "Only the last", "--input-id", "i-1", "--json", address=address)
    assert again.json == steered.json
    options = ("--at", "step", "--expect", "r-1", "--on-failure", "drop", "--source", "ci", "--input-id", "i-2")
    injected = await run_clew("inject", session.id, "-", *options, stdin="Tests\npass\n", address=address)
    assert (injected.code, injected.out) == (0, "input i-2 is number 2 in the queue of request r-1\n")
    third = await run_clew("inject", session.id, "Good night", "--json", address=address)
    assert third.json == {"input_id": third.json["input_id"], "request_id": "r-1", "position": 3}
    status = await run_clew("status", session.id, address=address)
    assert "\nwaiting: 3 inputs\n" in status.out
    model.free.set()
    assert (await request.result()).status == "completed"
    texts = [message["content"] for message in await session.transcript() if message["role"] == "user"]
    assert texts == ["begin", "Only the last", "Tests\npass", "Good night"]
    sources = [entry.payload.get("source") for entry in await session.entries(kind="ai_message")]
    assert "ci" in sources
    listed = await run_clew("entries", session.id, "--source", "ci", address=address)
    assert listed.out.endswith("\tuser: Tests pass\n")


async def test_cancel_ends_what_runs_and_what_waits(stack: Stack) -> None:
    """A waiting request never runs, the active one ends; the receipt says whether there was a request."""
    model, address = PausedModel(), stack.server.address
    session = await stack.open(model)
    served = await session.message("one", request_id="r-1")
    await model.called.wait()
    waits = await session.message("two", request_id="r-2", on_busy="queue")
    status = await run_clew("status", session.id, address=address)
    assert "\nwaiting: 1 message\n" in status.out
    ended = await run_clew("cancel", session.id, "--request", "r-2", "--json", address=address)
    assert (ended.code, ended.json) == (0, {"request_id": "r-2", "cancelled": True})
    assert (await waits.result()).status == "cancelled"
    ended = await run_clew("cancel", session.id, "--reason", "enough", "--inputs", "drop", address=address)
    assert (ended.code, ended.out, ended.err) == (0, "request r-1 is cancelled\n", "")
    assert (await served.result()).status == "cancelled"
    listed = await run_clew("entries", session.id, "--kind", "input", address=address)
    assert listed.out.endswith("\tdropped message: cancelled: two\n")
    again = await run_clew("cancel", session.id, "--request", "r-1", "--json", address=address)
    assert (again.code, again.json) == (0, {"request_id": "r-1", "cancelled": False})
    model.free.set()
    assert await session.ask("three") == "<three>"


async def test_replace_and_switch_change_the_context(stack: Stack, tmp_path: Path) -> None:
    """A snapshot comes from a file or stdin and replaces the lane's context; an operation is applied once."""
    address, session = stack.server.address, await stack.open("fine")
    await session.ask("old")
    file = tmp_path / "context.json"
    file.write_text(json.dumps([{"role": "user", "content": "früher"}]))
    applied = await run_clew("replace", session.id, str(file), "--op-id", "op-1", "--json", address=address)
    assert (applied.code, applied.err) == (0, "")
    assert applied.json == {"op_id": "op-1", "status": "applied", "seq": applied.json["seq"]}
    assert [message["content"] for message in (await session.context()).messages] == ["früher"]
    again = await run_clew("replace", session.id, str(file), "--op-id", "op-1", address=address)
    assert (again.code, again.out) == (0, "operation op-1 was applied before: nothing has changed\n")
    switched = await run_clew("switch", session.id, "draft", "--op-id", "op-2", "--json", address=address)
    assert (switched.json["status"], switched.json["op_id"]) == ("applied", "op-2")
    assert (await session.status()).active_context_ref == "draft"
    assert (await session.context()).messages == []
    snapshot = {"messages": [{"role": "user", "content": "new"}], "system_prompt": "Be brief."}
    options = ("--op-id", "op-3", "--lane", "default", "--base-seq", "1", "--reason", "restore")
    ended = await run_clew("replace", session.id, "-", *options, stdin=json.dumps(snapshot), address=address)
    assert (ended.code, ended.out.startswith("operation op-3 is applied, as entry ")) == (0, True)
    listed = await run_clew("entries", session.id, "--kind", "ai_context_operation", address=address)
    assert [line.split("\t")[-1] for line in listed.out.splitlines()] == [
        *("op-1: replace default, manual", "op-2: switch draft, manual", "op-3: replace default, restore")
    ]
    (newest,) = (await session.entries(kind="ai_context_operation"))[-1:]
    assert newest.payload["operation"]["reason"] == "restore"
    assert (await session.status()).active_context_ref == "draft"
    messages = (await session.context(context_ref="default")).messages
    assert [message["content"] for message in messages][:2] == ["Be brief.", "new"]


async def test_an_operation_without_an_id_gets_one(stack: Stack) -> None:
    """The command prints the new id, with which the operation can be repeated: it is applied once."""
    address, session = stack.server.address, await stack.open("fine")
    await session.ask("hi")
    commands = {"pin": ("1",), "unpin": ("1",), "reset": (), "switch": ("draft",)}
    for command, arguments in commands.items():
        printed = await run_clew(command, session.id, *arguments, address=address)
        found = re.match(r"operation (\S+) is applied, as entry \d+\n", printed.out)
        assert found, (command, printed)
        again = await run_clew(command, session.id, *arguments, "--op-id", found[1], address=address)
        assert again.out == f"operation {found[1]} was applied before: nothing has changed\n"


async def test_changes_wait_for_the_run(stack: Stack) -> None:
    """During a run operations and configuration changes are deferred; the status shows the operation."""
    model, address = PausedModel(), stack.server.address
    session = await stack.open(model)
    request = await session.message("hi")
    await model.called.wait()
    switch = await run_clew("switch", session.id, "draft", "--op-id", "op-1", address=address)
    assert (switch.code, switch.out) == (0, "operation op-1 is deferred until the run ends\n")
    configured = await run_clew("configure", session.id, "--system", "Be brief.", "--json", address=address)
    assert (configured.code, configured.json) == (0, {"status": "deferred"})
    status = await run_clew("status", session.id, address=address)
    assert "\noperation: switch draft (op-1), deferred until the run ends\n" in status.out
    model.free.set()
    await request.result()
    assert (await session.status()).active_context_ref == "draft"
    assert (await session.entries(kind="config"))[-1].payload["system_prompt"] == "Be brief."


async def test_configure_changes_what_is_named(stack: Stack) -> None:
    """Options and --changes make one change with one entry, which the receipt names; other fields stay."""
    address, session = stack.server.address, await stack.open("fine", tools=["add"], system_prompt="Stay.")
    options = ("--tool", "add", "--tool", "wait_for", "--require-approval", "add", "--on-busy", "queue")
    changes = {"limits": {"max_total_tokens": 100_000}}
    ended = await run_clew(
        *("configure", session.id, *options, "--steering", "step", "--changes", json.dumps(changes), "--json"),
        address=address,
    )
    assert (ended.code, ended.err) == (0, "")
    newest = (await session.entries(kind="config"))[-1]
    assert ended.json == {"status": "applied", "seq": newest.seq}
    assert [tool["name"] for tool in newest.payload["tools"]] == ["add", "wait_for", "read_result"]
    assert newest.payload["system_prompt"] == "Stay."
    cleared = await run_clew(
        "configure", session.id, "--changes", '{"tools": [], "require_approval": []}', address=address
    )
    assert (cleared.code, cleared.out) == (0, f"the change is applied, as entry {newest.seq + 1}\n")


async def test_fallbacks_are_named_shown_and_changed(stack: Stack) -> None:
    """--fallback of a new session and of `configure`: the list that `status` shows, in its order."""
    address, session_id = stack.server.address, f"test-{uuid.uuid4().hex}"
    first, second = stack.add_model("one"), stack.add_model("two")
    new = ("--model", first, "--fallback", second, "--fallback", first)
    asked = await run_clew("ask", session_id, "hi", *new, address=address)
    assert (asked.code, asked.out) == (0, "one\n")
    shown = await run_clew("status", session_id, address=address)
    assert f"fallbacks: {second}, {first}\n" in shown.out
    await run_clew("configure", session_id, "--fallback", first, address=address)
    assert (await stack.clew.session(session_id).status()).config["fallbacks"] == [first]


async def test_asking_a_busy_session(stack: Stack) -> None:
    """--on-busy: a message is refused, joins the run, is queued, or interrupts the run."""
    model, address = PausedModel(), stack.server.address
    session = await stack.open(model)
    served = await session.message("one")
    await model.called.wait()
    refused = await run_clew("ask", session.id, "no", "--on-busy", "reject", address=address)
    assert read_error(refused) == (1, "busy")
    queued = asyncio.create_task(run_clew("ask", session.id, "two", "--on-busy", "queue", address=address))

    async def has_queued() -> object:
        return (await session.status()).queued_messages

    await wait_until(has_queued)
    steering = asyncio.create_task(run_clew("ask", session.id, "three", "--on-busy", "steer", address=address))

    async def has_input() -> object:
        return (await session.status()).pending_inputs

    await wait_until(has_input)
    model.free.set()
    assert [(ended.code, ended.out) for ended in (await steering, await queued)] == [(0, "<three>\n"), (0, "<two>\n")]
    assert await served.answer() == "<three>"
    model.called.clear()
    model.free.clear()
    served = await session.message("four")
    await model.called.wait()
    chatting = asyncio.create_task(
        run_clew("chat", session.id, "--on-busy", "interrupt", stdin="five\n", address=address)
    )
    assert (await served.result()).status == "cancelled"
    model.free.set()
    chatted = await chatting
    assert (chatted.code, chatted.out) == (0, "<five>\n")


async def test_control_in_a_piped_conversation(stack: Stack) -> None:
    """With --json each receipt and each refusal is a line; an unknown command is refused."""
    model = PausedModel()
    session = await stack.open(model)
    served = await session.message("hi", request_id="r-1")
    await model.called.wait()
    ended = await run_clew(
        *("chat", session.id, "--json"),
        stdin="/steer more\n/cancel\n/deny tool00001\n",
        address=stack.server.address,
    )
    steered, cancelled, refused = ended.lines
    assert (steered["request_id"], steered["position"]) == ("r-1", 1)
    assert cancelled == {"request_id": "r-1", "cancelled": True}
    assert refused["error"]["type"] == "unknown_approval"
    assert (ended.code, (await served.result()).status) == (1, "cancelled")
    model.free.set()
    texts = await run_clew("chat", session.id, stdin="/etc\n//etc is a folder\n", address=stack.server.address)
    assert (texts.code, texts.out) == (1, "</etc is a folder>\n")
    assert "unknown command /etc" in texts.err


async def test_a_session_is_restored_from_a_checkpoint(stack: Stack) -> None:
    """`clew checkpoint | clew restore -` prints the new session's id."""
    address, session = stack.server.address, await stack.open("fine", system_prompt="Be brief.")
    await session.ask("hi")
    made = await run_clew("checkpoint", session.id, "--expires", "60", address=address)
    assert (made.code, made.err, made.out.startswith("rt2.")) == (0, "", True)
    branch = f"{session.id}-branch"
    restored, refused = await asyncio.gather(
        run_clew("restore", "-", "--as", branch, stdin=made.out, address=address),
        run_clew("restore", "rt1.a.b", "--json", address=address),
    )
    assert (restored.code, restored.out) == (0, f"{branch}\n")
    assert (refused.code, refused.json["error"]["type"]) == (1, "token_version")
    assert (await stack.clew.session(branch).context()).messages == (await session.context()).messages


@pytest.mark.parametrize(
    "wrong",
    [
        ("--tool", "nope"),
        pytest.param(("--tool", "add", "--tool", "nope"), marks=pytest.mark.slow),
        pytest.param(("--tool", "mcp:no/one"), marks=pytest.mark.slow),
    ],
)
async def test_an_error_names_the_command_that_repairs_the_session(stack: Stack, wrong: tuple[str, ...]) -> None:
    """After a typo in a tool's name, the session works again once the command that the error names was typed."""
    model, address, name = stack.add_model("fine"), stack.server.address, f"typo-{uuid.uuid4().hex}"
    failed = await run_clew("ask", name, "hi", "--model", model, *wrong, address=address)
    assert read_error(failed) == (1, "unknown_tool")
    again = await run_clew("ask", name, "hi", "--tool", "add", address=address)
    assert again.code == 1
    remark, error = again.err.splitlines()
    assert error.startswith("unknown_tool: ")
    commands = [re.findall(f"`clew (configure {name} .+)`", line)[0] for line in (remark, error)]
    assert commands[0] == f"configure {name} --tool add"
    for command in commands:
        assert (await run_clew(*command.replace("NAME", "add").split(), address=address)).code == 0
        assert (await run_clew("ask", name, "hi", address=address)).out == "fine\n"


async def test_an_unknown_provider_is_repaired_by_another_model(stack: Stack) -> None:
    """The error of a session whose model's provider no worker has names the command, too."""
    address, name = stack.server.address, f"typo-{uuid.uuid4().hex}"
    failed = await run_clew("ask", name, "hi", "--model", "opneai:gpt-4o", address=address)
    assert read_error(failed) == (1, "unknown_model")
    (command,) = re.findall(f"`clew (configure {name} .+)`", failed.err)
    command = command.replace("PROVIDER:NAME", stack.add_model("fine"))
    assert (await run_clew(*command.split(), address=address)).code == 0
    assert (await run_clew("ask", name, "hi", address=address)).out == "fine\n"


async def read_texts(session: Session) -> list[str]:
    return [get_text(message["content"]) for message in (await session.context()).messages]


async def test_a_session_is_summed_up_and_expanded(stack: Stack) -> None:
    """The receipt names the summary's entry; `expand` brings the messages back."""
    address = stack.server.address
    session = await stack.open("It is so.")
    for number in range(3):
        await session.ask(f"question {number}")
    before = await read_texts(session)
    receipt = await run_clew("summarize", session.id, "--to-seq", "2", "--json", address=address)
    assert (receipt.code, receipt.err) == (0, "")
    (entry,) = await session.entries(kind="summary")
    assert receipt.json == {"seq": entry.seq, "from_seq": 0, "to_seq": 2, "tokens": entry.tokens}
    assert (await read_texts(session))[0] == "Summary of earlier conversation:\nIt is so."
    nothing = await run_clew("summarize", session.id, "--json", address=address)
    assert (nothing.code, nothing.json["error"]["type"]) == (1, "nothing_to_summarize")
    expanded = await run_clew("expand", session.id, "--op-id", "e-1", address=address)
    assert (expanded.code, expanded.out.startswith("operation e-1 is applied")) == (0, True)
    assert await read_texts(session) == before


async def test_messages_are_pinned_and_a_lane_is_compacted(stack: Stack) -> None:
    """Pinned messages stay before the summary until they are unpinned."""
    address = stack.server.address
    session = await stack.open("It is so.", on_busy="queue")
    for number in range(3):
        await session.ask(f"question {number}")
    first = str((await session.transcript())[0]["seq"])
    assert (await run_clew("pin", session.id, first, "--op-id", "p-1", address=address)).code == 0
    receipt = await run_clew("compact", session.id, "--op-id", "c-1", "--to-seq", "2", "--json", address=address)
    (operation,) = [entry for entry in await session.entries() if entry.payload.get("op_id") == "c-1"]
    assert receipt.json == {"op_id": "c-1", "status": "applied", "seq": operation.seq}
    nothing = await run_clew("compact", session.id, address=address)
    assert (nothing.code, "only its last turns" in nothing.err) == (1, True)
    await session.ask("and now?")
    assert (await read_texts(session))[:2] == ["question 0", "Summary of earlier conversation:\nIt is so."]
    assert (await run_clew("unpin", session.id, first, "--op-id", "p-2", address=address)).code == 0
    assert (await read_texts(session))[0] == "Summary of earlier conversation:\nIt is so."
    refused = await run_clew("pin", session.id, "999", "--op-id", "p-3", "--json", address=address)
    assert refused.json["error"]["type"] == "invalid_operation"


@pytest.mark.slow
async def test_a_session_is_forked(stack: Stack) -> None:
    """The receipt names the new session and the last entry that both have."""
    session, address, fork_id = await stack.open("fine"), stack.server.address, make_id()
    await session.ask("one")
    await session.ask("two")
    options = ("--at", "3", "--as", fork_id, "--metadata", "branch=alt", "--metadata", "why=a=b")
    forked = await run_clew("fork", session.id, *options, "--json", address=address)
    assert (forked.code, forked.json) == (0, {"session_id": fork_id, "fork_seq": 3})
    (origin,) = await stack.clew.session(fork_id).entries(kind="fork")
    assert origin.payload["metadata"] == {"branch": "alt", "why": "a=b"}
    copied, wrong, noted = await asyncio.gather(
        run_clew("fork", session.id, "--json", address=address),
        run_clew("fork", session.id, "--at", "99", address=address),
        run_clew("fork", session.id, "--metadata", "nothing", address=address),
    )
    assert copied.json["fork_seq"] == 7
    assert read_error(wrong) == (1, "invalid_input")
    assert noted.code == 2


async def test_a_session_is_put_away_read_and_deleted(stack: Stack) -> None:
    """A hibernated session can be read; a session is deleted only after a confirmation."""
    session, address = await stack.open("fine", system_prompt="Be brief."), stack.server.address
    await session.ask("hi")
    asleep = await run_clew("hibernate", session.id, "--reason", "night", address=address)
    assert (asleep.code, asleep.out) == (0, "the session hibernates; all entries up to 4 are archived\n")
    transcript, context, listed = await asyncio.gather(
        run_clew("transcript", session.id, "--json", address=address),
        run_clew("context", session.id, "--call", "call-1", "--json", address=address),
        run_clew("entries", session.id, "--json", address=address),
    )
    assert [message["content"] for message in transcript.json["messages"]] == ["hi", "fine"]
    assert [message["role"] for message in context.json["messages"]] == ["system", "user"]
    assert [entry["seq"] for entry in listed.json["entries"]] == [0, 1, 2, 3, 4]
    declined = await run_clew("delete", session.id, stdin="n\n", address=address)
    assert declined.code == 1
    assert "Delete session" in declined.err
    assert len(await session.entries()) == 5
    deleted = await run_clew("delete", session.id, "--yes", "--json", address=address)
    assert (deleted.code, deleted.json) == (0, {"deleted_segments": 1, "deleted_subagents": 0})
    gone = await run_clew("entries", session.id, address=address)
    assert read_error(gone) == (1, "not_found")


async def test_a_lane_is_emptied(stack: Stack) -> None:
    """`reset` empties the context; the thread keeps the messages."""
    session, address = await stack.open("fine"), stack.server.address
    await session.ask("hi")
    emptied = await run_clew("reset", session.id, "--op-id", "o-1", address=address)
    assert (emptied.code, emptied.out) == (0, "operation o-1 is applied, as entry 4\n")
    assert (await session.context()).messages == []
    assert len(await session.transcript()) == 2


async def test_approve_and_deny_decide_tool_calls(stack: Stack) -> None:
    """The status shows waiting calls and arguments; edited arguments are used; the model reads a denial's reason."""
    address, session = (
        stack.server.address,
        await stack.open(call_add_twice, tools=["add"], require_approval=["add"]),
    )
    request = await session.message("Add")
    await wait_for_approvals(session)
    status = await run_clew("status", session.id, address=address)
    assert status.out.startswith("status: awaiting approval\n")
    assert "\napprove tool00001?: → add(a=40, b=2)\napprove tool00002?: → add(a=1, b=1)\n" in status.out
    refused = await run_clew("approve", session.id, "tool00001", "--arguments", '{"a": "x"}', address=address)
    assert read_error(refused) == (1, "invalid_input")
    denied = await run_clew("deny", session.id, "tool00002", "--reason", "too easy", "--json", address=address)
    assert (denied.code, denied.err, denied.json) == (0, "", {"tool_call_id": "tool00002", "decision": "deny"})
    for command in ("approve", "deny"):
        assert read_error(await run_clew(command, session.id, "tool00002", address=address)) == (
            1,
            "already_resolved",
        )
    by = ("--by", "ada@example.org")
    edited = await run_clew(
        "approve", session.id, "tool00001", "--arguments", '{"a": 5, "b": 6}', *by, address=address
    )
    assert (edited.code, edited.out, edited.err) == (0, "tool call tool00001 is approved\n", "")
    decided = [entry.payload.get("by") for entry in await session.entries(kind="approval")]
    assert decided == [getpass.getuser(), "ada@example.org"]
    note = '[a person changed this call before it ran; its arguments were {"a":5,"b":6}]'
    assert await request.answer() == f"{note}\n11 and denied: too easy"


async def test_the_only_waiting_call_needs_no_id(stack: Stack) -> None:
    """Without an id, several waiting calls are refused by their names, and the only one is decided."""
    address, session = stack.server.address, await stack.open(call_add_twice, tools=["add"], require_approval=["add"])
    request = await session.message("Add")
    await wait_for_approvals(session)
    for command in ("approve", "deny"):
        refused = await run_clew(command, session.id, address=address)
        assert read_error(refused) == (1, "unknown_approval")
        assert "name one of tool00001, tool00002" in refused.err
    await session.deny("tool00001", reason="no")
    approved = await run_clew("approve", session.id, address=address)
    assert (approved.code, approved.out) == (0, "tool call tool00002 is approved\n")
    assert await request.answer() == "denied: no and 2"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("command", "as_json"),
    mark_slow_except([("ask", True), ("chat", False)], itertools.product(("ask", "chat"), (True, False))),
)
async def test_what_waits_for_approval_is_told_beside_the_answer(stack: Stack, command: str, as_json: bool) -> None:
    """Each waiting call is reported once on stderr, with the command to approve it; stdout has only the answer."""
    model, session_id, address = stack.add_model(call_add_twice), f"approve-{command}-{as_json}", stack.server.address
    options = ("--model", model, "--tool", "add", "--require-approval", "add", *(["--json"] if as_json else []))
    text = ["Add"] if command == "ask" else []
    process = await start_command(command, session_id, *text, *options, address=address)
    assert process.stdin is not None
    assert process.stderr is not None
    if command == "chat":
        process.stdin.write(b"Add\n")
    process.stdin.close()
    notices = [(await process.stderr.readline()).decode() for _ in range(2)]
    assert notices == [
        f"tool00001 waits for approval: `clew approve {session_id} tool00001`, or deny: → add(a=40, b=2)\n",
        f"tool00002 waits for approval: `clew approve {session_id} tool00002`, or deny: → add(a=1, b=1)\n",
    ]
    for line in notices:
        approve = re.findall("`clew (.+)`", line)[0].split()
        assert (await run_clew(*approve, address=address)).code == 0
    async with asyncio.timeout(PATIENCE_SECONDS):
        out, err = await process.communicate()
    assert (process.returncode, err) == (0, b"")
    assert (json.loads(out)["answer"] if as_json else out.decode()) == "42 and 2" + ("" if as_json else "\n")


async def test_approvals_are_required_from_the_opening_on(stack: Stack) -> None:
    """--require-approval applies to the tools of a new session; for an existing one it changes nothing."""
    model, address, approve = stack.add_model("fine"), stack.server.address, "--require-approval"
    options = ("--tool", "add", approve, "add", "--tool", "flood", approve, "flood")
    opened = await run_clew("ask", "approve-opened", "hi", "--model", model, *options, address=address)
    assert (opened.code, opened.out, opened.err) == (0, "fine\n", "")
    resumed = await run_clew("ask", "approve-opened", "hi", approve, "dawdle", address=address)
    assert (resumed.code, resumed.out) == (0, "fine\n")
    assert "so --require-approval had no effect: `clew configure approve-opened --require-approval dawdle`" in (
        resumed.err
    )


async def test_an_approvals_receipt_is_json(stack: Stack) -> None:
    """The receipt is the contract's, and the entry has the reason."""
    address, session = (
        stack.server.address,
        await stack.open(call_add_twice, tools=["add"], require_approval=["add"]),
    )
    request = await session.message("Add")
    await wait_for_approvals(session)
    await session.deny("tool00002", by="ada")
    ended = await run_clew("approve", session.id, "tool00001", "--reason", "harmless", "--json", address=address)
    assert (ended.code, ended.json) == (0, {"tool_call_id": "tool00001", "decision": "approve"})
    assert (await request.answer()).startswith("42 and denied")
    listed = await run_clew("entries", session.id, "--kind", "approval", address=address)
    assert [line.split("\t")[-1] for line in listed.out.splitlines()] == [
        "deny tool00002 by ada: no reason",
        f"approve tool00001 by {getpass.getuser()}: harmless",
    ]
    (entry,) = await session.entries(kind="approval", tool_call_id="tool00001")
    assert entry.payload["reason"] == "harmless"


async def test_a_request_that_waits_for_somebody_is_waited_for(
    stack: Stack, capsys: pytest.CaptureFixture[str]
) -> None:
    """--timeout does not run during an approval: the command gives up only if no worker answers."""
    session = await stack.open(call_add_twice, tools=["add"], require_approval=["add"])
    opened = await reach.find_session(stack.clew, session.id)
    options: dict[str, Any] = {"timeout_seconds": 60, "on_busy": None, "as_json": False, "grace_seconds": -59.9}
    asking = asyncio.create_task(talk.ask_session(opened, "Add", **options))
    await wait_for_approvals(session)
    # Long enough for several looks at the worker, one every tenth of a second.
    await asyncio.sleep(0.5)
    assert not asking.done()
    await asyncio.gather(session.approve("tool00001"), session.approve("tool00002"))
    await asking
    assert capsys.readouterr().out == "42 and 2\n"
    with pytest.raises(WorkerUnavailable, match="has no outcome after its 60 s: no worker serves the session"):
        await talk.ask_session(opened, "Add", **options, worker_seconds=0)


def call_order(body: dict[str, Any]) -> Reply:
    """Order an item, and repeat the warehouse's answer."""
    newest = get_last_message(body)
    if newest["role"] == "user":
        return Reply(tool_calls=(ToolCall("order", {"item": "tea"}),))
    return Reply(f"The warehouse says: {newest['content']}")


@pytest.mark.slow
async def test_a_result_is_submitted(stack: Stack) -> None:
    """`ask` names the waiting call and the command on stderr, `status` shows it; the model reads the result."""
    model, address = stack.add_model(call_order), stack.server.address
    process = await start_command("ask", "submit", "Tea", "--model", model, "--tool", "order", address=address)
    assert process.stderr is not None
    notice = (await process.stderr.readline()).decode()
    assert notice == 'tool00001 waits for its result: `clew submit submit tool00001 TEXT`: → order(item="tea")\n'
    status = await run_clew("status", "submit", address=address)
    assert status.out.startswith("status: awaiting external\n")
    assert '\nanswer tool00001: → order(item="tea")\n' in status.out
    assert read_error(await run_clew("submit", "submit", "tool00007", "x", address=address)) == (
        1,
        "unknown_tool_call",
    )
    submitted = await run_clew("submit", "submit", "tool00001", "-", "--error", stdin="sold out\n", address=address)
    assert (submitted.code, submitted.out, submitted.err) == (
        0,
        "tool call tool00001 has its result, as entry 3\n",
        "",
    )
    again = await run_clew("submit", "submit", "tool00001", "x", address=address)
    assert read_error(again) == (1, "already_answered")
    async with asyncio.timeout(PATIENCE_SECONDS):
        out, err = await process.communicate()
    assert (out, err) == (b"The warehouse says: sold out\n", b"")
    assert (await stack.clew.session("submit").entries(from_seq=3, limit=1))[0].payload["is_error"] is True


@pytest.mark.slow
async def test_refusals_of_control(stack: Stack) -> None:
    """Each refusal has exit code 1 and the contract's word; the session does not change."""
    address, session = stack.server.address, await stack.open("fine")
    ended = await stack.open("fine")
    await asyncio.gather(session.ask("hi"), ended.ask("hi"))
    await ended.close()
    rev = (await session.status()).rev
    open_id = session.id
    orphan = '[{"role": "tool", "tool_call_id": "t", "name": "add", "content": "1"}]'
    cases: dict[tuple[str, ...], tuple[str, str]] = {
        ("steer", open_id, "hi"): ("", "idle"),
        ("inject", open_id, "hi"): ("", "idle"),
        ("steer", open_id, "-"): (" \n", "empty_content"),
        ("steer", open_id, "hi", "--input-id", ""): ("", "invalid_input"),
        ("cancel", open_id): ("", "idle"),
        ("replace", open_id, "-", "--op-id", "o"): (orphan, "invalid_operation"),
        ("replace", open_id, "-", "--op-id", "o", "--base-seq", "99"): ("[]", "invalid_operation"),
        ("replace", open_id, "-", "--op-id", "p"): ('[{"role": "stranger", "content": ""}]', "invalid_operation"),
        ("replace", open_id, "-", "--op-id", "q"): ('[{"role": "user", "content": "\\ud800"}]', "invalid_input"),
        ("replace", open_id, "-", "--op-id", "r"): ('{"messages": [], "system_prompt": 1}', "invalid_operation"),
        ("switch", open_id, "", "--op-id", "o"): ("", "invalid_input"),
        ("configure", open_id, "--model", "no-colon"): ("", "invalid_input"),
        ("approve", open_id, "tool00009"): ("", "unknown_approval"),
        ("deny", open_id, "tool00009"): ("", "unknown_approval"),
        ("approve", open_id): ("", "unknown_approval"),
        ("deny", open_id): ("", "unknown_approval"),
        ("steer", "nobody", "hi"): ("", "not_found"),
        ("cancel", ended.id): ("", "closed"),
        ("switch", ended.id, "draft", "--op-id", "o"): ("", "closed"),
    }
    answers = await asyncio.gather(
        *(run_clew(*command, stdin=stdin, address=address) for command, (stdin, _) in cases.items())
    )
    assert [read_error(answer) for answer in answers] == [(1, word) for _, word in cases.values()]
    assert (await session.status()).rev == rev
    refused = await run_clew("steer", open_id, "hi", "--json", address=address)
    assert (refused.code, refused.err, refused.json["error"]["type"]) == (1, "", "idle")


async def test_an_operation_that_got_no_answer_can_be_repeated(stack: Stack, monkeypatch: pytest.MonkeyPatch) -> None:
    """The error names the id of the operation, which the session may have accepted: with it, it is applied once."""
    address, session = stack.server.address, await stack.open()

    async def lose_the_answer(work: Coroutine[Any, Any, Any], session_id: str) -> Any:
        answer = await work
        if isinstance(answer, OperationReceipt):
            raise WorkerUnavailable(f"no worker answers for session {session_id!r}")
        return answer

    monkeypatch.setattr(reach, "wait_for_answer", lose_the_answer)
    lost = await asyncio.to_thread(CliRunner().invoke, app, ["switch", session.id, "draft", "--address", address])
    found = re.search(r"add --op-id (\S+): it is applied once", " ".join(lost.stderr.split()))
    assert found, lost.stderr
    monkeypatch.undo()
    again = await run_clew("switch", session.id, "draft", "--op-id", found[1], address=address)
    assert again.out == f"operation {found[1]} was applied before: nothing has changed\n"


async def test_another_request_is_not_steered(stack: Stack) -> None:
    """--expect and --request name a request; another one is not changed."""
    model, address = PausedModel(), stack.server.address
    session = await stack.open(model)
    request = await session.message("hi")
    await model.called.wait()
    for command in (("steer", session.id, "x", "--expect", "other"), ("cancel", session.id, "--request", "other")):
        assert read_error(await run_clew(*command, address=address)) == (1, "request_mismatch")
    model.free.set()
    assert await request.answer() == "<hi>"


@pytest.mark.parametrize(
    ("command", "stdin", "reason"),
    [
        (("replace", "s", "-", "--op-id", "o"), "{", "not valid JSON: "),
        (("replace", "s", "-", "--op-id", "o"), '[{"content": NaN}]', "NaN is not a JSON number"),
        (("replace", "s", "-", "--op-id", "o"), "[" * 100_000, "not valid JSON: "),
        (("replace", "s", "-", "--op-id", "o"), "3", "must be a list of messages, or an object"),
        (("replace", "s", "-", "--op-id", "o"), '{"messages": [], "tools": []}', "must be a list of messages, or"),
        (("replace", "s", "-", "--op-id", "o"), "[1]", "messages must be a list of objects"),
        (("replace", "s", "-", "--op-id", "o"), '{"messages": {}}', "messages must be a list of objects"),
        (("replace", "s", "-", "--op-id", "o"), b"\xff", "stdin is not UTF-8"),
        (("replace", "s", "/nowhere.json", "--op-id", "o"), "", "/nowhere.json: No such file or directory"),
        (("approve", "s", "t", "--arguments", "a=1"), "", "--arguments: not valid JSON: "),
        (("approve", "s", "t", "--arguments", "[1]"), "", "--arguments: must be a JSON object"),
        (("configure", "s"), "", "nothing to change"),
        (("configure", "s", "--changes", '{"self": 1}'), "", "self: there is no such field; the fields are "),
        (("steer", "s", "x", "--at", "once"), "", "--at"),
        (("ask", "s", "x", "--on-busy", "wait"), "", "--on-busy"),
        (("ask", "s", "x", "--provider-tool", "web"), "", "'web' is none of web_search, web_fetch, code_execution"),
        (("configure", "s", "--provider-tool", "web"), "", "'web' is none of web_search, web_fetch, code_execution"),
    ],
)
async def test_what_cannot_be_sent_is_a_usage_error(
    command: tuple[str, ...], stdin: str | bytes, reason: str
) -> None:
    """Exit code 2 and the reason on stderr, before any server is asked."""
    ended = await run_clew(*command, stdin=stdin)
    assert (ended.code, ended.out) == (2, "")
    assert reason in " ".join(ended.err.split())
    assert "Traceback" not in ended.err


async def test_control_without_a_server() -> None:
    """Exit code 3 and one line, as with all commands."""
    (port,) = free_ports(1)
    for command in (("cancel", "s"), ("approve", "s", "tool00001")):
        assert read_error(await run_clew(*command, address=f"127.0.0.1:{port}")) == (3, "server_unreachable")
