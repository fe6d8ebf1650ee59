"""Checks of JSON Schemas: those that could occupy a validator without limit are refused, all others pass."""

from __future__ import annotations

import json
import time
from datetime import datetime
from decimal import Decimal
from enum import Enum
from typing import Annotated, Any, Literal
from uuid import UUID

import pytest
from pydantic import AnyUrl, BaseModel, Field, JsonValue, TypeAdapter

from clew import tool
from clew.contract import MessageInput
from clew.errors import InvalidInput
from clew.session.transport import make_input
from clew_workflows.contract.limits import MAX_ARGUMENT_STEPS, MAX_SCHEMA_BYTES
from clew_workflows.contract.schemas import StepCounter, check_arguments, check_schema
from tests.support.hostile_input import Schema, make_chain


def nested(depth: int, keyword: str) -> Schema:
    schema: Schema = {}
    for _ in range(depth):
        schema = {keyword: schema}
    return schema


BOMBS: dict[str, tuple[Schema, str]] = {
    **{
        keyword: (make_chain(30, lambda ref, keyword=keyword: {keyword: [ref, ref]}), "applies over 1000 subschemas")  # type: ignore[misc]
        for keyword in ("allOf", "anyOf", "oneOf")
    },
    "not": (make_chain(30, lambda ref: {"not": ref, "if": ref}), "applies over 1000"),
    "if": (make_chain(30, lambda ref: {"if": ref, "then": ref, "else": ref}), "applies over 1000"),
    "dependentSchemas": (make_chain(30, lambda ref: {"dependentSchemas": {"a": ref, "b": ref}}), "applies over 1000"),
    "dependencies": (make_chain(30, lambda ref: {"dependencies": {"a": ref, "b": ref}}), "applies over 1000"),
    "properties": (make_chain(30, lambda ref: {"properties": {"a": ref, "b": ref}}), "has over 100000 subschemas"),
    "patternProperties": (make_chain(30, lambda ref: {"patternProperties": {"a": ref, "b": ref}}), "has over 100000"),
    "items": (make_chain(30, lambda ref: {"prefixItems": [ref, ref]}), "has over 100000"),
    "contains": (make_chain(30, lambda ref: {"contains": ref, "items": ref}), "has over 100000"),
    "propertyNames": (
        make_chain(30, lambda ref: {"propertyNames": ref, "additionalProperties": ref}),
        "has over 100000",
    ),
    "definitions": (
        {"$ref": "#/definitions/d0", "definitions": make_chain(30, lambda ref: {"allOf": [ref, ref]})["$defs"]}
        | {"$defs": make_chain(30, lambda ref: {"allOf": [ref, ref]})["$defs"]},
        "applies over 1000",
    ),
    "a long chain": (make_chain(1000, lambda ref: ref), "each within the one before"),
    "a ring": ({"$ref": "#/$defs/a", "$defs": {"a": {"anyOf": [{"$ref": "#/$defs/a"}]}}}, "refers to itself"),
    "itself": ({"$ref": "#"}, "the schema refers to itself"),
    "a part": ({"x": {"$ref": "#/x"}, "items": {"$ref": "#/x"}}, "a subschema refers to itself"),
    "$dynamicRef": ({"$dynamicAnchor": "a", "items": {"$dynamicRef": "#a"}}, "is not supported"),
    "$recursiveRef": ({"$recursiveRef": "#"}, "'$recursiveRef' is not supported"),
    "$anchor": ({"$defs": {"a": {"$anchor": "a"}}, "$ref": "#a"}, "is not supported"),
    "$id": ({"properties": {"a": {"$id": "http://a/b", "$ref": "#/$defs/a"}}, "$defs": {"a": {}}}, "'$id' is"),
    "$id on the way": ({"$ref": "#/x/y", "x": {"$id": "http://a/b", "y": {}}}, "leads to no part"),
    "another host": ({"$ref": "http://127.0.0.1:1/schema"}, "only to its own parts"),
    "a file": ({"$ref": "file:///etc/passwd"}, "only to its own parts"),
    "a missing part": ({"$ref": "#/$defs/a"}, "leads to no part"),
    "no reference": ({"$ref": ["#"]}, "only to its own parts"),
    "unevaluatedProperties": ({"unevaluatedProperties": {}}, "use 'additionalProperties'"),
    "unevaluatedItems": ({"items": {"unevaluatedItems": False}}, "use 'items'"),
    "deep": (nested(150, "not"), "nested over 64 levels"),
    "deep items": (nested(150, "items"), "nested over 64 levels"),
    "a large enum": ({"enum": ["x" * 50] * 5000}, f"at most {MAX_SCHEMA_BYTES}"),
    "a large const": ({"const": "x" * 250_000}, f"at most {MAX_SCHEMA_BYTES}"),
    "many subschemas": ({"properties": {f"p{i}": {} for i in range(4000)}}, "over 3000 subschemas"),
    "many patterns": ({"allOf": [{"pattern": f"^{i}"} for i in range(200)]}, "at most 100 different"),
    "many names": ({"patternProperties": {f"^{i}": {} for i in range(200)}}, "at most 100 different"),
    "a long pattern": ({"pattern": "a" * 5000}, "at most 1000 characters"),
}


@pytest.mark.parametrize("bomb", BOMBS)
def test_a_bomb_is_refused_at_once(bomb: str) -> None:
    """With what to do about it, by the types of the contract and so by client and session alike."""
    schema, reason = BOMBS[bomb]
    begun = time.process_time()
    with pytest.raises(InvalidInput, match=r"^output_schema: ") as refused:
        make_input(MessageInput, {"content": "hello", "output_schema": schema})
    assert reason in str(refused.value)
    assert time.process_time() - begun < 10, "validating against it would take minutes or memory without end"


@pytest.mark.parametrize("keyword", ["properties", "allOf", "$defs", "items", "dependencies", "pattern", "required"])
@pytest.mark.parametrize("held", [None, 1, "text", True, [1], ["text"], {"a": 1}, {"a": ["b"]}, [[{}]]])
def test_what_is_no_schema_harms_nothing(keyword: str, held: Any) -> None:
    """It passes here; the validator may still refuse it later."""
    check_schema({keyword: held, "$ref": "#/$defs/a", "$defs": {"a": {"properties": {"b": {keyword: held}}}}})


class Colour(Enum):
    RED = "red"
    BLUE = "blue"


class Tree(BaseModel):
    label: str
    children: list[Tree] = []
    parent: Tree | None = None


class And(BaseModel):
    op: Literal["and"]
    parts: list[Condition]


class Or(BaseModel):
    op: Literal["or"]
    parts: list[Condition]


class Leaf(BaseModel):
    op: Literal["leaf"]
    field: str = Field(pattern=r"^[a-z_]{1,64}$")
    value: JsonValue


Condition = Annotated[And | Or | Leaf, Field(discriminator="op")]


class Everything(BaseModel):
    id: UUID
    at: datetime
    price: Decimal = Field(max_digits=8, decimal_places=2)
    link: AnyUrl
    colours: set[Colour]
    named: dict[str, list[tuple[int, str, float | None]]]
    pair: tuple[Tree, Tree]
    maybe: int | str | list[int | str] | None = None
    anything: Any = None
    where: Condition | None = None


MODELS: tuple[Any, ...] = (Tree, And, Or, Leaf, Everything, list[Everything], Condition, JsonValue, int)

STRICT: Schema = {
    "$schema": "https://json-schema.org/draft/2020-12/schema",
    "$id": "https://example.com/ui.schema.json",
    "type": "object",
    "properties": {
        "type": {"type": "string", "enum": ["div", "button"]},
        "$id": {"type": "string"},
        "children": {"type": "array", "items": {"$ref": "#"}},
        "linked": {"anyOf": [{"$ref": "#/$defs/node"}, {"type": "null"}]},
    },
    "required": ["type", "$id", "children", "linked"],
    "additionalProperties": False,
    "$defs": {
        "node": {
            "type": "object",
            "properties": {"next": {"anyOf": [{"$ref": "#/$defs/node"}, {"type": "null"}]}},
            "required": ["next"],
            "additionalProperties": False,
        },
        "with ~/%": {"$ref": "#/$defs/with%20~0~1%25/not", "not": {}},
    },
}
"""As OpenAI's documentation has them: recursive at the root and by a definition."""


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("mode", ["validation", "serialization"])
def test_what_pydantic_makes_passes(model: Any, mode: Literal["validation", "serialization"]) -> None:
    check_schema(TypeAdapter(model).json_schema(mode=mode))


def test_a_large_model_passes() -> None:
    """Thirty kinds that hold one another, as a syntax tree's do."""
    names = [f"Kind{i}" for i in range(30)]
    union = {"anyOf": [{"$ref": f"#/$defs/{name}"} for name in names]}
    kind = {"type": "object", "properties": {"left": union, "right": union, "all": {"items": union}}}
    check_schema({"$defs": dict.fromkeys(names, 0) | {name: json.loads(json.dumps(kind)) for name in names}} | union)


@pytest.mark.parametrize("schema", [{}, STRICT, {"$ref": "#/$defs/a", "$defs": {"a": True}}, {"items": [{}, {}]}])
def test_what_is_usual_passes(schema: Schema) -> None:
    check_schema(schema)


@pytest.mark.parametrize(
    ("schema", "value", "steps"),
    [
        ({}, None, 1),
        ({"items": {}}, [1, [2], {}], 4),
        ({"anyOf": [{}, {"allOf": [{}]}]}, 1, 4),
        ({"properties": {"a": {}}, "additionalProperties": {}}, {"a": 1, "b": 1}, 4),
        ({"propertyNames": {}}, {"a": 1, "b": 1}, 3),
        (make_chain(3, lambda ref: {"anyOf": [{"properties": {"a": ref}}] * 2}), {"a": {"a": {"a": ""}}}, 44),
    ],
)
def test_steps_are_the_visits_of_a_validator_that_remembers_nothing(schema: Schema, value: Any, steps: int) -> None:
    """Every path to a subschema counts, whatever it finds there."""
    assert StepCounter(schema).count(value, 1000) == steps


def test_arguments_whose_alternatives_multiply_are_refused() -> None:
    """Also by the tool itself, before pydantic tries them all."""

    class Left(BaseModel):
        inner: Left | Right | int

    class Right(BaseModel):
        inner: Left | Right | int

    Left.model_rebuild(_types_namespace={"Left": Left, "Right": Right})
    arguments: dict[str, Any] = {"inner": "x"}
    for _ in range(60):
        arguments = {"inner": arguments}
    with pytest.raises(ValueError, match=f"over {MAX_ARGUMENT_STEPS} steps"):
        check_arguments(arguments, Left.model_json_schema())


LongPattern = Annotated[str, Field(pattern="a" * 2000)]


def test_a_tool_whose_parameters_are_out_of_bounds_is_none() -> None:
    """The error names the tool."""
    with pytest.raises(TypeError, match=r"tool 'look' .* too costly to validate: a regular"):

        @tool
        def look(at: LongPattern) -> None:
            """Look."""


@pytest.mark.parametrize("named", [7, "text", ["string", "text"], [], None, {}])
def test_an_unknown_type_is_refused(named: Any) -> None:
    """Wherever in the schema it is."""
    with pytest.raises(ValueError, match="is not a type"):
        check_schema({"properties": {"a": {"type": named}}})
    check_schema({"properties": {"type": {"type": ["string", "null"]}}})
