"""Read a session: the workflow answers for what it holds, a service workflow reads the rest from the archive."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, replace
from typing import Any, Self

from pydantic_core import to_json

from clew.context.contexts import build_window, make_window_policy
from clew.context.loading import load_thread
from clew.contract import (
    READ_CONTEXT_WORKFLOW,
    Context,
    ContextQuery,
    EntriesQuery,
    FollowPage,
    FollowQuery,
    ReadContextInput,
    ReadThreadInput,
    SessionStatus,
    TranscriptMessage,
    TranscriptQuery,
    Window,
    WindowQuery,
)
from clew.contract.payloads import ConfigPayload, OperationPayload
from clew.errors import Archived, Closed, Interrupted, NotFound
from clew.session._thread_service import freeze_thread, read_newest_entry, read_thread
from clew.session.handle import QUERY_SECONDS, SessionHandle
from clew.session.transport import dump_input
from clew.thread.entries import DEFAULT_LANE, Entry
from clew.thread.source import LivePage, read_forward


async def read_status(
    handle: SessionHandle, *, only_open: bool = False, seconds: float = QUERY_SECONDS
) -> SessionStatus:
    """Read the session's status, which must come within so many seconds.

    Of a workflow that was interrupted only the server knows: its own answer is of the moment before.

    Raises:
        Closed: With `only_open`, the session has ended.
        NotFound: The server knows no such session.
    """
    try:
        return SessionStatus.model_validate(await handle.query("status", only_open=True, seconds=seconds))
    except Closed as ended:
        if only_open:
            raise
        status = SessionStatus.model_validate(await handle.query("status", seconds=seconds))
        if not isinstance(ended, Interrupted):
            return status
        return status.model_copy(update={"status": Interrupted.type, "closed": True})


def read_entries(handle: SessionHandle, query: EntriesQuery) -> AsyncIterator[Entry]:
    """Read the entries that meet the filters, in order."""
    return read_forward(_EntryParts(handle, query), query.from_seq, limit=query.limit)


async def read_transcript(handle: SessionHandle, query: TranscriptQuery) -> AsyncIterator[TranscriptMessage]:
    """Read a lane's messages in order, after the system prompt if the query includes it."""
    if query.include_system and query.from_seq == 0:
        for message in await _read_system_prompt(handle):
            yield message
    query = query.model_copy(update={"include_system": False})
    if query.limit is not None:
        for message in await _read_newest_messages(handle, query, query.limit):
            yield message
        return
    async for row in read_forward(_TranscriptParts(handle, query), query.from_seq):
        yield row.message


async def read_context(handle: SessionHandle, query: ContextQuery) -> Context:
    """Read a context from the session, or from `ReadContext` if the session does not hold all that it needs."""

    async def ask_session(query: ContextQuery) -> dict[str, Any]:
        return await handle.query("context", query)

    async def ask_service(query: ContextQuery) -> dict[str, Any]:
        # Send only the fields that are set: defaults would override the policy in force.
        fields = to_json(dump_input(query) | {"session_id": handle.session_id})
        return await handle.run_service(READ_CONTEXT_WORKFLOW, ReadContextInput.model_validate_json(fields))

    try:
        return await _read_pages(query, ask_session)
    except (Archived, Closed, NotFound):
        return await _read_pages(query, ask_service)


async def read_window(handle: SessionHandle, query: WindowQuery) -> Window:
    """Read the newest messages that fit a budget."""
    try:
        return Window.model_validate(await handle.query("window", query))
    except (Archived, Closed, NotFound):
        frozen = await freeze_thread(handle)
    budget = query.token_budget
    thread = await load_thread(frozen, query.context_ref, lambda policy: make_window_policy(policy, budget))
    projection = build_window(thread, query.context_ref or thread.find_active_lane(frozen.upto), budget)
    return Window(messages=projection.messages, meta=projection.meta)


async def read_last_seq(handle: SessionHandle) -> int:
    """Read the seq of the thread's newest entry; -1 for an empty thread."""
    newest = await read_newest_entry(handle)
    return newest.seq if newest else -1


async def _read_pages(query: ContextQuery, read_page: Callable[[ContextQuery], Awaitable[dict[str, Any]]]) -> Context:
    """Read all pages of a context; start over if the thread of a preview changes between two pages."""
    while True:
        page = first = await read_page(query)
        while "next_page" in page and page["meta"]["digest"] == first["meta"]["digest"]:
            page = await read_page(query.model_copy(update={"page": page["next_page"], "at_seq": page["at_seq"]}))
            first["messages"] += page["messages"]
        if page["meta"]["digest"] == first["meta"]["digest"]:
            return Context.model_validate(first)


async def _read_system_prompt(handle: SessionHandle) -> list[TranscriptMessage]:
    """Read the system prompt in force, as a list of one message; an empty list without a prompt."""
    try:
        page = await handle.query("transcript", TranscriptQuery(include_system=True, limit=1))
    except (Closed, NotFound):
        config = await read_newest_entry(handle, "config")
        prompt = config.read(ConfigPayload).prompt if config else None
        return [{"role": "system", "content": prompt, "seq": config.seq}] if config and prompt else []
    return [message for message in page["messages"] if message["role"] == "system"]


async def _read_newest_messages(handle: SessionHandle, query: TranscriptQuery, limit: int) -> list[TranscriptMessage]:
    """Read the newest messages: those that the session holds, and before them archived ones, up to the limit."""
    parts = _TranscriptParts(handle, query)
    rows: list[_SeqMessage] = []
    first_live_seq: int | None = 0
    seq: int | None = query.from_seq
    while seq is not None:
        page = await parts.read_live(seq, limit - len(rows))
        if rows and (page is None or page.first_live_seq):
            # The session has archived entries since the last page: begin again.
            rows, seq = [], query.from_seq
            continue
        if page is None:
            first_live_seq = None
            break
        if not rows:
            first_live_seq = page.first_live_seq
        rows += page.rows
        seq = page.next_seq if len(rows) < limit else None
    if len(rows) < limit and first_live_seq != 0:
        upto = None if first_live_seq is None else first_live_seq - 1
        rows = [*[row async for row in parts.read_newest_archived(upto, limit - len(rows))], *rows]
    return [row.message for row in rows]


async def _read_active_lane(handle: SessionHandle) -> str:
    """Read the active lane; for a session that has ended, the last active one."""
    try:
        return (await read_status(handle)).active_context_ref
    except (Closed, NotFound):
        frozen = await freeze_thread(handle)
    async for entry in frozen.read("ai_context_operation"):
        if (lane := entry.read(OperationPayload).activated_lane) is not None:
            return lane
    return DEFAULT_LANE


@dataclass(frozen=True, slots=True)
class _EntryParts:
    """The two parts of a thread: archived entries by `ReadThread`, live ones by queries to the session."""

    handle: SessionHandle
    query: EntriesQuery
    archived_upto: int | None = -1

    def read_archived(self, from_seq: int, to_seq: int | None) -> AsyncIterator[Entry]:
        fields = self.query.model_dump(exclude_none=True)
        fields |= {"session_id": self.handle.session_id, "from_seq": from_seq, "to_seq": to_seq}
        return read_thread(self.handle, ReadThreadInput(**fields))

    async def read_live(self, from_seq: int) -> LivePage[Entry] | None:
        # Recovery may add entries to the archive of a session that has ended: its closed workflow lacks them.
        return await self.handle.query_entries(self.query.model_copy(update={"from_seq": from_seq}), only_open=True)

    async def relocate(self, first_live_seq: int | None) -> Self:
        return replace(self, archived_upto=None if first_live_seq is None else first_live_seq - 1)


class FollowedParts:
    """The two parts of a thread, of which the live one comes with the session's status.

    Attributes:
        archived_upto: The newest entry known to be archived; -1: none is; None: the session has ended.
        latest: The newest page of the live part.
    """

    def __init__(self, handle: SessionHandle) -> None:
        self.archived_upto: int | None = -1
        self.latest = FollowPage(entries=[])
        self._handle = handle

    def read_archived(self, from_seq: int, to_seq: int | None) -> AsyncIterator[Entry]:
        """Read archived entries."""
        return _EntryParts(self._handle, EntriesQuery()).read_archived(from_seq, to_seq)

    async def read_live(self, from_seq: int) -> LivePage[Entry] | None:
        """Read a page of the session's entries, with its status."""
        try:
            answer = await self._handle.query("follow", FollowQuery(from_seq=from_seq), only_open=True)
        except (Closed, NotFound):
            return None
        self.latest = page = FollowPage.model_validate(answer)
        return LivePage(tuple(map(Entry.from_json, page.entries)), page.next_seq, page.archived_before or 0)

    async def relocate(self, first_live_seq: int | None) -> Self:
        """Locate the parts again."""
        self.archived_upto = None if first_live_seq is None else first_live_seq - 1
        return self


@dataclass(frozen=True, slots=True)
class _SeqMessage:
    """A transcript's message, with `seq` as an attribute."""

    message: TranscriptMessage

    @property
    def seq(self) -> int:
        return self.message["seq"]


@dataclass(frozen=True, slots=True)
class _TranscriptParts:
    """The two parts of a lane's transcript: archived messages by `ReadThread`, live ones by queries."""

    handle: SessionHandle
    query: TranscriptQuery
    archived_upto: int | None = -1

    async def read_archived(self, from_seq: int, to_seq: int | None) -> AsyncIterator[_SeqMessage]:
        async for row in self._read_archived(from_seq, to_seq, None):
            yield row

    async def read_newest_archived(self, to_seq: int | None, newest: int) -> AsyncIterator[_SeqMessage]:
        """Read the newest archived messages up to a seq, in order."""
        async for row in self._read_archived(self.query.from_seq, to_seq, newest):
            yield row

    async def _read_archived(
        self, from_seq: int, to_seq: int | None, newest: int | None
    ) -> AsyncIterator[_SeqMessage]:
        query = ReadThreadInput(
            session_id=self.handle.session_id,
            from_seq=from_seq,
            to_seq=to_seq,
            newest=newest,
            kind="ai_message",
            context_ref=self.query.context_ref or await _read_active_lane(self.handle),
        )
        async for entry in read_thread(self.handle, query):
            yield _SeqMessage(entry.transcript_message)

    async def read_live(self, from_seq: int, limit: int | None = None) -> LivePage[_SeqMessage] | None:
        query = self.query.model_copy(update={"from_seq": from_seq, "limit": limit})
        try:
            page = await self.handle.query("transcript", query)
        except (Closed, NotFound):
            return None
        return LivePage(
            tuple(map(_SeqMessage, page["messages"])), page.get("next_seq"), page.get("archived_before", 0)
        )

    async def relocate(self, first_live_seq: int | None) -> Self:
        return replace(self, archived_upto=None if first_live_seq is None else first_live_seq - 1)
