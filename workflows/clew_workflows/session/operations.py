"""Context operations: when a session refuses one, when it lets one wait, and how it applies one.

`clew_workflows.contract.inputs` defines their JSON. A new operation needs a case in `_check`, which refuses it,
and one in `_apply`, which changes the state beside the entry that is committed; mypy reports a missing case. While a
run is active operations wait, so that a run keeps its context.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Literal, assert_never

from clew_workflows.contract import ContextOperation, Expand, Pin, Replace, Switch, Unpin
from clew_workflows.contract.errors import InvalidOperation, QueueFull, RequestReused
from clew_workflows.contract.messages import canonicalize, compute_digest
from clew_workflows.contract.payloads import OperationPayload
from clew_workflows.session import budgets, configuration, drafts, summaries
from clew_workflows.session.state import MAX_WAITING, MAX_WAITING_BYTES, Decision, Moment, State, digest_command
from clew_workflows.thread.entries import Draft, Entry
from clew_workflows.thread.lane import Lane, Layers
from clew_workflows.thread.thread import Thread

MAX_PINNED = 64
"""Most pinned entries of a lane."""

Status = Literal["applied", "deferred", "duplicate"]


def take_operation(state: State, thread: Thread, command: ContextOperation, at: Moment) -> tuple[Decision, Status]:
    """Apply an operation at once, or let it wait for the run to end.

    Without a lane it means the lane that is active now: a `switch` that waits before it does not change that.
    A waiting `replace` or `switch` is superseded by a newer one. All others wait in order.

    Raises:
        InvalidInput: A compaction would end before the summary in force.
        InvalidOperation: The lane cannot take the operation; the message says why.
        NothingToSummarize: A compaction would begin at once, and there is nothing to summarize.
        QueueFull: 64 operations, or 512 KiB of them, wait already.
        RequestReused: The id names another operation that was accepted before.
    """
    digest = digest_command(command)
    if is_known(state, command.op_id):
        if state.memory.is_reused("op_id", command.op_id, digest):
            raise RequestReused(
                f"op_id: the session has accepted another operation as {command.op_id!r}: send this under another id"
            )
        return Decision(state), "duplicate"
    state = replace(state, memory=state.memory.add_digest("op_id", command.op_id, digest))
    if command.context_ref is None:
        command = command.model_copy(update={"context_ref": state.context_ref})
    _check(state, thread, command)
    if not _must_wait(state, command):
        if _needs_summary(command) and isinstance(command.operation, Replace):
            summaries.check_range(state, thread, get_lane_name(command), None, command.operation.base_seq)
        return _apply(state, command, at), "deferred" if _needs_summary(command) else "applied"
    superseded = [waiting for waiting in state.deferred.operations if _supersedes(command, waiting)]
    remaining = tuple(waiting for waiting in state.deferred.operations if waiting not in superseded)
    size = sum(len(_make_excerpt(waiting)) for waiting in (*remaining, command))
    if len(remaining) >= MAX_WAITING or size > MAX_WAITING_BYTES:
        raise QueueFull(f"{len(remaining)} context operations wait already: try again when the run has ended")
    entries = []
    for waiting in superseded:
        # A repetition of the superseded operation is no newer operation: answer it as a duplicate.
        state = replace(state, memory=state.memory.add_operation(waiting.op_id))
        reason = f"operation {command.op_id!r} came after it"
        entries.append(
            drafts.draft_input("superseded", "modify_context", reason, _make_excerpt(waiting), op_id=waiting.op_id)
        )
    return Decision(
        replace(state, deferred=replace(state.deferred, operations=(*remaining, command))), tuple(entries)
    ), "deferred"


def is_known(state: State, op_id: str) -> bool:
    """Whether an operation with this id has been applied or superseded, or waits."""
    return op_id in state.memory.operations or any(waiting.op_id == op_id for waiting in state.deferred.operations)


def find_pending_op(state: State) -> ContextOperation | None:
    """Find the `replace` or `switch` that waits for the run to end."""
    return next((waiting for waiting in state.deferred.operations if waiting.operation.supersedes), None)


def get_lane_name(command: ContextOperation) -> str:
    """The lane of an accepted operation, which always names one."""
    assert command.context_ref is not None, "an accepted operation names its lane"
    return command.context_ref


def apply_deferred(state: State, at: Moment) -> Decision:
    """Apply what waited for the run to end: the operations in order, then the configuration.

    If an operation needs a summary, the rest waits until it is written.
    """
    decision = Decision(state)
    while decision.state.phase == "idle" and decision.state.deferred.operations:
        decision = decision.then(_apply_next, at)
    return decision.then(configuration.apply_config, at) if decision.state.deferred.config else decision


def apply_before_interrupt(state: State, at: Moment) -> Decision:
    """Apply what waited for a run that a message interrupts. Operations that need a summary wait on."""
    later = tuple(waiting for waiting in state.deferred.operations if _needs_summary(waiting))
    now = tuple(waiting for waiting in state.deferred.operations if waiting not in later)
    decision = apply_deferred(replace(state, deferred=replace(state.deferred, operations=now)), at)
    return replace(
        decision, state=replace(decision.state, deferred=replace(decision.state.deferred, operations=later))
    )


def drop_deferred(state: State, _at: Moment, reason: str) -> Decision:
    """Drop the operations that waited for a run to end. A repetition of one is answered as a duplicate."""
    entries = []
    for waiting in state.deferred.operations:
        state = replace(state, memory=state.memory.add_operation(waiting.op_id))
        entries.append(
            drafts.draft_input("dropped", "modify_context", reason, _make_excerpt(waiting), op_id=waiting.op_id)
        )
    return Decision(replace(state, deferred=replace(state.deferred, operations=())), tuple(entries))


def _check(state: State, thread: Thread, command: ContextOperation) -> None:
    """Refuse an operation that the lane cannot take once the waiting operations have been applied.

    Raises:
        InvalidOperation: The message says why.
    """
    match operation := command.operation:
        case Replace():
            if operation.base_seq is not None and operation.base_seq >= thread.rev:
                ends = f"which ends at {thread.last_seq}"
                raise InvalidOperation(f"base_seq {operation.base_seq} is not in the thread, {ends}")
        case Pin():
            name = get_lane_name(command)
            lane = thread.get_lane(name)
            pinned = {*_find_layers(state, thread, name, lane).pinned, *operation.seqs}
            _check_pins(state, thread, name, lane, pinned)
        case Expand():
            name = get_lane_name(command)
            layers = _find_layers(state, thread, name, thread.get_lane(name))
            if layers.is_complete and not layers.is_compacted:
                raise InvalidOperation(f"nothing of the lane {name!r} is compacted")
        case Switch() | Unpin():
            pass
        case _:
            assert_never(operation)


def _check_pins(state: State, thread: Thread, name: str, lane: Lane | None, pinned: set[int]) -> None:
    """Refuse pins of entries that are no messages of the lane, and pins that are too many or too large together.

    A pin of an archived entry is accepted unseen. If the entry is no message of the lane, contexts ignore the pin.
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
    if tokens * 2 > (budget := budgets.find_policy(state.settings).budget):
        raise InvalidOperation(
            f"the pinned entries would have {tokens} tokens, at most half of the budget of {budget} "
            "can be pinned: unpin some"
        )


def _find_layers(state: State, thread: Thread, name: str, lane: Lane | None) -> Layers:
    """Find the layers and pins that a lane will have once the waiting operations have been applied."""
    layers = lane.layers if lane else Layers()
    for number, waiting in enumerate(state.deferred.operations):
        if get_lane_name(waiting) == name:
            draft = _draft_entry(waiting, name, thread.rev + number)
            layers = layers.apply(
                Entry(thread.rev + number, waiting.op_id, draft.kind, "", draft.payload.as_dict(), draft.refs, 0)
            )
    return layers


def _must_wait(state: State, command: ContextOperation) -> bool:
    # A summary is written under the configuration in force, which must not be in preparation then.
    return state.busy or (_needs_summary(command) and state.phase != "idle")


def _supersedes(command: ContextOperation, waiting: ContextOperation) -> bool:
    return command.operation.supersedes and waiting.operation.supersedes


def _needs_summary(command: ContextOperation) -> bool:
    return isinstance(command.operation, Replace) and command.operation.written_by_session


def _apply_next(state: State, at: Moment) -> Decision:
    first, *others = state.deferred.operations
    return _apply(replace(state, deferred=replace(state.deferred, operations=tuple(others))), first, at)


def _apply(state: State, command: ContextOperation, at: Moment) -> Decision:
    lane = get_lane_name(command)
    draft = _draft_entry(command, lane, at.rev)
    state = replace(state, memory=state.memory.add_operation(command.op_id))
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


def _draft_entry(command: ContextOperation, lane: str, seq: int) -> Draft:
    """Draft the entry of an operation that will be committed at a seq."""
    operation = command.operation.model_dump(mode="json", exclude_unset=True, exclude_none=True)
    operation.setdefault("reason", command.operation.reason)
    if snapshot := operation.get("result_context"):
        snapshot["messages"] = [_rename_calls(message, command.op_id, seq) for message in snapshot["messages"]]
    elif command.operation.type == "replace":
        # The summary is not written yet: the layer is known, its messages are not.
        operation["result_context"] = {"messages": []}
    payload = OperationPayload.from_json({"op_id": command.op_id, "context_ref": lane, "operation": operation})
    return Draft(payload)


def _rename_calls(message: dict[str, Any], op_id: str, seq: int) -> dict[str, Any]:
    """Rename the tool calls of a snapshot's message, results included, to ids that are unique in the thread."""

    def make_unique(tool_call_id: str) -> str:
        return f"then-{compute_digest([op_id, seq, tool_call_id])[:20]}"

    named = dict(message)
    if calls := message.get("tool_calls"):
        named["tool_calls"] = [{**call, "id": make_unique(call["id"])} for call in calls]
    if "tool_call_id" in message:
        named["tool_call_id"] = make_unique(message["tool_call_id"])
    return named


def _make_excerpt(command: ContextOperation) -> str:
    return canonicalize(command.model_dump(mode="json", exclude_unset=True)).decode()
