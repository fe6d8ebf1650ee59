"""The child process that validates one value against one JSON Schema, both from outside.

It reads `{schema, value}` from standard input and writes lines of JSON: `{unusable}`, or `{valid}` and, for a value
that is not valid, `{problems}`. If a limit ends the process, the parent uses the lines written until then.
"""

from __future__ import annotations

import json
import sys
from itertools import islice
from typing import Any

import jsonschema_rs

MAX_PROBLEMS = 5
MAX_PROBLEM_CHARACTERS = 300


def main() -> None:
    """Validate what comes on standard input."""
    task = json.load(sys.stdin.buffer)
    try:
        validator = jsonschema_rs.Draft202012Validator(
            task["schema"],
            # Linear time, except for patterns with lookaround, which pydantic uses for decimals.
            pattern_options=jsonschema_rs.FancyRegexOptions(),
            retriever=_refuse,
        )
    except (ValueError, jsonschema_rs.ValidationError, jsonschema_rs.ReferencingError) as error:
        _write_line(unusable=str(error)[:500])
        return
    try:
        valid = validator.is_valid(task["value"])
        _write_line(valid=valid)
        if not valid:
            _write_line(
                problems=[_describe(error) for error in islice(validator.iter_errors(task["value"]), MAX_PROBLEMS)]
            )
    except ValueError:
        _write_line(valid=False)
        _write_line(problems=["it is nested too deeply"])


def _describe(error: jsonschema_rs.ValidationError) -> str:
    path = ".".join(map(str, error.instance_path))
    message = error.message[:MAX_PROBLEM_CHARACTERS]
    return f"{path}: {message}" if path else message


def _write_line(**line: Any) -> None:
    print(json.dumps(line), flush=True)  # noqa: T201 - standard output is where the worker reads


def _refuse(uri: str) -> Any:
    raise ValueError(f"{uri} is not within the schema")


if __name__ == "__main__":
    main()
