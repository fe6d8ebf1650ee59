"""The tools of a worker, imported from the modules that its environment names."""

from __future__ import annotations

import importlib
from collections.abc import Iterable, Mapping
from typing import Any

from clew.tools import Tool

Tools = Mapping[str, Tool[..., Any]]
"""Every tool of a worker by its name."""


class ToolsUnusable(Exception):
    """The tools modules cannot be used. The message names the module and says what to do."""


def load_tools(modules: Iterable[str]) -> Tools:
    """Import modules and collect their tools by name.

    Raises:
        ToolsUnusable: a module cannot be imported or defines no tool, or two tools have one name.
    """
    tools: dict[str, Tool[..., Any]] = {}
    for name in modules:
        try:
            module = importlib.import_module(name)
        # A script that exits when imported would end the worker without a message.
        except (Exception, SystemExit) as error:
            message = f"{type(error).__name__}: {error}"
            raise ToolsUnusable(f"the tools module {name!r} cannot be imported: {message}") from error
        tools_of_module = [value for value in vars(module).values() if isinstance(value, Tool)]
        if not tools_of_module:
            raise ToolsUnusable(f"the tools module {name!r} defines no tool: decorate functions with clew.tool")
        for tool in tools_of_module:
            if tools.setdefault(tool.name, tool) is not tool:
                raise ToolsUnusable(f"two tools are called {tool.name!r}: give one of them another name")
    return tools
