"""Large tool results: stored whole in the archive, shown in part, and read on by the model that asked."""

from __future__ import annotations

import asyncio
import codecs
from collections.abc import AsyncIterator
from typing import Annotated

from pydantic import Field, ValidationError
from temporalio import activity

from clew.contract import EntriesQuery
from clew.contract.payloads import OperationPayload, StoredResult, ToolMessage
from clew.thread.entries import Entry
from clew.thread.source import make_filter
from clew.tools import tool
from clew_activities.archive import Archive, ArchiveError, ObjectDamaged, ObjectMissing
from clew_activities.providers.sanitize import cut
from clew_activities.thread_source import Threads
from clew_workflows.protocol import STORING_SECONDS, RunTool, ToolAnswered

MAX_MARK_BYTES = 200
"""Of what is said about the part of a result that is shown."""
WIDEST_CHARACTER = 4
MAX_STORED_BYTES = 16 * 1024 * 1024
"""Largest tool result that is stored, in bytes. What is beyond that is dropped, and the mark says so."""


@tool(timeout_seconds=60, retries=2)
def read_result(
    tool_call_id: str,
    offset: Annotated[int, Field(ge=0)] = 0,
    length: Annotated[int, Field(ge=1)] = 16_384,
) -> str:
    """Read a tool result that was truncated or cleared: up to `length` bytes of it, from the byte `offset` on."""
    raise NotImplementedError("its calls are answered by `Results.read`, which knows where results are")


READ_RESULT = read_result
"""What Clew adds to the tools of a session, so that its model can read on."""


_utf8 = codecs.getincrementaldecoder("utf-8")


class Unreadable(Exception):
    """There is nothing to be read, for a reason that the model is told."""


class Results:
    """The tool results of sessions: the part of each that is shown, and the whole of it in the archive.

    `storing_seconds` bounds the storing of one: the session waits for `STORING_SECONDS` beyond the tool's own time.
    """

    def __init__(self, archive: Archive, threads: Threads, *, storing_seconds: float = STORING_SECONDS) -> None:
        self._archive = archive
        self._threads = threads
        self._storing_seconds = storing_seconds

    async def make_answer(self, data: bytes, call: RunTool, *, readable: bool) -> ToolAnswered:
        """A result, which is UTF-8, as far as it has room; where there is more, all of it is stored first.

        The tool has done its work, so nothing that is wrong with the store is an error. `readable`: the model has
        `read_result`.
        """
        if len(data) <= call.max_result_bytes:
            return ToolAnswered(content=data.decode())
        if call.family is None:
            return ToolAnswered(content=truncate(data, call.max_result_bytes)[0])
        dropped = ""
        if len(data) > MAX_STORED_BYTES:
            dropped = f"; only {MAX_STORED_BYTES} bytes of {len(data)} were stored"
            data = cut(data, MAX_STORED_BYTES).encode()
        try:
            async with asyncio.timeout(self._storing_seconds):
                digest = await self._archive.put_result(call.family, data)
        except (ArchiveError, TimeoutError) as error:
            activity.logger.warning("a tool result of %d bytes could not be stored: %s", len(data), error)
            content, _ = truncate(data, call.max_result_bytes, "; the rest could not be stored")
            return ToolAnswered(content=content)
        how = f"; read_result(tool_call_id={call.tool_call_id!r}, offset={{shown}}) reads on" if readable else ""
        content, shown = truncate(data, call.max_result_bytes, dropped + how)
        return ToolAnswered(content=content, result=StoredResult(digest=digest, bytes=len(data), shown=shown))

    async def read(self, call: RunTool, tool_call_id: str, offset: int, length: int) -> str:
        """A part of a result of this thread, between characters, with a mark that says which part it is.

        Raises:
            Unreadable: there is no such result, or no such part of it, or it is damaged.
            ArchiveError: the archive cannot be read at present.
        """
        result = await self._find_result(tool_call_id)
        if result is None:
            raise Unreadable(f"no tool call {tool_call_id[:100]!r} has a result in this session")
        content, stored = result
        inline = b"" if stored and call.family else content.encode()
        size = stored.bytes if stored and call.family else len(inline)
        if offset >= size:
            raise Unreadable(f"offset {offset} is behind the end: the result has {size} bytes")
        room = max(min(length, call.max_result_bytes - MAX_MARK_BYTES), WIDEST_CHARACTER)
        start = max(offset - WIDEST_CHARACTER + 1, 0)
        length_read = offset - start + room
        data, stored_bytes = inline[start : start + length_read], size
        if stored and call.family:
            try:
                data, stored_bytes = await self._archive.get_result(call.family, stored.digest, start, length_read)
            except (ObjectMissing, ObjectDamaged) as error:
                raise Unreadable(f"what was stored of it cannot be read any more: {error}") from None
        # A character that the offset divides belongs to what is read.
        first = offset - start
        while first > 0 and data[first : first + 1] and data[first] & 0xC0 == 0x80:
            first -= 1
        begin, piece = start + first, data[first : first + room]
        try:
            text = _utf8().decode(piece, final=begin + len(piece) == size)
        except UnicodeDecodeError:
            text = ""
        if stored_bytes != size or not text:
            raise Unreadable("what was stored of it is damaged")
        end = begin + len(text.encode())
        continuation = f"offset={end} reads on" if end < size else "this is the end"
        return f"{text}\n[bytes {begin} to {end} of {size}; {continuation}]"

    async def _find_result(self, tool_call_id: str) -> tuple[str, StoredResult | None] | None:
        """The result of a tool call as the session's own thread has it, or else the newest snapshot in there.

        That is what is shown of it, and where the whole of it is stored.
        """
        try:
            query = EntriesQuery(kind="ai_message", tool_call_id=tool_call_id)
        except ValidationError:
            # The model has made up an id that no tool call can have.
            return None
        async for entry in self._read_newest(query):
            tool_message = entry.read(ToolMessage)
            return tool_message.content, tool_message.result
        async for entry in self._read_newest(EntriesQuery(kind="ai_context_operation")):
            snapshot = entry.read(OperationPayload).snapshot
            for message in snapshot.messages if snapshot else ():
                if message.get("tool_call_id") == tool_call_id:
                    return message["content"], None
        return None

    async def _read_newest(self, query: EntriesQuery) -> AsyncIterator[Entry]:
        """The session's entries that meet the filters, the newest first."""
        matches = make_filter(query)
        async for entry in self._threads.read_backward(self._threads.find_own(), query):
            if matches(entry):
                yield entry


def truncate(data: bytes, limit: int, more: str = "") -> tuple[str, int]:
    """The beginning of a text of UTF-8 that is over a limit, with a mark, and how many bytes of it are shown.

    `more` is what the mark says beside that; it may name their number as `{shown}`.
    """
    mark = f"\n[truncated: the first {{shown}} of {len(data)} bytes are shown{more}]"
    text = cut(data, limit - len(mark) - 16)
    shown = len(text.encode())
    return text + mark.format(shown=shown), shown
