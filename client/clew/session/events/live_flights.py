"""What the calls of one session have said, as their live channel and their heartbeats tell it. Pure.

Both have the same form, and each says from which character on its text is. So what comes twice, late, or by both ways
is there once.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from clew.live.channel import Said
from clew.session.events.feed import Flight
from clew_workflows.contract.outputs import ReplyProgress, ToolProgress

SILENT_SECONDS = 2.5
"""Seconds without an item after which a call that runs counts as silent. Workers write one each second."""
MAX_CALLS = 32
"""Newest calls that are kept."""


class LiveFlights:
    """The calls of one session."""

    def __init__(self) -> None:
        self._said: dict[str, Said] = {}
        self._heard: dict[str, float] = {}
        self._seen: dict[str, float] = {}

    def take(self, items: Iterable[Said], now: float) -> None:
        """Take items of the channel, in order. `now`: the time, in seconds of any clock."""
        for said in items:
            self._heard[said.activity_id] = now
            call = _name_call(said.progress)
            self._said[call] = join(self._said.pop(call, None), said)
        while len(self._said) > MAX_CALLS:
            del self._said[next(iter(self._said))]

    def merge(self, described: Sequence[Flight]) -> tuple[Flight, ...]:
        """Merge what was said with the calls that the server describes. Calls that it does not know yet are last."""
        newest = {said.activity_id: said for said in self._said.values()}
        known = {flight.activity_id for flight in described}
        merged = [
            replace(flight, progress=_choose(flight.progress, newest.get(flight.activity_id))) for flight in described
        ]
        merged += [
            Flight(said.activity_id, isinstance(said.progress, ReplyProgress), said.progress, None)
            for said in newest.values()
            if said.activity_id not in known
        ]
        return tuple(merged)

    def find_silent(self, started: Iterable[str], now: float) -> bool:
        """Find out whether one of these activities, which run, is not heard. The others are forgotten."""
        self._seen = {activity: self._seen.get(activity, now) for activity in started}
        self._heard = {activity: at for activity, at in self._heard.items() if activity in self._seen}
        return any(now - max(at, self._heard.get(name, at)) > SILENT_SECONDS for name, at in self._seen.items())

    def is_heard(self, activity_id: str) -> bool:
        """Whether something was heard of an activity."""
        return activity_id in self._heard


def join(known: Said | None, said: Said) -> Said:
    """Join what a call has said with what it says now."""
    if known is None or said.attempt > known.attempt:
        return said
    if said.attempt < known.attempt:
        # A worker that was thought dead.
        return known
    if not (isinstance(known.progress, ReplyProgress) and isinstance(said.progress, ReplyProgress)):
        return said
    text, thinking = known.progress, known.progress.thinking or ""
    offset, joined = _join_text(text.offset, text.text, said.progress.offset, said.progress.text)
    thinking_offset, thinking = _join_text(
        text.thinking_offset, thinking, said.progress.thinking_offset, said.progress.thinking or ""
    )
    progress = said.progress.model_copy(
        update={
            "offset": offset,
            "text": joined,
            "thinking_offset": thinking_offset,
            "thinking": thinking or None,
        }
    )
    return replace(said, progress=progress)


def _join_text(known_from: int, known: str, offset: int, text: str) -> tuple[int, str]:
    """Join two parts of a text; of two with a gap between them the later one stays."""
    end = known_from + len(known)
    if offset + len(text) <= end and offset >= known_from:
        return known_from, known
    if offset > end or offset <= known_from:
        return (offset, text) if offset + len(text) >= end else (known_from, known)
    return known_from, known[: offset - known_from] + text


def _choose(beat: ReplyProgress | ToolProgress | None, said: Said | None) -> ReplyProgress | ToolProgress | None:
    """Choose the newer of a heartbeat and what the channel has."""
    if said is None or beat is None:
        return said.progress if said else beat
    if not (isinstance(beat, ReplyProgress) and isinstance(said.progress, ReplyProgress)):
        return said.progress
    if beat.call_id != said.progress.call_id:
        return beat
    return join(said, replace(said, attempt=beat.attempt, progress=beat)).progress


def _name_call(progress: ReplyProgress | ToolProgress) -> str:
    return progress.call_id if isinstance(progress, ReplyProgress) else progress.tool_call_id
