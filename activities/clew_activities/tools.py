"""The tools of a worker, from the modules and files that its environment names."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from clew.agents import AgentTool
from clew.tools import ExternalTool, RemoteTool, Tool, ToolDefinition, make_tool
from clew_activities.mcp.catalog import McpTool
from clew_activities.user_modules import NotImportable, import_user_module
from clew_workflows.core.argument_schemas import make_validator
from clew_workflows.protocol import (
    AgentRoute,
    ExternalRoute,
    FunctionRoute,
    McpRoute,
    RemoteRoute,
    ResolvedTool,
    Route,
)

Tools = Mapping[str, ToolDefinition]
"""Every tool of a worker by its name."""


class ToolsUnusable(Exception):
    """The tools modules cannot be used. The message names the module and says what to do."""


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
        for tool in (_read_file(source) if source.endswith(".json") else _import_module(source))
    )


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


def _import_module(name: str) -> list[ToolDefinition]:
    try:
        module = import_user_module(name)
    except NotImportable as error:
        raise ToolsUnusable(f"the tools module {name!r} cannot be imported: {error}") from error
    tools = [value for value in vars(module).values() if isinstance(value, ToolDefinition)]
    if not tools:
        raise ToolsUnusable(f"the tools module {name!r} defines no tool: decorate functions with clew.tool")
    return tools


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
