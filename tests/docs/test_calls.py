"""The calls of Python and the options of commands on the pages: each name in them is one that the code has."""

from __future__ import annotations

import ast
import importlib
import inspect
import re
import shlex
import subprocess
import textwrap
from collections.abc import Iterator
from functools import cache
from itertools import takewhile
from pathlib import Path
from typing import Any, Unpack, get_args, get_origin, get_type_hints

import pytest
from pydantic import BaseModel
from typer.main import get_command

from clew.cli.app import app
from clew.local.temporal import temporal_command
from clew_activities.worker.process import make_parser
from tests.docs.test_names import ALL
from tests.support.page_code import list_blocks

MODULES = (
    *("clew", "clew.local", "clew.testing", "clew.schedules", "clew.tools", "clew.context", "clew.contract"),
    *("clew.content", "clew.hooks", "clew.serve", "clew.ag_ui", "clew.worker"),
)
"""The modules whose public names pages import."""
VARIABLES = {
    "clew": "clew.Clew",
    "request": "clew.Request",
    "schedules": "clew.schedules.Schedules",
    "session": "clew.Session",
    "branch": "clew.Session",
}
"""The names that pages give to objects, each with its class."""
OF_OTHERS = {"Worker", "session.post", "session.get", "request.headers", "request.json", "request.body"}
"""Calls of pages of what other libraries have under the same names."""


def list_code(page: Path) -> Iterator[str]:
    """List the pieces of Python on a page: blocks, and code within sentences."""
    text = page.read_text(encoding="utf-8")
    yield from re.findall(r"^```python\n(.*?)^```", text, re.DOTALL | re.MULTILINE)
    yield from re.findall(r"`([^`\n]+)`", re.sub(r"^```.*?^```", "", text, flags=re.DOTALL | re.MULTILINE))


def list_calls(page: Path) -> Iterator[ast.Call]:
    """List the calls in the Python of a page."""
    for code in list_code(page):
        try:
            tree = ast.parse(textwrap.dedent(code.replace("…", "...")))
        except SyntaxError:
            continue
        others = set(list_names_of_others(tree))
        for node in ast.walk(tree):
            if isinstance(node, ast.Call) and not (isinstance(node.func, ast.Name) and node.func.id in others):
                yield node


def list_names_of_others(tree: ast.AST) -> Iterator[str]:
    """List the names that code imports from other packages, which may have them, too."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] != "clew":
            yield from (alias.asname or alias.name for alias in node.names)


@cache
def find_public(name: str) -> Any:
    """Find what a name means that pages import from one of the modules; None: it is none of them."""
    for module in map(importlib.import_module, MODULES):
        if name in getattr(module, "__all__", ()) and name != "workflow":
            return getattr(module, name)
    return None


def find_called(call: ast.Call) -> tuple[str, Any] | None:
    """Find what a call calls, with its name; None: it is nothing of Clew's, as far as the page says."""
    match call.func:
        case ast.Name(id=name) if name not in OF_OTHERS:
            found = find_public(name)
            return (name, found) if callable(found) else None
        case ast.Attribute(value=ast.Name(id=owner), attr=name) if f"{owner}.{name}" not in OF_OTHERS:
            if owner in VARIABLES:
                module, _, kind = VARIABLES[owner].rpartition(".")
                cls = getattr(importlib.import_module(module), kind)
                return f"{owner}.{name}", getattr(cls, name, None)
            if inspect.isclass(cls := find_public(owner)):
                return f"{owner}.{name}", getattr(cls, name, None)
    return None


def list_parameters(called: Any) -> set[str] | None:
    """List the names that a call can give; None: any."""
    if inspect.isclass(called) and issubclass(called, BaseModel):
        return set(called.model_fields)
    if inspect.isclass(called) and issubclass(called, Exception):
        return None
    names: set[str] = set()
    function = called.__init__ if inspect.isclass(called) else called
    for parameter in inspect.signature(called).parameters.values():
        if parameter.kind is not inspect.Parameter.VAR_KEYWORD:
            names.add(parameter.name)
            continue
        hint = get_type_hints(function, include_extras=True).get(parameter.name)
        if get_origin(hint) is not Unpack:
            return None
        names |= set(get_type_hints(get_args(hint)[0]))
    return names


@pytest.mark.parametrize("page", ALL, ids=lambda page: page.name)
def test_every_call_on_a_page_is_one_of_the_code(page: Path) -> None:
    """A method that a page calls exists, and it has the parameters that the page names."""
    wrong = []
    for call in list_calls(page):
        if (found := find_called(call)) is None:
            continue
        name, called = found
        if called is None:
            wrong.append(f"{name}: there is no such function")
            continue
        if not callable(called) or (known := list_parameters(called)) is None:
            continue
        wrong += [f"{name}({keyword.arg}=…)" for keyword in call.keywords if keyword.arg and keyword.arg not in known]
    assert wrong == []


# Options of commands.


@cache
def list_options() -> dict[str, set[str]]:
    """The options of each command, by its words."""

    def walk(words: tuple[str, ...], command: Any) -> Iterator[tuple[str, set[str]]]:
        yield " ".join(words), {option for each in command.params for option in (*each.opts, *each.secondary_opts)}
        for name, inner in getattr(command, "commands", {}).items():
            yield from walk((*words, name), inner)

    options = dict(walk((), get_command(app)))
    options["worker"] |= {option for action in make_parser()._actions for option in action.option_strings}
    return options


_COMMAND = re.compile(r"(?:^|[`;|(] ?|until )clew ([a-z][a-z-]*(?: [a-z][a-z-]*)?)([^|#`\n]*)", re.MULTILINE)


@pytest.mark.parametrize("page", ALL, ids=lambda page: page.name)
def test_every_option_of_a_command_on_a_page_exists(page: Path) -> None:
    """`clew WORD --option` on a page is an option of that command."""
    text, options = page.read_text(encoding="utf-8").replace("\\\n", " "), list_options()
    wrong = []
    for words, rest in _COMMAND.findall(text):
        command = next((each for each in (words, words.partition(" ")[0]) if each in options), None)
        if command is not None:
            named = re.findall(r"(?<![\w-])--[a-z][a-z-]*", words + rest)
            wrong += [f"clew {command} {each}" for each in named if each not in options[command] | {"--help"}]
    assert wrong == []


def test_every_option_of_temporals_program_exists() -> None:
    """`temporal` names each option that the page about upgrades gives to its commands."""
    blocks = [block for block in list_blocks("upgrading.md", "") if block.startswith("temporal ")]
    assert blocks
    for block in blocks:
        words = shlex.split(block.replace("\\\n", " "))[1:]
        names = list(takewhile(lambda word: not word.startswith("-"), words))
        told = subprocess.run(
            [temporal_command(), *names, "--help"], capture_output=True, text=True, check=True
        ).stdout
        assert f"temporal {' '.join(names)} [flags]" in told
        known = set(re.findall(r"(?<![\w-])--[a-z][a-z-]*", told))
        assert {word for word in words if word.startswith("--")} - known == set(), names


def test_what_is_not_there_is_noticed() -> None:
    """The checks find what they are for."""
    (call,) = [node for node in ast.walk(ast.parse("Reply('x', cut_after=1)")) if isinstance(node, ast.Call)]
    found = find_called(call)
    assert found is not None
    parameters = list_parameters(found[1])
    assert parameters is not None
    assert "cut_after" not in parameters
    assert "disconnect_after" in parameters
    asked = list_parameters(find_public("Session").ask)
    assert asked is not None
    assert {"answer", "request_id", "context_policy"} <= asked
