"""Tools on the worker: each end of a tool gives the model a result or an error to read."""

from __future__ import annotations

import asyncio
import functools
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest
from pydantic import BaseModel, field_validator
from temporalio.activity import ActivityCancellationDetails
from temporalio.exceptions import ApplicationError

from clew import ToolContext, tool
from clew_activities.tools.threads import ToolThreadSettings
from tests.support.model_calls import Worker, make_call, run_function, run_returning


async def test_an_attempt_that_raised_is_tried_again_as_often_as_the_tool_says() -> None:
    """The last one's error is what the model reads."""

    @tool(retries=2)
    def flaky(context: ToolContext) -> None:
        raise ValueError(f"attempt {context.attempt}")

    for attempt in (1, 2):
        with pytest.raises(ApplicationError, match=f"ValueError: attempt {attempt}") as caught:
            await run_function(flaky, attempt=attempt)
        assert (caught.value.type, caught.value.non_retryable) == ("tool_failed", False)
    answer = await run_function(flaky, attempt=3)
    assert (answer.content, answer.is_error) == ("error: ValueError: attempt 3", True)


async def test_a_result_that_cannot_be_written_costs_no_second_run() -> None:
    """A result that is not JSON is no error, and the tool is not run again."""
    runs = []

    @tool(retries=5)
    def it() -> bytes:
        runs.append(1)
        return b"\xff"

    assert not (await run_function(it)).is_error
    assert len(runs) == 1


async def test_a_tool_knows_its_call_and_the_key_is_stable_over_retries() -> None:
    """Session, request and call; the key is the same for every attempt of this call."""
    seen: list[ToolContext] = []

    def it(context: ToolContext, a: int = 1) -> int:
        seen.append(context)
        return a

    for attempt in (1, 2):
        assert (await run_function(it, attempt=attempt)).content == "1"
    first, second = seen
    assert (first.session_id, first.request_id, first.tool_call_id) == ("session-1", "request-1", "tool00001")
    assert (first.attempt, second.attempt) == (1, 2)
    assert first.idempotency_key == second.idempotency_key == "session-1/tool00001"


async def test_an_async_tool_has_its_time() -> None:
    """Then it is cancelled, and the model reads that it took too long; retries are not for that."""
    ended = asyncio.Event()

    @tool(timeout_seconds=0.05, retries=3)
    async def dawdle() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()

    answer = await run_function(dawdle)
    assert (answer.content, answer.is_error) == ("error: tool 'dawdle' took longer than 0.05 seconds", True)
    assert ended.is_set()


async def test_a_sync_tool_has_its_time() -> None:
    """The model goes on without it; its thread holds up neither other tools nor the end of the process."""
    gate, done, names = threading.Event(), threading.Event(), []

    @tool(timeout_seconds=0.05)
    def hang() -> None:
        names.append((threading.current_thread().name, threading.current_thread().daemon))
        gate.wait(10)
        done.set()

    try:
        assert "took longer than 0.05 seconds" in (await run_function(hang)).content
        assert names == [("clew-tool", True)]
    finally:
        gate.set()
    assert await asyncio.to_thread(done.wait, 10)
    assert (await run_returning("next")).content == "next"


@pytest.mark.parametrize("is_async", [True, False])
async def test_what_must_not_run_twice_and_takes_too_long_is_left_to_the_session(is_async: bool) -> None:
    """The effect of the call is unknown: the activity fails, and there is no other attempt."""
    gate = threading.Event()

    async def wait() -> None:
        await asyncio.Event().wait()

    pay = tool(name="pay", timeout_seconds=0.05, idempotent=False)(wait if is_async else lambda: gate.wait(10))
    try:
        with pytest.raises(ApplicationError) as caught:
            await run_function(pay)
    finally:
        gate.set()
    assert (caught.value.type, caught.value.non_retryable) == ("tool_timeout", True)


async def test_what_must_not_run_twice_and_raises_has_answered() -> None:
    """It was there to its end, and says itself what went wrong."""

    @tool(idempotent=False)
    def pay() -> None:
        raise ValueError("no such account")

    answer = await run_function(pay)
    assert (answer.content, answer.is_error) == ("error: ValueError: no such account", True)


@pytest.mark.parametrize("where", ["validator", "async tool", "async tool that ignores", "result"])
async def test_whatever_of_a_tool_blocks_it_is_answered_in_time_and_heartbeats_go_on(where: str) -> None:
    """The author's validators, the tool, and what makes text of its result: the worker's loop waits for none."""
    gate = threading.Event()

    class Slow(BaseModel):
        a: int

        @field_validator("a")
        @classmethod
        def wait(cls, value: int) -> int:
            gate.wait(30)
            return value

    class Unshown:
        def __str__(self) -> str:
            gate.wait(30)
            return "shown"

    async def block() -> None:
        gate.wait(30)

    async def ignore() -> None:
        while not gate.is_set():
            with suppress(asyncio.CancelledError):
                await asyncio.sleep(0.01)

    def validated(slow: Slow) -> None: ...

    def unshown() -> Any:
        return Unshown()

    functions: dict[str, Callable[..., Any]] = {
        "validator": validated,
        "async tool": block,
        "async tool that ignores": ignore,
        "result": unshown,
    }
    validated.__annotations__ = {"slow": Slow, "return": None}
    bounds = ToolThreadSettings(cleanup_seconds=0.1)
    made = tool(name="it", timeout_seconds=0.5)(functions[where])
    worker = Worker(made, threads=bounds, storing_seconds=0.5)
    try:
        async with asyncio.timeout(10):
            answer = await worker.run(make_call("it", {"slow": {"a": 1}} if where == "validator" else None))
    finally:
        gate.set()
    assert answer.is_error
    error = "has run, but its result cannot be written" if where == "result" else "took longer than 0.5 seconds"
    assert error in answer.content
    assert len(worker.heartbeats) > 1


async def test_a_tools_own_timeout_is_an_error_of_its_own() -> None:
    """A TimeoutError of the tool's own code is an ordinary error, and is retried as one."""

    @tool(retries=1)
    async def ask_the_shop() -> None:
        async with asyncio.timeout(0):
            await asyncio.Event().wait()

    with pytest.raises(ApplicationError, match="TimeoutError"):
        await run_function(ask_the_shop)
    assert (await run_function(ask_the_shop, attempt=2)).content.startswith("error: TimeoutError")


async def test_sync_tools_run_in_threads_side_by_side() -> None:
    """Each in one of its own: the first ends only when the second has begun."""
    both = threading.Barrier(2, timeout=10)

    def meet() -> bool:
        both.wait()
        return threading.current_thread() is not threading.main_thread()

    assert [answer.content for answer in await asyncio.gather(run_function(meet), run_function(meet))] == [
        "true",
        "true",
    ]


async def test_what_a_plain_wrapper_makes_of_an_async_tool_is_awaited() -> None:
    """A decorator of the user's may hide that the function is async."""

    async def later() -> str:
        return "later"

    @functools.wraps(later)
    def wrapper() -> Any:
        return later()

    assert (await run_function(wrapper)).content == "later"


async def test_a_cancellation_reaches_the_tool() -> None:
    """A cancelled tool may clean up; the activity ends as cancelled."""
    started, cleaned = asyncio.Event(), asyncio.Event()

    @tool
    async def wait() -> None:
        started.set()
        try:
            await asyncio.Event().wait()
        finally:
            cleaned.set()

    worker = Worker(wait)
    task = asyncio.create_task(worker.run(make_call("wait")))
    await started.wait()
    worker.environment.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert cleaned.is_set()


async def test_a_worker_that_stops_does_not_wait_for_a_thread() -> None:
    """Another worker takes the call over; this worker does not wait for the thread's result."""
    gate, started = threading.Event(), threading.Event()

    @tool
    def hang() -> None:
        started.set()
        gate.wait(10)

    worker = Worker(hang)
    task = asyncio.create_task(worker.run(make_call("hang")))
    try:
        assert await asyncio.to_thread(started.wait, 10)
        worker.environment.cancel(ActivityCancellationDetails(worker_shutdown=True))
        with pytest.raises(asyncio.CancelledError):
            await task
        assert not gate.is_set()
    finally:
        gate.set()


@pytest.mark.parametrize("details", [{"cancel_requested": True}, {"not_found": True}])
async def test_what_a_thread_returns_after_a_stop_request_counts(details: dict[str, bool]) -> None:
    """A thread cannot be stopped. The session has gone on, perhaps in another workflow run: it gets a signal, too."""
    gate, started = threading.Event(), threading.Event()

    @tool
    def pay() -> str:
        started.set()
        gate.wait(10)
        return "paid"

    worker = Worker(pay)
    task = asyncio.create_task(worker.run(make_call("pay")))
    assert await asyncio.to_thread(started.wait, 10)
    worker.environment.cancel(ActivityCancellationDetails(**details))
    gate.set()
    assert (await task).content == "paid"
    worker.session.signal.assert_awaited_once_with(
        "late_result", {"tool_call_id": "tool00001", "content": "paid", "is_error": False}
    )


async def test_a_result_in_time_is_not_sent_by_a_signal() -> None:
    """It is the activity's result alone."""

    @tool
    def pay() -> str:
        return "paid"

    worker = Worker(pay)
    assert (await worker.run(make_call("pay"))).content == "paid"
    worker.session.signal.assert_not_awaited()


async def test_a_stop_request_ends_with_the_tool_s_own_time() -> None:
    """A thread that never returns holds the activity no longer than the tool may take."""
    gate, started = threading.Event(), threading.Event()

    @tool(timeout_seconds=0.3, idempotent=False)
    def hang() -> None:
        started.set()
        gate.wait(10)

    worker = Worker(hang)
    task = asyncio.create_task(worker.run(make_call("hang")))
    try:
        assert await asyncio.to_thread(started.wait, 10)
        worker.environment.cancel(ActivityCancellationDetails(cancel_requested=True))
        with pytest.raises(ApplicationError, match="too long"):
            await task
    finally:
        gate.set()


class Unprintable:
    """A value without a text."""

    def __str__(self) -> str:
        raise ValueError("no")


async def test_heartbeats_name_the_tool() -> None:
    """Heartbeats during the call let the server notice a dead worker, and viewers see which tool runs."""
    beaten = threading.Event()

    @tool
    def it() -> None:
        beaten.wait(10)

    worker = Worker(it)

    def beat(details: dict[str, str]) -> None:
        worker.heartbeats.append(details)
        beaten.set()

    worker.environment.on_heartbeat = beat
    await worker.run(make_call("it"))
    first = worker.heartbeats[0]
    assert (first["name"], first["tool_call_id"], "text" in first) == ("it", "tool00001", False)


@pytest.mark.parametrize(
    ("report", "shown"),
    [
        (("half", 0.5), ("half", 0.5)),
        (("done", 1), ("done", 1.0)),
        (("x" * 5000,), ("x" * 1000, None)),
        (("\ud800", float("nan")), ("\ufffd", None)),
        ((5, 2), ("5", None)),
        ((Unprintable(), "half"), ("a Unprintable that cannot be shown (ValueError)", None)),
    ],
)
async def test_progress_is_reported_with_the_heartbeats(
    report: tuple[Any, ...], shown: tuple[str, float | None]
) -> None:
    """From any thread, up to 1000 characters, and encodable: one that is not would end the heartbeats."""
    beaten = threading.Event()

    @tool
    def work(context: ToolContext) -> None:
        context.report(*report)
        assert beaten.wait(10)

    worker = Worker(work)

    def beat(details: dict[str, str]) -> None:
        worker.heartbeats.append(details)
        if "text" in details:
            beaten.set()

    worker.environment.on_heartbeat = beat
    assert not (await worker.run(make_call("work"))).is_error
    newest = worker.heartbeats[-1]
    assert (newest["text"], newest.get("fraction")) == shown
