"""Starting a session's workflow through a Temporal client."""

from __future__ import annotations

from temporalio.client import Client
from temporalio.common import WorkflowIDConflictPolicy, WorkflowIDReusePolicy

from clew.contract import SessionConfig
from clew.contract.starting import make_start_arguments


async def start_session(
    client: Client,
    session_id: str,
    config: SessionConfig,
    task_queue: str,
    reuse: WorkflowIDReusePolicy = WorkflowIDReusePolicy.ALLOW_DUPLICATE,
) -> bool:
    """Start a session. One that has an archive continues from it, with the archived configuration.

    Concurrent starts with the same id start one session. `reuse` says whether an ended session may be started again.

    Returns:
        Whether this call has started a workflow. If not, the session was running already.

    Raises:
        WorkflowAlreadyStartedError: A session of this id has ended, and `reuse` is `REJECT_DUPLICATE`.
        RPCError: The server refused the call or did not answer.
    """
    start = make_start_arguments(session_id, config)
    handle = await client.start_workflow(
        start.workflow,
        start.argument,
        id=start.id,
        task_queue=task_queue,
        id_conflict_policy=WorkflowIDConflictPolicy.USE_EXISTING,
        id_reuse_policy=reuse,
        static_summary=start.static_summary,
    )
    # The SDK has the server's answer only here.
    response = handle._start_workflow_response
    return response is not None and response.started
