"""Workers whose sessions go on in a new run of their workflow often, and what tests of such sessions share."""

from __future__ import annotations

import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from activities.archive import Store
from activities.checkpoints import Keys
from activities.providers import http_client, providers_from_env
from activities.tools import load_tools
from clew import Clew
from tests import toolbox
from tests.conftest import KEYS, World
from worker import make_worker
from workflows.effects import Thresholds

OFTEN = Thresholds(events=80, bytes=200_000, updates=40, signals=60)


@asynccontextmanager
async def rolling(
    world: World, thresholds: Thresholds = OFTEN, store: Store | None = None, keys: Keys = KEYS
) -> AsyncIterator[Clew]:
    """A worker of its own, and a client for its sessions."""
    clew = Clew(world.clew.temporal, f"queue-{uuid.uuid4().hex}")
    async with http_client() as http:
        worker = make_worker(
            clew.temporal,
            task_queue=clew.task_queue,
            providers=providers_from_env({"CLEW_PROVIDER_SCRIPTED_BASE_URL": world.provider.base_url}),
            tools=load_tools([toolbox.__name__]),
            http=http,
            store=store or world.store,
            keys=keys,
            thresholds=thresholds,
        )
        async with worker:
            yield clew


def name() -> str:
    """A session's id that no other has."""
    return f"test-{uuid.uuid4().hex}"


async def runs_of(clew: Clew, session_id: str) -> list[str]:
    """The runs of the workflow that a session has had so far, the newest first."""
    runs: list[str] = []
    run_id = (await clew.temporal.get_workflow_handle(session_id).describe()).run_id
    while run_id:
        runs.append(run_id)
        history = await clew.temporal.get_workflow_handle(session_id, run_id=run_id).fetch_history()
        run_id = history.events[0].workflow_execution_started_event_attributes.continued_execution_run_id
    return runs
