"""The schemas of servers' tools keep their meaning in the form that Clew validates."""

from __future__ import annotations

from typing import Any

import jsonschema_rs
import pytest

from clew_activities.tools.mcp.input_schemas import simplify_schema
from clew_workflows.contract.schemas import check_schema

ADDRESS = {"type": "object", "properties": {"street": {"type": "string"}}, "required": ["street"]}


@pytest.mark.parametrize(
    "schema",
    [
        {"$defs": {"x": {"$anchor": "a", **ADDRESS}}, "properties": {"to": {"$ref": "#a"}}},
        {"$defs": {"x": {"$anchor": "a", **ADDRESS}}, "properties": {"to": {"$ref": "#/$defs/x"}}},
        {"properties": {"to": {"$anchor": "a", **ADDRESS}, "also": {"allOf": [{"$ref": "#a"}]}}},
        {"$defs": {"x/~%": {"$dynamicAnchor": "a", **ADDRESS}}, "properties": {"to": {"$dynamicRef": "#a"}}},
        {"properties": {"to": {"allOf": [{}, {"$anchor": "a", **ADDRESS}]}, "also": {"$ref": "#a"}}},
        {"properties": {"to": ADDRESS}, "unevaluatedProperties": False},
        {"properties": {"to": {"type": "object", "properties": {"street": {"type": "string"}}}, "also": {}}},
    ],
)
def test_a_schema_keeps_its_meaning(schema: dict[str, Any]) -> None:
    """In a form within the bounds of `check_schema`."""
    simple = simplify_schema(schema)
    check_schema(simple)
    before = jsonschema_rs.Draft202012Validator({"type": "object", **schema})
    after = jsonschema_rs.Draft202012Validator(simple)
    street = {"street": "x"}
    values: list[Any] = [{}, {"to": street}, {"to": {"street": 7}}, {"to": {}}, {"also": street}, {"also": 7}, 7]
    for value in (*values, {"no": 1}):
        assert before.is_valid(value) == after.is_valid(value), value


def test_null_stands_for_an_absent_member() -> None:
    """As servers in Go write their empty lists. A value of null stays."""
    member = {"type": "string", "default": None, "enum": ["a", None], "required": None}
    schema = {"properties": {"a": member}, "required": None, "items": None, "$defs": None, "anyOf": [{"not": None}]}
    assert simplify_schema(schema) == {
        "type": "object",
        "properties": {"a": {"type": "string", "default": None, "enum": ["a", None]}},
        "anyOf": [{}],
    }


def test_a_recursive_reference_of_an_older_draft_is_that_to_the_root() -> None:
    schema = {"$recursiveAnchor": True, "properties": {"child": {"$recursiveRef": "#"}}}
    assert simplify_schema(schema) == {"type": "object", "properties": {"child": {"$ref": "#"}}}


def test_a_schema_of_any_depth_is_read() -> None:
    """`check_schema` refuses one that is too deep."""
    schema: dict[str, Any] = {}
    for _ in range(200):
        schema = {"items": schema}
    with pytest.raises(ValueError, match="levels"):
        check_schema(simplify_schema(schema))
