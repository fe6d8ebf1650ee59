"""Clients from npm with the service: a page of the AI SDK in Chromium, and the official MCP client."""

from __future__ import annotations

import json
import uuid
from pathlib import Path

import pytest
from playwright.async_api import Route, expect

from clew.serve.streams import Drain
from tests.support.browser import open_browser
from tests.support.npm import install_packages, run_node
from tests.support.serving import run_service
from tests.support.serving_chats import STORY, answer_chat, run_shop
from tests.support.stack import Stack
from tests.support.waiting import wait_until

CLIENT = Path(__file__).with_name("npm_clients")


@pytest.fixture(scope="module")
def packages(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Install the locked packages beside the client's files. Skipped where npm cannot."""
    folder = tmp_path_factory.mktemp("npm_clients")
    install_packages(CLIENT, folder)
    return folder


@pytest.mark.slow
async def test_a_page_of_use_chat(stack: Stack, packages: Path) -> None:
    """A person writes, approves, reloads the page within a reply, and misses nothing; a drain cuts no reply short."""
    name = f"page-{uuid.uuid4().hex}"
    bundle = packages / "page.js"
    esbuild = packages / "node_modules" / "esbuild" / "bin" / "esbuild"
    await run_node(
        esbuild, str(packages / "page.jsx"), "--bundle", "--jsx=automatic", "--format=iife", f"--outfile={bundle}",
        "--define:process.env.NODE_ENV=\"production\"",
    )  # fmt: skip
    async with run_service(stack.clew) as served, open_browser() as browser:
        await stack.clew.open(served.scope(name), model=stack.add_model(answer_chat), tools=["guarded", "add"])

        async def send_page(route: Route) -> None:
            listed = (await served.http.get(f"/v1/ui/chat/{name}/messages")).json()
            chat = {"id": name, "token": served.token, "messages": listed}
            script = f"window.chat = {json.dumps(chat)};\n{bundle.read_text()}"
            body = f'<!doctype html><meta charset="utf-8"><div id="root"></div><script>{script}</script>'
            await route.fulfill(body=body, content_type="text/html")

        page = await browser.new_page()
        await page.route("**/page", send_page)
        await page.goto(f"{served.address}/page")

        async def say(text: str) -> None:
            await page.get_by_label("Message").fill(text)
            await page.get_by_role("button", name="Send").click()

        await say("hello")
        await expect(page.locator(".assistant p")).to_have_text("You said hello")
        await say("guard and add")
        await page.get_by_role("button", name="Approve").click()
        await expect(page.get_by_text("tool-guarded output-available")).to_be_visible()
        await expect(page.locator(".assistant").nth(1).locator("p").last).to_contain_text("I read: ")
        await say("map")
        await expect(page.get_by_text('I read: {"shown":"Rome"}')).to_be_visible()
        await say("story")
        await expect(page.locator(".assistant").nth(3)).to_contain_text("Once")
        await page.reload()
        await expect(page.locator(".assistant").nth(3)).to_have_text(STORY.strip())
        await say("slow story")
        await expect(page.locator(".assistant").nth(4)).to_contain_text("Once")
        ended: Drain = served.app.state.drain
        served.app.state.drain = Drain()
        ended.begin()
        await expect(page.locator(".assistant").nth(4)).to_have_text(STORY.strip())
        await expect(page.locator(".user")).to_have_count(5)
        await expect(page.get_by_role("alert")).to_have_count(0)
        assert await page.evaluate("window.failures") == 1


@pytest.mark.slow
@pytest.mark.parametrize("protocol", ["2025-06-18", "2025-11-25", "2026-07-28"])
async def test_the_mcp_client_from_npm(stack: Stack, packages: Path, protocol: str) -> None:
    """It calls an agent, sees its progress, answers the approval, reads the session, and cancels a call."""
    story = f"npm-{uuid.uuid4().hex}"
    async with run_shop(stack, "shop") as served:
        seen = json.loads(await run_node(packages / "mcp.mjs", served.address, served.token, protocol, story))
        session = served.app.state.clew.session(served.scope(story))

        async def was_cancelled() -> bool:
            return [entry.payload["status"] for entry in await session.entries(kind="run")] == ["cancelled"]

        await wait_until(was_cancelled)
    assert (seen["protocol"], seen["tools"]) == (protocol, ["shop"])
    assert len(seen["asked"]) == 1
    assert "guarded is done" in seen["progress"]
    assert (seen["result"]["status"], seen["result"]["answer"]) == ("completed", "I read: done")
    assert seen["status"] == "idle"
    assert "cancelled" in seen
