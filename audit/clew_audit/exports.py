"""Export and import: a whole thread as a file of JSON Lines, and a session made of one.

    {"clew": "export", "version": 1, "session_id": "support-4711"}
    {"at": "...", "id": "e-...", "kind": "config", "payload": {...}, "refs": {...}, "seq": 0, "tokens": 12}
    ...
    {"result": {"digest": "...", "text": "..."}}
    ...
    {"clew": "end", "lines": 152, "sha256": "..."}

An entry a line, and behind the entry that names it what is stored of a large tool result; one that cannot be read any
more has a `problem` instead of its `text`. Neither way holds more than a piece of the thread in memory.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable
from dataclasses import dataclass, field, replace
from typing import Any, BinaryIO, Self

from temporalio.client import Client

from clew.contract import TASK_QUEUE, EntriesQuery
from clew.contract.payloads import ToolMessage
from clew.errors import Closed, ThreadMismatch
from clew.model.canonical import canonicalize
from clew.session.connection import validate_session_id
from clew.session.handle import SessionHandle
from clew.thread.entries import Entry
from clew.thread.source import LivePage, read_forward
from clew_activities.archive import Archive, Head, ObjectDamaged, ObjectMissing
from clew_activities.stored_results import MAX_STORED_BYTES
from clew_audit import restart
from clew_audit.errors import translate_archive_errors, translate_store_errors
from clew_audit.json_lines import FileDamaged, LineReader, LineWriter, encode_line
from clew_audit.state_builder import StateBuilder
from clew_workflows.protocol import ArchiveRef

KIND = "export"
PIECE_BYTES = 1_000_000
"""How much of a file is put into the archive at a time."""
MAX_ENTRY_BYTES = 2_000_000
"""Largest entry that is imported, in bytes of JSON. What a session commits is smaller: Temporal's payloads are."""


async def export_session(client: Client, archive: Archive, session_id: str, file: BinaryIO) -> int:
    """Write a session's whole thread to a file, archived and live as one; the number of its entries.

    Raises:
        ClewError: there is no such session, or not all of it can be read.
    """
    parts = await _ExportedParts.locate(client, archive, session_id)
    writer, count, known = LineWriter(file, KIND, {"session_id": session_id}), 0, set[str]()
    family = parts.head.family if parts.head else session_id
    async for entry in read_forward(parts):
        if entry.seq != count:
            raise ThreadMismatch(f"entry {count} is neither in the archive nor in the session")
        writer.write_row(entry.as_json())
        count += 1
        for digest in _stored(entry) - known:
            writer.write_row({"result": await _result(archive, family, digest)})
            known.add(digest)
    writer.end()
    return count


async def import_session(
    client: Client, archive: Archive, file: BinaryIO, *, session_id: str | None, task_queue: str
) -> tuple[str, int]:
    """Make a session of an exported thread, under its own id or another: the id, and the number of its entries.

    Nothing is part of the archive before the file has been read to its end and found whole.

    Raises:
        FileDamaged: the file is not what was exported.
        ThreadMismatch: a session of that id exists.
        ClewError: the archive or the server cannot be reached.
    """
    reader = LineReader(file, KIND)
    session_id = validate_session_id(session_id or str(reader.header.get("session_id")))
    async with translate_archive_errors():
        head = await archive.read_head(session_id)
    if head or await restart.find_execution(client, session_id) != (None, None):
        raise ThreadMismatch(f"a session {session_id!r} exists, or has existed: import it --as another id")
    folding = StateBuilder(session_id)
    place = ArchiveRef(execution="", family=session_id)
    for piece in _pieces(reader):
        if piece.entries[0].seq != place.upto + 1:
            raise FileDamaged(f"entry {place.upto + 1} is missing: entry {piece.entries[0].seq} stands in its place")
        async with translate_archive_errors():
            for text in piece.results:
                await archive.put_result(session_id, text.encode())
        place = await restart.append_entries(archive, place, piece.entries)
        folding.add(piece.entries, place)
    if place.upto < 0:
        raise FileDamaged("it holds no entry")
    count = place.upto + 1
    # Who exported it in the middle of a run has its beginning alone.
    session = restart.end_open_work(folding.session(place))
    place = await restart.append_entries(
        archive, place, session.thread.slice(place.upto + 1, session.thread.last_seq)
    )
    session = replace(session, state=replace(session.state, archive=place))
    await restart.write_archive(archive, session, None)
    await restart.start(client, session_id, task_queue, session.state.config)
    return session_id, count


def read_export(file: BinaryIO) -> list[Entry]:
    """The whole thread in an exported file.

    Raises:
        FileDamaged: the file is not what was exported.
    """
    entries = [entry for piece in _pieces(LineReader(file, KIND)) for entry in piece.entries]
    for seq, entry in enumerate(entries):
        if entry.seq != seq:
            raise FileDamaged(f"entry {seq} is missing: entry {entry.seq} stands in its place")
    return entries


@dataclass(slots=True)
class _Piece:
    """Some entries of a file, and what is stored of the results that they name."""

    entries: list[Entry] = field(default_factory=list)
    results: list[str] = field(default_factory=list)
    size: int = 0


def _pieces(reader: LineReader) -> Iterable[_Piece]:
    """What is in a file, some at a time."""
    piece = _Piece()
    for row in reader.read_rows():
        is_entry = not (isinstance(row, dict) and row.keys() == {"result"})
        if is_entry and piece.entries and piece.size > PIECE_BYTES:
            yield piece
            piece = _Piece()
        try:
            size = len(encode_line(row))
            if is_entry and size > MAX_ENTRY_BYTES:
                raise FileDamaged(f"it holds an entry of {size} bytes: an entry has at most {MAX_ENTRY_BYTES}")
            if is_entry:
                # Refuses what could not be written again: it is nested without an end, or no JSON.
                canonicalize(row)
                piece.entries.append(Entry.from_json(row))
            elif "text" in row["result"]:
                piece.results.append(_stored_text(row["result"]))
        except (ValueError, TypeError, RecursionError) as error:
            raise FileDamaged(f"it holds what is no entry: {str(error)[:200]}") from None
        piece.size += size
    if piece.entries:
        yield piece


def _stored_text(result: dict[str, Any]) -> str:
    text = result["text"]
    if not isinstance(text, str):
        raise FileDamaged("it holds a tool result that is no text")
    if (size := len(text.encode())) > MAX_STORED_BYTES:
        raise FileDamaged(f"it holds a tool result of {size} bytes: at most {MAX_STORED_BYTES} are stored of one")
    return text


def _stored(entry: Entry) -> set[str]:
    """The digests of the large tool results that an entry names."""
    said = entry.body
    return {said.result.digest} if isinstance(said, ToolMessage) and said.result else set()


async def _result(archive: Archive, family: str, digest: str) -> dict[str, str]:
    try:
        async with translate_store_errors():
            text, _ = await archive.get_result(family, digest)
        return {"digest": digest, "text": text.decode()}
    except (ObjectDamaged, ObjectMissing, UnicodeDecodeError) as error:
        # The thread is whole all the same, and shows what it showed.
        return {"digest": digest, "problem": str(error)}


@dataclass(frozen=True, slots=True)
class _ExportedParts:
    """A thread's parts as they are exported: the store itself, and queries to the session; None: it has ended."""

    client: Client
    archive: Archive
    session_id: str
    head: Head | None
    session: SessionHandle | None

    @classmethod
    async def locate(cls, client: Client, archive: Archive, session_id: str) -> Self:
        async with translate_archive_errors():
            head = await archive.read_head(session_id)
        if head and head.status == "closed":
            return cls(client, archive, session_id, head, None)
        status, _ = await restart.find_execution(client, session_id)
        if status is None and head:
            raise ThreadMismatch(
                f"session {session_id!r} was cut off, and its history is gone: `clew recover` it first"
            )
        if status is None:
            raise Closed(f"there is no session {session_id!r}")
        return cls(client, archive, session_id, head, SessionHandle(client, session_id, TASK_QUEUE))

    @property
    def archived_upto(self) -> int | None:
        if self.session is None:
            return None
        return self.head.last_seq if self.head else -1

    async def read_archived(self, from_seq: int, to_seq: int | None) -> AsyncIterator[Entry]:
        if self.head is None:
            return
        async with translate_archive_errors():
            async for entry in self.archive.read(self.head.family, self.head.root, from_seq, to_seq):
                yield entry

    async def read_live(self, from_seq: int) -> LivePage[Entry] | None:
        if self.session is None:
            return None
        return await self.session.query_entries(EntriesQuery(from_seq=from_seq))

    async def relocate(self, _first_live_seq: int | None, /) -> Self:
        return await self.locate(self.client, self.archive, self.session_id)
