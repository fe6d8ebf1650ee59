"""Measures Clew beside the floor: what a session costs beyond a bare workflow with one update and one activity.

    python -m bench.load                          # all parts, some 35 minutes
    python -m bench.load --quick                  # smaller, some 4 minutes
    python -m bench.load --parts latency load
    python -m bench.load --quick --cluster        # on the local cluster instead of the development server

Both run on one server, each with a worker process of its own, and take turns in short rounds, so that other work on
the machine meets both. What counts are the ratios. A turn is a question and an answer of 0.9 KB each; Clew's context
grows to 6 000 tokens and is streamed from the model's server, the floor sends the question alone. A client of Clew's
reads the answer's text after the outcome, as the history holds each text once; the floor's update returns it. What
the least agent (`bench.least_agent`) reaches is the best that is possible: the floor with an agent's duties. As all
share one machine, a worker that takes all the CPU that it may leaves room for a number of turns, and more are not
possible either. Possible at the start is the floor's memory with the packages that Clew stands on: pydantic,
jsonschema-rs, obstore, and tiktoken with its vocabulary.

`start`    memory and seconds of a worker that has just started; seconds of one `clew status`
`latency`  milliseconds of a turn of one session
`load`     turns a second, and the CPU a turn of the worker and of the rest (server, model, callers), with many
           busy sessions: where they saturate a machine that they share, the sum decides the throughput
`memory`   memory of a cached session, idle and active
`resume`   the first query of a session on a worker that has just started, by the length of its history
`return`   a message to each of many sessions at once, on a worker that has just started and has none of them cached
`idle`     many idle sessions on one worker, then a message to each
`growth`   the cost of a turn as a session's history grows, and the bytes of a whole workflow run by its turns; the
           longest are copies of a session that was served, with its last turn repeated

Exit code 1: an aim is missed that can be reached. Linux alone: it reads /proc.
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
from contextlib import AsyncExitStack, suppress
from pathlib import Path
from statistics import median
from typing import Any
from unittest.mock import patch

from temporalio.client import Client

from bench.beside import QUESTION, QUICK, WARM_TURNS, Bench, Sizes, keep_busy, rotate, take_time
from bench.chain import list_runs
from bench.charts import write_charts
from bench.endless import compute_p95
from bench.floor import ANSWER, CACHED
from bench.load_results import Results, show
from bench.long_thread import copy_and_lengthen
from bench.recording import add_write_option, record
from bench.systems import Servers, System, Turn
from clew import Clew
from clew.local import Reply, scripted_model, temporal_server
from deploy.local_cluster import local_cluster

PLOT = Path(__file__).parent / "plots" / "load.svg"
SMALL_QUESTION = "And what of the next one?"
"""A growing session is asked this alone: its context is the same at each length."""
BLOCK = 20
"""Turns of one session in a row."""
MOST_CPU = 1.3
"""The aim: most of the floor's CPU that a worker takes for a turn."""
MOST_RETURN_SECONDS = 50
"""The most seconds that are waited until all sessions have answered."""
RESUMED_AT_ONCE = 3
"""Sessions of each length whose resumption is measured."""


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
                asking[0].append(await take_time(_run(bench, "clew.cli", "status", f"clew-{name}")))
                asking[1].append(await take_time(_run(bench, "bench.floor", "query", f"floor-{name}")))
    own, least = (median(values) / 1e6 for values in memory)
    reach = least + int(await _run(bench, "bench.floor", "packages")) / 1e6
    bench.add("memory of a worker at its start", own, least, "MB", most=130, is_absolute=True, reach=reach)
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
            for index in rotate(range(len(turns)), number):
                times[index].append(await take_time(turns[index](QUESTION)) * 1e3)
        own, floor, agent, silent, apart, settled = times
        bench.add("latency, p50", median(own), median(floor), "ms", most=1.15, reach=median(agent))
        bench.add("latency, p95", compute_p95(own), compute_p95(floor), "ms")
        bench.add("latency until the outcome, its text unread", median(settled), median(floor), "ms")
        bench.add("latency, p50, of a floor without a model", median(own), median(silent), "ms")
        bench.add("latency, p50, of a floor with two task queues", median(own), median(apart), "ms")


async def measure_load(bench: Bench) -> None:
    """Measure turns a second and CPU a turn, with many busy sessions."""
    sizes = bench.sizes
    least, throughput, cpu = {10: 0.95, 200: 0.9}, list[float](), list[float]()
    async with AsyncExitStack() as stack:
        systems = (await bench.start(stack, floor_cache=2 * max(*sizes.busy, CACHED)))[:3]
        for count in sizes.busy:
            turns = [await system.list_turns("busy", count) for system in systems]
            rates: list[list[float]] = [[], [], []]
            costs: list[list[float]] = [[], [], []]
            others: list[list[float]] = [[], [], []]
            for number in range(2 * sizes.rounds):
                for index in rotate(range(3), number):
                    before = bench.measure_cpu(systems[index].process)
                    done, seconds = await keep_busy(turns[index], sizes.seconds)
                    after = bench.measure_cpu(systems[index].process)
                    rates[index].append(done / seconds)
                    costs[index].append((after[0] - before[0]) / done * 1e3)
                    others[index].append((after[1] - before[1]) / done * 1e3)
            (own, floor, agent), (paid, price, cost), (rest, least_rest, rest_agent) = (
                tuple(map(median, values)) for values in (rates, costs, others)
            )
            # On a machine that all share, the worker's CPU is missing elsewhere.
            shared = floor * (price + least_rest) / (MOST_CPU * price + least_rest)
            reach = min(agent, shared)
            bench.add(f"throughput, {count} sessions", own, floor, "turns/s", least=least.get(count), reach=reach)
            bench.add(f"throughput, {count} sessions, beside the least agent", own, agent, "turns/s")
            bench.add(f"worker CPU, {count} sessions", paid, price, "ms/turn", most=MOST_CPU, reach=cost)
            bench.add(f"other CPU, {count} sessions", rest, least_rest, "ms/turn", reach=rest_agent)
            throughput.append(own / floor)
            cpu.append(paid / price)
    series = {"throughput": throughput, "CPU": cpu}
    bench.results.chart("Clew / floor, by busy sessions", sizes.busy, series, throughput=0.95, CPU=MOST_CPU)


async def measure_memory(bench: Bench) -> None:
    """Measure the memory of cached sessions, idle and active."""
    idle, active = list[float](), list[float]()
    count = bench.sizes.cached
    async with AsyncExitStack() as stack:
        for system in (await bench.start(stack))[:3]:
            # The first sessions fill the pools of the process itself.
            await keep_busy(await system.list_turns("warm", 30), bench.sizes.seconds)
            before = system.process.measure_memory()
            turns = await system.list_turns("cached", count)
            idle.append((system.process.measure_memory() - before) / count / 1e3)
            busy = asyncio.create_task(keep_busy(turns, bench.sizes.seconds))
            peak = before
            while not busy.done():
                peak = max(peak, system.process.measure_memory())
                await asyncio.sleep(0.1)
            active.append((peak - before) / count / 1e3)
    bench.add("memory of a cached idle session", *idle[:2], "KB", most=40, is_absolute=True, reach=idle[2])
    bench.add("memory of an active session, at its peak", *active[:2], "KB", reach=active[2])


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
            for name in names[length]:
                for system in systems:
                    handle = system.get_handle(f"{name}-0")
                    times[system.name].append(await take_time(handle.query(queries[system.name])) * 1e3)
            own.append(median(times["clew"]))
            floors.append(median(times["floor"]))
            runs = [run.events for run in await list_runs(systems[0].client, f"clew-{names[length][-1]}-0")]
            bench.add(
                f"cold resume after {length} turns, {sum(runs):,} events, {runs[-1]:,} in the newest run",
                *(own[-1], floors[-1], "ms"),
                most=500,
                is_absolute=True,
            )
    bench.results.chart("Cold resume in ms, by turns", lengths, {"Clew": own, "floor": floors})


async def measure_return(bench: Bench) -> None:
    """Measure a message to each of many sessions at once, on new workers."""
    count, turns = bench.sizes.returned
    seconds = list[float]()
    async with AsyncExitStack() as stack:
        systems = (await bench.start(stack))[:2]
        for system in systems:
            await asyncio.gather(*(_take_turns(system, f"back-{number}", turns) for number in range(count)))
    async with AsyncExitStack() as stack:
        await bench.start(stack)
        for system in systems:
            begun = time.perf_counter()
            with suppress(TimeoutError):
                async with asyncio.timeout(MOST_RETURN_SECONDS):
                    await asyncio.gather(*(turn(QUESTION) for turn in system.sessions.values()))
            seconds.append(time.perf_counter() - begun)
    name = f"{count} sessions of {turns} turns, resumed at once, until all have answered"
    bench.add(f"{name} ({MOST_RETURN_SECONDS}: given up)", *seconds, "s")


async def measure_idle(bench: Bench) -> None:
    """Measure a worker that has more idle sessions than its cache has room for, then a message to each."""
    count = bench.sizes.idle
    opened, answered, memory = list[float](), list[float](), list[float]()
    first: dict[str, list[float]] = {"worker CPU": [], "other CPU": []}
    cold: dict[str, list[float]] = {"worker CPU": [], "other CPU": []}

    def note(costs: dict[str, list[float]], before: tuple[float, float], after: tuple[float, float]) -> None:
        for name, begun, ended in zip(costs, before, after, strict=True):
            costs[name].append((ended - begun) / count * 1e3)

    async with AsyncExitStack() as stack:
        for system in (await bench.start(stack))[:2]:
            begun, before = time.perf_counter(), bench.measure_cpu(system.process)
            turns = await system.list_turns("idle", count)
            opened.append(count / (time.perf_counter() - begun))
            note(first, before, bench.measure_cpu(system.process))
            memory.append(system.process.measure_memory() / 1e6)
            gate = asyncio.Semaphore(16)

            async def send(turn: Turn, gate: asyncio.Semaphore = gate) -> None:
                async with gate:
                    await turn(QUESTION)

            begun, before = time.perf_counter(), bench.measure_cpu(system.process)
            await asyncio.gather(*map(send, turns))
            answered.append(count / (time.perf_counter() - begun))
            note(cold, before, bench.measure_cpu(system.process))
    bench.add(f"{count:,} sessions opened, with a first turn", *opened, "a second")
    for name, values in first.items():
        bench.add(f"{name}, opened with a first turn", *values, "ms/session")
    bench.add(f"memory of a worker with {count:,} idle sessions", *memory, "MB")
    bench.add(f"a message to each of {count:,} idle sessions", *answered, "a second")
    for name, values in cold.items():
        bench.add(f"{name}, a message to an idle session", *values, "ms/turn")


async def measure_growth(bench: Bench) -> None:
    """Measure the turns of a growing session, and of longer copies of it, beside a new workflow of the floor."""
    latency, cpu, size = list[float](), list[float](), list[float]()
    async with AsyncExitStack() as stack:
        own, floor, *_ = await bench.start(stack)
        [grown] = await own.list_turns("grown", 1)
        for goal in (*bench.sizes.growth, *bench.sizes.copied):
            name, turn = "clew-grown-0", grown
            if goal in bench.sizes.copied:
                name = f"clew-copied-{goal}"
                await copy_and_lengthen(own.client, bench.store, "clew-grown-0", name, goal - 1)
                turn = (await Clew(own.client).open(name)).ask
            else:
                taken = sum(run.updates for run in await list_runs(own.client, name))
                for _ in range(max(goal, WARM_TURNS) - 1 - taken):
                    await grown(SMALL_QUESTION)
            [beside] = await floor.list_turns(f"beside-{goal}", 1)
            for each in (turn, beside):
                # A copy is read from the archive by its first turn.
                await each(SMALL_QUESTION)
            times: list[list[float]] = [[], []]
            costs: list[list[float]] = [[], []]
            begun = len(await list_runs(own.client, name)) - 1
            for number in range(2 * bench.sizes.rounds):
                for index in rotate(range(2), number):
                    process, each = (own, floor)[index].process, (turn, beside)[index]
                    spent = process.measure_cpu()
                    times[index] += [await take_time(each(SMALL_QUESTION)) for _ in range(BLOCK)]
                    costs[index].append(process.measure_cpu() - spent)
            turns = 2 * bench.sizes.rounds * BLOCK
            latency.append(median(times[0]) / median(times[1]))
            cpu.append(sum(costs[0]) / sum(costs[1]))
            # The first run of a copy fetches it from the archive, once.
            size.append(await _measure_history(own.client, name, begun + (goal in bench.sizes.copied), turn))
            bench.add(f"turn {goal:,}: latency", median(times[0]) * 1e3, median(times[1]) * 1e3, "ms")
            bench.add(f"turn {goal:,}: worker CPU", *(sum(cost) / turns * 1e3 for cost in costs), "ms")
            bench.add(f"turn {goal:,}: history", size[-1], None, "bytes")
    goals = (*bench.sizes.growth, *bench.sizes.copied)
    grown_by = {"latency": latency, "CPU": cpu, "history": size}
    for name, values in grown_by.items():
        bench.add(f"growth of a turn's {name}, last / first", values[-1] / values[0], None, "times", most=1.1)
    shares = {name: [value / values[0] for value in values] for name, values in grown_by.items()}
    bench.results.chart("A turn's cost as a session grows, first = 1", goals, shares)


PARTS: dict[str, Callable[[Bench], Awaitable[None]]] = {
    "start": measure_start,
    "latency": measure_latency,
    "load": measure_load,
    "memory": measure_memory,
    "resume": measure_resumption,
    "return": measure_return,
    "idle": measure_idle,
    "growth": measure_growth,
}


async def _run(bench: Bench, module: str, *arguments: str) -> str:
    """Run a command of Python to its end, and return what it prints."""
    env = {**os.environ, "TEMPORAL_ADDRESS": bench.address}
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(sys.executable, "-m", module, *arguments, env=env, stdout=pipe)
    printed, _ = await process.communicate()
    if process.returncode:
        raise RuntimeError(f"{module} {arguments} ended with {process.returncode}")
    return printed.decode()


async def _measure_history(client: Client, name: str, number: int, turn: Turn) -> float:
    """Take turns until a workflow run of a session has ended; return its bytes a turn, with what it hands over."""
    while len(runs := await list_runs(client, name)) < number + 2:
        for _ in range(BLOCK):
            await turn(SMALL_QUESTION)
    run, after = runs[number : number + 2]
    return (run.size - run.start_size + after.start_size) / run.updates


async def _take_turns(system: System, name: str, count: int) -> None:
    [turn] = await system.list_turns(name, 1)
    for _ in range(count - 1):
        await turn(QUESTION)


async def measure(parts: Sequence[str], sizes: Sizes, *, on_cluster: bool = False) -> Results:
    """Measure some parts, each on a server of its own."""
    results = Results()
    for part in parts:
        begun = time.monotonic()
        async with AsyncExitStack() as stack:
            address, servers, store = await (start_cluster if on_cluster else start_server)(stack)
            model = await stack.enter_async_context(scripted_model(lambda _body: Reply(ANSWER)))
            # The bodies of all requests would fill the memory.
            keep_few = asyncio.create_task(_forget(model.requests))
            await PARTS[part](Bench(address, servers, model.base_url, store, sizes, results))
            keep_few.cancel()
        print(f"part {part}: {time.monotonic() - begun:.0f} s", file=sys.stderr, flush=True)
    return results


async def start_server(stack: AsyncExitStack) -> tuple[str, Servers, str]:
    """Start the development server. Returns its address, its process and the URL of a store in a folder."""
    folder = tempfile.TemporaryDirectory(prefix="clew-load-", ignore_cleanup_errors=True)
    store = Path(stack.enter_context(folder)).as_uri()
    server = await stack.enter_async_context(temporal_server(ui=False))
    return server.address, Servers((server.pid,)), store


async def start_cluster(stack: AsyncExitStack) -> tuple[str, Servers, str]:
    """Start the local cluster without workers. Returns its address, its processes and the URL of its store."""
    cluster = await stack.enter_async_context(local_cluster(parts=()))
    stack.enter_context(patch.dict(os.environ, cluster.store_settings))
    return cluster.server.address, Servers(tuple(one.pid for one in cluster.servers.values())), cluster.server.store


async def _forget(requests: list[dict[str, Any]]) -> None:
    while True:
        await asyncio.sleep(0.5)
        requests.clear()


def main(arguments: list[str] | None = None) -> int:
    """Measure, print and plot; return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m bench.load", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--parts", nargs="+", choices=tuple(PARTS), default=tuple(PARTS), help="(all)")
    parser.add_argument("--quick", action="store_true", help="measure less")
    parser.add_argument("--cluster", action="store_true", help="measure on the local cluster")
    parser.add_argument("--plot", type=Path, default=None, help=f"SVG file to write (of all parts: {PLOT})")
    add_write_option(parser)
    options = parser.parse_args(arguments)
    begun = time.monotonic()
    sizes = QUICK if options.quick else Sizes()
    words = [word for word in ("quick", "cluster") if getattr(options, word)]
    parts = [] if len(options.parts) == len(PARTS) else options.parts
    name = "-".join(["load", *words, *parts])
    with record(name, options.write) as console:
        results = asyncio.run(measure(options.parts, sizes, on_cluster=options.cluster))
        reached = show(results, console)
    is_complete = len(options.parts) == len(PARTS) and not (options.quick or options.cluster)
    if results.charts and (path := options.plot or (PLOT if is_complete else None)):
        write_charts(path, results.charts)
        print(f"plot: {path}")
    used = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3
    print(f"This took {time.monotonic() - begun:.0f} s; the bench itself used {used:.0f} MB.")
    return 0 if reached else 1


if __name__ == "__main__":
    sys.exit(main())
