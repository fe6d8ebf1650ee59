"""The page about front ends: its React page with its backend in Chromium, and its AG-UI client in Node."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import httpx
import pytest
from fastapi import FastAPI
from fastapi.responses import HTMLResponse, PlainTextResponse
from playwright.async_api import expect

from docs.generate import DOCS
from tests.support import web
from tests.support.browser import open_browser
from tests.support.npm import install_package, install_packages, run_node
from tests.support.page_code import find_block
from tests.support.processes import ROOT
from tests.support.serving import Served
from tests.support.serving_chats import run_shop
from tests.support.stack import Stack

PAGE = (DOCS / "web.md").read_text(encoding="utf-8")
PACKAGES = ROOT / "tests/clew/serve/npm_clients"
"""Pins React and the AI SDK with their hashes."""
AG_UI = "@ag-ui/client@1.0.0"
HTML = '<!doctype html><meta charset="utf-8"><div id="root"></div><script type="module" src="/page.js"></script>'


def make_backend(served: Served, monkeypatch: pytest.MonkeyPatch) -> FastAPI:
    """Run the code of the page's backend, with the address and a key of a service."""
    monkeypatch.setenv("SERVICE_URL", served.address)
    monkeypatch.setenv("SERVICE_KEY", served.token)
    names: dict[str, Any] = {}
    exec(compile(find_block("web.md", "FastAPI", "python"), "web.md", "exec", dont_inherit=True), names)
    app: FastAPI = names["app"]
    return app


@pytest.mark.slow
async def test_the_react_page_with_its_backend(stack: Stack, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A person writes, approves and reloads; the browser has no key; no id names another user's chat."""
    install_packages(PACKAGES, tmp_path)
    (tmp_path / "Chat.jsx").write_text(find_block("web.md", "useChat({", "jsx"))
    (tmp_path / "main.jsx").write_text(find_block("web.md", "createRoot", "jsx"))
    bundle = tmp_path / "bundle.js"
    await run_node(
        tmp_path / "node_modules/esbuild/bin/esbuild", tmp_path / "main.jsx", "--bundle", "--jsx=automatic",
        "--format=esm", f"--outfile={bundle}", '--define:process.env.NODE_ENV="production"',
    )  # fmt: skip
    async with run_shop(stack, "support") as served, open_browser() as browser:
        app = make_backend(served, monkeypatch)
        app.get("/")(lambda: HTMLResponse(HTML))
        app.get("/page.js")(lambda: PlainTextResponse(bundle.read_text(), media_type="text/javascript"))
        async with web.serve(app) as host:
            page = await browser.new_page()
            await page.goto(f"http://{host}/")

            async def say(text: str) -> None:
                await page.get_by_label("Message").fill(text)
                await page.get_by_role("button", name="Send").click()

            await say("hello")
            await expect(page.locator(".assistant p")).to_have_text("You said hello")
            await say("guard")
            await page.get_by_role("button", name="Approve").click()
            await expect(page.locator(".assistant p").last).to_have_text("I read: done")
            await page.reload()
            await expect(page.locator(".user p")).to_have_text(["hello", "guard"])
            await expect(page.locator(".assistant p").last).to_have_text("I read: done")
            await expect(page.get_by_role("alert")).to_have_count(0)
            assert (await served.http.get("/v1/sessions/ada.main")).json()["session_id"] == "ada.main"
            async with httpx.AsyncClient(base_url=f"http://{host}") as http:
                other = await http.post("/api/chat", json={"id": "bob.main", "messages": []})
                assert other.status_code == 422
                assert (await http.get("/api/chat/bob.main/messages")).status_code == 422


@pytest.mark.slow
async def test_the_ag_ui_client(stack: Stack, tmp_path: Path) -> None:
    """It connects, sends a message, and approves the call that waits. Skipped where npm cannot bring the client."""
    await asyncio.to_thread(install_package, AG_UI, tmp_path)
    async with run_shop(stack, "support") as served:
        headers = f'headers: {{ Authorization: "Bearer {served.token}" }}, url: "{served.address}'
        code = (
            find_block("web.md", "HttpAgent", "ts").replace('url: "', headers).replace("Refund order 1234.", "guard")
        )
        (tmp_path / "client.mts").write_text(f"{code}\nconsole.log(agent.messages.at(-1).content);\n")
        printed = await run_node("--experimental-strip-types", "--no-warnings", tmp_path / "client.mts")
    assert printed.strip() == "I read: done"
