"""Child processes that log to a file and end with this process."""

import asyncio
import os
import socket
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import ExitStack, asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

LOOPBACK = "127.0.0.1"
_LEASH = Path(__file__).with_name("leash.py")
_FIRST_POLL_SECONDS = 0.02
_SLOWEST_POLL_SECONDS = 0.25
_LAST_OUTPUT_SECONDS = 1.0
_COPY_BYTES = 65536
_TAIL_LINES = 20
_STOP_SECONDS = 25.0
"""Seconds in which a worker finishes its calls."""


class StartFailed(RuntimeError):
    """A part did not start. The message ends with the last lines of its log."""


@dataclass(frozen=True)
class Child:
    """A running child process.

    Attributes:
        name: The part's name.
        process: The process.
        log: Its log file; deleted when the context ends.
    """

    name: str
    process: asyncio.subprocess.Process
    log: Path

    @property
    def pid(self) -> int:
        """The process id of the command itself."""
        return self.process.pid

    @property
    def running(self) -> bool:
        """Whether the process has not ended yet."""
        return self.process.returncode is None

    async def wait_for_end(self) -> int:
        """Wait until the process has ended, and return its exit status."""
        return await self.process.wait()

    async def kill(self) -> None:
        """Send SIGKILL and wait for the process to end, as if the machine lost power."""
        if self.running:
            self.process.kill()
        await self.process.wait()

    async def stop(self, grace_seconds: float = _STOP_SECONDS) -> None:
        """Send SIGTERM, and SIGKILL if the process still runs after `grace_seconds`."""
        if self.running:
            self.process.terminate()
            with suppress(TimeoutError):
                async with asyncio.timeout(grace_seconds):
                    await self.process.wait()
        await self.kill()

    def read_log_tail(self) -> str:
        """Return the last lines of the log."""
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-_TAIL_LINES:])

    async def wait_until(self, ready: Callable[[], Awaitable[bool]], timeout_seconds: float) -> None:
        """Poll `ready` until it returns true.

        Raises:
            StartFailed: The process ended, or was not ready in time.
        """
        deadline = time.monotonic() + timeout_seconds
        pause = _FIRST_POLL_SECONDS
        while True:
            is_ready = await ready()
            # Also if it seems to be ready: another process may answer at its port.
            if not self.running:
                raise StartFailed(f"{self.name} ended with {self.process.returncode}:\n{self.read_log_tail()}")
            if is_ready:
                return
            if time.monotonic() > deadline:
                raise StartFailed(f"{self.name} not ready after {timeout_seconds:g} s:\n{self.read_log_tail()}")
            await asyncio.sleep(pause)
            pause = min(pause * 1.5, _SLOWEST_POLL_SECONDS)


@asynccontextmanager
async def child_process(
    name: str,
    command: Sequence[str | Path],
    *,
    env: Mapping[str, str] | None = None,
    folder: Path | None = None,
    on_output: Callable[[bytes], None] | None = None,
    grace_seconds: float = 5.0,
) -> AsyncIterator[Child]:
    """Run `command` for as long as the context lasts.

    Args:
        name: The part's name, in the log file's name and in errors.
        command: The program and its arguments.
        env: The child's complete environment; None: this process's own.
        folder: The child's current folder; None: this process's own.
        on_output: Gets a copy of all output, as it is written to the log.
        grace_seconds: Seconds between SIGTERM and SIGKILL when the context ends.

    Yields:
        The child, started but not necessarily ready: see `Child.wait_until`.
    """
    with tempfile.TemporaryDirectory(prefix=f"clew-{name}-", ignore_cleanup_errors=True) as scratch:
        log = Path(scratch, f"{name}.log")
        watched, held = os.pipe()
        output = os.open(log, os.O_WRONLY | os.O_CREAT)
        try:
            process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-I", "-S", _LEASH, str(watched), *command),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=output if on_output is None else asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.STDOUT,
                env=env,
                cwd=folder,
                pass_fds=[watched],
            )
            child = Child(name, process, log)
            copying = asyncio.create_task(_copy_output(process.stdout, output, on_output))
            try:
                yield child
            finally:
                await child.stop(grace_seconds)
                # A grandchild that still runs may hold the pipe open.
                await asyncio.wait([copying], timeout=_LAST_OUTPUT_SECONDS)
                copying.cancel()
        finally:
            for descriptor in (output, watched, held):
                os.close(descriptor)


async def _copy_output(
    stream: asyncio.StreamReader | None, log: int, on_output: Callable[[bytes], None] | None
) -> None:
    while stream is not None and (data := await stream.read(_COPY_BYTES)):
        os.write(log, data)
        if on_output is not None:
            on_output(data)


def free_ports(count: int) -> list[int]:
    """Find `count` different TCP ports of loopback that a server can listen on.

    No other process is given one of them meanwhile when it asks for any free port: each has had a connection, which
    the system remembers for some time after its end. Servers listen all the same, with SO_REUSEADDR.
    """
    with ExitStack() as stack:
        listeners = [stack.enter_context(socket.create_server((LOOPBACK, 0))) for _ in range(count)]
        for listener in listeners:
            with socket.create_connection(listener.getsockname()):
                # The side that closes first is the one that is remembered.
                listener.accept()[0].close()
        return [listener.getsockname()[1] for listener in listeners]


def is_taken(port: int) -> bool:
    """Whether a TCP port of loopback cannot be listened on at this moment."""
    with socket.socket() as listener:
        # Servers set this option too: connections that have just been closed do not take the port.
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind((LOOPBACK, port))
        except OSError:
            return True
    return False


async def accepts_connections(port: int) -> bool:
    """Whether a process on loopback accepts TCP connections at `port`."""
    try:
        _, writer = await asyncio.open_connection(LOOPBACK, port)
    except OSError:
        return False
    writer.close()
    await writer.wait_closed()
    return True


__all__ = ["LOOPBACK", "Child", "StartFailed", "accepts_connections", "child_process", "free_ports", "is_taken"]
