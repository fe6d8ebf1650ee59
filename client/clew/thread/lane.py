"""One lane of a thread: its messages in groups, and the indexes that make reading it cheap."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from dataclasses import dataclass, field
from typing import Any

from clew.contract.payloads import MessagePayload, ToolMessage, UserMessage
from clew.thread.entries import Entry
from clew.thread.layers import Layers


@dataclass(frozen=True, slots=True)
class Gap:
    """The part of a lane that is in the archive alone.

    Attributes:
        newest: The seq of its newest message; -1: there is none.
        mark: The seq after which contexts are made of messages.
        messages: The number of its messages after `mark`.
        tokens: The tokens of those messages.
        asked_after: After this seq it has no user's message that comes before the first one which the thread keeps.
        summed: The seq up to which the last summary speaks.
        summed_messages: The number of its messages after `summed`.
        summed_tokens: The tokens of those messages.
        saved: For each share of tool results, how many of `tokens` are not shown.
        summed_saved: For each share of tool results, how many of `summed_tokens` are not shown.
        pinned: The seqs of its pinned entries that the thread keeps, each with its group.
        unheard: The newest user's message of the newest run that the thread does not keep; -1: it keeps them all.
        layers: The lane's layers where the kept part of the thread begins.
    """

    newest_seq: int = -1
    after: int = -1
    messages: int = 0
    tokens: int = 0
    no_user_after: int = -1
    summarized_to: int = -1
    unsummarized_messages: int = 0
    unsummarized_tokens: int = 0
    savings: tuple[tuple[int, int], ...] = ()
    unsummarized_savings: tuple[tuple[int, int], ...] = ()
    pinned: tuple[int, ...] = ()
    dropped_user_seq: int = -1
    layers: Layers | None = None


@dataclass(slots=True)
class Group:
    """What a context keeps or drops as one: a message, or an assistant's tool calls with all their results.

    Attributes:
        entries: The message, and after it the results of its tool calls.
        late: Results that arrived after the end of the run. Each takes the place of one in `entries` that was in
            doubt.
        rendered: How the group was shown last, and to which model: many contexts show it alike.
    """

    entries: list[Entry]
    late: list[Entry] = field(default_factory=list)
    rendered: Any = field(default=None, compare=False, repr=False)

    @property
    def start(self) -> int:
        """The seq of its first entry."""
        return self.entries[0].seq


@dataclass(slots=True)
class Lane:
    """The entries of one named context, indexed by seq.

    Attributes:
        groups: The groups, in order.
        group_starts: The seq at which each group begins.
        turn_starts: The seqs of the users' messages.
        run_starts: The seqs of those of them that begin a run.
        message_seqs: The seqs of all messages.
        tokens_upto: The tokens of each message and all before it.
        layer_history: The layers after each entry that has changed them.
        replies: The messages that models have answered with.
        late_seqs: The seqs of the late results.
        gap: The part of the lane that is in the archive alone.
        folds_from: Operations and summaries before this seq are in the layers already.
        savings: What truncated tool results save, by their share of the budget; filled by readers.
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
    gap: Gap = Gap()
    unfolded_from_seq: int = 0
    savings: dict[int, Any] = field(default_factory=dict, compare=False, repr=False)
    _open_calls: set[str] = field(default_factory=set)
    _in_doubt: dict[str, Group] = field(default_factory=dict)
    _run_id: str | None = None

    def add(self, entry: Entry) -> None:
        """Index one of the lane's own entries."""
        if entry.kind == "ai_message":
            self._add_message(entry)
        elif entry.kind in ("summary", "ai_context_operation") and entry.seq >= self.unfolded_from_seq:
            layers = self.layers.apply(entry)
            if layers is not self.layers:
                self.layer_history.append(layers)

    def count_messages(self, first: int, last: int) -> tuple[int, int]:
        """How many messages it holds from one seq to another, both included, and their tokens."""
        begin, end = bisect_left(self.message_seqs, first), bisect_right(self.message_seqs, last)
        return end - begin, self._sum_tokens(end) - self._sum_tokens(begin)

    def _sum_tokens(self, count: int) -> int:
        return self.cumulative_tokens[count - 1] if count else 0

    @property
    def layers(self) -> Layers:
        """The layers in force at the newest entry."""
        return self.layer_history[-1]

    def find_layers(self, seq: int) -> Layers:
        """The layers in force at a seq; none where they are not known."""
        place = bisect_right(self.layer_history, seq, key=lambda layers: layers.seq)
        return self.layer_history[place - 1] if place else Layers(())

    def holds(self, seq: int) -> bool:
        """Whether what is here tells whether there is a message at a seq, and holds its whole group."""
        if seq in self.gap.pinned or self.gap.newest_seq < 0:
            return True
        # A result that comes first after the gap may answer a call that is in it.
        place = bisect_right(self.group_starts, seq)
        return place > 0 and self.group_starts[place - 1] > self.gap.newest_seq

    def find_group(self, seq: int) -> Group | None:
        """The group that holds a message, where it is here."""
        place = bisect_right(self.group_starts, seq)
        group = self.groups[place - 1] if place else None
        return group if group and any(entry.seq == seq for entry in group.entries) else None

    def _add_message(self, entry: Entry) -> None:
        said = entry.read(MessagePayload)
        self.message_seqs.append(entry.seq)
        self.cumulative_tokens.append(
            entry.lane_tokens + (self.cumulative_tokens[-1] if self.cumulative_tokens else 0)
        )
        if entry.recipe:
            self.replies.append(entry)
        if isinstance(said, ToolMessage):
            self._add_result(entry, said)
            return
        self._open_calls = set(said.call_ids)
        self.groups.append(Group([entry]))
        self.group_starts.append(entry.seq)
        if isinstance(said, UserMessage):
            self.turn_starts.append(entry.seq)
            run_id = entry.refs.get("run_id")
            if run_id is None or run_id != self._run_id:
                self.run_starts.append(entry.seq)
            self._run_id = run_id

    def _add_result(self, entry: Entry, said: ToolMessage) -> None:
        # A result without its call would be refused by every provider; it stays in the thread alone.
        if said.late:
            self.late_seqs.append(entry.seq)
        if said.tool_call_id in self._open_calls:
            self._open_calls.remove(said.tool_call_id)
            self.groups[-1].entries.append(entry)
            if said.in_doubt:
                self._in_doubt[said.tool_call_id] = self.groups[-1]
        elif said.late and (group := self._in_doubt.pop(said.tool_call_id, None)):
            group.late.append(entry)
