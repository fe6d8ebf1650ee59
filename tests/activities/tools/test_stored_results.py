"""Large tool results: the archive has the full result; the context shows a part, and the model can read the rest."""

from __future__ import annotations

import asyncio
import tracemalloc
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st
from obstore.store import MemoryStore
from temporalio.client import WorkflowHandle
from temporalio.testing import ActivityEnvironment

from clew import Tool, tool
from clew.contract.payloads import EntryKind, StoredResult
from clew_activities.archive import Archive, Head, Store, StoreUnavailable
from clew_activities.archive.backends import Bucket
from clew_activities.archive.formats import hash_bytes
from clew_activities.archive.thread_source import ThreadLocation, Threads
from clew_activities.tools.run_tool import ToolActivities
from clew_activities.tools.stored_results import MAX_STORED_BYTES, Results
from clew_workflows.protocol import STORING_SECONDS, RunTool, ToolAnswered
from clew_workflows.thread.entries import Entry, Refs
from tests.support.examples import examples
from tests.support.generated_threads import make_part

SESSION, FAMILY = "session-1", "family-1"
OBJECT = f"default/families/s-{FAMILY}/results/{{}}"


class _Handle:
    """A session's workflow that answers the query `entries`."""

    def __init__(self, entries: Callable[[dict[str, Any]], dict[str, Any]]) -> None:
        self._entries = entries

    async def query(self, name: str, *, args: list[dict[str, Any]], rpc_timeout: timedelta) -> dict[str, Any]:
        assert name == "entries"
        return self._entries(*args)


class _OneThread(Threads):
    """Finds the thread of one session, which is live."""

    def __init__(self, archive: Archive, entries: Callable[[dict[str, Any]], dict[str, Any]]) -> None:
        super().__init__(archive)
        self._live = cast("WorkflowHandle[Any, Any]", _Handle(entries))

    async def find(self, session_id: str) -> ThreadLocation:
        head = await self._archive.read_head(session_id)
        return ThreadLocation(session_id, head, self._live, has_workflow=True, running=True)

    def find_own(self) -> ThreadLocation:
        return ThreadLocation(SESSION, None, self._live, has_workflow=True, running=True)


class History:
    """A session's thread, live or archived, and the tool activity that serves it."""

    def __init__(
        self, *tools: Tool[..., Any], store: Store | None = None, storing_seconds: float = STORING_SECONDS
    ) -> None:
        self.store = store or Store.from_url("memory://")
        self.archive = Archive(self.store, "default")
        threads = _OneThread(self.archive, self._entries)
        results = Results(self.archive, threads, storing_seconds=storing_seconds)
        self._tools = ToolActivities({tool.name: tool for tool in tools}, results)
        self.environment = ActivityEnvironment()
        self.environment.info = replace(self.environment.info, workflow_id=SESSION)
        self.live: list[Entry] = []
        self.first_live = 0

    def _entries(self, query: dict[str, Any]) -> dict[str, Any]:
        """Answer the session's query `entries`, one entry a page."""
        assert query.keys() <= {"kind", "tool_call_id", "from_seq"}
        wanted = query.get("tool_call_id")
        matching = [
            entry.as_dict()
            for entry in self.live
            if query.get("kind") in (None, entry.kind)
            and wanted in (None, entry.refs.get("tool_call_id"))
            and entry.seq >= query["from_seq"]
        ]
        more = {"next_seq": matching[1]["seq"]} if len(matching) > 1 else {}
        archived = {"archived_before": self.first_live} if query["from_seq"] < self.first_live else {}
        return {"entries": matching[:1]} | more | archived

    async def run(self, name: str, limit: int = 1000, **arguments: Any) -> ToolAnswered:
        """Run one attempt of a call."""
        command = RunTool(
            encoding="heuristic",
            request_id="request-1",
            run_id="run-1",
            call_id="call-1",
            tool_call_id="tool00001",
            name=name,
            arguments=arguments,
            max_result_bytes=limit,
            family=FAMILY,
        )
        return await self.environment.run(self._tools.run_tool, command)

    async def read(self, offset: int = 0, length: int = 10_000, limit: int = 1000) -> ToolAnswered:
        """Call `read_result` as the model does."""
        return await self.run("read_result", limit, tool_call_id="tool00001", offset=offset, length=length)

    def add_snapshot(self, *results: tuple[str, str]) -> None:
        """Commit a snapshot that holds tool results, each as (call id, text)."""
        messages = [{"role": "tool", "content": text, "tool_call_id": call_id} for call_id, text in results]
        operation = {"type": "replace", "reason": "manual", "result_context": {"messages": messages}}
        payload = {"op_id": "op", "context_ref": "default", "operation": operation}
        self._commit("ai_context_operation", payload, {})

    def commit_result(self, answer: ToolAnswered, tool_call_id: str = "tool00001") -> Entry:
        """Commit a result as the session does."""
        payload: dict[str, Any] = {"role": "tool", "content": answer.content, "context_ref": "default"}
        payload["tool_call_id"] = tool_call_id
        if answer.result:
            payload["result"] = answer.result.as_dict()
        return self._commit("ai_message", payload, {"tool_call_id": tool_call_id})

    def _commit(self, kind: EntryKind, payload: dict[str, Any], refs: Refs) -> Entry:
        seq = self.first_live + len(self.live)
        entry = Entry(seq, f"e-{seq}", kind, "2026-01-01T00:00:00.000Z", payload, refs, 1)
        self.live.append(entry)
        return entry

    def commit(self, kind: EntryKind, **payload: Any) -> None:
        """Commit an entry of the default lane."""
        self._commit(kind, {"context_ref": "default", **payload}, {})

    async def view(self, blob: str) -> ToolAnswered:
        """Call `view_blob` as the model does."""
        return await self.run("view_blob", blob=blob)

    async def archive_all(self) -> None:
        """Move all live entries to the archive."""
        root, upto = await self.archive.append(FAMILY, None, self.live)
        before = await self.archive.read_head(SESSION)
        await self.archive.set_head(Head(session_id=SESSION, family=FAMILY, root=root, last_seq=upto), before)
        self.first_live, self.live = upto + 1, []


def make_tool(text: Any) -> Tool[..., Any]:
    return tool(name="it")(lambda: text)


def split_mark(answer: ToolAnswered) -> tuple[str, str]:
    """Split an answer into the part of the text and the mark after it."""
    text, _, mark = answer.text.rpartition("\n[")
    return text, mark


async def test_a_large_result_is_stored_whole_and_shown_in_part() -> None:
    """The entry has the result's hash, its size and the shown size; the mark says how to read the rest."""
    text = "é" * 5000
    history = History(make_tool(text))
    answer = await history.run("it")
    kept, mark = split_mark(answer)
    shown = len(kept.encode())
    assert answer.result == StoredResult(digest=hash_bytes(text.encode()), bytes=10_000, shown=shown)
    assert text.startswith(kept)
    assert len(answer.text.encode()) <= 1000
    assert mark == (
        f"truncated: the first {shown} of 10000 bytes are shown; "
        f"read_result(tool_call_id='tool00001', offset={shown}) reads on]"
    )
    assert await history.archive.get_result(FAMILY, hash_bytes(text.encode())) == (text.encode(), 10_000)


async def test_what_fits_is_not_stored() -> None:
    """A result of exactly the limit is not stored apart."""
    history = History(make_tool("x" * 1000))
    answer = await history.run("it")
    assert (answer.content, answer.result) == ("x" * 1000, None)
    assert [path async for path in history.store.list("default")] == []


class Away(Store):
    """A store whose writes fail or hang."""

    def __init__(self, *, hangs: bool) -> None:
        super().__init__(Bucket(MemoryStore()))
        self._hangs = hangs

    async def put(self, path: str, data: bytes) -> None:
        if self._hangs:
            await asyncio.Event().wait()
        raise StoreUnavailable(path, "no network")


@pytest.mark.parametrize("how", ["refuses", "hangs"])
async def test_a_store_that_is_away_costs_the_rest_and_nothing_else(how: str) -> None:
    """The tool is not run again: the result is truncated to the limit, and its mark says that the rest is lost."""
    runs: list[int] = []

    @tool(name="it", retries=5)
    def it() -> str:
        runs.append(1)
        return "x" * 5000

    history = History(it, store=Away(hangs=how == "hangs"), storing_seconds=0.1)
    answer = await history.run("it")
    assert len(runs) == 1
    assert (answer.is_error, answer.result) == (False, None)
    assert answer.text.endswith("of 5000 bytes are shown; the rest could not be stored]")
    assert len(answer.content) <= 1000
    history.commit_result(answer)
    more = await history.read(limit=2000)
    assert split_mark(more) == (
        answer.content,
        f"bytes 0 to {len(answer.content)} of {len(answer.content)}; this is the end]",
    )


@pytest.mark.parametrize("archived", [False, True], ids=["live", "archived"])
async def test_a_result_is_read_on_to_its_end(archived: bool) -> None:
    """The model reads from the offset in the mark, piece by piece, until the mark says that this is the end."""
    text = "".join(f"line {n}: é€\U0001f43b\n" for n in range(300))
    history = History(make_tool(text))
    answer = await history.run("it")
    assert answer.result
    history.commit_result(answer)
    if archived:
        await history.archive_all()
        history.commit_result(ToolAnswered(content="later"), "tool00002")
    text_read, offset = split_mark(answer)[0], answer.result.shown
    while True:
        piece = await history.read(offset)
        assert not piece.is_error
        assert len(piece.text.encode()) <= 1000
        part, mark = split_mark(piece)
        end = offset + len(part.encode())
        text_read += part
        if mark == f"bytes {offset} to {end} of {len(text.encode())}; this is the end]":
            break
        assert mark == f"bytes {offset} to {end} of {len(text.encode())}; offset={end} reads on]"
        offset = end
    assert text_read == text


@pytest.mark.parametrize("archived", [False, True], ids=["live", "archived"])
async def test_a_result_that_is_in_the_thread_is_read_like_a_stored_one(archived: bool) -> None:
    """A result that was cleared from a context can be read in full or from an offset; no piece splits a character."""
    history = History()
    for number in (1, 2):
        history.commit_result(ToolAnswered(content="é" * 300 + str(number)), f"tool{number:05d}")
    if archived:
        await history.archive_all()
        history.commit_result(ToolAnswered(content="later"), "tool00003")
    answer = await history.read()
    assert (answer.content, answer.is_error) == ("é" * 300 + "1\n[bytes 0 to 601 of 601; this is the end]", False)
    assert split_mark(await history.read(3, 4)) == ("éé", "bytes 2 to 6 of 601; offset=6 reads on]")
    small = await history.read(limit=300)
    assert len(small.text.encode()) <= 300
    assert "reads on]" in small.content
    behind = await history.read(601)
    assert (behind.is_error, "past the end: the result has 601 bytes" in behind.content) == (True, True)


@pytest.mark.parametrize("archived", [False, True], ids=["live", "archived"])
async def test_a_result_of_a_snapshot_is_read_where_the_thread_has_no_other(archived: bool) -> None:
    """A result of a snapshot is read from the newest snapshot with it; a result of this session, from its entry."""
    history = History()
    history.add_snapshot(("then-1", "older"), ("then-2", "other"))
    history.commit_result(ToolAnswered(content="said here"), "tool00001")
    history.add_snapshot(("then-1", "newer"), ("tool00001", "edited"))
    history.add_snapshot()
    if archived:
        await history.archive_all()
    answers = [
        (await history.run("read_result", tool_call_id=name)).text for name in ("then-1", "then-2", "tool00001")
    ]
    assert [text.partition("\n")[0] for text in answers] == ["newer", "other", "said here"]


@examples(150)
@given(
    text=st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=300).map(lambda text: text * 40),
    offset=st.integers(0, 12_000),
    length=st.integers(1, 3000),
    stored=st.booleans(),
)
def test_every_part_begins_and_ends_between_characters(text: str, offset: int, length: int, stored: bool) -> None:
    """At any offset and length the answer is a piece of the text, within the limit, and not empty."""
    data = text.encode()

    async def read() -> ToolAnswered:
        history = History()
        digest = await history.archive.put_result(FAMILY, data)
        kept = StoredResult(digest=digest, bytes=len(data), shown=0)
        history.commit_result(ToolAnswered(content="", result=kept) if stored else ToolAnswered(content=text))
        return await history.read(offset, length, 512)

    answer = asyncio.run(read())
    if offset >= len(data):
        assert answer.is_error
        return
    kept, mark = split_mark(answer)
    begin, end = int(mark.split()[1]), int(mark.split()[3])
    assert data[begin:end].decode() == kept
    assert kept
    assert offset - 3 <= begin <= offset < end
    assert end - begin <= max(length, 4) + 3
    assert len(answer.text.encode()) <= 512


@pytest.mark.parametrize("archived", [False, True], ids=["live", "archived"])
async def test_what_cannot_be_read_is_told_to_the_model(archived: bool) -> None:
    """An unknown id, an offset past the end and invalid arguments are error results with the reason."""
    history = History(make_tool("x" * 5000))
    history.commit_result(await history.run("it"))
    history.commit_result(ToolAnswered(content="short"), "tool00002")
    if archived:
        await history.archive_all()
    cases: list[tuple[dict[str, Any], str]] = [
        ({"tool_call_id": "tool00009"}, "no tool call 'tool00009' has a result"),
        ({"tool_call_id": "../" * 100}, "no tool call '../"),
        ({"tool_call_id": "tool00002", "offset": 5}, "past the end: the result has 5 bytes"),
        ({"tool_call_id": "tool00001", "offset": 5000}, "past the end: the result has 5000 bytes"),
        ({"tool_call_id": "tool00001", "offset": -1}, "invalid arguments: offset: "),
        ({"tool_call_id": "tool00001", "length": 0}, "invalid arguments: length: "),
        ({}, "invalid arguments: tool_call_id: "),
    ]
    for arguments, why in cases:
        answer = await history.run("read_result", **arguments)
        assert (answer.is_error, why in answer.content) == (True, True), answer.content


@pytest.mark.parametrize(
    "damage",
    [None, b"", b"x" * 4999, b"x" * 5001, b"\xff" * 5000, b"x" * 50 + b"\xff" + b"x" * 4949],
    ids=["missing", "empty", "shorter", "longer", "no text", "one byte"],
)
async def test_a_missing_or_damaged_result_is_told_to_the_model(damage: bytes | None) -> None:
    """A stored result that is missing or damaged is an error result."""
    history = History(make_tool("x" * 5000))
    entry = history.commit_result(await history.run("it"))
    path = OBJECT.format(entry.payload["result"]["digest"])
    if damage is None:
        await history.store.delete(path)
    else:
        await history.store.put(path, damage)
    answer = await history.read()
    assert answer.is_error
    assert "missing" in answer.content or "damaged" in answer.content


async def test_other_sessions_results_cannot_be_read() -> None:
    """A stored result is read only through an entry of the session's own thread, not by its hash."""
    history = History()
    digest = await history.archive.put_result(FAMILY, b"a sibling's secret")
    for name in (digest, OBJECT.format(digest)):
        answer = await history.run("read_result", tool_call_id=name)
        assert (answer.is_error, "secret" in answer.content) == (True, False)


async def test_a_tool_of_the_workers_own_wins() -> None:
    """A user's tool named `read_result` is run, and marks do not mention reading the rest."""

    @tool
    def read_result() -> str:
        return "mine" * 1000

    answer = await History(read_result).run("read_result")
    assert answer.text.startswith("minemine")
    assert answer.text.endswith("of 4000 bytes are shown]")


async def test_of_a_huge_result_the_beginning_is_stored_and_it_is_in_memory_but_a_few_times() -> None:
    """50 MB: the tool's own text, its UTF-8 form and what the store holds; the mark tells of the rest."""
    size = 50_000_000

    @tool(name="it")
    def it() -> str:
        return "x" * size

    history = History(it)
    tracemalloc.start()
    try:
        answer = await history.run("it", 65_536)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert answer.result is not None
    assert answer.result.bytes == MAX_STORED_BYTES
    assert len(answer.content) <= 65_536
    assert f"only {MAX_STORED_BYTES} bytes of {size} were stored; read_result(" in answer.content
    assert peak < 2.8 * size


# Blobs that a model sees again.


@pytest.mark.parametrize("archived", [False, True])
async def test_a_model_sees_again_what_a_marker_names(archived: bool) -> None:
    """By the digest of the marker or by the file's name, of which the newest counts: the part, and no bytes."""
    history = History()
    first, second = make_part("image", 2**250, name="a.png"), make_part("image", 2**251, name="a.png")
    page = make_part("file", 2**252, name="page.pdf")
    history.commit("ai_message", role="user", content=[{"type": "text", "text": "look"}, first])
    history.commit_result(ToolAnswered(content=[page]))
    history.commit("ai_message", role="user", content=[second])
    history.commit("ai_message", role="user", content="and now?")
    if archived:
        await history.archive_all()
    assert (await history.view(f"{2**250:064x}"[:12])).content == [first]
    assert (await history.view("a.png")).content == [second]
    answer = await history.view(" page.pdf ")
    assert (answer.content, answer.is_error) == ([page], False)


async def test_a_model_sees_nothing_that_its_thread_does_not_name() -> None:
    """Neither another session's blob, nor one of a message that was withdrawn, nor the first by a short guess."""
    history = History()
    history.commit("ai_message", role="user", content=[make_part("image", 2**250, name="a.png")])
    operation = {"type": "withdraw", "reason": "system", "from_seq": 0}
    history.commit("ai_context_operation", op_id="op", operation=operation)
    history.commit("ai_message", role="user", content=[make_part("image", 2**251, name="b.png")])
    for name in ("a.png", f"{2**250:064x}", f"{2**252:064x}", f"{2**251:064x}"[:7], "c.png", "text"):
        assert (await history.view(name)).is_error
    assert not (await history.view("b.png")).is_error
    assert (await history.view("")).is_error


async def test_a_model_sees_again_what_a_snapshot_has() -> None:
    """A checkpoint's context has parts like any other message."""
    history = History()
    part = make_part("image", 2**250)
    context = {"messages": [{"role": "user", "content": [part]}]}
    history.commit(
        "ai_context_operation",
        op_id="op",
        operation={"type": "replace", "reason": "restore", "result_context": context},
    )
    assert (await history.view(f"{2**250:064x}"[:12])).content == [part]
