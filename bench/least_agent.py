"""The least agent of `bench.load`: a bare workflow that has the duties of an agent and nothing else.

What it reaches is the best that is possible with this SDK and this server. Its duties:

- It sends a context, and decodes the reply as it comes.
- It counts the reply's tokens: without them a context has no budget.
- Its history holds each text once, so that the caller reads the answer from there.
- A lost worker is noticed within 5 seconds: the model call has a heartbeat timeout.
- It never ends: after as many events as a session it writes its older turns to a file and continues as new.

It runs without the SDK's sandbox, as sessions do. It validates nothing, records no entries, and can be neither
steered nor cancelled nor audited.
"""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any

import httpx
from temporalio import activity, workflow
from temporalio.api.common.v1 import WorkflowExecution
from temporalio.api.workflowservice.v1 import GetWorkflowExecutionHistoryReverseRequest
from temporalio.client import Client

MAX_EVENTS = 1_250
"""Events after which it continues as new, as a session does."""
CONTEXT_TURNS = 10
TIMEOUT = timedelta(seconds=60)
HEARTBEAT_TIMEOUT = timedelta(seconds=5)
HEARTBEAT_SECONDS = 1.0
NEWEST_BATCHES = 6

Turns = list[tuple[str, str]]
"""Questions with their answers, oldest first."""


class AgentActivities:
    """The model call, and the file for older turns."""

    def __init__(self, base_url: str, folder: str) -> None:
        self._url = f"{base_url}/chat/completions"
        self._http = httpx.AsyncClient(trust_env=False, timeout=60)
        self._folder = Path(folder)

    @activity.defn
    async def answer_from_context(self, question: str, answer: str) -> str:
        """Send the question after a context of turns like this one, and decode the reply."""
        turn = [{"role": "user", "content": question}, {"role": "assistant", "content": answer}]
        body = {"model": "any", "stream": True, "messages": [*turn * CONTEXT_TURNS, turn[0]]}
        parts: list[str] = []
        async with _send_heartbeats(), self._http.stream("POST", self._url, json=body) as response:
            response.raise_for_status()
            async for line in response.aiter_lines():
                if line.startswith("data: {"):
                    event = json.loads(line.removeprefix("data: "))
                    parts += [choice["delta"].get("content") or "" for choice in event["choices"]]
            text = "".join(parts)
            _load_encoding().count(text)
        return text

    @activity.defn
    async def keep_older(self, turns: Turns) -> None:
        """Add turns to the workflow's file."""
        await asyncio.to_thread(self._write, activity.info().workflow_id, turns)

    def _write(self, workflow_id: str | None, turns: Turns) -> None:
        with (self._folder / f"{workflow_id}.json").open("a") as file:
            file.write(json.dumps(turns))
            file.flush()
            os.fsync(file.fileno())


@asynccontextmanager
async def _send_heartbeats() -> AsyncIterator[None]:
    async def beat() -> None:
        while True:
            await asyncio.sleep(HEARTBEAT_SECONDS)
            activity.heartbeat()

    task = asyncio.create_task(beat())
    try:
        yield
    finally:
        task.cancel()


@cache
def _load_encoding() -> Any:
    """Load the vocabulary, at the first call: workers of the floor need none."""
    return import_module("clew_workflows.contract.tokens").load_encoding("o200k_base")


@workflow.defn(sandboxed=False)
class LeastAgent:
    """Answers updates, in one workflow run after the other."""

    @workflow.init
    def __init__(self, turns: Turns) -> None:
        self._turns = turns

    @workflow.run
    async def run(self, turns: Turns) -> None:
        """Wait until the history is full, and continue as new with the turns of a context."""
        await workflow.wait_condition(lambda: workflow.info().get_current_history_length() >= MAX_EVENTS)
        await workflow.execute_activity("keep_older", self._turns[len(turns) :], start_to_close_timeout=TIMEOUT)
        await workflow.wait_condition(workflow.all_handlers_finished)
        workflow.continue_as_new(self._turns[-CONTEXT_TURNS:])

    @workflow.update
    async def ask(self, question: str) -> None:
        """Have the model's server answer."""
        newest = self._turns[-1][1] if self._turns else question
        answer: str = await workflow.execute_activity(
            "answer_from_context",
            args=[question, newest],
            result_type=str,
            start_to_close_timeout=TIMEOUT,
            heartbeat_timeout=HEARTBEAT_TIMEOUT,
        )
        self._turns.append((question, answer))


async def read_answer(client: Client, workflow_id: str, run_id: str | None) -> str:
    """Read the newest answer in the history of a workflow run."""
    request = GetWorkflowExecutionHistoryReverseRequest(
        namespace=client.namespace,
        execution=WorkflowExecution(workflow_id=workflow_id, run_id=run_id or ""),
        maximum_page_size=NEWEST_BATCHES,
    )
    # A server under load may cancel the call.
    page = await client.workflow_service.get_workflow_execution_history_reverse(request, retry=True)
    results = (event.activity_task_completed_event_attributes.result.payloads for event in page.history.events)
    # `keep_older` returns nothing.
    [text] = await client.data_converter.decode(next(found for found in results if found and found[0].data), [str])
    return str(text)
