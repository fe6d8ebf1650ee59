"""What a session and its requests share: one session as the wire contract reaches it."""

from __future__ import annotations

import uuid
from typing import Any, TypeVar

from pydantic import BaseModel
from temporalio.client import Client, WorkflowHandle, WorkflowUpdateHandle

from clew.outcomes import Output
from clew.session.reader import Reader
from clew.session.transport import send_update, translating

Answer = TypeVar("Answer", bound=Output)


class SessionHandle:
    """Sends updates to one session, and reads it wherever its thread is."""

    def __init__(self, client: Client, session_id: str, task_queue: str) -> None:
        self.session_id = session_id
        self.client = client
        self.task_queue = task_queue
        self.workflow: WorkflowHandle[Any, Any] = client.get_workflow_handle(session_id)
        self.reader = Reader(client, session_id, task_queue)

    async def send(
        self, name: str, argument: BaseModel, update_id: str | None = None
    ) -> WorkflowUpdateHandle[dict[str, Any]]:
        """Send an update; back as soon as it is accepted.

        Raises:
            Refusal: it was refused, and nothing has changed.
        """
        return await send_update(self.workflow, name, argument, update_id or uuid.uuid4().hex)

    async def call(self, name: str, argument: BaseModel, answer: type[Answer]) -> Answer:
        """Send an update and wait for its answer.

        Raises:
            Refusal: it was refused, and nothing has changed.
        """
        update = await self.send(name, argument)
        async with translating(self.session_id):
            return answer.model_validate(await update.result())

    async def wait_for_end(self) -> None:
        """Wait until the session's workflow has ended."""
        async with translating(self.session_id):
            await self.workflow.result()
