"""One update too many drops all that wait: a client sends few to a session at the same time.

The server takes 10 updates of a workflow at the same time (`history.maxInFlightUpdates`). When it refuses one more,
it also drops all that no worker has accepted, so that many callers at once would keep each other from being heard.

Seen in: server 1.32.0 (CLI 1.9.1).
Reproduction: docs/upstream/updates_in_flight.md.
Can go: when the server refuses the new update alone.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from weakref import WeakKeyDictionary, WeakValueDictionary

from temporalio.client import Client

MAX_AWAITING = 3
"""Most calls of a client that send an update to one session and wait for its answer at the same time."""
MAX_SENDING = 3
"""Most calls of a client that send an update to one session at the same time, beside those."""


@dataclass(eq=False)
class UpdateSlots:
    """The updates that a client sends to one session at the same time.

    Attributes:
        awaiting: The calls that wait for the answer, too: at most `MAX_AWAITING`.
        sending: Held by each of the other calls, until its update is accepted.
    """

    awaiting: int = 0
    sending: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(MAX_SENDING))


# They exist while calls use them.
_slots = WeakKeyDictionary[Client, WeakValueDictionary[str, UpdateSlots]]()


def find_slots(client: Client, session_id: str) -> UpdateSlots:
    """Find the slots of a session's updates."""
    return _slots.setdefault(client, WeakValueDictionary()).setdefault(session_id, UpdateSlots())
