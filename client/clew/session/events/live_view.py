"""What the live channel tells of one session, beside the server: what its calls say, and what it has decided. Pure.

What a call says comes by heartbeats, too. Both have the same form, and say from which character on their text is:
what comes twice, late, or by both ways is there once. What a workflow task has decided counts when the history has
the task.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import TypeAlias

from clew.session.events.feed import Flight
from clew.session.live.channel import Said
from clew_workflows.contract.outputs import FollowPage, ReplyProgress, ToolProgress
from clew_workflows.host.local_runs import Decided

SILENT_SECONDS = 2.5
"""Seconds without an item after which a call that runs counts as silent. Workers write one each second."""
MAX_CALLS = 32
"""Newest calls that are kept."""
MAX_DECISIONS = 32
"""Newest decisions that are kept."""
Task: TypeAlias = tuple[int, int]
"""A workflow task: the number and the time of the event with which it has started."""


class LiveFlights:
    """The calls of one session."""

    def __init__(self) -> None:
        self._said: dict[str, Said] = {}
        self._heard: dict[str, float] = {}
        self._seen: dict[str, float] = {}

    def take(self, items: Iterable[Said], now: float) -> None:
        """Take items of the channel, in order. `now`: the time, in seconds of any clock."""
        for said in items:
            if said.has_ended:
                # The server may not know it yet. If there is another attempt, its time begins when it is seen.
                self._heard.pop(said.activity_id, None)
                self._seen.pop(said.activity_id, None)
            else:
                self._heard[said.activity_id] = now
            call = _name_call(said.progress)
            known = self._said.get(call)
            # Items before it were lost, or came before this viewer: one with the whole text comes within a second.
            if not _has_gap(known, said):
                self._said.pop(call, None)
                self._said[call] = join(known, said)
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


class LiveDecisions:
    """What the workflow tasks of one workflow run have decided.

    Attributes:
        confirmed: The tasks that the history has and that were not used, in order.
    """

    def __init__(self) -> None:
        self.confirmed: list[Task] = []
        self._known: dict[Task, FollowPage | None] = {}
        self._used: Task | None = None

    def take(self, items: Iterable[Decided]) -> None:
        """Take items of the channel. The newest task that was used is to be used again, if it has decided more."""
        for item in items:
            try:
                self._known[item.task] = FollowPage.model_validate(item.page) if item.page else None
            except ValueError:
                self._known[item.task] = None
            if item.task == self._used and not self.confirmed:
                self.confirmed.append(item.task)
        while len(self._known) > MAX_DECISIONS:
            del self._known[next(iter(self._known))]

    def confirm(self, tasks: Iterable[Task]) -> None:
        """Note that the history has these tasks, in order."""
        newest = max(self.confirmed[-1:] + ([self._used] if self._used else []), default=(0, 0))
        self.confirmed += [task for task in tasks if task > newest]

    def knows(self, task: Task) -> bool:
        """Whether it is known what a task has decided, or that the channel does not have it."""
        return task in self._known

    def find_rev(self, task: Task) -> int:
        """Find the number of entries after a task; -1: it is not known."""
        page = self._known.get(task)
        return page.status.rev if page and page.status else -1

    def skip(self) -> None:
        """Use none of the tasks that the history has so far."""
        if self.confirmed:
            self._used = self.confirmed[-1]
            self.confirmed.clear()

    def use(self, task: Task) -> FollowPage | None:
        """Use what a confirmed task has decided; None: it is not known, and the session has to be asked."""
        self.confirmed.remove(task)
        self._used = task
        return self._known.get(task)


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


def _has_gap(known: Said | None, said: Said) -> bool:
    """Whether a part is missing between what is known of a reply and what it says now."""
    if not isinstance(said.progress, ReplyProgress):
        return False
    text = thinking = 0
    if known and known.attempt >= said.attempt and isinstance(known.progress, ReplyProgress):
        text = known.progress.offset + len(known.progress.text)
        thinking = known.progress.thinking_offset + len(known.progress.thinking or "")
    return said.progress.offset > text or said.progress.thinking_offset > thinking


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
