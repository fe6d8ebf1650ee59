"""The studio in a browser: what a person sees and does, and what hostile texts cannot do."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx
import pytest
from playwright.async_api import Page, expect

from clew import Session
from clew.local import Reply, ToolCall
from tests.support.browser import open_browser
from tests.support.media import make_png
from tests.support.rolling import make_id
from tests.support.serving import Served, run_service
from tests.support.stack import Stack, get_last_message
from tests.support.waiting import wait_until

HOSTILE = "<img src=x onerror='window.hacked=1'> [go](javascript:window.hacked=1) **bold** `code`"
DESKTOP, PHONE = {"width": 1280, "height": 800}, {"width": 390, "height": 844}


def answer(body: dict[str, Any]) -> Reply:
    """Call a tool, talk slowly, or answer with markup that must stay text."""
    message = get_last_message(body)
    text = message["content"]
    if message["role"] == "tool":
        return Reply("The sum is 3.")
    if text == "add":
        return Reply(tool_calls=(ToolCall("add", {"a": 1, "b": 2}),))
    if text == "slowly":
        return Reply("word " * 400, tokens_per_second=20)
    hostile = f"{HOSTILE} after {len(body['messages'])} messages\n\n{'>' * 20_000} deep\n\n{'[' * 50_000}"
    return Reply(hostile if text == "hostile" else "fine")


async def open_session(stack: Stack, served: Served, **config: Any) -> tuple[str, Session]:
    """Open a session of the service's tenant: its id there, and its handle."""
    name = make_id()
    model = stack.add_model(answer)
    return name, await stack.clew.open(served.scope(name), model=model, tools=["add"], **config)


@asynccontextmanager
async def open_page(served: Served, path: str = "", *, size: Any = DESKTOP, **options: Any) -> AsyncIterator[Page]:
    """Open the studio as `clew dev` does, with the key in the fragment. The page must report no error."""
    async with open_browser() as browser:
        page = await browser.new_page(viewport=size, **options)
        problems: list[str] = []
        page.on("pageerror", lambda error: problems.append(str(error)))
        page.on("console", lambda told: problems.append(told.text) if told.type == "error" else None)
        await page.goto(f"{served.address}/studio/#key={served.token}")
        if path:
            await page.goto(f"{served.address}/studio/{path}")
        yield page
        assert await page.evaluate("window.hacked") is None
        assert problems == []


async def test_a_conversation_is_had_in_the_studio(stack: Stack) -> None:
    """A message is answered, a call is approved, and the address keeps no key."""
    async with run_service(stack.clew) as served:
        name, session = await open_session(stack, served, require_approval=["add"])
        async with open_page(served) as page:
            assert served.token not in page.url
            await page.get_by_role("link", name=name).click()
            await page.get_by_label("Message").fill("hello")
            await page.keyboard.press("Enter")
            await expect(page.locator(".assistant .markdown")).to_have_text("fine")
            await page.get_by_label("Message").fill("add")
            await page.keyboard.press("Enter")
            await page.get_by_role("button", name="Approve").click()
            await expect(page.locator(".assistant .markdown").last).to_have_text("The sum is 3.")
            await expect(page.locator(".tool .result")).to_have_text("3")
        outcomes = [entry.payload["status"] for entry in await session.entries(kind="run")]
    assert outcomes == ["completed", "completed"]


@pytest.mark.slow
async def test_hostile_texts_stay_texts(stack: Stack) -> None:
    """A reply's Markdown is shown as Markdown, its markup, its unsafe links and its deepest quotes as text."""
    async with run_service(stack.clew) as served:
        name, session = await open_session(stack, served, metadata={"title": HOSTILE})
        await session.ask("hostile")
        async with open_page(served, f"#/s/{name}") as page:
            reply = page.locator(".assistant .markdown")
            await expect(reply.locator("strong")).to_have_text("bold")
            await expect(reply).to_contain_text("<img src=x")
            await expect(reply).to_contain_text("> deep")
            assert await page.locator("#rooms img, #rooms a[href^='javascript']").count() == 0


@pytest.mark.slow
async def test_an_agent_is_steered_and_cancelled_while_it_works(stack: Stack) -> None:
    """The same text box steers a run; a queued message and a cancellation are buttons."""
    async with run_service(stack.clew) as served:
        name, session = await open_session(stack, served)
        async with open_page(served, f"#/s/{name}") as page:
            await page.get_by_label("Message").fill("slowly")
            await page.keyboard.press("Enter")
            await expect(page.locator(".writing")).to_contain_text("word")
            await page.get_by_label("Message").fill("to the point, please")
            await page.get_by_role("button", name="Steer").click()

            async def is_steered() -> bool:
                return bool((await session.status()).pending_inputs)

            await wait_until(is_steered)
            await page.get_by_role("button", name="Cancel").click()
            await expect(page.locator(".assistant.interrupted")).to_contain_text("word")
            await expect(page.locator(".note").filter(has_text="was not read")).to_have_count(1)
            await expect(page.get_by_role("button", name="Send")).to_be_visible()


@pytest.mark.slow
async def test_what_the_model_saw_is_shown_live(stack: Stack) -> None:
    """Each call has its window and the proof of it; another policy makes another context beside it."""
    async with run_service(stack.clew) as served:
        name, session = await open_session(stack, served)
        await session.ask("hello")
        async with open_page(served, f"#/s/{name}") as page:
            await page.keyboard.press("w")
            await expect(page.locator("#seen .calls details")).to_have_count(1)
            await session.ask("and again")
            await expect(page.locator("#seen .calls details")).to_have_count(2)
            await page.locator("#seen .calls summary").first.click()
            await expect(page.locator("#seen")).to_contain_text("has the digest that was recorded")
            await page.get_by_label("Most messages").fill("1")
            await page.get_by_role("button", name="Compare").click()
            await expect(page.locator("#seen .pair > div")).to_have_count(2)
            await expect(page.locator("#seen .pair .only")).not_to_have_count(0)


@pytest.mark.slow
async def test_a_session_is_forked_from_a_message(stack: Stack) -> None:
    """The fork opens with the conversation up to the message."""
    async with run_service(stack.clew) as served:
        name, session = await open_session(stack, served)
        await session.ask("first")
        await session.ask("second")
        async with open_page(served, f"#/s/{name}") as page:
            await expect(page.locator(".assistant")).to_have_count(2)
            await page.locator(".assistant").first.get_by_role("button", name="Fork from here").click()
            await expect(page).not_to_have_url(re.compile(re.escape(name)))
            await expect(page.locator(".assistant")).to_have_count(1)
            await expect(page.locator(".log")).not_to_contain_text("second")


@pytest.mark.slow
async def test_the_inbox_has_what_waits_in_all_sessions(stack: Stack) -> None:
    """Calls of several sessions are decided in one place."""
    async with run_service(stack.clew) as served:
        sessions = [(await open_session(stack, served, require_approval=["add"]))[1] for _ in range(2)]
        requests = [await session.message("add") for session in sessions]
        async with open_page(served, "#/inbox") as page:
            await expect(page.locator("#inbox-count")).to_have_text("2")
            cards = page.locator(".inbox article")
            await expect(cards).to_have_count(2)
            await cards.first.get_by_label("Reason").fill("not today")
            await cards.first.get_by_role("button", name="Deny").click()
            await expect(cards).to_have_count(1)
            await cards.first.get_by_role("button", name="Approve").click()
            await expect(page.locator(".inbox")).to_contain_text("Nothing waits for you.")
        assert [(await request.result()).status for request in requests] == ["completed", "completed"]


@pytest.mark.slow
async def test_images_are_sent_and_shown(stack: Stack) -> None:
    """A file that is chosen is uploaded with the message, and its image is read with the key."""
    async with run_service(stack.clew) as served:
        name, session = await open_session(stack, served)
        async with open_page(served, f"#/s/{name}") as page:
            await page.get_by_label("Files", exact=True).set_input_files(
                {"name": "chart.png", "mimeType": "image/png", "buffer": make_png(30, 20)}
            )
            await page.get_by_label("Message").fill("look")
            await page.keyboard.press("Enter")
            image = page.locator(".user .part img")
            await expect(image).to_have_attribute("alt", re.compile("chart.png"))
            await expect(page.locator(".assistant .markdown")).to_have_text("fine")
        (message,) = [entry for entry in await session.entries(kind="ai_message") if entry.payload["role"] == "user"]
        assert message.payload["content"][1]["blob"]["name"] == "chart.png"


@pytest.mark.slow
@pytest.mark.parametrize("scheme", ["light", "dark"])
async def test_a_phone_has_room_for_everything(stack: Stack, scheme: Any) -> None:
    """Nothing is wider than the screen, and the list and the conversation take turns."""
    async with run_service(stack.clew) as served:
        name, session = await open_session(stack, served)
        await session.ask("hostile")
        async with open_page(served, size=PHONE, color_scheme=scheme) as page:
            await page.locator(f"[data-session='{name}']").click()
            await expect(page.locator("#sessions")).to_be_hidden()
            await expect(page.locator(".assistant .markdown")).to_contain_text("after")
            assert await page.evaluate("document.documentElement.scrollWidth <= innerWidth")
            await page.get_by_role("link", name="Clew").click()
            await expect(page.locator("#sessions")).to_be_visible()


@pytest.mark.slow
async def test_a_wrong_key_is_asked_for_again(stack: Stack) -> None:
    """The page says so, and shows nothing of any session."""
    async with run_service(stack.clew) as served, open_browser() as browser:
        page = await browser.new_page()
        await page.goto(f"{served.address}/studio/")
        await page.get_by_label("Key", exact=True).fill("clew_wrong")
        await page.get_by_role("button", name="Sign in").click()
        await expect(page.get_by_role("alert")).to_contain_text("not known")
        await page.get_by_label("Key", exact=True).fill(served.token)
        await page.get_by_role("button", name="Sign in").click()
        await expect(page.locator("#sessions")).to_contain_text("There are no sessions yet.")


@pytest.mark.slow
async def test_a_link_from_elsewhere_signs_nobody_in(stack: Stack) -> None:
    """The key in an address is one of `clew dev` alone: on another host the page asks for a key."""
    async with run_service(stack.clew) as served, open_browser() as browser:
        page = await browser.new_page()
        address = served.address.replace("127.0.0.1", "studio.localhost")
        await page.goto(f"{address}/studio/#key={served.token}")
        await expect(page.get_by_label("Key", exact=True)).to_be_visible()
        assert await page.evaluate("sessionStorage.length") == 0


async def test_windows_are_those_of_the_own_tenant(stack: Stack) -> None:
    """Another tenant's key finds no such session. The pages need no key, and run only their own scripts."""
    async with run_service(stack.clew) as served:
        name, session = await open_session(stack, served)
        await session.ask("hello")
        own, strange = [await http.get(f"/v1/sessions/{name}/windows") for http in (served.http, served.stranger)]
        assert own.json()["calls"][0]["window"]["matches_record"]
        assert strange.status_code == httpx.codes.NOT_FOUND
        async with httpx.AsyncClient(base_url=served.address) as anyone:
            assert (await anyone.get(f"/v1/sessions/{name}/windows")).status_code == httpx.codes.UNAUTHORIZED
            page = await anyone.get("/studio/")
            assert "script-src 'self'" in page.headers["content-security-policy"]
            again = await anyone.get("/studio/", headers={"If-None-Match": page.headers["etag"]})
            assert again.status_code == httpx.codes.NOT_MODIFIED
            assert (await anyone.get("/studio/../access.py")).status_code == httpx.codes.NOT_FOUND
