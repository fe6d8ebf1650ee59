"""Workflows that differ from those of a worker: other timeouts, and a next version of the session's workflow.

The workflow sandbox imports this module, so it holds nothing else.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Any

from temporalio import workflow
from temporalio.common import RawValue

with workflow.unsafe.imports_passed_through():
    from clew.contract import READ_WORKFLOW
    from clew_workflows.host.agent_session import AgentSession
    from clew_workflows.host.execution import TimeLimits
    from clew_workflows.host.services import NO_ARGUMENT, SERVICES, ReadThread


@workflow.defn(dynamic=True)
class Impatient(AgentSession):
    """Waits 2 seconds for the store and 1 second before a retry; a caller gives way after 1 second."""

    waits = TimeLimits(
        store_timeout=timedelta(seconds=2),
        store_retry_interval=timedelta(seconds=1),
        caller_patience=timedelta(seconds=1),
        lists_interval=timedelta(seconds=1),
    )

    @workflow.init
    def __init__(self, args: Sequence[RawValue]) -> None:
        super().__init__(args)

    @workflow.run
    async def run(self, args: Sequence[RawValue]) -> dict[str, Any]:
        return await super().run(args)


@workflow.defn(dynamic=True)
class Resigned(AgentSession):
    """Waits 2 seconds for the store, and an hour before a retry."""

    waits = TimeLimits(store_timeout=timedelta(seconds=2), store_retry_interval=timedelta(hours=1))

    @workflow.init
    def __init__(self, args: Sequence[RawValue]) -> None:
        super().__init__(args)

    @workflow.run
    async def run(self, args: Sequence[RawValue]) -> dict[str, Any]:
        return await super().run(args)


@workflow.defn(dynamic=True)
class Unhurried(AgentSession):
    """Every update of its lists is long after the one before."""

    waits = TimeLimits(lists_interval=timedelta(0))

    @workflow.init
    def __init__(self, args: Sequence[RawValue]) -> None:
        super().__init__(args)

    @workflow.run
    async def run(self, args: Sequence[RawValue]) -> dict[str, Any]:
        return await super().run(args)


@workflow.defn(name=READ_WORKFLOW, failure_exception_types=[Exception])
class HastyRead(ReadThread):
    """Reads for at most 4 seconds."""

    timeout = timedelta(seconds=4)

    @workflow.run
    async def run(self, argument: RawValue = NO_ARGUMENT) -> dict[str, Any]:
        return await super().run(argument)


@workflow.defn(dynamic=True)
class NextSession(AgentSession):
    """Sets a timer when a workflow run begins, so that event histories of today do not fit it."""

    @workflow.init
    def __init__(self, args: Sequence[RawValue]) -> None:
        super().__init__(args)

    @workflow.run
    async def run(self, args: Sequence[RawValue]) -> dict[str, Any]:
        await workflow.sleep(timedelta(milliseconds=1))
        return await super().run(args)


IMPATIENT = (Impatient, *SERVICES)
RESIGNED = (Resigned, *SERVICES)
UNHURRIED = (Unhurried, *SERVICES)
HASTY = (AgentSession, HastyRead, *(service for service in SERVICES if service is not ReadThread))
NEXT = (NextSession, *SERVICES)
