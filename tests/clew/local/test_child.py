"""Child processes answer before they are used and never outlive the process that started them."""

import asyncio
import os
import signal
import socket
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import pytest

from clew.local.child import LOOPBACK, StartFailed, accepts_connections, child_process, free_ports

TIMEOUT = 20

# Connects to the test that waits for it, sends its name, and stays until it is killed.
SLEEPER = """
import os, signal, socket, sys
signal.signal(signal.SIGTERM, signal.SIG_IGN)
signal.signal(signal.SIGINT, signal.SIG_IGN)
line = socket.create_connection(("127.0.0.1", int(sys.argv[1])))
line.sendall(b"%d\\n" % os.getpid())
signal.pause()
"""

# Owns a sleeper, as the demo owns its servers.
OWNER = """
import asyncio, sys
from clew.local.child import child_process

async def main():
    async with child_process("sleeper", [sys.executable, "-c", sys.argv[2], sys.argv[1]], grace_seconds=0):
        await asyncio.Event().wait()

asyncio.run(main())
"""


@asynccontextmanager
async def waiting_line() -> AsyncIterator[tuple[int, "asyncio.Queue[asyncio.StreamReader]"]]:
    """A port to call, and the calls that came. A call ends when the caller is gone, not a moment before."""
    calls: asyncio.Queue[asyncio.StreamReader] = asyncio.Queue()
    writers: list[asyncio.StreamWriter] = []

    def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writers.append(writer)
        calls.put_nowait(reader)

    server = await asyncio.start_server(accept, "127.0.0.1", 0)
    try:
        yield server.sockets[0].getsockname()[1], calls
    finally:
        server.close()
        for writer in writers:
            writer.close()
        await server.wait_closed()


async def hang_up(call: asyncio.StreamReader) -> bool:
    """Whether the caller went away."""
    with suppress(ConnectionError):
        async with asyncio.timeout(TIMEOUT):
            await call.read()
    return call.at_eof() or call.exception() is not None


def sleeper(port: int) -> list[str | Path]:
    return [sys.executable, "-c", SLEEPER, str(port)]


async def test_the_pid_is_the_commands_own() -> None:
    """What `pid` names is the program itself, so that killing it kills the program and nothing else."""
    async with waiting_line() as (port, calls), child_process("sleeper", sleeper(port)) as child:
        async with asyncio.timeout(TIMEOUT):
            call = await calls.get()
        assert int(await call.readline()) == child.pid
        await child.kill()
        assert await hang_up(call)
        assert child.process.returncode == -signal.SIGKILL


async def test_a_child_ends_with_its_context_even_when_it_ignores_sigterm() -> None:
    """Leaving the context ends the child, politely first and then for certain."""
    async with waiting_line() as (port, calls):
        async with child_process("sleeper", sleeper(port), grace_seconds=0.1):
            async with asyncio.timeout(TIMEOUT):
                call = await calls.get()
            await call.readline()
        assert await hang_up(call)


async def test_a_child_ends_with_an_exception_in_its_context() -> None:
    """An error in the middle of things leaves nothing running."""
    async with waiting_line() as (port, calls):

        async def fail() -> None:
            async with child_process("sleeper", sleeper(port), grace_seconds=0.1):
                async with asyncio.timeout(TIMEOUT):
                    raise ZeroDivisionError(await calls.get())

        with pytest.raises(ZeroDivisionError) as caught:
            await fail()
        assert await hang_up(caught.value.args[0])


@pytest.mark.slow
@pytest.mark.parametrize(
    "how", [signal.SIGKILL, *(pytest.param(one, marks=pytest.mark.slow) for one in (signal.SIGINT, signal.SIGTERM))]
)
async def test_a_child_ends_with_its_owner_however_the_owner_ends(how: signal.Signals) -> None:
    """No server is left behind by a parent that was interrupted, terminated or killed outright."""
    async with waiting_line() as (port, calls):
        owner = await asyncio.create_subprocess_exec(
            *(sys.executable, "-c", OWNER, str(port), SLEEPER),
            stderr=asyncio.subprocess.DEVNULL,
        )
        async with asyncio.timeout(TIMEOUT):
            call = await calls.get()
        pid = int(await call.readline())
        assert pid not in (owner.pid, os.getpid())
        owner.send_signal(how)
        assert await hang_up(call)
        assert await owner.wait() != 0


async def test_a_child_that_dies_at_the_start_tells_why() -> None:
    """The error carries the last lines that the process wrote."""
    command = [sys.executable, "-c", "raise SystemExit('no such thing')"]
    with pytest.raises(StartFailed, match=r"(?s)broken ended with 1.*no such thing"):
        async with child_process("broken", command) as child:
            await child.wait_until(never, TIMEOUT)


async def test_a_child_that_never_gets_ready_is_given_up() -> None:
    """Waiting has an end."""
    async with child_process("slow", ["sleep", "600"]) as child:
        with pytest.raises(StartFailed, match="slow not ready after"):
            await child.wait_until(never, 0.1)


async def test_a_child_that_has_ended_is_not_ready_although_its_port_answers() -> None:
    """Another process may have taken the port, and serve somebody else."""

    async def ready() -> bool:
        await child.process.wait()
        return True

    async with child_process("beaten", [sys.executable, "-c", "raise SystemExit('address already in use')"]) as child:
        with pytest.raises(StartFailed, match="address already in use"):
            await child.wait_until(ready, TIMEOUT)


async def test_a_program_that_does_not_exist_is_a_failed_start() -> None:
    """A missing program ends the child at once, with a line in its log."""
    with pytest.raises(StartFailed, match="cannot run no-such-program: No such file"):
        async with child_process("nobody", ["no-such-program"]) as child:
            await child.wait_until(never, TIMEOUT)


async def test_free_ports_are_different_and_free() -> None:
    """Ports that are found together differ, and no process listens on them."""
    ports = free_ports(20)
    assert len(set(ports)) == 20
    assert not any([await accepts_connections(port) for port in ports])


def test_a_free_port_is_given_to_no_other_process() -> None:
    """Only a socket that asks for it as servers do can have it; the system gives it to none that asks for any."""
    for port in free_ports(20):
        with socket.socket() as other, pytest.raises(OSError, match="in use"):
            other.bind((LOOPBACK, port))
        with socket.create_server((LOOPBACK, port)):
            pass


async def never() -> bool:
    return False
