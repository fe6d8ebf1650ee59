"""The page about costs: its tables are computed from constants, and its code counts what customers spend."""

from __future__ import annotations

import uuid
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from clew import Agent
from clew.local import Reply, ToolCall
from clew_activities.heartbeats import LONG_SHOWN_SECONDS, REST_SECONDS, SHOWN_SECONDS
from clew_activities.model.model_table import OwnModels, OwnPrice
from clew_activities.webhook_sending import read_webhook_settings
from clew_workflows.host.execution import HEARTBEAT_TIMEOUT
from clew_workflows.host.retries import PATIENT
from docs.generate import DOCS
from tests.support.action_counts import SESSION, TURN
from tests.support.page_code import find_block, list_blocks
from tests.support.stack import Stack, get_last_message, make_client, run_deployment
from tests.support.waiting import wait_until
from tests.support.webhooks import SECRET, SETTINGS, receive

PAGE = (DOCS / "costs.md").read_text(encoding="utf-8")
PROSE = " ".join(PAGE.split())
TURNS, SESSION_TURNS = 1_000_000, 10
PRICE, INCLUDED, BASE_FEE, FEE_SHARE = 50.0, 2.5, 500.0, 0.1
"""List prices of November 2026: dollars for a million actions; Business's included millions and its base fee."""
TIERS = ((5, 50.0), (5, 45.0), (10, 40.0), (30, 35.0), (50, 30.0), (100, 25.0))
"""Business's prices: millions of actions, and the dollars for each of them."""
RETAINED, ACTIVE = 0.00105, 0.042
"""Dollars for a gigabyte and hour of history."""
CASES = {
    "is as above": 0,
    "calls one tool": 2,
    "sends one webhook": 3,
    "has its model call": 2,
    "comes by the Responses API": 1,
    "is watched": 13,
}
"""What a turn costs more, in actions."""


def separate(number: float) -> str:
    """Write a number with spaces between thousands."""
    return f"{number:,.0f}".replace(",", " ")


def compute_developer(millions: float) -> float:
    """Compute a month's bill of the plan Developer."""
    return millions * PRICE * (1 + FEE_SHARE)


def compute_business(millions: float) -> float:
    """Compute a month's bill of the plan Business."""
    rest, spent = millions - INCLUDED, 0.0
    for size, price in TIERS:
        spent += min(max(rest, 0), size) * price
        rest -= size
    return spent + max(BASE_FEE, FEE_SHARE * spent)


def list_rows() -> list[list[str]]:
    """List the rows of the page's tables."""
    return [[cell.strip(" *") for cell in line.strip("|").split(" | ")] for line in PAGE.splitlines() if "| " in line]


def test_the_million_turns_are_computed_from_the_actions_of_a_turn_and_a_session() -> None:
    """The tests of actions count both on a real server."""
    turn, session = sum(TURN.values()), sum(SESSION.values()) - sum(TURN.values())
    actions = TURNS * turn + TURNS // SESSION_TURNS * session
    millions, rows = actions / 1e6, {row[0]: row[-1] for row in list_rows()}
    assert f"A turn costs {turn} actions" in PROSE
    assert rows["actions of turns"] == separate(TURNS * turn)
    assert rows["actions of sessions"] == separate(TURNS // SESSION_TURNS * session)
    assert rows["actions a month"] == separate(actions)
    assert rows["plan Developer: no base fee; 50 dollars a million"] == f"{millions * PRICE:.0f} dollars"
    assert rows["Developer, a month"] == f"{compute_developer(millions):.0f} dollars"
    beyond = rows["its actions, beyond the 2 500 000 that it includes"]
    assert beyond == f"{(millions - INCLUDED) * PRICE:.0f} dollars"
    assert rows["Business, a month"] == f"{compute_business(millions):.0f} dollars"
    for name, more in CASES.items():
        (row,) = [row for row in list_rows() if row[0].startswith(name)]
        total = millions + TURNS * more / 1e6
        bills = (compute_developer(total), compute_business(total))
        assert row[1:] == [str(more), separate(total * 1e6), *map(separate, bills)]


def test_storage_and_models_cost_what_the_page_says() -> None:
    """From the sizes and the prices that it names."""
    gigabytes = TURNS * 5_000 / 1e9
    storage = gigabytes * (24 * ACTIVE + 7 * 24 * RETAINED)
    assert f"Storage adds about {storage:.0f} dollars" in PROSE
    model = TURNS * (3_000 * 0.15 + 200 * 0.60) / 1e6
    assert f"{model:.0f} dollars for 3 000 tokens in and 200 out" in PROSE


def test_heartbeats_come_as_the_page_says() -> None:
    """The constants of workers."""
    assert LONG_SHOWN_SECONDS == 1
    assert f"every {SHOWN_SECONDS:g} seconds at first, then more and more rarely, at last every second" in PROSE
    assert f"sends a heartbeat every {REST_SECONDS:g} seconds" in PROSE
    assert f"After {HEARTBEAT_TIMEOUT.total_seconds():g} seconds without a heartbeat" in PROSE
    assert PATIENT.initial_interval.total_seconds() == 1
    assert f"A call of a minute costs {60 / REST_SECONDS:.0f} actions" in PROSE


def load_code(folder: Path) -> ModuleType:
    """Run the page's code, with its database in a folder."""
    code = "\n".join(block for block in list_blocks("costs.md") if "def " in block)
    code = code.replace("spending.db", str(folder / "spending.db"))
    module = ModuleType("spending")
    exec(compile(code, "costs.md", "exec", dont_inherit=True), vars(module))
    return module


def call_helper(body: dict[str, Any]) -> Reply:
    """Ask the subagent once."""
    if get_last_message(body)["role"] == "tool":
        return Reply("done")
    return Reply(tool_calls=(ToolCall("helper", {"task": "help"}),))


@pytest.mark.slow
async def test_a_customer_that_has_spent_the_limit_is_refused(stack: Stack, tmp_path: Path) -> None:
    """Each request is counted once, subagents' too, for its own customer; the list of sessions has the same sum."""
    code, clew = load_code(tmp_path), make_client(stack)
    customer, other = (f"customer-{uuid.uuid4().hex[:8]}" for _ in range(2))
    helper = Agent("helper", model=stack.add_model("here"))
    support = Agent("support", model=stack.add_model(call_helper), tools=[helper.as_tool()])
    prices = OwnModels({}, {"scripted:*": OwnPrice(input=1_000, output=1_000)})
    async with receive() as receiver:
        webhooks = replace(SETTINGS, webhooks=(receiver.make_webhook("request.ended"),))
        async with run_deployment(stack, clew, support, own_models=prices, webhooks=webhooks):
            assert await code.ask(clew, customer, "1", "hello") == "done"
            await receiver.wait_for(2)
            for attempt in (*receiver.attempts, *receiver.attempts):
                code.record(attempt.id, attempt.message.model_dump(mode="json", exclude_none=True))
            spent = code.read_spent(customer)
            assert spent > 0
            assert code.read_spent(other) == 0

            async def is_listed() -> bool:
                return bool(await code.add_up(clew, customer) == pytest.approx(spent))

            await wait_until(is_listed)
            vars(code)["LIMIT_USD"] = spent
            with pytest.raises(code.OverLimit):
                await code.ask(clew, customer, "2", "hello")
            assert await code.ask(clew, other, "1", "hello") == "done"
    code.database.close()


def test_the_file_tells_the_backend_of_all_requests(tmp_path: Path) -> None:
    """A worker reads it, and sends what `record` counts."""
    file = tmp_path / "webhooks.json"
    file.write_text(find_block("costs.md", "request.ended", "json"))
    settings = read_webhook_settings({"CLEW_WEBHOOKS": str(file), "CLEW_WEBHOOK_SECRET_MAIN": SECRET})
    assert [webhook.events for webhook in settings.webhooks] == [("request.ended",)]


def test_the_limits_of_a_session_are_an_agents() -> None:
    """The page's agent is one."""
    (block,) = [block for block in list_blocks("costs.md") if "max_iterations" in block]
    names: dict[str, Any] = {"Agent": Agent}
    exec(compile(block, "costs.md", "exec", dont_inherit=True), names)
    assert names["support"].limits["max_cost_usd"] == 2
