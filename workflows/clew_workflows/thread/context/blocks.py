"""Blocks: atomic groups of messages as a context shows them.

A window keeps or drops a block as one. An assistant's tool calls and all their results are one block. If a call has
no result yet, a placeholder result is added, so that every context is valid input for every provider.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import accumulate, chain, islice
from typing import Any, Literal

from clew_workflows.contract import READ_RESULT, VIEW_BLOB
from clew_workflows.contract.content import Part, describe_part, get_blob, get_text
from clew_workflows.contract.errors import Archived
from clew_workflows.contract.messages import Message, canonicalize, list_call_ids
from clew_workflows.contract.payloads import MessagePayload, StoredSnapshot, ToolMessage
from clew_workflows.contract.policy import ClearMedia, ClearToolResults, ContextPolicy
from clew_workflows.contract.tokens import Encoding, find_piece_starts, split
from clew_workflows.thread.entries import Entry
from clew_workflows.thread.lane import Group, Lane

MISSING_RESULT = "[no result: this tool call was not answered in this conversation]"
"""Content of the placeholder result for a tool call that has none."""
BLOB_PREFIX = 12
"""Digits of a digest by which markers name a blob."""
# Tokens of the placeholder and of both markers, message framing included, without the call's id and the tool's name.
# With one token for each byte of those they are upper bounds under every encoding, so all readers compute the same
# sizes without a vocabulary.
_MISSING_RESULT_TOKENS = 32
_CLEARED_MARKER_TOKENS = 24
_TRUNCATION_MARKER_TOKENS = 44
# Tokens of the marker of an image, a recording or a file, without what it says of it.
_MEDIA_MARKER_TOKENS = 48


@dataclass(frozen=True, slots=True)
class Result:
    """A tool result as a block shows it.

    Attributes:
        tokens: Its size as shown.
        pieces: Tokens of each piece that it can be truncated into; empty: it is one piece.
        bytes: Bytes of the full result that `read_result` reads; None: it must not be truncated.
        note: Text before the result that is never truncated, and its tokens.
        in_doubt: A late result may replace it.
    """

    tokens: int
    pieces: tuple[int, ...] = ()
    bytes: int | None = None
    note: tuple[str, int] = ("", 0)
    in_doubt: bool = False


@dataclass(frozen=True, slots=True)
class Media:
    """An image, a recording or a file of a block's message.

    Attributes:
        message: The index of the message in the block.
        index: The index of the part in the message's content.
        part: The part.
        tokens: Its tokens, as counted when it was committed.
        cleared: Whether a marker stands in its place.
    """

    message: int
    index: int
    part: Part
    tokens: int
    cleared: bool = False


@dataclass(frozen=True)
class Block:
    """One atomic group as a context shows it.

    Attributes:
        messages: The messages, in order.
        tokens: Tokens of all messages.
        kind: `tool_call`: an assistant's tool calls with their results; `message`: any other message.
        seqs: Seqs of its entries; a message of a snapshot has none.
        start: Seq of the first entry of its group; None: it is of a snapshot, a summary or a prompt.
        results: Its tool results, which follow its first message.
        cleared: Number of results that a marker has replaced.
        freed: Tokens that those markers have freed.
        media: Its images, recordings and files that may be cleared, in order.
        freed_media: Tokens that their markers have freed.
        pinned: Its results and media are never cleared, and its results are truncated only if truncating those of the
            newest round is not enough.
        truncated: For each result that is shown in part: its tool call id, bytes shown of its beginning, bytes shown
            of its end.
        full: The block before its results were truncated.
    """

    messages: tuple[Message, ...]
    tokens: int
    kind: Literal["message", "tool_call"]
    seqs: tuple[int, ...] = ()
    start: int | None = None
    results: tuple[Result, ...] = ()
    cleared: int = 0
    freed: int = 0
    media: tuple[Media, ...] = ()
    freed_media: int = 0
    pinned: bool = False
    truncated: tuple[tuple[str, int, int], ...] = ()
    full: Block | None = None

    @property
    def cleared_media(self) -> int:
        """Number of its images, recordings and files in whose place a marker stands."""
        return sum(media.cleared for media in self.media)

    @property
    def missing_tokens(self) -> int:
        """Tokens of its placeholder results; 0 for a block of a snapshot."""
        return 0 if self.start is None else sum(map(_count_missing_result, self.messages[len(self.seqs) :]))

    @property
    def opens_turn(self) -> bool:
        """Whether it is a user's message. A turn is a user's message and everything up to the next one."""
        return self.messages[0]["role"] == "user"

    @cached_property
    def canonical(self) -> bytes:
        """Its messages in canonical JSON, separated by commas, without the brackets of the array."""
        return canonicalize({"messages": self.messages}).removeprefix(b'{"messages":[').removesuffix(b"]}")


@dataclass(frozen=True, slots=True)
class Rendering:
    """Makes blocks from groups of entries and from snapshots.

    Attributes:
        provider: The provider whose `provider_data` the messages keep.
        estimator: Counts the tokens of messages; None: use the counts recorded in the thread.
    """

    provider: str | None = None
    estimator: Encoding | None = None

    def render_group(self, group: Group, at_seq: int) -> Block:
        """Render the entries of a group up to a seq. The group caches the block that has all of its entries."""
        is_complete = (*group.entries, *group.late)[-1].seq <= at_seq
        key = (self, len(group.entries), len(group.late))
        if is_complete and group.rendered and group.rendered[0] == key:
            cached: Block = group.rendered[1]
            return cached
        entries = _order_by_call(group, at_seq) if len(group.entries) > 1 else group.entries
        payloads = [entry.read(MessagePayload) for entry in entries]
        messages = [payload.message for payload in payloads]
        seqs = tuple(entry.seq for entry in entries)
        media = [payload.media_tokens or () for payload in payloads]
        block = self._make_block(messages, [entry.tokens for entry in entries], media, seqs, group.start)
        if block.results:
            answers = (payload for payload in payloads if isinstance(payload, ToolMessage))
            block = replace(block, results=tuple(map(self._make_truncatable, answers, block.results)))
        if is_complete:
            group.rendered = (key, block)
        return block

    def render_snapshot(self, snapshot: StoredSnapshot, late: Iterable[Entry] = ()) -> list[Block]:
        """Render the messages of a snapshot, in order. A result without its call is left out.

        `late`: results that the lane has right after the snapshot. They may answer its last calls.
        """
        blocks: list[Block] = []
        messages: list[Message] = []
        tokens: list[int] = []
        media: list[tuple[int, ...]] = []
        seqs: list[int] = []
        open_calls: set[str] = set()

        def close() -> None:
            if messages:
                blocks.append(self._make_block(messages, tokens, media, tuple(seqs), None))
            messages.clear()
            tokens.clear()
            media.clear()
            seqs.clear()

        shown = snapshot.shown_messages
        stored = zip(shown, snapshot.tokens or (), snapshot.media_tokens or [()] * len(shown), strict=True)
        rows = chain(
            ((message, count, counts, ()) for message, count, counts in stored),
            (
                (entry.message, entry.tokens, entry.read(MessagePayload).media_tokens or (), (entry.seq,))
                for entry in late
            ),
        )
        for message, count, counts, entry_seqs in rows:
            if message["role"] == "tool":
                if (call_id := message.get("tool_call_id")) not in open_calls:
                    continue
                open_calls.remove(call_id)
            else:
                close()
                open_calls = set(list_call_ids(message))
            messages.append(message)
            tokens.append(count)
            media.append(counts)
            seqs += entry_seqs
        close()
        return blocks

    def _make_block(
        self,
        messages: Sequence[Message],
        tokens: Sequence[int],
        media_tokens: Sequence[Sequence[int]],
        seqs: tuple[int, ...],
        start: int | None,
    ) -> Block:
        first, results = messages[0], messages[1:]
        data = first.get("provider_data")
        if data is not None and data["provider"] != self.provider:
            first = first.copy()
            del first["provider_data"]
        answered = {result.get("tool_call_id") for result in results}
        unanswered = [call for call in first.get("tool_calls", []) if call["id"] not in answered]
        missing: list[Message] = [
            {"role": "tool", "content": MISSING_RESULT, "tool_call_id": call["id"], "name": call["name"]}
            for call in unanswered
        ]
        sizes = tokens
        if self.estimator:
            # Media keep the counts of their formula.
            texts = map(self.estimator.count_text, messages)
            sizes = [text + sum(counts) for text, counts in zip(texts, media_tokens, strict=True)]
        return Block(
            (first, *results, *missing),
            sum(sizes) + sum(map(_count_missing_result, missing)),
            "tool_call" if first.get("tool_calls") else "message",
            seqs,
            start,
            tuple(map(Result, sizes[1:])),
            media=_list_media((first, *results), media_tokens) if any(media_tokens) else (),
        )

    def _make_truncatable(self, payload: ToolMessage, result: Result) -> Result:
        """Add to a result of the lane's own what truncating it needs. A snapshot's results are never truncated."""
        pieces, note = payload.pieces or (), payload.edit_note
        if pieces and self.estimator:
            pieces = tuple(map(self.estimator.count, split(payload.text)))
        note_tokens = self.estimator.count(note) if self.estimator else payload.note_tokens or 0
        return replace(result, pieces=pieces, bytes=payload.size, note=(note, note_tokens), in_doubt=payload.in_doubt)


def _list_media(messages: Sequence[Message], media_tokens: Sequence[Sequence[int]]) -> tuple[Media, ...]:
    """List the media of messages. What goes back to a provider as it came cannot be cleared, and is left out."""
    listed: list[Media] = []
    for number, (message, counts) in enumerate(zip(messages, media_tokens, strict=True)):
        content = message["content"]
        if not isinstance(content, str) and "provider_data" not in message:
            parts = ((index, part) for index, part in enumerate(content) if part["type"] != "text")
            rows = zip(parts, counts, strict=False)
            listed += [Media(number, index, part, tokens) for (index, part), tokens in rows]
    return tuple(listed)


def _count_missing_result(result: Message) -> int:
    """Tokens of a placeholder result."""
    return _MISSING_RESULT_TOKENS + len(result.get("name", "").encode())


def _order_by_call(group: Group, at_seq: int) -> list[Entry]:
    """A group's entries up to a seq, with results in the order of their calls.

    The thread has results in the order of arrival. A late result replaces the one that was in doubt.
    """
    first, *results = (entry for entry in group.entries if entry.seq <= at_seq)
    late = (entry for entry in group.late if entry.seq <= at_seq)
    by_call = {entry.read(ToolMessage).tool_call_id: entry for entry in chain(results, late)}
    return [first, *(by_call[call_id] for call_id in first.read(MessagePayload).call_ids if call_id in by_call)]


def make_archived_error(lane: Lane) -> Archived:
    """The error for a context that needs messages which are only in the archive."""
    missing = (
        f"entry {lane.gap.newest_seq} of the lane" if lane.layers.is_complete else "the earlier part of the lane"
    )
    return Archived(f"{missing} is in the archive: read it through ReadThread")


# Clearing: replaces older tool results by a marker that says how to read them again.
#
# The thread keeps every result, and the model reads a cleared one with the tool `read_result`.


def format_cleared_marker(tool_call_id: str) -> str:
    """The content that replaces a cleared result."""
    return f"[cleared: {READ_RESULT}(tool_call_id={tool_call_id!r}) reads it again]"


def count_cleared_marker(message: Message) -> int:
    """Tokens of a result after it has been cleared."""
    return _CLEARED_MARKER_TOKENS + _count_names(message)


def clear_older(blocks: Iterable[Block], rule: ClearToolResults) -> Iterator[Block]:
    """Clear all results but the newest `rule.keep` of blocks that come newest first.

    The newest block is never cleared: the next reply answers its results.
    """
    keep = rule.keep
    for number, block in enumerate(blocks):
        older = max(len(block.results) - keep, 0)
        yield clear_results(block, older, rule) if number and older else block
        keep = max(keep - len(block.results), 0)


def find_reached(blocks: Sequence[Block], rule: ClearToolResults) -> int:
    """Find how many of the oldest results of blocks that come oldest first are cleared, in whole steps.

    A step is a run of consecutive results whose clearing frees `rule.min_tokens`. It is taken when its last result is
    older than those that the rule keeps. Until the next step is taken, blocks that begin alike are cleared alike.
    """
    newest = len(blocks[-1].results) if blocks else 0
    older = sum(len(block.results) for block in blocks) - max(rule.keep, newest)
    freed = (tokens for block in blocks for tokens in _count_freed(block, rule))
    return _find_last_step(freed, older, rule.min_tokens)


def clear_first(blocks: Sequence[Block], count: int, rule: ClearToolResults) -> list[Block]:
    """Clear the first `count` results of blocks that come oldest first."""
    result, left = [], count
    for block in blocks:
        result.append(clear_results(block, left, rule) if left > 0 else block)
        left -= len(block.results)
    return result


def _find_last_step(freed_tokens: Iterable[int], older: int, min_tokens: int) -> int:
    """Find the end of the last whole step among the first `older`, by the tokens that clearing each frees."""
    reached = freed = 0
    for number, tokens in enumerate(islice(freed_tokens, max(older, 0)), 1):
        freed += tokens
        if freed and freed >= min_tokens:
            reached, freed = number, 0
    return reached


def _count_freed(block: Block, rule: ClearToolResults) -> list[int]:
    """The tokens that clearing each result of a block frees; 0 for a result that is never cleared."""
    if not block.results or block.pinned:
        return [0] * len(block.results)
    names = {call["id"]: call["name"] for call in block.messages[0].get("tool_calls", [])}
    return [
        0
        if names.get(message.get("tool_call_id", "")) in rule.exclude_tools
        else max(result.tokens - count_cleared_marker(message), 0)
        for message, result in zip(block.messages[1:], block.results, strict=False)
    ]


def clear_results(block: Block, count: int, rule: ClearToolResults) -> Block:
    """Clear the first `count` results of a block, except those whose clearing frees nothing."""
    freed_by_index = {index: tokens for index, tokens in enumerate(_count_freed(block, rule)[:count]) if tokens}
    if not freed_by_index:
        return block
    messages = list(block.messages)
    results = list(block.results)
    for index in freed_by_index:
        message = messages[index + 1]
        content = format_cleared_marker(message.get("tool_call_id", ""))
        messages[index + 1] = {**message, "content": content}
        results[index] = Result(count_cleared_marker(message))
    freed = sum(freed_by_index.values())
    cleared_ids = {messages[index + 1].get("tool_call_id") for index in freed_by_index}
    return replace(
        block,
        messages=tuple(messages),
        tokens=block.tokens - freed,
        results=tuple(results),
        cleared=len(freed_by_index),
        freed=freed,
        media=tuple(media for media in block.media if media.message - 1 not in freed_by_index),
        truncated=tuple(part for part in block.truncated if part[0] not in cleared_ids),
    )


# Clearing of media: replaces older images, recordings and files by the markers that name them.
#
# The thread and the archive keep every blob, and the model sees a cleared one again with the tool `view_blob`.


def format_media_marker(part: Part, *, viewable: bool) -> str:
    """The text that replaces an image, a recording or a file.

    `viewable`: the model has `view_blob`.
    """
    marker, blob = describe_part(part), get_blob(part)
    if not viewable or blob is None:
        return marker
    return f"{marker[:-1]}; cleared: {VIEW_BLOB}(blob={blob['digest'][:BLOB_PREFIX]!r}) shows it again]"


def count_media_marker(part: Part) -> int:
    """Tokens of the marker of an image, a recording or a file.

    Like those of the other markers they are an upper bound: a token for each byte that describes the part.
    """
    blob = get_blob(part)
    if blob is None:
        return _MEDIA_MARKER_TOKENS + len(describe_part(part).encode())
    details = (value for name, value in blob.items() if name != "digest")
    return _MEDIA_MARKER_TOKENS + sum(len(str(value).encode()) for value in details)


def clear_older_media(
    blocks: Iterable[Block], rule: ClearMedia, protected: Collection[int | None], *, viewable: bool
) -> Iterator[Block]:
    """Clear all media but the newest `rule.keep` of blocks that come newest first.

    `protected`: the starts of blocks whose media are never cleared. Those of the newest block are not, either.
    """
    keep = rule.keep
    for number, block in enumerate(blocks):
        older = max(len(block.media) - keep, 0)
        spared = number == 0 or block.start in protected
        yield block if spared or not older else clear_media(block, older, viewable=viewable)
        keep = max(keep - len(block.media), 0)


def clear_media_in_steps(
    blocks: Sequence[Block], rule: ClearMedia, protected: Collection[int | None], *, viewable: bool
) -> tuple[list[Block], int]:
    """Clear the oldest media of blocks that come oldest first, in whole steps like those of `find_reached`.

    Returns:
        The blocks, and the number of media up to the end of the last step.
    """
    spared = [index == len(blocks) - 1 or block.start in protected for index, block in enumerate(blocks)]
    newest = len(blocks[-1].media) if blocks else 0
    older = sum(len(block.media) for block in blocks) - max(rule.keep, newest)
    tokens = [
        0 if is_spared else freed
        for block, is_spared in zip(blocks, spared, strict=True)
        for freed in _count_freed_media(block)
    ]
    reached = _find_last_step(tokens, older, rule.min_tokens)
    result, left = [], reached
    for block, is_spared in zip(blocks, spared, strict=True):
        result.append(clear_media(block, left, viewable=viewable) if left > 0 and not is_spared else block)
        left -= len(block.media)
    return result, reached


def _count_freed_media(block: Block) -> list[int]:
    """The tokens that clearing each of a block's media frees; 0 for one that is never cleared."""
    if block.pinned:
        return [0] * len(block.media)
    return [max(media.tokens - count_media_marker(media.part), 0) for media in block.media]


def clear_media(block: Block, count: int, *, viewable: bool) -> Block:
    """Clear the first `count` media of a block, except those whose clearing frees nothing."""
    freed_by_index = {index: tokens for index, tokens in enumerate(_count_freed_media(block)[:count]) if tokens}
    if not freed_by_index:
        return block
    messages, results, listed = list(block.messages), list(block.results), list(block.media)
    for index, freed in freed_by_index.items():
        media = listed[index] = replace(listed[index], cleared=True)
        content: Any = messages[media.message]["content"]
        marker: Part = {"type": "text", "text": format_media_marker(media.part, viewable=viewable)}
        shown: list[Part] = [marker if position == media.index else part for position, part in enumerate(content)]
        messages[media.message] = {**messages[media.message], "content": shown}
        if media.message:
            result = results[media.message - 1]
            results[media.message - 1] = replace(result, tokens=result.tokens - freed)
    freed_tokens = sum(freed_by_index.values())
    return replace(
        block,
        messages=tuple(messages),
        tokens=block.tokens - freed_tokens,
        results=tuple(results),
        media=tuple(listed),
        freed_media=freed_tokens,
    )


# Truncation: a tool result that does not fit is truncated, with a marker that says how to read the rest.
#
# The size of a truncated result is computed from the tokens of its pieces, which were counted when it was committed.
# So every reader builds the same context, also without the encoding's vocabulary. The thread keeps every result.


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
    """Tokens of a result that only shows the marker."""
    return _TRUNCATION_MARKER_TOKENS + _count_names(message)


def _count_names(message: Message) -> int:
    return len(f"{message.get('tool_call_id', '')}{message.get('name', '')}".encode())


def count_smallest(block: Block, policy: ContextPolicy, *, is_required: bool) -> int:
    """A lower bound of a block's tokens in any sliding window where it is not the oldest.

    `is_required`: it may be a block that contexts must hold, whose results are truncated as far as it takes.
    """
    truncator, rule = Truncator(compute_results_share(policy)), policy.clear_tool_results
    # A late result may be smaller than the one in doubt.
    uncertain = sum(result.tokens for result in block.results if result.in_doubt) + block.missing_tokens
    if is_required or (policy.clear_media and block.media):
        return max(_count_floor(block) - uncertain, 0)
    if rule is None:
        return max(truncator.truncate_to_share(block).tokens - uncertain, 0)
    counts = range(len(block.results) + 1)
    sizes = (truncator.truncate_to_share(clear_results(block, count, rule)).tokens for count in counts)
    return max(min(sizes) - uncertain, 0)


def _count_floor(block: Block) -> int:
    """Tokens of a block with all media cleared, and each result as small as a marker."""
    small = clear_media(block, len(block.media), viewable=False)
    sizes = (
        (result.tokens, min(count_cleared_marker(message), count_truncation_marker(message)))
        for result, message in zip(small.results, small.messages[1:], strict=False)
    )
    return small.tokens - sum(max(tokens - marker, 0) for tokens, marker in sizes)


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
        if not block.results:
            return block
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
            [
                _Truncatable(result, message, [media for media in block.media if media.message == number])
                for number, (result, message) in enumerate(zip(block.results, block.messages[1:], strict=False), 1)
            ]
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
        messages, results, parts, listed = list(block.messages), list(block.results), [], block.media
        for index, truncatable in enumerate(row):
            if (tokens := truncatable.count_at(level)) < truncatable.result.tokens:
                messages[index + 1], head, tail = truncatable.truncate_to(level, readable=self.readable)
                results[index] = Result(tokens)
                parts.append((messages[index + 1].get("tool_call_id", ""), head, tail))
                if listed:
                    remaining = truncatable.list_remaining(level)
                    listed = (*(media for media in listed if media.message != index + 1), *remaining)
        if not parts:
            return block
        tokens = block.tokens + sum(new.tokens - old.tokens for new, old in zip(results, block.results, strict=True))
        return replace(
            block,
            messages=tuple(messages),
            results=tuple(results),
            tokens=tokens,
            media=tuple(sorted(listed, key=lambda media: (media.message, media.index))),
            truncated=tuple(parts),
            full=block,
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
        if not self.starts:
            return 0
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
    results = group.entries[1:]
    if not results or sum(entry.tokens for entry in results if entry.seq <= upto) <= truncator.share:
        return 0
    block = rendering.render_group(group, upto)
    return block.tokens - truncator.truncate_to_share(block).tokens


class _Truncatable:
    """A tool result that can be truncated.

    A truncated result shows some of its pieces, taken in turn from its beginning and its end, with a marker between
    them. Its text has a marker for each image, recording and file. As many of these as there is room for follow it.
    """

    def __init__(self, result: Result, message: Message, media: Sequence[Media] = ()) -> None:
        self.result = result
        self._message, self._media = message, media
        self._shown = [part for part in media if not part.cleared]
        marker = count_truncation_marker(message) + result.note[1] + _JOIN_TOKENS * bool(result.note[0])
        self._least = min(marker, result.tokens) if result.bytes is not None else result.tokens
        pieces = result.pieces
        order = (pieces[index // 2] if index % 2 == 0 else pieces[-(index // 2) - 1] for index in range(len(pieces)))
        self._steps = list(accumulate(tokens + _JOIN_TOKENS for tokens in order))
        self._media_steps = list(accumulate(part.tokens for part in self._shown))

    def count_at(self, level: int) -> int:
        """Tokens of the result truncated to at most `level` tokens, or to the least it can have."""
        if self.result.tokens <= max(level, self._least):
            return self.result.tokens
        media, pieces = self._choose(level)
        return (
            self._least + (self._media_steps[media - 1] if media else 0) + (self._steps[pieces - 1] if pieces else 0)
        )

    def truncate_to(self, level: int, *, readable: bool) -> tuple[Message, int, int]:
        """Truncate the result to at most `level` tokens.

        Returns:
            The message, and the bytes shown of the result's beginning and of its end.
        """
        note = self.result.note[0]
        data = self._get_text().encode()
        bounds = [*find_piece_starts(data), len(data)]
        media, pieces = self._choose(level)
        size = self.result.bytes or 0
        begin, end = bounds[(pieces + 1) // 2], bounds[-(pieces // 2) - 1]
        if pieces == len(bounds) - 1:
            # All of the text fits: it is the media that do not.
            begin = end = len(data)
            if size <= len(data):
                return self._make_message(note + data.decode(), media), len(data), 0
        marker = format_truncation_marker(
            self._message.get("tool_call_id", ""), begin, end if end < len(data) else size, size, readable=readable
        )
        parts = (data[:begin].decode(), marker, data[end:].decode())
        content = note + "\n".join(part for part in parts if part)
        return self._make_message(content, media), begin, len(data) - end

    def list_remaining(self, level: int) -> list[Media]:
        """List the media that the result has after the text if it is truncated to at most `level` tokens."""
        remaining = self._shown[: self._choose(level)[0]]
        return [replace(media, index=index) for index, media in enumerate(remaining, 1)]

    def _make_message(self, text: str, media: int) -> Message:
        if not media:
            return {**self._message, "content": text}
        return {
            **self._message,
            "content": [{"type": "text", "text": text}, *(part.part for part in self._shown[:media])],
        }

    def _get_text(self) -> str:
        """Get the text of the result without its note, with a plain marker for each of its media."""
        note, content = self.result.note[0], self._message["content"]
        if isinstance(content, str):
            return content.removeprefix(note)
        parts_by_index = {media.index: media.part for media in self._media}
        parts = [parts_by_index.get(index, part) for index, part in enumerate(content)]
        return get_text(parts[1:] if note else parts)

    def _choose(self, level: int) -> tuple[int, int]:
        """Choose how many media and how many pieces are shown at a level."""
        room = level - self._least
        media = bisect_right(self._media_steps, room)
        room -= self._media_steps[media - 1] if media else 0
        # With all media, all pieces would be the full result.
        most = len(self._steps) - (media == len(self._media_steps))
        return media, max(bisect_right(self._steps, room, hi=max(most, 0)), 0)
