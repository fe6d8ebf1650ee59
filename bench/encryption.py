"""Measures what encryption costs: bytes of history and the worker's CPU a turn, with keys beside without.

    python -m bench.encryption

Two worker processes on one server, one with `CLEW_ENCRYPTION_KEYS`, take turns of 1.8 KB in rounds, so that other
work on the machine meets both. What counts are the ratios. Linux alone: it reads /proc.
"""

from __future__ import annotations

import argparse
import asyncio
import base64
import os
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from rich.console import Console
from rich.table import Table

from bench.history import Cost
from bench.peers.conversation import ANSWER, QUESTION
from bench.recording import add_write_option, record
from bench.systems import Process
from clew import Clew, Session
from clew.local import Reply, scripted_model, temporal_server, worker_process
from clew_workflows.encryption import Encryption, EncryptionKeys

ROUNDS = 6
"""Rounds of each worker; the first one warms up and does not count."""
TURNS = 50
"""Turns of a round, in a session of its own."""
KEY = os.urandom(32)


@dataclass(frozen=True)
class Round:
    """A round of a worker.

    Attributes:
        cpu: The worker's seconds of CPU.
        history: The size of the session's history.
    """

    cpu: float
    history: Cost


@dataclass
class Side:
    """A worker with keys or without, and its client."""

    name: str
    clew: Clew
    process: Process

    async def measure(self, number: int) -> Round:
        """Measure a round in a new session."""
        session: Session = await self.clew.open(f"{self.name}-{number}", model="bench:any")
        before = self.process.measure_cpu()
        for turn in range(TURNS):
            await session.ask(f"{turn} {QUESTION}")
        cpu = self.process.measure_cpu() - before
        return Round(cpu, await Cost.read(self.clew.temporal.get_workflow_handle(session.id)))


@asynccontextmanager
async def run_side(name: str, address: str, model_url: str, folder: Path) -> AsyncIterator[Side]:
    """Run a worker, with a key if it is the one named `encrypted`."""
    env = {"CLEW_STORE": str(folder / name), "CLEW_PROVIDER_BENCH_BASE_URL": model_url}
    encryption = None
    if name == "encrypted":
        encryption = Encryption(EncryptionKeys({"bench": KEY}))
        env["CLEW_ENCRYPTION_KEYS"] = f"bench:{base64.b64encode(KEY).decode()}"
    async with worker_process(address, env=env, task_queue=name) as worker:
        clew = await Clew.connect(address, task_queue=name, encryption=encryption)
        yield Side(name, clew, Process(worker.pid, 0.0))


async def measure() -> dict[str, list[Round]]:
    """Measure both workers in turn."""
    with tempfile.TemporaryDirectory() as folder:
        async with (
            temporal_server(ui=False) as server,
            scripted_model(lambda _body: Reply(ANSWER)) as model,
            run_side("plain", server.address, model.base_url, Path(folder)) as plain,
            run_side("encrypted", server.address, model.base_url, Path(folder)) as encrypted,
        ):
            rounds: dict[str, list[Round]] = {"plain": [], "encrypted": []}
            for number in range(ROUNDS):
                for side in (plain, encrypted):
                    rounds[side.name].append(await side.measure(number))
    return {name: measured[1:] for name, measured in rounds.items()}


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(
        prog="python -m bench.encryption", description=(__doc__ or "").partition("\n")[0]
    )
    add_write_option(parser)
    options = parser.parse_args()
    if os.environ.pop("CLEW_ENCRYPTION_KEYS", None):
        Console(stderr=True).print("CLEW_ENCRYPTION_KEYS is set: it is ignored")
    table = Table("of a turn", "plain", "encrypted", "times", title=f"{(ROUNDS - 1) * TURNS} turns of 1.8 KB")
    with record("encryption", options.write) as console:
        rounds = asyncio.run(measure())
        rows = {
            "bytes of history": [
                median(each.history.size for each in measured) / TURNS for measured in rounds.values()
            ],
            "worker's CPU, ms": [
                median(each.cpu for each in measured) / TURNS * 1000 for measured in rounds.values()
            ],
        }
        for name, (plain, encrypted) in rows.items():
            table.add_row(name, f"{plain:,.1f}", f"{encrypted:,.1f}", f"{encrypted / plain:.2f}")
        console.print(table)


if __name__ == "__main__":
    main()
