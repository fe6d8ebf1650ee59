"""The page of `examples/web`, in a browser whose connections are reset all the time."""

from __future__ import annotations

import asyncio
import json
import random
from base64 import b64encode
from contextlib import suppress
from dataclasses import replace

import pytest
from playwright.async_api import Error as PlaywrightError
from playwright.async_api import Page, Request, Response, expect

from clew import Session, testing
from clew.contract.payloads import AssistantMessage, MessagePayload, ToolMessage, UserMessage
from clew.local import Reply, ToolCall
from clew.testing import ScriptedRequest
from examples.web import service
from examples.web.agents import shop
from tests.support.browser import open_browser
from tests.support.media import make_pdf, make_png
from tests.support.proxy import Proxy, run_proxy
from tests.support.scripts import FOUNDED, PAGE
from tests.support.web import serve

RECONNECTS = 100
# Characters that JavaScript counts twice, markup that must stay text, and lines.
STORY = "".join(f"{number}: 🚀 <img src=x onerror='window.hacked=1'> café\n" for number in range(40))
PAUSE = "Well, that is a long time. " * 20
REPLIES = ("", STORY, "It was paid back.", "It is on its way.", PAUSE)
# Every text that replies have had on the page, at any time.
WATCH = """
window.shown = new Set();
new MutationObserver(() => {
  for (const element of document.querySelectorAll(".assistant")) window.shown.add(element.textContent);
}).observe(document, { subtree: true, childList: true, characterData: true });
"""


def answer(request: ScriptedRequest) -> Reply:
    """Tell a long story, look an order up, or pay it back."""
    if request.role == "tool":
        return Reply("It was paid back." if "paid back" in request.text else "It is on its way.")
    if request.text == "refund":
        return Reply(tool_calls=(ToolCall("refund", {"order_id": 1234, "euros": 5}),))
    if request.text == "look":
        return Reply(tool_calls=(ToolCall("lookup_order", {"order_id": 1234}),))
    if request.text == "story":
        return Reply(STORY, tokens_per_second=60)
    return Reply(PAUSE, tokens_per_second=4)


class Resets:
    """Resets the connections of a proxy at random moments, until a page has connected often enough for its events."""

    def __init__(self, proxy: Proxy, page: Page) -> None:
        self._proxy = proxy
        self._random = random.Random(13)
        self._connected, self._answered = asyncio.Event(), asyncio.Event()
        page.on("request", self._notice_request)
        page.on("response", self._notice_response)

    def _notice_request(self, request: Request) -> None:
        if "/events" in request.url:
            self._connected.set()
            self._answered.clear()

    def _notice_response(self, response: Response) -> None:
        if "/events" in response.url:
            self._answered.set()

    async def run(self) -> None:
        """Reset the connections, each time that the page has connected again.

        Half of the connections get an answer before: so the page goes on, however slow the machine is.
        """
        for number in range(RECONNECTS):
            await self._wait_for(self._connected, seconds=1)
            self._connected.clear()
            if number % 2:
                await self._wait_for(self._answered, seconds=10)
                await asyncio.sleep(0.2)
            await asyncio.sleep(self._random.uniform(0.0, 0.3))
            self._proxy.reset_connections()

    async def _wait_for(self, event: asyncio.Event, seconds: float) -> None:
        while not event.is_set():
            try:
                async with asyncio.timeout(seconds):
                    await event.wait()
            except TimeoutError:
                # The last reset came before the proxy had the connection, which is still open.
                self._proxy.reset_connections()


async def send(page: Page, text: str) -> None:
    """Type a message and send it."""
    await page.get_by_label("Message").fill(text)
    await page.get_by_role("button", name="Send").click()


async def check_page(page: Page, session: Session) -> None:
    """Compare the page with the thread: each message once, in order, and nothing else."""
    messages = [entry async for entry in session.read() if isinstance(entry.body, MessagePayload)]
    spoken = [
        [str(entry.seq), entry.body.content]
        for entry in messages
        if isinstance(entry.body, UserMessage | AssistantMessage) and entry.body.content
    ]
    assert spoken == await page.evaluate(
        "[...document.querySelectorAll('.user, .assistant')].map(e => [e.dataset.seq, e.lastChild.textContent])"
    )
    results = [
        [entry.body.tool_call_id, entry.body.content] for entry in messages if isinstance(entry.body, ToolMessage)
    ]
    assert results == await page.evaluate(
        "[...document.querySelectorAll('.tool')].map(e => [e.dataset.tool, e.querySelector('.result').textContent])"
    )


@pytest.mark.slow
@pytest.mark.long
async def test_a_hundred_reconnects_lose_and_double_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Messages, streamed text, tools, an approval, a cancellation and a dead worker, while connections are reset."""
    monkeypatch.setattr(service, "RECONNECT_MILLISECONDS", 50)
    agent = replace(shop, model="scripted:shop")
    async with (
        testing.stack(agents=[agent], models={"shop": answer}) as stack,
        serve(service.app, stack.clew) as address,
        run_proxy(address) as proxy,
        open_browser() as browser,
    ):
        context = await browser.new_context()
        await context.add_cookies([{"name": "user", "value": "ann", "url": f"http://{proxy.address}"}])
        page = await context.new_page()
        # An error status ends a browser's own reconnecting: the page has to connect again.
        await page.route("**/events?*", lambda route: route.fulfill(status=502), times=1)
        resets = Resets(proxy, page)
        await page.add_init_script(WATCH)
        await page.goto(f"http://{proxy.address}/?chat=main")
        resetting = asyncio.create_task(resets.run())
        stories = 0
        await expect(page.locator("#status")).to_have_text("idle")
        while not resetting.done():
            await send(page, "story")
            stories += 1
            if stories == 1:
                await expect(page.locator(".assistant.writing")).to_contain_text("5: 🚀")
                await stack.kill_worker()
                await stack.restart_worker()
            await expect(page.locator(".assistant:not(.writing)", has_text="39: 🚀")).to_have_count(stories)
            await send(page, "look")
            await send(page, "refund")
            await page.get_by_role("button", name="Approve").click()
            await expect(page.get_by_text("It was paid back.")).to_have_count(stories)
            await send(page, "wait")
            await expect(page.locator(".assistant.writing", has_text="Well")).to_be_visible()
            await page.get_by_role("button", name="Cancel").click()
            await expect(page.locator(".note.failed")).to_have_count(stories)
            await expect(page.locator(".interrupted")).to_have_count(stories)
        resetting.result()
        await expect(page.locator("#status")).to_have_text("idle")
        await check_page(page, stack.clew.session("web:ann:main"))
        shown = await page.evaluate("[...window.shown]")
        assert len(shown) > 20
        assert not [text for text in shown if not any(reply.startswith(text) for reply in REPLIES)]
        assert await page.locator("main img").count() == 0
        assert not await page.evaluate("window.hacked")
        await page.reload()
        await expect(page.locator("#status")).to_have_text("idle")
        await check_page(page, stack.clew.session("web:ann:main"))


DROP = """async ([name, type, base64, event]) => {
  const bytes = Uint8Array.from(atob(base64), (character) => character.charCodeAt(0));
  const transfer = new DataTransfer();
  transfer.items.add(new File([bytes], name, { type }));
  const init = { bubbles: true, cancelable: true };
  dispatchEvent(event === "drop" ? new DragEvent("drop", { ...init, dataTransfer: transfer })
                                 : new ClipboardEvent("paste", { ...init, clipboardData: transfer }));
}"""
HOSTILE = b"<svg xmlns='http://www.w3.org/2000/svg' onload='window.hacked=1'><script>window.hacked=1</script></svg>"


async def give_file(page: Page, name: str, media_type: str, data: bytes, event: str = "drop") -> None:
    """Drop a file on the page, or paste it."""
    await page.evaluate(DROP, [name, media_type, b64encode(data).decode(), event])


@pytest.mark.slow
async def test_files_are_dropped_pasted_and_shown() -> None:
    """Files have previews, and stand in the message after it is sent; an SVG that is named .png does not run."""
    agent = replace(shop, model="scripted:shop")
    png = make_png(200, 120)
    async with (
        testing.stack(agents=[agent], models={"shop": lambda _: Reply("I see.")}) as stack,
        serve(service.app, stack.clew) as address,
        open_browser() as browser,
    ):
        context = await browser.new_context()
        page = await context.new_page()
        dialogs: list[str] = []
        page.on("dialog", lambda dialog: dialogs.append(dialog.message))
        await page.goto(f"http://{address}/?chat=main")
        await expect(page.locator("#status")).to_have_text("idle")
        await give_file(page, "screen.png", "image/png", png)
        await give_file(page, "invoice.pdf", "application/pdf", make_pdf(1), "paste")
        await give_file(page, "evil.png", "image/png", HOSTILE)
        await give_file(page, "empty.png", "image/png", b"")
        await expect(page.locator(".note.failed")).to_contain_text("is empty")
        await page.get_by_label("Files", exact=True).set_input_files(
            {"name": "notes.txt", "mimeType": "text/plain", "buffer": b"some notes"}
        )
        figures = page.locator("#files figure")
        await expect(figures).to_have_count(4)
        await expect(figures.first.locator("img")).to_have_js_property("naturalWidth", 200)
        await page.get_by_role("button", name="Remove notes.txt").click()
        await expect(figures).to_have_count(3)
        await send(page, "What is wrong here?")
        await expect(page.locator(".assistant")).to_have_text("I see.")
        await expect(figures).to_have_count(0)
        message = page.locator(".user")
        await expect(message.locator(".part").first).to_have_text("What is wrong here?")
        await expect(message.locator("img")).to_have_count(1)
        await expect(message.locator("img")).to_have_js_property("naturalWidth", 200)
        links = message.locator("a[download]")
        assert [text.partition(" (")[0] for text in await links.all_text_contents()] == ["invoice.pdf", "evil.png"]
        await check_hostile_file(page, str(await links.last.get_attribute("href")))
        await page.reload()
        await expect(page.locator(".user img")).to_have_js_property("naturalWidth", 200)
        assert not await page.evaluate("window.hacked")
        assert dialogs == []
        question = [
            entry.body.content
            async for entry in stack.clew.session(await find_session_id(page)).read()
            if isinstance(entry.body, UserMessage)
        ]
        assert [part["type"] for part in question[0] if not isinstance(part, str)] == [
            "text",
            "image",
            "file",
            "file",
        ]


async def find_session_id(page: Page) -> str:
    user = next(cookie for cookie in await page.context.cookies() if cookie.get("name") == "user")
    return f"web:{user.get('value')}:main"


async def check_hostile_file(page: Page, path: str) -> None:
    """Open the file as a page, in a frame, as an object and as an image: the browser saves it or shows nothing."""
    await page.evaluate(
        """(path) => {
          for (const [name, attribute] of [["iframe", "src"], ["embed", "src"], ["object", "data"], ["img", "src"]]) {
            const element = document.createElement(name);
            element[attribute] = path;
            document.body.append(element);
          }
        }""",
        path,
    )
    other = await page.context.new_page()
    async with other.expect_download():
        with suppress(PlaywrightError):
            await other.goto(f"{page.url.partition('/?')[0]}{path}")
    assert not await other.evaluate("window.hacked")
    await other.close()
    assert not await page.evaluate("window.hacked")


@pytest.mark.slow
async def test_parts_of_results_and_replies_are_shown() -> None:
    """What a tool returns and what a model draws stand in the page; a refused file comes back to the composer."""
    agent = replace(shop, model="scripted:shop")
    async with (
        testing.stack(agents=[agent], models={"shop": answer}) as stack,
        serve(service.app, stack.clew) as address,
        open_browser() as browser,
    ):
        session = await stack.clew.open("web:bea:main", agent="shop")
        image = {"type": "image", "blob": await session.put_blob(make_png(150, 90), name="chart.png")}
        call = {"id": "c1", "name": "draw", "arguments": {}}
        result = [{"type": "text", "text": "done:"}, image]
        payloads = (
            {"role": "assistant", "content": "", "tool_calls": [call]},
            {"role": "tool", "tool_call_id": "c1", "name": "draw", "content": result},
            {"role": "assistant", "content": [image, {"type": "text", "text": "I drew <b>it</b>."}]},
            {"role": "assistant", "content": [{"type": "image", "url": "https://shop.example/a.png"}]},
        )
        sent = "".join(
            f"data: {json.dumps({'type': 'entry', 'entry': entry})}\n\n"
            for seq, payload in enumerate(payloads)
            for entry in [
                {"seq": 100 + seq, "kind": "ai_message", "payload": payload, "refs": {"call_id": f"call-{seq}"}}
            ]
        )
        context = await browser.new_context()
        await context.add_cookies([{"name": "user", "value": "bea", "url": f"http://{address}"}])
        page = await context.new_page()
        await page.route(
            "**/events?*", lambda route: route.fulfill(body=sent, content_type="text/event-stream"), times=1
        )
        await page.goto(f"http://{address}/?chat=main")
        await expect(page.locator("#status")).to_have_text("idle")
        for where in (".tool .result img", ".assistant img"):
            await expect(page.locator(where)).to_have_js_property("naturalWidth", 150)
        await expect(page.locator(".assistant").nth(0)).to_contain_text("I drew <b>it</b>.")
        assert await page.locator(".assistant a").last.get_attribute("href") == "https://shop.example/a.png"
        assert await page.locator("img[src^='https://shop']").count() == 0
        await give_file(page, "program.exe", "", b"MZ\x00\x01")
        await send(page, "run this")
        await expect(page.locator(".note.failed")).to_contain_text("program.exe")
        await expect(page.locator("#files figure")).to_have_count(1)
        await expect(page.get_by_label("Message")).to_have_value("run this")


@pytest.mark.slow
async def test_sources_stand_under_the_answer() -> None:
    """Pages of the web are links that open apart and tell nothing; another address is text, and runs nothing."""
    agent = replace(shop, model="scripted:shop")
    async with (
        testing.stack(agents=[agent], models={"shop": FOUNDED}) as stack,
        serve(service.app, stack.clew) as address,
        open_browser() as browser,
    ):
        page = await browser.new_page()
        await page.goto(f"http://{address}/?chat=main")
        await expect(page.locator("#status")).to_have_text("idle")
        await send(page, "Where does tea grow?")
        link = page.locator(".sources a")
        await expect(link).to_have_text("Assam")
        assert await link.evaluate("a => [a.href, a.rel, a.target]") == [PAGE, "noopener noreferrer", "_blank"]
        sources = page.locator(".sources li")
        assert await sources.all_text_contents() == [f"Assam {PAGE}", "Click me javascript:alert(1)"]
        provided = page.locator(".provided")
        assert await provided.locator("strong").all_text_contents() == ["web_search", "code_execution"]
        await expect(provided.first.locator(".result")).to_have_text("Assam")
        order = "[...document.querySelectorAll('main > *')].map(e => e.className)"
        assert await page.evaluate(order) == ["user", "assistant", "tool provided", "tool provided", "sources"]
