"""A format whose shape has changed has another version."""

from __future__ import annotations

from copy import deepcopy
from typing import Any

import pytest

from tests.support.shapes import SHAPES, describe_shapes, find_problems


def change(name: str, type_name: str, field: str, schema: object, *, required: bool = False) -> dict[str, Any]:
    """Change the schema of a field, or add a field."""
    shapes = deepcopy(describe_shapes())
    described = shapes[name]["schemas"][type_name]
    described["properties"][field] = schema
    if required:
        described["required"] = sorted([*described.get("required", []), field])
    return shapes


def test_what_has_not_changed_is_no_problem() -> None:
    """The same code gives the same shapes."""
    assert list(find_problems(describe_shapes(), deepcopy(describe_shapes()))) == []
    assert all(shape["schemas"] for shape in describe_shapes().values())


@pytest.mark.parametrize(
    ("name", "type_name", "field"),
    [
        ("carried state", "State", "phase"),
        ("checkpoint", "Checkpoint", "exp"),
        ("archive head", "Head", "root"),
        ("archive segment", "UserMessage", "content"),
        ("archive node", "Ref", "level"),
    ],
)
def test_a_changed_field_needs_a_new_version(name: str, type_name: str, field: str) -> None:
    """The problem names the field, and says what to do. With a new version there is no problem."""
    changed = change(name, type_name, field, {"type": "null"})
    (problem,) = find_problems(describe_shapes(), changed)
    assert f"{type_name}/properties/{field}" in problem
    assert "raise the version of its FORMAT, and add a step" in problem
    changed[name]["version"] += 1
    assert list(find_problems(describe_shapes(), changed)) == []


@pytest.mark.parametrize(
    ("name", "type_name", "grows"),
    [
        ("carried state", "State", False),
        ("checkpoint", "Checkpoint", False),
        ("archive node", "Ref", False),
        ("archive head", "Head", True),
        ("archive segment", "Recipe", True),
        ("activities", "CallModel", True),
    ],
)
def test_an_added_field_is_compatible_where_readers_ignore_it(name: str, type_name: str, grows: bool) -> None:
    """Unless older readers would drop what the session needs; and never if it is required."""
    optional = change(name, type_name, "mood", {"type": "string", "default": "fine"})
    assert len(list(find_problems(describe_shapes(), optional))) == (0 if grows else 1)
    required = change(name, type_name, "mood", {"type": "string"}, required=True)
    assert len(list(find_problems(describe_shapes(), required))) == 1


def test_activities_have_no_version_to_raise() -> None:
    """Their inputs and results only grow."""
    changed = change("activities", "CallModel", "at_seq", {"type": "string"})
    (problem,) = find_problems(describe_shapes(), changed)
    assert problem.endswith("add fields with a default, or types of new names")


def test_a_format_that_is_gone_is_a_problem() -> None:
    """Each version that was released stays readable."""
    for name in SHAPES:
        fewer = {other: shape for other, shape in describe_shapes().items() if other != name}
        (problem,) = find_problems(describe_shapes(), fewer)
        assert name in problem
