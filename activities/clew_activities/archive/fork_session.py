"""Forking sessions: the fork shares its parent's archive, and is started like a session that hibernated."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from dataclasses import replace
from typing import Any, Literal

from pydantic_core import to_json
from temporalio import activity
from temporalio.exceptions import ApplicationError
from temporalio.service import RPCError, RPCStatusCode

from clew.session.connection import start_session
from clew_activities.archive import Archive, Head, ObjectChanged
from clew_activities.archive.archive_errors import translate_archive_errors
from clew_activities.archive.ended_runs import OLD_HEAD_PAUSE_SECONDS, was_interrupted
from clew_activities.archive.thread_source import (
    ArchivedThread,
    ThreadLocation,
    Threads,
    query_started_session,
)
from clew_activities.heartbeats import send_heartbeats
from clew_workflows.contract import EntriesQuery
from clew_workflows.contract.errors import InvalidInput, RequestReused
from clew_workflows.contract.outputs import ForkReceipt
from clew_workflows.contract.payloads import OperationPayload
from clew_workflows.protocol import Fork
from clew_workflows.session import carried
from clew_workflows.session.advance import Session
from clew_workflows.session.state import MAX_KNOWN_OPS, State, note_entries
from clew_workflows.session.ui import summarize_archived
from clew_workflows.thread.context.archived import load_thread
from clew_workflows.thread.entries import Entry, Refs

RECORDING_SECONDS = 0.05
"""Seconds between two checks whether the parent has recorded its fork."""


class ForkingActivities:
    """Forks sessions for clients. A retry finishes an interrupted fork."""

    def __init__(self, archive: Archive) -> None:
        self._archive = archive
        self._threads = Threads(archive)

    @activity.defn(name="fork_session")
    async def fork_session(self, request: Fork) -> dict[str, Any]:
        """Write the fork's archive, start its workflow, wait until it answers, and record it in the parent."""
        async with send_heartbeats(), translate_archive_errors(damage_is_final=True):
            parent = await self._threads.find(request.session_id)
            last_seq = await self._threads.find_last_seq(parent)
            if request.at_seq > last_seq:
                raise _make_refusal(f"at_seq: session {request.session_id!r} ends with entry {last_seq}")
            fork = await self._find_fork(request)
            if fork is None:
                await self._write_fork(parent, request)
                fork = await self._threads.find(request.new_session_id)
            await self._start_fork(fork)
            await self._record_in_parent(request)
        return ForkReceipt(session_id=request.new_session_id, fork_seq=request.at_seq).as_dict()

    async def _find_fork(self, request: Fork) -> ThreadLocation | None:
        """Find the fork if it was made before; None: it was not.

        Raises:
            ApplicationError: `request_reused`: the id is another session's.
        """
        location = await self._threads.look_up(request.new_session_id)
        if location is None:
            return None
        origin = carried.make_fork_payload("forked_from", request.session_id, request.at_seq, request.metadata)
        query = EntriesQuery(from_seq=request.at_seq + 1)
        async for entry in self._threads.read_forward(location, query, request.at_seq + 1):
            if entry.body == origin:
                if location.head:
                    await self._archive.enroll(location.head.family, request.new_session_id)
                return location
        message = f"new_session_id: session {request.new_session_id!r} exists already and is not this fork"
        raise ApplicationError(message, type=RequestReused.type, non_retryable=True)

    async def _write_fork(self, parent: ThreadLocation, request: Fork) -> None:
        """Write the fork's archive. The fork exists once its head is written."""
        fork_id, at_seq = request.new_session_id, request.at_seq
        parent = await self._join_family(parent, fork_id)
        family = parent.head.family if parent.head else request.session_id
        try:
            root, upto = None, -1
            if parent.head and parent.head.root:
                upto = min(at_seq, parent.head.last_seq)
                root = await self._archive.truncate(family, parent.head.root, upto)
            rest = [
                entry async for entry in self._threads.read_forward(parent, EntriesQuery(from_seq=upto + 1), at_seq)
            ]
            origin = _make_entry(request, "forked_from", fork_id, at_seq + 1)
            root, last_seq = await self._archive.append(family, root, [*rest, origin])
            state, data = await self._make_state(
                parent, request, ArchivedThread(self._archive, family, root, at_seq), origin
            )
        except BaseException:
            # Another attempt, or another request for the same fork, may have written the head meanwhile.
            if await self._archive.read_head(fork_id) is None:
                await self._archive.leave(family, fork_id)
            raise
        digest = await self._archive.write_state(family, data)
        await self._archive.set_head(
            Head(
                session_id=fork_id,
                family=family,
                root=root,
                last_seq=last_seq,
                state=digest,
                status="closed",
                summary=summarize_archived(state),
            ),
            None,
        )

    async def _join_family(self, parent: ThreadLocation, fork_id: str) -> ThreadLocation:
        """Enroll the fork in its parent's family, so that a deletion meanwhile keeps the shared objects.

        Returns the parent.
        """
        if parent.head:
            joined = await self._archive.join(parent.session_id, fork_id)
            # The store may show an older head than it has shown before.
            return parent if joined.last_seq < parent.archived_upto else replace(parent, head=joined)
        for member in (parent.session_id, fork_id):
            await self._archive.enroll(parent.session_id, member)
        return parent

    async def _make_state(
        self, parent: ThreadLocation, request: Fork, archived_thread: ArchivedThread, origin: Entry
    ) -> tuple[State, bytes]:
        """Make the state that the fork starts with, also as bytes for the archive."""
        thread = await load_thread(archived_thread)
        op_ids: list[str] = []
        async for entry in archived_thread.read("ai_context_operation"):
            applied = entry.read(OperationPayload)
            if not applied.operation.by_session:
                op_ids.append(applied.op_id)
            if len(op_ids) == MAX_KNOWN_OPS:
                break
        state = carried.make_fork_state(
            await self._threads.read_session(parent), thread, request.new_session_id, op_ids[::-1]
        )
        thread.append(origin)
        state = replace(state, listed=note_entries(state.listed, [origin]))
        return state, to_json(carried.carry(Session(state, thread)))

    async def _start_fork(self, fork: ThreadLocation) -> None:
        """Start the fork's workflow, unless it was started before, and wait until it answers."""
        client = activity.client()
        if not fork.has_workflow:
            config = (await self._threads.read_session(fork)).state.settings.own
            await start_session(client, fork.session_id, config, activity.info().task_queue)
        await query_started_session(client.get_workflow_handle(fork.session_id), "transcript", {"limit": 1})

    async def _record_in_parent(self, request: Fork) -> None:
        """Write an entry about the fork to the parent's thread. A parent that was terminated gets none."""
        while True:
            location = await self._threads.find(request.session_id)
            if await self._is_recorded(location, request):
                return
            if location.running and location.live:
                await self._signal_parent(location, request)
            elif location.head is None or location.live:
                return
            elif location.head.status == "closed" or not await was_interrupted(
                request.session_id, location.head.run_id
            ):
                await self._append_to_archive(request)
            elif location.is_old:
                await asyncio.sleep(OLD_HEAD_PAUSE_SECONDS)
            else:
                return

    async def _signal_parent(self, location: ThreadLocation, request: Fork) -> None:
        payload = {"session_id": request.new_session_id, "fork_seq": request.at_seq}
        assert location.live is not None
        try:
            await location.live.signal(
                "forked", payload | ({"metadata": request.metadata} if request.metadata else {})
            )
        except RPCError as error:
            if error.status != RPCStatusCode.NOT_FOUND:
                raise
            return
        while location.running and not await self._is_recorded(location, request):
            await asyncio.sleep(RECORDING_SECONDS)
            location = await self._threads.find(location.session_id)

    async def _append_to_archive(self, request: Fork) -> None:
        """Append the entry to the archive of a parent that hibernates, unless the parent is being reopened."""
        head = await self._archive.read_head(request.session_id)
        if head is None:
            return
        entry = _make_entry(request, "forked_to", request.session_id, head.last_seq + 1)
        root, last_seq = await self._archive.append(head.family, head.root, [entry])
        location = await self._threads.find(request.session_id)
        if location.head == head and not location.running:
            # Another fork of the same parent may write the head first: the caller's loop tries again.
            with suppress(ObjectChanged):
                await self._archive.set_head(head.model_copy(update={"root": root, "last_seq": last_seq}), head)

    async def _is_recorded(self, location: ThreadLocation, request: Fork) -> bool:
        payload = carried.make_fork_payload("forked_to", request.new_session_id, request.at_seq, request.metadata)
        forks = EntriesQuery(from_seq=request.at_seq + 1, kind="fork")
        async for entry in self._threads.read_backward(location, forks):
            if entry.body == payload:
                return True
        return False


def _make_entry(request: Fork, event: Literal["forked_from", "forked_to"], session_id: str, seq: int) -> Entry:
    """Make the entry of the fork (`forked_from`) or of its parent (`forked_to`)."""
    fork_entry_id, parent_entry_id = request.entry_ids
    match event:
        case "forked_from":
            entry_id, other_id = fork_entry_id, request.session_id
        case "forked_to":
            entry_id, other_id = parent_entry_id, request.new_session_id
    payload = carried.make_fork_payload(event, other_id, request.at_seq, request.metadata)
    refs: Refs = {"session_id": session_id}
    return Entry(seq, entry_id, "fork", request.at, payload.as_dict(), refs, 0)


def _make_refusal(message: str) -> ApplicationError:
    return ApplicationError(message, type=InvalidInput.type, non_retryable=True)
