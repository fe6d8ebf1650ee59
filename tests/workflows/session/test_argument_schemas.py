"""Arguments against a tool's parameters in workflow code: what is wrong with them, within milliseconds."""

from __future__ import annotations

import time
from typing import Any

import pytest
from pydantic import BaseModel

from clew import tool
from clew_workflows.session.tool_rounds import MAX_PATTERNS, ArgumentChecks, find_argument_problem


class Sum(BaseModel):
    """One of two alternatives that no field tells apart."""

    left: Sum | Product | int
    right: Sum | Product | int


class Product(BaseModel):
    """The other one."""

    left: Sum | Product | int
    right: Sum | Product | int


@tool
def compute(term: Sum, unit: str, digits: int = 2) -> None:
    """Compute a term."""


def term(depth: int, innermost: Any) -> dict[str, Any]:
    value = {"left": innermost, "right": 1}
    for _ in range(depth):
        value = {"left": value, "right": 1}
    return value


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        ({"term": term(3, 1), "unit": "m"}, None),
        ({"term": term(3, 1)}, "unit: it is missing"),
        ({"term": term(3, 1), "unit": 1}, 'unit: it is not of the form {"type":"string"}'),
        ({"term": term(3, "x"), "unit": "m"}, 'term: it is not of the form {"$ref":"#/$defs/Sum"}'),
        ({"term": term(3, 1), "unit": "m", "digit": 1}, "digit: the tool has no such argument"),
        ({"term": term(60, 1), "unit": "m"}, "validating them takes over 100000 steps"),
        ({"term": term(190, "x"), "unit": "m"}, "validating them takes over 100000 steps"),
    ],
)
def test_the_problem_is_told_by_its_argument(arguments: dict[str, Any], problem: str | None) -> None:
    begun = time.process_time()
    found = find_argument_problem(arguments, compute.spec["parameters"])
    assert found is None if problem is None else (found or "").startswith(problem)
    assert time.process_time() - begun < 10


def test_the_largest_term_that_is_taken_costs_milliseconds() -> None:
    """Also when it is wrong in its innermost part, where a list of all errors would have a hundred thousand."""
    depth = 0
    begun = time.process_time()
    while "takes over" not in (
        find_argument_problem({"term": term(depth, "x"), "unit": "m"}, compute.spec["parameters"]) or ""
    ):
        depth += 1
    assert 10 < depth < 30
    assert time.process_time() - begun < 10


def test_a_schema_that_cannot_be_used_is_a_problem() -> None:
    assert "is not supported" in (find_argument_problem({}, {"$dynamicRef": "#"}) or "")
    assert "regex" in (find_argument_problem({"a": "b"}, {"properties": {"a": {"pattern": "("}}}) or "")


@pytest.mark.parametrize(
    ("schema", "problem"),
    [
        ({"properties": {str(n): {"pattern": r"\p{L}{1,20}"} for n in range(MAX_PATTERNS)}}, None),
        ({"properties": {str(n): {"pattern": "a"} for n in range(MAX_PATTERNS + 1)}}, "101 patterns, at most 100"),
        ({"anyOf": [{"patternProperties": {f"a{n}": {} for n in range(60)}}] * 2}, "120 patterns, at most 100"),
        ({"properties": {"a": {"pattern": r"\p{L}{1,200}"}}}, "not valid, or too large"),
    ],
)
def test_patterns_are_compiled_within_the_time_of_a_workflow_task(
    schema: dict[str, Any], problem: str | None
) -> None:
    """There are a hundred of a megabyte at most."""
    begun = time.process_time()
    found = find_argument_problem({"a": "b"}, schema)
    assert found is None if problem is None else problem in (found or "")
    assert time.process_time() - begun < 2


def test_the_calls_of_a_round_share_the_steps() -> None:
    """However many calls a reply has, their validation together takes no more steps than that of one may take."""
    schema = {"type": "object", "properties": {"x": {"type": "array", "items": {"type": "integer"}}}}
    arguments = {"x": list(range(2000))}
    assert ArgumentChecks(1).find_problem("look", arguments, schema) is None
    checks = ArgumentChecks(64)
    assert checks.find_problem("look", {"x": [1]}, schema) is None
    assert "over 1562 steps" in str(checks.find_problem("look", arguments, schema))


def test_a_schema_that_is_none_is_a_problem() -> None:
    """A worker refuses it at its start; a session that meets one all the same goes on."""
    assert "thing" in str(ArgumentChecks(1).find_problem("look", {}, {"type": "thing"}))
