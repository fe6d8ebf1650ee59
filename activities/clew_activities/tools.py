"""The tools of a worker, found in the modules that its environment names."""

from __future__ import annotations

import importlib
from collections.abc import Iterable, Mapping
from typing import Any

from clew.tools import Tool

Tools = Mapping[str, Tool[..., Any]]
"""Every tool of a worker by its name."""


class ToolsUnusable(Exception):
    """The modules named do not give a set of tools. Its message says what to do."""


def load_tools(modules: Iterable[str]) -> Tools:
    """The tools that some modules define, by name.

    Raises:
        ToolsUnusable: a module cannot be imported or has no tools, or two tools have one name.
    """
    tools: dict[str, Tool[..., Any]] = {}
    for name in modules:
        try:
            module = importlib.import_module(name)
        # A script that ends at its import would otherwise end the worker, in silence.
        except (Exception, SystemExit) as error:
            said = f"{type(error).__name__}: {error}"
            raise ToolsUnusable(f"the tools module {name!r} cannot be imported: {said}") from error
        found = [value for value in vars(module).values() if isinstance(value, Tool)]
        if not found:
            raise ToolsUnusable(f"the tools module {name!r} defines no tool: decorate functions with clew.tool")
        for tool in found:
            if tools.setdefault(tool.name, tool) is not tool:
                raise ToolsUnusable(f"two tools are called {tool.name!r}: give one of them another name")
    return tools
