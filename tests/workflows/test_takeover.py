"""Workers die and are stopped: the thread stays whole, and every request has one outcome."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from datetime import timedelta
from pathlib import Path
from typing import Any

import httpx
import pytest

from clew import Clew, Session
from clew.local import Reply, ToolCall
from clew_activities.archive import Store
from clew_activities.providers import load_providers, make_http_client
from clew_activities.worker import SessionWorker, WorkerSettings, make_worker
from tests.support.hostile_input import SLOW, SLOW_ANSWER
from tests.support.processes import is_running, list_validations, open_session_on, run_worker_process
from tests.support.rolling import list_runs
from tests.support.stack import Stack, get_last_message
from tests.support.waiting import wait_until


async def list_kinds(session: Session) -> list[str]:
    """List one word for each entry; assert that the seqs have no gap."""
    entries = await session.entries()
    assert [entry.seq for entry in entries] == list(range(len(entries)))
    return [entry.payload.get("role", entry.kind) for entry in entries]


@pytest.mark.slow
async def test_a_model_call_survives_the_death_of_its_worker(stack: Stack) -> None:
    """SIGKILL in the middle of a reply: another worker calls again, and one answer is committed."""
    called = asyncio.Event()

    async def script(_body: dict[str, Any]) -> Reply:
        if called.is_set():
            return Reply("at last")
        called.set()
        return Reply("this will never be heard to its end " * 100, tokens_per_second=5)

    queue = f"queue-{uuid.uuid4().hex}"
    async with run_worker_process(stack, queue) as first:
        session = await open_session_on(stack, queue, script)
        request = await session.message("go")
        await called.wait()
        await first.kill()
        async with run_worker_process(stack, queue):
            assert await request.answer() == "at last"
            assert await list_kinds(session) == ["config", "user", "assistant", "run"]
            (answer,) = [entry for entry in await session.entries() if entry.payload.get("role") == "assistant"]
            assert answer.payload["recipe"]["attempt"] == 2


@pytest.mark.slow
async def test_a_tool_call_survives_the_death_of_its_worker(stack: Stack, tmp_path: Path) -> None:
    """SIGKILL in the middle of a tool: another worker runs it, and one result is committed."""

    def script(body: dict[str, Any]) -> Reply:
        if get_last_message(body)["role"] == "user":
            return Reply(tool_calls=(ToolCall("linger", {"folder": str(tmp_path)}),))
        return Reply(f"it was {get_last_message(body)['content']}")

    queue = f"queue-{uuid.uuid4().hex}"
    async with run_worker_process(stack, queue) as first:
        session = await open_session_on(stack, queue, script, tools=["linger"])
        request = await session.message("go")
        started = tmp_path / "started"
        await wait_until(started.exists)
        await first.kill()
        (tmp_path / "release").touch()
        async with run_worker_process(stack, queue):
            assert await request.answer() == "it was released"
            assert await list_kinds(session) == ["config", "user", "assistant", "tool", "assistant", "run"]
            assert started.read_text() == "begun\nbegun\n"


@pytest.mark.slow
async def test_a_worker_that_is_stopped_finishes_what_it_runs(stack: Stack) -> None:
    """SIGTERM in the middle of a reply: the reply is heard to its end, and nothing is called twice."""
    called = asyncio.Event()

    def script(_body: dict[str, Any]) -> Reply:
        called.set()
        return Reply("one two three four five six", tokens_per_second=4)

    queue = f"queue-{uuid.uuid4().hex}"
    patient = run_worker_process(stack, queue, CLEW_GRACE_SECONDS="20")
    async with patient as first, run_worker_process(stack, queue):
        session = await open_session_on(stack, queue, script)
        request = await session.message("go")
        await called.wait()
        stopping = asyncio.create_task(first.stop())
        assert await request.answer() == "one two three four five six"
        assert len(stack.list_requests((await session.status()).model)) == 1
        await stopping


@pytest.mark.slow
async def test_a_call_that_must_not_run_twice_is_in_doubt(stack: Stack, tmp_path: Path) -> None:
    """SIGKILL in the middle of a tool that is not idempotent: it is not run again, and the model reads why."""

    def script(body: dict[str, Any]) -> Reply:
        if get_last_message(body)["role"] == "user":
            return Reply(tool_calls=(ToolCall("pay_once", {"folder": str(tmp_path)}),))
        return Reply(get_last_message(body)["content"])

    queue = f"queue-{uuid.uuid4().hex}"
    async with run_worker_process(stack, queue) as first:
        session = await open_session_on(stack, queue, script, tools=["pay_once"])
        request = await session.message("go")
        started = tmp_path / "started"
        await wait_until(started.exists)
        await first.kill()
        async with run_worker_process(stack, queue):
            answer = await request.answer()
            assert answer.startswith("in doubt (worker_lost)")
            assert answer.endswith(f"Its idempotency key is {session.id}/tool00001")
            assert started.read_text() == "begun\n"
            (result,) = [entry for entry in await session.entries() if entry.payload.get("role") == "tool"]
            assert result.payload["in_doubt"] is True


@asynccontextmanager
async def run_silent_bucket() -> AsyncIterator[tuple[asyncio.Event, dict[str, str]]]:
    """A bucket that never answers; whether it was asked, and the environment of workers that use it."""
    asked = asyncio.Event()

    async def listen(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        asked.set()
        with suppress(ConnectionError):
            while await reader.read(4096):
                pass
        writer.close()

    async with await asyncio.start_server(listen, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        credentials = {"AWS_ACCESS_KEY_ID": "AKIAEXAMPLE", "AWS_SECRET_ACCESS_KEY": "none", "AWS_REGION": "us-east-1"}
        endpoint = {"AWS_ENDPOINT_URL": f"http://127.0.0.1:{port}", "AWS_ALLOW_HTTP": "true"}
        yield asked, {"CLEW_STORE": "s3://silent", **credentials, **endpoint}


@pytest.mark.slow
async def test_a_rollover_survives_the_death_of_its_worker(stack: Stack) -> None:
    """SIGKILL while the archive is written: another worker writes it, and the session continues in a new run."""
    queue, often = f"queue-{uuid.uuid4().hex}", {"CLEW_ROLLOVER_UPDATES": "5"}
    async with run_silent_bucket() as (asked, silent):
        async with run_worker_process(stack, queue, **often):
            session = await open_session_on(stack, queue, lambda _body: Reply("fine"))
            for turn in range(4):
                await session.ask(f"turn {turn}")
        async with run_worker_process(stack, queue, **silent) as first:
            await session.ask("one more")
            await asked.wait()
            await first.kill()
    async with run_worker_process(stack, queue):
        assert await session.ask("and on") == "fine"
        assert await list_kinds(session) == ["config", *["user", "assistant", "run"] * 6]
    (_, begun) = await list_runs(Clew(stack.clew.temporal, queue), session.id)
    history = await stack.clew.temporal.get_workflow_handle(session.id, run_id=begun).fetch_history()
    scheduled = [e.activity_task_scheduled_event_attributes for e in history.events]
    assert [attributes.activity_type.name for attributes in scheduled].count("archive") == 1


@pytest.mark.slow
async def test_a_thread_is_read_though_its_reader_dies(stack: Stack) -> None:
    """SIGKILL while a page is read from the archive: another worker reads it, within the caller's patience."""
    queue = f"queue-{uuid.uuid4().hex}"
    async with run_silent_bucket() as (asked, silent):
        async with run_worker_process(stack, queue):
            session = await open_session_on(stack, queue, lambda _body: Reply("fine"))
            await session.ask("one")
            await session.hibernate()
        async with run_worker_process(stack, queue, **silent) as first:
            reading = asyncio.create_task(list_kinds(session))
            await asked.wait()
            await first.kill()
    async with run_worker_process(stack, queue):
        assert (await reading)[:4] == ["config", "user", "assistant", "run"]


async def test_a_workers_end_is_not_a_users_cancel(stack: Stack) -> None:
    """A worker that stops before a reply is there hands the call over: another one calls again."""
    queue = f"queue-{uuid.uuid4().hex}"
    called = asyncio.Event()

    async def script(_body: dict[str, Any]) -> Reply:
        if called.is_set():
            return Reply("at last")
        called.set()
        return Reply("never to its end " * 100, tokens_per_second=5)

    def in_process(http: httpx.AsyncClient) -> SessionWorker:
        providers = load_providers({"CLEW_PROVIDER_SCRIPTED_BASE_URL": stack.provider.base_url})
        return make_worker(
            stack.clew.temporal,
            WorkerSettings(
                task_queue=queue,
                providers=providers,
                store=Store.from_url("memory://"),
                grace=timedelta(seconds=0.2),
            ),
            http,
        )

    async with make_http_client() as http:
        async with in_process(http):
            session = await open_session_on(stack, queue, script)
            request = await session.message("go")
            await called.wait()
        async with in_process(http):
            assert await request.answer() == "at last"
            assert await list_kinds(session) == ["config", "user", "assistant", "run"]


@pytest.mark.slow
async def test_a_worker_stops_in_the_middle_of_a_validation(stack: Stack) -> None:
    """SIGTERM: the validation ends at its own limit, the worker with it, and another worker finishes the request."""
    replies = [SLOW_ANSWER, "[]"]
    queue = f"queue-{uuid.uuid4().hex}"
    async with run_worker_process(stack, queue, CLEW_GRACE_SECONDS="20") as first:
        session = await open_session_on(stack, queue, lambda _body: Reply(replies.pop(0)))
        request = await session.message("go", output_schema=SLOW)
        await wait_until(lambda: len(replies) < 2)
        await wait_until(lambda: list_validations(first.pid))
        found = list_validations(first.pid)
        await first.stop()
        assert not first.running
        assert not is_running(found[0])
        assert "Traceback" not in first.log.read_text()
    async with run_worker_process(stack, queue):
        assert await request.answer() == "[]"
        assert await list_kinds(session) == [
            *("config", "user", "assistant", "user", "assistant"),
            # The correction leaves the context.
            *("ai_context_operation", "run"),
        ]
