"""What keys share: bytes of bodies, and places for work. Each key has a share of its own, whatever others do."""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager


class Shares:
    """A number of units that keys share.

    A key holds at most its share. What is free goes to the key that holds least, and within a key to its oldest
    request. A request that needs more than is free waits, and no later one of another key goes before it.

    Args:
        total: The units that there are.
        share: The most that a key holds at a time. A request for more gets so many.
    """

    def __init__(self, total: int, share: int) -> None:
        self._free, self._share = total, share
        self._held: Counter[str] = Counter()
        self._waiting: dict[str, deque[tuple[int, asyncio.Future[None]]]] = {}

    @asynccontextmanager
    async def hold(self, key: str, amount: int = 1) -> AsyncIterator[None]:
        """Wait for some units, and hold them."""
        taken = await self.take(key, amount)
        try:
            yield
        finally:
            self.give_back(key, taken)

    async def take(self, key: str, amount: int = 1) -> int:
        """Wait for some units. Returns how many the key has got, which it gives back."""
        amount = min(amount, self._share)
        place = (amount, asyncio.get_running_loop().create_future())
        self._waiting.setdefault(key, deque()).append(place)
        self._hand_out()
        try:
            await place[1]
        except asyncio.CancelledError:
            if place[1].cancelled():
                self._forget(key, place)
            else:
                self.give_back(key, amount)
            raise
        return amount

    def give_back(self, key: str, amount: int) -> None:
        """Give units back."""
        self._free += amount
        self._held[key] -= amount
        if not self._held[key]:
            del self._held[key]
        self._hand_out()

    def _forget(self, key: str, place: tuple[int, asyncio.Future[None]]) -> None:
        self._waiting[key].remove(place)
        if not self._waiting[key]:
            del self._waiting[key]
        self._hand_out()

    def _hand_out(self) -> None:
        while (key := self._find_next()) is not None:
            amount, granted = self._waiting[key].popleft()
            if not self._waiting[key]:
                del self._waiting[key]
            self._free -= amount
            self._held[key] += amount
            granted.set_result(None)

    def _find_next(self) -> str | None:
        """Find the key whose oldest request is served next; None: none of them, for now."""
        for key in sorted(self._waiting, key=lambda key: self._held[key]):
            amount = self._waiting[key][0][0]
            if self._held[key] + amount <= self._share:
                return key if amount <= self._free else None
        return None
