"""What changes a context: context operations and configuration. A run is never changed under its feet."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Literal

from clew.canonical import canonical
from clew.contract import ConfigureInput, ContextOperation, SessionConfig, SnapshotMessage
from clew.entries import Draft
from clew.errors import InvalidOperation
from clew.ground import Ground
from clew.policy import ContextPolicy, resolve
from clew.projection import projector_named
from clew.thread import Thread
from workflows import facts, summaries
from workflows.decision import Decision
from workflows.defaults import agent_policy
from workflows.state import Moment, State, remembering

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
    """Refuse an operation that the lane as it is cannot take. What is in the archive alone is taken at its word.

    Raises:
        InvalidOperation: with what is wrong about it.
    """
    name, operation = given.context_ref or state.context_ref, given.operation
    lane = thread.lane(name)
    ground = lane.grounds[-1] if lane else Ground()
    if operation.type == "expand" and ground.known and not ground.compacted:
        raise InvalidOperation(f"nothing of the lane {name!r} is compacted")
    if operation.type != "pin":
        return
    pinned = {*ground.pinned, *(operation.seqs or ())}
    if len(pinned) > MAX_PINNED:
        raise InvalidOperation(f"{len(pinned)} entries would be pinned, at most {MAX_PINNED} can be: unpin some")
    tokens = 0
    for seq in pinned:
        group = lane.group_at(seq) if lane else None
        if seq >= thread.rev or (group is None and seq >= thread.first_seq):
            raise InvalidOperation(f"entry {seq} is no message of the lane {name!r}")
        tokens += sum(entry.tokens for entry in group.entries) if group else 0
    if tokens * 2 > state.policy.budget:
        raise InvalidOperation(
            f"what is pinned would have {tokens} tokens, at most half of the budget of {state.policy.budget} can be: "
            "unpin some"
        )


def submit(state: State, given: ContextOperation) -> tuple[Decision, Status]:
    """An operation is applied at once, or waits for the run to end; the latest that waits wins."""
    waiting = state.pending_op
    if given.op_id in state.known_ops or (waiting and waiting.op_id == given.op_id):
        return Decision(state), "duplicate"
    # An operation must not overtake a configuration that is being prepared; that of a session resumed stands.
    if not (state.busy or state.config_due):
        return _apply(state, given), "deferred" if _is_to_be_written(given) else "applied"
    deferred = Decision(replace(state, pending_op=given))
    if waiting:
        # Its repetition would be no newer than it was.
        deferred = Decision(remembering(deferred.state, waiting.op_id))
        overtaken = facts.input_entry(
            state, "superseded", "modify_context", f"operation {given.op_id!r} came after it", _excerpt(waiting),
            op_id=waiting.op_id,
        )  # fmt: skip
        deferred = replace(deferred, commit=(overtaken,))
    return deferred, "deferred"


def check_configure(state: State, given: ConfigureInput) -> None:
    """Refuse a change that could not be made, be it together with the one that waits already.

    Raises:
        InvalidInput, InvalidTokenBudget: its policy cannot be used.
    """
    configured(state, _laid_over(state.pending_config, given))


def configured(state: State, given: ConfigureInput) -> State:
    """The session as a change of configuration would have it.

    Raises:
        InvalidInput, InvalidTokenBudget: its policy cannot be used.
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
    due = state.defaults_due or config.model != state.config.model
    # Who sets a policy knows what the models take by now, whatever they have refused before.
    learned = {} if given.context_policy else state.learned
    return replace(state, config=config, own_policy=own, policy=policy, defaults_due=due, learned=learned)


def configure(state: State, given: ConfigureInput) -> tuple[Decision, Status]:
    """A change of configuration takes effect at once, or when the run has ended."""
    if state.busy or state.phase == "preparing":
        return Decision(replace(state, pending_config=_laid_over(state.pending_config, given))), "deferred"
    return _configure(state, given), "applied"


def apply_deferred(state: State, at: Moment) -> Decision:
    """What waited for the run to end, the operation first."""
    decision = Decision(state)
    # A summary is written under the configuration as it is, and that waits for it.
    if state.phase != "idle":
        return decision
    if state.pending_op:
        decision = _apply(replace(state, pending_op=None), state.pending_op)
    if (given := state.pending_config) and decision.state.phase == "idle":
        return decision.then(lambda state, _at: _configure(replace(state, pending_config=None), given), at)
    return decision


def drop_deferred(state: State, reason: str) -> Decision:
    """What waited for a run to end is never applied."""
    drafts = []
    if waiting := state.pending_op:
        drafts.append(
            facts.input_entry(state, "dropped", "modify_context", reason, _excerpt(waiting), op_id=waiting.op_id)
        )
    if given := state.pending_config:
        drafts.append(facts.input_entry(state, "dropped", "configure", reason, _excerpt(given)))
    if state.config_due:
        preparing = f"model {state.config.model}, tools {', '.join(state.config.tools) or 'none'}"
        drafts.append(facts.input_entry(state, "dropped", "configure", reason, preparing))
    return Decision(replace(state, pending_op=None, pending_config=None), tuple(drafts))


def _is_to_be_written(given: ContextOperation) -> bool:
    return given.operation.type == "replace" and given.operation.result_context is None


def _apply(state: State, given: ContextOperation) -> Decision:
    if _is_to_be_written(given):
        return summaries.begin_compaction(remembering(state, given.op_id), given)
    lane = given.context_ref or state.context_ref
    operation = given.operation.model_dump(mode="json", exclude_unset=True, exclude_none=True)
    operation.setdefault("reason", given.operation.reason)
    payload = {"op_id": given.op_id, "context_ref": lane, "operation": operation}
    draft = Draft("ai_context_operation", payload, {"session_id": state.session_id})
    state = remembering(state, given.op_id)
    if given.operation.type == "switch":
        state = replace(state, context_ref=lane)
    return Decision(state, (draft,))


def _configure(state: State, given: ConfigureInput) -> Decision:
    before = state.preparation
    state = configured(state, given)
    if state.preparation == before:
        return Decision(state, (facts.config_entry(state),))
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
