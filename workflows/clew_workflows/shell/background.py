"""Coroutines that run beside the main one of a workflow."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Coroutine
from functools import partial
from typing import Any, Protocol

from temporalio import workflow


class Duty(Protocol):
    """What a session does beside its main coroutine, whenever it is due."""

    @property
    def is_due(self) -> bool:
        """Whether it is to be done now. Once it has begun it is not due."""
        ...

    def begin(self) -> None:
        """Do it, or start a task that does."""
        ...


class LastingDuty(ABC):
    """A duty that a task of its own does. It is not due again before that task has ended."""

    def __init__(self) -> None:
        self._is_running = False

    @property
    def is_due(self) -> bool:
        """Whether a task is to be started."""
        return not self._is_running and self._is_wanted

    def begin(self) -> None:
        """Start the task."""
        self._is_running = True
        start_background_task(self._run())

    async def _run(self) -> None:
        await self._perform()
        self._is_running = False

    @property
    @abstractmethod
    def _is_wanted(self) -> bool:
        """Whether there is something to do."""

    @abstractmethod
    async def _perform(self) -> None:
        """Do it, and what follows it at once."""


async def serve_duties(*duties: Duty) -> None:
    """Begin duties as they become due, in their order. They share one wait: each would cost memory and time."""
    while True:
        await workflow.wait_condition(lambda: any(duty.is_due for duty in duties))
        for duty in duties:
            if duty.is_due:
                duty.begin()


def start_background_task(coroutine: Coroutine[Any, Any, None]) -> None:
    """Run a coroutine beside the main one. Its errors fail the workflow task, so that a corrected worker goes on."""
    asyncio.create_task(_run(coroutine))  # noqa: RUF006 - the workflow's loop holds its tasks


async def _run(coroutine: Coroutine[Any, Any, None]) -> None:
    try:
        await coroutine
    except Exception as error:
        # Nothing awaits the task: asyncio would do no more than log the error. One of a condition fails the workflow
        # task.
        await workflow.wait_condition(partial(_raise, error))


def _raise(error: Exception) -> bool:
    raise error
