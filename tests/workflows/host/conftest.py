"""Sessions that roll over often."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from clew import Clew
from tests.support.rolling import run_rolling_worker
from tests.support.stack import Stack


@pytest.fixture(scope="module")
async def clew(stack: Stack) -> AsyncIterator[Clew]:
    """A client whose worker's sessions roll over after some 80 events."""
    async with run_rolling_worker(stack) as clew:
        yield clew
