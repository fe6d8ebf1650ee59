"""The tables of docs/comparison.md, made from the results of a measurement."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from bench.peers.rows import ROWS
from bench.peers.scenarios import LATENCIES_AT, SIZES_AT

PAGE = Path(__file__).parents[2] / "docs" / "comparison.md"
NOTHING = "not reached"

Results = Mapping[str, Any]
"""The object in `results.json`: `machine`, and `rows` by their keys."""


def fill_page(page: str, results: Results) -> str:
    """Replace each table between `<!-- table: NAME -->` and `<!-- end -->`."""

    def fill(match: re.Match[str]) -> str:
        return f"<!-- table: {match[1]} -->\n{TABLES[match[1]](results)}\n<!-- end -->"

    return re.sub(r"<!-- table: (\w+) -->.*?<!-- end -->", fill, page, flags=re.DOTALL)


def make_machine(results: Results) -> str:
    """Say where and when the measurement ran."""
    machine = results["machine"]
    missing = [row.title for key, row in ROWS.items() if key not in results["rows"]]
    return (
        f"Last measured on {machine['date']}: {machine['system']}, {machine['cores']} cores, "
        f"Python {machine['python']}, "
        "the Temporal development server of the same machine."
        + (f" Not measured in this run, though the bench has them: {'; '.join(missing)}." if missing else "")
    )


def make_versions(results: Results) -> str:
    """List the versions of all packages."""
    versions: dict[str, set[str]] = {}
    for row in results["rows"].values():
        for name, version in row["versions"].items():
            versions.setdefault(name, set()).add(version)
    return _make_table(
        ["package", "version"], [[f"`{name}`", ", ".join(sorted(versions[name]))] for name in sorted(versions)]
    )


def make_sizes(results: Results) -> str:
    """Sizes after some turns, and where the conversation ended."""

    def describe(row: Mapping[str, Any]) -> list[str]:
        growth = row["growth"]
        sizes = [_describe_size(growth["sizes"].get(str(turn))) for turn in SIZES_AT]
        return [*sizes, f"{growth['turns']:,}", growth["ended"] or "answered all"]

    return _make_rows(
        results, [*(f"{turn:,} turns" for turn in SIZES_AT), "turns answered", "how it ended"], describe
    )


def _describe_size(size: Mapping[str, int] | None) -> str:
    if size is None:
        return NOTHING
    stored = f" + {_format_bytes(size['stored'])} stored" if size["stored"] else ""
    return f"{_format_bytes(size['bytes'])}{stored}, {size['events']:,}"


def make_latencies(results: Results) -> str:
    """Latency around some turns, and throughput."""

    def describe(row: Mapping[str, Any]) -> list[str]:
        found = [row["growth"]["latencies"].get(str(turn)) for turn in LATENCIES_AT]
        through = row["throughput"]
        return [
            *(_describe_latency(latency) for latency in found),
            f"{through['turns_per_second']:.0f} ({through['turns_per_second'] / through['floor']:.2f})",
            f"{through['cpu_seconds'] * 1000:.0f} ms",
            f"{through['memory'] / 1e6:.0f} MB",
            f"{row['load']:.0f}" if "load" in row else "unknown",
        ]

    heads = [*(f"turn {turn:,}" for turn in LATENCIES_AT), "turns a second", "CPU a turn", "memory", "load"]
    return _make_rows(results, heads, describe)


def _describe_latency(latency: Mapping[str, float] | None) -> str:
    if latency is None:
        return NOTHING
    return f"{latency['seconds'] * 1000:.0f} ms ({latency['seconds'] / latency['floor']:.1f})"


def make_recoveries(results: Results) -> str:
    """Recovery after SIGKILL."""

    def describe(row: Mapping[str, Any]) -> list[str]:
        recovery = row["recovery"]
        if recovery["failed"] and recovery["seconds"] is None:
            return [f"none: {recovery['failed']}", *[""] * 5]
        return [
            f"{recovery['seconds']:.1f} s",
            f"{recovery['start_seconds']:.1f} s",
            f"{recovery['model_calls']}",
            f"{recovery['tool_effects']}",
            _describe_count(recovery["lost"]),
            _describe_count(recovery["duplicates"]),
        ]

    heads = ["answer after", "of it until ready", "model calls", "tool effects", "lost", "twice"]
    return _make_rows(results, heads, describe, needed="recovery")


def _describe_count(count: int | None) -> str:
    return "unknown" if count is None else f"{count}"


def make_public_cases(results: Results) -> str:
    """The conversation of 209 000 tokens."""

    def describe(row: Mapping[str, Any]) -> list[str]:
        case = row["public_case"]
        return [
            f"{case['model_calls']} of 100",
            f"{case['tokens']:,}",
            _describe_size(case["size"]),
            case["ended"] or "answered",
        ]

    heads = ["model calls of the last turn", "tokens in the last request", "size, events", "how it ended"]
    return _make_rows(results, heads, describe, needed="public_case")


TABLES: dict[str, Callable[[Results], str]] = {
    "machine": make_machine,
    "versions": make_versions,
    "sizes": make_sizes,
    "latencies": make_latencies,
    "recoveries": make_recoveries,
    "public_cases": make_public_cases,
}


def _make_rows(
    results: Results,
    heads: Sequence[str],
    describe: Callable[[Mapping[str, Any]], list[str]],
    needed: str = "versions",
) -> str:
    measured = {key: results["rows"][key] for key in ROWS if needed in results["rows"].get(key, {})}
    return _make_table(["", *heads], [[ROWS[key].title, *describe(row)] for key, row in measured.items()])


def _make_table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [heads, ["---"] * len(heads), *rows]
    return "\n".join(f"| {' | '.join(_clean(cell) for cell in line)} |" for line in lines)


def _clean(cell: str) -> str:
    return " ".join(cell.replace("|", "/").split())


def _format_bytes(count: int) -> str:
    return f"{count / 1e6:,.1f} MB" if count >= 1e6 else f"{count / 1e3:,.0f} KB"
