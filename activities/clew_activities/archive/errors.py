"""The archive's errors. Each names the object that it is about.

ArchiveError
├── ObjectChanged          another writer was faster; read again and retry
├── ObjectDamaged          an object's content is wrong
│   └── SegmentDamaged     the same, of an object that holds entries
├── ObjectMissing          the store has no such object
├── StoreUnavailable       the store fails at present; retry
│   └── KeyMissing         this worker cannot decrypt the object, another one may
└── ThreadMismatch         entries do not continue the archived thread
"""

from __future__ import annotations


class ArchiveError(Exception):
    """The base of the archive's errors."""


class StoreUnavailable(ArchiveError):
    """An operation of the store failed: network, permission, timeout. A retry may succeed."""

    def __init__(self, name: str, cause: str) -> None:
        super().__init__(f"the store cannot be used at {name}: {cause}")
        self.name, self.cause = name, cause


class KeyMissing(StoreUnavailable):
    """An object is encrypted with a key that this process does not have. One that has the key may succeed."""


class ObjectMissing(ArchiveError):
    """The store answers, and has no such object."""

    def __init__(self, name: str) -> None:
        super().__init__(f"{name} is missing from the store")
        self.name = name


class ObjectChanged(ArchiveError):
    """Another writer has replaced an object since it was read. A retry reads the new one."""

    def __init__(self, name: str) -> None:
        super().__init__(f"{name} was changed by another writer")
        self.name = name


class ObjectDamaged(ArchiveError):
    """An object's content is not what was written, or does not match the object that refers to it."""

    def __init__(self, name: str, why: str) -> None:
        super().__init__(f"{name} is damaged: {why}")
        self.name, self.why = name, why


class SegmentDamaged(ObjectDamaged):
    """An object that holds entries is damaged."""


class ThreadMismatch(ArchiveError):
    """Entries do not continue the archived thread, or the thread has no entry with the requested seq."""
