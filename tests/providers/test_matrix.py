"""Real sessions against a strict server for each dialect: what goes out is accepted, what comes back is kept."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from typing import Any
from zlib import crc32

import pytest

from tests.providers.dialects import DIALECTS, FORMATS
from tests.providers.matrix import Matrix
from tests.providers.scenarios import FALLBACK, FORK, SCENARIOS, Cell, Scenario, iterate_pairs
from tests.providers.strict_server import Dialect

ROWS = {dialect.name: dialect for dialect in DIALECTS}
PAIRS = [pytest.param(one, other, id=f"{one.name}-to-{other.name}") for one, other in iterate_pairs(ROWS)]
"""The cells of the columns with two dialects."""
Playing = dict[tuple[str, str], asyncio.Task[None]]
"""The cells that are played at the same time, by the names of the scenario and the dialect."""


def list_cells(*, fast: bool) -> list[Any]:
    """List the cells of the table. One that is left out is shown as skipped, with the reason.

    The quick run has a row of each format: `test_pure_fallbacks` plays a loop with each row. The gate plays a sixth
    of the cells of the other rows, another sixth of each column.
    """
    cells = []
    for name, scenario in SCENARIOS.items():
        if scenario.is_fast != fast:
            continue
        for dialect in DIALECTS:
            reason = dialect.left_out.get(name)
            marks = [pytest.mark.skip(reason=reason)] if reason else []
            if fast and dialect.name not in FORMATS:
                marks.append(pytest.mark.slow)
            if dialect.name not in FORMATS and crc32(f"{dialect.name} {name}".encode()) % 6:
                marks.append(pytest.mark.long)
            cells.append(pytest.param(dialect, name, id=f"{dialect.name}-{name.replace(' ', '_')}", marks=marks))
    return cells


async def play(cell: Cell, scenario: Scenario) -> None:
    """Play a cell, and check what its servers say."""
    async with AsyncExitStack() as stack:
        for server in sorted(cell.active, key=lambda server: server.dialect.name):
            await stack.enter_async_context(server.free)
        try:
            await scenario.play(cell)
            cell.check(exact_usage=scenario.exact_usage)
            await cell.check_requests()
        finally:
            await cell.end()


@pytest.fixture(scope="module")
async def playing() -> AsyncIterator[Playing]:
    """The cells that are played at the same time; what is still played at the end is cancelled."""
    tasks: Playing = {}
    yield tasks
    for task in tasks.values():
        task.cancel()
    await asyncio.gather(*tasks.values(), return_exceptions=True)


@pytest.mark.parametrize(("dialect", "name"), list_cells(fast=True))
async def test_a_session_works_with_every_dialect(matrix: Matrix, dialect: Dialect, name: str) -> None:
    """The server refuses nothing, nothing of the provider's own is lost, and the usage is counted."""
    await play(Cell(matrix.clew, matrix.servers, dialect), SCENARIOS[name])


@pytest.mark.slow
@pytest.mark.parametrize(("dialect", "name"), list_cells(fast=False))
async def test_a_session_works_with_every_dialect_in_every_scenario(
    request: pytest.FixtureRequest, matrix: Matrix, playing: Playing, dialect: Dialect, name: str
) -> None:
    """The same for the other scenarios."""
    scenario = SCENARIOS[name]
    if not scenario.waits:
        await play(Cell(matrix.clew, matrix.servers, dialect), scenario)
        return
    if (name, dialect.name) not in playing:
        specs = [getattr(item, "callspec", None) for item in request.session.items]
        cells = [spec.params for spec in specs if spec]
        for row in [cell["dialect"] for cell in cells if cell.get("name") == name]:
            if name not in row.left_out:
                one = play(Cell(matrix.clew, matrix.servers, row), scenario)
                playing[name, row.name] = asyncio.create_task(one)
    await playing[name, dialect.name]


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.parametrize(("dialect", "partner"), PAIRS)
async def test_a_fork_goes_on_at_another_dialect(matrix: Matrix, dialect: Dialect, partner: Dialect) -> None:
    """With the images and files of the messages and of the tools' results."""
    await play(Cell(matrix.clew, matrix.servers, dialect, partner), FORK)


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.parametrize(("dialect", "partner"), PAIRS)
async def test_a_run_falls_back_to_another_dialect(matrix: Matrix, dialect: Dialect, partner: Dialect) -> None:
    """In the middle of a tool loop, and back with the next message. `test_pure_fallbacks` has more pairs."""
    await play(Cell(matrix.clew, matrix.servers, dialect, partner), FALLBACK)
