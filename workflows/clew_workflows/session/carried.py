"""The session as JSON, which one workflow run hands to the next: its state, and the live part of its thread."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal

from pydantic import TypeAdapter, ValidationError
from pydantic_core import to_json

from clew_workflows.contract import ForkedInput
from clew_workflows.contract.errors import InvalidInput
from clew_workflows.contract.outcomes import RequestOutcome, Usage
from clew_workflows.contract.payloads import ConfigPayload, ForkPayload
from clew_workflows.contract.policy import ContextPolicy
from clew_workflows.protocol import (
    ArchiveRef,
    CallModel,
    DescribeModel,
    Prepare,
    Recall,
    Recalled,
    RunHooks,
    RunTools,
    SessionEffect,
    Summarize,
)
from clew_workflows.session import budgets, configuration, drafts, requests, tool_rounds
from clew_workflows.session.advance import Session
from clew_workflows.session.state import (
    Decision,
    Memory,
    Remembered,
    Settings,
    Spent,
    State,
    Summaries,
    make_columns,
    read_columns,
)
from clew_workflows.thread.context.archived import retain
from clew_workflows.thread.entries import Draft, Entry
from clew_workflows.thread.lane import ArchivedPart, Layers
from clew_workflows.thread.thread import Retained, Thread
from clew_workflows.values import Format, Packed

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
_archived_part: TypeAdapter[ArchivedPart] = TypeAdapter(ArchivedPart)
_archived_parts: TypeAdapter[dict[str, ArchivedPart]] = TypeAdapter(dict[str, ArchivedPart])
_entries: TypeAdapter[tuple[Entry, ...]] = TypeAdapter(tuple[Entry, ...])


def carry(session: Session, *, recent_entries: int = RECENT_ENTRIES) -> dict[str, Any]:
    """Serialize the session, versioned, in at most `MAX_CARRIED_BYTES` unless its queues alone need more.

    The answer is opaque: only `restore` reads it.
    """
    state, thread, effect = session.state, session.thread, session.effect
    # The next workflow run gets no result of an activity that this one has started, but by a signal of its worker.
    state = replace(state, late_calls=(), detached_calls=tool_rounds.detach_calls(state, thread))
    if state.closed or state.phase == "hibernating":
        # Cancelled subagents that have not reported are forgotten: nobody tells the next workflow run of them.
        state = replace(state, phase="idle", children=())
    # A model call that is to be made needs the thread as it was when the call was decided.
    upto = effect.at_seq if isinstance(effect, CallModel) else thread.last_seq
    first_seq, policies, room = (
        min(_find_first_live_seq(state, thread, recent_entries), upto + 1),
        _list_policies(state),
        4 * MAX_CARRIED_BYTES,
    )
    written = _state.dump_python(state, mode="json", exclude_unset=True, exclude={"memory": {"outcomes"}})
    written["memory"]["outcomes"] = make_columns(requests.list_newest(state, thread))
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
        memory = dict(value["state"]["memory"])
        outcomes = Remembered.pack(read_columns(memory.pop("outcomes")))
        state = _state.validate_json(to_json({**value["state"], "memory": memory}))
        return Session(
            replace(state, memory=replace(state.memory, outcomes=outcomes)),
            Thread(
                _entries.validate_python(thread["entries"]),
                thread["first_seq"],
                Retained(
                    retained["upto"],
                    _entries.validate_python(retained["entries"]),
                    _archived_parts.validate_python(retained["gaps"]),
                ),
            ),
            _effects[effect["name"]].model_validate_json(to_json(effect["value"])) if effect else None,
        )
    except (KeyError, TypeError, ValueError, ValidationError, AttributeError) as error:
        raise InvalidInput(f"carried is written by Clew alone: {str(error)[:200]}") from None


def make_recall(thread: Thread, archive: ArchiveRef, context_ref: str, policy: ContextPolicy) -> Recall:
    """Make the request for the archived part of a lane that contexts under a policy need."""
    lane = thread.get_lane(context_ref)
    layers = lane.layers if lane else Layers()
    return Recall(
        archive=archive,
        context_ref=context_ref,
        policies=(policy,),
        before=thread.find_first_held_seq(context_ref),
        layers=layers if layers.is_complete else None,
    )


def add_recalled(thread: Thread, context_ref: str, fetched: Recalled) -> Thread:
    """Add the fetched part of a lane to a thread."""
    value = fetched.packed.value
    fetched_entries = (entry for entry in _entries.validate_python(value["entries"]) if entry.seq < thread.first_seq)
    entries = {entry.seq: entry for entry in (*thread.retained.entries, *fetched_entries)}
    gap, held = _archived_part.validate_python(value["gap"]), thread.get_lane(context_ref)
    if held and held.layers.is_complete:
        # The answer has the newest layers, and the thread applies those of its live part again.
        known = held.gap.layers or Layers(())
        newest = held.layers
        gap = replace(gap, layers=replace(known, withdrawn=newest.withdrawn, corrected=newest.corrected))
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
                    "gaps": _archived_parts.dump_python(dict(retained.gaps), mode="json"),
                },
            },
        }
    )


def _find_first_live_seq(state: State, thread: Thread, recent_entries: int) -> int:
    """Find the seq at which the live part begins. It has all entries that are not archived, and a few that are."""
    seq = max(state.archive.upto + 1, thread.first_seq) if state.archive else thread.first_seq
    size = 0
    for entry in reversed(thread.slice(max(seq - recent_entries, thread.first_seq), seq - 1)):
        size += len(to_json(entry.as_dict()))
        if size > RECENT_BYTES:
            break
        seq = entry.seq
    return seq


def _list_policies(state: State) -> dict[str, list[ContextPolicy]]:
    """List the lanes whose contexts will be needed, with the policies."""
    settings = state.settings
    policies = {state.context_ref: [settings.policy, budgets.find_policy(settings)]}
    if state.run:
        request = state.run.request
        policy = request.policy.overlay(budgets.make_call_policy(settings, request))
        policies.setdefault(request.context_ref, []).append(policy)
    return policies


# Forking: the state of a session that begins with another session's thread, and the `fork` entries of both.


def make_fork_payload(
    event: Literal["forked_from", "forked_to"], session_id: str, fork_seq: int, metadata: Mapping[str, str] | None
) -> ForkPayload:
    """Make the payload of a `fork` entry; `session_id` is that of the other session."""
    known = dict(metadata) if metadata else None
    return ForkPayload(event=event, session_id=session_id, fork_seq=fork_seq, metadata=known)


def record_fork(state: State, thread: Thread, command: ForkedInput) -> Decision:
    """Record a fork. The signal is delivered at least once; the entry is written once."""
    payload = make_fork_payload("forked_to", command.session_id, command.fork_seq, command.metadata)
    if any(entry.body == payload for entry in thread.filter_by_kind("fork")):
        return Decision(state)
    return Decision(state, (Draft(payload),))


def make_fork_state(parent: Session, thread: Thread, session_id: str, op_ids: Sequence[str]) -> State:
    """Make the state that a fork continues from: the parent's at the thread's last entry, with nothing running.

    The counters are the parent's present ones, so that no id is used twice. The usage is the parent's without that of
    runs that were not over at that entry.

    Args:
        parent: The parent as it is now.
        thread: The parent's thread up to the last entry that the fork shares.
        session_id: The id of the fork.
        op_ids: The ids of the callers' operations in the thread.
    """
    state, at_seq = parent.state, thread.last_seq
    known = state.memory.outcomes.unpack()
    outcomes = Remembered.pack([outcome for outcome in known if outcome.last_seq <= at_seq])
    later = [outcome for outcome in known if outcome.last_seq > at_seq]
    # The fork has no children and no task: they stay with the parent. What was encrypted for the parent cannot be
    # sent to it.
    return State(
        session_id,
        replace(_find_settings(parent, thread), problem=None),
        phase="idle",
        context_ref=thread.find_active_lane(at_seq),
        summaries=Summaries(not_before=state.summaries.not_before),
        counters=state.counters,
        spent=_subtract_later(state, later),
        memory=Memory(
            receipts=tuple(receipt for receipt in state.memory.receipts if receipt.request_id in outcomes),
            operations=tuple(op_ids),
            answered_calls=state.memory.answered_calls,
            outcomes=outcomes,
        ),
        listed=state.listed,
    )


def _find_settings(parent: Session, thread: Thread) -> Settings:
    """Find the settings at the end of a thread that is the beginning of the parent's.

    An earlier `config` entry has no resolved tools, only their schemas.
    """
    settings = parent.state.settings
    config, newest = (part.find_config(part.last_seq) for part in (thread, parent.thread))
    if config is None:
        return replace(settings, agent=None, agent_due=True, tools=None, due=True)
    if not settings.due and newest is not None and newest.seq == config.seq:
        return settings
    payload = config.read(ConfigPayload)
    own, own_policy, agent = configuration.split_config(payload)
    if own.agent is None:
        own_policy = settings.own_policy if payload.policy == settings.policy else payload.policy
    return replace(
        settings,
        own=own,
        policy=payload.policy,
        own_policy=own_policy,
        agent=agent,
        agent_due=own.agent is not None and agent is None,
        tools=drafts.make_unresolved_tools(payload),
        due=False,
    )


def _subtract_later(state: State, later: Iterable[RequestOutcome]) -> Spent:
    """Subtract what the active run has spent, and runs whose outcomes came later. Each run counts once."""
    runs = {outcome.run_id: outcome for outcome in later if outcome.usage.shared_with is None}.values()
    spent = [Spent(outcome.usage, outcome.subagent_usage or Usage()) for outcome in runs]
    if state.run:
        spent.append(state.run.spent)
    own = _subtract(state.spent.own, [part.own for part in spent])
    return Spent(own, _subtract(state.spent.subagents, [part.subagents for part in spent]))


def _subtract(total: Usage, parts: Sequence[Usage]) -> Usage:
    rest = total.model_dump()
    for usage in parts:
        for name, tokens in usage.model_dump(exclude_none=True, exclude={"shared_with"}).items():
            rest[name] = max((rest[name] or 0) - tokens, 0)
    return Usage(**rest)
