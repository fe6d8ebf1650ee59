"""Make the pictures of README.md and of `docs/content.md`.

python -m docs.pictures [NAME]…    write docs/images/

`demo` is what `make demo` prints of the killed worker, as SVG. The others are screenshots of the web example, of a
report and of the Temporal UI, with images in each; they need Chromium (`apt-get install chromium`).
"""

from __future__ import annotations

import argparse
import asyncio
import os
import re
import subprocess
import sys
import tempfile
import textwrap
from collections.abc import Iterator
from html import escape
from pathlib import Path
from typing import Any

from playwright.async_api import Browser, Page

from clew import Agent, Clew, Image, Session, tool
from clew.local import Reply, ToolCall
from clew.report.making import make_report
from clew.report.page_document import render_page
from clew.report.page_media import MediaCollector
from docs.screenshots import IMAGES, SETTLE, Shot, open_page, run_stack
from examples.web import service
from tests.support.browser import open_browser
from tests.support.web import serve

DEMO, WEB, REPORT, AUDIT = "demo", "content-web", "content-report", "content-audit"
QUESTION = "I cannot pay. What is wrong here?"
ANSWER = "The card expired in March: the form wants a date in the future. Pay with another card, or correct the date."
CHART_QUESTION = "And what did I spend in this shop, by month?"
CHART_ANSWER = "You spent most in May, 84 EUR, and 217 EUR in all five months."

FORM = """
<body style="margin:0;font:15px sans-serif;background:#eef1f5"><div style="width:420px;margin:26px auto;
background:#fff;border:1px solid #ccd;border-radius:8px;padding:22px"><h2 style="margin:0 0 14px">Payment</h2>
<label>Card number</label><div style="border:1px solid #bbc;padding:7px;margin:4px 0 12px">4242 4242 4242 4242</div>
<label>Valid until</label><div style="border:2px solid #c0392b;padding:7px;margin:4px 0 2px">03 / 26</div>
<div style="color:#c0392b;margin-bottom:12px">The card was refused (error 54).</div>
<div style="background:#9ab;color:#fff;padding:9px;text-align:center;border-radius:5px">Pay 49.00 EUR</div></div>
"""
_BARS = "".join(
    f'<rect x="{40 + 80 * number}" y="{150 - height}" width="50" height="{height}" fill="#2563eb"/>'
    f'<text x="{65 + 80 * number}" y="170" text-anchor="middle">{month}</text>'
    f'<text x="{65 + 80 * number}" y="{143 - height}" text-anchor="middle">{height}</text>'
    for number, (month, height) in enumerate(
        (("February", 21), ("March", 49), ("April", 17), ("May", 84), ("June", 46))
    )
)
CHART = f'<body style="margin:0"><svg width="440" height="185" font-family="sans-serif" font-size="13">{_BARS}</svg>'
_drawn: dict[str, bytes] = {}


@tool
def draw_spending(months: int) -> Image:
    """Draw what the customer has spent, by month."""
    return Image.from_bytes(_drawn["chart"], name=f"spending-{months}-months.png")


shop = Agent(
    "shop", model="openai:gpt-4o-mini", system_prompt="You help the customers of a shop.", tools=[draw_spending]
)


async def reply(body: dict[str, Any]) -> Reply:
    """Reply as the model of the scene."""
    if any(message["role"] == "tool" for message in body["messages"]):
        return Reply(CHART_ANSWER)
    if CHART_QUESTION in str(body["messages"][-1]["content"]):
        return Reply(tool_calls=(ToolCall("draw_spending", {"months": 5}),))
    return Reply(ANSWER)


async def draw(browser: Browser, html: str, width: int, height: int) -> bytes:
    """Draw the image of a scene."""
    page = await browser.new_page(viewport={"width": width, "height": height})
    await page.set_content(html)
    data = await page.screenshot()
    await page.close()
    return data


async def take_web(browser: Browser, clew: Clew, form: Path) -> None:
    """Talk on the page of the web example, and take it with a file that waits to be sent."""
    async with serve(service.app, clew) as address:
        context = await browser.new_context(viewport={"width": 900, "height": 1060}, device_scale_factor=1.5)
        await context.add_cookies([{"name": "user", "value": "ada", "url": f"http://{address}"}])
        page = await context.new_page()
        await page.goto(f"http://{address}/?chat=main")
        await page.locator("#pick").set_input_files(form)
        await _send(page, QUESTION)
        await page.get_by_text(ANSWER[:30]).wait_for()
        await _send(page, CHART_QUESTION)
        await page.get_by_text("You spent most").wait_for()
        await page.locator("#pick").set_input_files(form)
        await page.get_by_label("Message").fill("The same card worked in June!")
        await page.wait_for_timeout(SETTLE)
        await page.screenshot(path=IMAGES / f"{WEB}.png")
        await context.close()


async def _send(page: Page, text: str) -> None:
    await page.get_by_label("Message").fill(text)
    await page.get_by_role("button", name="Send").click()


async def take_report(browser: Browser, session: Session, folder: Path) -> None:
    """Take the conversation of the session's report."""
    entries = await session.entries()
    report = make_report(entries, made_at=entries[-1].at)
    collector = MediaCollector(report, None, folder)
    for digest in collector.digests:
        collector.take(digest, await session.read_blob(digest))
    (folder / "report.html").write_text(render_page(report, collector.media), encoding="utf-8")
    page = await browser.new_page(viewport={"width": 1000, "height": 1150}, device_scale_factor=1.5)
    await page.goto((folder / "report.html").as_uri())
    await page.locator("article.user").first.evaluate("element => scrollTo(0, element.offsetTop - 110)")
    await page.wait_for_timeout(SETTLE)
    await page.screenshot(path=IMAGES / f"{REPORT}.png")


async def make_pictures(names: list[str]) -> None:
    """Play the scene and take the screenshots with these names, all of them if there is none."""
    async with run_stack(reply, shop) as (server, clew), open_browser() as browser:
        _drawn["chart"] = await draw(browser, CHART, 440, 185)
        with tempfile.TemporaryDirectory() as temporary:
            form = Path(temporary, "payment.png")
            drawn = await draw(browser, FORM, 520, 345)
            await asyncio.to_thread(form.write_bytes, drawn)
            await take_web(browser, clew, form)
            if not names or REPORT in names:
                await take_report(browser, clew.session("web:ada:main"), Path(temporary))
            if not names or AUDIT in names:
                page = await browser.new_page(color_scheme="light")
                address = f"{server.ui_address}/namespaces/{server.namespace}/workflows"
                await open_page(page, address, Shot(AUDIT, "web:ada:main"))
                await page.screenshot(path=IMAGES / f"{AUDIT}.png")


# The killed worker of the demo, as a terminal that an SVG draws.

COLUMNS, LABEL = 74, 9
"""Characters of a line, and of the word at its beginning."""
COLORS = {"you": "#56d4dd", "scripted": "#d2a8ff", "SIGKILL": "#ff7b72", "worker": "#7ee787"}
"""The colors of the words at the beginnings of lines."""


def list_demo_lines(output: str) -> Iterator[tuple[str, str]]:
    """List the lines of the demo's third part as pairs: the word at its beginning, if any, and a line of text."""
    part = output.partition("3  the worker is killed")[2].partition("what the session holds")[0]
    for line in filter(str.strip, part.splitlines()[1:]):
        seconds = re.search(r" (\(\d+\.\d s.*\))$", line)
        wrapped = textwrap.wrap(line[LABEL : seconds.start() if seconds else None], COLUMNS - LABEL)
        if seconds:
            wrapped.append(seconds[1])
        yield from zip([line[:LABEL].strip(), *[""] * (len(wrapped) - 1)], wrapped, strict=True)


def draw_demo_lines(output: str) -> str:
    """Draw what the demo prints of the killed worker."""
    lines = list(list_demo_lines(output))
    width, height = round(COLUMNS * 8.43) + 40, len(lines) * 22 + 36
    rows = []
    for number, (label, text) in enumerate(lines):
        y = 34 + 22 * number
        if label:
            rows.append(f'<text x="20" y="{y}" fill="{COLORS[label]}" font-weight="600">{label}</text>')
        fill = ' fill="#8b949e"' if re.match(r"\(\d", text) else ""
        rows.append(f'<text x="{20 + LABEL * 8.43:.0f}" y="{y}"{fill}>{escape(text)}</text>')
    title = "make demo: a worker is killed in the middle of an answer, and another one goes on"
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" '
        'role="img" aria-labelledby="title" font-family="ui-monospace, SFMono-Regular, Menlo, Consolas, '
        '\'DejaVu Sans Mono\', monospace" font-size="14" fill="#e6edf3">\n'
        f'<title id="title">{title}</title>\n'
        f'<rect width="{width}" height="{height}" rx="8" fill="#0d1117"/>\n' + "\n".join(rows) + "\n</svg>\n"
    )


def draw_demo() -> None:
    """Run the demo and draw it.

    Raises:
        CalledProcessError: The demo failed.
    """
    environ = {**os.environ, "COLUMNS": "100"}
    ran = subprocess.run(
        [sys.executable, "-m", "examples.demo"], env=environ, stdout=subprocess.PIPE, text=True, check=True
    )
    (IMAGES / f"{DEMO}.svg").write_text(draw_demo_lines(ran.stdout), encoding="utf-8")


def main() -> None:
    """Make the pictures."""
    parser = argparse.ArgumentParser(
        prog="python -m docs.pictures", description="Make the pictures of README.md and docs/content.md."
    )
    parser.add_argument("names", nargs="*", help="the pictures to make; none: all")
    names = parser.parse_args().names
    if not names or DEMO in names:
        draw_demo()
    if names != [DEMO]:
        asyncio.run(make_pictures([name for name in names if name != DEMO]))


if __name__ == "__main__":
    main()
