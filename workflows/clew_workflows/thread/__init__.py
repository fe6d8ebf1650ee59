"""The thread: a session's append-only log of entries, with its lanes and their layers.

| module | content |
|---|---|
| `entries` | the records |
| `lane` | one lane: its messages in groups, and `Layers.apply`: what each context operation does to it |
| `thread` | the log with its indexes |
| `source` | reads a thread whose older part is in the archive |
| `context` | projects a lane to what a model sees |
"""

from clew_workflows.thread.entries import DEFAULT_LANE, Draft, Entry, Refs
from clew_workflows.thread.lane import ArchivedPart, Group, Lane, Layers
from clew_workflows.thread.thread import Retained, Thread

__all__ = ["DEFAULT_LANE", "ArchivedPart", "Draft", "Entry", "Group", "Lane", "Layers", "Refs", "Retained", "Thread"]
