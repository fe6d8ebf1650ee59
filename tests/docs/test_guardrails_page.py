"""The page about guardrails: its hooks refuse messages, calls, answers and images; its masks hide what they name."""

from __future__ import annotations

import sys
import uuid
from types import ModuleType
from typing import Any

import pytest

from clew import Image, RequestFailed, tool
from clew.local import Reply, ToolCall
from clew.testing import stack as make_stack
from clew_activities.tools.run_hooks import load_hooks
from tests.support.media import make_png
from tests.support.page_code import find_block, list_blocks, run_block
from tests.support.stack import Stack, get_last_message, make_client, run_deployment


@tool
def refund(amount: int) -> str:
    """Pay back."""
    return f"paid {amount}"


async def has_card_number(text: str) -> bool:
    """Whether a text has a number of a card."""
    return "4111" in text


async def shows_passport(data: bytes) -> bool:
    """Whether an image is one of a passport."""
    return len(data) > 100_000


async def test_the_hooks_refuse_what_the_page_says(stack: Stack, monkeypatch: pytest.MonkeyPatch) -> None:
    """The refused call is a result that the model reads; the others end the request."""
    module = ModuleType("my_package_hooks")
    vars(module).update(has_card_number=has_card_number, shows_passport=shows_passport)
    monkeypatch.setitem(sys.modules, module.__name__, module)
    await run_block("\n".join(list_blocks("guardrails.md")), vars(module))

    def script(body: dict[str, object]) -> Reply:
        newest = get_last_message(body)
        if newest["role"] == "user" and str(newest["content"]).isdecimal():
            return Reply(tool_calls=[ToolCall("refund", {"amount": int(str(newest["content"]))})])
        return Reply("the key is sk-1" if newest["content"] == "key" else f"answer: {newest['content']}")

    client = make_client(stack)
    async with run_deployment(stack, client, tools=(refund,), hooks=load_hooks([module.__name__])):
        model = stack.add_model(script)
        session = await client.open(f"hooks-{uuid.uuid4().hex}", model=model, tools=["refund"])
        assert await session.ask("50") == "answer: paid 50"
        assert "refunds over 100 need a colleague" in await session.ask("150")
        refused: list[tuple[Any, str]] = [
            ("my card is 4111", "card numbers do not belong in a chat"),
            ("key", "the answer has a key in it"),
            (["look", Image.from_bytes(make_png(60, 60, size=200_000))], "no pictures of passports"),
        ]
        for message, reason in refused:
            with pytest.raises(RequestFailed, match=reason):
                await session.ask(message)
        small = Image.from_bytes(make_png(20, 20), name="small.png")
        assert "answer: " in await session.ask(["look", small])


class Tickets:
    """The system that has the tickets."""

    async def read(self, number: int) -> str:
        """Read a ticket."""
        return f"ticket {number}, of ada@example.com"


async def test_cards_and_addresses_are_masked_before_a_model_reads_them() -> None:
    """In a user's message and in a tool's result."""
    names = await run_block(find_block("guardrails.md", "def mask"), {"tickets": Tickets()})
    script: list[Reply | str] = [Reply(tool_calls=[ToolCall("read_ticket", {"number": 7})]), "Fine."]
    async with make_stack(tools=[names["read_ticket"]]) as running:
        session = await running.open(script, tools=["read_ticket"])
        assert await names["answer_user"](session, "My card is 4111 1111 1111 1111. Read ticket 7.") == "Fine."
        read = [message.get("content") for message in running.requests((await session.status()).model)[-1].messages]
    assert read[0] == "My card is [card]. Read ticket 7."
    assert read[-1] == "ticket 7, of [email]"
