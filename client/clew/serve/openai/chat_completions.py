"""Chat Completions, for clients that speak only that.

The header `X-Clew-Session` names the session that has the conversation. Without it each request has a session of its
own, in which the earlier messages are context. The results of functions go on with the session that has called them.
"""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Annotated

from fastapi import APIRouter, Header, Request, Response
from fastapi.responses import JSONResponse

from clew.serve.access import Authorized
from clew.serve.error_words import Reader
from clew.serve.openai import asks, bodies, fields, ids, turns
from clew.serve.openai.chunks import Chunks, check_outcome, make_completion
from clew.serve.openai.objects import CompletionChunk, CompletionObject
from clew.serve.openai.refusals import make_error_body
from clew.serve.openai.routes import IdempotencyKey, answer_or_leave, read_ask, read_body, run
from clew.serve.openai.turns import Place, Turn
from clew.serve.streams import SentEvent, describe_stream, make_json_event, stream_events
from clew.serve.worker_watch import WatchedRoute
from clew_workflows.contract.errors import ClewError

SESSION_HEADER = "X-Clew-Session"
"""The header that names the session of a conversation."""

router = APIRouter(prefix="/v1/chat/completions", tags=["chat"], route_class=WatchedRoute)


@router.post(
    "",
    operation_id="createChatCompletion",
    response_model=CompletionObject,
    responses=describe_stream(CompletionChunk),
)
async def create_completion(
    caller: Authorized,
    request: Request,
    body: Annotated[bodies.ChatCreate, read_body(bodies.ChatCreate, fields.CHAT)],
    key: IdempotencyKey = None,
    session_id: Annotated[str | None, Header(alias=SESSION_HEADER)] = None,
) -> Response:
    """Create a completion: send the newest message to a session, or the results that it waits for."""
    ask = await read_ask(request, asks.read_chat, key, body)
    turn = await turns.begin(caller, ask, _find_place(ask, session_id), key)
    if body.stream:
        options = body.stream_options or bodies.ChatStreamOptions()
        chunks = Chunks(turn.frame, include_usage=bool(options.include_usage))

        def encode_error(error: ClewError) -> list[SentEvent]:
            return [SentEvent(json.dumps(make_error_body(error, caller.reader)))]

        response: Response = await stream_events(
            request, _stream(turn, chunks, caller.reader), encode_error=encode_error
        )
    else:
        done = await answer_or_leave(request, run(turn, turn.make_events(caller.reader, may_approve=False)))
        if isinstance(done, Response):
            return done
        check_outcome(done.response)
        response = JSONResponse(make_completion(turn.frame, done.response))
    response.headers[SESSION_HEADER] = turn.frame.name.session_id
    return response


def _find_place(ask: asks.Ask, session_id: str | None) -> Place | None:
    """Find where a completion belongs; None: it has a session of its own."""
    if session_id is not None:
        return Place(session_id, creates=True)
    for said in ask.results:
        parts = ids.decode(str(said.call_id), ids.CALL)
        if parts and len(parts) == 2:
            return Place(parts[0], is_guessed=True)
    return None


async def _stream(turn: Turn, chunks: Chunks, reader: Reader) -> AsyncGenerator[SentEvent, None]:
    async with aclosing(turns.follow(turn, turn.make_events(reader, may_approve=False))) as following:
        async for event in following:
            for chunk in chunks.take(event):
                yield make_json_event(chunk)
    yield SentEvent("[DONE]")
