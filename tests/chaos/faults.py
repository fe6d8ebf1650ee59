"""The windows of faults, and the faults that processes suffer."""

from __future__ import annotations

import asyncio
import random
import time


class Window:
    """The time in which requests to a server fail.

    Attributes:
        fault: The kind of the fault; None: there is none.
        share: The share of the requests that fail.
        over: Set when the faults are over for good: what hangs is to end.
    """

    def __init__(self) -> None:
        self.fault: str | None = None
        self.share = 0.0
        self.over = asyncio.Event()
        self._until = 0.0

    def open(self, fault: str, share: float, seconds: float) -> None:
        """Begin a fault, which takes the place of the one in force."""
        self.fault, self.share, self._until = fault, share, time.monotonic() + seconds

    def close(self) -> None:
        """End the faults for good."""
        self.fault = None
        self.over.set()

    def draw(self, chance: random.Random) -> str | None:
        """Draw the fault of one request; None: it has none."""
        if self.fault is None or time.monotonic() > self._until or chance.random() > self.share:
            return None
        return self.fault
