"""Child processes within limits: each limit ends them, and what they wrote until then is read."""

from __future__ import annotations

import asyncio
import time
from dataclasses import replace
from pathlib import Path

import pytest

from clew.child_process import Limits, run_child
from tests.support.processes import is_running
from tests.support.waiting import wait_until

LIMITS = Limits(memory_bytes=512 * 1024 * 1024, cpu_seconds=5, seconds=20)


def write(folder: Path, *lines: str) -> str:
    """Write the file of a child."""
    file = folder / "child.py"
    file.write_text("\n".join(("import os, sys", *lines)))
    return str(file)


async def test_a_child_answers(tmp_path: Path) -> None:
    """It reads its input, has the variables, and writes its output, of any size up to the limit."""
    file = write(tmp_path, "data = sys.stdin.buffer.read()", "print(os.environ['ANSWER'], len(data), end='')")
    assert await run_child(file, bytes(3_000_000), LIMITS, {"ANSWER": "42"}) == b"42 3000000"


@pytest.mark.parametrize(
    ("lines", "limits"),
    [
        (("while True: pass",), replace(LIMITS, cpu_seconds=1)),
        (("sys.stdin.read()", "import signal", "signal.pause()"), replace(LIMITS, seconds=1)),
        (("keep = [bytearray(1 << 20) for _ in range(4096)]",), LIMITS),
        (("os.kill(os.getpid(), 9)",), LIMITS),
    ],
    ids=["CPU time", "time", "memory", "a crash"],
)
async def test_a_limit_ends_a_child(tmp_path: Path, lines: tuple[str, ...], limits: Limits) -> None:
    """What it wrote before is read. It is gone afterwards, whether or not it has read its input."""
    file = write(tmp_path, "print(os.getpid(), flush=True)", *lines, "print('never')")
    begun = time.monotonic()
    output = await run_child(file, bytes(1_000_000), limits)
    assert time.monotonic() - begun < 15
    assert output.strip().isdigit()
    assert not is_running(output.decode().strip())


async def test_too_much_output_is_none(tmp_path: Path) -> None:
    """A child cannot fill the memory of its parent."""
    file = write(tmp_path, "sys.stdin.read()", "while True: print('x' * 100_000)")
    assert await run_child(file, b"", replace(LIMITS, output_bytes=1_000_000)) == b""


async def test_a_child_ends_with_its_caller(tmp_path: Path) -> None:
    """A cancelled caller kills it."""
    started = tmp_path / "started"
    file = write(
        tmp_path,
        f"with open({str(started)!r} + '.new', 'w') as file: file.write(str(os.getpid()))",
        f"os.rename({str(started)!r} + '.new', {str(started)!r})",
        "import signal",
        "signal.pause()",
    )
    caller = asyncio.create_task(run_child(file, b"", LIMITS))
    await wait_until(started.exists)
    caller.cancel()
    with pytest.raises(asyncio.CancelledError):
        await caller
    await wait_until(lambda: not is_running(started.read_text()))


async def test_a_child_dumps_no_memory(tmp_path: Path) -> None:
    """A crash writes no core file: it would have the bytes of a user's file."""
    file = write(tmp_path, "import resource", "print(resource.getrlimit(resource.RLIMIT_CORE))")
    assert await run_child(file, b"", LIMITS) == b"(0, 0)\n"
