"""The thread: a session's append-only log, with what makes reading it cheap.

Invariant: `seq` starts at `first_seq` (0 unless older entries live in an archive) and has no gaps; `rev` is the
number of entries the session has ever had; nothing that was appended is ever changed. The indexes are derived
from the entries alone, so a thread rebuilt from its entries is equal in every answer. Of what lives in an archive
alone, a thread may keep what contexts still need (`Past`): it answers as the whole one would, or says that it cannot.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from clew.entries import DEFAULT_LANE, Entry, call_ids, system_prompt_of
from clew.errors import Archived
from clew.ground import Ground
from clew.messages import Message

if TYPE_CHECKING:
    from clew.cutting import Savings
    from clew.groups import Block, Rendering


@dataclass(frozen=True, slots=True)
class Gap:
    """What of a lane is in the archive alone.

    `newest` is the seq of its newest message there, -1 where there is none. `messages` and `tokens` count those of
    them that come after the seq `mark`, from which on contexts are made, `summed_messages` and `summed_tokens` those
    after `summed`, up to which the last summary speaks. `saved` and `summed_saved` say for each share of tool results
    how many of these tokens are not shown (`clew.cutting`). After the seq `asked_after` no user's message is there
    that comes before the first one which the thread keeps; `unheard` is the newest one of the newest run that it does
    not keep, and -1 where it keeps them all. Of the entries pinned before the gap's end, those in `pinned` are kept
    with their groups. `ground` is the lane's where the kept part of the thread begins.
    """

    newest: int = -1
    mark: int = -1
    messages: int = 0
    tokens: int = 0
    asked_after: int = -1
    summed: int = -1
    summed_messages: int = 0
    summed_tokens: int = 0
    saved: tuple[tuple[int, int], ...] = ()
    summed_saved: tuple[tuple[int, int], ...] = ()
    pinned: tuple[int, ...] = ()
    unheard: int = -1
    ground: Ground | None = None


@dataclass(frozen=True, slots=True)
class Past:
    """What a thread keeps of its archived part: entries before its `first_seq`, in order, with gaps.

    It is enough for contexts at every seq from `upto` on: the configuration in force and the active lane, and of each
    lane in `gaps` its ground, what its newest run's user has said (as far as `Gap.unheard` says), and every message
    after its gap. Of other lanes nothing is known.
    """

    upto: int = -1
    entries: tuple[Entry, ...] = ()
    gaps: Mapping[str, Gap] = field(default_factory=dict)


@dataclass(slots=True)
class Group:
    """What a context keeps or drops as one: a message, or an assistant's tool calls with all their results.

    `late` are results that arrived after the end of the run: each takes the place of one in `entries` that was in
    doubt. `rendered` is how it was shown last, and to whom (`clew.groups`): it is shown alike in many contexts.
    """

    entries: list[Entry]
    late: list[Entry] = field(default_factory=list)
    rendered: tuple[tuple[Rendering, int, int], Block] | None = field(default=None, compare=False, repr=False)

    @property
    def start(self) -> int:
        """The seq of its first entry."""
        return self.entries[0].seq


@dataclass(slots=True)
class Lane:
    """The entries of one named context, indexed by seq."""

    groups: list[Group] = field(default_factory=list)
    group_starts: list[int] = field(default_factory=list)
    turn_starts: list[int] = field(default_factory=list)
    run_starts: list[int] = field(default_factory=list)
    message_seqs: list[int] = field(default_factory=list)
    tokens_upto: list[int] = field(default_factory=list)
    grounds: list[Ground] = field(default_factory=lambda: [Ground()])
    replies: list[Entry] = field(default_factory=list)
    late_seqs: list[int] = field(default_factory=list)
    gap: Gap = Gap()
    folds_from: int = 0
    savings: dict[int, Savings] = field(default_factory=dict, compare=False, repr=False)
    _open_calls: set[str] = field(default_factory=set)
    _in_doubt: dict[str, Group] = field(default_factory=dict)
    _run_id: str | None = None

    def add(self, entry: Entry) -> None:
        """Index one of the lane's own entries."""
        if entry.kind == "ai_message":
            self._add_message(entry)
        elif entry.kind in ("summary", "ai_context_operation") and entry.seq >= self.folds_from:
            ground = self.grounds[-1].under(entry)
            if ground is not self.grounds[-1]:
                self.grounds.append(ground)

    def said_between(self, first: int, last: int) -> tuple[int, int]:
        """How many messages it holds from one seq to another, both included, and their tokens."""
        begin, end = bisect_left(self.message_seqs, first), bisect_right(self.message_seqs, last)
        return end - begin, self._tokens_of(end) - self._tokens_of(begin)

    def _tokens_of(self, count: int) -> int:
        return self.tokens_upto[count - 1] if count else 0

    def ground_at(self, seq: int) -> Ground:
        """The ground at a seq; one without layers where it is not known."""
        place = bisect_right(self.grounds, seq, key=lambda ground: ground.seq)
        return self.grounds[place - 1] if place else Ground(())

    def holds(self, seq: int) -> bool:
        """Whether what is here tells whether there is a message at a seq, and holds its whole group."""
        if seq in self.gap.pinned or self.gap.newest < 0:
            return True
        # A result that comes first after the gap may answer a call that is in it.
        place = bisect_right(self.group_starts, seq)
        return place > 0 and self.group_starts[place - 1] > self.gap.newest

    def group_at(self, seq: int) -> Group | None:
        """The group that holds a message, where it is here."""
        place = bisect_right(self.group_starts, seq)
        group = self.groups[place - 1] if place else None
        return group if group and any(entry.seq == seq for entry in group.entries) else None

    def _add_message(self, entry: Entry) -> None:
        message: Message = entry.message
        self.message_seqs.append(entry.seq)
        self.tokens_upto.append(entry.said_tokens + (self.tokens_upto[-1] if self.tokens_upto else 0))
        if "recipe" in entry.payload:
            self.replies.append(entry)
        if message["role"] == "tool":
            # A result without its call would be refused by every provider; it stays in the thread alone.
            call_id: str = entry.payload["tool_call_id"]
            if entry.payload.get("late"):
                self.late_seqs.append(entry.seq)
            if call_id in self._open_calls:
                self._open_calls.remove(call_id)
                self.groups[-1].entries.append(entry)
                if entry.payload.get("in_doubt"):
                    self._in_doubt[call_id] = self.groups[-1]
            elif entry.payload.get("late") and (group := self._in_doubt.pop(call_id, None)):
                group.late.append(entry)
            return
        self._open_calls = set(call_ids(message))
        self.groups.append(Group([entry]))
        self.group_starts.append(entry.seq)
        if message["role"] == "user":
            self.turn_starts.append(entry.seq)
            run_id = entry.refs.get("run_id")
            if run_id is None or run_id != self._run_id:
                self.run_starts.append(entry.seq)
            self._run_id = run_id


class Thread:
    """The log itself. Appending is the only change it knows."""

    def __init__(self, entries: Iterable[Entry] = (), first_seq: int = 0, past: Past | None = None) -> None:
        self.first_seq = first_seq
        self.past = past or Past()
        self._entries: list[Entry] = []
        self._lanes: dict[str, Lane] = {DEFAULT_LANE: self._new_lane(DEFAULT_LANE)}
        self.configs: list[Entry] = []
        self.prompts: list[Entry] = []
        self.switches: list[Entry] = []
        self._calls: dict[str, Entry] = {}
        self.outcomes: dict[str, Entry] = {}
        self._approvals: dict[str, Entry] = {}
        self._kept = {entry.seq: entry for entry in self.past.entries}
        for name in self.past.gaps:
            self._lanes.setdefault(name, self._new_lane(name))
        for entry in self.past.entries:
            self._index(entry)
        for entry in entries:
            self.append(entry)

    def append(self, entry: Entry) -> None:
        """Add the next entry.

        Raises:
            ValueError: its `seq` is not the next one.
        """
        if entry.seq != self.rev:
            raise ValueError(f"the next entry has seq {self.rev}, not {entry.seq}")
        self._entries.append(entry)
        self._index(entry)

    def _index(self, entry: Entry) -> None:
        if entry.kind == "config":
            prompt = system_prompt_of(entry.payload)
            if not self.prompts or prompt != system_prompt_of(self.prompts[-1].payload):
                self.prompts.append(entry)
            self.configs.append(entry)
        elif entry.kind == "run":
            self.outcomes[entry.refs["request_id"]] = entry
        elif entry.kind == "approval":
            self._approvals[entry.payload.get("tool_call_id", "")] = entry
        elif entry.lane is not None:
            if entry.lane not in self._lanes:
                self._lanes[entry.lane] = self._new_lane(entry.lane)
            self._lanes[entry.lane].add(entry)
            if entry.kind == "ai_context_operation" and entry.payload["operation"]["type"] == "switch":
                self.switches.append(entry)
            if entry.payload.get("role") == "assistant" and (call_id := entry.refs.get("call_id")):
                self._calls[call_id] = entry

    def _new_lane(self, name: str) -> Lane:
        if self.past.upto < 0:
            return Lane()
        gap = self.past.gaps.get(name)
        if gap is None:
            newest = self.first_seq - 1
            unknown = Gap(newest, mark=newest, asked_after=newest, summed=newest)
            return Lane(gap=unknown, grounds=[Ground(())])
        if gap.ground is None:
            return Lane(gap=gap)
        # What of the past is kept is in the ground already.
        return Lane(gap=gap, grounds=[gap.ground], folds_from=max(self.first_seq, gap.ground.seq + 1))

    @property
    def rev(self) -> int:
        """The number of entries, and the seq of the next one."""
        return self.first_seq + len(self._entries)

    @property
    def last_seq(self) -> int:
        """The seq of the newest entry; -1 while there is none."""
        return self.rev - 1

    def __len__(self) -> int:
        return len(self._entries)

    def __iter__(self) -> Iterator[Entry]:
        return iter(self._entries)

    def __getitem__(self, seq: int) -> Entry:
        if seq in self._kept:
            return self._kept[seq]
        if 0 <= seq < self.first_seq:
            raise Archived(f"entry {seq} is in the archive: read it through ReadThread")
        if not self.first_seq <= seq < self.rev:
            raise IndexError(f"no entry {seq}: the thread holds {self.first_seq} to {self.last_seq}")
        return self._entries[seq - self.first_seq]

    def slice(self, from_seq: int, to_seq: int) -> list[Entry]:
        """The entries from one seq up to another, both included; what is not there is left out."""
        start = max(from_seq - self.first_seq, 0)
        return self._entries[start : max(to_seq - self.first_seq + 1, start)]

    def filter_by_kind(self, kind: str) -> list[Entry]:
        """The entries of one kind."""
        return [entry for entry in self._entries if entry.kind == kind]

    def filter_by_ref(self, name: str, value: str) -> list[Entry]:
        """The entries whose `refs` hold a value under a name."""
        return [entry for entry in self._entries if entry.refs.get(name) == value]

    def entries_before_call(self, call_id: str) -> list[Entry]:
        """The entries that the context of a model call was projected from; none where the call is unknown."""
        reply = self._calls.get(call_id)
        return self.slice(self.first_seq, reply.payload["recipe"]["basis_seq"]) if reply else []

    def reply_to(self, call_id: str) -> Entry | None:
        """The assistant's message that answered a model call."""
        return self._calls.get(call_id)

    def outcome_of(self, request_id: str) -> Entry | None:
        """The `run` entry that ended a request."""
        return self.outcomes.get(request_id)

    def approval_of(self, tool_call_id: str) -> Entry | None:
        """The `approval` entry that decided upon a tool call."""
        return self._approvals.get(tool_call_id)

    def lane(self, context_ref: str) -> Lane | None:
        """The index of a lane, where the thread has one of that name."""
        lane = self._lanes.get(context_ref)
        return self._new_lane(context_ref) if lane is None and self.past.upto >= 0 else lane

    def anchor_at(self, context_ref: str, seq: int) -> Entry | None:
        """The snapshot under a lane at a seq.

        Raises:
            Archived: it cannot be told from what the thread keeps of its past.
        """
        lane = self.lane(context_ref)
        ground = lane.ground_at(seq) if lane else Ground()
        if not ground.known:
            raise Archived(f"the lane {context_ref!r} is in the archive: read it through ReadThread")
        return self[ground.top.anchor] if ground.top.anchor >= 0 else None

    def held_from(self, context_ref: str) -> int:
        """The seq from which on every message of a lane is held."""
        lane = self.lane(context_ref)
        return lane.gap.newest + 1 if lane else 0

    def config_at(self, seq: int) -> Entry | None:
        """The configuration in force at a seq.

        Raises:
            Archived: the seq is before what the thread keeps of its past.
        """
        self._check_kept(seq)
        return last_at(self.configs, seq)

    def prompt_at(self, seq: int) -> Entry | None:
        """The configuration that put the system prompt in force at a seq; those after it have left it as it is."""
        return last_at(self.prompts, seq)

    def active_lane_at(self, seq: int) -> str:
        """The lane that is active at a seq.

        Raises:
            Archived: the seq is before what the thread keeps of its past.
        """
        self._check_kept(seq)
        switch = last_at(self.switches, seq)
        return switch.payload["context_ref"] if switch else DEFAULT_LANE

    def _check_kept(self, seq: int) -> None:
        if seq < self.past.upto:
            raise Archived(f"entry {seq} is in the archive: read it through ReadThread")


def last_at(entries: list[Entry], seq: int) -> Entry | None:
    """The newest of some entries in order of seq that is not after a seq."""
    place = bisect_right(entries, seq, key=lambda entry: entry.seq)
    return entries[place - 1] if place else None
