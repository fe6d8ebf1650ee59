"""The viewers' side of the live channel: one reader of a process reads the streams of all watched sessions."""

from __future__ import annotations

import asyncio
import logging
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any
from weakref import WeakKeyDictionary, WeakValueDictionary

from temporalio.client import Client

from clew.session.live.channel import FIELD, Channel, Connection, Item, connect, find_errors, find_group
from clew.session.transport import Pauses

BLOCK_SECONDS = 5.0
"""Longest time of one read. The server answers it as soon as there is an item."""
ANSWER_SECONDS = BLOCK_SECONDS + 2.0
"""Time within which the server answers."""
READ_ITEMS = 256
"""Most items of a stream that one read returns."""
KEPT_SECONDS = 60
"""Seconds for which the server keeps the stream that ends a read early."""
FIRST_PAUSE_SECONDS = 0.2
LONGEST_PAUSE_SECONDS = 5.0
"""Seconds until a server that has not answered is asked again, at first and at most."""
IDLE_SECONDS = 30.0
"""Seconds without a viewer after which the connection is closed. The viewers of a session's next message find it."""
BEGINNING = b"0-0"

log = logging.getLogger("clew")

_channels: WeakKeyDictionary[Client, Channel] = WeakKeyDictionary()
_readers: WeakKeyDictionary[asyncio.AbstractEventLoop, WeakValueDictionary[Channel, Reader]] = WeakKeyDictionary()


def use_channel(client: Client, address: str) -> None:
    """Have the viewers of a client's sessions read the channel at an address."""
    _channels[client] = Channel.of(client, address)


def find_reader(client: Client) -> Reader | None:
    """Find the reader of a client's channel in this event loop, or make it; None: the client has no channel."""
    channel = _channels.get(client)
    if channel is None:
        return None
    readers = _readers.setdefault(asyncio.get_running_loop(), WeakValueDictionary())
    reader = readers.get(channel)
    if reader is None:
        reader = readers[channel] = Reader(channel)
    return reader


@dataclass(eq=False, slots=True)
class _Watch:
    """A session that is watched.

    Attributes:
        session_id: The session.
        take: Takes new items of both its streams. Items may come again after the connection was lost.
    """

    session_id: str
    take: Callable[[Sequence[Item]], None]


@dataclass(eq=False, slots=True)
class _Cursor:
    """A stream that is read.

    Attributes:
        watch: Who reads it.
        read: The newest item that was read.
    """

    watch: _Watch
    read: bytes = BEGINNING


@dataclass(eq=False, slots=True)
class _Group:
    """The streams that one call reads.

    Attributes:
        wake: The stream whose item ends a read, so that the next one has another session, too.
        cursors: The streams.
        task: Reads them.
        woken: The newest item of `wake` that was read.
    """

    wake: bytes
    cursors: dict[bytes, _Cursor] = field(default_factory=dict)
    task: asyncio.Task[None] | None = None
    woken: bytes = BEGINNING


class Reader:
    """Reads the streams of sessions in one event loop.

    Attributes:
        channel: The channel.
        is_up: The server has answered the last call.
    """

    def __init__(self, channel: Channel) -> None:
        self.channel = channel
        self.is_up = True
        self._id = uuid.uuid4().hex.encode()
        self._groups: dict[int, _Group] = {}
        self._connection: Connection | None = None
        self._connecting = asyncio.Lock()
        self._viewers, self._changed = 0, asyncio.Event()
        self._holding: asyncio.Task[None] | None = None
        self._is_cluster: bool | None = None

    @contextmanager
    def watch(self, session_id: str, take: Callable[[Sequence[Item]], None]) -> Iterator[None]:
        """Read a session's streams while the body runs, from their oldest items on."""
        watch = _Watch(session_id, take)
        self._count(1)
        if self._holding is None:
            self._holding = asyncio.create_task(self._hold())
        task = asyncio.create_task(self._add(watch))
        try:
            yield
        finally:
            task.cancel()
            for number, group in list(self._groups.items()):
                group.cursors = {stream: cursor for stream, cursor in group.cursors.items() if cursor.watch != watch}
                if not group.cursors:
                    del self._groups[number]
                    if group.task:
                        group.task.cancel()
            self._count(-1)

    def _count(self, more: int) -> None:
        self._viewers += more
        self._changed.set()

    async def _add(self, watch: _Watch) -> None:
        """Read what the session's streams have, and have the group read them from there on."""
        name = self.channel.name_decisions(watch.session_id), self.channel.name_stream(watch.session_id)
        cursors = {stream: _Cursor(watch) for stream in name}
        pauses = Pauses(FIRST_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS)
        while True:
            try:
                connection = await self._connect()
                answer = await connection.xread({**dict.fromkeys(cursors, BEGINNING)}, count=READ_ITEMS)
                break
            except find_errors():
                await self._lose()
                await pauses.wait()
        await self._take(answer, cursors)
        # A cluster has the streams of a group on one server; a single server has all.
        number = find_group(name[0]) if self._is_cluster else 0
        group = self._groups.setdefault(number, _Group(b"clew:{%d}:wake:%s" % (number, self._id)))
        group.cursors |= cursors
        if group.task is None:
            group.task = asyncio.create_task(self._read(group))
            return
        with suppress(*find_errors()):
            await connection.xadd(group.wake, {FIELD: b""}, maxlen=1, approximate=False)
            await connection.expire(group.wake, KEPT_SECONDS)

    async def _hold(self) -> None:
        """Hold the connection until there has been no viewer for a while."""
        try:
            while self._changed.is_set():
                self._changed.clear()
                with suppress(TimeoutError):
                    async with asyncio.timeout(None if self._viewers else IDLE_SECONDS):
                        await self._changed.wait()
        finally:
            self._holding = None
            await self._disconnect()

    async def _connect(self) -> Connection:
        async with self._connecting:
            if self._connection is None:
                connection = await connect(self.channel.address, ANSWER_SECONDS)
                self._is_cluster = type(connection).__name__ == "RedisCluster"
                self._connection = connection
            return self._connection

    async def _lose(self) -> None:
        """Give the connection up. What comes next is read from the beginning: the server may be another one."""
        self.is_up = False
        await self._disconnect()

    async def _disconnect(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            with suppress(*find_errors()):
                await connection.aclose()

    async def _read(self, group: _Group) -> None:
        pauses = Pauses(FIRST_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS)
        while group.cursors:
            try:
                connection = await self._connect()
                streams: dict[Any, Any] = {stream: cursor.read for stream, cursor in group.cursors.items()}
                answer: Any = await connection.xread(
                    streams | {group.wake: group.woken}, count=READ_ITEMS, block=int(BLOCK_SECONDS * 1000)
                )
                self.is_up = True
                pauses = Pauses(FIRST_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS)
            except find_errors() as error:
                log.info("live text cannot be read (%s)", type(error).__name__)
                await self._lose()
                for cursor in group.cursors.values():
                    cursor.read = BEGINNING
                group.woken = BEGINNING
                await pauses.wait()
                continue
            for stream, items in answer or ():
                if stream == group.wake:
                    group.woken = items[-1][0]
            await self._take(answer, group.cursors)

    async def _take(self, answer: Any, cursors: Mapping[bytes, _Cursor]) -> None:
        for stream, items in answer or ():
            if cursor := cursors.get(stream):
                cursor.read = items[-1][0]
                data = [fields.get(FIELD, b"") for _, fields in items]
                cursor.watch.take(await self._decode(cursor.watch.session_id, data))

    async def _decode(self, session_id: str, data: Sequence[bytes]) -> list[Item]:
        def decode() -> list[Item]:
            return [item for each in data if (item := self.channel.decode(session_id, each))]

        return await asyncio.to_thread(decode) if self.channel.sealer.blocks else decode()
