"""Large tool results, stored in the archive and read in parts by the model, and the blobs that it sees again."""

from __future__ import annotations

import asyncio
import codecs
from collections.abc import AsyncIterator
from typing import Annotated

from pydantic import Field, ValidationError
from temporalio import activity

from clew.tools import tool
from clew_activities.archive import Archive, ArchiveError, ObjectDamaged, ObjectMissing
from clew_activities.archive.thread_source import Threads
from clew_workflows.contract import EntriesQuery
from clew_workflows.contract.content import Content, Part, get_blob, get_text, list_media
from clew_workflows.contract.messages import truncate_result, truncate_utf8
from clew_workflows.contract.payloads import (
    AppliedWithdraw,
    MessagePayload,
    OperationPayload,
    StoredResult,
    ToolMessage,
    UserMessage,
)
from clew_workflows.protocol import STORING_SECONDS, RunTool, ToolAnswered
from clew_workflows.thread.entries import Entry
from clew_workflows.thread.source import make_filter

MAX_MARK_BYTES = 200
"""Largest mark behind a part of a result, in bytes."""
WIDEST_CHARACTER = 4
"""Bytes of the longest character in UTF-8."""
MIN_DIGEST_CHARACTERS = 8
"""Fewest digits of a digest that name a blob."""
MAX_BLOB_CHARACTERS = 300
"""Most characters by which a model names a blob."""
MAX_STORED_BYTES = 16 * 1024 * 1024
"""Largest tool result that is stored, in bytes. The rest is dropped, and the mark says so."""


# Clew adds this tool to a session's tools, so that its model can read truncated results.
@tool(timeout_seconds=60, retries=2)
def read_result(
    tool_call_id: str,
    offset: Annotated[int, Field(ge=0)] = 0,
    length: Annotated[int, Field(ge=1)] = 16_384,
) -> str:
    """Read a tool result that was truncated or cleared: up to `length` bytes of it, from the byte `offset` on."""
    raise NotImplementedError("`Results.read` answers its calls")


# Clew adds this tool to the tools of a session that has images, recordings or files.
@tool(timeout_seconds=60, retries=2)
def view_blob(
    blob: Annotated[str, Field(min_length=1, max_length=MAX_BLOB_CHARACTERS)],
) -> str:
    """Show an image, a recording or a file again: the newest with a marker's digest, or with a name."""
    raise NotImplementedError("`Results.view` answers its calls")


BUILT_IN = {tool.name: tool for tool in (read_result, view_blob)}
"""The tools that Clew adds to those of a configuration, by name."""

_utf8 = codecs.getincrementaldecoder("utf-8")


class Unreadable(Exception):
    """The requested part of a result cannot be read. The model reads the message."""


def find_stored_result(entry: Entry) -> str | None:
    """Find the digest of what an entry refers to: a large tool result, or the earlier calls of a summary."""
    body, recipe = entry.body, entry.summary_recipe
    if isinstance(body, ToolMessage):
        return body.result.digest if body.result else None
    return recipe.earlier_calls if recipe else None


def _is_named(part: Part, name: str) -> bool:
    """Whether a text names a part: by the beginning of the blob's digest, by its name, or by the image's address."""
    blob = get_blob(part)
    if blob is None:
        return len(name) >= MIN_DIGEST_CHARACTERS and str(part.get("url", "")).startswith(name)
    is_digest = len(name) >= MIN_DIGEST_CHARACTERS and blob["digest"].startswith(name.lower())
    return is_digest or blob.get("name") == name


class Results:
    """Truncates large tool results, stores them in the archive, and reads them back.

    `storing_seconds` bounds the storing of one result. The session waits for `STORING_SECONDS` after the tool's own
    timeout.
    """

    def __init__(self, archive: Archive, threads: Threads, *, storing_seconds: float = STORING_SECONDS) -> None:
        self.archive = archive
        self.threads = threads
        self._storing_seconds = storing_seconds

    async def make_answer(self, data: bytes, call: RunTool, *, readable: bool) -> ToolAnswered:
        """Make the answer of a tool call. A result that is too large is stored first, then truncated.

        The tool has run, so a failure of the store is logged and does not fail the call.

        Args:
            data: The result, in UTF-8.
            call: The call.
            readable: The model has the tool `read_result`.
        """
        if len(data) <= call.max_result_bytes:
            return ToolAnswered(content=data.decode())
        if call.family is None:
            return ToolAnswered(content=truncate_result(data, call.max_result_bytes)[0])
        dropped = ""
        if len(data) > MAX_STORED_BYTES:
            dropped = f"; only {MAX_STORED_BYTES} bytes of {len(data)} were stored"
            data = truncate_utf8(data, MAX_STORED_BYTES).encode()
        try:
            async with asyncio.timeout(self._storing_seconds):
                digest = await self.archive.put_result(call.family, data)
        except (ArchiveError, TimeoutError) as error:
            activity.logger.warning("a tool result of %d bytes could not be stored: %s", len(data), error)
            content, _ = truncate_result(data, call.max_result_bytes, "; the rest could not be stored")
            return ToolAnswered(content=content)
        how = f"; read_result(tool_call_id={call.tool_call_id!r}, offset={{shown}}) reads on" if readable else ""
        content, shown = truncate_result(data, call.max_result_bytes, dropped + how)
        return ToolAnswered(content=content, result=StoredResult(digest=digest, bytes=len(data), shown=shown))

    async def read(self, call: RunTool, tool_call_id: str, offset: int, length: int) -> str:
        """Read a part of a result of this thread, truncated between characters, with a mark that names the part.

        Raises:
            Unreadable: There is no such result or part, or it is damaged.
            ArchiveError: The archive cannot be read at present.
        """
        result = await self._find_result(tool_call_id)
        if result is None:
            raise Unreadable(
                f"no tool call {tool_call_id[:100]!r} has a result in this session: take the id that the marker names"
            )
        content, stored = result
        inline = b"" if stored and call.family else content.encode()
        size = stored.bytes if stored and call.family else len(inline)
        if offset >= size:
            raise Unreadable(f"offset {offset} is past the end: the result has {size} bytes")
        room = max(min(length, call.max_result_bytes - MAX_MARK_BYTES), WIDEST_CHARACTER)
        start = max(offset - WIDEST_CHARACTER + 1, 0)
        length_read = offset - start + room
        data, stored_bytes = inline[start : start + length_read], size
        if stored and call.family:
            try:
                data, stored_bytes = await self.archive.get_result(call.family, stored.digest, start, length_read)
            except (ObjectMissing, ObjectDamaged) as error:
                raise Unreadable(f"the stored result cannot be read: {error}") from None
        # If the offset is within a character, start with that character.
        first = offset - start
        while first > 0 and data[first : first + 1] and data[first] & 0xC0 == 0x80:
            first -= 1
        begin, piece = start + first, data[first : first + room]
        try:
            text = _utf8().decode(piece, final=begin + len(piece) == size)
        except UnicodeDecodeError:
            text = ""
        if stored_bytes != size or not text:
            raise Unreadable("the stored result is damaged")
        end = begin + len(text.encode())
        continuation = f"offset={end} reads on" if end < size else "this is the end"
        return f"{text}\n[bytes {begin} to {end} of {size}; {continuation}]"

    async def view(self, blob: str) -> Part:
        """Find the image, the recording or the file that a marker names: the newest of the thread.

        Raises:
            Unreadable: No message of the thread has it.
            ArchiveError: The archive cannot be read at present.
        """
        sought = blob.strip()
        withdrawn: list[tuple[int, int]] = []
        async for entry in self._read_newest(EntriesQuery()):
            body = entry.body
            contents: list[Content] = []
            if isinstance(body, OperationPayload):
                if isinstance(body.operation, AppliedWithdraw):
                    withdrawn.append((body.operation.from_seq, entry.seq))
                contents = [message["content"] for message in body.snapshot.messages] if body.snapshot else []
            elif isinstance(body, MessagePayload):
                is_withdrawn = isinstance(body, UserMessage) and any(
                    first <= entry.seq <= last for first, last in withdrawn
                )
                contents = [] if is_withdrawn else [body.content]
            for part in (part for content in reversed(contents) for part in reversed(list_media(content))):
                if _is_named(part, sought):
                    return part
        raise Unreadable(
            f"no message of this session has {sought[:100]!r}: take the digest, or the name, that a marker has"
        )

    async def _find_result(self, tool_call_id: str) -> tuple[str, StoredResult | None] | None:
        """Find the result of a tool call in the session's thread, or else in its newest snapshot.

        Returns the text in the context, and the reference to the stored result, if there is one.
        """
        try:
            query = EntriesQuery(kind="ai_message", tool_call_id=tool_call_id)
        except ValidationError:
            # The model has invented an id that is not valid.
            return None
        async for entry in self._read_newest(query):
            tool_message = entry.read(ToolMessage)
            return tool_message.text, tool_message.result
        async for entry in self._read_newest(EntriesQuery(kind="ai_context_operation")):
            snapshot = entry.read(OperationPayload).snapshot
            for message in snapshot.messages if snapshot else ():
                if message.get("tool_call_id") == tool_call_id:
                    return get_text(message["content"]), None
        return None

    async def _read_newest(self, query: EntriesQuery) -> AsyncIterator[Entry]:
        """Read the session's entries that match the filters, the newest first."""
        matches = make_filter(query)
        async for entry in self.threads.read_backward(self.threads.find_own(), query):
            if matches(entry):
                yield entry
