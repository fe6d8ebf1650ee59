"""The Temporal UI shows what `docs/looking.md` says, in a real browser; the page has every picture; its code runs."""

from __future__ import annotations

import ast
import inspect
import re
from typing import Any

import pytest
from playwright.async_api import Page, expect

from clew_workflows.contract.lists import SEARCH_ATTRIBUTES
from clew_workflows.session.ui import shorten
from docs.generate import DOCS
from docs.screenshots import IMAGES, SHOTS, STUDIO_SHOTS, Shot, open_page, reply, researcher, run_stack, support
from tests.support.browser import open_browser
from tests.support.stack import Stack

PAGE = (DOCS / "looking.md").read_text(encoding="utf-8")
HOSTILE = (
    "<script>document.title='x'</script> [x](javascript:alert(1)) ![i](http://127.0.0.1/y.png)\n\n# head\n"
    "<img src=x onerror=alert(1)> $a$ `b` **c** | d | https://evil.example &lt;b&gt; {workflowId}"
)


async def run_status(page: Page) -> None:
    """Choose the query `status` and run it."""
    await page.get_by_test_id("query-select-button").click()
    await page.get_by_role("option", name=re.compile("^status")).click()
    await page.get_by_role("button", name="Run Query").click()
    await page.get_by_text("pending_approvals").first.wait_for()


@pytest.mark.slow
async def test_an_operator_runs_a_query_and_reads_the_details() -> None:
    """Every query is in the menu and `status` answers; texts of the conversation are texts; relatives are links."""
    async with run_stack(reply, support, researcher) as (server, clew), open_browser() as browser:
        session = await clew.open("hostile", agent="support")
        await session.ask(HOSTILE)
        page = await browser.new_page()
        workflows = f"{server.ui_address}/namespaces/{server.namespace}/workflows"
        await open_page(page, workflows, Shot("", "hostile", "Queries"))
        await run_status(page)
        await expect(page.get_by_text('"session_id": "hostile"')).to_be_visible()
        await open_page(page, workflows, Shot("", "hostile", "User Metadata"))
        details = page.frame_locator("#user-metadata-current-details").locator("main")
        # The UI sets quotation marks in type.
        words = shorten(HOSTILE, 200).replace("'", ".").split(".")[-1]
        await expect(details.locator("li").first).to_contain_text(words)
        assert await details.locator("script, img, h1, a, td").count() == 0
        session = await clew.open("parent", agent="support")
        await session.ask("Compare my last two orders.")
        await open_page(page, workflows, Shot("", "parent", "User Metadata"))
        link = details.get_by_role("link", name="parent.tool00001")
        await expect(link).to_have_attribute("href", f"/namespaces/{server.namespace}/workflows/parent.tool00001")


def test_the_page_shows_every_screenshot() -> None:
    """The scripts make each picture of the page, and no other."""
    shown = re.findall(r"\]\(images/([a-z-]+)\.png\)", PAGE)
    assert sorted(shown) == sorted([*(shot.name for shot in (*SHOTS, *STUDIO_SHOTS)), "report"])
    assert all((IMAGES / f"{name}.png").stat().st_size < 200_000 for name in shown)


async def test_the_report_in_a_program(stack: Stack) -> None:
    """The code of the page makes the HTML of a session."""
    (code,) = re.findall(r"^```python\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
    session = await stack.open("fine")
    await session.ask("hello")
    names: dict[str, Any] = {"session": session}
    running = eval(compile(code, "looking.md", "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT, dont_inherit=True), names)
    assert inspect.isawaitable(running)
    await running
    assert names["page"].startswith("<!doctype html>")


def test_the_filters_name_search_attributes() -> None:
    """Each name of a filter is one that `clew setup-namespace` registers, or one of Temporal's."""
    named = set(re.findall(r"\b(Clew[A-Za-z]+)\b", " ".join(re.findall(r"`(\w+ (?:[=>]|IS) [^`]*)`", PAGE))))
    assert named
    assert named <= set(SEARCH_ATTRIBUTES)
