"""The installed package: a client with light dependencies, and module names of this project only."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parent.parent

INSPECT = """
import importlib.metadata, json, sys
names = sorted(dist.metadata["Name"].lower() for dist in importlib.metadata.distributions())
files = [str(file) for file in importlib.metadata.files("clew")]
import clew
loaded = sorted({name.partition(".")[0] for name in sys.modules})
print(json.dumps({"names": names, "files": files, "loaded": loaded, "home": clew.__file__}))
"""

USE = """
from clew import ContextPolicy, ToolContext, tool
from clew.thread import Thread
from clew.context import build_context

@tool
def add(a: int, context: ToolContext, b: int = 2) -> int:
    "The sum."
    return a + b

assert add.spec["description"] == "The sum."
assert build_context(Thread(), policy=ContextPolicy.long_context()).messages == []
"""


def run(*command: str | Path, **options: Any) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=120, **options)


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Install this project into an empty environment; the value is its interpreter."""
    home = tmp_path_factory.mktemp("backend")
    assert run(sys.executable, "-m", "venv", "--without-pip", home).returncode == 0
    python = home / "bin" / "python"
    options = ("--disable-pip-version-check", "--no-input", "--quiet")
    installed = run(sys.executable, "-m", "pip", "--python", python, "install", *options, ROOT)
    assert installed.returncode == 0, installed.stderr
    return python


def in_environment(python: Path, script: str) -> str:
    """Run a script outside the checkout, with warnings as errors; returns its output."""
    ran = run(python, "-I", "-W", "error", "-c", script, cwd=python.parent)
    assert ran.returncode == 0, ran.stderr
    return ran.stdout


def test_a_backend_gets_the_package_alone(python: Path) -> None:
    """It installs `clew` with types, the Temporal SDK, pydantic and rfc8785: no HTTP client, no tokenizer.

    The top-level names are `clew` and four names that begin with `clew_`.
    """
    environment = json.loads(in_environment(python, INSPECT))
    assert {"clew", "temporalio", "pydantic", "rfc8785"} <= set(environment["names"])
    assert not {"httpx", "requests", "tiktoken", "bpe-openai", "typer", "rich", "pytest"} & set(environment["names"])
    assert len(environment["names"]) <= 15, environment["names"]
    tops = {Path(file).parts[0] for file in environment["files"]} - {".."}
    assert {top for top in tops if not top.endswith(".dist-info")} == {
        "clew",
        "clew_activities",
        "clew_audit",
        "clew_pytest",
        "clew_workflows",
    }
    assert "clew/py.typed" in environment["files"]
    assert not {"httpx", "tiktoken", "typer", "rich", "jsonschema_rs"} & set(environment["loaded"])
    assert not {"clew_workflows", "clew_activities", "clew_audit"} & set(environment["loaded"])
    assert ROOT not in Path(environment["home"]).parents


def test_the_package_works_there(python: Path) -> None:
    """A tool can be made and a context built without further dependencies."""
    in_environment(python, USE)


def test_the_command_names_the_missing_extra(python: Path) -> None:
    """Without the extra `cli`, the command prints the `pip install` line and no traceback."""
    ran = run(python.parent / "clew", "status", "some-session", cwd=python.parent)
    assert ran.returncode == 1
    assert "pip install 'clew[cli]'" in ran.stderr
    assert "Traceback" not in ran.stderr
