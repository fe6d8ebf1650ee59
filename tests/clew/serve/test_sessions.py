"""The routes of sessions, over HTTP against a Temporal server and scripted models."""

from __future__ import annotations

import asyncio
import json
from base64 import urlsafe_b64encode
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest
from fastapi.routing import APIRoute

from clew.errors import RequestReused
from clew.local import Reply, ToolCall
from clew.serve import blob_routes, sessions, streams
from clew_workflows.contract.content import Blob
from tests.support.holding import hold_intake, note_answers, run_holding_worker, wait_for_answers
from tests.support.media import make_png
from tests.support.openapi import check_answer
from tests.support.scripts import PausedModel, make_tool_script, wait_for_approvals
from tests.support.serving import Served, make_http, run_service
from tests.support.stack import Stack
from tests.support.waiting import PATIENCE_SECONDS, wait_until


@pytest.fixture(scope="module")
async def served(stack: Stack) -> AsyncIterator[Served]:
    async with run_service(stack.clew) as running:
        yield running


async def call(served: Served, method: str, path: str, body: Any = None, status: int = 200, **options: Any) -> Any:
    """Call a route, and return the JSON of its answer, which is what the OpenAPI document says."""
    response = await served.http.request(method, path, json=body, **options)
    assert response.status_code == status, response.text
    check_answer(method, path, status, response.json())
    return response.json()


async def open_chat(served: Served, name: str, model: str, **config: Any) -> str:
    """Open a session, and return its path."""
    opened = await call(served, "PUT", f"/v1/sessions/{name}", {"model": model, **config})
    assert opened["session_id"] == name
    return f"/v1/sessions/{name}"


async def test_a_conversation(served: Served, stack: Stack) -> None:
    """A session opens, answers, and is listed and read, under the name that its caller has chosen."""
    path = await open_chat(served, "talk", stack.add_model("fine"), metadata={"user": "ann", "tenant": "other"})
    answer = await call(served, "POST", f"{path}/messages?wait=60", {"content": "hello", "request_id": "r1"})
    assert (answer["status"], answer["answer"], answer["request_id"]) == ("completed", "fine", "r1")
    assert answer["session_id"] == "talk"
    read = await call(served, "GET", f"{path}/requests/r1")
    assert {name: read[name] for name in answer} == answer
    assert await call(served, "GET", f"{path}/requests/r1?wait=5") == answer
    status = await call(served, "GET", path)
    assert (status["session_id"], status["metadata"]) == ("talk", {"user": "ann", "tenant": served.tenant})
    messages = await call(served, "GET", f"{path}/messages")
    assert [message["content"] for message in messages["messages"]] == ["hello", "fine"]
    entries = await call(served, "GET", f"{path}/entries?kind=run")
    assert [entry["refs"]["request_id"] for entry in entries["entries"]] == ["r1"]
    assert served.tenant not in str([entry["refs"] for entry in entries["entries"]])
    unknown = await call(served, "GET", f"{path}/context?call_id=none", status=400)
    assert unknown["error"]["code"] == "invalid_input"
    context = await call(served, "GET", f"{path}/context")
    assert context["messages"][-1]["content"] == "fine"
    preview = await call(served, "POST", f"{path}/preview", {"pending": [{"role": "user", "content": "next"}]})
    assert (preview["messages"][-1]["content"], preview["meta"]["fits"]) == ("next", True)

    async def is_listed() -> bool:
        listed = await call(served, "GET", "/v1/sessions?starts_with=ta&user=ann")
        return [row["session_id"] for row in listed["sessions"]] == ["talk"]

    await wait_until(is_listed)
    page = await served.http.get(f"{path}/report")
    assert page.headers["Content-Type"].startswith("text/html")
    assert "sandbox" in page.headers["Content-Security-Policy"]
    assert "hello" in page.text


@pytest.mark.slow
async def test_a_repeated_post_has_no_second_effect(served: Served, stack: Stack) -> None:
    """With the same `Idempotency-Key`, also at another process: one message, fork, restored and new session each."""
    model = stack.add_model(lambda body: Reply(f"{len(body['messages'])}"))
    path = await open_chat(served, "twice", model)
    key = {"Idempotency-Key": "k-1"}
    key_row = served.app.state.keys.find(served.token)
    async with run_service(stack.clew, key_row) as second, make_http(second.address, served.token) as http:
        first = await call(served, "POST", f"{path}/messages?wait=60", {"content": "hello"}, headers=key)
        again = (await http.post(f"{path}/messages?wait=60", json={"content": "hello"}, headers=key)).json()
        assert first == again
        assert (first["request_id"], first["answer"]) == ("k-1", "1")
        fork = await call(served, "POST", f"{path}/fork", {}, headers=key)
        assert (await http.post(f"{path}/fork", json={}, headers=key)).json() == fork
        token = (await call(served, "POST", f"{path}/checkpoint", {}))["token"]
        restored = await call(served, "POST", "/v1/sessions/restore", {"token": token}, headers=key)
        assert (await http.post("/v1/sessions/restore", json={"token": token}, headers=key)).json() == restored
        news = [await call(served, "POST", "/v1/sessions", {"model": model}, headers=key) for _ in range(2)]
        assert news[0] == news[1]
    messages = await call(served, "GET", f"{path}/messages")
    assert [message["role"] for message in messages["messages"]] == ["user", "assistant"]
    refused = await call(served, "POST", f"{path}/messages", {"content": "x", "request_id": "y"}, 400, headers=key)
    assert refused["error"]["param"] == "request_id"


@pytest.mark.slow
async def test_an_id_stands_for_one_body(served: Served, stack: Stack) -> None:
    """A key or an id with another body is a conflict, for messages, inputs and new sessions, and in Python."""
    paused = PausedModel()
    model = stack.add_model(paused)
    path = await open_chat(served, "one-body", model)
    key = {"Idempotency-Key": "k-2"}
    await call(served, "POST", f"{path}/messages", {"content": "hello"}, 202, headers=key)
    for body in ({"content": "other"}, {"content": "hello", "max_iterations": 2}):
        refused = await call(served, "POST", f"{path}/messages", body, 409, headers=key)
        assert refused["error"]["code"] == "request_reused"
    await paused.called.wait()
    await call(served, "POST", f"{path}/steer", {"content": "left", "input_id": "i-1"})
    refused = await call(served, "POST", f"{path}/steer", {"content": "right", "input_id": "i-1"}, 409)
    assert refused["error"]["code"] == "request_reused"
    session = stack.clew.session(served.scope("one-body"))
    with pytest.raises(RequestReused):
        await session.message("third", request_id="k-2")
    assert (await session.message("hello", request_id="k-2")).request_id == "k-2"
    await session.cancel("k-2")
    await session.request("k-2").result()
    with pytest.raises(RequestReused):
        await session.message("third", request_id="k-2")
    with pytest.raises(RequestReused):
        await session.fork(1, stack.clew.session(served.scope("one-body")).id)
    for copy in ("fork", "restore"):
        bodies: list[dict[str, Any]] = [{"at_seq": 1}, {"at_seq": 0}]
        path_of = f"{path}/{copy}"
        if copy == "restore":
            path_of = "/v1/sessions/restore"
            bodies = [await call(served, "POST", f"{path}/checkpoint", {"expires_seconds": n}) for n in (100, 200)]
        await call(served, "POST", path_of, bodies[0], headers={"Idempotency-Key": f"k-{copy}"})
        refused = await call(served, "POST", path_of, bodies[1], 409, headers={"Idempotency-Key": f"k-{copy}"})
        assert refused["error"]["code"] == "request_reused"
    opened = {"Idempotency-Key": "k-3"}
    await call(served, "POST", "/v1/sessions", {"model": model}, headers=opened)
    refused = await call(served, "POST", "/v1/sessions", {"model": "openai:gpt-4o"}, 409, headers=opened)
    assert refused["error"]["code"] == "request_reused"


async def test_steering_and_cancelling(served: Served, stack: Stack) -> None:
    """While a request runs it is steered, its state is `running`, and it is cancelled."""
    model = PausedModel()
    path = await open_chat(served, "steered", stack.add_model(model))
    idle = await call(served, "POST", f"{path}/steer", {"content": "left"}, 409)
    assert idle["error"]["code"] == "idle"
    accepted = await call(served, "POST", f"{path}/messages", {"content": "go", "request_id": "r1"}, 202)
    assert accepted == {"session_id": "steered", "request_id": "r1", "status": "running"}
    await model.called.wait()
    receipt = await call(served, "POST", f"{path}/steer", {"content": "left"}, headers={"Idempotency-Key": "i1"})
    assert receipt == {"input_id": "i1", "request_id": "r1", "position": 1}
    busy = await call(served, "POST", f"{path}/messages", {"content": "more"}, 409)
    assert busy["error"]["code"] == "busy"
    assert (await call(served, "GET", f"{path}/requests/r1"))["status"] == "running"
    assert (await call(served, "GET", f"{path}/requests/none", status=404))["error"]["code"] == "unknown_request"
    await call(served, "POST", f"{path}/requests/r1/cancel", {"reason": "enough"})
    ended = await call(served, "GET", f"{path}/requests/r1?wait=60")
    assert (ended["status"], ended["reason"]) == ("cancelled", "enough")
    assert "answer" not in ended


async def test_an_accepted_request_is_known_before_the_session_has_decided(
    stack: Stack, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its state is `running`, its events are sent, and other requests stay unknown."""
    model = PausedModel()
    async with run_holding_worker(stack) as (clew, store), run_service(clew) as served:
        path = await open_chat(served, "later", stack.add_model(model))
        with note_answers(monkeypatch) as answers:
            async with hold_intake(clew.session(served.scope("later")), store):
                await call(served, "POST", f"{path}/messages", {"content": "go", "request_id": "r1"}, 202)
                known = asyncio.create_task(call(served, "GET", f"{path}/requests/r1"))
                unknown = asyncio.create_task(call(served, "GET", f"{path}/requests/none", status=404))
                await wait_for_answers(answers, "follow", 2)
        assert (await known)["status"] == "running"
        assert (await unknown)["error"]["code"] == "unknown_request"
        model.free.set()
        events = [event.data async for event in served.receive(f"{path}/requests/r1/events")]
        kinds = [event["entry"]["kind"] for event in events if event["type"] == "entry"]
        assert kinds == ["ai_message", "ai_message", "run"]


async def test_an_id_stands_for_one_body_before_the_session_has_decided(stack: Stack) -> None:
    """A session that starts, or reads blobs, decides later than it accepts. It knows what has arrived."""
    async with run_holding_worker(stack) as (clew, store), run_service(clew) as served:
        path = await open_chat(served, "early", stack.add_model("fine"))
        async with hold_intake(clew.session(served.scope("early")), store):
            for _ in range(2):
                await call(served, "POST", f"{path}/messages", {"content": "go", "request_id": "r1"}, 202)
            other = {"content": "stop", "request_id": "r1"}
            refused = await call(served, "POST", f"{path}/messages", other, 409)
            assert refused["error"]["code"] == "request_reused"


async def test_approvals(served: Served, stack: Stack) -> None:
    """A call that waits is listed and approved with edited arguments; a second decision is refused."""
    script = make_tool_script(ToolCall("add", {"a": 1, "b": 1}))
    path = await open_chat(served, "approve", stack.add_model(script), tools=["add"], require_approval=["add"])
    await call(served, "POST", f"{path}/messages", {"content": "add", "request_id": "r1"}, 202)
    await wait_for_approvals(stack.clew.session(served.scope("approve")))
    (row,) = (await call(served, "GET", f"{path}/waiting"))["calls"]
    assert (row["session_id"], row["needs"], row["call"]["name"]) == ("approve", "approval", "add")
    route = f"{path}/approvals/{row['call']['tool_call_id']}"
    decision = {"decision": "approve", "arguments": {"a": 40, "b": 2}, "by": "ada"}
    assert (await call(served, "POST", route, decision))["decision"] == "approve"
    again = await call(served, "POST", route, decision, 409)
    assert again["error"]["code"] == "already_resolved"
    assert (await call(served, "GET", f"{path}/requests/r1?wait=60"))["answer"].endswith("\n42")
    wrong = await call(served, "POST", f"{path}/approvals/none", {"decision": "deny"}, 404)
    assert wrong["error"]["code"] == "unknown_approval"


async def test_context_operations(served: Served, stack: Stack) -> None:
    """A replaced context is what the model sees next; an operation is applied once; a bad one says why."""
    path = await open_chat(served, "context", stack.add_model(lambda body: Reply(body["messages"][0]["content"])))
    await call(served, "POST", f"{path}/messages?wait=60", {"content": "first"})
    operation = {"type": "replace", "result_context": {"messages": [{"role": "user", "content": "instead"}]}}
    applied = await call(served, "POST", f"{path}/context", {"op_id": "o1", "operation": operation})
    assert applied["status"] == "applied"
    repeated = await call(
        served, "POST", f"{path}/context", {"operation": operation}, headers={"Idempotency-Key": "o1"}
    )
    assert repeated["status"] == "duplicate"
    reused = await call(served, "POST", f"{path}/context", {"op_id": "o1", "operation": {"type": "expand"}}, 409)
    assert reused["error"]["code"] == "request_reused"
    answer = await call(served, "POST", f"{path}/messages?wait=60", {"content": "second"})
    assert answer["answer"] == "instead"
    refused = await call(served, "POST", f"{path}/context", {"operation": {"type": "erase"}}, 400)
    assert refused["error"]["code"] == "invalid_operation"


@pytest.mark.slow
async def test_hibernated_sessions_answer_messages(served: Served, stack: Stack) -> None:
    """A message resumes a session that hibernates; one that was closed stays closed until it is opened."""
    path = await open_chat(served, "sleeper", stack.add_model("fine"))
    await call(served, "POST", f"{path}/messages?wait=60", {"content": "one"})
    await call(served, "POST", f"{path}/hibernate", {})
    answer = await call(served, "POST", f"{path}/messages?wait=60", {"content": "two"})
    assert answer["answer"] == "fine"
    await call(served, "POST", f"{path}/close", {"reason": "done"})
    closed = await call(served, "POST", f"{path}/messages", {"content": "three"}, 409)
    assert closed["error"]["code"] == "closed"
    assert (await call(served, "DELETE", path))["deleted_segments"] >= 1
    assert (await call(served, "POST", f"{path}/messages", {"content": "four"}, 404))["error"]["code"] == "not_found"


@pytest.mark.slow
async def test_checkpoints(served: Served, stack: Stack) -> None:
    """A checkpoint starts another session of the same tenant, and none of another tenant."""
    path = await open_chat(served, "origin", stack.add_model(lambda body: Reply(body["messages"][0]["content"])))
    await call(served, "POST", f"{path}/messages?wait=60", {"content": "remember"})
    token = (await call(served, "POST", f"{path}/checkpoint", {}))["token"]
    restored = await call(served, "POST", "/v1/sessions/restore", {"token": token, "session_id": "copy"})
    assert restored == {"session_id": "copy"}
    answer = await call(served, "POST", "/v1/sessions/copy/messages?wait=60", {"content": "what?"})
    assert answer["answer"] == "remember"
    stolen = await served.stranger.post("/v1/sessions/restore", json={"token": token, "session_id": "copy"})
    assert (stolen.status_code, stolen.json()["error"]["code"]) == (400, "token_foreign")
    forged = await call(served, "POST", "/v1/sessions/restore", {"token": token[:-4] + "AAAA"}, 400)
    assert forged["error"]["code"] == "token_signature"
    payloads: list[Any] = [{"session_id": 5, "config": {}}, {"session_id": "a", "config": {"agent": 5}}, []]
    for payload in payloads:
        broken = f"rt2.{urlsafe_b64encode(json.dumps(payload).encode()).decode().rstrip('=')}.AAAA"
        refused = await call(served, "POST", "/v1/sessions/restore", {"token": broken}, 400)
        assert refused["error"]["code"] == "token_malformed"


@pytest.mark.slow
async def test_blobs(served: Served, stack: Stack) -> None:
    """A file is stored, named by a message, listed, and read with headers that keep a browser from running it."""
    path = await open_chat(served, "files", stack.add_model("seen"))
    data = make_png(3, 2)
    stored = await served.http.post(f"{path}/blobs?name=dot.png", content=data)
    assert stored.status_code == 200, stored.text
    blob: Blob = stored.json()["blob"]
    assert (blob["media_type"], blob.get("name"), blob["bytes"]) == ("image/png", "dot.png", len(data))
    content = [{"type": "text", "text": "look"}, {"type": "image", "blob": blob}]
    await call(served, "POST", f"{path}/messages?wait=60", {"content": content})
    listed = await call(served, "GET", f"{path}/blobs")
    assert [row["blob"]["digest"] for row in listed["blobs"]] == [blob["digest"]]
    read = await served.http.get(f"{path}/blobs/{blob['digest']}")
    assert (read.content, read.headers["Content-Type"]) == (data, "image/png")
    assert read.headers["Content-Security-Policy"] == "default-src 'none'; sandbox"
    assert read.headers["X-Content-Type-Options"] == "nosniff"
    page = (await served.http.post(f"{path}/blobs?media_type=text/html", content=b"<script>alert(1)</script>")).json()
    shown = await served.http.get(f"{path}/blobs/{page['blob']['digest']}")
    assert shown.headers["Content-Type"] == "application/octet-stream"
    assert shown.headers["Content-Disposition"] == "attachment"
    missing = await call(served, "GET", f"{path}/blobs/{'0' * 64}", status=404)
    assert missing["error"]["code"] == "unknown_blob"


async def test_events_continue_after_a_lost_connection(
    served: Served, stack: Stack, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each entry has an id; with `Last-Event-ID` the events go on after it, without a gap and without one twice."""
    # An error that comes later is an event of the stream, also if the machine is busy.
    monkeypatch.setattr(streams, "FIRST_EVENT_SECONDS", PATIENCE_SECONDS)
    path = await open_chat(served, "events", stack.add_model("fine"))
    await call(served, "POST", f"{path}/messages?wait=60", {"content": "one"})
    seqs: list[int] = []
    newest = "0"

    async def read(most: int) -> None:
        nonlocal newest
        async for event in served.receive(f"{path}/events", {"Last-Event-ID": newest}):
            check_answer("GET", f"{path}/events", 200, event.data, "text/event-stream")
            if event.data["type"] == "entry":
                seqs.append(event.data["seq"])
                newest = event.id
                if len(seqs) >= most:
                    return

    await read(2)
    await call(served, "POST", f"{path}/messages?wait=60", {"content": "two"})
    length = (await call(served, "GET", path))["rev"]
    await read(length)
    assert seqs == list(range(length))
    missing = await served.http.get(f"{path}/requests/none/events")
    assert (missing.status_code, missing.json()["error"]["code"]) == (404, "unknown_request")


async def test_configuration(served: Served, stack: Stack) -> None:
    """A changed field is in force, the tenant stays in the metadata, and an unknown field is refused by its name."""
    path = await open_chat(served, "configured", stack.add_model("fine"))
    await call(served, "PATCH", path, {"metadata": {"tenant": "other", "team": "a"}, "system_prompt": "Be brief."})
    status = await call(served, "GET", path)
    assert status["metadata"] == {"tenant": served.tenant, "team": "a"}
    assert status["config"]["system_prompt"] == "Be brief."
    refused = await call(served, "PATCH", path, {"sytem_prompt": "x"}, 400)
    assert (refused["error"]["code"], refused["error"]["param"]) == ("invalid_input", "sytem_prompt")
    opened = await call(served, "PUT", path, {"model": "scripted:other"})
    assert opened["ignored"].keys() == {"model"}
    unknown: httpx.Response = await served.http.put("/v1/sessions/unknown", json={})
    assert (unknown.status_code, unknown.json()["error"]["code"]) == (404, "not_found")


HOSTILE_BODIES = (
    b"{",
    b"[]",
    b"null",
    b"[" * 100_000,
    b'{"content": "\\ud800"}',
    b'{"content": "\xff"}',
    b'{"content": 1e999, "at_seq": 1e30}',
    b'{"at_seq": 123456789012345678901234567890, "to_seq": -1}',
    b'{"token": "rt2.%00.x", "session_id": "a:b", "decision": "approve", "operation": {}, "pending": [{}]}',
    b'{"metadata": {"a": "' + b"x" * 10_000 + b'"}, "content": ""}',
)
HOSTILE_QUERY = {
    "from_seq": "123456789012345678901234567890",
    "limit": "-1",
    "wait": "1e9",
    "at_seq": "NaN",
    "kind": "\x00",
    "call_id": "%",
    "since": "🚀",
    "status": "none",
    "media_type": "text/html\r\nX: y",
    "name": "../../etc/passwd",
    "context_ref": "'; --",
}


@pytest.mark.slow
async def test_hostile_requests_are_refused(served: Served, stack: Stack) -> None:
    """No body, query or header of any route is an error of the service, and the session answers afterwards."""
    path = await open_chat(served, "target", stack.add_model("fine"))
    names = {"session_id": "target", "request_id": "r", "tool_call_id": "t", "digest": "0" * 64, "upload_id": "u"}
    routes = [route for router in (sessions.router, blob_routes.router) for route in router.routes]
    for route in routes:
        assert isinstance(route, APIRoute)
        for method in route.methods or ():
            if method == "DELETE" or route.path.endswith(("/close", "/hibernate", "/events")):
                continue
            target = route.path.format(**names)
            bodies = HOSTILE_BODIES if method in ("POST", "PUT", "PATCH") else (b"",)
            for body in bodies:
                answer = await served.http.request(method, target, content=body)
                assert answer.status_code < 500, (method, target, body[:60], answer.text)
            for name, value in HOSTILE_QUERY.items():
                headers = {"Idempotency-Key": "k" * 300, "Last-Event-ID": "x", "Content-Type": "text/weird"}
                answer = await served.http.request(method, target, params={name: value}, headers=headers)
                assert answer.status_code < 500 or "upload_unavailable" in answer.text, (method, target, name)
    answer = await call(served, "POST", f"{path}/messages?wait=60", {"content": "well?"})
    assert answer["answer"] == "fine"
