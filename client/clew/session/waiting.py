"""The calls that wait for people or programs, in a session and in the subagents that work for it."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Literal

from clew.contract.outputs import PendingCall
from clew.errors import Closed, NotFound
from clew.session._reader import read_status
from clew.session.handle import SessionHandle


@dataclass(frozen=True, slots=True)
class WaitingCall:
    """A tool call that waits for a person or a program.

    Attributes:
        session_id: The session that the call waits in: `Clew.session` makes its handle.
        needs: `approval`: `approve` or `deny` ends the wait; `result`: `submit_tool_result` does.
        call: The call.
    """

    session_id: str
    needs: Literal["approval", "result"]
    call: PendingCall


async def list_waiting_calls(handle: SessionHandle) -> Sequence[WaitingCall]:
    """List the waiting calls of a session, and then those of its subagents and of theirs."""
    status = await read_status(handle)
    own = [
        *(WaitingCall(status.session_id, "approval", call) for call in status.pending_approvals),
        *(WaitingCall(status.session_id, "result", call) for call in status.pending_external_calls),
    ]
    working = [subagent.session_id for subagent in status.subagents if subagent.status == "working"]
    children = await asyncio.gather(
        *(_list_of_subagent(SessionHandle(handle.client, session_id, handle.task_queue)) for session_id in working)
    )
    return [*own, *(call for calls in children for call in calls)]


async def _list_of_subagent(handle: SessionHandle) -> Sequence[WaitingCall]:
    # It may have ended by now, or not have started yet.
    with suppress(Closed, NotFound):
        return await list_waiting_calls(handle)
    return ()
