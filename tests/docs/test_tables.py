"""The tables say types, bounds and defaults in words that are read at once."""

from __future__ import annotations

from typing import Any

import pytest

from docs.generate.tables import table, type_and_bounds, type_table


@pytest.mark.parametrize(
    ("schema", "words"),
    [
        ({"type": "string"}, "string"),
        ({"type": "string", "maxLength": 2000}, "string, at most 2 000 characters"),
        ({"type": "string", "minLength": 1, "maxLength": 64}, "string, 1 to 64 characters"),
        ({"pattern": r"^[A-Za-z0-9._:-]{1,200}$", "type": "string"}, "session id"),
        ({"pattern": "^a$", "type": "string"}, "string matching `^a$`"),
        ({"type": "integer", "minimum": 1, "maximum": 1000, "default": 10}, "integer, 1 to 1 000; default `10`"),
        ({"type": "integer", "minimum": 0, "maximum": 2**53 - 1}, "integer, 0 to 2^53 - 1"),
        ({"type": "integer", "minimum": -(2**63)}, "integer, at least -2^63"),
        ({"type": "number", "exclusiveMinimum": 0, "exclusiveMaximum": 1}, "number, over 0, under 1"),
        ({"enum": ["a", "b"], "default": "a"}, '`"a"` or `"b"`; default `"a"`'),
        ({"anyOf": [{"$ref": "#/$defs/Usage"}, {"type": "null"}], "default": None}, "[Usage](#usage)"),
        ({"type": "array", "items": {"type": "string", "maxLength": 3}}, "list of (string, at most 3 characters)"),
        ({"type": "array", "items": {"type": "string"}, "maxItems": 4}, "list of string, at most 4"),
        ({"type": "object", "additionalProperties": {"type": "integer"}}, "object of string to integer"),
        ({"type": "object", "patternProperties": {"^a$": {}}}, "object of string matching `^a$` to any JSON"),
        ({"type": "boolean", "default": False}, "boolean; default `false`"),
        ({}, "any JSON"),
    ],
)
def test_types_and_bounds_in_words(schema: dict[str, Any], words: str) -> None:
    """Each form that the contract uses has words, its bounds and its default included."""
    assert type_and_bounds(schema) == words


def test_what_may_be_absent_has_a_question_mark() -> None:
    """Required fields have none; of those alone the table says that they may be null."""
    nullable = {"anyOf": [{"type": "string"}, {"type": "null"}]}
    schema = {"properties": {"a": nullable, "b": nullable | {"description": "The b."}}, "required": ["a"]}
    assert type_table(schema).splitlines()[2:] == ["| `a` | string or null |  |", "| `b?` | string | The b. |"]


def test_cells_hold_one_line() -> None:
    """A description of several lines, or with a bar in it, does not break the table."""
    schema = {"properties": {"a": {"type": "string", "description": "One\n  or `a|b`."}}}
    assert type_table(schema).splitlines()[2] == "| `a?` | string | One or `a\\|b`. |"
    assert table(("x",), [["1"]]) == "| x |\n| --- |\n| 1 |\n"
