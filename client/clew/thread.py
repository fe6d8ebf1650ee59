"""The thread: a session's append-only log of entries, with its lanes and their layers."""

from clew_workflows.thread import *  # noqa: F403
from clew_workflows.thread import __all__  # noqa: F401
