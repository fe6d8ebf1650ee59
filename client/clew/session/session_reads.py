"""Reading a session: its status, contexts, entries and waiting calls, live or archived."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any, Literal, Self, Unpack

from pydantic import BaseModel
from pydantic_core import to_json

from clew.content import AnyContent, Media
from clew.session.handle import QUERY_SECONDS, SessionHandle
from clew.session.keywords import EntryFilters
from clew.session.session_blobs import SessionBlobs
from clew.session.transport import dump_input, make_input
from clew_workflows.contract import (
    READ_CONTEXT_WORKFLOW,
    READ_WORKFLOW,
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
from clew_workflows.contract.errors import Archived, Closed, Interrupted, NotFound
from clew_workflows.contract.outputs import PendingCall
from clew_workflows.contract.payloads import OperationPayload
from clew_workflows.contract.policy import ContextPolicy
from clew_workflows.thread.context.archived import load_thread
from clew_workflows.thread.context.contexts import build_window, find_system_message, make_window_policy
from clew_workflows.thread.entries import DEFAULT_LANE, Entry
from clew_workflows.thread.source import LivePage, read_forward

# Read a thread by the workflow `ReadThread`, page by page: it answers archived and live entries alike.


PAGE_ENTRIES = {"config": 1, "summary": 1, "ai_context_operation": 10, "ai_message": 500}
"""Entries of each kind that one page has when a thread is read backwards."""


async def read_thread(handle: SessionHandle, query: ReadThreadInput) -> AsyncIterator[Entry]:
    """Read the entries that the query names, in order."""
    if query.newest is not None:
        for entry in [entry async for entry in _read_backwards(handle, query, query.newest)][::-1]:
            yield entry
        return
    remaining = query.limit
    while True:
        page = await _read_page(handle, query)
        for row in page["entries"]:
            yield Entry.from_json(row)
        remaining = None if remaining is None else remaining - len(page["entries"])
        if "next_seq" not in page or remaining == 0:
            return
        query = query.model_copy(update={"from_seq": page["next_seq"], "limit": remaining})


async def _read_page(handle: SessionHandle, query: ReadThreadInput) -> dict[str, Any]:
    return await handle.run_service(READ_WORKFLOW, query)


async def _read_backwards(handle: SessionHandle, query: ReadThreadInput, limit: int | None) -> AsyncIterator[Entry]:
    """Read the entries that the query names, the newest first, in pages of `query.newest`, and at most `limit`."""
    while True:
        page = await _read_page(handle, query)
        for row in reversed(page["entries"]):
            yield Entry.from_json(row)
        limit = None if limit is None else limit - len(page["entries"])
        if "next_seq" not in page or page["next_seq"] < query.from_seq or limit == 0:
            return
        query = query.model_copy(update={"to_seq": page["next_seq"], "newest": limit or query.newest})


async def read_newest_entry(handle: SessionHandle, kind: str | None = None) -> Entry | None:
    """Read the thread's newest entry, or the newest one of a kind; None if there is none."""
    query = ReadThreadInput(session_id=handle.session_id, kind=kind, newest=1)
    async for entry in _read_backwards(handle, query, 1):
        return entry
    return None


async def freeze_thread(handle: SessionHandle) -> FrozenService:
    """Fix the thread's newest entry, so that later ones are not read."""
    newest = await read_newest_entry(handle)
    return FrozenService(handle, newest.seq if newest else -1)


@dataclass(frozen=True, slots=True)
class FrozenService:
    """A thread up to a seq, read from the newest entry to the oldest.

    Attributes:
        handle: The session.
        upto: The seq of the newest entry.
    """

    handle: SessionHandle
    upto: int

    async def read(
        self, kind: str, *, context_ref: str | None = None, from_seq: int = 0, to_seq: int | None = None
    ) -> AsyncIterator[Entry]:
        """Read the entries of a kind, or of a kind and a lane, from `to_seq` down to `from_seq`."""
        upto = self.upto if to_seq is None else min(to_seq, self.upto)
        if upto < from_seq:
            return
        query = ReadThreadInput(
            session_id=self.handle.session_id,
            from_seq=from_seq,
            to_seq=upto,
            kind=kind,
            context_ref=context_ref,
            newest=PAGE_ENTRIES[kind],
        )
        async for entry in _read_backwards(self.handle, query, None):
            yield entry


# Read a session: the workflow answers for what it holds, a service workflow reads the rest from the archive.


async def read_status(
    handle: SessionHandle, *, only_open: bool = False, seconds: float = QUERY_SECONDS
) -> SessionStatus:
    """Read the session's status, within `seconds`.

    Only the server knows that a workflow was interrupted: the workflow's own answer is of the moment before.

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
    begins = query.include_system and query.from_seq == 0
    if begins and (system := await _read_system_prompt(handle, query.context_ref)):
        yield system
    query = query.model_copy(update={"include_system": False})
    if query.limit is not None:
        for message in await _read_newest_messages(handle, query, query.limit):
            yield message
        return
    async for row in read_forward(_TranscriptParts(handle, query), query.from_seq):
        yield row.message


async def _read_pages(query: ContextQuery, read_page: Callable[[ContextQuery], Awaitable[dict[str, Any]]]) -> Context:
    """Read all pages of a context; start over if the thread of a preview changes between two pages."""
    while True:
        page = first = await read_page(query)
        while "next_page" in page and page["meta"]["digest"] == first["meta"]["digest"]:
            page = await read_page(query.model_copy(update={"page": page["next_page"], "at_seq": page["at_seq"]}))
            first["messages"] += page["messages"]
        if page["meta"]["digest"] == first["meta"]["digest"]:
            return Context.model_validate(first)


async def _read_system_prompt(handle: SessionHandle, context_ref: str | None) -> TranscriptMessage | None:
    """Read the system prompt that a lane's contexts begin with; None: they have none."""
    query = TranscriptQuery(include_system=True, limit=1, context_ref=context_ref)
    try:
        page = await handle.query("transcript", query)
    except (Archived, Closed, NotFound):
        frozen = await freeze_thread(handle)
        thread = await load_thread(frozen, context_ref, lambda policy: make_window_policy(policy, 1))
        return find_system_message(thread, context_ref or thread.find_active_lane(thread.last_seq))
    return next((message for message in page["messages"] if message["role"] == "system"), None)


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
        rows = [*[row async for row in parts.read_archived(query.from_seq, upto, limit - len(rows))], *rows]
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
    """The two parts of a thread. The live one comes with the session's status.

    Attributes:
        archived_upto: The newest entry known to be archived; -1: none is; None: the session has ended.
        latest: The newest page of the live part.
    """

    def __init__(self, handle: SessionHandle, *, heartbeats: bool) -> None:
        """Read a session. `heartbeats`: viewers read the heartbeats of its calls."""
        self.archived_upto: int | None = -1
        self.latest = FollowPage(entries=[])
        self._handle, self._heartbeats = handle, heartbeats

    def read_archived(self, from_seq: int, to_seq: int | None) -> AsyncIterator[Entry]:
        """Read archived entries."""
        return _EntryParts(self._handle, EntriesQuery()).read_archived(from_seq, to_seq)

    async def read_live(self, from_seq: int) -> LivePage[Entry] | None:
        """Read a page of the session's entries, with its status."""
        try:
            answer = await self._handle.query(
                "follow", FollowQuery(from_seq=from_seq, heartbeats=self._heartbeats), only_open=True
            )
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

    async def read_archived(
        self, from_seq: int, to_seq: int | None, newest: int | None = None
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


# The calls that wait for people or programs, in a session and in the subagents that work for it.


@dataclass(frozen=True, slots=True)
class WaitingCall:
    """A tool call that waits for a person or a program.

    Attributes:
        session_id: The session that the call waits in: `Clew.session` makes its handle.
        needs: `approval`: `approve` or `deny` ends the wait; `result`: `submit_tool_result` does.
        call: The call.
    """

    session_id: str
    needs: Literal["approval", "result"]
    call: PendingCall


async def list_waiting_calls(handle: SessionHandle) -> Sequence[WaitingCall]:
    """List the waiting calls of a session, and then those of its subagents and of theirs."""
    status = await read_status(handle)
    own = [
        *(WaitingCall(status.session_id, "approval", call) for call in status.pending_approvals),
        *(WaitingCall(status.session_id, "result", call) for call in status.pending_external_calls),
    ]
    working = [subagent.session_id for subagent in status.subagents if subagent.status == "working"]
    return [*own, *await list_calls_of_subagents(handle, working)]


async def list_calls_of_subagents(handle: SessionHandle, session_ids: Iterable[str]) -> Sequence[WaitingCall]:
    """List the waiting calls of subagents of a session, and of their own. One that does not run has none."""
    children = await asyncio.gather(
        *(_list_of_subagent(SessionHandle(handle.client, name, handle.task_queue)) for name in session_ids)
    )
    return [call for calls in children for call in calls]


async def _list_of_subagent(handle: SessionHandle) -> Sequence[WaitingCall]:
    # It may have ended by now, or not have started yet.
    with suppress(Closed, NotFound):
        return await list_waiting_calls(handle)
    return ()


# The reads of a session: status, contexts, messages and entries.


class SessionReads:
    """The part of `Session` that changes nothing."""

    def __init__(self, handle: SessionHandle) -> None:
        self._handle = handle
        self._blobs = SessionBlobs(handle)

    async def status(self) -> SessionStatus:
        """Read what the session is doing, its configuration and its usage.

        Returns:
            The status: among others `status` (`idle`, `awaiting_model`, `awaiting_approval` and so on), `request_id`,
            `pending_approvals`, `pending_external_calls`, `config`, and `usage` in tokens and USD.

        Raises:
            Closed: The session has ended, and the server has forgotten its workflow.
            NotFound: There is no such session.

        Example:
            status = await session.status()
            print(status.status, status.usage.cost_usd)
        """
        try:
            return await read_status(self._handle)
        except NotFound as absent:
            raise await self._handle.explain_absence(absent) from None

    async def list_waiting_calls(self) -> Sequence[WaitingCall]:
        """List the tool calls that wait for people or programs, in this session and in the subagents that it has.

        Returns:
            The calls, this session's first. Each has the `session_id` in which it waits, `needs` (`approval` or
            `result`), and the `call` with `tool_call_id`, `name` and `arguments`.

        Raises:
            Closed: The session has ended, and the server has forgotten its workflow.
            NotFound: There is no such session.

        Example:
            calls = await session.list_waiting_calls()
            for waiting in calls:
                print(waiting.session_id, waiting.needs, waiting.call.name, waiting.call.arguments)
        """
        try:
            return await list_waiting_calls(self._handle)
        except NotFound as absent:
            raise await self._handle.explain_absence(absent) from None

    async def context(
        self,
        *,
        context_ref: str | None = None,
        at_seq: int | None = None,
        call_id: str | None = None,
        context_policy: ContextPolicy | None = None,
        pending: Sequence[AnyContent] | None = None,
    ) -> Context:
        """Read a lane's context: the current one, the one at a seq, that of a model call, or a preview.

        Args:
            context_ref: The lane; None: the active one.
            at_seq: The context at this entry; None: at the newest.
            call_id: The context that this model call was sent, byte for byte. Recipes of replies name it.
            context_policy: Overrides fields of the policy in force.
            pending: Messages that a user might send next. The context is then a preview of the call that would
                follow, and nothing is committed.

        Returns:
            The `messages`, as the model gets them, and `meta`: `estimated_tokens`, `digest`, and of a preview `fits`
            and `input_cost_usd`.

        Raises:
            InvalidInput: There is no such model call, or fields of the policy contradict each other.
            InvalidTokenBudget: The policy leaves no budget for messages.
            NotFound: There is no such session.

        Example:
            preview = await session.context(pending=["And where is it now?"])
            print(preview.meta.fits, preview.meta.estimated_tokens)
        """
        query = {
            "context_ref": context_ref,
            "at_seq": at_seq,
            "call_id": call_id,
            "context_policy": context_policy,
            "pending": None if pending is None else [await self._make_user_message(message) for message in pending],
        }
        context_query = make_input(ContextQuery, query)
        try:
            return await _read_pages(context_query, lambda page: self._handle.query("context", page))
        except (Archived, Closed, NotFound):
            # The session does not hold all that the context needs.
            return await _read_pages(context_query, self._read_archived_context)

    async def transcript(
        self,
        *,
        context_ref: str | None = None,
        from_seq: int = 0,
        limit: int | None = None,
        include_system: bool = False,
    ) -> list[TranscriptMessage]:
        """Read a lane's messages in order, each with its seq.

        Args:
            context_ref: The lane; None: the active one.
            from_seq: Seq of the first message.
            limit: At most this many messages, the newest ones; None: all.
            include_system: Whether the system prompt of the lane comes first.

        Returns:
            Messages as dictionaries: `seq`, `role`, `content`, and where they have them `tool_calls`, `citations` and
            the caller's `refs`.

        Raises:
            NotFound: There is no such session.

        Example:
            messages = await session.transcript(limit=20)
            for message in messages:
                print(message["role"], message["content"])
        """
        fields = {"context_ref": context_ref, "from_seq": from_seq, "limit": limit, "include_system": include_system}
        query = make_input(TranscriptQuery, fields)
        return [message async for message in read_transcript(self._handle, query)]

    async def window(self, token_budget: int, *, context_ref: str | None = None) -> Window:
        """Read the newest messages that fit a token budget.

        Args:
            token_budget: The most tokens of the messages together.
            context_ref: The lane; None: the active one.

        Returns:
            The `messages` and `meta` with their tokens.

        Raises:
            NotFound: There is no such session.

        Example:
            newest = (await session.window(2_000)).messages
        """
        query = make_input(WindowQuery, {"token_budget": token_budget, "context_ref": context_ref})
        try:
            return Window.model_validate(await self._handle.query("window", query))
        except (Archived, Closed, NotFound):
            frozen = await freeze_thread(self._handle)
        thread = await load_thread(frozen, context_ref, lambda policy: make_window_policy(policy, token_budget))
        projection = build_window(thread, context_ref or thread.find_active_lane(frozen.upto), token_budget)
        return Window(messages=projection.messages, meta=projection.meta)

    async def entries(
        self, *, from_seq: int = 0, limit: int | None = None, **filters: Unpack[EntryFilters]
    ) -> list[Entry]:
        """Read the thread's entries that meet the filters, in order.

        Args:
            from_seq: Seq of the first entry.
            limit: At most this many entries, counted from the first; None: all.
            filters: Conditions that each entry meets (`EntryFilters`).

        Returns:
            The entries, archived or not. All of them are in memory: `read` has one page at a time.

        Raises:
            ArchiveUnavailable: The archive cannot be read at present.
            NotFound: There is no such session.

        Example:
            replies = await session.entries(request_id="msg-93", kind="ai_message")
        """
        return [entry async for entry in self.read(from_seq=from_seq, limit=limit, **filters)]

    async def read(
        self, *, from_seq: int = 0, limit: int | None = None, **filters: Unpack[EntryFilters]
    ) -> AsyncIterator[Entry]:
        """Read entries like `entries`, but one by one: at most a page of the thread is in memory.

        Takes the arguments of `entries`, and raises as it does.

        Example:
            runs = session.read(kind="run")
            async for entry in runs:
                print(entry.seq, entry.payload["status"])
        """
        query = make_input(EntriesQuery, {**filters, "from_seq": from_seq, "limit": limit})
        async for entry in read_entries(self._handle, query):
            yield entry

    async def _read_archived_context(self, query: ContextQuery) -> dict[str, Any]:
        # Send only the fields that are set: defaults would override the policy in force.
        fields = to_json(dump_input(query) | {"session_id": self._handle.session_id})
        return await self._handle.run_service(READ_CONTEXT_WORKFLOW, ReadContextInput.model_validate_json(fields))

    async def _make_user_message(self, message: AnyContent) -> Mapping[str, Any]:
        """Make a message of its content. A message as JSON has its content stored, too."""
        if isinstance(message, Mapping) and "role" in message:
            return await self._store_media(message)
        return {"role": "user", "content": await self._blobs.make_content(message)}

    async def _store_media(self, message: BaseModel | Mapping[str, Any]) -> dict[str, Any]:
        """Store what the content of a message has of bytes."""
        stored = dump_input(message) if isinstance(message, BaseModel) else dict(message)
        if isinstance(content := stored.get("content"), list | tuple | Media):
            stored["content"] = await self._blobs.make_content(content)
        return stored
