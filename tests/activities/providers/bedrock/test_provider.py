"""Amazon Bedrock: what is sent to each family of models, what its streams become, its signatures and its errors."""

from __future__ import annotations

import hashlib
import json
import struct
import sys
from collections.abc import Iterable
from typing import Any
from zlib import crc32

import httpx
import pytest
from botocore.credentials import Credentials
from hypothesis import given
from hypothesis import strategies as st

from clew_activities.providers import load_providers
from clew_activities.providers.aws import EXCEPTION, SECONDS_BETWEEN_SEARCHES, AwsCredentials, FrameParser
from clew_activities.providers.bedrock.models import find_family
from clew_activities.providers.bedrock.provider import Bedrock
from clew_activities.providers.bedrock.stream import BedrockDecoder
from clew_activities.providers.encoders import compare_request, dump_body
from clew_activities.providers.http import HttpSettings, stream
from clew_activities.providers.interface import ModelRequest, Signer
from clew_activities.providers.loading import ProvidersUnusable
from clew_activities.providers.provider_errors import (
    BadRequest,
    ContentRefused,
    ContextLengthExceeded,
    ErrorAnswer,
    InsufficientQuota,
    ItemRefused,
    Overloaded,
    ProviderError,
    ProviderUnavailable,
    RateLimited,
    TruncatedStream,
    Unauthorized,
    UnknownModel,
)
from clew_activities.providers.redaction import Redaction
from clew_activities.providers.reply import RedactedDecoder
from clew_workflows.contract.extras import ExtraMissing
from clew_workflows.contract.messages import Message
from clew_workflows.contract.payloads import SentRequest
from clew_workflows.protocol import ModelReply
from tests.providers import bedrock_api
from tests.providers.bedrock_api import SECRET_KEY, SESSION_TOKEN, encode_event, encode_frame
from tests.providers.strict_server import Exchange, Rule
from tests.support.provider_server import ADD, HELLO, FakeServer, make_call, make_request, make_result

CLAUDE = "us.anthropic.claude-sonnet-4-5-20250929-v1:0"
ADAPTIVE = "global.anthropic.claude-opus-4-6-v1"
OPUS_5_1 = "us.anthropic.claude-opus-5-1"
NOVA = "us.amazon.nova-pro-v1:0"
NOVA_2 = "global.amazon.nova-2-lite-v1:0"
OSS = "openai.gpt-oss-120b-1:0"
GPT = "us.openai.gpt-5.6-sol"
LLAMA = "us.meta.llama4-maverick-17b-instruct-v1:0"
DEEPSEEK = "us.deepseek.r1-v1:0"
MISTRAL = "mistral.mixtral-8x7b-instruct-v0:1"
PROFILE = "arn:aws:bedrock:us-east-1:123456789012:application-inference-profile/abcdefghijkl"
ENVIRON = bedrock_api.make_environ("https://vpce-1.example.com")
PROVIDER = Bedrock("bedrock", "https://bedrock-runtime.us-east-1.amazonaws.com", "us-east-1")

RULES_OF_OTHERS: dict[str, tuple[Rule, ...]] = {
    NOVA: (bedrock_api.refuse_for_nova,),
    NOVA_2: (bedrock_api.refuse_for_nova,),
    OSS: (bedrock_api.refuse_fields("inferenceConfig.stopSequences", "toolConfig.toolChoice", "outputConfig"),),
    GPT: (
        bedrock_api.refuse_fields(
            "inferenceConfig.stopSequences", "inferenceConfig.temperature", "toolConfig.toolChoice"
        ),
    ),
    LLAMA: (
        bedrock_api.separate_texts,
        bedrock_api.refuse_fields("inferenceConfig.stopSequences", "toolConfig.toolChoice", "outputConfig"),
    ),
    DEEPSEEK: (bedrock_api.refuse_fields("toolConfig.toolChoice", "outputConfig"),),
    MISTRAL: (bedrock_api.refuse_fields("system", "toolConfig.toolChoice"), bedrock_api.separate_texts),
    PROFILE: (bedrock_api.separate_texts, bedrock_api.refuse_fields("inferenceConfig.stopSequences")),
}
CLAUDE_RULES = tuple(rule for rule in bedrock_api.CLAUDE if rule is not bedrock_api.verify_signature)


def encode(*messages: Message, model: str = CLAUDE, **options: Any) -> dict[str, Any]:
    return PROVIDER.encode(make_request(*messages, model=model, **options)).body


def make_own(message: Message, *blocks: dict[str, Any], model: str = CLAUDE, call_id: str = "") -> Message:
    calls: dict[str, Any] = {"calls": [{"id": call_id}]} if call_id else {}
    data: Any = {"provider": "bedrock", "model": model, "blocks": list(blocks), **calls}
    return {**message, "provider_data": data}


def make_reasoning(text: str = "hm", signature: str | None = "c2ln") -> dict[str, Any]:
    reasoning = {"text": text} | ({"signature": signature} if signature else {})
    return {"reasoningContent": {"reasoningText": reasoning}}


REDACTED = {"reasoningContent": {"redactedContent": "ZGF0YQ=="}}
CONVERSATION: tuple[Message, ...] = (
    {"role": "system", "content": "Be brief."},
    {"role": "assistant", "content": "I begin."},
    HELLO,
    {"role": "user", "content": " "},
    make_call(content="I add.", a=1),
    make_result(""),
    {"role": "user", "content": "Stop!"},
    {"role": "user", "content": "Now."},
    make_own(make_call(call_id="tc_2", a=2), make_reasoning(), REDACTED, call_id="tooluse_x"),
    make_result("3", "tc_2"),
)
OPTIONS: tuple[dict[str, Any], ...] = (
    {},
    {"temperature": 1.7, "top_p": 0.9, "stop": ("END", " "), "seed": 7, "verbosity": "low", "service_tier": "flex"},
    {"tools": [ADD], "tool_choice": "required", "top_p": 0.5},
    {"tools": [ADD], "tool_choice": "add", "reasoning_effort": "high"},
    {"tools": [ADD], "tool_choice": "none", "reasoning_effort": "low"},
    {"tools": [ADD], "output_schema": {"type": "object", "properties": {"a": {"type": "string"}}}},
    {"reasoning_effort": "max", "max_output_tokens": 4000, "service_tier": "auto"},
)


@pytest.mark.parametrize("options", OPTIONS)
@pytest.mark.parametrize("model", [CLAUDE, ADAPTIVE, OPUS_5_1, *RULES_OF_OTHERS])
def test_every_model_takes_what_it_is_sent(model: str, options: dict[str, Any]) -> None:
    """A hard conversation with each of the options, against botocore's service model and the families' rules."""
    rules = (*bedrock_api.RULES, *RULES_OF_OTHERS[model]) if model in RULES_OF_OTHERS else CLAUDE_RULES
    body = encode(*CONVERSATION, model=model, **options)
    refusals = [refusal.message for rule in rules for refusal in rule(Exchange(json.loads(dump_body(body))))]
    # The signature is not one that the server has made.
    assert [message for message in refusals if "Invalid `" not in message] == []


@pytest.mark.parametrize("model", [CLAUDE, PROFILE])
def test_the_path_has_the_model_as_one_part(model: str) -> None:
    path = PROVIDER.encode(make_request(model=model)).path
    assert path.count("/") == 3
    assert ":" not in path
    assert httpx.URL(f"https://x{path}").path == f"/model/{model}/converse-stream"


def test_reasoning_goes_back_to_the_model_that_sent_it_alone() -> None:
    call = make_own(make_call(content="I add.", a=1), make_reasoning(), {"text": "I "}, REDACTED, call_id="t:1")
    conversation = (HELLO, call, make_result("2"))
    same = encode(*conversation)["messages"][1]["content"]
    assert same[:3] == [make_reasoning(), {"text": "I "}, REDACTED]
    assert same[3] == {"text": "add."}
    assert same[4]["toolUse"]["toolUseId"] == "t:1"
    other = encode(*conversation, model=ADAPTIVE)["messages"][1]["content"]
    assert [key for block in other for key in block] == ["text", "toolUse"]
    # An id with a colon is not one that every model takes.
    assert other[1]["toolUse"]["toolUseId"] == "tc_1"


def test_reasoning_without_a_signature_does_not_go_back_to_claude() -> None:
    call = make_own(make_call(a=1), make_reasoning(signature=None))
    assert "reasoningContent" not in encode(HELLO, call, make_result("2"))["messages"][1]["content"][0]
    other = make_own(make_call(a=1), make_reasoning(signature=None), model=OSS)
    blocks = encode(HELLO, other, make_result("2"), model=OSS)["messages"][1]["content"]
    assert blocks[0] == make_reasoning(signature=None)


def test_a_turn_of_reasoning_alone_is_left_out() -> None:
    empty = make_own({"role": "assistant", "content": ""}, make_reasoning())
    assert [m["role"] for m in encode(HELLO, empty, {"role": "user", "content": "?"})["messages"]] == ["user"]


@pytest.mark.parametrize(
    ("model", "effort", "fields"),
    [
        (CLAUDE, "medium", {"thinking": {"type": "enabled", "budget_tokens": 2048}}),
        (CLAUDE, "none", None),
        (
            ADAPTIVE,
            "high",
            {"thinking": {"type": "adaptive", "display": "summarized"}, "output_config": {"effort": "high"}},
        ),
        ("anthropic.claude-3-haiku-20240307-v1:0", "high", None),
        (NOVA, "high", None),
        (NOVA_2, "high", {"reasoningConfig": {"type": "enabled", "maxReasoningEffort": "medium"}}),
        (OSS, "minimal", {"reasoning_effort": "low"}),
        (GPT, "none", {"reasoning": {"effort": "none"}}),
        ("moonshotai.kimi-k2.5", "high", {"reasoning_effort": "high"}),
        ("qwen.qwen3-235b-a22b-2507-v1:0", "medium", {"reasoning_config": "high"}),
        (DEEPSEEK, "high", None),
    ],
)
def test_each_family_asks_for_reasoning_in_its_own_fields(
    model: str, effort: str, fields: dict[str, Any] | None
) -> None:
    body = encode(model=model, reasoning_effort=effort)
    assert body.get("additionalModelRequestFields") == fields


def test_newer_models_drop_reasoning_whose_beginning_has_changed() -> None:
    fields = encode(model=OPUS_5_1)["additionalModelRequestFields"]
    assert fields["thinking"]["block_binding"] == {"prefix_mismatch_behavior": "drop_block"}
    assert fields["anthropic_beta"] == ["thinking-binding-controls-2026-08-01"]


def test_cache_points_stand_where_the_family_takes_them() -> None:
    point = {"cachePoint": {"type": "default"}}
    system: Message = {"role": "system", "content": "Be brief."}
    loop = (HELLO, make_call(a=1), make_result("2"))
    claude = encode(system, *loop, tools=[ADD])
    assert (claude["system"][-1], claude["messages"][-1]["content"][-1]) == (point, point)
    assert point not in claude["toolConfig"]["tools"]
    assert encode(HELLO, tools=[ADD])["toolConfig"]["tools"][-1] == point
    nova = encode(system, *loop, tools=[ADD], model=NOVA)
    assert nova["system"][-1] == point
    assert point not in (nova["toolConfig"]["tools"][-1], nova["messages"][-1]["content"][-1])
    assert "cachePoint" not in json.dumps(encode(system, *loop, tools=[ADD], model=PROFILE))


def test_a_tool_is_declared_as_long_as_the_history_has_its_call() -> None:
    request = make_request(HELLO, make_call("gone", a=1), make_result("2"), model=CLAUDE)
    encoded = PROVIDER.encode(request)
    names = [tool["toolSpec"]["name"] for tool in encoded.body["toolConfig"]["tools"] if "toolSpec" in tool]
    assert names == ["gone"]
    assert "toolConfig" not in encode(HELLO, tools=[ADD], tool_choice="none")
    assert "toolConfig" not in encode(HELLO, tool_choice="required")


def test_the_schema_of_an_answer_is_sent_to_models_that_take_one() -> None:
    schema = {"type": "object", "properties": {"a": {"type": "string", "minLength": 1}}, "required": ["a"]}
    request = make_request(model=CLAUDE, output_schema=schema)
    sent = PROVIDER.encode(request).body["outputConfig"]["textFormat"]["structure"]["jsonSchema"]
    assert json.loads(sent["schema"])["additionalProperties"] is False
    for model in (NOVA, OPUS_5_1):
        encoded = PROVIDER.encode(make_request(model=model, output_schema=schema))
        assert encoded.fitting
        assert encoded.fitting.options["output_schema"] == "in the prompt"
        assert '"minLength"' in json.dumps(encoded.body["system"][-1]).replace("\\", "")


def test_what_is_left_out_is_described() -> None:
    options: dict[str, Any] = {"temperature": 1.5, "top_p": 0.9, "stop": ("END",), "seed": 1, "verbosity": "low"}
    request = make_request(
        model=OSS, tools=[ADD], tool_choice="add", reasoning_effort="xhigh", service_tier="auto", **options
    )
    fitting = PROVIDER.encode(ModelRequest(**{**vars(request), "provider_tools": ("web_search",)})).fitting
    assert fitting
    assert fitting.options == {
        "seed": "left out",
        "verbosity": "left out",
        "temperature": "1.0",
        "stop": "left out",
        "service_tier": "left out",
        "tool_choice": "left out",
        "reasoning_effort": "high",
    }
    assert set(fitting.tools_left_out) == {"web_search"}


def test_the_callers_own_fields_are_merged_unless_clew_writes_them() -> None:
    own = {"performanceConfig": {"latency": "optimized"}, "inferenceConfig": {"topP": 0.3}}
    body = encode(provider_options={"bedrock": own})
    assert body["performanceConfig"] == own["performanceConfig"]
    assert body["inferenceConfig"] == {"maxTokens": 4096, "topP": 0.3}
    with pytest.raises(BadRequest):
        encode(provider_options={"bedrock": {"toolConfig": {}}})


# Replies


def feed(decoder: BedrockDecoder, events: Iterable[tuple[str, Any]]) -> BedrockDecoder:
    for name, value in events:
        decoder.feed(name, json.dumps(value))
    return decoder


def make_delta(index: int, **delta: Any) -> tuple[str, Any]:
    return "contentBlockDelta", {"contentBlockIndex": index, "delta": delta}


def start_call(index: int, call_id: str, name: str) -> tuple[str, Any]:
    start = {"toolUse": {"toolUseId": call_id, "name": name}}
    return "contentBlockStart", {"contentBlockIndex": index, "start": start}


USAGE = {
    "inputTokens": 10,
    "outputTokens": 33,
    "totalTokens": 133,
    "cacheReadInputTokens": 70,
    "cacheWriteInputTokens": 20,
}
STREAM: list[tuple[str, Any]] = [
    ("messageStart", {"role": "assistant", "p": "abc"}),
    make_delta(0, reasoningContent={"text": "Let me "}),
    make_delta(0, reasoningContent={"text": "think."}),
    make_delta(0, reasoningContent={"signature": "c2ln"}),
    ("contentBlockStop", {"contentBlockIndex": 0}),
    make_delta(1, reasoningContent={"redactedContent": "ZGF0YQ=="}),
    make_delta(2, text="I will "),
    make_delta(2, text="add."),
    start_call(3, "tooluse_1", "add"),
    make_delta(3, toolUse={"input": ""}),
    make_delta(3, toolUse={"input": '{"a": 1, '}),
    make_delta(3, toolUse={"input": '"b": 2}'}),
    start_call(4, "tooluse_2", "now"),
    ("messageStop", {"stopReason": "tool_use"}),
    ("metadata", {"usage": USAGE, "metrics": {"latencyMs": 1}}),
]
WHOLE = {
    "output": {
        "message": {
            "role": "assistant",
            "content": [
                make_reasoning("Let me think."),
                REDACTED,
                {"text": "I will add."},
                {"toolUse": {"toolUseId": "tooluse_1", "name": "add", "input": {"a": 1, "b": 2}}},
                {"toolUse": {"toolUseId": "tooluse_2", "name": "now", "input": {}}},
            ],
        }
    },
    "stopReason": "tool_use",
    "usage": USAGE,
}


@pytest.mark.parametrize("events", [STREAM, [("message", WHOLE)]], ids=["stream", "whole"])
def test_a_reply_has_its_text_its_calls_and_what_goes_back(events: list[tuple[str, Any]]) -> None:
    decoder = feed(BedrockDecoder("bedrock", CLAUDE), events)
    reply = decoder.finish()
    assert (decoder.ended, reply.content, reply.thinking) == (True, "I will add.", "Let me think.")
    assert [(call.name, call.arguments) for call in reply.tool_calls] == [("add", {"a": 1, "b": 2}), ("now", {})]
    assert reply.provider_data == {
        "provider": "bedrock",
        "model": CLAUDE,
        "blocks": [make_reasoning("Let me think."), REDACTED],
        "calls": [{"id": "tooluse_1"}, {"id": "tooluse_2"}],
    }
    assert (reply.usage.input_tokens, reply.usage.output_tokens) == (100, 33)
    assert (reply.usage.cached_input_tokens, reply.usage.written_input_tokens) == (70, 20)


def test_every_beginning_of_a_stream_is_cut_until_it_says_that_it_ends() -> None:
    for length in range(len(STREAM) - 2):
        with pytest.raises(TruncatedStream):
            feed(BedrockDecoder("bedrock", CLAUDE), STREAM[:length]).finish()
    assert feed(BedrockDecoder("bedrock", CLAUDE), STREAM[:-1]).finish().content == "I will add."


def test_reasoning_that_came_in_two_pieces_of_base64_goes_back_as_one() -> None:
    pieces = [make_delta(0, reasoningContent={"redactedContent": piece}) for piece in ("YQ==", "YmM=")]
    reply = feed(BedrockDecoder("bedrock", CLAUDE), [*pieces, make_delta(1, text="x"), *STREAM[-2:]]).finish()
    assert reply.provider_data
    assert reply.provider_data["blocks"] == [{"reasoningContent": {"redactedContent": "YWJj"}}]


@pytest.mark.parametrize(
    ("reason", "expected"),
    [("end_turn", "stop"), ("stop_sequence", "stop"), ("max_tokens", "length"), ("new_reason", "stop"),
     ("model_context_window_exceeded", "length")],
)  # fmt: skip
def test_a_stop_reason_becomes_the_contracts(reason: str, expected: str) -> None:
    events = [make_delta(0, text="x"), ("messageStop", {"stopReason": reason})]
    assert feed(BedrockDecoder("bedrock", CLAUDE), events).finish().stop_reason == expected


@pytest.mark.parametrize(
    ("reason", "error"),
    [
        ("guardrail_intervened", ContentRefused),
        ("content_filtered", ContentRefused),
        ("malformed_tool_use", TruncatedStream),
        ("malformed_model_output", TruncatedStream),
    ],
)
def test_a_reply_that_is_none_is_an_error_and_is_paid_for(reason: str, error: type[ProviderError]) -> None:
    events = [make_delta(0, text="Not that."), ("messageStop", {"stopReason": reason}), STREAM[-1]]
    decoder = feed(BedrockDecoder("bedrock", CLAUDE), events)
    assert decoder.usage.output_tokens == 33
    with pytest.raises(error):
        decoder.finish()


# Streams and signatures, over HTTP


def make_provider(server: FakeServer) -> Bedrock:
    return Bedrock("bedrock", server.url, "us-east-1", AwsCredentials(ENVIRON))


async def call(
    server: FakeServer, client: httpx.AsyncClient, provider: Bedrock | None = None, **settings: Any
) -> ModelReply:
    provider = provider or make_provider(server)
    request = make_request(model=CLAUDE)
    redaction = Redaction(provider.secrets, provider.secret_headers)
    decoder = RedactedDecoder(provider.make_decoder(request), redaction)
    return await stream(client, provider, request, decoder, settings=HttpSettings(**settings))


async def fail(
    server: FakeServer, client: httpx.AsyncClient, *frames: bytes | None, **settings: Any
) -> ProviderError:
    server.answer(*frames, content_type="application/vnd.amazon.eventstream")
    with pytest.raises(ProviderError) as caught:
        await call(server, client, **settings)
    return caught.value


FRAMES = b"".join(encode_event(name, value) for name, value in STREAM)


@pytest.mark.parametrize("size", [1, 7, 100, len(FRAMES)])
async def test_frames_are_read_however_they_arrive(server: FakeServer, client: httpx.AsyncClient, size: int) -> None:
    parts = [FRAMES[at : at + size] for at in range(0, len(FRAMES), size)]
    server.answer(*parts, content_type="application/vnd.amazon.eventstream")
    reply = await call(server, client)
    assert (reply.content, len(reply.tool_calls)) == ("I will add.", 2)
    assert server.received[0].headers["accept"] == "application/vnd.amazon.eventstream"


async def test_every_damaged_byte_is_noticed(server: FakeServer, client: httpx.AsyncClient) -> None:
    """Lengths, headers, payload and checksums: no damage becomes a reply."""
    frame = encode_event(*make_delta(0, text="x"))
    for place in range(len(frame)):
        damaged = bytes([*frame[:place], frame[place] ^ 0x21, *frame[place + 1 :]])
        error = await fail(server, client, damaged + FRAMES)
        assert isinstance(error, TruncatedStream), place


@pytest.mark.parametrize("kind", range(12))
async def test_a_header_without_its_value_is_damage(kind: int, server: FakeServer, client: httpx.AsyncClient) -> None:
    """Its checksums may be right all the same. A type of 0 or 1 is a value of its own."""
    headers = b"\x01x" + bytes([kind])
    prelude = struct.pack("!II", 16 + len(headers), len(headers))
    message = prelude + struct.pack("!I", crc32(prelude)) + headers
    error = await fail(server, client, message + struct.pack("!I", crc32(message)))
    assert isinstance(error, TruncatedStream)


async def test_a_stream_that_ends_within_a_frame_is_cut(server: FakeServer, client: httpx.AsyncClient) -> None:
    for length in (1, 11, 12, 40, len(FRAMES) - 500):
        assert isinstance(await fail(server, client, FRAMES[:length]), TruncatedStream)
        assert isinstance(await fail(server, client, FRAMES[:length], None), TruncatedStream)


async def test_frames_and_their_headers_have_bounds(server: FakeServer, client: httpx.AsyncClient) -> None:
    """A length is refused before the bytes arrive."""
    long = encode_event(*make_delta(0, text="x" * 50_000))
    assert isinstance(await fail(server, client, long[:16], event_size=40_000), TruncatedStream)
    headers = encode_frame({f"h{number}": "x" * 200 for number in range(60)}, b"{}")
    assert isinstance(await fail(server, client, headers[:16]), TruncatedStream)
    many = encode_event(*make_delta(0, text="x" * 1000)) * 100
    assert isinstance(await fail(server, client, many, reply_bytes=50_000), TruncatedStream)
    assert isinstance(await fail(server, client, b"\x00" * 100), TruncatedStream)


async def test_frames_that_are_no_events_are_ignored(server: FakeServer, client: httpx.AsyncClient) -> None:
    frames = encode_frame({}, b"{}") + encode_frame({":event-type": "x", ":message-type": "event"}, b"")
    server.answer(frames + encode_event("new", {"a": 1}) + FRAMES, content_type="application/vnd.amazon.eventstream")
    assert (await call(server, client)).content == "I will add."


@pytest.mark.parametrize(
    ("name", "message", "error"),
    [
        ("throttlingException", "Too many tokens, please wait before trying again.", RateLimited),
        ("throttlingException", "Too many tokens per day, please wait before trying again.", InsufficientQuota),
        ("serviceUnavailableException", "Bedrock is unable to process your request.", ProviderUnavailable),
        ("internalServerException", "", ProviderUnavailable),
        ("modelStreamErrorException", "The system encountered an unexpected error", ProviderUnavailable),
        ("validationException", "Input is too long for requested model.", ContextLengthExceeded),
        ("validationException", "The model returned the following errors: x", ItemRefused),
    ],
)
async def test_an_exception_in_a_stream_becomes_an_error(
    server: FakeServer, client: httpx.AsyncClient, name: str, message: str, error: type[ProviderError]
) -> None:
    frames = encode_event(*make_delta(0, text="x")) + encode_event(name, {"message": message}, "exception")
    found = await fail(server, client, frames)
    assert type(found) is error
    assert message in found.message


async def test_an_error_that_no_service_model_has_becomes_one(server: FakeServer, client: httpx.AsyncClient) -> None:
    headers = {":message-type": "error", ":error-code": "ThrottlingException", ":error-message": "slow down"}
    found = await fail(server, client, encode_frame(headers, b""))
    assert (type(found), found.message) == (RateLimited, "slow down")


def read_error(status: int, kind: str, message: str) -> ProviderError:
    headers = {"x-amzn-errortype": f"{kind}:http://internal.amazon.com/coral/com.amazon.bedrock/"}
    body = json.dumps({"message": message})
    return PROVIDER.read_error(ErrorAnswer(status=status, headers=headers, body=body, at=0.0))


@pytest.mark.parametrize(
    ("status", "kind", "message", "error"),
    [
        (400, "ValidationException", "Input is too long for requested model.", ContextLengthExceeded),
        (
            400,
            "ValidationException",
            "The model returned the following errors: Input Tokens Exceeded: Number of input tokens exceeds maximum "
            "length. Please update the input to try again.",
            ContextLengthExceeded,
        ),
        (400, "ValidationException", "The provided model identifier is invalid.", UnknownModel),
        (
            400,
            "ValidationException",
            "Invocation of model ID x with on-demand throughput isn\u2019t supported. Retry your request with the ID "
            "or ARN of an inference profile that contains this model.",
            UnknownModel,
        ),
        (404, "ResourceNotFoundException", "Could not resolve the foundation model from x", UnknownModel),
        (400, "ValidationException", "The value at messages.0 is wrong", ItemRefused),
        (
            403,
            "AccessDeniedException",
            "You don't have access to the model with the specified model ID.",
            Unauthorized,
        ),
        (403, "ExpiredTokenException", "The security token included in the request is expired", Unauthorized),
        (429, "ThrottlingException", "Too many requests, please wait before trying again.", RateLimited),
        (429, "ThrottlingException", "Too many tokens per day, please wait before trying again.", InsufficientQuota),
        (429, "ModelNotReadyException", "Model is not ready for inference.", Overloaded),
        (408, "ModelTimeoutException", "Model has timed out in processing the request.", ProviderUnavailable),
        (424, "ModelErrorException", "The model failed", ProviderUnavailable),
        (503, "ServiceUnavailableException", "Service unavailable", ProviderUnavailable),
        (500, "InternalServerException", "x", ProviderUnavailable),
    ],
)
def test_an_error_response_has_its_class(status: int, kind: str, message: str, error: type[ProviderError]) -> None:
    found = read_error(status, kind, message)
    assert type(found) is error
    assert message in found.message


def test_an_error_without_json_has_its_text() -> None:
    answer = ErrorAnswer(status=403, headers={}, body='{"Message": "User: x is not authorized"}', at=0.0)
    assert PROVIDER.read_error(answer).message == "User: x is not authorized"
    answer = ErrorAnswer(status=502, headers={}, body="<html>Bad Gateway", at=0.0)
    assert isinstance(PROVIDER.read_error(answer), ProviderUnavailable)


async def test_a_request_is_signed_for_what_is_sent(server: FakeServer, client: httpx.AsyncClient) -> None:
    """Botocore makes the same signature of the request as it arrives; another key or body has another one."""
    server.answer(FRAMES, content_type="application/vnd.amazon.eventstream")
    await call(server, client)
    got = server.received[0]
    raw = dump_body(make_provider(server).encode(make_request(model=CLAUDE)).body)
    exchange = Exchange(got.body, got.headers, (), got.path, raw)
    assert list(bedrock_api.verify_signature(exchange)) == []
    for changed in (
        Exchange(got.body, got.headers, (), got.path, raw + b" "),
        Exchange(got.body, got.headers, (), got.path.replace("%3A", ":"), raw),
        Exchange(got.body, {**got.headers, "content-type": "text/plain"}, (), got.path, raw),
    ):
        assert [refusal.status for refusal in bedrock_api.verify_signature(changed)] == [403]


async def test_a_bedrock_key_is_sent_instead_of_a_signature(server: FakeServer, client: httpx.AsyncClient) -> None:
    environ = {**ENVIRON, "CLEW_BEDROCK_BASE_URL": server.url, "AWS_BEARER_TOKEN_BEDROCK": "bedrock-api-key-x"}
    provider = load_providers(environ).get("bedrock")
    assert isinstance(provider, Bedrock)
    server.answer(FRAMES, content_type="application/vnd.amazon.eventstream")
    await call(server, client, provider)
    headers = server.received[0].headers
    assert headers["authorization"] == "Bearer bedrock-api-key-x"
    assert "x-amz-date" not in headers
    assert "bedrock-api-key-x" in provider.secrets
    assert "bedrock-api-key-x" not in repr(provider)


async def test_no_error_tells_a_token_that_only_a_header_has(server: FakeServer, client: httpx.AsyncClient) -> None:
    """AWS repeats the headers of a request whose signature is wrong. A role's token is in no variable."""
    said = f"should have been 'POST\n/model\n\nhost:x\nx-amz-security-token:{SESSION_TOKEN}\n' with {SECRET_KEY}"
    server.answer_json({"message": said}, status=403, x_amzn_errortype="InvalidSignatureException")
    provider = make_provider(server)
    request = make_request(model=CLAUDE)
    decoder = RedactedDecoder(provider.make_decoder(request), Redaction([SECRET_KEY], provider.secret_headers))
    with pytest.raises(Unauthorized) as caught:
        await stream(client, provider, request, decoder)
    assert SESSION_TOKEN not in caught.value.message
    assert SECRET_KEY not in caught.value.message


async def test_a_reply_that_repeats_a_token_of_a_header_is_redacted(
    server: FakeServer, client: httpx.AsyncClient
) -> None:
    """Also one that AWS's package has found outside of the environment."""
    events = (make_delta(0, text=f"Your token is {SESSION_TOKEN}."), ("messageStop", {"stopReason": "end_turn"}))
    server.answer(
        b"".join(encode_event(name, value) for name, value in events),
        content_type="application/vnd.amazon.eventstream",
    )
    provider = make_provider(server)
    request = make_request(model=CLAUDE)
    decoder = RedactedDecoder(provider.make_decoder(request), Redaction([SECRET_KEY], provider.secret_headers))
    reply = await stream(client, provider, request, decoder)
    assert reply.text.startswith("Your token is ")
    assert SESSION_TOKEN not in reply.text
    assert SESSION_TOKEN not in decoder.text


async def test_a_worker_without_credentials_is_told_so(
    server: FakeServer, client: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", "/nowhere")
    monkeypatch.setenv("AWS_CONFIG_FILE", "/nowhere")
    provider = Bedrock("bedrock", server.url, "us-east-1", AwsCredentials({}))
    with pytest.raises(Unauthorized):
        await call(server, client, provider)
    assert server.received == []


def test_a_search_that_finds_no_credentials_is_not_repeated_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Calls fail at once for a minute; then credentials that are there meanwhile are found and kept."""
    now = [0.0]
    found: list[Credentials | None] = [None, Credentials("AKIAEXAMPLE", "a-secret-key")]
    searches = []

    def search(_session: object) -> Credentials | None:
        searches.append(now[0])
        return found[len(searches) - 1]

    monkeypatch.setattr("botocore.session.Session.get_credentials", search)
    credentials = AwsCredentials({}, clock=lambda: now[0])

    def sign() -> dict[str, str]:
        return credentials.sign(
            "https://x.example/", "application/json", b"{}", service="bedrock", region="us-east-1"
        )

    for second in (0.0, 30.0, SECONDS_BETWEEN_SEARCHES - 1):
        now[0] = second
        with pytest.raises(Unauthorized):
            sign()
    assert searches == [0.0]
    for second in (SECONDS_BETWEEN_SEARCHES, SECONDS_BETWEEN_SEARCHES * 3):
        now[0] = second
        assert "AKIAEXAMPLE" in sign()["authorization"]
    assert searches == [0.0, SECONDS_BETWEEN_SEARCHES]


async def test_a_profile_that_there_is_not_can_be_corrected(server: FakeServer, client: httpx.AsyncClient) -> None:
    provider = Bedrock("bedrock", server.url, "us-east-1", AwsCredentials({"AWS_PROFILE": "no-such-profile"}))
    with pytest.raises(ProviderUnavailable):
        await call(server, client, provider)


# The environment, with and without the extra


def test_the_region_decides_whether_there_is_the_provider() -> None:
    assert load_providers({"AWS_REGION": "us-east-1", "AWS_ACCESS_KEY_ID": "x"}).names == ()
    providers = load_providers(ENVIRON)
    assert (providers.names, providers.get("bedrock").base_url) == (("bedrock",), "https://vpce-1.example.com")
    assert isinstance(providers.get("bedrock"), Signer)
    hosts = [
        load_providers({"CLEW_BEDROCK_REGION": region}).get("bedrock").base_url
        for region in ("eu-central-1", "us-gov-west-1", "cn-north-1")
    ]
    assert hosts == [
        "https://bedrock-runtime.eu-central-1.amazonaws.com",
        "https://bedrock-runtime.us-gov-west-1.amazonaws.com",
        "https://bedrock-runtime.cn-north-1.amazonaws.com.cn",
    ]


@pytest.mark.parametrize(
    ("environ", "said"),
    [
        ({"CLEW_BEDROCK_REGION": "evil.example.com/"}, "CLEW_BEDROCK_REGION is not the name of a region"),
        ({"CLEW_BEDROCK_BASE_URL": "https://x"}, "CLEW_BEDROCK_REGION is not: set the region too"),
    ],
)
def test_a_variable_that_cannot_be_used_is_named(environ: dict[str, str], said: str) -> None:
    with pytest.raises(ProvidersUnusable) as caught:
        load_providers(environ)
    assert said in str(caught.value)


def test_a_worker_without_the_extra_says_how_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the variable it starts, and a session that names the provider learns what to do."""
    monkeypatch.setitem(sys.modules, "botocore", None)
    with pytest.raises(UnknownModel) as unknown:
        load_providers({"OPENAI_API_KEY": "sk-1"}).get("bedrock")
    assert "pip install 'clew[bedrock]'" in unknown.value.message
    assert "CLEW_BEDROCK_REGION" in unknown.value.message
    with pytest.raises(ExtraMissing) as unusable:
        load_providers(ENVIRON)
    assert "pip install 'clew[bedrock]'" in str(unusable.value)


def test_an_audit_encodes_a_call_again_without_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "botocore", None)
    request = make_request(*CONVERSATION, model=CLAUDE, tools=[ADD])
    encoded = PROVIDER.encode(request)
    digest = hashlib.sha256(dump_body(encoded.body)).hexdigest()
    sent = SentRequest(digest=digest, encoder=encoded.encoder, dialect=encoded.dialect)
    assert compare_request(request, "bedrock", sent).status == "same"
    changed = make_request(*CONVERSATION, HELLO, model=CLAUDE, tools=[ADD])
    assert compare_request(changed, "bedrock", sent).status == "different"


async def test_a_worker_without_the_extra_does_not_read_a_stream_of_aws(
    server: FakeServer, client: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "botocore", None)
    provider = Bedrock("bedrock", server.url, "us-east-1", api_key="bedrock-api-key-x")
    server.answer(FRAMES, content_type="application/vnd.amazon.eventstream")
    with pytest.raises(BadRequest) as caught:
        await call(server, client, provider)
    assert "clew[bedrock]" in caught.value.message


@pytest.mark.parametrize(
    ("model", "streams"), [(CLAUDE, True), (NOVA, True), (LLAMA, False), ("ai21.jamba-1-5-large-v1:0", False)]
)
def test_models_that_cannot_stream_calls_answer_at_once(model: str, streams: bool) -> None:
    assert find_family(model).streams_tools == streams
    encoded = PROVIDER.encode(make_request(model=model, tools=[ADD]))
    assert encoded.path.endswith("/converse-stream" if streams else "/converse")
    assert PROVIDER.encode(make_request(model=model)).path.endswith("/converse-stream")


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(st.characters(exclude_categories=())),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=6,
)
REASONING = JSON | st.fixed_dictionaries(
    {}, optional=dict.fromkeys(("text", "signature", "redactedContent", "reasoningText"), JSON)
)
USE = JSON | st.fixed_dictionaries({}, optional=dict.fromkeys(("toolUseId", "name", "input", "type"), JSON))
BLOCK = JSON | st.fixed_dictionaries(
    {}, optional={"text": JSON, "reasoningContent": REASONING, "toolUse": USE, "citation": JSON}
)
INDEX = JSON | st.integers(0, 2)
REASONS = JSON | st.sampled_from(("end_turn", "tool_use", "max_tokens", "guardrail_intervened", "malformed_tool_use"))
USAGES = JSON | st.fixed_dictionaries({}, optional=dict.fromkeys(("inputTokens", "outputTokens"), JSON))
MESSAGE = JSON | st.fixed_dictionaries({"message": JSON | st.fixed_dictionaries({"content": st.lists(BLOCK)})})
EVENTS = st.one_of(
    st.tuples(st.just("contentBlockStart"), st.fixed_dictionaries({"contentBlockIndex": INDEX, "start": BLOCK})),
    st.tuples(st.just("contentBlockDelta"), st.fixed_dictionaries({"contentBlockIndex": INDEX, "delta": BLOCK})),
    st.tuples(st.just("messageStop"), st.fixed_dictionaries({"stopReason": REASONS})),
    st.tuples(st.just("metadata"), st.fixed_dictionaries({"usage": USAGES})),
    st.tuples(st.just("message"), st.fixed_dictionaries({"output": MESSAGE, "stopReason": REASONS, "usage": USAGES})),
    st.tuples(st.sampled_from((EXCEPTION, "messageStart", "x")), JSON),
)


@pytest.mark.slow
@given(st.lists(EVENTS, max_size=6))
def test_whatever_arrives_is_a_reply_that_can_be_stored_or_a_typed_error(events: list[tuple[str, Any]]) -> None:
    try:
        decoder = BedrockDecoder("bedrock", CLAUDE)
        for event, value in (*events, ("messageStop", {"stopReason": "end_turn"})):
            decoder.feed(event, json.dumps(value))
        reply = decoder.finish()
        reply.model_dump_json().encode()
        json.dumps(reply.provider_data, ensure_ascii=False).encode()
    except ProviderError as error:
        error.message.encode()


@given(st.binary(max_size=200), st.integers(0, 250), st.integers(0, 60))
def test_damaged_frames_are_a_typed_error_or_events(noise: bytes, place: int, cut: int) -> None:
    """Bytes that were changed, lost or added are found by the lengths and the checksums of the frames."""
    body = encode_event("contentBlockDelta", {"contentBlockIndex": 0, "delta": {"text": "x"}}) * 2
    damaged = body[:place] + noise + body[place + cut :]
    parser, count = FrameParser(100_000), 0
    try:
        for start in range(0, len(damaged), 7):
            for name, _ in parser.feed(damaged[start : start + 7]):
                assert name == "contentBlockDelta"
                count += 1
        parser.finish()
    except TruncatedStream:
        assert damaged != body
    else:
        assert count == 2 or damaged != body
