"""Validating edited arguments in workflow code, which has to finish within milliseconds."""

from __future__ import annotations

from typing import Any

import jsonschema_rs

from clew.contract.schemas import check_arguments
from clew.model.canonical import canonicalize

MAX_SHOWN_CHARACTERS = 200


def find_argument_problem(arguments: dict[str, Any], schema: dict[str, Any]) -> str | None:
    """Describe how the arguments of a tool call violate its schema; None if they do not.

    The validator is asked only whether they are valid, first for all arguments and then for each alone. Its own
    errors are not collected: with nested alternatives that can take exponentially longer.
    """
    try:
        check_arguments(arguments, schema)
        if make_validator(schema).is_valid(arguments):
            return None
        missing = [name for name in schema.get("required", ()) if name not in arguments]
        if missing:
            return f"{missing[0]}: it is missing"
        single = make_validator(schema | {"required": []})
        wrong = next((name for name in arguments if not single.is_valid({name: arguments[name]})), None)
    except ValueError as error:
        return str(error)[:500]
    if wrong is None:
        return "they are not what the tool's parameters ask for"
    if wrong not in schema.get("properties", {}):
        return f"{wrong[:50]}: the tool has no such argument"
    form = canonicalize(schema["properties"][wrong]).decode()
    return f"{wrong[:50]}: it is not of the form {form[:MAX_SHOWN_CHARACTERS]}"


def make_validator(schema: dict[str, Any]) -> jsonschema_rs.Draft202012Validator:
    """Make a validator whose patterns take linear time, and which fetches no other schema.

    Raises:
        ValueError: The schema is not valid JSON Schema.
    """
    try:
        return jsonschema_rs.Draft202012Validator(
            schema, pattern_options=jsonschema_rs.RegexOptions(), retriever=_refuse
        )
    except (ValueError, jsonschema_rs.ValidationError, jsonschema_rs.ReferencingError) as error:
        raise ValueError(str(error)) from None


def _refuse(uri: str) -> Any:
    raise ValueError(f"{uri} is not within the schema")
