"""The load bench measures every part, on a server and workers of its own."""

from __future__ import annotations

import pytest

from bench.beside import Sizes
from bench.load import PARTS, measure

TINY = Sizes(
    rounds=1,
    seconds=0.3,
    latency_turns=3,
    busy=(2,),
    cached=3,
    lengths=(2,),
    returned=(2, 3),
    idle=3,
    growth=(12, 33),
    copied=(400,),
)


@pytest.mark.slow
async def test_every_part_is_measured_beside_the_floor() -> None:
    """Each value is positive, and turns and CPU have those of the floor beside them."""
    results = await measure(tuple(PARTS), TINY)
    # A few sessions may need no more memory than a worker has at hand.
    sure = [row for row in results.rows if not ("memory" in row.name and "session" in row.name)]
    assert all(row.clew > 0 for row in sure)
    compared = [row for row in sure if "history" not in row.name and "growth" not in row.name]
    assert all(row.floor is not None and row.floor > 0 for row in compared)
    names = {row.name for row in results.rows}
    assert {"latency, p50", "throughput, 2 sessions", "worker CPU, 2 sessions", "turn 400: latency"} <= names
    assert results.charts
