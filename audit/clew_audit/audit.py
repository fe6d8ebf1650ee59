"""The audit: compares the entries in the event histories, in the archive and in the live session."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, field, fields, is_dataclass
from typing import Any, BinaryIO

from temporalio.client import Client, WorkflowExecutionStatus
from temporalio.service import RPCError

from clew import Clew
from clew.session.session import Session
from clew_activities.archive import Archive, Head, ObjectDamaged, ObjectMissing
from clew_activities.archive.blob_store import Blobs
from clew_audit import histories
from clew_audit.differences import Calls, Difference, JoinedThread, Origin, verify_calls
from clew_audit.histories import Run, SavedHistories, ServerHistories
from clew_audit.json_lines import FileDamaged
from clew_audit.replay import ReplayedRun, ReplayFailed, replay_run
from clew_audit.verification import translate_store_errors
from clew_workflows.contract.errors import ClewError, NotFound, UnknownBlob
from clew_workflows.session import carried
from clew_workflows.thread.entries import Entry
from clew_workflows.thread.thread import Retained, Thread


@dataclass(slots=True)
class RunReport:
    """One workflow run of a session.

    Attributes:
        run_id: Its id.
        ended: How it ended, as `Run.ended` says; or `refused` at its start, `replaced` by a reset, or `earlier`: it
            belongs to an earlier session of the same id.
        events: Number of its events.
        bytes: Size of its events, in bytes.
        from_seq: Seq of the first entry in its live thread; None: not replayed.
        to_seq: Seq of the last entry in its live thread; None: not replayed.
    """

    run_id: str
    ended: str
    events: int
    bytes: int
    from_seq: int | None = None
    to_seq: int | None = None


@dataclass(slots=True)
class Report:
    """The result of an audit.

    Attributes:
        session_id: The session.
        runs: Its workflow runs, the oldest first.
        entries: Number of all entries.
        in_history: Number of entries in the histories.
        in_archive: Number of entries in the archive.
        in_archive_alone: Number of entries in the archive and in no history.
        live: Number of entries that the live session answered; None: it was not queried.
        calls: Model calls whose contexts were built again.
        differences: Everything that differs.
        remarks: Parts that could not be compared, and why.
    """

    session_id: str
    runs: list[RunReport] = field(default_factory=list)
    entries: int = 0
    in_history: int = 0
    in_archive: int = 0
    in_archive_alone: int = 0
    live: int | None = None
    calls: Calls = field(default_factory=Calls)
    differences: list[Difference] = field(default_factory=list)
    remarks: list[str] = field(default_factory=list)

    @property
    def clean(self) -> bool:
        """Whether nothing differs."""
        return not self.differences

    def as_dict(self) -> dict[str, Any]:
        """Return the report as JSON."""
        return {
            "session_id": self.session_id,
            "clean": self.clean,
            "runs": [{f.name: getattr(run, f.name) for f in fields(run)} for run in self.runs],
            "entries": self.entries,
            "in_history": self.in_history,
            "in_archive": self.in_archive,
            "in_archive_alone": self.in_archive_alone,
            "live": self.live,
            "calls_verified": self.calls.verified,
            "calls_unverified": self.calls.unverified,
            "requests_verified": self.calls.sent,
            "requests_of_other_encoders": dict(self.calls.other_encoders),
            "differences": [difference.as_dict() for difference in self.differences],
            "remarks": self.remarks,
        }


async def audit_session(client: Client, archive: Archive, session_id: str, save: BinaryIO | None = None) -> Report:
    """Audit a session on a server. Its histories are also written to `save`, for an audit without the server.

    Raises:
        ClewError: There is nothing to audit, or the server or the archive's store cannot be reached.
    """
    audit = _Audit(session_id, archive)
    # In this order: if the session writes entries meanwhile, the parts that are read later are only longer.
    head = await audit.read_head()
    live = await _query_session(client, session_id, audit.report)
    server = ServerHistories(client, session_id)
    await audit.compare_histories(server, histories.save_runs(save, server) if save else server.read_runs())
    if head is None and not audit.report.runs:
        raise NotFound(
            f"there is no session {session_id!r}: the server has no workflow of that id, and the store has no archive"
        )
    audit.compare_live(live)
    await audit.compare_archive(head, is_complete=True)
    return await audit.finish()


async def audit_file(saved: SavedHistories, archive: Archive) -> Report:
    """Audit the histories in a file and the archive, without a server.

    Raises:
        ClewError: The archive's store cannot be reached.
    """
    audit = _Audit(saved.session_id, archive)
    head = await audit.read_head()
    await audit.compare_histories(saved, saved.read_runs())
    await audit.compare_archive(head, is_complete=False)
    return await audit.finish()


@dataclass(frozen=True, slots=True)
class _Live:
    """Answers of a running session.

    Attributes:
        entries: Its live entries.
        transcripts: The transcript of each lane.
    """

    entries: list[Entry]
    transcripts: dict[str, list[dict[str, Any]]]


async def _query_session(client: Client, session_id: str, report: Report) -> _Live | None:
    session = Session(client, session_id)
    try:
        described = await client.get_workflow_handle(session_id).describe()
        if described.status is not WorkflowExecutionStatus.RUNNING:
            return None
        await Clew(client, described.task_queue).check_worker()
        first = (await session.status()).first_live_seq
        entries = await session.entries(from_seq=first)
        lanes = {entry.lane for entry in entries if entry.kind == "ai_message" and entry.lane}
        transcripts = {lane: await session.transcript(context_ref=lane, from_seq=first) for lane in sorted(lanes)}
        rows = {lane: [dict(message) for message in messages] for lane, messages in transcripts.items()}
        return _Live(entries, rows)
    except RPCError:
        return None
    except ClewError as error:
        report.remarks.append(f"the live session was not compared: {error}")
        return None


class _Audit:
    def __init__(self, session_id: str, archive: Archive) -> None:
        self.report = Report(session_id)
        self._archive = archive
        self._blobs = Blobs(archive)
        self._family: str | None = None
        self._joined = JoinedThread()
        self._retained = Retained()
        self._complete = False
        self._archived_upto = -1

    async def read_head(self) -> Head | None:
        """Read the head of the session's archive. A damaged one is a difference."""
        try:
            async with translate_store_errors():
                return await self._archive.read_head(self.report.session_id)
        except (ObjectDamaged, ObjectMissing) as error:
            self._note("archive", str(error), error.name)
            return None

    async def compare_histories(self, source: ServerHistories | SavedHistories, runs: AsyncIterator[Run]) -> None:
        """Replay the runs in order, and join their threads."""
        previous: tuple[Run, ReplayedRun] | None = None
        try:
            async for run in runs:
                row = RunReport(run.run_id, "replaced" if run.replaced else run.ended, run.events, run.bytes)
                self.report.runs.append(row)
                if run.replaced:
                    continue
                if run.history is None:
                    self._complete, previous = False, None
                    continue
                try:
                    rebuilt = await replay_run(run.history, source.converter)
                except ReplayFailed as error:
                    self._note("history", str(error), run.run_id)
                    self._complete, previous = False, None
                    continue
                self._add_run(row, rebuilt)
                if previous and (previous[0].ended, previous[0].execution) == ("continued", run.execution):
                    self._check_handover(run, previous[1], rebuilt)
                if rebuilt.session:
                    previous = run, rebuilt
        except FileDamaged as error:
            self._note("file", str(error))

    def _add_run(self, row: RunReport, rebuilt: ReplayedRun) -> None:
        if rebuilt.session is None:
            row.ended = "refused"
            return
        thread = rebuilt.session.thread
        if rebuilt.is_new_thread and self._joined.entries:
            self._joined = JoinedThread()
            for earlier in self.report.runs[:-1]:
                earlier.ended = "earlier"
        if not self._joined.entries:
            self._retained = thread.retained
        row.from_seq, row.to_seq = thread.first_seq, thread.last_seq
        for entry in (*thread.retained.entries, *thread):
            self.report.differences += self._joined.add(entry, "history", row.run_id)
        self.report.in_history = len(self._joined.entries)
        self._complete = True
        archive_ref = rebuilt.session.state.archive
        self._archived_upto = archive_ref.upto if archive_ref else -1

    def _check_handover(self, run: Run, previous: ReplayedRun, rebuilt: ReplayedRun) -> None:
        """Compare the state that a run started with and the state that the run before it, replayed, hands over."""
        assert previous.session is not None
        session = previous.session
        carried_on = carried.restore(carried.carry(session))
        if rebuilt.handed_over is None:
            self._note("history", "the run does not continue the run before it", run.run_id)
            return
        state, effect = rebuilt.handed_over
        differing = [*_list_differing(state, carried_on.state)]
        for name in (*differing, *(["effect"] if effect != carried_on.effect else [])):
            problem = "the run starts with another value than the run before it ended with"
            self._note("history", problem, run.run_id, field=f"carried.{name}")

    def compare_live(self, live: _Live | None) -> None:
        """Compare the answers of the live session."""
        if live is None:
            return
        self.report.live = len(live.entries)
        for entry in live.entries:
            if self._complete and entry.seq not in self._joined:
                self._note("live", "no history has this entry", seq=entry.seq)
            self.report.differences += self._joined.add(entry, "live")
        for lane, messages in live.transcripts.items():
            remaining = {message["seq"]: message for message in messages}
            for entry in live.entries:
                if entry.kind != "ai_message" or entry.lane != lane:
                    continue
                if remaining.pop(entry.seq, None) != entry.transcript_message:
                    self._note("live", "the transcript has another message", lane, entry.seq)
            # The session may have written entries since they were read.
            for seq in sorted(seq for seq in remaining if seq <= live.entries[-1].seq):
                self._note("live", "the transcript has a message without an entry", lane, seq)

    async def compare_archive(self, head: Head | None, *, is_complete: bool) -> None:
        """Compare every entry of the archive. `is_complete`: the histories were read together with the head."""
        newest = self._joined.last_seq if is_complete and self._complete else None
        if newest is not None and self.report.runs[-1].ended == "completed":
            self._check_archived(head.last_seq if head else -1, newest)
        elif newest is not None and (head.last_seq if head else -1) < self._archived_upto:
            await self._check_reference()
        if head is None:
            return
        try:
            async with translate_store_errors():
                await self._archive.verify_state(head)
        except (ObjectDamaged, ObjectMissing) as error:
            self._note("archive", str(error), error.name)
        async with translate_store_errors():
            async for check in self._archive.verify(head.family, head.root):
                if check.problem:
                    self._note("archive", check.problem, check.name, check.from_seq)
                elif "/segments/" in check.name:
                    async for entry in self._archive.read(head.family, head.root, check.from_seq, check.to_seq):
                        self._compare_archived(entry, check.name, newest)

    async def _check_reference(self) -> None:
        """Compare the end of the archive, as it is now, with what a session that has not ended has archived."""
        try:
            async with translate_store_errors():
                head = await self._archive.read_head(self.report.session_id)
        except (ObjectDamaged, ObjectMissing):
            return
        if (head.last_seq if head else -1) < self._archived_upto:
            problem = f"entries up to {self._archived_upto} are not archived, although they were: an older archive?"
            self._note("archive", problem, seq=(head.last_seq if head else -1) + 1)

    def _check_archived(self, last_seq: int, newest: int) -> None:
        """Compare the end of a session that has hibernated or was closed with the end of its archive."""
        if last_seq < newest:
            problem = f"the session has ended, and its entries up to {newest} are not archived: an older archive?"
            self._note("archive", problem, seq=last_seq + 1)

    def _compare_archived(self, entry: Entry, name: str, newest: int | None) -> None:
        self.report.in_archive += 1
        self.report.in_archive_alone += entry.seq not in self._joined
        # A fork of an archived session appends an entry to its archive.
        if newest is not None and entry.seq > newest and entry.kind != "fork":
            self._note("archive", "no history has this entry", name, entry.seq)
        self.report.differences += self._joined.add(entry, "archive", name)

    async def _read_blob(self, digest: str) -> bytes | None:
        """Read a blob of the session's family; None: it is missing or damaged."""
        try:
            async with translate_store_errors():
                return await self._blobs.read(await self._find_family(), digest)
        except (ObjectDamaged, ObjectMissing, UnknownBlob):
            return None

    async def _read_result(self, digest: str) -> bytes | None:
        """Read the earlier calls of a summary; None: they are missing, or damaged, which is a difference."""
        try:
            async with translate_store_errors():
                data, _ = await self._archive.get_result(await self._find_family(), digest)
                return data
        except ObjectDamaged as error:
            self._note("archive", str(error), error.name)
            return None
        except ObjectMissing:
            return None

    async def _find_family(self) -> str:
        if self._family is None:
            self._family = await self._blobs.find_family(self.report.session_id)
        return self._family

    async def finish(self) -> Report:
        """Build the context of every model call again from the joined thread. Returns the report."""
        report, entries = self.report, self._joined.entries
        report.entries = len(entries)
        for first, last in self._joined.find_gaps():
            self._note("history", f"entries {first} to {last} are in no history and not archived", seq=first)
        thread = _make_thread(entries, self._retained)
        report.differences += [
            one async for one in verify_calls(thread, report.calls, self._read_blob, self._read_result)
        ]
        return report

    def _note(
        self,
        where: Origin,
        problem: str,
        name: str | None = None,
        seq: int | None = None,
        field: str | None = None,
    ) -> None:
        self.report.differences.append(Difference(where, problem, name, seq, field))


def _make_thread(entries: dict[int, Entry], retained: Retained) -> Thread:
    """Make a thread of the newest entries without a gap."""
    first = max(entries, default=-1)
    while first - 1 in entries:
        first -= 1
    first = max(first, 0)
    rows: Iterator[Entry] = (entries[seq] for seq in range(first, len(entries) and max(entries) + 1))
    return Thread(rows, first, retained if first else None)


def _list_differing(one: Any, other: Any, prefix: str = "") -> Iterator[str]:
    """List the fields of two states that differ, down to the fields of their parts."""
    for part in fields(one):
        ours, theirs = getattr(one, part.name), getattr(other, part.name)
        if is_dataclass(ours) and type(ours) is type(theirs):
            yield from _list_differing(ours, theirs, f"{prefix}{part.name}.")
        elif ours != theirs:
            yield f"{prefix}{part.name}"
