"""Activities with which other workflows call sessions."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

from temporalio import activity

from clew.session.connection import Clew
from clew.session.request import Request
from clew.session.session import Session
from clew.session.transport import dump_input, make_input
from clew_activities.archive.archive_errors import translate_refusals
from clew_activities.heartbeats import send_heartbeats
from clew_workflows.contract import SessionConfig
from clew_workflows.contract.calls import (
    AWAIT_REQUEST,
    OPEN_SESSION,
    READ_LAST_SEQ,
    SEND_MESSAGE,
    SUBMIT_INPUT,
    AwaitRequestCall,
    OpenSessionCall,
    RequestAnswer,
    SendMessageCall,
    SessionCall,
    SubmitInputCall,
)
from clew_workflows.contract.errors import Closed, InvalidInput, NotFound
from clew_workflows.contract.invalid import describe_unknown_field

T = TypeVar("T")

BEAT_SECONDS = 4.0
"""Seconds between two heartbeats. A cancellation arrives within them."""


@activity.defn(name=OPEN_SESSION)
async def open_session(argument: dict[str, Any]) -> dict[str, Any]:
    """Open the session. It can be repeated. Answers the fields whose value differs in a session that exists."""
    async with send_heartbeats(), translate_refusals():
        call = make_input(OpenSessionCall, argument)
        session = await _reach_session(call, call.config)
    return {"ignored": dict(session.ignored)}


@activity.defn(name=SEND_MESSAGE)
async def send_message(argument: dict[str, Any]) -> dict[str, Any]:
    """Send the message, and answer when the session has accepted it. With a `request_id` it can be repeated."""
    async with send_heartbeats(), translate_refusals():
        call = make_input(SendMessageCall, argument)
        request = await _finish(_send(call))
    return {"request_id": request.request_id}


@activity.defn(name=SUBMIT_INPUT)
async def submit_input(argument: dict[str, Any]) -> dict[str, Any]:
    """Send the input and answer the receipt. With an `input_id` it can be repeated."""
    async with send_heartbeats(), translate_refusals():
        call = make_input(SubmitInputCall, argument)
        fields: Any = dump_input(call.input)
        session = _connect(call).session(call.session_id)
        send = session.steer if fields.pop("kind") == "steer" else session.inject
        return (await send(**fields)).as_dict()


@activity.defn(name=AWAIT_REQUEST)
async def await_request(argument: dict[str, Any]) -> dict[str, Any]:
    """Wait for the request, at most `wait_seconds`, and answer its outcome and its text."""
    async with translate_refusals():
        call = make_input(AwaitRequestCall, argument)
        request = _connect(call).session(call.session_id).request(call.request_id)
        answer = await _wait_with_heartbeats(_read_answer(request), call.wait_seconds)
    return (answer or RequestAnswer()).as_dict()


@activity.defn(name=READ_LAST_SEQ)
async def read_last_seq(argument: dict[str, Any]) -> dict[str, Any]:
    """Read the seq, of a session that is running or archived."""
    async with send_heartbeats(), translate_refusals():
        call = make_input(SessionCall, argument)
        async for entry in _connect(call).read_thread(call.session_id, newest=1):
            return {"last_seq": entry.seq}
        raise NotFound(f"session {call.session_id!r} has no entries")


async def _send(call: SendMessageCall) -> Request:
    message: Any = dump_input(call.message)
    try:
        request: Request = await _connect(call).session(call.session_id).message(**message)
    except (Closed, NotFound):
        session = await _reach_session(call, call.config)
        request = await session.message(**message)
    return request


async def _finish(work: Coroutine[Any, Any, T]) -> T:
    """Do what a cancelled workflow undoes: its cancellation ends the activity after the work.

    The server may have a message that no worker has accepted yet. The signal that cancels the request would reach the
    session before it. A worker that stops waits for nothing: another one sends the message again.
    """
    task = asyncio.ensure_future(work)
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        details = activity.cancellation_details()
        if details is not None and details.cancel_requested:
            await asyncio.wait([task])
        raise
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def _read_answer(request: Request) -> RequestAnswer:
    outcome = await request.result()
    has_answer = outcome.status == "completed" and outcome.answer_seq is not None
    return RequestAnswer(outcome=outcome, text=await request.answer() if has_answer else None)


def _connect(call: SessionCall) -> Clew:
    """Make a connection for a call, with the worker's client."""
    return Clew(activity.client(), call.task_queue)


async def _reach_session(call: SessionCall, config: dict[str, Any]) -> Session:
    """Open the session of a call.

    Raises:
        Refusal: The configuration is not valid, or the session cannot be opened.
    """
    fields = SessionConfig.model_fields
    if unknown := sorted(config.keys() - fields.keys()):
        raise InvalidInput(f"config.{unknown[0]}: {describe_unknown_field(unknown[0], fields)}")
    return await _connect(call).open(call.session_id, **config)


async def _wait_with_heartbeats(work: Coroutine[Any, Any, T], seconds: float) -> T | None:
    """Wait for a result and send heartbeats meanwhile. None: it did not come in time."""
    task = asyncio.ensure_future(work)
    give_up_at = asyncio.get_running_loop().time() + seconds
    try:
        while not task.done():
            left = give_up_at - asyncio.get_running_loop().time()
            if left <= 0:
                return None
            await asyncio.wait([task], timeout=min(left, BEAT_SECONDS))
            if not task.done():
                activity.heartbeat()
        return task.result()
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
