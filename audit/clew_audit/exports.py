"""Export and import: a whole thread as a file of JSON Lines, and a session made of one.

    {"clew": "export", "version": 1, "session_id": "support-4711"}
    {"at": "...", "id": "e-...", "kind": "config", "payload": {...}, "refs": {...}, "seq": 0, "tokens": 12}
    ...
    {"result": {"digest": "...", "text": "..."}}
    {"blob": {"digest": "...", "data": "...", "more": true}}
    ...
    {"clew": "end", "lines": 152, "sha256": "..."}

Each line is an entry. After an entry that refers to a large tool result, a line has the stored result, or a `problem`
if that cannot be read. After a summary in several pieces, such a line has the calls before the last one. After the
first entry that names an image, a recording or a file, lines have its bytes in base64; all but the last of them say
that there are `more`. Export and import hold only a part of the thread, and one blob, in memory.
"""

from __future__ import annotations

from base64 import b64decode, b64encode
from collections.abc import AsyncIterator, Collection, Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any, BinaryIO, Self

from temporalio.client import Client

from clew.session.connection import validate_session_id
from clew.session.handle import SessionHandle
from clew_activities.archive import Archive, Head, ObjectDamaged, ObjectMissing
from clew_activities.archive.blob_store import Blobs, list_blobs
from clew_activities.archive.formats import hash_bytes
from clew_activities.tools.stored_results import MAX_STORED_BYTES, find_stored_result
from clew_audit import recovery
from clew_audit.json_lines import FileDamaged, LineReader, LineWriter, encode_line
from clew_audit.state_builder import StateBuilder
from clew_audit.verification import translate_archive_errors, translate_store_errors
from clew_workflows.contract import TASK_QUEUE, EntriesQuery
from clew_workflows.contract.content import Blob
from clew_workflows.contract.errors import NotFound, Refusal, ThreadMismatch, UnknownBlob
from clew_workflows.contract.limits import MAX_BLOB_BYTES
from clew_workflows.contract.messages import canonicalize
from clew_workflows.encryption import NO_ENCRYPTION, Sealer, find_sealer
from clew_workflows.protocol import ArchiveRef
from clew_workflows.thread.entries import Entry
from clew_workflows.thread.source import LivePage, read_forward
from clew_workflows.values import Format

FORMAT = Format("export")
PIECE_BYTES = 1_000_000
"""Bytes of entries that are archived at a time."""
BLOB_LINE_BYTES = 3_000_000
"""Bytes of a blob that one line has."""
MAX_ENTRY_BYTES = 2_000_000
"""Largest entry that is imported, in bytes of JSON. A session's are smaller: Temporal limits payloads to 2 MiB."""


async def export_session(client: Client, archive: Archive, session_id: str, file: BinaryIO) -> int:
    """Write a session's thread to a file, its archived and its live part. Returns the number of entries.

    Raises:
        NotFound: There is no such session.
        ThreadMismatch: An entry is missing, or the session must be recovered first.
        ClewError: The archive or the server cannot be reached, or an object is damaged.
    """
    parts = await _ExportedParts.locate(client, archive, session_id)
    writer = LineWriter(file, FORMAT, {"session_id": session_id}, sealer=find_sealer(client.data_converter))
    count, written = 0, set[str]()
    family = parts.head.family if parts.head else session_id
    async for entry in read_forward(parts):
        if entry.seq != count:
            raise ThreadMismatch(f"entry {count} is neither in the archive nor in the session")
        writer.write_row(entry.as_dict())
        count += 1
        stored = find_stored_result(entry)
        if stored is not None and stored not in written:
            writer.write_row({"result": await _read_result(archive, family, stored)})
            written.add(stored)
        for blob in list_blobs(entry):
            if blob["digest"] not in written:
                written.add(blob["digest"])
                async for row in _read_blob(archive, family, blob["digest"]):
                    writer.write_row({"blob": row})
    writer.end()
    return count


async def import_session(
    client: Client, archive: Archive, file: BinaryIO, *, session_id: str | None, task_queue: str
) -> tuple[str, int]:
    """Make a session of an exported thread, under its own id or another. Returns the id and the number of entries.

    The session's head is written after the file was read to its end and its checksum was verified.

    Raises:
        FileDamaged: The file is damaged or incomplete.
        NewerVersion: A newer version of Clew has written the file.
        ThreadMismatch: A session of that id exists.
        ClewError: The archive or the server cannot be reached.
    """
    reader = LineReader(file, FORMAT, sealer=find_sealer(client.data_converter))
    session_id = validate_session_id(session_id or str(reader.header.get("session_id")))
    async with translate_archive_errors():
        head = await archive.read_head(session_id)
    if head or await recovery.find_execution(client, session_id) != (None, None):
        raise ThreadMismatch(f"session {session_id!r} exists or has existed: import the file with --as ANOTHER-ID")
    builder, blobs = StateBuilder(session_id), Blobs(archive)
    archive_ref = ArchiveRef(execution="", family=session_id)
    unchecked: list[Blob] = []
    for piece in _read_pieces(reader):
        if piece.entries:
            await _check_named(blobs, session_id, unchecked)
            unchecked = [blob for entry in piece.entries for blob in list_blobs(entry)]
        await _store(archive, blobs, session_id, piece)
        if not piece.entries:
            continue
        if piece.entries[0].seq != archive_ref.upto + 1:
            raise FileDamaged(
                f"entry {archive_ref.upto + 1} is missing: entry {piece.entries[0].seq} stands in its place"
            )
        archive_ref = await recovery.append_entries(archive, archive_ref, piece.entries)
        builder.add(piece.entries, archive_ref)
    await _check_named(blobs, session_id, unchecked)
    if archive_ref.upto < 0:
        raise FileDamaged("the file holds no entry")
    count = archive_ref.upto + 1
    # If the session was exported during a run, the thread has only the beginning of that run.
    session = recovery.end_open_work(builder.build(archive_ref))
    archive_ref = await recovery.append_entries(
        archive, archive_ref, session.thread.slice(archive_ref.upto + 1, session.thread.last_seq)
    )
    session = replace(session, state=replace(session.state, archive=archive_ref))
    await recovery.write_archive(archive, session, None)
    await recovery.restart_session(client, session_id, task_queue, session.state.settings.own)
    return session_id, count


async def _store(archive: Archive, blobs: Blobs, family: str, piece: _Piece) -> None:
    """Store the results and the blobs of a piece.

    Raises:
        FileDamaged: A blob cannot be stored: no model reads its type, or its header is damaged.
    """
    async with translate_archive_errors():
        for text in piece.results:
            await archive.put_result(family, text.encode())
        for data in piece.blobs:
            try:
                await blobs.store(family, data)
            except Refusal as refusal:
                raise FileDamaged(f"the file holds a blob that is not stored: {refusal}") from None


async def _check_named(blobs: Blobs, family: str, named: list[Blob]) -> None:
    """Check that entries describe the stored blobs as they are. The export may have lacked some.

    Raises:
        FileDamaged: An entry says something else of a blob.
    """
    async with translate_archive_errors():
        for refusal in (await blobs.find_problems(family, named)).values():
            if not isinstance(refusal, UnknownBlob):
                raise FileDamaged(f"the file holds an entry that does not describe its blob: {refusal}")


def read_export(file: BinaryIO, sealer: Sealer = NO_ENCRYPTION) -> list[Entry]:
    """Read all entries of an exported file.

    Raises:
        FileDamaged: The file is damaged or incomplete.
        NewerVersion: A newer version of Clew has written the file.
        UnknownKey: It is encrypted with a key that `sealer` does not have.
    """
    entries = [entry for piece in _read_pieces(LineReader(file, FORMAT, sealer=sealer)) for entry in piece.entries]
    for seq, entry in enumerate(entries):
        if entry.seq != seq:
            raise FileDamaged(f"entry {seq} is missing: entry {entry.seq} stands in its place")
    return entries


def read_exported_blobs(file: BinaryIO, sealer: Sealer = NO_ENCRYPTION) -> Iterator[tuple[str, bytes]]:
    """Read the blobs of an exported file, with their digests, which are verified. One blob is in memory.

    Raises:
        FileDamaged: The file is damaged or incomplete.
        NewerVersion: A newer version of Clew has written the file.
        UnknownKey: It is encrypted with a key that `sealer` does not have.
    """
    unfinished = _UnfinishedBlob()
    for row in LineReader(file, FORMAT, sealer=sealer).read_rows():
        if isinstance(row, dict) and row.keys() == {"blob"} and (data := unfinished.add(row["blob"])) is not None:
            yield row["blob"]["digest"], data


@dataclass(slots=True)
class _Piece:
    """Some entries of a file, and stored results and blobs that they, or the last ones before them, refer to."""

    entries: list[Entry] = field(default_factory=list)
    results: list[str] = field(default_factory=list)
    blobs: list[bytes] = field(default_factory=list)
    size: int = 0


def _read_pieces(reader: LineReader) -> Iterable[_Piece]:
    """Read a file in pieces of bounded size."""
    piece, unfinished = _Piece(), _UnfinishedBlob()
    # The blobs that entries have named and that have not come yet: a file cannot fill the archive with others.
    expected, known = set[str](), set[str]()
    for row in reader.read_rows():
        if isinstance(row, dict) and row.keys() == {"blob"}:
            digest = unfinished.check(row["blob"], expected)
            if (data := unfinished.add(row["blob"])) is not None:
                expected.remove(digest)
                piece.blobs.append(data)
                piece.size += len(data)
                if piece.size > PIECE_BYTES:
                    yield piece
                    piece = _Piece()
            continue
        if unfinished.data:
            raise FileDamaged("the file holds a blob without its end")
        is_entry = not (isinstance(row, dict) and row.keys() == {"result"})
        if is_entry and piece.entries and piece.size > PIECE_BYTES:
            yield piece
            piece = _Piece()
        try:
            size = len(encode_line(row))
            if is_entry and size > MAX_ENTRY_BYTES:
                raise FileDamaged(f"the file holds an entry of {size} bytes, at most {MAX_ENTRY_BYTES} are allowed")
            if is_entry:
                # Raises an error for a value that could not be written again: nested too deeply, or not JSON.
                canonicalize(row)
                entry = Entry.from_json(row)
                piece.entries.append(entry)
                named = {blob["digest"] for blob in list_blobs(entry)} - known
                expected |= named
                known |= named
            elif "text" in row["result"]:
                piece.results.append(_read_text(row["result"]))
        except (ValueError, TypeError, RecursionError) as error:
            raise FileDamaged(f"the file holds a line that is not an entry: {str(error)[:200]}") from None
        piece.size += size
    if unfinished.data:
        raise FileDamaged("the file holds a blob without its end")
    if piece.entries or piece.blobs:
        yield piece


@dataclass(slots=True)
class _UnfinishedBlob:
    """A blob whose lines have been read up to some of them."""

    data: bytearray = field(default_factory=bytearray)

    def check(self, row: Any, expected: Collection[str]) -> str:
        """Check that an entry has named the blob of a line. Returns its digest.

        Raises:
            FileDamaged: None has, or the line is not that of a blob.
        """
        digest = row.get("digest") if isinstance(row, dict) else None
        if not isinstance(digest, str) or digest not in expected:
            raise FileDamaged("the file holds a blob that no entry before it names")
        return digest

    def add(self, row: Any) -> bytes | None:
        """Add a line. Returns the blob with its last one; None for one that could not be read at the export."""
        try:
            if "problem" in row:
                return None
            self.data += b64decode(row["data"], validate=True)
            if len(self.data) > MAX_BLOB_BYTES:
                raise FileDamaged(f"the file holds a blob of over {MAX_BLOB_BYTES} bytes")
            if row.get("more"):
                return None
            data, self.data = bytes(self.data), bytearray()
            if hash_bytes(data) != row["digest"]:
                raise FileDamaged("the file holds a blob that does not match its digest")
        except (LookupError, TypeError, ValueError, AttributeError) as error:
            raise FileDamaged(f"the file holds a line that is not a blob: {str(error)[:200]}") from None
        return data


def _read_text(result: dict[str, Any]) -> str:
    text = result["text"]
    if not isinstance(text, str):
        raise FileDamaged("the file holds a tool result whose text is not a string")
    if (size := len(text.encode())) > MAX_STORED_BYTES:
        raise FileDamaged(f"the file holds a tool result of {size} bytes, at most {MAX_STORED_BYTES} are allowed")
    return text


async def _read_result(archive: Archive, family: str, digest: str) -> dict[str, str]:
    try:
        async with translate_store_errors():
            text, _ = await archive.get_result(family, digest)
        return {"digest": digest, "text": text.decode()}
    except (ObjectDamaged, ObjectMissing, UnicodeDecodeError) as error:
        # The entry itself holds the part of the result that the model saw.
        return {"digest": digest, "problem": str(error)}


async def _read_blob(archive: Archive, family: str, digest: str) -> AsyncIterator[dict[str, Any]]:
    try:
        async with translate_store_errors():
            data = await archive.get_blob(family, digest)
    except (ObjectDamaged, ObjectMissing) as error:
        # The entry itself holds the description of the blob.
        yield {"digest": digest, "problem": str(error)}
        return
    for start in range(0, len(data), BLOB_LINE_BYTES):
        line: dict[str, Any] = {"digest": digest, "data": b64encode(data[start : start + BLOB_LINE_BYTES]).decode()}
        yield line | {"more": True} if start + BLOB_LINE_BYTES < len(data) else line


@dataclass(frozen=True, slots=True)
class _ExportedParts:
    """A thread's parts as an export reads them: the archive from the store, the live part by queries.

    Attributes:
        client: The client of the session.
        archive: The archive.
        session_id: The session.
        head: Head of its archive; None: it has none.
        session: The live session; None: all of the thread is archived.
    """

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
        status, _ = await recovery.find_execution(client, session_id)
        if status is None and head:
            raise ThreadMismatch(
                f"session {session_id!r} was interrupted, and the server has deleted its history: "
                f"run `clew recover {session_id}` first"
            )
        if status is None:
            raise NotFound(f"there is no session {session_id!r}")
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
