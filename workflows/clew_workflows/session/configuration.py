"""Changes of configuration: how they merge, and when they take effect. A run keeps the one it began with."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Literal

from pydantic_core import to_json

from clew_workflows.contract import ConfigureInput, ContextPolicy, SessionConfig
from clew_workflows.contract.errors import Refusal, TooLarge, UnknownTool
from clew_workflows.contract.limits import MAX_METADATA_BYTES, MAX_METADATA_NAMES
from clew_workflows.contract.messages import canonicalize
from clew_workflows.contract.names import BUILT_IN_TOOLS, is_selected
from clew_workflows.contract.payloads import ConfigPayload
from clew_workflows.contract.policy import resolve
from clew_workflows.protocol import Failure, Prepared, ResolvedAgent, ResolvedTool
from clew_workflows.session import drafts
from clew_workflows.session.requests import (
    adopt_encoding,
    check_external_tools,
    find_agent_policy,
    remember_profile,
)
from clew_workflows.session.state import Decision, Moment, Settings, State
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
    known = state.settings
    is_anew = known.problem is None and not known.due
    if is_anew and answer.problem and answer.problem.type == "mcp_unavailable":
        return replace(state, phase="idle")
    tools = answer.tools
    if state.preparation.agent is not None and answer.agent is None:
        tools = known.tools or ()
    elif known.keeps_agent:
        # Without all tools, the answer would lose the schemas of the others.
        tools = (known.tools or ()) if answer.problem else _keep_schemas(known.tools or (), tools)
    adopted, problem = _resolve_policy(replace(known, agent=answer.agent or known.agent), answer)
    adopted = replace(adopted, tools=tools)
    problem = answer.problem or problem or _find_external_problem(adopted)
    same_policy = adopted.policy == known.policy or adopted.model != known.model
    settings = replace(
        adopted,
        # A new policy may fit the model: forget what it has refused under the old one.
        learned=adopted.learned if same_policy else {},
        problem=problem,
        has_viewer=state.preparation.views,
        agent_due=known.agent_due and problem is not None,
        due=False,
        deployment=answer.deployment or known.deployment,
        attributes=answer.search_attributes,
        hooks=known.hooks if answer.hooks is None else answer.hooks,
        limited=known.limited if answer.limited is None else answer.limited,
        calls_models=known.calls_models if answer.calls_models is None else answer.calls_models,
        shows_texts=known.shows_texts if answer.shows_texts is None else answer.shows_texts,
        webhooks=answer.webhooks,
    )
    return replace(state, settings=settings, phase="idle")


def _resolve_policy(settings: Settings, answer: Prepared) -> tuple[Settings, Failure | None]:
    """Resolve the policy under the agent and the model's profile. What callers have set may contradict the agent.

    A worker's policy for the model that contradicts what callers have set is ignored.
    """
    adopted = settings
    if (profile := answer.profile) and profile.model == settings.model:
        settings = adopt_encoding(settings, profile)
        adopted = remember_profile(settings, profile)
    try:
        adopted = _resolve(adopted)
        if adopted.agent:
            check_config(adopted.config)
        return adopted, None
    except Refusal as refusal:
        if adopted.agent is None:
            return settings, None
        return adopted, Failure(type=refusal.type, message=refusal.message)


def _find_external_problem(settings: Settings) -> Failure | None:
    try:
        check_external_tools(settings, settings.config.external_tools)
        return None
    except Refusal as refusal:
        return Failure(type=refusal.type, message=refusal.message)


def _resolve(settings: Settings) -> Settings:
    policy = resolve(session=settings.own_policy, agent=find_agent_policy(settings))
    find_projector(policy.projector)
    return replace(settings, policy=policy)


def _keep_schemas(known: Iterable[ResolvedTool], tools: Iterable[ResolvedTool]) -> tuple[ResolvedTool, ...]:
    """Return the tools with the schemas that the session knows by their names, and their tokens."""
    kept = {tool.spec["name"]: {"spec": tool.spec, "tokens": tool.tokens} for tool in known}
    return tuple(tool.model_copy(update=kept.get(tool.spec["name"])) for tool in tools)


Status = Literal["applied", "deferred"]


def configure(state: State, change: ConfigureInput) -> tuple[Decision, Status]:
    """Apply a change of configuration at once, or let it wait for the run to end.

    Raises:
        InvalidInput: The policy, merged with that of a waiting change, names an unknown projector or contradicts
            itself, or an external tool has the name of a tool that the session has from its workers.
        InvalidTokenBudget: The policy leaves no budget.
        TooLarge: The metadata, with that of the agent, is too large, or the schemas of all tools are.
        UnknownTool: `require_approval` names a tool that the session does not have.
    """
    waiting = state.deferred.config
    if not state.busy and state.phase != "preparing":
        return _configure(state, change), "applied"
    merged = waiting.change(change) if waiting else change
    change_settings(state.settings, merged)
    entries: tuple[Draft, ...] = ()
    if waiting:
        entries = (drafts.draft_input("merged", "configure", "a later change adds to it", _make_excerpt(waiting)),)
    return Decision(replace(state, deferred=replace(state.deferred, config=merged)), entries), "deferred"


def change_settings(settings: Settings, change: ConfigureInput) -> Settings:
    """Return the settings with a change of configuration in them. Under another agent the preparation checks it.

    Raises:
        InvalidInput: The policy names an unknown projector or contradicts itself, or an external tool has the name of
            a tool that the session has from its workers.
        InvalidTokenBudget: The policy leaves no budget.
        TooLarge: The metadata, with that of the agent, is too large, or the schemas of all tools are.
        UnknownTool: `require_approval` names a tool that the session does not have.
    """
    own_policy = settings.own_policy
    if change.context_policy:
        own_policy = (own_policy or ContextPolicy()).overlay(change.context_policy)
    after = replace(
        settings,
        own=settings.own.change(change, exclude={"context_policy"}),
        own_policy=own_policy,
        # A new policy may fit the models: forget what they have refused under the old one.
        learned={} if change.context_policy else settings.learned,
    )
    if change.agent:
        return replace(after, agent_due=True)
    after = _resolve(after)
    if not after.agent_due or after.own.agent is None:
        check_config(after.config)
    if change.tools is not None or change.external_tools is not None:
        # Other tools of the workers are checked when one has resolved them.
        known = replace(after, tools=()) if change.tools is not None else after
        check_external_tools(known, known.config.external_tools)
    return after


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
    external = [tool.name for tool in config.external_tools]
    names = (*config.tools, *external, *BUILT_IN_TOOLS)
    unknown = [name for name in config.require_approval if not is_selected(name, names)]
    if unknown:
        tools = ", ".join((*config.tools, *external)) or "none"
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
    if payload.external_tools:
        fields["external_tools"] = payload.external_tools
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
    change = state.deferred.config
    if change is None or state.phase != "idle":
        return Decision(state)
    state = replace(state, deferred=replace(state.deferred, config=None))
    try:
        return _configure(state, change)
    except Refusal as refusal:
        # It was checked before a worker had described its model.
        return Decision(state, (drafts.draft_input("dropped", "configure", str(refusal), _make_excerpt(change)),))


def drop_config(state: State, _at: Moment, reason: str) -> Decision:
    """Drop the change that waited for a run to end, and the one that a worker was to prepare.

    The configuration that a session has begun with is no change.
    """
    entries, settings = [], state.settings
    if change := state.deferred.config:
        entries.append(drafts.draft_input("dropped", "configure", reason, _make_excerpt(change)))
    if settings.due and settings.tools is not None:
        preparing = f"model {settings.model}, tools {', '.join(settings.config.tools) or 'none'}"
        if settings.own.agent:
            preparing = f"agent {settings.own.agent}, {preparing}"
        entries.append(drafts.draft_input("dropped", "configure", reason, preparing))
    return Decision(replace(state, deferred=replace(state.deferred, config=None)), tuple(entries))


def _configure(state: State, change: ConfigureInput) -> Decision:
    changed = replace(state, settings=change_settings(state.settings, change))
    settings = changed.settings
    # New external tools may be the end of a problem: a worker says whether there is another one.
    is_resolved = change.external_tools is None or settings.problem is None
    if changed.preparation == state.preparation and change.tools is None and change.agent is None and is_resolved:
        return Decision(changed, (drafts.draft_config(settings),))
    if change.tools is not None and settings.keeps_agent:
        # The schemas of the named tools are resolved anew, like those of tools that the session never had.
        remaining = tuple(tool for tool in settings.tools or () if tool.spec["name"] not in change.tools)
        settings = replace(settings, tools=remaining)
    settings = replace(settings, due=True)
    return Decision(replace(changed, phase="preparing", settings=settings), (), changed.preparation)


def _make_excerpt(change: ConfigureInput) -> str:
    return canonicalize(change.model_dump(mode="json", exclude_unset=True)).decode()
