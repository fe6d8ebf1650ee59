"""Each failure of a tool's call is an error that the model reads."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import BaseModel, field_validator
from temporalio.exceptions import ApplicationError

from clew import tool
from tests.support.model_calls import Unspeakable, Worker, make_call, run_function


class Picky(BaseModel):
    a: int

    @field_validator("a")
    @classmethod
    def check(cls, value: int) -> int:
        return 1 // value


async def test_an_unknown_tool_is_an_error_that_the_model_reads() -> None:
    """The session may name a tool that this worker does not have."""
    answer = await Worker().run(make_call("gone"))
    assert (answer.content, answer.is_error) == ("error: tool 'gone' is not registered on the worker", True)


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        ({}, "a: "),
        ({"a": "x"}, "a: Input should be a valid integer"),
        ({"a": 1, "b": 2}, "b: Unexpected keyword argument"),
        ({"a": 1, "x" * 5000: 2}, "x: "),
        ({f"{n}": 1 for n in range(1000)}, "a: "),
    ],
)
async def test_arguments_that_do_not_fit_are_an_error_that_the_model_reads(
    arguments: dict[str, Any], problem: str
) -> None:
    """With the places that were wrong, in at most 2000 characters; the tool itself is not run."""

    @tool(retries=3)
    def it(a: int) -> None:
        raise AssertionError("it ran")

    answer = await run_function(it, **arguments)
    assert answer.is_error
    assert answer.content.startswith("error: invalid arguments: ")
    assert problem.replace("Unexpected keyword argument", "Extra inputs are not permitted") in answer.content
    assert len(answer.content) < 2100


async def test_a_validator_may_raise_anything() -> None:
    """What pydantic does not take for a validation error is one all the same, and costs no retry."""

    @tool(retries=3)
    def it(picky: Picky) -> None: ...

    answer = await run_function(it, picky={"a": 0})
    assert (answer.is_error, "invalid arguments: ZeroDivisionError" in answer.content) == (True, True)


RAISED: dict[str, BaseException] = {
    "ValueError": ValueError("the fuse was lit"),
    "ApplicationError": ApplicationError("no", type="x", non_retryable=True),
    "StopIteration": StopIteration("nothing left"),
    "StopAsyncIteration": StopAsyncIteration(),
    "SystemExit": SystemExit(3),
    "TimeoutError": TimeoutError("the shop did not answer"),
    "RecursionError": RecursionError("too deep"),
    "BaseException": BaseException("odd"),
    "Unspeakable": Unspeakable(),
    "BaseExceptionGroup": BaseExceptionGroup("several", [KeyError("a"), SystemExit(1)]),
}


@pytest.mark.parametrize("name", RAISED)
@pytest.mark.parametrize("kind", ["sync", "async"])
async def test_whatever_a_tool_raises_is_an_error_that_the_model_reads(name: str, kind: str) -> None:
    """The error has the exception's name and message, and the worker goes on."""

    def sync_tool() -> None:
        raise RAISED[name]

    async def async_tool() -> None:
        raise RAISED[name]

    answer = await run_function(sync_tool if kind == "sync" else async_tool)
    assert answer.is_error
    assert name in answer.content
    assert "longer than" not in answer.content


async def test_a_keyboard_interrupt_in_a_thread_is_the_tools_own() -> None:
    """A tool's KeyboardInterrupt is an error of the tool; the operator's arrives in the main thread."""

    def interrupted() -> None:
        raise KeyboardInterrupt

    assert "KeyboardInterrupt" in (await run_function(interrupted)).content


@pytest.mark.parametrize("message", ["x" * 100_000, "lone \ud800", "wide \U0001f43b" * 5000])
async def test_an_error_has_an_end_and_can_be_stored(message: str) -> None:
    """2000 characters of it; the same goes for an attempt that is tried again."""

    def it() -> None:
        raise ValueError(message)

    answer = await run_function(it)
    assert len(answer.content.encode()) < 8100
    with pytest.raises(ApplicationError) as caught:
        await run_function(tool(name="it", retries=1)(it))
    assert len(caught.value.message.encode()) < 8100
    small = await run_function(it, limit=256)
    assert len(small.content.encode()) <= 256
