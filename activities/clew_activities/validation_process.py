"""The child process that validates: one value against one JSON Schema, both from outside, within hard limits.

It reads `{schema, value}` from its standard input and writes lines of JSON: `{unusable}`, or `{valid}` and, after
that of a value that is not valid, `{problems}`. Where a limit ends it, the lines so far are what is known.
"""

from __future__ import annotations

import json
import resource
import signal
import sys
from contextlib import suppress
from itertools import islice
from typing import Any

import jsonschema_rs

MAX_MEMORY_BYTES = 512 * 1024 * 1024
MAX_CPU_SECONDS = 2
MAX_SECONDS = 10
"""Of wall-clock time, on a machine that has other work."""
MAX_PROBLEMS = 5
MAX_PROBLEM_CHARACTERS = 300


def main() -> None:
    """Validate what comes on standard input."""
    _limit()
    work = json.load(sys.stdin.buffer)
    try:
        validator = jsonschema_rs.Draft202012Validator(
            work["schema"],
            # Linear but for patterns that look around, as pydantic's of decimals do.
            pattern_options=jsonschema_rs.FancyRegexOptions(),
            retriever=_refuse,
        )
    except (ValueError, jsonschema_rs.ValidationError, jsonschema_rs.ReferencingError) as error:
        _answer(unusable=str(error)[:500])
        return
    try:
        valid = validator.is_valid(work["value"])
        _answer(valid=valid)
        if not valid:
            _answer(
                problems=[_describe(error) for error in islice(validator.iter_errors(work["value"]), MAX_PROBLEMS)]
            )
    except ValueError:
        _answer(valid=False)
        _answer(problems=["it is nested too deeply"])


def _limit() -> None:
    """Limits that the system enforces, whatever this process does, and also when its worker is gone."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_CPU, (MAX_CPU_SECONDS, MAX_CPU_SECONDS))
    signal.alarm(MAX_SECONDS)
    # macOS has this limit and does not take it.
    with suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_AS, (MAX_MEMORY_BYTES, MAX_MEMORY_BYTES))


def _describe(error: jsonschema_rs.ValidationError) -> str:
    path = ".".join(map(str, error.instance_path))
    message = error.message[:MAX_PROBLEM_CHARACTERS]
    return f"{path}: {message}" if path else message


def _answer(**line: Any) -> None:
    print(json.dumps(line), flush=True)  # noqa: T201 - standard output is where the worker reads


def _refuse(uri: str) -> Any:
    raise ValueError(f"{uri} is not within the schema")


if __name__ == "__main__":
    main()
