"""The modules of `clew` that need the extra `worker`: the worker, the operators' functions, tests of agents."""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.command_line import hide_worker_extra

MODULES = {"clew.worker": "worker", "clew.operators": "worker", "clew.testing": "testing"}
"""The modules, and the extra that each names."""


@pytest.mark.parametrize("name", MODULES)
def test_with_the_extra_every_exported_name_exists(name: str) -> None:
    """`__all__` is sorted, and every name in it can be imported."""
    module = importlib.import_module(name)
    assert sorted(module.__all__) == module.__all__
    assert all(hasattr(module, member) for member in module.__all__)


@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    ["clew.worker", *(pytest.param(name, marks=pytest.mark.slow) for name in MODULES if name != "clew.worker")],
)
def test_without_the_extra_the_error_names_what_to_install(name: str, tmp_path: Path) -> None:
    """The client itself can be imported, and imports neither module."""
    script = (
        f"import clew, importlib\ntry: importlib.import_module({name!r})\nexcept ImportError as error: print(error)"
    )
    ran = subprocess.run(
        [sys.executable, "-c", script],
        env=os.environ | hide_worker_extra(tmp_path),
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert not ran.stderr
    assert f"pip install 'clew[{MODULES[name]}]'" in ran.stdout


@pytest.mark.slow
def test_the_module_starts_the_worker() -> None:
    """`python -m clew.worker` is the worker's command line."""
    ran = subprocess.run(
        [sys.executable, "-m", "clew.worker", "--help"], capture_output=True, text=True, check=False, timeout=60
    )
    assert ran.returncode == 0
    assert "--tools" in ran.stdout
