"""The examples in the docstrings of what users import: each is Python, and its calls are those of the code."""

from __future__ import annotations

import ast
import inspect
from collections.abc import Iterator
from typing import Any

import docstring_parser
import pytest

import clew
from clew.tools import external_tool, remote_tool
from tests.docs.test_calls import find_called, list_parameters

MANY = (clew.Agent, clew.Clew, clew.Session, clew.Request)
"""Classes whose every method has an example."""
FEW = (clew.ToolContext, clew.tool, external_tool, remote_tool)


def list_members(owner: Any) -> Iterator[tuple[str, Any]]:
    """List what has a docstring of its own: the owner, and its public methods."""
    yield owner.__name__, owner
    if inspect.isclass(owner):
        for name in dir(owner):
            if not name.startswith("_") and callable(member := getattr(owner, name)):
                yield f"{owner.__name__}.{name}", member


MEMBERS = dict(pair for owner in (*MANY, *FEW) for pair in list_members(owner))


def list_examples(member: Any) -> list[str]:
    """List the examples of a docstring."""
    parsed = docstring_parser.parse(inspect.getdoc(member) or "", style=docstring_parser.DocstringStyle.GOOGLE)
    return [inspect.cleandoc(one.description or one.snippet or "") for one in parsed.examples]


@pytest.mark.parametrize("name", MEMBERS)
def test_the_calls_of_an_example_are_those_of_the_code(name: str) -> None:
    """A method that an example calls exists, and it has the parameters that the example names."""
    wrong = []
    for code in list_examples(MEMBERS[name]):
        tree = compile(code, name, "exec", flags=ast.PyCF_ONLY_AST | ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
        for call in (node for node in ast.walk(tree) if isinstance(node, ast.Call)):
            if (found := find_called(call)) is None:
                continue
            assert found[1] is not None, found[0]
            known = list_parameters(found[1]) if callable(found[1]) else None
            wrong += [f"{found[0]}({one.arg}=…)" for one in call.keywords if known and one.arg not in {None, *known}]
    assert wrong == []


def test_every_public_member_has_an_example() -> None:
    """Of the classes that programs use most."""
    expected = [name for owner in MANY for name, _ in list_members(owner)]
    assert [name for name in expected if not list_examples(MEMBERS[name])] == []
