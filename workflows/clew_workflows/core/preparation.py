"""Adopting a preparation: what a worker has resolved takes the place of what the session had."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from clew.context.projection import find_projector
from clew.contract.policy import resolve
from clew.errors import Refusal
from clew_workflows.core.configuration import check_config
from clew_workflows.core.profiles import adopt_encoding, find_agent_policy, remember_profile
from clew_workflows.core.state import State
from clew_workflows.protocol import Failure, Prepared, ResolvedTool


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
