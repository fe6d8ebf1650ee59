"""A process that imports the command line once and forks a child for each command.

A command then starts in some milliseconds instead of a second. Like a process started anew, each child has its own
arguments, environment, working directory and standard streams.
"""

from __future__ import annotations

import asyncio
import atexit
import fcntl
import gc
import json
import os
import signal
import socket
import subprocess
import sys
import termios
import traceback
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import NoReturn

ROOT = Path(__file__).parents[2]


class CommandServer:
    """The connection to such a process, which it starts and which ends with this one."""

    def __init__(self, env: Mapping[str, str]) -> None:
        self._control, theirs = socket.socketpair()
        with theirs:
            self._process = subprocess.Popen(
                # Its streams are not files, as those of the commands are not: the interpreter treats files otherwise.
                (sys.executable, "-W", "error", "-m", __name__),
                cwd=ROOT,
                env=env,
                stdin=theirs.fileno(),
                stdout=theirs.fileno(),
                stderr=theirs.fileno(),
            )
        atexit.register(self._close)

    def _close(self) -> None:
        self._control.close()
        self._process.wait()

    async def run(self, arguments: Sequence[str], env: Mapping[str, str], stdin: bytes) -> tuple[int, bytes, bytes]:
        """Run a command. Returns its exit code, its output and its error output."""
        pairs = [socket.socketpair() for _ in range(3)]
        try:
            for ours, _ in pairs:
                ours.setblocking(False)
            try:
                command = await self._start(arguments, env, [theirs.fileno() for _, theirs in pairs])
            finally:
                for _, theirs in pairs:
                    theirs.close()
            typed, out, err = (ours for ours, _ in pairs)
            code, _, output, errors = await asyncio.gather(
                command.wait(), _write_all(typed, stdin), _read_all(out), _read_all(err)
            )
            return code, output, errors
        finally:
            for ours, _ in pairs:
                ours.close()

    async def start_on_terminal(self, arguments: Sequence[str], env: Mapping[str, str], terminal: int) -> Command:
        """Start a command whose standard streams and controlling terminal are a file."""
        return await self._start(arguments, env, [terminal] * 3, on_terminal=True)

    async def _start(
        self, arguments: Sequence[str], env: Mapping[str, str], streams: Sequence[int], **options: bool
    ) -> Command:
        ours, theirs = socket.socketpair()
        with theirs:
            ours.setblocking(False)
            socket.send_fds(self._control, [b"x"], [theirs.fileno(), *streams])
        request = {"arguments": arguments, "env": dict(env), "folder": os.getcwd(), **options}
        try:
            await asyncio.get_running_loop().sock_sendall(ours, json.dumps(request).encode() + b"\n")
            return Command(await _read_number(ours), ours)
        except BaseException:
            ours.close()
            raise


class Command:
    """A command that runs."""

    def __init__(self, pid: int, reply: socket.socket) -> None:
        self._pid = pid
        self._ended = asyncio.create_task(self._wait(reply))

    async def _wait(self, reply: socket.socket) -> int:
        with reply:
            return await _read_number(reply)

    async def wait(self) -> int:
        """Wait for the end; returns the exit code."""
        return await asyncio.shield(self._ended)

    def send_signal(self, number: int) -> None:
        """Send a signal, unless the command has ended."""
        if not self._ended.done():
            with suppress(ProcessLookupError):
                os.kill(self._pid, number)


async def _read_number(connection: socket.socket) -> int:
    line = b""
    while not line.endswith(b"\n"):
        byte = await asyncio.get_running_loop().sock_recv(connection, 1)
        if not byte:
            raise EOFError("the process that starts commands has ended")
        line += byte
    return int(line)


async def _read_all(connection: socket.socket) -> bytes:
    chunks = []
    while chunk := await asyncio.get_running_loop().sock_recv(connection, 65536):
        chunks.append(chunk)
    return b"".join(chunks)


async def _write_all(connection: socket.socket, data: bytes) -> None:
    with suppress(ConnectionError):  # a command need not read its input
        await asyncio.get_running_loop().sock_sendall(connection, data)
    connection.close()


def serve(control: socket.socket) -> None:
    """Fork a process for each command, until the other side of `control` is closed."""
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # the kernel collects the children
    while True:
        byte, files, _, _ = socket.recv_fds(control, 1, 4)
        if not byte:
            return
        if os.fork() == 0:
            control.close()
            _attend(*files)
        for file in files:
            os.close(file)


def _attend(reply: int, *streams: int) -> NoReturn:
    """Run a command in a child process, and reply with its process id and then with its exit code."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    with socket.socket(fileno=reply) as connection:
        with connection.makefile() as lines:
            request = json.loads(lines.readline())
        child = os.fork()
        if child == 0:
            connection.close()
            _run(request["arguments"], request["env"], request["folder"], streams, request.get("on_terminal", False))
        for file in streams:
            os.close(file)
        connection.sendall(f"{child}\n".encode())
        _, status = os.waitpid(child, 0)
        connection.sendall(f"{os.waitstatus_to_exitcode(status)}\n".encode())
    os._exit(0)


def _run(
    arguments: list[str], env: dict[str, str], folder: str, streams: Sequence[int], on_terminal: bool
) -> NoReturn:
    from clew.cli import main  # noqa: PLC0415 - imported only by the server's process

    try:
        os.environ.clear()
        os.environ.update(env)
        os.chdir(folder)
        for standard, file in enumerate(streams):
            os.dup2(file, standard)
            os.close(file)
        if on_terminal:
            _take_terminal()
        main(arguments)
    except BaseException:
        traceback.print_exc()
        sys.stderr.flush()
    os._exit(1)


def _take_terminal() -> None:
    """Make the terminal the controlling one, so that a Ctrl-C typed there becomes a signal.

    The interpreter makes the standard streams anew, as it does when it starts on a terminal.
    """
    os.setsid()
    fcntl.ioctl(0, termios.TIOCSCTTY, 0)
    for number, name, mode, errors in (
        (0, "stdin", "r", "strict"),
        (1, "stdout", "w", "strict"),
        (2, "stderr", "w", "backslashreplace"),
    ):
        stream = open(number, mode, 1, encoding="utf-8", errors=errors, closefd=False)  # noqa: SIM115
        setattr(sys, name, stream)
        setattr(sys, f"__{name}__", stream)


if __name__ == "__main__":
    # The children inherit what is imported and made here: the commands, and what some of them import when they run.
    import typer.main

    import clew.operators  # noqa: F401
    import clew_activities.worker.process  # noqa: F401
    from clew.cli.app import app

    get_command = cache(typer.main.get_command)
    setattr(typer.main, "get_command", get_command)  # noqa: B010 - a module has no such attribute for type checkers
    get_command(app)
    # A child that looked for garbage among it would copy all of it.
    gc.collect()
    gc.freeze()
    serve(socket.socket(fileno=os.dup(0)))
