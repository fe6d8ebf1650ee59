"""The archive: what sessions leave in the store, readable without any server."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Sequence
from contextlib import suppress

from clew.thread.entries import Entry
from clew_activities.archive import index
from clew_activities.archive.errors import ObjectDamaged, ObjectMissing, StoreUnavailable
from clew_activities.archive.family import Check, Family
from clew_activities.archive.head import Head
from clew_activities.archive.objects import MAX_OBJECT_BYTES
from clew_activities.archive.segment import hash_bytes
from clew_activities.archive.settings import DEFAULT, ArchiveSettings
from clew_activities.archive.store import Store

_ID = re.compile(r"[A-Za-z0-9._:-]{1,200}")


class Archive:
    """The archives of all sessions of a Temporal namespace.

    A family is a session with all its forks, named by the first one's id. Its objects never change and are named
    by their content, so every write can be repeated; they are deleted with the last member that needs them:

        <namespace>/families/s-<family>/segments/<sha256>.jsonl   entries
        <namespace>/families/s-<family>/nodes/<sha256>.json       the index over them
        <namespace>/families/s-<family>/states/<sha256>.json      what else a session carries
        <namespace>/families/s-<family>/results/<sha256>          large tool results
        <namespace>/families/s-<family>/members/s-<session>       who is of the family
        <namespace>/sessions/s-<session>.json                     the head, which alone changes

    An object that is missing or damaged is an error that names it (`ObjectMissing`, `ObjectDamaged`), never a gap.
    """

    def __init__(self, store: Store, namespace: str, settings: ArchiveSettings = DEFAULT) -> None:
        if not _ID.fullmatch(namespace) or namespace in {".", ".."}:
            raise ValueError(f"a namespace that cannot be a folder: {namespace!r}")
        self._store = store
        self._namespace = namespace
        self._settings = settings

    async def read_head(self, session_id: str) -> Head | None:
        """Where a session's archive stands; None: it has none."""
        path = self._head_path(session_id)
        try:
            data = await self._store.get(path)
        except ObjectMissing:
            return None
        return Head.decode(data, session_id, path)

    async def set_head(self, head: Head, before: Head | None) -> None:
        """Write a session's head over the one before it, and delete the state that this one named.

        Only after this is what was appended and written part of the session. A head that is damaged gives way.

        Raises:
            ObjectChanged: the head is not `before`, or no longer.
        """
        path = self._head_path(head.session_id)

        def suits(data: bytes | None) -> bool:
            try:
                return before == (None if data is None else Head.decode(data, head.session_id, path))
            except ObjectDamaged:
                return True

        await self._store.put(self._marker_path(head.family, head.session_id), b"")
        await self._store.replace(path, head.encode(), suits)
        # A state names its session, so no other head names it. What was to be done is done, whatever comes of this.
        if before and before.state and before.state != head.state:
            with suppress(StoreUnavailable):
                await self._store.delete(self._family(before.family).get_path("states", before.state))

    async def append(self, family: str, root: str | None, entries: Sequence[Entry]) -> tuple[str | None, int]:
        """Put entries behind the thread under `root`: the root of the longer thread, and its last seq.

        Repeating it, also after a crash midway, gives the same root.

        Raises:
            ThreadMismatch: the entries do not follow right upon the thread.
        """
        return await self._family(family).append(root, entries)

    async def read(
        self,
        family: str,
        root: str | None,
        from_seq: int = 0,
        to_seq: int | None = None,
        *,
        kinds: frozenset[str] | None = None,
    ) -> AsyncIterator[Entry]:
        """The entries from `from_seq` to `to_seq`, both included, in order; of these kinds alone, where given.

        One segment at a time is in memory; segments without an entry of these kinds are not read.
        """
        async for piece in self._pieces(family, root, from_seq, to_seq, kinds, backwards=False):
            for entry in piece:
                yield entry

    async def read_back(
        self,
        family: str,
        root: str | None,
        from_seq: int = 0,
        to_seq: int | None = None,
        *,
        kinds: frozenset[str] | None = None,
    ) -> AsyncIterator[Entry]:
        """What `read` gives, the newest first."""
        async for piece in self._pieces(family, root, from_seq, to_seq, kinds, backwards=True):
            for entry in reversed(piece):
                yield entry

    async def verify(self, family: str, root: str | None) -> AsyncIterator[Check]:
        """Read every object under a root and say of each whether it is whole; all are, if no check has a problem."""
        if root is not None:
            async for check in self._family(family).verify(root):
                yield check

    async def cut(self, family: str, root: str, at_seq: int) -> str:
        """The root of the thread's first entries up to `at_seq`, sharing every object.

        Raises:
            ThreadMismatch: the thread has no such entry.
        """
        return await self._family(family).cut(root, at_seq)

    async def join(self, source: str, session_id: str) -> Head:
        """Make a session-to-be a member of the family that it is forked from, before its root is cut.

        From now on until its own head is written (or it leaves) nothing of the family is deleted. Answers the
        source's head.

        Raises:
            ObjectMissing: the source has no archive, or is being deleted.
        """
        head = await self.read_head(source)
        if head is None:
            raise ObjectMissing(self._head_path(source))
        await self.enroll(head.family, session_id)
        # A deletion removes its marker and then looks for others: either it sees ours, or we see that its is gone.
        if not await self._is_member(head.family, source):
            await self.leave(head.family, session_id)
            raise ObjectMissing(self._marker_path(head.family, source))
        return head

    async def enroll(self, family: str, session_id: str) -> None:
        """Make a session a member of a family before it has a head: until then nothing of the family is deleted.

        The founder of a family that is forked before anything of it is archived is enrolled first, and then its fork.
        """
        await self._store.put(self._marker_path(family, session_id), b"")

    async def leave(self, family: str, session_id: str) -> None:
        """Undo `join` or `enroll`, for a fork that is not made after all."""
        await self._store.delete(self._marker_path(family, session_id))

    async def write_state(self, family: str, data: bytes) -> str:
        """Store what a session carries beside its thread; its digest."""
        return await self._family(family).put("states", data)

    async def read_state(self, family: str, digest: str) -> bytes:
        """What `write_state` stored."""
        return await self._family(family).get("states", digest)

    async def put_result(self, family: str, text: bytes) -> str:
        """Store a large tool result; its digest."""
        return await self._family(family).put("results", text)

    async def get_result(
        self, family: str, digest: str, offset: int = 0, length: int | None = None
    ) -> tuple[bytes, int]:
        """A part of a tool result, and its whole size; nothing where `offset` lies behind its end.

        The checksum is verified where the part is all of it.
        """
        path = self._family(family).get_path("results", digest)
        size = await self._store.get_size(path)
        wanted = size - offset if length is None else min(length, size - offset)
        if wanted > MAX_OBJECT_BYTES:
            raise ObjectDamaged(path, f"it has {size} bytes, and no object has more than {MAX_OBJECT_BYTES}")
        data = await self._store.get_range(path, offset, wanted) if wanted > 0 else b""
        if len(data) == size and hash_bytes(data) != digest:
            raise ObjectDamaged(path, "its checksum does not match")
        return data, size

    async def delete(self, session_id: str) -> int:
        """Delete a session's archive, without what its family still needs; the number of segments deleted.

        The session must have ended. A deletion that was interrupted is finished by repeating it.

        Raises:
            ObjectMissing, ObjectDamaged: what another member needs cannot be told.
        """
        # One that has archived nothing may still be the founder of its forks' family.
        head = await self.read_head(session_id) or Head(session_id=session_id, family=session_id)
        # The marker goes first and the head last: of members that are deleted at the same time the last one finds
        # no other, and whoever repeats a deletion finds what is left to delete.
        await self.leave(head.family, session_id)
        siblings = await self._siblings(head)
        if siblings is None:
            doomed = []
        elif siblings:
            doomed = await self._needed_by_none(head, siblings)
        else:
            doomed = [path async for path in self._store.list(self._family(head.family).folder)]
        for path in doomed:
            await self._store.delete(path)
        await self._store.delete(self._head_path(session_id))
        return sum("/segments/" in path for path in doomed)

    async def _pieces(
        self,
        name: str,
        root: str | None,
        from_seq: int,
        to_seq: int | None,
        kinds: frozenset[str] | None,
        *,
        backwards: bool,
    ) -> AsyncIterator[list[Entry]]:
        family = self._family(name)
        children = await family.read_root(root)
        if to_seq is not None:
            children = index.cut(children, to_seq)
        async for ref in family.find_segments(children, from_seq, kinds=kinds, backwards=backwards):
            yield [
                entry
                for entry in await family.read_entries(ref)
                if entry.seq >= from_seq and (kinds is None or entry.kind in kinds)
            ]

    async def _siblings(self, head: Head) -> list[Head] | None:
        """The heads of the family's other members; None while one of them is in the making and has none.

        The founder, too, may have none: it has archived nothing yet, and does so when it likes. A fork that is given
        up midway leaves a marker that says nothing after a while.
        """
        folder = f"{self._family(head.family).folder}/members"
        siblings = []
        for member in [path.rpartition("/s-")[2] async for path in self._store.list(folder)]:
            if member == head.session_id:
                continue
            if sibling := await self.read_head(member):
                siblings.append(sibling)
            elif await self._is_in_the_making(head.family, member):
                return None
        return siblings

    async def _needed_by_none(self, head: Head, siblings: Sequence[Head]) -> list[str]:
        """What a head reaches and no sibling does, in the order of deletion."""
        family = self._family(head.family)
        needed: set[str] = set()
        for sibling in siblings:
            try:
                needed |= (await family.list_objects(sibling.root)).keys()
            except ObjectMissing:
                # One that is itself being deleted meanwhile needs nothing.
                if await self._is_member(head.family, sibling.session_id):
                    raise
        own = await family.list_objects(head.root, broken=True)
        if head.state:
            own[family.get_path("states", head.state)] = 0
        return sorted(own.keys() - needed, key=lambda path: (own[path], path))

    async def _is_in_the_making(self, family: str, session_id: str) -> bool:
        try:
            age = await self._store.get_age(self._marker_path(family, session_id))
        except ObjectMissing:
            return False
        return session_id == family or age < self._settings.fork_time

    async def _is_member(self, family: str, session_id: str) -> bool:
        try:
            await self._store.get_size(self._marker_path(family, session_id))
        except ObjectMissing:
            return False
        return True

    def _family(self, name: str) -> Family:
        return Family(self._store, f"{self._namespace}/families/{_file_name(name)}", self._settings)

    def _head_path(self, session_id: str) -> str:
        return f"{self._namespace}/sessions/{_file_name(session_id)}.json"

    def _marker_path(self, family: str, session_id: str) -> str:
        return f"{self._family(family).folder}/members/{_file_name(session_id)}"


def _file_name(session_id: str) -> str:
    """A session's id as a name of a file; `.` and `..` are ids too."""
    if not _ID.fullmatch(session_id):
        raise ValueError(f"not a session id: {session_id[:200]!r}")
    return f"s-{session_id}"
