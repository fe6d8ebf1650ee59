"""The reference of the distribution's extras, from `pyproject.toml`."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator
from pathlib import Path

from docs.generate.tables import table

PROJECT = Path(__file__).parents[2] / "pyproject.toml"
MEANINGS = {
    "cli": "a terminal: the command [`clew`](../command-line.md)",
    "pictures": "a terminal that shows pictures in the chat",
    "encryption": "a backend whose sessions are [encrypted](../security.md)",
    "worker": "a worker of a deployment: `clew worker`, and the operators' commands",
    "mcp": "a worker with tools of [MCP servers](../mcp.md)",
    "bedrock": "a worker with [models](../models.md) of Amazon Bedrock",
    "live": "workers, and clients that follow sessions, with the [live channel](../deployment.md#show-each-word-at-once)",
    "telemetry": "[traces](../operations.md) of workers, of `clew serve`, and of clients that begin them",
    "ag-ui": "a backend for [front ends](../web.md) that speak AG-UI",
    "serve": "[`clew serve`](../serve.md): sessions over HTTP",
    "local": "development: `clew dev` with a Temporal server and a small model's server",
    "testing": "[tests of your agents](../testing.md): pytest and the Temporal server",
}
"""What each extra is for. Extras of Clew's own development are left out."""
LEFT_OUT = frozenset({"dev"})


def make_page() -> str:
    """Make the page.

    Raises:
        KeyError: The project has an extra without a meaning here.
    """
    project = tomllib.loads(PROJECT.read_text(encoding="utf-8"))["project"]
    base = ", ".join(f"`{_name(one)}`" for one in project["dependencies"])
    rows = [["none", "a backend that uses sessions: the [Python client](../client.md)", base]]
    return (
        "# Extras\n\n"
        "Each process installs what it does, as in `pip install '.[cli,encryption]'` in the folder of the repository. "
        "An error that misses an extra prints the command that adds it.\n\n"
        + table(("extra", "for", "adds"), [*rows, *_list_extras(project["optional-dependencies"])])
        + f"\nClew {project['version']} needs Python {project['requires-python'].removeprefix('>=')} or later.\n"
    )


def _list_extras(extras: dict[str, list[str]]) -> Iterator[list[str]]:
    for name, dependencies in extras.items():
        if name in LEFT_OUT:
            continue
        own = [found[1].split(",") for one in dependencies if (found := re.match(r"clew\[(.*)\]", one))]
        packages = [f"`{_name(one)}`" for one in dependencies if not one.startswith("clew[")]
        others = [f"the extra `{one}`" for names in own for one in names]
        yield [f"`{name}`", MEANINGS[name], ", ".join([*packages, *others])]


def _name(requirement: str) -> str:
    return re.split(r"[<>=!~;\[ ]", requirement)[0]
