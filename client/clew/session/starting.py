"""Starting a session's workflow through a Temporal client, also one that has ended."""

from __future__ import annotations

from temporalio.client import Client
from temporalio.common import Priority, WorkflowIDConflictPolicy, WorkflowIDReusePolicy
from temporalio.exceptions import WorkflowAlreadyStartedError
from temporalio.service import RPCError

from clew.contract import SessionConfig
from clew.contract.fairness import find_fairness_key
from clew.contract.starting import make_start_arguments
from clew.session.transport import INTERRUPTED, make_interrupted, translate_error


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
        # For the session's workflow tasks. The session sets those of its activities.
        priority=Priority(config.priority, find_fairness_key(session_id, config.metadata)),
    )
    # The SDK has the server's answer only here.
    response = handle._start_workflow_response
    return response is not None and response.started


async def start_or_resume(client: Client, session_id: str, config: SessionConfig, task_queue: str) -> bool:
    """Start a session, or continue it from its archive. Returns whether it is new.

    Raises:
        Interrupted: The session was terminated or timed out: its workflow could not archive its last entries.
        ServerUnreachable: No server answers.
    """
    try:
        try:
            return await start_session(client, session_id, config, task_queue, WorkflowIDReusePolicy.REJECT_DUPLICATE)
        except WorkflowAlreadyStartedError:
            ended = await client.get_workflow_handle(session_id).describe()
            if ended.status in INTERRUPTED:
                raise make_interrupted(session_id) from None
            await start_session(client, session_id, config, task_queue)
            return False
    except RPCError as error:
        raise translate_error(error, session_id) from error
