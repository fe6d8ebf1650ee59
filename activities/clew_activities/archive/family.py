"""A family's objects: the segments and nodes that a session and all its forks share, written, read and walked."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass

from clew.thread.entries import Entry
from clew_activities.archive import index, segment
from clew_activities.archive.errors import ObjectDamaged, ObjectMissing, SegmentDamaged, ThreadMismatch
from clew_activities.archive.index import Children, Ref
from clew_activities.archive.segment import hash_bytes
from clew_activities.archive.settings import DEFAULT, ArchiveSettings
from clew_activities.archive.store import Store

_DIGEST = re.compile(r"[0-9a-f]{64}")
# A root is deleted after all that it leads to, so that a deletion that was interrupted finds its way again.
_LAST = 1 << 30


@dataclass(frozen=True, slots=True)
class Check:
    """One object of an archive, read and checked: the entries it stands for, and what is wrong, if anything."""

    name: str
    from_seq: int
    to_seq: int
    problem: str | None = None


@dataclass(frozen=True, slots=True)
class Family:
    """The objects under one folder of a store. Every object but the members' markers is named by its content."""

    store: Store
    folder: str
    settings: ArchiveSettings = DEFAULT

    def get_path(self, kind: str, digest: str) -> str:
        """Where an object lies.

        Raises:
            ObjectMissing: what is given is not a digest; it may come from outside, and leads nowhere.
        """
        if not _DIGEST.fullmatch(digest):
            raise ObjectMissing(f"{self.folder}/{kind}/{digest[:100]!r}")
        return f"{self.folder}/{kind}/{digest}{_SUFFIXES[kind]}"

    async def put(self, kind: str, data: bytes) -> str:
        """Write an immutable object; its digest."""
        digest = hash_bytes(data)
        await self.store.put_new(self.get_path(kind, digest), data)
        return digest

    async def get(self, kind: str, digest: str) -> bytes:
        """An immutable object, its checksum verified."""
        path = self.get_path(kind, digest)
        data = await self.store.get(path)
        if hash_bytes(data) != digest:
            raise ObjectDamaged(path, "its checksum does not match")
        return data

    async def append(self, root: str | None, entries: Sequence[Entry]) -> tuple[str | None, int]:
        """The thread under `root` with entries behind it: the new root and its last seq. Repeating it is fine."""
        children = await self.read_root(root)
        last = children[-1].to_seq if children else -1
        if [entry.seq for entry in entries] != list(range(last + 1, last + 1 + len(entries))):
            raise ThreadMismatch(
                f"the archive in {self.folder} ends with entry {last}; what is to follow begins with "
                f"{entries[0].seq} and ends with {entries[-1].seq}, {len(entries)} in all"
            )
        if not entries:
            return root, last
        refs: list[Ref] = []
        for piece in segment.split(entries, self.settings.segment_bytes):
            data = segment.encode(piece)
            refs.append(index.make_segment_ref(piece, data))
            await self.put("segments", data)
        children, nodes = index.append(children, refs, self.settings.fanout)
        for node in nodes:
            await self.put("nodes", node)
        return await self.put("nodes", index.encode(children)), entries[-1].seq

    async def cut(self, root: str, at_seq: int) -> str:
        """The root of a view that ends at `at_seq`."""
        children = await self.read_root(root)
        if not 0 <= at_seq <= children[-1].to_seq:
            raise ThreadMismatch(f"the archive in {self.folder} ends with entry {children[-1].to_seq}, not {at_seq}")
        return await self.put("nodes", index.encode(index.cut(children, at_seq)))

    async def read_root(self, digest: str | None) -> Children:
        """The children of a root; none for the thread of which nothing is archived."""
        if digest is None:
            return ()
        path = self.get_path("nodes", digest)
        children = index.decode(await self.store.get(path), digest, path)
        if children[0].from_seq != 0:
            raise ObjectDamaged(path, f"it begins with entry {children[0].from_seq}")
        return children

    async def read_children(self, ref: Ref) -> Children:
        """What a ref to a node shows of it."""
        path = self.get_path("nodes", ref.digest)
        return index.limit_children(ref, index.decode(await self.store.get(path), ref.digest, path), path)

    async def read_entries(self, ref: Ref) -> list[Entry]:
        """What a ref to a segment shows of it."""
        path = self.get_path("segments", ref.digest)
        entries = segment.decode(await self.store.get(path), ref.digest, path)
        visible = entries[: ref.to_seq - ref.from_seq + 1]
        if (visible[0].seq, visible[-1].seq) != (ref.from_seq, ref.to_seq):
            raise SegmentDamaged(path, f"it does not hold the entries {ref.from_seq} to {ref.to_seq}")
        if not {entry.kind for entry in visible} <= set(ref.kinds):
            raise SegmentDamaged(path, "it holds kinds of entries that the index does not know of")
        return visible

    async def find_segments(
        self, children: Children, from_seq: int, *, kinds: frozenset[str] | None, backwards: bool
    ) -> AsyncIterator[Ref]:
        """The refs to the segments that may hold entries from `from_seq` of these kinds, in the order of reading."""
        stack = list(children if backwards else reversed(children))
        while stack:
            ref = stack.pop()
            if ref.to_seq < from_seq or (kinds is not None and kinds.isdisjoint(ref.kinds)):
                continue
            if ref.level == 0:
                yield ref
            else:
                below = await self.read_children(ref)
                stack.extend(below if backwards else reversed(below))

    async def verify(self, root: str) -> AsyncIterator[Check]:
        """Read and check every object under a root. That no seq is missing follows from all checks passing."""
        path = self.get_path("nodes", root)
        try:
            children = await self.read_root(root)
        except (ObjectMissing, ObjectDamaged) as error:
            yield Check(path, 0, -1, str(error))
            return
        yield Check(path, 0, children[-1].to_seq)
        stack = list(reversed(children))
        while stack:
            ref = stack.pop()
            problem: str | None = None
            try:
                if ref.level:
                    stack.extend(reversed(await self.read_children(ref)))
                else:
                    await self.read_entries(ref)
            except (ObjectMissing, ObjectDamaged) as error:
                problem = str(error)
            yield Check(
                self.get_path("nodes" if ref.level else "segments", ref.digest), ref.from_seq, ref.to_seq, problem
            )

    async def list_objects(self, root: str | None, *, broken: bool = False) -> dict[str, int]:
        """The paths of all objects that a root leads to, each with its place in the order of deletion.

        `broken`: nodes that are missing or damaged lead nowhere; otherwise they are an error.
        """
        if root is None:
            return {}
        found = {self.get_path("nodes", root): _LAST}
        try:
            stack = list(await self.read_root(root))
        except (ObjectMissing, ObjectDamaged):
            if not broken:
                raise
            return found
        while stack:
            ref = stack.pop()
            found.setdefault(self.get_path("nodes" if ref.level else "segments", ref.digest), ref.level)
            if ref.level:
                try:
                    stack.extend(await self.read_children(ref))
                except (ObjectMissing, ObjectDamaged):
                    if not broken:
                        raise
        return found


_SUFFIXES = {"segments": ".jsonl", "nodes": ".json", "states": ".json", "results": ""}
