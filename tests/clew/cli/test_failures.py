"""Failures are reported in one line, within seconds, with an exit code."""

from __future__ import annotations

import asyncio
import signal
import socket
import sys
import uuid
from http import HTTPStatus
from typing import Any

import pytest

from clew import Clew
from clew.cli import reach
from clew.errors import ServerUnreachable, WorkerUnavailable
from clew.local import Reply
from clew.local.child import free_ports
from clew_workflows.contract.extras import name_install
from tests.support.command_line import make_environment, read_error, run_clew, start_command
from tests.support.stack import Stack

READING = ("status", "transcript", "context", "entries")


async def test_without_a_server_every_command_says_how_to_start_one() -> None:
    """Exit code 3 within seconds, with the address and without a stack trace; with --json as an object."""
    (port,) = free_ports(1)
    address = f"127.0.0.1:{port}"
    commands = [("ask", "s", "hi", "--model", "a:b"), ("chat", "s"), ("entries", "s")]
    for ended in await asyncio.gather(*(run_clew(*command, address=address) for command in commands)):
        assert read_error(ended) == (3, "server_unreachable")
        assert f"no Temporal server answers at {address} (Connection refused)" in ended.err
        assert f"start one, for example with `temporal server start-dev --port {port}`" in ended.err
    ended = await run_clew("status", "s", "--address", address, "--json")
    assert (ended.code, ended.err, ended.json["error"]["type"]) == (3, "", "server_unreachable")


async def test_a_server_that_says_nothing_is_none() -> None:
    """A server that accepts connections and never answers is reported within seconds."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = f"127.0.0.1:{silent.getsockname()[1]}"
        with pytest.raises(ServerUnreachable, match=rf"at {address} \(no answer within 0.2 s\): start one"):
            await reach.connect(reach.Target(address, None, "clew"), seconds=0.2)


async def test_without_a_worker_nobody_waits(stack: Stack) -> None:
    """Exit code 3 before any message is sent, for new sessions and for those on a task queue without a worker."""
    deserted = Clew(stack.clew.temporal, "deserted")
    session = await deserted.open(f"deserted-{uuid.uuid4().hex}", model="scripted:any")
    asking = [("ask", "new", "hi", "--model", "scripted:any", "--task-queue", "deserted"), ("ask", session.id, "hi")]
    commands = [*asking, ("chat", session.id), *((name, session.id) for name in READING)]
    for ended in await asyncio.gather(*(run_clew(*command, address=stack.server.address) for command in commands)):
        assert read_error(ended) == (3, "worker_unavailable")
        assert "no worker polls the task queue 'deserted': start one with " in ended.err
        assert "`clew worker --task-queue deserted`" in ended.err
    ended = await run_clew("status", session.id, "--json", address=stack.server.address)
    assert (ended.code, ended.json["error"]["type"]) == (3, "worker_unavailable")


async def test_a_worker_that_is_only_remembered_is_none() -> None:
    """The server lists a killed worker for minutes; the command reports it within seconds."""
    with pytest.raises(WorkerUnavailable, match="no worker answers for session 's'"):
        await reach.wait_for_answer(asyncio.Event().wait(), "s", seconds=0.01)


async def test_refusals_and_failures(stack: Stack) -> None:
    """Exit code 1 and the contract's word, for refusals and for failed requests."""
    address = stack.server.address
    session = await stack.open(lambda _body: Reply("you [red]may not[/]\x1b[2J", status=HTTPStatus.BAD_REQUEST))
    cases: dict[tuple[str, ...], str] = {
        ("ask", session.id, " "): "empty_content",
        ("ask", session.id, "hi"): "bad_request",
        ("ask", "not an id", "hi"): "invalid_input",
        ("ask", "new", "hi", "--model", "no-colon"): "invalid_input",
        ("ask", f"new-{uuid.uuid4().hex}", "hi", "--model", "nobody:here"): "unknown_model",
        ("ask", "nobody", "hi"): "not_found",
        ("chat", "nobody"): "not_found",
        ("context", session.id, "--call", "call-99"): "invalid_input",
        **{(name, "nobody"): "not_found" for name in READING},
    }
    answers = await asyncio.gather(*(run_clew(*command, address=address) for command in cases))
    assert [read_error(ended) for ended in answers] == [(1, word) for word in cases.values()]
    assert answers[1].err == "bad_request: you [red]may not[/]\n"
    assert "there is no session 'nobody'" in answers[5].err


async def test_a_failed_requests_json_is_its_outcome(stack: Stack) -> None:
    """The JSON is the contract's outcome; it has `error` exactly if there is no answer."""
    session = await stack.open(lambda _body: Reply("not today", status=HTTPStatus.BAD_REQUEST))
    ended = await run_clew("ask", session.id, "hi", "--json", address=stack.server.address)
    assert (ended.code, ended.err) == (1, "")
    assert ended.json["status"] == "failed"
    assert ended.json["error"] == {"type": "bad_request", "message": "not today", "retryable": False}
    refused = await run_clew("ask", session.id, "", "--json", address=stack.server.address)
    assert (refused.code, list(refused.json), list(refused.json["error"])) == (1, ["error"], ["type", "message"])


async def test_a_busy_session_refuses(stack: Stack) -> None:
    """A second message is refused with `busy`, and the first one is answered."""
    free = asyncio.Event()

    async def slow(_body: dict[str, Any]) -> Reply:
        await free.wait()
        return Reply("done")

    session = await stack.open(slow)
    request = await session.message("hi")
    assert read_error(await run_clew("ask", session.id, "me too", address=stack.server.address)) == (1, "busy")
    free.set()
    assert await request.answer() == "done"


async def test_a_request_fails_when_its_time_is_over(stack: Stack) -> None:
    """--timeout ends the request itself, with `timeout`."""

    async def silence(_body: dict[str, Any]) -> Reply:
        await asyncio.Event().wait()
        raise AssertionError

    session = await stack.open(silence)
    ended = await run_clew("ask", session.id, "hi", "--timeout", "1", address=stack.server.address)
    assert read_error(ended) == (1, "timeout")
    assert (await session.status()).request_id is None


@pytest.mark.slow
async def test_a_session_that_has_ended_is_read_and_taken_up_again(stack: Stack) -> None:
    """Its thread can be read, `steer` is refused with `closed`, and `ask` resumes it."""
    session = await stack.open("fine")
    await session.ask("hi")
    await session.close()
    read = await run_clew("transcript", session.id, address=stack.server.address)
    assert (read.code, read.out) == (0, "user  #1\nhi\n\nassistant  #2\nfine\n")
    ended = await run_clew("steer", session.id, "hi", address=stack.server.address)
    assert read_error(ended) == (1, "closed")
    again = await run_clew("ask", session.id, "hi", address=stack.server.address)
    assert (again.code, again.out) == (0, "fine\n")


async def test_a_namespace_or_a_workflow_that_is_not_clews(stack: Stack) -> None:
    """An unknown namespace counts as no server; another program's workflow is refused."""
    ended = await run_clew("status", "s", "--namespace", "nowhere", address=stack.server.address)
    assert read_error(ended) == (3, "server_unreachable")
    assert "no namespace 'nowhere'" in ended.err
    await stack.clew.temporal.start_workflow("Stranger", id="stranger", task_queue="none")
    ended = await run_clew("status", "stranger", address=stack.server.address)
    assert read_error(ended) == (1, "invalid_input")
    assert "is a Stranger, not a session" in ended.err


async def test_what_cannot_be_used_is_a_usage_error() -> None:
    """Exit code 2 for an invalid command line, stdin that is not UTF-8, and an invalid Temporal configuration."""
    usage, number, scheme, binary, profile = await asyncio.gather(
        run_clew("frobnicate"),
        run_clew("transcript", "s", "--limit", "0"),
        run_clew("status", "s", "--address", "http://localhost:7233"),
        run_clew("ask", "s", "-", stdin=b"\xff\xfe"),
        run_clew("status", "s", TEMPORAL_PROFILE="absent"),
    )
    assert [ended.code for ended in (usage, number, scheme, binary, profile)] == [2] * 5
    assert "without a scheme" in scheme.err
    assert "stdin is not UTF-8" in binary.err
    assert (
        profile.err
        == "misconfigured: Temporal's environment configuration is not valid: Profile 'absent' not found\n"
    )


@pytest.mark.slow
async def test_ctrl_c_ends_quietly_and_the_request_goes_on(stack: Stack) -> None:
    """Exit code 130 and no output; the request is answered."""
    called, free = asyncio.Event(), asyncio.Event()

    async def slow(_body: dict[str, Any]) -> Reply:
        called.set()
        await free.wait()
        return Reply("at last")

    session = await stack.open(slow)
    process = await start_command("ask", session.id, "hi", address=stack.server.address)
    await called.wait()
    process.send_signal(signal.SIGINT)
    assert await process.communicate() == (b"", b"")
    assert process.returncode == 130
    running = (await session.status()).request_id
    assert running
    free.set()
    assert await session.request(running).answer() == "at last"


@pytest.mark.slow
@pytest.mark.parametrize("missing", ["typer", pytest.param("rich", marks=pytest.mark.slow)])
async def test_without_the_extra_the_command_says_what_to_install(missing: str) -> None:
    """One line and exit code 1, no ImportError."""
    program = f"import sys; sys.modules[{missing!r}] = None; from clew.cli import main; main(['status', 's'])"
    missed = f"the command line needs typer, rich and prompt_toolkit: {name_install('cli')}\n"
    assert await python(program) == (1, "", missed)


@pytest.mark.slow
async def test_importing_clew_does_not_load_the_command_line() -> None:
    """`import clew` imports neither typer nor rich."""
    program = "import clew, sys; print(sorted({'typer', 'rich', 'clew.cli'} & set(sys.modules)))"
    assert await python(program) == (0, "[]\n", "")


async def python(program: str) -> tuple[int | None, str, str]:
    """Run a Python program; its exit code, stdout and stderr."""
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-W", "error", "-c", program), stdout=pipe, stderr=pipe, env=make_environment()
    )
    out, err = await process.communicate()
    return process.returncode, out.decode(), err.decode()
