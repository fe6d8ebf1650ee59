"""What calls show while they run: workers write it to the live channel, and their heartbeats have it.

A call only marks that it has said something new. One task writes for all calls of the process: the newest of each, in
one request. No call waits for it, and it keeps no queue: while the server does not answer, calls go on, and the first
item after that has all that was said.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias

from temporalio import activity

from clew.session.live.channel import DECISIONS_SECONDS, FIELD, Channel, Connection, Item, Said, connect, find_errors
from clew.session.transport import Pauses
from clew_activities.heartbeats import send_heartbeats
from clew_workflows.contract.outputs import ReplyProgress, ToolProgress
from clew_workflows.host.local_runs import LOCAL_RUNS, Decided

WHOLE_SECONDS = 1.0
"""Seconds after which an item has all that was said, also if nothing is new. Viewers that come late begin with it.
They read heartbeats if none comes."""
BEGIN_SECONDS = 0.1
"""Seconds until a call that has said nothing is written. Its first word does not wait behind that item."""
WHOLE_ITEMS = 100
"""Items after which the next one has all, too."""
WHOLE_BYTES_PER_SECOND = 32 * 1024
"""A long text comes whole so rarely that it is no more than this."""
MAX_ITEMS = 256
"""Newest items that a stream keeps."""
KEPT_SECONDS = 120
"""Seconds after its last item in which a stream is kept."""
MAX_DECIDED = 1_000
"""Decisions that wait for the server; the oldest are dropped."""
MAX_DECIDED_BYTES = 64 * 1024
"""Largest decision that is written. For others viewers query the session."""
MAX_DECISIONS = 32
"""Newest decisions that a session's stream keeps."""
ITEMS_PER_SECOND = 5_000
"""Most items of a process in a second. With many calls each writes less often."""
FASTEST_SECONDS = 0.01
"""Shortest time between two requests."""
WRITE_SECONDS = 2.0
"""Time within which the server answers."""
FIRST_PAUSE_SECONDS = 0.5
LONGEST_PAUSE_SECONDS = 10.0
"""Seconds until it is tried again, at first and at most; each pause is twice as long as the one before."""

Read: TypeAlias = Callable[[int, int], ReplyProgress | ToolProgress]
"""Reads what a call has said: its text and its reasoning from these characters on."""
Note: TypeAlias = Callable[[], None]
"""Notes that a call has said something new. Called in the event loop's thread alone."""

log = logging.getLogger("clew.worker")


@dataclass(eq=False, slots=True)
class _Call:
    """One attempt of a call.

    Attributes:
        session_id: The session.
        stream: Its stream.
        run_id: The workflow run.
        read: Reads what it has said.
        activity_id: The activity.
        attempt: The attempt.
        text: Characters of its text that were written.
        thinking: The same of its reasoning.
        whole_at: When it is written whole again; in seconds of the event loop.
        items: Items since it was written whole.
        has_ended: The attempt is over.
    """

    session_id: str
    stream: bytes
    run_id: str
    read: Read
    activity_id: str
    attempt: int
    text: int = 0
    thinking: int = 0
    whole_at: float = 0.0
    items: int = 0
    has_ended: bool = False

    def take(self, now: float) -> Said:
        """Take what is new, or all of it if that is due."""
        if now >= self.whole_at or self.items >= WHOLE_ITEMS:
            self.text = self.thinking = self.items = 0
        is_whole = self.items == 0
        progress = self.read(self.text, self.thinking)
        if isinstance(progress, ReplyProgress):
            self.text = progress.offset + len(progress.text)
            self.thinking = progress.thinking_offset + len(progress.thinking or "")
        if is_whole:
            self.whole_at = now + max(WHOLE_SECONDS, (self.text + self.thinking) / WHOLE_BYTES_PER_SECOND)
        self.items += 1
        return Said(self.run_id, self.activity_id, self.attempt, progress, self.has_ended)


@dataclass(frozen=True, slots=True)
class _Writing:
    """An item that is written.

    Attributes:
        session_id: Its session.
        stream: The stream.
        item: The item.
        most: Items that the stream keeps.
        seconds: Seconds after which the stream vanishes, if no other item says so; None: it has been said.
    """

    session_id: str
    stream: bytes
    item: Item
    most: int
    seconds: int | None


def _encode(channel: Channel, writing: _Writing) -> bytes:
    data = channel.encode(writing.session_id, writing.item)
    if isinstance(writing.item, Decided) and len(data) > MAX_DECIDED_BYTES:
        return channel.encode(writing.session_id, replace(writing.item, page=None))
    return data


@dataclass(eq=False)
class LiveWriter:
    """Shows what the calls of a process say. Without a channel their heartbeats alone show it.

    Attributes:
        channel: The channel; None: there is none.
    """

    channel: Channel | None = None
    _calls: set[_Call] = field(default_factory=set)
    _decided: dict[tuple[str, str, int, int], Decided] = field(default_factory=dict)
    _new: dict[_Call, None] = field(default_factory=dict)
    _has_new: asyncio.Event = field(default_factory=asyncio.Event)
    _task: asyncio.Task[None] | None = None
    _connection: Connection | None = None
    _publish: Callable[[Decided], None] | None = None
    _is_closed: bool = False

    @asynccontextmanager
    async def show(self, describe: Callable[[], Sequence[Any]], read: Read) -> AsyncIterator[Note]:
        """Show what the current activity says while the body runs. It calls the given function when something is new.

        Args:
            describe: Makes the details of a heartbeat.
            read: Reads the same for the channel.
        """
        async with send_heartbeats(describe, shows=True) as note_heartbeats:
            if self.channel is None:
                yield note_heartbeats
                return
            info = activity.info()
            session_id = info.workflow_id or ""
            call = _Call(
                session_id,
                self.channel.name_stream(session_id),
                info.workflow_run_id or "",
                read,
                info.activity_id,
                info.attempt,
            )

            def note() -> None:
                note_heartbeats()
                self._note(call)

            if info.attempt == 1:
                call.whole_at = asyncio.get_running_loop().time() + BEGIN_SECONDS
            self._calls.add(call)
            self._wake()
            try:
                yield note
            finally:
                call.has_ended = True
                self._note(call)

    def serve_sessions(self) -> None:
        """Write from now on what the sessions of this process decide."""
        if self.channel is not None:
            loop = asyncio.get_running_loop()

            def publish(decided: Decided) -> None:
                # The loop may be closed while a worker stops.
                with suppress(RuntimeError):
                    loop.call_soon_threadsafe(self._take, decided)

            self._publish = LOCAL_RUNS.publish = publish

    def _take(self, decided: Decided) -> None:
        self._decided[decided.session_id, decided.run_id, *decided.task] = decided
        if len(self._decided) > MAX_DECIDED:
            del self._decided[next(iter(self._decided))]
        self._wake()

    def _wake(self) -> None:
        self._has_new.set()
        if self.channel and not self._is_closed and (self._task is None or self._task.done()):
            self._task = asyncio.create_task(self._run(self.channel))

    async def delete(self, session_id: str) -> None:
        """Delete the streams of a session. If the server does not answer, they vanish after `DECISIONS_SECONDS`."""
        if self.channel is None:
            return
        self._decided = {key: decided for key, decided in self._decided.items() if decided.session_id != session_id}
        try:
            connection = self._connection or await connect(self.channel.address, WRITE_SECONDS)
            await connection.delete(self.channel.name_stream(session_id), self.channel.name_decisions(session_id))
            if connection is not self._connection:
                await connection.aclose()
        except find_errors() as error:
            log.warning("a deleted session's streams stay for %d s (%s)", DECISIONS_SECONDS, type(error).__name__)

    async def close(self) -> None:
        """Write no more."""
        self._is_closed = True
        if LOCAL_RUNS.publish is self._publish:
            LOCAL_RUNS.publish = None
        if self._task:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        await self._disconnect()

    def _note(self, call: _Call) -> None:
        if call in self._calls:
            self._new[call] = None
            self._wake()

    async def _run(self, channel: Channel) -> None:
        """Write while there is something to write, or a call runs."""
        loop, pauses = asyncio.get_running_loop(), Pauses(FIRST_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS)
        while self._calls or self._decided:
            began = loop.time()
            try:
                written = await self._write(channel, began)
                pauses = Pauses(FIRST_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS)
            except find_errors() as error:
                log.warning("live text: the server does not take it (%s)", type(error).__name__)
                await self._disconnect()
                await pauses.wait()
                # Viewers have asked the session meanwhile.
                self._decided.clear()
                for call in self._calls:
                    call.whole_at = 0.0
                continue
            if written:
                await asyncio.sleep(began + max(FASTEST_SECONDS, written / ITEMS_PER_SECOND) - loop.time())
            if self._calls and not (self._new or self._decided):
                self._has_new.clear()
                due = min((call.whole_at for call in self._calls), default=loop.time())
                timer = loop.call_at(due, self._has_new.set)
                await self._has_new.wait()
                timer.cancel()

    async def _write(self, channel: Channel, now: float) -> int:
        """Write what sessions have decided, and the newest of each call. Returns the number of items."""
        due = [call for call in self._calls if call in self._new or now >= call.whole_at]
        self._new.clear()
        self._calls = {call for call in self._calls if not call.has_ended}
        decided, self._decided = list(self._decided.values()), {}
        items: list[_Writing] = [
            _Writing(each.session_id, channel.name_decisions(each.session_id), each, MAX_DECISIONS, DECISIONS_SECONDS)
            for each in decided
        ]
        for call in due:
            said = call.take(now)
            seconds = KEPT_SECONDS if call.items == 1 else None
            items.append(_Writing(call.session_id, call.stream, said, MAX_ITEMS, seconds))
        if not items:
            return 0

        def encode() -> list[bytes]:
            return [_encode(channel, each) for each in items]

        data = await asyncio.to_thread(encode) if channel.sealer.blocks else encode()
        async with asyncio.timeout(2 * WRITE_SECONDS):
            if self._connection is None:
                self._connection = await connect(channel.address, WRITE_SECONDS)
            pipeline = self._connection.pipeline(transaction=False)
            for each, written in zip(items, data, strict=True):
                pipeline.xadd(each.stream, {FIELD: written}, maxlen=each.most, approximate=False)
                if each.seconds is not None:
                    pipeline.expire(each.stream, each.seconds)
            await pipeline.execute()
        return len(items)

    async def _disconnect(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            try:
                await connection.aclose()
            except find_errors() as error:
                log.debug("the connection of live text did not close: %s", type(error).__name__)
