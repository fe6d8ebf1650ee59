"""The audit: event history, archive and the session itself must tell the same, entry for entry."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, field, fields
from typing import Any, BinaryIO

from temporalio.client import Client, WorkflowExecutionStatus
from temporalio.service import RPCError

from clew import Clew
from clew.errors import ClewError, Closed
from clew.session.session import Session
from clew.thread.entries import Entry
from clew.thread.thread import Retained, Thread
from clew_activities.archive import Archive, Head, ObjectDamaged, ObjectMissing
from clew_audit import calls, histories
from clew_audit.calls import Calls
from clew_audit.differences import Difference, JoinedThread
from clew_audit.errors import translate_store_errors
from clew_audit.histories import Run, SavedHistories, ServerHistories
from clew_audit.json_lines import FileDamaged
from clew_audit.replay import ReplayedRun, ReplayFailed, replay_run
from clew_workflows.core import carried


@dataclass(slots=True)
class RunReport:
    """What was found of one run of the workflow. `ended` is also `gone`, `refused`, `replaced` or `earlier`."""

    run_id: str
    ended: str
    events: int
    bytes: int
    from_seq: int | None = None
    to_seq: int | None = None


@dataclass(slots=True)
class Report:
    """What an audit has compared, and everything that differs. Numbers of entries, unless they say otherwise."""

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

    def as_json(self) -> dict[str, Any]:
        """The report as one document."""
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
            "differences": [found.as_json() for found in self.differences],
            "remarks": self.remarks,
        }


async def audit_session(client: Client, archive: Archive, session_id: str, save: BinaryIO | None = None) -> Report:
    """Audit a session on a server. `save` gets its histories, for an audit without the server.

    Raises:
        ClewError: there is nothing to audit, or the server or the archive's store cannot be reached.
    """
    audit = _Audit(session_id, archive)
    # In this order, so that a session which goes on meanwhile only makes what is read later longer.
    head = await audit.read_head()
    live = await _live(client, session_id, audit.report)
    server = ServerHistories(client, session_id)
    await audit.histories(server, histories.save_runs(save, server) if save else server.read_runs())
    if head is None and not audit.report.runs:
        raise Closed(f"there is no session {session_id!r}: the server knows no run of it, and it has no archive")
    audit.live(live)
    await audit.archive(head, whole=True)
    return audit.finished()


async def audit_file(saved: SavedHistories, archive: Archive) -> Report:
    """Audit the histories in a file against the archive, without a server.

    Raises:
        ClewError: the archive's store cannot be reached.
    """
    audit = _Audit(saved.session_id, archive)
    head = await audit.read_head()
    await audit.histories(saved, saved.read_runs())
    await audit.archive(head, whole=False)
    return audit.finished()


@dataclass(frozen=True, slots=True)
class _Live:
    """What a running session answers: its entries, and the transcript of each lane."""

    entries: list[Entry]
    transcripts: dict[str, list[dict[str, Any]]]


async def _live(client: Client, session_id: str, report: Report) -> _Live | None:
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
        rows = {lane: [dict(message) for message in said] for lane, said in transcripts.items()}
        return _Live(entries, rows)
    except RPCError:
        return None
    except ClewError as error:
        report.remarks.append(f"the session itself was not asked: {error}")
        return None


class _Audit:
    def __init__(self, session_id: str, archive: Archive) -> None:
        self.report = Report(session_id)
        self._archive = archive
        self._joined = JoinedThread()
        self._past = Retained()
        self._complete = False

    async def read_head(self) -> Head | None:
        """The head of the session's archive."""
        try:
            async with translate_store_errors():
                return await self._archive.read_head(self.report.session_id)
        except (ObjectDamaged, ObjectMissing) as error:
            self._found(Difference("archive", str(error), error.name))
            return None

    async def histories(self, source: ServerHistories | SavedHistories, runs: AsyncIterator[Run]) -> None:
        """Replay run after run, and join their threads."""
        before: tuple[Run, ReplayedRun] | None = None
        try:
            async for run in runs:
                row = RunReport(run.run_id, "replaced" if run.replaced else run.ended, run.events, run.bytes)
                self.report.runs.append(row)
                if run.replaced:
                    continue
                if run.history is None:
                    self._complete, before = False, None
                    continue
                try:
                    rebuilt = await replay_run(run.history, source.converter)
                except ReplayFailed as error:
                    self._found(Difference("history", str(error), run.run_id))
                    self._complete, before = False, None
                    continue
                self._run(row, rebuilt)
                if before and (before[0].ended, before[0].execution) == ("continued", run.execution):
                    self._handed_over(run, before[1], rebuilt)
                if rebuilt.session:
                    before = run, rebuilt
        except FileDamaged as error:
            self._found(Difference("file", str(error)))

    def _run(self, row: RunReport, rebuilt: ReplayedRun) -> None:
        if rebuilt.session is None:
            row.ended = "refused"
            return
        thread = rebuilt.session.thread
        if rebuilt.is_new_thread and self._joined.entries:
            self._joined = JoinedThread()
            for earlier in self.report.runs[:-1]:
                earlier.ended = "earlier"
        if not self._joined.entries:
            self._past = thread.retained
        row.from_seq, row.to_seq = thread.first_seq, thread.last_seq
        for entry in (*thread.retained.entries, *thread):
            for found in self._joined.add(entry, "history", row.run_id):
                self._found(found)
        self.report.in_history = len(self._joined.entries)
        self._complete = True

    def _handed_over(self, run: Run, before: ReplayedRun, rebuilt: ReplayedRun) -> None:
        """What a run goes on from is what the run before it, replayed, would hand over."""
        assert before.session is not None
        session = before.session
        left = carried.restore(carried.carry(session))
        if rebuilt.handed_over is None:
            self._found(Difference("history", "it does not go on from the run before it", run.run_id))
            return
        state, effect = rebuilt.handed_over
        names = [f.name for f in fields(state) if getattr(state, f.name) != getattr(left.state, f.name)]
        for name in (*names, *(["effect"] if effect != left.effect else [])):
            problem = "what the run begins with is not what the run before it came to"
            self._found(Difference("history", problem, run.run_id, field=f"carried.{name}"))

    def live(self, live: _Live | None) -> None:
        """Compare what the session itself answers."""
        if live is None:
            return
        self.report.live = len(live.entries)
        for entry in live.entries:
            if self._complete and entry.seq not in self._joined:
                self._found(Difference("live", "no history has this entry", seq=entry.seq))
            for found in self._joined.add(entry, "live"):
                self._found(found)
        for lane, said in live.transcripts.items():
            shown = {message["seq"]: message for message in said}
            for entry in live.entries:
                if entry.kind == "ai_message" and entry.lane == lane:
                    expected = {**entry.message, "seq": entry.seq}
                    if shown.pop(entry.seq, None) != expected:
                        self._found(Difference("live", "the transcript shows another message", lane, entry.seq))
            # The session may have gone on since its entries were read.
            for seq in sorted(seq for seq in shown if seq <= live.entries[-1].seq):
                self._found(Difference("live", "the transcript shows a message that is no entry", lane, seq))

    async def archive(self, head: Head | None, *, whole: bool) -> None:
        """Compare every entry of the archive. `whole`: the histories are as new as the head."""
        if head is None:
            return
        newest = self._joined.last_seq if whole and self._complete else None
        if head.state:
            try:
                async with translate_store_errors():
                    await self._archive.read_state(head.family, head.state)
            except (ObjectDamaged, ObjectMissing) as error:
                self._found(Difference("archive", str(error), error.name))
        async with translate_store_errors():
            async for check in self._archive.verify(head.family, head.root):
                if check.problem:
                    self._found(Difference("archive", check.problem, check.name, check.from_seq))
                elif "/segments/" in check.name:
                    found = self._archive.read(head.family, head.root, check.from_seq, check.to_seq)
                    async for entry in found:
                        self._archived(entry, check.name, newest)

    def _archived(self, entry: Entry, name: str, newest: int | None) -> None:
        self.report.in_archive += 1
        self.report.in_archive_alone += entry.seq not in self._joined
        # Who forks a session that is away adds to its archive.
        if newest is not None and entry.seq > newest and entry.kind != "fork":
            self._found(Difference("archive", "no history has this entry", name, entry.seq))
        for found in self._joined.add(entry, "archive", name):
            self._found(found)

    def finished(self) -> Report:
        """The report, with every model call made again from the joined thread."""
        report, entries = self.report, self._joined.entries
        report.entries = len(entries)
        for first, last in self._joined.find_gaps():
            self._found(Difference("history", f"entries {first} to {last} are nowhere", seq=first))
        thread = _thread(entries, self._past)
        report.differences += calls.verify(thread, report.calls)
        return report

    def _found(self, difference: Difference) -> None:
        self.report.differences.append(difference)


def _thread(entries: dict[int, Entry], retained: Retained) -> Thread:
    """The newest entries without a gap; what is before them is in nobody's hands."""
    first = max(entries, default=-1)
    while first - 1 in entries:
        first -= 1
    first = max(first, 0)
    rows: Iterator[Entry] = (entries[seq] for seq in range(first, len(entries) and max(entries) + 1))
    return Thread(rows, first, retained if first else None)
