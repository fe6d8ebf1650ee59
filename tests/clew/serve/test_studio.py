"""The studio in a browser: what a person sees and does, and what hostile texts cannot do."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx
import pytest
from playwright.async_api import Page, expect

from clew import Agent, Session
from clew.local import Reply, ToolCall
from tests.support.browser import open_browser
from tests.support.media import make_png
from tests.support.rolling import make_id
from tests.support.scripts import make_tool_script
from tests.support.serving import Served, run_service
from tests.support.stack import Stack, get_last_message, make_client, run_deployment
from tests.support.toolbox import get_gate
from tests.support.waiting import wait_until

HOSTILE = "<img src=x onerror='window.hacked=1'> [go](javascript:window.hacked=1) **bold** `code`"
MARKDOWN = """# Prices

| item | price |
|:-----|------:|
| tea | 2.50 |
| **ginger** cake | 3.00 |

1. one
   - nested
2. two

~~old~~ https://example.com ![chart](https://example.com/x.png)
- [x] done

> quoted

```python
print("<b>")
```
<table><tr><td onclick="window.hacked=1">raw</td></tr></table>
"""
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
    if text == "markdown":
        return Reply(MARKDOWN)
    if text == "delegate":
        return Reply(tool_calls=(ToolCall("helper", {"task": "hello"}),))
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
            # The page hears of the new address later than the test: a key that is pressed before is lost.
            await expect(page.locator("body")).to_have_attribute("data-room", path.split("/")[1])
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
async def test_the_progress_of_a_tool_is_shown(stack: Stack) -> None:
    """Its newest report while it runs, and how much is done."""
    gate = make_id()
    call = ToolCall("report_and_wait", {"gate": gate})
    async with run_service(stack.clew) as served:
        name = make_id()
        model = stack.add_model(make_tool_script(call))
        session = await stack.clew.open(served.scope(name), model=model, tools=["report_and_wait"])
        async with open_page(served, f"#/s/{name}") as page:
            await session.message("do it")
            state = page.locator(".tool .state")
            await expect(state).to_have_text("runs: half of it (50%)")
            get_gate(gate).set()
            await expect(state).to_have_text("done")


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
async def test_replies_are_shown_as_markdown(stack: Stack) -> None:
    """With tables, nested lists and task lists; markup in them is text, and an image is named."""
    async with run_service(stack.clew) as served:
        name, session = await open_session(stack, served)
        await session.ask("markdown")
        async with open_page(served, f"#/s/{name}") as page:
            reply = page.locator(".assistant .markdown")
            await expect(reply.locator("table")).to_have_count(1)
            assert await reply.locator("td").all_inner_texts() == ["tea", "2.50", "ginger cake", "3.00"]
            await expect(reply.locator("td").nth(1)).to_have_css("text-align", "right")
            await expect(reply.locator("ol > li > ul > li")).to_have_text("nested")
            await expect(reply.get_by_role("heading", name="Prices")).to_be_visible()
            await expect(reply.locator("li", has_text="done")).to_contain_text("☑")
            await expect(reply.locator("pre code")).to_have_text('print("<b>")\n')
            await expect(reply).to_contain_text("chart (https://example.com/x.png)")
            await expect(reply).to_contain_text('<td onclick="window.hacked=1">raw')
            assert await reply.locator("img, [onclick]").count() == 0
            assert await reply.locator("a").get_attribute("href") == "https://example.com/"


@pytest.mark.slow
async def test_the_list_and_the_header_say_the_same(stack: Stack) -> None:
    """Title, status, tokens and costs, while a run goes on and after it; the id can be copied."""
    async with run_service(stack.clew) as served:
        name, _ = await open_session(stack, served, require_approval=["add"])
        async with open_page(served, f"#/s/{name}") as page:
            row, header = page.locator(f"[data-session='{name}']"), page.locator(".about")
            await expect(header.locator(".id code")).to_have_text(name)
            await page.context.grant_permissions(["clipboard-read", "clipboard-write"])
            await header.get_by_role("button", name="Copy").click()
            assert await page.evaluate("navigator.clipboard.readText()") == name
            for text, status in (("add", "awaiting approval"), ("hello", "idle")):
                await page.get_by_label("Message").fill(text)
                await page.keyboard.press("Enter")
                if status == "idle":
                    await page.get_by_role("button", name="Approve").click()
                await expect(header.locator(".status")).to_have_text(status)
                await expect(row.locator(".status")).to_have_text(status)
            await expect(header.locator("h1")).to_have_text("add")
            await expect(row.locator(".title")).to_have_text("add")
            await expect(header.locator(".costs")).to_contain_text("tokens")
            costs = await header.locator(".costs").inner_text()
            await expect(row.locator("small")).to_contain_text(re.search(r"[\d,]+ tokens.*", costs)[0])  # type: ignore[index]


@pytest.mark.slow
async def test_subagents_are_links(stack: Stack) -> None:
    """The card of a call leads to the session of the subagent, and that one back."""
    clew, model, name = make_client(stack), stack.add_model(answer), make_id()
    helper = Agent("helper", model=model)
    boss = Agent("boss", model=model, tools=[helper.as_tool()])
    async with run_deployment(stack, clew, boss), run_service(clew) as served:
        session = await clew.open(served.scope(name), agent="boss")
        await session.ask("delegate")
        async with open_page(served, f"#/s/{name}") as page:
            await page.locator(".tool .subagent a").click()
            await expect(page).not_to_have_url(re.compile(rf"{re.escape(name)}$"))
            await expect(page.locator(".user")).to_have_text(re.compile("hello"))
            await page.locator(".about a", has_text=name).click()
            await expect(page).to_have_url(re.compile(rf"{re.escape(name)}$"))


@pytest.mark.slow
async def test_a_new_session_offers_what_the_key_may_use(stack: Stack) -> None:
    """The agents to choose from, and models as suggestions."""
    service = run_service(stack.clew, agents=("kind", "stern"), models=("scripted:m",))
    async with service as served, open_page(served, "#/new") as page:
        choice = page.get_by_role("combobox", name="Agent")
        await expect(choice.locator("option")).to_have_text(["none: a model alone", "kind", "stern"])
        await expect(page.locator("#models option")).to_have_attribute("value", "scripted:m")


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
            timeline = page.locator("#seen .timeline").get_by_role("img").first
            await expect(timeline).to_have_attribute("aria-label", re.compile("2 runs"))
            await page.locator("#seen .calls summary").first.click()
            await expect(page.locator("#seen")).to_contain_text("has the digest that was recorded")
            await page.get_by_label("Most messages").fill("1")
            await page.get_by_role("button", name="Compare").click()
            await expect(page.locator("#seen .pair > div")).to_have_count(2)
            await expect(page.locator("#seen .pair .only")).not_to_have_count(0)


@pytest.mark.slow
async def test_a_session_is_forked_from_a_message(stack: Stack) -> None:
    """The page stays where the person is, with a link: the fork has the conversation up to the message."""
    async with run_service(stack.clew) as served:
        name, session = await open_session(stack, served)
        await session.ask("first")
        await session.ask("second")
        async with open_page(served, f"#/s/{name}") as page:
            await expect(page.locator(".assistant")).to_have_count(2)
            await page.locator(".assistant").first.get_by_role("button", name="Fork from here").click()
            await page.get_by_label("Message").fill("a message that nobody takes away")
            await expect(page.get_by_role("link", name="open the fork")).to_be_visible()
            assert name in page.url
            await expect(page.get_by_label("Message")).to_have_value("a message that nobody takes away")
            await page.get_by_role("link", name="open the fork").click()
            await expect(page).not_to_have_url(re.compile(rf"{re.escape(name)}$"))
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
            heights = await page.evaluate("['#top', '.about'].map((at) => document.querySelector(at).offsetHeight)")
            assert max(heights) < 90
            await page.get_by_role("button", name="Actions").click()
            await expect(page.get_by_role("button", name="Fork", exact=True)).to_be_visible()
            await expect(page.locator(".about .id code")).to_have_text(name)
            assert await page.evaluate("document.documentElement.scrollWidth <= innerWidth")
            await page.get_by_role("link", name="Clew").click()
            await expect(page.locator("#sessions")).to_be_visible()
            await page.get_by_role("button", name="Menu").click()
            await page.get_by_role("button", name="Sign out").click()
            await expect(page.get_by_label("Key", exact=True)).to_be_visible()


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


@pytest.mark.slow
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
