"""A naive projection, written from the design: the property tests compare the real projection with it.

It reads the complete thread for every context, and shares no code with the real one but the types of entries.
"""

from __future__ import annotations

import itertools
import json
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, cast

from clew.errors import ContextOverflow
from clew_workflows.contract.content import describe_part, get_text
from clew_workflows.contract.messages import Message
from clew_workflows.contract.policy import ClearMedia, ClearToolResults
from clew_workflows.contract.tokens import Encoding, load_encoding
from clew_workflows.thread.context.blocks import MISSING_RESULT
from clew_workflows.thread.context.lane_view import ProjectionInput
from clew_workflows.thread.entries import Entry


@dataclass
class Expected:
    """The expected messages, and the expected fields of `meta`."""

    messages: list[Message]
    meta: dict[str, Any]


def build_expected(inputs: ProjectionInput) -> Expected:
    """Build the expected context of an input.

    Raises:
        ContextOverflow: A part that must fit does not.
    """
    policy = inputs.policy
    counted = load_encoding("heuristic") if policy.token_estimator == "heuristic" else None
    by = counted or load_encoding(inputs.encoding)
    lane = Lane(inputs)
    system: list[Message] = [{"role": "system", "content": inputs.system}] if inputs.system else []
    budget = room = policy.max_input_tokens - policy.reserve_output_tokens
    for part, need in (
        ("tools", sum(by.framing + by.count(canonical_json(tool)) for tool in inputs.tools)),
        ("system_prompt", sum(count_tokens(message, by) for message in system)),
        ("pending", sum(count_tokens(message, by) for message in inputs.pending)),
    ):
        if need > room:
            raise ContextOverflow(part, need, room)
        room -= need

    filler = _Filler(inputs, lane, counted, by, room)
    rendered = [render(unit, inputs.provider, counted) for unit in filler.units]
    viewable = any(tool["name"] == "view_blob" for tool in inputs.tools) and not inputs.standalone
    media, results = policy.clear_media, policy.clear_tool_results
    while True:
        seen, gone, spared = rendered, [0] * len(rendered), set(filler.require_forms(rendered))
        if media:
            seen = clear_media(rendered, media, spared, viewable=viewable)
        lighter = seen
        if results:
            lighter, gone = clear_results(filler.units, seen, results)
        window, summary = filler.fill_window(lighter)
        kept = [index for index in window.forms if index not in spared]
        media_freed = sum(rendered[index].tokens - seen[index].tokens for index in kept)
        freed = sum(seen[index].tokens - lighter[index].tokens for index in window.forms)
        frees_enough = (
            media is None or media_freed >= max(media.min_tokens, 1),
            results is None or freed >= max(results.min_tokens, 1),
        )
        if all(frees_enough):
            break
        media, results = media if frees_enough[0] else None, results if frees_enough[1] else None
    cleared = sum(gone[index] for index in window.forms)
    forms = [window.forms[index] for index in sorted(window.forms)]

    since = [entry for entry in lane.conversation if entry.seq > lane.summed_upto]
    thresholds = (
        (len(since), policy.summarize_threshold),
        (sum(entry.tokens for entry in since if not entry.payload.get("late")), policy.max_thread_tokens),
    )
    due = window.truncated or any(limit is not None and number > limit for number, limit in thresholds)
    return Expected(
        [*system, *summary, *(message for form in forms for message in form.messages), *inputs.pending],
        {
            "estimated_tokens": budget - room + window.used,
            "truncated": window.truncated,
            "summary_used": bool(summary),
            "needs_summary": due and policy.summarization != "none",
            "entries_included": sum(piece.seq is not None for p in window.forms for piece in filler.units[p].pieces),
            "cleared_tool_results": cleared if policy.clear_tool_results else None,
            "cleared_media": sum(len(form.markers) for form in forms) if policy.clear_media else None,
            "truncated_tool_results": {call_id: part for form in forms for call_id, part in form.truncated.items()}
            or None,
        },
    )


class _Filler:
    """Chooses the units of a lane that the window keeps."""

    def __init__(
        self, inputs: ProjectionInput, lane: Lane, counted: Encoding | None, by: Encoding, room: int
    ) -> None:
        self.inputs, self.policy, self.lane = inputs, inputs.policy, lane
        self.counted, self.by, self.room = counted, by, room
        self.all_units = _mark_pinned(group_units(lane.pieces), lane.pinned, hidden=inputs.request_must_fit)
        self.units = [unit for unit in self.all_units if _is_included(unit, set(inputs.policy.include_kinds))]

    def fit(self, forms: list[Form], room: int) -> list[Form]:
        readable = any(tool["name"] == "read_result" for tool in self.inputs.tools) and not self.inputs.standalone
        return fit_results(forms, room, self.by, readable=readable)

    def truncate_to_share(self, form: Form) -> Form:
        """Truncate a unit's results to a third of the budget, rounded down to its three highest binary digits."""
        third = bin((self.policy.max_input_tokens - self.policy.reserve_output_tokens) // 3)[2:]
        share = int(third[:3].ljust(len(third), "0"), 2)
        if form.pinned or sum(form.sizes) <= share:
            return form
        return self.fit([form], form.tokens - sum(form.sizes) + share)[0]

    def require_forms(self, rendered: list[Form]) -> dict[int, Form]:
        """The units that a context must hold, by index. The newest results are truncated first, then those of all."""
        if not self.inputs.request_must_fit:
            return {}
        request_seq = None if self.inputs.pending else _find_request_seq(self.lane.conversation)
        pinned = [index for index, unit in enumerate(self.units) if unit.pinned]
        parts = dict(_list_current(self.units, self.all_units[-1:], request_seq)) | dict.fromkeys(pinned, "pinned")
        forms = {index: rendered[index] for index in sorted(parts)}
        for index, part in parts.items():
            if part == "tool_results":
                left = self.room - sum(form.tokens for other, form in forms.items() if other != index)
                choices = [
                    rendered[index],
                    self.truncate_to_share(rendered[index]),
                    *self.fit([rendered[index]], left),
                ]
                forms[index] = next((form for form in choices if form.tokens <= left), choices[-1])
        if sum(form.tokens for form in forms.values()) > self.room:
            forms = dict(zip(forms, self.fit([rendered[index] for index in forms], self.room), strict=True))
        left = self.room
        for index, form in forms.items():
            if form.tokens > left:
                raise ContextOverflow(parts[index], form.tokens, left)
            left -= form.tokens
        return forms

    def fill_window(self, rendered: list[Form]) -> tuple[_Window, list[Message]]:
        """Fill a window. Returns it with the messages of the summary, which are none if it does not fit."""
        policy, lane, units, room = self.policy, self.lane, self.units, self.room
        window = _Window(room, policy.max_messages)
        for index, form in self.require_forms(rendered).items():
            window.keep(index, form)

        # The last turns first, then the summary, then the rest: the newest first, up to the first that does not fit.
        users = [index for index, unit in enumerate(units) if unit.pieces[0].message["role"] == "user"]
        turns = policy.keep_last_turns
        recent = len(units) if turns == 0 else (users[-turns] if len(users) >= turns else 0)
        for index in range(len(units) - 1, recent - 1, -1):
            window.offer(index, [rendered[index], self.truncate_to_share(rendered[index])])
        summary: list[Message] = []
        if lane.summary:
            content = f"Summary of earlier conversation:\n{lane.summary.payload['content']}"
            message: Message = {"role": policy.summary_role, "content": content}
            if window.squeeze(count_tokens(message, self.counted) if self.counted else lane.summary.tokens):
                summary = [message]
        for index in range(recent - 1, -1, -1):
            window.offer(index, [rendered[index], self.truncate_to_share(rendered[index])])

        # The first that did not fit is truncated to what is left; what is left then is for what was truncated, the
        # newest first.
        if window.stopped is not None:
            (form,) = self.fit([rendered[window.stopped]], room - window.used)
            if window.used + form.tokens <= room:
                window.keep(window.stopped, form)
        for index in sorted(window.forms, reverse=True):
            if window.forms[index].truncated:
                window.used -= window.forms[index].tokens
                (window.forms[index],) = self.fit([rendered[index]], room - window.used)
                window.used += window.forms[index].tokens
        return window, summary


@dataclass
class _Window:
    """A window while it is filled: it keeps units until one does not fit."""

    room: int
    max_messages: int
    forms: dict[int, Form] = field(default_factory=dict)
    used: int = 0
    messages: int = 0
    truncated: bool = False
    stopped: int | None = None

    def offer(self, index: int, forms: list[Form]) -> None:
        """Keep a unit in the first form that fits, unless it or one before it did not fit."""
        if index in self.forms or self.truncated:
            return
        form = next((form for form in forms if self.used + form.tokens <= self.room), None)
        if 0 < self.max_messages < self.messages + len(forms[0].messages):
            self.truncated = True
        elif form is None:
            self.truncated, self.stopped = True, index
        else:
            self.keep(index, form)

    def keep(self, index: int, form: Form) -> None:
        """Keep a unit."""
        self.forms[index] = form
        self.messages, self.used = self.messages + len(form.messages), self.used + form.tokens

    def squeeze(self, tokens: int) -> bool:
        """Keep the summary where it fits, also after something that did not."""
        if self.used + tokens > self.room:
            self.truncated = True
            return False
        self.used += tokens
        return True


def _mark_pinned(units: list[Unit], pinned: list[Unit], *, hidden: bool) -> list[Unit]:
    """Mark the pinned units of a context, and add those in front that a summary or a snapshot replaces."""
    starts = {unit.pieces[0].seq for unit in pinned}
    for unit in units:
        unit.pinned = unit.pieces[0].seq is not None and unit.pieces[0].seq in starts
    present = {unit.pieces[0].seq for unit in units}
    added = [unit for unit in pinned if hidden and unit.pieces[0].seq not in present]
    for unit in added:
        unit.pinned = unit.hidden = True
    return [*added, *units]


def _is_included(unit: Unit, kinds: set[str]) -> bool:
    return {"tool_call", "tool_result"} <= kinds if unit.is_tools else "message" in kinds


def _find_request_seq(conversation: list[Entry]) -> int:
    """Find the seq of the first user's message of the newest run; -1: there is none, so the lane is one run."""
    user_messages = [entry for entry in conversation if entry.payload["role"] == "user"]
    request_seq = -1
    for index, entry in enumerate(user_messages):
        run = entry.refs.get("run_id")
        if run is None or index == 0 or run != user_messages[index - 1].refs.get("run_id"):
            request_seq = entry.seq
    return request_seq


def _list_current(units: list[Unit], newest: list[Unit], request_seq: int | None) -> list[tuple[int, str]]:
    """List the units of the current run: its user's messages, and the round of tools that the next reply answers."""
    seqs = [None if unit.hidden else unit.pieces[0].seq for unit in units]
    own = (
        []
        if request_seq is None
        else [index for index, seq in enumerate(seqs) if seq is not None and seq >= request_seq]
    )
    user_indexes = [index for index in own if units[index].pieces[0].message["role"] == "user"]
    current = [(index, "request") for index in user_indexes]
    if own and units[own[-1]].is_tools and units[own[-1]] in newest:
        current.append((own[-1], "tool_results"))
    return current


@dataclass
class Piece:
    """A message and its entry's data.

    Attributes:
        message: The message.
        tokens: Its recorded tokens.
        seq: The seq of its entry; None: it is of a snapshot.
        stored: Bytes of the full result if it is stored elsewhere.
        media: Tokens of its parts that are no text.
        doubt: Whether it is a result in doubt.
        late: Whether it is a late result, which replaces one in doubt.
    """

    message: Message
    tokens: int
    seq: int | None = None
    stored: int | None = None
    media: list[int] = field(default_factory=list)
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
        withdrawals = [
            range(entry.payload["operation"]["from_seq"], entry.seq)
            for entry in inputs.thread
            if entry.lane == inputs.context_ref and entry.payload.get("operation", {}).get("type") == "withdraw"
        ]
        # An operation at the end of a run drops each answer that was corrected, and its correction.
        operations = [entry.payload.get("operation", {}) for entry in lane]
        corrected = {
            dropped
            for operation in operations
            if operation.get("type") == "corrected"
            for dropped in range(operation["from_seq"], operation["to_seq"] + 1)
        }
        self.conversation = [
            entry
            for entry in lane
            if entry.kind == "ai_message"
            and not (entry.payload["role"] != "tool" and entry.seq in corrected)
            and not (entry.payload["role"] == "user" and any(entry.seq in seqs for seqs in withdrawals))
        ]

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
            media = snapshot.get("media_tokens") or [[]] * len(snapshot["messages"])
            self.pieces += [
                Piece(message, tokens, media=list(counts))
                for message, tokens, counts in zip(snapshot["messages"], snapshot["tokens"], media, strict=True)
            ]
        pieces = [
            Piece(
                _make_message(entry),
                entry.tokens,
                entry.seq,
                entry.payload.get("result", {}).get("bytes"),
                list(entry.payload.get("media_tokens", [])),
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
        note = "\n[interrupted: this reply ends here]"
        content = message["content"]
        message["content"] = (
            content + note if isinstance(content, str) else [*content, {"type": "text", "text": note}]
        )
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


@dataclass
class Form:
    """A unit as a context shows it.

    Attributes:
        messages: The messages, placeholder results included.
        tokens: Tokens of all messages.
        results: For each result that may be truncated: its index in `messages`, its tokens, bytes of the full result.
        pinned: Whether the unit is pinned.
        media: Its parts that may be cleared: index of the message, index of the part, the part, its tokens.
        markers: Those of them that a marker replaces, by the indexes of message and part.
        truncated: For each result that is truncated, by tool call: bytes shown of its beginning and of its end.
        sizes: Tokens of each result.
    """

    messages: list[Message]
    tokens: int
    results: list[tuple[int, int, int]]
    pinned: bool = False
    truncated: dict[str, tuple[int, int]] = field(default_factory=dict)
    sizes: list[int] = field(default_factory=list)
    media: list[tuple[int, int, Any, int]] = field(default_factory=list)
    markers: set[tuple[int, int]] = field(default_factory=set)

    def copy(self) -> Form:
        """Copy the form, so that a change of the copy does not change it."""
        return Form(
            self.messages.copy(),
            self.tokens,
            self.results.copy(),
            self.pinned,
            {},
            self.sizes.copy(),
            self.media.copy(),
            self.markers.copy(),
        )


def render(unit: Unit, provider: str | None, counted: Encoding | None) -> Form:
    """Render a unit for a provider, with placeholder results for calls that have none."""
    sizes = [count_tokens(piece.message, counted, piece.media) if counted else piece.tokens for piece in unit.pieces]
    tokens = sum(sizes)
    messages = [piece.message.copy() for piece in unit.pieces]
    if messages[0].get("provider_data", {}).get("provider") != provider:
        messages[0].pop("provider_data", None)
    results: list[tuple[int, int, int]] = []
    for index, piece in enumerate(unit.pieces[1:], 1):
        # Results of a snapshot are never truncated.
        if unit.pieces[0].seq is not None:
            results.append((index, sizes[index], piece.stored or len(get_text(piece.message["content"]).encode())))
    for call in messages[0].get("tool_calls", []):
        if call["id"] in unit.open_calls:
            name = call["name"]
            messages.append({"role": "tool", "content": MISSING_RESULT, "tool_call_id": call["id"], "name": name})
            tokens += 32 + len(name.encode())
    media = [
        (number, index, part, count)
        for number, piece in enumerate(unit.pieces)
        if not isinstance(piece.message["content"], str) and "provider_data" not in messages[number]
        for (index, part), count in zip(
            [(index, part) for index, part in enumerate(piece.message["content"]) if part["type"] != "text"],
            piece.media,
            strict=True,
        )
    ]
    return Form(messages, tokens, results, unit.pinned, {}, sizes[1:], media)


def _count_name(message: Message) -> int:
    return len(message.get("tool_call_id", "").encode()) + len(message.get("name", "").encode())


def fit_results(forms: list[Form], room: int, by: Encoding, *, readable: bool) -> list[Form]:
    """Truncate results at the highest level at which all units fit; no result has more tokens than the level."""
    if sum(form.tokens for form in forms) <= room:
        return forms
    ways = [
        [_list_ways(form, at, cost, total, by, readable=readable) for at, cost, total in form.results]
        for form in forms
    ]
    levels = sorted({tokens for rows in ways for row in rows for tokens, *_ in row}, reverse=True) or [0]
    chosen: list[Form] = []
    for level in levels:
        chosen = []
        for form, rows in zip(forms, ways, strict=True):
            new = form.copy()
            new.results = []
            for (at, full, _), row in zip(form.results, rows, strict=True):
                tokens, content, part = next((way for way in row if way[0] <= level), row[-1])
                new.tokens += tokens - full
                new.messages[at] = {**form.messages[at], "content": content}
                if part:
                    new.truncated[form.messages[at].get("tool_call_id", "")] = part
                    new.markers -= {marker for marker in new.markers if marker[0] == at}
            chosen.append(new)
        if sum(form.tokens for form in chosen) <= room:
            return chosen
    return chosen


def _list_ways(
    form: Form, at: int, tokens: int, all_bytes: int, by: Encoding, *, readable: bool
) -> list[tuple[int, Any, tuple[int, int] | None]]:
    """List every way to show a result, the largest first: in full, in part, and the marker alone.

    In part its parts follow the text, which has a marker for each: none of them, then the first, and so on.
    """
    message = form.messages[at]
    least = 44 + _count_name(message)
    ways: list[tuple[int, Any, tuple[int, int] | None]] = [(tokens, message["content"], None)]
    if least >= tokens:
        return ways
    original = message["content"]
    if not isinstance(original, str):
        own: dict[int, Any] = {index: part for number, index, part, _ in form.media if number == at}
        original = [own.get(index, part) for index, part in enumerate(original)]
    text = get_text(original)
    media = [(index, part, count) for number, index, part, count in form.media if number == at]
    seen = [(part, count) for index, part, count in media if (at, index) not in form.markers]
    shorter = _list_texts(message, text, least, all_bytes, by, readable=readable)
    for taken in range(len(seen) + 1):
        room = least + sum(count for _, count in seen[: taken + 1]) if taken < len(seen) else tokens
        kept, extra = [part for part, _ in seen[:taken]], sum(count for _, count in seen[:taken])
        for cost, content, part in shorter:
            is_whole = part == (len(text.encode()), 0)
            if extra + cost < min(room, tokens) and not (is_whole and taken == len(seen)):
                ways.append((extra + cost, [{"type": "text", "text": content}, *kept] if kept else content, part))
    return [ways[0], *sorted(ways[1:], key=lambda way: -way[0])]


def _list_texts(
    message: Message, text: str, least: int, all_bytes: int, by: Encoding, *, readable: bool
) -> list[tuple[int, str, tuple[int, int]]]:
    """List the texts of a result with fewer and fewer pieces, each with its tokens and the bytes that it shows."""
    data = text.encode()
    number = max(1, min((len(data) + 255) // 256, 128))
    ends = [0, *itertools.accumulate(len(character.encode()) for character in text)]
    bounds = [ends[bisect_right(ends, index * len(data) // number) - 1] for index in range(number)]
    pieces = [data[begin:end].decode() for begin, end in itertools.pairwise([*bounds, len(data)])]
    size = len(data)
    ways = [(least + sum(by.count(piece) + 2 for piece in pieces), text, (size, 0))] if all_bytes == size else []
    for taken in range(number - 1, -1, -1):
        heads, tails = (taken + 1) // 2, taken // 2
        head, tail = "".join(pieces[:heads]), "".join(pieces[number - tails :])
        cost = least + sum(by.count(piece) + 2 for piece in pieces[:heads] + pieces[number - tails :])
        begin, end = len(head.encode()), len(data) - len(tail.encode()) if tails else all_bytes
        call_id = message.get("tool_call_id", "")
        how = f": read_result(tool_call_id='{call_id}', offset={begin}) reads on" if readable else ""
        marker = f"[bytes {begin} to {end} of {all_bytes} are left out{how}]"
        content = "\n".join(part for part in (head, marker, tail) if part)
        ways.append((cost, content, (begin, len(tail.encode()))))
    return ways


def clear_media(rendered: list[Form], rule: ClearMedia, spared: set[int], *, viewable: bool) -> list[Form]:
    """Clear all media but the newest `rule.keep`, those of spared, pinned and the newest units never."""
    media = [(index, *row) for index, form in enumerate(rendered) for row in form.media]
    lighter = [form.copy() for form in rendered]
    for index, number, position, part, count in media[: len(media) - rule.keep] if rule.keep < len(media) else []:
        blob = part.get("blob")
        marker = describe_part(part)
        cost = 48 + len(marker.encode())
        if blob:
            cost = 48 + sum(len(str(value).encode()) for name, value in blob.items() if name != "digest")
            if viewable:
                marker = f"{marker[:-1]}; cleared: view_blob(blob='{blob['digest'][:12]}') shows it again]"
        if index == len(rendered) - 1 or index in spared or rendered[index].pinned or count <= cost:
            continue
        form = lighter[index]
        content: Any = list(form.messages[number]["content"])
        content[position] = {"type": "text", "text": marker}
        form.messages[number] = {**form.messages[number], "content": content}
        form.tokens -= count - cost
        form.markers.add((number, position))
        if number:
            form.sizes[number - 1] -= count - cost
            form.results = [(at, tokens - (count - cost) * (at == number), size) for at, tokens, size in form.results]
    return lighter


def clear_results(units: list[Unit], rendered: list[Form], rule: ClearToolResults) -> tuple[list[Form], list[int]]:
    """Clear all results but the newest `rule.keep`. Returns the forms, and the number of results cleared in each.

    Results of the newest unit, of excluded tools, and those that are not larger than the marker are never cleared.
    """
    results = [(index, piece) for index, unit in enumerate(units) for piece in unit.pieces[1:]]
    older = results[: -rule.keep] if rule.keep else results
    lighter = [form.copy() for form in rendered]
    gone = [0] * len(units)
    for index, piece in older:
        call_id = piece.message.get("tool_call_id", "")
        calls = units[index].pieces[0].message.get("tool_calls", [])
        tool = next(call["name"] for call in calls if call["id"] == call_id)
        marker = 24 + _count_name(piece.message)
        numbers = range(len(rendered[index].messages))
        at = next(n for n in numbers if rendered[index].messages[n].get("tool_call_id") == call_id)
        gain = rendered[index].sizes[at - 1] - marker
        if index == len(units) - 1 or units[index].pinned or tool in rule.exclude_tools or gain <= 0:
            continue
        form = lighter[index]
        form.media = [row for row in form.media if row[0] != at]
        form.markers = {row for row in form.markers if row[0] != at}
        content = f"[cleared: read_result(tool_call_id='{call_id}') reads it again]"
        form.messages[at] = {**form.messages[at], "content": content}
        form.tokens -= gain
        form.sizes[at - 1] = marker
        form.results = [row for row in form.results if row[0] != at]
        gone[index] += 1
    return lighter, gone


def canonical_json(value: Any) -> str:
    """Make the RFC 8785 form of a value with short fractions and ASCII keys, without the library."""
    return json.dumps(_write_whole(value), sort_keys=True, separators=(",", ":"), ensure_ascii=False)


def _write_whole(value: Any) -> Any:
    """Write 10.0 as 10, everywhere in a JSON value."""
    match value:
        case dict():
            return {name: _write_whole(item) for name, item in value.items()}
        case list() | tuple():
            return [_write_whole(item) for item in value]
        case float() if value.is_integer():
            return int(value)
        case _:
            return value


def count_tokens(message: Message, by: Encoding, media: Sequence[int] = ()) -> int:
    """Count the tokens of a message: text, extras as sorted compact JSON, name, framing, and recorded media."""
    extras = [message.get(name) for name in ("tool_calls", "provider_data")]
    texts = [canonical_json(extra) for extra in extras if extra]
    content = message["content"]
    text = content if isinstance(content, str) else "\n".join(p["text"] for p in content if p["type"] == "text")
    return by.framing + sum(map(by.count, [text, message.get("name", ""), *texts])) + sum(media)
