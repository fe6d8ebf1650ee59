"""Results of `bench.load`: values of Clew beside those of the floor, with their aims."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

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
    """

    name: str
    clew: float
    floor: float | None
    unit: str
    most: float | None = None
    least: float | None = None
    is_absolute: bool = False

    @property
    def ratio(self) -> float | None:
        """Clew's value divided by the floor's."""
        return self.clew / self.floor if self.floor else None

    @property
    def holds(self) -> bool | None:
        """Whether the aim is reached; None: there is none."""
        value = self.clew if self.is_absolute or self.ratio is None else self.ratio
        if self.most is not None:
            return value <= self.most
        return None if self.least is None else value >= self.least


@dataclass
class Results:
    """All that was measured."""

    rows: list[Row] = field(default_factory=list)
    charts: list[str] = field(default_factory=list)

    def chart(self, title: str, xs: Sequence[int], series: Series, **aims: float) -> None:
        """Add a chart."""
        self.charts.append(draw_chart(title, xs, series, aims))


def show(results: Results, console: Console) -> bool:
    """Print the table; return whether every aim is reached."""
    table = Table("", "Clew", "floor", "ratio", "aim")
    for row in results.rows:
        aims = ((row.most, "≤"), (row.least, "≥"))
        aim = next((f"{sign} {value:g}{'' if row.holds else ' missed'}" for value, sign in aims if value), "")
        table.add_row(
            row.name,
            f"{row.clew:,.4g} {row.unit}",
            "" if row.floor is None else f"{row.floor:,.4g}",
            "" if row.ratio is None else f"{row.ratio:.2f}",
            aim,
            style="red" if row.holds is False else None,
        )
    console.print(table)
    return all(row.holds is not False for row in results.rows)
