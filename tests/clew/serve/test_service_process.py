"""`clew serve` as processes: its end, its traces, several of them beside each other, and a worker that dies."""

from __future__ import annotations

import asyncio
import json
import logging
import signal
import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from clew import Clew
from clew.local import Reply
from clew.serve.access import Key, Keys
from clew.serve.service_process import JsonFormatter, TextFormatter
from clew.serve.tracing import Spans
from tests.support.command_line import run_clew, start_command
from tests.support.processes import run_worker_process
from tests.support.scripts import PausedModel
from tests.support.serving import make_http, make_key
from tests.support.stack import Stack
from tests.support.waiting import PATIENCE_SECONDS, wait_until
from tests.support.web import receive

STORY = "".join(f"{number} sheep. " for number in range(60))


@dataclass
class Process:
    """A process of `clew serve`.

    Attributes:
        process: The process.
        address: Its URL.
    """

    process: asyncio.subprocess.Process
    address: str


def write_keys(path: Path, *keys: Key) -> None:
    """Write a file of keys."""
    lines: list[str] = []
    for key in keys:
        row = key.model_dump(mode="json", exclude_defaults=True)
        lines += ["[[key]]", *(f"{name} = {json.dumps(value)}" for name, value in row.items())]
    path.write_text("\n".join(lines))


@asynccontextmanager
async def run_process(stack: Stack, clew: Clew, keys: Path, *options: str) -> AsyncIterator[Process]:
    """Run `clew serve` for the workers of a connection."""
    process = await start_command(
        *("serve", "--keys", str(keys), "--port", "0", "--task-queue", clew.task_queue, "--log-format", "json"),
        *options,
        address=stack.server.address,
    )
    assert process.stdout
    assert process.stderr
    ending = None
    try:
        async with asyncio.timeout(PATIENCE_SECONDS):
            line = (await process.stdout.readline()).decode()
        assert line.startswith("serving: "), line + (await process.stderr.read()).decode()
        # A pipe that nobody reads is full one day, and stops the process.
        ending = asyncio.create_task(process.communicate())
        yield Process(process, line.removeprefix("serving: ").strip())
    finally:
        if process.returncode is None:
            process.kill()
        await (ending if ending is not None else process.communicate())


@pytest.mark.slow
async def test_sigterm_drains_a_process(stack: Stack, tmp_path: Path) -> None:
    """It serves on until load balancers know. Then streams end with a hint, waits get their answers, and it exits."""
    token, key = make_key("own", f"t-{uuid.uuid4().hex[:12]}")
    write_keys(tmp_path / "keys.toml", key)
    model = PausedModel()
    keys = tmp_path / "keys.toml"
    async with run_process(stack, stack.clew, keys) as served, make_http(served.address, token) as http:
        assert (await http.get("/health/ready")).status_code == 200
        await http.put("/v1/sessions/chat", json={"model": stack.add_model(model)})
        waiting = asyncio.create_task(http.post("/v1/sessions/chat/messages?wait=60", json={"content": "hello"}))
        await model.called.wait()
        events = receive(http, "/v1/sessions/chat/events?from_seq=0")
        assert (await anext(events)).data["type"]
        served.process.send_signal(signal.SIGTERM)

        async def is_announced() -> bool:
            return (await http.get("/health/ready")).status_code == 503

        await wait_until(is_announced)
        noticed = await http.get("/v1/sessions/chat")
        assert (noticed.status_code, noticed.headers["Connection"]) == (200, "close")
        last = [event.data async for event in events][-1]
        assert last == {"type": "draining"}
        refused = await http.get("/v1/sessions/chat")
        assert (refused.status_code, refused.json()["error"]["code"]) == (503, "draining")
        assert int(refused.headers["Retry-After"]) >= 1
        model.free.set()
        assert (await waiting).json()["answer"] == "<hello>"
        async with asyncio.timeout(PATIENCE_SECONDS):
            assert await served.process.wait() == 0
        with pytest.raises(httpx.TransportError):
            await http.get("/health/live")


@pytest.mark.slow
async def test_a_second_signal_ends_a_process(stack: Stack, tmp_path: Path) -> None:
    """At once, although it has minutes to drain. Its streams are told all the same."""
    token, key = make_key("own", f"t-{uuid.uuid4().hex[:12]}")
    keys = tmp_path / "keys.toml"
    write_keys(keys, key)
    async with (
        run_process(stack, stack.clew, keys, "--drain-seconds", "1000") as served,
        make_http(served.address, token) as http,
    ):
        await http.put("/v1/sessions/chat", json={"model": stack.add_model(PausedModel())})
        events = receive(http, "/v1/sessions/chat/events?from_seq=0")
        await anext(events)
        served.process.send_signal(signal.SIGTERM)

        async def is_announced() -> bool:
            return (await http.get("/health/ready")).status_code == 503

        await wait_until(is_announced)
        served.process.send_signal(signal.SIGTERM)
        async with asyncio.timeout(PATIENCE_SECONDS):
            assert [event.data async for event in events][-1] == {"type": "draining"}
            assert await served.process.wait() == 0


@pytest.mark.slow
async def test_a_request_that_outlasts_the_drain_is_told_so(stack: Stack, tmp_path: Path) -> None:
    """With the error that new requests get. The message was accepted, and is answered elsewhere."""
    token, key = make_key("own", f"t-{uuid.uuid4().hex[:12]}")
    keys = tmp_path / "keys.toml"
    write_keys(keys, key)
    model = PausedModel()
    async with (
        run_process(stack, stack.clew, keys, "--drain-seconds", "1") as served,
        make_http(served.address, token) as http,
    ):
        await http.put("/v1/sessions/chat", json={"model": stack.add_model(model)})
        waiting = asyncio.create_task(
            http.post("/v1/sessions/chat/messages?wait=60", json={"content": "hello", "request_id": "r1"})
        )
        await model.called.wait()
        served.process.send_signal(signal.SIGTERM)
        refused = await waiting
        assert (refused.status_code, refused.json()["error"]["code"]) == (503, "draining")
        assert int(refused.headers["Retry-After"]) >= 1
        async with asyncio.timeout(PATIENCE_SECONDS):
            assert await served.process.wait() == 0
    model.free.set()
    assert await stack.clew.session(f"{key.tenant}:chat").request("r1").answer() == "<hello>"


@pytest.mark.slow
async def test_two_processes_serve_a_message_once(stack: Stack, tmp_path: Path) -> None:
    """Repeated posts with one `Idempotency-Key` at two processes at once: one message, one answer."""
    token, key = make_key("own", f"t-{uuid.uuid4().hex[:12]}")
    write_keys(tmp_path / "keys.toml", key)
    keys = tmp_path / "keys.toml"
    calls = 0

    def count(body: dict[str, Any]) -> Reply:
        nonlocal calls
        calls += 1
        return Reply(f"call {calls} of {len(body['messages'])} messages")

    async with (
        run_process(stack, stack.clew, keys) as one,
        run_process(stack, stack.clew, keys) as two,
        make_http(one.address, token) as first,
        make_http(two.address, token) as second,
    ):
        await first.put("/v1/sessions/chat", json={"model": stack.add_model(count)})
        headers = {"Idempotency-Key": "m-1"}
        answers = await asyncio.gather(
            *(
                http.post("/v1/sessions/chat/messages?wait=60", json={"content": "hello"}, headers=headers)
                for http in (first, second) * 3
            )
        )
        assert {answer.status_code for answer in answers} == {200}
        assert {answer.json()["answer"] for answer in answers} == {"call 1 of 1 messages"}
        messages = (await second.get("/v1/sessions/chat/messages")).json()["messages"]
    assert [message["role"] for message in messages] == ["user", "assistant"]
    assert calls == 1


@pytest.mark.slow
async def test_a_stream_goes_on_after_the_death_of_a_worker(stack: Stack, tmp_path: Path) -> None:
    """SIGKILL in the middle of a reply: the same stream has the complete answer of another worker, and it once."""
    token, key = make_key("own", f"t-{uuid.uuid4().hex[:12]}")
    write_keys(tmp_path / "keys.toml", key)
    queue = f"queue-{uuid.uuid4().hex}"
    clew = Clew(stack.clew.temporal, queue)
    model = stack.add_model(lambda _body: Reply(STORY, tokens_per_second=30))
    keys = tmp_path / "keys.toml"
    async with (
        run_worker_process(stack, queue) as first,
        run_process(stack, clew, keys) as served,
        make_http(served.address, token) as http,
    ):
        await http.put("/v1/sessions/chat", json={"model": model})
        await http.post("/v1/sessions/chat/messages", json={"content": "go", "request_id": "r1"})
        text, restarts, answers = "", 0, []
        second = None
        async for event in receive(http, "/v1/sessions/chat/requests/r1/events"):
            match event.data["type"]:
                case "text":
                    text = text[: event.data["offset"]] + event.data["text"]
                    if second is None:
                        await first.kill()
                        second = asyncio.create_task(enter(run_worker_process(stack, queue)))
                case "restarted":
                    restarts += 1
                    text = ""
                case "entry" if event.data["entry"]["payload"].get("role") == "assistant":
                    answers.append(event.data["entry"]["payload"]["content"])
        assert second
        closing = await second
        outcome = (await http.get("/v1/sessions/chat/requests/r1")).json()
        await closing.__aexit__(None, None, None)
    assert restarts >= 1
    assert text == STORY
    assert answers == [STORY]
    assert (outcome["status"], outcome["answer"]) == ("completed", STORY)


async def enter(context: Any) -> Any:
    """Enter a context, and return it for its end."""
    await context.__aenter__()
    return context


async def test_a_broken_start_says_why(tmp_path: Path) -> None:
    """No file, a file without keys' form, and no server: one line and an exit code."""
    missing = await run_clew("serve", "--keys", str(tmp_path / "none.toml"))
    assert (missing.code, missing.out) == (2, "")
    assert "none.toml" in missing.err
    (tmp_path / "keys.toml").write_text("key = 1")
    broken = await run_clew("serve", "--keys", str(tmp_path / "keys.toml"))
    assert broken.code == 2
    assert (await run_clew("serve")).code == 2


async def test_serve_key_prints_a_key_and_its_row(tmp_path: Path) -> None:
    """The row is valid, the hash is that of the key, and the key is printed only once."""
    made = await run_clew("serve-key", "ci", "--tenant", "acme", "--agent", "support", "--json")
    assert made.code == 0
    row = Key.model_validate_json(json.dumps(made.json["row"]))
    assert (row.name, row.tenant, row.agents) == ("ci", "acme", ("support",))
    assert made.out.count(made.json["key"]) == 1
    assert made.json["key"] not in json.dumps(made.json["row"])
    printed = await run_clew("serve-key", "ci", "--tenant", "acme", "--model", "openai:*")
    (tmp_path / "keys.toml").write_text(printed.out)
    token = printed.err.split()[-1]
    assert token not in printed.out
    assert Keys.load(tmp_path / "keys.toml").find(token)
    refused = await run_clew("serve-key", "ci", "--tenant", "a:b")
    assert (refused.code, refused.out) == (2, "")


async def test_spans_have_the_route_and_no_ids() -> None:
    """A request has a span below that of its caller, named by its route."""
    exporter, provider = InMemorySpanExporter(), TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))

    async def app(scope: Any, receive: Any, send: Any) -> None:
        scope["route"] = type("Route", (), {"path": "/v1/sessions/{session_id}"})
        await send({"type": "http.response.start", "status": 503, "headers": []})
        await send({"type": "http.response.body", "body": b""})

    trace_id = uuid.uuid4().hex
    transport = httpx.ASGITransport(Spans(app, provider))
    async with httpx.AsyncClient(transport=transport, base_url="http://test") as http:
        await http.get("/v1/sessions/secret", headers={"traceparent": f"00-{trace_id}-{'1' * 16}-01"})
    (span,) = exporter.get_finished_spans()
    assert span.name == "GET /v1/sessions/{session_id}"
    assert span.context
    assert f"{span.context.trace_id:032x}" == trace_id
    assert not span.status.is_ok
    assert "secret" not in span.to_json()


@pytest.mark.parametrize("formatter", [JsonFormatter(), TextFormatter()])
def test_a_log_line_has_no_message_of_an_exception(formatter: Any) -> None:
    """It may hold a text of the conversation. One record is one line."""
    try:
        raise ValueError("secret")
    except ValueError as error:
        record = logging.LogRecord(
            "clew.serve", logging.ERROR, __file__, 1, "a\nb", (), (ValueError, error, error.__traceback__)
        )
    line = formatter.format(record)
    assert "secret" not in line
    assert "ValueError" in line
    assert "\n" not in line
