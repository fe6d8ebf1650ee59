"""The service, the official client of it, and the clients from npm."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import openai
import pytest

from tests.support.npm import install_packages
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


@pytest.fixture(scope="session")
def npm_packages(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Install the locked clients beside the programs that use them. Skipped where npm cannot."""
    folder = tmp_path_factory.mktemp("npm")
    install_packages(Path(__file__).with_name("npm"), folder)
    return folder
