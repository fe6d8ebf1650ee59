"""Checks sessions on a worker that pauses: their threads must hold all that their histories hold.

    python -m bench.pauses [--tries 200] [--at-once 8] [--seed 1]

A Temporal server and a worker process, which SIGSTOP pauses and SIGCONT resumes at random moments. A try is one
session that rolls over after eight signals, mostly within the first second of a workflow run: the server then delays
the next run's first task, and an update can start that task earlier. Each session gets signals, updates that are
refused and a message, chosen at random from the seed. Then it is audited: event histories, archive and the live
session must agree on every entry.

Prints the problems to stderr, and one line with the counts. Exit code 1: a session has a problem.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import random
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass

from rich.table import Table

from bench.chain import list_runs
from bench.recording import add_write_option, record
from clew import Clew, Session
from clew.contract.payloads import InputPayload, MessagePayload
from clew.errors import Idle
from clew.local import Reply, Worker, scripted_model, temporal_server, worker_process
from clew_activities.archive import Archive, Store
from clew_audit.audit import audit_session

CALLERS = 4
CALLS = 8
SIGNALS = 20
ENV = {"CLEW_ROLLOVER_SIGNALS": "8"}
SHORT_SECONDS, LONG_SECONDS = 0.3, 3.5
LONG_SHARE = 0.05


@dataclass
class Report:
    """The results of all tries."""

    tries: int = 0
    signals: int = 0
    runs: int = 0
    pauses: int = 0
    problems: tuple[str, ...] = ()


async def run_benchmark(tries: int, at_once: int, seed: int) -> Report:
    """Run all tries, `at_once` of them together."""
    chance, report = random.Random(seed), Report()
    async with (
        temporal_server(ui=False) as server,
        scripted_model(lambda _body: Reply("fine")) as model,
    ):
        env = {**ENV, "CLEW_STORE": f"file://{server.store}", "CLEW_PROVIDER_BENCH_BASE_URL": model.base_url}
        archive = Archive(Store.from_url(env["CLEW_STORE"]), server.namespace)
        clew = await Clew.connect(server.address)
        async with worker_process(server.address, env=env) as worker:
            while report.tries < tries:
                sessions = [
                    await clew.open(f"pauses-{report.tries + n}", model="bench:model")
                    for n in range(min(at_once, tries - report.tries))
                ]
                async with _pause_worker(worker, chance, report):
                    await asyncio.gather(
                        *(_use_session(session, random.Random(chance.random())) for session in sessions)
                    )
                for session in sessions:
                    await _check(clew, archive, session, report)
                report.tries += len(sessions)
    return report


@asynccontextmanager
async def _pause_worker(worker: Worker, chance: random.Random, report: Report) -> AsyncIterator[None]:
    """Pause the worker at random moments while the context lasts; it runs afterwards."""

    async def pause() -> None:
        while True:
            await asyncio.sleep(chance.uniform(0, SHORT_SECONDS))
            os.kill(worker.pid, signal.SIGSTOP)
            report.pauses += 1
            await asyncio.sleep(LONG_SECONDS if chance.random() < LONG_SHARE else chance.uniform(0, SHORT_SECONDS))
            os.kill(worker.pid, signal.SIGCONT)

    pausing = asyncio.create_task(pause())
    try:
        yield
    finally:
        pausing.cancel()
        os.kill(worker.pid, signal.SIGCONT)


async def _use_session(session: Session, chance: random.Random) -> None:
    """Send signals, updates that are refused, and a message."""
    handle = session._handle.workflow

    async def send_signals() -> None:
        for number in range(SIGNALS):
            await handle.signal("steer", {"content": _make_text(session, number)})
            await asyncio.sleep(chance.choice((0, 0, 0, 0.05)))

    async def call() -> None:
        for _ in range(CALLS):
            with suppress(Idle):
                await session.inject("refused, unless a run is active")
            await asyncio.sleep(chance.choice((0, 0.02, 0.1)))

    await asyncio.gather(send_signals(), *(call() for _ in range(CALLERS)))
    await session.ask("go on")


async def _check(clew: Clew, archive: Archive, session: Session, report: Report) -> None:
    """Check that each signal is in the thread once and that the audit is clean."""
    entries = await session.entries()
    said = [said.content for entry in entries if isinstance(said := entry.body, MessagePayload | InputPayload)]
    problems = [
        f"{_make_text(session, number)} is in the thread {times} times"
        for number in range(SIGNALS)
        if (times := sum(_make_text(session, number) in content for content in said)) != 1
    ]
    audited = await audit_session(clew.temporal, archive, session.id)
    problems += [f"{session.id}: {difference.as_dict()}" for difference in audited.differences]
    report.signals += SIGNALS
    report.runs += len(await list_runs(clew.temporal, session.id))
    report.problems += tuple(problems)


def _make_text(session: Session, number: int) -> str:
    return f"<{session.id} signal {number}>"


def main() -> None:
    """Run the benchmark and exit."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--tries", type=int, default=200)
    parser.add_argument("--at-once", type=int, default=8)
    parser.add_argument("--seed", type=int, default=1)
    add_write_option(parser)
    args = parser.parse_args()
    with record("pauses", args.write) as console:
        report = asyncio.run(run_benchmark(args.tries, args.at_once, args.seed))
        table = Table("sessions", "workflow runs", "signals", "pauses", "problems")
        counts = (report.tries, report.runs, report.signals, report.pauses, len(report.problems))
        table.add_row(*(f"{count:,}" for count in counts))
        console.print(table)
    for problem in report.problems[:50]:
        print(problem, file=sys.stderr)
    sys.exit(1 if report.problems else 0)


if __name__ == "__main__":
    main()
