"""Context operations: when a session refuses one, when it waits, and what it does.

What an operation is as JSON, and what makes one malformed, stands in `clew.contract.operations`. A new operation gets
a case in `_check`, which refuses it, and one in `_apply`, which says what it does beside the entry that it leaves;
mypy names either where it is missing. While a run is active operations wait: a run keeps its context.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Literal, assert_never

from clew.contract import ContextOperation, Expand, Pin, Replace, Switch, Unpin
from clew.contract.payloads import OperationPayload
from clew.errors import InvalidOperation, QueueFull
from clew.model.canonical import canonicalize, compute_digest
from clew.thread.entries import Draft, Entry
from clew.thread.lane import Lane
from clew.thread.layers import Layers
from clew.thread.thread import Thread
from clew_workflows.core import configuration, drafts, summaries
from clew_workflows.core.decision import Decision
from clew_workflows.core.state import MAX_WAITING, MAX_WAITING_BYTES, Moment, State, remember_operation

MAX_PINNED = 64
"""Entries of a lane that may be pinned at a time."""

Status = Literal["applied", "deferred", "duplicate"]


def take_operation(state: State, thread: Thread, command: ContextOperation, at: Moment) -> tuple[Decision, Status]:
    """An operation is applied at once, or waits for the run to end.

    Of the `replace` and `switch` operations that would wait only the latest does; all others wait in order.

    Raises:
        InvalidOperation: the lane as it is cannot take it; the message says why.
        QueueFull: 64 operations, or 512 KiB of them, wait already.
    """
    if is_known(state, command.op_id):
        return Decision(state), "duplicate"
    _check(state, thread, command)
    if not _must_wait(state, command):
        return _apply(state, command, at), "deferred" if _is_to_be_written(command) else "applied"
    overtaken = [waiting for waiting in state.pending_ops if _overtakes(command, waiting)]
    kept = tuple(waiting for waiting in state.pending_ops if waiting not in overtaken)
    size = sum(len(_make_excerpt(waiting)) for waiting in (*kept, command))
    if len(kept) >= MAX_WAITING or size > MAX_WAITING_BYTES:
        raise QueueFull(f"{len(kept)} context operations wait already: try again when the run has ended")
    written = []
    for waiting in overtaken:
        # A repetition of the overtaken operation would be no newer than it was.
        state = remember_operation(state, waiting.op_id)
        reason = f"operation {command.op_id!r} came after it"
        written.append(
            drafts.draft_input(
                state, "superseded", "modify_context", reason, _make_excerpt(waiting), op_id=waiting.op_id
            )
        )
    return Decision(replace(state, pending_ops=(*kept, command)), tuple(written)), "deferred"


def is_known(state: State, op_id: str) -> bool:
    """Whether an operation of that id has been applied or overtaken, or waits."""
    return op_id in state.known_ops or any(waiting.op_id == op_id for waiting in state.pending_ops)


def find_pending_op(state: State) -> ContextOperation | None:
    """The `replace` or `switch` that waits for the run to end."""
    return next((waiting for waiting in state.pending_ops if waiting.operation.overtakes), None)


def apply_deferred(state: State, at: Moment) -> Decision:
    """What waited for the run to end: the operations in order, then the configuration.

    A compaction that the session writes comes in between: what follows waits for it.
    """
    decision = Decision(state)
    while decision.state.phase == "idle" and decision.state.pending_ops:
        decision = decision.then(_apply_next, at)
    return decision.then(configuration.apply_config, at)


def apply_before_interrupt(state: State, at: Moment) -> Decision:
    """What waited for the run that a message interrupts. A compaction waits on: the message does not wait for it."""
    later = tuple(waiting for waiting in state.pending_ops if _is_to_be_written(waiting))
    now = tuple(waiting for waiting in state.pending_ops if waiting not in later)
    decision = apply_deferred(replace(state, pending_ops=now), at)
    return replace(decision, state=replace(decision.state, pending_ops=later))


def drop_deferred(state: State, reason: str) -> Decision:
    """The operations that waited for a run to end are never applied."""
    written = [
        drafts.draft_input(state, "dropped", "modify_context", reason, _make_excerpt(waiting), op_id=waiting.op_id)
        for waiting in state.pending_ops
    ]
    return Decision(replace(state, pending_ops=()), tuple(written))


def _check(state: State, thread: Thread, command: ContextOperation) -> None:
    """Refuse an operation that the lane, as it is once what waits has been applied, cannot take.

    Raises:
        InvalidOperation: with what is wrong about it.
    """
    match operation := command.operation:
        case Replace():
            if operation.base_seq is not None and operation.base_seq >= thread.rev:
                ends = f"which ends at {thread.last_seq}"
                raise InvalidOperation(f"base_seq {operation.base_seq} is not in the thread, {ends}")
        case Pin():
            name = command.context_ref or state.context_ref
            lane = thread.get_lane(name)
            pinned = {*_find_layers(state, thread, name, lane).pinned, *operation.seqs}
            _check_pins(state, thread, name, lane, pinned)
        case Expand():
            name = command.context_ref or state.context_ref
            layers = _find_layers(state, thread, name, thread.get_lane(name))
            if layers.is_complete and not layers.is_compacted:
                raise InvalidOperation(f"nothing of the lane {name!r} is compacted")
        case Switch() | Unpin():
            pass
        case _:
            assert_never(operation)


def _check_pins(state: State, thread: Thread, name: str, lane: Lane | None, pinned: set[int]) -> None:
    """Refuse pins that are no messages of the lane, or too many or too large together.

    A pin of an entry in the archive is accepted where the session cannot tell whether it is a message of the lane. If
    it is none, contexts are as if it were not pinned.
    """
    if len(pinned) > MAX_PINNED:
        raise InvalidOperation(f"{len(pinned)} entries would be pinned, at most {MAX_PINNED} can be: unpin some")
    already = lane.layers.pinned if lane else ()
    tokens = 0
    for seq in pinned:
        group = lane.find_group(seq) if lane else None
        known = seq >= thread.first_seq or (lane is not None and seq not in already and lane.holds(seq))
        if seq >= thread.rev or (group is None and known):
            raise InvalidOperation(f"entry {seq} is no message of the lane {name!r}")
        tokens += sum(entry.tokens for entry in group.entries) if group else 0
    if tokens * 2 > state.policy.budget:
        raise InvalidOperation(
            f"what is pinned would have {tokens} tokens, at most half of the budget of {state.policy.budget} can be: "
            "unpin some"
        )


def _find_layers(state: State, thread: Thread, name: str, lane: Lane | None) -> Layers:
    """The layers and pins of a lane once the operations that wait have been applied."""
    layers = lane.layers if lane else Layers()
    for number, waiting in enumerate(state.pending_ops):
        if (waiting.context_ref or state.context_ref) == name:
            draft = _draft_entry(state, waiting, name, thread.rev + number)
            layers = layers.apply(
                Entry(thread.rev + number, waiting.op_id, draft.kind, "", draft.payload.as_json(), draft.refs, 0)
            )
    return layers


def _must_wait(state: State, command: ContextOperation) -> bool:
    # A summary is written under the configuration in force, which is not known while a worker prepares one.
    return state.busy or (_is_to_be_written(command) and state.phase != "idle")


def _overtakes(command: ContextOperation, waiting: ContextOperation) -> bool:
    return command.operation.overtakes and waiting.operation.overtakes


def _is_to_be_written(command: ContextOperation) -> bool:
    return isinstance(command.operation, Replace) and command.operation.written_by_session


def _apply_next(state: State, at: Moment) -> Decision:
    first, *others = state.pending_ops
    return _apply(replace(state, pending_ops=tuple(others)), first, at)


def _apply(state: State, command: ContextOperation, at: Moment) -> Decision:
    lane = command.context_ref or state.context_ref
    draft = _draft_entry(state, command, lane, at.rev)
    state = remember_operation(state, command.op_id)
    match command.operation:
        case Replace() as operation:
            if operation.written_by_session:
                return summaries.begin_compaction(state, command, operation.base_seq)
        case Switch():
            state = replace(state, context_ref=lane)
        case Pin() | Unpin() | Expand():
            pass
        case operation:
            assert_never(operation)
    return Decision(state, (draft,))


def _draft_entry(state: State, command: ContextOperation, lane: str, seq: int) -> Draft:
    """The entry that an operation leaves at a seq."""
    operation = command.operation.model_dump(mode="json", exclude_unset=True, exclude_none=True)
    operation.setdefault("reason", command.operation.reason)
    if snapshot := operation.get("result_context"):
        snapshot["messages"] = [_rename_calls(message, command.op_id, seq) for message in snapshot["messages"]]
    elif command.operation.type == "replace":
        # A compaction that is yet to be written: its layer is known, its messages are not.
        operation["result_context"] = {"messages": []}
    payload = OperationPayload.from_json({"op_id": command.op_id, "context_ref": lane, "operation": operation})
    return Draft(payload, drafts.make_session_refs(state))


def _rename_calls(message: dict[str, Any], op_id: str, seq: int) -> dict[str, Any]:
    """A message of a snapshot whose tool calls have ids that are unique in the thread, results along with calls."""

    def unique(tool_call_id: str) -> str:
        return f"then-{compute_digest([op_id, seq, tool_call_id])[:20]}"

    named = dict(message)
    if calls := message.get("tool_calls"):
        named["tool_calls"] = [{**call, "id": unique(call["id"])} for call in calls]
    if "tool_call_id" in message:
        named["tool_call_id"] = unique(message["tool_call_id"])
    return named


def _make_excerpt(command: ContextOperation) -> str:
    return canonicalize(command.model_dump(mode="json", exclude_unset=True)).decode()
