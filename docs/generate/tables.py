"""Tables of the contract page: one for each type, from its JSON Schema."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

from pydantic import TypeAdapter

from clew.contract import AgentName, AwaitRequestInput, ModelName, SessionId
from clew.json_schemas import JsonSchema
from clew_workflows.contract.names import EncodingName

_NAMED_FORMS: dict[str, tuple[str, str]] = {
    "id": (
        TypeAdapter(AwaitRequestInput).json_schema()["properties"]["request_id"]["pattern"],
        "1 to 200 characters without control characters",
    ),
    "session id": (
        TypeAdapter(SessionId).json_schema()["pattern"],
        "1 to 200 characters of letters, digits, `.`, `_`, `:`, `-`",
    ),
    "agent name": (
        TypeAdapter(AgentName).json_schema()["pattern"],
        "1 to 64 characters of letters, digits, `_`, `.`, `-`",
    ),
    "encoding name": (
        TypeAdapter(EncodingName).json_schema()["pattern"],
        "1 to 64 characters of letters, digits, `_`, `.`, `-`; the first is a letter or a digit",
    ),
    "model name": (TypeAdapter(ModelName).json_schema()["pattern"], "`provider:model`; never an address"),
}
_FORMS = {pattern: name for name, (pattern, _) in _NAMED_FORMS.items()}


def table(columns: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    """A Markdown table."""
    header = list(columns)
    lines = [header, ["---"] * len(header), *rows]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def forms_table() -> str:
    """The forms of strings that the other tables name."""
    rows = ((name, text, f"`{_cell(pattern)}`") for name, (pattern, text) in _NAMED_FORMS.items())
    return table(("form", "meaning", "pattern"), rows)


def type_table(schema: JsonSchema) -> str:
    """The fields of an object: name (`?` where it may be absent), type with bounds and default, meaning."""
    required = schema.get("required", ())
    rows = (
        (
            f"`{name}`" if name in required else f"`{name}?`",
            type_and_bounds(field, may_be_null=name in required),
            _cell(field.get("description", "")),
        )
        for name, field in schema.get("properties", {}).items()
    )
    return table(("field", "type", "meaning"), rows)


def type_and_bounds(field: JsonSchema, *, may_be_null: bool = False) -> str:
    """A field's type, its bounds and its default in words. That null is as good as absent is not said."""
    words = _cell(_type(field if may_be_null else _not_null(field)))
    default = field.get("default")
    if default in (None, [], ()) or isinstance(default, dict):
        return words
    return f"{words}; default {_cell(_literal(default))}"


def _type(field: JsonSchema) -> str:
    match field:
        case {"$ref": str(ref)}:
            name = ref.rpartition("/")[2]
            return f"[{name}](#{name.lower()})"
        case {"const": value}:
            return _literal(value)
        case {"enum": list(values)}:
            return " or ".join(map(_literal, values))
        case {"anyOf": list(choices)} | {"oneOf": list(choices)}:
            return " or ".join(dict.fromkeys(map(_type, choices)))
        case {"pattern": str(pattern)}:
            return _FORMS.get(pattern) or f"string matching `{pattern}`"
        case {"type": "array", "prefixItems": list(items)}:
            return f"list of {len(items)}: {', '.join(map(_inner, items))}"
        case {"type": "array", "items": item}:
            return f"list of {_inner(item)}{_bounds(field, 'minItems', 'maxItems')}"
        case {"type": "object", "additionalProperties": dict(values)}:
            return f"object of string to {_inner(values)}{_bounds(field, 'minProperties', 'maxProperties')}"
        case {"type": "object", "patternProperties": dict(patterns)} if len(patterns) == 1:
            ((pattern, values),) = patterns.items()
            bounds = _bounds(field, "minProperties", "maxProperties")
            return f"object of {_type({'pattern': pattern})} to {_inner(values)}{bounds}"
        case {"type": "string"}:
            return f"string{_bounds(field, 'minLength', 'maxLength', ' characters')}"
        case {"type": "integer" | "number" as name}:
            return f"{name}{_bounds(field, 'minimum', 'maximum')}{_open_bounds(field)}"
        case {"type": str(name)}:
            return name
    return "any JSON"


def _inner(field: JsonSchema) -> str:
    """A type within another, so that its bounds are not taken for the outer one's."""
    words = _type(field)
    return f"({words})" if "," in words or " or " in words else words


def _bounds(field: JsonSchema, low: str, high: str, unit: str = "") -> str:
    least, most = field.get(low), field.get(high)
    if least is None:
        return "" if most is None else f", at most {_number(most)}{unit}"
    if most is None:
        return f", at least {_number(least)}{unit}"
    return f", {_number(least)} to {_number(most)}{unit}"


def _open_bounds(field: JsonSchema) -> str:
    over, under = field.get("exclusiveMinimum"), field.get("exclusiveMaximum")
    return (f", over {_number(over)}" if over is not None else "") + (
        f", under {_number(under)}" if under is not None else ""
    )


def separate(number: int) -> str:
    """Write a number with spaces between thousands."""
    return f"{number:,}".replace(",", " ")


def _number(value: float) -> str:
    for power in (53, 63):
        if abs(value) in (2**power, 2**power - 1):
            exact = f"2^{power}" + ("" if abs(value) == 2**power else " - 1")
            return exact if value > 0 else f"-({exact})" if " " in exact else f"-{exact}"
    whole = int(value) if float(value).is_integer() else value
    return separate(whole) if isinstance(whole, int) else str(whole)


def _literal(value: Any) -> str:
    return f"`{json.dumps(value)}`"


def _not_null(field: JsonSchema) -> JsonSchema:
    choices = field.get("anyOf")
    if choices is None:
        return field
    some = [choice for choice in choices if choice != {"type": "null"}]
    return some[0] if len(some) == 1 else {**field, "anyOf": some}


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")
