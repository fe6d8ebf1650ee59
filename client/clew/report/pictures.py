"""The pictures of the page, as shapes that the template draws: charts of the calls, their windows, the timeline.

Widths are percentages, so that a picture is as wide as its page; heights are pixels.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from clew.report.texts import format_dollars, format_number, format_percent, format_seconds, format_time
from clew.report.types import Call, CallWindow, Report, Segment

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


# Charts of tokens, cost and latency over the model calls.


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


# Windows: a strip for one model call, a map for all of them.


STRIP_HEIGHT = 14
"""The height of a strip, in pixels."""
THIN_HEIGHT = 6
"""The height of the strip of what a window left out, in pixels."""
MAX_MAP_ROWS = 160
"""Most rows of the map of windows."""
SEGMENT_NAMES = {
    "tools": "tool schemas",
    "system": "system prompt",
    "summary": "summary",
    "snapshot": "snapshot",
    "user": "user",
    "assistant": "assistant",
    "tool_calls": "tool calls with results",
    "messages": "messages",
}


@dataclass(frozen=True, slots=True)
class Strip:
    """A picture of a window: one bar of what it had, and one of what it left out.

    Attributes:
        shown: What the window had.
        left_out: What it left out, scaled to itself; None: nothing.
        summary: A description for those who do not see it.
    """

    shown: Joined
    left_out: Joined | None
    summary: str


def find_largest(report: Report) -> int:
    """Find the tokens of the largest window of a report."""
    return max((call.window.tokens for call in report.calls if call.window), default=1)


def make_strip(window: CallWindow, total: int) -> Strip:
    """Make the picture of a window; `total` are the tokens of its full width."""
    missing = max(sum(segment.tokens for segment in window.left_out), 1)
    return Strip(
        join_boxes(_lay_out(window.segments, max(total, 1), STRIP_HEIGHT)),
        join_boxes(_lay_out(window.left_out, missing, THIN_HEIGHT)) if window.left_out else None,
        f"{describe_window(window)}: " + "; ".join(describe_segment(segment) for segment in window.segments[:12]),
    )


def describe_window(window: CallWindow) -> str:
    """Describe a window in one line."""
    left_out = sum(segment.messages for segment in window.left_out)
    kept = f"{format_number(window.tokens)} of {format_number(window.budget)} tokens"
    return f"{kept}, {format_number(left_out)} message{'' if left_out == 1 else 's'} left out" if left_out else kept


def describe_segment(segment: Segment) -> str:
    """Describe a segment in a few words."""
    name = SEGMENT_NAMES[segment.kind]
    seqs = "" if segment.first_seq is None else f" {describe_seqs(segment)}"
    state = "" if segment.state == "shown" else f", {segment.state}"
    pinned = ", pinned" if segment.pinned else ""
    return f"{name}{seqs}{state}{pinned}, {format_number(segment.tokens)} tokens"


def describe_seqs(segment: Segment) -> str:
    """Describe the entries of a segment: `12`, or `12 to 18`; empty if it has none."""
    first, last = segment.first_seq, segment.last_seq
    if first is None:
        return ""
    return f"{first}" if first == last else f"{first} to {last}"


def _look(segment: Segment) -> str:
    look = segment.kind if segment.state in ("shown", "cleared", "truncated") else "out"
    return f"{look} {segment.state}{' pinned' if segment.pinned else ''}"


def _lay_out(segments: Sequence[Segment], total: int, height: int) -> Iterator[Box]:
    x = 0.0
    for segment in segments:
        width = segment.tokens / total * 100
        if width > 0:
            drawn = limit_digits(max(width - 0.12, width * 0.7))
            yield Box(limit_digits(x), drawn, 0, height, _look(segment))
        x += width


@dataclass(frozen=True, slots=True)
class Map:
    """A picture of all windows: a row for each model call, a column for each entry.

    Attributes:
        parts: The parts of the rows.
        rows: The rows, with their descriptions.
        height: Its height in pixels.
        windows: The number of calls with a window.
        every: A row for each so many calls.
        summary: A description for those who do not see it.
    """

    parts: Joined
    rows: tuple[Box, ...]
    height: int
    windows: int
    every: int
    summary: str


def make_map(report: Report) -> Map | None:
    """Make the map of windows; None: no call has a window."""
    calls = [call for call in report.calls if call.window]
    if not calls:
        return None
    every = math.ceil(len(calls) / MAX_MAP_ROWS)
    drawn = calls[::-every][::-1]
    height = 4 if len(drawn) > 80 else 7 if len(drawn) > 20 else 12
    boxes: list[Box] = []
    rows: list[Box] = []
    for index, call in enumerate(drawn):
        y = index * height
        boxes += (
            Box(*place_entries(report.entries, first, last), y, height - 1, _look(segment))
            for segment in _list_placed(call)
            for first, last in _split_by_lane(report, call.lane, segment)
        )
        reply = place_entries(report.entries, call.seq, call.seq)
        boxes.append(Box(*reply, y, height - 1, "reply"))
        rows.append(Box(0, 100, y, height, "row", _summarize(call)))
    summary = (
        f"Windows of {len(calls)} model calls, the oldest above. From left to right are the {report.entries} "
        f"entries of the session. The first window: {_summarize(drawn[0])}. The last: {_summarize(drawn[-1])}."
    )
    return Map(join_boxes(boxes), tuple(rows), height * len(drawn), len(calls), every, summary)


def _summarize(call: Call) -> str:
    return f"{call.call_id}, {describe_window(call.window)}" if call.window else call.call_id


def _list_placed(call: Call) -> Iterator[Segment]:
    window = call.window
    for segment in (*window.left_out, *window.segments) if window else ():
        if segment.first_seq is not None:
            yield segment


def _split_by_lane(report: Report, lane: str, segment: Segment) -> Iterator[tuple[int, int]]:
    """Split a segment's entries into the stretches in which its lane was active."""
    first, last = segment.first_seq or 0, segment.last_seq or segment.first_seq or 0
    if segment.kind == "summary":
        yield first, last
        return
    for stretch in report.timeline.active:
        if stretch.lane == lane and stretch.first_seq <= last and first <= stretch.last_seq:
            yield max(first, stretch.first_seq), min(last, stretch.last_seq)


# The timeline: a row for each lane, with its runs and operations.


MAX_MARKS = 1500
"""Most operations in the picture; the newest are drawn."""
LANE_HEIGHT = 30
"""The height of a lane in the timeline, in pixels."""


@dataclass(frozen=True, slots=True)
class Mark:
    """An operation in the timeline.

    Attributes:
        x: Its place, in percent.
        y: Its place, in pixels.
        look: Its shape and colour.
        title: Its description.
    """

    x: float
    y: float
    look: str
    title: str


@dataclass(frozen=True, slots=True)
class TimelinePicture:
    """The picture of the timeline: a row for each lane.

    Attributes:
        boxes: The active stretches and the runs.
        marks: The operations.
        height: Its height in pixels.
        ticks: Times at places in percent.
        summary: A description for those who do not see it.
    """

    boxes: tuple[Box, ...]
    marks: tuple[Mark, ...]
    height: int
    ticks: tuple[tuple[float, str], ...]
    summary: str


MARK_LOOKS = {
    "configuration": "configuration",
    "summary": "summary",
    "compaction": "summary",
    "replace": "replace",
    "expand": "replace",
    "switch": "switch",
    "pin": "pin",
    "unpin": "pin",
    "withdraw": "error",
    "error": "error",
    "fork": "fork",
}
"""The look of an operation by its kind; those that are not here have `session`."""


def make_timeline(report: Report) -> TimelinePicture:
    """Make the picture of the timeline."""
    timeline, count = report.timeline, max(report.entries, 1)
    rows = {lane: index * LANE_HEIGHT for index, lane in enumerate(timeline.lanes)}
    boxes = []
    for stretch in timeline.active:
        title = f"{stretch.lane} is active, entries {stretch.first_seq} to {stretch.last_seq}"
        y = rows.get(stretch.lane, 0) + 4
        boxes.append(
            Box(*place_entries(count, stretch.first_seq, stretch.last_seq), y, LANE_HEIGHT - 8, "active", title)
        )
    for run in timeline.runs:
        status = run.status or "not ended"
        title = f"{run.run_id}, {status}, {format_seconds(run.seconds)}, {format_time(run.at)}"
        x, width = place_entries(count, run.first_seq, run.last_seq)
        y = rows.get(run.lane, 0) + 9
        boxes.append(Box(x, max(width - 0.1, 0.1), y, LANE_HEIGHT - 18, f"run {run.status or 'open'}", title))
    summary = (
        f"{len(timeline.lanes)} lanes, {len(timeline.runs)} runs and {len(timeline.operations)} operations over "
        f"{report.entries} entries. The tables below list them."
    )
    return TimelinePicture(
        tuple(boxes), tuple(_list_marks(report, rows)), LANE_HEIGHT * len(rows), tuple(_list_ticks(report)), summary
    )


def _list_marks(report: Report, rows: Mapping[str, int]) -> Iterator[Mark]:
    scale = 100 / max(report.entries, 1)
    stretches = report.timeline.active
    for operation in report.timeline.operations[-MAX_MARKS:]:
        count = bisect_right(stretches, operation.seq, key=lambda stretch: stretch.first_seq)
        lane = operation.lane or (stretches[count - 1].lane if count else "")
        look = MARK_LOOKS.get(operation.kind, "session")
        title = f"{operation.kind}, entry {operation.seq}, {format_time(operation.at)}: {operation.title.content}"
        y = rows.get(lane, 0) + LANE_HEIGHT / 2
        yield Mark(limit_digits((operation.seq + 0.5) * scale), y, look, title)


def _list_ticks(report: Report) -> Iterator[tuple[float, str]]:
    if report.first_at and report.last_at:
        yield 0.0, format_time(report.first_at)
        yield 100.0, format_time(report.last_at)
