"""The archive of sessions: what leaves a workflow's history is kept here, entry for entry."""

from activities.archive.archive import Archive
from activities.archive.errors import (
    ArchiveError,
    ObjectChanged,
    ObjectDamaged,
    ObjectMissing,
    SegmentDamaged,
    StoreUnavailable,
    ThreadMismatch,
)
from activities.archive.family import Check
from activities.archive.head import Head
from activities.archive.store import Store, store_from_env

__all__ = [
    "Archive",
    "ArchiveError",
    "Check",
    "Head",
    "ObjectChanged",
    "ObjectDamaged",
    "ObjectMissing",
    "SegmentDamaged",
    "Store",
    "StoreUnavailable",
    "ThreadMismatch",
    "store_from_env",
]
