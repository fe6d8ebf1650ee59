"""Answers in a form that was asked for: JSON, validated against a JSON Schema that came with the message.

Schema and answer both come from outside, and some schemas that the door takes still cost exponential time with some
answers, pydantic's own of recursive unions among them. So a child process validates, which the system ends.
"""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from typing import Any

from pydantic_core import from_json, to_json

from clew_activities import validation_process

MAX_CHILDREN = 2
"""Validations at the same time; others wait."""


class SchemaUnusable(Exception):
    """A schema that cannot be validated against: it is not valid, or costs too much."""


class Validation:
    """Validates answers in child processes: each ends with its validation, at its limits or with this process."""

    def __init__(self) -> None:
        self._turns = asyncio.Semaphore(MAX_CHILDREN)

    async def check(self, schema: dict[str, Any]) -> None:
        """Refuse a schema that no answer can be validated against.

        Raises:
            SchemaUnusable: the schema is not valid, or too much work.
        """
        if not await self._validate(None, schema):
            raise SchemaUnusable(f"output_schema cannot be used: validating null against it takes over {_limits()}")

    async def find_problem(self, answer: str, schema: dict[str, Any]) -> str | None:
        """How an answer differs from what was asked for, in words for the model; None where it does not.

        Raises:
            SchemaUnusable: the schema is not valid.
        """
        try:
            value = from_json(answer, allow_inf_nan=False)
        except ValueError:
            return "it is not JSON"
        known = await self._validate(value, schema)
        if not known:
            return (
                f"validating it against output_schema takes over {_limits()}: make it smaller and nest it less deeply"
            )
        if known["valid"]:
            return None
        unlisted = ["it is not what output_schema asks for, in too many ways to list them"]
        return "; ".join(known.get("problems", unlisted))

    async def _validate(self, value: Any, schema: dict[str, Any]) -> dict[str, Any]:
        """What the child process said before it ended: nothing, `valid`, or `valid` and `problems`.

        Raises:
            SchemaUnusable: the schema is not valid.
        """
        async with self._turns:
            child = _start()
            try:
                # In a thread, which ends with the child: asyncio's own children hang when cancelled at their start.
                output, _ = await asyncio.to_thread(child.communicate, to_json({"schema": schema, "value": value}))
            finally:
                child.kill()
        known: dict[str, Any] = {}
        for line in output.splitlines(keepends=True):
            if line.endswith(b"\n"):
                known |= json.loads(line)
        if "unusable" in known:
            raise SchemaUnusable(f"output_schema cannot be used: {known['unusable']}")
        return known


def _limits() -> str:
    return f"{validation_process.MAX_CPU_SECONDS} seconds or {validation_process.MAX_MEMORY_BYTES // 2**20} MiB"


def _start() -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        # The modules of that file's folder do not shadow the standard library's.
        [sys.executable, "-P", validation_process.__file__],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        # Ctrl-C in a terminal is the worker's to handle.
        start_new_session=True,
    )
