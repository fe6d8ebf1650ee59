"""Changes of configuration: how they merge, and when they take effect. A run keeps the one it began with."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any, Literal

from pydantic_core import to_json

from clew_workflows.contract import READ_RESULT, ConfigureInput, ContextPolicy, SessionConfig
from clew_workflows.contract.errors import Refusal, TooLarge, UnknownTool
from clew_workflows.contract.messages import canonicalize
from clew_workflows.contract.names import MAX_METADATA_BYTES, MAX_METADATA_NAMES, is_selected
from clew_workflows.contract.payloads import ConfigPayload
from clew_workflows.contract.policy import resolve
from clew_workflows.protocol import Failure, Prepared, ResolvedAgent, ResolvedTool
from clew_workflows.session import drafts
from clew_workflows.session.requests import adopt_encoding, find_agent_policy, remember_profile
from clew_workflows.session.state import Decision, Moment, State
from clew_workflows.thread.context.projection import find_projector
from clew_workflows.thread.entries import Draft

# Adopting a preparation: what a worker has resolved takes the place of what the session had.


def adopt_preparation(state: State, answer: Prepared) -> State:
    """Adopt a worker's answer about the configuration: the agent, the tools, the model's profile, or the problem.

    If the worker does not know the agent, the session keeps the version and the tools that it has. A pinned session
    keeps the schemas that it has, and takes the settings of the calls from the answer, but if there is a problem it
    keeps its tools. A preparation anew that an MCP server prevents changes nothing: the next run's first call finds
    the session outdated again.
    """
    is_anew = state.problem is None and not state.config_due
    if is_anew and answer.problem and answer.problem.type == "mcp_unavailable":
        return replace(state, phase="idle")
    tools = answer.tools
    if state.preparation.agent is not None and answer.agent is None:
        tools = state.tools or ()
    elif state.keeps_agent:
        known = state.tools or ()
        # Without all tools, the answer would lose the schemas of the others.
        tools = known if answer.problem else _keep_schemas(known, tools)
    adopted, problem = _resolve_policy(replace(state, agent=answer.agent or state.agent), answer)
    problem = answer.problem or problem
    same_policy = adopted.policy == state.policy or adopted.model != state.model
    return replace(
        adopted,
        tools=tools,
        # A new policy may fit the model: forget what it has refused under the old one.
        learned=adopted.learned if same_policy else {},
        problem=problem,
        agent_due=state.agent_due and problem is not None,
        deployment=answer.deployment or state.deployment,
        attributes=answer.search_attributes,
        hooks=state.hooks if answer.hooks is None else answer.hooks,
        limited=state.limited if answer.limited is None else answer.limited,
        calls_models=state.calls_models if answer.calls_models is None else answer.calls_models,
        shows_texts=state.shows_texts if answer.shows_texts is None else answer.shows_texts,
        config_due=False,
        phase="idle",
    )


def _resolve_policy(state: State, answer: Prepared) -> tuple[State, Failure | None]:
    """Resolve the policy under the agent and the model's profile. What callers have set may contradict the agent.

    A worker's policy for the model that contradicts what callers have set is ignored.
    """
    adopted = state
    if (profile := answer.profile) and profile.model == state.model:
        state = adopt_encoding(state, profile)
        adopted = remember_profile(state, profile)
    try:
        policy = resolve(session=adopted.own_policy, agent=find_agent_policy(adopted))
        find_projector(policy.projector)
        if adopted.agent:
            check_config(adopted.config)
        return replace(adopted, policy=policy), None
    except Refusal as refusal:
        if adopted.agent is None:
            return state, None
        return adopted, Failure(type=refusal.type, message=refusal.message)


def _keep_schemas(known: Iterable[ResolvedTool], tools: Iterable[ResolvedTool]) -> tuple[ResolvedTool, ...]:
    """Return the tools with the schemas that the session knows by their names, and their tokens."""
    kept = {tool.spec["name"]: {"spec": tool.spec, "tokens": tool.tokens} for tool in known}
    return tuple(tool.model_copy(update=kept.get(tool.spec["name"])) for tool in tools)


Status = Literal["applied", "deferred"]


def configure(state: State, change: ConfigureInput) -> tuple[Decision, Status]:
    """Apply a change of configuration at once, or let it wait for the run to end.

    Raises:
        InvalidInput: The policy, merged with that of a waiting change, names an unknown projector or contradicts
            itself.
        InvalidTokenBudget: The policy leaves no budget.
        TooLarge: The metadata, with that of the agent, is too large.
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
    """Return the state with a change of configuration in it. Under another agent it is checked by the preparation.

    Raises:
        InvalidInput: The policy names an unknown projector or contradicts itself.
        InvalidTokenBudget: The policy leaves no budget.
        TooLarge: The metadata, with that of the agent, is too large.
        UnknownTool: `require_approval` names a tool that the session does not have.
    """
    changed = _list_fields(change)
    changed.pop("context_policy", None)
    if change.model_options:
        changed["model_options"] = state.own.model_options.overlay(change.model_options)
    if change.limits:
        changed["limits"] = state.own.limits.overlay(change.limits)
    after = replace(
        state,
        own=state.own.model_copy(update=changed),
        own_policy=_overlay_policy(state.own_policy, change.context_policy),
        # A new policy may fit the models: forget what they have refused under the old one.
        learned={} if change.context_policy else state.learned,
    )
    if change.agent:
        return replace(after, agent_due=True)
    policy = resolve(session=after.own_policy, agent=find_agent_policy(after))
    find_projector(policy.projector)
    if not after.agent_due or after.own.agent is None:
        check_config(after.config)
    return replace(after, policy=policy)


def check_config(config: SessionConfig) -> None:
    """Check what an agent's configuration and the fields that callers have set must not be together.

    Raises:
        TooLarge: The metadata of both have more than 64 names, or more than 8 192 bytes.
        UnknownTool: `require_approval` names a tool that the session does not have.
    """
    check_approvals(config)
    size = len(to_json(config.metadata))
    if size > MAX_METADATA_BYTES or len(config.metadata) > MAX_METADATA_NAMES:
        raise TooLarge(
            f"metadata: with the agent's it has {len(config.metadata)} names and {size} bytes of JSON, at most "
            f"{MAX_METADATA_NAMES} and {MAX_METADATA_BYTES} are taken"
        )


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


def split_config(payload: ConfigPayload) -> tuple[SessionConfig, ContextPolicy | None, ResolvedAgent | None]:
    """Split a recorded configuration into what callers have set, their changes of the policy, and the agent's.

    Without an agent it is all the callers', and their changes of the policy are not known.
    """
    if payload.own is None:
        return payload.config, None, None
    fields = {name: value for name, value in payload.own.items() if name != "context_policy"}
    own = SessionConfig.model_validate_json(to_json(fields))
    changes = payload.own.get("context_policy")
    own_policy = None if changes is None else ContextPolicy.model_validate(changes, strict=False)
    if payload.agent is None:
        return own, own_policy, None
    # What the callers have overlaid of the agent's is not recorded. The next preparation brings it.
    config = payload.config.model_copy(update={"context_policy": payload.policy})
    version = payload.agent
    agent = ResolvedAgent(name=version.name, version=version.version, label=version.label, config=config)
    return own, own_policy, agent


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
        preparing = f"model {state.model}, tools {', '.join(state.config.tools) or 'none'}"
        if state.own.agent:
            preparing = f"agent {state.own.agent}, {preparing}"
        entries.append(drafts.draft_input(state, "dropped", "configure", reason, preparing))
    return Decision(replace(state, pending_config=None), tuple(entries))


def _configure(state: State, change: ConfigureInput) -> Decision:
    before = state.preparation
    state = change_config(state, change)
    if state.preparation == before and change.tools is None and change.agent is None:
        return Decision(state, (drafts.draft_config(state),))
    if change.tools is not None and state.keeps_agent:
        # The schemas of the named tools are resolved anew, like those of tools that the session never had.
        remaining = tuple(tool for tool in state.tools or () if tool.spec["name"] not in change.tools)
        state = replace(state, tools=remaining)
    return Decision(replace(state, phase="preparing", config_due=True), (), state.preparation)


def _overlay_policy(own: ContextPolicy | None, change: ContextPolicy | None) -> ContextPolicy | None:
    return own if change is None else (own or ContextPolicy()).overlay(change)


def _list_fields(change: ConfigureInput) -> dict[str, Any]:
    """Return the fields that a change sets. Null is like absent; within options and limits it removes a value."""
    return {name: value for name, value in change.model_dump(exclude_unset=True).items() if value is not None}


def _merge_changes(lower: ConfigureInput | None, upper: ConfigureInput) -> ConfigureInput:
    """Merge two changes of configuration field by field, and within options, policy and limits too."""
    if lower is None:
        return upper
    merged = _list_fields(lower)
    for name, value in _list_fields(upper).items():
        both = isinstance(value, dict) and isinstance(merged.get(name), dict) and name != "metadata"
        merged[name] = merged[name] | value if both else value
    return ConfigureInput.model_validate(merged)


def _make_excerpt(change: ConfigureInput) -> str:
    return canonicalize(change.model_dump(mode="json", exclude_unset=True)).decode()
