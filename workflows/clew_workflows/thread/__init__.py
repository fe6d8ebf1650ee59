"""The thread: a session's append-only log of entries, with its lanes and their layers."""

from clew_workflows.thread.entries import DEFAULT_LANE, Draft, Entry, Refs
from clew_workflows.thread.lane import ArchivedPart, Group, Lane, Layers
from clew_workflows.thread.thread import Retained, Thread

__all__ = ["DEFAULT_LANE", "ArchivedPart", "Draft", "Entry", "Group", "Lane", "Layers", "Refs", "Retained", "Thread"]
