"""The charts of tokens, cost and latency over the model calls, as shapes that the template draws."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from clew.report.texts import format_dollars, format_number, format_percent, format_seconds, format_time
from clew.report.types import Call

# Shapes of the pictures. Widths are percentages, so that a picture is as wide as its page; heights are pixels.


_MIN_WIDTH = 0.15
"""The smallest width of entries in a picture, in percent."""


@dataclass(frozen=True, slots=True)
class Box:
    """A rectangle.

    Attributes:
        x: Its left side, in percent.
        width: Its width, in percent.
        y: Its upper side, in pixels.
        height: Its height, in pixels.
        look: The class of its colour.
        title: Its description.
    """

    x: float
    width: float
    y: float
    height: float
    look: str
    title: str = ""


@dataclass(frozen=True, slots=True)
class Joined:
    """Boxes of one picture with few elements: a page has thousands of them.

    Attributes:
        paths: For each look the outline of its boxes, in a picture that is 100 wide.
        boxes: The boxes that have a pattern or a line over them, which would be stretched.
    """

    paths: tuple[tuple[str, str], ...]
    boxes: tuple[Box, ...]


_DRAWN_OVER = ("cleared", "truncated", "summarized", "replaced", "pinned")


def join_boxes(boxes: Iterable[Box]) -> Joined:
    """Join boxes of one look to one path."""
    outlines: dict[str, list[str]] = {}
    alone = []
    for box in boxes:
        if any(word in box.look for word in _DRAWN_OVER):
            alone.append(box)
        else:
            outline = f"M{box.x:g} {box.y:g}h{box.width:g}v{box.height:g}h-{box.width:g}z"
            outlines.setdefault(box.look, []).append(outline)
    return Joined(tuple((look, "".join(outline)) for look, outline in outlines.items()), tuple(alone))


def limit_digits(value: float) -> float:
    """Round a length: more digits make the page larger and no picture better."""
    return round(value, 2)


def place_entries(count: int, first: int, last: int) -> tuple[float, float]:
    """Place entries in a picture of `count` entries; the answer is their left side and their width, in percent."""
    return limit_digits(first * 100 / count), limit_digits(max((last - first + 1) * 100 / count, _MIN_WIDTH))


CHART_HEIGHT = 110
"""The height of a chart's plot, in pixels."""
MAX_BARS = 240
"""Most bars of a chart. Of more calls, neighbours are drawn as one bar."""


@dataclass(frozen=True, slots=True)
class Chart:
    """A chart of bars over the model calls.

    Attributes:
        title: What it shows.
        summary: The same for those who do not see it, with its extremes.
        boxes: The bars.
        top: The value at its upper edge, as text.
        middle: The value at half of its height.
        legend: Looks and their names.
        note: A remark.
    """

    title: str
    summary: str
    boxes: tuple[Box, ...]
    top: str
    middle: str
    legend: tuple[tuple[str, str], ...] = ()
    note: str = ""


@dataclass(frozen=True, slots=True)
class _Measure:
    """What a chart shows of a group of calls: the parts of a bar, from below, each with its look."""

    title: str
    parts: Callable[[Sequence[Call]], Sequence[tuple[str, float]]]
    form: Callable[[float], str]
    legend: tuple[tuple[str, str], ...] = ()
    most: float | None = None


def _average(values: Sequence[float]) -> float:
    return sum(values) / len(values)


def _average_known(look: str, values: Iterable[float | None]) -> Sequence[tuple[str, float]]:
    """A bar of the mean of the values that are known; no bar if none is."""
    known = [value for value in values if value is not None]
    return ((look, _average(known)),) if known else ()


def _split_tokens(calls: Sequence[Call]) -> Sequence[tuple[str, float]]:
    return (
        ("cached", _average([call.usage.cached_input_tokens for call in calls])),
        ("fresh", _average([call.usage.input_tokens - call.usage.cached_input_tokens for call in calls])),
        ("output", _average([call.usage.output_tokens for call in calls])),
    )


def _share_cached(calls: Sequence[Call]) -> Sequence[tuple[str, float]]:
    total = sum(call.usage.input_tokens for call in calls)
    return (("cached", sum(call.usage.cached_input_tokens for call in calls) / total if total else 0.0),)


_MEASURES = (
    _Measure(
        "Tokens",
        _split_tokens,
        lambda value: format_number(round(value)),
        (("cached", "input read from the cache"), ("fresh", "other input"), ("output", "output")),
    ),
    _Measure("Cached share of the input", _share_cached, format_percent, most=1.0),
    _Measure(
        "Cost",
        lambda calls: _average_known("cost", (call.usage.cost_usd for call in calls)),
        format_dollars,
    ),
    _Measure(
        "Latency",
        lambda calls: _average_known("latency", (call.seconds for call in calls)),
        format_seconds,
    ),
)


def make_charts(calls: Sequence[Call]) -> list[Chart]:
    """Make the charts of some model calls."""
    size = max(math.ceil(len(calls) / MAX_BARS), 1)
    groups = [calls[index : index + size] for index in range(0, len(calls), size)]
    return [_make_chart(measure, groups, size) for measure in _MEASURES] if calls else []


def _make_chart(measure: _Measure, groups: Sequence[Sequence[Call]], size: int) -> Chart:
    bars = [measure.parts(group) for group in groups]
    heights = [sum(value for _, value in bar) for bar in bars]
    known = [height for bar, height in zip(bars, heights, strict=True) if bar]
    if not known:
        return Chart(measure.title, "Not known of any call.", (), "", "", (), "Not known of any call.")
    highest = max(known)
    top = measure.most or round_up(highest)
    width = 100 / len(bars)
    boxes: list[Box] = []
    for index, (bar, group) in enumerate(zip(bars, groups, strict=True)):
        y = float(CHART_HEIGHT)
        label = f"{_name_group(group)}: {measure.form(heights[index])}"
        for look, value in bar:
            height = value / top * CHART_HEIGHT
            y -= height
            if value:
                boxes.append(
                    Box(
                        limit_digits(index * width),
                        limit_digits(width * 0.86),
                        limit_digits(y),
                        limit_digits(height),
                        look,
                        label,
                    )
                )
    per_bar = f"Each bar is the mean of {size} calls." if size > 1 else ""
    summary = (
        f"{measure.title} of {sum(map(len, groups))} model calls: from {measure.form(min(known))} to "
        f"{measure.form(highest)}, {measure.form(known[-1])} at the end. {per_bar}"
    )
    return Chart(
        measure.title,
        summary.strip(),
        tuple(boxes),
        measure.form(top),
        measure.form(top / 2),
        measure.legend,
        per_bar or ("" if highest else "0 in all calls."),
    )


def _name_group(group: Sequence[Call]) -> str:
    first, last = group[0], group[-1]
    calls = first.call_id if first is last else f"{first.call_id} to {last.call_id}"
    return f"{calls}, {format_time(first.at)}"


def round_up(value: float) -> float:
    """Round up to a number of one or two digits times a power of ten, for the upper edge of a chart."""
    if value <= 0:
        return 1.0
    power = 10.0 ** math.floor(math.log10(value))
    return next((step * power for step in (1, 1.5, 2, 3, 4, 6, 8, 10) if step * power >= value * 0.9999), 10 * power)
