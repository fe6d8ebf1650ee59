"""The tools of a worker: which modules and files it takes, and what is wrong with the others."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from clew import tool
from clew.tools import external_tool
from clew_activities.tools.registry import ToolsUnusable, load_tools


@pytest.fixture
def modules(monkeypatch: pytest.MonkeyPatch) -> Callable[..., str]:
    """Makes modules that can be imported for as long as a test runs."""

    def make(name: str, **contents: Any) -> str:
        module = ModuleType(name)
        vars(module).update(contents)
        monkeypatch.setitem(sys.modules, name, module)
        return name

    return make


@tool
def one() -> None: ...


@tool
def two() -> None: ...


@tool(name="one")
def another_one() -> None: ...


def test_tools_are_found_by_their_own_names(modules: Callable[..., str]) -> None:
    """In every module named; one that two modules share is one tool."""
    first, second = modules("first_tools", uno=one, other=1), modules("second_tools", one=one, two=two, uno=one)
    assert load_tools([first, second]) == {"one": one, "two": two}
    assert load_tools([]) == {}


def test_two_tools_of_one_name_are_refused(modules: Callable[..., str]) -> None:
    """In two modules and in one alike: which of them a model gets would be chance."""
    first, second = modules("first_tools", one=one), modules("second_tools", one=another_one)
    with pytest.raises(ToolsUnusable, match="two tools are called 'one'"):
        load_tools([first, second])
    with pytest.raises(ToolsUnusable, match="two tools are called 'one'"):
        load_tools([modules("both_tools", one=one, another=another_one)])


def test_a_module_without_tools_is_refused(modules: Callable[..., str]) -> None:
    """A module without tools is refused."""
    with pytest.raises(ToolsUnusable, match="'no_tools' defines no tool"):
        load_tools([modules("no_tools", a=1, function=print)])


@pytest.mark.parametrize(
    ("name", "source", "reason"),
    [
        ("there_is_none", None, "No module named 'there_is_none'"),
        (".relative", None, "cannot be imported"),
        ("broken_tools", "def", "SyntaxError"),
        ("raising_tools", "1 / 0", "ZeroDivisionError"),
        ("needy_tools", "import what_is_not_installed", "what_is_not_installed"),
        ("script_tools", "raise SystemExit('usage: ...')", "SystemExit"),
    ],
)
def test_a_module_that_cannot_be_imported_is_told(
    name: str, source: str | None, reason: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A module that cannot be imported is refused with its name and the reason."""
    monkeypatch.syspath_prepend(str(tmp_path))
    if source:
        (tmp_path / f"{name}.py").write_text(source)
    with pytest.raises(ToolsUnusable, match=reason) as caught:
        load_tools([name])
    assert repr(name) in str(caught.value)


DECLARED = {"name": "ask", "description": "", "parameters": {"type": "object"}, "external": True}


def test_declarations_are_read_from_a_file(tmp_path: Path, modules: Callable[..., str]) -> None:
    """Beside those of modules, under the same rule for names."""
    file = tmp_path / "tools.json"
    file.write_text(json.dumps([DECLARED]))
    assert set(load_tools([str(file), modules("first_tools", one=one)])) == {"ask", "one"}
    file.write_text(json.dumps([DECLARED, DECLARED]))
    with pytest.raises(ToolsUnusable, match="two tools are called 'ask'"):
        load_tools([str(file)])


@pytest.mark.parametrize(
    "text",
    [None, "", "{", "{}", "[1]", "[{}]", "[" * 5000, json.dumps([DECLARED | {"parameters": {"type": "thing"}}])],
    ids=lambda text: str(text)[:10],
)
def test_a_file_that_cannot_be_used_is_named(text: str | None, tmp_path: Path) -> None:
    """It is no list of declarations, or is not there."""
    file = tmp_path / "tools.json"
    if text is not None:
        file.write_text(text)
    with pytest.raises(ToolsUnusable, match=re.escape(str(file))):
        load_tools([str(file)])


def test_parameters_are_valid_json_schema(modules: Callable[..., str]) -> None:
    """Those that an author has written are compiled when the worker starts."""
    broken = external_tool("ask", "", {"type": "object", "properties": {"a": {"type": "integer", "minimum": "x"}}})
    with pytest.raises(ToolsUnusable, match="parameters of tool 'ask' are not valid JSON Schema"):
        load_tools([modules("broken_schema", ask=broken)])
