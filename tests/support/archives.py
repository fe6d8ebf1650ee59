"""Entries to archive, stores that fail, and readers of a store's content."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import cast, get_args

from hypothesis import strategies as st

from clew import Session
from clew.contract.payloads import EntryKind
from clew_activities.archive import Archive, Head, Store, StoreUnavailable
from clew_workflows.thread.entries import Entry, Refs

FOLDER = "default/families/s-root"


def read_files(folder: Path) -> dict[Path, bytes]:
    """Read all files in a folder and below."""
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def make_entry(seq: int, kind: EntryKind = "ai_message", text: str = "", tag: str = "") -> Entry:
    """Make an entry; `tag` makes it differ from other entries with the same seq."""
    payload = {"context_ref": "default", "role": "user", "content": text or f"message {seq}", "number": 2**60 + seq}
    return Entry(seq, f"{tag}e{seq}", kind, "2026-01-01T00:00:00.000Z", payload, {"request_id": "r"}, seq)


def make_entries(start: int, count: int, tag: str = "") -> list[Entry]:
    """Make consecutive entries."""
    return [make_entry(seq, tag=tag) for seq in range(start, start + count)]


def draw_json() -> st.SearchStrategy[object]:
    """Draw any JSON value."""
    text = st.text(st.characters(codec="utf-8"), max_size=20)
    leaves = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | text
    return st.recursive(leaves, lambda inner: st.lists(inner) | st.dictionaries(text, inner), max_leaves=4)


@st.composite
def draw_threads(draw: st.DrawFn) -> list[Entry]:
    """Draw consecutive entries of all kinds, with any payload."""
    start = draw(st.integers(0, 1000))
    texts = st.text(st.characters(codec="utf-8"), max_size=10)
    return [
        Entry(
            start + i,
            draw(texts),
            draw(st.sampled_from(get_args(EntryKind))),
            "2026-01-01T00:00:00.000Z",
            draw(st.dictionaries(texts, draw_json(), max_size=3)),
            cast("Refs", draw(st.dictionaries(texts, texts, max_size=2))),
            draw(st.integers(0, 10_000)),
        )
        for i in range(draw(st.integers(1, 4)))
    ]


class Failing(Store):
    """A store whose operation number `fail_at` fails: before it is done or, with `lost`, after it."""

    def __init__(self, inner: Store, fail_at: int = -1, *, lost: bool = False) -> None:
        self.inner, self.fail_at, self.lost = inner, fail_at, lost
        self.operations: list[tuple[str, str]] = []

    @contextmanager
    def _operation(self, name: str, path: str) -> Iterator[None]:
        fails = len(self.operations) == self.fail_at
        self.operations.append((name, path))
        if fails and not self.lost:
            raise StoreUnavailable(path, "the network is gone")
        yield
        if fails:
            raise StoreUnavailable(path, "the network is gone")

    @property
    def exhausted(self) -> bool:
        """Whether fewer operations ran than needed to reach `fail_at`."""
        return self.fail_at >= len(self.operations)

    async def put(self, path: str, data: bytes) -> None:
        with self._operation("put", path):
            await self.inner.put(path, data)

    async def replace(self, path: str, data: bytes, accepts: Callable[[bytes | None], bool]) -> None:
        with self._operation("replace", path):
            await self.inner.replace(path, data, accepts)

    async def get(self, path: str) -> bytes:
        with self._operation("get", path):
            return await self.inner.get(path)

    async def get_size(self, path: str) -> int:
        with self._operation("size", path):
            return await self.inner.get_size(path)

    async def get_age(self, path: str) -> timedelta:
        with self._operation("age", path):
            return await self.inner.get_age(path)

    async def holds(self, path: str, size: int) -> bool:
        with self._operation("holds", path):
            return await self.inner.holds(path, size)

    async def delete(self, path: str) -> None:
        with self._operation("delete", path):
            await self.inner.delete(path)

    async def list(self, prefix: str) -> AsyncIterator[str]:
        with self._operation("list", prefix):
            async for path in self.inner.list(prefix):
                yield path


async def list_objects(store: Store, folder: str = "default") -> set[str]:
    """List the paths of all objects in a folder of a store."""
    return {path async for path in store.list(folder)}


async def begin_archive(archive: Archive, session_id: str, entries: list[Entry]) -> Head:
    """Write the archive of a new session."""
    return await extend_archive(archive, Head(session_id=session_id, family=session_id), entries)


async def extend_archive(archive: Archive, head: Head, entries: list[Entry]) -> Head:
    """Write as a rollover does: append, write the state, set the head."""
    root, last_seq = await archive.append(head.family, head.root, entries)
    state = await archive.write_state(head.family, f"{head.session_id} at {last_seq}".encode())
    longer = head.model_copy(update={"root": root, "last_seq": last_seq, "state": state})
    await archive.set_head(longer, await archive.read_head(head.session_id))
    return longer


async def fork_archive(archive: Archive, source: str, session_id: str, at_seq: int) -> Head:
    """Write as a fork does: join the family, truncate, set the head."""
    origin = await archive.join(source, session_id)
    assert origin.root is not None
    root = await archive.truncate(origin.family, origin.root, at_seq)
    head = Head(session_id=session_id, family=origin.family, root=root, last_seq=at_seq)
    await archive.set_head(head, None)
    return head


async def read_thread(archive: Archive, head: Head) -> list[Entry]:
    """Read all archived entries of a session."""
    return [entry async for entry in archive.read(head.family, head.root)]


class ArchiveInUse(Archive):
    """An archive whose session writes it anew between the reader's look at the head and at the state."""

    def __init__(self, store: Store, session: Session) -> None:
        super().__init__(store, "default")
        self.session = session
        self.replaced: list[str] = []

    async def read_state(self, family: str, digest: str) -> bytes:
        if not self.replaced:
            await self.session.hibernate()
            self.replaced.append(digest)
        return await super().read_state(family, digest)
