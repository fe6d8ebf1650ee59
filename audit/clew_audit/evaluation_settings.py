"""What an evaluation on the command line needs: an agent, the tools that it names, the model providers."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

from clew.agents import Agent
from clew.errors import InvalidInput
from clew_activities.providers import Providers, ProvidersUnusable, load_providers
from clew_activities.registry import AgentsUnusable, load_agents
from clew_activities.tools import Tools, ToolsUnusable, load_tools


def load_evaluation_settings(
    environ: Mapping[str, str],
    agents: Iterable[str],
    tools: Iterable[str],
    name: str | None = None,
    model: str | None = None,
) -> tuple[Agent, Tools, Providers]:
    """Import the modules and read the variables of the model providers.

    Args:
        environ: The environment variables.
        agents: Modules that define agents.
        tools: Modules that define tools, and files that declare some.
        name: The agent; None: the modules define only one.
        model: The model that is asked; None: the agent's.

    Raises:
        InvalidInput: A module, a variable or the model cannot be used, or the modules do not define the agent.
    """
    try:
        chosen = _choose(load_agents(agents), name)
        return replace(chosen, model=model) if model else chosen, load_tools(tools), load_providers(environ)
    except (AgentsUnusable, ToolsUnusable, ProvidersUnusable, TypeError) as error:
        raise InvalidInput(str(error)) from error


def _choose(agents: Iterable[Agent], name: str | None) -> Agent:
    by_name = {agent.name: agent for agent in agents}
    if name is None and len(by_name) == 1:
        return next(iter(by_name.values()))
    if name is None or name not in by_name:
        problem = "name an agent" if name is None else f"no agent {name!r}"
        raise InvalidInput(f"{problem}: the modules define {', '.join(by_name)}")
    return by_name[name]
