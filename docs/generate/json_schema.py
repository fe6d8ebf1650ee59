"""JSON Schemas of the contract's types, with what their docstrings say of each field."""

from __future__ import annotations

import inspect
from collections.abc import Collection, Sequence
from typing import Any, TypeVar

import docstring_parser
from pydantic import TypeAdapter
from pydantic.json_schema import GenerateJsonSchema, JsonSchemaValue
from pydantic_core import core_schema

from clew.contract.payloads import Stored
from clew_workflows.contract.outcomes import Output

JsonSchema = dict[str, Any]
DIALECT = "https://json-schema.org/draft/2020-12/schema"
_S = TypeVar("_S", core_schema.ModelSchema, core_schema.TypedDictSchema, core_schema.DataclassSchema)


class DocumentedSchema(GenerateJsonSchema):
    """Adds to a type's schema what its docstring says, and says of outputs what is always there.

    Absent fields of an output are left out, never null: what cannot be absent is required.
    """

    def model_schema(self, schema: core_schema.ModelSchema) -> JsonSchemaValue:
        """A pydantic model."""
        made = _described(super().model_schema(schema), schema["cls"])
        return _as_answered(made) if issubclass(schema["cls"], Output) else made

    def typed_dict_schema(self, schema: core_schema.TypedDictSchema) -> JsonSchemaValue:
        """A typed dictionary: a message, a tool's schema."""
        cls = schema.get("cls")
        made = super().typed_dict_schema(schema)
        return made if cls is None else _described(made, cls)

    def dataclass_schema(self, schema: core_schema.DataclassSchema) -> JsonSchemaValue:
        """A dataclass: what an entry holds, and values within that."""
        made = _described(super().dataclass_schema(schema), schema["cls"])
        return _as_stored(made) if issubclass(schema["cls"], Stored) else made

    def get_title_from_name(self, name: str) -> str:
        """Titles are the types' names; a field has its own name already."""
        return name


def definitions(annotations: Sequence[tuple[str, Any]]) -> dict[str, JsonSchema]:
    """The schemas of all types that some types are made of, by their names, which they refer to each other by."""
    adapters = [(name, "validation", TypeAdapter(annotation)) for name, annotation in annotations]
    roots, shared = TypeAdapter.json_schemas(adapters, schema_generator=DocumentedSchema)  # type: ignore[arg-type]
    found: dict[str, JsonSchema] = dict(shared.get("$defs", {}))
    for (name, _), schema in roots.items():
        if schema != {"$ref": f"#/$defs/{name}"}:
            found[str(name)] = schema
    return {name: _untitled(_referring(found[name], name, found.keys())) for name in sorted(found)}


def _referring(value: Any, name: str | None, names: Collection[str]) -> Any:
    """A schema in which the types that stand in full within it are referred to; `name` is its own."""
    if isinstance(value, list):
        return [_referring(item, None, names) for item in value]
    if not isinstance(value, dict):
        return value
    title = value.get("title")
    if "properties" in value and title in names and title != name:
        return {"$ref": f"#/$defs/{title}", "description": value.get("description", "")}
    return {key: _referring(item, None, names) for key, item in value.items()}


def _described(schema: JsonSchemaValue, cls: type) -> JsonSchemaValue:
    """A schema with the docstring of its type in place of all that pydantic took for it."""
    resolved = schema.get("properties")
    if resolved is None:
        return schema
    summary, fields = docstring_of(cls)
    schema = schema | {"title": cls.__name__, "description": summary}
    for name, text in fields.items():
        if name in resolved:
            resolved[name] = resolved[name] | {"description": text}
    return schema


def docstring_of(cls: type) -> tuple[str, dict[str, str]]:
    """What a type's docstring says of it, and of its fields: its own and those that it inherits."""
    fields: dict[str, str] = {}
    for base in (*reversed(_typed_bases(cls)), *reversed(cls.__mro__)):
        parsed = docstring_parser.parse(base.__dict__.get("__doc__") or "", docstring_parser.DocstringStyle.GOOGLE)
        fields |= {param.arg_name: " ".join((param.description or "").split()) for param in parsed.params}
    own = docstring_parser.parse(inspect.getdoc(cls) or "", docstring_parser.DocstringStyle.GOOGLE)
    return (own.description or "").strip(), fields


def _typed_bases(cls: type) -> list[type]:
    """The typed dictionaries that one extends, itself first: at run time they are no bases."""
    return [
        cls,
        *(
            above
            for base in getattr(cls, "__orig_bases__", ())
            if isinstance(base, type)
            for above in _typed_bases(base)
        ),
    ]


def _as_answered(schema: JsonSchemaValue) -> JsonSchemaValue:
    """The schema of an output: null stands for absent in the code and never travels."""
    properties = schema.get("properties", {})
    optional = {name for name, value in properties.items() if "default" in value and value["default"] is None}
    plain = {
        name: _not_null(value) if name in optional else _without(value, "default")
        for name, value in properties.items()
    }
    required = [name for name in properties if name not in optional]
    return _without(schema, "required") | {"properties": plain} | ({"required": required} if required else {})


def _as_stored(schema: JsonSchemaValue) -> JsonSchemaValue:
    """The schema of what entries hold: a field that is at its default is absent."""
    required = schema.get("required", ())
    properties = schema.get("properties", {})
    return schema | {
        "properties": {
            name: value if name in required or value.get("default") is not None else _not_null(value)
            for name, value in properties.items()
        }
    }


def _not_null(schema: JsonSchema) -> JsonSchema:
    schema = _without(schema, "default")
    choices = [choice for choice in schema.get("anyOf", []) if choice != {"type": "null"}]
    if len(choices) == 1:
        title = {"title": choices[0]["title"]} if "title" in choices[0] else {}
        return {**choices[0], **_without(schema, "anyOf"), **title}
    return schema | ({"anyOf": choices} if choices else {})


def _without(schema: JsonSchema, key: str) -> JsonSchema:
    return {name: value for name, value in schema.items() if name != key}


def _untitled(schema: JsonSchema) -> JsonSchema:
    """A schema whose fields have no titles: they only repeat the names."""

    def bare(value: Any) -> Any:
        if isinstance(value, list):
            return [bare(item) for item in value]
        if not isinstance(value, dict):
            return value
        kept = {name: bare(item) for name, item in value.items()}
        if isinstance(properties := kept.get("properties"), dict):
            kept["properties"] = {
                name: _without(item, "title") if isinstance(item, dict) else item for name, item in properties.items()
            }
        return kept

    plain: JsonSchema = bare(schema)
    return plain
