"""Structured output: validates a reply's JSON against the JSON Schema that came with the message.

Schema and reply come from outside. Some schemas that a session accepts take exponential time with some replies, for
example pydantic's schemas of recursive unions. So a child process validates, and the system ends it at its limits.
"""

from __future__ import annotations

import asyncio
import json
from typing import Any

from pydantic_core import from_json, to_json

from clew.child_process import Limits, run_child
from clew_activities.model import validation_process

LIMITS = Limits(memory_bytes=512 * 1024 * 1024, cpu_seconds=2, seconds=10)
"""Limits of a validation."""
MAX_CHILDREN = 2
"""Most validations at the same time; others wait."""


class SchemaUnusable(Exception):
    """The schema is not valid, or validating against it takes too long."""


class Validation:
    """Validates replies in child processes. Each ends with its validation, at its limits, or with this process."""

    def __init__(self) -> None:
        self._slots = asyncio.Semaphore(MAX_CHILDREN)

    async def check(self, schema: dict[str, Any]) -> None:
        """Refuse a schema that replies cannot be validated against.

        Raises:
            SchemaUnusable: The schema is not valid, or validating null against it exceeds the limits.
        """
        if not await self._validate(None, schema):
            raise SchemaUnusable(
                f"output_schema cannot be used: validating null against it takes over {_describe_limits()}"
            )

    async def find_problem(self, answer: str, schema: dict[str, Any]) -> str | None:
        """Describe, for the model, how a reply violates the schema; None: it is valid.

        Raises:
            SchemaUnusable: The schema is not valid.
        """
        try:
            value = from_json(answer, allow_inf_nan=False)
        except ValueError:
            return "it is not JSON"
        result = await self._validate(value, schema)
        if not result:
            limits = _describe_limits()
            return f"validating it against output_schema takes over {limits}: make it smaller and less nested"
        if result["valid"]:
            return None
        unlisted = ["it does not match output_schema, in too many ways to list them"]
        return "; ".join(result.get("problems", unlisted))

    async def _validate(self, value: Any, schema: dict[str, Any]) -> dict[str, Any]:
        """Run a child process. Returns what it wrote before it ended: nothing, `valid`, or `valid` and `problems`.

        Raises:
            SchemaUnusable: The schema is not valid.
        """
        async with self._slots:
            output = await run_child(validation_process.__file__, to_json({"schema": schema, "value": value}), LIMITS)
        result: dict[str, Any] = {}
        for line in output.splitlines(keepends=True):
            if line.endswith(b"\n"):
                result |= json.loads(line)
        if "unusable" in result:
            raise SchemaUnusable(f"output_schema cannot be used: {result['unusable']}")
        return result


def _describe_limits() -> str:
    return f"{LIMITS.cpu_seconds} seconds or {LIMITS.memory_bytes // 2**20} MiB"
