"""The Responses API: a response is a request of a session, or a part of one that waits for its caller."""

from __future__ import annotations

from contextlib import suppress
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Query, Request, Response
from fastapi.responses import JSONResponse

from clew.serve.access import Authorized, Caller
from clew.serve.openai import asks, bodies, fields, ids, items, turns
from clew.serve.openai.ids import ResponseName
from clew.serve.openai.objects import DeletedObject, ItemsPage, ResponseEvent, ResponseObject
from clew.serve.openai.refusals import InvalidValue, NotStored, UnsupportedValue
from clew.serve.openai.routes import (
    IdempotencyKey,
    answer_or_leave,
    make_page,
    read_ask,
    read_body,
    run,
    send_events,
)
from clew.serve.openai.turns import Place, Turn
from clew.serve.streams import describe_stream
from clew.serve.worker_watch import WatchedRoute
from clew_workflows.contract.errors import Idle, NotFound, RequestMismatch
from clew_workflows.contract.payloads import AssistantMessage, ToolMessage, UserMessage

router = APIRouter(prefix="/v1/responses", tags=["responses"], route_class=WatchedRoute)


@router.post(
    "", operation_id="createResponse", response_model=ResponseObject, responses=describe_stream(ResponseEvent)
)
async def create_response(
    caller: Authorized,
    request: Request,
    body: Annotated[bodies.ResponseCreate, read_body(bodies.ResponseCreate, fields.RESPONSES)],
    key: IdempotencyKey = None,
) -> Response:
    """Create a response: send a message to a session, or the results that a response waits for."""
    ask = await read_ask(request, asks.read_response, key, body)
    turn = await turns.begin(caller, ask, await _find_place(caller, body, ask), key)
    events = turn.make_events(caller.reader)
    if body.stream:
        return await send_events(request, turn, events)
    if body.background:
        return JSONResponse(events.describe("in_progress"))
    done = await answer_or_leave(request, run(turn, events))
    return done if isinstance(done, Response) else JSONResponse(done.response)


async def _find_place(caller: Caller, body: bodies.ResponseCreate, ask: asks.Ask) -> Place | None:
    """Find where a response belongs: in the conversation that the request names, or the one its items come from."""
    # An empty id names nothing, as null does.
    conversation = body.conversation if isinstance(body.conversation, str | None) else body.conversation.id
    if conversation and body.previous_response_id:
        raise InvalidValue(
            "'conversation' and 'previous_response_id' cannot be used together", param="previous_response_id"
        )
    if conversation:
        _refuse_history(ask)
        return Place(conversation)
    if body.previous_response_id:
        _refuse_history(ask)
        try:
            previous = ResponseName.read(body.previous_response_id)
        except NotFound as error:
            raise NotStored(str(error), param="previous_response_id") from None
        return Place(previous.session_id, previous, is_named=True)
    return await turns.find_place(caller, ask)


def _refuse_history(ask: asks.Ask) -> None:
    """Refuse messages of the assistant that a conversation does not have.

    Raises:
        UnsupportedValue: There are some.
    """
    if any(said.role == "assistant" and said.item is None and not said.calls for said in ask.history):
        raise UnsupportedValue(
            "the conversation has its messages: send the new ones of the user, and add others by "
            "POST /v1/conversations/{id}/items",
            param="input",
        )


@router.get(
    "/{response_id}",
    operation_id="getResponse",
    response_model=ResponseObject,
    responses=describe_stream(ResponseEvent),
)
async def get_response(
    caller: Authorized,
    request: Request,
    response_id: str,
    *,
    streams: Annotated[bool, Query(alias="stream")] = False,
    starting_after: Annotated[int | None, Query(ge=0)] = None,
    include: Annotated[list[str] | None, Query()] = None,  # noqa: ARG001 - what there is, is always included
    include_obfuscation: Annotated[Literal["false"] | None, Query()] = None,  # noqa: ARG001
) -> Response:
    """Read a response, or its stream from an event on."""
    turn, entries = await turns.find(caller, response_id)
    if streams:
        return await send_events(request, turn, turn.make_events(caller.reader), starting_after)
    return JSONResponse(await turns.read_response(turn, entries, caller.reader))


@router.post("/{response_id}/cancel", operation_id="cancelResponse", response_model=ResponseObject)
async def cancel_response(caller: Authorized, response_id: str) -> Response:
    """Cancel the request of a response. One that has ended stays as it is."""
    turn, entries = await turns.find(caller, response_id)
    if not turns.has_ended(entries):
        with suppress(Idle, RequestMismatch):
            await turn.session.cancel(turn.request_id, reason="cancelled by the API")
            await turn.session.request(turn.request_id).result()
        turn, entries = await turns.find(caller, response_id)
    return JSONResponse(await turns.read_response(turn, entries, caller.reader))


@router.delete("/{response_id}", operation_id="deleteResponse", response_model=DeletedObject)
async def delete_response(caller: Authorized, response_id: str) -> Response:
    """Delete the session of a response, if it has no other one."""
    turn, _ = await turns.find(caller, response_id)
    others = [
        entry
        async for entry in turn.session.read(kind="ai_message")
        if isinstance(entry.body, UserMessage) and entry.refs.get("request_id") != turn.request_id
    ]
    if others:
        raise UnsupportedValue(
            "the conversation has other responses, and what was said stays said: delete the conversation",
            param="response_id",
        )
    await caller.clew.delete(turn.session.id)
    return JSONResponse({"id": response_id, "object": "response", "deleted": True})


@router.get("/{response_id}/input_items", operation_id="listInputItems", response_model=ItemsPage)
async def list_input_items(
    caller: Authorized,
    response_id: str,
    *,
    after: str | None = None,
    limit: Annotated[int, Query(ge=1, le=100)] = 20,
    order: Literal["asc", "desc"] = "desc",
    include: Annotated[list[str] | None, Query()] = None,  # noqa: ARG001 - what there is, is always included
) -> Response:
    """List what a request has sent: its message, or the results of functions. It has no earlier messages."""
    turn, entries = await turns.find(caller, response_id)
    return JSONResponse(make_page(_list_inputs(turn, entries), after, limit, order))


def _list_inputs(turn: Turn, entries: Any) -> list[dict[str, Any]]:
    session_id = turn.frame.name.session_id
    sent: list[dict[str, Any]] = []
    calls = turn.begun.read(AssistantMessage).call_ids if turn.begun else []
    functions = turn.frame.function_names if turn.functions is None else turn.functions
    for entry in entries:
        match entry.body:
            case UserMessage() as message if _is_input(turn, message):
                sent.append(items.make_input_message(ids.name_seq(session_id, entry.seq), message.content))
            case ToolMessage() as result if result.tool_call_id in calls:
                if result.name in functions:
                    sent.append(items.make_function_output(session_id, result))
    return sent


def _is_input(turn: Turn, message: UserMessage) -> bool:
    """Whether a message of a user is the one that began a response: what is steered in is not."""
    return message.input_id == (None if turn.begun is None else turns.name_input(turn))
