"""A family's objects: the segments, nodes, states and results that a session and all its forks share."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass

from clew_activities.archive import index, segment
from clew_activities.archive.errors import ObjectDamaged, ObjectMissing, SegmentDamaged, ThreadMismatch
from clew_activities.archive.index import Children, Ref
from clew_activities.archive.segment import hash_bytes
from clew_activities.archive.settings import DEFAULT, ArchiveSettings
from clew_activities.archive.store import Store
from clew_workflows.thread.entries import Entry

_DIGEST = re.compile(r"[0-9a-f]{64}")
# Rank of a root in the order of deletion: after all objects that it leads to, so that a repeated deletion finds them.
_LAST = 1 << 30


@dataclass(frozen=True, slots=True)
class Check:
    """The result of checking one object of an archive.

    Attributes:
        name: The object's path.
        from_seq: Seq of the first entry that the object covers.
        to_seq: Seq of the last entry that the object covers.
        problem: What is wrong with it; None: nothing.
        entries: The entries of a segment.
    """

    name: str
    from_seq: int
    to_seq: int
    problem: str | None = None
    entries: tuple[Entry, ...] = ()


@dataclass(frozen=True, slots=True)
class Family:
    """The objects in one folder of a store. Every object but the members' markers is named by its content.

    Attributes:
        store: The store.
        folder: The folder's path.
        settings: How the archive is laid out.
    """

    store: Store
    folder: str
    settings: ArchiveSettings = DEFAULT

    def get_path(self, kind: str, digest: str) -> str:
        """Return the path of an object.

        Raises:
            ObjectMissing: `digest` is not a digest. It may come from an imported entry.
        """
        if not _DIGEST.fullmatch(digest):
            raise ObjectMissing(f"{self.folder}/{kind}/{digest[:100]!r}")
        return f"{self.folder}/{kind}/{digest}{_SUFFIXES[kind]}"

    async def put(self, kind: str, data: bytes) -> str:
        """Write an immutable object. Returns its digest."""
        digest = hash_bytes(data)
        await self.store.put_new(self.get_path(kind, digest), data)
        return digest

    async def get(self, kind: str, digest: str) -> bytes:
        """Read an immutable object and verify its checksum."""
        path = self.get_path(kind, digest)
        data = await self.store.get(path)
        if hash_bytes(data) != digest:
            raise ObjectDamaged(path, "its checksum does not match")
        return data

    async def append(self, root: str | None, entries: Sequence[Entry]) -> tuple[str | None, int]:
        """Append entries to the thread under `root`. Returns the new root and its last seq. It can be repeated."""
        children = await self.read_root(root)
        last = children[-1].to_seq if children else -1
        if [entry.seq for entry in entries] != list(range(last + 1, last + 1 + len(entries))):
            raise ThreadMismatch(
                f"the archive in {self.folder} ends with entry {last}; {len(entries)} entries from {entries[0].seq} "
                f"to {entries[-1].seq} do not continue it"
            )
        if not entries:
            return root, last
        refs: list[Ref] = []
        for part in segment.split(entries, self.settings.segment_bytes):
            data = segment.encode(part)
            refs.append(index.make_segment_ref(part, data))
            await self.put("segments", data)
        children, nodes = index.append(children, refs, self.settings.fanout)
        for node in nodes:
            await self.put("nodes", node)
        return await self.put("nodes", index.encode(children)), entries[-1].seq

    async def truncate(self, root: str, at_seq: int) -> str:
        """Write a root that ends at `at_seq`. Returns its digest."""
        children = await self.read_root(root)
        if not 0 <= at_seq <= children[-1].to_seq:
            raise ThreadMismatch(f"the archive in {self.folder} ends with entry {children[-1].to_seq}: no {at_seq}")
        return await self.put("nodes", index.encode(index.truncate(children, at_seq)))

    async def read_root(self, digest: str | None) -> Children:
        """Read the children of a root; none if nothing of the thread is archived."""
        if digest is None:
            return ()
        path = self.get_path("nodes", digest)
        children = index.decode(await self.store.get(path), digest, path)
        if children[0].from_seq != 0:
            raise ObjectDamaged(path, f"a root begins with entry 0, this one with entry {children[0].from_seq}")
        return children

    async def read_children(self, ref: Ref) -> Children:
        """Read the children of a node as far as a ref covers them."""
        path = self.get_path("nodes", ref.digest)
        return index.limit_children(ref, index.decode(await self.store.get(path), ref.digest, path), path)

    async def read_entries(self, ref: Ref) -> list[Entry]:
        """Read the entries of a segment as far as a ref covers them."""
        path = self.get_path("segments", ref.digest)
        entries = segment.decode(await self.store.get(path), ref.digest, path)
        visible = entries[: ref.to_seq - ref.from_seq + 1]
        if (visible[0].seq, visible[-1].seq) != (ref.from_seq, ref.to_seq):
            raise SegmentDamaged(path, f"it does not hold the entries {ref.from_seq} to {ref.to_seq}")
        if not {entry.kind for entry in visible} <= set(ref.kinds):
            raise SegmentDamaged(path, "it holds kinds of entries that the index does not list")
        return visible

    async def find_segments(
        self, children: Children, from_seq: int, *, kinds: frozenset[str] | None, backwards: bool
    ) -> AsyncIterator[Ref]:
        """Find the segments that may hold entries of these kinds from `from_seq` on, in the order of reading."""
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
        """Read and check every object under a root. If all checks pass, no seq is missing."""
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
            entries: tuple[Entry, ...] = ()
            try:
                if ref.level:
                    stack.extend(reversed(await self.read_children(ref)))
                else:
                    entries = tuple(await self.read_entries(ref))
            except (ObjectMissing, ObjectDamaged) as error:
                problem = str(error)
            path = self.get_path("nodes" if ref.level else "segments", ref.digest)
            yield Check(path, ref.from_seq, ref.to_seq, problem, entries)

    async def list_objects(self, root: str | None, *, skip_broken: bool = False) -> dict[str, int]:
        """List the paths of all objects that a root leads to, each with its rank in the order of deletion.

        Args:
            root: The root; None leads to nothing.
            skip_broken: Pass over nodes that are missing or damaged, instead of raising an error.

        Raises:
            ObjectMissing: A node is missing.
            ObjectDamaged: A node is damaged.
        """
        if root is None:
            return {}
        paths = {self.get_path("nodes", root): _LAST}
        try:
            stack = list(await self.read_root(root))
        except (ObjectMissing, ObjectDamaged):
            if not skip_broken:
                raise
            return paths
        while stack:
            ref = stack.pop()
            paths.setdefault(self.get_path("nodes" if ref.level else "segments", ref.digest), ref.level)
            if ref.level:
                try:
                    stack.extend(await self.read_children(ref))
                except (ObjectMissing, ObjectDamaged):
                    if not skip_broken:
                        raise
        return paths


_SUFFIXES = {"segments": ".jsonl", "nodes": ".json", "states": ".json", "results": ""}
