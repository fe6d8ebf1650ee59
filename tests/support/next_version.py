"""The next version of the session's workflow, whose commands an event history of today does not fit.

The workflow sandbox imports this module, so it holds nothing else.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Any

from temporalio import workflow
from temporalio.common import RawValue

with workflow.unsafe.imports_passed_through():
    from clew_workflows.host.agent_session import AgentSession
    from clew_workflows.host.services import SERVICES


@workflow.defn(dynamic=True)
class NextSession(AgentSession):
    """Sets a timer when a workflow run begins."""

    @workflow.init
    def __init__(self, args: Sequence[RawValue]) -> None:
        super().__init__(args)

    @workflow.run
    async def run(self, args: Sequence[RawValue]) -> dict[str, Any]:
        await workflow.sleep(timedelta(milliseconds=1))
        return await super().run(args)


NEXT = (NextSession, *SERVICES)
