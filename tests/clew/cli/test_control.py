"""The commands that control a session: effects, receipts, refusals."""

from __future__ import annotations

import asyncio
import json
import re
from pathlib import Path
from typing import Any

import pytest

from clew import Session
from clew.cli import reach, talk
from clew.errors import WorkerUnavailable
from clew.local import Reply, ToolCall
from clew.local.child import free_ports
from tests.support.command_line import PATIENCE_SECONDS, open_terminal, read_error, run_clew, start_command
from tests.support.stack import Stack, get_last_message


class PausedModel:
    """A model that sets `called`, waits for `free`, and repeats the last message."""

    def __init__(self) -> None:
        self.called, self.free = asyncio.Event(), asyncio.Event()

    async def __call__(self, body: dict[str, Any]) -> Reply:
        self.called.set()
        await self.free.wait()
        return Reply(f"<{get_last_message(body)['content']}>")


def call_add_twice(body: dict[str, Any]) -> Reply:
    """A model that calls `add` twice in one round, and then repeats the results."""
    if get_last_message(body)["role"] == "user":
        return Reply("", (ToolCall("add", {"a": 40, "b": 2}), ToolCall("add", {"a": 1, "b": 1})))
    results = [message["content"] for message in body["messages"] if message["role"] == "tool"]
    return Reply(" and ".join(results))


async def wait_for_approvals(session: Session) -> None:
    """Wait until the session waits for approvals."""
    while not (await session.status()).pending_approvals:
        pass


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
    assert "\napprove tool-1?: → add(a=40, b=2)\napprove tool-2?: → add(a=1, b=1)\n" in status.out
    refused = await run_clew("approve", session.id, "tool-1", "--arguments", '{"a": "x"}', address=address)
    assert read_error(refused) == (1, "invalid_input")
    denied = await run_clew("deny", session.id, "tool-2", "--reason", "too easy", "--json", address=address)
    assert (denied.code, denied.err, denied.json) == (0, "", {"tool_call_id": "tool-2", "decision": "deny"})
    for command in ("approve", "deny"):
        assert read_error(await run_clew(command, session.id, "tool-2", address=address)) == (1, "already_resolved")
    edited = await run_clew("approve", session.id, "tool-1", "--arguments", '{"a": 5, "b": 6}', address=address)
    assert (edited.code, edited.out, edited.err) == (0, "tool call tool-1 is approved\n", "")
    note = '[a person changed this call before it ran; its arguments were {"a":5,"b":6}]'
    assert await request.answer() == f"{note}\n11 and denied: too easy"


def order(body: dict[str, Any]) -> Reply:
    """Order an item, and repeat the warehouse's answer."""
    newest = get_last_message(body)
    if newest["role"] == "user":
        return Reply(tool_calls=(ToolCall("order", {"item": "tea"}),))
    return Reply(f"The warehouse says: {newest['content']}")


async def test_a_result_is_submitted(stack: Stack) -> None:
    """`ask` names the waiting call and the command on stderr, `status` shows it; the model reads the result."""
    model, address = stack.add_model(order), stack.server.address
    process = await start_command("ask", "submit", "Tea", "--model", model, "--tool", "order", address=address)
    assert process.stderr is not None
    notice = (await process.stderr.readline()).decode()
    assert notice == 'tool-1 waits for its result: `clew submit submit tool-1 TEXT`: → order(item="tea")\n'
    status = await run_clew("status", "submit", address=address)
    assert status.out.startswith("status: awaiting external\n")
    assert '\nanswer tool-1: → order(item="tea")\n' in status.out
    assert read_error(await run_clew("submit", "submit", "tool-7", "x", address=address)) == (1, "unknown_tool_call")
    submitted = await run_clew("submit", "submit", "tool-1", "-", "--error", stdin="sold out\n", address=address)
    assert (submitted.code, submitted.out, submitted.err) == (0, "tool call tool-1 has its result, as entry 3\n", "")
    again = await run_clew("submit", "submit", "tool-1", "x", address=address)
    assert read_error(again) == (1, "already_answered")
    out, err = await asyncio.wait_for(process.communicate(), PATIENCE_SECONDS)
    assert (out, err) == (b"The warehouse says: sold out\n", b"")
    assert (await stack.clew.session("submit").entries(from_seq=3, limit=1))[0].payload["is_error"] is True


@pytest.mark.parametrize("command", ["ask", "chat"])
@pytest.mark.parametrize("as_json", [True, False])
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
        f"tool-1 waits for approval: `clew approve {session_id} tool-1`, or deny: → add(a=40, b=2)\n",
        f"tool-2 waits for approval: `clew approve {session_id} tool-2`, or deny: → add(a=1, b=1)\n",
    ]
    for line in notices:
        approve = re.findall("`clew (.+)`", line)[0].split()
        assert (await run_clew(*approve, address=address)).code == 0
    out, err = await asyncio.wait_for(process.communicate(), PATIENCE_SECONDS)
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
    assert resumed.err.endswith("--model, --system, --tool and --require-approval only apply to new sessions\n")


async def test_an_approvals_receipt_is_json(stack: Stack) -> None:
    """The receipt is the contract's, and the entry has the reason."""
    address, session = (
        stack.server.address,
        await stack.open(call_add_twice, tools=["add"], require_approval=["add"]),
    )
    request = await session.message("Add")
    await wait_for_approvals(session)
    await session.deny("tool-2")
    ended = await run_clew("approve", session.id, "tool-1", "--reason", "harmless", "--json", address=address)
    assert (ended.code, ended.json) == (0, {"tool_call_id": "tool-1", "decision": "approve"})
    assert (await request.answer()).startswith("42 and denied")
    listed = await run_clew("entries", session.id, "--kind", "approval", address=address)
    assert [line.split("\t")[-1] for line in listed.out.splitlines()] == [
        "deny tool-2: no reason",
        "approve tool-1: harmless",
    ]
    (entry,) = await session.entries(kind="approval", tool_call_id="tool-1")
    assert entry.payload["reason"] == "harmless"


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


async def test_a_request_that_waits_for_somebody_is_waited_for(
    stack: Stack, capsys: pytest.CaptureFixture[str]
) -> None:
    """--timeout does not run during an approval: the command gives up only if no worker answers."""
    session = await stack.open(call_add_twice, tools=["add"], require_approval=["add"])
    opened = await reach.find_session(stack.clew, session.id)
    options: dict[str, Any] = {"timeout_seconds": 60, "on_busy": None, "as_json": False, "grace_seconds": -59.9}
    asking = asyncio.create_task(talk.ask(opened, "Add", **options))
    await wait_for_approvals(session)
    # Long enough for several looks at the worker, one every tenth of a second.
    await asyncio.sleep(0.5)
    assert not asking.done()
    await asyncio.gather(session.approve("tool-1"), session.approve("tool-2"))
    await asking
    assert capsys.readouterr().out == "42 and 2\n"
    with pytest.raises(WorkerUnavailable, match="has no outcome after its 60 s: no worker serves the session"):
        await talk.ask(opened, "Add", **options, worker_seconds=0)


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
        ("approve", open_id, "tool-9"): ("", "unknown_approval"),
        ("deny", open_id, "tool-9"): ("", "unknown_approval"),
        ("steer", "nobody", "hi"): ("", "closed"),
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
        (("replace", "s", "-"), "[]", "--op-id"),
        (("switch", "s", "draft"), "", "--op-id"),
        (("approve", "s", "t", "--arguments", "a=1"), "", "--arguments: not valid JSON: "),
        (("approve", "s", "t", "--arguments", "[1]"), "", "--arguments: must be a JSON object"),
        (("configure", "s"), "", "nothing to change"),
        (("configure", "s", "--changes", '{"self": 1}'), "", "'self' is not a field; the fields are model,"),
        (("steer", "s", "x", "--at", "once"), "", "--at"),
        (("ask", "s", "x", "--on-busy", "wait"), "", "--on-busy"),
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
    for command in (("cancel", "s"), ("approve", "s", "tool-1")):
        assert read_error(await run_clew(*command, address=f"127.0.0.1:{port}")) == (3, "server_unreachable")


async def test_control_from_within_a_conversation(stack: Stack) -> None:
    """After Ctrl-C: approve the waiting calls, rejoin the reply; steer another request, cancel it."""
    model, resumed = PausedModel(), asyncio.Event()

    async def script(body: dict[str, Any]) -> Reply:
        if get_last_message(body)["role"] == "tool":
            await resumed.wait()
        return await model(body) if get_last_message(body)["content"] == "slowly" else call_add_twice(body)

    session = await stack.open(script, tools=["add"], require_approval=["add"])
    async with open_terminal("chat", session.id, address=stack.server.address) as screen:
        await screen.wait_for("> ")
        screen.type("Add\n")
        await screen.wait_for(f"[tool-1 waits for approval: `clew approve {session.id} tool-1`, or deny]")
        screen.type("\x03")
        await screen.wait_for("/cancel cancels it")
        await screen.wait_for("> ")
        screen.type("/status\n")
        await screen.wait_for("approve tool-1?  → add(a=40, b=2)")
        await screen.wait_for("> ")
        screen.type("/approve tool-1\n")
        await screen.wait_for("tool-1 is approved")
        await screen.wait_for("> ")
        screen.type("/deny tool-2 too easy\n")
        await screen.wait_for("tool-2 is denied")
        await screen.wait_for("> ")
        screen.type("/wait\n")
        await screen.wait_for("waiting for the model")
        resumed.set()
        await screen.wait_for("42 and denied: too easy")
        await screen.wait_for("> ")
        screen.type("slowly\n")
        await screen.wait_for("waiting for the model")
        screen.type("\x03")
        await screen.wait_for("> ")
        screen.type("/steer only the last one\n")
        await screen.wait_for("is number 1 in the queue")
        await screen.wait_for("> ")
        screen.type("/cancel enough\n")
        await screen.wait_for("is cancelled")
        await screen.wait_for("> ")
        screen.type("/steer too late\n")
        await screen.wait_for("idle: ")
        await screen.wait_for("> ")
        screen.type("\x04")
        assert await screen.wait_for_end() == 0
    model.free.set()
    assert "Traceback" not in screen.screen


async def test_control_in_a_piped_conversation(stack: Stack) -> None:
    """With --json each receipt and each refusal is a line; text after an unknown slash word is a message."""
    model = PausedModel()
    session = await stack.open(model)
    served = await session.message("hi", request_id="r-1")
    await model.called.wait()
    ended = await run_clew(
        *("chat", session.id, "--json"),
        stdin="/steer more\n/cancel\n/deny tool-1\n",
        address=stack.server.address,
    )
    steered, cancelled, refused = ended.lines
    assert (steered["request_id"], steered["position"]) == ("r-1", 1)
    assert cancelled == {"request_id": "r-1", "cancelled": True}
    assert refused["error"]["type"] == "unknown_approval"
    assert (ended.code, (await served.result()).status) == (1, "cancelled")
    model.free.set()
    texts = await run_clew("chat", session.id, stdin="/etc is a folder\n", address=stack.server.address)
    assert (texts.code, texts.out) == (0, "</etc is a folder>\n")


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
