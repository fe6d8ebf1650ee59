"""The reference of benches, from the files in `bench/results/`."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path

from bench.recording import Machine, Measured, Record, read_records
from docs.generate.tables import table

BENCH = Path(__file__).parents[2] / "bench"
_ORDER = (
    "history",
    "load",
    "actions",
    "live",
    "first_word",
    "tool_loop",
    "media",
    "cache",
    "projection",
    "fairness",
    "encryption",
)
"""The benches that readers of pages come for, by the beginnings of their names; the others follow."""


def make_page() -> str:
    """Make the page."""
    records = sorted(read_records().items(), key=_rank)
    return (
        "# Benches\n\n"
        "What was measured, when, where and by which command. Each part is made from a file in `bench/results/`, which "
        "the command writes with `--write`. Run a command on your own machine: ratios hold better than times, and other "
        "work on the machine makes times longer. [Comparison](../comparison.md) has what was measured beside other "
        "frameworks.\n\n" + "\n".join(_make_part(name, record) for name, record in records) + _make_ratios()
    )


def _rank(item: tuple[str, Record]) -> tuple[int, str]:
    name = item[0]
    return next((number for number, first in enumerate(_ORDER) if name.startswith(first)), len(_ORDER)), name


def _make_part(name: str, record: Record) -> str:
    took = f", {record.seconds:g} s" if record.seconds else ""
    parts = [
        f"## {name}\n",
        f"{_summarize(record)}\n",
        f"`{record.command}` · {record.date} · commit `{record.commit}` · {_describe(record.machine)}{took}\n",
    ]
    for measured in record.tables:
        parts += [f"**{measured.title}**\n"] if measured.title else []
        parts.append(_make_table(measured))
    parts += [f"{note}\n" for note in record.notes]
    return "\n".join(parts)


def _make_table(measured: Measured) -> str:
    return table(_escape(measured.columns), map(_escape, measured.rows))


def _escape(cells: list[str]) -> list[str]:
    return [" ".join(cell.split()).replace("|", "\\|") for cell in cells]


def _describe(machine: Machine) -> str:
    parts = [machine.system, f"{machine.cores} cores"]
    parts += [f"Python {machine.python}"] if machine.python else []
    parts += [f"{machine.load:g} processes ran or waited for them"] if machine.load is not None else []
    return ", ".join(parts)


def _summarize(record: Record) -> str:
    """Take the first sentence of the bench's docstring."""
    words = record.command.split()
    module = words[words.index("-m") + 1]
    spec = importlib.util.find_spec(module)
    if spec is None or spec.origin is None:
        raise ValueError(f"there is no bench {module}")
    text = Path(spec.origin).read_text(encoding="utf-8")
    return " ".join(text.removeprefix('"""').partition("\n\n")[0].removesuffix('"""').split())


def _make_ratios() -> str:
    """Make the part of the file with which `bench.ratios` compares."""
    ratios = json.loads((BENCH / "ratios.json").read_text(encoding="utf-8"))
    rows = ([name, f"{value:g}"] for name, value in ratios["ratios"].items())
    return (
        "\n## ratios\n\nClew's speed beside a bare workflow's, with which `python -m bench.ratios` compares each change: "
        f"the values at commit `{ratios['commit']}`.\n\n{table(('row', 'Clew divided by the floor'), rows)}"
    )
