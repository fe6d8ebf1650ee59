"""The service, and the official client of it."""

from __future__ import annotations

from collections.abc import AsyncIterator

import openai
import pytest

from tests.support.openai_api import connect
from tests.support.serving import Served, run_service
from tests.support.stack import Stack


@pytest.fixture
async def served(stack: Stack) -> AsyncIterator[Served]:
    async with run_service(stack.clew) as served:
        yield served


@pytest.fixture
async def client(served: Served) -> AsyncIterator[openai.AsyncOpenAI]:
    async with connect(served) as client:
        yield client
