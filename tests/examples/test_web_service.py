"""The chat service of `examples/web`, as a page uses it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import aclosing, asynccontextmanager
from dataclasses import replace
from typing import Any
from urllib.parse import quote

import httpx
import pytest

from clew import testing
from clew.local import Reply, ToolCall
from clew.testing import ScriptedRequest
from examples.web.agents import shop
from examples.web.service import MAX_FILE_BYTES, MAX_FILES, app
from tests.support.media import make_pdf, make_png
from tests.support.waiting import PATIENCE_SECONDS
from tests.support.web import SentEvent, receive, serve


def answer(request: ScriptedRequest) -> Reply:
    """Reply to a message; `refund` is a call that needs approval, `slow` takes long."""
    if request.role == "user" and request.text == "refund":
        return Reply(tool_calls=(ToolCall("refund", {"order_id": 1234, "euros": 5}),))
    return Reply(f"You said: {request.text}", tokens_per_second=3 if request.text == "slow" else None)


@pytest.fixture(scope="module")
async def address() -> AsyncIterator[str]:
    """Serve the application on a stack of its own."""
    agent = replace(shop, model="scripted:shop")
    async with testing.stack(agents=[agent], models={"shop": answer}) as stack, serve(app, stack.clew) as running:
        yield f"http://{running}"


@asynccontextmanager
async def sign_in(address: str, user: str) -> AsyncIterator[httpx.AsyncClient]:
    """Make the requests of one user."""
    async with httpx.AsyncClient(base_url=address, cookies={"user": user}, timeout=PATIENCE_SECONDS) as http:
        yield http


async def post(http: httpx.AsyncClient, path: str, **body: object) -> None:
    """Post JSON, and expect success."""
    (await http.post(path, json=body)).raise_for_status()


async def read_until(
    http: httpx.AsyncClient, path: str, ends: Callable[[SentEvent], object], **headers: str
) -> list[SentEvent]:
    """Receive events up to the first for which a condition holds."""
    events = []
    async with asyncio.timeout(PATIENCE_SECONDS), aclosing(receive(http, path, headers)) as received:
        async for event in received:
            events.append(event)
            if ends(event):
                return events
    raise AssertionError("the events have ended")


def is_outcome(event: SentEvent) -> bool:
    """Whether an event is the outcome of a request."""
    return bool(event.data["type"] == "entry" and event.data["entry"]["kind"] == "run")


def list_contents(events: list[SentEvent]) -> list[Any]:
    """List the contents of the messages among the events."""
    entries = [event.data["entry"] for event in events if event.data["type"] == "entry"]
    return [entry["payload"]["content"] for entry in entries if entry["kind"] == "ai_message"]


async def test_a_browser_continues_after_the_entry_that_it_has(address: str) -> None:
    """`Last-Event-ID`, which browsers send, wins over `after`; the ids are cursors."""
    async with sign_in(address, "ann") as http:
        await post(http, "/chats/first/messages", id="m1", text="hello")
        events = await read_until(http, "/chats/first/events", is_outcome)
        assert list_contents(events) == ["hello", "You said: hello"]
        entries = [event for event in events if event.data["type"] == "entry"]
        assert [event.id for event in entries] == [str(event.data["seq"] + 1) for event in entries]
        (question,) = [event for event in entries if event.data["entry"]["payload"].get("content") == "hello"]
        rest = await read_until(http, "/chats/first/events?after=0", is_outcome, **{"Last-Event-ID": question.id})
        assert list_contents(rest) == ["You said: hello"]
        rest = await read_until(http, f"/chats/first/events?after={question.id}", is_outcome)
        assert list_contents(rest) == ["You said: hello"]


async def test_a_message_that_is_sent_again_is_served_once(address: str) -> None:
    """A page that got no answer repeats its request."""
    async with sign_in(address, "ann") as http:
        for _ in range(2):
            await post(http, "/chats/again/messages", id="m1", text="hello")
        await post(http, "/chats/again/messages", id="m2", text="bye")
        seen = await read_until(
            http, "/chats/again/events", lambda event: is_outcome(event) and event.data["request_id"] == "m2"
        )
        assert list_contents(seen) == ["hello", "You said: hello", "bye", "You said: bye"]


async def test_a_call_is_approved(address: str) -> None:
    """The event has the call's id, the decision runs it, and a second decision is refused with its reason."""
    async with sign_in(address, "ann") as http:
        await post(http, "/chats/refunds/messages", id="m1", text="refund")
        events = await read_until(
            http, "/chats/refunds/events", lambda event: event.data["type"] == "approval_required"
        )
        path = f"/chats/refunds/approvals/{events[-1].data['tool_call_id']}"
        await post(http, path, approve=True)
        events = await read_until(http, "/chats/refunds/events", is_outcome)
        assert "5.00 EUR of order 1234 were paid back" in list_contents(events)
        refused = await http.post(path, json={"approve": False})
        assert (refused.status_code, refused.json()["type"]) == (409, "already_resolved")


async def test_a_request_is_steered_and_cancelled(address: str) -> None:
    """Both reach the request that runs."""
    async with sign_in(address, "ann") as http:
        await post(http, "/chats/slow/messages", id="m1", text="slow")
        await read_until(http, "/chats/slow/events", lambda event: event.data["type"] == "text")
        await post(http, "/chats/slow/steer", id="s1", text="faster")
        await post(http, "/chats/slow/cancel?request_id=m1")
        events = await read_until(http, "/chats/slow/events", is_outcome)
        assert events[-1].data["entry"]["payload"]["status"] == "cancelled"
        kinds = {event.data["entry"]["kind"] for event in events if event.data["type"] == "entry"}
        assert "input" in kinds  # the steer that nobody read


@pytest.mark.parametrize("name", ["bob:first", "../ann", "", "é"])
async def test_a_name_with_other_characters_is_refused(address: str, name: str) -> None:
    """A name with a colon would reach another user's session: `a` with chat `b:c` and `a:b` with chat `c`."""
    message = {"id": "m1", "text": "hello"}
    async with httpx.AsyncClient(base_url=address) as http:
        for user, chat in ((name, "first"), ("ann", name)):
            headers = {b"Cookie": f"user={user}".encode()}
            answer = await http.post(f"/chats/{quote(chat, safe='')}/messages", json=message, headers=headers)
            assert answer.status_code in (404, 422)
            run = {"threadId": chat, "runId": "r", "messages": []}
            assert (await http.post("/ag-ui", json=run, headers=headers)).status_code == 422


SVG = b"<svg xmlns='http://www.w3.org/2000/svg'><script>alert(1)</script></svg>"
HTML = b"<!doctype html><script>alert(1)</script>"


@pytest.mark.slow
async def test_a_file_is_uploaded_sent_and_read_again(address: str) -> None:
    """The message names the file, an upload that is repeated has the same digest, and the bytes come back."""
    png = make_png(size=3_000_000)
    async with sign_in(address, "ann") as http:
        stored = [(await http.post("/chats/files/files?name=a.png", content=png)).json() for _ in range(2)]
        assert stored[0] == stored[1]
        blob = stored[0]
        assert (blob["media_type"], blob["name"], blob["width"], blob["height"]) == ("image/png", "a.png", 30, 20)
        await post(http, "/chats/files/messages", id="m1", text="What is this?", files=[blob])
        events = await read_until(http, "/chats/files/events", is_outcome)
        content = list_contents(events)[0]
        assert content == [{"type": "text", "text": "What is this?"}, {"type": "image", "blob": blob}]
        read = await http.get(f"/chats/files/files/{blob['digest']}")
        assert (read.content, read.headers["content-type"]) == (png, "image/png")
        assert read.headers["content-disposition"] == "inline"


@pytest.mark.parametrize("data", [SVG, HTML, make_pdf(), b"a,b\n1,2\n"])
async def test_only_images_are_shown(address: str, data: bytes) -> None:
    """A browser saves any other file, whatever its name says, and guesses no type."""
    async with sign_in(address, "ann") as http:
        uploaded = await http.post("/chats/shown/files?name=a.png", content=data)
        uploaded.raise_for_status()
        read = await http.get(f"/chats/shown/files/{uploaded.json()['digest']}")
        assert read.content == data
        assert read.headers["content-type"] == "application/octet-stream"
        assert read.headers["content-disposition"] == "attachment"
        assert read.headers["x-content-type-options"] == "nosniff"
        assert "sandbox" in read.headers["content-security-policy"]


async def test_a_polyglot_is_an_image_and_nothing_else(address: str) -> None:
    """A file that begins like a PNG and goes on as a page is served as a PNG, within a sandbox."""
    async with sign_in(address, "ann") as http:
        refused = await http.post("/chats/shown/files?name=a.html", content=make_png() + HTML)
        assert (refused.status_code, refused.json()["type"]) == (409, "content_mismatch")
        uploaded = await http.post("/chats/shown/files?name=a.png", content=make_png() + HTML)
        assert uploaded.json()["media_type"] == "image/png"
        read = await http.get(f"/chats/shown/files/{uploaded.json()['digest']}")
        assert read.headers["content-type"] == "image/png"
        assert read.headers["x-content-type-options"] == "nosniff"
        assert "sandbox" in read.headers["content-security-policy"]


async def test_a_file_with_another_name_for_a_path_is_named_by_its_last_part(address: str) -> None:
    """Neither a path nor a control character is a name; a description that has one is refused."""
    async with sign_in(address, "ann") as http:
        blob = (await http.post("/chats/named/files?name=../../x%0A.png", content=make_png())).json()
        assert blob["name"] == "x_.png"
        message = {"id": "m", "text": "", "files": [{**blob, "name": "../x"}]}
        assert (await http.post("/chats/named/messages", json=message)).status_code == 422


@pytest.mark.slow
async def test_files_have_limits(address: str) -> None:
    """Too large, too many, empty, unknown, or of a type that no model reads: each has its refusal."""
    async with sign_in(address, "ann") as http:
        assert (await http.post("/chats/l/files", content=bytes(MAX_FILE_BYTES + 1))).status_code == 413
        for data in (b"", b"MZ\x00\x01\x02"):
            refused = await http.post("/chats/l/files", content=data)
            assert (refused.status_code, refused.json()["type"]) == (409, "unsupported_content")
        blob = (await http.post("/chats/l/files", content=make_png())).json()
        many = {"id": "m", "text": "", "files": [blob] * (MAX_FILES + 1)}
        assert (await http.post("/chats/l/messages", json=many)).status_code == 422
        refused = await http.get(f"/chats/l/files/{'0' * 64}")
        assert (refused.status_code, refused.json()["type"]) == (409, "unknown_blob")


async def test_a_user_does_not_see_the_files_of_another(address: str) -> None:
    """A digest alone opens nothing: the chat must have the file."""
    async with sign_in(address, "ann") as ann, sign_in(address, "bob") as bob:
        digest = (await ann.post("/chats/own/files", content=make_png(40, 40))).json()["digest"]
        assert (await ann.get(f"/chats/own/files/{digest}")).status_code == 200
        assert (await bob.get(f"/chats/own/files/{digest}")).status_code == 409
        assert (await ann.get(f"/chats/other/files/{digest}")).status_code == 409


async def test_users_do_not_see_each_other(address: str) -> None:
    """A chat of the same name is another session."""
    async with sign_in(address, "ann") as ann, sign_in(address, "bob") as bob:
        await post(ann, "/chats/private/messages", id="m1", text="my secret")
        await read_until(ann, "/chats/private/events", is_outcome)
        await post(bob, "/chats/private/messages", id="m1", text="hello")
        events = await read_until(bob, "/chats/private/events", is_outcome)
        assert list_contents(events) == ["hello", "You said: hello"]
        assert (await ann.get("/chats/private/events", headers={"Cookie": "user="})).is_error
