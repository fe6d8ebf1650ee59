"""The search attributes and the memo of sessions, on a real server."""

from __future__ import annotations

import asyncio
import json
import logging
from dataclasses import replace
from http import HTTPStatus
from typing import Any

import pytest
from temporalio.api.enums.v1 import EventType
from temporalio.client import WorkflowExecutionDescription

from clew import Clew, Session
from clew.local import Reply, ToolCall, temporal_server
from clew.session.namespace import setup_namespace
from clew_activities.archive import archived_sessions
from clew_workflows.contract.lists import SEARCH_ATTRIBUTES
from clew_workflows.protocol import RolloverThresholds
from clew_workflows.temporal_faults.task_commands import MEMO_KEY
from tests.support.other_workflows import UNHURRIED
from tests.support.rolling import SlowModel, list_runs, make_id, run_rolling_worker
from tests.support.stack import Stack, get_last_message
from tests.support.waiting import wait_until

UPSERTED = EventType.EVENT_TYPE_UPSERT_WORKFLOW_SEARCH_ATTRIBUTES
TIMER_STARTED = EventType.EVENT_TYPE_TIMER_STARTED


async def describe(session: Session) -> WorkflowExecutionDescription:
    return await session._handle.workflow.describe()


async def read_attributes(session: Session) -> dict[str, Any]:
    """The search attributes of a session, without the time."""
    pairs = (await describe(session)).typed_search_attributes
    return {
        pair.key.name: pair.value
        for pair in pairs
        if pair.key.name in SEARCH_ATTRIBUTES and pair.key.name != "ClewLastActive"
    }


async def read_memo(session: Session) -> dict[str, Any]:
    memo = await (await describe(session)).memo()
    return {name: value for name, value in memo.items() if name != MEMO_KEY}


async def count_events(session: Session, kind: EventType.ValueType) -> int:
    history = await session._handle.workflow.fetch_history()
    return sum(event.event_type == kind for event in history.events)


async def count_tokens(session: Session) -> int:
    usage = (await session.status()).usage
    return usage.input_tokens + usage.output_tokens


def call_tool_when_asked(body: dict[str, Any]) -> Reply:
    message = get_last_message(body)
    if message["role"] == "tool":
        # Long enough that the turns are not quick.
        return Reply("word " * 12, tokens_per_second=5)
    if message["content"] == "add":
        return Reply(tool_calls=(ToolCall("add", {"a": 1, "b": 2}),))
    return Reply("no", status=HTTPStatus.BAD_REQUEST) if message["content"] == "fail" else Reply("fine")


async def test_a_turn_costs_one_update(stack: Stack) -> None:
    """The first one shows what it has cost, and so does one with tools. No timer is needed."""
    session = await stack.open(call_tool_when_asked, tools=["add"], metadata={"user": "ann", "tags": "b, a,b,"})
    await session.ask("hello")
    before, status = await count_events(session, UPSERTED), await session.status()
    assert before <= 2
    shown = await read_attributes(session)
    assert shown == {
        "ClewModel": status.model,
        "ClewStatus": "idle",
        "ClewUser": "ann",
        "ClewTags": ["b", "a"],
        "ClewTokens": status.usage.input_tokens + status.usage.output_tokens,
    }
    last = max(entry.at for entry in await session.entries())
    pairs = (await describe(session)).typed_search_attributes
    active = next(pair.value for pair in pairs if pair.key.name == "ClewLastActive")
    assert active.isoformat(timespec="milliseconds").replace("+00:00", "Z") == last
    await session.ask("add")
    assert await count_events(session, UPSERTED) == before + 1
    assert (await read_attributes(session))["ClewTokens"] == await count_tokens(session)
    assert await count_events(session, TIMER_STARTED) == 0


async def test_quick_turns_share_an_update(stack: Stack) -> None:
    """It shows the figures of all of them, when its timer fires. Both cost less than an update for each turn."""
    turns = 12
    async with run_rolling_worker(stack, thresholds=RolloverThresholds()) as clew:
        session = await clew.open(make_id(), model=stack.add_model("fine"))
        await session.ask("first")
        for turn in range(turns):
            await session.ask(f"turn {turn}")

        async def shows_all() -> bool:
            return (await read_attributes(session)).get("ClewTokens") == await count_tokens(session)

        await wait_until(shows_all)
        # The first update shows the session. On a slow machine the turns are not quick, and each has an update.
        updates, timers = await count_events(session, UPSERTED), await count_events(session, TIMER_STARTED)
        assert updates <= 1 + 1 + turns - timers
        assert updates + timers <= 2 + turns * 5 / 4


async def test_turns_that_are_far_apart_have_one_update_and_no_timer(stack: Stack) -> None:
    """Each is shown when it ends. The timeline has the bars of its run and no others."""
    model = SlowModel()
    async with run_rolling_worker(stack, workflows=UNHURRIED, thresholds=RolloverThresholds()) as clew:
        session = await clew.open(make_id(), model=stack.add_model(model))
        before = await count_events(session, UPSERTED)
        assert before <= 1
        for turn in range(3):
            asking = asyncio.create_task(session.ask(f"turn {turn}"))
            await model.wait_for_call()
            model.release()
            await asking
            shown = await read_attributes(session)
            assert (shown["ClewStatus"], shown["ClewTokens"]) == ("idle", await count_tokens(session))
        assert await count_events(session, TIMER_STARTED) == 0
        assert await count_events(session, UPSERTED) <= 1 + 3


async def test_a_long_run_is_shown_at_its_next_step(stack: Stack) -> None:
    """While it waits for its first reply nothing is written; a later step shows that the session works."""
    replies = [Reply(tool_calls=(ToolCall("add", {"a": 1, "b": 2}),)), Reply("fine")]
    model = SlowModel(lambda _body: replies.pop(0))
    async with run_rolling_worker(stack, workflows=UNHURRIED, thresholds=RolloverThresholds()) as clew:
        session = await clew.open(make_id(), model=stack.add_model(model), tools=["add"])

        async def is_shown() -> bool:
            return "ClewStatus" in await read_attributes(session)

        await wait_until(is_shown)
        asking = asyncio.create_task(session.ask("add"))
        await model.wait_for_call()
        assert (await read_attributes(session)).get("ClewStatus") != "working"
        model.release()
        await model.wait_for_call()
        assert (await read_attributes(session))["ClewStatus"] == "working"
        model.release()
        await asking
        assert (await read_attributes(session))["ClewStatus"] == "idle"


async def test_a_rollover_shows_the_figures_that_wait(stack: Stack) -> None:
    """The next workflow run begins with them."""
    async with run_rolling_worker(stack) as clew:
        session = await clew.open(make_id(), model=stack.add_model("fine"))

        async def has_rolled() -> bool:
            return len(await list_runs(clew, session.id)) > 1

        tokens: list[int] = []
        while not await has_rolled():
            await session.ask("and again")
            tokens.append(await count_tokens(session))
        history = await clew.temporal.get_workflow_handle(session.id).fetch_history()
        begun = history.events[0].workflow_execution_started_event_attributes
        # The last turn may have met the new workflow run.
        assert json.loads(begun.search_attributes.indexed_fields["ClewTokens"].data) in tokens[-2:]


async def test_waits_and_failures_are_shown(stack: Stack) -> None:
    """A run that waits for a person, one that goes on, one that has failed, and the end of a session."""
    session = await stack.open(call_tool_when_asked, tools=["add"], require_approval=["add"])

    async def shows(status: str) -> bool:
        return (await read_attributes(session)).get("ClewStatus") == status

    request = await session.message("add")
    await wait_until(lambda: shows("awaiting_approval"))
    (call,) = (await session.status()).pending_approvals
    await session.approve(call.tool_call_id)
    await request.result()
    assert await shows("idle")
    assert (await (await session.message("fail")).result()).status == "failed"
    assert await shows("failed")
    await session.hibernate()
    assert await shows("hibernated")
    opened = await stack.clew.open(session.id)
    await wait_until(lambda: shows("failed"))
    await opened.close()
    assert await shows("closed")


async def test_the_memo_has_the_title_and_the_metadata(stack: Stack) -> None:
    """One event has both; a change of the metadata is another, and removes what is gone."""
    session = await stack.open(metadata={"user": "ann"})
    await session.ask("how do I\n  return a parcel?")
    memo = await read_memo(session)
    assert memo.pop("started_at")
    assert memo == {"title": "how do I return a parcel?", "metadata": {"user": "ann"}}
    await session.configure(metadata={"title": ""})
    memo = await read_memo(session)
    assert memo.pop("started_at")
    assert memo == {"metadata": {"title": ""}}


async def test_rollover_fork_and_thaw_keep_them(stack: Stack) -> None:
    """The next workflow run has the attributes and the memo of the one before; a fork has its origin as parent."""
    async with run_rolling_worker(stack) as clew:
        session = await clew.open(make_id(), model=stack.add_model("fine"), metadata={"user": "ann"})
        for turn in range(8):
            await session.ask(f"turn {turn}")

        async def has_rolled() -> bool:
            return len(await list_runs(clew, session.id)) > 1

        async def shows_all() -> bool:
            return (await read_attributes(session)).get("ClewTokens") == await count_tokens(session)

        await wait_until(has_rolled)
        await wait_until(shows_all)
        shown, memo = await read_attributes(session), await read_memo(session)
        assert (shown["ClewUser"], shown["ClewStatus"], memo["title"]) == ("ann", "idle", "turn 0")
        assert await count_events(session, UPSERTED) <= 7
        fork = await session.fork()

        async def shows_fork() -> bool:
            return "ClewParent" in await read_attributes(fork)

        await wait_until(shows_fork)
        assert await read_attributes(fork) == {**shown, "ClewParent": session.id}
        assert (await read_memo(fork))["title"] == "turn 0"
        await session.hibernate()
        thawed = await clew.open(session.id)

        async def shows_idle() -> bool:
            return (await read_attributes(thawed)).get("ClewStatus") == "idle"

        await wait_until(shows_idle)
        assert await read_attributes(thawed) == shown
        assert await read_memo(thawed) == memo


async def test_hostile_metadata_fails_no_workflow_task(stack: Stack) -> None:
    """The server takes the attributes that are made of any metadata that a session takes."""
    for text in ("\U0001f600" * 400, "a" * 2000, "\x00\x1f\x7f", "' OR 1=1 --", ",,, ,"):
        session = await stack.open(metadata={"user": text, "tags": text, "title": text})
        await session.ask("hello")
        history = await session._handle.workflow.fetch_history()
        assert not [event for event in history.events if event.HasField("workflow_task_failed_event_attributes")]


async def test_a_namespace_without_search_attributes(
    stack: Stack, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Sessions work, the worker says once what is missing, and they show what is registered when they open again."""
    monkeypatch.setattr(archived_sessions, "FRESH_SECONDS", 0.0)
    caplog.set_level(logging.WARNING, "clew.worker")
    async with temporal_server(ui=False, search_attributes={"ClewStatus": "Int"}) as server:
        other = replace(stack, clew=await Clew.connect(server.address))
        async with run_rolling_worker(other) as clew:
            session = await clew.open(make_id(), model=stack.add_model("fine"))
            assert (await session.ask("hello")) == "fine"
            assert await count_events(session, UPSERTED) == 0
            assert (await read_memo(session))["title"] == "hello"
            await session.hibernate()
            setup = await setup_namespace(clew.temporal)
            assert (setup.mistyped, len(setup.registered)) == (["ClewStatus"], len(SEARCH_ATTRIBUTES) - 1)
            assert not (await setup_namespace(clew.temporal)).registered
            session = await clew.open(session.id)
            await session.ask("hello again")
            shown = await read_attributes(session)
            assert "ClewStatus" not in shown
            assert shown["ClewTokens"] > 0
    warnings = [record.message for record in caplog.records if "search attributes" in record.message]
    assert len(warnings) == 1
    assert "clew setup-namespace" in warnings[0]
    assert all(name in warnings[0] for name in SEARCH_ATTRIBUTES)


def test_names_are_stable() -> None:
    """The names and the types are part of the contract: namespaces have them."""
    assert json.dumps(SEARCH_ATTRIBUTES) == (
        '{"ClewAgent": "Keyword", "ClewModel": "Keyword", "ClewStatus": "Keyword", "ClewUser": "Keyword", '
        '"ClewTags": "KeywordList", "ClewTokens": "Int", "ClewCostUsd": "Double", "ClewLastActive": "Datetime", '
        '"ClewParent": "Keyword"}'
    )
