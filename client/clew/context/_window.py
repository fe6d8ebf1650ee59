"""The window: which blocks of the history a context keeps."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from clew.context.blocks import Block
from clew.context.clearing import clear_in_steps, clear_older
from clew.context.truncation import Cutter
from clew.contract.policy import ContextPolicy


@dataclass(slots=True)
class Window:
    """The blocks kept, oldest first. `tokens` counts them and, where `summary_kept`, the summary.

    `epoch` says where an epoch's window begins: the starts of what is kept from before it, and its own (within a
    snapshot: how many blocks of that are kept, negative; nowhere: the last start twice); then the start and the size
    of each block that is cut to the room of this context alone; where tool results are cleared, how many of them the
    steps have reached. Of windows that agree in it the earlier is a prefix of the later.
    """

    blocks: list[Block] = field(default_factory=list)
    tokens: int = 0
    summary_kept: bool = False
    truncated: bool = False
    epoch: tuple[int, ...] | None = None


class View(Protocol):
    """What a window is over."""

    @property
    def policy(self) -> ContextPolicy:
        """What chooses the window."""
        ...

    @property
    def cutter(self) -> Cutter:
        """What cuts tool results."""
        ...

    def blocks(self) -> Iterable[Block]:
        """The blocks, newest first."""
        ...

    @property
    def measure(self) -> tuple[int, int]:
        """How many messages there are, and their tokens."""
        ...

    def measured_blocks(self) -> Iterator[tuple[Block, int, int]]:
        """The blocks, newest first, with the messages and the tokens from each one's start on."""
        ...


def fill_sliding_window(view: View, room: int, current: Sequence[Block], summary: Block | None) -> Window:
    """The sliding window over blocks that come newest first; what clearing frees lets older ones in."""
    if rule := view.policy.clear_tool_results:
        window = _fill_newest_first(view, clear_older(view.blocks(), rule), room, current, summary)
        freed = sum(block.freed for block in window.blocks)
        if freed and freed >= rule.min_tokens:
            return window
    return _fill_newest_first(view, view.blocks(), room, current, summary)


def _fill_newest_first(
    view: View, blocks: Iterable[Block], room: int, current: Sequence[Block], summary: Block | None
) -> Window:
    """The window over the blocks as they are: cleared, or not.

    What is `current` is kept before anything else. Then come the last `keep_last_turns` turns, then the summary,
    then older blocks; always the newest first, stopping at the first that would make more than `max_messages`
    messages, or that does not fit into `room` tokens with its results cut to their share. That one is kept if its
    results can be cut to the room that is left. In the end what room there still is goes to results that were cut.
    """
    policy, cutter = view.policy, view.cutter
    window = Window(tokens=sum(block.tokens for block in current))
    messages = sum(len(block.messages) for block in current)
    waiting = {block.start: block for block in current}
    overflowing: Block | None = None

    def take(some: Iterable[Block]) -> None:
        nonlocal messages, overflowing
        for block in some:
            shown = waiting.pop(block.start, None)
            if shown is None:
                messages += len(block.messages)
                if policy.max_messages and messages > policy.max_messages:
                    window.truncated = True
                    return
                left = room - window.tokens
                shown = block if block.tokens <= left else cutter.cut_to_share(block)
                if shown.tokens > left:
                    window.truncated, overflowing = True, block
                    return
                window.tokens += shown.tokens
            window.blocks.append(shown)

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
    if overflowing:
        (shown,) = cutter.cut_to_room([overflowing], room - window.tokens)
        if shown.tokens <= room - window.tokens:
            window.tokens += shown.tokens
            window.blocks.append(shown)
    window.blocks += reversed(waiting.values())
    for place, block in enumerate(window.blocks):
        if block.uncut:
            (window.blocks[place],) = cutter.cut_to_room([block], room - window.tokens + block.tokens)
            window.tokens += window.blocks[place].tokens - block.tokens
    window.blocks.reverse()
    return window


def _last_turns(rows: Iterator[Block], count: int) -> Iterator[Block]:
    """The blocks of the newest turns; those of older ones stay in `rows`."""
    while count and (block := next(rows, None)):
        yield block
        count -= block.opens_turn


def fill_epoch_window(view: View, room: int, current: Sequence[Block], summary: Block | None) -> Window:
    """A window that begins where it began until it overflows, and then at its low-water mark.

    Where it begins follows from how much the lane has said alone: whenever that passes the room by a whole step (the
    share of the room above the low-water mark), as much goes. So consecutive calls share their beginning to the byte,
    and no cut has to be remembered. `max_messages` is kept to in steps as well. What is `current` is kept also where
    it lies before the beginning, and of the last `keep_last_turns` turns as many as there is room for. The results of
    a block take their share at most, so that it looks the same as long as the window holds it. Tool results are
    cleared within the window, in steps of their own: where it begins does not depend on them.
    """
    policy, window = view.policy, Window()
    if summary:
        window.summary_kept = summary.tokens + sum(block.tokens for block in current) <= room
        window.truncated = not window.summary_kept
        if window.summary_kept:
            window.tokens, room = summary.tokens, room - summary.tokens
    messages, tokens = view.measure
    steps = _Steps(tokens, room, policy.low_water)
    counts = _Steps(messages, policy.max_messages or messages, policy.low_water)
    turns = policy.keep_last_turns
    held = {block.start: block for block in current}
    while True:
        recent: list[Block] = []
        opened, in_steps, overflows = 0, True, False
        for block, messages_from, tokens_from in view.measured_blocks():
            fits = tokens_from <= room and messages_from <= (policy.max_messages or messages_from)
            stepped = tokens_from <= steps.keep and messages_from <= counts.keep
            if not (fits and (stepped or opened < turns)):
                window.truncated, overflows = True, not fits
                break
            recent.append(held.get(block.start, block))
            in_steps = stepped
            opened += block.opens_turn
        if overflows and opened < turns:
            # The steps say how much of the turn that does not fit is kept: else each call would begin differently.
            turns = opened
            continue
        shown = {block.start for block in recent}
        older = [block for block in current if block.start not in shown]
        whole = [*older, *reversed(recent)]
        size = sum(block.tokens for block in whole)
        too_many = policy.max_messages and sum(len(block.messages) for block in whole) > policy.max_messages
        if not recent or not (size > room or too_many):
            break
        if in_steps:
            steps.one_more()
            counts.one_more()
        else:
            turns = min(turns - 1, opened)
    snapshot = sum(block.start is None for block in recent)
    begins = [-snapshot if block.start is None else block.start for block in (*older, *recent[-1:])]
    window.epoch = tuple(begins if recent else [*begins, *begins[-1:]])
    for block in current:
        if block.start is not None and block.tokens < view.cutter.cut_to_share(block).tokens:
            window.epoch += (block.start, block.tokens)
    if rule := policy.clear_tool_results:
        whole, reached = clear_in_steps(whole, rule)
        window.epoch += (reached,)
    window.blocks, window.tokens = whole, window.tokens + sum(block.tokens for block in whole)
    return window


class _Steps:
    """How much of what there is is kept, when it goes in steps."""

    def __init__(self, there: int, room: int, low_water: float) -> None:
        self._step = max(room - int(room * low_water), 1)
        self.keep = there - max(-(-(there - room) // self._step), 0) * self._step

    def one_more(self) -> None:
        """A step less."""
        self.keep -= self._step
