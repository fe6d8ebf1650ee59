"""A worker starts only with a version of temporalio that has all that the workarounds use."""

from __future__ import annotations

import uuid
from typing import Any

import httpx
import pytest
from temporalio.client import WorkflowHandle
from temporalio.worker import Worker

from clew.errors import ClewError
from clew.worker import ClewPlugin, WorkerSettings, make_worker
from clew_activities.providers import Providers
from clew_workflows.temporal_faults import private_parts
from clew_workflows.temporal_faults.private_parts import UnsupportedTemporal, check_private_parts
from clew_workflows.temporal_faults.slow_timers import begin_task
from tests.support.stack import Stack


@pytest.fixture
def worker(stack: Stack) -> Worker:
    """A worker of a team, with a session's workflows, that has not started."""
    plugin = ClewPlugin(store=stack.store, environ={})
    return Worker(stack.clew.temporal, task_queue=uuid.uuid4().hex, plugins=[plugin])


def test_this_version_has_everything(stack: Stack, worker: Worker) -> None:
    """With workflows and without, and without a change of the worker."""
    check_private_parts(stack.clew.temporal, worker)
    check_private_parts(stack.clew.temporal, Worker(stack.clew.temporal, task_queue="q", activities=[begin_task]))


@pytest.mark.parametrize("name", ["_could_not_evict_count", "_deadlock_timeout_seconds"])
def test_what_is_missing_is_named(stack: Stack, worker: Worker, name: str) -> None:
    """With the version that lacks it, and the versions that work."""
    workflows: Any = worker._workflow_worker
    delattr(workflows, name)
    with pytest.raises(UnsupportedTemporal) as caught:
        check_private_parts(stack.clew.temporal, worker)
    assert caught.value.missing == (f"_WorkflowWorker.{name}",)
    assert "temporalio 1." in str(caught.value)
    assert private_parts.WORKING_VERSIONS in str(caught.value)
    assert isinstance(caught.value, ClewError)


def test_everything_that_is_missing_is_named(stack: Stack, worker: Worker, monkeypatch: pytest.MonkeyPatch) -> None:
    """Attributes of clients and workers, and fields of the bridge's messages."""
    make = WorkflowHandle.__init__

    def make_without(self: Any, *args: Any, **options: Any) -> None:
        make(self, *args, **options)
        del self._start_workflow_response

    monkeypatch.setattr(WorkflowHandle, "__init__", make_without)
    monkeypatch.setattr(worker, "_bridge_worker", object())
    fields = {private_parts.WorkflowActivation: ("jobs.query_workflow.query_id", "jobs.gone.id")}
    monkeypatch.setattr(private_parts, "_FIELDS", fields)
    with pytest.raises(UnsupportedTemporal) as caught:
        check_private_parts(stack.clew.temporal, worker)
    assert caught.value.missing == (
        "WorkflowHandle._start_workflow_response",
        "object.request_workflow_eviction",
        "WorkflowActivation.jobs.gone.id",
    )


async def test_a_worker_does_not_start_without_them(stack: Stack, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither Clew's own nor a team's."""
    monkeypatch.setattr(private_parts, "_FIELDS", {private_parts.WorkflowActivation: ("gone",)})
    with pytest.raises(UnsupportedTemporal):
        async with httpx.AsyncClient() as http:
            make_worker(
                stack.clew.temporal,
                WorkerSettings(
                    task_queue=uuid.uuid4().hex,
                    providers=Providers({}),
                    store=stack.store,
                ),
                http,
            )
    plugin = ClewPlugin(store=stack.store, environ={})
    with pytest.raises(UnsupportedTemporal):
        await Worker(stack.clew.temporal, task_queue=uuid.uuid4().hex, plugins=[plugin]).run()
