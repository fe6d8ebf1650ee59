"""The Temporal UI shows what `docs/audit.md` says: in a real browser, with the stack of the screenshots."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from playwright.async_api import expect

from clew_workflows.session.ui import shorten
from docs.screenshots import IMAGES, SHOTS, Shot, open_page, reply, researcher, run_stack, run_status, support
from tests.support.browser import open_browser

AUDIT = Path(IMAGES).parent / "audit.md"
HOSTILE = (
    "<script>document.title='x'</script> [x](javascript:alert(1)) ![i](http://127.0.0.1/y.png)\n\n# head\n"
    "<img src=x onerror=alert(1)> $a$ `b` **c** | d | https://evil.example &lt;b&gt; {workflowId}"
)


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
    """The script makes each picture of the page, and no other."""
    shown = re.findall(r"\]\(images/(audit-[a-z]+)\.png\)", AUDIT.read_text())
    assert sorted(shown) == sorted(shot.name for shot in SHOTS)
    assert all((IMAGES / f"{name}.png").stat().st_size < 200_000 for name in shown)
