"""Control commands that fail: refusals of the session, usage errors, no server."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Coroutine
from typing import Any

import pytest
from typer.testing import CliRunner

from clew.cli import reach
from clew.cli.app import app
from clew.errors import WorkerUnavailable
from clew.local.child import free_ports
from clew_workflows.contract.receipts import OperationReceipt
from tests.support.command_line import read_error, run_clew
from tests.support.scripts import PausedModel
from tests.support.stack import Stack


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
        (("configure", "s", "--changes", '{"self": 1}'), "", "'self' is not a field; the fields are "),
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
    for command in (("cancel", "s"), ("approve", "s", "tool00001")):
        assert read_error(await run_clew(*command, address=f"127.0.0.1:{port}")) == (3, "server_unreachable")
