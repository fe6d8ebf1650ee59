"""Chromium, for tests of what a person sees."""

from __future__ import annotations

import os
import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from playwright.async_api import Browser, async_playwright, expect

CHROMIUM_MISSING = "these tests need Chromium: apt-get install chromium"
PATIENCE_MILLISECONDS = 60_000.0
"""The longest that an action or an expectation waits for a page."""


@asynccontextmanager
async def open_browser() -> AsyncIterator[Browser]:
    """Start a headless Chromium, and end it afterwards. Without one the test is skipped, in the gate it fails."""
    chromium = shutil.which("chromium")
    if chromium is None:
        if os.environ.get("CI"):
            pytest.fail(CHROMIUM_MISSING)
        pytest.skip(CHROMIUM_MISSING)
    expect.set_options(timeout=PATIENCE_MILLISECONDS)
    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        browser.on("context", lambda context: context.set_default_timeout(PATIENCE_MILLISECONDS))
        try:
            yield browser
        finally:
            await browser.close()
