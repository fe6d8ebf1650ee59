"""The environment with the clients and the suites of others, and programs that run in it."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Mapping
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
ENVIRONMENTS = ROOT / ".venv"
PROGRAMS = ROOT / "tests" / "peers" / "programs"


async def run_program(
    *args: str | Path, environ: Mapping[str, str], seconds: float, environment: str = "clients"
) -> tuple[int, str]:
    """Run Python of that environment, or of another one of `make client-suites`.

    Returns its status and what it printed. Skips the test where `make client-suites` has not been run.
    """
    home = ENVIRONMENTS / environment
    if not (home / ".ready").exists():
        pytest.skip("make client-suites installs the packages of others")
    process = await asyncio.create_subprocess_exec(
        home / "bin" / "python", *args,
        env={**os.environ, **environ}, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT,
    )  # fmt: skip
    async with asyncio.timeout(seconds):
        printed, _ = await process.communicate()
    assert process.returncode is not None
    return process.returncode, printed.decode()
