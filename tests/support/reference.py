"""The projection once more, naively: straight from the design's words, in as many passes as they have sentences.

It walks the whole thread for every context and shares no code with the real one beyond the shapes of entries.
"""

from __future__ import annotations

import itertools
import json
from bisect import bisect_right
from dataclasses import dataclass, field, replace
from typing import Any, cast

from clew.context.blocks import MISSING_RESULT
from clew.context.projection_input import ProjectionInput
from clew.contract.policy import ClearToolResults
from clew.errors import ContextOverflow
from clew.model.messages import Message
from clew.model.tokens import Encoding, load_encoding
from clew.thread.entries import Entry


@dataclass
class Piece:
    """A message with what the thread knows of it. `seq` is None for what came with a snapshot.

    `stored` is the size of all of a result that is stored elsewhere. A `late` result takes the place of one in
    `doubt`.
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


@dataclass
class Shown:
    """A unit as it is shown. `results` has the place of each result that may be cut, its tokens and all its bytes.

    `sizes` are the tokens of all its results, and `cut` says what is shown of those that are cut.
    """

    messages: list[Message]
    tokens: int
    results: list[tuple[int, int, int]]
    pinned: bool = False
    cut: dict[str, tuple[int, int]] = field(default_factory=dict)
    sizes: list[int] = field(default_factory=list)


@dataclass
class Expected:
    """What the projection must answer."""

    messages: list[Message]
    meta: dict[str, Any]


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
    counted = load_encoding("heuristic") if policy.token_estimator == "heuristic" else None
    by = counted or load_encoding(given.encoding)
    lane = _Lane(given)
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

    fold = _Fold(given, lane, counted, by, room)
    rendered = [_render(unit, given.provider, counted) for unit in fold.units]
    window, summary = fold.window(rendered)
    cleared = 0
    if policy.clear_tool_results:
        lighter, gone = _cleared(fold.units, rendered, policy.clear_tool_results, counted)
        other, other_summary = fold.window(lighter)
        freed = sum(rendered[place].tokens - lighter[place].tokens for place in other.kept)
        if freed >= max(policy.clear_tool_results.min_tokens, 1):
            window, summary = other, other_summary
            cleared = sum(gone[place] for place in other.kept)
    shown = [window.kept[place] for place in sorted(window.kept)]

    since = [entry for entry in lane.talk if entry.seq > lane.summed_upto]
    thresholds = (
        (len(since), policy.summarize_threshold),
        (sum(entry.tokens for entry in since if not entry.payload.get("late")), policy.max_thread_tokens),
    )
    due = window.truncated or any(limit is not None and number > limit for number, limit in thresholds)
    return Expected(
        [*system, *summary, *(message for form in shown for message in form.messages), *given.pending],
        {
            "estimated_tokens": budget - room + window.used,
            "truncated": window.truncated,
            "summary_used": bool(summary),
            "needs_summary": due and policy.summarization != "none",
            "entries_included": sum(piece.seq is not None for p in window.kept for piece in fold.units[p].pieces),
            "cleared_tool_results": cleared if policy.clear_tool_results else None,
            "cut_tool_results": {call_id: part for form in shown for call_id, part in form.cut.items()} or None,
        },
    )


class _Fold:
    """Folds a lane's units into a window."""

    def __init__(
        self, given: ProjectionInput, lane: _Lane, counted: Encoding | None, by: Encoding, room: int
    ) -> None:
        self.given, self.policy, self.lane = given, given.policy, lane
        self.counted, self.by, self.room = counted, by, room
        self.whole = _with_pinned(_units(lane.pieces), lane.pinned, hidden=given.request_must_fit)
        self.units = [unit for unit in self.whole if _included(unit, set(given.policy.include_kinds))]

    def fit(self, shown: list[Shown], room: int) -> list[Shown]:
        readable = any(tool["name"] == "read_result" for tool in self.given.tools) and not self.given.standalone
        return _fit(shown, room, self.by, readable=readable)

    def standing(self, shown: Shown) -> Shown:
        """A unit whose results take a third of the budget at most, in its three highest binary digits."""
        third = bin((self.policy.max_input_tokens - self.policy.reserve_output_tokens) // 3)[2:]
        share = int(third[:3].ljust(len(third), "0"), 2)
        if shown.pinned or sum(shown.sizes) <= share:
            return shown
        return self.fit([shown], shown.tokens - sum(shown.sizes) + share)[0]

    def held(self, rendered: list[Shown]) -> dict[int, Shown]:
        """What is kept at any price: with the newest results cut if need be, and those that are pinned after them."""
        if not self.given.request_must_fit:
            return {}
        asked = None if self.given.pending else _request_seq(self.lane.talk)
        pinned = [place for place, unit in enumerate(self.units) if unit.pinned]
        parts = dict(_current(self.units, self.whole[-1:], asked)) | dict.fromkeys(pinned, "pinned")
        forms = {place: rendered[place] for place in sorted(parts)}
        for place, part in parts.items():
            if part == "tool_results":
                left = self.room - sum(form.tokens for other, form in forms.items() if other != place)
                choices = [rendered[place], self.standing(rendered[place]), *self.fit([rendered[place]], left)]
                forms[place] = next((form for form in choices if form.tokens <= left), choices[-1])
        if sum(form.tokens for form in forms.values()) > self.room:
            forms = dict(zip(forms, self.fit([rendered[place] for place in forms], self.room), strict=True))
        left = self.room
        for place, form in forms.items():
            if form.tokens > left:
                raise ContextOverflow(parts[place], form.tokens, left)
            left -= form.tokens
        return forms

    def window(self, rendered: list[Shown]) -> tuple[_Window, list[Message]]:
        """The units kept and how each is shown, and the summary where it is shown."""
        policy, lane, units, room = self.policy, self.lane, self.units, self.room
        window = _Window(room, policy.max_messages)
        for place, form in self.held(rendered).items():
            window.hold(place, form)

        # The last turns first, then the summary, then the rest: the newest first, up to the first that does not fit.
        users = [place for place, unit in enumerate(units) if unit.pieces[0].message["role"] == "user"]
        turns = policy.keep_last_turns
        recent = len(units) if turns == 0 else (users[-turns] if len(users) >= turns else 0)
        for place in range(len(units) - 1, recent - 1, -1):
            window.offer(place, [rendered[place], self.standing(rendered[place])])
        summary: list[Message] = []
        if lane.summary:
            content = f"Summary of earlier conversation:\n{lane.summary.payload['content']}"
            message: Message = {"role": policy.summary_role, "content": content}
            if window.squeeze(size(message, self.counted) if self.counted else lane.summary.tokens):
                summary = [message]
        for place in range(recent - 1, -1, -1):
            window.offer(place, [rendered[place], self.standing(rendered[place])])

        # The first that did not fit is cut to what is left; what is left then is for what was cut, the newest first.
        if window.stopped is not None:
            (form,) = self.fit([rendered[window.stopped]], room - window.used)
            if window.used + form.tokens <= room:
                window.hold(window.stopped, form)
        for place in sorted(window.kept, reverse=True):
            if window.kept[place].cut:
                window.used -= window.kept[place].tokens
                (window.kept[place],) = self.fit([rendered[place]], room - window.used)
                window.used += window.kept[place].tokens
        return window, summary


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
                before = history[-1][1]
                if entry.payload["to_seq"] >= (before.payload["to_seq"] if before else _start(history[-1][0])):
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
        said = [
            Piece(
                _message(entry),
                entry.tokens,
                entry.seq,
                entry.payload.get("result", {}).get("bytes"),
                entry.payload.get("in_doubt", False),
                entry.payload.get("late", False),
            )
            for entry in self.talk
        ]
        self.pieces += [piece for piece in said if piece.seq is not None and piece.seq > start]
        # What is pinned comes whole, with its group, also where something speaks for it. A late result is pinned by
        # the call or by the doubt.
        wanted_seqs = pinned - {piece.seq for piece in said if piece.late}
        groups = _units([replace(piece, late=False) for piece in said])
        starts = {unit.pieces[0].seq for unit in groups if any(piece.seq in wanted_seqs for piece in unit.pieces)}
        self.pinned = [unit for unit in _units(said) if unit.pieces[0].seq in starts]


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
    kept: dict[int, Shown] = field(default_factory=dict)
    used: int = 0
    messages: int = 0
    truncated: bool = False
    stopped: int | None = None

    def offer(self, place: int, forms: list[Shown]) -> None:
        """Keep a unit in the first form that fits, unless it or one before it did not fit."""
        if place in self.kept or self.truncated:
            return
        form = next((form for form in forms if self.used + form.tokens <= self.room), None)
        if 0 < self.max_messages < self.messages + len(forms[0].messages):
            self.truncated = True
        elif form is None:
            self.truncated, self.stopped = True, place
        else:
            self.hold(place, form)

    def hold(self, place: int, form: Shown) -> None:
        """Keep a unit at any price."""
        self.kept[place] = form
        self.messages, self.used = self.messages + len(form.messages), self.used + form.tokens

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
    """Calls and their results are one; a result that answers nothing open is nobody's.

    The lane's own results stand in the order of their calls, a late one in the place of the doubt.
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


def _with_pinned(units: list[Unit], pinned: list[Unit], *, hidden: bool) -> list[Unit]:
    """The units of a context, those that are pinned marked, and added in front where nothing else shows them."""
    starts = {unit.pieces[0].seq for unit in pinned}
    for unit in units:
        unit.pinned = unit.pieces[0].seq is not None and unit.pieces[0].seq in starts
    there = {unit.pieces[0].seq for unit in units}
    added = [unit for unit in pinned if hidden and unit.pieces[0].seq not in there]
    for unit in added:
        unit.pinned = unit.hidden = True
    return [*added, *units]


def _included(unit: Unit, kinds: set[str]) -> bool:
    return {"tool_call", "tool_result"} <= kinds if unit.is_tools else "message" in kinds


def _render(unit: Unit, provider: str | None, counted: Encoding | None) -> Shown:
    """A unit as a provider may see it, repaired, and what it is taken to cost."""
    sizes = [size(piece.message, counted) if counted else piece.tokens for piece in unit.pieces]
    tokens = sum(sizes)
    messages = [piece.message.copy() for piece in unit.pieces]
    if messages[0].get("provider_data", {}).get("provider") != provider:
        messages[0].pop("provider_data", None)
    results: list[tuple[int, int, int]] = []
    for place, piece in enumerate(unit.pieces[1:], 1):
        # What came with a snapshot is shown as it was put there.
        if unit.pieces[0].seq is not None:
            results.append((place, sizes[place], piece.stored or len(piece.message["content"].encode())))
    for call in messages[0].get("tool_calls", []):
        if call["id"] in unit.open_calls:
            name = call["name"]
            messages.append({"role": "tool", "content": MISSING_RESULT, "tool_call_id": call["id"], "name": name})
            tokens += 32 + len(name.encode())
    return Shown(messages, tokens, results, unit.pinned, {}, sizes[1:])


def _named(message: Message) -> int:
    return len(message.get("tool_call_id", "").encode()) + len(message.get("name", "").encode())


def _fit(shown: list[Shown], room: int, by: Encoding, *, readable: bool) -> list[Shown]:
    """Units with their results cut at the highest level at which all fit: no result is larger than that."""
    if sum(form.tokens for form in shown) <= room:
        return shown
    ways = [
        [_ways(form.messages[at], cost, total, by, readable=readable) for at, cost, total in form.results]
        for form in shown
    ]
    levels = sorted({tokens for rows in ways for row in rows for tokens, *_ in row}, reverse=True) or [0]
    chosen: list[Shown] = []
    for level in levels:
        chosen = []
        for form, rows in zip(shown, ways, strict=True):
            new = Shown(form.messages.copy(), form.tokens, [], form.pinned, {}, form.sizes)
            for (at, whole, _), row in zip(form.results, rows, strict=True):
                tokens, content, part = next((way for way in row if way[0] <= level), row[-1])
                new.tokens += tokens - whole
                new.messages[at] = {**form.messages[at], "content": content}
                if part:
                    new.cut[form.messages[at].get("tool_call_id", "")] = part
            chosen.append(new)
        if sum(form.tokens for form in chosen) <= room:
            return chosen
    return chosen


def _ways(
    message: Message, tokens: int, all_bytes: int, by: Encoding, *, readable: bool
) -> list[tuple[int, str, tuple[int, int] | None]]:
    """Every way to show a result, the largest first: whole, in part, and nothing but a marker."""
    text = message["content"]
    least = 44 + _named(message)
    ways: list[tuple[int, str, tuple[int, int] | None]] = [(tokens, text, None)]
    if least >= tokens:
        return ways
    data = text.encode()
    number = max(1, min((len(data) + 255) // 256, 128))
    ends = [0, *itertools.accumulate(len(character.encode()) for character in text)]
    bounds = [ends[bisect_right(ends, place * len(data) // number) - 1] for place in range(number)]
    pieces = [data[begin:end].decode() for begin, end in itertools.pairwise([*bounds, len(data)])]
    for taken in range(number - 1, -1, -1):
        heads, tails = (taken + 1) // 2, taken // 2
        head, tail = "".join(pieces[:heads]), "".join(pieces[number - tails :])
        cost = least + sum(by.count(piece) + 2 for piece in pieces[:heads] + pieces[number - tails :])
        if cost >= tokens:
            continue
        begin, end = len(head.encode()), len(data) - len(tail.encode()) if tails else all_bytes
        call_id = message.get("tool_call_id", "")
        how = f": read_result(tool_call_id='{call_id}', offset={begin}) reads on" if readable else ""
        marker = f"[bytes {begin} to {end} of {all_bytes} are left out{how}]"
        content = "\n".join(part for part in (head, marker, tail) if part)
        ways.append((cost, content, (begin, len(tail.encode()))))
    return ways


def _cleared(
    units: list[Unit], rendered: list[Shown], rule: ClearToolResults, counted: Encoding | None
) -> tuple[list[Shown], list[int]]:
    """The units without their older results, and how many of each are gone: all but the newest so many.

    Those of the newest unit stay, those of some tools, and those that are not larger than what would stand for them.
    """
    results = [(place, piece) for place, unit in enumerate(units) for piece in unit.pieces[1:]]
    older = results[: -rule.keep] if rule.keep else results
    lighter = [
        Shown(form.messages.copy(), form.tokens, form.results.copy(), form.pinned, {}, form.sizes.copy())
        for form in rendered
    ]
    gone = [0] * len(units)
    for place, piece in older:
        call_id = piece.message.get("tool_call_id", "")
        calls = units[place].pieces[0].message.get("tool_calls", [])
        tool = next(call["name"] for call in calls if call["id"] == call_id)
        marker = 24 + _named(piece.message)
        gain = (size(piece.message, counted) if counted else piece.tokens) - marker
        if place == len(units) - 1 or units[place].pinned or tool in rule.exclude_tools or gain <= 0:
            continue
        form = lighter[place]
        at = next(at for at, message in enumerate(form.messages) if message.get("tool_call_id") == call_id)
        content = f"[cleared: read_result(tool_call_id='{call_id}') reads it again]"
        form.messages[at] = {**form.messages[at], "content": content}
        form.tokens -= gain
        form.sizes[at - 1] = marker
        form.results = [row for row in form.results if row[0] != at]
        gone[place] += 1
    return lighter, gone


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
    """What the current run is about: all that its user said, and the results to be answered next."""
    seqs = [None if unit.hidden else unit.pieces[0].seq for unit in units]
    own = [] if asked is None else [place for place, seq in enumerate(seqs) if seq is not None and seq >= asked]
    said = [place for place in own if units[place].pieces[0].message["role"] == "user"]
    found = [(place, "request") for place in said]
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
