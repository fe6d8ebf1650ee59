"""The activities with which other workflows call sessions."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from temporalio.client import WorkflowHandle
from temporalio.testing import ActivityEnvironment

from clew_activities.callers import send_message
from tests.support.rolling import make_id
from tests.support.stack import Stack, make_client, serve


@pytest.mark.slow
async def test_a_cancelled_activity_ends_after_its_message_was_accepted(
    stack: Stack, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The signal that cancels the request comes behind the message, although no worker was there to accept it."""
    clew, session_id, request_id = make_client(stack), make_id(), "r-1"
    start, sent, accepted = WorkflowHandle.start_update, asyncio.Event(), asyncio.Event()

    async def note(self: WorkflowHandle[Any, Any], *args: Any, **options: Any) -> Any:
        sent.set()
        update = await start(self, *args, **options)
        accepted.set()
        return update

    await clew.open(session_id, model=stack.add_model("fine"))
    monkeypatch.setattr(WorkflowHandle, "start_update", note)
    call = {
        "session_id": session_id,
        "task_queue": clew.task_queue,
        "config": {},
        "message": {"content": "hello", "request_id": request_id},
    }
    environment = ActivityEnvironment(clew.temporal)
    sending = asyncio.create_task(environment.run(send_message, call))
    await sent.wait()
    environment.cancel()
    async with serve(clew, stack.environ, store=stack.store):
        with pytest.raises(asyncio.CancelledError):
            await sending
        assert accepted.is_set()
        assert (await clew.session(session_id).request(request_id).result()).status == "completed"
