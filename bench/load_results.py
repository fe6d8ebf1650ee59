"""Results of `bench.load`: values of Clew beside those of the floor, with their aims and what is possible."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

from rich.console import Console
from rich.table import Table

from bench.charts import Series, draw_chart


@dataclass(frozen=True)
class Row:
    """One measured value.

    Attributes:
        name: What was measured.
        clew: Clew's value.
        floor: The floor's; None: it has none.
        unit: The unit.
        most: The aim: most of the ratio, or of the value itself where the floor has none.
        least: The aim: least of the ratio.
        is_absolute: The aim is for the value, although the floor has one.
        reach: The best value that any agent can have here, as measured in the same run; None: nothing bounds it.
    """

    name: str
    clew: float
    floor: float | None
    unit: str
    most: float | None = None
    least: float | None = None
    is_absolute: bool = False
    reach: float | None = None

    @property
    def ratio(self) -> float | None:
        """Clew's value divided by the floor's."""
        return self.clew / self.floor if self.floor else None

    @property
    def verdict(self) -> Literal["", "reached", "missed", "out of reach"]:
        """What became of the aim: nothing can reach it if the best possible value does not. Empty: there is none."""
        if self.most is None and self.least is None:
            return ""
        if self._reaches(self.clew):
            return "reached"
        return "missed" if self.reach is None or self._reaches(self.reach) else "out of reach"

    def _reaches(self, value: float) -> bool:
        measured = value / self.floor if self.floor and not self.is_absolute else value
        if self.most is not None and measured > self.most:
            return False
        return self.least is None or measured >= self.least


@dataclass
class Results:
    """All that was measured."""

    rows: list[Row] = field(default_factory=list)
    charts: list[str] = field(default_factory=list)

    def chart(self, title: str, xs: Sequence[int], series: Series, **aims: float) -> None:
        """Add a chart."""
        self.charts.append(draw_chart(title, xs, series, aims))


def show(results: Results, console: Console) -> bool:
    """Print the table; return whether every aim is reached that can be."""
    table = Table("", "Clew", "floor", "ratio", "possible", "aim", "")
    for row in results.rows:
        aim = f"≤ {row.most:g}" if row.most is not None else f"≥ {row.least:g}" if row.least is not None else ""
        table.add_row(
            row.name,
            f"{row.clew:,.4g} {row.unit}",
            "" if row.floor is None else f"{row.floor:,.4g}",
            "" if row.ratio is None else f"{row.ratio:.2f}",
            "" if row.reach is None else f"{row.reach:,.4g}",
            aim,
            row.verdict,
            style={"missed": "red", "out of reach": "yellow"}.get(row.verdict),
        )
    console.print(table)
    return all(row.verdict != "missed" for row in results.rows)
