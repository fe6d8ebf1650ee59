"""Function tools of the matrix."""

from __future__ import annotations

from clew import ToolContext, tool

runs: dict[str, list[str]] = {}
"""The tools that have run, by session."""


@tool
def erase(context: ToolContext, scope: str = "everything") -> str:
    """Erases files. Without a scope it erases everything."""
    runs.setdefault(context.session_id, []).append(f"erase {scope}")
    return f"erased {scope}"


@tool(name="3d_render")
def render(angle: int) -> str:
    """Renders a scene from an angle."""
    return f"rendered at {angle}"
