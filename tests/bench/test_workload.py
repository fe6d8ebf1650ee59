"""The workloads: a small one is within its limit, and one beyond its limit is reported."""

from __future__ import annotations

from io import StringIO

import pytest
from rich.console import Console

from bench.workload import Workload, measure, show


@pytest.mark.slow
@pytest.mark.long
async def test_a_small_workload_is_measured() -> None:
    """All of the conversation is in the last context; sizes are the server's, and judged by the limits."""
    costs = await measure([Workload(4, 15_000, 1_000_000), Workload(2, 100, 1)])
    assert [cost.workload.calls for cost in costs] == [4, 2]
    assert costs[0].context_tokens > 15_000
    screen = StringIO()
    assert not show(costs, Console(file=screen, width=160))
    assert show(costs[:1], Console(file=screen, width=160))
    assert "1 exceeded" in screen.getvalue()
