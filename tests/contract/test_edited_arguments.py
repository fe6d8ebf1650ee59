"""Arguments that people edit: a round of many large ones runs, on a real server."""

from __future__ import annotations

from typing import Any

import pytest

from clew.errors import TooLarge
from clew.local import Reply, ToolCall
from tests.support.stack import Stack, get_last_message
from tests.support.waiting import wait_until

CALLS = 20


@pytest.mark.slow
async def test_a_round_of_large_edited_arguments_runs(stack: Stack) -> None:
    """All its calls are scheduled in one workflow task: what would make that too large for the server is refused."""

    def script(body: dict[str, Any]) -> Reply:
        if get_last_message(body)["role"] == "user":
            return Reply(tool_calls=tuple(ToolCall("open_gate", {"gate": str(number)}) for number in range(CALLS)))
        return Reply("fine")

    session = await stack.open(script, tools=["open_gate"], require_approval=["open_gate"])
    request = await session.message("go")

    async def all_wait() -> bool:
        return len((await session.status()).pending_approvals) == CALLS

    await wait_until(all_wait)
    refused = 0
    for number in range(1, CALLS + 1):
        try:
            await session.approve(f"tool{number:05d}", arguments={"gate": f"{number}" + "x" * 250_000})
        except TooLarge:
            refused += 1
            await session.approve(f"tool{number:05d}")
    assert refused == CALLS - 2
    assert (await request.result()).status == "completed"
