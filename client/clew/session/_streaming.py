"""Stream a reply: the heartbeats of the model call, then the committed message."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

from clew.contract import EntriesQuery
from clew.contract.outputs import StreamState, ToolProgress
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
    """Yield the states of a growing reply and of its tool calls; the last state is the committed message."""
    ended = asyncio.ensure_future(request.result())
    try:
        last: StreamState | None = None
        while not ended.done():
            state = await _read_heartbeats(handle, request.request_id, last)
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


async def _read_heartbeats(handle: SessionHandle, request_id: str, last: StreamState | None) -> StreamState | None:
    """Read the newest heartbeats of the request's model call, or of its tool calls; None if none is in flight."""
    async with translate_errors(handle.session_id):
        description = await handle.workflow.describe()
    tools: list[ToolProgress] = []
    for pending in description.raw_description.pending_activities:
        name = pending.activity_type.name
        # A remote tool may have an activity of these names: it has another form.
        if name not in ("call_model", "run_tool") or not pending.heartbeat_details.payloads:
            continue
        try:
            (details,) = await handle.client.data_converter.decode(pending.heartbeat_details.payloads, [dict])
            heartbeat = (StreamState if name == "call_model" else ToolProgress).model_validate(details)
        except (ValueError, KeyError, RuntimeError):
            continue
        if heartbeat.request_id == request_id:
            if isinstance(heartbeat, StreamState):
                return heartbeat
            tools.append(heartbeat)
    return _add_tools(last, tools) if tools else None


def _add_tools(last: StreamState | None, tools: list[ToolProgress]) -> StreamState:
    """Add the running tool calls to the state of the model call that called them."""
    tools.sort(key=lambda tool: (len(tool.tool_call_id), tool.tool_call_id))
    call = tools[-1]
    if last is None or last.call_id != call.call_id:
        last = StreamState(
            request_id=call.request_id, run_id=call.run_id, call_id=call.call_id, attempt=1, iteration=call.iteration
        )
    return last.model_copy(update={"tools": tuple(tools)})


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
