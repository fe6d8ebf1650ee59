"""The floor: a workflow with one update and one activity, which sends the model the newest message only.

It keeps no context, so it is no agent: it shows what Temporal itself costs.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta

import httpx
from temporalio import activity, workflow
from temporalio.worker import UnsandboxedWorkflowRunner, Worker

from bench.peers.conversation import HEARTBEAT_SECONDS, MODEL, MODEL_CALL_SECONDS
from bench.peers.service import Options, Peer
from bench.peers.temporal import WorkflowPeer, connect, heartbeats

PACKAGES = ("temporalio",)


class Calls:
    """The activity."""

    def __init__(self, http: httpx.AsyncClient) -> None:
        self._http = http

    @activity.defn
    async def call_model(self, text: str) -> str:
        """Call the model with one message."""
        body = {"model": MODEL, "messages": [{"role": "user", "content": text}]}
        async with heartbeats():
            response = await self._http.post("/chat/completions", json=body)
        return str(response.raise_for_status().json()["choices"][0]["message"]["content"] or "")


@workflow.defn
class Floor:
    """The workflow."""

    @workflow.run
    async def run(self, renews: bool, carried: list[str]) -> None:
        """Wait forever."""
        del renews, carried
        await workflow.wait_condition(lambda: False)

    @workflow.update
    async def say(self, turn: str, text: str) -> str:
        """One turn."""
        del turn
        return await workflow.execute_activity_method(
            Calls.call_model,
            text,
            start_to_close_timeout=timedelta(seconds=MODEL_CALL_SECONDS),
            heartbeat_timeout=timedelta(seconds=HEARTBEAT_SECONDS),
        )


@asynccontextmanager
async def open_peer(options: Options) -> AsyncIterator[Peer]:
    """Run the worker."""
    client = await connect(options)
    async with httpx.AsyncClient(base_url=options.model, timeout=MODEL_CALL_SECONDS) as http:
        worker = Worker(
            client,
            task_queue=options.task_queue,
            workflows=[Floor],
            activities=[Calls(http).call_model],
            workflow_runner=UnsandboxedWorkflowRunner(),
        )
        async with worker:
            yield WorkflowPeer(client, Floor, options)
