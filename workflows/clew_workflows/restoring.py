"""Restoring: a new session of a checkpoint's token."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from temporalio import workflow
from temporalio.common import RawValue, WorkflowIDReusePolicy
from temporalio.exceptions import ApplicationError, WorkflowAlreadyStartedError

with workflow.unsafe.imports_passed_through():
    from clew.contract import MAX_TOKEN_BYTES, RESTORE_WORKFLOW, WORKFLOW_TYPE, RestoreInput
    from clew.contract.outputs import RestoreReceipt
    from clew.errors import InvalidInput
    from clew_workflows.protocol.effects import OpenCheckpoint, OpenedCheckpoint
    from clew_workflows.services import NOTHING, carry_out, decoded
    from clew_workflows.shell import ingress

PATIENCE = timedelta(seconds=45)
"""For each of both steps."""


# What the SDK itself finds wrong with an input ends the workflow too: a failing task would be repeated for ever.
@workflow.defn(name=RESTORE_WORKFLOW, failure_exception_types=[Exception])
class RestoreSession:
    """Starts a session that goes on from a checkpoint: `{token, session_id?}` -> `{session_id}`."""

    @workflow.run
    async def run(self, asked: RawValue = NOTHING) -> dict[str, Any]:
        """The session has the context under its lane when this answers."""
        given = decoded(asked, RestoreInput, MAX_TOKEN_BYTES + 1_000)
        session_id = given.session_id or str(workflow.uuid4())
        checkpoint = OpenCheckpoint(token=given.token, session_id=session_id)
        opened = OpenedCheckpoint.model_validate(await carry_out("open_checkpoint", checkpoint, PATIENCE))
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
            raise ingress.application_error(InvalidInput(f"there is a session {session_id!r} already")) from None
        try:
            await carry_out("put_context", checkpoint, PATIENCE)
        except ApplicationError:
            # Without the context it would be another session than the one that was asked for.
            await session.signal("close", {"reason": "it could not be restored"})
            raise
        return RestoreReceipt(session_id=session_id).as_json()
