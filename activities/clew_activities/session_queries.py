"""Queries that activities send to the workflow of a session."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any

from temporalio import activity
from temporalio.client import WorkflowHandle, WorkflowQueryFailedError
from temporalio.exceptions import ApplicationError
from temporalio.service import RPCError, RPCStatusCode

from clew_activities.query_guard import QUERY_AHEAD

_FINAL_STATUS = (RPCStatusCode.NOT_FOUND, RPCStatusCode.INVALID_ARGUMENT, RPCStatusCode.PERMISSION_DENIED)


def get_own_session() -> WorkflowHandle[Any, Any]:
    """Return a handle to the session that this activity runs for, in the workflow run that scheduled it."""
    info = activity.info()
    return activity.client().get_workflow_handle(info.workflow_id or "", run_id=info.workflow_run_id)


async def query_session(
    session: WorkflowHandle[Any, Any], query: str, arguments: dict[str, Any] | None = None
) -> dict[str, Any]:
    """Query a session. While no worker answers, repeat the query: the session's worker may just have died.

    Raises:
        ApplicationError: The session refused the query; the type is the refusal's, or `context_unavailable`.
        RPCError: There is no such session, or the server rejects the request.
    """
    pause = 0.1
    while True:
        try:
            args = [] if arguments is None else [arguments]
            answer: dict[str, Any] = await session.query(query, args=args, rpc_timeout=timedelta(seconds=10))
            return answer
        except WorkflowQueryFailedError as error:
            if error.message == QUERY_AHEAD:
                await asyncio.sleep(pause)
                continue
            error_type, _, message = error.message.partition(": ")
            is_refusal = error_type.replace("_", "").isalpha() and bool(message)
            raise ApplicationError(
                message if is_refusal else error.message,
                type=error_type if is_refusal else "context_unavailable",
                non_retryable=is_refusal,
            ) from error
        except RPCError as error:
            if error.status in _FINAL_STATUS:
                raise
            await asyncio.sleep(pause)
            pause = min(pause * 2, 2.0)
