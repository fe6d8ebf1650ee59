"""Runs tools in OS threads and event loops of their own, so that a tool that blocks does not block the worker.

Each call of a sync tool has a thread. Async tools share one event loop, because their HTTP clients and connection
pools belong to the loop that they were made on. A watchdog probes the loop: if one step of a tool takes longer than
`blocking_seconds`, it logs the call, and new calls go to another loop until the first one answers again.

All threads are daemons, so they do not delay the end of the process. A tool that holds the interpreter's lock (in a
C extension that does not release it) still stops the process; it must run in a process of its own.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
import sys
import threading
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine, Generator
from concurrent.futures import Future
from contextvars import Context, ContextVar, copy_context
from dataclasses import dataclass
from typing import Any
from weakref import WeakKeyDictionary

from temporalio import activity

log = logging.getLogger("clew.tools")


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolThreadSettings:
    """The bounds of a worker's tool threads.

    Attributes:
        blocking_seconds: Seconds after which a step of an async tool counts as blocking its event loop.
        pulse_seconds: Seconds between two probes of the event loops.
        cleanup_seconds: Seconds that an activity waits for a cancelled coroutine before it abandons it.
        max_abandoned: Number of abandoned calls of one tool that still run, at which further calls are refused.
        max_loops: Most event loops, blocked ones included. Each is a thread and three file descriptors.
    """

    blocking_seconds: float = 1.0
    pulse_seconds: float = 0.25
    cleanup_seconds: float = 1.0
    max_abandoned: int = 50
    max_loops: int = 32


DEFAULT = ToolThreadSettings()


class TooManyAbandoned(Exception):
    """Too many abandoned calls of the tool still run. The model reads the message."""


@dataclass(eq=False, slots=True)
class ThreadedCall:
    """A tool call, for the log.

    Attributes:
        tool_name: The tool.
        session_id: The session.
        tool_call_id: The call.
        code_file: File of the tool's own code; None: it is not written in Python.
        is_abandoned: The activity no longer waits for the call.
        is_logged: The log has named the call as blocking.
    """

    tool_name: str
    session_id: str
    tool_call_id: str
    code_file: str | None
    is_abandoned: bool = False
    is_logged: bool = False

    def __str__(self) -> str:
        return f"tool {self.tool_name!r} (session {self.session_id!r}, call {self.tool_call_id!r})"


# Tasks that a tool starts inherit it, so that the log can name their call.
_call: ContextVar[ThreadedCall | None] = ContextVar("clew_tool_call", default=None)


def find_code_file(function: Callable[..., Any]) -> str | None:
    """Find the file that a function is defined in, without its decorators; None: it is not written in Python."""
    code = getattr(inspect.unwrap(function), "__code__", None)
    return code.co_filename if code else None


class ToolThreads:
    """The threads and event loops of one worker's tools."""

    def __init__(self, settings: ToolThreadSettings = DEFAULT) -> None:
        self._settings = settings
        self._loops: list[_Loop] = []
        self._closed = threading.Event()
        self._abandoned: Counter[str] = Counter()
        self._lock = threading.Lock()

    def close(self) -> None:
        """Stop the event loops. Blocked ones end with the process."""
        self._closed.set()
        for loop in self._loops:
            loop.stop()

    async def call(self, call: ThreadedCall, function: Callable[[], Any], *, is_async: bool) -> Any:
        """Call a function: a sync one in a thread, an async one on an event loop. Returns its result.

        If the caller is cancelled, the coroutine is cancelled too; one that continues is abandoned, as a thread is.

        Raises:
            TooManyAbandoned: `max_abandoned` calls of the tool were abandoned and still run.
        """
        limit = self._settings.max_abandoned
        if self._abandoned[call.tool_name] >= limit:
            raise TooManyAbandoned(
                f"{limit} calls of tool {call.tool_name!r} were abandoned and still run: try again "
                "when one of them has ended"
            )
        _call.set(call)
        if is_async:
            return await self._on_loop(call, function)
        value = await self._in_thread(call, function)
        # A sync wrapper around an async function returns an awaitable.
        return await self._on_loop(call, lambda: value) if inspect.isawaitable(value) else value

    async def _in_thread(self, call: ThreadedCall, function: Callable[[], Any]) -> Any:
        future: Future[Any] = Future()
        context = copy_context()

        def work() -> None:
            try:
                value = context.run(function)
            except BaseException as error:
                _set_error(future, error)
            else:
                future.set_result(value)

        thread = threading.Thread(target=work, name="clew-tool", daemon=True)
        # A running future cannot be cancelled: only the tool settles it.
        future.set_running_or_notify_cancel()
        thread.start()
        return await self._wait(call, future, thread, None)

    async def _on_loop(self, call: ThreadedCall, function: Callable[[], Awaitable[Any]]) -> Any:
        loop = self._choose_loop()
        future: Future[Any] = Future()
        future.set_running_or_notify_cancel()
        cancel = loop.start(call, function, future)
        return await self._wait(call, future, loop.thread, cancel)

    async def _wait(
        self, call: ThreadedCall, future: Future[Any], thread: threading.Thread, cancel: Callable[[], object] | None
    ) -> Any:
        outcome = asyncio.wrap_future(future)
        try:
            await self._wait_until_settled(outcome, cancel)
        except asyncio.CancelledError:
            call.is_abandoned = True
            if cancel:
                cancel()
                await asyncio.wait({outcome}, timeout=self._settings.cleanup_seconds)
            if outcome.done():
                outcome.exception()
            else:
                outcome.cancel()
                self._abandon(call, future, thread)
            raise
        return outcome.result()

    async def _wait_until_settled(self, outcome: asyncio.Future[Any], cancel: Callable[[], object] | None) -> None:
        """Wait for a call, also if the session has continued without it: its result still counts.

        A coroutine is cancelled, and may return in spite of that. A thread cannot be stopped.

        Raises:
            asyncio.CancelledError: The coroutine has ended, the tool's time is over, or the worker stops.
        """
        try:
            await asyncio.wait({outcome})
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if task is None or not _stop_requested():
                raise
            task.uncancel()
            if cancel:
                cancel()
            stopping = asyncio.ensure_future(activity.wait_for_worker_shutdown())
            try:
                await asyncio.wait({outcome, stopping}, return_when=asyncio.FIRST_COMPLETED)
            finally:
                stopping.cancel()
            if not outcome.done() or (cancel and outcome.exception()):
                raise

    def _abandon(self, call: ThreadedCall, future: Future[Any], thread: threading.Thread) -> None:
        with self._lock:
            self._abandoned[call.tool_name] += 1

        def forget(_ended: Future[Any]) -> None:
            with self._lock:
                self._abandoned[call.tool_name] -= 1

        future.add_done_callback(forget)
        if not call.is_logged:
            call.is_logged = True
            log.warning("%s was abandoned and still runs%s", call, _describe_position(thread, call))

    def _choose_loop(self) -> _Loop:
        """Choose the first event loop that is not blocked, or a new one."""
        free = next((loop for loop in self._loops if not loop.blocked), None)
        if free is None and len(self._loops) < self._settings.max_loops:
            free = _Loop(self._settings)
            if not self._loops:
                threading.Thread(target=self._watch, name="clew-tools-watch", daemon=True).start()
            self._loops.append(free)
        return free or min(self._loops, key=lambda loop: len(loop.calls))

    def _watch(self) -> None:
        while not self._closed.wait(self._settings.pulse_seconds):
            for loop in tuple(self._loops):
                loop.probe(time.monotonic())


class _Loop:
    """An event loop in a thread of its own, and its state for the watchdog.

    Attributes:
        blocked: It has not answered a probe for `blocking_seconds`.
        calls: Calls that have started and not ended.
    """

    def __init__(self, settings: ToolThreadSettings) -> None:
        self._settings = settings
        self.blocked = False
        self.calls: set[ThreadedCall] = set()
        self._probed_at: float | None = None
        self._callers: WeakKeyDictionary[asyncio.Task[Any], ThreadedCall] = WeakKeyDictionary()
        self._stopping = False
        self._loop = asyncio.new_event_loop()
        self._loop.set_task_factory(self._make_task)
        self.thread = threading.Thread(target=self._run, name="clew-tools", daemon=True)
        self.thread.start()

    def start(
        self, call: ThreadedCall, function: Callable[[], Awaitable[Any]], future: Future[Any]
    ) -> Callable[[], object]:
        """Start a call, which settles `future` and has the caller's context variables.

        Returns a function that cancels it.
        """
        tasks: list[asyncio.Task[Any]] = []

        async def work() -> Any:
            try:
                return await function()
            # Either would end the event loop.
            except (SystemExit, KeyboardInterrupt) as error:
                raise RuntimeError(repr(error)) from None

        def end(task: asyncio.Task[Any]) -> None:
            self.calls.discard(call)
            error = asyncio.CancelledError() if task.cancelled() else task.exception()
            if error:
                _set_error(future, error)
            else:
                future.set_result(task.result())

        def begin() -> None:
            tasks.append(self._loop.create_task(work()))
            tasks[0].add_done_callback(end)

        def cancel() -> None:
            tasks[0].cancel()

        self.calls.add(call)
        self._loop.call_soon_threadsafe(begin)
        return lambda: self._loop.call_soon_threadsafe(cancel)

    def probe(self, now: float) -> None:
        """Probe the loop, or measure how long it has not answered the last probe."""
        if self._probed_at is None:
            if self.calls and not self._stopping:
                self._probed_at = now
                self._loop.call_soon_threadsafe(self._note_answer)
        elif not self.blocked and now - self._probed_at > self._settings.blocking_seconds:
            self.blocked = True
            self._name_blocker(now - self._probed_at)

    def stop(self) -> None:
        """End the loop as soon as it answers."""
        self._stopping = True
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._loop.stop)

    def _note_answer(self) -> None:
        self._probed_at, self.blocked = None, False

    def _name_blocker(self, seconds: float) -> None:
        task = asyncio.current_task(self._loop)
        call = self._callers.get(task) if task else None
        if call is None:
            log.warning("the event loop of the async tools has been blocked for %.1f seconds", seconds)
        elif not call.is_logged:
            call.is_logged = True
            log.warning(
                "%s has blocked its event loop for %.1f seconds%s. Make it a sync tool, or give what blocks to "
                "asyncio.to_thread",
                call,
                seconds,
                _describe_position(self.thread, call),
            )

    def _make_task(
        self,
        loop: asyncio.AbstractEventLoop,
        work: Coroutine[Any, Any, Any] | Generator[Any, None, Any],
        context: Context | None = None,
        **options: Any,
    ) -> asyncio.Task[Any]:
        task: asyncio.Task[Any] = asyncio.Task(work, loop=loop, context=context, **options)
        if call := context.get(_call) if context else _call.get():
            self._callers[task] = call
        return task

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        while not self._stopping:
            try:
                self._loop.run_forever()
            # A task that a tool has started may raise SystemExit or KeyboardInterrupt.
            except BaseException as error:
                log.warning("a task that a tool has started raised %s", type(error).__name__)
        if tasks := asyncio.all_tasks(self._loop):
            for task in tasks:
                task.cancel()
            self._loop.run_until_complete(asyncio.wait(tasks, timeout=self._settings.cleanup_seconds))
        self._loop.close()


def _stop_requested() -> bool:
    """Whether the session has gone on without the activity, and the worker does not shut down.

    The session has requested its cancellation, or has continued in another workflow run before the activity heard
    of that.
    """
    details = activity.cancellation_details() if activity.in_activity() else None
    return details is not None and (details.cancel_requested or details.not_found) and not details.worker_shutdown


def _set_error(future: Future[Any], error: BaseException) -> None:
    """Set a future's exception. Exceptions that would end an event loop are wrapped in RuntimeError."""
    if not isinstance(error, Exception) or isinstance(error, StopIteration):
        error = RuntimeError(repr(error))
    future.set_exception(error)


def _describe_position(thread: threading.Thread, call: ThreadedCall) -> str:
    """Describe the line of the tool's own code that a thread runs, for the end of a sentence; empty: none."""
    frame = sys._current_frames().get(thread.ident or 0)
    while frame and frame.f_code.co_filename != call.code_file:
        frame = frame.f_back
    return f", at {frame.f_code.co_filename}:{frame.f_lineno} in {frame.f_code.co_name}" if frame else ""
