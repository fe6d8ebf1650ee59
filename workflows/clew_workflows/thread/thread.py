"""The thread: a session's append-only log, with indexes that make reading it cheap.

Invariant: `seq` starts at `first_seq` (0 unless older entries are in an archive) and has no gaps; `rev` is the number
of entries that the session has ever had; an appended entry never changes. The indexes are derived from the entries
alone, so a thread rebuilt from its entries gives equal answers. Of its archived part, a thread may retain the entries
that contexts still need (`Retained`). It then answers as the complete thread would, or raises `Archived`.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from operator import attrgetter

from clew_workflows.contract.errors import Archived, InvalidInput
from clew_workflows.contract.payloads import (
    ApprovalPayload,
    AssistantMessage,
    ConfigPayload,
    OperationPayload,
    RunPayload,
)
from clew_workflows.thread.entries import DEFAULT_LANE, Entry
from clew_workflows.thread.lane import ArchivedPart, Lane, Layers


@dataclass(frozen=True, slots=True)
class Retained:
    """The archived entries that a thread retains, for contexts at every seq from `upto` on.

    They have the configuration in force and the active lane. Of each lane in `gaps` they have every message after the
    gap, and of the gap the layers and the user messages of the newest run after `ArchivedPart.dropped_user_seq`. Of
    other lanes they have nothing.

    Attributes:
        upto: The seq of the newest archived entry; -1: nothing is archived.
        entries: The retained entries, in order of seq, all before the thread's `first_seq`.
        gaps: For each lane, by its name, the part that is not retained.
    """

    upto: int = -1
    entries: tuple[Entry, ...] = ()
    gaps: Mapping[str, ArchivedPart] = field(default_factory=dict)


class Thread:
    """The log. Appending an entry is the only change."""

    def __init__(self, entries: Iterable[Entry] = (), first_seq: int = 0, retained: Retained | None = None) -> None:
        self.first_seq = first_seq
        self.retained = retained or Retained()
        self._entries: list[Entry] = []
        self._lanes: dict[str, Lane] = {DEFAULT_LANE: self._new_lane(DEFAULT_LANE)}
        self.configs: list[Entry] = []
        self.prompts: list[Entry] = []
        self.activations: list[Entry] = []
        self._calls: dict[str, Entry] = {}
        self.outcomes: dict[str, Entry] = {}
        self._approvals: dict[str, Entry] = {}
        self._retained_entries = {entry.seq: entry for entry in self.retained.entries}
        for name in self.retained.gaps:
            self._lanes.setdefault(name, self._new_lane(name))
        for entry in self.retained.entries:
            self._index(entry)
        for entry in entries:
            self.append(entry)

    def append(self, entry: Entry) -> None:
        """Add the next entry.

        Raises:
            ValueError: Its `seq` is not the next one.
        """
        if entry.seq != self.rev:
            raise ValueError(f"the next entry has seq {self.rev}, not {entry.seq}")
        self._entries.append(entry)
        self._index(entry)

    def _index(self, entry: Entry) -> None:
        lane = entry.lane
        if lane is not None:
            if lane not in self._lanes:
                self._lanes[lane] = self._new_lane(lane)
            self._lanes[lane].add(entry)
        match entry.body:
            case AssistantMessage():
                if call_id := entry.refs.get("call_id"):
                    self._calls[call_id] = entry
            case OperationPayload(activated_lane=str()):
                self.activations.append(entry)
            case ConfigPayload(prompt=prompt):
                if not self.prompts or prompt != self.prompts[-1].read(ConfigPayload).prompt:
                    self.prompts.append(entry)
                self.configs.append(entry)
            case RunPayload():
                self.outcomes[entry.refs["request_id"]] = entry
            case ApprovalPayload(tool_call_id=tool_call_id):
                self._approvals[tool_call_id] = entry
            case _:
                pass

    def _new_lane(self, name: str) -> Lane:
        if self.retained.upto < 0:
            return Lane()
        gap = self.retained.gaps.get(name)
        if gap is None:
            newest = self.first_seq - 1
            return Lane(gap=ArchivedPart(newest, no_user_after=newest), layer_history=[Layers(())])
        if gap.layers is None:
            return Lane(gap=gap)
        # The layers of the gap already include the retained operations and summaries.
        return Lane(gap=gap, layer_history=[gap.layers], unfolded_from_seq=max(self.first_seq, gap.layers.seq + 1))

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
        if seq in self._retained_entries:
            return self._retained_entries[seq]
        if 0 <= seq < self.first_seq:
            raise _make_archived_error(seq)
        if not self.first_seq <= seq < self.rev:
            raise IndexError(f"no entry {seq}: the thread holds {self.first_seq} to {self.last_seq}")
        return self._entries[seq - self.first_seq]

    def slice(self, from_seq: int, to_seq: int) -> list[Entry]:
        """Return the entries from `from_seq` to `to_seq`, both included, except for archived and future ones."""
        start = max(from_seq - self.first_seq, 0)
        return self._entries[start : max(to_seq - self.first_seq + 1, start)]

    def filter_by_kind(self, kind: str) -> list[Entry]:
        """Return the entries of a kind."""
        return [entry for entry in self._entries if entry.kind == kind]

    def filter_by_ref(self, name: str, value: str) -> list[Entry]:
        """Return the entries whose `refs` have a value under a name."""
        return [entry for entry in self._entries if entry.refs.get(name) == value]

    def find_reply(self, call_id: str) -> Entry | None:
        """Return the reply to a model call."""
        return self._calls.get(call_id)

    def list_entries_before_call(self, call_id: str) -> list[Entry]:
        """List the entries that the context of a model call could hold: all up to the basis of its recipe, in order.

        The context itself is `rebuild_context` of the reply's recipe.

        Raises:
            Archived: The thread does not hold all of them.
            InvalidInput: The thread has no reply to a call of this id.
        """
        reply = self.find_reply(call_id)
        recipe = reply.recipe if reply else None
        if self.first_seq > 0:
            raise _make_archived_error(0)
        if recipe is None:
            raise InvalidInput(f"no model call {call_id!r}: calls are named by `call_id` in the entries' refs")
        return self.slice(0, recipe.basis_seq)

    def find_outcome(self, request_id: str) -> Entry | None:
        """Return the `run` entry of a request."""
        return self.outcomes.get(request_id)

    def find_approval(self, tool_call_id: str) -> Entry | None:
        """Return the `approval` entry of a tool call."""
        return self._approvals.get(tool_call_id)

    def get_lane(self, context_ref: str) -> Lane | None:
        """Return the index of a lane; None where the thread has no lane of that name."""
        lane = self._lanes.get(context_ref)
        return self._new_lane(context_ref) if lane is None and self.retained.upto >= 0 else lane

    def get_lane_at(self, context_ref: str, seq: int) -> Lane | None:
        """Return the index of a lane as contexts at a seq read it, with the corrections that leave it later.

        Raises:
            Archived: The thread does not retain these messages.
        """
        lane = self.get_lane(context_ref)
        if lane is None or not lane.layers.leaves_out_later(seq, self.last_seq):
            return lane
        if lane.gap.layers and lane.gap.layers.leaves_out_later(seq, self.last_seq):
            raise _make_archived_error(seq)
        earlier = self._new_lane(context_ref)
        for entry in (*self.retained.entries, *self.slice(self.first_seq, seq)):
            if entry.lane == context_ref:
                earlier.add(entry)
        return earlier

    def find_anchor(self, context_ref: str, seq: int) -> Entry | None:
        """Return the snapshot that is in force in a lane at a seq.

        Raises:
            Archived: The retained entries do not determine the lane's layers at that seq.
        """
        lane = self.get_lane(context_ref)
        layers = lane.find_layers(seq) if lane else Layers()
        if not layers.is_complete:
            raise Archived(f"the lane {context_ref!r} is in the archive: read it through ReadThread")
        return self[layers.top.anchor] if layers.top.anchor >= 0 else None

    def find_first_held_seq(self, context_ref: str) -> int:
        """Return the first seq from which the thread has every message of a lane."""
        lane = self.get_lane(context_ref)
        return lane.gap.newest_seq + 1 if lane else 0

    def find_config(self, seq: int) -> Entry | None:
        """Return the configuration in force at a seq.

        Raises:
            Archived: The seq is before `retained.upto`.
        """
        if seq < self.retained.upto:
            raise _make_archived_error(seq)
        return find_last(self.configs, seq)

    def find_prompt(self, seq: int) -> Entry | None:
        """Return the configuration that set the system prompt in force at a seq."""
        return find_last(self.prompts, seq)

    def find_active_lane(self, seq: int) -> str:
        """Return the name of the lane that is active at a seq.

        Raises:
            Archived: The seq is before `retained.upto`.
        """
        if seq < self.retained.upto:
            raise _make_archived_error(seq)
        newest = find_last(self.activations, seq)
        return newest.read(OperationPayload).context_ref if newest else DEFAULT_LANE


def _make_archived_error(seq: int) -> Archived:
    return Archived(f"entry {seq} is in the archive: read it through ReadThread")


def find_last(entries: list[Entry], seq: int) -> Entry | None:
    """Return the newest entry that is not after a seq. The entries are in order of seq."""
    count = bisect_right(entries, seq, key=attrgetter("seq"))
    return entries[count - 1] if count else None
