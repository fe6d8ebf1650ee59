"""Contexts: pure projections of a thread, and what they are made of."""

from clew.context.contexts import context_of, context_of_call, window_of
from clew.context.projection import Projection, Projector, project, register_projector
from clew.context.projection_input import ProjectionInput

__all__ = [
    "Projection",
    "ProjectionInput",
    "Projector",
    "context_of",
    "context_of_call",
    "project",
    "register_projector",
    "window_of",
]
