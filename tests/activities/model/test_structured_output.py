"""Validation of answers against an output schema: a verdict or a limit, never a failure."""

from __future__ import annotations

import asyncio
import json
import os
import resource
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import pytest
from pydantic import BaseModel

from clew_activities.model import structured_output, validation_process
from clew_activities.model.structured_output import LIMITS, SchemaUnusable, Validation
from clew_workflows.contract.schemas import check_schema
from tests.support.examples import mark_slow_except
from tests.support.hostile_input import SLOW, SLOW_ANSWER, Schema
from tests.support.processes import is_running, list_validations


class Sum(BaseModel):
    """One of two alternatives that no field tells apart."""

    left: Sum | Product | int
    right: Sum | Product | int


class Product(BaseModel):
    """The other one."""

    left: Sum | Product | int
    right: Sum | Product | int


EXPONENTIAL = Sum.model_json_schema()
"""A schema of pydantic's: each level of nesting doubles the errors of a validator."""


def nest_sums(depth: int, innermost: Any) -> dict[str, Any]:
    """A sum of sums."""
    value = {"left": innermost, "right": 1}
    for _ in range(depth):
        value = {"left": value, "right": 1}
    return value


@pytest.fixture
def validation(monkeypatch: pytest.MonkeyPatch) -> Validation:
    """A validation whose child has more time to get its share of a busy processor."""
    monkeypatch.setattr(structured_output, "LIMITS", replace(LIMITS, seconds=30))
    return Validation()


@pytest.mark.parametrize(
    ("answer", "schema", "problem"),
    [
        ('{"a": 1}', {"type": "object", "required": ["a"]}, None),
        ("null", {}, None),
        ("9" * 400, {"type": "number"}, None),
        ('{"a": {"b": "x"}}', {"properties": {"a": {"properties": {"b": {"type": "number"}}}}}, "a.b: "),
        ("", {}, "it is not JSON"),
        ("NaN", {}, "it is not JSON"),
        ("```json\n{}\n```", {}, "it is not JSON"),
        (r'"\ud800"', {"type": "string"}, "it is not JSON"),
        ("[" * 100_000, {}, "it is not JSON"),
        ("9" * 5000, {}, "it is not JSON"),
        ('"0.1"', {"type": "string", "pattern": r"^(?!^[-+.]*$)[+-]?0*\d*\.?\d*$"}, None),
    ],
)
async def test_an_answer_is_of_the_form_or_not(
    answer: str, schema: dict[str, Any], problem: str | None, validation: Validation
) -> None:
    """The problem names its path in the answer. No answer makes the activity fail."""
    actual = await validation.find_problem(answer, schema)
    assert actual is None if problem is None else (actual or "").startswith(problem)


@pytest.mark.parametrize("depth", [100, 180, 300, 900])
async def test_no_depth_is_an_error(depth: int, validation: Validation) -> None:
    assert isinstance(await validation.find_problem("[" * depth + "]" * depth, {"type": "object"}), str)


async def test_what_is_told_has_an_end(validation: Validation) -> None:
    problems = await validation.find_problem(f"[{', '.join(['1'] * 100)}]", {"items": {"type": "string"}})
    assert problems is not None
    assert problems.count(";") == validation_process.MAX_PROBLEMS - 1


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "nope"},
        {"$ref": "http://127.0.0.1:1/schema"},
        {"$ref": "file:///etc/passwd"},
        {"$ref": "#/nowhere"},
        {"pattern": "("},
        {"pattern": "(a{1000}){1000}"},
    ],
)
async def test_what_is_no_schema_is_told(schema: dict[str, Any], validation: Validation) -> None:
    """A schema that the validator cannot compile is refused; references are not fetched."""
    with pytest.raises(SchemaUnusable, match="output_schema cannot be used"):
        await validation.check(schema)


async def test_patterns_take_linear_time(validation: Validation) -> None:
    assert await validation.find_problem(f'"{"a" * 5000}!"', {"pattern": "(a+)+$"}) is not None


@pytest.mark.slow
async def test_an_answer_too_costly_to_explain_has_its_verdict(validation: Validation) -> None:
    """Errors that multiply with each level of nesting end the child process, but it has given its verdict before."""
    check_schema(EXPONENTIAL)
    assert await validation.find_problem(json.dumps(nest_sums(60, 1)), EXPONENTIAL) is None
    assert "in too many ways" in (await validation.find_problem(json.dumps(nest_sums(60, "x")), EXPONENTIAL) or "")
    assert (await validation.find_problem(json.dumps(nest_sums(2, "x")), EXPONENTIAL) or "").startswith("left")


@pytest.mark.slow
async def test_a_validation_without_end_is_a_problem_that_is_told(validation: Validation) -> None:
    """The limit is on the processor's time, so the test's own clock has room."""
    check_schema(SLOW)
    begun = time.monotonic()
    assert "takes over 2 seconds" in (await validation.find_problem(SLOW_ANSWER, SLOW) or "")
    assert time.monotonic() - begun < LIMITS.seconds + 30


TWICE: Schema = {"properties": {"a": {"$ref": "#/$defs/node"}}}

COSTLY: dict[str, tuple[Schema, Any]] = {
    "errors that repeat the answer": ({"allOf": [{"type": "null"}] * 900}, ["x" * 1000] * 200),
    "numbers far apart": ({"items": {"multipleOf": 1e-300}}, [1e300] * 40_000),
    "a long enum": ({"items": {"enum": [{"a": i} for i in range(8000)]}}, [{"a": -1}] * 20_000),
    "long lengths": ({"items": {"minLength": 10**30, "maxItems": 10**30}}, ["x"] * 50_000),
    "unique items": ({"uniqueItems": True}, [{"a": i} for i in range(25_000)]),
    "parts that multiply": (
        {"$ref": "#/$defs/node", "$defs": {"node": {"allOf": [TWICE, TWICE]}}},
        nest_sums(150, "x"),
    ),
    "names": ({"propertyNames": {"pattern": "^(a|b|ab)*$"}}, {"ab" * 500 + str(i): 1 for i in range(200)}),
    "groups of groups": ({"items": {"pattern": "^((a{50}){50}|b){1,9}$"}}, ["a" * 2000] * 100),
}
"""Within the bounds, each with an answer as large as it may be."""


@pytest.mark.parametrize("costly", mark_slow_except(("unique items", "parts that multiply", "names"), COSTLY))
async def test_what_passes_the_door_ends(costly: str, validation: Validation) -> None:
    """With a verdict or at a limit; this process has no part in the work."""
    schema, answer = COSTLY[costly]
    check_schema(schema)
    text = json.dumps(answer)
    assert len(text) < 400_000
    begun, memory = time.monotonic(), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    problem = await validation.find_problem(text, schema)
    assert problem is None or len(problem) < 10_000
    assert time.monotonic() - begun < LIMITS.seconds + 30
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - memory < 50_000


async def test_a_cancelled_validation_leaves_no_process(validation: Validation) -> None:
    """Neither running nor as a zombie."""
    task = asyncio.create_task(validation.find_problem(SLOW_ANSWER, SLOW))
    while not (processes := list_validations(os.getpid())):
        await asyncio.wait([task], timeout=0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    deadline = time.monotonic() + 60
    while processes[0] in list_validations(os.getpid()):
        assert time.monotonic() < deadline
        os.sched_yield()


def test_a_validation_that_is_cancelled_while_all_threads_are_busy_leaves_no_process() -> None:
    """Its child is killed at once, and waited for by the first thread that is free."""

    async def cancel_early() -> list[str]:
        loop, gate = asyncio.get_running_loop(), threading.Event()
        loop.set_default_executor(ThreadPoolExecutor(1))
        blocked = loop.run_in_executor(None, gate.wait)
        task = asyncio.create_task(Validation().find_problem(SLOW_ANSWER, SLOW))
        while not list_validations(os.getpid()):
            await asyncio.wait([task], timeout=0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        gate.set()
        await blocked
        await loop.shutdown_default_executor()
        return list_validations(os.getpid())

    assert asyncio.run(cancel_early()) == []


@pytest.mark.slow
def test_a_killed_worker_leaves_no_process() -> None:
    """The child's own limits end it."""
    code = (
        "import asyncio, json, sys; from clew_activities.model.structured_output import Validation; "
        "asyncio.run(Validation().find_problem(*json.load(sys.stdin)))"
    )
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    worker = subprocess.Popen([sys.executable, "-c", code], env=environment, stdin=subprocess.PIPE, text=True)
    worker_input = worker.stdin
    assert worker_input is not None
    with worker_input:
        json.dump([SLOW_ANSWER, SLOW], worker_input)
    while not (processes := list_validations(worker.pid)):
        assert worker.poll() is None
    worker.kill()
    worker.wait()
    deadline = time.monotonic() + LIMITS.seconds + 30
    while is_running(processes[0]):
        assert time.monotonic() < deadline
        os.sched_yield()
