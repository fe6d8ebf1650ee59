"""The archive of sessions: every entry that leaves a workflow's history, and the state to continue from."""

from clew_activities.archive.archive import Archive
from clew_activities.archive.errors import (
    ArchiveError,
    ObjectChanged,
    ObjectDamaged,
    ObjectMissing,
    SegmentDamaged,
    StoreUnavailable,
    ThreadMismatch,
)
from clew_activities.archive.family import Check
from clew_activities.archive.head import Head
from clew_activities.archive.settings import ArchiveSettings
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
    "SegmentDamaged",
    "Store",
    "StoreUnavailable",
    "ThreadMismatch",
    "open_store",
]
