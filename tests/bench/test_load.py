"""The load bench measures every part, on a server and workers of its own."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from bench import load
from bench.beside import QUICK, Sizes
from bench.load import PARTS, main, measure, start_cluster
from bench.load_results import Results
from clew.local import TemporalServer
from clew.local.child import Child
from deploy.local_cluster import LocalCluster

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
@pytest.mark.long
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


async def test_on_the_cluster_processes_find_its_store(monkeypatch: pytest.MonkeyPatch) -> None:
    """The environment has the settings of its store while it runs; all of its servers are measured."""
    settings = {
        "AWS_ENDPOINT_URL": "http://127.0.0.1:1",
        "AWS_REGION": "us-east-1",
        "TEMPORAL_ADDRESS": "127.0.0.1:2",
    }
    servers = {name: cast("Child", SimpleNamespace(pid=pid)) for pid, name in enumerate(("postgresql", "seaweedfs"))}
    server = TemporalServer("127.0.0.1:2", "default", None, Path(os.devnull), "s3://b/p", None, cast("Child", None))

    @asynccontextmanager
    async def run_cluster(*, parts: Sequence[str]) -> AsyncIterator[LocalCluster]:
        assert parts == ()
        unused: Any = None
        yield LocalCluster(server, settings, {}, "", Path(os.devnull), servers, unused, unused)

    monkeypatch.setattr(load, "local_cluster", run_cluster)
    monkeypatch.delenv("AWS_ENDPOINT_URL", raising=False)
    async with AsyncExitStack() as stack:
        address, measured, store = await start_cluster(stack)
        assert (address, store, measured.pids) == (server.address, server.store, (0, 1))
        assert os.environ["AWS_ENDPOINT_URL"] == settings["AWS_ENDPOINT_URL"]
    assert "AWS_ENDPOINT_URL" not in os.environ


@pytest.mark.parametrize("on_cluster", [False, True])
def test_an_option_chooses_the_cluster(monkeypatch: pytest.MonkeyPatch, on_cluster: bool) -> None:
    """The parts and sizes of the command are measured there, or on the development server."""
    calls: list[tuple[Sequence[str], Sizes, Mapping[str, bool]]] = []

    async def note(parts: Sequence[str], sizes: Sizes, **options: bool) -> Results:
        calls.append((parts, sizes, options))
        return Results()

    monkeypatch.setattr(load, "measure", note)
    main(["--quick", "--parts", "latency", *(["--cluster"] if on_cluster else [])])
    assert calls == [(["latency"], QUICK, {"on_cluster": on_cluster})]
