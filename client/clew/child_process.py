"""Child processes that read what came from outside, each within limits of memory and time."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

_START = Path(__file__).with_name("limited_process.py")


@dataclass(frozen=True, slots=True)
class Limits:
    """The limits of a child process.

    Attributes:
        memory_bytes: Its address space, in bytes. macOS does not enforce it.
        cpu_seconds: Its CPU time, in seconds.
        seconds: Its wall-clock time, in seconds; longer than the CPU time, for a machine under load.
        output_bytes: The most that is read of its output, in bytes.
    """

    memory_bytes: int
    cpu_seconds: int
    seconds: int
    output_bytes: int = 16 * 1024 * 1024


async def run_child(file: str, data: bytes, limits: Limits, env: Mapping[str, str] | None = None) -> bytes:
    """Run a Python file in a child process. Returns what it wrote before it or a limit ended it.

    It ends with this process, and is killed if the caller is cancelled. What it writes beyond its limit is nothing.

    Args:
        file: The file, which reads standard input and writes standard output.
        data: Its input.
        limits: Its limits.
        env: Variables beside those of this process.
    """
    child = _start_child(file, limits, env)
    # In a thread, which ends with the child: asyncio's subprocesses hang if cancelled at their start.
    talking = asyncio.get_running_loop().run_in_executor(None, _talk, child, data, limits.output_bytes)
    try:
        # Shielded: a thread that is cancelled before it has started would not wait for the killed child.
        return await asyncio.shield(talking)
    finally:
        child.kill()


def _start_child(file: str, limits: Limits, env: Mapping[str, str] | None) -> subprocess.Popen[bytes]:
    numbers = map(str, (limits.memory_bytes, limits.cpu_seconds, limits.seconds))
    return subprocess.Popen(
        # -P: modules in that file's folder must not shadow the standard library.
        [sys.executable, "-P", str(_START), *numbers, file],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env={**os.environ, **(env or {})},
        # Ctrl-C in a terminal must reach the parent alone.
        start_new_session=True,
    )


def _talk(child: subprocess.Popen[bytes], data: bytes, output_bytes: int) -> bytes:
    """Give the child its input, and read what it writes within the limit. It reads all of it before it writes."""
    output = b""
    # A child that a limit has ended reads no more of its input.
    with suppress(OSError), child:
        try:
            if child.stdin and child.stdout:
                with suppress(OSError):
                    child.stdin.write(data)
                    child.stdin.close()
                output = child.stdout.read(output_bytes + 1)
        finally:
            child.kill()
    return output if len(output) <= output_bytes else b""
