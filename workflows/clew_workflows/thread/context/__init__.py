"""Contexts: pure projections of a thread, built from blocks in a window that a policy chooses.

| module | content |
|---|---|
| `contexts` | `build_context`: policy, prompt and tools from the thread's entries, then the projection |
| `projection` | `project`: the messages of a context; the registered projectors |
| `lane_view` | the input of a projection, the part of a lane that it shows, and whether a summary is due |
| `blocks` | atomic groups of messages: calls with their results, truncated or replaced |
| `window` | which blocks fit into the budget |
| `archived` | what a thread keeps of its archived entries, and what a reader loads |
"""

from clew_workflows.contract.tokens import Tokenizer, register_encoding
from clew_workflows.thread.context.contexts import build_context, build_window, iterate_transcript, rebuild_context
from clew_workflows.thread.context.lane_view import ProjectionInput
from clew_workflows.thread.context.projection import Projection, Projector, project, register_projector

__all__ = [
    "Projection",
    "ProjectionInput",
    "Projector",
    "Tokenizer",
    "build_context",
    "build_window",
    "iterate_transcript",
    "project",
    "rebuild_context",
    "register_encoding",
    "register_projector",
]
