"""Stream a reply: the heartbeats of the model call, then the committed message."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

from clew.contract import EntriesQuery
from clew.contract.outputs import StreamState
from clew.contract.payloads import AssistantMessage
from clew.outcomes import RequestOutcome
from clew.session._reader import read_entries
from clew.session.handle import SessionHandle
from clew.session.request import Request
from clew.session.transport import translate_errors
from clew.thread.entries import Entry

INTERVAL_SECONDS = 0.1
"""Seconds between two reads of the heartbeat."""


async def stream_reply(handle: SessionHandle, request: Request) -> AsyncIterator[StreamState]:
    """Yield the states of a growing reply; the last state is the committed message."""
    ended = asyncio.ensure_future(request.result())
    try:
        last: StreamState | None = None
        while not ended.done():
            state = await _read_heartbeat(handle, request.request_id)
            if state and state != last:
                last = state
                yield state
            await asyncio.wait([ended], timeout=INTERVAL_SECONDS)
        outcome = ended.result()
        if outcome.answer_seq is not None:
            query = EntriesQuery(from_seq=outcome.answer_seq, limit=1)
            async for entry in read_entries(handle, query):
                yield _make_final_state(outcome, entry)
    finally:
        ended.cancel()
        await asyncio.gather(ended, return_exceptions=True)


async def _read_heartbeat(handle: SessionHandle, request_id: str) -> StreamState | None:
    """Read the newest heartbeat of the request's model call; None if none is in flight."""
    async with translate_errors(handle.session_id):
        description = await handle.workflow.describe()
    for pending in description.raw_description.pending_activities:
        if pending.activity_type.name == "call_model" and pending.heartbeat_details.payloads:
            (details,) = await handle.client.data_converter.decode(pending.heartbeat_details.payloads, [dict])
            state = StreamState.model_validate(details)
            if state.request_id == request_id:
                return state
    return None


def _make_final_state(outcome: RequestOutcome, entry: Entry) -> StreamState:
    reply = entry.read(AssistantMessage)
    return StreamState(
        request_id=outcome.request_id,
        run_id=entry.refs["run_id"],
        call_id=entry.refs["call_id"],
        attempt=reply.recipe.attempt if reply.recipe else 1,
        iteration=entry.refs["iteration"],
        text=reply.content,
        thinking=reply.thinking,
    )
