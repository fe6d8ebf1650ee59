"""Asking a session: the queries of activities to the workflow that they work for."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any

from temporalio import activity
from temporalio.client import WorkflowHandle, WorkflowQueryFailedError
from temporalio.exceptions import ApplicationError
from temporalio.service import RPCError, RPCStatusCode

_FINAL_STATUS = (RPCStatusCode.NOT_FOUND, RPCStatusCode.INVALID_ARGUMENT, RPCStatusCode.PERMISSION_DENIED)


def get_own_session() -> WorkflowHandle[Any, Any]:
    """The session that this activity works for, in the run that asked for it."""
    info = activity.info()
    return activity.client().get_workflow_handle(info.workflow_id or "", run_id=info.workflow_run_id)


async def query_session(
    session: WorkflowHandle[Any, Any], query: str, asked: dict[str, Any] | None = None
) -> dict[str, Any]:
    """A session's answer, asked for again in place while it cannot be reached: its worker may just have died.

    Raises:
        ApplicationError: it refused, under its own word.
        RPCError: there is no such session.
    """
    pause = 0.1
    while True:
        try:
            args = [] if asked is None else [asked]
            answer: dict[str, Any] = await session.query(query, args=args, rpc_timeout=timedelta(seconds=10))
            return answer
        except WorkflowQueryFailedError as error:
            word, _, message = error.message.partition(": ")
            refused = word.replace("_", "").isalpha() and bool(message)
            raise ApplicationError(
                message if refused else error.message,
                type=word if refused else "context_unavailable",
                non_retryable=refused,
            ) from error
        except RPCError as error:
            if error.status in _FINAL_STATUS:
                raise
            await asyncio.sleep(pause)
            pause = min(pause * 2, 2.0)
