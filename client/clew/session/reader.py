"""Reading a session: from its workflow what that holds, from its archive what it does not, as one."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any, Self

from pydantic import BaseModel
from pydantic_core import to_json
from temporalio.client import Client, WorkflowHandle
from temporalio.common import QueryRejectCondition

from clew.context.contexts import window_of, windowed
from clew.context.loading import part_of_thread
from clew.contract import (
    READ_CONTEXT_WORKFLOW,
    READ_WORKFLOW,
    ContextQuery,
    EntriesQuery,
    ReadContextInput,
    ReadThreadInput,
    TranscriptQuery,
    WindowQuery,
)
from clew.contract.outputs import Context, TranscriptMessage, Window
from clew.contract.payloads import AppliedSwitch, ConfigPayload, OperationPayload
from clew.errors import Archived, Closed, Starting
from clew.session._services import run_service
from clew.session.transport import payload, translating
from clew.thread.entries import DEFAULT_LANE, Entry
from clew.thread.source import LivePage, read_forward

QUERY_SECONDS = 20
STARTING_SECONDS = 0.05
"""Until a session is asked again that has just begun."""
MARKS = 10
AT_A_TIME = {"config": 1, "summary": 1, "ai_context_operation": MARKS, "ai_message": 500}
"""How many entries of a kind are fetched at once where the newest are asked for."""


class Reader:
    """Reads one session, live, hibernating or closed."""

    def __init__(self, client: Client, session_id: str, task_queue: str) -> None:
        self._client = client
        self.session_id = session_id
        self.task_queue = task_queue
        self._handle: WorkflowHandle[Any, Any] = client.get_workflow_handle(session_id)

    async def query(self, name: str, argument: BaseModel | None = None, *, only_open: bool = False) -> dict[str, Any]:
        """What the session's workflow answers.

        Raises:
            Closed: there is none; with `only_open`, or it has ended.
        """
        args = [] if argument is None else [payload(argument)]
        reject = QueryRejectCondition.NOT_OPEN if only_open else QueryRejectCondition.NONE
        give_up_at = time.monotonic() + QUERY_SECONDS
        while True:
            try:
                async with translating(self.session_id):
                    answer: dict[str, Any] = await self._handle.query(
                        name,
                        args=args,
                        result_type=dict,
                        reject_condition=reject,
                        rpc_timeout=timedelta(seconds=QUERY_SECONDS),
                    )
                    return answer
            except Starting:
                if time.monotonic() > give_up_at:
                    raise
            await asyncio.sleep(STARTING_SECONDS)

    async def page(self, asked: ReadThreadInput) -> dict[str, Any]:
        """What the workflow `ReadThread` answers."""
        return await self.errand(READ_WORKFLOW, asked)

    async def errand(self, name: str, asked: BaseModel) -> dict[str, Any]:
        """What a workflow of the contract answers about the session."""
        return await run_service(self._client, self.task_queue, name, asked, self.session_id)

    async def read(self, asked: ReadThreadInput) -> AsyncIterator[Entry]:
        """The entries that the workflow `ReadThread` finds, in order."""
        if asked.newest is not None:
            for row in [row async for row in self._newest(asked)][::-1]:
                yield row
            return
        left = asked.limit
        while True:
            page = await self.page(asked)
            for row in page["entries"]:
                yield Entry.from_json(row)
            left = None if left is None else left - len(page["entries"])
            if "next_seq" not in page or left == 0:
                return
            asked = asked.model_copy(update={"from_seq": page["next_seq"], "limit": left})

    def entries(self, asked: EntriesQuery) -> AsyncIterator[Entry]:
        """The entries that meet the filters, in order."""
        return read_forward(_EntryParts(self, asked), asked.from_seq, limit=asked.limit)

    async def read_live_entries(self, asked: EntriesQuery, *, only_open: bool = False) -> LivePage[Entry] | None:
        """One page of the entries that the session itself holds.

        None: the server knows no such session, or with `only_open`, it has ended.
        """
        try:
            page = await self.query("entries", asked, only_open=only_open)
        except Closed:
            return None
        rows = tuple(map(Entry.from_json, page["entries"]))
        return LivePage(rows, page.get("next_seq"), page.get("archived_before", 0))

    async def transcript(self, asked: TranscriptQuery) -> AsyncIterator[TranscriptMessage]:
        """A lane's messages, in order; the system prompt comes first where it is asked for."""
        left = asked.limit
        if asked.include_system and asked.from_seq == 0:
            for message in await self._system_messages():
                yield message
                left = None if left is None else left - 1
        parts = _TranscriptParts(self, asked.model_copy(update={"include_system": False}))
        async for said in read_forward(parts, asked.from_seq, limit=left):
            yield said.message

    async def context(self, asked: ContextQuery) -> Context:
        """A context: the session's own answer, or `ReadContext`'s where the session does not hold enough for it."""
        try:
            return await self._in_pages(asked, self._query_context)
        except (Archived, Closed):
            return await self._in_pages(asked, self._read_context)

    async def window(self, asked: WindowQuery) -> Window:
        """The newest messages that fit a budget."""
        try:
            return Window.model_validate(await self.query("window", asked))
        except (Archived, Closed):
            back = await self._back()
        budget = asked.token_budget
        thread = await part_of_thread(back, asked.context_ref, lambda policy: windowed(policy, budget))
        lane = asked.context_ref or thread.active_lane_at(back.upto)
        whole = window_of(thread, lane, budget)
        return Window(messages=whole.messages, meta=whole.meta)

    async def last_seq(self) -> int:
        """The seq of the thread's newest entry; -1 while there is none."""
        return (await self._back()).upto

    async def _query_context(self, asked: ContextQuery) -> dict[str, Any]:
        return await self.query("context", asked)

    async def _read_context(self, asked: ContextQuery) -> dict[str, Any]:
        # Fields that are not set stay so: they would overlay the policy in force.
        given = ReadContextInput.model_validate_json(to_json(payload(asked) | {"session_id": self.session_id}))
        return await self.errand(READ_CONTEXT_WORKFLOW, given)

    async def _in_pages(
        self, asked: ContextQuery, page_of: Callable[[ContextQuery], Awaitable[dict[str, Any]]]
    ) -> Context:
        """A whole context. If what it is made for changes between two of a preview's pages it is read anew."""
        while True:
            page = whole = await page_of(asked)
            while "next_page" in page and page["meta"]["digest"] == whole["meta"]["digest"]:
                rest = asked.model_copy(update={"page": page["next_page"], "at_seq": page["at_seq"]})
                page = await page_of(rest)
                whole["messages"] += page["messages"]
            if page["meta"]["digest"] == whole["meta"]["digest"]:
                return Context.model_validate(whole)

    async def _back(self, at_seq: int | None = None) -> _Back:
        """Reads from the newest entry back, or from a seq."""
        page = await self.page(self._input(to_seq=at_seq, newest=1))
        return _Back(self, page["entries"][-1]["seq"] if page["entries"] else -1)

    async def active_lane(self) -> str:
        """The lane that is active, or was when the session ended."""
        try:
            return str((await self.query("status"))["active_context_ref"])
        except Closed:
            back = await self._back()
        async for entry in back.read("ai_context_operation"):
            held = entry.read(OperationPayload)
            if isinstance(held.operation, AppliedSwitch):
                return held.context_ref
        return DEFAULT_LANE

    async def _system_messages(self) -> list[TranscriptMessage]:
        """The system prompt in force; nothing where there is none."""
        try:
            page = await self.query("transcript", TranscriptQuery(include_system=True, limit=1))
        except Closed:
            newest = [config async for config in self._newest(self._input(kind="config", newest=1))]
            prompts = ((config.seq, config.read(ConfigPayload).prompt) for config in newest)
            return [{"role": "system", "content": prompt, "seq": seq} for seq, prompt in prompts if prompt]
        return [message for message in page["messages"] if message["role"] == "system"]

    async def _newest(self, asked: ReadThreadInput) -> AsyncIterator[Entry]:
        """As many entries as are asked for, the newest first."""
        left = asked.newest or 1
        while True:
            page = await self.page(asked)
            for row in reversed(page["entries"]):
                yield Entry.from_json(row)
            left -= len(page["entries"])
            if "next_seq" not in page or left == 0:
                return
            asked = asked.model_copy(update={"to_seq": page["next_seq"], "newest": left})

    def _input(self, **asked: Any) -> ReadThreadInput:
        return ReadThreadInput(session_id=self.session_id, **asked)


@dataclass(frozen=True, slots=True)
class _Back:
    """Reads a session's thread up to a seq, the newest entry first, as much at a time as a context may need."""

    reader: Reader
    upto: int

    async def read(
        self, kind: str, *, context_ref: str | None = None, from_seq: int = 0, to_seq: int | None = None
    ) -> AsyncIterator[Entry]:
        """The entries of a kind, and of a lane where one is named, from `to_seq` down to `from_seq`."""
        session_id = self.reader.session_id
        upto: int | None = self.upto if to_seq is None else min(to_seq, self.upto)
        while upto is not None and upto >= from_seq:
            asked = ReadThreadInput(
                session_id=session_id,
                from_seq=from_seq,
                to_seq=upto,
                kind=kind,
                context_ref=context_ref,
                newest=AT_A_TIME[kind],
            )
            page = await self.reader.page(asked)
            for row in reversed(page["entries"]):
                yield Entry.from_json(row)
            upto = page.get("next_seq")


@dataclass(frozen=True, slots=True)
class _EntryParts:
    """A thread's parts as a client reaches them: the workflow `ReadThread`, and queries to the session."""

    reader: Reader
    query: EntriesQuery
    archived_upto: int | None = -1

    def read_archived(self, from_seq: int, to_seq: int | None) -> AsyncIterator[Entry]:
        filters = self.query.model_dump(exclude_none=True)
        where = {"session_id": self.reader.session_id, "from_seq": from_seq, "to_seq": to_seq}
        return self.reader.read(ReadThreadInput(**filters | where))

    async def read_live(self, from_seq: int) -> LivePage[Entry] | None:
        # Entries may be added to the archive of a session that has ended, so its workflow is not asked any more.
        query = self.query.model_copy(update={"from_seq": from_seq})
        return await self.reader.read_live_entries(query, only_open=True)

    async def relocate(self, first_live_seq: int | None) -> Self:
        return replace(self, archived_upto=None if first_live_seq is None else first_live_seq - 1)


@dataclass(frozen=True, slots=True)
class _Said:
    """A message of a transcript."""

    message: TranscriptMessage

    @property
    def seq(self) -> int:
        return self.message["seq"]


@dataclass(frozen=True, slots=True)
class _TranscriptParts:
    """The parts of a lane's transcript. The active lane is looked up only for what is archived."""

    reader: Reader
    query: TranscriptQuery
    archived_upto: int | None = -1

    async def read_archived(self, from_seq: int, to_seq: int | None) -> AsyncIterator[_Said]:
        lane = self.query.context_ref or await self.reader.active_lane()
        query = ReadThreadInput(
            session_id=self.reader.session_id,
            from_seq=from_seq,
            to_seq=to_seq,
            limit=self.query.limit,
            kind="ai_message",
            context_ref=lane,
        )
        async for entry in self.reader.read(query):
            yield _Said({**entry.message, "seq": entry.seq})

    async def read_live(self, from_seq: int) -> LivePage[_Said] | None:
        query = self.query.model_copy(update={"from_seq": from_seq})
        try:
            page = await self.reader.query("transcript", query)
        except Closed:
            return None
        return LivePage(tuple(map(_Said, page["messages"])), page.get("next_seq"), page.get("archived_before", 0))

    async def relocate(self, first_live_seq: int | None) -> Self:
        return replace(self, archived_upto=None if first_live_seq is None else first_live_seq - 1)
