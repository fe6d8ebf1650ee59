import asyncio
from collections.abc import AsyncIterator

import httpx
import pytest

from activities.providers import http_client
from tests.activities.providers.fake_server import FakeServer


@pytest.fixture
async def server() -> AsyncIterator[FakeServer]:
    fake = FakeServer()
    tasks: set[asyncio.Task[None]] = set()

    async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        tasks.add(task)
        await fake.serve(reader, writer)

    listener = await asyncio.start_server(accept, "127.0.0.1", 0)
    fake.url = f"http://127.0.0.1:{listener.sockets[0].getsockname()[1]}"
    yield fake
    listener.close()
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


@pytest.fixture
async def client() -> AsyncIterator[httpx.AsyncClient]:
    async with http_client() as client:
        yield client
