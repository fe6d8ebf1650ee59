"""The archive's activities: a session's entries leave its history, and what is needed of them comes back."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import asdict

from pydantic_core import from_json, to_json
from temporalio import activity
from temporalio.exceptions import ApplicationError

from activities.archive import Archive, ArchiveError, Head, ObjectDamaged, ObjectMissing, ThreadMismatch
from activities.asking import ask, own_session
from clew.entries import Entry
from clew.past import parted
from clew.policy import ContextPolicy
from clew.thread import Gap, Past, Thread, follows_after
from clew.tokens import encoding
from workflows.carried import VERSION
from workflows.effects import ArchiveRef, Archiving, Packed, Recall, Recalled, Thaw

MAX_RECALLED_BYTES = 1_500_000
"""Of one answer, as it is written to the history."""


class ArchiveActivities:
    """Writes the archive of sessions, and reads it for them."""

    def __init__(self, archive: Archive) -> None:
        self._archive = archive

    @activity.defn(name="archive")
    async def archive(self, asked: Archiving) -> ArchiveRef:
        """Write all entries that are not there yet, and then what the session goes on from. It may be repeated."""
        place, session_id = asked.archive, activity.info().workflow_id or ""
        session = own_session()
        async with explained():
            whole = await ask(session, "carried")
            entries = []
            seq = place.upto + 1
            while seq <= whole["last_seq"]:
                page = await ask(session, "entries", {"from_seq": seq})
                entries += [Entry.from_json(row) for row in page["entries"] if row["seq"] <= whole["last_seq"]]
                seq = page.get("next_seq", whole["last_seq"] + 1)
            root, upto = await self._archive.append(place.family, place.root, entries)
            head = await self._archive.head(session_id)
            if head and (head.run_id != place.execution or head.root not in (place.root, root)):
                raise ThreadMismatch(f"the archive of {session_id!r} has been written by another execution")
            state = await self._archive.write_state(place.family, to_json(whole["carried"]))
            await self._archive.set_head(
                Head(
                    session_id=session_id,
                    family=place.family,
                    root=root,
                    last_seq=upto,
                    state=state,
                    status="closed" if asked.closed else "live",
                    run_id=place.execution,
                )
            )
        return place.model_copy(update={"root": root, "upto": upto})

    @activity.defn(name="thaw")
    async def thaw(self, asked: Thaw) -> Packed:
        """What a session goes on from, and from now on its archive is this execution's."""
        place, session_id = asked.archive, activity.info().workflow_id or ""
        async with explained():
            carried = from_json(await self._archive.read_state(place.family, asked.state))
            if carried["version"] != VERSION:
                raise ThreadMismatch(f"the session was archived in another form: {carried['version']!r}")
            head = await self._archive.head(session_id)
            if head is None or head.state != asked.state:
                raise ThreadMismatch(f"the archive of {session_id!r} has changed meanwhile")
            await self._archive.set_head(head.model_copy(update={"status": "live", "run_id": place.execution}))
        return Packed.model_validate(carried)

    @activity.defn(name="recall")
    async def recall(self, asked: Recall) -> Recalled:
        """The part of a lane that contexts need, as far as it fits into one answer, the newest first."""
        async with explained():
            thread = await self._lane(asked)
        return fitted(thread, asked)

    async def _lane(self, asked: Recall) -> Thread:
        """As much of a lane as contexts under the policies can reach."""
        place, lane = asked.archive, asked.context_ref
        # What the session knows is newer than every mark in the archive.
        marks, after = (await self._marks(place, lane)) if asked.after is None else ([], asked.after)
        reach = _Reach(asked.policies)
        messages: list[Entry] = []
        complete = True
        talk = self._archive.read_back(
            place.family, place.root, after + 1, place.upto, kinds=frozenset({"ai_message"})
        )
        async for entry in talk:
            if entry.lane != lane:
                continue
            messages.append(entry)
            if reach.is_enough(entry):
                complete = False
                break
        # A later snapshot may reach further back than this one: what was not read is not said to be nothing.
        before = after if complete else messages[-1].seq - 1
        gap = Gap(newest=before, mark=before)
        kept = sorted((*marks, *messages), key=lambda entry: entry.seq)
        return Thread((), place.upto + 1, Past(place.upto, tuple(kept), {lane: gap}))

    async def _marks(self, place: ArchiveRef, lane: str) -> tuple[list[Entry], int]:
        """The newest snapshot and the newest summary after it, and the seq after which messages follow upon them."""
        marks: list[Entry] = []
        kinds = frozenset({"ai_context_operation", "summary"})
        async for entry in self._archive.read_back(place.family, place.root, to_seq=place.upto, kinds=kinds):
            if entry.lane != lane:
                continue
            if entry.kind == "summary":
                marks += [entry] if not marks else []
            elif entry.payload["operation"]["type"] == "replace":
                return [*marks, entry], follows_after(entry)
        return marks, -1


def fitted(thread: Thread, asked: Recall) -> Recalled:
    """What a session is to keep of a lane, without what it holds already, small enough for one answer."""
    lane = asked.context_ref
    held = sum(
        len(to_json(entry.as_json()))
        for entry in thread.past.entries
        if entry.kind == "ai_message" and entry.seq >= asked.before
    )
    room = 4 * MAX_RECALLED_BYTES
    while True:
        past = parted(thread, thread.first_seq, {lane: asked.policies}, held + room)
        new = (entry for entry in past.entries if entry.seq < asked.before or entry.kind != "ai_message")
        packed = Packed.of(
            {
                "entries": [entry.as_json() for entry in new],
                "gap": asdict(past.gaps[lane]),
            }
        )
        if len(packed.zlib) <= MAX_RECALLED_BYTES or room < 1000:
            return Recalled(packed=packed)
        room //= 2


class _Reach:
    """Whether what has been read of a lane, the newest first, is more than any context can be made of."""

    def __init__(self, policies: Sequence[ContextPolicy]) -> None:
        self._left = max(policy.budget for policy in policies)
        self._kinds = set.intersection(*(set(policy.include_kinds) for policy in policies))
        self._heuristic = encoding("heuristic")
        self._run_id: str | None = None
        self._asked = 0

    def is_enough(self, entry: Entry) -> bool:
        role = entry.payload["role"]
        kind = "tool_result" if role == "tool" else "tool_call" if entry.payload.get("tool_calls") else "message"
        if kind in self._kinds:
            self._left -= min(entry.tokens, self._heuristic.message(entry.message))
        if role == "user":
            run_id = entry.refs.get("run_id")
            if self._asked == 0 or run_id is None or run_id != self._run_id:
                self._asked += 1
            self._run_id = run_id
        # The newest run's first message is known by the one before it, which is another run's.
        return self._left < 0 and self._asked > 1 and role != "tool"


@asynccontextmanager
async def explained() -> AsyncIterator[None]:
    """What is wrong with the archive, in words that travel; what may pass is tried again."""
    try:
        yield
    except ArchiveError as error:
        word, final = "archive_unavailable", False
        if isinstance(error, ThreadMismatch):
            word, final = "thread_mismatch", True
        elif isinstance(error, ObjectDamaged | ObjectMissing):
            word = "archive_damaged"
        raise ApplicationError(str(error), type=word, non_retryable=final) from error
