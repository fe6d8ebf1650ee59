"""Model calls on the sessions' own task queue, which Temporal hands to the worker that schedules them."""

from __future__ import annotations

from temporalio import activity

from clew_activities.call_model import ModelActivities
from clew_workflows.protocol import CallModel, Declined, ModelAnswered, Outdated


class DirectCalls:
    """Makes so many model calls at the same time and declines the others.

    The queue's slots are also those of the short activities that every session needs: model calls that hang must not
    take them all.
    """

    def __init__(self, models: ModelActivities, slots: int) -> None:
        """`slots`: how many calls run at the same time; 0: the worker makes none."""
        self._models = models
        self._slots = slots
        self._running = 0

    @activity.defn(name="call_model")
    async def call_model(self, call: CallModel) -> ModelAnswered | Outdated | Declined:
        """Make one attempt of a model call, or decline it.

        Raises:
            ApplicationError: As `ModelActivities.call_model`.
            asyncio.CancelledError: As `ModelActivities.call_model`.
        """
        if self._running >= self._slots:
            return Declined(calls_models=self._slots > 0)
        self._running += 1
        try:
            return await self._models.call_model(call)
        finally:
            self._running -= 1
