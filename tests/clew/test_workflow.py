"""`clew.workflow`: a team's own workflow asks sessions, durably and with the client's errors."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from http import HTTPStatus
from typing import Any

import pytest
from temporalio.client import Client, WorkflowFailureError, WorkflowHandle
from temporalio.exceptions import ApplicationError, CancelledError
from temporalio.service import RPCError, RPCStatusCode
from temporalio.worker import Replayer, Worker
from temporalio.worker.workflow_sandbox import SandboxedWorkflowRunner

from clew import workflow as sessions
from clew.errors import WorkerUnavailable
from clew.local import Reply
from clew.worker import make_workflow_sandbox
from clew_activities.archive.fork_session import ForkingActivities
from clew_workflows.host import services
from tests.support.processes import run_worker_process
from tests.support.stack import Stack
from tests.support.team import Support
from tests.support.waiting import PATIENCE_SECONDS, wait_until


@asynccontextmanager
async def team(stack: Stack, **settings: Any) -> AsyncIterator[str]:
    """Run a team's worker: it has no plugin and Temporal's own data converter.

    Temporal's own sandbox would import `clew` anew for each workflow, which takes half a second of computing.
    """
    settings = {"workflow_runner": make_workflow_sandbox(), **settings}
    queue = f"team-{uuid.uuid4().hex}"
    client = await Client.connect(stack.server.address)
    async with Worker(client, task_queue=queue, workflows=[Support], **settings):
        yield queue


async def start(stack: Stack, queue: str, call: str, session_id: str, **options: Any) -> WorkflowHandle[Any, Any]:
    client = await Client.connect(stack.server.address)
    options = {"task_queue": stack.clew.task_queue, **options}
    return await client.start_workflow(
        Support.run, args=[call, session_id, options], id=f"{queue}-{uuid.uuid4().hex}", task_queue=queue
    )


def make_id() -> str:
    return f"test-{uuid.uuid4().hex}"


async def test_a_workflow_opens_a_session_asks_and_forks_it(stack: Stack) -> None:
    """Each call answers as the client's method does, and the workflow's history replays."""
    session_id, config = make_id(), {"model": stack.add_model("Hello!"), "provider_tools": ["web_search"]}
    async with team(stack) as queue:
        asking = await start(stack, queue, "ask", session_id, config=config)
        assert await asking.result() == "Hello!"
        assert await (await start(stack, queue, "message", session_id)).result() == "completed"
        other = await (await start(stack, queue, "open", session_id, **config, system_prompt="Another.")).result()
        assert "system_prompt" in other
        forked = await (await start(stack, queue, "fork", session_id)).result()
        assert len(await stack.clew.session(forked).transcript()) == 4
        assert (await stack.clew.session(forked).status()).config["provider_tools"] == ["web_search"]
        history = await asking.fetch_history()
    await Replayer(workflows=[Support]).replay_workflow(history)


async def test_an_answer_may_have_a_form(stack: Stack) -> None:
    """The answer is an instance of the pydantic model."""
    config = {"model": stack.add_model('{"refund": true}')}
    async with team(stack) as queue:
        assert await (await start(stack, queue, "verdict", make_id(), config=config)).result() is True


@pytest.mark.slow
async def test_errors_are_those_of_the_client(stack: Stack) -> None:
    """A workflow catches refusals and failures by their classes, also in Temporal's own sandbox."""
    session = await stack.open()
    failing = {"model": stack.add_model(lambda _body: Reply("no", status=HTTPStatus.BAD_REQUEST))}
    async with team(stack, workflow_runner=SandboxedWorkflowRunner()) as queue:
        assert await (await start(stack, queue, "catch", session.id)).result() == "idle: caught"
        recovered = await (await start(stack, queue, "recover", make_id(), config=failing)).result()
        assert recovered == "bad_request"


@pytest.mark.parametrize(
    ("call", "options", "word"),
    [
        ("ask", {}, "not_found"),
        ("ask", {"config": {"model": "no model"}}, "invalid_input"),
        ("ask", {"config": {"modell": "a:b"}}, "invalid_input"),
        ("ask", {"timeout_seconds": -1}, "invalid_input"),
        ("open", {"model": 7}, "invalid_input"),
        ("fork", {"at_seq": 3}, "not_found"),
        ("catch", {"at": "never"}, "invalid_input"),
    ],
)
async def test_a_refusal_that_is_not_caught_fails_the_workflow(
    stack: Stack, call: str, options: dict[str, Any], word: str
) -> None:
    """The type of the failure is the refusal's word; no workflow task is repeated without end."""
    async with team(stack) as queue:
        handle = await start(stack, queue, call, make_id(), **options)
        with pytest.raises(WorkflowFailureError) as caught:
            async with asyncio.timeout(PATIENCE_SECONDS):
                await handle.result()
    assert isinstance(caught.value.cause, ApplicationError)
    assert caught.value.cause.type == word


async def test_a_fork_that_has_not_ended_in_time_is_no_refusal(stack: Stack, monkeypatch: pytest.MonkeyPatch) -> None:
    """The workflow fails with `worker_unavailable`: the fork may be made."""
    session = await stack.open()
    await session.ask("hello")

    async def fail(*_arguments: Any) -> None:
        raise RPCError("the server is busy", RPCStatusCode.RESOURCE_EXHAUSTED, b"")

    monkeypatch.setattr(services, "CHANGE_TIMEOUT", timedelta(seconds=2))
    monkeypatch.setattr(ForkingActivities, "_record_in_parent", fail)
    async with team(stack) as queue:
        handle = await start(stack, queue, "fork", session.id)
        with pytest.raises(WorkflowFailureError) as caught:
            await handle.result()
    assert isinstance(caught.value.cause, ApplicationError)
    assert caught.value.cause.type == WorkerUnavailable.type


async def test_a_cancelled_workflow_cancels_its_request(stack: Stack) -> None:
    """The session's request is cancelled, and the session goes on."""
    release = asyncio.Event()

    async def hang(_body: dict[str, Any]) -> Reply:
        await release.wait()
        return Reply("too late")

    session = await stack.open(hang)
    async with team(stack) as queue:
        handle = await start(stack, queue, "ask", session.id, request_id="r-1")

        async def is_running() -> bool:
            return (await session.status()).status == "awaiting_model"

        await wait_until(is_running)
        await handle.cancel()
        with pytest.raises(WorkflowFailureError) as caught:
            await handle.result()
        assert isinstance(caught.value.cause, CancelledError)
        assert (await session.request("r-1").result()).status == "cancelled"
    release.set()


@pytest.mark.slow
async def test_a_long_request_takes_several_activities(stack: Stack, monkeypatch: pytest.MonkeyPatch) -> None:
    """No activity waits longer than its limit; the answer comes from the last one."""
    release = asyncio.Event()

    async def wait(_body: dict[str, Any]) -> Reply:
        await release.wait()
        return Reply("at last")

    session = await stack.open(wait)
    monkeypatch.setattr(sessions, "WAIT_SECONDS", 1)
    # This sandbox passes `clew` through, which the patch needs.
    async with team(stack) as queue:
        handle = await start(stack, queue, "ask", session.id)

        async def has_waited_twice() -> bool:
            history = await handle.fetch_history()
            scheduled = [e.activity_task_scheduled_event_attributes.activity_type.name for e in history.events]
            return scheduled.count("await_request") > 1

        await wait_until(has_waited_twice)
        release.set()
        assert await handle.result() == "at last"
        assert [message["role"] for message in await session.transcript()] == ["user", "assistant"]


@pytest.mark.slow
async def test_a_call_survives_the_death_of_the_worker(stack: Stack) -> None:
    """The worker that waits for the request is killed; another one waits on, and the model answers once."""
    queue, session_id = f"clew-{uuid.uuid4().hex}", make_id()
    killed = asyncio.Event()

    async def answer(_body: dict[str, Any]) -> Reply:
        if not killed.is_set():
            await killed.wait()
        return Reply("still here")

    config = {"model": stack.add_model(answer)}
    async with team(stack) as team_queue:
        async with run_worker_process(stack, queue) as first:
            handle = await start(stack, team_queue, "ask", session_id, config=config, task_queue=queue)

            async def is_waiting() -> bool:
                history = await handle.fetch_history()
                return any(
                    e.activity_task_scheduled_event_attributes.activity_type.name == "await_request"
                    for e in history.events
                )

            await wait_until(is_waiting)
            await first.kill()
            killed.set()
        async with run_worker_process(stack, queue):
            async with asyncio.timeout(PATIENCE_SECONDS):
                assert await handle.result() == "still here"
