"""The audit reports a single differing byte, and nothing if no byte differs."""

from __future__ import annotations

import base64
import io
import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest

from clew import Clew, ContextPolicy, Session
from clew.errors import NotFound
from clew.local import temporal_server
from clew_activities.archive import Archive, Store
from clew_audit.audit import Report, audit_file, audit_session
from clew_audit.differences import Calls, verify_calls
from clew_audit.histories import FORMAT, SavedHistories
from clew_audit.json_lines import LineReader, LineWriter
from clew_audit.verification import verify_archive
from clew_workflows.contract.payloads import SummaryRecipe
from clew_workflows.thread.entries import Entry
from clew_workflows.thread.thread import Thread
from clew_workflows.values import Packed
from tests.support.archives import ArchiveInUse
from tests.support.encrypted import make_encryption, run_worker
from tests.support.examples import mark_slow_except
from tests.support.rolling import make_id
from tests.support.scenarios import wait_until_idle
from tests.support.stack import Stack


@pytest.fixture(scope="module")
async def saved(clew: Clew, archive: Archive, long_session: Session) -> bytes:
    """The histories of the long session, in a file; its audit was clean."""
    file = io.BytesIO()
    report = await audit_session(clew.temporal, archive, long_session.id, file)
    assert report.as_dict()["differences"] == []
    return file.getvalue()


async def from_file(data: bytes, archive: Archive) -> Report:
    return await audit_file(SavedHistories(io.BytesIO(data)), archive)


async def test_a_whole_session_is_clean(clew: Clew, archive: Archive, long_session: Session) -> None:
    """Every run is replayed; every entry, the archived and the live ones, and every model call is compared."""
    report = await audit_session(clew.temporal, archive, long_session.id)
    assert report.clean, report.differences
    status = await long_session.status()
    assert [run.ended for run in report.runs].count("completed") == 2
    assert len(report.runs) > 4
    assert (report.entries, report.in_history, report.in_archive_alone) == (status.rev, status.rev, 0)
    assert report.in_archive > 50
    assert report.live == status.rev - status.first_live_seq
    assert report.calls.verified > 20
    assert not report.calls.unverified
    assert report.calls.sent == report.calls.verified
    assert not report.remarks


async def test_a_request_that_was_not_the_one_sent_is_named(long_session: Session) -> None:
    """A recorded digest of another body is a difference of its call; one of another encoder is counted."""
    entries = await long_session.entries()
    number = next(number for number, entry in enumerate(entries) if entry.recipe)
    recipe = entries[number].payload["recipe"]

    async def verify(**request: str) -> tuple[list[str | None], Calls]:
        calls, changed = Calls(), list(entries)
        payload = {**entries[number].payload, "recipe": {**recipe, "request": {**recipe["request"], **request}}}
        changed[number] = replace(entries[number], payload=payload)
        return [difference.field async for difference in verify_calls(Thread(changed), calls)], calls

    assert (await verify(digest="0" * 64))[0] == ["payload.recipe.request.digest"]
    fields, calls = await verify(encoder="openai-chat/0")
    assert (fields, calls.other_encoders.total()) == ([], 1)


@pytest.mark.slow
async def test_a_file_of_histories_needs_no_server(archive: Archive, saved: bytes) -> None:
    """A saved file is audited against the archive without a server."""
    report = await from_file(saved, archive)
    assert report.clean
    assert report.live is None
    assert report.entries > 80
    assert report.calls.verified > 20


async def test_there_is_nothing_to_audit_of_no_session(clew: Clew, archive: Archive) -> None:
    """That is an error, and not a clean audit."""
    with pytest.raises(NotFound, match="there is no session"):
        await audit_session(clew.temporal, archive, make_id())


async def test_a_session_that_is_archived_meanwhile_is_clean(clew: Clew, archive_in_use: ArchiveInUse) -> None:
    """The state that the head named is deleted before it is read: the newer one counts."""
    report = await audit_session(clew.temporal, archive_in_use, archive_in_use.session.id)
    assert report.clean, report.differences
    assert archive_in_use.replaced


@pytest.mark.slow
@pytest.mark.parametrize(
    "kind", mark_slow_except(["segments", "states"], ["sessions", "segments", "nodes", "states"])
)
async def test_one_byte_of_an_archived_object_is_named(
    stack: Stack, clew: Clew, archive: Archive, long_session: Session, kind: str
) -> None:
    """A changed byte is reported in each object: the head, the entries, the index, the state."""
    head = await archive.read_head(long_session.id)
    assert head
    paths = [path async for path in stack.store.list("default") if long_session.id in path and f"/{kind}/" in path]
    if kind in ("nodes", "states"):
        current = str(head.root if kind == "nodes" else head.state)
        paths = [path for path in paths if current in path]
    path, data = paths[0], await stack.store.get(paths[0])
    await stack.store.put(path, bytes([*data[:-9], data[-9] ^ 1, *data[-8:]]))
    try:
        report = await audit_session(clew.temporal, archive, long_session.id)
    finally:
        await stack.store.put(path, data)
    assert [difference.name for difference in report.differences if difference.where == "archive"] == [path]
    assert (await audit_session(clew.temporal, archive, long_session.id)).clean


def change_history(saved: bytes, change: Callable[[str, str], str | None]) -> bytes:
    """Change the first payload for which `change` returns a text, and write the file with a valid checksum."""
    reader, out = LineReader(io.BytesIO(saved), FORMAT), io.BytesIO()
    writer = LineWriter(
        out, FORMAT, {"session_id": reader.header["session_id"], "namespace": reader.header["namespace"]}
    )
    changed = False
    for row in reader.read_rows():
        for event in row["history"]["events"]:
            for payload in [] if changed else list_payloads(event):
                text = base64.b64decode(payload["data"]).decode()
                if (other := change(event["eventType"], text)) not in (None, text):
                    payload["data"] = base64.b64encode(str(other).encode()).decode()
                    changed = True
                    break
        writer.write_row(row)
    writer.end()
    assert changed
    return out.getvalue()


def list_payloads(value: Any) -> Iterator[dict[str, Any]]:
    if isinstance(value, list):
        for item in value:
            yield from list_payloads(item)
    elif isinstance(value, dict):
        if isinstance(value.get("data"), str):
            yield value
        for item in value.values():
            yield from list_payloads(item)


def change_question(event: str, text: str) -> str | None:
    return text.replace("turn 3", "turn 4") if "UPDATE_ACCEPTED" in event else None


def change_reply(event: str, text: str) -> str | None:
    return text.replace("I read 4 ", "I read 5 ") if "ACTIVITY_TASK_COMPLETED" in event else None


def change_result(event: str, text: str) -> str | None:
    return text.replace('"content":"2"', '"content":"3"') if "ACTIVITY_TASK_COMPLETED" in event else None


def change_carried_entry(event: str, text: str) -> str | None:
    """An entry among those that a run hands to the next."""
    if "EXECUTION_STARTED" not in event or "carried" not in text:
        return None
    start = json.loads(text)
    carried = Packed(zlib=start["carried"]["zlib"]).value
    carried["thread"]["entries"][5]["at"] = "2026-01-01T00:00:00.000Z"
    start["carried"]["zlib"] = Packed.pack(carried).zlib
    return json.dumps(start)


@pytest.mark.parametrize(
    ("change", "field"),
    [
        (change_question, "payload.content"),
        (change_reply, "payload.content"),
        (change_result, "payload.content"),
        (change_carried_entry, "at"),
    ],
)
async def test_one_byte_of_a_history_is_named(
    archive: Archive, saved: bytes, change: Callable[[str, str], str | None], field: str
) -> None:
    """For a changed question, reply, tool result or carried entry, the report names the entry and the field."""
    report = await from_file(change_history(saved, change), archive)
    entries = {
        (difference.where, difference.seq, difference.field)
        for difference in report.differences
        if difference.seq is not None
    }
    seqs = {seq for where, seq, name in entries if where in ("archive", "history") and name == field}
    assert len(seqs) == 1
    assert not any(difference.where == "file" for difference in report.differences)


async def test_a_state_that_no_run_has_left_is_named(archive: Archive, saved: bytes) -> None:
    """A run that begins with another state than the run before it came to differs in that part of the state."""

    def change_usage(event: str, text: str) -> str | None:
        if "EXECUTION_STARTED" not in event or "carried" not in text:
            return None
        start = json.loads(text)
        carried = Packed(zlib=start["carried"]["zlib"]).value
        carried["state"]["spent"]["own"]["input_tokens"] -= 1
        start["carried"]["zlib"] = Packed.pack(carried).zlib
        return json.dumps(start)

    report = await from_file(change_history(saved, change_usage), archive)
    assert "carried.spent.own" in {difference.field for difference in report.differences}


async def test_a_wrong_digest_is_named(archive: Archive, saved: bytes) -> None:
    """If the context that the entries give does not match the recorded digest, the report names the call."""

    def change_digest(event: str, text: str) -> str | None:
        if "ACTIVITY_TASK_COMPLETED" not in event or '"digest":"' not in text:
            return None
        index = text.index('"digest":"') + 10
        return f"{text[:index]}{'1' if text[index] == '0' else '0'}{text[index + 1 :]}"

    empty = Archive(Store.from_url("memory://"), "default")
    report = await from_file(change_history(saved, change_digest), empty)
    (difference,) = [difference for difference in report.differences if difference.where == "call"]
    assert (difference.name, difference.seq, difference.field) == ("call-1", 2, "payload.recipe.digest")


async def test_a_history_that_the_code_cannot_have_made_is_named(archive: Archive, saved: bytes) -> None:
    """An activity under another name is a difference of that run."""

    def rename(data: bytes) -> bytes:
        reader, out = LineReader(io.BytesIO(data), FORMAT), io.BytesIO()
        writer = LineWriter(out, FORMAT, {name: reader.header[name] for name in ("session_id", "namespace")})
        for number, row in enumerate(reader.read_rows()):
            text = json.dumps(row)
            writer.write_row(json.loads(text.replace('"call_model"', '"call_mode1"') if number == 1 else text))
            if number == 1:
                run_ids.append(row["run_id"])
        writer.end()
        return out.getvalue()

    run_ids: list[str] = []
    report = await from_file(rename(saved), archive)
    assert [difference.name for difference in report.differences] == run_ids
    assert "does not replay" in report.differences[0].problem


async def test_a_file_that_was_touched_says_so(archive: Archive, saved: bytes) -> None:
    """A byte of no consequence to the thread differs all the same."""
    report = await from_file(saved.replace(b'"identity":"', b'"identity":"x', 1), archive)
    assert [difference.where for difference in report.differences] == ["file"]


async def test_what_the_session_shows_is_compared(
    clew: Clew, archive: Archive, long_session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The report names a field that the session's query answers differently from its history."""
    entries = Session.entries

    async def read_changed_entries(self: Session, **options: Any) -> Any:
        thread = await entries(self, **options)
        thread[-1].payload["status"] = "failed"  # type: ignore[index]
        return thread

    monkeypatch.setattr(Session, "entries", read_changed_entries)
    report = await audit_session(clew.temporal, archive, long_session.id)
    (difference,) = report.differences
    assert (difference.where, difference.field, difference.seq) == (
        "live",
        "payload.status",
        (await long_session.status()).rev - 1,
    )


async def test_runs_that_are_gone_are_covered_by_the_archive(archive: Archive, saved: bytes) -> None:
    """Of a run whose history was deleted the archive has the entries, and the report says so."""
    reader, out = LineReader(io.BytesIO(saved), FORMAT), io.BytesIO()
    writer = LineWriter(out, FORMAT, {name: reader.header[name] for name in ("session_id", "namespace")})
    for number, row in enumerate(reader.read_rows()):
        writer.write_row({**row, "history": None} if number < 3 else row)
    writer.end()
    report = await from_file(out.getvalue(), archive)
    assert report.clean, report.differences
    assert [run.ended for run in report.runs[:3]] == ["gone"] * 3
    assert report.entries == (await from_file(saved, archive)).entries


async def test_a_server_that_has_forgotten_all_leaves_the_archive(archive: Archive, long_session: Session) -> None:
    """On a server that knows no run of the session its archived part is audited alone."""
    async with temporal_server(ui=False) as other:
        client = (await Clew.connect(other.address)).temporal
        report = await audit_session(client, archive, long_session.id)
    assert report.clean
    assert not report.runs
    assert report.in_archive == report.in_archive_alone == report.entries > 50
    assert report.calls.verified > 10


# Summaries: in their entries are the requests that were sent for them.


@pytest.fixture(scope="module")
async def summarized(stack: Stack, clew: Clew) -> Session:
    """A session with a summary in pieces and a compaction in one piece, which hibernates."""
    return await summarize(stack, clew)


async def summarize(stack: Stack, clew: Clew) -> Session:
    policy = ContextPolicy(max_input_tokens=1300, reserve_output_tokens=100, keep_last_turns=0)
    session = await clew.open(make_id(), model=stack.add_model("They talked."), context_policy=policy)
    for number in range(3):
        await session.ask(f"{number}: " + "many words of it " * 220)
    await session.summarize()
    await session.ask("and one more " * 20)
    await session.compact(op_id="compact")
    await wait_until_idle(session)
    await session.hibernate()
    return session


def find_summaries(entries: list[Entry]) -> list[tuple[int, SummaryRecipe]]:
    return [(number, entry.summary_recipe) for number, entry in enumerate(entries) if entry.summary_recipe]


async def test_the_requests_of_summaries_are_audited(clew: Clew, archive: Archive, summarized: Session) -> None:
    """Each call of a summary and of a compaction is made again, and counts as a call of a run does."""
    entries = await summarized.entries()
    in_pieces, alone = (recipe for _, recipe in find_summaries(entries))
    assert (in_pieces.calls > 2, alone.calls) == (True, 1)
    report = await audit_session(clew.temporal, archive, summarized.id)
    assert report.clean, report.differences
    calls = sum(1 for entry in entries if entry.recipe) + in_pieces.calls + alone.calls
    assert (report.calls.verified, report.calls.sent) == (calls, calls)
    assert not report.calls.other_encoders


@pytest.mark.slow
async def test_encrypted_summaries_are_audited(stack: Stack) -> None:
    """What the calls of a summary have sent is encrypted in the archive, and made again with the key."""
    encryption = make_encryption("k1")
    async with run_worker(stack, encryption) as sealed:
        session = await summarize(sealed, sealed.clew)
        entries = await session.entries()
        calls = sum(1 for entry in entries if entry.recipe) + sum(made.calls for _, made in find_summaries(entries))
        report = await audit_session(sealed.clew.temporal, Archive(sealed.store, "default"), session.id)
    assert report.clean, report.differences
    assert (report.calls.verified, report.calls.sent) == (calls, calls)


@pytest.mark.parametrize(
    ("change", "differs"),
    [
        ({"request": {"digest": "0" * 64, "encoder": "openai-chat/1"}}, True),
        ({"max_output_tokens": 99}, True),
        ({"builds_on": 1}, True),
        ({"instructions": "summary/0"}, False),
    ],
    ids=["digest", "limit", "basis", "instructions"],
)
@pytest.mark.parametrize("which", [0, 1], ids=["summary", "compaction"])
async def test_a_summary_of_another_request_is_named(
    archive: Archive, summarized: Session, change: dict[str, Any], which: int, differs: bool
) -> None:
    """The difference is that of the summary's call. Other instructions are counted, as another encoder is."""
    entries = await summarized.entries()
    number, recipe = find_summaries(entries)[which]
    changed = json.loads(json.dumps(entries[number].as_dict()))
    holder = changed["payload"]["operation"] if which else changed["payload"]
    encoder = recipe.request.encoder
    holder["recipe"] |= change | (
        {"request": {**change["request"], "encoder": encoder}} if "request" in change else {}
    )
    entries[number] = Entry.from_json(changed)

    async def read_result(digest: str) -> bytes:
        return (await archive.get_result(summarized.id, digest))[0]

    calls = Calls()
    found = [one async for one in verify_calls(Thread(entries), calls, read_result=read_result)]
    assert {one.name for one in found} == ({entries[number].refs["summary_id"]} if differs else set())
    assert calls.other_encoders.total() == (0 if differs else recipe.calls)


async def test_the_stored_calls_of_a_summary_are_checked(
    stack: Stack, clew: Clew, archive: Archive, summarized: Session
) -> None:
    """A changed byte of them is a difference. Without them the requests of the summary are not compared."""
    [(_, recipe), _] = find_summaries(await summarized.entries())
    [path] = [path async for path in stack.store.list("default") if path.endswith(f"/results/{recipe.earlier_calls}")]
    data = await stack.store.get(path)
    try:
        await stack.store.put(path, bytes([*data[:-9], data[-9] ^ 1, *data[-8:]]))
        damaged = await audit_session(clew.temporal, archive, summarized.id)
        await stack.store.delete(path)
        missing = await audit_session(clew.temporal, archive, summarized.id)
        assert (await verify_archive(archive, summarized.id)).problems
    finally:
        await stack.store.put(path, data)
    assert [difference.name for difference in damaged.differences] == [path]
    assert missing.clean
    assert missing.calls.other_encoders.total() == recipe.calls
    assert (await audit_session(clew.temporal, archive, summarized.id)).clean
