"""What a backend gets from `pip install`: a client with light dependencies, and names that are the project's own."""

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
    """The interpreter of an empty environment into which this project was installed."""
    home = tmp_path_factory.mktemp("backend")
    assert run(sys.executable, "-m", "venv", "--without-pip", home).returncode == 0
    python = home / "bin" / "python"
    options = ("--disable-pip-version-check", "--no-input", "--quiet")
    installed = run(sys.executable, "-m", "pip", "--python", python, "install", *options, ROOT)
    assert installed.returncode == 0, installed.stderr
    return python


def in_environment(python: Path, script: str) -> str:
    """What a script prints there, run far from the checkout, with every warning an error."""
    ran = run(python, "-I", "-W", "error", "-c", script, cwd=python.parent)
    assert ran.returncode == 0, ran.stderr
    return ran.stdout


def test_a_backend_gets_the_package_alone(python: Path) -> None:
    """`clew`, typed, and the Temporal SDK, pydantic and a JSON form beside it: no HTTP client, no tokenizer.

    Nothing is installed under a name that another library may have.
    """
    found = json.loads(in_environment(python, INSPECT))
    assert {"clew", "temporalio", "pydantic", "rfc8785"} <= set(found["names"])
    assert not {"httpx", "requests", "tiktoken", "bpe-openai", "typer", "rich", "pytest"} & set(found["names"])
    assert len(found["names"]) <= 15, found["names"]
    tops = {Path(file).parts[0] for file in found["files"]} - {".."}
    assert {top for top in tops if not top.endswith(".dist-info")} == {
        "clew",
        "clew_activities",
        "clew_audit",
        "clew_workflows",
    }
    assert "clew/py.typed" in found["files"]
    assert not {"httpx", "tiktoken", "typer", "rich", "jsonschema_rs"} & set(found["loaded"])
    assert not {"clew_workflows", "clew_activities", "clew_audit"} & set(found["loaded"])
    assert ROOT not in Path(found["home"]).parents


def test_the_package_works_there(python: Path) -> None:
    """Tools are made and threads projected with nothing but what was installed."""
    in_environment(python, USE)


def test_the_command_says_what_it_needs(python: Path) -> None:
    """Without its extra it is a line with the remedy, and no traceback."""
    ran = run(python.parent / "clew", "status", "some-session", cwd=python.parent)
    assert ran.returncode == 1
    assert "pip install 'clew[cli]'" in ran.stderr
    assert "Traceback" not in ran.stderr
