"""Real sessions against a strict server for each dialect: what goes out is accepted, what comes back is kept."""

from __future__ import annotations

from typing import Any

import pytest

from tests.providers.dialects import DIALECTS
from tests.providers.matrix import Matrix
from tests.providers.scenarios import FALLBACK, SCENARIOS, Cell, Scenario, iterate_pairs
from tests.providers.strict_server import Dialect

ROWS = {dialect.name: dialect for dialect in DIALECTS}


def list_cells(*, fast: bool) -> list[Any]:
    """List the cells of the table. One that is left out is shown as skipped, with the reason."""
    cells = []
    for name, scenario in SCENARIOS.items():
        if scenario.is_fast != fast:
            continue
        for dialect in DIALECTS:
            reason = dialect.left_out.get(name)
            marks = [pytest.mark.skip(reason=reason)] if reason else []
            cells.append(pytest.param(dialect, scenario, id=f"{dialect.name}-{name.replace(' ', '_')}", marks=marks))
    return cells


async def play(cell: Cell, scenario: Scenario) -> None:
    try:
        await scenario.play(cell)
        cell.check(exact_usage=scenario.exact_usage)
    finally:
        await cell.end()


@pytest.mark.parametrize(("dialect", "scenario"), list_cells(fast=True))
async def test_a_session_works_with_every_dialect(matrix: Matrix, dialect: Dialect, scenario: Scenario) -> None:
    """The server refuses nothing, nothing of the provider's own is lost, and the usage is counted."""
    await play(Cell(matrix.clew, matrix.servers, dialect), scenario)


@pytest.mark.slow
@pytest.mark.parametrize(("dialect", "scenario"), list_cells(fast=False))
async def test_a_session_works_with_every_dialect_in_every_scenario(
    matrix: Matrix, dialect: Dialect, scenario: Scenario
) -> None:
    """The same for the other scenarios."""
    await play(Cell(matrix.clew, matrix.servers, dialect), scenario)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("dialect", "partner"),
    [pytest.param(one, other, id=f"{one.name}-to-{other.name}") for one, other in iterate_pairs(ROWS)],
)
async def test_a_run_falls_back_to_another_dialect(matrix: Matrix, dialect: Dialect, partner: Dialect) -> None:
    """In the middle of a tool loop, and back with the next message."""
    await play(Cell(matrix.clew, matrix.servers, dialect, partner), FALLBACK)
