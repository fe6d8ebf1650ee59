"""Answers in a form that was asked for: JSON, and of a JSON Schema that came with the message."""

from __future__ import annotations

from itertools import islice
from typing import Any

from pydantic_core import from_json

from workflows.schemas import problems

MAX_PROBLEMS = 5


class SchemaUnusable(Exception):
    """What was given as a JSON Schema is none."""


def problem_of(answer: str, schema: dict[str, Any]) -> str | None:
    """How an answer differs from what was asked for, in words for the model; None where it does not.

    Raises:
        SchemaUnusable: the schema is none.
    """
    try:
        next(problems(None, schema), None)
    except ValueError as error:
        raise SchemaUnusable(f"output_schema cannot be used: {error}") from None
    try:
        value = from_json(answer, allow_inf_nan=False)
    except ValueError:
        return "it is not JSON"
    try:
        return "; ".join(islice(problems(value, schema), MAX_PROBLEMS)) or None
    except ValueError:
        return "it is nested too deeply"
