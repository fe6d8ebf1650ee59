"""Deleting sessions: a running session is closed first, objects that forks need are kept."""

from __future__ import annotations

from typing import Any

from temporalio import activity
from temporalio.api.common.v1 import WorkflowExecution
from temporalio.api.workflowservice.v1 import DeleteWorkflowExecutionRequest
from temporalio.client import WorkflowFailureError
from temporalio.exceptions import ApplicationError
from temporalio.service import RPCError, RPCStatusCode

from clew.contract import DeleteSessionInput
from clew.contract.receipts import DeleteReceipt
from clew.errors import NotFound
from clew_activities.archive import Archive
from clew_activities.error_translation import translate_archive_errors
from clew_activities.heartbeat import send_heartbeats
from clew_activities.thread_source import Threads


class DeletionActivities:
    """Deletes sessions for clients."""

    def __init__(self, archive: Archive) -> None:
        self._archive = archive
        self._threads = Threads(archive)

    @activity.defn(name="delete_session")
    async def delete_session(self, request: DeleteSessionInput) -> dict[str, Any]:
        """Close the session, delete its archive and its event histories. A retry finishes an interrupted deletion."""
        session_id = request.session_id
        async with send_heartbeats(), translate_archive_errors(damage_is_final=True):
            try:
                location = await self._threads.find(session_id)
            except ApplicationError as error:
                if error.type != NotFound.type or activity.info().attempt == 1:
                    raise
                await _delete_histories(session_id)
                return DeleteReceipt(deleted_segments=0).as_json()
            if location.running:
                await _close(session_id)
            deleted = await self._archive.delete(session_id)
            await _delete_histories(session_id)
        return DeleteReceipt(deleted_segments=deleted).as_json()


async def _close(session_id: str) -> None:
    handle = activity.client().get_workflow_handle(session_id)
    try:
        await handle.signal("close", {"reason": "deleted"})
        await handle.result()
    except WorkflowFailureError:
        pass
    except RPCError as error:
        if error.status != RPCStatusCode.NOT_FOUND:
            raise


async def _delete_histories(session_id: str) -> None:
    """Delete the event histories of all its workflow runs that the server still has."""
    client = activity.client()
    # A session id contains no quotes.
    runs = [execution.run_id async for execution in client.list_workflows(f'WorkflowId = "{session_id}"')]
    for run_id in ["", *runs]:
        execution = WorkflowExecution(workflow_id=session_id, run_id=run_id)
        request = DeleteWorkflowExecutionRequest(namespace=client.namespace, workflow_execution=execution)
        try:
            await client.workflow_service.delete_workflow_execution(request)
        except RPCError as error:
            if error.status != RPCStatusCode.NOT_FOUND:
                raise
