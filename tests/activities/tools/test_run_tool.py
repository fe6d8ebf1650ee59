from __future__ import annotations

import asyncio
import functools
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from datetime import date
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, field_validator
from temporalio.activity import ActivityCancellationDetails
from temporalio.exceptions import ApplicationError

from clew import ToolContext, tool
from clew_activities.tools.mcp.mcp_settings import HttpSettings, McpSettings, ProcessSettings, ServerSettings
from clew_activities.tools.mcp.mcp_tools import McpTools
from clew_activities.tools.os_threads import ToolThreadSettings
from tests.support.examples import examples
from tests.support.images import PARTS, PNG
from tests.support.model_calls import KIB64, Unspeakable, Worker, make_call, run_function, run_returning
from tests.support.waiting import PATIENCE_SECONDS


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
    steps: list[str] = []

    @tool(timeout_seconds=0.05, retries=3)
    async def dawdle() -> None:
        steps.append("began")
        try:
            await asyncio.Event().wait()
        finally:
            steps.append("ended")

    while not steps:  # on a busy machine its time may be over before it begins
        answer = await run_function(dawdle)
        assert (answer.content, answer.is_error) == ("error: tool 'dawdle' took longer than 0.05 seconds", True)
    assert steps == ["began", "ended"]


async def test_a_sync_tool_has_its_time() -> None:
    """The model goes on without it; its thread holds up neither other tools nor the end of the process."""
    gate, done, names = threading.Event(), threading.Event(), []

    @tool(timeout_seconds=0.05)
    def hang() -> None:
        names.append((threading.current_thread().name, threading.current_thread().daemon))
        gate.wait(10)
        done.set()

    try:
        while not names:  # on a busy machine its time may be over before it begins
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
    bounds, heartbeats = ToolThreadSettings(cleanup_seconds=0.1), 0
    try:
        for seconds in (0.5, 5.0, 20.0):  # on a busy machine a short time may be over before the second heartbeat
            made = tool(name="it", timeout_seconds=seconds)(functions[where])
            worker = Worker(made, threads=bounds, storing_seconds=seconds)
            async with asyncio.timeout(PATIENCE_SECONDS):
                answer = await worker.run(make_call("it", {"slow": {"a": 1}} if where == "validator" else None))
            assert answer.is_error
            late = f"took longer than {seconds:g} seconds"
            assert ("has run, but its result cannot be written" if where == "result" else late) in answer.content
            heartbeats = len(worker.heartbeats)
            if heartbeats > 1:
                break
    finally:
        gate.set()
    assert heartbeats > 1


async def test_a_tools_own_timeout_is_an_error_of_its_own() -> None:
    """A TimeoutError of the tool's own code is an ordinary error, and is retried as one."""

    @tool(retries=1)
    async def ask_the_shop() -> None:
        async with asyncio.timeout(0):
            await asyncio.Event().wait()

    with pytest.raises(ApplicationError, match="TimeoutError"):
        await run_function(ask_the_shop)
    assert (await run_function(ask_the_shop, attempt=2)).text.startswith("error: TimeoutError")


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


class Order(BaseModel):
    number: int
    due: date


@dataclass
class Place:
    name: str


class Odd:
    def __str__(self) -> str:
        return "an odd thing"


def make_loop() -> dict[str, Any]:
    value: dict[str, Any] = {}
    value["itself"] = value
    return value


@pytest.mark.parametrize(
    ("value", "content"),
    [
        ("plain text", "plain text"),
        ("", ""),
        ("wide: \U0001f43b é", "wide: \U0001f43b é"),
        ("control: \x00\x1b\r\n", "control: \x00\x1b\r\n"),
        ("lone: \ud800!", "lone: \ufffd!"),
        ("split: \ud83d\udc3b", "split: \U0001f43b"),
        (None, "null"),
        (True, "true"),
        (12, "12"),
        (2**80, str(2**80)),
        (1.5, "1.5"),
        (float("nan"), "NaN"),
        (Decimal("1.10"), '"1.10"'),
        ({"a": [1, "é", None]}, '{"a":[1,"é",null]}'),
        ({1: "a"}, '{"1":"a"}'),
        ((1, 2), "[1,2]"),
        ({"only"}, '["only"]'),
        (b"bytes", '"bytes"'),
        (Order(number=1, due=date(2026, 1, 2)), '{"number":1,"due":"2026-01-02"}'),
        ([Order(number=1, due=date(2026, 1, 2))], '[{"number":1,"due":"2026-01-02"}]'),
        (Place("Naxos"), '{"name":"Naxos"}'),
        (Path("a/b"), '"a/b"'),
        (Odd(), '"an odd thing"'),
        ({"odd": Odd()}, '{"odd":"an odd thing"}'),
        ((n for n in range(3)), "[0,1,2]"),
        (b"\xff\xfe", "[data, 2 bytes: left out, a model reads text only]"),
        (make_loop(), "{'itself': {...}}"),
        ({"lone": "\ud800"}, "{'lone': '\\ud800'}"),
        ([Unspeakable()], None),
        (Unspeakable(), "a Unspeakable that cannot be shown (ValueError)"),
    ],
)
async def test_every_result_is_text_that_can_be_stored(value: Any, content: str | None) -> None:
    """A string as it is, anything else as JSON, and what is no JSON as Python shows it: never an error."""
    answer = await run_returning(value)
    assert not answer.is_error
    answer.text.encode()
    if content is not None:
        assert answer.content == content


@pytest.mark.parametrize("limit", [256, 300, 4096, KIB64])
@pytest.mark.parametrize("character", ["x", "é", "€", "\U0001f43b", "\x01"])
async def test_a_result_is_truncated_at_its_limit_and_says_so(limit: int, character: str) -> None:
    """One at the limit is complete; a longer one is truncated between characters, and its mark says both sizes."""
    width = len(character.encode())
    text = character * (limit // width)
    assert (await run_returning(text, limit)).content == text
    size = len((text + character).encode())
    answer = await run_returning(text + character, limit)
    kept, _, mark = answer.text.partition("\n[truncated: ")
    assert len(answer.text.encode()) <= limit
    assert set(kept) == {character}
    assert mark == f"the first {len(kept.encode())} of {size} bytes are shown]"
    assert len(kept.encode()) > limit - 120
    assert not answer.is_error


@examples(100)
@given(text=st.text(st.characters(), max_size=400), limit=st.integers(256, 400))
def test_no_result_is_larger_than_its_limit(text: str, limit: int) -> None:
    """The limit holds in bytes, for any characters."""
    answer = asyncio.run(run_returning(text, limit))
    assert len(answer.text.encode()) <= limit


async def test_a_huge_result_is_truncated_like_any_other() -> None:
    answer = await run_returning(["x" * 1000] * 10_000)
    assert len(answer.text.encode()) <= KIB64
    assert answer.text.endswith("of 10030001 bytes are shown]")


@dataclass
class Chart:
    title: str
    image: bytes


@pytest.mark.parametrize(
    "value",
    [
        *(PNG, bytearray(PNG), memoryview(PNG), bytes(len(PNG))),
        *(Chart("sales", PNG), {"images": [PNG, (PNG,)]}, {"lone": "\ud800", "image": PNG}),
        *PARTS.values(),
    ],
    ids=[*("bytes", "bytearray", "memoryview", "zeros", "dataclass", "nested", "lone surrogate"), *PARTS],
)
async def test_what_is_no_text_is_described(value: Any) -> None:
    """The model reads what was left out and how large it is, in some words, and not the data."""
    answer = await run_returning(value)
    assert not answer.is_error
    assert f"{len(PNG)} bytes: left out" in answer.content
    assert len(answer.content) < 300
    assert "PNG" not in answer.text.replace("/png", "")


async def test_bytes_that_are_text_are_a_text() -> None:
    """As JSON writes them."""
    assert (await run_returning("é".encode())).content == '"é"'


class Picky(BaseModel):
    a: int

    @field_validator("a")
    @classmethod
    def check(cls, value: int) -> int:
        return 1 // value


async def test_an_unknown_tool_is_an_error_that_the_model_reads() -> None:
    """The session may name a tool that this worker does not have. That is the operator's to know."""
    answer = await Worker().run(make_call("gone"))
    assert (answer.content, answer.is_error) == ("error: tool 'gone' cannot be used at present", True)
    assert answer.problem == "tool 'gone' is not registered on the worker"


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
    assert answer.text.startswith("error: invalid arguments: ")
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
    assert len(answer.text.encode()) < 8100
    with pytest.raises(ApplicationError) as caught:
        await run_function(tool(name="it", retries=1)(it))
    assert len(caught.value.message.encode()) < 8100
    small = await run_function(it, limit=256)
    assert len(small.text.encode()) <= 256


async def test_what_is_wrong_with_a_server_is_the_operators_to_read(caplog: pytest.LogCaptureFixture) -> None:
    """The model, and so its user, reads no command, no address and no variable of an MCP server."""
    servers: dict[str, ServerSettings] = {
        "gone": ProcessSettings(command="/srv/inside/program", args=("--token", "ZZ_API_KEY")),
        "far": HttpSettings(url="http://127.0.0.1:9/inside"),
    }
    mcp_tools = McpTools(McpSettings(servers))
    worker = Worker(mcp_tools=mcp_tools)
    for name in (*servers, "unknown"):
        answer = await worker.run(make_call(f"mcp__{name}__look"))
        assert answer.content == f"error: tool 'mcp__{name}__look' cannot be used at present"
        assert answer.problem is not None
        assert answer.problem in caplog.text
        assert name in answer.problem
    await mcp_tools.close()
