"""Starting a session's workflow through a Temporal client, also one that has ended."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Mapping
from typing import Any

from temporalio.client import Client
from temporalio.common import Priority, WorkflowIDConflictPolicy, WorkflowIDReusePolicy
from temporalio.exceptions import WorkflowAlreadyStartedError
from temporalio.service import RPCError

from clew.session.handle import STARTING_SECONDS, SessionHandle
from clew.session.reading import read_status
from clew.session.transport import INTERRUPTED, make_interrupted, translate_error
from clew_workflows.contract import ConfigureInput, SessionConfig
from clew_workflows.contract.config import find_fairness_key, make_start_arguments
from clew_workflows.contract.errors import (
    Closed,
    Interrupted,
    NotFound,
    ServerUnreachable,
    Starting,
    WorkerUnavailable,
)
from clew_workflows.temporal_faults.started_workflows import has_started

# Comparing the configuration of `Clew.open` with that of a session that exists already.


COMPARISON_SECONDS = 2.0
"""Seconds within which an existing session must answer what its configuration is."""

log = logging.getLogger("clew")


async def read_ignored(handle: SessionHandle, requested: Mapping[str, Any]) -> dict[str, Any]:
    """Find the requested fields whose value differs in a session that exists already.

    Best effort: a session that does not answer in time is not compared.

    Raises:
        Refusal: The session could not be started.
    """
    if not requested:
        return {}
    give_up_at = time.monotonic() + COMPARISON_SECONDS
    try:
        status = await read_status(handle, seconds=COMPARISON_SECONDS)
        # Until it is prepared, or thawed, a session shows the configuration of its start.
        while status.rev == 0 and time.monotonic() < give_up_at:
            await asyncio.sleep(STARTING_SECONDS)
            status = await read_status(handle, seconds=COMPARISON_SECONDS)
    except Interrupted:
        raise
    except (Closed, NotFound, ServerUnreachable, Starting, WorkerUnavailable):
        return {}
    return find_ignored(handle.session_id, requested, status.config) if status.rev else {}


def find_ignored(session_id: str, requested: Mapping[str, Any], config: Mapping[str, Any]) -> dict[str, Any]:
    """Find the requested fields whose value differs in a configuration, with its values. They are logged."""
    ignored = {name: config.get(name) for name, value in requested.items() if not _agrees(value, config.get(name))}
    if ignored:
        changeable = [f"{name}=…" for name in ignored if name in ConfigureInput.model_fields]
        log.warning(
            "session %r exists already, so these fields are ignored: %s%s",
            session_id,
            ", ".join(ignored),
            f". Change them: session.configure({', '.join(changeable)})" if changeable else "",
        )
    return ignored


def _agrees(value: Any, actual: Any) -> bool:
    """Whether a value in force has all that was requested. What was not requested does not matter."""
    if isinstance(value, Mapping) and isinstance(actual, Mapping):
        return all(_agrees(part, actual.get(name)) for name, part in value.items())
    return bool(value == actual)


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
    return has_started(handle)


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
