"""Measures whether a session becomes slower over thousands of turns, and checks its thread.

    python -m bench.endless [--turns 20000] [--seed 1] [--thresholds low|production] [--kill]

A Temporal server, two worker processes and a scripted model. Four simulated callers (`bench.users`) send messages,
inputs, context operations, configuration changes, cancellations and repeated commands, chosen at random from the
seed. `--kill` kills workers with SIGKILL meanwhile.

Then the complete thread, from the archive and from the session, is compared with the callers' records
(`bench.ledger`), the histories of all workflow runs are searched for failed workflow tasks, and the session is
audited as `clew audit` does it.

The first and the last hundred turns are alike and sent one after another. Each is timed next to the same turn of a
new control session, and so are queries of `status`, so that the load of the machine affects both. The session's time
divided by its control's must not grow by 1.2 or more (median of the pairs). The p95 is printed and not judged.
Windows of less than fifty turns are not judged either.

Prints progress and problems to stderr, and at the end two tables: what was sent, and the times. Exit code 1: a check
has failed.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Awaitable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median, quantiles
from typing import Any

from rich.console import Console
from rich.table import Table

from bench import users
from bench.chain import WorkflowRun, list_runs
from bench.crew import Crew
from bench.ledger import Ledger, check
from bench.recording import add_write_option, record
from bench.users import BASE, User, retry
from clew import Clew, Session
from clew.local import scripted_model, temporal_server
from clew_activities.archive import Archive, Store
from clew_audit.audit import Report as Audited
from clew_audit.audit import audit_session
from clew_workflows.thread.entries import Entry

WINDOW, JUDGED = 100, 50
USERS = 4
STATUS_PER_TURN = 4
TURNS_PER_KILL = 400
LIMIT = 1.2
MAX_CARRIED = 512 * 1024
THRESHOLDS = {
    "low": {"EVENTS": "400", "BYTES": "1000000", "UPDATES": "40", "SIGNALS": "60"},
    "production": {},
}


@dataclass
class Times:
    """Seconds of the session, and of its control at the same moment."""

    session: list[float] = field(default_factory=list)
    control: list[float] = field(default_factory=list)

    def compute_median_ratio(self) -> float:
        """Compute the median of the session's time divided by its control's."""
        return median(one / other for one, other in zip(self.session, self.control, strict=True))

    def compute_p95_ratio(self) -> float:
        """Compute the session's p95 divided by its control's."""
        return compute_p95(self.session) / compute_p95(self.control)


@dataclass
class Window:
    """The times of the turns of a window."""

    turns: int
    status: Times = field(default_factory=Times)
    turn: Times = field(default_factory=Times)


@dataclass
class Report:
    """The results of a benchmark run."""

    turns: int
    seconds: float
    windows: tuple[Window, Window]
    resident: list[int]
    kills: int
    runs: list[WorkflowRun]
    entries: int
    archived: int
    audited: Audited
    ledger: Ledger
    kinds: Counter[str]
    problems: list[str]


def compute_p95(values: Sequence[float]) -> float:
    """Compute the 95th percentile."""
    return quantiles(values, n=20)[-1]


async def run_benchmark(turns: int, seed: int, thresholds: str, kill: bool) -> Report:
    """Run the session on servers of its own, and check it."""
    with tempfile.TemporaryDirectory(prefix="clew-endless-", ignore_cleanup_errors=True) as folder:
        # In a file: a server that keeps long histories in memory runs out of it.
        async with (
            temporal_server(ui=False, db_filename=Path(folder) / "temporal.db") as server,
            scripted_model(users.reply_as_told) as model,
        ):
            env = {"CLEW_STORE": f"file://{folder}/archive", "CLEW_PROVIDER_BENCH_BASE_URL": model.base_url}
            env |= {f"CLEW_ROLLOVER_{name}": value for name, value in THRESHOLDS[thresholds].items()}
            clew = await Clew.connect(server.address)
            async with Crew(server.address, env) as crew:
                bench = _Bench(clew, crew, model.requests, turns, chance=random.Random(seed), kill=kill)
                report = await bench.measure(seed, Archive(Store.from_url(env["CLEW_STORE"]), server.namespace))
        report.problems += [f"a worker logged: {line}" for line in dict.fromkeys(crew.trouble)]
        return report


class _Bench:
    def __init__(
        self, clew: Clew, crew: Crew, received: list[dict[str, Any]], turns: int, *, chance: random.Random, kill: bool
    ) -> None:
        self._clew = clew
        self._crew = crew
        self._received = received
        self._turns = turns
        self._chance = chance
        self._kill = kill
        self._done = 0
        self._shown = 0
        self._ledger = Ledger()
        self._begun = time.monotonic()
        self._resident: list[int] = []

    async def measure(self, seed: int, archive: Archive) -> Report:
        session = await self._clew.open("endless", **BASE, on_busy="queue")
        size = min(WINDOW, self._turns // 5)
        first = await self._measure_window(session, "first", size)
        self._resident.append(self._crew.measure_resident_bytes())
        await self._run_users(session, seed, self._turns - 2 * size)
        await self._settle(session)
        last = await self._measure_window(session, "last", size)
        self._resident.append(self._crew.measure_resident_bytes())
        seconds = time.monotonic() - self._begun
        entries, archived, problems = await self._read_thread(session, archive)
        problems += check(entries, self._ledger)
        runs = await list_runs(self._clew.temporal, session.id)
        audited = await audit_session(self._clew.temporal, archive, session.id)
        problems += [*_check_histories(runs), *_check_times(first, last), *_check_audit(audited, len(runs))]
        kinds = Counter(str(entry.kind) for entry in entries)
        return Report(
            self._done, seconds, (first, last), self._resident, self._crew.kills, runs, len(entries), archived,
            audited, self._ledger, kinds, problems,
        )  # fmt: skip

    async def _run_users(self, session: Session, seed: int, turns: int) -> None:
        """Let four users share the turns, and kill workers meanwhile."""
        left = turns
        middle, next_kill = left // 2, TURNS_PER_KILL // 2 if turns > TURNS_PER_KILL else turns // 2
        killing: asyncio.Task[None] | None = None

        async def use(user: User) -> None:
            nonlocal left, next_kill, killing
            while left > 0:
                left -= 1
                await user.take_turn()
                self._count_turn()
                if left == middle:
                    self._resident.append(self._crew.measure_resident_bytes())
                if self._kill and turns - left >= next_kill and (killing is None or killing.done()):
                    next_kill = turns - left + self._chance.randrange(TURNS_PER_KILL // 2, TURNS_PER_KILL * 3 // 2)
                    killing = asyncio.create_task(self._crew.kill(self._chance))

        await asyncio.gather(*(use(User(session, self._ledger, f"u{n}", seed)) for n in range(USERS)))
        if killing:
            await killing

    async def _settle(self, session: Session) -> None:
        """Wait for follow-up runs, and restore the first configuration and lane."""

        async def idle() -> bool:
            status = await retry(session.status, self._ledger)
            return status.status == "idle" and not status.queued_messages

        while not await idle():  # noqa: ASYNC110 - follow-up runs have no caller
            await asyncio.sleep(0.1)
        await retry(lambda: session.configure(**BASE), self._ledger)
        await retry(lambda: session.switch_context("default", op_id="back"), self._ledger)
        self._ledger.operations["back"] = None

    async def _measure_window(self, session: Session, name: str, turns: int) -> Window:
        control = await self._clew.open(f"control-{name}", **BASE, on_busy="queue")
        window = Window(turns)
        for number in range(turns):
            request_id = f"{name}-{number}"
            text = users.make_plain_message(request_id)
            if number % 2:
                await _time(window.turn.session, self._ask(session, request_id, text))
                await _time(window.turn.control, self._ask(control, request_id, text, control=True))
            else:
                await _time(window.turn.control, self._ask(control, request_id, text, control=True))
                await _time(window.turn.session, self._ask(session, request_id, text))
            for _ in range(STATUS_PER_TURN // 2):
                await _time(window.status.session, session.status())
                await _time(window.status.control, control.status())
                await _time(window.status.control, control.status())
                await _time(window.status.session, session.status())
            self._count_turn()
        return window

    async def _ask(self, session: Session, request_id: str, text: str, *, control: bool = False) -> None:
        outcome = await (await session.message(text, request_id=request_id)).result()
        if not control:
            self._ledger.requests[request_id] = text
            self._ledger.outcomes[request_id] = outcome

    def _count_turn(self) -> None:
        """Count a turn; print problems at once, and progress every 500 turns."""
        self._done += 1
        self._received.clear()
        for problem in self._ledger.problems[self._shown :]:
            print(f"PROBLEM after {self._done} turns: {problem}", file=sys.stderr, flush=True)
        self._shown = len(self._ledger.problems)
        if self._done % 500 == 0:
            rate = self._done / (time.monotonic() - self._begun)
            resident = self._crew.measure_resident_bytes() / 1e6
            print(f"{self._done} turns, {rate:.1f} a second, {resident:.0f} MB, {self._crew.kills} kills",
                  f"{len(self._ledger.problems)} problems", file=sys.stderr, flush=True)  # fmt: skip

    async def _read_thread(self, session: Session, archive: Archive) -> tuple[list[Entry], int, list[str]]:
        """Read all entries. Returns them, how many are only in the archive, and the problems."""
        status = await session.status()
        live = await session.entries(from_seq=status.first_live_seq)
        head = await archive.read_head(session.id)
        old = [entry async for entry in archive.read(head.family, head.root)] if head else []
        problems = []
        known = {entry.seq: entry for entry in old}
        if any(entry != known.get(entry.seq, entry) for entry in live):
            problems.append("the archive and the session have different entries of the same seq")
        entries = [*(entry for entry in old if entry.seq < status.first_live_seq), *live]
        if len(entries) != status.rev:
            problems.append(f"{len(entries)} entries were read, but the session has {status.rev}")
        spent = [entry.recipe.usage for entry in entries if entry.recipe]
        if (status.usage.model_calls, status.usage.input_tokens) != (
            len(spent),
            sum(usage.input_tokens for usage in spent),
        ):
            problems.append(f"the session counts {status.usage}, the thread {len(spent)} calls")
        await session.close()
        head = await archive.read_head(session.id)
        closed = [entry async for entry in archive.read(head.family, head.root)] if head else []
        if closed[: len(entries)] != entries:
            problems.append("the archive of the closed session differs from the entries that were read before")
        return entries, status.first_live_seq, problems


async def _time(times: list[float], work: Awaitable[object]) -> None:
    start = time.perf_counter()
    await work
    times.append(time.perf_counter() - start)


def _check_histories(runs: Sequence[WorkflowRun]) -> list[str]:
    problems = [f"a workflow task of run {run.run_id} failed: {cause}" for run in runs for cause in run.failures]
    largest = max(run.start_size for run in runs)
    return [
        *problems,
        *([f"a workflow run began with {largest} bytes of carried state"] if largest > MAX_CARRIED else []),
    ]


def _check_audit(audited: Audited, runs: int) -> list[str]:
    problems = [f"the audit found: {difference}" for difference in audited.differences]
    if len(audited.runs) != runs:
        problems.append(f"{len(audited.runs)} workflow runs were audited, but there are {runs}")
    if audited.calls.unverified:
        problems.append(f"{len(audited.calls.unverified)} model calls could not be verified")
    return problems


def _check_times(first: Window, last: Window) -> list[str]:
    if first.turns < JUDGED:
        return []
    ratios = {"status": compute_growth(first.status, last.status), "a turn": compute_growth(first.turn, last.turn)}
    return [f"{name} takes {ratio:.2f} times as long" for name, ratio in ratios.items() if ratio >= LIMIT]


def compute_growth(first: Times, last: Times) -> float:
    """Compute how many times slower the session has become, compared with its controls."""
    return last.compute_median_ratio() / first.compute_median_ratio()


def show(report: Report, console: Console) -> None:
    """Print the report."""
    ledger = report.ledger
    table = Table(title="an endless session", show_header=False)
    kinds = ", ".join(f"{count:,} {kind}" for kind, count in report.kinds.most_common())
    for name, value in (
        ("turns", f"{report.turns:,} at {report.turns / report.seconds:.1f} a second"),
        ("runs of the workflow", f"{len(report.runs):,}"),
        ("rollovers", f"{len(report.runs) - 1:,}"),
        ("workers killed", f"{report.kills}"),
        ("entries", f"{report.entries:,}, {report.archived:,} of them in the archive alone"),
        ("of them", kinds),
        (
            "requests, inputs, operations",
            f"{len(ledger.requests):,}, {len(ledger.inputs):,}, {len(ledger.operations):,}",
        ),
        (
            "signals, refusals, repetitions",
            f"{len(ledger.signalled):,}, {len(ledger.refused):,}, {ledger.repeated:,}",
        ),
        ("audited", f"{report.audited.entries:,} entries, {report.audited.calls.verified:,} model calls"),
        ("history, all runs", f"{sum(run.size for run in report.runs):,} bytes"),
        ("events, all runs", f"{sum(run.events for run in report.runs):,}"),
        ("largest state carried", f"{max(run.start_size for run in report.runs):,} bytes"),
        ("worker's memory", " · ".join(f"{size / 1e6:.0f} MB" for size in report.resident)),
    ):
        table.add_row(name, value)
    console.print(table)
    latency = Table(
        "median · p95 in ms", "first session", "first control", "last session", "last control", "grown by"
    )
    first, last = report.windows
    for name in ("status", "turn"):
        before, after = getattr(first, name), getattr(last, name)
        cells = [
            f"{median(times) * 1e3:.1f} · {compute_p95(times) * 1e3:.1f}"
            for times in (before.session, before.control, after.session, after.control)
        ]
        latency.add_row(
            name,
            *cells,
            f"{compute_growth(before, after):.2f} · {after.compute_p95_ratio() / before.compute_p95_ratio():.2f}",
        )
    console.print(latency)
    for error, count in ledger.retried.most_common():
        console.print(f"retried {count} times: {error}", highlight=False, markup=False)
    for problem in report.problems[:50]:
        console.print(f"PROBLEM {problem}", style="red", highlight=False, markup=False)
    console.print(f"{len(report.problems)} problems" if report.problems else "every check holds")


def main(arguments: list[str] | None = None) -> int:
    """Run the benchmark and print its report; return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m bench.endless", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--turns", type=int, default=20_000, help="messages to send (%(default)s)")
    parser.add_argument("--seed", type=int, default=1, help="seed of the random choices (%(default)s)")
    parser.add_argument(
        "--thresholds", choices=tuple(THRESHOLDS), default="low", help="thresholds of rollovers (%(default)s)"
    )
    parser.add_argument("--kill", action="store_true", help="kill workers at random moments")
    add_write_option(parser)
    options = parser.parse_args(arguments)
    with record("endless", options.write) as console:
        report = asyncio.run(run_benchmark(options.turns, options.seed, options.thresholds, options.kill))
        show(report, console)
    return 1 if report.problems else 0


if __name__ == "__main__":
    sys.exit(main())
