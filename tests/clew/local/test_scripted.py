"""The scripted model is an OpenAI-compatible server as far as the official client can tell."""

import asyncio
import json
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from http import HTTPStatus
from typing import Any

import httpx
import openai
import pytest

from clew.local import Reply, ScriptedModel, ToolCall, scripted_model
from clew.local.scripted import Script
from tests.support.scripts import FOUNDED, PAGE

QUESTION: Any = [{"role": "user", "content": "Where is my order?"}]


@asynccontextmanager
async def client_of(script: Script) -> AsyncIterator[tuple[openai.AsyncOpenAI, ScriptedModel]]:
    async with (
        scripted_model(script) as server,
        openai.AsyncOpenAI(base_url=server.base_url, api_key="none", max_retries=0) as client,
    ):
        yield client, server


async def test_text_arrives_word_by_word_and_whole() -> None:
    """The reply comes as a stream, nothing added and nothing lost, white space included."""
    text = "It is on\n its way. "
    async with client_of(lambda _: Reply(text)) as (client, _):
        stream = await client.chat.completions.create(
            model="m", messages=QUESTION, stream=True, stream_options={"include_usage": True}
        )
        chunks = [chunk async for chunk in stream]
    pieces = [chunk.choices[0].delta.content for chunk in chunks if chunk.choices]
    assert [piece for piece in pieces if piece] == ["It", " is", " on", "\n its", " way.", " "]
    assert [chunk.choices[0].finish_reason for chunk in chunks if chunk.choices][-1] == "stop"
    assert chunks[-1].usage is not None
    assert chunks[-1].usage.completion_tokens == 6


async def test_tool_calls_arrive_in_pieces() -> None:
    """Calls carry index, id, name and arguments that join to the JSON they were given."""
    calls = (ToolCall("lookup", {"order": 7}, "a"), ToolCall("lookup", '{"order": ', "b"))
    async with client_of(lambda _: Reply(tool_calls=calls)) as (client, _):
        stream = await client.chat.completions.create(model="m", messages=QUESTION, stream=True)
        chunks = [chunk async for chunk in stream]
    names: dict[int, tuple[str | None, str | None]] = {}
    arguments = {0: "", 1: ""}
    for delta in (call for chunk in chunks for call in chunk.choices[0].delta.tool_calls or []):
        assert delta.function is not None
        if delta.id:
            names[delta.index] = (delta.id, delta.function.name)
        arguments[delta.index] += delta.function.arguments or ""
    assert names == {0: ("a", "lookup"), 1: ("b", "lookup")}
    assert arguments == {0: json.dumps({"order": 7}), 1: '{"order": '}
    assert chunks[-1].choices[0].finish_reason == "tool_calls"


async def test_the_script_reads_the_request_and_may_wait() -> None:
    """An async script holds the reply back for as long as it likes, and sees the body that was sent."""
    called, gate = asyncio.Event(), asyncio.Event()

    async def script(body: dict[str, Any]) -> Reply:
        called.set()
        await gate.wait()
        return Reply(body["messages"][0]["content"])

    async with client_of(script) as (client, server):
        asking = asyncio.create_task(client.chat.completions.create(model="m", messages=QUESTION, stream=True))
        await called.wait()
        assert not asking.done()
        gate.set()
        stream = await asking
        text = "".join([chunk.choices[0].delta.content or "" async for chunk in stream])
    assert text == "Where is my order?"
    assert server.requests[0]["model"] == "m"


async def test_a_pace_is_kept() -> None:
    """Ten tokens at a hundred a second take a tenth of a second at least."""
    async with client_of(lambda _: Reply("a " * 10, tokens_per_second=100)) as (client, _):
        start = time.monotonic()
        stream = await client.chat.completions.create(model="m", messages=QUESTION, stream=True)
        async for _ in stream:
            pass
    assert time.monotonic() - start >= 0.1


async def test_an_error_reply_has_status_headers_and_message() -> None:
    """A refusal looks like a provider's, headers included."""
    busy = Reply("slow down", status=HTTPStatus.TOO_MANY_REQUESTS, headers={"Retry-After": "3"})
    async with client_of(lambda _: busy) as (client, _):
        with pytest.raises(openai.RateLimitError, match="slow down") as caught:
            await client.chat.completions.create(model="m", messages=QUESTION, stream=True)
    assert caught.value.response.headers["retry-after"] == "3"


async def test_a_cut_stream_breaks_off() -> None:
    """After `disconnect_after` tokens the connection ends: no reason to finish, no end marker."""
    body = {"model": "m", "messages": QUESTION, "stream": True}
    reply = Reply("one two three", disconnect_after=2)
    async with scripted_model(lambda _: reply) as server, httpx.AsyncClient() as http:
        answer = await http.post(f"{server.base_url}/chat/completions", json=body)
    assert '"content": " two"' in answer.text
    assert "three" not in answer.text
    assert "[DONE]" not in answer.text
    assert '"finish_reason": "stop"' not in answer.text


async def test_a_script_that_raises_answers_500() -> None:
    """A mistake in a test's script shows in the test, instead of hanging it."""

    def script(body: dict[str, Any]) -> Reply:
        raise KeyError("tools")

    async with client_of(script) as (client, _):
        with pytest.raises(openai.InternalServerError, match="KeyError"):
            await client.chat.completions.create(model="m", messages=QUESTION, stream=True)


async def test_what_it_does_not_speak_is_refused() -> None:
    """Another page is a 404."""
    async with scripted_model(lambda _: Reply("hello")) as server, httpx.AsyncClient() as http:
        missing = await http.get(f"{server.base_url}/models")
    assert missing.status_code == 404


async def test_a_reply_in_flight_does_not_keep_the_server_alive() -> None:
    """Leaving the context cuts whatever is being sent."""
    async with client_of(lambda _: Reply("a " * 1000, tokens_per_second=1)) as (client, _):
        stream = await client.chat.completions.create(model="m", messages=QUESTION, stream=True)
        assert (await anext(aiter(stream))).choices[0].delta.content == "a"
        await stream.close()


async def test_a_client_that_does_not_stream_gets_one_object() -> None:
    """The same reply comes as one completion: text, calls, the reason why it ended, and usage."""
    reply = Reply("On its way.", tool_calls=(ToolCall("lookup", {"order": 7}, "a"),))
    async with client_of(lambda _: reply) as (client, _):
        completion = await client.chat.completions.create(model="m", messages=QUESTION)
    (choice,) = completion.choices
    assert (choice.message.content, choice.finish_reason) == ("On its way.", "tool_calls")
    (call,) = choice.message.tool_calls or []
    assert call.type == "function"
    assert (call.id, call.function.name, json.loads(call.function.arguments)) == ("a", "lookup", {"order": 7})
    assert completion.usage is not None
    assert completion.usage.completion_tokens == 13


async def test_the_bytes_of_media_are_no_tokens() -> None:
    """A request costs the same with a large image as with a small one; a long text costs more."""

    async def count(size: int, text: str) -> int:
        url = f"data:image/png;base64,{'A' * size}"
        parts: Any = [{"type": "text", "text": text}, {"type": "image_url", "image_url": {"url": url}}]
        async with client_of(lambda _: Reply("fine")) as (client, _):
            done = await client.chat.completions.create(model="m", messages=[{"role": "user", "content": parts}])
        assert done.usage is not None
        return done.usage.prompt_tokens

    assert await count(400_000, "look") == await count(400, "look")
    assert await count(400, "look" * 1000) > 1000 + await count(400, "look") - 2


async def test_citations_and_calls_of_the_provider_arrive_as_servers_send_them() -> None:
    """OpenAI's annotations and Groq's executed tools, in a stream and in one object."""
    async with client_of(lambda _: FOUNDED) as (client, _):
        whole = await client.chat.completions.create(model="m", messages=QUESTION)
        stream = await client.chat.completions.create(model="m", messages=QUESTION, stream=True)
        deltas = [chunk.choices[0].delta.model_dump() async for chunk in stream]
    message = whole.choices[0].message
    first = (message.annotations or [])[0]
    assert (first.type, first.url_citation.url, first.url_citation.end_index) == ("url_citation", PAGE, 22)
    sent = message.model_dump(exclude_unset=True)
    for name in ("annotations", "executed_tools"):
        assert [delta[name] for delta in deltas if delta.get(name)] == [sent[name]]
    assert [tool["type"] for tool in sent["executed_tools"]] == ["search", "python"]
