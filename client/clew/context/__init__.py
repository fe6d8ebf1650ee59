"""Contexts: pure projections of a thread, and what they are made of."""

from clew.context.contexts import build_context, build_window, rebuild_context
from clew.context.projection import Projection, Projector, project, register_projector
from clew.context.projection_input import ProjectionInput

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
