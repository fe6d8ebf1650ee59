"""Windows: choose which blocks of a lane's history a context keeps."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from math import inf

from clew_workflows.contract.policy import ClearMedia, ClearToolResults
from clew_workflows.thread.context.blocks import (
    Block,
    clear_first,
    clear_media_in_steps,
    clear_older,
    clear_older_media,
    find_reached,
)
from clew_workflows.thread.context.lane_view import LaneView


@dataclass(slots=True)
class Window:
    """The part of a lane's history that a context keeps.

    `epoch` identifies the beginning of an epoch's window. Of two windows with the same `epoch` the earlier is a
    prefix of the later. It holds, in order:

    1. the start of each required block that lies before the window;
    2. the start of the window's first block. If the window begins within a snapshot: the number of the snapshot's
       blocks in the window, negative. If the window is empty: the last start of 1. again;
    3. the start and the tokens of each required block that is truncated below its share to fit this context;
    4. if the policy clears tool results: the number of results that the steps have reached;
    5. if the policy clears media: the number of media that the steps have reached, and the number that is cleared.

    Attributes:
        blocks: The blocks, oldest first.
        tokens: Tokens of the blocks, and of the summary if it is kept.
        keeps_summary: Whether the summary fits.
        truncated: Whether a block or the summary did not fit: it is left out, or a block's results are shortened.
        epoch: The identity of its beginning; None: the window slides.
    """

    blocks: list[Block] = field(default_factory=list)
    tokens: int = 0
    keeps_summary: bool = False
    truncated: bool = False
    epoch: tuple[int, ...] | None = None


def fill_sliding_window(view: LaneView, room: int, required: Sequence[Block], summary: Block | None) -> Window:
    """Fill a window with the newest blocks that fit.

    If the policy clears media or tool results and that frees enough, the tokens freed make room for older blocks.
    """
    media, results = view.policy.clear_media, view.policy.clear_tool_results
    while True:
        blocks = _clear(view, media, results, {block.start for block in required})
        window = _fill_newest_first(view, blocks, room, required, summary)
        frees_media = media and sum(block.freed_media for block in window.blocks) >= max(media.min_tokens, 1)
        frees_results = results and sum(block.freed for block in window.blocks) >= max(results.min_tokens, 1)
        kept = media if frees_media else None, results if frees_results else None
        if kept == (media, results):
            return window
        media, results = kept


def _clear(
    view: LaneView, media: ClearMedia | None, results: ClearToolResults | None, required: Collection[int | None]
) -> Iterator[Block]:
    """Iterate over the blocks, the newest first, with older media and tool results cleared by the rules."""
    blocks = view.iterate_blocks()
    if media:
        blocks = clear_older_media(blocks, media, required, viewable=view.is_viewable)
    return clear_older(blocks, results) if results else blocks


def _fill_newest_first(
    view: LaneView, blocks: Iterable[Block], room: int, required: Sequence[Block], summary: Block | None
) -> Window:
    """Fill a sliding window with blocks that come newest first.

    Room is given to the required blocks, then to the last `keep_last_turns` turns, then to the summary, then to older
    blocks. The first block that does not fit is kept if its results can be truncated to the room that is left; no
    older block is added after it. In the end, room that is still left goes to results that were truncated.
    """
    filling = _SlidingFilling(view, room, required)
    rows = iter(blocks)
    filling.add_blocks(rows, view.policy.keep_last_turns)
    if summary:
        filling.add_summary(summary)
    if not filling.window.truncated:
        filling.add_blocks(rows)
    return filling.finish()


class _SlidingFilling:
    """A sliding window while it is filled, its blocks newest first. The room of required blocks is reserved."""

    def __init__(self, view: LaneView, room: int, required: Sequence[Block]) -> None:
        self.window = Window(tokens=sum(block.tokens for block in required))
        self._view, self._max_messages, self._room = view, view.policy.max_messages, room
        self._messages = sum(len(block.messages) for block in required)
        self._required = {block.start: block for block in required}
        self._overflowing: Block | None = None

    def add_blocks(self, blocks: Iterator[Block], turns: float = inf) -> None:
        """Add the blocks of the newest `turns` turns; older ones stay in `blocks`.

        It stops at the first block that exceeds `max_messages` or does not fit even truncated to its share.
        """
        window = self.window
        while turns and (block := next(blocks, None)):
            turns -= block.opens_turn
            if block.start in self._required:
                window.blocks.append(self._required.pop(block.start))
                continue
            self._messages += len(block.messages)
            if self._max_messages and self._messages > self._max_messages:
                window.truncated = True
                return
            room_left = self._room - window.tokens
            candidate = block if block.tokens <= room_left else self._view.truncator.truncate_to_share(block)
            if candidate.tokens > room_left:
                window.truncated, self._overflowing = True, block
                return
            window.blocks.append(candidate)
            window.tokens += candidate.tokens

    def add_summary(self, summary: Block) -> None:
        """Count the summary if it fits."""
        if self.window.tokens + summary.tokens <= self._room:
            self.window.keeps_summary = True
            self.window.tokens += summary.tokens
        else:
            self.window.truncated = True

    def finish(self) -> Window:
        """Add the block that did not fit, truncated, and the required blocks that are older than the window.

        Room that is left then goes to results that were truncated, the newest block first.
        """
        window = self.window
        if self._overflowing:
            room_left = self._room - window.tokens
            (block,) = self._view.truncator.truncate_to_room([self._overflowing], room_left)
            if block.tokens <= room_left:
                window.blocks.append(block)
                window.tokens += block.tokens
        window.blocks += reversed(self._required.values())
        for index, block in enumerate(window.blocks):
            if block.full:
                room_left = self._room - window.tokens + block.tokens
                (longer,) = self._view.truncator.truncate_to_room([block], room_left)
                window.blocks[index] = longer
                window.tokens += longer.tokens - block.tokens
        window.blocks.reverse()
        return window


def fill_epoch_window(view: LaneView, room: int, required: Sequence[Block], summary: Block | None) -> Window:
    """Fill a window whose beginning stays in place until the window overflows, and then moves to the low-water mark.

    The beginning depends only on the size of the lane. If that exceeds the room, whole steps are dropped from the
    oldest part; a step is the part of the room above the low-water mark. So the contexts of consecutive calls begin
    with the same bytes, and its first message need not be stored. `max_messages` is enforced in steps, too.

    - Required blocks are kept even if they lie before the beginning.
    - Of the last `keep_last_turns` turns, those that fit in full are kept even if they lie before the beginning.
    - A block's results are always truncated to their share, so a block looks the same in every window.
    - Media and tool results are cleared after the blocks are chosen, in steps of their own, which do not depend on
      each other.
    """
    policy, window = view.policy, Window()
    if summary:
        window.keeps_summary = summary.tokens + sum(block.tokens for block in required) <= room
        window.truncated = not window.keeps_summary
        if window.keeps_summary:
            window.tokens, room = summary.tokens, room - summary.tokens
    older, recent = _select_epoch(view, room, required)
    window.truncated = window.truncated or recent.is_truncated
    window.epoch = _identify_beginning(older, recent.blocks)
    for block in required:
        if block.start is not None and block.tokens < view.truncator.truncate_to_share(block).tokens:
            window.epoch += (block.start, block.tokens)
    window.blocks = [*older, *reversed(recent.blocks)]
    chosen, reached_media = window.blocks, 0
    if media_rule := policy.clear_media:
        starts = {block.start for block in required}
        window.blocks, reached_media = clear_media_in_steps(chosen, media_rule, starts, viewable=view.is_viewable)
    if rule := policy.clear_tool_results:
        reached = find_reached(chosen, rule)
        window.blocks = clear_first(window.blocks, reached, rule)
        window.epoch += (reached,)
    if media_rule:
        window.epoch += (reached_media, sum(block.cleared_media for block in window.blocks))
    window.tokens += sum(block.tokens for block in window.blocks)
    return window


@dataclass(slots=True)
class _Recent:
    """The newest blocks of an epoch's window.

    Attributes:
        blocks: The blocks, newest first.
        turns: Number of turns that begin in them.
        is_in_steps: Whether the oldest block is within the steps; it is not if only `keep_last_turns` keeps it.
        is_truncated: Whether there are older blocks.
        overflows: Whether the next older block does not fit into the room.
    """

    blocks: list[Block] = field(default_factory=list)
    turns: int = 0
    is_in_steps: bool = True
    is_truncated: bool = False
    overflows: bool = False


def _select_epoch(view: LaneView, room: int, required: Sequence[Block]) -> tuple[list[Block], _Recent]:
    """Select the blocks of an epoch's window: the required blocks before it, oldest first, and the newest blocks."""
    limits = _Limits(view, room)
    turns = view.policy.keep_last_turns
    while True:
        recent = _select_recent(view, limits, required, turns)
        if recent.overflows and recent.turns < turns:
            # Keep by turns only those that fit in full. The steps decide how much of the next turn is kept:
            # truncating it to the room would move the beginning at each call.
            turns = recent.turns
            continue
        starts = {block.start for block in recent.blocks}
        older = [block for block in required if block.start not in starts]
        blocks = (*older, *recent.blocks)
        messages = sum(len(block.messages) for block in blocks)
        if not recent.blocks or limits.fit(messages, sum(block.tokens for block in blocks)):
            return older, recent
        # Required blocks before the window, or blocks rendered larger than measured, leave less room than assumed.
        if recent.is_in_steps:
            limits.drop_step()
        else:
            turns = min(turns - 1, recent.turns)


def _select_recent(view: LaneView, limits: _Limits, required: Sequence[Block], turns: int) -> _Recent:
    """Select the newest blocks that fit and are within the steps or belong to the newest `turns` turns."""
    required_by_start = {block.start: block for block in required}
    recent = _Recent()
    for block, messages, tokens in view.iterate_measured_blocks():
        fits, is_in_steps = limits.fit(messages, tokens), limits.fit_steps(messages, tokens)
        if not (fits and (is_in_steps or recent.turns < turns)):
            recent.is_truncated, recent.overflows = True, not fits
            break
        recent.blocks.append(required_by_start.get(block.start, block))
        recent.is_in_steps = is_in_steps
        recent.turns += block.opens_turn
    return recent


def _identify_beginning(older: Sequence[Block], recent: Sequence[Block]) -> tuple[int, ...]:
    """Parts 1 and 2 of `Window.epoch`. `recent` is newest first."""
    snapshot_blocks = sum(block.start is None for block in recent)
    starts = [-snapshot_blocks if block.start is None else block.start for block in (*older, *recent[-1:])]
    return tuple(starts if recent else [*starts, *starts[-1:]])


class _Limits:
    """The limits of an epoch's window: the room and `max_messages`, and below them the steps."""

    def __init__(self, view: LaneView, room: int) -> None:
        policy = view.policy
        messages, tokens = view.size
        self._room, self._max_messages = room, policy.max_messages
        self._message_steps = _Steps(messages, policy.max_messages or messages, policy.low_water)
        self._token_steps = _Steps(tokens, room, policy.low_water)

    def fit(self, messages: int, tokens: int) -> bool:
        """Whether this many messages and tokens fit into the window."""
        return tokens <= self._room and messages <= (self._max_messages or messages)

    def fit_steps(self, messages: int, tokens: int) -> bool:
        """Whether this many messages and tokens are within the steps."""
        return tokens <= self._token_steps.keep and messages <= self._message_steps.keep

    def drop_step(self) -> None:
        """Keep one step less of the messages and the tokens."""
        self._message_steps.drop_one()
        self._token_steps.drop_one()


class _Steps:
    """How much of a lane an epoch's window keeps: its total less the whole steps that exceed a limit.

    Attributes:
        keep: The most tokens or messages to keep.
    """

    def __init__(self, total: int, limit: int, low_water: float) -> None:
        self._step = max(limit - int(limit * low_water), 1)
        steps = max(-(-(total - limit) // self._step), 0)
        self.keep = total - steps * self._step

    def drop_one(self) -> None:
        """Keep one step less."""
        self.keep -= self._step
