"""What callers do over HTTP, and its rules: streams, repeated requests, uploads, doors to deleted sessions."""

from __future__ import annotations

import json
import random
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from dataclasses import fields
from hashlib import sha256
from typing import Any, get_args

import httpx
from httpx_sse import ServerSentEvent

from clew.errors import ArchiveUnavailable, ClewError, InvalidInput, NotFound, Refusal, UnknownBlob, UnknownRequest
from clew.session.events import SessionEvent
from clew_workflows.contract.outcomes import RequestOutcome
from clew_workflows.thread.entries import Entry
from tests.chaos.callers import Callers, choose_request, choose_start, make_words
from tests.chaos.oracle import Reader
from tests.chaos.plan import Action
from tests.chaos.service import Service, Web
from tests.support.media import make_png

WAIT_SECONDS = 20
"""Seconds for which the service waits for an outcome."""
PATHS = ("", "/entries", "/messages", "/context", "/window", "/waiting", "/blobs", "/windows", "/report")
"""Where the service reads one, behind the session's own path."""
GONE = (NotFound, UnknownRequest, UnknownBlob)


# The rules.


_EVENTS: Mapping[str, type[SessionEvent]] = {
    str(field.default): kind for kind in get_args(SessionEvent) for field in fields(kind) if field.name == "type"
}


def read_event(data: str) -> SessionEvent:
    """Read an event as the service sends it."""
    value: dict[str, Any] = json.loads(data)
    if "entry" in value:
        value["entry"] = Entry.from_json(value["entry"])
    return _EVENTS[value["type"]](**value)


def check_posted(answer: Mapping[str, Any], outcome: RequestOutcome) -> str | None:
    """Check what the service has answered to a message against its outcome; returns what is wrong."""
    told = (answer.get("request_id"), answer.get("status"), answer.get("last_seq"), answer.get("answer_seq"))
    expected = (outcome.request_id, outcome.status, outcome.last_seq, outcome.answer_seq)
    if answer.get("status") != "running" and told != expected:
        return f"the service answered {told}, and the outcome is {expected}"
    return None


def check_stranger(path: str, answer: object) -> str | None:
    """Check what another tenant's key has read of a session, or the error; returns what is wrong."""
    if says_nothing(answer) or isinstance(answer, InvalidInput):
        return None
    return f"another tenant reads {path}: {str(answer)[:150]!r}"


def says_nothing(answer: object) -> bool:
    """Whether an answer tells nothing of a session: there is none, or a part of the system is away."""
    is_refused = isinstance(answer, Refusal) and not isinstance(answer, ArchiveUnavailable)
    return isinstance(answer, GONE) or (isinstance(answer, Exception) and not is_refused)


def check_upload(sent: bytes, digest: str, read: bytes) -> str | None:
    """Check that what was uploaded is read again, byte for byte, under its digest; returns what is wrong."""
    expected = sha256(sent).hexdigest()
    if digest != expected or read != sent:
        return f"{len(sent)} bytes with {expected} were uploaded, and {len(read)} with {digest} are read"
    return None


# What callers do.


async def post(callers: Callers, action: Action, chance: random.Random) -> None:
    """Send a message over HTTP, and send it again with the same key: it has one outcome."""
    request_id, ledger, promises = f"r-{action.number}", callers.promises.ledger, callers.promises
    arguments = {"content": f"{request_id}: {action.values['behaviour']} {make_words(chance)}", "on_busy": "queue"}
    options: dict[str, Any] = {
        "json": arguments,
        "headers": {"Idempotency-Key": request_id},
        "params": {"wait": WAIT_SECONDS},
    }

    async def send() -> dict[str, Any]:
        answer = await find_own(callers).call("POST", f"{make_path(callers)}/messages", **options)
        told: dict[str, Any] = answer.json()
        return told

    promises.messages[request_id] = arguments
    try:
        answers = [await callers.persist(send, request_id, arguments["content"])]
    except Refusal:
        # It may have been refused after it was accepted.
        del promises.messages[request_id]
        ledger.refused.discard(request_id)
        ledger.uncertain[request_id] = arguments["content"]
        raise
    ledger.requests[request_id] = arguments["content"]
    answers.append(await callers.persist(send))
    outcome = await callers.persist(callers.session.request(request_id).result)
    callers.note_outcome(request_id, outcome)
    for answer in answers:
        if problem := check_posted(answer, outcome):
            callers.oracle.report("thread", callers.name, problem)
        if answer.get("answer") is not None and outcome.answer_seq is not None:
            promises.answers[outcome.answer_seq] = answer["answer"]


async def stream(callers: Callers, action: Action, chance: random.Random) -> None:
    """Follow the session, or one of its newest requests, over HTTP, and reconnect with the cursor, to any process."""
    request_id, start = choose_request(callers, chance), choose_start(callers, chance)
    path = f"/v1/sessions/{callers.name}/events"
    if request_id is not None:
        path, start = f"/v1/sessions/{callers.name}/requests/{request_id}/events", None
    reader = Reader(callers.oracle, callers.name, start, of_request=request_id is not None)
    for _ in range(chance.randint(2, 4)):
        cursor = "" if reader.next == start else str(reader.next)
        received = find_service(callers).operator.receive(path, from_seq=start, cursor=cursor)
        await reader.view(_read_events(callers, received), chance.uniform(1, 6))


async def _read_events(
    callers: Callers, received: AsyncGenerator[ServerSentEvent, None]
) -> AsyncGenerator[SessionEvent, None]:
    """Read a stream's events, and check their cursors."""
    async with aclosing(received):
        async for one in received:
            if one.event != "message":
                continue
            event = read_event(one.data)
            if event.cursor is not None and one.id != str(event.cursor):
                callers.oracle.report("reader", callers.name, f"the cursor after {event.cursor - 1} is {one.id}")
            yield event


async def upload(callers: Callers, action: Action, chance: random.Random) -> None:
    """Upload bytes to a signed URL of the store, and read them again."""
    data = make_png(*chance.choices(range(1, 200), k=2), size=chance.choice((0, 3000, 100_000)))
    digest = await upload_bytes(callers, data)
    answer = await callers.persist(lambda: find_own(callers).call("GET", f"{make_path(callers)}/blobs/{digest}"))
    if problem := check_upload(data, digest, answer.content):
        callers.oracle.report("reader", callers.name, problem)


async def upload_bytes(callers: Callers, data: bytes) -> str:
    web, path = find_own(callers), make_path(callers)
    declared = {"bytes": len(data), "media_type": "image/png"}
    staged = (await callers.persist(lambda: web.call("POST", f"{path}/uploads", json=declared))).json()
    async with httpx.AsyncClient(trust_env=False) as browser:

        async def send() -> None:
            try:
                answer = await browser.request(
                    staged["method"], staged["url"], headers=staged["headers"], content=data
                )
            except httpx.HTTPError as error:
                raise ClewError(f"the store does not answer: {type(error).__name__}") from error
            if not answer.is_success:
                raise ClewError(f"the store answers {answer.status_code}")

        await callers.persist(send)
    finished = await callers.persist(lambda: web.call("POST", f"{path}/uploads/{staged['upload_id']}"))
    return str(finished.json()["blob"]["digest"])


async def peek(callers: Callers, action: Action, chance: random.Random) -> None:
    """Try to read the session with the key of another tenant: by its name, and by the tenant's and its name."""
    name = chance.choice((callers.name, callers.name.partition(":")[2]))
    for path in (f"/v1/sessions/{name}{behind}" for behind in PATHS):
        try:
            answer: object = (await find_service(callers).stranger.call("GET", path)).text
        except ClewError as error:
            answer = error
        except RuntimeError as error:
            if ":" not in name:  # no name with a colon is valid
                raise
            answer = error
        if problem := check_stranger(path, answer):
            callers.oracle.report("reader", callers.name, problem)


def find_service(callers: Callers) -> Service:
    assert callers.service is not None
    return callers.service


def find_own(callers: Callers) -> Web:
    """The service for the session's own tenant."""
    return find_service(callers).tenant


def make_path(callers: Callers) -> str:
    return f"/v1/sessions/{callers.name.partition(':')[2]}"
