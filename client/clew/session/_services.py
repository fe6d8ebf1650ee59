"""Errands: short workflows that do what needs the archive, whose store only workers can reach."""

from __future__ import annotations

import re
import uuid
from datetime import timedelta
from typing import Any

from pydantic import BaseModel
from temporalio.client import Client

from clew.session.transport import payload, translating

TIMEOUT = timedelta(minutes=2)
"""An errand ends by itself before that, if there is a worker."""


async def run_errand(client: Client, task_queue: str, name: str, asked: BaseModel, session_id: str) -> dict[str, Any]:
    """What a workflow of the contract answers about a session.

    Raises:
        Refusal: it was refused.
        WorkerUnavailable: no worker took it up.
    """
    verb = re.sub("(Session|Thread|Context)$", "", name).lower()
    async with translating(session_id):
        answer: dict[str, Any] = await client.execute_workflow(
            name,
            payload(asked),
            id=f"{verb}-{session_id}-{uuid.uuid4().hex}",
            task_queue=task_queue,
            result_type=dict,
            execution_timeout=TIMEOUT,
            static_summary=f"{verb} · {session_id}",
        )
    return answer
