"""The turns of a conversation: what its page folds together. Pure."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from clew.report.calls import count_seconds
from clew.report.types import Failure, Item, MessageItem

OPEN_TURNS = 3
"""The newest turns that a page shows open."""
LONG_TURN = 40
"""Items of a turn from which on it is folded, however new it is."""
_TITLE_CHARACTERS = 160


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
    line = " ".join(first.text.content[: 4 * _TITLE_CHARACTERS].split())
    return (line if len(line) <= _TITLE_CHARACTERS else f"{line[: _TITLE_CHARACTERS - 1]}…") or "Message"
