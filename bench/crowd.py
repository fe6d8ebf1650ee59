"""Measures turns in a session that several callers use at once, with Clew's client and with the SDK's own.

    python -m bench.crowd

Four callers talk to one session, and a fifth queries its status. While a workflow task runs, the server lets one
query wait and refuses the others. The SDK's client retries after a second, Clew's after milliseconds
(`clew_workflows.temporal_faults.query_buffer`). Worker and client are of the same kind; the two kinds take turns.

Prints a table of milliseconds: median, p95 and maximum of a turn and of a status query, and their ratio. Takes some
minutes.
"""

from __future__ import annotations

import argparse
import asyncio
import time
from dataclasses import dataclass, field
from statistics import median

from rich.console import Console
from rich.table import Table
from temporalio.client import Client

from bench.endless import compute_p95
from bench.recording import add_write_option, record
from clew import Clew, Session
from clew.local import Reply, scripted_model, temporal_server
from clew_activities.archive import Store
from clew_activities.providers import load_providers, make_http_client
from clew_activities.worker import WorkerSettings, make_worker

ROUNDS, CALLERS, TURNS = 4, 4, 50
WATCH_SECONDS = 0.05


@dataclass
class Seconds:
    """Seconds that turns and status queries took.

    Attributes:
        turns: Seconds of each turn.
        looks: Seconds of each status query.
    """

    turns: list[float] = field(default_factory=list)
    looks: list[float] = field(default_factory=list)


async def run_callers(client: Client, session_id: str, provider: str, seconds: Seconds) -> None:
    """Run the callers in a new session, with a worker of its own."""
    async with make_http_client() as http:
        worker = make_worker(
            client,
            WorkerSettings(
                task_queue=session_id,
                providers=load_providers({"CLEW_PROVIDER_BENCH_BASE_URL": provider}),
                store=Store.from_url("memory://"),
            ),
            http,
        )
        async with worker:
            await Clew(client, session_id).open(session_id, model="bench:any", on_busy="queue")
            session = Session(client, session_id, session_id)
            await session.ask("hello")
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
            await run_callers(clew.temporal, f"ours-{number}", model.base_url, ours)
            await run_callers(plain, f"theirs-{number}", model.base_url, theirs)
    return ours, theirs


def show(ours: Seconds, theirs: Seconds, console: Console) -> None:
    """Print milliseconds, and the SDK's divided by Clew's."""
    table = Table("ms", "Clew's", "the SDK's", "times", title=f"{CALLERS} callers at once, {len(ours.turns)} turns")
    for name, own, other in (("a turn", ours.turns, theirs.turns), ("its status", ours.looks, theirs.looks)):
        for measure_of, value in (("median", median), ("p95", compute_p95), ("longest", max)):
            one, two = value(own), value(other)
            table.add_row(f"{name}, {measure_of}", f"{one * 1e3:.0f}", f"{two * 1e3:.0f}", f"{two / one:.1f}")
    console.print(table)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(prog="python -m bench.crowd", description=(__doc__ or "").partition("\n")[0])
    add_write_option(parser)
    with record("crowd", parser.parse_args().write) as console:
        show(*asyncio.run(measure()), console)


if __name__ == "__main__":
    main()
