"""Remote tools on a real server: calls are activities of a worker that has nothing of Clew's in it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from temporalio import activity
from temporalio.api.common.v1 import Payload
from temporalio.api.workflowservice.v1 import RespondActivityTaskCompletedRequest
from temporalio.common import RawValue
from temporalio.exceptions import ApplicationError
from temporalio.worker import Worker

from clew import Session
from clew.local import Reply, ToolCall
from clew.local.scripted import Script
from tests.support import toolbox
from tests.support.hostile_input import assert_unharmed
from tests.support.stack import Stack, get_last_message
from tests.support.waiting import wait_until

attempts: dict[str, int] = {}


def count_attempt() -> tuple[str, int]:
    """Count an attempt of the running activity; return its idempotency key and the number."""
    info = activity.info()
    key = f"{info.workflow_id}/{info.activity_id}"
    attempts[key] = attempts.get(key, 0) + 1
    return key, attempts[key]


def make_payload(encoding: bytes, data: bytes) -> RawValue:
    return RawValue(Payload(metadata={"encoding": encoding}, data=data))


@activity.defn(name="describe")
async def describe(arguments: dict[str, Any]) -> dict[str, Any]:
    """What the activity got."""
    key, _ = count_attempt()
    return {"arguments": arguments, "key": key.partition("/")[2], "queue": activity.info().task_queue}


@activity.defn(name="return_anything")
async def return_anything(arguments: dict[str, Any]) -> Any:
    """A result of each kind."""
    match arguments["kind"]:
        case "text":
            return "plain é"
        case "null":
            return None
        case "large":
            return "é" * 200_000
        case "largest":
            return ["x" * 1_900_000]
        case "binary":
            return b"\x00\xff"
        case "protobuf":
            return make_payload(b"binary/protobuf", b"\x0a\x02hi")
        case "unknown encoding":
            return make_payload(b"application/x-unheard-of\xff", b"?")
        case "no encoding":
            return RawValue(Payload(data=b"1"))
        case "no JSON":
            return make_payload(b"json/plain", b"{")
        case "no UTF-8":
            return make_payload(b"json/plain", b'"\xff"')
        case "deep":
            return make_payload(b"json/plain", b"[" * 100_000 + b"]" * 100_000)
        case "a reference":
            return RawValue(
                Payload(metadata={"encoding": b"json/external-storage-reference"}, data=b'{"driver":"none"}')
            )
    raise AssertionError(arguments)


@activity.defn(name="fail")
async def fail(arguments: dict[str, Any]) -> str:
    """A failure of each kind."""
    _, attempt = count_attempt()
    match arguments["kind"]:
        case "plain":
            raise ValueError("no such city")
        case "typed":
            raise ApplicationError("no such city", type="timeout")
        case "untyped":
            raise ApplicationError("no such city")
        case "binary details":
            raise ApplicationError("no such city", make_payload(b"binary/x", b"\xff"), type="Odd")
        case "large":
            raise ApplicationError("x" * 100_000, type="Large")
        case "once" if attempt == 1:
            raise ValueError("not yet")
        case "hang":
            await asyncio.Event().wait()
    return f"attempt {attempt}"


@asynccontextmanager
async def run_other_worker(stack: Stack) -> AsyncIterator[None]:
    """Run a worker of plain activities."""

    @activity.defn(name="return_nothing")
    async def return_nothing(arguments: dict[str, Any]) -> None:
        """Complete without a result, as an activity in Go or Java that returns none."""
        request = RespondActivityTaskCompletedRequest(
            namespace=stack.clew.temporal.namespace, task_token=activity.info().task_token
        )
        await stack.clew.temporal.workflow_service.respond_activity_task_completed(request)
        activity.raise_complete_async()

    activities = [describe, return_anything, return_nothing, fail]
    async with Worker(stack.clew.temporal, task_queue=toolbox.OTHER_QUEUE, activities=activities):
        yield


def call(*calls: tuple[str, dict[str, Any]]) -> Script:
    """A model that calls tools, and repeats their results."""

    def script(body: dict[str, Any]) -> Reply:
        if get_last_message(body)["role"] == "user" and get_last_message(body)["content"] == "go":
            return Reply(
                tool_calls=tuple(ToolCall(name, args, f"c{number}") for number, (name, args) in enumerate(calls))
            )
        return Reply("fine")

    return script


async def read_results(session: Session) -> list[dict[str, Any]]:
    return [dict(e.payload) for e in await session.entries() if e.payload.get("role") == "tool"]


async def run_calls(stack: Stack, *calls: tuple[str, dict[str, Any]]) -> list[dict[str, Any]]:
    """Have a model make calls, and return their results in the order of the calls."""
    session = await stack.open(call(*calls), tools=sorted({name for name, _ in calls}))
    assert await session.ask("go") == "fine"
    await assert_unharmed(stack, session.id)
    return sorted(await read_results(session), key=lambda result: int(result["tool_call_id"].removeprefix("tool")))


async def test_a_call_is_an_activity_of_another_worker(stack: Stack) -> None:
    """Its argument is the object of the arguments, its activity id the id of the tool call."""
    async with run_other_worker(stack):
        (result,) = await run_calls(stack, ("describe_remotely", {"city": "Łódź"}))
    assert result["content"] == '{"arguments":{"city":"Łódź"},"key":"tool00001","queue":"other-workers"}'
    assert not result.get("is_error")


RESULTS = {
    "text": "plain é",
    "null": "null",
    "large": "\n[truncated: the first 65462 of 400000 bytes are shown]",
    "binary": "its encoding is 'binary/plain', not JSON",
    "protobuf": "its encoding is 'binary/protobuf', not JSON",
    "unknown encoding": "its encoding is 'application/x-unheard-of\ufffd', not JSON",
    "no encoding": "its encoding is '', not JSON",
    "no JSON": "cannot be read",
    "no UTF-8": "cannot be read",
    "deep": "cannot be read",
    "a reference": "its encoding is 'json/external-storage-reference', not JSON",
    "largest": "of 1900004 bytes are shown]",
}


@pytest.mark.slow
async def test_any_result_becomes_a_text_that_the_model_reads(stack: Stack) -> None:
    """Undecodable, huge and binary results harm nothing."""
    *others, largest = RESULTS
    async with run_other_worker(stack):
        results = await run_calls(stack, *(("return_remotely", {"kind": kind}) for kind in others))
        # Alone: the server itself fails a running workflow task if events of over 2 MB arrive meanwhile.
        results += await run_calls(stack, ("return_remotely", {"kind": largest}))
    for result, (kind, ending) in zip(results, RESULTS.items(), strict=True):
        assert len(result["content"].encode()) <= 65_536, kind
        assert ending in result["content"], kind
        assert bool(result.get("is_error")) == (kind not in ("text", "null", "large", "largest")), kind


async def test_an_activity_without_a_result_answers_null(stack: Stack) -> None:
    """Workers in Go and Java complete activities that return nothing without a payload."""
    async with run_other_worker(stack):
        (result,) = await run_calls(stack, ("return_nothing", {"kind": "none"}))
    assert (result["content"], bool(result.get("is_error"))) == ("null", False)


FAILURES = {
    "plain": "error: ValueError: no such city",
    "typed": "error: timeout: no such city",
    "untyped": "error: no such city",
    "binary details": "error: Odd: no such city",
    "large": "error: Large: xxx",
    "hang": "error: tool_timeout: it took longer than 0.5 seconds",
}


@pytest.mark.slow
async def test_a_failure_is_a_text_that_the_model_reads(stack: Stack) -> None:
    """With the activity's own words. A call that hangs ends at the tool's timeout."""
    async with run_other_worker(stack):
        results = await run_calls(stack, *(("fail_remotely", {"kind": kind}) for kind in FAILURES))
    for result, (kind, beginning) in zip(results, FAILURES.items(), strict=True):
        assert result["content"].startswith(beginning), kind
        assert len(result["content"]) <= 2000, kind
        assert (result["is_error"], result.get("in_doubt", False)) == (True, False), kind


async def test_a_tool_that_is_not_idempotent_runs_once(stack: Stack) -> None:
    """A failure of its own is known; after a timeout the call is in doubt. An idempotent tool is retried."""
    async with run_other_worker(stack):
        failed, hung, retried = await run_calls(
            stack,
            ("pay_remotely", {"kind": "once"}),
            ("pay_remotely", {"kind": "hang"}),
            ("retry_remotely", {"kind": "once"}),
        )
    assert (failed["content"], failed.get("in_doubt", False)) == ("error: ValueError: not yet", False)
    assert hung["content"].startswith("in doubt (tool_timeout)")
    assert hung["in_doubt"] is True
    assert retried["content"] == "attempt 2"


@pytest.mark.parametrize("arguments", [{}, {"kind": 5}, {"kind": "text", "more": 1}])
async def test_arguments_are_validated_before_the_call(stack: Stack, arguments: dict[str, Any]) -> None:
    """Nothing is scheduled: no worker is needed to refuse them."""
    (result,) = await run_calls(stack, ("return_remotely", arguments))
    assert result["content"].startswith("error: invalid arguments: ")


async def test_a_call_that_no_worker_takes_ends_with_its_request(stack: Stack) -> None:
    """The request fails with `timeout`; a cancelled one ends at once."""
    session = await stack.open(
        call(("describe_remotely", {"city": "x"})), tools=["describe_remotely"], request_timeout_seconds=1
    )
    outcome = await (await session.message("go")).result()
    assert (outcome.status, outcome.termination_reason) == ("failed", "timeout")
    request = await session.message("go", timeout_seconds=60)

    async def runs() -> bool:
        return (await session.status()).status == "awaiting_tools"

    await wait_until(runs)
    await session.cancel()
    assert (await request.result()).status == "cancelled"
    await assert_unharmed(stack, session.id)
