"""Sessions that are cut off in the middle of their work, for the tests of audit and recovery."""

from __future__ import annotations

import asyncio
import uuid
from typing import Any

from clew import Session
from deploy.local import Reply, ToolCall
from tests.support.stack import last


def hanging(body: dict[str, Any]) -> Reply:
    """A model that counts what it reads, and calls a tool that never ends when it is told to hang."""
    if last(body)["role"] == "user" and last(body)["content"] == "hang":
        return Reply(tool_calls=(ToolCall("wait_for", {"gate": f"never-{uuid.uuid4().hex}"}),))
    return Reply(f"I read {len(body['messages'])}")


async def hung(session: Session) -> None:
    """Let a session wait for a tool, with a message in its queue and an input that nobody has read."""
    await session.message("hang", request_id="hangs")
    while (await session.status()).status != "awaiting_tools":  # noqa: ASYNC110 - only a query tells
        await asyncio.sleep(0.02)
    await session.message("wait", request_id="waits", on_busy="queue")
    await session.steer("hurry", input_id="hurries")


async def live_entries(session: Session) -> list[dict[str, Any]]:
    """What a session holds of its thread."""
    first = (await session.status()).first_live_seq
    return [entry.as_json() for entry in await session.entries(from_seq=first)]
