"""Recovery: restores a session that was interrupted, from its event history and its archive, and starts it again."""

from __future__ import annotations

import secrets
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from typing import Any, Literal

from pydantic_core import from_json, to_json
from temporalio.client import Client, WorkflowExecutionStatus
from temporalio.service import RPCError

from clew.session.connection import start_session
from clew.session.transport import translate_error
from clew_activities.archive import Archive, Head, ObjectDamaged, ObjectMissing
from clew_audit.differences import find_differences
from clew_audit.histories import ServerHistories, describe_newest
from clew_audit.replay import ReplayedRun, ReplayFailed, replay_run
from clew_audit.state_builder import StateBuilder
from clew_audit.verification import ArchiveDamaged, translate_archive_errors, translate_store_errors
from clew_workflows.contract import SessionConfig
from clew_workflows.contract.errors import InvalidInput, NotFound, ThreadMismatch
from clew_workflows.protocol import ArchiveRef
from clew_workflows.session import carried, decisions, drafts
from clew_workflows.session.advance import Session, Stamps, advance
from clew_workflows.session.state import Decision, Moment
from clew_workflows.session.ui import summarize_archived
from clew_workflows.thread.entries import Entry

# Writes a session's archive from outside, as if it had hibernated, and starts the session from it.

STAMPS = Stamps(now=lambda: datetime.now(UTC), random_bits=secrets.randbits)
"""The machine's clock and random numbers."""


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
    described = await describe_newest(client, session_id)
    return (described.status, described.task_queue) if described else (None, None)


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
    entry = drafts.draft_session("recovered", reason, workflow)
    return advance(session_after, Decision(session_after.state, (entry,)), STAMPS).session


def end_open_work(session: Session, unread: tuple[tuple[str, str], ...] = ()) -> Session:
    """End the session's open runs and waiting requests, in its state and with entries.

    Args:
        session: The session.
        unread: Names and beginnings of signals that no workflow task has handled; each gets an entry.
    """
    state = session.state
    lost = [drafts.draft_input("dropped", name, "recovered", excerpt) for name, excerpt in unread]
    decision = decisions.recover(state, Moment(session.thread.rev + len(lost), time.time())).prepend(*lost)
    return replace(advance(session, decision, STAMPS).session, effect=None)


Source = Literal["history", "archive"]
CHUNK_ENTRIES = 500
"""Number of entries that are read from the archive at a time."""


@dataclass(slots=True)
class Recovery:
    """The result of a recovery.

    Attributes:
        session_id: The session.
        status: `running`: it runs and needs no recovery; `whole`: it ended in good order and continues when it is
            opened; `restarted`: its archive was complete, and it was started; `recovered`: it was restored.
        last_seq: Seq of its last entry.
        source: Whether it continues from its history or from its archive.
        written: Number of entries that were archived.
        closing: Number of those that the recovery itself has added.
        dropped: Number of entries that were given up because of `keep`.
        remarks: Damage that was found, and what was done about it.
    """

    session_id: str
    status: Literal["running", "whole", "restarted", "recovered"]
    last_seq: int | None = None
    source: Source | None = None
    written: int = 0
    closing: int = 0
    dropped: int = 0
    remarks: list[str] = field(default_factory=list)

    def as_dict(self) -> dict[str, Any]:
        """Return the fields that are set, as JSON."""
        return {name: value for name, value in asdict(self).items() if value is not None}


async def recover(
    client: Client, archive: Archive, session_id: str, *, task_queue: str, keep: Source | None = None
) -> Recovery:
    """Restore a session that was terminated, has timed out or was reset, and start it again.

    It continues after its last committed entry. Open runs and waiting requests end as `recovered`. It can be
    repeated.

    Args:
        client: Connected to the session's namespace.
        archive: The archive of that namespace.
        session_id: The session.
        task_queue: Where to start the session, if the server no longer knows its task queue.
        keep: Which source wins if history and archive disagree.

    Raises:
        ArchiveDamaged: A needed object of the archive is missing or damaged.
        NotFound: There is no such session.
        ThreadMismatch: Entries would be lost; nothing was changed, and the message says which.
        ClewError: The server or the archive cannot be reached.
    """
    ended, own_queue = await find_execution(client, session_id)
    if ended is WorkflowExecutionStatus.RUNNING:
        return Recovery(session_id, "running")
    report, head, damage = Recovery(session_id, "recovered"), None, None
    try:
        async with translate_store_errors():
            head = await archive.read_head(session_id)
    except ObjectDamaged as error:
        damage = error
        report.remarks.append(f"the archive's head is damaged, the history's reference was used instead: {error}")
    server = ServerHistories(client, session_id)
    run = await _replay_newest(server, report, keep)
    replayed = run.session if run else None
    if replayed is None and damage:
        raise ArchiveDamaged(str(damage))
    if replayed is None and head is None:
        raise NotFound(f"there is nothing to recover: session {session_id!r} has no history and no archive")
    session, archive_ref = await _choose_source(archive, head, replayed, report, keep)
    if report.source == "history":
        archive_ref = await _archive_older(archive, archive_ref, session.thread.first_seq, server, report)
    if report.source == "archive" and head and head.status == "closed":
        report.status, report.last_seq = "restarted", head.last_seq
        has_ended = ended in (None, WorkflowExecutionStatus.COMPLETED, WorkflowExecutionStatus.CANCELED)
        if has_ended and not report.dropped:
            report.status = "whole"
            return report
    else:
        before, committed = archive_ref.upto, session.thread.rev
        session = add_recovery(
            session,
            run.unread if run and report.source == "history" else (),
            workflow=ended.name.lower() if ended else None,
            reason=run.reason if run else None,
        )
        thread = session.thread
        archive_ref = await append_entries(archive, archive_ref, thread.slice(before + 1, thread.last_seq))
        report.closing, report.written, report.last_seq = (
            thread.rev - committed,
            report.written + archive_ref.upto - before,
            archive_ref.upto,
        )
        session = replace(session, state=replace(session.state, archive=archive_ref))
        await write_archive(archive, session, head)
    await restart_session(client, session_id, own_queue or task_queue, session.state.settings.own)
    return report


async def _replay_newest(server: ServerHistories, report: Recovery, keep: Source | None) -> ReplayedRun | None:
    """Replay the newest workflow run that has entries; else one that started without entries; else None."""
    never_begun: ReplayedRun | None = None
    async for run in server.read_newest():
        if run.history is None:
            report.remarks.append(f"the server has deleted the history of workflow run {run.run_id}")
            break
        try:
            rebuilt = await replay_run(run.history, server.converter)
        except ReplayFailed as error:
            if keep == "archive":
                report.remarks.append(f"workflow run {run.run_id} was not used: {error}")
                break
            raise ThreadMismatch(
                f"workflow run {run.run_id}: {error}. Use the worker's version of Clew, or recover without this "
                "history: --keep archive"
            ) from error
        if rebuilt.session and rebuilt.session.thread.rev:
            return rebuilt
        if rebuilt.session and run.ended != "failed":
            never_begun = never_begun or rebuilt
    return never_begun


async def _choose_source(
    archive: Archive, head: Head | None, replayed: Session | None, report: Recovery, keep: Source | None
) -> tuple[Session, ArchiveRef]:
    """Choose between history and archive. Returns the session and how much of it is archived already."""
    if head is None:
        assert replayed is not None
        archive_ref = replayed.state.archive or ArchiveRef(execution="", family=report.session_id)
        report.source = "history"
        return replayed, await _drop_missing(archive, archive_ref, report)
    archive_ref = ArchiveRef(execution=head.run_id or "", family=head.family, root=head.root, upto=head.last_seq)
    diverged = await _find_divergence(archive, head, replayed) if replayed else None
    if diverged is not None and keep is None:
        raise ThreadMismatch(
            f"history and archive differ from entry {diverged} on. The history ends with entry "
            f"{replayed.thread.last_seq if replayed else -1}, the archive with entry {head.last_seq}. Choose one: "
            "--keep archive or --keep history"
        )
    preferred: Source = "history" if replayed and replayed.thread.last_seq >= head.last_seq else "archive"
    if replayed and replayed.thread.last_seq == head.last_seq and head.status == "closed":
        preferred = "archive"
    is_older = replayed is not None and replayed.thread.last_seq > head.last_seq
    report.source = keep if keep and (diverged is not None or is_older) else preferred
    if replayed is None or report.source == "archive":
        if replayed:
            report.dropped = max(
                replayed.thread.last_seq - (head.last_seq + 1 if diverged is None else diverged) + 1, 0
            )
        return await _load_archived(archive, head, archive_ref, report), archive_ref
    if diverged is not None and head.root:
        report.dropped = head.last_seq - diverged + 1
        async with translate_archive_errors():
            root = await archive.truncate(head.family, head.root, diverged - 1) if diverged else None
        archive_ref = archive_ref.model_copy(update={"root": root, "upto": diverged - 1})
    return replayed, archive_ref


async def _drop_missing(archive: Archive, archive_ref: ArchiveRef, report: Recovery) -> ArchiveRef:
    """Refer to nothing if the store has lost the root of the archive: the histories may hold its entries."""
    try:
        async with translate_store_errors():
            async for _ in archive.read(archive_ref.family, archive_ref.root, archive_ref.upto):
                break
    except ObjectMissing as error:
        report.remarks.append(f"the archive is lost and was written anew from the histories: {error}")
        return archive_ref.model_copy(update={"root": None, "upto": -1})
    return archive_ref


async def _archive_older(
    archive: Archive, archive_ref: ArchiveRef, before: int, server: ServerHistories, report: Recovery
) -> ArchiveRef:
    """Archive the entries that the archive lacks before seq `before`, from the histories of older workflow runs.

    Raises:
        ThreadMismatch: Some are neither in the archive nor in a history.
    """
    first = archive_ref.upto + 1
    if first >= before:
        return archive_ref
    missing: dict[int, Entry] = {}
    async for run in server.read_newest():
        if run.history is None:
            break
        try:
            rebuilt = await replay_run(run.history, server.converter)
        except ReplayFailed as error:
            report.remarks.append(f"workflow run {run.run_id} was not used: {error}")
            break
        if rebuilt.session:
            missing |= {entry.seq: entry for entry in rebuilt.session.thread if first <= entry.seq < before}
        if first in missing or rebuilt.is_new_thread:
            break
    absent = [seq for seq in range(first, before) if seq not in missing]
    if absent:
        raise ThreadMismatch(
            f"entries {absent[0]} to {absent[-1]} are neither in the archive nor in a history: restore the archive "
            "from a backup first, or check CLEW_STORE"
        )
    report.written += before - first
    return await append_entries(archive, archive_ref, [missing[seq] for seq in range(first, before)])


async def _find_divergence(archive: Archive, head: Head, replayed: Session) -> int | None:
    """Find the seq of the first entry that differs between archive and history; None: none does."""
    thread = replayed.thread
    async with translate_archive_errors():
        async for entry in archive.read(head.family, head.root, thread.first_seq, thread.last_seq):
            if next(find_differences(thread[entry.seq].as_dict(), entry.as_dict()), None):
                return entry.seq
    return None


async def _load_archived(archive: Archive, head: Head, archive_ref: ArchiveRef, report: Recovery) -> Session:
    """Load the archived state; if it is damaged or missing, make one from the entries."""
    try:
        if head.state is None:
            raise ObjectMissing("the state")
        async with translate_store_errors():
            session = carried.restore(from_json(await archive.read_state(head.family, head.state)))
        async with translate_archive_errors():
            # A fork of an archived session appends an entry to its archive.
            async for entry in archive.read(head.family, head.root, session.thread.rev):
                session.thread.append(entry)
        return session
    except (ObjectDamaged, ObjectMissing, InvalidInput, ValueError) as error:
        report.remarks.append(f"the archived state cannot be used, a new one was made from the entries: {error}")
    builder, chunk = StateBuilder(head.session_id), list[Entry]()
    async with translate_archive_errors():
        async for entry in archive.read(head.family, head.root):
            chunk.append(entry)
            if len(chunk) == CHUNK_ENTRIES or entry.seq == head.last_seq:
                builder.add(chunk, archive_ref.model_copy(update={"upto": entry.seq}))
                chunk = []
    return builder.build(archive_ref)
