"""The README's agent and backend run as they stand, and it is short."""

from __future__ import annotations

import re
import textwrap
from types import SimpleNamespace
from typing import Any

from clew import Agent
from clew.testing import Reply, ToolCall, stack
from docs.generate import DOCS

README = (DOCS.parent / "README.md").read_text(encoding="utf-8")
MAX_BYTES = 10_000


async def test_the_backend_follows_its_request_and_approves_the_call() -> None:
    """The code ends with a completed request, one refund, and the context of the second call."""
    agent_code, backend_code = re.findall(r"^```python\n(.*?)^```$", README, re.DOTALL | re.MULTILINE)
    refunds: list[int] = []

    def refund(order_id: int) -> str:
        refunds.append(order_id)
        return "refunded"

    names: dict[str, Any] = {"bank": SimpleNamespace(refund=refund)}
    exec(agent_code, names)
    support: Agent = names["support"]
    script: list[Reply | str] = [
        Reply(tool_calls=[ToolCall("refund", {"order_id": 1234})]),
        "Your money is on its way.",
    ]
    async with stack(agents=[support], scripts={"support": script}) as running:

        async def connect(_address: str) -> object:
            return running.clew

        names["Clew"] = SimpleNamespace(connect=connect)
        exec(f"async def run():\n{textwrap.indent(backend_code, '    ')}\n    return outcome, context", names)
        outcome, context = await names["run"]()
    assert outcome.status == "completed"
    assert refunds == [1234]
    assert [message["role"] for message in context.messages] == ["system", "user", "assistant", "tool"]


def test_it_is_short() -> None:
    """What a first reader does not need has a page of its own."""
    assert len(README.encode()) <= MAX_BYTES
