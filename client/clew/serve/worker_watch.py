"""Requests to sessions that no worker serves: they are told so within seconds, in the words of the command line."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from fastapi import Request, Response
from fastapi.routing import APIRoute

from clew.session import Clew
from clew_workflows.contract.errors import WorkerUnavailable
from clew_workflows.temporal_faults.cancelled_calls import wait_at_most

T = TypeVar("T")

CHECK_SECONDS = 5.0
"""Seconds without an answer after which it is checked, and checked again, whether a worker polls the task queue."""
ACCEPT_SECONDS = 10.0
"""Seconds within which a session must accept what is sent without a time to wait."""


class WatchedRoute(APIRoute):
    """A route whose requests end when no worker polls the task queue."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """Return what answers a request."""
        answer = super().get_route_handler()

        async def answer_or_give_up(request: Request) -> Response:
            return await watch(request, answer(request))

        return answer_or_give_up


async def watch(request: Request, work: Coroutine[Any, Any, T]) -> T:
    """Wait for the answer to a request as long as a worker polls the task queue.

    Raises:
        WorkerUnavailable: None does. What was sent may be accepted once one does.
    """
    working = asyncio.create_task(work)
    try:
        while not (await asyncio.wait({working}, timeout=CHECK_SECONDS))[0]:
            await _check(request)
        return working.result()
    finally:
        working.cancel()
        await asyncio.gather(working, return_exceptions=True)
        # An error that it has raised has this frame: together they would keep the request's body.
        del working


async def _check(request: Request) -> None:
    """Check that a worker polls the task queue: at most once in a while for all requests of the process."""
    state = request.app.state
    if time.monotonic() - getattr(state, "worker_seen_at", -CHECK_SECONDS) >= CHECK_SECONDS:
        clew: Clew = state.clew
        await clew.check_worker()
        state.worker_seen_at = time.monotonic()


async def accept_within(clew: Clew, seconds: float, work: Coroutine[Any, Any, T], change: str) -> T:
    """Wait until a session has accepted something. It may still accept it after this wait is over.

    Raises:
        WorkerUnavailable: It has not accepted it in time.
    """
    try:
        return await wait_at_most(seconds, work)
    except TimeoutError:
        pass
    later = f"the session may still accept the {change} once a worker runs: repeat it with the same id"
    try:
        await clew.check_worker()
    except WorkerUnavailable as error:
        raise WorkerUnavailable(f"{error}; {later}") from None
    raise WorkerUnavailable(
        f"no worker answers within {seconds:g} s, though one polled the task queue recently: start one with "
        f"`clew worker`; {later}"
    )
