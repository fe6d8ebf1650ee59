"""The session as JSON, which one workflow run hands to the next: its state, and the live part of its thread."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from pydantic import TypeAdapter, ValidationError
from pydantic_core import to_json

from clew.context.retention import retain
from clew.contract.policy import ContextPolicy
from clew.errors import InvalidInput
from clew.formats import Format
from clew.thread.entries import Entry
from clew.thread.lane import Gap
from clew.thread.thread import Retained, Thread
from clew_workflows.core import outcomes, tool_rounds
from clew_workflows.core.advance import Session
from clew_workflows.core.remembered import Remembered, make_columns, read_columns
from clew_workflows.core.state import State
from clew_workflows.protocol import (
    CallModel,
    DescribeModel,
    Packed,
    Prepare,
    Recalled,
    RunHooks,
    RunTools,
    SessionEffect,
    Summarize,
)

FORMAT = Format("carried state")
MAX_CARRIED_BYTES = 500_000
"""Largest carried session, in bytes. Contexts that need more of the thread fetch it from the archive."""
MAX_ROLLED_BYTES = 524_288
"""Largest start argument with which a session rolls over, in bytes; with more in its queues it waits first."""
MAX_START_BYTES = 1_900_000
"""Largest start argument that the server accepts, in bytes."""
RECENT_ENTRIES = 100
"""Most archived entries that stay in the thread, so that clients reading a fresh reply need no archive lookup."""
RECENT_BYTES = 65_536
"""Most bytes of these entries."""

_state: TypeAdapter[State] = TypeAdapter(State)
_effects: dict[str, type[SessionEffect]] = {
    "prepare": Prepare,
    "describe_model": DescribeModel,
    "run_hooks": RunHooks,
    "call_model": CallModel,
    "run_tools": RunTools,
    "summarize": Summarize,
}
_gap: TypeAdapter[Gap] = TypeAdapter(Gap)
_gaps: TypeAdapter[dict[str, Gap]] = TypeAdapter(dict[str, Gap])
_entries: TypeAdapter[tuple[Entry, ...]] = TypeAdapter(tuple[Entry, ...])


def carry(session: Session, *, recent_entries: int = RECENT_ENTRIES) -> dict[str, Any]:
    """Serialize the session, versioned, in at most `MAX_CARRIED_BYTES` unless its queues alone need more.

    The answer is opaque: only `restore` reads it.
    """
    state, thread, effect = session.state, session.thread, session.effect
    # The next workflow run gets no result of an activity that this one has started, but by a signal of its worker.
    state = replace(state, late_calls=(), detached_calls=tool_rounds.detach_calls(state))
    if state.closed or state.phase == "hibernating":
        state = replace(state, phase="idle")
    # A model call that is to be made needs the thread as it was when the call was decided.
    upto = effect.at_seq if isinstance(effect, CallModel) else thread.last_seq
    first_seq, policies, room = (
        min(_find_first_live_seq(state, thread, recent_entries), upto + 1),
        _list_policies(state),
        4 * MAX_CARRIED_BYTES,
    )
    written = _state.dump_python(state, mode="json", exclude_unset=True, exclude={"outcomes"})
    written["outcomes"] = make_columns(outcomes.list_newest(state, thread))
    while True:
        packed = _pack(written, thread, effect, retain(thread, first_seq, policies, room, upto), first_seq)
        if len(packed.zlib) <= MAX_CARRIED_BYTES or not room:
            return {"version": FORMAT.version, **packed.model_dump()}
        room = room // 2 if room > MAX_CARRIED_BYTES // 8 else 0


def measure_size(carried: Mapping[str, Any]) -> int:
    """Measure a carried session, in bytes."""
    return len(carried["zlib"])


def restore(carried: Mapping[str, Any]) -> Session:
    """Read a session that `carry` has written.

    Raises:
        InvalidInput: The value is malformed.
        NewerVersion: A newer version of Clew has written it.
    """
    try:
        version = FORMAT.check(carried.get("version"))
        value = FORMAT.upgrade(Packed.model_validate(carried).value, version)
        thread = value["thread"]
        retained = thread["retained"]
        effect = value["effect"]
        state = dict(value["state"])
        known = Remembered.pack(read_columns(state.pop("outcomes")))
        return Session(
            replace(_state.validate_json(to_json(state)), outcomes=known),
            Thread(
                _entries.validate_python(thread["entries"]),
                thread["first_seq"],
                Retained(
                    retained["upto"],
                    _entries.validate_python(retained["entries"]),
                    _gaps.validate_python(retained["gaps"]),
                ),
            ),
            _effects[effect["name"]].model_validate_json(to_json(effect["value"])) if effect else None,
        )
    except (KeyError, TypeError, ValueError, ValidationError, AttributeError) as error:
        raise InvalidInput(f"carried is written by Clew alone: {str(error)[:200]}") from None


def add_recalled(thread: Thread, context_ref: str, fetched: Recalled) -> Thread:
    """Add the fetched part of a lane to a thread."""
    value = fetched.packed.value
    fetched_entries = (entry for entry in _entries.validate_python(value["entries"]) if entry.seq < thread.first_seq)
    entries = {entry.seq: entry for entry in (*thread.retained.entries, *fetched_entries)}
    gap, known = _gap.validate_python(value["gap"]), thread.retained.gaps.get(context_ref)
    if known and known.layers and known.layers.is_complete:
        gap = replace(gap, layers=known.layers)
    gaps = {**thread.retained.gaps, context_ref: gap}
    retained = Retained(thread.retained.upto, tuple(entries[seq] for seq in sorted(entries)), gaps)
    return Thread(thread, thread.first_seq, retained)


def _pack(
    state: dict[str, Any], thread: Thread, effect: SessionEffect | None, retained: Retained, first_seq: int
) -> Packed:
    name = next((name for name, kind in _effects.items() if isinstance(effect, kind)), None)
    return Packed.pack(
        {
            "state": state,
            "effect": effect and {"name": name, "value": effect.model_dump(mode="json", exclude_unset=True)},
            "thread": {
                "first_seq": first_seq,
                "entries": [entry.as_dict() for entry in thread.slice(first_seq, thread.last_seq)],
                "retained": {
                    "upto": retained.upto,
                    "entries": [entry.as_dict() for entry in retained.entries],
                    "gaps": _gaps.dump_python(dict(retained.gaps), mode="json"),
                },
            },
        }
    )


def _find_first_live_seq(state: State, thread: Thread, recent_entries: int) -> int:
    """Find the seq at which the live part begins. It has all entries that are not archived, and a few that are."""
    seq = max((state.archive.upto if state.archive else -1) + 1, thread.first_seq)
    size = 0
    for entry in reversed(thread.slice(max(seq - recent_entries, thread.first_seq), seq - 1)):
        size += len(to_json(entry.as_dict()))
        if size > RECENT_BYTES:
            break
        seq = entry.seq
    return seq


def _list_policies(state: State) -> dict[str, list[ContextPolicy]]:
    """List the lanes whose contexts will be needed, with the policies."""
    policies = {state.context_ref: [state.policy]}
    if state.run:
        request = state.run.request
        policies.setdefault(request.context_ref, []).append(state.policy.overlay(request.context_policy))
    return policies
