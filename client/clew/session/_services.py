"""Run the service workflows: they do what needs the archive, whose store only workers can reach."""

from __future__ import annotations

import re
import uuid
from datetime import timedelta
from typing import Any

from pydantic import BaseModel
from temporalio.client import Client
from temporalio.common import Priority

from clew.contract.fairness import make_fairness_key
from clew.errors import NotFound
from clew.session.transport import dump_input, translate_errors

SERVICE_PREFIX = "clew-service-"
"""The ids of service workflows begin with it, so that lists can leave them out."""
TIMEOUT = timedelta(minutes=2)
"""Longest time that a service workflow may take; only a missing worker makes it take that long."""


async def run_service(
    client: Client,
    task_queue: str,
    name: str,
    argument: BaseModel,
    session_id: str,
    *,
    time_limit: timedelta = TIMEOUT,
) -> dict[str, Any]:
    """Run a service workflow for a session and return its answer.

    Raises:
        Refusal: The workflow refused its input, or failed with a word of the contract.
        WorkerUnavailable: No worker ran it in time.
    """
    verb = re.sub("(Session|Thread|Context)$", "", name).lower()
    async with translate_errors(session_id):
        answer: dict[str, Any] = await client.execute_workflow(
            name,
            dump_input(argument),
            id=f"{SERVICE_PREFIX}{verb}-{session_id}-{uuid.uuid4().hex}",
            task_queue=task_queue,
            result_type=dict,
            execution_timeout=time_limit,
            static_summary=f"{verb} · {session_id}",
            static_details=f"A service workflow of Clew, {name}: no session.",
            priority=Priority(fairness_key=make_fairness_key(session_id)),
        )
    if message := answer.get("not_found"):
        raise NotFound(message)
    return answer
