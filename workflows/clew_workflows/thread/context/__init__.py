"""Contexts: pure projections of a thread, built from blocks in a window that a policy chooses."""

from clew_workflows.thread.context.contexts import build_context, build_window, rebuild_context
from clew_workflows.thread.context.lane_view import ProjectionInput
from clew_workflows.thread.context.projection import Projection, Projector, project, register_projector

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
