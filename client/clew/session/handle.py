"""Reach one session by the wire contract: updates, queries and service workflows."""

from __future__ import annotations

import asyncio
import time
import uuid
from datetime import timedelta
from typing import Any, TypeVar

from pydantic import BaseModel
from temporalio.client import Client, WorkflowHandle, WorkflowUpdateHandle
from temporalio.common import QueryRejectCondition

from clew.contract import EntriesQuery
from clew.errors import Closed, Starting
from clew.outcomes import Output
from clew.session._services import run_service
from clew.session.transport import dump_input, send_update, translate_errors
from clew.thread.entries import Entry
from clew.thread.source import LivePage

Answer = TypeVar("Answer", bound=Output)

QUERY_SECONDS = 20
"""Seconds within which a session must answer a query."""
STARTING_SECONDS = 0.05
"""Seconds until a query is repeated that arrived during the session's start-up."""


class SessionHandle:
    """Sends updates and queries to one session, and runs service workflows for it.

    Attributes:
        client: Temporal's client.
        session_id: The session.
        task_queue: The task queue of the service workflows.
        workflow: Temporal's handle of the session's workflow.
    """

    def __init__(self, client: Client, session_id: str, task_queue: str) -> None:
        self.client = client
        self.session_id = session_id
        self.task_queue = task_queue
        self.workflow: WorkflowHandle[Any, Any] = client.get_workflow_handle(session_id)

    async def send(
        self, name: str, argument: BaseModel, update_id: str | None = None
    ) -> WorkflowUpdateHandle[dict[str, Any]]:
        """Send an update and return when it is accepted.

        Raises:
            Refusal: The session refused it. Nothing has changed.
        """
        return await send_update(self.workflow, name, argument, update_id or uuid.uuid4().hex)

    async def call(self, name: str, argument: BaseModel, answer: type[Answer]) -> Answer:
        """Send an update and wait for its answer.

        Raises:
            Refusal: The session refused it. Nothing has changed.
        """
        update = await self.send(name, argument)
        async with translate_errors(self.session_id):
            return answer.model_validate(await update.result())

    async def query(
        self,
        name: str,
        argument: BaseModel | None = None,
        *,
        only_open: bool = False,
        seconds: float = QUERY_SECONDS,
    ) -> dict[str, Any]:
        """Query the session's workflow. A query that arrives during start-up is repeated.

        Raises:
            Closed: The server knows no such session, or with `only_open`, it has ended.
            Refusal: The session refused the query.
        """
        args = [] if argument is None else [dump_input(argument)]
        reject = QueryRejectCondition.NOT_OPEN if only_open else QueryRejectCondition.NONE
        give_up_at = time.monotonic() + seconds
        while True:
            try:
                async with translate_errors(self.session_id):
                    answer: dict[str, Any] = await self.workflow.query(
                        name,
                        args=args,
                        result_type=dict,
                        reject_condition=reject,
                        rpc_timeout=timedelta(seconds=seconds),
                    )
                    return answer
            except Starting:
                if time.monotonic() > give_up_at:
                    raise
            await asyncio.sleep(STARTING_SECONDS)

    async def query_entries(self, query: EntriesQuery, *, only_open: bool = False) -> LivePage[Entry] | None:
        """Query one page of the entries that the session holds.

        Returns:
            The page. None if the server knows no such session, or with `only_open`, it has ended.
        """
        try:
            page = await self.query("entries", query, only_open=only_open)
        except Closed:
            return None
        entries = tuple(map(Entry.from_json, page["entries"]))
        return LivePage(entries, page.get("next_seq"), page.get("archived_before", 0))

    async def run_service(self, name: str, argument: BaseModel) -> dict[str, Any]:
        """Run a service workflow for the session and return its answer.

        Raises:
            Refusal: The workflow refused its input, or failed with a word of the contract.
        """
        return await run_service(self.client, self.task_queue, name, argument, self.session_id)

    async def wait_for_end(self) -> None:
        """Wait until the session's workflow has ended."""
        async with translate_errors(self.session_id):
            await self.workflow.result()
