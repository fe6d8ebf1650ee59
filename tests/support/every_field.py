"""Inputs with every field set, made from their types, so that a new field is among them without being named."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from pydantic import BaseModel

Examples = Mapping[str, Any]
"""Values of fields whose types do not say what is valid, by the field's name or, first, by its path."""


def list_inputs(model: type[BaseModel], examples: Examples) -> Iterator[tuple[str, dict[str, Any]]]:
    """List inputs of a type, by their names: one with all fields, and one with each field beside the needed ones.

    A field that is one of several types comes with each of them.
    """
    schema = model.model_json_schema()
    filler = _Filler(schema.get("$defs", {}), examples)
    fields = {name: filler.list_values(field, name) for name, field in schema["properties"].items()}
    needed = {name: fields[name][0] for name in schema.get("required", ())}
    yield "all", {name: values[0] for name, values in fields.items()}
    for name, values in fields.items():
        for number, value in enumerate(values):
            yield f"{name}.{number}", needed | {name: value}


class _Filler:
    """Makes values that are not empty and not the default."""

    def __init__(self, definitions: Mapping[str, Any], examples: Examples) -> None:
        self._definitions = definitions
        self._examples = examples

    def list_values(self, schema: dict[str, Any], path: str) -> list[Any]:
        """List values of a field: one for each type that it may have."""
        for name in (path, path.rpartition(".")[2]):
            if name in self._examples:
                return [self._examples[name]]
        options = [self._resolve(option) for option in schema.get("oneOf") or schema.get("anyOf") or [schema]]
        values = []
        for option in options:
            if option.get("type") != "null":
                default = schema.get("default")
                values += self._list_typed(option if default is None else option | {"default": default}, path)
        return values

    def _resolve(self, schema: dict[str, Any]) -> dict[str, Any]:
        while "$ref" in schema:
            schema = self._definitions[schema["$ref"].rpartition("/")[2]]
        return schema

    def _list_typed(self, schema: dict[str, Any], path: str) -> list[Any]:
        if "$ref" in schema or "oneOf" in schema or "anyOf" in schema:
            return self.list_values(self._resolve(schema), path)
        default = schema.get("default")
        if "const" in schema:
            return [schema["const"]]
        if "enum" in schema:
            return [value for value in schema["enum"] if value != default]
        match schema.get("type"):
            case "boolean":
                return [not default]
            case "integer" | "number":
                lowest = schema.get("minimum", schema.get("exclusiveMinimum", 0) + 1)
                highest = schema.get("maximum", schema.get("exclusiveMaximum", lowest + 2))
                return [min(highest, lowest + 1)]
            case "string":
                return ["word"]
            case "array":
                return [self.list_values(schema.get("items", {}), path)[:1]]
            case "object" if "properties" in schema:
                fields = schema["properties"].items()
                return [{name: self.list_values(field, f"{path}.{name}")[0] for name, field in fields}]
            case "object":
                inner = schema.get("additionalProperties")
                value = self.list_values(inner, path)[0] if isinstance(inner, dict) else "word"
                return [{"name": value}]
        return ["anything"]
