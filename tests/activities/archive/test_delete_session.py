"""Sessions are deleted by an activity, which closes them first."""

from __future__ import annotations

from datetime import timedelta

import pytest

from clew.errors import WorkerUnavailable
from clew_activities.archive.thread_source import QUERY_TIMEOUT
from clew_workflows.host import services
from tests.support.rolling import make_id, run_rolling_worker
from tests.support.stack import Stack


async def test_a_session_without_a_worker_is_not_deleted(stack: Stack, monkeypatch: pytest.MonkeyPatch) -> None:
    """The worker of another task queue says so. When the session has a worker again, it is deleted."""
    monkeypatch.setattr(services, "CHANGE_TIMEOUT", QUERY_TIMEOUT + timedelta(seconds=3))
    queue = f"queue-{make_id()}"
    async with run_rolling_worker(stack, task_queue=queue) as clew:
        session = await clew.open(make_id(), model=stack.add_model("fine"))
        await session.ask("hello")
    with pytest.raises(WorkerUnavailable, match="once a worker serves its task queue"):
        await stack.clew.delete(session.id)
    async with run_rolling_worker(stack, task_queue=queue):
        assert (await stack.clew.delete(session.id)).deleted_segments > 0
