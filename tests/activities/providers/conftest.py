from collections.abc import AsyncIterator

import httpx
import pytest

from clew_activities.providers import make_http_client
from tests.support.provider_server import FakeServer, run_fake_server


@pytest.fixture
async def server() -> AsyncIterator[FakeServer]:
    async with run_fake_server() as fake:
        yield fake


@pytest.fixture(scope="session")
async def client() -> AsyncIterator[httpx.AsyncClient]:
    """Make one client for all tests, as a worker does: to load the certificates takes longer than most of them."""
    async with make_http_client() as client:
        yield client
