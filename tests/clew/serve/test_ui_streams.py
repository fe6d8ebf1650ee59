"""The routes for user interfaces on a real server: the AI SDK's and AG-UI."""

from __future__ import annotations

import asyncio
import json
import uuid
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest
from ag_ui import core
from httpx_sse import aconnect_sse
from pydantic import TypeAdapter

from clew.serve.ui_messages import Chunk, apply_chunks
from tests.support.ag_ui import check_order
from tests.support.holding import hold_intake, note_answers, run_holding_worker, wait_for_answers
from tests.support.serving import Served, make_http, make_key, run_service
from tests.support.serving_chats import SHOW_MAP, answer_chat
from tests.support.stack import Stack
from tests.support.waiting import PATIENCE_SECONDS

_events: TypeAdapter[core.Event] = TypeAdapter(core.Event)


@pytest.fixture
async def served(stack: Stack) -> AsyncIterator[Served]:
    """The service."""
    async with run_service(stack.clew) as service:
        yield service


class Chat:
    """A chat as `useChat` keeps it.

    Attributes:
        id: The chat.
        messages: The messages.
        chunks: The chunks of the newest answer.
    """

    def __init__(self, served: Served, **body: Any) -> None:
        self.id = f"chat-{uuid.uuid4().hex}"
        self.messages: list[dict[str, Any]] = []
        self.chunks: list[Chunk] = []
        self._http, self._body = served.http, body

    async def say(self, text: str) -> dict[str, Any]:
        """Send a message of the user; returns the assistant's."""
        self.messages.append({"id": uuid.uuid4().hex, "role": "user", "parts": [{"type": "text", "text": text}]})
        return await self.send()

    async def send(self) -> dict[str, Any]:
        """Send the messages; returns the assistant's."""
        body = {"id": self.id, "messages": self.messages, "trigger": "submit-message", **self._body}
        self.chunks = await read_chunks(self._http, "POST", "/v1/ui/chat", json=body)
        if self.messages[-1]["role"] == "user":
            self.messages.append({"role": "assistant", "parts": []})
        message: dict[str, Any] = self.messages[-1]
        assert message.setdefault("id", self.chunks[0]["messageId"]) == self.chunks[0]["messageId"]
        apply_chunks(message, self.chunks)
        return message

    def list_calls(self) -> list[dict[str, Any]]:
        """List the calls of the newest message."""
        return [part for part in self.messages[-1]["parts"] if "toolCallId" in part]

    def find_call(self, name: str) -> dict[str, Any]:
        """Find the newest call of a tool."""
        parts: list[dict[str, Any]] = [part for message in self.messages for part in message["parts"]]
        return [part for part in parts if part["type"] == f"tool-{name}"][-1]


async def read_chunks(http: httpx.AsyncClient, method: str, path: str, **options: Any) -> list[Chunk]:
    """Read a stream of chunks to its end."""
    async with asyncio.timeout(PATIENCE_SECONDS), aconnect_sse(http, method, path, **options) as source:
        source.response.raise_for_status()
        assert source.response.headers["x-vercel-ai-ui-message-stream"] == "v1"
        data = [event.data async for event in source.aiter_sse()]
    assert data[-1] == "[DONE]"
    return [json.loads(chunk) for chunk in data[:-1]]


def read_texts(message: dict[str, Any]) -> list[str]:
    return [part["text"] for part in message["parts"] if part["type"] == "text"]


@pytest.mark.slow
async def test_a_chat_is_a_session(stack: Stack, served: Served) -> None:
    """The first message opens it, a repeated one is answered by the same reply, and a new page gets its messages."""
    chat = Chat(served, model=stack.add_model(answer_chat))
    assert "".join(read_texts(await chat.say("hello"))) == "You said hello"
    assert [chunk["type"] for chunk in (chat.chunks[0], chat.chunks[-1])] == ["start", "finish"]
    first = chat.chunks
    chat.messages.pop()
    await chat.send()
    assert "".join(c["delta"] for c in chat.chunks if c["type"] == "text-delta") == "You said hello"
    assert chat.chunks[0] == first[0]
    session = stack.clew.session(served.scope(chat.id))
    entries = await session.entries(kind="ai_message")
    assert [entry.payload["role"] for entry in entries] == ["user", "assistant"]
    assert (await session.status()).config["metadata"]["tenant"] == served.tenant
    listed = (await served.http.get(f"/v1/ui/chat/{chat.id}/messages")).json()
    assert [(message["id"], read_texts(message)) for message in listed] == [
        (chat.messages[0]["id"], ["hello"]),
        (chat.messages[1]["id"], ["You said hello"]),
    ]
    await session.hibernate()
    assert (await served.http.get(f"/v1/ui/chat/{chat.id}/messages")).json() == listed
    assert read_texts(await chat.say("again")) == ["You said again"]


async def test_a_chat_goes_on_with_a_message_that_the_session_decides_about_later(
    stack: Stack, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The stream begins, and the reply follows once the message is decided."""
    async with run_holding_worker(stack) as (clew, store), run_service(clew) as served:
        chat = Chat(served)
        session = await clew.open(served.scope(chat.id), model=stack.add_model(answer_chat))
        with note_answers(monkeypatch) as answers:
            async with hold_intake(session, store):
                saying = asyncio.create_task(chat.say("hello"))
                await wait_for_answers(answers, "entries")
        assert "".join(read_texts(await saying)) == "You said hello"


@pytest.mark.parametrize("approved", [True, False])
async def test_an_approval_is_answered_by_the_next_message(stack: Stack, served: Served, approved: bool) -> None:
    """The stream ends when all other calls of the reply have their results, and goes on after the decision."""
    chat = Chat(served, model=stack.add_model(answer_chat))
    session = await stack.clew.open(
        served.scope(chat.id), model=stack.add_model(answer_chat), tools=["guarded", "add"]
    )
    await chat.say("guard and add")
    guarded = chat.find_call("guarded")
    assert (guarded["state"], chat.find_call("add")["output"]) == ("approval-requested", "3")
    assert chat.chunks[-1]["finishReason"] == "tool-calls"
    replayed = await read_chunks(served.http, "GET", f"/v1/ui/chat/{chat.id}/stream")
    assert [c["toolCallId"] for c in replayed if c["type"] == "tool-approval-request"] == [guarded["toolCallId"]]
    assert replayed[0] == chat.chunks[0]
    guarded |= {"state": "approval-responded", "approval": guarded["approval"] | {"approved": approved}}
    message = await chat.send()
    assert guarded["state"] == ("output-available" if approved else "output-denied")
    assert read_texts(message)[-1].startswith("I read: ")
    (decision,) = await session.entries(kind="approval")
    assert decision.payload["by"] == "own"


def decide(call: dict[str, Any], approved: bool = True) -> None:
    """Decide about a call, as a person in a page does."""
    call |= {"state": "approval-responded", "approval": call["approval"] | {"approved": approved}}


async def test_all_calls_that_wait_are_told(stack: Stack, served: Served) -> None:
    """Two approvals, a tool of the page's and one of somebody else: the stream ends when only the page is waited for.

    Another viewer of the session changes nothing, although both share what is read of it.
    """
    chat = Chat(served, model=stack.add_model(answer_chat), external_tools=[SHOW_MAP])
    session = await stack.clew.open(
        served.scope(chat.id),
        model=stack.add_model(answer_chat),
        tools=["guarded", "order"],
        external_tools=[SHOW_MAP],
    )

    async def answer_order() -> None:
        async for event in session.follow(0):
            if event.type == "result_required" and event.name == "order":
                await session.submit_tool_result(event.tool_call_id, "ordered")

    viewing = asyncio.create_task(answer_order())
    try:
        await chat.say("mixed")
        first, second, mapped, ordered = chat.list_calls()
        assert [call["state"] for call in (first, second)] == ["approval-requested"] * 2
        assert (mapped["state"], ordered["output"]) == ("input-available", "ordered")
        assert chat.chunks[-1]["finishReason"] == "tool-calls"
        decide(first)
        await chat.send()
        assert (first["output"], second["state"]) == ("done", "approval-requested")
        # A page that has not heard of it hears of it now.
        second |= {"state": "input-available"}
        del second["approval"]
        await chat.send()
        assert second["state"] == "approval-requested"
        replayed = await read_chunks(served.http, "GET", f"/v1/ui/chat/{chat.id}/stream")
        assert [c["toolCallId"] for c in replayed if c["type"] == "tool-approval-request"][-1] == second["toolCallId"]
        decide(second, approved=False)
        await chat.send()
        assert (second["state"], mapped["state"]) == ("output-denied", "input-available")
        mapped |= {"state": "output-available", "output": {"shown": True}}
        assert read_texts(await chat.send())[-1].startswith("I read: ")
        assert chat.chunks[-1]["finishReason"] == "stop"
    finally:
        viewing.cancel()


async def test_how_a_reply_has_ended(stack: Stack, served: Served) -> None:
    """A reply that was cut says so, in the stream and when it is streamed again."""
    chat = Chat(served, model=stack.add_model(answer_chat))
    await chat.say("cut")
    assert chat.chunks[-1]["finishReason"] == "length"
    replayed = await read_chunks(served.http, "GET", f"/v1/ui/chat/{chat.id}/stream")
    assert replayed[-1]["finishReason"] == "length"


async def test_what_a_page_keeps_in_a_message_is_not_sent_to_the_model(stack: Stack, served: Served) -> None:
    """Its own data, and parts that only an assistant's message means; a text may be empty beside another one."""
    chat = Chat(served, model=stack.add_model(answer_chat))
    unsent = [
        {"type": "data-location", "id": "d", "data": {"city": "Rome"}},
        {"type": "data-nothing", "data": None},
        {"type": "step-start"},
        {"type": "source-url", "sourceId": "s", "url": "https://example.com/"},
        {"type": "text", "text": ""},
    ]
    parts = [*unsent, {"type": "text", "text": "hello", "state": "done", "providerMetadata": {}}]
    chat.messages.append({"id": "m1", "role": "user", "metadata": None, "parts": parts})
    assert "".join(read_texts(await chat.send())) == "You said hello"
    chat.messages.append({"id": "m2", "role": "user", "parts": unsent})
    body = {"id": chat.id, "messages": chat.messages}
    refused = await served.http.post("/v1/ui/chat", json=body)
    assert (refused.status_code, refused.json()["error"]["code"]) == (400, "empty_content")


async def test_a_page_that_comes_late_misses_nothing(stack: Stack, served: Served) -> None:
    """A request that has just ended is streamed again, with the same id; without one there is no stream."""
    chat = Chat(served, model=stack.add_model(answer_chat))
    await stack.clew.open(served.scope(chat.id), model=stack.add_model(answer_chat))
    for path in (chat.id, f"{chat.id}-new"):
        assert (await served.http.get(f"/v1/ui/chat/{path}/stream")).status_code == 204
    await chat.say("hello")
    replayed = await read_chunks(served.http, "GET", f"/v1/ui/chat/{chat.id}/stream")
    assert replayed[0] == chat.chunks[0]
    assert "".join(c["delta"] for c in replayed if c["type"] == "text-delta") == "You said hello"


@pytest.mark.slow
async def test_a_tool_of_the_page_is_answered_by_the_next_message(stack: Stack, served: Served) -> None:
    """The session offers the tool that the page sends; a repeated result has no second effect."""
    chat = Chat(served, model=stack.add_model(answer_chat), external_tools=[SHOW_MAP])
    await chat.say("map")
    call = chat.find_call("show_map")
    assert (call["state"], call["input"]) == ("input-available", {"city": "Rome"})
    call |= {"state": "output-available", "output": {"shown": True}}
    message = await chat.send()
    assert read_texts(message) == ['I read: {"shown":true}']
    await chat.send()
    assert [chunk["type"] for chunk in chat.chunks] == ["start", "finish"]
    entries = await stack.clew.session(served.scope(chat.id)).entries(kind="ai_message")
    assert [entry.payload["role"] for entry in entries] == ["user", "assistant", "tool", "assistant"]


async def test_a_page_that_changes_its_tools(stack: Stack, served: Served) -> None:
    """The next message has those that the page sends with it."""
    chat = Chat(served, model=stack.add_model(answer_chat), external_tools=[SHOW_MAP])
    await chat.say("hello")
    chat._body["external_tools"] = [SHOW_MAP | {"name": "show_chart"}]
    await chat.say("hello again")
    session = stack.clew.session(served.scope(chat.id))
    assert [tool["name"] for tool in (await session.status()).config["external_tools"]] == ["show_chart"]


async def test_what_a_session_cannot_do_is_refused(stack: Stack, served: Served) -> None:
    """What was said stays: neither a message nor an answer is replaced. The error says what to do."""
    chat = Chat(served, model=stack.add_model(answer_chat))
    await chat.say("hello")
    for change in ({"trigger": "regenerate-message"}, {"messageId": chat.messages[0]["id"]}):
        body = {"id": chat.id, "messages": chat.messages[:1], **change}
        refused = await served.http.post("/v1/ui/chat", json=body)
        assert (refused.status_code, refused.json()["error"]["code"]) == (400, "invalid_input")
    wrong = {"id": chat.id, "messages": [{"id": "m", "role": "user", "parts": [{"type": "text"}]}]}
    assert (await served.http.post("/v1/ui/chat", json=wrong)).status_code == 400
    assert (await served.http.post("/v1/ui/chat", json={"id": "a:b", "messages": chat.messages})).status_code == 400


async def test_another_tenant_finds_nothing(stack: Stack, served: Served) -> None:
    """Neither by the chat's id nor by its workflow's."""
    chat = Chat(served, model=stack.add_model(answer_chat))
    await chat.say("hello")
    body = {"messages": [{"id": "m", "role": "user", "parts": [{"type": "text", "text": "hi"}]}]}
    for name in (chat.id, served.scope(chat.id)):
        answers = [
            await served.stranger.get(f"/v1/ui/chat/{name}/messages"),
            await served.stranger.get(f"/v1/ui/chat/{name}/stream"),
            await served.stranger.post("/v1/ui/chat", json={"id": name, **body}),
            await served.stranger.post("/v1/ag-ui/run", json=make_run(name)),
        ]
        assert {answer.status_code for answer in answers} <= {204, 400, 404}
        assert "hello" not in "".join(answer.text for answer in answers)


async def test_a_key_opens_only_chats_of_its_agents(stack: Stack) -> None:
    """Another agent or a model is refused with 403."""
    token, key = make_key("narrow", "narrow", agents=("shop",))
    async with run_service(stack.clew, key) as served, make_http(served.address, token) as http:
        for named in ({"agent": "other"}, {"model": stack.add_model(answer_chat)}):
            chat = Chat(served)
            body = {"id": chat.id, "messages": [{"id": "m", "role": "user", "parts": []}], **named}
            assert (await http.post("/v1/ui/chat", json=body)).status_code == 403


def make_run(thread_id: str, *messages: dict[str, Any], **fields: Any) -> dict[str, Any]:
    """Make the input of an AG-UI client."""
    empty: dict[str, Any] = {"state": {}, "tools": [], "context": [], "forwardedProps": {}}
    return {"threadId": thread_id, "runId": uuid.uuid4().hex, "messages": list(messages), **empty, **fields}


async def test_an_ag_ui_client_has_a_session(stack: Stack, served: Served) -> None:
    """Its tools are external tools of the session; its events are those of the protocol."""
    name = uuid.uuid4().hex
    await stack.clew.open(served.scope(name), model=stack.add_model(answer_chat))

    async def run(*messages: dict[str, Any], **fields: Any) -> list[core.Event]:
        body = make_run(name, *messages, **fields)
        events = [event.data async for event in served.receive("/v1/ag-ui/run", method="POST", json=body)]
        made = [_events.validate_python(event) for event in events]
        check_order(made)
        return made

    asked = {"id": "u1", "role": "user", "content": "map"}
    events = await run(asked, tools=[SHOW_MAP])
    (started,) = [event for event in events if isinstance(event, core.ToolCallStartEvent)]
    assert started.tool_call_name == "show_map"
    call = {"id": started.tool_call_id, "type": "function", "function": {"name": "show_map", "arguments": "{}"}}
    replied = {"id": started.parent_message_id, "role": "assistant", "toolCalls": [call]}
    result = {"id": "t1", "role": "tool", "toolCallId": started.tool_call_id, "content": "shown"}
    events = await run(asked, replied, result, tools=[SHOW_MAP])
    texts = [event.delta for event in events if isinstance(event, core.TextMessageContentEvent)]
    assert "".join(texts) == "I read: shown"
