"""The room for model calls in a process: for those of its own sessions, and for those of the queue of model calls.

Temporal hands a call on the sessions' own task queue to the worker that schedules it. Such a worker makes it as long
as there is room, and declines it otherwise. All calls then wait in the queue of model calls, where fairness and
priorities decide which is next.
"""

from __future__ import annotations

import asyncio

from temporalio import activity

from clew_activities.heartbeats import send_heartbeats
from clew_activities.model.call_model import ModelActivities
from clew_workflows.protocol import CallModel, Declined, ModelAnswered, Outdated


class DirectCalls:
    """Makes model calls of the sessions' own task queue.

    The queue's slots are also those of the short activities that every session needs: model calls that hang must not
    take them all.
    """

    def __init__(self, models: ModelActivities, slots: int, room: asyncio.Semaphore) -> None:
        """`slots`: how many calls run at the same time; 0: the worker makes none. `room`: for all of the process."""
        self._models = models
        self._slots = slots
        self._room = room
        self._running = 0

    @activity.defn(name="call_model")
    async def call_model(self, call: CallModel) -> ModelAnswered | Outdated | Declined:
        """Make one attempt of a model call, or decline it.

        Raises:
            ApplicationError: As `ModelActivities.call_model`.
            asyncio.CancelledError: As `ModelActivities.call_model`.
        """
        if self._running >= self._slots or self._room.locked():
            return Declined(calls_models=self._slots > 0)
        self._running += 1
        try:
            async with self._room:
                return await self._models.call_model(call)
        finally:
            self._running -= 1


class QueuedCalls:
    """Makes model calls of the queue of model calls. While direct calls have the room, some wait for it."""

    def __init__(self, models: ModelActivities, room: asyncio.Semaphore) -> None:
        self._models = models
        self._room = room

    @activity.defn(name="call_model")
    async def call_model(self, call: CallModel) -> ModelAnswered | Outdated:
        """Make one attempt of a model call.

        Raises:
            ApplicationError: As `ModelActivities.call_model`.
            asyncio.CancelledError: As `ModelActivities.call_model`.
        """
        async with send_heartbeats():
            await self._room.acquire()
        try:
            return await self._models.call_model(call)
        finally:
            self._room.release()
