"""Streams of a process that ends in the middle of a reply: another process goes on with each of them."""

from __future__ import annotations

import asyncio
import json
import signal
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import aclosing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest
from ag_ui import core
from httpx_sse import aconnect_sse
from pydantic import TypeAdapter

from clew.local import Reply
from tests.clew.serve.test_service_process import run_process, write_keys
from tests.support.ag_ui import apply
from tests.support.rolling import make_id
from tests.support.serving import make_http, make_key
from tests.support.stack import Stack
from tests.support.waiting import PATIENCE_SECONDS
from tests.support.web import receive

STORY = "".join(f"{number} sheep. " for number in range(70))
"""A reply of seven seconds."""
_events: TypeAdapter[core.Event] = TypeAdapter(core.Event)


@dataclass
class Service:
    """Two processes, of which the first one ends once each client has read some text.

    Attributes:
        first: A client of the process that ends.
        second: A client of the other one.
        model: The model that writes the reply.
        reading: Its wait ends when each client has read some text.
    """

    first: httpx.AsyncClient
    second: httpx.AsyncClient
    model: str
    reading: asyncio.Barrier

    async def drain(self, process: asyncio.subprocess.Process) -> None:
        """Send SIGTERM to the first process once each client has read some text."""
        await self.reading.wait()
        process.send_signal(signal.SIGTERM)


async def read(http: httpx.AsyncClient, method: str, path: str, **options: Any) -> list[str]:
    """Read the data of the events of a stream to its end."""
    return [data async for data in iterate(http, method, path, **options)]


async def iterate(http: httpx.AsyncClient, method: str, path: str, **options: Any) -> AsyncIterator[str]:
    """Iterate over the data of the events of a stream."""
    async with asyncio.timeout(PATIENCE_SECONDS), aconnect_sse(http, method, path, **options) as source:
        source.response.raise_for_status()
        async for event in source.aiter_sse():
            yield event.data


async def read_until_drained(service: Service, is_text: Callable[[Any], bool], **options: Any) -> list[str]:
    """Read a stream of the first process to its end. Takes part in the barrier at the first event with text."""
    read: list[str] = []
    has_text = False
    async for data in iterate(service.first, "POST", **options):
        read.append(data)
        if not has_text and is_text(json.loads(data)):
            has_text = True
            await service.reading.wait()
    assert has_text
    return read


async def follow_own(service: Service, path: str, session_id: str) -> str:
    """Follow by the service's own events, and go on from their last id."""
    await service.first.put(f"/v1/sessions/{session_id}", json={"model": service.model})
    sent = {"content": "go", "request_id": "r1"}
    await service.first.post(f"/v1/sessions/{session_id}/messages", json=sent)
    headers: Mapping[str, str] = {}
    text, seqs, replies = "", [], []
    for http in (service.first, service.second):
        is_first_text, newest = http is service.first, None
        async with aclosing(receive(http, path, headers)) as events:
            async for event in events:
                newest = event
                match event.data:
                    case {"type": "text", "offset": offset, "text": added}:
                        text = text[:offset] + added
                        if is_first_text:
                            is_first_text = False
                            await service.reading.wait()
                    case {"type": "entry", "entry": entry}:
                        seqs.append(event.data["seq"])
                        if entry["payload"].get("role") == "assistant":
                            replies.append(entry["payload"]["content"])
                        if entry["kind"] == "run":
                            break
        if http is service.first:
            assert newest is not None
            assert newest.data == {"type": "draining"}
            assert 0 < len(text) < len(STORY)
            assert newest.id == str(seqs[-1] + 1)
            headers = {"Last-Event-ID": newest.id}
    assert seqs == sorted(set(seqs))
    assert text == STORY
    (reply,) = replies
    return str(reply)


async def follow_request(service: Service) -> str:
    return await follow_own(service, "/v1/sessions/request/requests/r1/events", "request")


async def follow_session(service: Service) -> str:
    return await follow_own(service, "/v1/sessions/session/events?from_seq=0", "session")


async def run_ag_ui(service: Service) -> str:
    """Run again with the messages that the client has: the whole thread has the reply once."""
    await service.first.put("/v1/sessions/ag-ui", json={"model": service.model})
    sent: dict[str, Any] = {
        "threadId": "ag-ui",
        "runId": "run-1",
        "state": {},
        "tools": [],
        "context": [],
        "forwardedProps": {},
        "messages": [{"id": "m", "role": "user", "content": "go"}],
    }
    cut = await read_until_drained(
        service, lambda event: event["type"] == "TEXT_MESSAGE_CONTENT", path="/v1/ag-ui/run", json=sent
    )
    events = [*map(_events.validate_json, cut)]
    assert isinstance(events[-1], core.RunErrorEvent)
    assert events[-1].code == "draining"
    messages = apply([core.UserMessage(id="m", content="go")], events)
    assert 0 < len(str(messages[-1].content)) < len(STORY)
    sent |= {"runId": "run-2", "messages": [message.model_dump(by_alias=True) for message in messages]}
    rest = [*map(_events.validate_json, await read(service.second, "POST", "/v1/ag-ui/run", json=sent))]
    assert isinstance(rest[-1], core.RunFinishedEvent)
    _, reply = apply(messages, rest)
    return str(reply.content)


async def chat(service: Service) -> str:
    """Resume the stream, which has the message from its beginning."""
    said = {"id": "m", "role": "user", "parts": [{"type": "text", "text": "go"}]}
    body = {"id": "chat", "model": service.model, "messages": [said]}
    cut = await read_until_drained(
        service, lambda chunk: chunk["type"] == "text-delta", path="/v1/ui/chat", json=body
    )
    *_, hint, error = map(json.loads, cut[:-1])
    assert cut[-1] == "[DONE]"
    assert (hint["type"], hint["transient"], error["type"]) == ("data-draining", True, "error")
    assert hint["data"]["retryAfterSeconds"] > 0
    resumed = [*map(json.loads, (await read(service.second, "GET", "/v1/ui/chat/chat/stream"))[:-1])]
    assert resumed[0] == json.loads(cut[0])
    assert resumed[-1]["type"] == "finish"
    return "".join(chunk["delta"] for chunk in resumed if chunk["type"] == "text-delta")


async def respond(service: Service) -> str:
    """Read the response's stream behind the number of the error."""
    body = {"model": service.model, "input": "go", "stream": True}
    cut = await read_until_drained(
        service, lambda event: event["type"] == "response.output_text.delta", path="/v1/responses", json=body
    )
    begun = [*map(json.loads, cut)]
    error = begun.pop()
    assert (error["type"], error["code"]) == ("error", "draining")
    assert error["sequence_number"] == begun[-1]["sequence_number"]
    path = f"/v1/responses/{begun[0]['response']['id']}?stream=true&starting_after={error['sequence_number']}"
    rest = [*map(json.loads, await read(service.second, "GET", path))]
    assert rest[-1]["type"] == "response.completed"
    numbers = [event["sequence_number"] for event in (*begun, *rest)]
    assert numbers == [*range(len(numbers))]
    return "".join(event["delta"] for event in (*begun, *rest) if event["type"] == "response.output_text.delta")


async def complete(service: Service) -> str:
    """Repeat the request with its key: it is answered by the same reply."""
    body = {"model": service.model, "messages": [{"role": "user", "content": "go"}], "stream": True}
    repeated: dict[str, Any] = {"json": body, "headers": {"Idempotency-Key": "completion"}}

    def get_text(chunk: Any) -> str:
        return "".join(choice["delta"].get("content") or "" for choice in chunk.get("choices", ()))

    path = "/v1/chat/completions"
    cut = await read_until_drained(service, lambda chunk: bool(get_text(chunk)), path=path, **repeated)
    assert json.loads(cut[-1])["error"]["code"] == "draining"
    again = await read(service.second, "POST", path, **repeated)
    return "".join(get_text(json.loads(data)) for data in again[:-1])


FACES: tuple[Callable[[Service], Awaitable[str]], ...] = (
    follow_request,
    follow_session,
    run_ag_ui,
    chat,
    respond,
    complete,
)
"""The clients: each reads at the first process until it ends, goes on at the second one, and returns the reply."""


@pytest.mark.slow
async def test_another_process_goes_on_with_each_stream(stack: Stack, tmp_path: Path) -> None:
    """Each client is told in its protocol, and reads the whole reply at another process, once."""
    token, key = make_key("own", make_id())
    write_keys(tmp_path / "keys.toml", key)
    calls = 0

    def write(_body: dict[str, Any]) -> Reply:
        nonlocal calls
        calls += 1
        return Reply(STORY, tokens_per_second=20)

    keys = tmp_path / "keys.toml"
    async with (
        run_process(stack, stack.clew, keys, "--drain-seconds", "2") as one,
        run_process(stack, stack.clew, keys) as two,
        make_http(one.address, token) as first,
        make_http(two.address, token) as second,
    ):
        service = Service(first, second, stack.add_model(write), asyncio.Barrier(len(FACES) + 1))
        *replies, _ = await asyncio.gather(*(face(service) for face in FACES), service.drain(one.process))
        assert replies == [STORY] * len(FACES)
        assert calls == len(FACES)
        async with asyncio.timeout(PATIENCE_SECONDS):
            assert await one.process.wait() == 0
