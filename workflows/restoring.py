"""Restoring: a new session of a checkpoint's token."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from pydantic import BaseModel
from temporalio import workflow
from temporalio.api.common.v1 import Payload
from temporalio.common import RawValue, RetryPolicy, WorkflowIDReusePolicy
from temporalio.exceptions import ActivityError, ApplicationError, WorkflowAlreadyStartedError

with workflow.unsafe.imports_passed_through():
    from clew.answers import RestoreReceipt
    from clew.contract import MAX_TOKEN_BYTES, RESTORE_WORKFLOW, WORKFLOW_TYPE, RestoreInput
    from clew.errors import InvalidInput, Refusal
    from workflows import door
    from workflows.effects import OpenCheckpoint, OpenedCheckpoint
    from workflows.failures import failure_of

PATIENCE = timedelta(seconds=45)
"""For each of both steps."""
RETRIES = RetryPolicy(initial_interval=timedelta(seconds=1), maximum_interval=timedelta(seconds=5))
_NOTHING = RawValue(Payload())


# What the SDK itself finds wrong with an input ends the workflow too: a failing task would be repeated for ever.
@workflow.defn(name=RESTORE_WORKFLOW, failure_exception_types=[Exception])
class RestoreSession:
    """Starts a session that goes on from a checkpoint: `{token, session_id?}` -> `{session_id}`."""

    @workflow.run
    async def run(self, asked: RawValue = _NOTHING) -> dict[str, Any]:
        """The session has the context under its lane when this answers."""
        try:
            given = door.errand([asked], RestoreInput, MAX_TOKEN_BYTES + 1_000)
        except Refusal as refusal:
            raise door.application_error(refusal) from None
        session_id = given.session_id or str(workflow.uuid4())
        checkpoint = OpenCheckpoint(token=given.token, session_id=session_id)
        opened = OpenedCheckpoint.model_validate(await _carry_out("open_checkpoint", checkpoint))
        try:
            session = await workflow.start_child_workflow(
                WORKFLOW_TYPE,
                {"config": opened.config},
                id=session_id,
                id_reuse_policy=WorkflowIDReusePolicy.REJECT_DUPLICATE,
                parent_close_policy=workflow.ParentClosePolicy.ABANDON,
                static_summary=f"session · {opened.config['model']}",
            )
        except WorkflowAlreadyStartedError:
            raise door.application_error(InvalidInput(f"there is a session {session_id!r} already")) from None
        try:
            await _carry_out("put_context", checkpoint)
        except ApplicationError:
            # Without the context it would be another session than the one that was asked for.
            await session.signal("close", {"reason": "it could not be restored"})
            raise
        return RestoreReceipt(session_id=session_id).as_json()


async def _carry_out(name: str, asked: BaseModel) -> dict[str, Any]:
    """The answer of an activity; its failure as the workflow's own, under its own word."""
    try:
        answer: dict[str, Any] = await workflow.execute_activity(
            name, asked, result_type=dict, schedule_to_close_timeout=PATIENCE, retry_policy=RETRIES
        )
    except ActivityError as error:
        failure = failure_of(error)
        raise ApplicationError(failure.message, type=failure.type, non_retryable=True) from None
    return answer
