"""The naive projection's lane: the messages after its latest summary or snapshot, and its pins, in atomic groups."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import cast

from clew_workflows.contract.messages import Message
from clew_workflows.thread.context.lane_view import ProjectionInput
from clew_workflows.thread.entries import Entry


@dataclass
class Piece:
    """A message and its entry's data.

    Attributes:
        message: The message.
        tokens: Its recorded tokens.
        seq: The seq of its entry; None: it is of a snapshot.
        stored: Bytes of the full result if it is stored elsewhere.
        doubt: Whether it is a result in doubt.
        late: Whether it is a late result, which replaces one in doubt.
    """

    message: Message
    tokens: int
    seq: int | None = None
    stored: int | None = None
    doubt: bool = False
    late: bool = False


@dataclass
class Unit:
    """An atomic group."""

    pieces: list[Piece]
    open_calls: set[str] = field(default_factory=set)
    pinned: bool = False
    hidden: bool = False

    @property
    def is_tools(self) -> bool:
        """Whether it is an assistant's tool calls."""
        return bool(self.pieces[0].message.get("tool_calls"))


class Lane:
    """The part of a lane that a context is made of, before any window."""

    def __init__(self, inputs: ProjectionInput) -> None:
        seq = inputs.thread.last_seq if inputs.at_seq is None else inputs.at_seq
        lane = [entry for entry in inputs.thread if entry.seq <= seq and entry.lane == inputs.context_ref]
        self.conversation = [entry for entry in lane if entry.kind == "ai_message"]

        # The latest replace is the anchor: messages after it, or after its base_seq, follow. The latest summary
        # replaces everything up to its to_seq, unless the lane was replaced since. An expand undoes either, but not a
        # replace that was no compaction; such a replace also forgets the pins.
        history: list[tuple[Entry | None, Entry | None]] = [(None, None)]
        pinned: set[int] = set()
        for entry in lane:
            operation = entry.payload.get("operation", {})
            if entry.kind == "summary":
                before = history[-1][1]
                if entry.payload["to_seq"] >= (before.payload["to_seq"] if before else _find_start(history[-1][0])):
                    history.append((history[-1][0], entry))
            elif operation.get("type") == "replace":
                if operation["reason"] != "compaction":
                    history.clear()
                    pinned.clear()
                history.append((entry, None))
            elif operation.get("type") == "expand":
                history = history[:-1] or history
            elif operation.get("type") == "pin":
                pinned |= set(operation["seqs"])
            elif operation.get("type") == "unpin":
                pinned -= set(operation["seqs"])
        anchor, latest = history[-1]
        start = _find_start(anchor)
        wanted = inputs.policy.summarization != "none" and "summary" in inputs.policy.include_kinds
        self.summary = latest if wanted else None
        self.summed_upto: int = latest.payload["to_seq"] if latest else start

        self.pieces: list[Piece] = []
        if self.summary:
            start = self.summary.payload["to_seq"]
        elif anchor:
            snapshot = anchor.payload["operation"]["result_context"]
            self.pieces += map(Piece, snapshot["messages"], snapshot["tokens"])
        pieces = [
            Piece(
                _make_message(entry),
                entry.tokens,
                entry.seq,
                entry.payload.get("result", {}).get("bytes"),
                entry.payload.get("in_doubt", False),
                entry.payload.get("late", False),
            )
            for entry in self.conversation
        ]
        self.pieces += [piece for piece in pieces if piece.seq is not None and piece.seq > start]
        # A pinned message is shown with its group, also if a summary or a snapshot replaces it. A late result is
        # pinned by its call or by the result in doubt.
        wanted_seqs = pinned - {piece.seq for piece in pieces if piece.late}
        groups = group_units([replace(piece, late=False) for piece in pieces])
        starts = {unit.pieces[0].seq for unit in groups if any(piece.seq in wanted_seqs for piece in unit.pieces)}
        self.pinned = [unit for unit in group_units(pieces) if unit.pieces[0].seq in starts]


def _find_start(anchor: Entry | None) -> int:
    """The seq after which messages follow upon a snapshot."""
    if anchor is None:
        return -1
    base_seq: int = anchor.payload["operation"].get("base_seq", anchor.seq)
    return min(base_seq, anchor.seq)


def _make_message(entry: Entry) -> Message:
    visible = ("role", "content", "tool_calls", "tool_call_id", "name", "provider_data")
    message = {name: entry.payload[name] for name in visible if entry.payload.get(name) is not None}
    if entry.payload.get("interrupted"):
        message["content"] += "\n[interrupted: this reply ends here]"
    return cast("Message", message)


def group_units(pieces: list[Piece]) -> list[Unit]:
    """Group calls with their results. A result that answers no open call is dropped.

    The lane's own results are in the order of their calls. A late result replaces the one in doubt.
    """
    units: list[Unit] = []
    doubts: dict[str, tuple[Unit, Piece]] = {}
    for piece in pieces:
        call_id = piece.message.get("tool_call_id", "")
        if piece.message["role"] != "tool":
            units.append(Unit([piece], {call["id"] for call in piece.message.get("tool_calls", [])}))
        elif units and call_id in units[-1].open_calls:
            units[-1].open_calls.remove(call_id)
            units[-1].pieces.append(piece)
            if piece.doubt and units[-1].pieces[0].seq is not None:
                doubts[call_id] = (units[-1], piece)
        elif piece.late and call_id in doubts:
            unit, doubt = doubts.pop(call_id)
            unit.pieces = [piece if one is doubt else one for one in unit.pieces]
    for unit in units:
        first, *results = unit.pieces
        if first.seq is not None:
            order = [call["id"] for call in first.message.get("tool_calls", [])]
            unit.pieces = [first, *sorted(results, key=lambda one: order.index(one.message.get("tool_call_id", "")))]
    return units
