"""OpenAI's Responses: what is sent, what of a reply goes back, and what a stream folds into."""

from __future__ import annotations

import hashlib
import json
from typing import Any

import httpx2
import openai
import pytest
from hypothesis import given
from hypothesis import strategies as st
from openai.types.responses.response_create_params import ResponseCreateParamsStreaming

from clew_activities.providers.encoders import compare_request, dump_body
from clew_activities.providers.interface import ModelRequest
from clew_activities.providers.openai.responses import Responses
from clew_activities.providers.openai.responses_stream import MAX_ITEMS, ResponsesDecoder
from clew_activities.providers.provider_errors import (
    BadRequest,
    ContentRefused,
    ContextLengthExceeded,
    EmptyReply,
    InsufficientQuota,
    ItemRefused,
    OutputExhausted,
    Overloaded,
    PromptRefused,
    ProviderError,
    ProviderUnavailable,
    RateLimited,
    TruncatedStream,
)
from clew_activities.providers.reply import MAX_TOOL_CALLS
from clew_workflows.contract.messages import Message, ProviderData
from clew_workflows.contract.payloads import SentRequest
from tests.support.provider_server import (
    ADD,
    HELLO,
    FakeServer,
    assert_accepted,
    decode,
    encode_events,
    make_call,
    make_request,
    make_result,
)

OFFICIAL = Responses("openai", "https://api.openai.com/v1", api_key="sk-secret")
MODEL = "gpt-5.6-sol"

REASONING = {"id": "rs_1", "type": "reasoning", "summary": [], "encrypted_content": "gAAAsealed"}
COMMENTARY = {
    "id": "msg_1",
    "type": "message",
    "role": "assistant",
    "status": "completed",
    "phase": "commentary",
    "content": [{"type": "output_text", "text": "I add.", "annotations": []}],
}
CALL = {"type": "function_call", "id": "fc_1"}


def make_own(*blocks: dict[str, Any], content: str = "I add.", model: str = MODEL) -> Message:
    """Make a message with one call, and what this provider has sent with it."""
    data: ProviderData = {
        "provider": "openai",
        "blocks": list(blocks),
        "calls": [{"id": "call_a"}],
        "model": model,
    }
    return {**make_call(content=content, a=1, b=2), "provider_data": data}


def encode_input(*messages: Message, model: str = MODEL, **options: Any) -> list[dict[str, Any]]:
    items: list[dict[str, Any]] = OFFICIAL.encode(make_request(*messages, model=model, **options)).body["input"]
    return items


# Requests


@pytest.mark.parametrize("model", [MODEL, "gpt-5", "o3", "gpt-4.1", "gpt-5-chat-latest", "house-blend"])
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"tools": [ADD], "tool_choice": "auto", "temperature": 0.5, "top_p": 0.9, "seed": 7, "stop": ("END",)},
        {"tools": [ADD], "tool_choice": "add", "reasoning_effort": "high", "verbosity": "low"},
        {"output_schema": {"type": "object", "properties": {}}, "cache_key": "k", "service_tier": "flex"},
    ],
)
def test_a_body_is_what_the_official_package_would_send(model: str, options: dict[str, Any]) -> None:
    messages: list[Message] = [
        {"role": "system", "content": "Be brief."},
        HELLO,
        make_own(REASONING, COMMENTARY, CALL),
        make_result("3"),
        {"role": "assistant", "content": "It is 3."},
        {"role": "user", "content": "And now?"},
    ]
    call = OFFICIAL.encode(make_request(*messages, model=model, **options))
    assert (call.path, call.encoder) == ("/responses", "openai-responses/1")
    assert (call.body["store"], call.body["stream"]) == (False, True)
    assert_accepted(ResponseCreateParamsStreaming, call.body)


def test_the_key_is_in_one_header_and_in_no_repr() -> None:
    call = OFFICIAL.encode(make_request())
    assert call.headers == {"authorization": "Bearer sk-secret"}
    assert "sk-secret" not in repr(OFFICIAL) + repr(call) + json.dumps(call.body)


def test_what_the_model_sent_goes_back_in_its_order_and_unchanged() -> None:
    """The call has its id, its name and its arguments from the thread."""
    items = encode_input(HELLO, make_own(REASONING, COMMENTARY, CALL), make_result("3"))
    call = {**CALL, "call_id": "call_a", "name": "add", "arguments": '{"a": 1, "b": 2}'}
    result = {"type": "function_call_output", "call_id": "call_a", "output": "3"}
    assert items[1:] == [REASONING, COMMENTARY, call, result]


@pytest.mark.parametrize(
    "message",
    [
        make_own(REASONING, COMMENTARY, CALL, model="gpt-5.4"),
        make_own(REASONING, COMMENTARY, CALL, content="I subtract."),
        make_own(REASONING, COMMENTARY),
        make_own(REASONING, COMMENTARY, CALL, CALL),
        make_own({"reasoning_content": "of Chat Completions"}),
    ],
)
def test_items_that_another_model_made_or_that_do_not_fit_do_not_go_back(message: Message) -> None:
    """The API refuses some items without the others, and an id without its reasoning."""
    text, call, _ = encode_input(message, make_result("3"))
    assert text["content"] == message["content"]
    assert "id" not in text
    assert "id" not in call
    assert (call["type"], call["name"]) == ("function_call", "add")


def test_reasoning_that_nothing_follows_is_left_out() -> None:
    items = encode_input(make_own(COMMENTARY, CALL, REASONING), make_result("3"))
    assert [item["type"] for item in items] == ["message", "function_call", "function_call_output"]


@pytest.mark.parametrize(
    ("model", "phases"),
    [
        ("gpt-5.3-codex", ["commentary", "final_answer"]),
        ("gpt-5.4", ["commentary", "final_answer"]),
        ("gpt-6-astra", ["commentary", "final_answer"]),
        ("gpt-5.2", [None, None]),
        ("gpt-4.1", [None, None]),
        ("house-blend", [None, None]),
    ],
)
def test_the_phase_of_a_message_is_said_to_models_that_have_phases(model: str, phases: list[str | None]) -> None:
    last: Message = {"role": "assistant", "content": "Three."}
    items = encode_input(make_call(content="I add.", a=1), make_result("3"), last, model=model)
    assert [item.get("phase") for item in items if item.get("role") == "assistant"] == phases


@pytest.mark.parametrize(
    ("model", "effort", "sent"),
    [
        ("gpt-5", "none", None),
        ("gpt-5-mini", "minimal", "minimal"),
        ("gpt-5-pro", "low", "high"),
        ("gpt-5-codex", "minimal", "low"),
        ("gpt-5.1", "none", "none"),
        ("gpt-5.1", "max", "high"),
        ("gpt-5.1-codex-max", "max", "xhigh"),
        ("gpt-5.2-pro", "low", "medium"),
        ("gpt-5.4-2026-03-05", "xhigh", "xhigh"),
        ("gpt-5.5", "max", "xhigh"),
        ("gpt-5.6-terra", "max", "max"),
        ("gpt-6-luna", "none", "none"),
        ("gpt-6-astra", "none", None),
        ("gpt-6.1-sol", "minimal", "low"),
        ("openai/o3", "xhigh", "high"),
        ("gpt-4.1", "high", None),
        ("gpt-5.2-chat-latest", "high", None),
        ("house-blend", "xhigh", "xhigh"),
    ],
)
def test_a_level_of_reasoning_is_the_nearest_that_the_model_has(model: str, effort: str, sent: str | None) -> None:
    call = OFFICIAL.encode(make_request(model=model, reasoning_effort=effort))
    assert call.body.get("reasoning", {}).get("effort") == sent
    assert (call.body.get("reasoning", {}).get("summary") == "auto") == (sent not in (None, "none"))
    assert call.fitting
    assert call.fitting.options.get("reasoning_effort") == (None if sent == effort else sent or "left out")


@pytest.mark.parametrize(
    ("model", "effort", "temperature", "encrypted"),
    [
        ("gpt-4.1", None, True, False),
        ("gpt-5", None, False, True),
        ("gpt-5.2", "none", True, True),
        ("gpt-5.2", "low", False, True),
        ("gpt-5-chat-latest", None, False, False),
        ("house-blend", None, True, False),
        ("house-blend", "low", True, True),
    ],
)
def test_a_model_gets_the_temperature_and_the_reasoning_that_it_takes(
    model: str, effort: str | None, temperature: bool, encrypted: bool
) -> None:
    call = OFFICIAL.encode(make_request(model=model, reasoning_effort=effort, temperature=0.5, top_p=0.9))
    assert ("temperature" in call.body, "top_p" in call.body) == (temperature, temperature)
    assert (call.body.get("include") == ["reasoning.encrypted_content"]) == encrypted


def test_a_limit_below_the_apis_smallest_is_raised() -> None:
    call = OFFICIAL.encode(make_request(max_output_tokens=5))
    assert call.body["max_output_tokens"] == 16
    assert call.fitting
    assert call.fitting.options == {"max_output_tokens": "16"}


@pytest.mark.parametrize(
    ("schema", "strict"),
    [
        ({"type": "object", "properties": {}, "additionalProperties": False}, True),
        ({"type": "object", "properties": {"a": {"type": "string"}}}, False),
    ],
)
def test_the_schema_of_an_answer_is_strict_where_it_can_be(schema: dict[str, Any], strict: bool) -> None:
    body = OFFICIAL.encode(make_request(tools=[ADD], output_schema=schema, verbosity="high")).body
    form = {"type": "json_schema", "name": "reply", "schema": schema, "strict": strict}
    assert body["text"] == {"format": form, "verbosity": "high"}
    assert body["tools"][0]["strict"] is False


def test_tools_of_the_providers_own_are_offered_and_others_are_named() -> None:
    base = make_request(tools=[ADD], model="gpt-4.1")
    request = ModelRequest(
        model=base.model,
        messages=base.messages,
        tools=base.tools,
        options=base.options,
        provider_tools=("web_search", "web_fetch", "code_execution"),
    )
    call = OFFICIAL.encode(request)
    code = {"type": "code_interpreter", "container": {"type": "auto"}}
    assert call.body["tools"][1:] == [{"type": "web_search"}, code]
    assert call.body["include"] == ["web_search_call.action.sources", "code_interpreter_call.outputs"]
    assert call.fitting
    assert list(call.fitting.tools_left_out) == ["web_fetch"]
    assert_accepted(ResponseCreateParamsStreaming, call.body)


def test_an_audit_encodes_a_call_again_to_the_same_bytes() -> None:
    request = make_request(HELLO, make_own(REASONING, COMMENTARY, CALL), make_result("3"), model=MODEL, tools=[ADD])
    digest = hashlib.sha256(dump_body(OFFICIAL.encode(request).body)).hexdigest()
    sent = SentRequest(digest=digest, encoder="openai-responses/1", dialect=None)
    assert compare_request(request, "openai", sent).status == "same"
    assert compare_request(make_request(model=MODEL), "openai", sent).status == "different"


def test_a_callers_own_fields_are_merged_but_for_those_that_clew_writes() -> None:
    options = {"openai": {"reasoning": {"summary": "detailed"}, "truncation": "auto"}}
    request = make_request(model=MODEL, reasoning_effort="low", provider_options=options)
    body = OFFICIAL.encode(request).body
    assert body["reasoning"] == {"effort": "low", "summary": "detailed"}
    assert body["truncation"] == "auto"
    for name in ("store", "input", "include", "previous_response_id"):
        with pytest.raises(BadRequest, match=name):
            OFFICIAL.encode(make_request(provider_options={"openai": {name: True}}))


# Replies


def make_response(status: str = "completed", *output: Any, **fields: Any) -> dict[str, Any]:
    usage = {
        "input_tokens": 10,
        "input_tokens_details": {"cached_tokens": 4, "cache_write_tokens": 3},
        "output_tokens": 7,
        "output_tokens_details": {"reasoning_tokens": 2},
        "total_tokens": 17,
    }
    response = {"id": "resp_1", "object": "response", "created_at": 1, "model": MODEL, "parallel_tool_calls": True}
    response |= {"tool_choice": "auto", "tools": [], "error": None, "usage": usage}
    return response | {"status": status, "output": list(output)} | fields


def end(status: str = "completed", *output: Any, **fields: Any) -> dict[str, Any]:
    return {"type": f"response.{status}", "sequence_number": 9, "response": make_response(status, *output, **fields)}


def add(index: int, **item: Any) -> dict[str, Any]:
    return {"type": "response.output_item.added", "sequence_number": 1, "output_index": index, "item": item}


def close(index: int, item: dict[str, Any]) -> dict[str, Any]:
    return {"type": "response.output_item.done", "sequence_number": 2, "output_index": index, "item": item}


def extend(index: int, kind: str, delta: Any, **fields: Any) -> dict[str, Any]:
    place = {"item_id": "x", "output_index": index, "sequence_number": 3, "content_index": 0}
    return {"type": f"response.{kind}.delta", **place, "delta": delta, **fields}


def make_message(text: str, *notes: Any, item_id: str = "msg_1", **fields: Any) -> dict[str, Any]:
    content = [{"type": "output_text", "text": text, "annotations": list(notes), "logprobs": []}]
    item = {"id": item_id, "type": "message", "role": "assistant", "status": "completed", "content": content}
    return item | fields


def make_function(arguments: str, number: int = 1, status: str = "completed") -> dict[str, Any]:
    fields = {"call_id": f"call_{number}", "name": "add", "arguments": arguments, "status": status}
    return {"id": f"fc_{number}", "type": "function_call", **fields}


def make_decoder() -> ResponsesDecoder:
    return ResponsesDecoder("openai", MODEL)


def stream_function(arguments: str, index: int, number: int) -> list[dict[str, Any]]:
    half = len(arguments) // 2
    return [
        add(index, **make_function("", number, "in_progress")),
        extend(index, "function_call_arguments", arguments[:half]),
        extend(index, "function_call_arguments", arguments[half:]),
        close(index, make_function(arguments, number)),
    ]


SUMMARY = [{"type": "summary_text", "text": "I must"}, {"type": "summary_text", "text": "add."}]
LOOP = [
    {"type": "response.created", "sequence_number": 0, "response": make_response("in_progress")},
    add(0, id="rs_1", type="reasoning", summary=[], encrypted_content="gAAA"),
    extend(0, "reasoning_summary_text", "I must", summary_index=0),
    {
        "type": "response.reasoning_summary_part.added",
        "item_id": "rs_1",
        "output_index": 0,
        "summary_index": 1,
        "sequence_number": 3,
        "part": {"type": "summary_text", "text": ""},
    },
    extend(0, "reasoning_summary_text", "add.", summary_index=1),
    close(0, {**REASONING, "summary": SUMMARY, "status": None, "content": None}),
    add(1, **make_message("", status="in_progress") | {"content": []}),
    {
        "type": "response.content_part.added",
        "item_id": "msg_1",
        "output_index": 1,
        "content_index": 0,
        "sequence_number": 3,
        "part": {"type": "output_text", "text": "", "annotations": [], "logprobs": []},
    },
    extend(1, "output_text", "I a", logprobs=[]),
    extend(1, "output_text", "dd.", logprobs=[]),
    close(1, make_message("I add.", phase="commentary")),
    *stream_function('{"a": 1, "b": 2}', 2, 1),
    *stream_function('{"a": 3, "b": 4}', 3, 2),
    end(
        "completed",
        {**REASONING, "summary": SUMMARY},
        make_message("I add.", phase="commentary"),
        make_function('{"a": 1, "b": 2}', 1),
        make_function('{"a": 3, "b": 4}', 2),
    ),
]


def test_a_stream_folds_into_a_reply_whose_items_are_kept() -> None:
    reply = decode(make_decoder(), LOOP)
    assert (reply.content, reply.thinking, reply.stop_reason) == ("I add.", "I must\n\nadd.", "tool_calls")
    assert [call.arguments for call in reply.tool_calls] == [{"a": 1, "b": 2}, {"a": 3, "b": 4}]
    usage = reply.usage
    assert (usage.input_tokens, usage.cached_input_tokens, usage.written_input_tokens) == (10, 4, 3)
    assert usage.output_tokens == 7
    assert reply.provider_data == {
        "provider": "openai",
        "model": MODEL,
        "calls": [{"id": "call_1"}, {"id": "call_2"}],
        "blocks": [{**REASONING, "summary": SUMMARY}, COMMENTARY, CALL, {"type": "function_call", "id": "fc_2"}],
    }


def test_a_complete_response_folds_like_its_stream() -> None:
    """Servers that do not stream send it, and so do streams without deltas or without items."""
    expected = decode(make_decoder(), LOOP)
    assert decode(make_decoder(), [LOOP[-1]["response"]]) == expected
    assert decode(make_decoder(), [LOOP[-1]]) == expected
    assert (
        decode(make_decoder(), [event for event in LOOP if event["type"].endswith(("done", "completed"))]) == expected
    )
    assert decode(make_decoder(), [event for event in LOOP if not event["type"].endswith("item.added")]) == expected


async def test_a_stream_folds_into_what_the_official_client_makes_of_it(server: FakeServer) -> None:
    server.answer(encode_events(LOOP))
    http = httpx2.AsyncClient(trust_env=False)
    async with (
        openai.AsyncOpenAI(api_key="k", base_url=server.url, max_retries=0, http_client=http) as official,
        official.responses.stream(model=MODEL, input="hi") as stream,
    ):
        theirs = await stream.get_final_response()
    ours = decode(make_decoder(), LOOP)
    assert ours.content == theirs.output_text
    assert [(call.name, call.arguments) for call in ours.tool_calls] == [
        (item.name, json.loads(item.arguments)) for item in theirs.output if item.type == "function_call"
    ]


def test_what_a_reply_kept_goes_back_as_it_came() -> None:
    reply = decode(make_decoder(), LOOP)
    assert reply.provider_data
    calls: list[Any] = [
        {"id": f"tc_{number}", "name": call.name, "arguments": call.arguments}
        for number, call in enumerate(reply.tool_calls)
    ]
    message: Message = {
        "role": "assistant",
        "content": reply.content,
        "tool_calls": calls,
        "provider_data": reply.provider_data,
    }
    items = encode_input(message, make_result("3", "tc_0"), make_result("7", "tc_1"))
    ids = [item.get("call_id") or item["id"] for item in items]
    assert ids == ["rs_1", "msg_1", "call_1", "call_2", "call_1", "call_2"]
    assert items[0]["encrypted_content"] == "gAAAsealed"


def test_messages_of_one_reply_are_paragraphs_and_citations_count_from_its_beginning() -> None:
    note = {"type": "url_citation", "url": "https://e.x/1", "title": "One", "start_index": 0, "end_index": 5}
    events = [
        close(0, make_message("I look.", phase="commentary")),
        close(1, make_message("", item_id="msg_2")),
        add(2, type="message", id="msg_3", role="assistant", content=[], status="in_progress"),
        extend(2, "output_text", "Three", logprobs=[]),
        close(2, make_message("Three", note, item_id="msg_3")),
        end(),
    ]
    reply = decode(make_decoder(), events)
    assert reply.content == "I look.\n\nThree"
    assert [reply.content[one["start"] : one["end"]] for one in reply.citations] == ["Three"]
    assert reply.citations[0]["url"] == "https://e.x/1"


def test_calls_of_the_providers_own_tools_are_recorded_with_their_sources_and_outputs() -> None:
    sources = [{"type": "url", "url": "https://e.x/1"}]
    search = {"type": "search", "query": "rome", "sources": sources}
    page = {"type": "open_page", "url": "https://e.x/2"}
    code = {"type": "code_interpreter_call", "id": "ci_1", "container_id": "c", "status": "completed"}
    outputs = [{"type": "logs", "logs": "2"}, {"type": "image", "url": "https://e.x/i"}]
    events = [
        close(0, {"type": "web_search_call", "id": "ws_1", "status": "completed", "action": search}),
        close(1, {"type": "web_search_call", "id": "ws_2", "status": "failed", "action": page}),
        close(2, {**code, "code": "1+1", "outputs": outputs}),
        close(3, make_message("Two.")),
        end(),
    ]
    searched, opened, ran = decode(make_decoder(), events).provider_calls
    assert searched == {"tool": "web_search", "input": "rome", "sources": [{"url": "https://e.x/1"}]}
    assert opened["error"]
    assert opened["sources"] == [{"url": "https://e.x/2"}]
    assert ran == {"tool": "code_execution", "input": "1+1", "output": "2"}


def test_a_call_that_the_limit_cuts_is_no_call_and_its_reasoning_goes_back() -> None:
    events = [
        close(0, REASONING),
        add(1, **make_function("", status="in_progress")),
        extend(1, "function_call_arguments", '{"a": 1'),
        close(1, make_function('{"a": 1', status="incomplete")),
        end("incomplete", incomplete_details={"reason": "max_output_tokens"}),
    ]
    reply = decode(make_decoder(), events)
    assert (reply.stop_reason, reply.tool_calls[0].cut) == ("length", True)
    assert reply.provider_data
    assert reply.provider_data["blocks"] == [REASONING, CALL]


@pytest.mark.parametrize(
    "events",
    [
        [close(0, {**REASONING, "encrypted_content": None}), *stream_function("{}", 1, 1)],
        [close(0, REASONING), *(close(n, make_function("{}", n)) for n in range(1, MAX_TOOL_CALLS + 2))],
        [close(0, {**REASONING, "encrypted_content": "x" * 600_000}), *stream_function("{}", 1, 1)],
        [close(0, REASONING), *stream_function("{}", 1, 1), add(2, type="reasoning", id="rs_2", summary=[])],
        [*(close(n, make_message("")) for n in range(MAX_ITEMS)), *stream_function("{}", MAX_ITEMS, 1)],
    ],
)
def test_items_that_cannot_all_go_back_do_not_go_back(events: list[Any]) -> None:
    """Reasoning that is not encrypted, too many calls, too much, an item that is not done, too many items."""
    reply = decode(make_decoder(), [*events, end()])
    assert reply.tool_calls
    assert reply.provider_data
    assert reply.provider_data["blocks"] == []


def test_an_id_that_the_api_would_not_take_back_is_not_kept() -> None:
    function = {**make_function("{}"), "call_id": "c" * 69}
    data = decode(make_decoder(), [close(0, function), end()]).provider_data
    assert data is not None
    assert data.get("calls") == [{}]


@pytest.mark.parametrize(
    ("events", "error"),
    [
        ([extend(0, "output_text", "Hel")], TruncatedStream),
        (["{"], TruncatedStream),
        ([end("cancelled")], TruncatedStream),
        ([end()], EmptyReply),
        (
            [close(0, REASONING), end("incomplete", incomplete_details={"reason": "max_output_tokens"})],
            OutputExhausted,
        ),
        (
            [extend(0, "output_text", "I"), end("incomplete", incomplete_details={"reason": "content_filter"})],
            ContentRefused,
        ),
        ([extend(0, "refusal", "I cannot"), end()], ContentRefused),
        (
            [close(0, make_message("") | {"content": [{"type": "refusal", "refusal": "No."}]}), end()],
            ContentRefused,
        ),
        ([end("failed", error={"code": "server_error", "message": "sorry"})], ProviderUnavailable),
        ([end("failed", error={"code": "rate_limit_exceeded", "message": "slower"})], RateLimited),
        ([end("failed", error={"code": "invalid_prompt", "message": "flagged"})], PromptRefused),
        ([end("failed")], ProviderUnavailable),
        (
            [{"type": "error", "code": "context_length_exceeded", "message": "m", "param": None}],
            ContextLengthExceeded,
        ),
        (
            [
                {
                    "type": "error",
                    "error": {"type": "insufficient_quota", "code": "insufficient_quota", "message": "m"},
                }
            ],
            InsufficientQuota,
        ),
        ([{"type": "error", "code": "server_is_overloaded", "message": "m"}], Overloaded),
        ([{"type": "error", "error": {"type": "invalid_request_error", "code": None, "message": "m"}}], ItemRefused),
    ],
)
def test_what_is_no_reply_is_a_typed_error(events: list[Any], error: type[ProviderError]) -> None:
    with pytest.raises(ProviderError) as caught:
        decode(make_decoder(), events)
    assert type(caught.value) is error


JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(st.characters(codec=None, exclude_categories=())),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=6,
)
KINDS = st.sampled_from(("message", "reasoning", "function_call", "web_search_call", "code_interpreter_call", "x"))
ITEM = JSON | st.fixed_dictionaries(
    {"type": KINDS},
    optional=dict.fromkeys(
        ("id", "content", "summary", "call_id", "name", "arguments", "action", "outputs", "code", "status"), JSON
    ),
)
NAMES = st.sampled_from(
    (
        *("response.output_item.added", "response.output_item.done", "response.output_text.delta", "error"),
        *("response.function_call_arguments.delta", "response.reasoning_summary_text.delta", "response.completed"),
        *("response.reasoning_summary_part.added", "response.refusal.delta", "response.incomplete"),
    )
)
RESPONSE = JSON | st.fixed_dictionaries(
    {"status": st.sampled_from(("completed", "incomplete", "failed"))},
    optional={"output": JSON | st.lists(ITEM, max_size=3), "usage": JSON, "error": JSON, "incomplete_details": JSON},
)


@pytest.mark.slow
@given(
    st.lists(
        st.fixed_dictionaries(
            {"type": NAMES},
            optional={"output_index": JSON | st.just(0), "item": ITEM, "delta": JSON, "response": RESPONSE},
        ),
        max_size=6,
    )
)
def test_whatever_arrives_is_a_reply_that_can_be_stored_or_a_typed_error(events: list[Any]) -> None:
    try:
        decode(make_decoder(), events).model_dump_json().encode()
    except ProviderError as error:
        error.message.encode()


def test_finishing_twice_is_finishing_once() -> None:
    decoder = make_decoder()
    assert decode(decoder, LOOP) == decoder.finish()
