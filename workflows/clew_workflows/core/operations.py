"""What changes a context: context operations and configuration. A run is never changed under its feet."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Literal

from clew.context.projection import projector_named
from clew.contract.inputs import (
    READ_RESULT,
    ConfigureInput,
    ContextOperation,
    Operation,
    SessionConfig,
    SnapshotMessage,
)
from clew.contract.policy import ContextPolicy, resolve
from clew.errors import InvalidOperation, QueueFull, UnknownTool
from clew.model.canonical import canonical, digest
from clew.thread.entries import Draft
from clew.thread.layers import Ground
from clew.thread.thread import Thread
from clew_workflows.core import drafts, summaries
from clew_workflows.core.decision import Decision
from clew_workflows.core.defaults import agent_policy
from clew_workflows.core.state import LANE_OPS, MAX_WAITING, MAX_WAITING_BYTES, Moment, State, remembering

MAX_PINNED = 64
"""Entries of a lane that may be pinned at a time."""

Status = Literal["applied", "deferred", "duplicate"]


def check(given: ContextOperation, rev: int) -> None:
    """Refuse an operation that could not be applied.

    Raises:
        InvalidOperation: with what is wrong about it.
    """
    operation = given.operation
    match operation.type:
        case "replace":
            if operation.result_context is not None:
                _check_messages(operation.result_context.messages)
            elif operation.reason != "compaction":
                raise InvalidOperation(
                    "replace needs result_context, the context that it puts under the lane; with the reason "
                    "'compaction' it may be left out, and the session writes it"
                )
            if operation.base_seq is not None and operation.base_seq >= rev:
                raise InvalidOperation(f"base_seq {operation.base_seq} is not in the thread, which ends at {rev - 1}")
        case "switch":
            if given.context_ref is None:
                raise InvalidOperation("switch needs context_ref, the lane to make active")
            if operation.result_context is not None or operation.base_seq is not None:
                raise InvalidOperation("switch takes no context: replace the lane first, then switch to it")
        case "pin" | "unpin" if not operation.seqs:
            raise InvalidOperation(f"{operation.type} needs seqs, those of the lane's messages")
        case _ if operation.result_context is not None or operation.base_seq is not None:
            raise InvalidOperation(f"{operation.type} takes no context and no base_seq")
    if operation.seqs is not None and operation.type not in ("pin", "unpin"):
        raise InvalidOperation(f"{operation.type} takes no seqs")


def check_lane(state: State, thread: Thread, given: ContextOperation) -> None:
    """Refuse an operation that the lane as it is cannot take.

    A pin of an entry in the archive is taken at its word where the session cannot tell whether it is a message of the
    lane. If it is none, contexts are as if it were not pinned.

    Raises:
        InvalidOperation: with what is wrong about it.
    """
    name, operation = given.context_ref or state.context_ref, given.operation
    lane = thread.lane(name)
    ground = lane.grounds[-1] if lane else Ground()
    waiting = [other.operation for other in state.pending_ops if (other.context_ref or state.context_ref) == name]
    if operation.type == "expand" and ground.known:
        layers = len(ground.layers) - 1 - sum(other.type == "expand" for other in waiting)
        if layers < 1 and not any(other.type == "replace" and other.reason == "compaction" for other in waiting):
            raise InvalidOperation(f"nothing of the lane {name!r} is compacted")
    if operation.type != "pin":
        return
    pinned = {*_pinned(ground, waiting), *(operation.seqs or ())}
    if len(pinned) > MAX_PINNED:
        raise InvalidOperation(f"{len(pinned)} entries would be pinned, at most {MAX_PINNED} can be: unpin some")
    tokens = 0
    for seq in pinned:
        group = lane.group_at(seq) if lane else None
        known = seq >= thread.first_seq or (lane is not None and seq not in ground.pinned and lane.holds(seq))
        if seq >= thread.rev or (group is None and known):
            raise InvalidOperation(f"entry {seq} is no message of the lane {name!r}")
        tokens += sum(entry.tokens for entry in group.entries) if group else 0
    if tokens * 2 > state.policy.budget:
        raise InvalidOperation(
            f"what is pinned would have {tokens} tokens, at most half of the budget of {state.policy.budget} can be: "
            "unpin some"
        )


def _pinned(ground: Ground, waiting: Sequence[Operation]) -> set[int]:
    """What is pinned once the operations that wait have been applied."""
    pinned = set(ground.pinned)
    for operation in waiting:
        match operation.type:
            case "pin":
                pinned |= set(operation.seqs or ())
            case "unpin":
                pinned -= set(operation.seqs or ())
            case "replace" if operation.reason != "compaction":
                pinned = set()
    return pinned


def is_known(state: State, op_id: str) -> bool:
    """Whether an operation of that id has been applied or overtaken, or waits."""
    return op_id in state.known_ops or any(waiting.op_id == op_id for waiting in state.pending_ops)


def check_room(state: State, given: ContextOperation) -> None:
    """Refuse an operation that would have to wait where as many wait as are kept.

    Raises:
        QueueFull: 64 operations, or 512 KiB of them, wait already.
    """
    if not _waits(state, given):
        return
    others = [waiting for waiting in state.pending_ops if not _overtakes(given, waiting)]
    size = sum(len(_excerpt(waiting)) for waiting in (*others, given))
    if len(others) >= MAX_WAITING or size > MAX_WAITING_BYTES:
        raise QueueFull(f"{len(others)} context operations wait already: try again when the run has ended")


def submit(state: State, given: ContextOperation, at: Moment) -> tuple[Decision, Status]:
    """An operation is applied at once, or waits for the run to end.

    Of the `replace` and `switch` operations that would wait only the latest does; all others wait in order.
    """
    if is_known(state, given.op_id):
        return Decision(state), "duplicate"
    if not _waits(state, given):
        return _apply(state, given, at), "deferred" if _is_to_be_written(given) else "applied"
    kept, written = [], []
    for waiting in state.pending_ops:
        if not _overtakes(given, waiting):
            kept.append(waiting)
            continue
        # A repetition of the overtaken operation would be no newer than it was.
        state = remembering(state, waiting.op_id)
        reason = f"operation {given.op_id!r} came after it"
        written.append(
            drafts.input_entry(state, "superseded", "modify_context", reason, _excerpt(waiting), op_id=waiting.op_id)
        )
    return Decision(replace(state, pending_ops=(*kept, given)), tuple(written)), "deferred"


def _waits(state: State, given: ContextOperation) -> bool:
    # A summary is written under the configuration in force, which is not known while a worker prepares one.
    return state.busy or (_is_to_be_written(given) and state.phase != "idle")


def _overtakes(given: ContextOperation, waiting: ContextOperation) -> bool:
    return given.operation.type in LANE_OPS and waiting.operation.type in LANE_OPS


def check_configure(state: State, given: ConfigureInput) -> None:
    """Refuse a change that could not be made, be it together with the one that waits already.

    Raises:
        InvalidInput, InvalidTokenBudget: its policy cannot be used.
        UnknownTool: approval is required for a tool that the session does not have.
    """
    configured(state, _laid_over(state.pending_config, given))


def configured(state: State, given: ConfigureInput) -> State:
    """The session as a change of configuration would have it.

    Raises:
        InvalidInput, InvalidTokenBudget, UnknownTool: see `check_configure`.
    """
    changed = _named(given)
    changed.pop("context_policy", None)
    if given.model_options:
        changed["model_options"] = state.config.model_options.overlaid(given.model_options)
    if given.limits:
        limits = state.config.limits.model_dump(exclude_unset=True) | given.limits.model_dump(exclude_unset=True)
        changed["limits"] = type(given.limits).model_validate(limits)
    config: SessionConfig = state.config.model_copy(update=changed)
    own = (state.own_policy or ContextPolicy()).overlaid(given.context_policy)
    policy = resolve(session=own, agent=agent_policy(state, config))
    projector_named(policy.projector)
    check_approvals(config)
    due = state.defaults_due or config.model != state.config.model
    # Who sets a policy knows what the models take by now, whatever they have refused before.
    learned = {} if given.context_policy else state.learned
    return replace(state, config=config, own_policy=own, policy=policy, defaults_due=due, learned=learned)


def configure(state: State, given: ConfigureInput) -> tuple[Decision, Status]:
    """A change of configuration takes effect at once, or when the run has ended."""
    waiting = state.pending_config
    if not state.busy and state.phase != "preparing":
        return _configure(state, given), "applied"
    merged: tuple[Draft, ...] = ()
    if waiting:
        merged = (drafts.input_entry(state, "merged", "configure", "a later change adds to it", _excerpt(waiting)),)
    return Decision(replace(state, pending_config=_laid_over(waiting, given)), merged), "deferred"


def check_approvals(config: SessionConfig) -> None:
    """Refuse a configuration that wants approval for a tool that it does not have: a typo would go unnoticed.

    Raises:
        UnknownTool: with the names.
    """
    unknown = [name for name in config.require_approval if name not in config.tools and name != READ_RESULT]
    if unknown:
        tools = ", ".join(config.tools) or "none"
        raise UnknownTool(
            f"require_approval names {', '.join(map(repr, unknown))}, which the session has no tool of: its tools "
            f"are {tools}"
        )


def apply_deferred(state: State, at: Moment) -> Decision:
    """What waited for the run to end: the operations in order, then the configuration.

    A compaction that the session writes comes in between: what follows waits for it.
    """
    decision = Decision(state)
    while decision.state.phase == "idle" and decision.state.pending_ops:
        decision = decision.then(_apply_next, at)
    return decision.then(apply_config, at)


def apply_config(state: State, _at: Moment) -> Decision:
    """The change of configuration that waited for the run to end."""
    given = state.pending_config
    if given is None or state.phase != "idle":
        return Decision(state)
    return _configure(replace(state, pending_config=None), given)


def apply_before_interrupt(state: State, at: Moment) -> Decision:
    """What waited for the run that a message interrupts. A compaction waits on: the message does not wait for it."""
    later = tuple(waiting for waiting in state.pending_ops if _is_to_be_written(waiting))
    now = tuple(waiting for waiting in state.pending_ops if waiting not in later)
    decision = apply_deferred(replace(state, pending_ops=now), at)
    return replace(decision, state=replace(decision.state, pending_ops=later))


def drop_deferred(state: State, reason: str) -> Decision:
    """What waited for a run to end is never applied."""
    written = [
        drafts.input_entry(state, "dropped", "modify_context", reason, _excerpt(waiting), op_id=waiting.op_id)
        for waiting in state.pending_ops
    ]
    if given := state.pending_config:
        written.append(drafts.input_entry(state, "dropped", "configure", reason, _excerpt(given)))
    if state.config_due:
        preparing = f"model {state.config.model}, tools {', '.join(state.config.tools) or 'none'}"
        written.append(drafts.input_entry(state, "dropped", "configure", reason, preparing))
    return Decision(replace(state, pending_ops=(), pending_config=None), tuple(written))


def _is_to_be_written(given: ContextOperation) -> bool:
    return given.operation.type == "replace" and given.operation.result_context is None


def _apply_next(state: State, at: Moment) -> Decision:
    first, *others = state.pending_ops
    return _apply(replace(state, pending_ops=tuple(others)), first, at)


def _apply(state: State, given: ContextOperation, at: Moment) -> Decision:
    if _is_to_be_written(given):
        return summaries.begin_compaction(remembering(state, given.op_id), given)
    lane = given.context_ref or state.context_ref
    operation = given.operation.model_dump(mode="json", exclude_unset=True, exclude_none=True)
    operation.setdefault("reason", given.operation.reason)
    if snapshot := operation.get("result_context"):
        snapshot["messages"] = [_renamed(message, given.op_id, at.rev) for message in snapshot["messages"]]
    payload = {"op_id": given.op_id, "context_ref": lane, "operation": operation}
    draft = Draft("ai_context_operation", payload, {"session_id": state.session_id})
    state = remembering(state, given.op_id)
    if given.operation.type == "switch":
        state = replace(state, context_ref=lane)
    return Decision(state, (draft,))


def _renamed(message: dict[str, Any], op_id: str, seq: int) -> dict[str, Any]:
    """A message of a snapshot whose tool calls have ids that are unique in the thread, results along with calls."""

    def unique(tool_call_id: str) -> str:
        return f"then-{digest([op_id, seq, tool_call_id])[:20]}"

    named = dict(message)
    if calls := message.get("tool_calls"):
        named["tool_calls"] = [{**call, "id": unique(call["id"])} for call in calls]
    if "tool_call_id" in message:
        named["tool_call_id"] = unique(message["tool_call_id"])
    return named


def _configure(state: State, given: ConfigureInput) -> Decision:
    before = state.preparation
    state = configured(state, given)
    if state.preparation == before:
        return Decision(state, (drafts.config_entry(state),))
    return Decision(replace(state, phase="preparing", config_due=True), (), state.preparation)


def _named(given: ConfigureInput) -> dict[str, Any]:
    """What a change names. Null is as good as absent; within options and limits it takes a value away."""
    return {name: value for name, value in given.model_dump(exclude_unset=True).items() if value is not None}


def _laid_over(lower: ConfigureInput | None, upper: ConfigureInput) -> ConfigureInput:
    """Two changes of configuration as one: field by field, and within options, policy and limits too."""
    if lower is None:
        return upper
    merged = _named(lower)
    for name, value in _named(upper).items():
        both = isinstance(value, dict) and isinstance(merged.get(name), dict)
        merged[name] = merged[name] | value if both else value
    return ConfigureInput.model_validate(merged)


def _check_messages(messages: Sequence[SnapshotMessage]) -> None:
    """A snapshot must be what every provider takes: results right after their calls, each once."""
    waiting: set[str] = set()
    seen: set[str] = set()
    for number, message in enumerate(messages):
        where = f"result_context.messages[{number}]"
        if message.role == "tool":
            if message.tool_call_id not in waiting:
                raise InvalidOperation(f"{where}: a tool result needs its tool call right before it")
            waiting.remove(message.tool_call_id)
            continue
        if waiting:
            raise InvalidOperation(f"{where}: the tool calls before it need their results first")
        if message.tool_calls and message.role != "assistant":
            raise InvalidOperation(f"{where}: only an assistant calls tools")
        calls = [call.id for call in message.tool_calls or ()]
        waiting = set(calls)
        if len(waiting) < len(calls) or waiting & seen:
            raise InvalidOperation(f"{where}: a tool call's id stands there twice")
        seen |= waiting
    if waiting:
        raise InvalidOperation("result_context ends within tool calls: each needs its result")


def _excerpt(given: ContextOperation | ConfigureInput) -> str:
    return canonical(given.model_dump(mode="json", exclude_unset=True)).decode()
