"""Validating arguments of tool calls in workflow code, which has to finish within milliseconds."""

from __future__ import annotations

from functools import cached_property
from typing import Any

import jsonschema_rs

from clew.contract.schemas import MAX_ARGUMENT_STEPS, StepCounter, check_steps
from clew.model.canonical import canonicalize

MAX_SHOWN_CHARACTERS = 200
MAX_PATTERNS = 100
"""Most regular expressions of a schema. All of them are compiled for each round."""
MAX_PATTERN_BYTES = 1_000_000
"""Largest regular expression when it is compiled, in bytes: that takes 3 ms."""


class ArgumentChecks:
    """Validates the arguments of a round: each tool's schema is read once, and the calls share the allowed steps."""

    def __init__(self, calls: int) -> None:
        self._max_steps = MAX_ARGUMENT_STEPS // max(calls, 1)
        self._schemas: dict[str, _ArgumentSchema] = {}

    def find_problem(self, name: str, arguments: dict[str, Any], schema: dict[str, Any]) -> str | None:
        """Describe how the arguments of a call of a tool violate its schema; None if they do not."""
        try:
            if name not in self._schemas:
                self._schemas[name] = _ArgumentSchema(schema)
            return self._schemas[name].find_problem(arguments, self._max_steps)
        except ValueError as error:
            return str(error)[:500]


def find_argument_problem(arguments: dict[str, Any], schema: dict[str, Any]) -> str | None:
    """Describe how the arguments of a tool call violate its schema; None if they do not."""
    return ArgumentChecks(1).find_problem("", arguments, schema)


def make_validator(schema: dict[str, Any]) -> jsonschema_rs.Draft202012Validator:
    """Make a validator whose patterns take linear time, and which fetches no other schema.

    Raises:
        ValueError: The schema is not valid JSON Schema, or its patterns are too many or too large.
    """
    patterns = _count_patterns(schema)
    if patterns > MAX_PATTERNS:
        raise ValueError(f"the schema has {patterns} patterns, at most {MAX_PATTERNS} are accepted")
    options = jsonschema_rs.RegexOptions(size_limit=MAX_PATTERN_BYTES)
    try:
        return jsonschema_rs.Draft202012Validator(schema, pattern_options=options, retriever=_refuse)
    except (ValueError, jsonschema_rs.ValidationError, jsonschema_rs.ReferencingError) as error:
        hint = "a pattern is not valid, or too large: " if 'is not a "regex"' in str(error) else ""
        raise ValueError(f"{hint}{error}") from None


class _ArgumentSchema:
    """The schema of a tool's arguments.

    The validator is asked only whether they are valid, first for all arguments and then for each alone. Its own
    errors are not collected: with nested alternatives that can take exponentially longer.
    """

    def __init__(self, schema: dict[str, Any]) -> None:
        self._schema = schema
        self._steps = StepCounter(schema)
        self._validator = make_validator(schema)

    @cached_property
    def _single(self) -> jsonschema_rs.Draft202012Validator:
        """The validator for one argument alone."""
        return make_validator(self._schema | {"required": []})

    def find_problem(self, arguments: dict[str, Any], max_steps: int) -> str | None:
        """Describe how arguments violate the schema.

        Raises:
            ValueError: The validation takes too many steps, or the schema is not valid.
        """
        check_steps(self._steps, arguments, max_steps)
        if self._validator.is_valid(arguments):
            return None
        missing = [name for name in self._schema.get("required", ()) if name not in arguments]
        if missing:
            return f"{missing[0]}: it is missing"
        wrong = next((name for name in arguments if not self._single.is_valid({name: arguments[name]})), None)
        if wrong is None:
            return "they are not what the tool's parameters ask for"
        if wrong not in self._schema.get("properties", {}):
            return f"{wrong[:50]}: the tool has no such argument"
        form = canonicalize(self._schema["properties"][wrong]).decode()
        return f"{wrong[:50]}: it is not of the form {form[:MAX_SHOWN_CHARACTERS]}"


def _count_patterns(schema: Any) -> int:
    """Count the regular expressions. What has their keywords in another place counts, too."""
    count, left = 0, [schema]
    while left:
        match left.pop():
            case dict() as fields:
                count += isinstance(fields.get("pattern"), str)
                count += len(named) if isinstance(named := fields.get("patternProperties"), dict) else 0
                left += fields.values()
            case list() as items:
                left += items
    return count


def _refuse(uri: str) -> Any:
    raise ValueError(f"{uri} is not within the schema")
