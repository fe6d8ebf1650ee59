"""JSON Schemas of the contract's types, with what their docstrings say of each field.

Entries and events have types here, too: in the code they are objects that hold others, and as JSON a union each.
"""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from functools import cache, reduce
from operator import or_
from typing import Annotated, Any, Literal, TypeVar, get_args, get_type_hints

import docstring_parser
from pydantic import Field, GetJsonSchemaHandler, TypeAdapter, create_model
from pydantic.json_schema import GenerateJsonSchema, JsonSchemaValue
from pydantic_core import CoreSchema, core_schema
from typing_extensions import TypeAliasType

from clew.contract.payloads import KINDS, Payload, Stored
from clew.session.events import SessionEvent
from clew_workflows.contract import payloads
from clew_workflows.contract.outcomes import Output
from clew_workflows.thread.entries import Entry, Refs

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
        # A type that shares its name with another one has a longer one.
        if schema.keys() != {"$ref"}:
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
    optional = {
        name
        for name, value in properties.items()
        if ("default" in value and value["default"] is None) or {"type": "null"} in value.get("anyOf", ())
    }
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


@dataclass(frozen=True)
class StandsFor:
    """Metadata of a field whose schema is that of another type: what the field holds was validated before.

    Attributes:
        make: Makes the other type, when a schema is made.
    """

    make: Callable[[], Any]

    def __get_pydantic_json_schema__(self, _: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        """The schema of the other type."""
        return handler(TypeAdapter(self.make()).core_schema)


# Entries and events as they travel.


def payload_types() -> dict[str, list[type[Payload]]]:
    """The types of what entries hold, by the kind of entry."""
    shown = [getattr(payloads, name) for name in payloads.__all__]
    types = [one for one in shown if isinstance(one, type) and issubclass(one, Payload) and one is not Payload]
    leaves = [one for one in types if not any(other is not one and issubclass(other, one) for other in types)]
    return {kind: [one for one in leaves if one.entry_kind == kind] for kind in KINDS}


@cache
def entry_types() -> dict[str, Any]:
    """A type for the entries of each kind, by its name: all that an entry has, with the payload of its kind."""
    meanings = docstring_of(Entry)[1] | {"payload": "What it holds, by its kind."}

    def entry_type(kind: str, held: list[type[Payload]]) -> Any:
        fields: dict[str, Any] = {
            "seq": int,
            "id": str,
            "kind": Literal[kind],
            "at": str,
            "payload": reduce(or_, held),
            "refs": Refs,
            "tokens": int,
        }
        described = {name: (type_, Field(description=meanings[name])) for name, type_ in fields.items()}
        make: Any = create_model
        return make(entry_name(kind), __base__=Output, __doc__=f"An entry of the kind `{kind}`.", **described)

    return {entry_name(kind): entry_type(kind, held) for kind, held in payload_types().items()}


@cache
def entry_union() -> Any:
    """An entry of any kind."""
    union: Any = reduce(or_, entry_types().values())
    return _name_type("Entry", Annotated[union, Field(discriminator="kind", description="An entry, by its kind.")])


@cache
def event_union(*others: type[Output]) -> Any:
    """An event of a session as `as_dict` makes it, or one of the others, by its `type`."""

    def make_type(cls: type[Any]) -> Any:
        hints = get_type_hints(cls)
        meanings = docstring_of(cls)[1]
        fields: dict[str, Any] = {}
        for field in dataclasses.fields(cls):
            held = entry_union() if hints[field.name] is Entry else hints[field.name]
            default = ... if field.default is dataclasses.MISSING else field.default
            described = meanings[field.name].replace("None: ", "absent: ")
            fields[field.name] = (held, Field(default, description=described))
        make: Any = create_model
        return make(cls.__name__, __base__=Output, __doc__=cls.__doc__, **fields)

    union: Any = reduce(or_, (*map(make_type, get_args(SessionEvent)), *others))
    by_type = Field(discriminator="type", description="An event of a session, by its type.")
    return _name_type("SessionEvent", Annotated[union, by_type])


def _name_type(name: str, annotation: Any) -> Any:
    """Give a union a name, which its schema has."""
    make: Any = TypeAliasType
    return make(name, annotation)


def entry_name(kind: str) -> str:
    """The name of the type of a kind's entries."""
    return "".join(map(str.capitalize, kind.split("_"))) + "Entry"
