"""A session put into its archive from outside, as one that hibernated, and taken up from there."""

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
from clew_workflows.core.stamps import MACHINE
from clew_workflows.core.state import Moment
from clew_workflows.protocol import ArchiveRef


async def append_entries(archive: Archive, place: ArchiveRef, entries: Sequence[Entry]) -> ArchiveRef:
    """The place with entries behind it. They are part of the session once its head is set."""
    async with translate_archive_errors():
        root, upto = await archive.append(place.family, place.root, entries)
    return place.model_copy(update={"root": root, "upto": upto})


async def write_archive(archive: Archive, session: Session, before: Head | None) -> None:
    """Write what the session goes on from, and then its head over the one before; all its entries are there."""
    state = session.state
    place = state.archive
    assert place is not None
    async with translate_archive_errors():
        written = to_json(carried.carry(replace(session, effect=None)))
        digest = await archive.write_state(place.family, written)
        await archive.set_head(
            Head(
                session_id=state.session_id,
                family=place.family,
                root=place.root,
                last_seq=place.upto,
                state=digest,
                status="closed",
                run_id=place.execution or None,
            ),
            before,
        )


async def start(client: Client, session_id: str, task_queue: str, config: SessionConfig) -> None:
    """Let the session go on: it finds its archive, and its stored configuration stands."""
    try:
        await start_session(client, session_id, config, task_queue)
    except RPCError as error:
        raise translate_error(error, session_id) from error


async def find_execution(client: Client, session_id: str) -> tuple[WorkflowExecutionStatus | None, str | None]:
    """How the newest execution stands, and its task queue; nothing where the server knows none."""
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
    """The session with what ran and what waited ended, and with an entry that tells of the recovery.

    Args:
        session: What is known of the session.
        unread: The names and the beginnings of signals that the session has never seen.
        workflow: How its workflow was cut off, where the server knows.
        reason: The reason that was given for that.
    """
    ended = end_open_work(session, unread)
    if not ended.thread.rev:
        return ended
    entry = drafts.draft_session(ended.state, "recovered", reason, workflow)
    return advance(ended, Decision(ended.state, (entry,)), MACHINE).session


def end_open_work(session: Session, unread: tuple[tuple[str, str], ...] = ()) -> Session:
    """The session with what ran and what waited ended, in its state and behind its thread.

    `unread` are the names and the beginnings of signals that the session has never seen.
    """
    state = session.state
    lost = [drafts.draft_input(state, "dropped", name, "recovered", excerpt) for name, excerpt in unread]
    decision = decisions.recover(state, Moment(session.thread.rev + len(lost), time.time())).prepend(*lost)
    return replace(advance(session, decision, MACHINE).session, effect=None)
