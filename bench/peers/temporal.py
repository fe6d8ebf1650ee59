"""What the peers on Temporal share: a long-lived workflow with an update for each message, and its measures."""

from __future__ import annotations

import asyncio
import dataclasses
import hashlib
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from temporalio import activity, workflow
from temporalio.api.common.v1 import Payload
from temporalio.client import Client, WorkflowExecutionStatus, WorkflowUpdateFailedError
from temporalio.common import WorkflowIDConflictPolicy
from temporalio.converter import (
    DataConverter,
    ExternalStorage,
    StorageDriver,
    StorageDriverClaim,
    StorageDriverRetrieveContext,
    StorageDriverStoreContext,
)
from temporalio.service import RPCError

from bench.peers.conversation import HEARTBEAT_SECONDS
from bench.peers.service import Options, Size

ONE_RUN = "one run"
"""Configuration: the conversation is one workflow run."""
RENEWED = "continue-as-new"
"""Configuration: the workflow continues as new, with its messages, when the server suggests it."""
STORED = "external storage"
"""Configuration: it continues as new, and the SDK's external storage keeps payloads from 256 KiB on."""


class FolderDriver(StorageDriver):
    """External storage in a folder; equal payloads are one file."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        folder.mkdir(exist_ok=True)

    def name(self) -> str:
        """The driver's name."""
        return "folder"

    async def store(
        self, context: StorageDriverStoreContext, payloads: Sequence[Payload]
    ) -> list[StorageDriverClaim]:
        """Store payloads."""
        del context
        claims = []
        for payload in payloads:
            data = payload.SerializeToString()
            key = hashlib.sha256(data).hexdigest()
            await asyncio.to_thread((self._folder / key).write_bytes, data)
            claims.append(StorageDriverClaim(claim_data={"key": key}))
        return claims

    async def retrieve(
        self, context: StorageDriverRetrieveContext, claims: Sequence[StorageDriverClaim]
    ) -> list[Payload]:
        """Read payloads."""
        del context
        paths = [self._folder / claim.claim_data["key"] for claim in claims]
        return [Payload.FromString(await asyncio.to_thread(path.read_bytes)) for path in paths]


async def connect(options: Options, *, plugins: Sequence[Any] = (), converter: DataConverter | None = None) -> Client:
    """Connect to the server, with external storage if the configuration has it; workers take over the plugins."""
    converter = converter or DataConverter.default
    if options.configuration == STORED:
        storage = ExternalStorage(drivers=[FolderDriver(options.folder / "payloads")])
        converter = dataclasses.replace(converter, external_storage=storage)
    client = await Client.connect(options.temporal, plugins=list(plugins), data_converter=converter)
    if client.data_converter.external_storage != converter.external_storage:
        raise RuntimeError("a plugin dropped the external storage")
    return client


class Conversation(ABC):
    """A long-lived workflow that answers one message after the other; a message is the update `say`.

    A subclass has `run(renews, carried, …)`, which awaits `serve` and then continues as new.
    """

    def __init__(self) -> None:
        self._waiting: deque[tuple[str, str]] = deque()
        self._turn = ""
        self._answers: dict[str, str] = {}

    @workflow.update
    async def say(self, turn: str, text: str) -> str:
        """Answer a message. A known turn has no second effect."""
        if turn != self._turn and turn not in self._answers and (turn, text) not in self._waiting:
            self._waiting.append((turn, text))
        await workflow.wait_condition(lambda: turn in self._answers)
        return self._answers[turn]

    async def serve(self, *, renews: bool) -> None:
        """Answer messages until the workflow should continue as new."""

        def is_due() -> bool:
            return renews and workflow.info().is_continue_as_new_suggested() and workflow.all_handlers_finished()

        while True:
            await workflow.wait_condition(lambda: bool(self._waiting) or is_due())
            if not self._waiting:
                return
            self._turn, text = self._waiting.popleft()
            self._answers = {self._turn: await self.answer(text)}

    @abstractmethod
    async def answer(self, text: str) -> str:
        """Take one turn."""


class WorkflowPeer:
    """Conversations as long-lived workflows."""

    def __init__(self, client: Client, workflow: Any, options: Options) -> None:
        self._client = client
        self._workflow = workflow
        self._options = options
        self._started: set[str] = set()

    async def say(self, conversation: str, turn: str, text: str) -> str:
        """Send a message and return the answer."""
        if conversation not in self._started:
            renews = self._options.configuration in {RENEWED, STORED}
            await self._client.start_workflow(
                self._workflow.run,
                args=[renews, []],
                id=conversation,
                task_queue=self._options.task_queue,
                id_conflict_policy=WorkflowIDConflictPolicy.USE_EXISTING,
            )
            self._started.add(conversation)
        return await self._update(conversation, turn, text)

    async def resume(self, conversation: str, turn: str, text: str) -> str:
        """Send the update again: the workflow has gone on by itself, and a known turn has no second effect."""
        return await self._update(conversation, turn, text)

    async def _update(self, conversation: str, turn: str, text: str) -> str:
        handle = self._client.get_workflow_handle(conversation)
        while True:
            try:
                return str(await handle.execute_update("say", args=[turn, text], id=turn, result_type=str))
            except (WorkflowUpdateFailedError, RPCError):
                if (await handle.describe()).status != WorkflowExecutionStatus.RUNNING:
                    raise RuntimeError(await self._read_end(conversation)) from None
                # The workflow continued as new while the update waited.

    async def _read_end(self, conversation: str) -> str:
        """Read why a workflow ended: an update only says that it did."""
        async for event in self._client.get_workflow_handle(conversation).fetch_history_events():
            if event.HasField("workflow_execution_terminated_event_attributes"):
                return event.workflow_execution_terminated_event_attributes.reason
            if event.HasField("workflow_execution_failed_event_attributes"):
                failure = event.workflow_execution_failed_event_attributes.failure
                while failure.HasField("cause"):
                    failure = failure.cause
                return failure.message
        return "the workflow ended"

    async def measure(self, conversation: str) -> Size:
        """Sum the histories of the conversation's workflow runs."""
        size = await measure_runs(self._client, conversation)
        folder = self._options.folder / "payloads"
        stored = sum(path.stat().st_size for path in folder.iterdir()) if folder.exists() else 0
        return dataclasses.replace(size, stored=stored)


async def measure_runs(client: Client, workflow_id: str) -> Size:
    """Sum the histories of a workflow's runs, as the server reports them."""
    size, events, runs = 0, 0, 0
    run_id: str | None = (await client.get_workflow_handle(workflow_id).describe()).run_id
    while run_id:
        handle = client.get_workflow_handle(workflow_id, run_id=run_id)
        info = (await handle.describe()).raw_description.workflow_execution_info
        size, events, runs = size + info.history_size_bytes, events + info.history_length, runs + 1
        first = await anext(handle.fetch_history_events(page_size=1))
        run_id = first.workflow_execution_started_event_attributes.continued_execution_run_id
    return Size(size, events, runs)


@asynccontextmanager
async def heartbeats() -> AsyncIterator[None]:
    """Heartbeat while an activity waits."""

    async def beat() -> None:
        while True:
            activity.heartbeat()
            await asyncio.sleep(HEARTBEAT_SECONDS / 2)

    task = asyncio.create_task(beat())
    try:
        yield
    finally:
        task.cancel()
