"""Make the screenshots of `docs/looking.md`: a real Temporal server, a worker, scripted models.

python -m docs.screenshots [NAME]…    write docs/images/
python -m docs.screenshots --serve    only run the sessions and print the UI's address, until Ctrl-C

It needs Chromium (`apt-get install chromium`).
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
from collections.abc import AsyncIterator, Collection, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from playwright.async_api import Browser, Page

from clew import Agent, Clew, RequestFailed, tool
from clew.local import Reply, TemporalServer, ToolCall, scripted_model, temporal_server
from clew.local.scripted import Script
from clew.serve import Keys, ServeSettings, make_app
from clew.serve.error_words import ALL_TENANTS
from clew.session.namespace import setup_namespace
from clew.tools import external_tool
from clew_activities.archive import Store
from clew_activities.providers import load_providers, make_http_client
from clew_activities.tools.registry import collect_tools
from clew_activities.worker import WorkerSettings, make_worker
from tests.support.browser import open_browser
from tests.support.serving import make_key
from tests.support.web import serve as serve_app

IMAGES = Path(__file__).parent / "images"
WIDTH, HEIGHT = 1400, 900
SETTLE = 3000
"""Milliseconds that a page has to draw itself."""


@tool
def find_order(number: int) -> dict[str, Any]:
    """Look up an order by its number."""
    return {"number": number, "state": "shipped", "carrier": "DHL", "due": "Tuesday", "total_cents": 4_900}


@tool(requires_approval=True)
def refund(order: int, cents: int, reason: str) -> str:
    """Refund money for an order. A person must approve it."""
    return f"refunded {cents} cents of order {order} ({reason})"


ask_warehouse = external_tool(
    "ask_warehouse",
    "Ask the people of the warehouse.",
    {"type": "object", "properties": {"question": {"type": "string"}}, "required": ["question"]},
    timeout_seconds=86_400,
)
researcher = Agent("researcher", model="openai:gpt-4o-mini", tools=[find_order])
support = Agent(
    "support",
    model="openai:gpt-4o",
    system_prompt="You help the customers of a shop.",
    tools=[find_order, refund, ask_warehouse, researcher.as_tool()],
)

CALLS: Mapping[str, tuple[ToolCall, ...]] = {
    "Where is my order 1042?": (ToolCall("find_order", {"number": 1042}),),
    "The cup in order 1043 is broken.": (
        ToolCall("find_order", {"number": 1043}),
        ToolCall("refund", {"order": 1043, "cents": 4_900, "reason": "the cup arrived broken"}, "c1"),
    ),
    "Is there a blue cup in the warehouse?": (ToolCall("ask_warehouse", {"question": "Is there a blue cup?"}),),
    "Compare my last two orders.": (
        ToolCall("researcher", {"task": "Find out about order 1040."}, "c0"),
        ToolCall("researcher", {"task": "Find out about order 1041."}, "c1"),
    ),
    "Find out about order 1040.": (ToolCall("find_order", {"number": 1040}),),
}
"""The tool calls with which a model replies to a message."""
ANSWERS: Mapping[str, str] = {
    "Where is my order 1042?": "Order 1042 is with DHL and arrives on **Tuesday**.",
    "Thank you! Can I still change the address?": "Not any more, since it has been shipped. DHL can redirect it.",
    "Compare my last two orders.": "Both were shipped by DHL.",
    "Find out about order 1040.": "Order 1040 was shipped by DHL.",
    "Find out about order 1041.": "Order 1041 was shipped by DHL, too.",
}


async def reply(body: dict[str, Any]) -> Reply:
    """Reply as the model of the scenes."""
    newest = [message for message in body["messages"] if message["role"] != "system"]
    question = next(message["content"] for message in reversed(newest) if message["role"] == "user")
    await asyncio.sleep(0.6)
    if question.startswith("Translate"):
        return Reply.error(400, "The response was filtered: the content policy does not allow this prompt.")
    if question.startswith("Are you there"):
        return Reply.error(503, "The engine is overloaded, please try again later.")
    if newest[-1]["role"] == "user" and question in CALLS:
        return Reply(tool_calls=CALLS[question])
    return Reply(ANSWERS.get(question, "Is there anything else?"), tokens_per_second=30)


@asynccontextmanager
async def run_stack(script: Script, *agents: Agent) -> AsyncIterator[tuple[TemporalServer, Clew]]:
    """Run a Temporal server with its UI, and a worker with agents whose models are scripted."""
    async with temporal_server() as server, scripted_model(script) as model, make_http_client() as http:
        clew = await Clew.connect(server.address)
        await setup_namespace(clew.temporal)
        worker = make_worker(
            clew.temporal,
            WorkerSettings(
                task_queue=clew.task_queue,
                providers=load_providers({"OPENAI_BASE_URL": model.base_url}),
                tools=collect_tools([]),
                agents=agents,
                store=Store.from_url("memory://"),
            ),
            http,
        )
        async with worker:
            yield server, clew


async def play(clew: Clew) -> None:
    """Play the scenes: a good run, a failed one, runs that wait, a retry, and subagents."""

    async def open_session(session_id: str, user: str, *messages: str) -> None:
        session = await clew.open(session_id, agent="support", metadata={"user": user, "tags": "shop,web"})
        for message in messages[:-1]:
            await session.ask(message)
        request = await session.message(messages[-1])
        if messages[-1].startswith("Translate"):
            with suppress(RequestFailed):
                await request.answer()

    await open_session("order-1042", "ada", "Where is my order 1042?", "Thank you! Can I still change the address?")
    await open_session("order-1044", "alan", "Where is my order 1042?", "Translate the terms of sale.")
    await open_session("order-1043", "grace", "The cup in order 1043 is broken.")
    await open_session("blue-cup", "edsger", "Is there a blue cup in the warehouse?")
    await open_session("two-orders", "barbara", "Compare my last two orders.")
    await open_session("are-you-there", "ada", "Are you there?")
    await wait_for(clew, "order-1043", "awaiting_approval")
    await wait_for(clew, "blue-cup", "awaiting_external")
    await wait_for(clew, "two-orders", "idle")
    await wait_for(clew, "order-1042", "idle")


async def wait_for(clew: Clew, session_id: str, status: str) -> None:
    """Wait until a session has a status."""
    async for event in clew.session(session_id).follow():
        if event.type == "status" and event.status == status:
            return


COLUMNS = ("Status", "Workflow ID", "ClewStatus", "ClewAgent", "ClewUser", "ClewTokens", "ClewCostUsd", "Start")
"""The columns of the list, which the UI keeps in the browser."""


@dataclass(frozen=True)
class Shot:
    """A screenshot.

    Attributes:
        name: The name of its file.
        path: The page, under the namespace's workflows.
        tab: The tab to open; None: the first one.
    """

    name: str
    path: str
    tab: str | None = None


SHOTS = (
    Shot("audit-list", ""),
    Shot("audit-run", "order-1042"),
    Shot("audit-details", "order-1043", "User Metadata"),
)


async def open_page(page: Page, address: str, shot: Shot) -> None:
    """Open the page of a screenshot. `address` is that of the list of workflows."""
    await page.set_viewport_size({"width": WIDTH, "height": HEIGHT})
    await page.goto(f"{address}/{shot.path}".rstrip("/"))
    await page.get_by_text("Run ID" if shot.path else "Workflow ID").first.wait_for()
    if shot.tab:
        await page.get_by_role("tab", name=shot.tab).or_(page.get_by_role("link", name=shot.tab)).first.click()
    await page.wait_for_timeout(SETTLE)


async def make_screenshots(names: Collection[str]) -> None:
    """Play the scenes and take the screenshots with these names, all of them if there is none."""
    IMAGES.mkdir(exist_ok=True)
    async with run_stack(reply, support, researcher) as (server, clew), open_browser() as browser:
        await play(clew)
        page = await browser.new_page(color_scheme="light")
        columns = json.dumps({server.namespace: [{"label": label} for label in COLUMNS]})
        await page.add_init_script(f"localStorage.setItem('namespace-workflow-table-columns', {columns!r})")
        for shot in SHOTS:
            if not names or shot.name in names:
                await open_page(page, f"{server.ui_address}/namespaces/{server.namespace}/workflows", shot)
                await page.screenshot(path=IMAGES / f"{shot.name}.png")
        for studio_shot in STUDIO_SHOTS:
            if not names or studio_shot.name in names:
                await take_studio(clew, browser, studio_shot)


@dataclass(frozen=True)
class StudioShot:
    """A screenshot of the studio.

    Attributes:
        name: The name of its file.
        path: The page.
        keys: The keys to press on it.
        width: The width of the window, in pixels.
    """

    name: str
    path: str
    keys: str = ""
    width: int = 1280


STUDIO_SHOTS = (
    StudioShot("studio", "#/s/order-1043"),
    StudioShot("studio-seen", "#/s/order-1042", "w", 1400),
    StudioShot("studio-inbox", "#/inbox"),
)


async def take_studio(clew: Clew, browser: Browser, shot: StudioShot) -> None:
    """Take a screenshot of the studio."""
    token, key = make_key("studio", ALL_TENANTS, requests_per_minute=100_000)
    size: Any = {"width": shot.width, "height": 800}
    async with serve_app(make_app(Keys([key]), clew=clew, settings=ServeSettings()), clew) as host:
        page = await browser.new_page(viewport=size, color_scheme="light")
        await page.goto(f"http://{host}/studio/#key={token}")
        await page.goto(f"http://{host}/studio/{shot.path}")
        await page.wait_for_timeout(SETTLE)
        for pressed in shot.keys:
            await page.keyboard.press(pressed)
            await page.wait_for_timeout(SETTLE)
        if shot.keys:
            await page.locator("#seen .calls summary").first.click()
        await page.screenshot(path=IMAGES / f"{shot.name}.png")
        await page.close()


async def serve() -> None:
    """Play the scenes and serve the UI until Ctrl-C."""
    async with run_stack(reply, support, researcher) as (server, clew):
        print(server.ui_address, flush=True)
        await play(clew)
        print("ready", flush=True)
        await asyncio.Event().wait()


def main() -> None:
    """Make the screenshots, or serve."""
    parser = argparse.ArgumentParser(
        prog="python -m docs.screenshots", description="Make the screenshots of the docs."
    )
    parser.add_argument("names", nargs="*", help="the screenshots to make; none: all")
    parser.add_argument("--serve", action="store_true", help="only run the sessions and serve the UI, until Ctrl-C")
    args = parser.parse_args()
    try:
        asyncio.run(serve() if args.serve else make_screenshots(args.names))
    except KeyboardInterrupt:
        sys.exit(130)


if __name__ == "__main__":
    main()
