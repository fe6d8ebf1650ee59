"""Coroutines that run beside the main one of a workflow."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from functools import partial
from typing import Any

from temporalio import workflow


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
