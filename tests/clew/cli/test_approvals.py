"""The commands that approve, deny and answer tool calls, and what a waiting command reports."""

from __future__ import annotations

import asyncio
import getpass
import json
import re
from typing import Any

import pytest

from clew.cli import reach, talk
from clew.errors import WorkerUnavailable
from clew.local import Reply, ToolCall
from tests.support.command_line import read_error, run_clew, start_command
from tests.support.scripts import call_add_twice, wait_for_approvals
from tests.support.stack import Stack, get_last_message
from tests.support.waiting import PATIENCE_SECONDS


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


@pytest.mark.parametrize(
    ("command", "as_json"),
    [
        ("ask", True),
        ("chat", False),
        pytest.param("ask", False, marks=pytest.mark.slow),
        pytest.param("chat", True, marks=pytest.mark.slow),
    ],
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
    asking = asyncio.create_task(talk.ask(opened, "Add", **options))
    await wait_for_approvals(session)
    # Long enough for several looks at the worker, one every tenth of a second.
    await asyncio.sleep(0.5)
    assert not asking.done()
    await asyncio.gather(session.approve("tool00001"), session.approve("tool00002"))
    await asking
    assert capsys.readouterr().out == "42 and 2\n"
    with pytest.raises(WorkerUnavailable, match="has no outcome after its 60 s: no worker serves the session"):
        await talk.ask(opened, "Add", **options, worker_seconds=0)


def call_order(body: dict[str, Any]) -> Reply:
    """Order an item, and repeat the warehouse's answer."""
    newest = get_last_message(body)
    if newest["role"] == "user":
        return Reply(tool_calls=(ToolCall("order", {"item": "tea"}),))
    return Reply(f"The warehouse says: {newest['content']}")


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
    out, err = await asyncio.wait_for(process.communicate(), PATIENCE_SECONDS)
    assert (out, err) == (b"The warehouse says: sold out\n", b"")
    assert (await stack.clew.session("submit").entries(from_seq=3, limit=1))[0].payload["is_error"] is True
