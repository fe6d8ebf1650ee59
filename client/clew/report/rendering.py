"""The page of a report: one HTML document that loads nothing, runs nothing and needs no network.

Jinja escapes every value. `make_visible` sees each of them first, so that no character of a session is hidden. Needs
the extra `cli`.
"""

from __future__ import annotations

import base64
import hashlib
import shlex
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from clew.report.calls import MAX_WINDOWS, count_seconds
from clew.report.charts import CHART_HEIGHT, make_charts
from clew.report.formats import (
    format_bytes,
    format_dollars,
    format_number,
    format_percent,
    format_seconds,
    format_time,
)
from clew.report.markdown import render_markdown
from clew.report.strips import (
    SEGMENT_NAMES,
    describe_segment,
    describe_seqs,
    describe_window,
    find_largest,
    make_map,
    make_strip,
)
from clew.report.timelines import LANE_HEIGHT, MAX_MARKS, make_timeline
from clew.report.types import Item, Report, Text
from clew.report.visible import make_visible

MAX_ROWS = 1000
"""Most rows of a table of the page; the newest are shown."""
_MAX_MARKDOWN = 10_000
_LONG_PAUSE_SECONDS = 3600
STATE_NAMES = {
    "shown": "in the window",
    "cleared": "in the window, results cleared",
    "truncated": "in the window, results truncated",
    "summarized": "left out: summarized",
    "replaced": "left out: replaced by a snapshot",
    "dropped": "left out: no room",
    "excluded": "left out: excluded by the policy",
}


def render_page(report: Report) -> str:
    """Render the page of a report."""
    style = files("clew.report").joinpath("templates", "style.css").read_text(encoding="utf-8")
    return (
        _make_environment()
        .get_template("page.html")
        .render(
            report=report,
            rows=list(_list_rows(report.items)),
            charts=make_charts(report.calls),
            chart_height=CHART_HEIGHT,
            map=make_map(report),
            largest=find_largest(report),
            timeline=make_timeline(report),
            max_marks=MAX_MARKS,
            lane_height=LANE_HEIGHT,
            max_rows=MAX_ROWS,
            max_windows=MAX_WINDOWS,
            segment_names=SEGMENT_NAMES,
            state_names=STATE_NAMES,
            style=Markup(style),
            style_hash=base64.b64encode(hashlib.sha256(style.encode()).digest()).decode(),
        )
    )


@dataclass(frozen=True, slots=True)
class _Row:
    """An item of the conversation, and the pause before it if that is long."""

    item: Item
    pause: str


def _list_rows(items: Iterable[Item]) -> Iterator[_Row]:
    before: Item | None = None
    for item in items:
        seconds = count_seconds(before.at, item.at) if before else None
        yield _Row(item, format_seconds(seconds) if seconds and seconds >= _LONG_PAUSE_SECONDS else "")
        before = item


@cache
def _make_environment() -> Environment:
    environment = Environment(
        loader=PackageLoader("clew.report"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=_finalize,
    )
    environment.filters |= {
        "bytes": format_bytes,
        "dollars": format_dollars,
        "markdown": _render_reply,
        "number": format_number,
        "percent": format_percent,
        "quote": shlex.quote,
        "seconds": format_seconds,
        "segment": describe_segment,
        "seqs": describe_seqs,
        "strip": make_strip,
        "time": format_time,
        "window": describe_window,
    }
    return environment


def _finalize(value: Any) -> Any:
    """Make the hidden characters of a value visible, before it is escaped."""
    return make_visible(value) if isinstance(value, str) and not isinstance(value, Markup) else value


def _render_reply(text: Text) -> str:
    """Render a reply as Markdown; one that is long or shown in part stays text."""
    if text.left_out or len(text.content) > _MAX_MARKDOWN:
        return text.content
    return render_markdown(text.content)
