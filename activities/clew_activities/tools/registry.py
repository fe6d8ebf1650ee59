"""The tools, agents and hooks that a worker has, loaded from a team's modules."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from clew.agents import Agent, AgentTool
from clew.tools import ExternalTool, RemoteTool, Tool, ToolDefinition, make_tool
from clew_activities.tools.mcp.mcp_tools import McpTool, McpTools
from clew_activities.tools.run_hooks import Hooks, collect_hooks
from clew_activities.tools.stored_results import BUILT_IN
from clew_activities.user_modules import load_defined
from clew_workflows.contract.hooks import Hook
from clew_workflows.contract.messages import compute_digest
from clew_workflows.contract.names import split_configured_name
from clew_workflows.protocol import (
    AgentRoute,
    ExternalRoute,
    FunctionRoute,
    McpRoute,
    RemoteRoute,
    ResolvedAgent,
    ResolvedTool,
    Route,
)
from clew_workflows.session.tool_rounds import make_validator

Tools = Mapping[str, ToolDefinition]
"""Every tool of a worker by its name."""
DIGEST_CHARACTERS = 16
"""Characters of the digests of agents and deployments."""


class ToolsUnusable(Exception):
    """The tools modules cannot be used. The message names the module and says what to do."""


class AgentsUnusable(Exception):
    """The agents cannot be used. The message names the module or the agent and says what to do."""


@dataclass(frozen=True, slots=True)
class Registry:
    """The tools and the agents of a worker.

    Attributes:
        tools: Every tool by its name, those of the agents included.
        agents: Every agent by its name.
        deployment: The digest of all of them. Workers with the same tools and agents have the same. `Deployment` adds
            the tools of MCP servers.
        hooks: The hooks of each point that has some.
    """

    tools: Tools
    agents: Mapping[str, ResolvedAgent]
    deployment: str
    hooks: Hooks = field(default_factory=dict)


def make_registry(
    tools: Tools, agents: Sequence[Agent] = (), hooks: Iterable[Hook] = (), *, mcp_servers: Collection[str] = ()
) -> Registry:
    """Register tools and agents, with the tools that the agents bring, and the agents that their tools call.

    Args:
        tools: Every tool by its name.
        agents: The agents.
        hooks: The hooks.
        mcp_servers: The names of the MCP servers whose tools agents may name. Whether a server has the tool shows
            when a session needs it: servers may be down.

    Raises:
        AgentsUnusable: Two agents, or two tools, have one name, or an agent names a tool that is not there.
        ToolsUnusable: The parameters of an agent's tool are not valid JSON Schema.
    """
    known: dict[str, ToolDefinition] = dict(tools)
    by_name: dict[str, Agent] = {}
    for agent in _list_all(tools, agents):
        if by_name.setdefault(agent.name, agent) != agent:
            raise AgentsUnusable(f"two agents are called {agent.name!r}: give one of them another name")
        for tool in agent.own_tools:
            check_parameters(tool)
            if not _is_same(known.setdefault(tool.name, tool), tool):
                raise AgentsUnusable(
                    f"agent {agent.name!r} has a tool {tool.name!r}, and another tool has that name: rename one"
                )
    for agent in by_name.values():
        _check_names(agent, known, mcp_servers)
    described = {
        tool.name: resolve_tool(tool).model_dump(mode="json") for tool in (*BUILT_IN.values(), *known.values())
    }
    resolved = {agent.name: _resolve_agent(agent, described) for agent in by_name.values()}
    versions = {agent.name: agent.version for agent in resolved.values()}
    return Registry(known, resolved, _digest({"tools": described, "agents": versions}), collect_hooks(hooks))


class Deployment:
    """The deployment of a worker, as a session sees it: the digest of its registry, and the lists of its MCP servers.

    A session keeps it as text, `<digest>/<server>:<version>/…`, with the servers that it has tools of. So a change of
    a server reaches only the sessions that use it.
    """

    def __init__(self, digest: str, mcp_tools: McpTools) -> None:
        self._digest = digest
        self._mcp_tools = mcp_tools

    def describe(self, versions: Mapping[str, str]) -> str:
        """Describe the deployment to a session with tools of these versions of MCP servers' catalogs."""
        return "/".join((self._digest, *(f"{server}:{versions[server]}" for server in sorted(versions))))

    async def describe_again(self, described: str) -> str:
        """Describe this worker's deployment to a session that was prepared under another, or the same.

        A server whose tools this worker does not know changes nothing.
        """
        _, *parts = described.split("/")
        before = {server: version for server, _, version in (part.partition(":") for part in parts)}
        servers = [server for server in before if self._mcp_tools.has_server(server)]
        versions = await asyncio.gather(*map(self._mcp_tools.find_version, servers))
        return self.describe(
            {server: version or before[server] for server, version in zip(servers, versions, strict=True)}
        )


def load_tools(sources: Iterable[str]) -> Tools:
    """Import modules, read JSON files, and collect their tools by name.

    Args:
        sources: Names of modules, and paths of files that end in `.json`: each holds a list of declarations.

    Raises:
        ToolsUnusable: A module cannot be imported or defines no tool, a file cannot be used, two tools have one name,
            or the parameters of a tool are not valid JSON Schema.
    """
    return collect_tools(
        tool
        for source in sources
        for tool in (_read_file(source) if source.endswith(".json") else _load_module(source))
    )


def load_agents(modules: Iterable[str]) -> Sequence[Agent]:
    """Import modules and collect their agents.

    Raises:
        AgentsUnusable: A module cannot be imported or defines no agent.
    """
    return load_defined(modules, Agent, "agent", "make a clew.Agent in it", AgentsUnusable)


def collect_tools(definitions: Iterable[ToolDefinition]) -> Tools:
    """Collect tools by name.

    Raises:
        ToolsUnusable: Two tools have one name, or the parameters of a tool are not valid JSON Schema.
    """
    tools: dict[str, ToolDefinition] = {}
    for tool in definitions:
        if tools.setdefault(tool.name, tool) is not tool:
            raise ToolsUnusable(f"two tools are called {tool.name!r}: give one of them another name")
        check_parameters(tool)
    return tools


def resolve_tool(tool: ToolDefinition) -> ResolvedTool:
    """Resolve a tool: its schema, and how its calls are carried out."""
    return ResolvedTool(
        spec=tool.spec,
        route=_make_route(tool),
        timeout_seconds=tool.timeout_seconds,
        max_attempts=tool.retries + 1,
        idempotent=tool.idempotent,
        requires_approval=tool.requires_approval,
    )


def _load_module(name: str) -> Sequence[ToolDefinition]:
    return load_defined([name], ToolDefinition, "tool", "decorate functions with clew.tool", ToolsUnusable)


def _read_file(path: str) -> list[ToolDefinition]:
    try:
        declarations: Any = json.loads(Path(path).read_bytes())
        if not isinstance(declarations, list) or not all(isinstance(item, dict) for item in declarations):
            raise TypeError("it must hold a list of objects, one for each tool")
        return [make_tool(declaration) for declaration in declarations]
    except (OSError, ValueError, TypeError, RecursionError) as error:
        raise ToolsUnusable(f"the tools file {path!r} cannot be used: {error}") from error


def check_parameters(tool: ToolDefinition) -> None:
    """Check a schema that its author has written. That of a function is made from its signature.

    Raises:
        ToolsUnusable: The parameters are not valid JSON Schema.
    """
    if isinstance(tool, Tool):
        return
    try:
        make_validator(tool.spec["parameters"])
    except ValueError as error:
        raise ToolsUnusable(
            f"the parameters of tool {tool.name!r} are not valid JSON Schema: {str(error)[:500]}"
        ) from error


def _make_route(tool: ToolDefinition) -> Route:
    match tool:
        case RemoteTool():
            return RemoteRoute(type="remote", task_queue=tool.task_queue, activity=tool.activity)
        case ExternalTool():
            return ExternalRoute(type="external")
        case AgentTool():
            return AgentRoute(type="agent", agent=tool.agent.name)
        case McpTool():
            return McpRoute(type="mcp")
        case Tool():
            return FunctionRoute(type="function", task_queue=tool.task_queue, takes_context=tool.takes_context)
        case _:
            raise TypeError(f"tool {tool.name!r} is of no kind that a worker can run: {type(tool).__name__}")


def _check_names(agent: Agent, tools: Tools, mcp_servers: Collection[str]) -> None:
    """Check the tools that an agent names without bringing them: no session with a wrong name could be served."""
    for name in (tool for tool in agent.tools if isinstance(tool, str)):
        split = split_configured_name(name)
        if split and split[0] not in mcp_servers:
            raise AgentsUnusable(
                f"agent {agent.name!r} has the tool {name!r}, and no MCP server is called {split[0]!r} in the file "
                f"that CLEW_MCP names: its servers are {', '.join(mcp_servers) or 'none'}"
            )
        if not split and name not in tools and name not in BUILT_IN:
            raise AgentsUnusable(
                f"agent {agent.name!r} has the tool {name!r}, and the worker has no tool of that name: its tools are "
                f"{', '.join(tools) or 'none'}. Point CLEW_TOOLS or --tools at the module that defines it"
            )


def _list_all(tools: Tools, agents: Iterable[Agent]) -> Sequence[Agent]:
    """List the agents, and those that tools call, each once."""
    listed: list[Agent] = []
    waiting = [*agents, *(tool.agent for tool in tools.values() if isinstance(tool, AgentTool))]
    while waiting:
        agent = waiting.pop(0)
        if not any(agent is other for other in listed):
            listed.append(agent)
            waiting += [tool.agent for tool in agent.own_tools if isinstance(tool, AgentTool)]
    return listed


def _resolve_agent(agent: Agent, tools: Mapping[str, Any]) -> ResolvedAgent:
    config = agent.config
    covered = {
        "config": config.model_dump(mode="json", exclude_unset=True),
        "label": agent.version,
        "tools": [tools.get(name) for name in config.tools],
    }
    return ResolvedAgent(name=agent.name, version=_digest(covered), label=agent.version, config=config)


def _is_same(known: ToolDefinition, tool: ToolDefinition) -> bool:
    """Whether two tools are one. Remote and external tools have no code: they are what they declare."""
    return known is tool or (not isinstance(tool, Tool) and resolve_tool(known) == resolve_tool(tool))


def _digest(value: object) -> str:
    return compute_digest(value)[:DIGEST_CHARACTERS]
