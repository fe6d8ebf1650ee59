"""How long turns take in a session that many use at once: with Clew's client, and with the SDK's as it comes.

Four callers talk to one session, and a fifth watches it. While a workflow task is under way a server keeps one query
waiting and refuses those that come with it; the SDK's client asks again after a second, Clew's after milliseconds
(`clew.session._query_retry`). Client and worker are of one kind in one half and of the other in the other half; all
else is the same, and the halves take turns.

python -m bench.crowd
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass, field
from statistics import median

from rich.console import Console
from rich.table import Table
from temporalio.client import Client

from bench.endless import p95
from clew import Clew, Session
from clew.local import Reply, scripted_model, temporal_server
from clew_activities.archive import Store
from clew_activities.providers import load_providers, make_http_client
from clew_activities.worker import make_worker

ROUNDS, CALLERS, TURNS = 4, 4, 50
WATCH_SECONDS = 0.05


@dataclass
class Seconds:
    """Seconds that turns and queries of the status took."""

    turns: list[float] = field(default_factory=list)
    looks: list[float] = field(default_factory=list)


async def crowd(client: Client, session_id: str, provider: str, seconds: Seconds) -> None:
    """Use a session of its own, with a worker of its own."""
    async with make_http_client() as http:
        worker = make_worker(
            client,
            task_queue=session_id,
            providers=load_providers({"CLEW_PROVIDER_BENCH_BASE_URL": provider}),
            tools={},
            http=http,
            store=Store.from_url("memory://"),
        )
        async with worker:
            await Clew(client, session_id).open(session_id, model="bench:any", on_busy="queue")
            session = Session(client, session_id, session_id)
            await session.ask("The first turn begins it all.")
            watching = asyncio.create_task(watch(session, seconds))
            await asyncio.gather(*(talk(session, caller, seconds) for caller in range(CALLERS)))
            watching.cancel()
            await session.close()


async def talk(session: Session, caller: int, seconds: Seconds) -> None:
    """Send one turn after the other and time each."""
    for turn in range(TURNS):
        begun = time.perf_counter()
        await session.ask(f"{caller} asks for the {turn}th time")
        seconds.turns.append(time.perf_counter() - begun)


async def watch(session: Session, seconds: Seconds) -> None:
    """Query and time the status repeatedly."""
    while True:
        begun = time.perf_counter()
        await session.status()
        seconds.looks.append(time.perf_counter() - begun)
        await asyncio.sleep(WATCH_SECONDS)


async def measure() -> tuple[Seconds, Seconds]:
    """Measure with Clew's client, and with the SDK's."""
    ours, theirs = Seconds(), Seconds()
    async with temporal_server(ui=False) as server, scripted_model(lambda _body: Reply("fine")) as model:
        clew = await Clew.connect(server.address)
        plain = await Client.connect(server.address, data_converter=clew.temporal.data_converter)
        for number in range(ROUNDS):
            await crowd(clew.temporal, f"ours-{number}", model.base_url, ours)
            await crowd(plain, f"theirs-{number}", model.base_url, theirs)
    return ours, theirs


def show(ours: Seconds, theirs: Seconds, console: Console) -> None:
    """The table: milliseconds, and how many times as long it takes with the SDK's client."""
    table = Table("ms", "Clew's", "the SDK's", "times", title=f"{CALLERS} callers at once, {len(ours.turns)} turns")
    for name, own, other in (("a turn", ours.turns, theirs.turns), ("its status", ours.looks, theirs.looks)):
        for measure_of, value in (("median", median), ("p95", p95), ("longest", max)):
            one, two = value(own), value(other)
            table.add_row(f"{name}, {measure_of}", f"{one * 1e3:.0f}", f"{two * 1e3:.0f}", f"{two / one:.1f}")
    console.print(table)


if __name__ == "__main__":
    show(*asyncio.run(measure()), Console())
