"""Run a program of the checkout to its end, which is never later than its time."""

import os
import sys
from asyncio import create_subprocess_exec, subprocess, timeout
from collections.abc import Mapping

from deploy.local.child import ROOT


async def run_module(
    name: str, *arguments: str, seconds: float, typed: str = "", env: Mapping[str, str] | None = None
) -> tuple[int | None, str]:
    """The exit status and all that was printed, when `typed` comes through a pipe.

    The environment is this process's own, without what it says of Temporal, and with `env`.

    Raises:
        TimeoutError: It took longer; it is killed then, and whatever it had started ends with it.
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
