"""Truncation: a tool result that does not fit is truncated, with a marker that says how to read the rest.

The size of a truncated result is computed from the tokens of its pieces, which were counted when it was committed. So
every reader builds the same context, also without the encoding's vocabulary. The thread keeps every result in full.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate

from clew_workflows.contract import READ_RESULT
from clew_workflows.contract.messages import Message
from clew_workflows.contract.policy import ContextPolicy
from clew_workflows.contract.tokens import find_piece_starts
from clew_workflows.thread.context.blocks import Block, Rendering, Result, clear_results
from clew_workflows.thread.lane import Group, Lane

# Tokens of a marker without the call's id and the tool's name, message framing included. With one token for each byte
# of those it is an upper bound under every encoding.
_MARKER_TOKENS = 44
# Tokens added for each piece: joined pieces may have more tokens than the pieces alone, since an encoding splits
# words and numbers differently where two pieces meet.
_JOIN_TOKENS = 2
# The results of one round get 1/3 of the budget.
_SHARE = 3
# Leading binary digits of the share that are not rounded to zero.
_SHARE_BITS = 3


def compute_results_share(policy: ContextPolicy) -> int:
    """The most tokens for the results of one round of tool calls when not everything fits.

    It is a third of the budget, which leaves room for the rounds before and after. Rounding it down to three binary
    digits keeps it the same under small corrections of the budget, so older results are shown the same again.
    """
    share = policy.budget // _SHARE
    step = 1 << max(share.bit_length() - _SHARE_BITS, 0)
    return share // step * step


def format_truncation_marker(tool_call_id: str, begin: int, end: int, size: int, *, readable: bool) -> str:
    """The text in place of bytes `begin` to `end` of a result of `size` bytes.

    `readable`: the model has `read_result`.
    """
    how = f": {READ_RESULT}(tool_call_id={tool_call_id!r}, offset={begin}) reads on" if readable else ""
    return f"[bytes {begin} to {end} of {size} are left out{how}]"


def count_truncation_marker(message: Message) -> int:
    """Tokens of a result of which only the marker is shown."""
    id_and_name = f"{message.get('tool_call_id', '')}{message.get('name', '')}"
    return _MARKER_TOKENS + len(id_and_name.encode())


def count_smallest(block: Block, policy: ContextPolicy) -> int:
    """A lower bound of a block's tokens in any window of a policy where it is neither the oldest nor the newest."""
    truncator, rule = Truncator(compute_results_share(policy)), policy.clear_tool_results
    # A late result may be smaller than the one in doubt, and an epoch's measure has no placeholder results.
    uncertain = sum(result.tokens for result in block.results if result.in_doubt) + block.missing_tokens
    # An epoch's window is chosen before results are cleared.
    if rule is None or policy.window == "epoch":
        return max(truncator.truncate_to_share(block).tokens - uncertain, 0)
    counts = range(len(block.results) + 1)
    sizes = (truncator.truncate_to_share(clear_results(block, count, rule)).tokens for count in counts)
    return max(min(sizes) - uncertain, 0)


@dataclass(frozen=True, slots=True)
class Truncator:
    """Truncates tool results.

    Attributes:
        share: Most tokens for the results of one block, as `compute_results_share` computes it.
        readable: The model has `read_result`, so the marker names it.
    """

    share: int
    readable: bool = True

    def truncate_to_share(self, block: Block) -> Block:
        """Truncate a block's results to the share. The outcome is the same in every context of a policy."""
        block = block.full or block
        result_tokens = sum(result.tokens for result in block.results)
        if block.pinned or result_tokens <= self.share:
            return block
        return self.truncate_to_room((block,), block.tokens - result_tokens + self.share)[0]

    def truncate_to_room(self, blocks: Sequence[Block], room: int) -> list[Block]:
        """Truncate the largest results of the blocks until all blocks together fit into `room` tokens.

        If they cannot fit, every result that can be truncated is as small as possible.
        """
        full_blocks = [block.full or block for block in blocks]
        total = sum(block.tokens for block in full_blocks)
        if total <= room:
            return full_blocks
        rows = [
            [_Truncatable(*row) for row in zip(block.results, block.messages[1:], strict=False)]
            for block in full_blocks
        ]
        fixed = total - sum(truncatable.result.tokens for row in rows for truncatable in row)

        def count_at(level: int) -> int:
            return fixed + sum(truncatable.count_at(level) for row in rows for truncatable in row)

        # The level is the most tokens that any result may have. Take the highest one at which the blocks fit.
        largest = max((truncatable.result.tokens for row in rows for truncatable in row), default=0)
        level = max(bisect_right(range(largest + 1), room, key=count_at) - 1, 0)
        return [self._truncate_block(block, row, level) for block, row in zip(full_blocks, rows, strict=True)]

    def _truncate_block(self, block: Block, row: Sequence[_Truncatable], level: int) -> Block:
        messages, results, parts = list(block.messages), list(block.results), []
        for index, truncatable in enumerate(row):
            if (tokens := truncatable.count_at(level)) < truncatable.result.tokens:
                messages[index + 1], head, tail = truncatable.truncate_to(level, readable=self.readable)
                results[index] = Result(tokens)
                parts.append((messages[index + 1].get("tool_call_id", ""), head, tail))
        if not parts:
            return block
        tokens = block.tokens + sum(new.tokens - old.tokens for new, old in zip(results, block.results, strict=True))
        return replace(
            block, messages=tuple(messages), results=tuple(results), tokens=tokens, truncated=tuple(parts), full=block
        )


@dataclass(slots=True)
class Savings:
    """Tokens saved by truncating results to the share, over all groups of a lane but the newest.

    Attributes:
        starts: Seq at which each group begins whose results are truncated.
        totals: For each of those groups, the tokens saved by it and all before it.
        counted: Number of groups looked at.
    """

    starts: list[int] = field(default_factory=list)
    totals: list[int] = field(default_factory=list)
    counted: int = 0

    def count_between(self, first: int, last: int) -> int:
        """Tokens saved by the groups that start from the seq `first` to the seq `last`, both included."""
        begin, end = bisect_left(self.starts, first), bisect_right(self.starts, last)
        return self._count_first(end) - self._count_first(begin)

    def add(self, start: int, saved: int) -> None:
        """Add the next group of the lane."""
        self.counted += 1
        if saved:
            self.starts.append(start)
            self.totals.append(self._count_first(len(self.totals)) + saved)

    def _count_first(self, count: int) -> int:
        return self.totals[count - 1] if count else 0


def update_savings(lane: Lane, truncator: Truncator, rendering: Rendering) -> Savings:
    """Bring the savings that a lane caches up to date. Each group is rendered for it only once."""
    savings: Savings = lane.savings.setdefault(truncator.share, Savings())
    for group in lane.groups[savings.counted : -1]:
        savings.add(group.start, count_saved(group, truncator, rendering, group.entries[-1].seq))
    return savings


def count_saved(group: Group, truncator: Truncator, rendering: Rendering, upto: int) -> int:
    """Tokens saved by truncating the results of a group to the share, counting entries up to the seq `upto`."""
    if sum(entry.tokens for entry in group.entries[1:] if entry.seq <= upto) <= truncator.share:
        return 0
    block = rendering.render_group(group, upto)
    return block.tokens - truncator.truncate_to_share(block).tokens


class _Truncatable:
    """A tool result that can be truncated.

    A truncated result shows some of its pieces, taken in turn from its beginning and its end, with a marker between
    them.
    """

    def __init__(self, result: Result, message: Message) -> None:
        self.result = result
        self._message = message
        marker = count_truncation_marker(message) + result.note[1] + _JOIN_TOKENS * bool(result.note[0])
        self._least = min(marker, result.tokens) if result.bytes is not None else result.tokens
        pieces = result.pieces
        order = (pieces[index // 2] if index % 2 == 0 else pieces[-(index // 2) - 1] for index in range(len(pieces)))
        self._steps = list(accumulate(tokens + _JOIN_TOKENS for tokens in order))[:-1]

    def count_at(self, level: int) -> int:
        """Tokens of the result truncated to at most `level` tokens, or to the least it can have."""
        if self.result.tokens <= max(level, self._least):
            return self.result.tokens
        pieces = self._count_pieces(level)
        return self._least + (self._steps[pieces - 1] if pieces else 0)

    def truncate_to(self, level: int, *, readable: bool) -> tuple[Message, int, int]:
        """Truncate the result to at most `level` tokens.

        Returns:
            The message, and the bytes shown of the result's beginning and of its end.
        """
        note = self.result.note[0]
        data = self._message["content"].removeprefix(note).encode()
        bounds = [*find_piece_starts(data), len(data)]
        pieces = self._count_pieces(level)
        begin, end = bounds[(pieces + 1) // 2], bounds[-(pieces // 2) - 1]
        size = self.result.bytes or 0
        marker = format_truncation_marker(
            self._message.get("tool_call_id", ""), begin, end if end < len(data) else size, size, readable=readable
        )
        parts = (data[:begin].decode(), marker, data[end:].decode())
        content = note + "\n".join(part for part in parts if part)
        return {**self._message, "content": content}, begin, len(data) - end

    def _count_pieces(self, level: int) -> int:
        """The number of pieces shown at a level."""
        return bisect_right(self._steps, level - self._least)
