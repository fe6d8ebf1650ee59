"""Tool results that do not fit are shown in part; no size fails a run."""

from __future__ import annotations

from typing import Any, Literal

import pytest

from clew import (
    ClearToolResults,
    Clew,
    ContextPolicy,
    Session,
)
from clew.local import Reply, ToolCall
from clew_activities.archive import Archive
from clew_audit.audit import audit_session
from clew_workflows.contract.messages import compute_digest
from clew_workflows.thread.context.contexts import rebuild_context
from clew_workflows.thread.thread import Thread
from tests.support.provider_server import decode_request
from tests.support.rolling import list_runs, make_id, run_rolling_worker
from tests.support.stack import Stack, get_last_message

CLEARING = ClearToolResults(keep=2, min_tokens=1000)


def make_flood_script(calls: int, size: int, rounds: int = 1) -> Any:
    """Make a model that calls `flood` in each of several rounds, and then answers."""

    def script(body: dict[str, Any]) -> Reply:
        newest_user = max(index for index, message in enumerate(body["messages"]) if message["role"] == "user")
        text = body["messages"][newest_user]["content"]
        done = sum(bool(message.get("tool_calls")) for message in body["messages"][newest_user:])
        if text.startswith("flood") and done < rounds:
            return Reply(tool_calls=tuple(ToolCall("flood", {"size": size}, f"c{n}") for n in range(calls)))
        return Reply(f"{get_last_message(body)['role']} {done}")

    return script


def make_policy(
    most: int, window: Literal["sliding", "epoch"], clears: ClearToolResults | None = None
) -> ContextPolicy:
    return ContextPolicy(max_input_tokens=most, window=window, clear_tool_results=clears)


async def assert_rebuilt(stack: Stack, clew: Clew, session: Session) -> list[dict[str, Any]]:
    """Check that every context can be rebuilt, live and from all entries; return the recipes."""
    entries = await session.entries()
    thread = Thread(entries)
    replies = [(entry, entry.recipe) for entry in entries if entry.recipe]
    received = stack.list_requests((await session.status()).model)
    for (entry, recipe), body in zip(replies, received, strict=True):
        digest = recipe.digest
        assert rebuild_context(thread, recipe, None).meta.digest == digest
        seen = await session.context(call_id=entry.refs["call_id"])
        assert seen.meta.digest == digest
        assert compute_digest(decode_request(body, seen.messages)) == digest
        assert seen.meta.truncated_tool_results == recipe.truncated_tool_results
    report = await audit_session(clew.temporal, Archive(stack.store, "default"), session.id)
    assert report.clean, report.differences
    return [entry.payload["recipe"] for entry, _ in replies]


@pytest.mark.parametrize("window", ["sliding", "epoch"])
async def test_a_result_larger_than_the_window_is_shown_in_part(
    stack: Stack, window: Literal["sliding", "epoch"]
) -> None:
    """The run completes; the marker names the stored bytes, and `read_result` reads the rest."""

    def script(body: dict[str, Any]) -> Reply:
        newest = get_last_message(body)
        if newest["role"] == "user":
            return Reply(tool_calls=(ToolCall("flood", {"size": 70_000}),))
        if "tool_call_id='tool00001'" in newest["content"]:
            offset = int(newest["content"].partition("offset=")[2].partition(")")[0])
            reading = {"tool_call_id": "tool00001", "offset": offset, "length": 500}
            return Reply(tool_calls=(ToolCall("read_result", reading),))
        return Reply(newest["content"][-60:])

    session = await stack.open(script, tools=["flood"], context_policy=make_policy(8000, window))
    answer = await session.ask("flood")
    recipes = await assert_rebuilt(stack, stack.clew, session)
    assert "truncated_tool_results" not in recipes[0]
    head, tail = recipes[1]["truncated_tool_results"]["tool00001"]
    assert min(head, tail) > 2000
    assert answer.endswith(f"[bytes {head} to {head + 500} of 70000; offset={head + 500} reads on]")
    (result, _) = [entry for entry in await session.entries() if entry.payload.get("role") == "tool"]
    assert (result.payload["result"]["bytes"], len(result.payload["pieces"])) == (70_000, 128)


@pytest.mark.parametrize(
    ("runs", "window", "clears"),
    [
        ("one run", "sliding", None),
        ("one run", "epoch", None),
        ("one run", "sliding", CLEARING),
        ("one run", "epoch", CLEARING),
        ("many runs", "sliding", None),
        ("many runs", "epoch", CLEARING),
    ],
)
@pytest.mark.slow
async def test_many_large_results_are_shown_in_part(
    stack: Stack, window: Literal["sliding", "epoch"], clears: ClearToolResults | None, runs: str
) -> None:
    """Five large results in each of several rounds fit, also if older entries are archived."""
    chosen = make_policy(30_000, window, clears)
    script = make_flood_script(5, 60_000, rounds=3)
    if runs == "one run":
        session = await stack.open(script, tools=["flood"], context_policy=chosen)
        assert await session.ask("flood") == "tool 3"
        await assert_rebuilt(stack, stack.clew, session)
        return
    async with run_rolling_worker(stack) as clew:
        session = await clew.open(make_id(), model=stack.add_model(script), tools=["flood"], context_policy=chosen)
        assert await session.ask("flood") == "tool 3"
        for _ in range(3):
            assert (await session.ask("and now?")).startswith("user")
        assert len(await list_runs(clew, session.id)) > 1
        recipes = await assert_rebuilt(stack, clew, session)
        assert all(recipe["input_tokens"] <= 28_000 for recipe in recipes)


async def test_a_checkpoint_of_what_was_truncated_names_no_result_of_another_session(stack: Stack) -> None:
    """A restored session has no thread from which to read the rest, so the marker names no result."""
    session = await stack.open(
        make_flood_script(1, 70_000), tools=["flood"], context_policy=make_policy(8000, "sliding")
    )
    await session.ask("flood")
    token = await session.checkpoint()
    restored = await stack.clew.restore(token, session_id=make_id())
    (content,) = [m["content"] for m in (await restored.context()).messages if m["role"] == "tool"]
    assert " of 70000 are left out]\n" in content
    assert await restored.ask("and now?") == "user 0"


@pytest.mark.slow
async def test_what_the_user_said_in_a_long_run_is_never_left_out(stack: Stack) -> None:
    """A correction during a run is in every later context, in all workflow runs."""
    steps = iter(range(10**6))

    async with run_rolling_worker(stack) as clew:
        session: Session | None = None

        def script(body: dict[str, Any]) -> Reply:
            if next(steps) >= 30:
                return Reply("done")
            return Reply(tool_calls=(ToolCall("flood", {"size": 4000}),))

        chosen = ContextPolicy(max_input_tokens=3000, reserve_output_tokens=500)
        session = await clew.open(
            make_id(), model=stack.add_model(script), tools=["flood"], context_policy=chosen, max_iterations=50,
            steering="step",
        )  # fmt: skip
        request = await session.message("do it")
        await session.steer("never touch prod")
        await session.steer("be quick")
        assert (await request.result()).status == "completed"
        assert len(await list_runs(clew, session.id)) > 1
        await assert_rebuilt(stack, clew, session)
        newest = stack.list_requests((await session.status()).model)[-1]
        texts = [message["content"] for message in newest["messages"] if message["role"] == "user"]
        assert texts == ["do it", "never touch prod", "be quick"]
