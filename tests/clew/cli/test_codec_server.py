"""`clew codec-server`, and what a person sees with it in the Temporal UI."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace

import pytest
from playwright.async_api import expect

from clew.local import temporal_server
from tests.support.browser import open_browser
from tests.support.command_line import run_clew
from tests.support.encrypted import make_encryption, run_worker, write_keys
from tests.support.stack import Stack

TOKEN = "a-token-of-many-characters"


async def test_a_server_that_cannot_protect_anything_does_not_start() -> None:
    """It needs keys and a token, and repeats neither."""
    without_keys = await run_clew("codec-server", CLEW_CODEC_TOKEN=TOKEN)
    assert "misconfigured: CLEW_ENCRYPTION_KEYS is not set" in without_keys.err
    keys = write_keys("k1")
    without_token = await run_clew("codec-server", CLEW_ENCRYPTION_KEYS=keys, CLEW_CODEC_TOKEN="short")
    assert "misconfigured: CLEW_CODEC_TOKEN needs at least 16 characters" in without_token.err
    assert keys.partition(":")[2] not in without_keys.err + without_token.err
    assert {without_keys.code, without_token.code} == {2}


@asynccontextmanager
async def run_codec_server(origin: str) -> AsyncIterator[str]:
    """Run the command. Yields the server's address."""
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        *("-m", "clew.cli", "codec-server", "--port", "0", "--origin", origin),
        env={**os.environ, "CLEW_ENCRYPTION_KEYS": write_keys("k1"), "CLEW_CODEC_TOKEN": TOKEN},
        stdout=asyncio.subprocess.PIPE,
    )
    assert process.stdout
    try:
        ready = (await process.stdout.readline()).decode()
        yield ready.partition("ready: ")[2].strip()
    finally:
        process.send_signal(signal.SIGTERM)
        assert await process.wait() == 0


@pytest.mark.slow
async def test_a_person_with_the_token_reads_the_texts_in_the_ui(stack: Stack) -> None:
    """The page takes the token once; before that the UI shows nothing of the conversation."""
    async with (
        temporal_server() as server,
        run_worker(replace(stack, server=server), make_encryption("k1")) as encrypted,
        run_codec_server(server.ui_address or "") as codec_server,
        open_browser() as browser,
    ):
        session = await encrypted.open("an answer about Aurich", system_prompt="be kind")
        await session.ask("a question about Leer")
        context = await browser.new_context(viewport={"width": 1400, "height": 900})
        settings = {"endpoint": f'"{codec_server}"', "includeCredentials": "true"}
        settings["overrideRemoteCodecConfiguration"] = "true"
        for name, value in settings.items():
            await context.add_init_script(f"localStorage.setItem({name!r}, {value!r})")
        page = await context.new_page()
        timeline = f"{server.ui_workflow(session.id)}/{await find_run_id(encrypted, session.id)}/timeline"

        await page.goto(timeline)
        await expect(page.get_by_text("AgentSession").first).to_be_visible()
        await expect(page.get_by_text("be kind")).to_have_count(0)

        await page.goto(codec_server)
        await page.get_by_label("Token").fill(TOKEN)
        await page.get_by_role("button").click()
        await expect(page.get_by_role("status")).to_contain_text("can decode now")

        await page.goto(timeline)
        await expect(page.get_by_text("be kind").first).to_be_visible()


async def find_run_id(stack: Stack, session_id: str) -> str:
    """Return the id of a session's workflow run."""
    described = await stack.clew.temporal.get_workflow_handle(session_id).describe()
    return described.run_id
