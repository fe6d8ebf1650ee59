"""Verdicts of the load bench: an aim is reached, missed, or beyond what is possible on the machine."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from bench.load_results import Results, Row, show

REACHED = Row("latency", 11, 10, "ms", most=1.15)
MISSED = Row("latency", 12, 10, "ms", most=1.15)
MISSED_WITH_REACH = Row("latency", 12, 10, "ms", most=1.15, reach=11)
OUT_OF_REACH = Row("throughput", 80, 100, "turns/s", least=0.95, reach=90)
HEAVY_FLOOR = Row("memory", 150, 110, "KB", most=40, is_absolute=True, reach=110)


@pytest.mark.parametrize(
    ("row", "verdict"),
    [
        (Row("any", 5, 1, "ms"), ""),
        (Row("any", 5, None, "ms"), ""),
        (REACHED, "reached"),
        (MISSED, "missed"),
        (MISSED_WITH_REACH, "missed"),
        (OUT_OF_REACH, "out of reach"),
        (Row("throughput", 96, 100, "turns/s", least=0.95, reach=90), "reached"),
        (HEAVY_FLOOR, "out of reach"),
        (Row("memory", 150, 30, "KB", most=40, is_absolute=True), "missed"),
        (Row("memory", 150, 110, "KB", most=40, is_absolute=True), "missed"),
        (Row("memory", 150, 30, "KB", most=40, is_absolute=True, reach=50), "out of reach"),
        (Row("memory", 39, 110, "KB", most=40, is_absolute=True), "reached"),
        (Row("growth", 1.2, None, "times", most=1.1), "missed"),
    ],
)
def test_an_aim_is_out_of_reach_where_the_best_possible_value_misses_it(row: Row, verdict: str) -> None:
    """Where no best value is given, nothing bounds it. A value that reaches the aim reaches it in any case."""
    assert row.verdict == verdict


@pytest.mark.parametrize(
    ("rows", "holds"),
    [([REACHED, OUT_OF_REACH, HEAVY_FLOOR], True), ([REACHED, MISSED], False), ([MISSED_WITH_REACH], False)],
)
def test_only_an_aim_that_can_be_reached_fails_the_bench(rows: list[Row], holds: bool) -> None:
    """The table names the verdict of each row."""
    output = io.StringIO()
    assert show(Results(rows), Console(file=output, width=200)) is holds
    lines = output.getvalue().splitlines()
    assert all(any(row.verdict in line and row.name in line for line in lines) for row in rows)
