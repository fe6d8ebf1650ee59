"""What can be wrong with an archive. Each error names the object; none is ever answered with a gap."""

from __future__ import annotations


class ArchiveError(Exception):
    """The base of the archive's errors."""


class StoreUnavailable(ArchiveError):
    """The store does not do what it was asked at present: network, permission, timeout. Another attempt may pass."""

    def __init__(self, name: str, cause: str) -> None:
        super().__init__(f"the store cannot be used at {name}: {cause}")
        self.name, self.cause = name, cause


class ObjectMissing(ArchiveError):
    """The store answers, and has no such object."""

    def __init__(self, name: str) -> None:
        super().__init__(f"{name} is missing from the store")
        self.name = name


class ObjectChanged(ArchiveError):
    """Somebody else has written an object since it was read. Another attempt finds what is there now."""

    def __init__(self, name: str) -> None:
        super().__init__(f"{name} has just been written by somebody else")
        self.name = name


class ObjectDamaged(ArchiveError):
    """An object is not what was written, or does not fit what refers to it."""

    def __init__(self, name: str, why: str) -> None:
        super().__init__(f"{name} is damaged: {why}")
        self.name, self.why = name, why


class SegmentDamaged(ObjectDamaged):
    """An object that holds entries is damaged."""


class ThreadMismatch(ArchiveError):
    """Entries do not continue the archived thread, or a place is named that it does not have."""
