"""Measures Clew beside the floor: what a session costs beyond a bare workflow with one update and one activity.

    python -m bench.load                          # all parts, some 20 minutes
    python -m bench.load --quick                  # smaller, some 4 minutes
    python -m bench.load --parts latency load

Both run on one server, each with a worker process of its own, and take turns in short rounds, so that other work on
the machine meets both. What counts are the ratios. A turn is a question and an answer of 0.9 KB each; Clew's context
grows to 6 000 tokens and is streamed from the model's server, the floor sends the question alone. A client of Clew's
reads the answer's text by a query, as the history holds each text once; the floor's update returns it.

`start`    memory and seconds of a worker that has just started; seconds of one `clew status`
`latency`  milliseconds of a turn of one session
`load`     turns a second and the worker's CPU a turn, with many busy sessions
`memory`   memory of a cached session, idle and active
`resume`   the first query of a session on a worker that has just started, by the length of its history
`idle`     many idle sessions on one worker, then a message to each
`growth`   the cost of a turn as a session's history grows

Exit code 1: an aim is missed. Linux alone: it reads /proc.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import resource
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from rich.console import Console

from bench.chain import list_runs
from bench.charts import write_charts
from bench.endless import compute_p95
from bench.floor import ANSWER
from bench.results import Results, Row, show
from bench.systems import System, Turn, run_clew, run_floor
from clew import Clew
from clew.local import Reply, scripted_model, temporal_server

QUESTION = "A question that a user might ask, in so many words. " * 17
PLOT = Path(__file__).parent / "plots" / "load.svg"
RESUMED_AT_ONCE = 3
"""Sessions of each length whose resumption is measured."""
WARM_TURNS = 12
"""Turns after which the context of a session no longer grows."""


@dataclass(frozen=True)
class Sizes:
    """How much is measured.

    Attributes:
        rounds: The rounds of each system.
        seconds: The length of a round under load.
        latency_turns: The turns of one session that are timed.
        busy: The numbers of busy sessions.
        cached: The sessions whose memory is measured.
        lengths: The turns of the sessions that are resumed.
        idle: The number of idle sessions.
        growth: The turns after which a session is measured again.
    """

    rounds: int = 3
    seconds: float = 5.0
    latency_turns: int = 300
    busy: tuple[int, ...] = (1, 10, 50, 200, 1000)
    cached: int = 300
    lengths: tuple[int, ...] = (10, 100, 360)
    idle: int = 10_000
    growth: tuple[int, ...] = (10, 1_000, 10_000)


QUICK = Sizes(2, 3.0, 100, (1, 10, 50), 150, (10, 100), 300, (10, 300))


@dataclass(frozen=True)
class Bench:
    """One server, one scripted model, and how workers are started on them."""

    address: str
    model_url: str
    store: str
    sizes: Sizes
    results: Results

    async def start(self, stack: AsyncExitStack) -> tuple[System, ...]:
        """Start both workers: Clew, the floor, and its two variants."""
        clew = await stack.enter_async_context(run_clew(self.address, self.model_url, self.store))
        return (clew, *await stack.enter_async_context(run_floor(self.address, self.model_url)))

    def add(self, *args: Any, **kwargs: Any) -> None:
        """Add a row, and report it to stderr at once."""
        row = Row(*args, **kwargs)
        self.results.rows.append(row)
        other = "" if row.floor is None else f", the floor {row.floor:,.4g}, ratio {row.ratio:.3g}"
        print(f"{row.name}: {row.clew:,.4g} {row.unit}{other}", file=sys.stderr, flush=True)


async def measure_start(bench: Bench) -> None:
    """Measure a worker that has just started, and a command that asks it."""
    memory: list[list[int]] = [[], []]
    seconds: list[list[float]] = [[], []]
    asking: list[list[float]] = [[], []]
    for number in range(bench.sizes.rounds):
        async with AsyncExitStack() as stack:
            systems = (await bench.start(stack))[:2]
            await asyncio.sleep(1)
            for index, system in enumerate(systems):
                memory[index].append(system.process.measure_memory())
                seconds[index].append(system.process.start_seconds)
                await system.list_turns(f"asked-{number}", 1)
            for _ in range(bench.sizes.rounds):
                name = f"asked-{number}-0"
                asking[0].append(await _time(_run(bench, "clew.cli", "status", f"clew-{name}")))
                asking[1].append(await _time(_run(bench, "bench.floor", "query", f"floor-{name}")))
    mega = [median(values) / 1e6 for values in memory]
    bench.add("memory of a worker at its start", *mega, "MB", most=130, is_absolute=True)
    bench.add("start of a worker", *(median(values) for values in seconds), "s")
    bench.add("`clew status`, the process included", *(median(values) for values in asking), "s")


async def measure_latency(bench: Bench) -> None:
    """Measure the turns of one session, one at a time, with the systems in turn."""
    async with AsyncExitStack() as stack:
        systems = await bench.start(stack)
        turns = [(await system.list_turns("latency", 1))[0] for system in systems]
        session = await (await Clew.connect(bench.address)).open("clew-latency-0")

        async def settle(text: str) -> None:
            await (await session.message(text)).result()

        turns.append(settle)
        for turn in turns:
            for _ in range(WARM_TURNS):
                await turn(QUESTION)
        times: list[list[float]] = [[] for _ in turns]
        for number in range(bench.sizes.latency_turns):
            for index in _rotate(range(len(turns)), number):
                times[index].append(await _time(turns[index](QUESTION)) * 1e3)
        own, floor, silent, apart, settled = times
        bench.add("latency, p50", median(own), median(floor), "ms", most=1.15)
        bench.add("latency, p95", compute_p95(own), compute_p95(floor), "ms")
        bench.add("latency until the outcome, its text unread", median(settled), median(floor), "ms")
        bench.add("latency, p50, of a floor without a model", median(own), median(silent), "ms")
        bench.add("latency, p50, of a floor with two task queues", median(own), median(apart), "ms")


async def measure_load(bench: Bench) -> None:
    """Measure turns a second and CPU a turn, with many busy sessions."""
    sizes = bench.sizes
    least, throughput, cpu = {10: 0.95, 200: 0.9}, list[float](), list[float]()
    async with AsyncExitStack() as stack:
        systems = (await bench.start(stack))[:2]
        for count in sizes.busy:
            turns = [await system.list_turns("busy", count) for system in systems]
            rates: list[list[float]] = [[], []]
            costs: list[list[float]] = [[], []]
            for number in range(sizes.rounds):
                for index in _rotate(range(2), number):
                    process = systems[index].process
                    before = process.measure_cpu()
                    done, seconds = await _keep_busy(turns[index], sizes.seconds)
                    rates[index].append(done / seconds)
                    costs[index].append((process.measure_cpu() - before) / done * 1e3)
            (own, floor), (paid, price) = map(median, rates), map(median, costs)
            bench.add(f"throughput, {count} sessions", own, floor, "turns/s", least=least.get(count))
            bench.add(f"worker CPU, {count} sessions", paid, price, "ms/turn", most=1.3)
            throughput.append(own / floor)
            cpu.append(paid / price)
    series = {"throughput": throughput, "CPU": cpu}
    bench.results.chart("Clew / floor, by busy sessions", sizes.busy, series, throughput=0.95, CPU=1.3)


async def measure_memory(bench: Bench) -> None:
    """Measure the memory of cached sessions, idle and active."""
    idle, active = list[float](), list[float]()
    count = bench.sizes.cached
    async with AsyncExitStack() as stack:
        for system in (await bench.start(stack))[:2]:
            # The first sessions fill the pools of the process itself.
            await _keep_busy(await system.list_turns("warm", 30), bench.sizes.seconds)
            before = system.process.measure_memory()
            turns = await system.list_turns("cached", count)
            idle.append((system.process.measure_memory() - before) / count / 1e3)
            busy = asyncio.create_task(_keep_busy(turns, bench.sizes.seconds))
            peak = before
            while not busy.done():
                peak = max(peak, system.process.measure_memory())
                await asyncio.sleep(0.1)
            active.append((peak - before) / count / 1e3)
    bench.add("memory of a cached idle session", *idle, "KB", most=40, is_absolute=True)
    bench.add("memory of an active session, at its peak", *active, "KB")


async def measure_resumption(bench: Bench) -> None:
    """Measure the first query of sessions of several lengths on new workers."""
    own, floors = list[float](), list[float]()
    lengths = bench.sizes.lengths
    names = {length: [f"long-{length}-{number}" for number in range(RESUMED_AT_ONCE)] for length in lengths}
    queries = {"clew": "status", "floor": "count_turns"}
    async with AsyncExitStack() as stack:
        for system in (await bench.start(stack))[:2]:
            await asyncio.gather(
                *(_take_turns(system, f"{name}", length) for length in names for name in names[length])
            )
    async with AsyncExitStack() as stack:
        systems = (await bench.start(stack))[:2]
        for system in systems:
            await system.list_turns("first", 3)
        for length in lengths:
            times: dict[str, list[float]] = {"clew": [], "floor": []}
            events = 0
            for name in names[length]:
                for system in systems:
                    handle = system.get_handle(f"{name}-0")
                    times[system.name].append(await _time(handle.query(queries[system.name])) * 1e3)
                events = (await systems[0].get_handle(f"{name}-0").describe()).history_length
            own.append(median(times["clew"]))
            floors.append(median(times["floor"]))
            most = 500 if events >= 3_500 else None
            bench.add(
                f"cold resume after {length} turns, {events:,} events",
                *(own[-1], floors[-1], "ms"),
                most=most,
                is_absolute=True,
            )
    bench.results.chart("Cold resume in ms, by turns", lengths, {"Clew": own, "floor": floors})


async def measure_idle(bench: Bench) -> None:
    """Measure a worker that has more idle sessions than its cache has room for, then a message to each."""
    count = bench.sizes.idle
    opened, answered, memory = list[float](), list[float](), list[float]()
    async with AsyncExitStack() as stack:
        for system in (await bench.start(stack))[:2]:
            begun = time.perf_counter()
            turns = await system.list_turns("idle", count)
            opened.append(count / (time.perf_counter() - begun))
            memory.append(system.process.measure_memory() / 1e6)
            gate = asyncio.Semaphore(16)

            async def send(turn: Turn, gate: asyncio.Semaphore = gate) -> None:
                async with gate:
                    await turn(QUESTION)

            begun = time.perf_counter()
            await asyncio.gather(*map(send, turns))
            answered.append(count / (time.perf_counter() - begun))
    bench.add(f"{count:,} sessions opened, with a first turn", *opened, "a second")
    bench.add(f"memory of a worker with {count:,} idle sessions", *memory, "MB")
    bench.add(f"a message to each of {count:,} idle sessions", *answered, "a second")


async def measure_growth(bench: Bench) -> None:
    """Measure the turns of one growing session, each beside those of a new workflow of the floor."""
    latency, cpu, size = list[float](), list[float](), list[float]()
    block = 20
    async with AsyncExitStack() as stack:
        systems = (await bench.start(stack))[:2]
        taken = 0
        [grown] = await systems[0].list_turns("grown", 1)
        for goal in bench.sizes.growth:
            for _ in range(max(goal, WARM_TURNS) - taken):
                await grown("And what of the next one?")
            [beside] = await systems[1].list_turns(f"beside-{goal}", 1)
            times: list[list[float]] = [[], []]
            costs: list[list[float]] = [[], []]
            before = sum(run.size for run in await list_runs(systems[0].client, "clew-grown-0"))
            # Only small questions: the context is the same at each goal.
            for number in range(2 * bench.sizes.rounds):
                for index in _rotate(range(2), number):
                    process, turn = systems[index].process, (grown, beside)[index]
                    spent = process.measure_cpu()
                    times[index] += [await _time(turn("And what of the next one?")) for _ in range(block)]
                    costs[index].append(process.measure_cpu() - spent)
            after = sum(run.size for run in await list_runs(systems[0].client, "clew-grown-0"))
            turns = 2 * bench.sizes.rounds * block
            taken = max(goal, WARM_TURNS) + turns
            latency.append(median(times[0]) / median(times[1]))
            cpu.append(sum(costs[0]) / sum(costs[1]))
            size.append((after - before) / turns)
            bench.add(f"turn {goal:,}: latency", median(times[0]) * 1e3, median(times[1]) * 1e3, "ms")
            bench.add(f"turn {goal:,}: worker CPU", *(sum(cost) / turns * 1e3 for cost in costs), "ms")
            bench.add(f"turn {goal:,}: history", size[-1], None, "bytes")
    grown_by = {"latency": latency, "CPU": cpu, "history": size}
    for name, values in grown_by.items():
        bench.add(f"growth of a turn's {name}, last / first", values[-1] / values[0], None, "times", most=1.1)
    shares = {name: [value / values[0] for value in values] for name, values in grown_by.items()}
    bench.results.chart("A turn's cost as a session grows, first = 1", bench.sizes.growth, shares)


PARTS: dict[str, Callable[[Bench], Awaitable[None]]] = {
    "start": measure_start,
    "latency": measure_latency,
    "load": measure_load,
    "memory": measure_memory,
    "resume": measure_resumption,
    "idle": measure_idle,
    "growth": measure_growth,
}


def _rotate(order: range, number: int) -> list[int]:
    """Let another system be first in each round."""
    first = number % len(order)
    return [*order[first:], *order[:first]]


async def _time(work: Awaitable[object]) -> float:
    begun = time.perf_counter()
    await work
    return time.perf_counter() - begun


async def _run(bench: Bench, module: str, *arguments: str) -> None:
    """Run a command of Python to its end."""
    env = {**os.environ, "TEMPORAL_ADDRESS": bench.address}
    null = asyncio.subprocess.DEVNULL
    process = await asyncio.create_subprocess_exec(sys.executable, "-m", module, *arguments, env=env, stdout=null)
    if await process.wait():
        raise RuntimeError(f"{module} {arguments} ended with {process.returncode}")


async def _take_turns(system: System, name: str, count: int) -> None:
    [turn] = await system.list_turns(name, 1)
    for _ in range(count - 1):
        await turn(QUESTION)


async def _keep_busy(turns: Sequence[Turn], seconds: float) -> tuple[int, float]:
    """Keep all sessions busy; return the turns that ended, and the seconds until the last one did."""
    begun, done = time.perf_counter(), 0

    async def ask(turn: Turn) -> None:
        nonlocal done
        while time.perf_counter() - begun < seconds:
            await turn(QUESTION)
            done += 1

    await asyncio.gather(*map(ask, turns))
    return done, time.perf_counter() - begun


async def measure(parts: Sequence[str], sizes: Sizes) -> Results:
    """Measure some parts, each on a server of its own."""
    results = Results()
    for part in parts:
        begun = time.monotonic()
        with tempfile.TemporaryDirectory(prefix="clew-load-", ignore_cleanup_errors=True) as store:
            async with temporal_server(ui=False) as server, scripted_model(lambda _body: Reply(ANSWER)) as model:
                # The bodies of all requests would fill the memory.
                keep_few = asyncio.create_task(_forget(model.requests))
                await PARTS[part](Bench(server.address, model.base_url, store, sizes, results))
                keep_few.cancel()
        print(f"part {part}: {time.monotonic() - begun:.0f} s", file=sys.stderr, flush=True)
    return results


async def _forget(requests: list[dict[str, Any]]) -> None:
    while True:
        await asyncio.sleep(0.5)
        requests.clear()


def main(arguments: list[str] | None = None) -> int:
    """Measure, print and plot; return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m bench.load", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--parts", nargs="+", choices=tuple(PARTS), default=tuple(PARTS), help="(all)")
    parser.add_argument("--quick", action="store_true", help="measure less")
    parser.add_argument("--plot", type=Path, default=None, help=f"SVG file to write (of all parts: {PLOT})")
    options = parser.parse_args(arguments)
    begun = time.monotonic()
    results = asyncio.run(measure(options.parts, QUICK if options.quick else Sizes()))
    reached = show(results, Console())
    is_complete = len(options.parts) == len(PARTS) and not options.quick
    if results.charts and (path := options.plot or (PLOT if is_complete else None)):
        write_charts(path, results.charts)
        print(f"plot: {path}")
    used = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3
    print(f"This took {time.monotonic() - begun:.0f} s; the bench itself used {used:.0f} MB.")
    return 0 if reached else 1


if __name__ == "__main__":
    sys.exit(main())
