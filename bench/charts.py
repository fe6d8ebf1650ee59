"""Line charts as SVG, without a library."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path

WIDTH, HEIGHT, MARGIN, GAP = 420, 240, 48, 24
COLORS = ("#0b6bcb", "#c2410c", "#15803d")

Series = Mapping[str, Sequence[float]]


def draw_chart(title: str, xs: Sequence[int], series: Series, aims: Mapping[str, float]) -> str:
    """Draw lines over equally spaced `xs`, the y axis from 0; an aim is a dashed line at its value."""
    top = max([value for values in series.values() for value in values] + list(aims.values()) + [0.0]) * 1.15 or 1.0
    wide, high = WIDTH - 2 * MARGIN, HEIGHT - 2 * MARGIN

    def x(index: int) -> float:
        return MARGIN + wide * (index / max(len(xs) - 1, 1))

    def y(value: float) -> float:
        return MARGIN + high * (1 - value / top)

    parts = [f'<text x="{MARGIN}" y="20" font-weight="bold">{escape(title)}</text>']
    parts += [
        f'<line x1="{MARGIN}" x2="{MARGIN + wide}" y1="{y(top * step):.1f}" y2="{y(top * step):.1f}" stroke="#ddd"/>'
        f'<text x="{MARGIN - 6}" y="{y(top * step) + 4:.1f}" text-anchor="end">{_write(top * step)}</text>'
        for step in (0.0, 0.5, 1.0)
    ]
    parts += [
        f'<text x="{x(index):.1f}" y="{HEIGHT - 28}" text-anchor="middle">{number:,}</text>'
        for index, number in enumerate(xs)
    ]
    for (name, values), color in zip(series.items(), COLORS, strict=False):
        points = " ".join(f"{x(index):.1f},{y(value):.1f}" for index, value in enumerate(values))
        parts.append(f'<polyline points="{points}" fill="none" stroke="{color}" stroke-width="2"/>')
        if name in aims:
            level = f"{y(aims[name]):.1f}"
            parts.append(
                f'<line x1="{MARGIN}" x2="{MARGIN + wide}" y1="{level}" y2="{level}" stroke="{color}" '
                'stroke-dasharray="4 4"/>'
            )
    names = zip(series, COLORS, strict=False)
    parts += [
        f'<text x="{MARGIN + wide * index // len(series)}" y="{HEIGHT - 8}" fill="{color}">{escape(name)}</text>'
        for index, (name, color) in enumerate(names)
    ]
    return "\n".join(parts)


def _write(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def write_charts(path: Path, charts: Sequence[str]) -> None:
    """Write charts below one another into an SVG file."""
    height = len(charts) * (HEIGHT + GAP)
    groups = [
        f'<g transform="translate(0 {number * (HEIGHT + GAP)})">{body}</g>' for number, body in enumerate(charts)
    ]
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" height="{height}" '
        'font-family="sans-serif" font-size="11">\n<rect width="100%" height="100%" fill="white"/>\n'
        + "\n".join(groups)
        + "\n</svg>\n"
    )
