"""Answers in a form that was asked for: JSON, and of a JSON Schema that came with the message."""

from __future__ import annotations

from typing import Any

import jsonschema_rs

from activities.providers.sanitize import parse_json

MAX_PROBLEMS = 5


class SchemaUnusable(Exception):
    """What was given as a JSON Schema is none."""


def problem_of(answer: str, schema: dict[str, Any]) -> str | None:
    """How an answer differs from what was asked for, in words for the model; None where it does not.

    The schema comes from outside, so its patterns are matched in linear time, and it can refer to nothing but
    itself.

    Raises:
        SchemaUnusable: the schema is none.
    """
    try:
        validator = jsonschema_rs.Draft202012Validator(
            schema, pattern_options=jsonschema_rs.RegexOptions(), retriever=_nothing
        )
    except (ValueError, jsonschema_rs.ValidationError, jsonschema_rs.ReferencingError) as error:
        raise SchemaUnusable(f"output_schema cannot be used: {str(error)[:500]}") from None
    value = parse_json(answer)
    if value is None and answer.strip() != "null":
        return "it is not JSON"
    problems = []
    for found in validator.iter_errors(value):
        place = ".".join(map(str, found.instance_path))
        problems.append(f"{place}: {found.message[:200]}" if place else found.message[:200])
        if len(problems) == MAX_PROBLEMS:
            break
    return "; ".join(problems) or None


def _nothing(uri: str) -> Any:
    raise ValueError(f"{uri} is not within the schema")
