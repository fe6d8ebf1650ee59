"""The page of a report: one HTML document that loads nothing and needs no network.

Its one script folds and finds turns; the page's policy names it by its hash, so that no other script runs. Jinja
escapes every value. `make_visible` sees each of them first, so that no character of a session is hidden. Needs
the extra `cli`.
"""

from __future__ import annotations

import base64
import hashlib
import shlex
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from clew.report.conversation import count_seconds
from clew.report.making import MAX_WINDOWS
from clew.report.media import PageMedia
from clew.report.pictures import (
    CHART_HEIGHT,
    LANE_HEIGHT,
    MAX_MARKS,
    SEGMENT_NAMES,
    describe_seqs,
    describe_window,
    find_largest,
    make_charts,
    make_map,
    make_strip,
    make_timeline,
)
from clew.report.texts import (
    format_bytes,
    format_dollars,
    format_number,
    format_percent,
    format_seconds,
    format_time,
    is_web_address,
    make_visible,
    render_markdown,
)
from clew.report.types import Failure, Item, MessageItem, Report, Segment, Text

MAX_ROWS = 1000
"""Most rows of a table of the page; the newest are shown."""
MAX_OPEN_FAILURES = 20
"""Most failures that a page lists unfolded."""
OPEN_TURNS = 3
"""The newest turns that a page shows open."""
LONG_TURN = 40
"""Items of a turn from which on it is folded, however new it is."""
_TITLE_CHARACTERS = 160
_MAX_MARKDOWN = 10_000
_LONG_PAUSE_SECONDS = 3600
_STATE_NAMES = {
    "cleared": "results cleared",
    "truncated": "results truncated",
    "summarized": "summarized",
    "replaced": "replaced by a snapshot",
    "dropped": "no room",
    "excluded": "excluded by the policy",
}


def render_page(report: Report, media: PageMedia | None = None) -> str:
    """Render the page of a report.

    `media`: the images that the page embeds and the files that it links; None: it names them alone.
    """
    media = media or PageMedia()
    style, script = _read_template("style.css"), _read_template("script.js")
    return (
        _make_environment()
        .get_template("page.html")
        .render(
            report=report,
            images=media.images,
            links=media.links,
            turns=list_turns(report.items, report.failures),
            charts=make_charts(report.calls),
            chart_height=CHART_HEIGHT,
            map=make_map(report),
            largest=find_largest(report),
            timeline=make_timeline(report),
            max_marks=MAX_MARKS,
            lane_height=LANE_HEIGHT,
            max_rows=MAX_ROWS,
            max_open_failures=MAX_OPEN_FAILURES,
            max_windows=MAX_WINDOWS,
            style=Markup(style),
            style_hash=_hash(style),
            script=Markup(script),
            script_hash=_hash(script),
        )
    )


def _read_template(name: str) -> str:
    return files("clew.report").joinpath("templates", name).read_text(encoding="utf-8")


def _hash(source: str) -> str:
    """Make the hash by which the page's policy names a script or a style sheet."""
    return base64.b64encode(hashlib.sha256(source.encode()).digest()).decode()


def _format_pause(before: Item, item: Item) -> str:
    """Format the pause between two items; empty, if it is not long."""
    seconds = count_seconds(before.at, item.at)
    return format_seconds(seconds) if seconds and seconds >= _LONG_PAUSE_SECONDS else ""


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
        "pause": _format_pause,
        "percent": format_percent,
        "quote": shlex.quote,
        "seconds": format_seconds,
        "segment": _describe_part,
        "strip": make_strip,
        "time": format_time,
        "window": describe_window,
    }
    environment.tests["linkable"] = _is_linkable
    return environment


def _is_linkable(address: Text) -> bool:
    """Whether the page links an address: it is shown in full, and leads to a page of the web."""
    return not address.left_out and is_web_address(address.content)


def _describe_part(segment: Segment) -> str:
    """Describe a part of a window, or of what it left out, in one line."""
    messages = f", {segment.messages} message{'' if segment.messages == 1 else 's'}" if segment.messages else ""
    state = f", {_STATE_NAMES[segment.state]}" if segment.state in _STATE_NAMES else ""
    results = f" ({segment.results} result{'' if segment.results == 1 else 's'})" if segment.results else ""
    pinned = ", pinned" if segment.pinned else ""
    media = _describe_media(segment)
    name = " ".join(filter(None, (SEGMENT_NAMES[segment.kind], describe_seqs(segment))))
    return f"{name}{messages}, {format_number(segment.tokens)} tokens{state}{results}{media}{pinned}"


def _describe_media(segment: Segment) -> str:
    """Describe how many images, recordings and files a part of a window has, and how many are markers there."""
    count = segment.media + segment.cleared_media
    if not count:
        return ""
    cleared = f", {segment.cleared_media} of them as a marker" if segment.cleared_media else ""
    return f", {count} {'medium' if count == 1 else 'media'}{cleared}"


def _finalize(value: Any) -> Any:
    """Make the hidden characters of a value visible, before it is escaped."""
    return make_visible(value) if isinstance(value, str) and not isinstance(value, Markup) else value


def _render_reply(text: Text) -> str:
    """Render a reply as Markdown; one that is long or shown in part stays text."""
    if text.left_out or len(text.content) > _MAX_MARKDOWN:
        return text.content
    return render_markdown(text.content)


# The turns: what the page folds together.


@dataclass(frozen=True, slots=True)
class Turn:
    """A message to the session, and all that happened until the next one.

    Attributes:
        items: The items, in order.
        title: The beginning of the message, if it has one and the report has texts.
        calls: The number of model calls.
        tools: The number of tool calls.
        failures: The number of failures.
        seconds: The seconds between the first and the last item; None: they have no times.
        is_open: Whether the page shows it open.
    """

    items: tuple[Item, ...]
    title: str
    calls: int
    tools: int
    failures: int
    seconds: float | None
    is_open: bool

    @property
    def first_seq(self) -> int:
        """The first entry."""
        return self.items[0].seq


def list_turns(items: Iterable[Item], failures: Sequence[Failure]) -> list[Turn]:
    """Split the items of a conversation into turns. What precedes the first message is a turn of its own."""
    groups = list(_split(items))
    failed = [failure.seq for failure in failures]
    turns = []
    for index, group in enumerate(groups):
        end = groups[index + 1][0].seq if index + 1 < len(groups) else None
        first_failure = bisect_left(failed, group[0].seq)
        end_failure = len(failed) if end is None else bisect_left(failed, end)
        is_new = index >= len(groups) - OPEN_TURNS
        turns.append(
            Turn(
                items=tuple(group),
                title=_find_title(group),
                calls=sum(isinstance(item, MessageItem) and item.call is not None for item in group),
                tools=sum(len(item.tools) for item in group if isinstance(item, MessageItem)),
                failures=end_failure - first_failure,
                seconds=count_seconds(group[0].at, group[-1].at),
                is_open=is_new and len(group) < LONG_TURN,
            )
        )
    return turns


def _split(items: Iterable[Item]) -> Iterator[list[Item]]:
    group: list[Item] = []
    request_id: str | None = None
    for item in items:
        if isinstance(item, MessageItem) and item.role == "user":
            # A message of the request that is being served is a correction of it.
            if group and (item.request_id is None or item.request_id != request_id):
                yield group
                group = []
            request_id = item.request_id
        group.append(item)
    if group:
        yield group


def _find_title(group: Sequence[Item]) -> str:
    first = group[0]
    if not isinstance(first, MessageItem) or first.role != "user":
        return "Before the first message"
    texts = "\n".join(part.text.content for part in first.parts if part.text)
    line = " ".join((texts.strip() or first.text.content)[: 4 * _TITLE_CHARACTERS].split())
    return (line if len(line) <= _TITLE_CHARACTERS else f"{line[: _TITLE_CHARACTERS - 1]}…") or "Message"
