"""Malformed replies: whatever a server sends, its reply can be stored and goes back, or is a `ProviderError`."""

from __future__ import annotations

import copy
import json
import random
import time
import tracemalloc
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import settings

from clew_activities.providers import ProviderError, RedactedDecoder, Redaction
from clew_activities.providers.anthropic.provider import Anthropic
from clew_activities.providers.bedrock.provider import Bedrock
from clew_activities.providers.encoders import dump_body
from clew_activities.providers.google.provider import Google
from clew_activities.providers.interface import Provider
from clew_activities.providers.openai.responses import Responses
from clew_workflows.contract.messages import Message, canonicalize
from clew_workflows.protocol import ModelReply
from tests.support.provider_server import make_delta, make_request, make_result, start_block, stop_block

URL = "http://localhost"
HUGE = 10**400
ODD: tuple[Any, ...] = (
    *(None, True, 0, -1, 2**64, HUGE, 1.5, float("nan"), float("inf")),
    *("", "x", "\ud800", "x" * 5000, "<think>", "{}", "QQ="),
    *([], {}, [[]], [None], ["a"], {"a": 1}, {"type": "x"}, {"\ud800": "\ud800"}, {"text": 5}, [{"text": 5}]),
)
MEMBERS = ("type", "id", "text", "content", "thought", "pieces", "toolCall", "functionCall", "input", "arguments")

Event = tuple[str, Any]


def end_response(**fields: Any) -> dict[str, Any]:
    usage = {"input_tokens": 1, "output_tokens": 1, "input_tokens_details": {"cached_tokens": 1}}
    response = {"object": "response", "status": "completed", "output": [], "usage": usage, **fields}
    return {"type": "response.completed", "response": response}


def finish_item(index: int, kind: str, **fields: Any) -> dict[str, Any]:
    return {"type": "response.output_item.done", "output_index": index, "item": {"type": kind, **fields}}


def add_parts(*parts: dict[str, Any], **fields: Any) -> dict[str, Any]:
    return {"candidates": [{"content": {"role": "model", "parts": list(parts)}, **fields}]}


def change_block(index: int, **delta: Any) -> Event:
    return "contentBlockDelta", {"contentBlockIndex": index, "delta": delta}


ITEMS: list[dict[str, Any]] = [
    {
        "type": "reasoning",
        "id": "rs",
        "encrypted_content": "E",
        "summary": [{"type": "summary_text", "text": "I think"}],
    },
    {"type": "message", "id": "msg", "role": "assistant", "content": [{"type": "output_text", "text": "hello"}]},
    {"type": "function_call", "id": "fc", "call_id": "c1", "name": "add", "arguments": '{"a": 1}'},
]
CONTENT: list[dict[str, Any]] = [
    {"reasoningContent": {"reasoningText": {"text": "I think", "signature": "s"}}},
    {"reasoningContent": {"redactedContent": "QQ=="}},
    {"text": "hello"},
    {"toolUse": {"toolUseId": "t", "name": "add", "input": {"a": 1}}},
]
CONVERSE = {
    "output": {"message": {"role": "assistant", "content": CONTENT}},
    "stopReason": "tool_use",
    "usage": {"inputTokens": 1, "outputTokens": 1, "cacheReadInputTokens": 1},
}
NOTE = {"type": "url_citation", "url": "http://a", "title": "A", "start_index": 0, "end_index": 3}
SEARCH = {"type": "server_tool_use", "id": "srv_1", "name": "web_search", "input": {"query": "q"}}
FOUND = {"type": "web_search_tool_result", "tool_use_id": "srv_1", "content": [{"url": "http://a", "title": "A"}]}
PAUSED = {"type": "message_delta", "delta": {"stop_reason": "pause_turn", "container": {"id": "box"}}}
FUNCTION = {"functionCall": {"id": "f1", "name": "add", "args": {"a": 1}}, "thoughtSignature": "s"}

REPLIES: dict[str, tuple[Provider, str, list[Event]]] = {
    "responses": (
        Responses("openai", URL),
        "gpt-5.2",
        [
            ("", event)
            for event in (
                finish_item(0, "reasoning", id="rs", encrypted_content="E", summary=[{"text": "I think"}]),
                finish_item(1, "web_search_call", id="ws", action={"query": "q", "sources": [{"url": "http://a"}]}),
                finish_item(2, "code_interpreter_call", id="ci", code="1", outputs=[{"type": "logs", "logs": "1"}]),
                {"type": "response.output_text.delta", "output_index": 3, "delta": "hello"},
                finish_item(3, "message", content=[{"type": "output_text", "text": "hello", "annotations": [NOTE]}]),
                finish_item(4, "function_call", id="fc", call_id="c1", name="add", arguments='{"a": 1}'),
                end_response(),
            )
        ],
    ),
    "google": (
        Google("google", URL),
        "gemini-3-pro",
        [
            ("", event)
            for event in (
                add_parts({"text": "I think", "thought": True, "thoughtSignature": "s"}, {"text": "plain"}),
                add_parts({"executableCode": {"code": "1"}}, {"codeExecutionResult": {"output": "1"}}),
                add_parts({"toolCall": {"args": {"queries": ["q"]}}}, {"toolResponse": {"id": "x"}}),
                add_parts(
                    {"text": "sealed", "thoughtSignature": "s"},
                    FUNCTION,
                    finishReason="STOP",
                    groundingMetadata={
                        "webSearchQueries": ["q"],
                        "groundingChunks": [{"web": {"uri": "http://a", "title": "A"}}],
                        "groundingSupports": [{"segment": {"endIndex": 3}, "groundingChunkIndices": [0]}],
                    },
                ),
            )
        ],
    ),
    "anthropic": (
        Anthropic("anthropic", URL),
        "claude-opus-4-7",
        [
            ("", event)
            for event in (
                start_block(0, type="thinking", thinking="I think", signature="s"),
                start_block(1, **SEARCH),
                stop_block(1),
                start_block(2, **FOUND),
                start_block(3, type="text", text="hello", citations=[{"url": "http://a", "cited_text": "c"}]),
                make_delta(3, type="citations_delta", citation={"url": "http://b"}),
                PAUSED,
                {"type": "message_stop"},
            )
        ],
    ),
    "bedrock": (
        Bedrock("bedrock", URL),
        "anthropic.claude-sonnet-4-5",
        [
            change_block(0, reasoningContent={"text": "I think"}),
            change_block(0, reasoningContent={"signature": "s"}),
            change_block(1, reasoningContent={"redactedContent": "QQ=="}),
            change_block(2, text="hello"),
            ("contentBlockStart", {"contentBlockIndex": 3, "start": {"toolUse": {"toolUseId": "t", "name": "add"}}}),
            change_block(3, toolUse={"input": '{"a": 1}'}),
            ("messageStop", {"stopReason": "tool_use"}),
            ("metadata", {"usage": {"inputTokens": 1, "outputTokens": 1}}),
        ],
    ),
    "a whole response": (Responses("openai", URL), "gpt-5.2", [("message", end_response(output=ITEMS)["response"])]),
    "a whole reply of Converse": (
        Bedrock("bedrock", URL),
        "anthropic.claude-sonnet-4-5",
        [("message", CONVERSE)],
    ),
}

TOO_FAR = finish_item(0, "message", content=[{"text": "hi", "annotations": [{**NOTE, "end_index": HUGE}]}])
FINISHED_CALL = finish_item(1, "function_call", call_id="c", name="add", arguments="{}")

NO_TYPE = {**FINISHED_CALL, "output_index": 0, "item": {"text": "x"}}
END = end_response()
NESTED: Any = "x"
for _ in range(400):
    NESTED = [NESTED]
SEALED = change_block(0, reasoningContent={"text": "I think"})
TEXT = change_block(2, text="hi")
CALL = ("contentBlockStart", {"contentBlockIndex": 3, "start": {"toolUse": {"toolUseId": "t", "name": "add"}}})
STOP = ("messageStop", {"stopReason": "tool_use"})


def add_counts(**counts: Any) -> Event:
    return "metadata", {"usage": counts}


CASES: dict[str, tuple[str, list[Any]]] = {
    "an item without a type": ("responses", [NO_TYPE, FINISHED_CALL, end_response()]),
    "a citation that ends beyond a double": ("responses", [TOO_FAR, end_response()]),
    "a number beyond a double": (
        "responses",
        [finish_item(0, "reasoning", encrypted_content="E", n=HUGE), FINISHED_CALL, end_response()],
    ),
    "an index beyond a double": (
        "responses",
        [
            {**FINISHED_CALL, "output_index": HUGE},
            finish_item(-1, "message", content=[{"text": "hi"}]),
            end_response(),
        ],
    ),
    "counts beyond a double": (
        "responses",
        [
            FINISHED_CALL,
            end_response(usage={"input_tokens": HUGE, "output_tokens": -HUGE, "input_tokens_details": []}),
        ],
    ),
    "an item of nested lists": (
        "responses",
        [finish_item(0, "reasoning", encrypted_content="E", summary=NESTED), FINISHED_CALL, end_response()],
    ),
    "ids that are objects": (
        "responses",
        [
            finish_item(0, "reasoning", id={}, encrypted_content={"a": 1}, summary={"text": []}),
            finish_item(1, "function_call", id=[], call_id={}, name="add", arguments={"a": [None]}),
            end_response(),
        ],
    ),
    "a message whose parts are texts": (
        "responses",
        [finish_item(0, "message", content=["hi", None, {"text": {"text": "hi"}}]), FINISHED_CALL, end_response()],
    ),
    "a response whose output is an object": ("responses", [FINISHED_CALL, end_response(output={"0": {}}, usage="x")]),
    "a search whose action is a list": (
        "responses",
        [finish_item(0, "web_search_call", action=[{"query": "q"}]), FINISHED_CALL, end_response()],
    ),
    "a block whose index is beyond a double": (
        "bedrock",
        [SEALED, ("contentBlockDelta", {"contentBlockIndex": HUGE, "delta": {"text": "hi"}}), TEXT, STOP],
    ),
    "a block whose index is a text": (
        "bedrock",
        [SEALED, ("contentBlockDelta", {"contentBlockIndex": "0", "delta": {"text": "hi"}}), TEXT, STOP],
    ),
    "a delta of two kinds": (
        "bedrock",
        [
            change_block(0, reasoningContent={"text": "I think", "redactedContent": "QQ=="}, text="hi"),
            TEXT,
            CALL,
            STOP,
        ],
    ),
    "redacted reasoning that is no base64": (
        "bedrock",
        [change_block(0, reasoningContent={"redactedContent": "\ud800 ="}), SEALED, TEXT, CALL, STOP],
    ),
    "a signature that is a list": (
        "bedrock",
        [SEALED, change_block(0, reasoningContent={"signature": ["s"]}), TEXT, CALL, STOP],
    ),
    "a call whose id is an object": (
        "bedrock",
        [
            SEALED,
            ("contentBlockStart", {"contentBlockIndex": 3, "start": {"toolUse": {"toolUseId": {}, "name": "add"}}}),
            change_block(3, toolUse={"input": {"a": HUGE}}),
            STOP,
        ],
    ),
    "an input of nested lists": ("bedrock", [SEALED, CALL, change_block(3, toolUse={"input": NESTED}), STOP]),
    "counts of Converse beyond a double": (
        "bedrock",
        [TEXT, STOP, add_counts(inputTokens=HUGE, outputTokens="many", cacheReadInputTokens=-1)],
    ),
    "counts that are no numbers": ("bedrock", [TEXT, STOP, add_counts(inputTokens=float("inf"), outputTokens=True)]),
    "code beside a text that is a number": ("google", [add_parts({"executableCode": {}, "text": 5}, FUNCTION)]),
    "code with pieces": ("google", [add_parts({"executableCode": {}, "pieces": 5}, {"text": "x"}, FUNCTION)]),
    "a search whose id is a list": ("anthropic", [start_block(0, **{**SEARCH, "id": [1]}), PAUSED]),
    "a result whose id is a list": ("anthropic", [start_block(0, **{**FOUND, "tool_use_id": [1]}), PAUSED]),
    "a result with a number beyond a double": ("anthropic", [start_block(0, **FOUND, n=HUGE), PAUSED]),
}


def send_on(name: str, events: list[Event]) -> ModelReply:
    """Fold events into a reply, as a session stores it, and encode the request that has it."""
    provider, model, _ = REPLIES[name]
    request = replace(make_request(model=model), provider_tools=("web_search", "code_execution"))
    decoder = RedactedDecoder(provider.make_decoder(request), Redaction(["sk-test-hunter2"]))
    for event, data in events:
        decoder.feed(event, json.dumps(data))
    reply = ModelReply.model_validate_json(decoder.finish().model_dump_json())
    canonicalize(reply.model_dump(mode="json"))
    dump_body(provider.encode(replace(request, messages=[*request.messages, *list_messages(reply)])).body)
    return reply


def list_messages(reply: ModelReply) -> Iterator[Message]:
    message: Message = {"role": "assistant", "content": reply.content}
    if reply.tool_calls:
        message["tool_calls"] = [
            {"id": f"tc_{number}", "name": call.name, "arguments": call.arguments}
            for number, call in enumerate(reply.tool_calls)
        ]
    if reply.provider_data:
        message["provider_data"] = reply.provider_data
    yield message
    for number in range(len(reply.tool_calls)):
        yield make_result("4", f"tc_{number}")


def list_paths(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    if path:
        yield path
    members = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, member in members:
        yield from list_paths(member, (*path, key))


def damage(chance: random.Random, events: list[Event]) -> list[Event]:
    """Replace, remove, add or repeat something in some events."""
    damaged = copy.deepcopy(events)
    for _ in range(chance.choice((1, 1, 2, 3))):
        place = chance.randrange(len(damaged))
        if chance.random() < 0.1:
            damaged.insert(place, damaged[chance.randrange(len(damaged))])
            continue
        paths: list[tuple[Any, ...]] = list(list_paths(damaged[place][1]))
        if not paths:
            paths.append(("type",))
        *parents, last = chance.choice(paths)
        holder: Any = damaged[place][1]
        for key in parents:
            holder = holder[key]
        value, odd = holder[last] if isinstance(holder, list) else holder.get(last), chance.choice(ODD)
        if isinstance(value, dict) and chance.random() < 0.5:
            value[chance.choice(MEMBERS)] = copy.deepcopy(odd)
        elif isinstance(holder, dict) and chance.random() < 0.3:
            holder.pop(last, None)
        else:
            holder[last] = copy.deepcopy(odd)
    return damaged


@pytest.mark.parametrize("name", REPLIES)
def test_whatever_a_server_sends_can_be_stored_and_goes_back(name: str) -> None:
    events = REPLIES[name][2]
    assert send_on(name, events).provider_data is not None
    for seed in range(settings().max_examples * 4):
        with suppress(ProviderError):
            send_on(name, damage(random.Random(f"{name} {seed}"), events))


@pytest.mark.parametrize("case", CASES)
def test_a_malformed_part_does_not_spoil_the_next_request(case: str) -> None:
    """The next request was refused or could not be encoded, so that the session's lane was of no more use."""
    name, events = CASES[case]
    end = [add_parts(finishReason="STOP")] if name == "google" else []
    send_on(name, [event if isinstance(event, tuple) else ("", event) for event in (*events, *end)])


def make_decoder(name: str) -> RedactedDecoder:
    provider, model, _ = REPLIES[name]
    return RedactedDecoder(provider.make_decoder(make_request(model=model)), Redaction(["sk-test-hunter2"]))


def measure(name: str, event: Event, count: int) -> float:
    """Feed an event many times. Returns the seconds of it and of the reply's end."""
    decoder, data, began = make_decoder(name), json.dumps(event[1]), time.process_time()
    for _ in range(count):
        decoder.feed(event[0], data)
    with suppress(ProviderError):
        decoder.finish()
    return time.process_time() - began


def test_events_without_text_take_linear_time() -> None:
    """Each one put together all empty pieces before it: 16 MB of them took 46 seconds."""
    event = change_block(0, reasoningContent={"redactedContent": "QQ=="})
    assert measure("bedrock", event, 40_000) < 8 * max(measure("bedrock", event, 10_000), 0.1)


def test_many_sources_of_one_segment_take_a_bounded_time() -> None:
    """The end of a small reply is read on the event loop."""
    support = {"segment": {"endIndex": 1}, "groundingChunkIndices": [0] * 200_000}
    grounding = {"groundingChunks": [{"web": {"uri": "http://a"}}], "groundingSupports": [support]}
    decoder = make_decoder("google")
    decoder.feed("", json.dumps(add_parts({"text": "x"}, groundingMetadata=grounding, finishReason="STOP")))
    began = time.process_time()
    assert decoder.finish().citations == ({"url": "http://a", "start": 0, "end": 1},)
    assert time.process_time() - began < 1


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "events"),
    [
        ("anthropic", [start_block(0, type="text", text="x"), *[make_delta(0, citations=[[]] * 200_000)] * 3]),
        ("anthropic", [start_block(i, **{**FOUND, "content": [[]] * 200_000}) for i in range(3)]),
        ("google", [add_parts({"toolCall": {"args": [[]] * 200_000}})] * 3),
        ("responses", [finish_item(i, "web_search_call", action=[[]] * 200_000) for i in range(3)]),
        ("responses", [finish_item(i, "reasoning", encrypted_content=[[]] * 200_000) for i in range(3)]),
        ("responses", [end_response(output=[[]] * 200_000)] * 3),
    ],
)
def test_what_goes_back_is_bounded_before_the_end(name: str, events: list[Any]) -> None:
    """16 MB of empty lists would take half a gigabyte."""
    decoder = make_decoder(name)
    tracemalloc.start()
    try:
        for event in events:
            decoder.feed("", json.dumps(event))
        assert tracemalloc.get_traced_memory()[0] < 25_000_000
    finally:
        tracemalloc.stop()
