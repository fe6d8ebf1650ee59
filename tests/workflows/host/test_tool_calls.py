"""Tool calls whose workflow is cancelled."""

from __future__ import annotations

import uuid

from temporalio.api.enums.v1 import EventType

from clew.local import Reply, ToolCall
from tests.support.stack import Stack
from tests.support.toolbox import get_gate


async def test_cancelling_the_workflow_stops_the_tools_of_a_round(stack: Stack) -> None:
    """The workflow asks for it: it may still run for long, until its archive can be written."""
    own = uuid.uuid4().hex
    session = await stack.open(
        lambda _body: Reply(tool_calls=(ToolCall("note_cancel", {"gate": own}),)), tools=["note_cancel"]
    )
    request = await session.message("go")
    await get_gate(f"{own}-started").wait()
    handle = stack.clew.temporal.get_workflow_handle(session.id)
    await handle.cancel()
    assert (await request.result()).status == "cancelled"
    await get_gate(f"{own}-cancelled").wait()
    types = [event.event_type for event in (await handle.fetch_history()).events]
    assert EventType.EVENT_TYPE_ACTIVITY_TASK_CANCEL_REQUESTED in types
