"""The commands that control a session: effects, receipts, refusals."""

from __future__ import annotations

import asyncio
import json
import re
import uuid
from pathlib import Path

import pytest

from tests.support.command_line import read_error, run_clew
from tests.support.scripts import PausedModel
from tests.support.stack import Stack


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
    while not (await session.status()).queued_messages:
        pass
    steering = asyncio.create_task(run_clew("ask", session.id, "three", "--on-busy", "steer", address=address))
    while not (await session.status()).pending_inputs:
        pass
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
