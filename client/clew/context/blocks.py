"""Atomic groups, rendered: the blocks that a window keeps or drops whole.

An assistant's tool calls and all their results are one block. Where the thread ends inside one, or was cut there,
the missing results are put in, so that every context is valid input for every provider.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import chain
from typing import Literal

from clew.contract.payloads import MessagePayload, StoredSnapshot, ToolMessage
from clew.errors import Archived
from clew.model.canonical import canonicalize
from clew.model.messages import Message, list_call_ids
from clew.model.pieces import split
from clew.model.tokens import Encoding
from clew.thread.entries import Entry
from clew.thread.lane import Group, Lane

MISSING_RESULT = "[no result: the conversation was cut here before this tool call was answered]"
# With its framing, and beside it a token for each byte of the tool's name: an upper bound under every encoding,
# so that a reader without a vocabulary sizes the repaired context as its writer did.
_MISSING_RESULT_TOKENS = 32


@dataclass(frozen=True, slots=True)
class Result:
    """A tool result as a block shows it.

    Attributes:
        tokens: Its size as it is shown.
        pieces: The tokens of its pieces, where it may be cut; none of a text that is one piece.
        bytes: The size of the result that `read_result` reads; None: it is not to be cut.
        note: What stands before the result and is never cut, and its tokens.
        in_doubt: A late result may take its place.
    """

    tokens: int
    pieces: tuple[int, ...] = ()
    bytes: int | None = None
    note: tuple[str, int] = ("", 0)
    in_doubt: bool = False


@dataclass(frozen=True)
class Block:
    """One atomic group as a context shows it.

    Attributes:
        seqs: The seqs of its entries, and `start` the first of them; a snapshot's blocks have none.
        results: Its tool results, which come right after its first message.
        cleared: How many of them have given way to a marker, which has freed `freed` tokens.
        pinned: Nothing of it is cleared, and it is cut only where nothing else is left to be cut.
        cut: Of each result that is shown in part: its tool call's id, and the bytes of its beginning and of its end.
        uncut: The block before it was cut.
    """

    messages: tuple[Message, ...]
    tokens: int
    kind: Literal["message", "tool_call"]
    seqs: tuple[int, ...] = ()
    start: int | None = None
    results: tuple[Result, ...] = ()
    cleared: int = 0
    freed: int = 0
    pinned: bool = False
    cut: tuple[tuple[str, int, int], ...] = ()
    uncut: Block | None = None

    @property
    def missing_tokens(self) -> int:
        """The tokens of the results that stand in for those that its calls do not have yet."""
        return 0 if self.start is None else sum(map(_missing_tokens, self.messages[len(self.seqs) :]))

    @property
    def opens_turn(self) -> bool:
        """Whether it is a user's message: a turn is that and everything up to the next."""
        return self.messages[0]["role"] == "user"

    @cached_property
    def canonical(self) -> bytes:
        """Its messages as they stand in the canonical form of a context, without the brackets around them."""
        return canonicalize({"messages": self.messages}).removeprefix(b'{"messages":[').removesuffix(b"]}")


@dataclass(frozen=True, slots=True)
class Rendering:
    """How messages are shown: whose `provider_data` they keep, and what sizes them if not the recorded counts."""

    provider: str | None = None
    estimator: Encoding | None = None

    def render_group(self, group: Group, at_seq: int) -> Block:
        """A group as far as it goes up to a seq. Of a whole one, as most are, the group remembers how it looks."""
        whole = (*group.entries, *group.late)[-1].seq <= at_seq
        key = (self, len(group.entries), len(group.late))
        if whole and group.rendered and group.rendered[0] == key:
            known: Block = group.rendered[1]
            return known
        entries = _in_call_order(group, at_seq)
        said = [entry.read(MessagePayload) for entry in entries]
        messages = [one.message for one in said]
        seqs = tuple(entry.seq for entry in entries)
        block = self._block(messages, [entry.tokens for entry in entries], seqs, group.start)
        if block.results:
            answers = (one for one in said if isinstance(one, ToolMessage))
            block = replace(block, results=tuple(map(self._result, answers, block.results)))
        if whole:
            group.rendered = (key, block)
        return block

    def render_snapshot(self, snapshot: StoredSnapshot, late: Iterable[Entry] = ()) -> list[Block]:
        """The messages that a `replace` put under its lane, in order. A result without its call is left out.

        `late` are the results that come right after the snapshot: they may answer its last calls.
        """
        blocks: list[Block] = []
        messages: list[Message] = []
        tokens: list[int] = []
        seqs: list[int] = []
        open_calls: set[str] = set()

        def close() -> None:
            if messages:
                blocks.append(self._block(messages, tokens, tuple(seqs), None))
            messages.clear()
            tokens.clear()
            seqs.clear()

        stored = zip(snapshot.shown_messages, snapshot.tokens or (), strict=True)
        rows = chain(
            ((message, count, ()) for message, count in stored),
            ((entry.message, entry.tokens, (entry.seq,)) for entry in late),
        )
        for message, count, committed in rows:
            if message["role"] == "tool":
                if (call_id := message.get("tool_call_id")) not in open_calls:
                    continue
                open_calls.remove(call_id)
            else:
                close()
                open_calls = set(list_call_ids(message))
            messages.append(message)
            tokens.append(count)
            seqs += committed
        close()
        return blocks

    def _block(
        self, messages: Sequence[Message], tokens: Sequence[int], seqs: tuple[int, ...], start: int | None
    ) -> Block:
        first, results = self._for_provider(messages[0]), messages[1:]
        answered = {result.get("tool_call_id") for result in results}
        unanswered = [call for call in first.get("tool_calls", []) if call["id"] not in answered]
        missing: list[Message] = [
            {"role": "tool", "content": MISSING_RESULT, "tool_call_id": call["id"], "name": call["name"]}
            for call in unanswered
        ]
        sizes = list(map(self.estimator.count_message, messages)) if self.estimator else tokens
        return Block(
            (first, *results, *missing),
            sum(sizes) + sum(map(_missing_tokens, missing)),
            "tool_call" if first.get("tool_calls") else "message",
            seqs,
            start,
            tuple(map(Result, sizes[1:])),
        )

    def _result(self, said: ToolMessage, plain: Result) -> Result:
        """A result of the lane's own, which may be cut."""
        pieces, note = said.pieces or (), said.edit_note
        if pieces and self.estimator:
            pieces = tuple(map(self.estimator.count, split(said.content)))
        tokens = self.estimator.count(note) if self.estimator else said.note_tokens or 0
        return replace(plain, pieces=pieces, bytes=said.size, note=(note, tokens), in_doubt=said.in_doubt)

    def _for_provider(self, message: Message) -> Message:
        data = message.get("provider_data")
        if data is None or data["provider"] == self.provider:
            return message
        rest = message.copy()
        del rest["provider_data"]
        return rest


def _missing_tokens(result: Message) -> int:
    """What a result costs that stands in for a missing one."""
    return _MISSING_RESULT_TOKENS + len(result.get("name", "").encode())


def _in_call_order(group: Group, at_seq: int) -> list[Entry]:
    """A group's entries up to a seq as a context shows them: results in the order of their calls, late ones in place.

    The thread has results in the order in which they arrived.
    """
    first, *results = (entry for entry in group.entries if entry.seq <= at_seq)
    late = (entry for entry in group.late if entry.seq <= at_seq)
    by_call = {entry.read(ToolMessage).tool_call_id: entry for entry in chain(results, late)}
    return [first, *(by_call[call_id] for call_id in first.read(MessagePayload).call_ids if call_id in by_call)]


def render_newest_first(lane: Lane, rendering: Rendering, after: int, upto: int) -> Iterator[Block]:
    """A lane's own groups that start after one seq and not after another, from the newest on.

    Raises:
        Archived: the next one is in the archive.
    """
    place = bisect_right(lane.group_starts, upto)
    oldest = max(after, lane.gap.newest_seq)
    while place and lane.group_starts[place - 1] > oldest:
        place -= 1
        yield rendering.render_group(lane.groups[place], upto)
    if lane.gap.newest_seq > after:
        raise archived(lane)


def archived(lane: Lane) -> Archived:
    """The refusal to make a context of what is not here."""
    what = f"entry {lane.gap.newest_seq} of the lane" if lane.layers.is_complete else "what the lane has said before"
    return Archived(f"{what} is in the archive: read it through ReadThread")
