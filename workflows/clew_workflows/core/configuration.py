"""Changes of configuration: how they merge, and when they take effect. A run keeps the one it began with."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Literal

from clew.context.projection import find_projector
from clew.contract import READ_RESULT, ConfigureInput, ContextPolicy, SessionConfig
from clew.contract.mcp_names import is_selected
from clew.contract.policy import resolve
from clew.errors import Refusal, UnknownTool
from clew.model.canonical import canonicalize
from clew.thread.entries import Draft
from clew_workflows.core import drafts
from clew_workflows.core.decision import Decision
from clew_workflows.core.profiles import find_agent_policy
from clew_workflows.core.state import Moment, State

Status = Literal["applied", "deferred"]


def configure(state: State, change: ConfigureInput) -> tuple[Decision, Status]:
    """Apply a change of configuration at once, or let it wait for the run to end.

    Raises:
        InvalidInput: The policy, merged with that of a waiting change, names an unknown projector or contradicts
            itself.
        InvalidTokenBudget: The policy leaves no budget.
        UnknownTool: `require_approval` names a tool that the session does not have.
    """
    waiting = state.pending_config
    if not state.busy and state.phase != "preparing":
        return _configure(state, change), "applied"
    merged = _merge_changes(waiting, change)
    change_config(state, merged)
    entries: tuple[Draft, ...] = ()
    if waiting:
        entries = (
            drafts.draft_input(state, "merged", "configure", "a later change adds to it", _make_excerpt(waiting)),
        )
    return Decision(replace(state, pending_config=merged), entries), "deferred"


def change_config(state: State, change: ConfigureInput) -> State:
    """Return the state with a change of configuration in it.

    Raises:
        InvalidInput: The policy names an unknown projector or contradicts itself.
        InvalidTokenBudget: The policy leaves no budget.
        UnknownTool: `require_approval` names a tool that the session does not have.
    """
    changed = _list_fields(change)
    changed.pop("context_policy", None)
    if change.model_options:
        changed["model_options"] = state.config.model_options.overlay(change.model_options)
    if change.limits:
        limits = state.config.limits.model_dump(exclude_unset=True) | change.limits.model_dump(exclude_unset=True)
        changed["limits"] = type(change.limits).model_validate(limits)
    config: SessionConfig = state.config.model_copy(update=changed)
    own = (state.own_policy or ContextPolicy()).overlay(change.context_policy)
    policy = resolve(session=own, agent=find_agent_policy(state, config))
    find_projector(policy.projector)
    check_approvals(config)
    # A new policy may fit the models: forget what they have refused under the old one.
    learned = {} if change.context_policy else state.learned
    return replace(state, config=config, own_policy=own, policy=policy, learned=learned)


def check_approvals(config: SessionConfig) -> None:
    """Refuse approvals for tools that the session does not have: a typo would go unnoticed.

    Raises:
        UnknownTool: `require_approval` names such a tool.
    """
    names = (*config.tools, READ_RESULT)
    unknown = [name for name in config.require_approval if not is_selected(name, names)]
    if unknown:
        tools = ", ".join(config.tools) or "none"
        raise UnknownTool(
            f"require_approval names {', '.join(map(repr, unknown))}, which are no tools of the session: its tools "
            f"are {tools}"
        )


def apply_config(state: State, _at: Moment) -> Decision:
    """Apply the change of configuration that waited for the run to end."""
    change = state.pending_config
    if change is None or state.phase != "idle":
        return Decision(state)
    try:
        return _configure(replace(state, pending_config=None), change)
    except Refusal as refusal:
        # It was checked before a worker had described its model.
        entry = drafts.draft_input(state, "dropped", "configure", str(refusal), _make_excerpt(change))
        return Decision(replace(state, pending_config=None), (entry,))


def drop_config(state: State, reason: str) -> Decision:
    """Drop the change that waited for a run to end, and the one that a worker was to prepare."""
    entries = []
    if change := state.pending_config:
        entries.append(drafts.draft_input(state, "dropped", "configure", reason, _make_excerpt(change)))
    if state.config_due:
        preparing = f"model {state.config.model}, tools {', '.join(state.config.tools) or 'none'}"
        entries.append(drafts.draft_input(state, "dropped", "configure", reason, preparing))
    return Decision(replace(state, pending_config=None), tuple(entries))


def _configure(state: State, change: ConfigureInput) -> Decision:
    before = state.preparation
    state = change_config(state, change)
    if state.preparation == before:
        return Decision(state, (drafts.draft_config(state),))
    return Decision(replace(state, phase="preparing", config_due=True), (), state.preparation)


def _list_fields(change: ConfigureInput) -> dict[str, Any]:
    """Return the fields that a change sets. Null is like absent; within options and limits it removes a value."""
    return {name: value for name, value in change.model_dump(exclude_unset=True).items() if value is not None}


def _merge_changes(lower: ConfigureInput | None, upper: ConfigureInput) -> ConfigureInput:
    """Merge two changes of configuration field by field, and within options, policy and limits too."""
    if lower is None:
        return upper
    merged = _list_fields(lower)
    for name, value in _list_fields(upper).items():
        both = isinstance(value, dict) and isinstance(merged.get(name), dict)
        merged[name] = merged[name] | value if both else value
    return ConfigureInput.model_validate(merged)


def _make_excerpt(change: ConfigureInput) -> str:
    return canonicalize(change.model_dump(mode="json", exclude_unset=True)).decode()
