"""What the routes of this API share: bodies, the caller's key for repetitions, waits and streams."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Coroutine, Mapping
from contextlib import aclosing
from types import MappingProxyType
from typing import Annotated, Any, Literal, TypeVar

from fastapi import Header, Request, Response
from fastapi.responses import StreamingResponse
from pydantic_core import from_json

from clew.serve.bodies import check_texts, depend_on_body, measure_body, receive_body, work_on
from clew.serve.openai import bodies, fields, turns
from clew.serve.openai.asks import Ask, note_key
from clew.serve.openai.events import UNNUMBERED, Event, ResponseEvents
from clew.serve.openai.refusals import InvalidValue, make_error_body
from clew.serve.openai.turns import Turn
from clew.serve.problems import find_reader
from clew.serve.streams import SentEvent, make_json_event, stream_events
from clew_workflows.contract.errors import ClewError
from clew_workflows.contract.invalid import Form

T = TypeVar("T")
B = TypeVar("B", bound=bodies.Body)

CLIENT_GONE = 499
"""The status of a request whose client has left before the answer. The session goes on."""
MAX_KEY = 255

IdempotencyKey = Annotated[
    Annotated[str, Form(r"^[\x21-\x7e]+$", "a key has no spaces, and only characters of ASCII")] | None,
    Header(alias="Idempotency-Key", min_length=1, max_length=MAX_KEY),
]
"""The caller's key for a request: a repetition with the same key is answered by the same response."""


def read_body(model: type[B], table: Mapping[str, tuple[fields.Support, str]] = MappingProxyType({})) -> Any:
    """Make the dependency of a parameter that is the body, for the metadata of `Annotated`.

    `table`: what is served of its fields; those that it does not have are served.
    """

    async def read(request: Request) -> B:
        body = await receive_body(request)
        return await work_on(request, len(body), _parse, model, body, table)

    return depend_on_body(read, model)


def _parse(model: type[B], body: bytes | bytearray, table: Mapping[str, tuple[fields.Support, str]]) -> B:
    """Parse the body of a request: a JSON object.

    Raises:
        BodyTooLarge: It has a text that no session takes.
        InvalidValue: It is none, or not valid.
    """
    try:
        parsed = from_json(body or b"{}", allow_inf_nan=False)
    except ValueError:
        raise InvalidValue("We could not parse the JSON body of your request.") from None
    if not isinstance(parsed, dict):
        raise InvalidValue("The body of the request is no JSON object.")
    check_texts(parsed)
    return fields.read_body(model, parsed, table)


async def read_ask(request: Request, read: Callable[[B], Ask], key: str | None, body: B) -> Ask:
    """Read what a body asks for, and note the caller's key for repetitions."""

    def read_and_note() -> Ask:
        return note_key(read(body), key, body)

    return await work_on(request, measure_body(request), read_and_note)


async def answer_or_leave(request: Request, work: Coroutine[Any, Any, T]) -> T | Response:
    """Wait for an answer, until the client leaves."""
    answering = asyncio.create_task(work)
    leaving = asyncio.create_task(_wait_for_leave(request))
    try:
        await asyncio.wait({answering, leaving}, return_when=asyncio.FIRST_COMPLETED)
        return answering.result() if answering.done() else Response(status_code=CLIENT_GONE)
    finally:
        for task in (answering, leaving):
            task.cancel()
        await asyncio.gather(answering, leaving, return_exceptions=True)


async def _wait_for_leave(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


async def run(turn: Turn, events: ResponseEvents) -> ResponseEvents:
    """Follow a response to its end."""
    async with aclosing(turns.follow(turn, events)) as following:
        async for _ in following:
            pass
    return events


async def stream(
    turn: Turn, events: ResponseEvents, starting_after: int | None = None
) -> AsyncGenerator[SentEvent, None]:
    """Make the server-sent events of a response, behind the one with a number."""
    async with aclosing(turns.follow(turn, events)) as following:
        async for event in following:
            if starting_after is None or event["sequence_number"] > starting_after or event["type"] in UNNUMBERED:
                yield encode_event(event)


def encode_event(event: Event) -> SentEvent:
    """Encode an event of a response."""
    return make_json_event(event, event=event["type"])


async def send_events(
    request: Request, turn: Turn, events: ResponseEvents, starting_after: int | None = None
) -> StreamingResponse:
    """Make the response that streams the events of a response, behind the one with a number."""

    def encode_error(error: ClewError) -> list[SentEvent]:
        body = make_error_body(error, find_reader(request))["error"]
        fields = {name: body[name] for name in ("code", "message", "param")}
        # A client that comes again goes on behind it.
        number = max(events.last_number, starting_after or 0)
        return [encode_event({"type": "error", **fields, "sequence_number": number})]

    sent = stream(turn, events, starting_after)
    return await stream_events(request, sent, encode_error=encode_error)


def make_page(
    listed: list[dict[str, Any]], after: str | None, limit: int, order: Literal["asc", "desc"]
) -> dict[str, Any]:
    """Make a page of a list that is oldest first.

    Raises:
        InvalidValue: The list has no item of the id `after`.
    """
    rows = listed if order == "asc" else listed[::-1]
    if after is not None:
        number = next((number for number, row in enumerate(rows) if row["id"] == after), None)
        if number is None:
            raise InvalidValue(f"No item with id '{after[:200]}' found.", param="after")
        rows = rows[number + 1 :]
    page = rows[:limit]
    return {
        "object": "list",
        "data": page,
        "first_id": page[0]["id"] if page else "",
        "last_id": page[-1]["id"] if page else "",
        "has_more": len(rows) > len(page),
    }
