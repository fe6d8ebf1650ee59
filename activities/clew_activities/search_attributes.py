"""Which search attributes of sessions the Temporal namespace has. Setting one that it lacks would block a session."""

from __future__ import annotations

import asyncio
import logging
import time

from temporalio import activity

from clew.contract.search_attributes import SEARCH_ATTRIBUTES
from clew.session.namespace import find_registered

FRESH_SECONDS = 30.0
"""Seconds for which the server's answer is used."""

log = logging.getLogger("clew.worker")


class SearchAttributes:
    """Finds out which search attributes the namespace of a worker has, and logs once which it lacks."""

    def __init__(self) -> None:
        self._asking = asyncio.Lock()
        self._known: tuple[str, ...] = ()
        self._fresh_until = 0.0
        self._warned = False

    async def list(self) -> tuple[str, ...]:
        """List the search attributes of sessions that the namespace has, for an activity.

        If the server does not say, the last answer is used.
        """
        async with self._asking:
            if time.monotonic() < self._fresh_until:
                return self._known
            self._fresh_until = time.monotonic() + FRESH_SECONDS
            client = activity.client()
            try:
                registered = await find_registered(client)
            except Exception as error:
                # A session works without them: no failure of the server may keep it from starting.
                self._warn(f"the server does not say which search attributes it has: {error}")
                return self._known
            self._known = tuple(registered)
            if missing := [name for name in SEARCH_ATTRIBUTES if name not in registered]:
                self._warn(f"the namespace {client.namespace!r} lacks the search attributes {', '.join(missing)}")
            return self._known

    def _warn(self, problem: str) -> None:
        if not self._warned:
            self._warned = True
            log.warning("%s. Lists of sessions show less and cannot be filtered: run `clew setup-namespace`", problem)
