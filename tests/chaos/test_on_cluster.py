"""Chaos on the local cluster: Temporal on PostgreSQL with several shards, and SeaweedFS."""

from __future__ import annotations

import pytest

from clew.local import StartFailed
from deploy.servers.programs import find_programs
from tests.chaos.last_cases import CERTAIN_FIGURES
from tests.chaos.plan import make_plan
from tests.chaos.round import run_round

SECONDS = 60


@pytest.mark.slow
async def test_a_minute_of_chaos_on_the_cluster_keeps_every_promise() -> None:
    """The same callers, faults and keys as on the development server; Temporal's server crashes, too."""
    try:
        find_programs()
    except StartFailed as missing:
        pytest.skip(str(missing))
    result = await run_round(make_plan(2, SECONDS), "cluster")
    assert [str(violation) for violation in result.violations] == []
    counts = result.figures.counts
    assert counts["requests"] > 20
    assert counts["server crashes"] > 0
    assert counts["workers killed"] + counts["workers stopped"] > 0
    assert counts["archived segments"] > 0
    assert [figure for figure in CERTAIN_FIGURES if not counts[figure]] == []
    assert counts["store requests"] > 100
