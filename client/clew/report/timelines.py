"""The picture of a timeline: a row for each lane, with its runs and operations."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from clew.report.charts import Box, limit_digits, place_entries
from clew.report.texts import format_seconds, format_time
from clew.report.types import Report

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
