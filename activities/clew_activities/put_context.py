"""The activity `put_context`: puts a checkpoint's context into the session that was started from it."""

from __future__ import annotations

from typing import Any

from temporalio import activity
from temporalio.client import WorkflowUpdateFailedError
from temporalio.exceptions import ApplicationError

from clew.thread.entries import DEFAULT_LANE
from clew_activities.checkpoint_tokens import Keys, make_op_id, verify_token
from clew_activities.error_translation import translate_refusals
from clew_activities.heartbeat import send_heartbeats
from clew_workflows.core.checkpoints import make_restore_operation
from clew_workflows.protocol import OpenCheckpoint


class RestoringActivities:
    """Puts the contexts of verified checkpoints into sessions."""

    def __init__(self, keys: Keys, namespace: str) -> None:
        self._keys = keys
        self._namespace = namespace

    @activity.defn(name="put_context")
    async def put_context(self, request: OpenCheckpoint) -> dict[str, Any]:
        """Put the checkpoint's context into its lane of the session that was started for it. It can be repeated."""
        op_id = make_op_id(request.token)
        async with send_heartbeats(), translate_refusals():
            payload = verify_token(request.token, self._keys, self._namespace, None)
            lane = payload["context_ref"]
            await _apply_operation(request.session_id, make_restore_operation(payload, op_id))
            if lane != DEFAULT_LANE:
                switch = {"type": "switch", "reason": "restore"}
                await _apply_operation(
                    request.session_id, {"op_id": f"{op_id}-switch", "context_ref": lane, "operation": switch}
                )
        return {}


async def _apply_operation(session_id: str, operation: dict[str, Any]) -> None:
    session = activity.client().get_workflow_handle(session_id)
    try:
        await session.execute_update("submit_context_operation", operation)
    except WorkflowUpdateFailedError as error:
        error_type = error.cause.type if isinstance(error.cause, ApplicationError) else None
        is_final = error_type != "archive_unavailable"
        raise ApplicationError(str(error.cause), type=error_type or "internal", non_retryable=is_final) from error
