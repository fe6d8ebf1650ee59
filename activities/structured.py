"""Answers in a form that was asked for: JSON, and of a JSON Schema that came with the message."""

from __future__ import annotations

from itertools import islice
from typing import Any

import jsonschema_rs
from pydantic_core import from_json

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
    try:
        value = from_json(answer, allow_inf_nan=False)
    except ValueError:
        return "it is not JSON"
    problems = []
    try:
        for found in islice(validator.iter_errors(value), MAX_PROBLEMS):
            place = ".".join(map(str, found.instance_path))
            problems.append(f"{place}: {found.message[:200]}" if place else found.message[:200])
    except ValueError:
        return "it is nested too deeply"
    return "; ".join(problems) or None


def _nothing(uri: str) -> Any:
    raise ValueError(f"{uri} is not within the schema")
