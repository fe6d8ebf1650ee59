"""The pages for operators: their Python runs, and what they say of a session's status is all that there is."""

from __future__ import annotations

import re
import shlex
import uuid
from pathlib import Path
from typing import Any

import pytest
from temporalio import activity
from temporalio.client import Client
from temporalio.worker import Worker

from clew import Clew, NotFound, tool
from clew.local import Reply, ToolCall
from clew_workflows.contract.config import make_fairness_key
from clew_workflows.contract.outputs import SessionStatus
from docs.generate import DOCS
from tests.support.page_code import list_blocks, run_block
from tests.support.stack import Stack, get_last_message
from tests.support.team import Support
from tests.support.versions import run_temporal
from tests.support.waiting import wait_until


def test_the_page_about_stuck_sessions_has_every_status() -> None:
    """Each word that `status` answers is in the table, as the command line writes it."""
    page = (DOCS / "runbook.md").read_text(encoding="utf-8")
    words = re.findall(r"`([a-z_]+)`", (SessionStatus.__doc__ or "").partition("status:")[2].partition("active_")[0])
    assert "awaiting_model" in words
    assert sorted(word for word in words if f"`{word.replace('_', ' ')}`" not in page and word != "status") == []


async def test_the_queues_page_opens_sessions(stack: Stack) -> None:
    """With a tenant and with a priority."""
    (block,) = list_blocks("queues.md")

    class Recorded:
        async def open(self, session_id: str, **options: Any) -> Any:
            options.pop("agent")
            return await stack.clew.open(f"{session_id}-{uuid.uuid4().hex}", model=stack.add_model("fine"), **options)

    found = await run_block(block, {"clew": Recorded()})
    assert (await found["chat"].status()).metadata == {"tenant": "acme", "user": "ada"}
    assert (await found["batch"].status()).config["priority"] == 5


async def test_the_server_takes_the_commands_of_the_queues_page(stack: Stack) -> None:
    """A weight for the tenant whose digest the page computes, and a limit of a provider's queue."""
    weight, limit = [
        block.replace("\\\n", " ") for block in list_blocks("queues.md", "") if block.startswith("temporal ")
    ]
    assert make_fairness_key("acme") in weight
    for command, queue in ((weight, "clew-models"), (limit, "clew-models-openai")):
        words = shlex.split(command.replace(f"{queue} ", f"{queue}-{uuid.uuid4().hex} "))
        assert "Successfully updated" in await run_temporal(stack.clew, *words[1:])


async def test_the_operations_page_connects(stack: Stack, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the SDK's interceptor."""
    monkeypatch.setenv("TEMPORAL_ADDRESS", stack.server.address)
    (block,) = list_blocks("operations.md")
    assert isinstance((await run_block(block, {"Clew": Clew}))["clew"], Clew)


def call_add(body: dict[str, Any]) -> Reply:
    """Call a tool once."""
    called = get_last_message(body)["role"] == "tool"
    return Reply("fine") if called else Reply(tool_calls=(ToolCall("add", {"a": 1, "b": 2}),))


async def test_a_user_is_deleted_by_the_code_of_the_page(stack: Stack) -> None:
    """All the user's sessions, also those that hibernate; others stay; it can be repeated."""
    (block,) = list_blocks("data.md")
    names: dict[str, Any] = {}
    exec(compile(block, "data.md", "exec", dont_inherit=True), names)
    user = f"user-{uuid.uuid4().hex[:8]}"
    asleep, awake = [await stack.open(call_add, tools=["add"], metadata={"user": user}) for _ in range(2)]
    other = await stack.open("fine", metadata={"user": f"{user}-other"})
    for session in (asleep, awake, other):
        await session.ask("hello")
    await asleep.hibernate()

    async def are_listed() -> bool:
        return {one.session_id async for one in stack.clew.sessions(user=user)} == {asleep.id, awake.id}

    await wait_until(are_listed)
    assert set(await names["delete_user"](stack.clew, user)) == {asleep.id, awake.id}
    for session in (asleep, awake):
        with pytest.raises(NotFound):
            await stack.clew.open(session.id)
    assert (await other.status()).status == "idle"
    await names["delete_user"](stack.clew, user)
    assert [one async for one in stack.clew.sessions(user=user) if one.archived] == []


@tool
def lookup_order(order_id: int) -> str:
    """Look an order up."""
    return f"order {order_id}"


@activity.defn
async def ship() -> str:
    """Ship an order."""
    return "shipped"


def call_lookup(body: dict[str, Any]) -> Reply:
    """Look order 7 up, and tell what the tool has said."""
    newest = get_last_message(body)
    if newest["role"] == "tool":
        return Reply(newest["content"])
    return Reply(tool_calls=(ToolCall("lookup_order", {"order_id": 7}),))


@pytest.mark.slow
async def test_a_worker_of_ones_own_has_the_plugin_of_the_page(stack: Stack, monkeypatch: pytest.MonkeyPatch) -> None:
    """The page's worker runs a team's workflow, which asks a session that the same worker serves, with the tool."""
    for name, value in stack.environ.items():
        monkeypatch.setenv(name, value)
    queue = f"queue-{uuid.uuid4().hex}"
    client = await Client.connect(stack.server.address)
    (block,) = list_blocks("configuration.md")
    code = block.replace("s3://my-bucket/sessions", "memory://").replace('task_queue="clew"', f'task_queue="{queue}"')
    names = {"lookup_order": lookup_order, "Shipping": Support, "ship": ship, "client": client, "Worker": Worker}
    options = {"task_queue": queue, "config": {"model": stack.add_model(call_lookup), "tools": ["lookup_order"]}}
    async with (await run_block(code, names))["worker"]:
        asked = await client.execute_workflow(
            Support.run, args=["ask", f"session-{queue}", options], id=f"asks-{queue}", task_queue=queue
        )
    assert asked == "order 7"


async def test_the_test_of_the_upgrading_page_replays_histories(
    stack: Stack, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It passes with the history of a session, and fails where there is nothing to replay."""
    (block,) = list_blocks("upgrading.md")
    names: dict[str, Any] = {}
    exec(compile(block, "upgrading.md", "exec", dont_inherit=True), names)
    session = await stack.open("fine")
    await session.ask("hello")
    history = await stack.clew.temporal.get_workflow_handle(session.id).fetch_history()
    (tmp_path / "corpus").mkdir()
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ValueError, match="no workflow run"):
        await names["test_our_sessions_continue"]()
    (tmp_path / "corpus/support-4711.json").write_text(history.to_json())
    await names["test_our_sessions_continue"]()
