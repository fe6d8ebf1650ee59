"""A thread is exported to a file and imported unchanged."""

from __future__ import annotations

import hashlib
import io
import json
from base64 import b64encode
from collections.abc import Callable
from copy import deepcopy
from typing import Any

import pytest

from clew import Clew, Image, Session
from clew.errors import NotFound, ThreadMismatch, UnknownBlob
from clew.local import Reply, ToolCall
from clew_activities.archive import Archive
from clew_audit.audit import audit_session
from clew_audit.exports import FORMAT, _read_pieces, export_session, import_session
from clew_audit.json_lines import FileDamaged, LineReader, LineWriter
from tests.support.media import make_png
from tests.support.rolling import make_id
from tests.support.scripts import answer_or_hang, leave_open_work
from tests.support.stack import Stack, get_last_message


def nest(levels: int) -> list[Any]:
    value: list[Any] = []
    for _ in range(levels):
        value = [value]
    return value


@pytest.fixture(scope="module")
async def exported(clew: Clew, archive: Archive, long_session: Session) -> bytes:
    """The long session, in a file."""
    file = io.BytesIO()
    assert await export_session(clew.temporal, archive, long_session.id, file) == (await long_session.status()).rev
    return file.getvalue()


async def import_file(clew: Clew, archive: Archive, data: bytes, session_id: str | None = None) -> Session:
    """A session made of a file."""
    new, count = await import_session(
        clew.temporal, archive, io.BytesIO(data), session_id=session_id or make_id(), task_queue=clew.task_queue
    )
    assert count == len(data.splitlines()) - 2
    return clew.session(new)


async def test_what_was_exported_is_imported_to_the_byte(
    clew: Clew, archive: Archive, long_session: Session, exported: bytes
) -> None:
    """Every entry is the same, every call's context has its digest, and the session is what it was."""
    session = await import_file(clew, archive, exported)
    await session.entries(limit=1)
    again = io.BytesIO()
    await export_session(clew.temporal, archive, session.id, again)
    assert again.getvalue().splitlines()[1:-1] == exported.splitlines()[1:-1]
    ours, theirs = await long_session.status(), await session.status()
    for field in ("rev", "active_context_ref", "usage", "model", "status", "projection_cursor_seq"):
        assert getattr(ours, field) == getattr(theirs, field), field
    live = await session.entries(from_seq=theirs.first_live_seq)
    calls = [entry for entry in live if entry.payload.get("recipe") and entry.seq > theirs.rev - 10]
    assert calls
    for reply in calls:
        context = await session.context(call_id=reply.refs["call_id"])
        assert context.meta.digest == reply.payload["recipe"]["digest"]
        assert context.messages == (await long_session.context(call_id=reply.refs["call_id"])).messages
    report = await audit_session(clew.temporal, archive, session.id)
    assert report.clean, report.differences
    assert report.calls.sent == report.calls.verified > 20


async def test_an_imported_session_goes_on(clew: Clew, archive: Archive, exported: bytes) -> None:
    """Ids that it gives are new in the thread, and known requests are known."""
    session = await import_file(clew, archive, exported)
    before = [json.loads(row) for row in exported.splitlines()[1:-1]]
    known = [row["refs"]["request_id"] for row in before if row["kind"] == "run"][-1]
    assert (await session.message("x", request_id=known)).request_id == known
    await session.ask("and now?")
    added = await session.entries(from_seq=len(before))
    assert [entry.kind for entry in added] == ["ai_message", "ai_message", "run"]
    for ref in ("run_id", "call_id"):
        assert added[1].refs[ref] not in {row["refs"].get(ref) for row in before}


async def test_an_exported_run_in_progress_is_ended_where_it_arrives(
    stack: Stack, clew: Clew, archive: Archive
) -> None:
    """What was exported in the middle of a run goes on after a close of it, and with approvals as they were."""
    session = await clew.open(
        make_id(), model=stack.add_model(answer_or_hang), tools=["wait_for"], on_busy="queue", metadata={"team": "a"}
    )
    await session.ask("hello")
    await leave_open_work(session)
    file = io.BytesIO()
    await export_session(clew.temporal, archive, session.id, file)
    await session.cancel("hangs")
    other = await import_file(clew, archive, file.getvalue())
    assert (await other.request("hangs").result()).termination_reason == "recovered"
    assert (await other.ask("and now?")).startswith("I read")
    status = await other.status()
    assert (status.config["on_busy"], status.metadata) == ("queue", {"team": "a"})


async def test_a_hibernating_session_is_exported_from_its_archive(stack: Stack, clew: Clew, archive: Archive) -> None:
    """No run of its workflow is needed."""
    session = await clew.open(make_id(), model=stack.add_model("fine"))
    await session.ask("hello")
    await session.hibernate()
    file = io.BytesIO()
    assert await export_session(clew.temporal, archive, session.id, file) == 5
    with pytest.raises(NotFound, match="there is no session"):
        await export_session(clew.temporal, archive, make_id(), io.BytesIO())


async def test_large_results_travel_with_the_thread(stack: Stack, clew: Clew, archive: Archive) -> None:
    """The model can read large results in the imported session; a lost one is reported, and the import goes on."""

    def script(body: dict[str, Any]) -> Reply:
        newest = get_last_message(body)
        if newest["role"] == "tool":
            return Reply(newest["content"])
        if newest["content"] == "flood":
            return Reply(tool_calls=(ToolCall("flood", {"size": 5_000}),))
        reading = {"tool_call_id": "tool00001", "offset": 4_990, "length": 100}
        return Reply(tool_calls=(ToolCall("read_result", reading),))

    limits = {"max_tool_result_bytes": 1_024}
    session = await clew.open(make_id(), model=stack.add_model(script), tools=["flood"], limits=limits)
    await session.ask("flood")
    file = io.BytesIO()
    count = await export_session(clew.temporal, archive, session.id, file)
    new, import_file = await import_session(
        clew.temporal, archive, io.BytesIO(file.getvalue()), session_id=make_id(), task_queue=clew.task_queue
    )
    assert (import_file, len(file.getvalue().splitlines())) == (count, count + 3)
    assert (await clew.session(new).ask("read")).startswith("xxxxxxxxxx\n[bytes 4990 to 5000 of 5000")
    (stored,) = [entry.payload["result"] for entry in await session.entries() if "result" in entry.payload]
    await stack.store.delete(f"default/families/s-{session.id}/results/{stored['digest']}")
    file = io.BytesIO()
    assert await export_session(clew.temporal, archive, session.id, file) > count - 1
    (row,) = [row["result"] for row in map(json.loads, file.getvalue().splitlines()) if "result" in row]
    assert (row["digest"], "text" in row) == (stored["digest"], False)
    assert "is missing" in row["problem"]
    await import_session(clew.temporal, archive, io.BytesIO(file.getvalue()), session_id=make_id(), task_queue="x")


@pytest.mark.parametrize("damage", ["cut", "one line less", "one byte", "empty"])
async def test_a_damaged_file_is_refused(clew: Clew, archive: Archive, exported: bytes, damage: str) -> None:
    """A failed import leaves no session."""
    lines = exported.splitlines(keepends=True)
    damaged = {
        "cut": exported[: len(exported) // 2],
        "one line less": b"".join([*lines[:-2], lines[-1]]),
        "one byte": exported.replace(b"turn 3", b"turn 4", 1),
        "empty": b"",
    }[damage]
    new = make_id()
    with pytest.raises(FileDamaged):
        await import_file(clew, archive, damaged, new)
    assert await archive.read_head(new) is None
    with pytest.raises(NotFound):
        await audit_session(clew.temporal, archive, new)


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        ({"payload": {"text": "x" * 2_000_001}}, "an entry of 2000025 bytes, at most 2000000"),
        ({"result": {"digest": "0" * 64, "text": "x" * 17_000_000}}, "a tool result of 17000000 bytes"),
        ({"result": {"digest": "0" * 64, "text": [["x"]] * 3}}, "a tool result whose text is not a string"),
        ({"payload": nest(900)}, "not an entry"),
        ({"payload": nest(300)}, "not an entry"),
    ],
    ids=["entry", "result", "no text", "nested", "nested less"],
)
async def test_what_no_session_could_hold_is_refused(
    clew: Clew, archive: Archive, row: dict[str, Any], reason: str
) -> None:
    """Before any of it is in the archive: an entry or a result beyond every size, JSON without an end."""
    file, new = io.BytesIO(), make_id()
    writer = LineWriter(file, FORMAT, {"session_id": new})
    writer.write_row(row)
    writer.end()
    with pytest.raises(FileDamaged, match=reason):
        await import_file(clew, archive, file.getvalue(), new)
    assert await archive.read_head(new) is None


async def test_an_id_that_exists_is_refused(
    clew: Clew, archive: Archive, long_session: Session, exported: bytes
) -> None:
    """The session that has it stays as it is."""
    before = (await long_session.status()).rev
    with pytest.raises(ThreadMismatch, match="exists"):
        await import_file(clew, archive, exported, long_session.id)
    assert (await long_session.status()).rev == before


BLOB: dict[str, Any] = {"media_type": "image/png", "bytes": 7}
PROGRAM = b"\x7fELF" + bytes(100)


def name_blob(rows: list[Any], **changes: Any) -> dict[str, Any]:
    """Find the blob that the first message names, and change its description there."""
    content = next(row["payload"]["content"] for row in rows if row.get("kind") == "ai_message")
    blob: dict[str, Any] = content[0]["blob"]
    blob.update(changes)
    return blob


def find_blob_row(rows: list[Any]) -> int:
    return next(number for number, row in enumerate(rows) if "blob" in row)


def forge_other_bytes(rows: list[Any]) -> None:
    rows[find_blob_row(rows)]["blob"]["data"] = b64encode(make_png(8, 8)).decode()


def forge_no_base64(rows: list[Any]) -> None:
    rows[find_blob_row(rows)]["blob"]["data"] = "<script>"


def forge_no_text(rows: list[Any]) -> None:
    rows[find_blob_row(rows)]["blob"]["data"] = 7


def forge_no_end(rows: list[Any]) -> None:
    rows[find_blob_row(rows)]["blob"]["more"] = True


def forge_no_row(rows: list[Any]) -> None:
    rows[find_blob_row(rows)] = {"blob": ["digest", "data"]}


def forge_twice(rows: list[Any]) -> None:
    rows.insert(find_blob_row(rows), rows[find_blob_row(rows)])


def forge_many(rows: list[Any]) -> None:
    """Add blobs that no entry names."""
    row = {"blob": {"digest": hashlib.sha256(b"x").hexdigest(), "data": b64encode(b"x").decode()}}
    rows[find_blob_row(rows) : find_blob_row(rows) + 1] = [row] * 100_000


def forge_a_program(rows: list[Any]) -> None:
    digest = hashlib.sha256(PROGRAM).hexdigest()
    name_blob(rows, digest=digest)
    rows[find_blob_row(rows)]["blob"] = {"digest": digest, "data": b64encode(PROGRAM).decode()}


def forge_another_type(rows: list[Any]) -> None:
    name_blob(rows, media_type="image/gif")


def forge_a_size(rows: list[Any]) -> None:
    name_blob(rows, width=9999)


def forge_a_word(rows: list[Any]) -> None:
    name_blob(rows, bytes="7")


def forge_a_path(rows: list[Any]) -> None:
    name_blob(rows, name="../../x")


FORGERIES: list[tuple[Callable[[list[Any]], None], str]] = [
    (forge_other_bytes, "does not match its digest"),
    (forge_no_base64, "not a blob"),
    (forge_no_text, "not a blob"),
    (forge_no_end, "without its end"),
    (forge_no_row, "no entry before it names"),
    (forge_twice, "no entry before it names"),
    (forge_many, "no entry before it names"),
    (forge_a_program, "is not stored"),
    (forge_another_type, "does not describe its blob"),
    (forge_a_size, "does not describe its blob"),
    (forge_a_word, "not an entry"),
    (forge_a_path, "not an entry"),
]


def write_rows(rows: list[Any]) -> bytes:
    """Write a file of these rows, with the right checksum."""
    file = io.BytesIO()
    writer = LineWriter(file, FORMAT, {"session_id": "forged"})
    for row in rows:
        writer.write_row(row)
    writer.end()
    return file.getvalue()


@pytest.fixture(scope="module")
async def with_image(stack: Stack, clew: Clew, archive: Archive) -> list[Any]:
    """The rows of a session with an image."""
    session = await clew.open(make_id(), model=stack.add_model("fine"))
    await session.ask([Image.from_bytes(make_png(5, 6))])
    file = io.BytesIO()
    await export_session(clew.temporal, archive, session.id, file)
    return [json.loads(line) for line in file.getvalue().splitlines()[1:-1]]


@pytest.mark.parametrize(("forge", "reason"), FORGERIES, ids=[forge.__name__ for forge, _ in FORGERIES])
async def test_a_file_with_forged_blobs_is_refused(
    clew: Clew, archive: Archive, with_image: list[Any], forge: Callable[[list[Any]], None], reason: str
) -> None:
    """Blobs that no entry names, that are others, or that an entry describes falsely make no session."""
    rows, new = deepcopy(with_image), make_id()
    forge(rows)
    with pytest.raises(FileDamaged, match=reason):
        await import_file(clew, archive, write_rows(rows), new)
    assert await archive.read_head(new) is None


async def test_a_session_whose_blob_was_lost_is_imported_without_it(
    clew: Clew, archive: Archive, with_image: list[Any]
) -> None:
    """As a large result that was lost: the import goes on, and the session takes the bytes again."""
    rows, new = deepcopy(with_image), make_id()
    digest = name_blob(rows)["digest"]
    rows[find_blob_row(rows)] = {"blob": {"digest": digest, "problem": "it is missing"}}
    await import_session(
        clew.temporal, archive, io.BytesIO(write_rows(rows)), session_id=new, task_queue=clew.task_queue
    )
    session = clew.session(new)
    with pytest.raises(UnknownBlob):
        await session.read_blob(digest)
    assert await session.ask([Image.from_bytes(make_png(5, 6))])
    assert await session.read_blob(digest) == make_png(5, 6)


def test_blobs_are_read_in_pieces() -> None:
    """A file of many large blobs is not in memory at once."""
    data = [make_png(9, number, size=400_000) for number in range(1, 13)]
    digests = [hashlib.sha256(each).hexdigest() for each in data]
    parts: list[Any] = [{"type": "image", "blob": {**BLOB, "digest": digest}} for digest in digests]
    payload = {"context_ref": "default", "role": "user", "content": parts}
    entry = {"seq": 0, "id": "e", "kind": "ai_message", "at": "", "payload": payload, "refs": {}, "tokens": 1}
    rows: list[Any] = [entry]
    rows += [
        {"blob": {"digest": digest, "data": b64encode(each).decode()}}
        for digest, each in zip(digests, data, strict=True)
    ]
    pieces = list(_read_pieces(LineReader(io.BytesIO(write_rows(rows)), FORMAT)))
    assert [blob for piece in pieces for blob in piece.blobs] == data
    assert max(sum(map(len, piece.blobs)) for piece in pieces) < 2_000_000
