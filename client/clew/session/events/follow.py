"""Follow a session, or one of its requests. A hub reads each session once for all viewers in this process.

So viewers add nothing to the session's history, and nothing to its load; for a request that the session does not know
yet, one update is sent. The hub waits at the server for new events of the history. After each of the session's
decisions it queries the new entries with the status, and while calls are in flight it reads their heartbeats from the
server. Viewers read the newest snapshot when they are ready for it.
"""

from __future__ import annotations

import asyncio
import math
import time
import weakref
from collections import deque
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Iterator, Sequence
from contextlib import aclosing, contextmanager, nullcontext, suppress
from dataclasses import replace
from functools import partial
from itertools import takewhile
from typing import Any, TypeVar

from pydantic_core import to_json
from temporalio.api.enums.v1 import WorkflowExecutionStatus
from temporalio.client import Client
from temporalio.exceptions import TemporalError

from clew.session.events.event_types import EntryCommitted, SessionEvent
from clew.session.events.feed import CLOSED, HIBERNATED, Feed, Flight, Snapshot
from clew.session.events.history_polls import (
    FIRST_PAUSE_SECONDS,
    LONGEST_PAUSE_SECONDS,
    Execution,
    describe,
    is_passing,
    list_started,
    persist,
    read_flights,
    read_newest_tasks,
    watch_history,
)
from clew.session.events.live_view import LiveDecisions, LiveFlights, Task
from clew.session.handle import SessionHandle
from clew.session.live.channel import DECISIONS_SECONDS, Item, Said
from clew.session.live.reader import find_reader
from clew.session.session_reads import FollowedParts, list_calls_of_subagents, read_entries, read_newest_entry
from clew.session.transport import Pauses
from clew_workflows.contract import EntriesQuery, FollowQuery
from clew_workflows.contract.errors import ClewError, Closed, Interrupted, NotFound, UnknownRequest
from clew_workflows.contract.names import make_child_id
from clew_workflows.contract.outputs import FollowPage, LiveStatus
from clew_workflows.contract.payloads import SessionPayload, UserMessage
from clew_workflows.host.local_runs import Decided
from clew_workflows.thread.entries import Entry
from clew_workflows.thread.source import read_forward

T = TypeVar("T")

HEARTBEAT_SECONDS = 0.1
"""Seconds between two reads of the heartbeats."""
QUIET_HEARTBEAT_SECONDS = 1.0
"""The same of calls that have not changed for ten times as long."""
LIVE_SECONDS = 5.0
"""Seconds between two reads of the heartbeats of calls that the live channel tells of."""
RENEWAL_SECONDS = 20.0
"""Seconds until the query `follow` is repeated while calls are in flight: without it workers take viewers as gone."""
REST_SECONDS = 20.0
"""Longest time between two looks for a hibernated session's next workflow run, in seconds."""
TELLING_SECONDS = 0.2
"""Time in which the live channel tells what a workflow task has decided, before the session is asked."""
PREPARING_SECONDS = 2.0
"""Seconds for which a session that is being prepared is not asked for a request: it decides about it afterwards."""
SUBAGENTS_SECONDS = 3.0
"""Seconds between two looks for calls that wait in the subagents of a session whose calls run."""
RECENT_ENTRIES = 1000
"""Number of newest entries that a hub keeps at most."""
RECENT_BYTES = 2 * 1024 * 1024
"""Size of the entries that a hub keeps, in bytes of JSON."""
BLOCK_ENTRIES = 500
"""Number of older entries that are read at once."""
SHARED_READS = 4
"""Number of the latest reads of older entries whose results are kept for other viewers."""

_FAILED = {
    WorkflowExecutionStatus.WORKFLOW_EXECUTION_STATUS_TERMINATED: "was terminated",
    WorkflowExecutionStatus.WORKFLOW_EXECUTION_STATUS_TIMED_OUT: "has timed out",
    WorkflowExecutionStatus.WORKFLOW_EXECUTION_STATUS_FAILED: "has failed",
}
_hubs: weakref.WeakKeyDictionary[Client, weakref.WeakValueDictionary[tuple[int, str], Hub]] = (
    weakref.WeakKeyDictionary()
)


async def follow_session(
    handle: SessionHandle, from_seq: int | None
) -> AsyncGenerator[SessionEvent | LiveStatus, None]:
    """Yield a session's events from a seq on; None: from the next entry on. Ends after the session was closed.

    After all events that have led to it comes the session's status, whenever it was read anew.
    """
    hub = get_hub(handle)
    with hub.join():
        async with aclosing(_view(hub, from_seq)) as events:
            async for event in events:
                yield event


async def follow_request(
    handle: SessionHandle,
    request_id: str,
    wait_for_outcome: Callable[[], Awaitable[object]],
    *,
    behind: Entry | None = None,
    is_fresh: bool = False,
) -> AsyncGenerator[SessionEvent | LiveStatus, None]:
    """Yield the events of a request, from its first entry to its outcome, with the session's status while it runs.

    Args:
        handle: The session.
        request_id: The request.
        wait_for_outcome: Waits for the request's outcome.
        behind: The entry behind which they begin; None: all of them.
        is_fresh: No status comes that may be older than the call: what was decided and answered before is in it.

    Raises:
        Refusal: The session has refused the message after it had accepted it; `wait_for_outcome` says so.
        UnknownRequest: The session knows no request with this id.
    """
    hub = get_hub(handle)
    selection = _RequestEvents(request_id, behind)
    with hub.join():
        if behind is not None:
            from_seq = behind.seq + 1
        else:
            try:
                from_seq = await _share_start(hub, request_id)
            except UnknownRequest:
                # The request of a session that has ended meanwhile is in the archive.
                with suppress(Closed):
                    await wait_for_decision(handle, request_id, partial(persist, wait_for_outcome))
                from_seq = await _share_start(hub, request_id)
        # The viewers of a session share what was read of it.
        newest = await read_live_status(handle) if is_fresh else None
        async with aclosing(_view(hub, from_seq)) as events:
            async for event in events:
                if newest and isinstance(event, LiveStatus) and event.rev < newest.rev:
                    continue
                if selection.includes(event):
                    yield event
                if selection.is_outcome(event):
                    return


async def _view(hub: Hub, from_seq: int | None) -> AsyncGenerator[SessionEvent | LiveStatus, None]:
    snapshot = await hub.wait_for_snapshot()
    feed, told = Feed(snapshot.next_seq if from_seq is None else from_seq), None
    while True:
        while feed.next_seq < (snapshot := hub.snapshot).next_seq:
            for entry in await hub.read_block(feed.next_seq):
                for event in feed.take_entry(entry):
                    yield event
        for event in feed.take_snapshot(snapshot):
            yield event
        if snapshot.status is not None and snapshot.status is not told:
            yield (told := snapshot.status)
        if snapshot.ended == CLOSED:
            return
        await hub.wait_for_snapshot(snapshot)


def _is_message(entry: Entry, request_id: str) -> bool:
    return entry.refs.get("request_id") == request_id and isinstance(entry.body, UserMessage)


class _RequestEvents:
    """Selects the events of one request: its own, and those of the run that serves it."""

    def __init__(self, request_id: str, behind: Entry | None = None) -> None:
        self._request_id = request_id
        self._run_ids = {behind.refs["run_id"]} if behind and "run_id" in behind.refs else set[str]()

    def includes(self, event: SessionEvent | LiveStatus) -> bool:
        """Whether an event, or a status, belongs to the request."""
        is_own = event.request_id == self._request_id
        if isinstance(event, EntryCommitted):
            if is_own and event.run_id:
                self._run_ids.add(event.run_id)
            if event.entry.kind == "run":
                return is_own
        return is_own or event.run_id in self._run_ids

    def is_outcome(self, event: SessionEvent | LiveStatus) -> bool:
        """Whether an event is the entry with the request's outcome."""
        return (
            isinstance(event, EntryCommitted) and event.entry.kind == "run" and event.request_id == self._request_id
        )


async def wait_for_decision(
    handle: SessionHandle, request_id: str, wait_for_outcome: Callable[[], Awaitable[object]]
) -> None:
    """Wait until a session has decided about a message that it has accepted.

    While it stops a run, while a worker checks blobs, or with much to read, it decides later than it accepts. Until
    then its state lacks the request. An update that waits for the outcome is decided after the message.

    Raises:
        Closed: The session has ended.
        Refusal: The session has refused the message; `wait_for_outcome` says so.
        UnknownRequest: There is no such message.
    """
    hub = get_hub(handle)

    async def wait_for_request() -> None:
        snapshot = await hub.wait_for_snapshot()
        while snapshot.status is None or request_id not in snapshot.status.unfinished_request_ids:
            snapshot = await hub.wait_for_snapshot(snapshot)

    async def wait_for_end() -> None:
        await wait_for_outcome()

    with hub.join():
        await _run_until_first(wait_for_request(), wait_for_end())


async def _share_start(hub: Hub, request_id: str) -> int:
    known = (await hub.wait_until_prepared()).status
    if (seq := hub.find_message(request_id)) is not None:
        return seq
    return await hub.share(("request", request_id), lambda: _find_start(hub.handle, request_id, known))


async def _find_start(handle: SessionHandle, request_id: str, status: LiveStatus | None) -> int:
    """Find the seq of a request's first entry; for a request without one, the seq of the next entry.

    `status`: the newest that is known. Each query costs money, so that it is asked for only if it lacks the request.
    """
    query = EntriesQuery(request_id=request_id, limit=1)
    try:
        if status is None or request_id not in status.unfinished_request_ids:
            status = await _query_status(handle)
        page = await handle.query_entries(query, only_open=True)
    except (Closed, NotFound):
        page = status = None
    if page and page.rows and (page.first_live_seq == 0 or isinstance(page.rows[0].body, UserMessage)):
        return page.rows[0].seq
    if page and not page.rows and status and request_id in status.unfinished_request_ids:
        return status.rev
    async for entry in read_entries(handle, query):
        return entry.seq
    raise UnknownRequest(f"session {handle.session_id!r} knows no request {request_id!r}")


async def _query_status(handle: SessionHandle, *, heartbeats: bool = False) -> LiveStatus:
    answer = await handle.query("follow", FollowQuery(heartbeats=heartbeats), only_open=True)
    return LiveStatus.model_validate(answer["status"])


async def read_live_status(handle: SessionHandle) -> LiveStatus | None:
    """Read the status; None: the session has ended, and waits for nothing."""
    with suppress(Closed, NotFound):
        return await _query_status(handle)
    return None


def get_hub(handle: SessionHandle) -> Hub:
    """Get the hub of a session in this event loop, or make one."""
    hubs = _hubs.setdefault(handle.client, weakref.WeakValueDictionary())
    key = (id(asyncio.get_running_loop()), handle.session_id)
    hub = hubs.get(key)
    if hub is None or hub.is_over:
        hub = hubs[key] = Hub(handle)
    return hub


class RecentEntries:
    """The newest entries, as many as the limits allow, without a gap."""

    def __init__(self) -> None:
        self._entries: deque[tuple[Entry, int]] = deque()
        self._bytes = 0

    def add(self, entry: Entry) -> None:
        """Add the entry that follows the newest one."""
        size = len(to_json(entry.payload))
        self._entries.append((entry, size))
        self._bytes += size
        while len(self._entries) > RECENT_ENTRIES or (self._bytes > RECENT_BYTES and len(self._entries) > 1):
            self._bytes -= self._entries.popleft()[1]

    @property
    def entries(self) -> Iterator[Entry]:
        """The entries, in order."""
        return (entry for entry, _ in self._entries)

    @property
    def first_seq(self) -> int | None:
        """The seq of the oldest entry; None: there are no entries."""
        return self._entries[0][0].seq if self._entries else None

    def read(self, from_seq: int) -> list[Entry] | None:
        """Read the entries from a seq on; None if the first one is not there any more."""
        first = self.first_seq
        if first is None or from_seq < first:
            return None
        return [entry for entry in self.entries if entry.seq >= from_seq]


class Hub:
    """Reads one session while it has viewers. `join` begins, and the last viewer's leaving ends it."""

    def __init__(self, handle: SessionHandle) -> None:
        self.handle = handle
        self.is_over = False
        self._viewers = 0
        self._task: asyncio.Task[None] | None = None
        self._snapshot: Snapshot | None = None
        self._failure: Exception | None = None
        self._changed = asyncio.Event()
        self._recent = RecentEntries()
        self._newest_event: SessionPayload | None = None
        self._shared: dict[object, asyncio.Task[Any]] = {}
        self._asked_at = 0.0
        self._reader = find_reader(handle.client)
        self._live, self._described = LiveFlights(), tuple[Flight, ...]()
        self._decisions, self._heard = LiveDecisions(), asyncio.Event()
        self._must_ask = True
        # Whether heartbeats have to tell what calls say: there is no live channel, or it is silent.
        self._wants_heartbeats = self._reader is None
        self._has_newcomer = asyncio.Event()

    @contextmanager
    def join(self) -> Iterator[None]:
        """Count a viewer while the body runs."""
        self._viewers += 1
        if self._snapshot is not None and self._snapshot.ended == HIBERNATED:
            # The session may have been deleted since: what this process still has of it is for nobody then.
            self._has_newcomer.set()
        if self._task is None:
            self._task = asyncio.create_task(self._run())
        try:
            yield
        finally:
            self._viewers -= 1
            if self._viewers == 0:
                self.is_over = True
                for task in (self._task, *self._shared.values()):
                    task.cancel()

    async def wait_for_snapshot(self, known: Snapshot | None = None) -> Snapshot:
        """Wait until the newest snapshot is another one than the one that the viewer knows, and return it.

        Raises:
            Interrupted: The session's workflow was terminated, or has timed out or failed.
            NotFound: There is no such session.
        """
        while True:
            if self._failure:
                raise self._failure
            is_checked = known is not None or not self._has_newcomer.is_set()
            if self._snapshot is not None and self._snapshot is not known and is_checked:
                return self._snapshot
            await self._changed.wait()

    @property
    def snapshot(self) -> Snapshot:
        """The newest snapshot; there must be one."""
        assert self._snapshot is not None
        return self._snapshot

    async def read_block(self, from_seq: int) -> Sequence[Entry]:
        """Read some entries from a seq on, in order: at least one, if the newest snapshot has it."""
        recent = self._recent.read(from_seq)
        if recent is not None:
            return recent
        upto = (self.snapshot.next_seq if self._recent.first_seq is None else self._recent.first_seq) - 1
        query = EntriesQuery(from_seq=from_seq, limit=min(BLOCK_ENTRIES, upto - from_seq + 1))

        async def read() -> list[Entry]:
            return [entry async for entry in read_entries(self.handle, query)]

        return await self.share(query.model_dump_json(), read)

    async def wait_until_prepared(self) -> Snapshot:
        """Wait for a snapshot; a moment longer while the session is being prepared. Returns the newest one."""
        snapshot = await self.wait_for_snapshot()
        with suppress(TimeoutError):
            async with asyncio.timeout(PREPARING_SECONDS):
                while snapshot.status and snapshot.status.status == "preparing":
                    snapshot = await self.wait_for_snapshot(snapshot)
        return snapshot

    def find_message(self, request_id: str) -> int | None:
        """Find the seq of a request's message among the newest entries; None: it is not there."""
        return next((entry.seq for entry in self._recent.entries if _is_message(entry, request_id)), None)

    async def share(self, key: object, read: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Read something once for all viewers that want it at about the same time."""
        task: asyncio.Task[T] | None = self._shared.pop(key, None)
        if task is None or (task.done() and task.exception() is not None):
            task = asyncio.create_task(persist(read))
        self._shared[key] = task
        for old in [known for known, other in self._shared.items() if other.done()][:-SHARED_READS]:
            del self._shared[old]
        # A viewer that leaves does not end the read of the others.
        return await asyncio.shield(task)

    def _publish(self, snapshot: Snapshot) -> None:
        if snapshot != self._snapshot:
            self._snapshot = snapshot
            self._notify()

    def _notify(self) -> None:
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()

    async def _run(self) -> None:
        pauses = Pauses(FIRST_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS)
        try:
            while not self.is_over:
                try:
                    await self._follow_execution()
                    pauses = Pauses(FIRST_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS)
                except Exception as error:
                    if not is_passing(error):
                        raise
                    await pauses.wait()
        except Exception as error:
            self._fail(error)

    def _fail(self, error: Exception) -> None:
        self._failure = error
        self.is_over = True
        self._notify()

    def _admit(self) -> None:
        """Let viewers have what this process has of the session: it was there a moment ago."""
        if self._has_newcomer.is_set():
            self._has_newcomer.clear()
            self._notify()

    async def _follow_execution(self) -> None:
        """Follow the session's newest workflow run until it ends; one that has ended, until there is another."""
        execution = await describe(self.handle)
        if execution is None or not execution.is_running:
            await self._follow_archive(execution)
            return
        decided, called = asyncio.Event(), asyncio.Event()
        decided.set()
        called.set()
        self._decisions = LiveDecisions()
        hear = partial(self._hear, execution.run_id, decided, called)
        with self._reader.watch(self.handle.session_id, hear) if self._reader else nullcontext():
            await _run_until_first(
                self._watch(execution, decided, called),
                self._fetch_when(decided, execution.run_id),
                self._read_heartbeats_when(called, decided, execution),
                self._look_at_subagents(),
            )

    def _hear(self, run_id: str, decided: asyncio.Event, called: asyncio.Event, items: Sequence[Item]) -> None:
        """Take items of the live channel. Those of another workflow run, perhaps of a deleted session, are over."""
        own = [item for item in items if item.run_id == run_id]
        said = [item for item in own if isinstance(item, Said)]
        self._live.take(said, self._now())
        if any(item.has_ended for item in said):
            called.set()
        self._decisions.take([item for item in own if isinstance(item, Decided)])
        self._heard.set()
        if self._decisions.confirmed:
            decided.set()
        self._show_flights()

    def _show_flights(self) -> None:
        if self._snapshot is not None:
            self._publish(replace(self._snapshot, flights=self._live.merge(self._described)))

    async def _watch(self, execution: Execution, decided: asyncio.Event, called: asyncio.Event) -> None:
        async for news in watch_history(self.handle, execution.run_id, execution.events):
            if news.decided:
                self._decisions.confirm(news.decided)
                self._must_ask = self._must_ask or self._reader is None
                decided.set()
            if news.has_called:
                called.set()
            if news.has_ended:
                return

    async def _fetch_when(self, decided: asyncio.Event, run_id: str) -> None:
        self._must_ask = not (self._reader and await self._catch_up(run_id))
        while True:
            await decided.wait()
            decided.clear()
            if not self._must_ask and await self._use_decisions():
                continue
            self._must_ask = False
            self._asked_at = self._now()
            # The answer has what these have decided.
            self._decisions.skip()
            # If the session has ended meanwhile, the history says so, too.
            with suppress(Closed, NotFound):
                await persist(self._fetch)

    async def _catch_up(self, run_id: str) -> bool:
        """Learn from the live channel what the session has decided before. Returns whether it has the newest."""
        tasks = await read_newest_tasks(self.handle, run_id)
        # A session that has fewer entries than are known is another one: the query finds that out.
        known = self._snapshot.next_seq if self._snapshot else 0
        if not tasks:
            # A new session has decided nothing yet.
            return tasks is not None and not known
        # Of a session that has been at rest for long the channel tells nothing any more.
        is_kept = time.time() - tasks[-1][1] / 1e9 < DECISIONS_SECONDS
        if not is_kept or not await self._is_told(tasks[-1]):
            self._decisions.confirm(tasks)
            return False
        newest = takewhile(self._decisions.knows, reversed(tasks))
        self._decisions.confirm(reversed(list(newest)))
        return self._decisions.find_rev(tasks[-1]) >= known

    async def _use_decisions(self) -> bool:
        """Use what the live channel tells of confirmed tasks. Returns False if the session has to be asked."""
        while self._decisions.confirmed:
            task = self._decisions.confirmed[0]
            await self._is_told(task)
            page = self._decisions.use(task)
            if page is None or page.status is None or not self._use(page, page.status):
                return False
        return True

    async def _is_told(self, task: Task) -> bool:
        """Wait until the live channel tells of a task. Returns whether it does."""
        with suppress(TimeoutError):
            async with asyncio.timeout(TELLING_SECONDS):
                while self._reader and self._reader.is_up and not self._decisions.knows(task):
                    self._heard.clear()
                    await self._heard.wait()
        return self._decisions.knows(task)

    def _use(self, page: FollowPage, status: LiveStatus) -> bool:
        """Publish the entries and the status of a page. Returns False if entries before it are missing."""
        entries = list(map(Entry.from_json, page.entries))
        if self._snapshot is None:
            first = entries[0].seq if entries else status.rev
            self._publish(Snapshot(first, status, self._live.merge(self._described)))
        known = self.snapshot.next_seq
        new = [entry for entry in entries if entry.seq >= known]
        if status.rev < known:
            # The session's answer was newer.
            return True
        if status.rev != known + len(new) or (new and new[0].seq != known):
            return False
        self._add(new, status)
        self._admit()
        return True

    async def _fetch(self) -> None:
        """Query the entries since the last time, and the status after them."""
        known = self._snapshot
        if known is None:
            status = await _query_status(self.handle, heartbeats=self._wants_heartbeats)
            self._publish(Snapshot(status.rev, status, self._live.merge(self._described)))
            return
        parts = FollowedParts(self.handle, heartbeats=self._wants_heartbeats)
        entries = [entry async for entry in read_forward(parts, known.next_seq)]
        newest = parts.latest.status
        if newest is None:
            return
        if newest.rev < known.next_seq:
            name = self.handle.session_id
            self._fail(NotFound(f"session {name!r} was deleted or recovered, and opened anew: follow it again"))
            return
        self._add(entries, newest)
        self._admit()

    def _add(self, entries: Sequence[Entry], status: LiveStatus | None, ended: str | None = None) -> None:
        """Publish new entries, with the status after them."""
        snapshot = self.snapshot
        for entry in entries:
            self._recent.add(entry)
            if isinstance(body := entry.body, SessionPayload):
                self._newest_event = body
        next_seq = entries[-1].seq + 1 if entries else snapshot.next_seq
        self._publish(replace(snapshot, next_seq=next_seq, status=status, ended=ended))

    async def _read_heartbeats_when(self, called: asyncio.Event, decided: asyncio.Event, begun: Execution) -> None:
        """Read the heartbeats while calls are in flight, and let the session know that they are read.

        Of calls that the live channel tells of they are read rarely: they say which attempts have failed. `begun`:
        the workflow run as it has just been described.
        """
        execution: Execution | None = begun
        while True:
            await called.wait()
            described_at = self._now()
            changed_at, self._described, started = self._now(), (), list[str]()
            while self._described or called.is_set():
                # The live channel tells of all that run: the server knows which attempts have failed.
                is_live = bool(started) and all(map(self._live.is_heard, started))
                if called.is_set() or not is_live or self._now() - described_at > LIVE_SECONDS:
                    called.clear()
                    described_at = self._now()
                    execution = execution or await describe(self.handle, begun.run_id)
                    pending = execution.pending if execution else ()
                    execution = None
                    started, read = list_started(pending), await read_flights(self.handle, pending)
                    if read != self._described:
                        self._described, changed_at = read, self._now()
                    self._show_flights()
                is_silent = self._reader is None or self._live.find_silent(started, self._now())
                is_due = bool(self._described) and self._now() - self._asked_at > RENEWAL_SECONDS
                if is_silent and (is_due or not self._wants_heartbeats):
                    self._must_ask = True
                    decided.set()
                self._wants_heartbeats = is_silent
                unchanged = math.inf if is_live else self._now() - changed_at
                with suppress(TimeoutError):
                    async with asyncio.timeout(min(max(HEARTBEAT_SECONDS, unchanged / 10), QUIET_HEARTBEAT_SECONDS)):
                        await called.wait()

    async def _look_at_subagents(self) -> None:
        """Look for calls that wait in subagents, while calls run. The session itself is not asked."""
        while True:
            await asyncio.sleep(SUBAGENTS_SECONDS)
            status = self._snapshot.status if self._snapshot else None
            running = status.running_calls if status else ()
            named = [make_child_id(self.handle.session_id, call.tool_call_id) for call in running]
            children = [SessionHandle(self.handle.client, name, self.handle.task_queue) for name in named]
            # A subagent that cannot be asked ends nothing.
            with suppress(ClewError, TemporalError):
                described = await asyncio.gather(*map(describe, children))
                working = [child for child, found in zip(named, described, strict=True) if found and found.is_running]
                waiting = tuple(await list_calls_of_subagents(self.handle, working)) if working else ()
                if self._snapshot is not None:
                    self._publish(replace(self._snapshot, of_subagents=waiting))

    async def _follow_archive(self, execution: Execution | None) -> None:
        """Read the last entries of a session that has ended; wait until one that hibernates runs again.

        Raises:
            Interrupted: The session's workflow was terminated, or has timed out or failed.
            NotFound: There is no such session.
            Refusal: The session's start was refused.
        """
        if execution and execution.status in _FAILED:
            raise await self.handle.find_failure() or Interrupted(
                f"the workflow of session {self.handle.session_id!r} {_FAILED[execution.status]}: `clew recover "
                f"{self.handle.session_id}` repairs the session"
            )
        pauses, shows_end = Pauses(FIRST_PAUSE_SECONDS, REST_SECONDS), False
        while execution is None or not execution.is_running:
            # The store may show the archive as it was before the session's end: read it again then, and if it may
            # have been deleted.
            if not shows_end or self._has_newcomer.is_set():
                await self._fetch_archived()
                self._admit()
                if self._newest_event is None:
                    newest = await read_newest_entry(self.handle, "session")
                    # One that the read before has not found comes with the entries before it, in the next read.
                    if newest and newest.seq < self.snapshot.next_seq:
                        self._newest_event = newest.read(SessionPayload)
                event = self._newest_event.event if self._newest_event else None
                if event in ("closed", "recovered"):
                    self._publish(replace(self.snapshot, status=None, flights=(), ended=CLOSED))
                    self.is_over = True
                    return
                shows_end = event == "hibernated"
                self._publish(replace(self.snapshot, status=None, flights=(), ended=HIBERNATED))
            known = execution
            await _run_until_first(pauses.wait(), self._wait_for_newcomer())
            execution = await describe(self.handle)
            if execution and known and execution.run_id != known.run_id:
                shows_end = False

    async def _wait_for_newcomer(self) -> None:
        await self._has_newcomer.wait()

    async def _fetch_archived(self) -> None:
        if self._snapshot is None:
            newest = await read_newest_entry(self.handle)
            self._publish(Snapshot(newest.seq + 1 if newest else 0, None))
            return
        query = EntriesQuery(from_seq=self._snapshot.next_seq)
        try:
            self._add([entry async for entry in read_entries(self.handle, query)], None, HIBERNATED)
        except NotFound:
            # There is no archive. The server still has the closed workflow, unless it was deleted.
            page = await self.handle.query_entries(query)
            if page is None:
                raise
            self._add(page.rows, None, CLOSED)

    @staticmethod
    def _now() -> float:
        return asyncio.get_running_loop().time()


async def _run_until_first(*work: Coroutine[Any, Any, None]) -> None:
    """Run coroutines until one of them returns or fails, and cancel the others."""
    tasks = [asyncio.create_task(part) for part in work]
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    for task in done:
        task.result()
