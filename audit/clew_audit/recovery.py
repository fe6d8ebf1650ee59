"""Recovery: a session that was cut off is put together again from its history and its archive, and goes on."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field, replace
from typing import Any, Literal

from pydantic_core import from_json
from temporalio.client import Client, WorkflowExecutionStatus

from clew.errors import Closed, InvalidInput, ThreadMismatch
from clew.thread.entries import Entry
from clew_activities.archive import Archive, Head, ObjectDamaged, ObjectMissing
from clew_audit import restart
from clew_audit.differences import find_differences
from clew_audit.errors import ArchiveDamaged, translate_archive_errors, translate_store_errors
from clew_audit.histories import ServerHistories
from clew_audit.replay import ReplayedRun, ReplayFailed, replay_run
from clew_audit.state_builder import StateBuilder
from clew_workflows.core import carried
from clew_workflows.core.advance import Session
from clew_workflows.protocol import ArchiveRef

Source = Literal["history", "archive"]
CHUNK = 500
"""Entries that are read from the archive at a time."""


@dataclass(slots=True)
class Recovery:
    """What a recovery has found and done.

    `status`: `running`, the session needs none; `whole`, it ended in good order and goes on when it is opened;
    `restarted`, nothing was missing from its archive; `recovered`. Where there was a choice, `source` is what was
    chosen. `written` counts the entries that came into the archive, and `closing` those of them that the recovery
    has added; `dropped` counts those that `keep` has given up.
    """

    session_id: str
    status: Literal["running", "whole", "restarted", "recovered"]
    last_seq: int | None = None
    source: Source | None = None
    written: int = 0
    closing: int = 0
    dropped: int = 0
    remarks: list[str] = field(default_factory=list)

    def as_json(self) -> dict[str, Any]:
        """The recovery as one document."""
        return {name: value for name, value in asdict(self).items() if value is not None}


async def recover(
    client: Client, archive: Archive, session_id: str, *, task_queue: str, keep: Source | None = None
) -> Recovery:
    """Put a session together that was terminated, has timed out or was reset, and start it again.

    It goes on after the last entry that was ever committed; what ran then is ended as `recovered`. Repeating it is
    fine. `keep` says what to keep where history and archive have told different stories since some entry.

    Raises:
        Closed: there is no such session.
        ThreadMismatch: nothing was changed, because entries would be lost; the message says which.
        ClewError: the server or the archive cannot be reached, or what is needed of them is damaged.
    """
    ended, own_queue = await restart.find_execution(client, session_id)
    if ended is WorkflowExecutionStatus.RUNNING:
        return Recovery(session_id, "running")
    report, head, damage = Recovery(session_id, "recovered"), None, None
    try:
        async with translate_store_errors():
            head = await archive.read_head(session_id)
    except ObjectDamaged as error:
        damage = error
        report.remarks.append(f"the archive was found by the history, for its head is damaged: {error}")
    found = await _from_history(ServerHistories(client, session_id), report, keep)
    told = found.session if found else None
    if told is None and damage:
        raise ArchiveDamaged(str(damage))
    if told is None and head is None:
        raise Closed(f"there is nothing to recover of a session {session_id!r}: no history, and no archive")
    session, place = await _chosen(archive, head, told, report, keep)
    if report.source == "archive" and head and head.status == "closed":
        report.status, report.last_seq = "restarted", head.last_seq
        if ended in (None, WorkflowExecutionStatus.COMPLETED, WorkflowExecutionStatus.CANCELED):
            report.status = "whole"
            return report
    else:
        before, committed = place.upto, session.thread.rev
        session = restart.add_recovery(
            session,
            found.unread if found and report.source == "history" else (),
            workflow=ended.name.lower() if ended else None,
            reason=found.reason if found else None,
        )
        thread = session.thread
        place = await restart.append_entries(archive, place, thread.slice(before + 1, thread.last_seq))
        report.closing, report.written, report.last_seq = thread.rev - committed, place.upto - before, place.upto
        session = replace(session, state=replace(session.state, archive=place))
        await restart.write_archive(archive, session, head)
    await restart.start(client, session_id, own_queue or task_queue, session.state.config)
    return report


async def _from_history(server: ServerHistories, report: Recovery, keep: Source | None) -> ReplayedRun | None:
    """The session as the newest run has it that had begun; of those that were refused there is nothing to tell."""
    never_begun: ReplayedRun | None = None
    async for run in server.read_newest():
        if run.history is None:
            report.remarks.append(f"the history of run {run.run_id} is gone")
            break
        try:
            rebuilt = await replay_run(run.history, server.converter)
        except ReplayFailed as error:
            if keep == "archive":
                report.remarks.append(f"run {run.run_id} was left aside: {error}")
                break
            raise ThreadMismatch(f"run {run.run_id}: {error}; --keep archive does without it") from error
        if rebuilt.session and rebuilt.session.thread.rev:
            return rebuilt
        if rebuilt.session and run.ended != "failed":
            never_begun = never_begun or rebuilt
    return never_begun


async def _chosen(
    archive: Archive, head: Head | None, told: Session | None, report: Recovery, keep: Source | None
) -> tuple[Session, ArchiveRef]:
    """What the session goes on from, and how much of it is in the archive already."""
    if head is None:
        assert told is not None
        place = told.state.archive or ArchiveRef(execution="", family=report.session_id)
        _check_follows(told, place.upto)
        report.source = "history"
        return told, place
    place = ArchiveRef(execution=head.run_id or "", family=head.family, root=head.root, upto=head.last_seq)
    diverged = await _diverged(archive, head, told) if told else None
    if diverged is not None and keep is None:
        raise ThreadMismatch(
            f"history and archive tell different things from entry {diverged} on: the history ends with entry "
            f"{told.thread.last_seq if told else -1}, the archive with entry {head.last_seq}; say which one is to be "
            "kept, with --keep archive or --keep history"
        )
    wanted: Source = "history" if told and told.thread.last_seq >= head.last_seq else "archive"
    if told and told.thread.last_seq == head.last_seq and head.status == "closed":
        wanted = "archive"
    report.source = keep if diverged is not None and keep else wanted
    if told is None or report.source == "archive":
        if diverged is not None and told:
            report.dropped = told.thread.last_seq - diverged + 1
        return await _from_archive(archive, head, place, report), place
    _check_follows(told, head.last_seq)
    if diverged is not None and head.root:
        report.dropped = head.last_seq - diverged + 1
        async with translate_archive_errors():
            root = await archive.cut(head.family, head.root, diverged - 1) if diverged else None
        place = place.model_copy(update={"root": root, "upto": diverged - 1})
    return told, place


def _check_follows(told: Session, last_seq: int) -> None:
    """What is before the history's part of the thread must be in the archive."""
    if told.thread.first_seq > last_seq + 1:
        raise ThreadMismatch(
            f"entries {last_seq + 1} to {told.thread.first_seq - 1} are neither in the archive nor in the newest "
            "history: bring the archive back first"
        )


async def _diverged(archive: Archive, head: Head, told: Session) -> int | None:
    """The first entry that the archive and the history both have, and not alike."""
    thread = told.thread
    async with translate_archive_errors():
        async for entry in archive.read(head.family, head.root, thread.first_seq, thread.last_seq):
            if next(find_differences(thread[entry.seq].as_json(), entry.as_json()), None):
                return entry.seq
    return None


async def _from_archive(archive: Archive, head: Head, place: ArchiveRef, report: Recovery) -> Session:
    """What was archived beside the thread; where that is lost, what can be made of the entries."""
    try:
        if head.state is None:
            raise ObjectMissing("the state")
        async with translate_store_errors():
            session = carried.restore(from_json(await archive.read_state(head.family, head.state)))
        async with translate_archive_errors():
            # Who forks a session that is away adds to its archive.
            async for entry in archive.read(head.family, head.root, session.thread.rev):
                session.thread.append(entry)
        return session
    except (ObjectDamaged, ObjectMissing, InvalidInput, ValueError) as error:
        report.remarks.append(f"the state was made anew from the entries, without what they do not hold: {error}")
    folding, chunk = StateBuilder(head.session_id), list[Entry]()
    async with translate_archive_errors():
        async for entry in archive.read(head.family, head.root):
            chunk.append(entry)
            if len(chunk) == CHUNK or entry.seq == head.last_seq:
                folding.add(chunk, place.model_copy(update={"upto": entry.seq}))
                chunk = []
    return folding.session(place)
