"""Workers for sessions, model calls and tool calls apart, and their drain at SIGTERM."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import pytest
from temporalio.api.enums.v1 import TaskQueueType
from temporalio.api.taskqueue.v1 import TaskQueue
from temporalio.api.workflowservice.v1 import DescribeTaskQueueRequest

from clew import Clew
from clew.local import Reply, ToolCall
from clew.local.child import Child, child_process
from clew_workflows.contract.names import name_caller_queue, name_model_queue, name_provider_queue, name_tool_queue
from clew_workflows.host.execution import HEARTBEAT_TIMEOUT
from tests.support.stack import Stack, get_last_message
from tests.support.waiting import PATIENCE_SECONDS

WORKFLOWS = TaskQueueType.TASK_QUEUE_TYPE_WORKFLOW
ACTIVITIES = TaskQueueType.TASK_QUEUE_TYPE_ACTIVITY


@asynccontextmanager
async def serving(stack: Stack, store: str, queue: str, **environment: str) -> AsyncIterator[Child]:
    """Run a worker process in an environment of its own; entering waits until it polls."""
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("TEMPORAL_")}
    settings: Mapping[str, str] = {
        **inherited,
        "TEMPORAL_ADDRESS": stack.server.address,
        "PYTHONUNBUFFERED": "1",
        "CLEW_TASK_QUEUE": queue,
        "CLEW_TOOLS": "tests.support.toolbox",
        "CLEW_STORE": store,
        "CLEW_PROVIDER_SCRIPTED_BASE_URL": stack.provider.base_url,
        **environment,
    }
    async with child_process("worker", [sys.executable, "-m", "clew.worker"], env=settings) as worker:

        async def is_ready() -> bool:
            return "worker ready" in worker.log.read_text()

        await worker.wait_until(is_ready, 60)
        yield worker


async def list_pollers(clew: Clew, queue: str, kind: TaskQueueType.ValueType) -> set[str]:
    """The identities of the workers that poll a task queue: each begins with its process id."""
    description = await clew.temporal.workflow_service.describe_task_queue(
        DescribeTaskQueueRequest(
            namespace=clew.temporal.namespace, task_queue=TaskQueue(name=queue), task_queue_type=kind
        )
    )
    return {poller.identity.partition("@")[0] for poller in description.pollers}


@pytest.mark.slow
async def test_sessions_models_and_tools_may_have_workers_of_their_own(stack: Stack, tmp_path: Any) -> None:
    """A session works with three processes, and each of them polls its own task queues alone."""
    queue = "apart"
    clew = Clew(stack.clew.temporal, queue)

    def script(body: dict[str, Any]) -> Reply:
        newest = get_last_message(body)
        if newest["role"] == "user":
            return Reply(tool_calls=(ToolCall("add", {"a": 2, "b": 3}),))
        return Reply(f"it is {newest['content']}")

    async with AsyncExitStack() as workers:
        pids = {
            work: str((await workers.enter_async_context(serving(stack, str(tmp_path), queue, CLEW_SERVE=work))).pid)
            for work in ("sessions", "models", "tools")
        }
        session = await clew.open("apart", model=stack.add_model(script), tools=["add"])
        assert await session.ask("2 + 3?") == "it is 5"
        assert await list_pollers(clew, queue, WORKFLOWS) == {pids["sessions"]}
        assert await list_pollers(clew, queue, ACTIVITIES) == {pids["sessions"]}
        assert await list_pollers(clew, name_caller_queue(queue), ACTIVITIES) == {pids["sessions"]}
        assert await list_pollers(clew, name_model_queue(queue), ACTIVITIES) == {pids["models"]}
        assert await list_pollers(clew, name_provider_queue(queue, "scripted"), ACTIVITIES) == {pids["models"]}
        assert await list_pollers(clew, name_tool_queue(queue), ACTIVITIES) == {pids["tools"]}


@pytest.mark.slow
async def test_a_stopped_worker_finishes_a_call_that_is_shorter_than_its_grace(stack: Stack, tmp_path: Any) -> None:
    """At SIGTERM it takes no more work; the model call in flight goes on, once, and then the process ends."""
    queue = "draining"
    clew = Clew(stack.clew.temporal, queue)
    begun, released = asyncio.Event(), asyncio.Event()

    async def script(_body: dict[str, Any]) -> Reply:
        begun.set()
        await released.wait()
        return Reply("at last")

    settings = {"CLEW_SERVE": "models", "CLEW_GRACE_SECONDS": "60"}
    async with (
        serving(stack, str(tmp_path), queue, CLEW_SERVE="sessions,tools"),
        serving(stack, str(tmp_path), queue, **settings) as worker,
    ):
        model = stack.add_model(script)
        session = await clew.open("draining", model=model)
        request = await session.message("go")
        async with asyncio.timeout(PATIENCE_SECONDS):
            await begun.wait()
        worker.process.terminate()

        async def is_stopping() -> bool:
            return "stopping: running calls have 60 seconds to finish" in worker.log.read_text()

        await worker.wait_until(is_stopping, 10)
        # Longer than a call lives whose worker sends no more heartbeats.
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(HEARTBEAT_TIMEOUT.total_seconds() + 2):
                await worker.process.wait()
        released.set()
        assert (await request.result()).status == "completed"
        async with asyncio.timeout(PATIENCE_SECONDS):
            assert await worker.process.wait() == 0
    assert len(stack.list_requests(model)) == 1
