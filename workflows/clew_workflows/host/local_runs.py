"""Local runs: the workflow runs that this process serves, and what they tell others in the same process.

A heartbeat costs money, and its answer is the only news that an activity gets from the server. So activities send
few of them, and a session in the same process says when one is worth it: a viewer follows, or the call is to stop.
Activities of other processes ask: by the query `followed`, and by descriptions of their workflow.

A query costs money, too. So a session tells the live channel, if there is one, what each of its workflow tasks has
decided. The server may refuse the task afterwards: viewers look into the history before they believe it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from threading import Lock
from typing import Any, Literal

News = Literal["followed", "stopping", "left"]
"""`followed`: a viewer has sent the query `follow`. `stopping`: the session has cancelled calls in this task. `left`:
this process serves the workflow run no more."""
Listener = Callable[[News], None]


@dataclass(frozen=True, slots=True)
class Decided:
    """What a workflow task of a session has decided so far.

    Attributes:
        session_id: The session.
        run_id: The workflow run.
        event_id: The event of the history with which the task has started.
        started_at: The time of that event, in nanoseconds since the epoch. No two tasks have the same.
        page: The answer to the query `follow`: the new entries, and the status after them; None: it is too large for
            the live channel.
    """

    session_id: str
    run_id: str
    event_id: int
    started_at: int
    page: dict[str, Any] | None

    @property
    def task(self) -> tuple[int, int]:
        """The task: no other one of the workflow run is equal."""
        return self.event_id, self.started_at


class LocalRuns:
    """The workflow runs in this process's cache. Sessions tell in their threads, activities listen in theirs.

    Attributes:
        publish: Takes what sessions decide, in any thread; None: there is no live channel.
    """

    def __init__(self) -> None:
        self.publish: Callable[[Decided], None] | None = None
        self._lock = Lock()
        self._follows: dict[str, int] = {}
        self._listeners: dict[str, set[Listener]] = {}

    @contextmanager
    def serve(self, run_id: str) -> Iterator[None]:
        """Serve a workflow run while the body runs: until it ends, or is removed from the cache."""
        with self._lock:
            self._follows[run_id] = 0
        try:
            yield
        finally:
            with self._lock:
                self._follows.pop(run_id, None)
            self.tell(run_id, "left")

    def is_served(self, run_id: str) -> bool:
        """Whether this process serves a workflow run."""
        return run_id in self._follows

    def count_follows(self, run_id: str) -> int:
        """Count the queries of viewers since the newest call of a workflow run was scheduled."""
        return self._follows.get(run_id, 0)

    def note_call(self, run_id: str) -> None:
        """Note that a call is being scheduled. Viewers that are still there send a query after it."""
        with self._lock:
            if run_id in self._follows:
                self._follows[run_id] = 0

    def tell(self, run_id: str, news: News) -> None:
        """Tell the activities of a workflow run that run in this process."""
        with self._lock:
            if news == "followed" and run_id in self._follows:
                self._follows[run_id] += 1
            listeners = tuple(self._listeners.get(run_id, ()))
        for listener in listeners:
            listener(news)

    @contextmanager
    def listen(self, run_id: str, listener: Listener) -> Iterator[None]:
        """Call `listener` with the news of a workflow run while the body runs, from any thread."""
        with self._lock:
            self._listeners.setdefault(run_id, set()).add(listener)
        try:
            yield
        finally:
            with self._lock:
                listeners = self._listeners[run_id]
                listeners.discard(listener)
                if not listeners:
                    del self._listeners[run_id]


LOCAL_RUNS = LocalRuns()
"""The workflow runs of this process."""
