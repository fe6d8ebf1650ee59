"""The window: which blocks of the history a context keeps."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from clew.groups import Block
from clew.policy import ContextPolicy


@dataclass(slots=True)
class Window:
    """The blocks kept, oldest first. `tokens` counts them and, where `summary_kept`, the summary."""

    blocks: list[Block] = field(default_factory=list)
    tokens: int = 0
    summary_kept: bool = False
    truncated: bool = False


def slide(
    blocks: Iterable[Block], policy: ContextPolicy, room: int, current: Sequence[Block], summary: Block | None
) -> Window:
    """The sliding window over blocks that come newest first.

    What is `current` is kept before anything else. Then come the last `keep_last_turns` turns, then the summary,
    then older blocks; always the newest first, stopping at the first that does not fit into `room` tokens or
    would make more than `max_messages` messages.
    """
    window = Window(tokens=sum(block.tokens for block in current))
    messages = sum(len(block.messages) for block in current)
    waiting = {block.start: block for block in current}

    def take(some: Iterable[Block]) -> None:
        nonlocal messages
        for block in some:
            if waiting.pop(block.start, None) is None:
                messages += len(block.messages)
                too_many = policy.max_messages and messages > policy.max_messages
                if too_many or window.tokens + block.tokens > room:
                    window.truncated = True
                    return
                window.tokens += block.tokens
            window.blocks.append(block)

    rows = iter(blocks)
    take(_last_turns(rows, policy.keep_last_turns))
    if summary:
        window.summary_kept = window.tokens + summary.tokens <= room
        if window.summary_kept:
            window.tokens += summary.tokens
        else:
            window.truncated = True
    if not window.truncated:
        take(rows)
    window.blocks += reversed(waiting.values())
    window.blocks.reverse()
    return window


def _last_turns(rows: Iterator[Block], count: int) -> Iterator[Block]:
    """The blocks of the newest turns; those of older ones stay in `rows`."""
    while count and (block := next(rows, None)):
        yield block
        count -= block.opens_turn
