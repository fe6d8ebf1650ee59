"""Queries that activities send to the workflow of a session."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from typing import Any

from temporalio import activity
from temporalio.client import WorkflowHandle, WorkflowQueryFailedError
from temporalio.exceptions import ApplicationError
from temporalio.service import RPCError, RPCStatusCode

from clew.contract.queries import QUERY_AHEAD
from clew.errors import WorkerUnavailable

QUERY_TIMEOUT = timedelta(seconds=10)
"""The time of one attempt to query a session."""

_FINAL_STATUS = (RPCStatusCode.NOT_FOUND, RPCStatusCode.INVALID_ARGUMENT, RPCStatusCode.PERMISSION_DENIED)


def get_own_session() -> WorkflowHandle[Any, Any]:
    """Return a handle to the session that this activity runs for, in the workflow run that scheduled it."""
    info = activity.info()
    return activity.client().get_workflow_handle(info.workflow_id or "", run_id=info.workflow_run_id)


async def query_session(
    session: WorkflowHandle[Any, Any],
    query: str,
    arguments: dict[str, Any] | None = None,
    *,
    attempts_until: datetime | None = None,
) -> dict[str, Any]:
    """Query a session. While no worker answers, repeat the query: the session's worker may just have died.

    Raises:
        ApplicationError: The session refused the query; the type is the refusal's, or `context_unavailable`. No
            worker has answered before `attempts_until`; the type is `worker_unavailable`.
        RPCError: There is no such session, or the server rejects the request.
    """
    pause = 0.1
    while True:
        try:
            args = [] if arguments is None else [arguments]
            answer: dict[str, Any] = await session.query(query, args=args, rpc_timeout=QUERY_TIMEOUT)
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
            if attempts_until and datetime.now(UTC) > attempts_until:
                message = f"no worker answers for session {session.id!r}: {error.message}"
                raise ApplicationError(message, type=WorkerUnavailable.type, non_retryable=True) from error
            await asyncio.sleep(pause)
            pause = min(pause * 2, 2.0)


def find_last_attempt() -> datetime | None:
    """Find until when this activity may begin another attempt to reach a session, so that it can tell its caller."""
    info = activity.info()
    if info.schedule_to_close_timeout is None:
        return None
    return info.scheduled_time + info.schedule_to_close_timeout - QUERY_TIMEOUT - timedelta(seconds=2)
