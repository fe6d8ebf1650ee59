"""The board: on it sessions leave the contexts of their model calls for the activities of the same process.

An activity that runs elsewhere, or finds nothing, queries its session: one more workflow task, and two trips to the
server. The context is the same, since it depends on the call and on entries that never change.
"""

from __future__ import annotations

from collections import OrderedDict
from threading import Lock

from clew.context.projection import Projection
from clew_workflows.protocol import CallModel

MAX_TOKENS = 4_000_000
"""Most tokens of all contexts on a board. The oldest ones go first: their activities run elsewhere, or never."""


class Board:
    """Contexts by workflow run and call. Sessions post in their threads, activities take in theirs.

    Attributes:
        is_open: This process makes model calls.
    """

    def __init__(self, max_tokens: int = MAX_TOKENS) -> None:
        self.is_open = False
        self._max_tokens = max_tokens
        self._lock = Lock()
        self._posted: OrderedDict[tuple[str, str], tuple[CallModel, Projection]] = OrderedDict()
        self._tokens = 0

    def post(self, run_id: str, call: CallModel, context: Projection) -> None:
        """Leave the context of a call that is about to be scheduled by a workflow run."""
        with self._lock:
            self._remove((run_id, call.call_id))
            self._posted[run_id, call.call_id] = call, context
            self._tokens += context.meta.estimated_tokens
            while self._tokens > self._max_tokens:
                self._remove(next(iter(self._posted)))

    def take(self, run_id: str, call: CallModel) -> Projection | None:
        """Take the context of a call from the board; None: it is not there, or that of another call with this id."""
        with self._lock:
            call_posted, context = self._remove((run_id, call.call_id)) or (None, None)
        return context if call_posted == call else None

    def _remove(self, key: tuple[str, str]) -> tuple[CallModel, Projection] | None:
        posted = self._posted.pop(key, None)
        if posted:
            self._tokens -= posted[1].meta.estimated_tokens
        return posted


BOARD = Board()
"""The board of this process."""
