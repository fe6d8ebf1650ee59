"""Sessions that are interrupted during a run, for the tests of audit and recovery."""

from __future__ import annotations

import uuid
from typing import Any

from clew import Session
from clew.local import Reply, ToolCall
from tests.support.stack import get_last_message
from tests.support.waiting import wait_until


def answer_or_hang(body: dict[str, Any]) -> Reply:
    """Reply with the number of messages, or with a call of a tool that never returns if the user says `hang`."""
    if get_last_message(body)["role"] == "user" and get_last_message(body)["content"] == "hang":
        return Reply(tool_calls=(ToolCall("wait_for", {"gate": f"never-{uuid.uuid4().hex}"}),))
    return Reply(f"I read {len(body['messages'])}")


async def leave_open_work(session: Session) -> None:
    """Leave a session with a running tool call, a queued message and a steering input that is not used yet."""
    await session.message("hang", request_id="hangs")

    async def runs_tools() -> bool:
        return (await session.status()).status == "awaiting_tools"

    await wait_until(runs_tools)
    await session.message("wait", request_id="waits", on_busy="queue")
    await session.steer("hurry", input_id="hurries")


async def query_live_entries(session: Session) -> list[dict[str, Any]]:
    """Query the live part of a session's thread."""
    first = (await session.status()).first_live_seq
    return [entry.as_dict() for entry in await session.entries(from_seq=first)]
