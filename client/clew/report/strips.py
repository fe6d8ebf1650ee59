"""Pictures of windows: a strip for one model call, a map for all of them."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from clew.report.charts import Box, Joined, join_boxes, limit_digits, place_entries
from clew.report.texts import format_number
from clew.report.types import Call, CallWindow, Report, Segment

STRIP_HEIGHT = 14
"""The height of a strip, in pixels."""
THIN_HEIGHT = 6
"""The height of the strip of what a window left out, in pixels."""
MAX_ROWS = 160
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
    every = math.ceil(len(calls) / MAX_ROWS)
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
