"""Compares Clew's speed with that of a fixed old commit: both beside the floor, each the best of three runs.

    python -m bench.ratios                              # compare with ratios.json; some 4 minutes
    python -m bench.ratios --write bench/ratios.json    # in a checkout of the commit to compare with

Small losses add up unseen if each change is compared with the one before. So the file stays that of one commit until
someone decides otherwise. A ratio to the floor says much the same on each machine, and not the same: `CPU_NOISE` and
`NOISE` are left to that, and to what else the machine does.

Exit code 1: Clew is slower than that commit, beyond the noise.
"""

from __future__ import annotations

import argparse
import asyncio
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from pydantic import BaseModel
from rich.console import Console
from rich.table import Table

from bench.beside import Sizes
from bench.load import measure
from bench.load_results import Results

FILE = Path(__file__).parent / "ratios.json"
RUNS = 3
SIZES = Sizes(rounds=1, seconds=3.0, latency_turns=60, busy=(1, 10, 50))
CPU = "worker CPU"
"""How the names of rows begin that depend little on what else the machine does."""
CPU_NOISE = 1.25
"""By how much the best of three runs of such a row may be worse without being so."""
NOISE = 1.5
"""The same of the other rows."""
HIGHER_IS_BETTER = "throughput"
"""How the names of rows begin whose ratios are better if they are higher."""
LEFT_OUT = ("other CPU", "latency until", "latency, p50, of", "beside the least agent")
"""What the names of rows contain that say nothing of a turn's cost to its worker and its caller."""


class Ratios(BaseModel):
    """The ratios of a commit.

    Attributes:
        commit: The commit.
        ratios: Clew's value divided by the floor's, by the name of the row.
    """

    commit: str
    ratios: dict[str, float]


def list_ratios(results: Results) -> dict[str, float]:
    """List the ratios of a run that are compared."""
    return {
        row.name: row.ratio
        for row in results.rows
        if row.ratio is not None and not any(part in row.name for part in LEFT_OUT)
    }


def choose_best(runs: list[dict[str, float]]) -> dict[str, float]:
    """Choose the best ratio of each row."""
    return {
        name: (max if name.startswith(HIGHER_IS_BETTER) else min)(run[name] for run in runs if name in run)
        for name in runs[0]
    }


def compute_loss(name: str, now: float, before: float) -> float:
    """Compute by how much a ratio is worse than before: 1.0 is as good, 2.0 is twice the cost or half the pace."""
    return before / now if name.startswith(HIGHER_IS_BETTER) else now / before


def get_noise(name: str) -> float:
    """By how much a row may be worse without being so."""
    return CPU_NOISE if name.startswith(CPU) else NOISE


def list_lost(now: Mapping[str, float], before: Mapping[str, float]) -> list[str]:
    """List the rows that are worse than before, beyond the noise. One that is missing is lost, too."""
    return [
        name
        for name, old in before.items()
        if name not in now or compute_loss(name, now[name], old) > get_noise(name)
    ]


async def measure_best() -> dict[str, float]:
    """Measure the best ratios of some runs."""
    return choose_best([list_ratios(await measure(("latency", "load"), SIZES)) for _ in range(RUNS)])


def show(now: Mapping[str, float], before: Ratios, console: Console) -> None:
    """Print the ratios beside those of the commit."""
    table = Table("", f"at {before.commit}", "now", "worse by")
    for name, old in before.ratios.items():
        new = now.get(name)
        loss = "" if new is None else f"{compute_loss(name, new, old):.2f}"
        table.add_row(name, f"{old:.2f}", "" if new is None else f"{new:.2f}", loss)
    console.print(table)


def main(arguments: list[str] | None = None) -> int:
    """Measure, and compare or write; return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m bench.ratios", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument(
        "--write", type=Path, nargs="?", const=FILE, help=f"write a file instead of comparing ({FILE})"
    )
    options = parser.parse_args(arguments)
    now = asyncio.run(measure_best())
    if options.write:
        revision = subprocess.run(
            ["git", "rev-parse", "--short=8", "HEAD"], capture_output=True, text=True, check=True
        )
        found = Ratios(commit=revision.stdout.strip(), ratios={name: round(ratio, 3) for name, ratio in now.items()})
        options.write.write_text(found.model_dump_json(indent=2) + "\n")
        return 0
    before = Ratios.model_validate_json(FILE.read_text())
    show(now, before, Console())
    if lost := list_lost(now, before.ratios):
        print(f"Slower than {before.commit}: {', '.join(lost)}", file=sys.stderr)
    return bool(lost)


if __name__ == "__main__":
    sys.exit(main())
