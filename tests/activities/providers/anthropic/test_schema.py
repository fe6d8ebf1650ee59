"""The form of answers' schemas that Anthropic's API accepts."""

from __future__ import annotations

import copy
from typing import Annotated, Any, Literal

import pytest
from anthropic import transform_schema
from pydantic import BaseModel, Field

from clew.contract import ModelOptions
from clew_activities.providers.anthropic.provider import Anthropic
from clew_activities.providers.anthropic.schema import make_closed_schema
from clew_activities.providers.interface import ModelRequest


class Leaf(BaseModel):
    """A leaf."""

    number: Annotated[int, Field(ge=1, le=9, description="A number")]
    text: str | None = None


class Tree(BaseModel):
    kind: Literal["a", "b"]
    only: Literal["x"]
    children: Annotated[list[Tree], Field(min_length=2)]
    leaf: Leaf
    day: Annotated[str, Field(pattern="a+", json_schema_extra={"format": "date"})]


def make_request(schema: dict[str, Any]) -> ModelRequest:
    options = ModelOptions(max_output_tokens=100)
    messages: list[Any] = [{"role": "user", "content": "hello"}]
    return ModelRequest(model="claude-sonnet-5", messages=messages, tools=[], options=options, output_schema=schema)


@pytest.mark.parametrize(
    "schema",
    [
        Tree.model_json_schema(),
        Leaf.model_json_schema(),
        {"oneOf": [{"type": "string", "minLength": 2}, {"type": "null"}]},
        {"allOf": [{"type": "object"}]},
        {"type": "array", "items": {"type": "number"}, "minItems": 1},
        {"type": "array", "minItems": 3},
        {"type": "string", "format": "uri"},
        {"type": "string", "format": "odd"},
        {"enum": [1, None, "a"]},
        {"type": "string", "enum": ["a"]},
        {"const": 3, "description": "Three."},
        {
            "type": "object",
            "properties": {"a": {"$ref": "#/$defs/X"}},
            "$defs": {"X": {"type": "boolean"}},
            "additionalProperties": {"type": "string"},
            "minProperties": 1,
        },
    ],
)
def test_a_schema_has_the_form_that_the_official_package_gives_it(schema: dict[str, Any]) -> None:
    """The caller's schema stays as it is."""
    before = copy.deepcopy(schema)
    assert make_closed_schema(schema) == transform_schema(copy.deepcopy(schema))
    assert schema == before


def test_a_value_of_several_types_is_any_of_them() -> None:
    """The official package does not take such a schema."""
    assert make_closed_schema({"type": ["string", "null"]}) == {"anyOf": [{"type": "string"}, {"type": "null"}]}


def test_a_schema_goes_to_the_api_in_its_form() -> None:
    body = Anthropic("anthropic", "http://test").encode(make_request(Leaf.model_json_schema())).body
    schema = transform_schema(Leaf.model_json_schema())
    assert body["output_config"] == {"format": {"type": "json_schema", "schema": schema}}
    assert "system" not in body


@pytest.mark.parametrize("member", [{}, True, {"enum": [{}]}])
def test_a_schema_that_the_api_has_no_form_for_goes_to_the_model(member: object) -> None:
    """The API would refuse the request. The session validates the answer all the same."""
    schema = {"type": "object", "properties": {"a": member}}
    body = Anthropic("anthropic", "http://test").encode(make_request(schema)).body
    assert "output_config" not in body
    assert "JSON Schema" in body["system"][-1]["text"]


@pytest.mark.parametrize(
    "schema",
    [
        Tree.model_json_schema(),
        {"type": "object", "properties": {"a": {"$ref": "#/$defs/A"}}, "$defs": {"A": {"$ref": "#/$defs/B"}, "B": {
            "type": "array", "items": {"$ref": "#/$defs/A"}}}},
        {"type": "object", "properties": {"a": {"$ref": "#"}}},
        {"type": "object", "additionalProperties": {"type": "integer"}},
        {"type": "object", "properties": {"a": {"type": "object"}}},
        {"type": "object", "properties": {"a": {"type": ["object", "null"]}}},
        {"type": "object", "properties": {"a": {"type": "integer"}}, "patternProperties": {"^x": {}}},
        {"type": "object", "properties": {"a": {"$ref": "#/properties/b"}, "b": {"type": "string"}}},
    ],
)  # fmt: skip
def test_a_schema_that_would_lose_something_goes_to_the_model(schema: dict[str, Any]) -> None:
    """The API refuses recursion, and would allow no member of an object whose names the schema does not know."""
    body = Anthropic("anthropic", "http://test").encode(make_request(schema)).body
    assert "output_config" not in body
    assert "JSON Schema" in body["system"][-1]["text"]


def test_a_definition_that_is_used_twice_is_no_recursion() -> None:
    pair = {"type": "object", "properties": {"a": {"$ref": "#/$defs/A%20b"}, "b": {"$ref": "#/$defs/A%20b"}}}
    body = (
        Anthropic("anthropic", "http://test").encode(make_request({**pair, "$defs": {"A b": {"type": "null"}}})).body
    )
    assert "output_config" in body
