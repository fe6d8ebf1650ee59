"""The projection once more, naively: straight from the design's words, in as many passes as they have sentences.

It walks the whole thread for every context and shares no code with the real one beyond the shapes of entries.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any, cast

from clew.entries import Entry
from clew.errors import ContextOverflow
from clew.groups import MISSING_RESULT
from clew.messages import Message
from clew.policy import ClearToolResults
from clew.projection import ProjectionInput
from clew.tokens import Encoding, encoding


@dataclass
class Piece:
    """A message with what the thread knows of it. `seq` is None for what came with a snapshot."""

    message: Message
    tokens: int
    seq: int | None = None


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


@dataclass
class Expected:
    """What the projection must answer."""

    messages: list[Message]
    meta: dict[str, int | bool | None]


def size(message: Message, by: Encoding) -> int:
    """What a message costs, counted anew: its text, its extras as sorted compact JSON, its name, its framing."""
    extras = [message.get(name) for name in ("tool_calls", "provider_data")]
    texts = [
        json.dumps(extra, sort_keys=True, separators=(",", ":"), ensure_ascii=False) for extra in extras if extra
    ]
    return by.framing + sum(map(by.count, [message["content"], message.get("name", ""), *texts]))


def reference(given: ProjectionInput) -> Expected:
    """The context of some input, or the error that it must be."""
    policy = given.policy
    lane = _Lane(given)
    counted = encoding("heuristic") if policy.token_estimator == "heuristic" else None
    by = counted or encoding(given.encoding)
    whole = _with_pinned(_units(lane.pieces), lane.pinned if given.request_must_fit else [])
    units = [unit for unit in whole if _included(unit, set(policy.include_kinds))]
    rendered = [_render(unit, given.provider, counted) for unit in units]

    system: list[Message] = [{"role": "system", "content": given.system}] if given.system else []
    budget = room = policy.max_input_tokens - policy.reserve_output_tokens
    for part, need in (
        ("tools", sum(by.framing + by.count(canonical_json(tool)) for tool in given.tools)),
        ("system_prompt", sum(size(message, by) for message in system)),
        ("pending", sum(size(message, by) for message in given.pending)),
    ):
        if need > room:
            raise ContextOverflow(part, need, room)
        room -= need

    def folded(rendered: list[tuple[list[Message], int]]) -> tuple[_Window, list[Message]]:
        window = _Window(room, policy.max_messages)
        asked = _request_seq(lane.talk) if given.request_must_fit and not given.pending else None
        left = room
        pinned = [place for place, unit in enumerate(units) if unit.pinned] if given.request_must_fit else []
        current = _current(units, whole[-1:], asked)
        held = dict(current) | dict.fromkeys(pinned, "pinned")
        for place, part in sorted(held.items()):
            if rendered[place][1] > left:
                raise ContextOverflow(part, rendered[place][1], left)
            left -= rendered[place][1]
            window.hold(place, rendered[place])

        # The last turns first, then the summary, then the rest: the newest first, up to the first that does not fit.
        users = [place for place, unit in enumerate(units) if unit.pieces[0].message["role"] == "user"]
        turns = policy.keep_last_turns
        recent = len(units) if turns == 0 else (users[-turns] if len(users) >= turns else 0)
        for place in range(len(units) - 1, recent - 1, -1):
            window.offer(place, rendered[place])
        summary: list[Message] = []
        if lane.summary:
            content = f"Summary of earlier conversation:\n{lane.summary.payload['content']}"
            message: Message = {"role": policy.summary_role, "content": content}
            if window.squeeze(size(message, counted) if counted else lane.summary.tokens):
                summary = [message]
        for place in range(recent - 1, -1, -1):
            window.offer(place, rendered[place])
        return window, summary

    window, summary = folded(rendered)
    cleared = 0
    if policy.clear_tool_results:
        lighter = _cleared(units, rendered, policy.clear_tool_results, counted)
        other, other_summary = folded([(messages, tokens) for messages, tokens, _ in lighter])
        freed = sum(rendered[place][1] - lighter[place][1] for place in other.kept)
        if freed >= max(policy.clear_tool_results.min_tokens, 1):
            window, summary, rendered = other, other_summary, [(messages, tokens) for messages, tokens, _ in lighter]
            cleared = sum(lighter[place][2] for place in other.kept)

    since = [entry for entry in lane.talk if entry.seq > lane.summed_upto]
    thresholds = (
        (len(since), policy.summarize_threshold),
        (sum(entry.tokens for entry in since), policy.max_thread_tokens),
    )
    due = window.truncated or any(limit is not None and number > limit for number, limit in thresholds)
    return Expected(
        [*system, *summary, *(m for p in sorted(window.kept) for m in rendered[p][0]), *given.pending],
        {
            "estimated_tokens": budget - room + window.used,
            "truncated": window.truncated,
            "summary_used": bool(summary),
            "needs_summary": due and policy.summarization != "none",
            "entries_included": sum(piece.seq is not None for p in window.kept for piece in units[p].pieces),
            "cleared_tool_results": cleared if policy.clear_tool_results else None,
        },
    )


class _Lane:
    """What a lane's context is folded from, before any window."""

    def __init__(self, given: ProjectionInput) -> None:
        seq = given.thread.last_seq if given.at_seq is None else given.at_seq
        lane = [entry for entry in given.thread if entry.seq <= seq and entry.lane == given.context_ref]
        self.talk = [entry for entry in lane if entry.kind == "ai_message"]

        # The latest replace is the anchor; folding starts after it, or after its base_seq. The latest summary stands
        # for everything up to its to_seq, unless the lane was replaced since. Either is undone by an expand, unless
        # it is a replace that was no compaction; such a one forgets what was pinned, too.
        history: list[tuple[Entry | None, Entry | None]] = [(None, None)]
        pinned: set[int] = set()
        for entry in lane:
            operation = entry.payload.get("operation", {})
            if entry.kind == "summary":
                if entry.payload["to_seq"] >= _start(history[-1][0]):
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
        start = _start(anchor)
        wanted = given.policy.summarization != "none" and "summary" in given.policy.include_kinds
        self.summary = latest if wanted else None
        self.summed_upto: int = latest.payload["to_seq"] if latest else start

        self.pieces: list[Piece] = []
        if self.summary:
            start = self.summary.payload["to_seq"]
        elif anchor:
            snapshot = anchor.payload["operation"]["result_context"]
            self.pieces += map(Piece, snapshot["messages"], snapshot["tokens"])
        said = [Piece(_message(entry), entry.tokens, entry.seq) for entry in self.talk]
        self.pieces += [piece for piece in said if piece.seq is not None and piece.seq > start]
        # What is pinned comes whole, with its group, also where something speaks for it.
        self.pinned = [unit for unit in _units(said) if any(piece.seq in pinned for piece in unit.pieces)]


def _start(anchor: Entry | None) -> int:
    """The seq after which messages follow upon a snapshot."""
    if anchor is None:
        return -1
    base_seq: int = anchor.payload["operation"].get("base_seq", anchor.seq)
    return min(base_seq, anchor.seq)


@dataclass
class _Window:
    """Takes what fits, until something does not."""

    room: int
    max_messages: int
    kept: set[int] = field(default_factory=set)
    used: int = 0
    messages: int = 0
    truncated: bool = False

    def offer(self, place: int, rendered: tuple[list[Message], int]) -> None:
        """Keep a unit, unless it or one before it did not fit."""
        if place in self.kept or self.truncated:
            return
        messages, tokens = self.messages + len(rendered[0]), self.used + rendered[1]
        if tokens > self.room or 0 < self.max_messages < messages:
            self.truncated = True
        else:
            self.kept.add(place)
            self.messages, self.used = messages, tokens

    def hold(self, place: int, rendered: tuple[list[Message], int]) -> None:
        """Keep a unit at any price."""
        self.kept.add(place)
        self.messages, self.used = self.messages + len(rendered[0]), self.used + rendered[1]

    def squeeze(self, tokens: int) -> bool:
        """Keep the summary where it fits, also after something that did not."""
        if self.used + tokens > self.room:
            self.truncated = True
            return False
        self.used += tokens
        return True


def _message(entry: Entry) -> Message:
    visible = ("role", "content", "tool_calls", "tool_call_id", "name", "provider_data")
    message = {name: entry.payload[name] for name in visible if entry.payload.get(name) is not None}
    return cast("Message", message)


def _units(pieces: list[Piece]) -> list[Unit]:
    """Calls and their results are one; a result that answers nothing open is nobody's."""
    units: list[Unit] = []
    for piece in pieces:
        if piece.message["role"] != "tool":
            units.append(Unit([piece], {call["id"] for call in piece.message.get("tool_calls", [])}))
        elif units and (call_id := piece.message.get("tool_call_id", "")) in units[-1].open_calls:
            units[-1].open_calls.remove(call_id)
            units[-1].pieces.append(piece)
    return units


def _with_pinned(units: list[Unit], pinned: list[Unit]) -> list[Unit]:
    """The units of a context, those that are pinned marked, and added in front where nothing else shows them."""
    starts = {unit.pieces[0].seq for unit in pinned}
    for unit in units:
        unit.pinned = unit.pieces[0].seq is not None and unit.pieces[0].seq in starts
    there = {unit.pieces[0].seq for unit in units}
    hidden = [unit for unit in pinned if unit.pieces[0].seq not in there]
    for unit in hidden:
        unit.pinned = unit.hidden = True
    return [*hidden, *units]


def _included(unit: Unit, kinds: set[str]) -> bool:
    return {"tool_call", "tool_result"} <= kinds if unit.is_tools else "message" in kinds


def _render(unit: Unit, provider: str | None, counted: Encoding | None) -> tuple[list[Message], int]:
    """A unit as a provider may see it, repaired, and what it is taken to cost."""
    tokens = sum(size(piece.message, counted) if counted else piece.tokens for piece in unit.pieces)
    messages = [piece.message.copy() for piece in unit.pieces]
    if messages[0].get("provider_data", {}).get("provider") != provider:
        messages[0].pop("provider_data", None)
    for call in messages[0].get("tool_calls", []):
        if call["id"] in unit.open_calls:
            name = call["name"]
            messages.append({"role": "tool", "content": MISSING_RESULT, "tool_call_id": call["id"], "name": name})
            tokens += 32 + len(name.encode())
    return messages, tokens


def _cleared(
    units: list[Unit], rendered: list[tuple[list[Message], int]], rule: ClearToolResults, counted: Encoding | None
) -> list[tuple[list[Message], int, int]]:
    """The units without their older results, and how many of each are gone: all but the newest so many.

    Those of the newest unit stay, those of some tools, and those that are not larger than what would stand for them.
    """
    results = [(place, piece) for place, unit in enumerate(units) for piece in unit.pieces[1:]]
    older = results[: -rule.keep] if rule.keep else results
    lighter = [(messages.copy(), tokens, 0) for messages, tokens in rendered]
    for place, piece in older:
        call_id = piece.message.get("tool_call_id", "")
        calls = units[place].pieces[0].message.get("tool_calls", [])
        tool = next(call["name"] for call in calls if call["id"] == call_id)
        gain = (size(piece.message, counted) if counted else piece.tokens) - (
            24 + len(call_id.encode()) + len(piece.message.get("name", "").encode())
        )
        if place == len(units) - 1 or units[place].pinned or tool in rule.exclude_tools or gain <= 0:
            continue
        messages, tokens, gone = lighter[place]
        at = next(at for at, message in enumerate(messages) if message.get("tool_call_id") == call_id)
        content = f"[cleared: read_result(tool_call_id='{call_id}') reads it again]"
        messages[at] = {**messages[at], "content": content}
        lighter[place] = (messages, tokens - gain, gone + 1)
    return lighter


def _request_seq(talk: list[Entry]) -> int:
    """The first thing that the user of the newest run said in it; without any user the lane is one run."""
    asked = [entry for entry in talk if entry.payload["role"] == "user"]
    found = -1
    for place, entry in enumerate(asked):
        run = entry.refs.get("run_id")
        if run is None or place == 0 or run != asked[place - 1].refs.get("run_id"):
            found = entry.seq
    return found


def _current(units: list[Unit], newest: list[Unit], asked: int | None) -> list[tuple[int, str]]:
    """What the current run is about: what was asked first and last, and the results to be answered next."""
    seqs = [None if unit.hidden else unit.pieces[0].seq for unit in units]
    own = [] if asked is None else [place for place, seq in enumerate(seqs) if seq is not None and seq >= asked]
    said = [place for place in own if units[place].pieces[0].message["role"] == "user"]
    found = [(place, "request") for place in sorted({*said[:1], *said[-1:]})]
    if own and units[own[-1]].is_tools and units[own[-1]] in newest:
        found.append((own[-1], "tool_results"))
    return found


def canonical_json(value: Any) -> str:
    """The RFC 8785 form of what has neither fractions nor keys beyond ASCII, made without the library."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False)


def assert_valid_for_providers(messages: list[Message]) -> None:
    """What every provider demands: each call answered once, right after its message, and no other results."""
    waiting: set[str] = set()
    for message in messages:
        if message["role"] == "tool":
            call_id = message.get("tool_call_id", "")
            assert call_id in waiting, f"a result without its call: {call_id}"
            waiting.remove(call_id)
        else:
            assert not waiting, f"calls without a result: {waiting}"
            calls = [call["id"] for call in message.get("tool_calls", [])]
            waiting = set(calls)
            assert len(waiting) == len(calls), "two calls of one id"
    assert not waiting, f"calls without a result at the end: {waiting}"
