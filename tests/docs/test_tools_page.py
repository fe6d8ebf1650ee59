"""The page about tools: its functions run, its declarations load, its TypeScript is a worker that answers."""

from __future__ import annotations

import json
import os
import sqlite3
import sys
import threading
import uuid
from contextlib import closing
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import httpx
import pytest

import clew
from clew import Agent, ToolContext, tool
from clew.errors import AlreadyAnswered, CallEnded
from clew.local import Reply, ToolCall
from clew.local.child import child_process
from clew.testing import stack as make_stack
from clew.tools import RemoteTool, external_tool, make_tool, remote_tool
from clew_activities.tools.registry import load_tools
from docs.generate import DOCS
from tests.support import toolbox
from tests.support.hostile_input import assert_unharmed
from tests.support.media import make_png
from tests.support.npm import NODE, install_package
from tests.support.page_code import find_block, run_block
from tests.support.stack import Stack, get_last_message
from tests.support.waiting import PATIENCE_SECONDS, wait_until

PAGE = (DOCS / "tools.md").read_text(encoding="utf-8")
WORKER = "@temporalio/worker@1.24.0"
CLOSING = '''

@tool
async def close_pool() -> str:
    """Close the connections of the loop, which only code on the loop can."""
    await get_engine(asyncio.get_running_loop()).dispose()
    return "closed"
'''


def test_the_declarations_in_json_are_those_in_python(tmp_path: Path) -> None:
    """The file loads, and holds the same external tool; the remote one has the page's queue and activity."""
    declarations = find_block("tools.md", "external", "json")
    (tmp_path / "tools.json").write_text(declarations)
    loaded = load_tools([str(tmp_path / "tools.json")])
    namespace = {"external_tool": external_tool, "remote_tool": remote_tool}
    for declared in ("order = external_tool(", "remote_tool("):
        exec(find_block("tools.md", declared, "python"), namespace)
    assert vars(loaded["order"]) == vars(namespace["order"])
    weather = namespace["weather"]
    assert isinstance(weather, RemoteTool)
    assert loaded["weather"].spec == weather.spec == toolbox.weather.spec
    assert vars(make_tool(json.loads(declarations)[1])) == vars(loaded["weather"])
    assert (toolbox.weather.task_queue, toolbox.weather.activity) == (weather.task_queue, weather.activity)


class Bank:
    """A bank that keeps the keys of its refunds."""

    def __init__(self) -> None:
        self.keys: list[str] = []

    async def refund(self, order_id: str, cents: int, *, idempotency_key: str) -> str:
        """Pay back."""
        self.keys.append(idempotency_key)
        return f"{cents} for {order_id}"


async def test_a_refund_is_paid_once_and_a_second_call_has_another_key() -> None:
    """The repeated message runs nothing again. The model's second call is another one, as the page warns."""
    bank = Bank()
    refund = (await run_block(find_block("tools.md", "# my_package/tools.py"), {"bank": bank}))["refund"]
    assert (refund.timeout_seconds, refund.idempotent, refund.requires_approval) == (10, False, True)
    assert refund.spec["parameters"]["properties"]["cents"]["description"] == "The amount."
    call = Reply(tool_calls=[ToolCall("refund", {"order_id": "1234", "cents": 4200})])
    async with make_stack(tools=[refund]) as running:
        session = await running.open([call, call, "Your money is on its way."], tools=["refund"])
        request = await session.message("Please refund order 1234.", request_id="msg-93")
        for _ in range(2):
            await session.approve(await running.wait_for_approval(session))
        await request.result()
        names = await run_block(find_block("tools.md", 'request_id="msg-93"'), {"session": session})
        assert names["answer"] == "Your money is on its way."
        assert bank.keys == [f"{session.id}/{each.tool_call_id}" for each in (await running.read(session)).calls]
        assert len(set(bank.keys)) == 2


async def test_a_chart_is_drawn_and_a_scene_has_a_queue_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """The result has the text and the image. The other tool's calls run on the worker of its queue."""
    code = find_block("tools.md", "def draw_chart")
    chart = (await run_block(code, {"tool": tool, "clew": clew, "plot": lambda _quarter: make_png()}))["draw_chart"]
    render = (await run_block(find_block("tools.md", "def render"), {"tool": tool}))["render"]
    assert (render.task_queue, render.timeout_seconds) == ("gpu", 600)
    renderer = ModuleType("renderer")
    vars(renderer)["render"] = lambda scene: f"a picture of {scene}"
    monkeypatch.setitem(sys.modules, "renderer", renderer)
    async with make_stack(tools=[chart, render]) as running:
        script: list[Reply | str] = [Reply(tool_calls=[ToolCall("draw_chart", {"quarter": "Q1"})]), "Here it is."]
        session = await running.open(script, tools=["draw_chart"])
        assert await session.ask("draw") == "Here it is."
        drawn = (await running.read(session)).expect_call("draw_chart")
        assert "Sales by week:" in str(drawn.result)
        assert len(drawn.media) == 1
        script = [Reply(tool_calls=[ToolCall("render", {"scene": "a lamp"})]), "Rendered."]
        session = await running.open(script, tools=["render"])
        assert await session.ask("render") == "Rendered."
        assert (await running.read(session)).expect_call("render").result == "a picture of a lamp"


@pytest.mark.slow
async def test_calls_share_a_pool_of_connections(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The page's tool reads a database through SQLAlchemy, with one engine for all calls of the worker's loop."""
    database = tmp_path / "shop.db"
    with closing(sqlite3.connect(database)) as connection, connection:
        connection.execute("CREATE TABLE orders (id INTEGER, status TEXT)")
        connection.executemany("INSERT INTO orders VALUES (?, ?)", [(7, "shipped"), (8, "lost")])
    monkeypatch.setenv("DATABASE_URL", f"sqlite+aiosqlite:///{database}")
    names = await run_block(find_block("tools.md", "create_async_engine") + CLOSING, {})
    calls = [ToolCall("find_order", {"order_id": number}) for number in (7, 8)]
    script: list[Reply | str] = [Reply(tool_calls=calls), Reply(tool_calls=[ToolCall("close_pool", {})]), "Fine."]
    async with make_stack(tools=[names["find_order"], names["close_pool"]]) as running:
        session = await running.open(script, tools=["find_order", "close_pool"])
        await session.ask("Where are orders 7 and 8?")
        assert [call.result for call in (await running.read(session)).calls] == ["shipped", "lost", "closed"]
    assert names["get_engine"].cache_info().currsize == 1


async def test_a_tool_acts_for_the_sessions_user() -> None:
    """The invoices are asked for with the token of the user whom the session's metadata name."""

    async def fetch_token(user: str) -> str:
        return f"token-of-{user}"

    def answer(request: httpx.Request) -> httpx.Response:
        return httpx.Response(200, text=f"{request.url}: {request.headers['authorization']}")

    async with httpx.AsyncClient(transport=httpx.MockTransport(answer)) as http:
        names = {
            "tool": tool,
            "ToolContext": ToolContext,
            "vault": SimpleNamespace(fetch_token=fetch_token),
            "http": http,
        }
        tools = [(await run_block(find_block("tools.md", "def list_invoices"), names))["list_invoices"]]
        async with make_stack(tools=tools) as running:
            script: list[Reply | str] = [Reply(tool_calls=[ToolCall("list_invoices", {})]), "There are two."]
            session = await running.open(script, tools=["list_invoices"], metadata={"user": "ada"})
            await session.ask("Which invoices do I have?")
            called = (await running.read(session)).expect_call("list_invoices")
    assert called.result == "https://billing.example.com/invoices: Bearer token-of-ada"


async def test_a_long_function_goes_on_where_a_dead_worker_was() -> None:
    """The second attempt trains only the epochs that the first one has not kept."""
    progress, epochs = dict[str, int](), list[int]()
    in_the_middle, is_dead = threading.Event(), threading.Event()

    def train_epoch(data_set: str, epoch: int) -> None:
        assert data_set == "letters"
        if epoch == 5 and not is_dead.is_set():
            in_the_middle.set()
            is_dead.wait(PATIENCE_SECONDS)
            raise RuntimeError("a dead worker keeps nothing")
        epochs.append(epoch)

    names = {
        "tool": tool, "ToolContext": ToolContext, "Agent": Agent, "progress": progress, "train_epoch": train_epoch
    }  # fmt: skip
    lab = (await run_block(find_block("tools.md", "def train("), names))["lab"]
    script: list[Reply | str] = [Reply(tool_calls=[ToolCall("train", {"data_set": "letters"})]), "Trained."]
    async with make_stack(agents=[lab], scripts={"lab": script}) as running:
        session = await running.clew.open(f"trains-{uuid.uuid4().hex}", agent="lab")
        request = await session.message("Train a model.")
        await wait_until(in_the_middle.is_set)
        await running.kill_worker()
        is_dead.set()
        await running.restart_worker()
        assert await request.answer() == "Trained."
        assert (await running.read(session)).expect_call("train").result == "The model is trained."
    assert epochs == list(range(10))
    assert list(progress.values()) == [10]


async def test_a_result_comes_from_outside_once() -> None:
    """The job starts with the call's arguments. Its result counts once. A caller's own tool waits."""
    order = (await run_block(find_block("tools.md", "order = external_tool("), {}))["order"]
    routes: dict[str, Any] = {}
    app = SimpleNamespace(post=lambda path: lambda function: routes.setdefault(path, function))
    travel, jobs = Agent("travel", model="openai:gpt-4o"), dict[str, tuple[str, Any]]()

    async def start(job_id: str, name: str, arguments: Any) -> None:
        jobs[job_id] = name, dict(arguments)

    script: list[Reply | str] = [Reply(tool_calls=[ToolCall("order", {"item": "tea"})]), "Ordered."]
    async with make_stack(tools=[order], agents=[travel], scripts={"travel": "fine"}) as running:
        names: dict[str, Any] = {
            "app": app, "clew": running.clew, "jobs": SimpleNamespace(start=start),
            "Any": Any, "AlreadyAnswered": AlreadyAnswered, "CallEnded": CallEnded
        }  # fmt: skip
        await run_block(find_block("tools.md", "def submit_result"), names)
        session = await running.open(script, tools=["order"])
        request = await session.message("Order tea.")
        call = await running.wait_for_external(session)
        for _ in range(2):
            await names["start_jobs"]({"data": {"session_id": session.id}})
        assert jobs == {f"{session.id}/{call}": ("order", {"item": "tea"})}
        for _ in range(2):
            await routes["/warehouse/{session_id}/{tool_call_id}"](session.id, call, {"status": "sent"})
        assert await request.answer() == "Ordered."
        opened = await run_block(find_block("tools.md", "show_map = external_tool("), {"clew": running.clew})
        assert (await opened["session"].status()).config["external_tools"][0]["name"] == "show_map"


@pytest.mark.slow
async def test_the_typescript_is_a_worker(stack: Stack, tmp_path: Path) -> None:
    """A session calls it. Skipped where npm cannot bring Temporal's SDK."""
    install_package(WORKER, tmp_path)
    (tmp_path / "worker.mts").write_text(find_block("tools.md", "lookUpWeather", "ts"))
    environment = {**os.environ, "TEMPORAL_ADDRESS": stack.server.address}
    command: list[str | Path] = [NODE, "--disable-warning=ExperimentalWarning", tmp_path / "worker.mts"]

    def script(body: dict[str, object]) -> Reply:
        newest = get_last_message(body)
        if newest["role"] == "user" and newest["content"] == "go":
            return Reply(tool_calls=(ToolCall("weather", {"city": "Łódź"}),))
        return Reply(newest["content"] if newest["role"] == "tool" else "fine")

    async with child_process("node", command, env=environment, folder=tmp_path):
        session = await stack.open(script, tools=["weather"], request_timeout_seconds=120)
        answer = json.loads(await session.ask("go"))
    assert answer == {"city": "Łódź", "degrees": 21, "idempotencyKey": f"{session.id}/tool00001"}
    await assert_unharmed(stack, session.id)
