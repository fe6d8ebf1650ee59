"""The page of a report in a real browser."""

from __future__ import annotations

import hashlib
import re
from collections.abc import AsyncIterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from playwright.async_api import Browser, Locator, Page, Route, expect

from clew.report import make_report
from clew.report.page_document import render_page
from clew.report.page_media import MediaCollector
from clew_workflows.contract.policy import ContextPolicy
from clew_workflows.thread.thread import Thread
from tests.support.browser import open_browser
from tests.support.hostile_thread import HOSTILE_ADDRESSES, MARKER, write_hostile_thread
from tests.support.media import make_png
from tests.support.recorded import RecordedSession
from tests.support.threads import OTHER_PAYLOADS, assistant_calls, assistant_says, tool_returns, user_says

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
async def browser() -> AsyncIterator[Browser]:
    async with open_browser() as browser:
        yield browser


OPEN_TURNS = 3
"""The newest turns that a page shows open."""


def write_page(thread: Thread, file: Path, **options: Any) -> str:
    """Write the page of a thread; the value is its address."""
    report = make_report(thread, made_at="2026-01-02T00:00:00Z", session_id="s-1", **options)
    file.write_text(render_page(report), encoding="utf-8")
    return file.as_uri()


async def read_headings(page: Page) -> list[int]:
    """The levels of the page's headings, in order."""
    levels: list[int] = await page.evaluate(
        "[...document.querySelectorAll('h1, h2, h3, h4, h5, h6')].map((heading) => Number(heading.tagName[1]))"
    )
    return levels


async def open_folds(page: Page) -> None:
    await page.evaluate("document.querySelectorAll('details').forEach((fold) => { fold.open = true; })")


_ATTRIBUTES = """[...document.querySelectorAll('main *')].flatMap((element) =>
  element.getAttributeNames().filter((name) => name.startsWith('on') || ['src', 'style', 'action'].includes(name)))"""


async def test_hostile_texts_do_nothing(browser: Browser, tmp_path: Path) -> None:
    """No script of the session runs, no request leaves, nothing asks the reader, no address can be followed."""
    url = write_page(write_hostile_thread(), tmp_path / "page.html")
    page = await browser.new_page()
    requests: list[str] = []
    problems: list[str] = []
    page.on("request", lambda request: requests.append(request.url))
    page.on("dialog", lambda dialog: problems.append(dialog.message))
    page.on("pageerror", lambda error: problems.append(str(error)))
    page.on("console", lambda message: problems.append(message.text))
    page.on("popup", lambda popup: problems.append(popup.url))
    await page.goto(url)
    await open_folds(page)
    await page.keyboard.press("Tab")
    for selector in (".link", ".address", ".text", ".markdown", "code", "summary"):
        for element in (await page.query_selector_all(selector))[:20]:
            await element.dispatch_event("click")
            await element.dispatch_event("mouseover")
    assert await page.evaluate(f"window.{MARKER}") is None
    counts = await page.evaluate("[document.scripts.length, document.images.length, document.forms.length]")
    assert counts == [2, 0, 0]  # the page's own script, and its data
    assert await page.locator("main a:not([href^='#'])").count() == 0
    assert await page.evaluate(_ATTRIBUTES) == []
    assert (
        await page.evaluate("document.body.innerText.match(/[\\u202a-\\u202e\\u2066-\\u2069\\u200b\\ufeff\\x1b\\0]/)")
        is None
    )
    ids = await page.evaluate("[...document.querySelectorAll('[id]')].map(({ id }) => id)")
    assert len(ids) == len(set(ids))
    assert (requests, problems) == ([url], [])
    assert page.url == url
    await page.close()


@pytest.mark.parametrize("hostile", [False, True])
async def test_a_phone_scrolls_in_one_direction(browser: Browser, tmp_path: Path, hostile: bool) -> None:
    """At 360 pixels the page is not wider than the screen, with every fold open."""
    thread = write_hostile_thread() if hostile else RecordedSession(ContextPolicy()).turns(20).thread
    page = await browser.new_page(viewport={"width": 360, "height": 740})
    await page.goto(write_page(thread, tmp_path / "page.html"))
    await open_folds(page)
    assert await page.evaluate("document.documentElement.scrollWidth") == 360
    await page.close()


_CONTRAST = """() => {
  const parse = (text) => (text.match(/[\\d.]+/g) || []).map(Number);
  const light = (color) => {
    const [r, g, b] = color.map((c) => c / 255).map((c) => c <= 0.03928 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4);
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const behind = (element) => {
    for (let at = element; at; at = at.parentElement) {
      const color = parse(getComputedStyle(at).backgroundColor);
      if (color.length === 3 || color[3] > 0) return color.slice(0, 3);
    }
  };
  const poor = new Set();
  for (const element of document.querySelectorAll('body *:not(svg *)')) {
    if (![...element.childNodes].some((node) => node.nodeType === 3 && node.data.trim())) continue;
    const [one, other] = [light(parse(getComputedStyle(element).color).slice(0, 3)), light(behind(element))];
    const ratio = (Math.max(one, other) + 0.05) / (Math.min(one, other) + 0.05);
    if (ratio < 4.5) poor.add(`${element.tagName} ${element.className}: ${ratio.toFixed(2)}`);
  }
  return [...poor];
}"""


@pytest.mark.parametrize("scheme", ["light", "dark"])
async def test_texts_have_contrast(browser: Browser, tmp_path: Path, scheme: Any) -> None:
    """Every text has at least the contrast 4.5 that WCAG's level AA asks for, in both colour schemes."""
    page = await browser.new_page(color_scheme=scheme)
    await page.goto(write_page(write_hostile_thread(), tmp_path / "page.html"))
    await open_folds(page)
    assert await page.evaluate(_CONTRAST) == []
    await page.close()


async def test_paper_shows_what_is_folded(browser: Browser, tmp_path: Path) -> None:
    """In print, closed folds show their content, and no box cuts it off."""
    page = await browser.new_page()
    await page.goto(write_page(RecordedSession(ContextPolicy()).turns(3).thread, tmp_path / "page.html"))
    result = page.locator(".tool pre").first
    assert not await result.is_visible()
    await page.emulate_media(media="print")
    assert await result.is_visible()
    clipped = (
        "[...document.querySelectorAll('pre, .scroll')].filter((box) => box.scrollHeight > box.clientHeight + 1)"
    )
    assert await page.evaluate(f"{clipped}.length") == 0
    await page.close()


def write_long_session() -> Thread:
    """Write a session of thirty turns, of which an early one has a failed tool call and a later one has failed."""
    session = RecordedSession(ContextPolicy())
    for number in range(30):
        run, call = f"run-{number}", f"tool{number:05d}"
        session.writer.message(user_says(f"question {number} of the day"), run=run)
        session.call(assistant_calls(call), run=run)
        content = "the bank is closed" if number == 4 else f"result-{number} " * 40
        result: Any = {"context_ref": "default", **tool_returns(call, content), "is_error": number == 4}
        session.writer.commit("ai_message", result, run_id=run)
        session.call(assistant_says("fine " * 200), run=run)
        if number == 9:
            error = {"type": "rate_limited", "message": "too many requests"}
            failed = {"status": "failed", "termination_reason": "rate_limited", "error": error}
            session.writer.commit("run", OTHER_PAYLOADS["run"] | failed, run_id=run, request_id=run)
    return session.thread


@pytest.fixture(scope="module")
def long_page(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The address of the page of a long session."""
    return write_page(write_long_session(), tmp_path_factory.mktemp("report") / "page.html")


def find_turn(page: Page, number: int) -> Locator:
    return page.locator("details.turn").filter(has=page.get_by_role("heading", name=f"question {number} of the day"))


async def test_older_turns_are_folded(browser: Browser, long_page: str) -> None:
    """The newest turns are open, the others have a line each; buttons open and fold all."""
    page = await browser.new_page()
    await page.goto(long_page)
    assert await page.locator("details.turn[open]").count() == OPEN_TURNS
    assert await find_turn(page, 29).locator(".message").first.is_visible()
    assert not await find_turn(page, 3).locator(".message").first.is_visible()
    assert "1 failed" in await find_turn(page, 4).locator("> summary").inner_text()
    folded = await page.evaluate("document.documentElement.scrollHeight")
    await page.get_by_role("button", name="Open all").click()
    await expect(page.locator("details.turn:not([open])")).to_have_count(0)
    assert await page.evaluate("document.documentElement.scrollHeight") > 2 * folded
    await page.get_by_role("button", name="Fold all").click()
    await expect(page.locator("details.turn[open]")).to_have_count(0)
    await page.close()


async def test_turns_are_found_by_their_text(browser: Browser, long_page: str) -> None:
    """Only turns that have the text stay, also in folded parts; Enter opens them; an empty box shows all again."""
    page = await browser.new_page()
    await page.goto(long_page)
    box = page.get_by_role("searchbox")
    await box.fill("RESULT-12 ")
    await expect(page.locator("details.turn:visible")).to_have_count(1)
    assert (await page.locator("#count").inner_text()).startswith("1 of ")
    result = find_turn(page, 12).locator(".tool pre").last
    assert not await result.is_visible()
    await box.press("Enter")
    await expect(result).to_be_visible()
    await box.fill("no such words")
    await expect(page.locator("details.turn:visible")).to_have_count(0)
    await box.fill("")
    await expect(page.locator("details.turn:visible")).to_have_count(31)
    await page.close()


async def test_failures_are_linked_from_the_top(browser: Browser, long_page: str) -> None:
    """A link opens the turn and the tool call that it leads to, also while another text is being looked for."""
    page = await browser.new_page(viewport={"width": 360, "height": 740})
    await page.goto(long_page)
    failures = page.locator("#failures li")
    assert await failures.count() == 2
    assert "the bank is closed" in await failures.first.inner_text()
    await page.get_by_role("searchbox").fill("question 20")
    await expect(page.locator("details.turn:visible")).to_have_count(1)
    for index, number in enumerate((4, 9)):
        link = failures.nth(index).get_by_role("link")
        await link.click()
        target = page.locator(str(await link.get_attribute("href")))
        await expect(target).to_be_in_viewport()
        await expect(find_turn(page, number)).to_have_attribute("open", "")
        tools = await page.locator("#tools").bounding_box()
        place = await target.bounding_box()
        assert tools
        assert place
        assert place["y"] >= tools["y"] + tools["height"]
    other = await browser.new_page()
    await other.goto(f"{long_page}{await failures.last.get_by_role('link').get_attribute('href')}")
    await expect(find_turn(other, 9)).to_have_attribute("open", "")
    await other.close()
    await page.close()


async def test_a_page_without_its_script_says_so(browser: Browser, long_page: str) -> None:
    """Where scripts are forbidden the page says why it is empty, and what reads the data."""
    context = await browser.new_context(java_script_enabled=False)
    page = await context.new_page()
    await page.goto(long_page)
    await expect(page.locator("body")).to_contain_text("clew report --json")
    await context.close()


async def test_headings_are_in_order(browser: Browser, long_page: str) -> None:
    """One main heading, and no level is skipped."""
    page = await browser.new_page()
    await page.goto(long_page)
    headings = await read_headings(page)
    assert headings.count(1) == 1
    assert all(after <= before + 1 for before, after in pairwise(headings))
    await page.close()


@pytest.mark.parametrize("thread", [Thread(), RecordedSession(ContextPolicy()).thread], ids=["empty", "configured"])
async def test_a_session_with_nothing_in_it(browser: Browser, tmp_path: Path, thread: Thread) -> None:
    """It has a page, too."""
    page = await browser.new_page()
    problems: list[str] = []
    page.on("pageerror", lambda error: problems.append(str(error)))
    await page.goto(write_page(thread, tmp_path / "page.html"))
    await expect(page.locator("main")).to_contain_text("No model was called")
    await page.goto(write_page(thread, tmp_path / "beyond.html", from_seq=thread.rev))
    await expect(page.locator("main")).to_contain_text(f"The session has no entry {thread.rev}")
    assert problems == []
    await page.close()


async def test_a_part_says_how_to_see_the_rest(browser: Browser, tmp_path: Path) -> None:
    """The page names the entries that it shows, and the command for others. Each link leads to an element."""
    thread = RecordedSession(ContextPolicy()).turns(5).thread
    page = await browser.new_page()
    for options in ({}, {"limit": 4}, {"from_seq": 9, "limit": 6}):
        await page.goto(write_page(thread, tmp_path / "page.html", **options))
        text = await page.locator("#conversation").inner_text()
        assert ("shows the entries" in text) == bool(options)
        if options == {"limit": 4}:
            assert f"shows the entries {thread.rev - 4} to {thread.last_seq} of {thread.rev}" in text
            assert f"clew report s-1 --from {thread.rev - 8}" in text
        lost = "[...document.querySelectorAll('a')].filter((link) => !document.querySelector(link.hash))"
        assert await page.evaluate(f"{lost}.length") == 0
    await page.close()


async def test_a_long_session_has_few_elements(browser: Browser, tmp_path: Path) -> None:
    """A turn with two model calls costs the page some hundred elements, however much was in their windows."""
    page, sizes = await browser.new_page(), []
    for count in (50, 100):
        thread = RecordedSession(ContextPolicy()).turns(count).thread
        await page.goto(write_page(thread, tmp_path / "page.html"))
        sizes.append(await page.locator("*").count())
    assert (sizes[1] - sizes[0]) / 50 < 150
    await page.close()


async def test_many_calls_share_bars(browser: Browser, tmp_path: Path) -> None:
    """A chart has a limited number of bars; the text says how many calls each has."""
    page = await browser.new_page()
    await page.goto(write_page(RecordedSession(ContextPolicy()).turns(240).thread, tmp_path / "page.html", limit=1))
    tokens, cached, cost, latency = [page.locator(".charts figure").nth(index) for index in range(4)]
    await expect(tokens.get_by_role("img")).to_have_attribute("aria-label", re.compile("mean of 2 calls"))
    await expect(tokens.locator(".plot rect.output")).to_have_count(240)
    await expect(cached.locator(".plot rect").first).to_have_attribute("height", "44")
    await expect(cost).to_contain_text("Not known of any call.")
    await expect(latency.locator(".axis")).to_contain_text("1.0 s")
    await page.close()


async def test_hidden_characters_are_shown(browser: Browser, tmp_path: Path) -> None:
    """Controls, bidirectional overrides and invisible characters; letters and emoji stay."""
    kept = "naïve 日本語 👩\u200d👩\u200d👧 עברית\u200f"
    session = RecordedSession(ContextPolicy())
    session.writer.message(user_says(f"a\x00b\u202ec\u200bd\x9b\U000e0041\r\n\t\x7f{kept}"))
    page = await browser.new_page()
    await page.goto(write_page(session.thread, tmp_path / "page.html"))
    text = await page.locator(".message .text").text_content()
    assert text == f"a\u2400b[U+202E]c[U+200B]d[U+009B][U+E0041]\n\t[U+007F]{kept}"
    await page.close()


async def test_markdown_loads_nothing_and_hides_nothing(browser: Browser, tmp_path: Path) -> None:
    """Links show their address, images and HTML stay text, definitions and entities are not swallowed."""
    session = RecordedSession(ContextPolicy())
    session.writer.message(user_says("?"))
    text = "# A [b](http://c 't') ![d](e) <i>f</i> &#x202E;\n\n[r]: http://hidden 'g'\n\n```py\nh\n```"
    session.call(assistant_says(text))
    page = await browser.new_page()
    await page.goto(write_page(session.thread, tmp_path / "page.html"))
    reply = page.locator(".markdown")
    assert await reply.locator("a, img, i, h1").count() == 0
    shown = await reply.text_content() or ""
    for part in ("(http://c", "(t)", "(e)", "<i>f</i>", "&#x202E;", "[r]: http://hidden", "'g'", "pyh"):
        assert part in shown
    await page.close()


async def test_a_turn_has_all_until_the_next_message(browser: Browser, tmp_path: Path) -> None:
    """Its title is the message, its numbers are those of its items; a correction begins no turn."""
    session = RecordedSession(ContextPolicy())

    def say(text: str, request: str) -> None:
        session.writer.message({**user_says(text), "request_id": request}, run=request)  # type: ignore[typeddict-unknown-key]

    say("first\n  line", "r-1")
    session.call(assistant_calls("t-1"), run="r-1")
    session.writer.message({**tool_returns("t-1", "no"), "is_error": True}, run="r-1")  # type: ignore[typeddict-unknown-key]
    say("a correction", "r-1")
    say("second " * 100, "r-2")
    for _ in range(40):
        session.call(assistant_calls("again"), run="r-2")
    page = await browser.new_page()
    await page.goto(write_page(session.thread, tmp_path / "page.html"))
    before, first, second = await page.locator(".turn > summary").all_inner_texts()
    assert before.startswith("Before the first message")
    assert first.split("\n")[0] == "first line"
    for fact in ("1 failed", "1 model call ·", "1 tool call ·", "3.0 s"):
        assert fact in first
    assert len(second.split("\n")[0]) < 200
    # A long turn is folded, however new it is.
    assert [await turn.get_attribute("open") is not None for turn in await page.locator(".turn").all()] == [
        True,
        True,
        False,
    ]
    await page.goto(write_page(session.thread, tmp_path / "page.html", with_texts=False))
    await expect(page.locator(".turn h3").nth(1)).to_have_text("Message")
    await page.close()


async def test_only_addresses_of_the_web_are_links(browser: Browser, tmp_path: Path) -> None:
    """None that runs something, hides where it leads, or is cut; the others once each, with their words."""
    fine = [
        "https://a.example/?x=1&y=<2>",
        "HTTP://a.example/b?c=d&e=f#g",
        "https://tea.example:8443/名",
        "http://[::1]/x",
    ]
    long = "https://c.example/" + "x" * 30_000
    cited = [{"url": url, "title": url, "quote": "the words"} for url in (*HOSTILE_ADDRESSES, *fine, *fine, long)]
    ran = {"tool": "web_search", "input": "tea", "sources": [{"url": "https://b.example"}]}
    session = RecordedSession(ContextPolicy())
    session.writer.message(user_says("Where?"))
    reply: Any = {"role": "assistant", "content": "There.", "citations": cited, "provider_calls": [ran]}
    sent = {"digest": "5d41", "encoder": "openai-chat/1", "dialect": "openai"}
    session.call(reply, request=sent, provider_tools=["web_search"])
    page = await browser.new_page()
    await page.goto(write_page(session.thread, tmp_path / "page.html"))
    links = page.locator("article a[target]")
    assert await links.all_text_contents() == [*fine, "https://b.example"]
    assert {await link.get_attribute("rel") for link in await links.all()} == {"noopener noreferrer"}
    text = await page.locator("article.assistant").text_content() or ""
    for part in (
        "the words",
        "run by the provider, 1 source",
        "might run web_search itself",
        "SHA-256 5d41",
        "encoded by openai-chat/1 in the dialect openai",
    ):
        assert part in text
    await page.close()


async def test_images_are_shown_and_files_linked(browser: Browser, tmp_path: Path) -> None:
    """A browser shows the images in the page, opens a file beside it, and runs neither SVG nor HTML."""
    session, files = RecordedSession(ContextPolicy()), dict[str, bytes]()

    def make_part(kind: str, data: bytes, media_type: str, name: str, **fields: Any) -> Any:
        digest = hashlib.sha256(data).hexdigest()
        files[digest] = data
        blob = {"digest": digest, "media_type": media_type, "bytes": len(data), "name": name, **fields}
        return {"type": kind, "blob": blob}

    text: Any = {"type": "text", "text": "Why is this page red?"}
    size = {"width": 300, "height": 200}
    png = make_part("image", make_png(**size), "image/png", "screen.png", **size)
    script = f"<script>window.{MARKER}=1;document.title='{MARKER}'</script>".encode()
    svg = make_part("image", b"<svg xmlns='http://www.w3.org/2000/svg'>" + script, "image/png", "evil.png", **size)
    html = make_part("file", b"<!doctype html>" + script, "text/html", "page.html")
    session.writer.message(user_says([text, png, svg, html]), run="r")
    session.call(assistant_calls("tool00001"), run="r")
    session.writer.message(tool_returns("tool00001", [{"type": "text", "text": "a chart"}, png]), run="r")
    session.call(assistant_says([{"type": "text", "text": "It **is**:"}, png]), run="r")
    report = make_report(session.thread, made_at="2026-01-02T00:00:00Z")
    collector = MediaCollector(report, tmp_path / "media", tmp_path)
    for digest in collector.digests:
        collector.take(digest, files[digest])
    (tmp_path / "page.html").write_text(render_page(report, collector.media), encoding="utf-8")
    page = await browser.new_page()
    problems: list[str] = []
    page.on("console", lambda message: problems.append(message.text))
    await page.goto((tmp_path / "page.html").as_uri())
    await open_folds(page)
    images = page.locator("img")
    await expect(images).to_have_count(3)
    for index in range(3):
        await images.nth(index).scroll_into_view_if_needed()
        await expect(images.nth(index)).to_have_js_property("naturalWidth", 300)
    assert problems == []
    await page.set_viewport_size({"width": 360, "height": 740})
    assert await page.evaluate("document.documentElement.scrollWidth") == 360
    # A browser saves `.bin` and shows `.txt`: neither runs.
    html_file = (tmp_path / "media" / f"{html['blob']['digest']}.txt").as_uri()
    assert await page.locator(f"a[href$='{html['blob']['digest']}.txt']").count() == 1
    assert await page.locator(f"a[href$='{svg['blob']['digest']}.bin']").count() == 1
    await page.goto(html_file)
    assert await page.title() != MARKER
    assert await page.evaluate(f"window.{MARKER}") is None
    assert MARKER in await page.locator("body").inner_text()
    await page.close()


async def test_a_source_opens_apart(browser: Browser, tmp_path: Path) -> None:
    """The page that is opened learns neither the report's address nor its window."""
    url = "https://tea.example/assam"
    session = RecordedSession(ContextPolicy())
    session.writer.message(user_says("Where does tea grow?"))
    search = {"tool": "web_search", "input": "where tea grows", "sources": [{"url": url, "title": "Assam"}]}
    cited = [
        {"url": url, "title": "Assam", "quote": "Assam grows half of the tea."},
        {"url": "javascript:alert(1)", "title": "Click me"},
    ]
    sent = {"digest": "5d41402a" * 8, "encoder": "openai-chat/1", "dialect": "openai"}
    reply: Any = {"role": "assistant", "content": "In **Assam**.", "citations": cited, "provider_calls": [search]}
    session.call(reply, request=sent, provider_tools=["web_search"])
    context = await browser.new_context()
    opened: list[str | None] = []

    async def answer(route: Route) -> None:
        opened.append(route.request.headers.get("referer"))
        await route.fulfill(body="<script>document.title = `${window.opener}`</script>", content_type="text/html")

    await context.route(f"{url}**", answer)
    page = await context.new_page()
    await page.goto(write_page(session.thread, tmp_path / "page.html"))
    async with context.expect_page() as opening:
        await page.locator(".sources a").click()
    other = await opening.value
    await expect(other).to_have_title("null")
    assert opened == [None]
    await expect(page.locator(".sources li").last).to_have_text("Click me (javascript:alert(1))")
    assert await page.locator("a[href^='javascript']").count() == 0
    await open_folds(page)
    await context.close()
