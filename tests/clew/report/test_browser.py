"""The page of a report in a real browser."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from playwright.async_api import Browser, Page

from clew.contract.policy import ContextPolicy
from clew.report import make_report
from clew.report.rendering import render_page
from clew.thread.thread import Thread
from tests.support.browser import open_browser
from tests.support.hostile_texts import MARKER
from tests.support.hostile_thread import write_hostile_thread
from tests.support.recorded import RecordedSession

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
async def browser() -> AsyncIterator[Browser]:
    async with open_browser() as browser:
        yield browser


def write_page(thread: Thread, file: Path) -> str:
    """Write the page of a thread; the value is its address."""
    file.write_text(render_page(make_report(thread, made_at="2026-01-02T00:00:00Z")), encoding="utf-8")
    return file.as_uri()


async def open_folds(page: Page) -> None:
    await page.evaluate("document.querySelectorAll('details').forEach((fold) => { fold.open = true; })")


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
    for selector in (".link", ".address", ".text", ".reply", ".tool-name", "summary"):
        for element in (await page.query_selector_all(selector))[:20]:
            await element.dispatch_event("click")
            await element.dispatch_event("mouseover")
    assert await page.evaluate(f"window.{MARKER}") is None
    assert await page.evaluate("[document.scripts.length, document.images.length, document.forms.length]") == [
        0,
        0,
        0,
    ]
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
