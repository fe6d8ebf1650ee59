"""The archive of sessions: every entry that leaves a workflow's history, and the state to continue from.

| module | content |
|---|---|
| `archive` | `Archive`: the entries, states and tool results of all sessions in a store |
| `formats` | what its objects hold: segments, the index over them, heads |
| `store`, `backends` | objects in a folder or a bucket, with time limits and encryption |
| `archive_errors` | its errors, and how activities raise them |
| `blob_store` | images, recordings and files; the activities that store them for clients |
| `uploads` | signed URLs, to which callers upload the bytes of blobs; the activities that verify them |
| `thread_source` | `Threads`: reads a thread, archived and live parts as one, for all activities |
| `ended_runs` | what the server remembers of the ends of sessions, against which the store is checked |
| `hibernation` | the activities `archive`, `thaw` and `recall` of a session |
| `read_for_clients`, `archived_sessions`, `deletion`, `fork_session` | the activities for clients |
"""

from clew_activities.archive.archive import Archive, ArchiveSettings, Check
from clew_activities.archive.archive_errors import (
    ArchiveError,
    ObjectChanged,
    ObjectDamaged,
    ObjectMissing,
    StoreUnavailable,
    ThreadMismatch,
)
from clew_activities.archive.formats import Head
from clew_activities.archive.store import Store, open_store

__all__ = [
    "Archive",
    "ArchiveError",
    "ArchiveSettings",
    "Check",
    "Head",
    "ObjectChanged",
    "ObjectDamaged",
    "ObjectMissing",
    "Store",
    "StoreUnavailable",
    "ThreadMismatch",
    "open_store",
]
