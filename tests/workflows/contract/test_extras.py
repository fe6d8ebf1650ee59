"""The extras, as errors and pages name them."""

from __future__ import annotations

import json
import re
import sys
import tomllib
from importlib.machinery import ModuleSpec
from pathlib import Path

import pytest

from clew_workflows.contract import extras
from clew_workflows.contract.extras import name_extra, name_install
from tests.support.command_line import hide_modules, run_clew

ROOT = Path(__file__).parents[3]
NAMED = re.compile(r"(?:name_(?:extra|install)\(|ExtraMissing\([\w.]+, )[\"']([a-z,-]+)[\"']\)")
WRITTEN = re.compile(r"clew\[[a-z][a-z,-]*\](?P<source> @ git\+https://)?")
NOWHERE = "127.0.0.1:1"
ENCRYPTION = {"CLEW_ENCRYPTION_KEYS": "one:AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8="}
LIVE = {"CLEW_LIVE": f"redis://{NOWHERE}"}
TRACES = {"OTEL_EXPORTER_OTLP_ENDPOINT": f"http://{NOWHERE}"}
CASES = [
    ("worker", {"CLEW_MCP": "mcp.json"}, "mcp", ("mcp",)),
    ("worker", {"CLEW_BEDROCK_REGION": "us-east-1"}, "bedrock", ("botocore",)),
    ("worker", TRACES, "telemetry", ("opentelemetry.sdk", "opentelemetry.exporter")),
    ("worker", ENCRYPTION, "encryption", ("cryptography",)),
    ("worker", LIVE, "live", ("redis",)),
    ("serve", LIVE, "live", ("redis",)),
    ("serve", TRACES, "telemetry", ("opentelemetry.sdk", "opentelemetry.exporter")),
]
"""The command, the variables, the extra that they need, and the modules that it brings.

What the extra `encryption` brings is a dependency of `serve`, too.
"""


def list_sources() -> list[Path]:
    """List the modules of the package."""
    return [
        path for folder in ("client", "workflows", "activities", "audit") for path in (ROOT / folder).rglob("*.py")
    ]


@pytest.mark.parametrize(
    ("has_pip", "command"),
    [
        (True, "'/my env/python' -m pip install 'clew[mcp]'"),
        (False, "uv pip install 'clew[mcp]' --python '/my env/python'"),
    ],
)
def test_the_command_is_about_the_environment_of_the_process(
    has_pip: bool, command: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also when it is not activated, and when it has no pip."""
    monkeypatch.setattr(sys, "executable", "/my env/python")
    monkeypatch.setattr(extras, "find_spec", lambda name: ModuleSpec(name, None) if has_pip else None)
    assert name_install("mcp") == command
    assert name_extra("mcp") in command


def test_each_message_names_an_extra_that_there_is() -> None:
    """A message of the package writes no command of its own: `clew[…]` stands in `extras.py` alone."""
    known = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    sources = {path: path.read_text() for path in list_sources()}
    named = {extra for text in sources.values() for extra in NAMED.findall(text)}
    assert {"cli", "worker"} <= named
    assert named <= set(known)
    assert [path for path, text in sources.items() if WRITTEN.search(text)] == []


def test_pages_name_the_repository_beside_an_extra() -> None:
    """No index has Clew: `clew[…]` of a page or an example has `@ git+https://…`, for a new environment."""
    pages = [ROOT / "README.md", *(ROOT / "docs").rglob("*.md"), *(ROOT / "examples").rglob("*.md")]
    pages += (ROOT / "examples").rglob("pyproject.toml")
    written = [match for page in pages for match in WRITTEN.finditer(page.read_text())]
    assert written
    assert [match[0] for match in written if not match["source"]] == []


@pytest.mark.slow
@pytest.mark.parametrize(("command", "variables", "extra", "modules"), CASES, ids=lambda value: str(value)[:30])
async def test_a_variable_that_needs_an_extra_is_refused_at_the_start(
    tmp_path: Path, command: str, variables: dict[str, str], extra: str, modules: tuple[str, ...]
) -> None:
    """One line names the variable, the extra and the command that installs it; no server is asked before."""
    (tmp_path / "mcp.json").write_text(json.dumps({"mcpServers": {}}))
    (tmp_path / "keys.toml").write_text("")
    settings = {"CLEW_STORE": str(tmp_path), "CLEW_SERVE_KEYS": str(tmp_path / "keys.toml")}
    named = {name: str(tmp_path / value) if value == "mcp.json" else value for name, value in variables.items()}
    ended = await run_clew(
        command, address=NOWHERE, **settings, **named, **hide_modules(tmp_path, *modules), PYTHONWARNINGS="error"
    )
    assert ended.code in (1, 2)
    (line,) = ended.err.splitlines()
    (variable,) = variables
    assert f"{variable} needs the extra `{extra}`: {name_install(extra)}" in line
    assert ended.out == ""
