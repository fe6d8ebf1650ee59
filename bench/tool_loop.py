"""Measures a turn of ten steps, each a model call and a tool call, beside the same turn of peers on Temporal.

    make .venv/peers/pydantic_ai/.ready .venv/peers/openai_agents/.ready    # the environments: once
    python -m bench.tool_loop

The model and the tool answer at once, so that all of the time is the framework's. The peers of `bench.peers` and Clew
have a process each, and one Temporal server; they take turns, each in a conversation that has had one turn. Clew and
its worker keep what they always keep: the thread, what the model saw, the digests of each call.

Prints the median and the 95th percentile of the turn in milliseconds, and its ratio to Clew's. Takes two minutes.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import tempfile
from array import array
from contextlib import AsyncExitStack
from pathlib import Path
from statistics import median

from rich.console import Console
from rich.table import Table

from bench.endless import compute_p95
from bench.peers.process import Setting, find_python, peer_process
from bench.peers.rows import ROWS
from bench.peers.script import serve_script
from bench.recording import add_write_option, record
from clew.local import temporal_server

CLEW = "clew"
BESIDE = (CLEW, "pydantic_ai", "openai_agents")
STEPS = 10
ROUNDS = 20
WARM_UP = 2


async def measure(rounds: int, console: Console) -> None:
    """Have each take the turn, one after the other, and print how long it took."""
    async with AsyncExitStack() as exits:
        folder = Path(exits.enter_context(tempfile.TemporaryDirectory(prefix="clew-loop-")))
        server = await exits.enter_async_context(temporal_server(ui=False))
        _, model = await exits.enter_async_context(serve_script())
        processes = {}
        for key in BESIDE:
            row = ROWS[key]
            setting = Setting(*(row.module, row.environment, row.configuration, model, server.address, folder / key))
            processes[key] = await exits.enter_async_context(peer_process(setting))
        times = {key: array("d") for key in BESIDE}
        for number in range(WARM_UP + rounds):
            for key, process in processes.items():
                name = f"{key}-{number}"
                await process.say(name, f"{name}-first", "hello")
                seconds = await process.say(name, f"{name}-loop", f"{number} look it up [tools {STEPS}]")
                if number >= WARM_UP:
                    times[key].append(1000 * seconds)
    table = Table("", "p50 ms", "p95 ms", "a step, ms", "as many times Clew's", title=f"a turn of {STEPS} steps")
    for key, taken in times.items():
        middle = median(taken)
        cells = f"{middle:.0f}", f"{compute_p95(list(taken)):.0f}", f"{middle / STEPS:.1f}"
        table.add_row(ROWS[key].title, *cells, f"{middle / median(times[CLEW]):.2f}")
    console.print(table)


def main() -> int:
    """Run the bench; return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=ROUNDS, help="turns of each")
    add_write_option(parser)
    options = parser.parse_args()
    environments = [name for key in BESIDE if (name := ROWS[key].environment)]
    if missing := [name for name in environments if not find_python(name).exists()]:
        needed = " ".join(f".venv/peers/{name}/.ready" for name in missing)
        print(f"environments are missing: make {needed}", file=sys.stderr)
        return 1
    with record("tool_loop", options.write) as console:
        asyncio.run(measure(options.rounds, console))
    return 0


if __name__ == "__main__":
    sys.exit(main())
