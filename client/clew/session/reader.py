"""Reading a session: from its workflow what that holds, from its archive what it does not, as one."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Literal, cast

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
from clew.errors import Archived, Closed, Starting
from clew.model.pricing import priced
from clew.session.services import run_errand
from clew.session.transport import payload, translating
from clew.thread.entries import DEFAULT_LANE, Entry, system_prompt_of

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
        return await run_errand(self._client, self.task_queue, name, asked, self.session_id)

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

    async def entries(self, asked: EntriesQuery) -> AsyncIterator[Entry]:
        """The entries that meet the filters, in order."""

        async def archived(where: dict[str, Any], _page: dict[str, Any] | None) -> AsyncIterator[dict[str, Any]]:
            filters = asked.model_dump(exclude_none=True)
            async for entry in self.read(ReadThreadInput(**filters | where)):
                yield entry.as_json()

        async for row in self._rows("entries", asked, archived):
            yield Entry.from_json(row)

    async def transcript(self, asked: TranscriptQuery) -> AsyncIterator[TranscriptMessage]:
        """A lane's messages, in order."""

        async def archived(where: dict[str, Any], page: dict[str, Any] | None) -> AsyncIterator[dict[str, Any]]:
            if asked.include_system and where["from_seq"] == 0:
                for row in await self._system_messages() if page is None else page["messages"]:
                    if row["role"] == "system":
                        yield row
            lane = asked.context_ref or await self._active_lane(ended=page is None)
            async for entry in self.read(ReadThreadInput(**where, kind="ai_message", context_ref=lane)):
                yield {**entry.message, "seq": entry.seq}

        async for row in self._rows("transcript", asked, archived):
            yield cast("TranscriptMessage", row)

    async def context(self, asked: ContextQuery) -> Context:
        """A context: the session's own answer, or `ReadContext`'s where the session does not hold enough for it."""
        try:
            whole = await self._in_pages(asked, self._query_context)
            return whole.model_copy(update={"meta": priced(whole.meta)})
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

    async def _rows(
        self,
        name: Literal["entries", "transcript"],
        asked: EntriesQuery | TranscriptQuery,
        archived: Callable[[dict[str, Any], dict[str, Any] | None], AsyncIterator[dict[str, Any]]],
    ) -> AsyncIterator[dict[str, Any]]:
        """The rows of a session's pages, and before them, or for a session that has ended, those of its archive."""
        seq: int | None = asked.from_seq
        left = asked.limit
        while seq is not None:
            page = await self._page(name, asked.model_copy(update={"from_seq": seq, "limit": left}))
            if page is None or "archived_before" in page:
                upto = None if page is None else page["archived_before"] - 1
                where = {"session_id": self.session_id, "from_seq": seq, "to_seq": upto, "limit": left}
                rows = archived(where, page)
                seq = None if upto is None else upto + 1
            else:
                rows = _each(page["messages" if name == "transcript" else "entries"])
                seq = page.get("next_seq")
            async for row in rows:
                yield row
                left = None if left is None else left - 1
                if left == 0:
                    return

    async def _page(self, name: str, asked: EntriesQuery | TranscriptQuery) -> dict[str, Any] | None:
        """A page of a session's own; None: it has ended, and its archive knows all, and perhaps more by now."""
        try:
            return await self.query(name, asked, only_open=name == "entries")
        except Closed:
            return None

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

    async def _back(self, at_seq: int | None = None) -> Back:
        """Reads from the newest entry back, or from a seq."""
        page = await self.page(self._input(to_seq=at_seq, newest=1))
        return Back(self, page["entries"][-1]["seq"] if page["entries"] else -1)

    async def _active_lane(self, ended: bool) -> str:
        if ended:
            back = await self._back()
            async for entry in back.read("ai_context_operation"):
                if entry.payload["operation"]["type"] == "switch":
                    return str(entry.payload["context_ref"])
            return DEFAULT_LANE
        return str((await self.query("status"))["active_context_ref"])

    async def _system_messages(self) -> list[dict[str, Any]]:
        async for config in self._newest(self._input(kind="config", newest=1)):
            if prompt := system_prompt_of(config.payload):
                return [{"role": "system", "content": prompt, "seq": config.seq}]
        return []

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
class Back:
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


async def _each(rows: Iterable[dict[str, Any]]) -> AsyncIterator[dict[str, Any]]:
    for row in rows:
        yield row
