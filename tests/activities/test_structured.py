"""Answers in a form that was asked for: what is said of them, and that nothing else ever happens."""

from __future__ import annotations

from typing import Any

import pytest

from activities.structured import MAX_PROBLEMS, SchemaUnusable, problem_of


@pytest.mark.parametrize(
    ("answer", "schema", "problem"),
    [
        ('{"a": 1}', {"type": "object", "required": ["a"]}, None),
        ("null", {}, None),
        ("9" * 400, {"type": "number"}, None),
        ('{"a": {"b": "x"}}', {"properties": {"a": {"properties": {"b": {"type": "number"}}}}}, "a.b: "),
        ("", {}, "it is not JSON"),
        ("NaN", {}, "it is not JSON"),
        ("```json\n{}\n```", {}, "it is not JSON"),
        (r'"\ud800"', {"type": "string"}, "it is not JSON"),
        ("[" * 100_000, {}, "it is not JSON"),
        ("9" * 5000, {}, "it is not JSON"),
    ],
)
def test_an_answer_is_of_the_form_or_not(answer: str, schema: dict[str, Any], problem: str | None) -> None:
    """By its place. An answer was paid for: whatever it is, the activity does not fail over it."""
    found = problem_of(answer, schema)
    assert found is None if problem is None else (found or "").startswith(problem)


@pytest.mark.parametrize("depth", [100, 180, 300, 900])
def test_no_depth_is_an_error(depth: int) -> None:
    assert isinstance(problem_of("[" * depth + "]" * depth, {"type": "object"}), str)


def test_what_is_told_has_an_end() -> None:
    problems = problem_of(f"[{', '.join(['1'] * 100)}]", {"items": {"type": "string"}})
    assert problems is not None
    assert problems.count(";") == MAX_PROBLEMS - 1


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "nope"},
        {"$ref": "http://127.0.0.1:1/schema"},
        {"$ref": "file:///etc/passwd"},
        {"$ref": "#/nowhere"},
        {"pattern": "("},
        {"pattern": "(?=a)b"},
    ],
)
def test_what_is_no_schema_is_told(schema: dict[str, Any]) -> None:
    """Nothing is fetched for it."""
    with pytest.raises(SchemaUnusable, match="output_schema cannot be used"):
        problem_of("null", schema)


def test_patterns_take_linear_time() -> None:
    assert problem_of(f'"{"a" * 5000}!"', {"pattern": "(a+)+$"}) is not None
