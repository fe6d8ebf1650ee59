"""The command `llm`, as a user runs it, with a folder of settings of its own."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from pathlib import Path

from tests.support.waiting import PATIENCE_SECONDS


def make_llm_environment(folder: Path, key: str) -> dict[str, str]:
    """Make the environment of the command, with the settings in a folder, and `key` as its key `clew`."""
    (folder / "keys.json").write_text(json.dumps({"clew": key}))
    # The local model of the tests is a plugin whose own dependencies are not installed.
    return {**os.environ, "LLM_USER_PATH": str(folder), "LLM_LOAD_PLUGINS": ""}


async def run_llm(folder: Path, key: str, *arguments: str) -> str:
    """Run the command in that environment, and return what it prints."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "llm", *arguments),
        env=make_llm_environment(folder, key),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    async with asyncio.timeout(PATIENCE_SECONDS):
        printed, errors = await process.communicate()
    assert process.returncode == 0, errors.decode()
    return printed.decode().strip()
