"""Waits with an end: a test that waits in vain for an answer fails, and says what the session waits for."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from typing import Any

from temporalio.client import Interceptor, OutboundInterceptor, StartWorkflowUpdateInput, WorkflowUpdateHandle

from clew.session.transport import wait_at_most
from clew.testing.scripts import Stuck


class BoundedWaits(Interceptor):
    """Bounds the waits of a client for the answers of updates.

    A session answers `running` after a minute, and the client asks again: all of that is one wait.
    """

    def __init__(self, seconds: float, describe: Callable[[str], Awaitable[str]]) -> None:
        self._seconds = seconds
        self._describe = describe
        self._began: dict[str, float] = {}

    def intercept_client(self, next: OutboundInterceptor) -> OutboundInterceptor:  # noqa: A002 - the SDK's
        """Bound the waits of a client."""
        return _Outbound(next, self)

    async def wait(self, update: _Update) -> Any:
        """Wait for the answer of an update.

        Raises:
            Stuck: It did not come in time.
        """
        session_id = update.workflow_id
        began = self._began.setdefault(session_id, time.monotonic())
        try:
            answer = await wait_at_most(max(began + self._seconds - time.monotonic(), 0.01), update.fetch())
        except TimeoutError:
            del self._began[session_id]
            described = await self._describe(session_id)
            raise Stuck(f"session {session_id!r} has not answered within {self._seconds:g} s; {described}") from None
        except BaseException:
            self._began.pop(session_id, None)
            raise
        if not (isinstance(answer, dict) and answer.get("status") == "running"):
            self._began.pop(session_id, None)
        return answer


class _Outbound(OutboundInterceptor):
    def __init__(self, inner: OutboundInterceptor, waits: BoundedWaits) -> None:
        super().__init__(inner)
        self._waits = waits

    async def start_workflow_update(self, input: StartWorkflowUpdateInput) -> WorkflowUpdateHandle[Any]:  # noqa: A002 - the SDK's
        """Send an update."""
        return _Update(await super().start_workflow_update(input), self._waits)


class _Update(WorkflowUpdateHandle[Any]):
    def __init__(self, update: WorkflowUpdateHandle[Any], waits: BoundedWaits) -> None:
        self.__dict__ = update.__dict__
        self._waits = waits

    async def fetch(self) -> Any:
        """Wait for the answer without a bound."""
        return await super().result()

    async def result(self, **options: Any) -> Any:
        """Wait for the answer."""
        return await self._waits.wait(self) if self._known_outcome is None else await super().result(**options)
