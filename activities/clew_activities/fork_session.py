"""Forking sessions: the fork shares its parent's archive, and is begun as one that was put away."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from dataclasses import replace
from typing import Any

from pydantic_core import to_json
from temporalio import activity
from temporalio.exceptions import ApplicationError
from temporalio.service import RPCError, RPCStatusCode

from clew.context.loading import load_thread
from clew.contract import EntriesQuery
from clew.contract.outputs import ForkReceipt
from clew.contract.payloads import OperationPayload
from clew.errors import InvalidInput, NotFound
from clew.session.starting import start_session
from clew.thread.entries import Entry, Refs
from clew_activities.archive import Archive, Head, ObjectChanged
from clew_activities.archive_activities import ArchivedThread, translate_archive_errors
from clew_activities.heartbeat import send_heartbeats
from clew_activities.thread_source import ThreadLocation, Threads, query_started_session
from clew_workflows.core import carried, forking
from clew_workflows.core.advance import Session
from clew_workflows.core.state import MAX_KNOWN_OPS
from clew_workflows.protocol import Fork

RECORDING_SECONDS = 0.05
"""Until it is looked again whether a session has recorded that it was forked."""


class ForkingActivities:
    """Forks sessions for clients. Whatever was begun and interrupted is finished by repeating it."""

    def __init__(self, archive: Archive) -> None:
        self._archive = archive
        self._threads = Threads(archive)

    @activity.defn(name="fork_session")
    async def fork_session(self, asked: Fork) -> dict[str, Any]:
        """Write the fork's archive, begin it, and tell its parent; back when the fork answers."""
        async with send_heartbeats(), translate_archive_errors(damage_is_final=True):
            parent = await self._threads.find(asked.session_id)
            last_seq = await self._threads.find_last_seq(parent)
            if asked.at_seq > last_seq:
                raise _refused(f"at_seq: session {asked.session_id!r} ends with entry {last_seq}")
            fork = await self._existing(asked)
            if fork is None:
                await self._write(parent, asked)
                fork = await self._threads.find(asked.new_session_id)
            await self._begin(fork)
            await self._tell_parent(asked)
        return ForkReceipt(session_id=asked.new_session_id, fork_seq=asked.at_seq).as_json()

    async def _existing(self, asked: Fork) -> ThreadLocation | None:
        """The fork, where it has been made before.

        Raises:
            ApplicationError: `invalid_input`; the id is another session's.
        """
        try:
            location = await self._threads.find(asked.new_session_id)
        except ApplicationError as error:
            if error.type != NotFound.type:
                raise
            return None
        origin = forking.make_fork_payload("forked_from", asked.session_id, asked.at_seq, asked.metadata)
        begins = EntriesQuery(from_seq=asked.at_seq + 1)
        async for entry in self._threads.read_forward(location, begins, asked.at_seq + 1):
            if entry.body == origin:
                if location.head:
                    await self._archive.enroll(location.head.family, asked.new_session_id)
                return location
        raise _refused(f"new_session_id: there is a session {asked.new_session_id!r}, and it is not this fork")

    async def _write(self, parent: ThreadLocation, asked: Fork) -> None:
        """The fork's archive. Until its head is written it does not exist."""
        fork_id, at_seq = asked.new_session_id, asked.at_seq
        parent = await self._joined(parent, fork_id)
        family = parent.head.family if parent.head else asked.session_id
        try:
            root, upto = None, -1
            if parent.head and parent.head.root:
                upto = min(at_seq, parent.head.last_seq)
                root = await self._archive.cut(family, parent.head.root, upto)
            rest = [
                entry async for entry in self._threads.read_forward(parent, EntriesQuery(from_seq=upto + 1), at_seq)
            ]
            origin = _entry(asked, 0, fork_id, at_seq + 1)
            root, last_seq = await self._archive.append(family, root, [*rest, origin])
            state = await self._state(parent, asked, ArchivedThread(self._archive, family, root, at_seq), origin)
        except BaseException:
            # Another attempt, or another request for the same fork, may have made it meanwhile.
            if await self._archive.read_head(fork_id) is None:
                await self._archive.leave(family, fork_id)
            raise
        digest = await self._archive.write_state(family, state)
        await self._archive.set_head(
            Head(session_id=fork_id, family=family, root=root, last_seq=last_seq, state=digest, status="closed"), None
        )

    async def _joined(self, parent: ThreadLocation, fork_id: str) -> ThreadLocation:
        """The parent, once nothing of its family can be deleted under the fork that is being made."""
        if parent.head:
            return replace(parent, head=await self._archive.join(parent.session_id, fork_id))
        for member in (parent.session_id, fork_id):
            await self._archive.enroll(parent.session_id, member)
        return parent

    async def _state(self, parent: ThreadLocation, asked: Fork, back: ArchivedThread, origin: Entry) -> bytes:
        """What the fork goes on from."""
        thread = await load_thread(back)
        op_ids: list[str] = []
        async for entry in back.read("ai_context_operation"):
            op_ids.append(entry.read(OperationPayload).op_id)
            if len(op_ids) == MAX_KNOWN_OPS:
                break
        state = forking.make_fork_state(
            await self._threads.read_carried(parent), thread, asked.new_session_id, op_ids[::-1]
        )
        thread.append(origin)
        return to_json(carried.carry(Session(state, thread)))

    async def _begin(self, fork: ThreadLocation) -> None:
        """Start the fork's workflow, unless that was done before, and wait until it answers."""
        client = activity.client()
        if not fork.began:
            config = (await self._threads.read_carried(fork)).state.config
            await start_session(client, fork.session_id, config, activity.info().task_queue)
        await query_started_session(client.get_workflow_handle(fork.session_id), "transcript", {"limit": 1})

    async def _tell_parent(self, asked: Fork) -> None:
        """The parent's own entry about its fork. A parent that was cut off is left as it is."""
        while True:
            location = await self._threads.find(asked.session_id)
            if await self._is_told(location, asked):
                return
            if location.running and location.live:
                await self._signal(location, asked)
            elif location.head is None or location.head.status != "closed" or location.live:
                return
            else:
                await self._add(asked)

    async def _signal(self, location: ThreadLocation, asked: Fork) -> None:
        given = {"session_id": asked.new_session_id, "fork_seq": asked.at_seq}
        assert location.live is not None
        try:
            await location.live.signal("forked", given | ({"metadata": asked.metadata} if asked.metadata else {}))
        except RPCError as error:
            if error.status != RPCStatusCode.NOT_FOUND:
                raise
            return
        while location.running and not await self._is_told(location, asked):
            await asyncio.sleep(RECORDING_SECONDS)
            location = await self._threads.find(location.session_id)

    async def _add(self, asked: Fork) -> None:
        """The entry of a parent that is put away goes straight to its archive, unless it is taken up right now."""
        head = await self._archive.read_head(asked.session_id)
        if head is None:
            return
        entry = _entry(asked, 1, asked.session_id, head.last_seq + 1)
        root, last_seq = await self._archive.append(head.family, head.root, [entry])
        location = await self._threads.find(asked.session_id)
        if location.head == head and not location.running:
            # Others who fork it at the same time add to it as well: whoever is not first looks again.
            with suppress(ObjectChanged):
                await self._archive.set_head(head.model_copy(update={"root": root, "last_seq": last_seq}), head)

    async def _is_told(self, location: ThreadLocation, asked: Fork) -> bool:
        told = forking.make_fork_payload("forked_to", asked.new_session_id, asked.at_seq, asked.metadata)
        forks = EntriesQuery(from_seq=asked.at_seq + 1, kind="fork")
        async for entry in self._threads.read_backward(location, forks):
            if entry.body == told:
                return True
        return False


def _entry(asked: Fork, which: int, session_id: str, seq: int) -> Entry:
    """The entry of the fork, or of its parent: from where, or to where."""
    if which == 0:
        payload = forking.make_fork_payload("forked_from", asked.session_id, asked.at_seq, asked.metadata)
    else:
        payload = forking.make_fork_payload("forked_to", asked.new_session_id, asked.at_seq, asked.metadata)
    refs: Refs = {"session_id": session_id}
    return Entry(seq, asked.entry_ids[which], "fork", asked.at, payload.as_json(), refs, 0)


def _refused(message: str) -> ApplicationError:
    return ApplicationError(message, type=InvalidInput.type, non_retryable=True)
