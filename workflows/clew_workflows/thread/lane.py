"""One lane of a thread: its messages in groups, with indexes by seq."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from dataclasses import dataclass, field, replace
from operator import attrgetter
from typing import Any

from clew_workflows.contract.payloads import (
    AppliedCorrected,
    AppliedExpand,
    AppliedPin,
    AppliedReplace,
    AppliedUnpin,
    AppliedWithdraw,
    AssistantMessage,
    MessagePayload,
    OperationPayload,
    SummaryPayload,
    ToolMessage,
    UserMessage,
)
from clew_workflows.thread.entries import Entry

# The layers of a lane: the snapshots and summaries that precede its messages in a context, and what it leaves out.
#
# Layers are a stack. A summary, or a snapshot made by a compaction, is pushed onto the stack, so that an `expand` can
# pop it. Any other snapshot starts a new stack.


MAX_LAYERS = 100
"""Layers of a lane that are kept: one less than this many compactions can be undone, one after another."""


@dataclass(frozen=True, slots=True)
class Layer:
    """A snapshot or a summary, or both, that precedes a lane's messages in a context.

    Attributes:
        anchor: The seq of the snapshot; -1: there is none.
        summary: The seq of the summary; -1: there is none.
        after: The snapshot is followed by the lane's messages after this seq.
        summarized_to: The last seq that the summary covers.
        base: Whether no layer below has an effect.
    """

    anchor: int = -1
    summary: int = -1
    after: int = -1
    summarized_to: int = -1
    base: bool = False


@dataclass(frozen=True, slots=True)
class Layers:
    """The layers, the pins and the withdrawals of a lane after one of its entries.

    Attributes:
        stack: The layers, the one in force last; empty where the lane's past is unknown.
        pinned: The seqs of the pinned entries.
        seq: The seq of the entry that last changed them; -1: none did.
        withdrawn: Pairs of seqs: the user's messages from one to the other, both included, were withdrawn.
        corrected: Seqs of answers, of their corrections, and of the operations that drop both from contexts.
    """

    stack: tuple[Layer, ...] = (Layer(base=True),)
    pinned: tuple[int, ...] = ()
    seq: int = -1
    withdrawn: tuple[tuple[int, int], ...] = ()
    corrected: tuple[tuple[int, int, int], ...] = ()

    @property
    def is_complete(self) -> bool:
        """Whether the stack has every layer that has an effect."""
        return bool(self.stack) and self.stack[0].base

    @property
    def top(self) -> Layer:
        """The layer in force."""
        return self.stack[-1]

    @property
    def is_compacted(self) -> bool:
        """Whether an `expand` has a layer to pop."""
        return len(self.stack) > 1

    def leaves_out(self, entry: Entry) -> bool:
        """Whether contexts leave a message out: it was withdrawn, or is a correction or an answer before one."""
        body, seq = entry.body, entry.seq
        if isinstance(body, UserMessage) and any(first <= seq <= last for first, last in self.withdrawn):
            return True
        is_text = not isinstance(body, ToolMessage)
        return is_text and any(first <= seq <= last for first, last, _ in self.corrected)

    def leaves_out_later(self, seq: int, upto: int) -> bool:
        """Whether messages up to a seq leave the contexts by an operation after it, at `upto` at the latest."""
        return any(first <= seq < applied <= upto for first, _, applied in self.corrected)

    def apply(self, entry: Entry) -> Layers:
        """Return the layers after an operation or a summary of the lane."""
        body = entry.body
        if isinstance(body, SummaryPayload):
            # A summary has no effect where a snapshot or another summary already covers as much.
            if not self.stack or body.to_seq < self.top.summarized_to:
                return self
            return self._push(replace(self.top, summary=entry.seq, summarized_to=body.to_seq, base=False), entry)
        if not isinstance(body, OperationPayload):
            return self
        pinned = set(self.pinned)
        match body.operation:
            case AppliedReplace() as operation:
                after = find_base_seq(entry, operation)
                layer = Layer(entry.seq, after=after, summarized_to=after)
                if operation.is_compaction:
                    return self._push(layer, entry)
                # A later snapshot may be followed by messages from before this one.
                return Layers((replace(layer, base=True),), (), entry.seq, self.withdrawn, self.corrected)
            case AppliedExpand() if self.is_compacted or not self.is_complete:
                return replace(self, stack=self.stack[:-1], seq=entry.seq)
            case AppliedPin(seqs=seqs):
                return replace(self, pinned=tuple(sorted(pinned | set(seqs))), seq=entry.seq)
            case AppliedUnpin(seqs=seqs):
                return replace(self, pinned=tuple(sorted(pinned - set(seqs))), seq=entry.seq)
            case AppliedWithdraw(from_seq=first):
                earlier = (pair for pair in self.withdrawn if pair[1] != entry.seq)
                return replace(self, withdrawn=(*earlier, (first, entry.seq)), seq=entry.seq)
            case AppliedCorrected(from_seq=first, to_seq=last):
                others = (dropped for dropped in self.corrected if dropped[2] != entry.seq)
                return replace(self, corrected=(*others, (first, last, entry.seq)), seq=entry.seq)
            case _:
                return self

    def _push(self, layer: Layer, entry: Entry) -> Layers:
        lower = self.stack[1 - MAX_LAYERS :]
        if len(lower) < len(self.stack):
            lower = (replace(lower[0], base=True), *lower[1:])
        return replace(self, stack=(*lower, layer), seq=entry.seq)


def is_base(entry: Entry) -> bool:
    """Whether a context operation starts a new stack: it puts a snapshot and is not a compaction."""
    operation = entry.read(OperationPayload).operation
    return isinstance(operation, AppliedReplace) and not operation.is_compaction


def find_base_seq(anchor: Entry, operation: AppliedReplace) -> int:
    """Return the seq after which a lane's messages follow a snapshot: its `base_seq`, or the snapshot's own seq."""
    return anchor.seq if operation.base_seq is None else min(operation.base_seq, anchor.seq)


@dataclass(frozen=True, slots=True)
class GapSize:
    """The size of the part of a gap that follows a seq.

    Attributes:
        after: The seq. What comes before is in a snapshot or a summary.
        messages: Messages of the lane after it, up to the newest one in the gap, that contexts do not leave out.
        tokens: Tokens of those messages.
        savings: Pairs of a share, in tokens, and the part of `tokens` that contexts omit when the tool results of
            each group are truncated to that share.
    """

    after: int
    messages: int
    tokens: int
    savings: tuple[tuple[int, int], ...] = ()


@dataclass(frozen=True, slots=True)
class ArchivedPart:
    """The gap of a lane: the part of which a thread does not hold all messages. It holds all that are newer.

    Of the gap itself it may hold single messages, for example pinned ones. The sizes count those, too.

    Attributes:
        newest_seq: The seq of the newest message in the gap; -1: the gap is empty.
        sizes: How large the gap is after each seq at which a context may begin; none where that was not counted.
        no_user_after: After this seq the gap has no user message that precedes the first retained one.
        pinned: The seqs of archived pinned entries that the thread retains, each with its group.
        dropped_user_seq: The newest user message of the newest run that is not retained; -1: all are retained.
        read_after: No message up to this seq was read. A run that seems to begin after it may have begun before, so a
            context that reaches further back cannot tell which of the user's messages it must hold.
        layers: The lane's layers where the live part of the thread begins, and all withdrawals and corrections that
            `sizes` heed.
    """

    newest_seq: int = -1
    sizes: tuple[GapSize, ...] = ()
    no_user_after: int = -1
    pinned: tuple[int, ...] = ()
    dropped_user_seq: int = -1
    read_after: int = -1
    layers: Layers | None = None

    def find_size(self, after: int) -> GapSize | None:
        """Find the size of the gap after a seq; None: it was not counted."""
        if after >= self.newest_seq:
            return GapSize(after, 0, 0)
        return next((size for size in self.sizes if size.after == after), None)


@dataclass(slots=True)
class Group:
    """Entries that a context keeps or drops together: a message, or tool calls with all their results.

    Attributes:
        entries: The message, followed by the results of its tool calls.
        late: Results that arrived after the end of the run. Each replaces one in `entries` that was in doubt.
        rendered: A cache for readers: the group as it was last rendered, and for which provider.
    """

    entries: list[Entry]
    late: list[Entry] = field(default_factory=list)
    rendered: Any = field(default=None, compare=False, repr=False)

    @property
    def start(self) -> int:
        """The seq of the first entry."""
        return self.entries[0].seq


@dataclass(slots=True)
class Lane:
    """The entries of one named context, indexed by seq. It has no withdrawn messages, as if they had never been sent.

    Of an answer that was corrected it has neither the answer nor the correction, once the run has ended.

    Attributes:
        groups: The groups, oldest first.
        group_starts: The seq of the first entry of each group.
        turn_starts: The seqs of the user messages.
        run_starts: The seqs of the user messages that begin a run.
        message_seqs: The seqs of all messages.
        cumulative_tokens: For each message, the tokens of it and all messages before it.
        layer_history: The layers after each entry that changed them, oldest first.
        replies: The replies of models.
        late_seqs: The seqs of the late results.
        gap: The part of the lane that only the archive has.
        unfolded_from_seq: The first seq whose operations and summaries the initial layers do not include.
        savings: A cache for readers: the tokens that truncated tool results save, by their share in tokens.
    """

    groups: list[Group] = field(default_factory=list)
    group_starts: list[int] = field(default_factory=list)
    turn_starts: list[int] = field(default_factory=list)
    run_starts: list[int] = field(default_factory=list)
    message_seqs: list[int] = field(default_factory=list)
    cumulative_tokens: list[int] = field(default_factory=list)
    layer_history: list[Layers] = field(default_factory=lambda: [Layers()])
    replies: list[Entry] = field(default_factory=list)
    late_seqs: list[int] = field(default_factory=list)
    gap: ArchivedPart = ArchivedPart()
    unfolded_from_seq: int = 0
    savings: dict[int, Any] = field(default_factory=dict, compare=False, repr=False)
    _open_calls: set[str] = field(default_factory=set)
    _in_doubt: dict[str, Group] = field(default_factory=dict)
    _run_id: str | None = None

    def add(self, entry: Entry) -> None:
        """Index an entry of the lane."""
        if entry.kind == "ai_message":
            self._add_message(entry)
        elif entry.kind in ("summary", "ai_context_operation") and entry.seq >= self.unfolded_from_seq:
            layers = self.layers.apply(entry)
            if layers is self.layers:
                return
            if layers.withdrawn and layers.withdrawn[-1][1] == entry.seq:
                self._withdraw(*layers.withdrawn[-1])
            if layers.corrected and layers.corrected[-1][2] == entry.seq:
                self._drop_corrected(*layers.corrected[-1])
            self.layer_history.append(layers)

    def count_messages(self, first: int, last: int) -> tuple[int, int]:
        """Count the messages that the index has from `first` to `last`, both included, and their tokens."""
        begin, end = bisect_left(self.message_seqs, first), bisect_right(self.message_seqs, last)
        tokens = self.cumulative_tokens
        return end - begin, (tokens[end - 1] if end else 0) - (tokens[begin - 1] if begin else 0)

    @property
    def layers(self) -> Layers:
        """The layers in force at the newest entry."""
        return self.layer_history[-1]

    def find_layers(self, seq: int) -> Layers:
        """Return the layers in force at a seq; empty and incomplete where they are unknown."""
        count = bisect_right(self.layer_history, seq, key=attrgetter("seq"))
        return self.layer_history[count - 1] if count else Layers(())

    def holds(self, seq: int) -> bool:
        """Whether the index is complete at a seq: it has the message there with its group, or there is none."""
        if seq in self.gap.pinned or self.gap.newest_seq < 0:
            return True
        # The first result after the gap may answer a call in the gap.
        count = bisect_right(self.group_starts, seq)
        return count > 0 and self.group_starts[count - 1] > self.gap.newest_seq

    def find_group(self, seq: int) -> Group | None:
        """Return the group of the message at a seq; None where the index has no such message."""
        count = bisect_right(self.group_starts, seq)
        group = self.groups[count - 1] if count else None
        return group if group and any(entry.seq == seq for entry in group.entries) else None

    def _withdraw(self, first: int, seq: int) -> None:
        """Remove the user's messages from the seq `first` on. Only late results may be newer."""
        known = self.gap.layers is not None and (first, seq) in self.gap.layers.withdrawn
        self._remove(first, seq, is_known=known)

    def _drop_corrected(self, first: int, last: int, seq: int) -> None:
        """Remove an answer, from its first part on, and its correction. They have no tool calls."""
        known = self.gap.layers is not None and (first, last, seq) in self.gap.layers.corrected
        self._remove(first, last, is_known=known)

    def _remove(self, first: int, last: int, *, is_known: bool) -> None:
        """Remove the groups from one seq to another. Each is one message.

        `is_known`: whether the gap was counted without them.
        """
        begin, end = bisect_left(self.group_starts, first), bisect_right(self.group_starts, last)
        for group in self.groups[begin:end]:
            index = bisect_left(self.message_seqs, group.start)
            del self.message_seqs[index]
            del self.cumulative_tokens[index]
            self.cumulative_tokens[index:] = [
                tokens - group.entries[0].lane_tokens for tokens in self.cumulative_tokens[index:]
            ]
        del self.groups[begin:end], self.group_starts[begin:end]
        for starts in (self.turn_starts, self.run_starts):
            del starts[bisect_left(starts, first) : bisect_right(starts, last)]
        newest = self.find_group(self.turn_starts[-1]) if self.turn_starts else None
        self._run_id = newest.entries[0].refs.get("run_id") if newest else None
        self.savings.clear()
        if self.gap.newest_seq >= 0 and not is_known:
            # The gap was counted with these messages, and chosen for their run.
            if first <= self.gap.newest_seq:
                self.gap = replace(self.gap, sizes=())
            # Of the run before, messages may be in the gap, unless another run has a message between them.
            start = max(self.run_starts, default=-1)
            if bisect_left(self.turn_starts, start) <= bisect_right(self.turn_starts, self.gap.newest_seq):
                self.gap = replace(self.gap, dropped_user_seq=start)

    def _add_message(self, entry: Entry) -> None:
        message = entry.read(MessagePayload)
        # A withdrawal follows its messages: before them, only those are known that the archive has.
        known = self.gap.layers
        if known and known.leaves_out(entry):
            return
        self.message_seqs.append(entry.seq)
        self.cumulative_tokens.append(
            entry.lane_tokens + (self.cumulative_tokens[-1] if self.cumulative_tokens else 0)
        )
        if isinstance(message, ToolMessage):
            self._add_result(entry, message)
            return
        self.groups.append(Group([entry]))
        self.group_starts.append(entry.seq)
        self._open_calls = set()
        if isinstance(message, AssistantMessage):
            self._open_calls.update(message.call_ids)
            if message.recipe:
                self.replies.append(entry)
        elif isinstance(message, UserMessage):
            self.turn_starts.append(entry.seq)
            run_id = entry.refs.get("run_id")
            if run_id is None or run_id != self._run_id:
                self.run_starts.append(entry.seq)
            self._run_id = run_id

    def _add_result(self, entry: Entry, result: ToolMessage) -> None:
        # Every provider refuses a result without its call, so such a result is in no group.
        if result.late:
            self.late_seqs.append(entry.seq)
        if result.tool_call_id in self._open_calls:
            self._open_calls.remove(result.tool_call_id)
            self.groups[-1].entries.append(entry)
            if result.in_doubt:
                self._in_doubt[result.tool_call_id] = self.groups[-1]
        elif result.late and (group := self._in_doubt.pop(result.tool_call_id, None)):
            group.late.append(entry)
