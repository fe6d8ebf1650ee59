"""Contexts: pure projections of a thread, built from blocks in a window that a policy chooses."""

from clew_workflows.thread.context.contexts import build_context, build_window, rebuild_context
from clew_workflows.thread.context.projection import Projection, Projector, project, register_projector
from clew_workflows.thread.context.projection_input import ProjectionInput

__all__ = [
    "Projection",
    "ProjectionInput",
    "Projector",
    "build_context",
    "build_window",
    "project",
    "rebuild_context",
    "register_projector",
]
