"""Run rounds of chaos, and shrink the plan of one that breaks a promise.

    python -m tests.chaos [--seed 1] [--minutes 10] [--round-minutes 5] [--server cluster] [--without-clocks]
                          [--plan FILE]

Each round has a seed of its own, counted up from `--seed`, and servers and workers of its own on loopback. At the
first broken promise the plan is shrunk: kinds of actions are left out and halves dropped while a promise of the same
kind breaks. Processes are not deterministic, so each candidate has several tries, and the smallest plan may not fail
every time. `--plan` carries out a plan from a file. With `--break` a mechanism is broken on purpose: the run succeeds
if its first round notices it. Clocks need Debian's libfaketime; `--without-clocks` is a run in which none jumps.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import tempfile
import time
from argparse import Namespace
from pathlib import Path

from rich.console import Console
from rich.table import Table

from tests.chaos.breaks import BREAKS
from tests.chaos.inspection import Figures
from tests.chaos.plan import CLOCK, Plan, make_plan, shrink
from tests.chaos.processes import NO_CLOCKS, SERVERS, find_faketime
from tests.chaos.round import Result, run_round

TRIES = 3
"""Tries of each candidate."""


async def run_rounds(options: Namespace, console: Console) -> tuple[int, Result | None]:
    """Run rounds until the time is over or a promise is broken; returns the number of rounds and the broken one."""
    seed, minutes, round_minutes = options.seed, options.minutes, options.round_minutes
    give_up_at, figures, number = time.monotonic() + 60 * minutes, Figures(), 0
    broken: Result | None = None
    while broken is None and (left := give_up_at - time.monotonic()) > 0:
        console.print(f"seed {seed + number} begins", highlight=False)
        plan = make_plan(seed + number, min(60 * round_minutes, left), clocks=not options.without_clocks)
        result = await run_round(plan, options.server)
        number += 1
        figures.add(result.figures)
        console.print(f"seed {result.plan.seed}: {len(result.violations)} violations", highlight=False)
        if result.violations:
            broken = result
    show(figures, console)
    return number, broken


def show(figures: Figures, console: Console) -> None:
    """Print the figures."""
    table = Table(title="chaos", show_header=False)
    for name, count in sorted(figures.counts.items()):
        table.add_row(name, f"{count:,}")
    console.print(table)
    for error, count in figures.errors.most_common(25):
        console.print(f"{count:4} times: {error}", highlight=False, markup=False)


def save(plan: Plan) -> Path:
    """Write a plan to a file; returns its path."""
    path = Path(tempfile.gettempdir(), f"clew-chaos-{plan.seed}.json")
    path.write_text(plan.dump())
    return path


def show_violations(result: Result, console: Console) -> None:
    """Print what was broken."""
    for violation in result.violations[:50]:
        console.print(str(violation), style="red", highlight=False, markup=False)


async def explain(broken: Result, options: Namespace, console: Console) -> None:
    """Print what was broken, and shrink the plan."""
    show_violations(broken, console)
    kinds = {violation.kind for violation in broken.violations}

    async def breaks(plan: Plan) -> bool:
        for _ in range(TRIES):
            if kinds & {violation.kind for violation in (await run_round(plan, options.server)).violations}:
                return True
        return False

    smallest = await shrink(broken.plan, breaks, 60 * options.shrink_minutes)
    path = save(smallest)
    console.print(f"{len(smallest.actions)} of {len(broken.plan.actions)} actions are left; again:", highlight=False)
    console.print(f"    python -m tests.chaos --plan {path} --server {options.server}", highlight=False)


def main(arguments: list[str] | None = None) -> int:
    """Run the rounds; return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m tests.chaos", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--seed", type=int, default=1, help="seed of the first round (%(default)s)")
    parser.add_argument("--minutes", type=float, default=10, help="minutes of all rounds (%(default)s)")
    parser.add_argument("--round-minutes", type=float, default=5, help="minutes of a round (%(default)s)")
    parser.add_argument("--plan", type=Path, help="carry out the plan in this file, once")
    parser.add_argument(
        "--shrink-minutes", type=float, default=15, help="minutes of shrinking the plan of a failure (%(default)s)"
    )
    parser.add_argument("--server", choices=SERVERS, default="development", help="the server (%(default)s)")
    parser.add_argument(
        "--break", dest="breaks", choices=BREAKS, action="append", default=[], help="break a mechanism"
    )
    parser.add_argument("--without-clocks", action="store_true", help="let no clock jump: it needs no libfaketime")
    options = parser.parse_args(arguments)
    console = Console()
    plan = Plan.load(options.plan.read_text()) if options.plan else None
    if find_faketime() is None and (CLOCK in plan.families if plan else not options.without_clocks):
        parser.error(NO_CLOCKS)

    async def run() -> int:
        if plan or options.breaks:
            seconds = 60 * min(options.minutes, options.round_minutes)
            carried_out = plan or make_plan(options.seed, seconds, clocks=not options.without_clocks)
            result = await run_round(carried_out, options.server, options.breaks)
            show(result.figures, console)
            show_violations(result, console)
            return bool(result.violations) != bool(options.breaks)
        rounds, broken = await run_rounds(options, console)
        if broken is None:
            kept = "every promise was kept" + (", but no clock has jumped" if options.without_clocks else "")
            console.print(f"{rounds} rounds from seed {options.seed}: {kept}", highlight=False)
        else:
            await explain(broken, options, console)
        return broken is not None

    return asyncio.run(run())


if __name__ == "__main__":
    sys.exit(main())
