"""Run a program of the checkout to its end, within a time limit."""

import os
import sys
from asyncio import create_subprocess_exec, subprocess, timeout
from collections.abc import Mapping
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


async def run_module(
    name: str, *arguments: str, seconds: float, typed: str = "", env: Mapping[str, str] | None = None
) -> tuple[int | None, str]:
    """Run a module with `typed` on its standard input; returns its exit status and its output.

    The environment is that of this process without the `TEMPORAL_` variables, plus `env`.

    Raises:
        TimeoutError: It ran longer than `seconds`; it has been killed.
    """
    inherited = {key: value for key, value in os.environ.items() if not key.startswith("TEMPORAL_")}
    process = await create_subprocess_exec(
        *(sys.executable, "-m", name, *arguments),
        cwd=ROOT,
        env={**inherited, **(env or {})},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )
    try:
        async with timeout(seconds):
            output, _ = await process.communicate(typed.encode())
    except TimeoutError:
        process.kill()
        await process.communicate()
        raise
    return process.returncode, output.decode()
