"""Epochs on the wire: consecutive requests to a provider begin with the same bytes."""

from __future__ import annotations

from itertools import pairwise

import pytest

from clew import ClearToolResults, Clew, ContextPolicy
from clew.local import Reply, ToolCall
from tests.support.rolling import make_id, run_rolling_worker
from tests.support.stack import Stack

CLEARING = ClearToolResults(keep=1, min_tokens=120)


@pytest.mark.parametrize(("runs", "clears"), [("one run", None), ("one run", CLEARING), ("many runs", CLEARING)])
@pytest.mark.slow
async def test_consecutive_requests_begin_alike(stack: Stack, runs: str, clears: ClearToolResults | None) -> None:
    """Each request contains the one before it, unless its entry names a new epoch.

    That is so in one run of the workflow, and when older entries are in the archive, and where results are cleared.
    """
    if runs == "one run":
        await assert_prefixes(stack, stack.clew, clears)
    else:
        async with run_rolling_worker(stack) as clew:
            await assert_prefixes(stack, clew, clears)


async def assert_prefixes(stack: Stack, clew: Clew, clears: ClearToolResults | None) -> None:
    """Run a session of 30 turns and compare its provider's requests."""

    def script(body: dict[str, object]) -> Reply:
        messages = body["messages"]
        assert isinstance(messages, list)
        newest = messages[-1]
        if newest["content"].startswith("flood"):
            return Reply("", tool_calls=(ToolCall("flood", {"size": 500}),))
        return Reply("It is what it is, and nothing besides. " * 3)

    policy = ContextPolicy(
        window="epoch",
        max_input_tokens=2600,
        reserve_output_tokens=200,
        keep_last_turns=1,
        clear_tool_results=clears,
    )
    session = await clew.open(
        make_id(), model=stack.add_model(script), tools=["flood"], system_prompt="Be brief.", context_policy=policy
    )
    for turn in range(30):
        await session.ask(("flood it" if turn % 3 == 0 else "tell") + f", for the {turn}. time, how it stands")
    replies = [entry for entry in await session.entries() if entry.payload.get("role") == "assistant"]
    model = (await session.status()).model
    requests = stack.list_requests(model)
    assert len(requests) == len(replies)
    recipes = [entry.payload["recipe"] for entry in replies]
    truncations = 0
    for (before, earlier), (now, later) in pairwise(zip(recipes, requests, strict=True)):
        assert earlier["tools"] == later["tools"]
        shares = later["messages"][: len(earlier["messages"])] == earlier["messages"]
        assert shares == (before["epoch"] == now["epoch"])
        # A budget that has been made smaller meanwhile shapes contexts otherwise, whether or not that shows.
        counts = shares and before["policy_hash"] == now["policy_hash"]
        assert now["shared_prefix_tokens"] == (before["input_tokens"] if counts else 0)
        truncations += not shares
    assert 2 <= truncations < len(requests) / 3
    cleared = [recipe.get("cleared_tool_results") for recipe in recipes]
    assert max(number or 0 for number in cleared) > 1 if clears else set(cleared) == {None}
