"""The two modules of `clew` that need the extra `worker`: the worker, and the operators' functions."""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.command_line import without_worker_extra

DOORS = ("clew.worker", "clew.operators")


@pytest.mark.parametrize("door", DOORS)
def test_what_a_door_offers_is_sorted_and_there(door: str) -> None:
    """With the extra `worker` installed, every name can be imported."""
    module = importlib.import_module(door)
    assert sorted(module.__all__) == module.__all__
    assert all(hasattr(module, name) for name in module.__all__)


@pytest.mark.parametrize("door", DOORS)
def test_without_the_extra_a_door_says_what_to_install(door: str, tmp_path: Path) -> None:
    """The client itself works there, and imports neither."""
    script = (
        f"import clew, importlib\ntry: importlib.import_module({door!r})\nexcept ImportError as error: print(error)"
    )
    ran = subprocess.run(
        [sys.executable, "-c", script],
        env=os.environ | without_worker_extra(tmp_path),
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert not ran.stderr
    assert "pip install 'clew[worker]'" in ran.stdout


def test_the_worker_starts_by_its_door() -> None:
    """`python -m clew.worker` is the worker's command line."""
    ran = subprocess.run(
        [sys.executable, "-m", "clew.worker", "--help"], capture_output=True, text=True, check=False, timeout=60
    )
    assert ran.returncode == 0
    assert "--tools" in ran.stdout
