"""Measures what one flooding tenant costs all others, with and without fairness.

    python -m bench.fairness

A hundred tenants share a worker with few slots for model calls. All but one send a message now and then. The other
has many sessions, and each of them sends its next message as soon as it has the answer. Three phases, each on a
server of its own: without the flood; with it, where the server takes calls in the order in which they came; and with
it and fairness, as `clew dev` and the compose file set it up.

Prints a table of the quiet tenants' turns in seconds: median, p95, and their ratio to those without the flood. Takes
some five minutes.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import median

from rich.console import Console
from rich.table import Table

from bench.endless import compute_p95
from bench.recording import add_write_option, record
from clew import Clew, Session
from clew.local import Reply, scripted_model, temporal_server, worker_process
from clew.local.temporal import FAIRNESS

SEED = 7


@dataclass(frozen=True)
class Load:
    """What the tenants do, and what there is for them.

    Attributes:
        quiet: Tenants that send messages now and then, each from one session.
        messages: Messages of a quiet tenant, at random times of the phase.
        flood: Sessions of the flooding tenant.
        slots: Model calls that run at the same time.
        call_seconds: Seconds of a model call.
        seconds: Seconds of a phase.
    """

    quiet: int = 99
    messages: int = 2
    flood: int = 100
    slots: int = 4
    call_seconds: float = 0.5
    seconds: float = 60.0


@dataclass(frozen=True)
class Phase:
    """What was measured under one load.

    Attributes:
        name: The phase.
        turns: Seconds of each turn of a quiet tenant.
        flooded: Turns of the flooding tenant in the phase.
    """

    name: str
    turns: Sequence[float]
    flooded: int


async def send_now_and_then(session: Session, load: Load, chance: random.Random) -> list[float]:
    """Send a quiet tenant's messages, and time each turn. A message waits for the answer to the one before."""
    begun, turns = time.monotonic(), []
    for at in sorted(chance.uniform(0, load.seconds) for _ in range(load.messages)):
        await asyncio.sleep(max(begun + at - time.monotonic(), 0))
        sent = time.monotonic()
        await session.ask("Hello?")
        turns.append(time.monotonic() - sent)
    return turns


async def flood(session: Session, load: Load) -> int:
    """Send message after message until the phase is over; returns how many were answered."""
    begun, answered = time.monotonic(), 0
    while time.monotonic() - begun < load.seconds:
        await session.ask("Next!")
        answered += 1
    return answered


async def run_phase(name: str, load: Load, *, fairness: bool) -> Phase:
    """Run the tenants on a server and a worker of their own."""
    reply = Reply("fine", delay_seconds=load.call_seconds)
    with tempfile.TemporaryDirectory(prefix="clew-fairness-", ignore_cleanup_errors=True) as folder:
        async with (
            temporal_server(ui=False, dynamic_config=dict.fromkeys(FAIRNESS, fairness)) as server,
            scripted_model(lambda _body: reply) as model,
            worker_process(
                server.address,
                env={
                    "CLEW_STORE": folder,
                    "CLEW_PROVIDER_BENCH_BASE_URL": model.base_url,
                    "CLEW_MODEL_CALLS": str(load.slots),
                },
            ),
        ):
            clew = await Clew.connect(server.address)
            chance = random.Random(SEED)
            quiet = [
                await clew.open(f"quiet-{number}", model="bench:any", metadata={"tenant": f"quiet-{number}"})
                for number in range(load.quiet)
            ]
            flooding = [
                await clew.open(f"flood-{number}", model="bench:any", metadata={"tenant": "flood"})
                for number in range(load.flood)
            ]
            turns, flooded = await asyncio.gather(
                asyncio.gather(*(send_now_and_then(session, load, chance) for session in quiet)),
                asyncio.gather(*(flood(session, load) for session in flooding)),
            )
    return Phase(name, [seconds for tenant in turns for seconds in tenant], sum(flooded))


async def measure(load: Load) -> list[Phase]:
    """Run the three phases."""
    calm = replace(load, flood=0)
    return [
        await run_phase("no flood", calm, fairness=True),
        await run_phase("flood, in order of arrival", load, fairness=False),
        await run_phase("flood, with fairness", load, fairness=True),
    ]


def show(load: Load, phases: Sequence[Phase], console: Console) -> None:
    """Print the turns of the quiet tenants, and their ratios to the first phase."""
    title = (
        f"{load.quiet} quiet tenants with {load.messages} messages each, one with {load.flood} sessions; "
        f"{load.slots} calls of {load.call_seconds:g} s at once, {load.seconds:g} s a phase"
    )
    table = Table("", "quiet turns", "median s", "p95 s", "median ratio", "p95 ratio", "flood's turns", title=title)
    calm = phases[0]
    for phase in phases:
        middle, late = median(phase.turns), compute_p95(phase.turns)
        table.add_row(
            phase.name,
            f"{len(phase.turns)}",
            f"{middle:.2f}",
            f"{late:.2f}",
            f"{middle / median(calm.turns):.1f}",
            f"{late / compute_p95(calm.turns):.1f}",
            f"{phase.flooded}",
        )
    console.print(table)


def main(arguments: list[str] | None = None) -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(prog="python -m bench.fairness", description=(__doc__ or "").partition("\n")[0])
    add_write_option(parser)
    options, load = parser.parse_args(arguments), Load()
    with record("fairness", options.write) as console:
        show(load, asyncio.run(measure(load)), console)


if __name__ == "__main__":
    main()
