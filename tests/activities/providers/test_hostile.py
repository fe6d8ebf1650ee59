"""Hostile servers: every decoder takes linear time and bounded memory, and yields to the event loop."""

from __future__ import annotations

import asyncio
import gzip
import itertools
import json
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import httpx
import pytest

from clew_activities.providers import RedactedDecoder
from clew_activities.providers.anthropic.provider import Anthropic
from clew_activities.providers.aws import EVENT_STREAM
from clew_activities.providers.bedrock.provider import Bedrock
from clew_activities.providers.dialects import STRICT
from clew_activities.providers.google.provider import Google
from clew_activities.providers.http import HttpSettings, stream
from clew_activities.providers.interface import Provider
from clew_activities.providers.openai.chat import OpenAI
from clew_activities.providers.openai.chat_stream import OpenAIDecoder
from clew_activities.providers.openai.responses import Responses
from clew_activities.providers.provider_errors import BadRequest, ProviderError, TruncatedStream
from clew_activities.providers.redaction import Redaction
from clew_activities.providers.sanitize import ObjectEnd
from clew_workflows.protocol import ModelReply
from tests.providers.bedrock_api import encode_event, encode_frame
from tests.support.provider_server import (
    FakeServer,
    encode_events,
    make_chunk,
    make_delta,
    make_request,
    make_tool,
    start_block,
)

KEY = "sk-test-hunter2-hunter2"
SIZE = 256 * 1024


def openai(server: FakeServer) -> Provider:
    return OpenAI("openai", server.url, STRICT, api_key=KEY)


def anthropic(server: FakeServer) -> Provider:
    return Anthropic("anthropic", server.url, api_key=KEY)


def google(server: FakeServer) -> Provider:
    return Google("google", server.url, api_key=KEY)


def responses(server: FakeServer) -> Provider:
    return Responses("openai", server.url, api_key=KEY)


def bedrock(server: FakeServer) -> Provider:
    return Bedrock("bedrock", server.url, "us-east-1", api_key=KEY)


def add_item(index: int, kind: str, **fields: Any) -> dict[str, Any]:
    return {"type": "response.output_item.added", "output_index": index, "item": {"type": kind, **fields}}


def finish_item(index: int, kind: str, **fields: Any) -> dict[str, Any]:
    return {**add_item(index, kind, **fields), "type": "response.output_item.done"}


def extend_item(kind: str, delta: str, index: int = 0) -> dict[str, Any]:
    return {"type": f"response.{kind}.delta", "output_index": index, "delta": delta}


def repeat_frames(name: str, *values: Any, first: bytes = b"", size: int = SIZE) -> bytes:
    """A stream of about so many bytes that begins with some frames and repeats others."""
    piece = b"".join(encode_event(name, value) for value in values)
    return first + piece * (size // len(piece))


def change_block(index: int = 0, **delta: Any) -> dict[str, Any]:
    return {"contentBlockIndex": index, "delta": delta}


def begin_call(index: int = 0) -> dict[str, Any]:
    return {"contentBlockIndex": index, "start": {"toolUse": {"toolUseId": f"t{index}", "name": "add"}}}


def add_parts(*parts: dict[str, Any], **fields: Any) -> dict[str, Any]:
    return {"candidates": [{"content": {"role": "model", "parts": list(parts)}, **fields}]}


def repeat_events(*pieces: Any, first: Any = (), size: int = SIZE) -> bytes:
    """A stream of about so many bytes that begins with some events and repeats others."""
    piece = encode_events(pieces)
    return encode_events(first) + piece * (size // len(piece))


def call_tool(arguments: str, **fields: Any) -> dict[str, Any]:
    return make_chunk(tool_calls=[make_tool(arguments, "add", **fields)])


def start_one(**fields: Any) -> dict[str, Any]:
    return start_block(0, **fields)


Shape = tuple[Callable[[FakeServer], Provider], Callable[[], bytes]]

STREAMS: dict[str, Shape] = {
    "pieces that close an object": (
        openai,
        lambda: repeat_events(call_tool(",{}", id="a"), first=[call_tool('{"a":[{}', id="a")]),
    ),
    "whole objects": (openai, lambda: repeat_events(call_tool('{"a":{}}', index=0))),
    "nothing but closing": (openai, lambda: repeat_events(call_tool("}", id="a"), first=[call_tool("{", id="a")])),
    "calls without end": (openai, lambda: encode_events(call_tool("{}", id=f"c{index}") for index in range(6000))),
    "huge names": (
        openai,
        lambda: repeat_events(make_chunk(tool_calls=[make_tool("{}", "n" * 9000, id="i" * 9000)])),
    ),
    "refusals": (openai, lambda: repeat_events(make_chunk(refusal="r"))),
    "thoughts": (openai, lambda: repeat_events(make_chunk(reasoning="t"))),
    "one text": (openai, lambda: encode_events([make_chunk(content="x" * SIZE)])),
    "one line": (openai, lambda: b"data: " + b"x" * SIZE),
    "deep": (openai, lambda: b"data: " + b"[" * SIZE + b"\n\n"),
    "choices": (openai, lambda: b'data: {"choices":[' + b"{}," * (SIZE // 3) + b"{}]}\n\n"),
    "empty lines": (openai, lambda: b"\n" * SIZE),
    "comments": (openai, lambda: b":\n" * (SIZE // 2)),
    "lines of one event": (openai, lambda: b"data:\n" * (SIZE // 6)),
    "empty objects": (openai, lambda: b"data:{}\n\n" * (SIZE // 9)),
    "an error": (openai, lambda: encode_events([{"error": {"message": "authorization: " * (SIZE // 15)}}])),
    "pings": (anthropic, lambda: repeat_events({"type": "ping"})),
    "blocks": (
        anthropic,
        lambda: encode_events(start_block(index, type="text", text="x") for index in range(10_000)),
    ),
    "deltas": (
        anthropic,
        lambda: repeat_events(
            make_delta(0, type="thinking_delta", thinking="t", signature="s"), first=[start_one(type="thinking")]
        ),
    ),
    "signed parts": (google, lambda: repeat_events(add_parts({"text": "x", "thoughtSignature": "s"}))),
    "function calls": (
        google,
        lambda: repeat_events(add_parts({"functionCall": {"name": "add", "args": {"a": {}}}})),
    ),
    "grounded segments": (
        google,
        lambda: repeat_events(
            add_parts(
                groundingMetadata={
                    "groundingChunks": [{"web": {"uri": "https://x"}}],
                    "groundingSupports": [{"segment": {"endIndex": 9}, "groundingChunkIndices": [0]}] * 1000,
                }
            ),
            first=[add_parts({"text": "x" * 200_000})],
        ),
    ),
    "pieces of input": (
        anthropic,
        lambda: repeat_events(
            make_delta(0, type="input_json_delta", partial_json=",{}"),
            first=[start_one(type="tool_use", id="a", name="add")],
        ),
    ),
    "items": (responses, lambda: encode_events(add_item(index, "message") for index in range(10_000))),
    "calls as items": (
        responses,
        lambda: encode_events(
            finish_item(index, "function_call", id="f", call_id=f"c{index}", name="add", arguments="{}")
            for index in range(6000)
        ),
    ),
    "one item again": (
        responses,
        lambda: repeat_events(finish_item(0, "message", content=[{"type": "output_text", "text": "x"}])),
    ),
    "one call opened again": (
        responses,
        lambda: repeat_events(add_item(0, "function_call", call_id="c", name="add"), extend_item("x", "")),
    ),
    "pieces of a call's arguments": (
        responses,
        lambda: repeat_events(
            extend_item("function_call_arguments", ",{}"),
            first=[
                add_item(0, "function_call", call_id="c", name="add"),
                extend_item("function_call_arguments", '{"a":[{}'),
            ],
        ),
    ),
    "deltas of no item": (
        responses,
        lambda: encode_events(extend_item("output_text", "x", index) for index in range(10_000)),
    ),
    "summaries": (
        responses,
        lambda: repeat_events(
            {"type": "response.reasoning_summary_part.added", "output_index": 0},
            extend_item("reasoning_summary_text", "t"),
        ),
    ),
    "refusals of a response": (responses, lambda: repeat_events(extend_item("refusal", "r"))),
    "annotations": (
        responses,
        lambda: encode_events(
            [
                finish_item(
                    0,
                    "message",
                    content=[
                        {
                            "type": "output_text",
                            "text": "x",
                            "annotations": [{"type": "url_citation", "url": "https://x"}] * (SIZE // 50),
                        }
                    ],
                )
            ]
        ),
    ),
    "searches": (
        responses,
        lambda: encode_events(
            finish_item(index, "web_search_call", action={"query": "q", "sources": [{"url": "https://x"}] * 20})
            for index in range(1500)
        ),
    ),
    "sealed reasoning": (
        responses,
        lambda: encode_events(
            finish_item(index, "reasoning", id="r", encrypted_content="e" * 900) for index in range(1000)
        ),
    ),
    "states of a response": (
        responses,
        lambda: repeat_events({"type": "response.in_progress", "response": {"object": "response", "output": [{}]}}),
    ),
}
FRAMES: dict[str, Shape] = {
    "frames without a name": (bedrock, lambda: encode_frame({}, b"") * (SIZE // 16)),
    "unknown frames": (bedrock, lambda: repeat_frames("x", {})),
    "blocks of a frame each": (
        bedrock,
        lambda: b"".join(encode_event("contentBlockDelta", change_block(n, text="x")) for n in range(6000)),
    ),
    "blocks that begin": (
        bedrock,
        lambda: b"".join(encode_event("contentBlockStart", begin_call(n)) for n in range(5000)),
    ),
    "one block that begins again": (bedrock, lambda: repeat_frames("contentBlockStart", begin_call())),
    "pieces of an input": (
        bedrock,
        lambda: repeat_frames(
            "contentBlockDelta",
            change_block(toolUse={"input": ",{}"}),
            first=encode_event("contentBlockStart", begin_call())
            + encode_event("contentBlockDelta", change_block(toolUse={"input": '{"a":[{}'})),
        ),
    ),
    "pieces of reasoning": (
        bedrock,
        lambda: repeat_frames(
            "contentBlockDelta",
            change_block(reasoningContent={"text": "t", "signature": "s", "redactedContent": "QQ"}),
        ),
    ),
    "citations of a frame each": (
        bedrock,
        lambda: repeat_frames(
            "contentBlockDelta", change_block(citation={"title": "t", "location": {"web": {"url": "https://x"}}})
        ),
    ),
    "a deep frame": (bedrock, lambda: encode_frame({":event-type": "metadata"}, b"[" * SIZE)),
    "a long frame": (bedrock, lambda: encode_event("contentBlockDelta", change_block(text="x" * SIZE))),
    "an exception": (
        bedrock,
        lambda: encode_event("validationException", {"message": "authorization: " * (SIZE // 15)}, "exception"),
    ),
}
WHOLE: dict[str, Shape] = {
    "a whole text": (openai, lambda: json.dumps({"choices": [{"message": {"content": "x" * SIZE}}]}).encode()),
    "whole calls": (
        openai,
        lambda: json.dumps({"choices": [{"message": {"tool_calls": [make_tool("{}")] * (SIZE // 40)}}]}).encode(),
    ),
    "whole blocks": (
        anthropic,
        lambda: json.dumps({"type": "message", "content": [{"type": "text", "text": "x"}] * (SIZE // 40)}).encode(),
    ),
    "a whole response": (
        responses,
        lambda: json.dumps(
            {
                "object": "response",
                "status": "completed",
                "output": [{"type": "message", "content": [{"type": "output_text", "text": "x"}]}] * (SIZE // 80),
            }
        ).encode(),
    ),
    "a whole reply of Converse": (
        bedrock,
        lambda: json.dumps(
            {
                "output": {"message": {"role": "assistant", "content": [{"text": "x"}] * (SIZE // 16)}},
                "stopReason": "end_turn",
            }
        ).encode(),
    ),
}
SHAPES = {**STREAMS, **FRAMES, **WHOLE}


def find_type(shape: str) -> str:
    """The content type of a shape."""
    return "application/json" if shape in WHOLE else EVENT_STREAM if shape in FRAMES else "text/event-stream"


@pytest.fixture
def parsed(monkeypatch: pytest.MonkeyPatch) -> Callable[[], int]:
    """How many characters have been parsed as JSON, or searched for the end of an object."""
    characters = 0
    loads, add = json.loads, ObjectEnd.add

    def counted(text: str, **options: Any) -> Any:
        nonlocal characters
        characters += len(text)
        return loads(text, **options)

    def searched(self: ObjectEnd, piece: str) -> None:
        nonlocal characters
        characters += len(piece)
        add(self, piece)

    monkeypatch.setattr("clew_activities.providers.sanitize.json.loads", counted)
    monkeypatch.setattr(ObjectEnd, "add", searched)
    return lambda: characters


async def end_call(
    client: httpx.AsyncClient, provider: Provider, monotonic: Callable[[], float] = time.monotonic, **settings: Any
) -> ModelReply | ProviderError:
    """How a call ends, which is looked at all the while as heartbeats do."""
    decoder = RedactedDecoder(provider.make_decoder(make_request()), Redaction([KEY]))
    try:
        bounds = HttpSettings(**settings)
        return await stream(client, provider, make_request(), decoder, settings=bounds, monotonic=monotonic)
    except ProviderError as error:
        return error
    finally:
        _ = decoder.text, decoder.thinking, decoder.tool_name


@pytest.mark.parametrize(
    "shape",
    [
        pytest.param(shape, marks=pytest.mark.slow)
        if shape in ("whole calls", "whole blocks", "a whole reply of Converse")
        else shape
        for shape in SHAPES
    ],
)
async def test_each_byte_is_parsed_a_bounded_number_of_times(
    shape: str, server: FakeServer, client: httpx.AsyncClient, parsed: Callable[[], int]
) -> None:
    """Once as an event, once where a call's arguments are checked, and once when they are read."""
    provider, made = SHAPES[shape]
    body = made()
    kind = find_type(shape)
    # The request that came is parsed by the server, in the same process.
    server.answer(*(body[at : at + 65536] for at in range(0, len(body), 65536)), content_type=kind)
    await end_call(client, provider(server))
    assert parsed() <= 3 * len(body) + 10_000


@pytest.mark.parametrize(
    "shape",
    [
        *("pieces that close an object", "empty objects", "empty lines", "pings", "blocks"),
        *("items", "one item again", "frames without a name", "unknown frames", "blocks of a frame each"),
    ],
)
async def test_other_work_goes_on_while_a_hostile_stream_is_folded(
    shape: str, server: FakeServer, client: httpx.AsyncClient
) -> None:
    """By a clock of which each look is a millisecond, the others get a turn after every few events and every 4 KB."""
    ticks = itertools.count()
    provider, made = SHAPES[shape]
    server.answer(made(), content_type=find_type(shape))
    looks_at_turns: list[int] = []

    async def others() -> None:
        while True:
            looks_at_turns.append(next(ticks))
            await asyncio.sleep(0)

    working = asyncio.create_task(others())
    await end_call(client, provider(server), lambda: next(ticks) / 1000)
    working.cancel()
    pauses = [later - earlier for earlier, later in itertools.pairwise(looks_at_turns)]
    assert max(pauses) < 20
    assert len(pauses) >= SIZE // 4096 // 10


@pytest.mark.parametrize(
    "shape",
    [
        *("one text", "choices", "deep", "a whole text", "whole blocks"),
        *("annotations", "a whole response", "a long frame", "a deep frame"),
        pytest.param("a whole reply of Converse", marks=pytest.mark.slow),
    ],
)
async def test_a_large_event_is_folded_beside_the_event_loop(
    shape: str, server: FakeServer, client: httpx.AsyncClient
) -> None:
    """Large bodies are parsed in a thread, beside which the event loop runs; small ones are parsed directly."""
    provider, made = SHAPES[shape]
    server.answer(made(), content_type=find_type(shape))
    threads: list[tuple[bool, bool]] = []

    class Noted(RedactedDecoder):
        def feed(self, event: str, data: str) -> None:
            threads.append((len(data) > 16 * 1024, threading.current_thread() is threading.main_thread()))
            super().feed(event, data)

    with suppress(ProviderError):
        called = provider(server)
        await stream(client, called, make_request(), Noted(called.make_decoder(make_request()), Redaction([KEY])))
    assert threads
    assert all(large != on_loop for large, on_loop in threads)


@pytest.mark.parametrize("kind", ["text/event-stream", "application/json"])
async def test_an_event_is_parsed_up_to_its_limit(kind: str, server: FakeServer, client: httpx.AsyncClient) -> None:
    """16 MB of empty lists would take half a gigabyte."""
    lists = b'{"a":[' + b"[]," * 20_000 + b"1]}"
    server.answer(lists if kind == "application/json" else b"data: " + lists + b"\n\n", content_type=kind)
    error = await end_call(client, openai(server), event_size=50_000)
    assert isinstance(error, TruncatedStream)
    assert "50000" in error.message


@pytest.mark.parametrize("split", ["chunks", "events"])
async def test_tiny_pieces_count_for_more_than_they_hold(
    split: str, server: FakeServer, client: httpx.AsyncClient
) -> None:
    """A chunk of one byte takes as long as one of a hundred."""
    body = b"data:{}\n\n" * 600
    server.answer(*([body[at : at + 1] for at in range(len(body))] if split == "chunks" else [body]))
    error = await end_call(client, openai(server), reply_bytes=20_000)
    assert isinstance(error, TruncatedStream)
    assert "20000" in error.message


@pytest.mark.parametrize("status", [200, 500])
async def test_a_compressed_answer_is_not_unpacked(
    status: int, server: FakeServer, client: httpx.AsyncClient
) -> None:
    """Compressed answers are refused: three layers expand a few hundred bytes to gigabytes."""
    bomb = gzip.compress(gzip.compress(gzip.compress(b"\0" * 50_000_000)))
    server.answer(bomb, status=status, content_encoding="gzip, gzip, gzip")
    error = await end_call(client, openai(server))
    assert isinstance(error, BadRequest) == (status == 200)
    assert isinstance(error, ProviderError)
    assert "gzip, gzip, gzip" in error.message


@pytest.mark.parametrize(
    ("pieces", "reached"),
    [
        (["{}"], True),
        (["{", "}"], True),
        (['{"a": "', "}", '"}'], True),
        (['{"a": "\\', '"}'], False),
        (['{"a": "\\', '""}'], True),
        (['{"a": {"b": []}', "}", " \n"], True),
        (["{}", "{}"], False),
        (["{}", "x", ""], False),
        (["[]"], False),
        (["", "  "], False),
        (["{} "], True),
    ],
)
def test_the_end_of_an_object_is_told_from_its_pieces(pieces: list[str], reached: bool) -> None:
    """Braces within strings do not count, wherever the pieces are split."""
    object_end = ObjectEnd()
    for piece in pieces:
        object_end.add(piece)
    assert object_end.reached == reached
    character_by_character = ObjectEnd()
    for character in "".join(pieces):
        character_by_character.add(character)
    assert character_by_character.reached == reached


def feed_many(first: list[Any], rest: Any, count: int) -> float:
    """Feed events to a decoder, then one many times. Returns the seconds of the latter."""
    decoder = OpenAIDecoder()
    for event in first:
        decoder.feed("message", json.dumps(event))
    data, began = json.dumps(rest), time.process_time()
    for _ in range(count):
        decoder.feed("message", data)
    return time.process_time() - began


_CALL = [make_chunk(tool_calls=[make_tool(text, "add", index=0)]) for text in ('{"a": "', *"x" * 20_000, '"}')]
_TEXT = [make_chunk(reasoning_details=[{"data": "y" * 600_000}]), *(make_chunk(content="x") for _ in range(20_000))]

_SEALED = [make_chunk(reasoning_details=[{"type": "x", "data": f"d{number}"}]) for number in range(8000)]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("first", "rest"),
    [
        pytest.param(_CALL, make_chunk(tool_calls=[make_tool(" ", index=0)]), id="white space after arguments"),
        pytest.param(_SEALED, _SEALED[-1], id="a sealed part once more"),
        pytest.param(_TEXT, make_chunk(content=[{"type": "thinking"}]), id="thinking that is not kept"),
    ],
)
def test_an_event_costs_no_more_after_a_long_reply(first: list[Any], rest: Any) -> None:
    """Each one put together all that had come before, so that a reply of 16 MB took minutes."""
    assert feed_many(first, rest, 10_000) < 5 * max(feed_many([], rest, 10_000), 0.1)
