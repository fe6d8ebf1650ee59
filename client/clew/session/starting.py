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
) -> None:
    """Start a session, or let one go on from its archive with the configuration that it has there.

    Callers that start a session at once get one session. `reuse` says whether a session may have been before.

    Raises:
        WorkflowAlreadyStartedError: there has been one, and `reuse` does not allow that.
        RPCError: the server refuses, or does not answer.
    """
    start = make_start_arguments(session_id, config)
    await client.start_workflow(
        start.workflow,
        start.argument,
        id=start.id,
        task_queue=task_queue,
        id_conflict_policy=WorkflowIDConflictPolicy.USE_EXISTING,
        id_reuse_policy=reuse,
        static_summary=start.static_summary,
    )
