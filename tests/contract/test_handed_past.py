"""Only a session's own earlier workflow run may pass carried state."""

from __future__ import annotations

import base64
import json
import uuid
import zlib
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from temporalio.api.failure.v1 import Failure
from temporalio.api.history.v1 import HistoryEvent
from temporalio.client import WorkflowFailureError, WorkflowHandle
from temporalio.common import RawValue, RetryPolicy
from temporalio.exceptions import ApplicationError

from clew import Clew
from clew.local import worker_process
from tests.support.encrypted import needs_plain
from tests.support.hostile_input import is_harm, make_raw
from tests.support.rolling import run_rolling_worker
from tests.support.stack import Stack
from tests.support.waiting import wait_until

MEGABYTE = 1 << 20
SOON = RetryPolicy(initial_interval=timedelta(milliseconds=10), maximum_attempts=20)


def make_bomb() -> RawValue:
    """Make carried state of 512 MB of zeros, compressed to half a megabyte."""
    stream = zlib.compressobj(9)
    data = b"".join([*(stream.compress(bytes(MEGABYTE)) for _ in range(512)), stream.flush()])
    packed = {"version": 1, "zlib": base64.b64encode(data).decode()}
    return make_raw(json.dumps({"config": {"model": "scripted:any"}, "carried": packed}).encode())


async def make_past(stack: Stack) -> RawValue:
    """Make a start argument with another session's carried state, exactly as Clew writes it."""
    session = await stack.open()
    await session.ask("hello")
    answer = await stack.clew.temporal.get_workflow_handle(session.id).query("carried")
    return make_raw(json.dumps({"config": {"model": "scripted:any"}, "carried": answer["carried"]}).encode())


async def start(clew: Clew, argument: RawValue, **options: Any) -> WorkflowHandle[Any, Any]:
    """Start a session's workflow with any argument."""
    return await clew.temporal.start_workflow(
        "AgentSession", argument, id=f"test-{uuid.uuid4().hex}", task_queue=clew.task_queue, **options
    )


async def wait_for_run(clew: Clew, first: WorkflowHandle[Any, Any]) -> WorkflowHandle[Any, Any]:
    """Wait for a later run of a workflow that the server repeats."""
    newest, known = clew.temporal.get_workflow_handle(first.id), first.run_id or first.result_run_id

    async def is_later() -> bool:
        return (await newest.describe()).run_id != known

    await wait_until(is_later)
    return clew.temporal.get_workflow_handle(first.id, run_id=(await newest.describe()).run_id)


async def assert_refused(handle: WorkflowHandle[Any, Any], word: str = "carried") -> None:
    """Check that a workflow run failed with the contract's word, and that no workflow task failed."""
    with pytest.raises(WorkflowFailureError) as failed:
        await handle.result(follow_runs=False)
    assert isinstance(failed.value.cause, ApplicationError)
    assert (failed.value.cause.type, failed.value.cause.non_retryable) == ("invalid_input", True)
    assert word in failed.value.cause.message
    assert not [event for event in (await handle.fetch_history()).events if is_harm(event)]


async def test_a_past_from_a_caller_is_refused(stack: Stack) -> None:
    """Carried state from a caller is refused, also if a session wrote it, and also in retries by the server."""
    past = await make_past(stack)
    await assert_refused(await start(stack.clew, past))
    handle = await start(stack.clew, past, retry_policy=SOON)
    await assert_refused(handle)
    newest = stack.clew.temporal.get_workflow_handle(handle.id)
    assert (await newest.describe()).run_id == handle.result_run_id, "it was tried again"


async def test_a_run_that_the_server_repeats_brings_no_past(stack: Stack) -> None:
    """The first run times out before a worker has seen it; the second one is refused as well."""
    past = await make_past(stack)
    later = Clew(stack.clew.temporal, f"queue-{uuid.uuid4().hex}")
    handle = await start(later, past, retry_policy=SOON, run_timeout=timedelta(seconds=2))
    newest = later.temporal.get_workflow_handle(handle.id)
    await wait_for_run(later, handle)
    async with run_rolling_worker(stack, task_queue=later.task_queue):
        with pytest.raises(WorkflowFailureError) as failed:
            await newest.result()
    assert isinstance(failed.value.cause, ApplicationError)
    assert failed.value.cause.type == "invalid_input"
    begun = (await newest.fetch_history()).events[0].workflow_execution_started_event_attributes
    assert begun.continued_execution_run_id
    assert begun.attempt > 1


@needs_plain
@pytest.mark.parametrize("carries", [True, pytest.param(False, marks=pytest.mark.slow)])
async def test_a_session_has_no_cron_schedule(carries: bool, stack: Stack) -> None:
    """Each run of a cron schedule is refused. The server continues the schedule."""
    argument = await make_past(stack) if carries else make_raw(b'{"config": {"model": "scripted:any"}}')
    first = await start(stack.clew, argument, cron_schedule="@every 1s")
    try:
        second = await wait_for_run(stack.clew, first)
        await wait_for_run(stack.clew, second)
    finally:
        await stack.clew.temporal.get_workflow_handle(first.id).terminate()
    for run_id in (first.result_run_id, second.run_id):
        history = await stack.clew.temporal.get_workflow_handle(first.id, run_id=run_id).fetch_history()
        assert not [event for event in history.events if is_harm(event)]
        failure = find_failure(history.events[-1])
        assert failure.application_failure_info.type == "invalid_input"
        assert "cron" in failure.message


@pytest.mark.slow
async def test_a_bomb_is_refused_in_little_memory(stack: Stack) -> None:
    """The worker's process does not decompress it, and continues to serve."""
    clew = Clew(stack.clew.temporal, f"queue-{uuid.uuid4().hex}")
    argument = make_bomb()
    assert 500_000 < len(argument.payload.data) < 1_000_000
    settings = {"CLEW_PROVIDER_SCRIPTED_BASE_URL": stack.provider.base_url}
    async with worker_process(stack.server.address, env=settings, task_queue=clew.task_queue) as worker:
        session = await clew.open(f"test-{uuid.uuid4().hex}", model=stack.add_model("fine"))
        assert await session.ask("hello") == "fine"
        before = read_peak_bytes(worker.pid)
        for _ in range(3):
            await assert_refused(await start(clew, argument))
        assert read_peak_bytes(worker.pid) - before < 64 * MEGABYTE
        assert await session.ask("still there?") == "fine"


def read_peak_bytes(pid: int) -> int:
    """Read the peak memory of a process."""
    status = Path(f"/proc/{pid}/status").read_text()
    return int(next(line.split()[1] for line in status.splitlines() if line.startswith("VmHWM"))) * 1024


def find_failure(event: HistoryEvent) -> Failure:
    """Find why a run ended: in its last event, or in the event that starts the next run."""
    failed = event.workflow_execution_failed_event_attributes
    return (
        failed.failure
        if failed.HasField("failure")
        else event.workflow_execution_continued_as_new_event_attributes.failure
    )
