"""Large tool results: stored whole in the archive, shown in part, and read on by the model that asked."""

from __future__ import annotations

import asyncio
import codecs
from typing import Annotated

from pydantic import Field
from temporalio import activity

from activities.archive import Archive, ArchiveError, ObjectDamaged, ObjectMissing
from activities.asking import ask, own_session
from activities.providers.sanitize import cut
from clew.entries import Entry
from clew.tools import tool
from workflows.effects import STORING_SECONDS, RunTool, StoredResult, ToolAnswered

MAX_MARK_BYTES = 200
"""Of what is said about the part of a result that is shown."""
WIDEST_CHARACTER = 4


@tool(timeout_seconds=60, retries=2)
def read_result(
    tool_call_id: str,
    offset: Annotated[int, Field(ge=0)] = 0,
    length: Annotated[int, Field(ge=1)] = 16_384,
) -> str:
    """Read more of a tool result that was truncated: up to `length` bytes of it, from the byte `offset` on."""
    raise NotImplementedError("its calls are answered by `Results.read`, which knows where results are")


READ_RESULT = read_result
"""What Clew adds to the tools of a session, so that its model can read on."""


_utf8 = codecs.getincrementaldecoder("utf-8")


class Unreadable(Exception):
    """There is nothing to be read, for a reason that the model is told."""


class Results:
    """The tool results of sessions: the part of each that is shown, and the whole of it in the archive."""

    def __init__(self, archive: Archive) -> None:
        self._archive = archive

    async def shown(self, data: bytes, call: RunTool, *, readable: bool) -> ToolAnswered:
        """A result, which is UTF-8, as far as it has room; where there is more, all of it is stored first.

        The tool has done its work, so nothing that is wrong with the store is an error. `readable`: the model has
        `read_result`.
        """
        if len(data) <= call.max_result_bytes:
            return ToolAnswered(content=data.decode())
        if call.family is None:
            return ToolAnswered(content=truncated(data, call.max_result_bytes)[0])
        try:
            async with asyncio.timeout(STORING_SECONDS):
                digest = await self._archive.put_result(call.family, data)
        except (ArchiveError, TimeoutError) as error:
            activity.logger.warning("a tool result of %d bytes could not be stored: %s", len(data), error)
            content, _ = truncated(data, call.max_result_bytes, "; the rest could not be stored")
            return ToolAnswered(content=content)
        how = f"; read_result(tool_call_id={call.tool_call_id!r}, offset={{shown}}) reads on" if readable else ""
        content, shown = truncated(data, call.max_result_bytes, how)
        return ToolAnswered(content=content, result=StoredResult(digest=digest, bytes=len(data), shown=shown))

    async def read(self, call: RunTool, tool_call_id: str, offset: int, length: int) -> str:
        """A part of a result of this thread, between characters, with a mark that says which part it is.

        Raises:
            Unreadable: there is no such result, or no such part of it, or it is damaged.
            ArchiveError: the archive cannot be read at present.
        """
        entry = await self._result(tool_call_id)
        if entry is None:
            raise Unreadable(f"no tool call {tool_call_id[:100]!r} has a result in this session")
        stored = StoredResult.model_validate(entry.payload["result"]) if "result" in entry.payload else None
        if stored is None or call.family is None:
            raise Unreadable(f"of the result of {tool_call_id!r} there is nothing but what was shown")
        if offset >= stored.bytes:
            raise Unreadable(f"offset {offset} is behind the end: the result has {stored.bytes} bytes")
        room = max(min(length, call.max_result_bytes - MAX_MARK_BYTES), WIDEST_CHARACTER)
        start = max(offset - WIDEST_CHARACTER + 1, 0)
        try:
            data, size = await self._archive.get_result(call.family, stored.digest, start, offset - start + room)
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
        if size != stored.bytes or not text:
            raise Unreadable("what was stored of it is damaged")
        end = begin + len(text.encode())
        on = f"offset={end} reads on" if end < size else "this is the end"
        return f"{text}\n[bytes {begin} to {end} of {size}; {on}]"

    async def _result(self, tool_call_id: str) -> Entry | None:
        """The entry with the result of a tool call, from the session's own thread, its archived part included."""
        asked = {"kind": "ai_message", "tool_call_id": tool_call_id}
        page = await ask(own_session(), "entries", asked)
        if page["entries"]:
            return Entry.from_json(page["entries"][0])
        head = await self._archive.head(activity.info().workflow_id or "") if "archived_before" in page else None
        if head is None:
            return None
        async for entry in self._archive.read_back(head.family, head.root, kinds=frozenset({"ai_message"})):
            if entry.refs.get("tool_call_id") == tool_call_id:
                return entry
        return None


def truncated(data: bytes, limit: int, more: str = "") -> tuple[str, int]:
    """The beginning of a text of UTF-8 that is over a limit, with a mark, and how many bytes of it are shown.

    `more` is what the mark says beside that; it may name their number as `{shown}`.
    """
    mark = f"\n[truncated: the first {{shown}} of {len(data)} bytes are shown{more}]"
    kept = cut(data, limit - len(mark) - 16)
    shown = len(kept.encode())
    return kept + mark.format(shown=shown), shown
