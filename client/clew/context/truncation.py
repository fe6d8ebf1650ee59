"""Cutting: a tool result that has no room is shown in part, with a marker that says how to read the rest.

What a cut result costs follows from the tokens of its pieces, which were counted when it was committed, so that a
reader without a vocabulary makes the same context as its writer did. Nothing is lost: the thread keeps the result.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate

from clew.context.blocks import Block, Rendering, Result
from clew.context.clearing import READ_RESULT, clear_results
from clew.contract.policy import ContextPolicy
from clew.model.messages import Message
from clew.model.pieces import find_piece_starts
from clew.thread.lane import Group, Lane

# With its framing, and beside it a token for each byte of the call's id and of the tool's name: an upper bound under
# every encoding.
_MARKER_TOKENS = 44
# A text may have more tokens than its pieces have: where two of them meet, words and numbers are divided otherwise.
_JOIN_TOKENS = 2
_SHARE = 3
_SHARE_BITS = 3


def compute_results_share(policy: ContextPolicy) -> int:
    """The tokens that the results of one round are shown with at most, where not everything has room.

    It is a third of the budget, so that the rounds before and after it have room too. It is rounded down to three
    binary digits, so that small corrections of the budget leave older results as they are shown.
    """
    share = policy.budget // _SHARE
    step = 1 << max(share.bit_length() - _SHARE_BITS, 0)
    return share // step * step


def format_cut_marker(tool_call_id: str, begin: int, end: int, size: int, *, readable: bool) -> str:
    """What stands in the place of a part of a result, from one byte to another of all its bytes."""
    how = f": {READ_RESULT}(tool_call_id={tool_call_id!r}, offset={begin}) reads on" if readable else ""
    return f"[bytes {begin} to {end} of {size} are left out{how}]"


def count_cut_marker(message: Message) -> int:
    """What a result costs of which nothing but the marker is shown."""
    named = f"{message.get('tool_call_id', '')}{message.get('name', '')}"
    return _MARKER_TOKENS + len(named.encode())


def count_smallest(block: Block, policy: ContextPolicy) -> int:
    """The fewest tokens of a block in any window of a policy, but for the oldest and the newest block in it."""
    cutter, rule = Cutter(compute_results_share(policy)), policy.clear_tool_results
    # A late result may be smaller than what is said of the doubt, and epochs do not count results that are missing.
    unsure = sum(result.tokens for result in block.results if result.in_doubt) + block.missing_tokens
    # The window of an epoch is cut by what was said, and cleared after that.
    if rule is None or policy.window == "epoch":
        return max(cutter.cut_to_share(block).tokens - unsure, 0)
    counts = range(len(block.results) + 1)
    return max(min(cutter.cut_to_share(clear_results(block, count, rule)).tokens for count in counts) - unsure, 0)


@dataclass(frozen=True, slots=True)
class Cutter:
    """Cuts results: to their `share`, or to the room there is. `readable`: the model has `read_result`."""

    share: int
    readable: bool = True

    def cut_to_share(self, block: Block) -> Block:
        """A block whose results take no more than their share: it is the same in every context of a policy."""
        whole = block.uncut or block
        taken = sum(result.tokens for result in whole.results)
        if whole.pinned or taken <= self.share:
            return whole
        return self.cut_to_room((whole,), whole.tokens - taken + self.share)[0]

    def cut_to_room(self, blocks: Sequence[Block], room: int) -> list[Block]:
        """Blocks with their largest results cut, so that all have room together; or as small as they can be."""
        whole = [block.uncut or block for block in blocks]
        if sum(block.tokens for block in whole) <= room:
            return whole
        rows = [[_Cuttable(*row) for row in zip(block.results, block.messages[1:], strict=False)] for block in whole]
        fixed = sum(block.tokens for block in whole) - sum(one.result.tokens for row in rows for one in row)

        def size(level: int) -> int:
            return fixed + sum(one.size(level) for row in rows for one in row)

        # No result is larger than the level, and the level is as high as there is room for.
        largest = max((one.result.tokens for row in rows for one in row), default=0)
        level = max(bisect_right(range(largest + 1), room, key=size) - 1, 0)
        return [self._cut(block, row, level) for block, row in zip(whole, rows, strict=True)]

    def _cut(self, block: Block, row: Sequence[_Cuttable], level: int) -> Block:
        messages, results, cut = list(block.messages), list(block.results), []
        for place, one in enumerate(row):
            if (size := one.size(level)) < one.result.tokens:
                messages[place + 1], head, tail = one.shown(level, readable=self.readable)
                results[place] = Result(size)
                cut.append((messages[place + 1].get("tool_call_id", ""), head, tail))
        if not cut:
            return block
        tokens = block.tokens + sum(new.tokens - old.tokens for new, old in zip(results, block.results, strict=True))
        return replace(
            block, messages=tuple(messages), results=tuple(results), tokens=tokens, cut=tuple(cut), uncut=block
        )


@dataclass(slots=True)
class Savings:
    """What is saved where the results of each group take their share at most: of all groups of a lane but the newest.

    `starts` are those of the groups whose results have been cut, `upto` what is saved by each and those before it.
    """

    starts: list[int] = field(default_factory=list)
    upto: list[int] = field(default_factory=list)
    seen: int = 0

    def between(self, first: int, last: int) -> int:
        """The tokens saved by the groups that start from one seq to another, both included."""
        begin, end = bisect_left(self.starts, first), bisect_right(self.starts, last)
        return self._upto(end) - self._upto(begin)

    def add(self, start: int, saved: int) -> None:
        """Count the next group."""
        self.seen += 1
        if saved:
            self.starts.append(start)
            self.upto.append(self._upto(len(self.upto)) + saved)

    def _upto(self, count: int) -> int:
        return self.upto[count - 1] if count else 0


def update_savings(lane: Lane, cutter: Cutter, rendering: Rendering) -> Savings:
    """The savings in a lane, which remembers them: each group is looked at once."""
    savings: Savings = lane.savings.setdefault(cutter.share, Savings())
    for group in lane.groups[savings.seen : -1]:
        savings.add(group.start, count_saved(group, cutter, rendering, group.entries[-1].seq))
    return savings


def count_saved(group: Group, cutter: Cutter, rendering: Rendering, upto: int) -> int:
    """What is saved by a group as far as it goes up to a seq."""
    if sum(entry.tokens for entry in group.entries[1:] if entry.seq <= upto) <= cutter.share:
        return 0
    block = rendering.render_group(group, upto)
    return block.tokens - cutter.cut_to_share(block).tokens


class _Cuttable:
    """The ways to cut a result: so many of its pieces are shown, by turns from its beginning and from its end."""

    def __init__(self, result: Result, message: Message) -> None:
        self.result = result
        self._message = message
        marker = count_cut_marker(message) + result.note[1] + _JOIN_TOKENS * bool(result.note[0])
        self._least = min(marker, result.tokens) if result.bytes is not None else result.tokens
        pieces = result.pieces
        order = (pieces[place // 2] if place % 2 == 0 else pieces[-(place // 2) - 1] for place in range(len(pieces)))
        self._steps = list(accumulate(tokens + _JOIN_TOKENS for tokens in order))[:-1]

    def size(self, level: int) -> int:
        """Its tokens where it may have so many, or as few as it can have."""
        if self.result.tokens <= max(level, self._least):
            return self.result.tokens
        taken = self._taken(level)
        return self._least + (self._steps[taken - 1] if taken else 0)

    def shown(self, level: int, *, readable: bool) -> tuple[Message, int, int]:
        """The message in this size, and the bytes of its beginning and of its end that are shown."""
        note = self.result.note[0]
        data = self._message["content"].removeprefix(note).encode()
        bounds = [*find_piece_starts(data), len(data)]
        taken = self._taken(level)
        begin, end = bounds[(taken + 1) // 2], bounds[-(taken // 2) - 1]
        size = self.result.bytes or 0
        marker = format_cut_marker(
            self._message.get("tool_call_id", ""), begin, end if end < len(data) else size, size, readable=readable
        )
        parts = (data[:begin].decode(), marker, data[end:].decode())
        content = note + "\n".join(part for part in parts if part)
        return {**self._message, "content": content}, begin, len(data) - end

    def _taken(self, level: int) -> int:
        return bisect_right(self._steps, level - self._least)
