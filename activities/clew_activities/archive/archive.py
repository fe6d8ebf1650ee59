"""The archive: entries, states and tool results of sessions in a store. Reading it needs no Temporal server."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncIterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from itertools import takewhile

from clew_activities.archive.archive_errors import (
    KeyMissing,
    ObjectDamaged,
    ObjectMissing,
    StoreUnavailable,
    ThreadMismatch,
)
from clew_activities.archive.backends import SignedPut
from clew_activities.archive.formats import (
    Children,
    Head,
    Ref,
    append_refs,
    check_digest,
    decode_node,
    decode_segment,
    encode_node,
    encode_segment,
    hash_bytes,
    limit_children,
    make_segment_ref,
    split_entries,
    truncate_children,
)
from clew_activities.archive.store import Store, name_object
from clew_workflows.thread.entries import Entry

DELETED_AT_ONCE = 16
"""Objects that are deleted at the same time, of a family that has no member left."""
PAGE_OF_HEADS = 500
"""Heads whose names are listed at a time."""
_ID = re.compile(r"[A-Za-z0-9._:-]{1,200}")
_DIGEST = re.compile(r"[0-9a-f]{64}")
_UPLOAD = re.compile(r"[A-Za-z0-9_-]{1,64}")
_SUFFIXES = {"segments": ".jsonl", "nodes": ".json", "states": ".json", "results": "", "blobs": ""}
"""The kinds of immutable objects, and the ends of their names."""
_STAGED = "staged"
"""The folder of uploads. It is apart from families: a store's own rules can delete all that is old in it."""
_LAST = 1 << 30
"""Rank of a root in the order of deletion: after all objects that it leads to, so that a repeated deletion finds
them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ArchiveSettings:
    """How an archive is laid out. Archives written with other settings stay readable.

    Attributes:
        segment_bytes: Approximate upper bound of a segment, in bytes. A larger entry has a segment of its own.
        fanout: Number of children of one level that become one node of the next level.
        fork_time: Time after which a family member without a head no longer counts as a fork in progress.
    """

    segment_bytes: int = 1_000_000
    fanout: int = 64
    fork_time: timedelta = timedelta(hours=1)


DEFAULT = ArchiveSettings()


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


class Archive:
    """The archives of all sessions of a Temporal namespace.

    A family is a session with all its forks. The first session's id names it. Its objects are immutable and named by
    their content, so every write can be repeated. An object is deleted with the last member that needs it.

        <namespace>/families/s-<family>/segments/<sha256>.jsonl   entries
        <namespace>/families/s-<family>/nodes/<sha256>.json       the index over them
        <namespace>/families/s-<family>/states/<sha256>.json      session state
        <namespace>/families/s-<family>/results/<sha256>          large tool results, earlier calls of summaries
        <namespace>/families/s-<family>/blobs/<sha256>            images, recordings and files
        <namespace>/families/s-<family>/blobs/<sha256>.json       what was read from their headers
        <namespace>/families/s-<family>/uploads/<upload>/<part>   chunks of blobs that are not complete
        <namespace>/families/s-<family>/members/s-<session>       marker of a member
        <namespace>/sessions/s-<session>.json                     the head
        <namespace>/staged/s-<session>/<upload>                   bytes that callers upload to signed URLs
        <namespace>/staged/s-<session>/<upload>.json              the ticket: what they may upload, and until when

    Heads and what is staged are mutable.

    A missing or damaged object raises `ObjectMissing` or `ObjectDamaged` with its name. Reads never skip it.
    One that a newer version of Clew has written raises `NewerVersion`; nothing of it is overwritten or deleted.
    """

    def __init__(self, store: Store, namespace: str, settings: ArchiveSettings = DEFAULT) -> None:
        if not _ID.fullmatch(namespace) or namespace in {".", ".."}:
            raise ValueError(
                f"namespace {namespace!r} cannot be a folder of the archive: it needs 1 to 200 letters, digits, "
                "'.', '_', ':' and '-'"
            )
        self._store = store
        self._namespace = namespace
        self._settings = settings

    async def read_head(self, session_id: str) -> Head | None:
        """Read the head of a session's archive; None: the session has no archive."""
        path = self._make_head_path(session_id)
        try:
            data = await self._store.get(path)
        except ObjectMissing:
            return None
        return Head.decode(data, session_id, path)

    async def list_sessions(self, after: str | None, limit: int, prefix: str = "") -> list[str]:
        """List the ids of the sessions that have an archive, in the order of their heads' paths.

        Args:
            after: The id after which they begin; None: with the first one.
            limit: The most ids. Fewer are the last ones.
            prefix: What they begin with.
        """
        folder = f"{self._namespace}/sessions"
        # In the order of paths, `a-b.json` comes before `a.json`: a prefix is no id.
        starts = [*([self._make_head_path(after)] if after else []), *([f"{folder}/s-{prefix}"] if prefix else [])]
        paths = await self._store.list_after(folder, max(starts, default=None), limit)
        ids = (path.rpartition("/s-")[2].removesuffix(".json") for path in paths)
        return list(takewhile(lambda session_id: session_id.startswith(prefix), ids))

    async def list_prefixed(self, prefix: str) -> AsyncIterator[str]:
        """List the ids of the sessions that have an archive and whose ids begin with a prefix, in order."""
        after: str | None = None
        while page := await self.list_sessions(after, PAGE_OF_HEADS, prefix):
            for session_id in page:
                yield session_id
            after = page[-1]

    async def set_head(self, head: Head, before: Head | None) -> None:
        """Replace a session's head, and delete the state that the head `before` named.

        Appended entries and a written state become part of the session here. A damaged head is overwritten.

        Raises:
            ObjectChanged: The stored head is not `before`, or another writer has replaced it in between.
        """
        path = self._make_head_path(head.session_id)

        def is_expected(data: bytes | None) -> bool:
            try:
                return before == (None if data is None else Head.decode(data, head.session_id, path))
            except ObjectDamaged:
                return True

        await self._store.put(self._make_marker_path(head.family, head.session_id), b"")
        await self._store.replace(path, head.encode(), is_expected)
        # A state holds its session's id, so no other head names the same state.
        # Best effort: the head is already written, a failed delete only leaves garbage.
        if before and before.state and before.state != head.state:
            with suppress(StoreUnavailable):
                await self._store.delete(self._make_path(before.family, "states", before.state))

    async def append(self, family: str, root: str | None, entries: Sequence[Entry]) -> tuple[str | None, int]:
        """Append entries to the thread under `root`. Returns the new root and the seq of the last entry.

        It can be repeated, also after a crash: the same entries give the same root.

        Raises:
            ThreadMismatch: The first entry does not follow the last archived one.
        """
        children = await self._read_root(family, root)
        last = children[-1].to_seq if children else -1
        if [entry.seq for entry in entries] != list(range(last + 1, last + 1 + len(entries))):
            raise ThreadMismatch(
                f"the archive in {self._make_folder(family)} ends with entry {last}; {len(entries)} entries from "
                f"{entries[0].seq} to {entries[-1].seq} do not continue it"
            )
        if not entries:
            return root, last
        refs: list[Ref] = []
        for part in split_entries(entries, self._settings.segment_bytes):
            data = encode_segment(part)
            refs.append(make_segment_ref(part, data))
            await self._put(family, "segments", data)
        children, nodes = append_refs(children, refs, self._settings.fanout)
        for node in nodes:
            await self._put(family, "nodes", node)
        return await self._put(family, "nodes", encode_node(children)), entries[-1].seq

    async def read(
        self,
        family: str,
        root: str | None,
        from_seq: int = 0,
        to_seq: int | None = None,
        *,
        kinds: frozenset[str] | None = None,
    ) -> AsyncIterator[Entry]:
        """Read the entries from `from_seq` to `to_seq`, both included, in order; with `kinds`, only of these kinds.

        One segment at a time is in memory. Segments without an entry of these kinds are not read.
        """
        async for entries in self._read_segments(family, root, from_seq, to_seq, kinds, backwards=False):
            for entry in entries:
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
        """Read the same entries as `read`, the newest first."""
        async for entries in self._read_segments(family, root, from_seq, to_seq, kinds, backwards=True):
            for entry in reversed(entries):
                yield entry

    async def verify(self, family: str, root: str | None) -> AsyncIterator[Check]:
        """Read and check every object under a root. The thread is complete if no check has a problem."""
        if root is None:
            return
        path = self._make_path(family, "nodes", root)
        try:
            children = await self._read_root(family, root)
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
                    stack.extend(reversed(await self._read_children(family, ref)))
                else:
                    entries = tuple(await self._read_entries(family, ref))
            except (ObjectMissing, ObjectDamaged) as error:
                problem = str(error)
            yield Check(self._make_ref_path(family, ref), ref.from_seq, ref.to_seq, problem, entries)

    async def truncate(self, family: str, root: str, at_seq: int) -> str:
        """Make a root of the thread's entries up to `at_seq`. It shares the thread's objects.

        Raises:
            ThreadMismatch: The thread has no entry `at_seq`.
        """
        children = await self._read_root(family, root)
        if not 0 <= at_seq <= children[-1].to_seq:
            raise ThreadMismatch(
                f"the archive in {self._make_folder(family)} ends with entry {children[-1].to_seq}: no {at_seq}"
            )
        return await self._put(family, "nodes", encode_node(truncate_children(children, at_seq)))

    async def join(self, source: str, session_id: str) -> Head:
        """Enroll a future fork in its source's family, before its root is truncated. Returns the source's head.

        Nothing of the family is deleted until the fork's own head is written, or the fork leaves.

        Raises:
            ObjectMissing: The source has no archive, or is being deleted.
        """
        head = await self.read_head(source)
        if head is None:
            raise ObjectMissing(self._make_head_path(source))
        await self.enroll(head.family, session_id)
        # A deletion removes the source's marker before it lists the others: so either it finds the fork's marker, or
        # the source's marker is found missing here.
        if not await self._is_member(head.family, source):
            await self.leave(head.family, session_id)
            raise ObjectMissing(self._make_marker_path(head.family, source))
        return head

    async def enroll(self, family: str, session_id: str) -> None:
        """Write a session's marker in a family before the session has a head. Until then nothing there is deleted.

        If a session is forked before it has archived anything, it founds the family: enroll it first, then its fork.
        """
        await self._store.put(self._make_marker_path(family, session_id), b"")

    async def leave(self, family: str, session_id: str) -> None:
        """Delete a session's marker, for a fork that is given up and for a session that is deleted."""
        await self._store.delete(self._make_marker_path(family, session_id))

    async def has_members(self, family: str) -> bool:
        """Whether sessions share the objects of a family; none does before the first one is archived or forked."""
        async for _ in self._store.list(f"{self._make_folder(family)}/members"):
            return True
        return False

    async def write_state(self, family: str, data: bytes) -> str:
        """Store a session's state. Returns its digest."""
        return await self._put(family, "states", data)

    async def read_state(self, family: str, digest: str) -> bytes:
        """Read a state that `write_state` has stored."""
        path = self._make_path(family, "states", digest)
        data = await self._store.get(path)
        check_digest(data, digest, path)
        return data

    async def verify_state(self, head: Head) -> None:
        """Read and check the state that a head names, or that a newer head names if it has been replaced meanwhile.

        Raises:
            ObjectMissing: The state is missing.
            ObjectDamaged: The state, or the newer head, is damaged.
        """
        named: Head | None = head
        while named and named.state:
            try:
                await self.read_state(named.family, named.state)
                return
            except ObjectMissing:
                newer = await self.read_head(head.session_id)
                if newer == named:
                    raise
                named = newer

    async def put_result(self, family: str, text: bytes) -> str:
        """Store a large tool result, or the earlier calls of a summary. Returns its digest."""
        return await self._put(family, "results", text)

    async def get_result(
        self, family: str, digest: str, offset: int = 0, length: int | None = None
    ) -> tuple[bytes, int]:
        """Read a part of a tool result. Returns the part, empty if `offset` is past the end, and the full size.

        The checksum is verified only if the part is the full result.
        """
        path = self._make_path(family, "results", digest)
        data, size = await self._store.get_part(path, offset, length)
        if len(data) == size:
            check_digest(data, digest, path)
        return data, size

    async def put_blob(self, family: str, data: bytes, description: bytes) -> str:
        """Store a blob and the description of its content. Returns its digest.

        Bytes that the store has altered are replaced. The description is written last: a blob that has one is
        complete.
        """
        digest = hash_bytes(data)
        try:
            await self.get_blob(family, digest)
        except (KeyMissing, ObjectDamaged, ObjectMissing):
            await self._store.put(self._make_path(family, "blobs", digest), data)
        await self._store.put(self._make_description_path(family, digest), description)
        return digest

    async def get_blob(self, family: str, digest: str) -> bytes:
        """Read a blob.

        Raises:
            ObjectDamaged: The bytes do not match `digest`.
            ObjectMissing: There is no such blob.
        """
        path = self._make_path(family, "blobs", digest)
        data = await self._store.get(path)
        check_digest(data, digest, path)
        return data

    async def holds_blob(self, family: str, digest: str) -> bool:
        """Whether the bytes of a blob are stored. They are not read."""
        try:
            await self._store.get_size(self._make_path(family, "blobs", digest))
        except ObjectMissing:
            return False
        return True

    async def get_description(self, family: str, digest: str) -> bytes:
        """Read the description that was stored with a blob.

        Raises:
            ObjectMissing: There is no such blob.
        """
        return await self._store.get(self._make_description_path(family, digest))

    async def put_chunk(
        self, family: str, upload: str, part: int, source: tuple[str, str], data: bytes
    ) -> tuple[str, str] | None:
        """Store a chunk of an upload, in place of one of the same number. Returns the source of that one.

        The object begins with a line for the `source`: the id of the workflow that has brought it, and of its run.
        """
        path, replaced = self._make_chunk_path(family, upload, part), None
        with suppress(ObjectDamaged, ObjectMissing):
            replaced = await self.get_chunk_source(path)
        await self._store.put(path, json.dumps(source).encode() + b"\n" + data)
        return replaced

    async def get_chunk(self, family: str, upload: str, part: int) -> bytes:
        """Read the bytes of a chunk of an upload.

        Raises:
            ObjectMissing: There is no such chunk.
        """
        return (await self._store.get(self._make_chunk_path(family, upload, part))).partition(b"\n")[2]

    async def list_chunks(self, family: str, upload: str) -> AsyncIterator[str]:
        """List the paths of the chunks of an upload, in no order."""
        async for path in self._store.list(self._make_chunk_path(family, upload, 0).rpartition("/")[0]):
            yield path

    async def get_chunk_source(self, path: str) -> tuple[str, str]:
        """Read which workflow, and which run of it, has brought a chunk.

        Raises:
            ObjectDamaged: The chunk does not say it.
        """
        try:
            workflow_id, run_id = json.loads((await self._store.get_part(path, 0, 1_000))[0].partition(b"\n")[0])
            return str(workflow_id), str(run_id)
        except (ValueError, TypeError) as error:
            raise ObjectDamaged(path, f"it is not a chunk: {error}") from None

    async def delete_chunk(self, path: str) -> None:
        """Delete a chunk of an upload."""
        await self._store.delete(path)

    @property
    def encrypts(self) -> bool:
        """Whether objects are encrypted."""
        return self._store.encrypts

    async def sign_upload(self, session_id: str, upload: str, expires_in: timedelta) -> tuple[SignedPut, str] | None:
        """Sign a URL for the bytes of an upload; None: the store cannot.

        Returns:
            The URL, and the name under which the bytes are to be encrypted where objects are.
        """
        path = self._make_staged_path(session_id, upload)
        signed = await self._store.sign_put(path, expires_in)
        return (signed, name_object(path)) if signed else None

    async def get_staged(self, session_id: str, upload: str, max_bytes: int) -> bytes:
        """Read the bytes of an upload, which its caller has written. It raises what `Store.get_foreign` raises."""
        return await self._store.get_foreign(self._make_staged_path(session_id, upload), max_bytes)

    async def put_ticket(self, session_id: str, upload: str, data: bytes) -> None:
        """Write the ticket of an upload."""
        await self._store.put(self._make_ticket_path(session_id, upload), data)

    async def get_ticket(self, session_id: str, upload: str) -> bytes:
        """Read the ticket of an upload.

        Raises:
            ObjectMissing: The session has no such upload.
        """
        return await self._store.get(self._make_ticket_path(session_id, upload))

    async def delete_staged(self, session_id: str, upload: str, *, ticket: bool) -> None:
        """Delete the bytes of an upload, and its ticket if that is said. Best effort."""
        if ticket:
            await self._discard(self._make_ticket_path(session_id, upload))
        await self._discard(self._make_staged_path(session_id, upload))

    async def list_paths(self) -> AsyncIterator[str]:
        """List the paths of all objects of the namespace, in no order, without those that are staged."""
        staged = f"{self._namespace}/{_STAGED}/"
        async for path in self._store.list(self._namespace):
            if not path.startswith(staged):
                yield path

    async def rekey(self, path: str) -> bool:
        """Encrypt an object anew, unless it has the key that encrypts. Returns whether it was written.

        Raises:
            KeyMissing: The process cannot decrypt it.
            ObjectChanged: Another writer has replaced or deleted it in between.
        """
        return await self._store.rekey(path)

    async def delete(self, session_id: str) -> int:
        """Delete a session's archive, except objects that its family needs. Returns the number of deleted segments.

        The session must have ended. Repeat an interrupted deletion to finish it.

        Raises:
            ObjectMissing: The index of another member is incomplete, so that its objects are not known.
            ObjectDamaged: An object of the index of another member is damaged.
        """
        # A session that has archived nothing may still be the founder of its forks' family.
        head = await self.read_head(session_id) or Head(session_id=session_id, family=session_id)
        # The marker is deleted first: of members that are deleted at the same time, the last one finds no other
        # marker. The head is deleted last: a repeated deletion still finds the objects that are left.
        await self.leave(head.family, session_id)
        siblings = await self._find_siblings(head)
        if siblings is None:
            unneeded = []
        elif siblings:
            unneeded = await self._find_unneeded(head, siblings)
            for path in unneeded:
                await self._store.delete(path)
        else:
            unneeded = [path async for path in self._store.list(self._make_folder(head.family))]
            # Nothing leads to them but the head.
            await self._delete_in_any_order(unneeded)
        await self._delete_staged(session_id)
        await self._store.delete(self._make_head_path(session_id))
        return sum("/segments/" in path for path in unneeded)

    async def delete_rest(self, session_id: str) -> bool:
        """Delete the objects of a family that no session has, or has any more. Returns whether there were any.

        Repeat an interrupted deletion to finish it.
        """
        staged = await self._delete_staged(session_id)
        if await self._find_siblings(Head(session_id=session_id, family=session_id)) != []:
            return staged
        paths = [path async for path in self._store.list(self._make_folder(session_id))]
        await self._delete_in_any_order(paths)
        return staged or bool(paths)

    async def _delete_in_any_order(self, paths: list[str]) -> None:
        """Delete objects to which nothing leads. A session may have thousands of blobs."""
        for start in range(0, len(paths), DELETED_AT_ONCE):
            await asyncio.gather(*map(self._store.delete, paths[start : start + DELETED_AT_ONCE]))

    async def _delete_staged(self, session_id: str) -> bool:
        """Delete what was uploaded for a session and never became a blob. Returns whether there was anything."""
        found = False
        async for path in self._store.list(self._make_staging_folder(session_id)):
            await self._discard(path)
            found = True
        return found

    async def list_objects(self, family: str, root: str | None, *, skip_broken: bool = False) -> dict[str, int]:
        """List the paths of all objects that a root leads to, each with its rank in the order of deletion.

        Args:
            family: The family that has the objects.
            root: The root; None leads to nothing.
            skip_broken: Pass over nodes that are missing or damaged, instead of raising an error.

        Raises:
            ObjectMissing: A node is missing.
            ObjectDamaged: A node is damaged.
        """
        if root is None:
            return {}
        paths = {self._make_path(family, "nodes", root): _LAST}
        try:
            stack = list(await self._read_root(family, root))
        except (ObjectMissing, ObjectDamaged):
            if not skip_broken:
                raise
            return paths
        while stack:
            ref = stack.pop()
            paths.setdefault(self._make_ref_path(family, ref), ref.level)
            if ref.level:
                try:
                    stack.extend(await self._read_children(family, ref))
                except (ObjectMissing, ObjectDamaged):
                    if not skip_broken:
                        raise
        return paths

    def _make_path(self, family: str, kind: str, digest: str) -> str:
        """Make the path of an immutable object.

        Raises:
            ObjectMissing: `digest` is not a digest. It may come from an imported entry.
        """
        if not _DIGEST.fullmatch(digest):
            raise ObjectMissing(f"{self._make_folder(family)}/{kind}/{digest[:100]!r}")
        return f"{self._make_folder(family)}/{kind}/{digest}{_SUFFIXES[kind]}"

    def _make_description_path(self, family: str, digest: str) -> str:
        return f"{self._make_path(family, 'blobs', digest)}.json"

    def _make_chunk_path(self, family: str, upload: str, part: int) -> str:
        if not _UPLOAD.fullmatch(upload):
            raise ValueError(f"invalid id of an upload: {upload[:100]!r}")
        return f"{self._make_folder(family)}/uploads/{upload}/{part:06}"

    async def _discard(self, path: str) -> None:
        """Delete what is staged. Best effort: with an Azure URL its caller may lease the object, which keeps it."""
        with suppress(StoreUnavailable):
            await self._store.delete(path)

    def _make_staging_folder(self, session_id: str) -> str:
        return f"{self._namespace}/{_STAGED}/{_make_file_name(session_id)}"

    def _make_staged_path(self, session_id: str, upload: str) -> str:
        if not _UPLOAD.fullmatch(upload):
            raise ValueError(f"invalid id of an upload: {upload[:100]!r}")
        return f"{self._make_staging_folder(session_id)}/{upload}"

    def _make_ticket_path(self, session_id: str, upload: str) -> str:
        return f"{self._make_staged_path(session_id, upload)}.json"

    async def _put(self, family: str, kind: str, data: bytes) -> str:
        """Write an immutable object. Returns its digest."""
        digest = hash_bytes(data)
        await self._store.put_new(self._make_path(family, kind, digest), data)
        return digest

    async def _read_segments(
        self,
        family: str,
        root: str | None,
        from_seq: int,
        to_seq: int | None,
        kinds: frozenset[str] | None,
        *,
        backwards: bool,
    ) -> AsyncIterator[list[Entry]]:
        """Read the segments that may hold such entries, in the order of reading. Yields the entries of each."""
        children = await self._read_root(family, root)
        if to_seq is not None:
            children = truncate_children(children, to_seq)
        stack = list(children if backwards else reversed(children))
        while stack:
            ref = stack.pop()
            if ref.to_seq < from_seq or (kinds is not None and kinds.isdisjoint(ref.kinds)):
                continue
            if ref.level:
                below = await self._read_children(family, ref)
                stack.extend(below if backwards else reversed(below))
                continue
            yield [
                entry
                for entry in await self._read_entries(family, ref)
                if entry.seq >= from_seq and (kinds is None or entry.kind in kinds)
            ]

    async def _read_root(self, family: str, digest: str | None) -> Children:
        """Read the children of a root; none if nothing of the thread is archived."""
        if digest is None:
            return ()
        path = self._make_path(family, "nodes", digest)
        children = decode_node(await self._store.get(path), digest, path)
        if children[0].from_seq != 0:
            raise ObjectDamaged(path, f"a root begins with entry 0, this one with entry {children[0].from_seq}")
        return children

    async def _read_children(self, family: str, ref: Ref) -> Children:
        """Read the children of a node that a ref covers."""
        path = self._make_ref_path(family, ref)
        return limit_children(ref, decode_node(await self._store.get(path), ref.digest, path), path)

    async def _read_entries(self, family: str, ref: Ref) -> list[Entry]:
        """Read the entries of a segment that a ref covers."""
        path = self._make_ref_path(family, ref)
        entries = decode_segment(await self._store.get(path), ref.digest, path)
        visible = entries[: ref.to_seq - ref.from_seq + 1]
        if (visible[0].seq, visible[-1].seq) != (ref.from_seq, ref.to_seq):
            raise ObjectDamaged(path, f"it does not hold the entries {ref.from_seq} to {ref.to_seq}")
        if not {entry.kind for entry in visible} <= set(ref.kinds):
            raise ObjectDamaged(path, "it holds kinds of entries that the index does not list")
        return visible

    async def _find_siblings(self, head: Head) -> list[Head] | None:
        """Read the heads of the family's other members; None while one of them is being made and has no head.

        The founder may have no head: it has archived nothing yet. A fork that was given up midway leaves a marker,
        which is ignored after `fork_time`.
        """
        folder = f"{self._make_folder(head.family)}/members"
        siblings = []
        for member in [path.rpartition("/s-")[2] async for path in self._store.list(folder)]:
            if member == head.session_id:
                continue
            if sibling := await self.read_head(member):
                siblings.append(sibling)
            elif await self._is_being_made(head.family, member):
                return None
        return siblings

    async def _find_unneeded(self, head: Head, siblings: Sequence[Head]) -> list[str]:
        """List the objects that only this head leads to, in the order of deletion."""
        needed: set[str] = set()
        for sibling in siblings:
            try:
                needed |= (await self.list_objects(head.family, sibling.root)).keys()
            except ObjectMissing:
                # A sibling that is being deleted meanwhile needs nothing.
                if await self._is_member(head.family, sibling.session_id):
                    raise
        own = await self.list_objects(head.family, head.root, skip_broken=True)
        if head.state:
            own[self._make_path(head.family, "states", head.state)] = 0
        return sorted(own.keys() - needed, key=lambda path: (own[path], path))

    async def _is_being_made(self, family: str, session_id: str) -> bool:
        try:
            age = await self._store.get_age(self._make_marker_path(family, session_id))
        except ObjectMissing:
            return False
        return session_id == family or age < self._settings.fork_time

    async def _is_member(self, family: str, session_id: str) -> bool:
        try:
            await self._store.get_size(self._make_marker_path(family, session_id))
        except ObjectMissing:
            return False
        return True

    def _make_folder(self, family: str) -> str:
        return f"{self._namespace}/families/{_make_file_name(family)}"

    def _make_ref_path(self, family: str, ref: Ref) -> str:
        return self._make_path(family, "nodes" if ref.level else "segments", ref.digest)

    def _make_head_path(self, session_id: str) -> str:
        return f"{self._namespace}/sessions/{_make_file_name(session_id)}.json"

    def _make_marker_path(self, family: str, session_id: str) -> str:
        return f"{self._make_folder(family)}/members/{_make_file_name(session_id)}"


def _make_file_name(session_id: str) -> str:
    """Make a file name of a session id. The prefix is needed because `.` and `..` are valid ids."""
    if not _ID.fullmatch(session_id):
        raise ValueError(f"invalid session id: {session_id[:200]!r}")
    return f"s-{session_id}"
