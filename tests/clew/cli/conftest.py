"""Sessions that roll over often, with an archive in a folder that the commands can read."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from clew import Clew
from clew_activities.archive import Store
from tests.support.rolling import run_rolling_worker
from tests.support.stack import Stack


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The archive's folder."""
    return tmp_path_factory.mktemp("store")


@pytest.fixture(scope="module")
async def clew(stack: Stack, folder: Path) -> AsyncIterator[Clew]:
    """A client whose sessions have most of their entries in the archive."""
    async with run_rolling_worker(stack, store=Store.from_url(folder.as_uri())) as clew:
        yield clew
