"""Remote and external tools, declared in Python and in JSON."""

from __future__ import annotations

from typing import Any

import pytest

from clew.tools import ExternalTool, RemoteTool, external_tool, make_tool, remote_tool

PARAMETERS: dict[str, Any] = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
EXTERNAL: dict[str, Any] = {"name": "ask", "description": "Asks.", "parameters": PARAMETERS, "external": True}
REMOTE: dict[str, Any] = {"name": "look", "description": "Looks.", "parameters": PARAMETERS, "task_queue": "ts"}


def test_an_external_tool_in_json_is_the_one_in_python() -> None:
    """Absent fields have the function's defaults."""
    written = external_tool("ask", "Asks.", PARAMETERS)
    read = make_tool(EXTERNAL)
    assert isinstance(read, ExternalTool)
    assert vars(read) == vars(written)
    assert make_tool(EXTERNAL | {"timeout_seconds": 5, "requires_approval": True}).timeout_seconds == 5


def test_a_remote_tool_in_json_is_the_one_in_python() -> None:
    """The activity has the tool's name by default."""
    written = remote_tool("look", "Looks.", PARAMETERS, task_queue="ts")
    read = make_tool(REMOTE)
    assert isinstance(read, RemoteTool)
    assert vars(read) == vars(written)
    assert read.activity == "look"
    settings: dict[str, Any] = {"activity": "LookUp", "timeout_seconds": 5, "retries": 2, "requires_approval": True}
    made = make_tool(REMOTE | settings)
    assert {name: getattr(made, name) for name in settings} == settings


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"name": "a b"}, "1 to 64 letters"),
        ({"parameters": {"type": "string"}}, "type 'object'"),
        ({"parameters": {"type": "object", "x": float("nan")}}, "no JSON Schema"),
        ({"parameters": {"type": "object", "$ref": "#"}}, "too costly"),
        ({"task_queue": ""}, "task_queue has"),
        ({"activity": "x" * 201}, "activity has"),
        ({"timeout_seconds": 0}, "timeout"),
        ({"timeout_seconds": float("nan")}, "finite"),
        ({"retries": 1, "idempotent": False}, "cannot be retried"),
        ({"external": True}, "either"),
        ({"timeout": 5}, "timeout: there is no such field .did you mean timeout_seconds"),
        ({"description": 5}, "description: "),
    ],
)
def test_a_malformed_declaration_is_refused(changes: dict[str, Any], problem: str) -> None:
    """The error names the tool's problem."""
    with pytest.raises(TypeError, match=problem):
        make_tool(REMOTE | changes)


def test_external_must_be_true() -> None:
    """`false` is no third kind of tool."""
    with pytest.raises(TypeError, match="external"):
        make_tool(EXTERNAL | {"external": False})
