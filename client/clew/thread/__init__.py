"""The thread: a session's append-only log of entries, with its lanes and their layers."""

from clew.thread.entries import DEFAULT_LANE, Draft, Entry, Refs
from clew.thread.lane import Gap, Group, Lane
from clew.thread.layers import Layers
from clew.thread.thread import Retained, Thread

__all__ = ["DEFAULT_LANE", "Draft", "Entry", "Gap", "Group", "Lane", "Layers", "Refs", "Retained", "Thread"]
