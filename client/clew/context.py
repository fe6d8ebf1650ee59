"""Contexts: pure projections of a thread, built from blocks in a window that a policy chooses."""

from clew_workflows.thread.context import *  # noqa: F403
from clew_workflows.thread.context import __all__  # noqa: F401
