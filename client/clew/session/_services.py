"""The short workflows of the contract: they do what needs the archive, whose store only workers can reach."""

from __future__ import annotations

import re
import uuid
from datetime import timedelta
from typing import Any

from pydantic import BaseModel
from temporalio.client import Client

from clew.session.transport import dump_input, translate_errors

TIMEOUT = timedelta(minutes=2)
"""With a worker, such a workflow ends earlier by itself."""


async def run_service(
    client: Client, task_queue: str, name: str, argument: BaseModel, session_id: str
) -> dict[str, Any]:
    """Run one of these workflows for a session; its answer.

    Raises:
        Refusal: the workflow refused its input, or could not do what it says.
        WorkerUnavailable: no worker ran it in time.
    """
    verb = re.sub("(Session|Thread|Context)$", "", name).lower()
    async with translate_errors(session_id):
        answer: dict[str, Any] = await client.execute_workflow(
            name,
            dump_input(argument),
            id=f"{verb}-{session_id}-{uuid.uuid4().hex}",
            task_queue=task_queue,
            result_type=dict,
            execution_timeout=TIMEOUT,
            static_summary=f"{verb} · {session_id}",
        )
    return answer
