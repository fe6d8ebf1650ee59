"""A naive projection, written from the design: the property tests compare the real projection with it.

It reads the complete thread for every context, and shares no code with the real one but the types of entries.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from clew.errors import ContextOverflow
from clew_workflows.contract.messages import Message
from clew_workflows.contract.tokens import Encoding, load_encoding
from clew_workflows.thread.context.lane_view import ProjectionInput
from clew_workflows.thread.entries import Entry
from tests.support.reference_forms import Form, clear_results, fit_results, render
from tests.support.reference_lane import Lane, Unit, group_units
from tests.support.reference_tokens import canonical_json, count_tokens


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
    window, summary = filler.fill_window(rendered)
    cleared = 0
    if policy.clear_tool_results:
        lighter, gone = clear_results(filler.units, rendered, policy.clear_tool_results, counted)
        other, other_summary = filler.fill_window(lighter)
        freed = sum(rendered[index].tokens - lighter[index].tokens for index in other.forms)
        if freed >= max(policy.clear_tool_results.min_tokens, 1):
            window, summary = other, other_summary
            cleared = sum(gone[index] for index in other.forms)
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


def assert_valid_for_providers(messages: list[Message]) -> None:
    """Assert what every provider demands: each call has one result, right after its message, and no other results."""
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
