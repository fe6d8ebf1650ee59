"""Writes a session's archive from outside, as if it had hibernated, and starts the session from it."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace

from pydantic_core import to_json
from temporalio.client import Client, WorkflowExecutionStatus
from temporalio.service import RPCError, RPCStatusCode

from clew.contract import SessionConfig
from clew.session.starting import start_session
from clew.session.transport import translate_error
from clew.thread.entries import Entry
from clew_activities.archive import Archive, Head
from clew_audit.errors import translate_archive_errors
from clew_workflows.core import carried, decisions, drafts
from clew_workflows.core.advance import Session, advance
from clew_workflows.core.decision import Decision
from clew_workflows.core.lists import summarize_archived
from clew_workflows.core.stamps import MACHINE
from clew_workflows.core.state import Moment
from clew_workflows.protocol import ArchiveRef


async def append_entries(archive: Archive, archive_ref: ArchiveRef, entries: Sequence[Entry]) -> ArchiveRef:
    """Append entries to an archive. Returns the new reference. They become part of the session with its head."""
    async with translate_archive_errors():
        root, upto = await archive.append(archive_ref.family, archive_ref.root, entries)
    return archive_ref.model_copy(update={"root": root, "upto": upto})


async def write_archive(archive: Archive, session: Session, before: Head | None) -> None:
    """Write the session's state, then replace its head. All entries must be archived already."""
    state = session.state
    archive_ref = state.archive
    assert archive_ref is not None
    async with translate_archive_errors():
        written = to_json(carried.carry(replace(session, effect=None)))
        digest = await archive.write_state(archive_ref.family, written)
        await archive.set_head(
            Head(
                session_id=state.session_id,
                family=archive_ref.family,
                root=archive_ref.root,
                last_seq=archive_ref.upto,
                state=digest,
                status="closed",
                run_id=archive_ref.execution or None,
                summary=summarize_archived(state),
            ),
            before,
        )


async def restart_session(client: Client, session_id: str, task_queue: str, config: SessionConfig) -> None:
    """Start the session's workflow. It continues from its archive and uses the archived configuration."""
    try:
        await start_session(client, session_id, config, task_queue)
    except RPCError as error:
        raise translate_error(error, session_id) from error


async def find_execution(client: Client, session_id: str) -> tuple[WorkflowExecutionStatus | None, str | None]:
    """Find the status and the task queue of the newest workflow execution; (None, None): the server has none."""
    try:
        described = await client.get_workflow_handle(session_id).describe()
    except RPCError as error:
        if error.status is RPCStatusCode.NOT_FOUND:
            return None, None
        raise translate_error(error, session_id) from error
    return described.status, described.task_queue


def add_recovery(
    session: Session, unread: tuple[tuple[str, str], ...], *, workflow: str | None, reason: str | None
) -> Session:
    """End the session's open runs and waiting requests, and add an entry about the recovery.

    Args:
        session: The session.
        unread: Names and beginnings of signals that no workflow task has handled.
        workflow: How its workflow ended; None: the server does not know.
        reason: The reason that the operator gave when terminating it.
    """
    session_after = end_open_work(session, unread)
    if not session_after.thread.rev:
        return session_after
    entry = drafts.draft_session(session_after.state, "recovered", reason, workflow)
    return advance(session_after, Decision(session_after.state, (entry,)), MACHINE).session


def end_open_work(session: Session, unread: tuple[tuple[str, str], ...] = ()) -> Session:
    """End the session's open runs and waiting requests, in its state and with entries.

    Args:
        session: The session.
        unread: Names and beginnings of signals that no workflow task has handled; each gets an entry.
    """
    state = session.state
    lost = [drafts.draft_input(state, "dropped", name, "recovered", excerpt) for name, excerpt in unread]
    decision = decisions.recover(state, Moment(session.thread.rev + len(lost), time.time())).prepend(*lost)
    return replace(advance(session, decision, MACHINE).session, effect=None)
