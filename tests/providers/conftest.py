"""The matrix of the dialects, which all tests of a process share."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from clew.local import TemporalServer
from tests.providers.matrix import Matrix, run_matrix


@pytest.fixture(scope="session")
async def matrix(server: TemporalServer) -> AsyncIterator[Matrix]:
    """Run the servers of all dialects, and a worker that is configured for them."""
    async with run_matrix(server) as running:
        yield running
