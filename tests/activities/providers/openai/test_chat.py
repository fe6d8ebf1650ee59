import json
from typing import Any

import httpx2
import openai
import pytest
from hypothesis import given
from hypothesis import strategies as st
from openai.types.chat.completion_create_params import CompletionCreateParamsStreaming

from clew_activities.providers.anthropic.provider import Anthropic
from clew_activities.providers.dialects import DIALECTS, STRICT
from clew_activities.providers.openai.chat import OpenAI
from clew_activities.providers.openai.chat_stream import OpenAIDecoder
from clew_activities.providers.provider_errors import ProviderError, TruncatedStream
from clew_activities.providers.reply import MAX_TOOL_CALLS
from clew_workflows.contract.messages import Message
from clew_workflows.protocol import ModelReply
from tests.support.provider_server import (
    ADD,
    HELLO,
    HELLO_STREAM,
    TOOL_STREAM,
    FakeServer,
    assert_accepted,
    decode,
    encode_events,
    make_call,
    make_chunk,
    make_request,
    make_result,
    make_tool,
)

OFFICIAL = OpenAI("openai", "https://api.openai.com/v1", DIALECTS["openai"], api_key="sk-secret")
LOCAL = OpenAI("local", "http://127.0.0.1:1/v1", STRICT)

CONVERSATION: list[Message] = [
    {"role": "system", "content": "Be brief."},
    HELLO,
    {**make_call(a=1, b="ü"), "provider_data": {"provider": "anthropic", "blocks": [{"type": "thinking"}]}},
    make_result("3"),
    {"role": "assistant", "content": "It is 3."},
    {"role": "user", "content": "And now?"},
]


@pytest.mark.parametrize(
    "model_request",
    [
        make_request(),
        make_request(*CONVERSATION, tools=[ADD], tool_choice="auto"),
        make_request(*CONVERSATION, tools=[ADD], tool_choice="required", temperature=0.5, seed=7, stop=("END",)),
        make_request(*CONVERSATION, tools=[ADD], tool_choice="add", reasoning_effort="minimal"),
        make_request(output_schema={"type": "object", "properties": {}}, cache_key="k"),
    ],
)
@pytest.mark.parametrize("provider", [OFFICIAL, LOCAL])
def test_a_body_is_what_the_official_package_would_send(provider: OpenAI, model_request: Any) -> None:
    call = provider.encode(model_request)
    assert call.path == "/chat/completions"
    assert_accepted(CompletionCreateParamsStreaming, call.body)


def test_requests_that_begin_alike_are_told_to_openai_alone() -> None:
    """Only OpenAI's own servers get `prompt_cache_key`: a compatible server may refuse an unknown field."""
    assert OFFICIAL.encode(make_request(cache_key="k")).body["prompt_cache_key"] == "k"
    assert "prompt_cache_key" not in OFFICIAL.encode(make_request()).body
    assert "prompt_cache_key" not in LOCAL.encode(make_request(cache_key="k")).body


def test_a_conversation_keeps_every_role_and_sends_no_provider_data() -> None:
    assert OFFICIAL.encode(make_request(*CONVERSATION)).body["messages"] == [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "hello"},
        {
            "role": "assistant",
            "content": "",
            "tool_calls": [
                {
                    "id": "tc_1",
                    "type": "function",
                    "function": {"name": "add", "arguments": '{"a": 1, "b": "ü"}'},
                }
            ],
        },
        {"role": "tool", "tool_call_id": "tc_1", "content": "3"},
        {"role": "assistant", "content": "It is 3."},
        {"role": "user", "content": "And now?"},
    ]


@pytest.mark.parametrize(
    ("made_up", "sent"),
    [("add", "add"), ("my tool!", "my_tool__"), ("", "unnamed"), ("x" * 100, "x" * 55), ("crm.find", "crm_find_")],
)
def test_a_name_that_a_model_made_up_goes_back_as_one_that_providers_take(made_up: str, sent: str) -> None:
    message: Any = OFFICIAL.encode(make_request(make_call(made_up))).body["messages"][0]
    name = message["tool_calls"][0]["function"]["name"]
    assert name.startswith(sent)
    assert len(name) <= 64


@pytest.mark.parametrize(("provider", "name"), [(OFFICIAL, "max_completion_tokens"), (LOCAL, "max_tokens")])
def test_the_limit_of_a_reply_goes_by_the_name_that_the_server_knows(provider: OpenAI, name: str) -> None:
    body = provider.encode(make_request(max_output_tokens=77)).body
    assert {key: value for key, value in body.items() if key.startswith("max_")} == {name: 77}


@pytest.mark.parametrize(
    ("choice", "sent"),
    [
        ("auto", "auto"),
        ("none", "none"),
        ("required", "required"),
        ("add", {"type": "function", "function": {"name": "add"}}),
    ],
)
def test_a_tool_choice_is_sent_where_there_are_tools(choice: str, sent: object) -> None:
    assert OFFICIAL.encode(make_request(tools=[ADD], tool_choice=choice)).body["tool_choice"] == sent
    assert "tool_choice" not in OFFICIAL.encode(make_request(tool_choice=choice)).body


def make_closed(schema: dict[str, Any]) -> dict[str, Any]:
    return {"type": "object", "properties": {"a": schema}, "required": ["a"], "additionalProperties": False}


@pytest.mark.parametrize(
    ("schema", "strict"),
    [
        (make_closed({"type": "integer", "minimum": 1}), True),
        (make_closed({"anyOf": [{"type": "string"}, {"type": "null"}]}), True),
        (make_closed({"enum": [{"not": 1}]}), True),
        ({**make_closed({"$ref": "#/$defs/default"}), "$defs": {"default": {"type": "string"}}}, True),
        (make_closed({"$ref": "#", "description": "Another."}), False),
        (make_closed({}), False),
        (make_closed({"oneOf": [{"type": "string"}]}), False),
        (make_closed({"type": "string", "default": ""}), False),
        ({**make_closed({"type": "string"}), "required": []}, False),
        ({"type": "object", "properties": {"a": {}}, "required": ["a"]}, False),
        ({"type": "array", "items": {"anyOf": [{"type": "object", "properties": {}}]}}, False),
    ],
)
def test_a_schema_is_guaranteed_where_it_was_written_for_that(schema: dict[str, Any], strict: bool) -> None:
    described = OFFICIAL.encode(make_request(output_schema=schema)).body["response_format"]["json_schema"]
    assert described == {"name": "reply", "schema": schema, "strict": strict}


def test_the_key_goes_into_one_header_and_no_repr() -> None:
    call = OFFICIAL.encode(make_request())
    assert call.headers == {"authorization": "Bearer sk-secret"}
    assert "sk-secret" not in repr(call) + repr(OFFICIAL)
    assert LOCAL.encode(make_request()).headers == {}


def test_text_and_usage_are_folded() -> None:
    reply = decode(OpenAIDecoder(), HELLO_STREAM)
    assert (reply.content, reply.stop_reason, reply.thinking) == ("Hello", "stop", None)
    assert reply.usage.model_dump(include={"input_tokens", "output_tokens", "cached_input_tokens"}) == {
        "input_tokens": 10,
        "output_tokens": 2,
        "cached_input_tokens": 4,
    }


def test_the_reply_so_far_can_be_seen_between_events() -> None:
    decoder = OpenAIDecoder()
    decoder.feed("message", json.dumps(make_chunk(reasoning_content="hm")))
    decoder.feed("message", json.dumps(make_chunk(content="Hel")))
    assert (decoder.text, decoder.thinking, decoder.tool_name, decoder.ended) == ("Hel", "hm", None, False)
    decoder.feed("message", json.dumps(TOOL_STREAM[0]))
    assert decoder.tool_name == "add"
    decoder.feed("message", "[DONE]")
    assert decoder.ended


@pytest.mark.parametrize("field", ["reasoning_content", "reasoning"])
def test_reasoning_is_kept_as_thinking(field: str) -> None:
    reply = decode(OpenAIDecoder(), [make_chunk(**{field: "Let me "}), make_chunk(**{field: "think"}), *HELLO_STREAM])
    assert (reply.thinking, reply.content, reply.provider_data) == ("Let me think", "Hello", None)


@pytest.mark.parametrize(
    "pieces",
    [
        pytest.param([p["choices"][0]["delta"]["tool_calls"] for p in TOOL_STREAM[:5]], id="interleaved by index"),
        pytest.param(
            [[make_tool('{"a": 1, "b": 2}', "add", id="x"), make_tool('{"a": 3, "b": 4}', "add", id="y")]],
            id="whole, without index",
        ),
        pytest.param(
            [[make_tool('{"a": 1, "b": 2}', "add")], [make_tool('{"a": 3, "b": 4}', "add")]],
            id="whole, without index or id",
        ),
        pytest.param(
            [[make_tool(text, "add", id="0", index=0)] for text in ('{"a": 1, "b": 2}', '{"a": 3, "b": 4}')],
            id="whole, all with one index and one id",
        ),
        pytest.param(
            [[make_tool({"a": 1, "b": 2}, "add", index=0)], [make_tool({"a": 3, "b": 4}, "add", index=1)]],
            id="arguments as objects",
        ),
        pytest.param(
            [
                [make_tool('{"a": 1,', "add", id="x", index=0)],
                [make_tool(' "b": 2}', "add", id="x", index=0)],
                [make_tool('{"a": 3,', "add", id="y", index=0)],
                [make_tool(' "b": 4}', "add", id="y", index=0)],
            ],
            id="id and name in every piece, one index",
        ),
        pytest.param(
            [
                [make_tool("", "add", id="x"), make_tool("", "add", id="y")],
                [make_tool('{"a": 1, "b": 2}', id="x"), make_tool('{"a": 3, "b": 4}', id="y")],
            ],
            id="interleaved by id",
        ),
        pytest.param(
            [[make_tool("", None, id="x", index=0)], [make_tool('{"a": 1, "b": 2}', "add", index=0)],
             [make_tool('{"a": 3, "b": 4}', "add", index=1)]],
            id="a name after its id",
        ),
        pytest.param(
            [
                [make_tool("", "add", id="x")],
                [make_tool('{"a": 1, "b": 2}')],
                [make_tool("", "add", id="y")],
                [make_tool('{"a": 3, "b": 4}')],
            ],
            id="id and name, then arguments, without index",
        ),
        pytest.param(
            [
                [make_tool("", "add")],
                [make_tool('{"a": 1, "b": 2}')],
                [make_tool("", "add")],
                [make_tool('{"a": 3, "b": 4}')],
            ],
            id="name, then arguments, without index or id",
        ),
        pytest.param(
            [
                [make_tool("", "add", index="0", id="x")],
                [make_tool("", "add", index="1", id="y")],
                [make_tool('{"a": 1, "b": 2}', index="0")],
                [make_tool('{"a": 3, "b": 4}', index="1")],
            ],
            id="interleaved by a text as index",
        ),
        pytest.param(
            [
                [make_tool('{"a": 1,', "add", index=0, id="x")],
                [make_tool(' "b": 2}', index=0, id="x2")],
                [make_tool('{"a": 3,', "add", index=1, id="y")],
                [make_tool(' "b": 4}', index=1, id="y2")],
            ],
            id="a new id in each delta",
        ),
        pytest.param(
            [
                [make_tool("", "add", index=0, id="x")],
                [make_tool('{"a": 1, "b": 2}', index=0)],
                [make_tool("", "add", index=0, id="y")],
                [make_tool('{"a": 3, "b": 4}', index=0)],
            ],
            id="one index for all",
        ),
        pytest.param(
            [
                [make_tool("{}", "add", index=0, id="x")],
                [make_tool('{"a": 1,', index=0)],
                [make_tool(' "b": 2}', index=0)],
                [make_tool("{}", "add", index=1, id="y")],
                [make_tool('{"a": 3, "b": 4}', index=1)],
            ],
            id="an empty object before the arguments",
        ),
        pytest.param(
            [
                [make_tool("", "add", index=number, id=f"x{number}")] if not size else
                [make_tool(text[:size], index=number)]
                for number, text in enumerate(('{"a": 1, "b": 2}', '{"a": 3, "b": 4}'))
                for size in (0, 1, 4, 9, 16, 16)
            ],
            id="all arguments so far in every piece",
        ),
        pytest.param(
            [
                [make_tool(text[:size], "add", index=number, id=f"x{number}")]
                for number, text in enumerate(('{"a": 1, "b": 2}', '{"a": 3, "b": 4}'))
                for size in (0, 1, 4, 9, 16, 16)
            ],
            id="all arguments so far, the id and the name in every piece",
        ),
        pytest.param(
            [
                [make_tool('{"a": 1, "b": 2}', "add<|channel|>commentary", index=0, id="x")],
                [make_tool('{"a": 3, "b": 4}', " functions.add:1", index=1, id="y")],
            ],
            id="a template's marks around the name",
        ),
        pytest.param(
            [
                [make_tool(piece, "add", index=number, id=f"x{number}")]
                for number, text in enumerate(('{"a": 1, "b": 2}', '{"a": 3, "b": 4}'))
                for piece in (text[:5], text[5:], "\n", "")
            ],
            id="id and name in every piece, white space at the end",
        ),
        pytest.param(
            [
                [None, make_tool(None, "add", index=0, id="x", type=None)],
                [make_tool('{"a": 1, "b": 2}', None, index=0, id=None), {"index": 0, "function": None}],
                [{"index": 1, "id": "y", "function": {"name": "add"}}, {"index": None}],
                [make_tool('{"a": 3, "b": 4}', index=1, id="")],
            ],
            id="null and missing members",
        ),
    ],
)  # fmt: skip
def test_tool_calls_are_told_apart_however_a_server_numbers_them(pieces: list[list[dict[str, Any]]]) -> None:
    events = [make_chunk(tool_calls=piece) for piece in pieces]
    reply = decode(OpenAIDecoder(), [*events, make_chunk("stop"), "[DONE]"])
    assert [(call.name, call.arguments, call.malformed) for call in reply.tool_calls] == [
        ("add", {"a": 1, "b": 2}, None),
        ("add", {"a": 3, "b": 4}, None),
    ]
    assert reply.stop_reason == "tool_calls"


@pytest.mark.parametrize(
    ("raw", "arguments", "malformed"),
    [
        ("", {}, None),
        (" ", {}, None),
        (None, {}, None),
        ({}, {}, None),
        ("{}", {}, None),
        ('{"a": ', {}, '{"a": '),
        ("[1]", {}, "[1]"),
        ("null", {}, None),
        (" None", {}, None),
        ("undefined", {}, None),
        ("[]", {}, None),
        ('""', {}, None),
        ('"{}"', {}, None),
        ('"null"', {}, None),
        ("''", {}, None),
        ("nul", {}, "nul"),
        ('{"a": NaN}', {}, '{"a": NaN}'),
        ('"\ud800"', {}, '"\ufffd"'),
        ('{"a": "\\ud800"}', {"a": "\ufffd"}, None),
        ('{"a":' * 5000, {}, '{"a":' * 5000),
        ('"{\\"a\\": 1}"', {"a": 1}, None),
        ('"hello"', {}, '"hello"'),
        ('{"a": 1}{"a": 1}', {"a": 1}, None),
        ('{"a": 1}{"a": 2}', {}, '{"a": 1}{"a": 2}'),
    ],
)
def test_arguments_are_an_object_or_malformed_and_kept_as_they_came(
    raw: Any, arguments: dict[str, Any], malformed: str | None
) -> None:
    reply = decode(
        OpenAIDecoder(), [make_chunk(tool_calls=[make_tool(raw, "add", index=0)]), make_chunk("tool_calls")]
    )
    assert (reply.tool_calls[0].arguments, reply.tool_calls[0].malformed) == (arguments, malformed)


def test_arguments_nested_absurdly_deep_are_malformed_also_as_an_object() -> None:
    deep = '{"a":' * 900 + "1" + "}" * 900
    event = json.dumps(make_chunk(tool_calls=[make_tool("DEEP", "add", index=0)])).replace('"DEEP"', deep)
    reply = decode(OpenAIDecoder(), [event, make_chunk("tool_calls")])
    assert reply.tool_calls[0].arguments == {}
    assert reply.tool_calls[0].malformed
    with pytest.raises(ProviderError):
        OpenAIDecoder().feed("message", '{"a":' * 100_000)


def test_more_calls_than_are_kept_are_dropped_and_the_text_says_so() -> None:
    events = [make_chunk(tool_calls=[make_tool("{}", f"t{n}", index=n, id=f"c{n}")]) for n in range(300)]
    more = [make_chunk(tool_calls=[make_tool(" ", index=n)]) for n in range(300)]
    reply = decode(OpenAIDecoder(), [make_chunk(content="Now. "), *events, *more, make_chunk("tool_calls")])
    assert [call.name for call in reply.tool_calls] == [f"t{n}" for n in range(MAX_TOOL_CALLS)]
    assert reply.content == f"Now. [truncated: {300 - MAX_TOOL_CALLS} tool calls]"


def test_a_call_without_a_name_is_one_that_no_tool_answers_to() -> None:
    reply = decode(OpenAIDecoder(), [make_chunk(tool_calls=[make_tool("{}", "", index=0)]), make_chunk("tool_calls")])
    assert reply.tool_calls[0].name == "unnamed"


def test_every_size_is_capped() -> None:
    big = "ü" * 200_000
    parts = [
        make_chunk(content=big),
        make_chunk(reasoning=big),
        make_chunk(tool_calls=[make_tool('{"a": "' + "x" * 200_000 + '"}', "one", index=0)]),
        make_chunk(tool_calls=[make_tool('{"a": "' + "x" * 200_000 + '"}', "two", index=1)]),
        make_chunk("stop"),
    ]
    reply = decode(OpenAIDecoder(), parts)
    for text in (reply.text, reply.thinking or ""):
        assert len(text.encode()) <= 256 * 1024
        assert text.endswith(" bytes]")
    assert reply.tool_calls[0].malformed is None
    assert reply.tool_calls[1].arguments == {}
    assert 0 < len(reply.tool_calls[1].malformed or "") < 64 * 1024


def test_a_short_text_that_would_grow_when_written_out_counts_as_it_will_be_stored() -> None:
    raw = "[" + ",".join(["1E15"] * 50_000) + "]"
    reply = decode(
        OpenAIDecoder(),
        [make_chunk(tool_calls=[make_tool('{"a":' + raw + "}", "one", index=0)]), make_chunk("stop")],
    )
    assert reply.tool_calls[0].malformed


@pytest.mark.parametrize(
    ("events", "kind", "retryable"),
    [
        ([], "truncated_stream", True),
        ([make_chunk(content="Hel")], "truncated_stream", True),
        ([make_chunk(tool_calls=[make_tool("{}", "add", index=0)])], "truncated_stream", True),
        ([make_chunk("stop")], "empty_reply", True),
        ([make_chunk("stop", content=" \n")], "empty_reply", True),
        (["[DONE]"], "empty_reply", True),
        ([make_chunk("length", reasoning="so much to think")], "empty_reply", False),
        ([make_chunk("content_filter", content="I")], "content_refused", False),
        ([make_chunk(refusal="I can't "), make_chunk(refusal="help."), make_chunk("stop")], "content_refused", False),
        ([make_chunk(content="I"), make_chunk("content_filter: PROHIBITED_CONTENT")], "content_refused", False),
        ([make_chunk(content="I"), make_chunk("SAFETY")], "content_refused", False),
        ([make_chunk(content="I"), make_chunk("sensitive")], "content_refused", False),
        ([make_chunk(content="I"), make_chunk("abort")], "truncated_stream", True),
        (["not json"], "truncated_stream", True),
        (["[]"], "truncated_stream", True),
        ([{"error": {"message": "slow down", "code": 429}}], "rate_limited", True),
        ([{"base_resp": {"status_code": 1008, "status_msg": "insufficient balance"}}], "insufficient_quota", False),
        ([{"choices": None, "base_resp": {"status_code": 1002, "status_msg": "rate limit"}}], "rate_limited", True),
        ([{"base_resp": {"status_code": 1026, "status_msg": "input new_sensitive"}}], "content_refused", False),
        ([{"code": 429, "msg": "too many", "success": False}], "rate_limited", True),
        (
            [make_chunk(content="I"), {"choices": [{"error": {"message": "down", "code": 502}, "delta": {}}]}],
            "provider_unavailable",
            True,
        ),
    ],
)
def test_what_is_no_reply_is_a_typed_error(events: list[Any], kind: str, retryable: bool) -> None:
    with pytest.raises(ProviderError) as caught:
        decode(OpenAIDecoder(), events)
    assert (caught.value.type, caught.value.retryable) == (kind, retryable)


@pytest.mark.parametrize(
    ("finish", "reason"),
    [
        ("stop", "stop"),
        ("length", "length"),
        ("MAX_TOKENS", "length"),
        ("max_tokens", "length"),
        ("model_context_window_exceeded", "length"),
        ("tool_calls", "stop"),
        ("eos", "stop"),
        ("function_call", "stop"),
        ("tool_use", "stop"),
    ],
)
def test_a_reason_to_stop_is_neutral_and_ends_a_stream_without_its_marker(finish: str, reason: str) -> None:
    assert decode(OpenAIDecoder(), [make_chunk(content="x"), make_chunk(finish)]).stop_reason == reason


def test_the_limit_that_a_reply_has_reached_stays_whatever_reasons_follow() -> None:
    call = make_chunk(tool_calls=[make_tool('{"a": ', "add", index=0)])
    events = [call, make_chunk("length"), make_chunk("stop"), make_chunk(""), make_chunk(None)]
    assert decode(OpenAIDecoder(), events).stop_reason == "length"


def test_a_whole_completion_folds_like_a_stream() -> None:
    message = {"role": "assistant", "content": "3", "tool_calls": [make_tool('{"a": 1}', "add", id="x")]}
    body = {
        "object": "chat.completion",
        "choices": [{"index": 0, "message": message, "finish_reason": "tool_calls"}],
        "usage": {"prompt_tokens": 5, "completion_tokens": 6},
    }
    reply = decode(OpenAIDecoder(), [body])
    assert (reply.content, reply.tool_calls[0].arguments, reply.usage.input_tokens) == ("3", {"a": 1}, 5)


def test_a_call_in_the_older_form_is_read_and_not_twice() -> None:
    older = [
        make_chunk(function_call={"name": "add", "arguments": ""}),
        make_chunk(function_call={"arguments": "{}"}),
    ]
    both = make_chunk(tool_calls=[make_tool("{}", "add", index=0)], function_call={"name": "add", "arguments": "{}"})
    for events in (older, [both], [both, make_chunk(function_call={"name": "add", "arguments": "{}"})]):
        reply = decode(OpenAIDecoder(), [*events, make_chunk("function_call")])
        assert [(call.name, call.arguments) for call in reply.tool_calls] == [("add", {})]


def test_events_without_an_empty_line_between_them_are_read_one_by_one() -> None:
    decoder = OpenAIDecoder()
    decoder.feed("message", json.dumps(make_chunk(content="hi")) + "\n" + json.dumps(make_chunk("stop")) + "\n[DONE]")
    assert decoder.ended
    assert decoder.finish().content == "hi"
    whole = OpenAIDecoder()
    whole.feed("message", json.dumps(make_chunk("stop", content="hi"), indent=1))
    assert whole.finish().content == "hi"


def test_a_reply_that_says_that_it_has_no_error_is_a_reply() -> None:
    fields = {"base_resp": {"status_code": 0, "status_msg": ""}, "error": None, "code": 0, "message": "success"}
    assert decode(OpenAIDecoder(), [make_chunk("stop", content="hi") | fields]).content == "hi"


def test_a_message_that_is_repeated_after_its_deltas_is_read_once() -> None:
    last = make_chunk("stop")
    last["choices"][0]["message"] = {"role": "assistant", "content": "Hello"}
    events = [make_chunk(role="assistant"), make_chunk(content="Hel"), make_chunk(content="lo"), last, "[DONE]"]
    assert decode(OpenAIDecoder(), events).content == "Hello"


def test_the_number_of_a_choice_may_be_a_text() -> None:
    chunk = make_chunk("stop", content="hi")
    chunk["choices"][0]["index"] = "0"
    assert decode(OpenAIDecoder(), [chunk]).content == "hi"


def test_text_in_parts_is_text() -> None:
    parts = [{"type": "text", "text": "a"}, {"type": "other"}, {"type": "text", "text": "b"}]
    assert decode(OpenAIDecoder(), [make_chunk(content=parts), make_chunk("stop")]).content == "ab"


@pytest.mark.parametrize("events", [HELLO_STREAM, TOOL_STREAM])
async def test_a_stream_folds_into_what_the_official_client_makes_of_it(
    server: FakeServer, events: list[Any]
) -> None:
    server.answer(encode_events(events))
    http = httpx2.AsyncClient(trust_env=False)
    async with (
        openai.AsyncOpenAI(api_key="k", base_url=server.url, max_retries=0, http_client=http) as official,
        official.chat.completions.stream(model="m", messages=[]) as stream,
    ):
        theirs = (await stream.get_final_completion()).choices[0].message
    ours = decode(OpenAIDecoder(), events)
    assert ours.content == (theirs.content or "")
    assert [(call.name, call.arguments) for call in ours.tool_calls] == [
        (call.function.name, json.loads(call.function.arguments)) for call in theirs.tool_calls or []
    ]


JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(st.characters(codec=None, exclude_categories=())),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=8,
)
DELTA = st.fixed_dictionaries(
    {},
    optional={
        "content": JSON,
        "reasoning": JSON,
        "refusal": st.none(),
        "tool_calls": JSON
        | st.lists(
            st.fixed_dictionaries(
                {}, optional={"index": JSON, "id": JSON, "function": st.fixed_dictionaries(
                    {}, optional={"name": JSON, "arguments": JSON})}
            )
        ),
    },
)  # fmt: skip
CHOICES = JSON | st.lists(
    st.fixed_dictionaries({}, optional={"index": st.just(0), "delta": DELTA | JSON, "finish_reason": JSON}),
    max_size=3,
)


@given(st.lists(st.fixed_dictionaries({}, optional={"choices": CHOICES, "usage": JSON, "error": JSON}), max_size=4))
def test_whatever_arrives_is_a_reply_that_can_be_stored_or_a_typed_error(events: list[Any]) -> None:
    try:
        decode(OpenAIDecoder(), events).model_dump_json().encode()
    except ProviderError as error:
        error.message.encode()


def test_finishing_twice_is_finishing_once() -> None:
    decoder = OpenAIDecoder()
    assert decode(decoder, [make_chunk(content="a\ud800"), make_chunk("stop")]) == decoder.finish()
    with pytest.raises(TruncatedStream):
        OpenAIDecoder().finish()


def make_own(message: Message, blocks: list[dict[str, Any]], calls: list[dict[str, Any]], **fields: Any) -> Message:
    data: Any = {"provider": "deepseek", "blocks": blocks, "calls": calls, **fields}
    return {**message, "provider_data": data}


def decode_own(*deltas: dict[str, Any]) -> ModelReply:
    decoder = OpenAIDecoder("deepseek", "m")
    return decode(decoder, [*(make_chunk(**delta) for delta in deltas), make_chunk("tool_calls"), "[DONE]"])


def send_back(reply: ModelReply, dialect: str, name: str = "deepseek", model: str = "m") -> dict[str, Any]:
    """Send a reply's calls back to a provider, with a result each. Returns the assistant's message."""
    calls: Any = [
        {"id": f"tool0000{number}", "name": tool.name, "arguments": tool.arguments}
        for number, tool in enumerate(reply.tool_calls)
    ]
    message: Any = {"role": "assistant", "content": reply.content, "tool_calls": calls}
    if reply.provider_data and reply.provider_data["provider"] == name:
        message["provider_data"] = reply.provider_data
    results = [make_result("3", call["id"]) for call in calls]
    server = OpenAI(name, "http://127.0.0.1:1/v1", DIALECTS[dialect])
    body = server.encode(make_request(HELLO, message, *results, tools=[ADD], model=model)).body
    sent: dict[str, Any] = next(message for message in body["messages"] if message["role"] == "assistant")
    return sent


SIGNED = {"extra_content": {"google": {"thought_signature": "c2ln"}}}


@pytest.mark.parametrize(
    ("dialect", "deltas", "fields", "call_fields"),
    [
        (
            "deepseek",
            [{"reasoning_content": "I must "}, {"reasoning_content": "add."}],
            {"reasoning_content": "I must add."},
            {},
        ),
        ("strict", [{"reasoning_content": "hm"}], {"reasoning_content": "hm"}, {}),
        ("strict", [{"tool_calls": [make_tool("{}", "add", id="x") | SIGNED]}], {}, SIGNED),
        ("gemini", [{"tool_calls": [make_tool("{}", "add", id="x") | SIGNED]}], {}, SIGNED),
        (
            "openrouter",
            [
                {"reasoning_details": [{"type": "reasoning.text", "text": "I must ", "index": 0}]},
                {"reasoning_details": [{"type": "reasoning.text", "text": "add.", "index": 0, "signature": "c2ln"}]},
                {"reasoning_details": [{"type": "reasoning.encrypted", "data": "ZGF0YQ==", "index": 1}]},
            ],
            {
                "reasoning_details": [
                    {"type": "reasoning.text", "text": "I must add.", "index": 0, "signature": "c2ln"},
                    {"type": "reasoning.encrypted", "data": "ZGF0YQ==", "index": 1},
                ]
            },
            {},
        ),
        (
            "litellm",
            [
                {"thinking_blocks": [{"type": "thinking", "thinking": "I must ", "signature": ""}]},
                {"thinking_blocks": [{"type": "thinking", "thinking": "add.", "signature": ""}]},
                {"thinking_blocks": [{"type": "thinking", "thinking": "", "signature": "c2ln"}]},
                {"thinking_blocks": [{"type": "thinking", "thinking": "Then", "signature": ""}]},
                {"thinking_blocks": [{"type": "thinking", "thinking": " rest.", "signature": ""}]},
                {"thinking_blocks": [{"type": "thinking", "thinking": "Then rest.", "signature": "b3Ro"}]},
                {"thinking_blocks": [{"type": "redacted_thinking", "data": "YQ=="}]},
                {"thinking_blocks": [{"type": "redacted_thinking", "data": "Yg=="}]},
            ],
            {
                "thinking_blocks": [
                    {"type": "thinking", "thinking": "I must add.", "signature": "c2ln"},
                    {"type": "thinking", "thinking": "Then rest.", "signature": "b3Ro"},
                    {"type": "redacted_thinking", "data": "YQ=="},
                    {"type": "redacted_thinking", "data": "Yg=="},
                ]
            },
            {},
        ),
        (
            "openrouter",
            [
                {"reasoning_details": [{"type": "reasoning.summary", "summary": "I ", "index": 0, "id": None}]},
                {"reasoning_details": [{"type": "reasoning.summary", "summary": "add.", "index": 0, "id": "rs_1"}]},
                {"reasoning_details": [{"type": "reasoning.encrypted", "data": "YQ==", "index": 0, "id": "tool_1"}]},
                {"reasoning_details": [{"type": "reasoning.encrypted", "data": "Yg==", "index": 0, "id": "tool_2"}]},
            ],
            {
                "reasoning_details": [
                    {"type": "reasoning.summary", "summary": "I add.", "index": 0, "id": "rs_1"},
                    {"type": "reasoning.encrypted", "data": "YQ==", "index": 0, "id": "tool_1"},
                    {"type": "reasoning.encrypted", "data": "Yg==", "index": 0, "id": "tool_2"},
                ]
            },
            {},
        ),
        (
            "mistral",
            [
                {"content": [{"type": "thinking", "thinking": [{"type": "text", "text": "I must "}]}]},
                {"content": [{"type": "thinking", "thinking": [{"type": "text", "text": "add."}]}]},
                {"content": "Well: "},
            ],
            {
                "content": [
                    {"type": "thinking", "thinking": [{"type": "text", "text": "I must add."}]},
                    {"type": "text", "text": "Well: "},
                ]
            },
            {},
        ),
    ],
)
def test_what_a_provider_sent_with_its_calls_goes_back_as_it_came(
    dialect: str, deltas: list[Any], fields: dict[str, Any], call_fields: dict[str, Any]
) -> None:
    call = (
        [] if any("tool_calls" in delta for delta in deltas) else [{"tool_calls": [make_tool("{}", "add", id="x")]}]
    )
    reply = decode_own(*deltas, *call)
    sent = send_back(reply, dialect)
    assert {name: sent[name] for name in fields} == fields
    assert {name: value for name, value in sent["tool_calls"][0].items() if name in SIGNED} == call_fields
    foreign = send_back(reply, "openai", name="openai")
    assert foreign.keys() == {"role", "content", "tool_calls"}
    assert foreign["tool_calls"][0].keys() == {"id", "type", "function"}


def test_a_provider_reads_its_own_id() -> None:
    reply = decode_own({"tool_calls": [make_tool("{}", "add", id="aB3xK9mP2")]})
    assert send_back(reply, "mistral")["tool_calls"][0]["id"] == "aB3xK9mP2"
    assert send_back(reply, "openai", name="openai")["tool_calls"][0]["id"] == "tool00000"


def test_what_another_model_sent_does_not_go_back() -> None:
    """Signatures and reasoning hold for the model that made them; the id holds for the provider."""
    reply = decode_own(
        {"reasoning_details": [{"text": "hm"}]}, {"tool_calls": [make_tool("{}", "add", id="call1call")]}
    )
    sent = send_back(reply, "openrouter", model="other")
    assert "reasoning_details" not in sent
    assert sent["tool_calls"][0]["id"] == "call1call"


@pytest.mark.parametrize(
    ("dialect", "model"),
    [("deepseek", "m"), ("kimi", "m"), ("openrouter", "moonshotai/kimi-k2.6"), ("strict", "kimi-k3")],
)
def test_reasoning_that_never_came_is_empty_where_it_is_required(dialect: str, model: str) -> None:
    """Another provider made the call, before the run fell back to this one."""
    reply = decode_own({"tool_calls": [make_tool("{}", "add")]})
    assert send_back(reply, dialect, model=model)["reasoning_content"].strip() == ""


@pytest.mark.parametrize(
    ("dialect", "model", "has_field"),
    [
        ("deepseek", "deepseek-v4-pro", True),
        ("deepseek", "deepseek-chat", False),
        ("strict", "deepseek-v4-flash", True),
        ("openrouter", "deepseek/deepseek-v4-flash", True),
        ("openrouter", "deepseek/deepseek-chat-v3.1", False),
        ("kimi", "kimi-k2.6", False),
        ("openai", "m", False),
    ],
)
def test_deepseek_reads_a_field_of_reasoning_in_every_message_of_the_assistants(
    dialect: str, model: str, has_field: bool
) -> None:
    """It answers "the reasoning_content in the thinking mode must be passed back", also for a text."""
    messages = (HELLO, make_call(a=1), make_result("3"), HELLO)
    body = (
        OpenAI("x", "http://127.0.0.1:1", DIALECTS[dialect])
        .encode(make_request(*messages, {"role": "assistant", "content": "hello"}, HELLO, tools=[ADD], model=model))
        .body
    )
    texts = [sent for sent in body["messages"] if sent["role"] == "assistant" and "tool_calls" not in sent]
    assert texts
    assert all(("reasoning_content" in sent) == has_field for sent in texts)


def test_the_text_of_another_field_stands_for_the_reasoning_that_is_required() -> None:
    """OpenRouter sends `reasoning`, and DeepSeek behind it wants `reasoning_content`."""
    reply = decode(
        OpenAIDecoder("openrouter", "deepseek/deepseek-v4-pro"),
        [make_chunk(reasoning="hm"), make_chunk("stop", tool_calls=[make_tool("{}", "add", id="x")])],
    )
    sent = send_back(reply, "openrouter", name="openrouter", model="deepseek/deepseek-v4-pro")
    assert (sent["reasoning"], sent["reasoning_content"]) == ("hm", "hm")


@pytest.mark.parametrize(
    ("dialect", "model"), [("glm", "glm-4.7"), ("openrouter", "z-ai/glm-4.7"), ("strict", "glm-5")]
)
@pytest.mark.parametrize(("choice", "tools"), [("auto", 1), ("required", 1), ("add", 1), ("none", 0)])
def test_glm_reads_no_choice_of_tools_but_auto(dialect: str, model: str, choice: str, tools: int) -> None:
    """It answers "Tool choice must be auto"."""
    call = OpenAI("x", "http://127.0.0.1:1", DIALECTS[dialect]).encode(
        make_request(tools=[ADD], tool_choice=choice, model=model)
    )
    assert len(call.body.get("tools", [])) == tools
    assert call.body.get("tool_choice", "auto") == "auto"
    assert call.fitting is not None
    assert ("tool_choice" in call.fitting.options) == (choice != "auto")


def test_a_signature_that_never_came_is_filled_in_for_the_first_call() -> None:
    reply = decode_own({"tool_calls": [make_tool("{}", "add", index=0), make_tool("{}", "add", index=1)]})
    first, second = send_back(reply, "gemini")["tool_calls"]
    assert first["extra_content"]["google"]["thought_signature"] == "skip_thought_signature_validator"
    assert "extra_content" not in second


@pytest.mark.parametrize("hostile", [{"a": float("nan")}, {"a": "x" * 600_000}])
def test_data_that_cannot_be_kept_leaves_the_ids(hostile: dict[str, Any]) -> None:
    reply = decode_own({"tool_calls": [make_tool("{}", "add", id="x") | {"extra_content": hostile}]})
    assert reply.provider_data == {"provider": "deepseek", "blocks": [], "calls": [{"id": "x"}], "model": "m"}


@pytest.mark.parametrize(
    ("chunks", "usage"),
    [
        ([{"x_groq": {"usage": {"prompt_tokens": 5, "completion_tokens": 2}}}], (5, 2, 0)),
        ([{"usage": {"input_tokens": 5, "output_tokens": 2}}], (5, 2, 0)),
        ([{"usage": {"prompt_tokens": 5, "completion_tokens": n}} for n in (1, 2, 0)], (5, 2, 0)),
        ([{"usage": {"prompt_tokens": 5, "completion_tokens": 2, "total_tokens": 27}}], (5, 22, 0)),
        ([{"usage": {"prompt_tokens": 5, "completion_tokens": 2, "prompt_cache_hit_tokens": 4}}], (5, 2, 4)),
        ([{"usage": {"prompt_tokens": 5, "completion_tokens": 2, "cached_tokens": 3}}], (5, 2, 3)),
        ([{"timings": {"prompt_n": 2, "cache_n": 3, "predicted_n": 7}}], (5, 7, 3)),
        ([{"usage": {}}, {"usage": None}, {"usage": {"prompt_tokens": -1}}], (0, 0, 0)),
    ],
)
def test_usage_is_the_best_figure_wherever_it_stands(chunks: list[dict[str, Any]], usage: tuple[int, ...]) -> None:
    reply = decode(OpenAIDecoder(), [make_chunk(content="hi"), *(make_chunk() | chunk for chunk in chunks), "[DONE]"])
    found = reply.usage
    assert (found.input_tokens, found.output_tokens, found.cached_input_tokens) == usage


def test_usage_stands_in_a_choice_too() -> None:
    chunk = make_chunk("stop")
    chunk["choices"][0]["usage"] = {"prompt_tokens": 5, "completion_tokens": 2}
    assert decode(OpenAIDecoder(), [make_chunk(content="hi"), chunk]).usage.input_tokens == 5


@pytest.mark.parametrize(("raw", "cut"), [('{"a": 1', True), ("", True), ('{"a": 1}', False), ('{"a": NaN}', False)])
def test_a_call_that_the_limit_cut_is_told_from_one_that_is_complete(raw: str, cut: bool) -> None:
    """Without arguments, the tool would run with its defaults."""
    reply = decode(OpenAIDecoder(), [make_chunk(tool_calls=[make_tool(raw, "add", index=0)]), make_chunk("length")])
    assert reply.tool_calls[0].cut is cut


@pytest.mark.parametrize(
    ("dialect", "model", "limit"),
    [
        ("openai", "gpt-4o", "max_completion_tokens"),
        ("strict", "gpt-4o", "max_tokens"),
        ("strict", "gpt-5-mini", "max_completion_tokens"),
        ("strict", "openai/o4-mini", "max_completion_tokens"),
        ("strict", "gpt-oss-20b", "max_tokens"),
    ],
)
def test_a_gateway_that_serves_openais_models_reads_the_limit_that_they_take(
    dialect: str, model: str, limit: str
) -> None:
    body = OpenAI("openai", "http://127.0.0.1:1", DIALECTS[dialect]).encode(make_request(model=model)).body
    assert [name for name in body if name.startswith("max_")] == [limit]


@pytest.mark.parametrize(
    ("provider", "described"),
    [
        (OFFICIAL, {}),
        (OpenAI("x", "http://x", DIALECTS["deepseek"]), {"output_schema": "in the prompt"}),
        (OpenAI("x", "http://x", DIALECTS["qwen"]), {"output_schema": "in the prompt"}),
        (Anthropic("x", "http://x"), {"output_schema": "in the prompt"}),
    ],
)
def test_the_request_says_that_the_prompt_describes_the_schema(
    provider: OpenAI | Anthropic, described: dict[str, str]
) -> None:
    """No server enforces it then."""
    fitting = provider.encode(make_request(output_schema={"type": "object", "properties": {"a": {}}})).fitting
    assert fitting is not None
    assert fitting.options == described


def test_an_answers_schema_stands_in_the_prompt_where_the_dialect_takes_none_beside_tools() -> None:
    schema = {"type": "object", "properties": {"city": {"type": "string"}}}
    server = OpenAI("x", "http://127.0.0.1:1", STRICT)
    alone = server.encode(make_request(HELLO, output_schema=schema)).body
    assert alone["response_format"]["json_schema"]["schema"] == schema
    beside = server.encode(make_request(HELLO, output_schema=schema, tools=[ADD])).body
    assert "response_format" not in beside
    assert '"city"' in beside["messages"][0]["content"]


def test_the_request_says_what_it_has_otherwise() -> None:
    call = OpenAI("x", "http://127.0.0.1:1", DIALECTS["deepseek"]).encode(
        make_request(HELLO, HELLO, tools=[ADD], tool_choice="add", seed=1)
    )
    assert call.fitting is not None
    assert call.fitting.as_dict() == {
        "dialect": "deepseek",
        "merged": 1,
        "options": {"seed": "left out", "tool_choice": "left out"},
    }


@pytest.mark.parametrize("size", [1, 3, 100])
@pytest.mark.parametrize(
    ("content", "thinking", "text"),
    [
        ("<think>I must add.</think>\n\nWell: ", "I must add.", "Well: "),
        ("a <think> b", None, "a <think> b"),
        ("<thin", None, "<thin"),
        ("<think>a < b</think>c", "a < b", "c"),
        ("<thought>I add.</thought>It is 3.", "I add.", "It is 3."),
        ("[THINK]I add.[/THINK]It is 3.", "I add.", "It is 3."),
        ("<seed:think>I add.</seed:think>It is 3.", "I add.", "It is 3."),
        ("<|channel>thought\nI add.<channel|>It is 3.", "I add.", "It is 3."),
        (
            "<|channel|>analysis<|message|>I add.<|end|><|start|>assistant<|channel|>final<|message|>It is 3.",
            "I add.",
            "It is 3.",
        ),
    ],
)
def test_thinking_between_tags_is_told_from_the_text_and_goes_back_with_it(
    content: str, thinking: str | None, text: str, size: int
) -> None:
    pieces = [content[at : at + size] for at in range(0, len(content), size)]
    reply = decode_own(*({"content": piece} for piece in pieces), {"tool_calls": [make_tool("{}", "add", id="x")]})
    assert (reply.thinking, reply.content) == (thinking, text)
    assert send_back(reply, "minimax")["content"] == (content if thinking else text)
    assert send_back(reply, "openai", name="openai")["content"] == text


@pytest.mark.parametrize("size", [1, 5, 100])
@pytest.mark.parametrize(
    ("content", "thinking", "text"),
    [
        ("I must add.\n</think>\n\nIt is 3.", "I must add.", "It is 3."),
        ("I must add.</think>\nIt is 3.", "I must add.", "It is 3."),
        ("The tag `</think>` ends it.", None, "The tag `</think>` ends it."),
        ("Write:\n```\n</think>\n```\n", None, "Write:\n```\n</think>\n```\n"),
        ("a\n</think>\nb\n</think>\n", None, "a\n</think>\nb\n</think>\n"),
    ],
)
def test_thinking_whose_opening_tag_stands_in_the_prompt_is_no_text(
    content: str, thinking: str | None, text: str, size: int
) -> None:
    """Templates of DeepSeek and Qwen end with that tag, and a server without a parser for them sends the rest."""
    pieces = [make_chunk(content=content[at : at + size]) for at in range(0, len(content), size)]
    decoder = OpenAIDecoder()
    reply = decode(decoder, [*pieces, make_chunk("stop")])
    assert (reply.thinking, reply.content) == (thinking, text)
    assert decoder.finish() == reply


DSML = "<\uff5cDSML\uff5ctool_calls>\n<\uff5cDSML\uff5cinvoke name="
LEFT_IN_TEXT = [
    'I add. <tool_call>\n{"name": "add", "arguments": {"a": 1}}\n</tool_call>\n',
    "<tool_call>\n<function=add>\n<parameter=a>\n1\n</parameter>\n</function>\n</tool_call>",
    "<tool_call>add\n<arg_key>a</arg_key>\n<arg_value>1</arg_value>\n</tool_call>",
    '<tool_call>{"name": "add"',
    '<|tool_calls_section_begin|><|tool_call_begin|>functions.add:0<|tool_call_argument_begin|>{"a": 1}'
    "<|tool_call_end|><|tool_calls_section_end|>",
    f'{DSML}"add">\n</\uff5cDSML\uff5cinvoke>\n</\uff5cDSML\uff5ctool_calls>',
    '<|DSML|invoke name="add">\n</|DSML|invoke>',
    "<\uff5ctool\u2581calls\u2581begin\uff5c>add",
    '[TOOL_CALLS][{"name": "add", "arguments": {"a": 1}}]',
    '[TOOL_CALLS]add[ARGS]{"a": 1}',
]
ABOUT_CALLS = [
    "Qwen writes `<tool_call>`.",
    "Qwen writes:\n```\n<tool_call>\n{}\n</tool_call>\n```",
    'Qwen writes <tool_call>{"name": "add"}</tool_call> and waits.',
    "```\n[TOOL_CALLS][]",
    "[TOOL_CALLS] is a token.\n",
]


@pytest.mark.parametrize("text", LEFT_IN_TEXT)
def test_a_call_that_a_server_leaves_in_the_text_is_a_broken_reply(text: str) -> None:
    """It was the answer of the run, and the tool did not run. Another attempt may succeed."""
    request = make_request(tools=[ADD])
    chunks = [*(make_chunk(content=text[at : at + 7]) for at in range(0, len(text), 7)), make_chunk("stop")]
    with pytest.raises(TruncatedStream, match="parser"):
        decode(LOCAL.make_decoder(request), chunks)
    assert decode(LOCAL.make_decoder(make_request()), chunks).content == text
    cut = decode(LOCAL.make_decoder(request), [*chunks[:-1], make_chunk("length")])
    assert (cut.content, cut.stop_reason) == (text, "length")


@pytest.mark.parametrize("text", ABOUT_CALLS)
def test_a_text_about_calls_is_a_text(text: str) -> None:
    reply = decode(LOCAL.make_decoder(make_request(tools=[ADD])), [make_chunk("stop", content=text)])
    assert reply.content == text


def test_thinking_that_comes_before_a_call_without_its_opening_tag_is_no_text() -> None:
    reply = decode_own({"content": "I must add.\n</think>"}, {"tool_calls": [make_tool("{}", "add", id="x")]})
    assert (reply.thinking, reply.content, len(reply.tool_calls)) == ("I must add.", "", 1)


def test_nested_arguments_may_begin_as_the_outer_ones_did() -> None:
    """A piece that begins with all before it need not repeat it."""
    pieces = [make_tool('{"a":', "add", index=0, id="x"), make_tool('{"a":1}', index=0), make_tool("}", index=0)]
    reply = decode_own(*({"tool_calls": [piece]} for piece in pieces))
    assert [call.arguments for call in reply.tool_calls] == [{"a": {"a": 1}}]


@pytest.mark.parametrize(
    ("pieces", "arguments"),
    [
        (["{", "{", "{}"], {}),
        (['{"a"', '{"a"', '{"a": 1}'], {"a": 1}),
        (['{"a": "{', "{", '{"}'], {"a": "{{{"}),
    ],
)
def test_a_piece_that_is_repeated_without_more_counts_once(pieces: list[str], arguments: dict[str, Any]) -> None:
    """A server that sends all arguments so far may send the same ones twice. In a text a brace may be repeated."""
    head = make_tool("", "add", index=0, id="x")
    reply = decode_own(*({"tool_calls": [piece]} for piece in (head, *(make_tool(p, index=0) for p in pieces))))
    assert [call.arguments for call in reply.tool_calls] == [arguments]


def test_arguments_that_are_repeated_in_each_piece_count_once_for_their_limit() -> None:
    text = json.dumps({"text": "x" * 100_000})
    pieces = [make_tool(text[:size], index=0) for size in range(1000, len(text), 1000)]
    head, end = make_tool("", "write", index=0, id="x"), make_tool(text, index=0)
    reply = decode_own(*({"tool_calls": [piece]} for piece in [head, *pieces, end]))
    assert [call.arguments for call in reply.tool_calls] == [json.loads(text)]


def test_a_sealed_part_that_comes_twice_goes_back_once() -> None:
    """OpenRouter repeats it beside the end, and OpenAI's models answer "Duplicate item found"."""
    sealed = {"type": "reasoning.encrypted", "data": "YQ==", "index": 0, "id": "rs_1"}
    call = {"tool_calls": [make_tool("{}", "add", id="call1call")]}
    reply = decode_own({"reasoning_details": [sealed]}, call, {"reasoning_details": [{**sealed, "index": 1}]})
    assert send_back(reply, "openrouter")["reasoning_details"] == [sealed]


def test_a_server_that_repeats_all_arguments_at_the_end_has_made_one_call() -> None:
    pieces = [make_tool('{"a": ', "add", index=0, id="x"), make_tool("1}", index=0), make_tool('{"a": 1}', index=0)]
    reply = decode_own(*({"tool_calls": [piece]} for piece in pieces))
    assert [call.arguments for call in reply.tool_calls] == [{"a": 1}]


def test_a_forced_tool_stands_alone_where_its_name_cannot_be_sent() -> None:
    for dialect, choice in (("llamacpp", "required"), ("strict", None)):
        server = OpenAI("x", "http://127.0.0.1:1", DIALECTS[dialect])
        body = server.encode(make_request(tools=[ADD, {**ADD, "name": "other"}], tool_choice="add")).body
        assert ([tool["function"]["name"] for tool in body["tools"]], body.get("tool_choice")) == (["add"], choice)


def test_gemini_gets_no_schema_of_a_tool_without_arguments() -> None:
    """It answers "parameters.properties: should be non-empty for OBJECT type"."""
    bare: Any = {**ADD, "name": "now", "parameters": {"type": "object", "properties": {}}}
    for name, has_schema in (("gemini", False), ("openai", True), ("strict", True)):
        body = OpenAI("x", "http://127.0.0.1:1", DIALECTS[name]).encode(make_request(tools=[bare, ADD])).body
        assert ["parameters" in tool["function"] for tool in body["tools"]] == [has_schema, True]


@pytest.mark.parametrize("dialect", sorted(DIALECTS))
def test_no_message_is_white_space_alone(dialect: str) -> None:
    """Bedrock answers "the text field is blank" through a gateway."""
    server = OpenAI("x", "http://127.0.0.1:1", DIALECTS[dialect])
    blank: Message = {"role": "assistant", "content": " \n"}
    messages = (HELLO, make_call(content="\n\n", a=1), make_result("3"), blank, HELLO)
    sent = server.encode(make_request(*messages, tools=[ADD])).body["messages"]
    contents = [message.get("content", "") for message in sent]
    assert contents == [content.strip() for content in contents]


@pytest.mark.parametrize(
    ("dialect", "model", "sent"),
    [
        ("openai", "gpt-4o", None),
        ("openai", "gpt-4.1-mini", None),
        ("azure", "gpt-5-chat", None),
        ("litellm", "azure/gpt-4o", None),
        ("openai", "gpt-5-mini", "minimal"),
        ("openai", "gpt-5.1", "low"),
        ("openai", "o3", "low"),
        ("groq", "openai/gpt-oss-120b", "low"),
        ("groq", "llama-3.3-70b-versatile", None),
        ("groq", "qwen/qwen3-32b", None),
        ("cerebras", "gpt-oss-120b", "low"),
        ("cerebras", "zai-glm-4.7", None),
    ],
)
def test_an_effort_goes_to_the_models_that_take_it(dialect: str, model: str, sent: str | None) -> None:
    call = OpenAI("x", "http://127.0.0.1:1", DIALECTS[dialect]).encode(
        make_request(model=model, reasoning_effort="minimal")
    )
    assert call.body.get("reasoning_effort") == sent
    assert call.fitting is not None
    assert call.fitting.options == ({} if sent == "minimal" else {"reasoning_effort": sent or "left out"})


LEVELS = ("none", "minimal", "low", "medium", "high", "xhigh", "max")
"""The levels of reasoning that a session may name."""


@pytest.mark.parametrize(
    ("dialect", "model", "accepted"),
    [
        ("openai", "o3", "low medium high"),
        ("openai", "gpt-5-mini", "minimal low medium high"),
        ("openai", "gpt-5-pro", "high"),
        ("openai", "gpt-5-codex", "low medium high"),
        ("openai", "gpt-5.1", "none low medium high"),
        ("azure", "gpt-5.1-codex-mini", "low medium high"),
        ("openai", "gpt-5.1-codex-max", "low medium high xhigh"),
        ("openai", "gpt-5.2", "none low medium high xhigh"),
        ("openai", "gpt-5.2-pro", "medium high xhigh"),
        ("openai", "gpt-5.3-codex", "low medium high xhigh"),
        ("openai", "gpt-5.6-luna", "none low medium high xhigh max"),
        ("openai", "gpt-6-astra", "low medium high xhigh max"),
        ("azure", "gpt-6.1-sol", "low medium high xhigh max"),
        ("openrouter", "moonshotai/kimi-k3", " ".join(LEVELS)),
        ("gemini", "gemini-2.5-flash", "none minimal low medium high"),
        ("gemini", "gemini-2.5-pro", "minimal low medium high"),
        ("gemini", "gemini-3-pro-preview", "low high"),
        ("gemini", "gemini-3.1-pro", "low medium high"),
        ("mistral", "mistral-small-2603", "none high"),
        ("mistral", "mistral-medium-latest", "none high"),
        ("deepseek", "deepseek-v4-pro", "low high max"),
        ("xai", "grok-3-mini", "low high"),
        ("xai", "grok-4.3", "none low medium high"),
        ("xai", "grok-4.5", "low medium high"),
        ("xai", "grok-4.6", "low medium high xhigh"),
        ("kimi", "kimi-k3", "low high max"),
        ("glm", "glm-5.2", "high max"),
        ("glm", "glm-5.3-flash", "low high max"),
        ("groq", "qwen/qwen3.6-27b", "none"),
        ("cerebras", "zai-glm-4.7", "none"),
        ("vllm", "Qwen/Qwen3.8-27B", "low medium xhigh"),
        ("vllm", "openai/gpt-oss-120b", "low medium high"),
        ("llamacpp", "gemma-4-31b-it", "low medium high"),
        ("ollama", "qwen3:8b", "none low medium high"),
    ],
)
def test_a_model_gets_no_level_of_reasoning_but_its_own(dialect: str, model: str, accepted: str) -> None:
    """Each of its own levels arrives as it is, and no other one does."""
    server = OpenAI("x", "http://127.0.0.1:1", DIALECTS[dialect])
    sent = {
        level: server.encode(make_request(model=model, reasoning_effort=level)).body.get("reasoning_effort")
        for level in LEVELS
    }
    own = accepted.split()
    assert {level for level in LEVELS if sent[level] == level} == set(own)
    assert set(sent.values()) <= {*own, None}


@pytest.mark.parametrize(
    ("dialect", "model", "fields"),
    [
        ("deepseek", "deepseek-v4-flash", {"thinking": {"type": "disabled"}}),
        ("kimi", "kimi-k2.6", {"thinking": {"type": "disabled"}}),
        ("glm", "glm-4.6", {"thinking": {"type": "disabled"}}),
        ("glm", "glm-5.2", {"thinking": {"type": "disabled"}}),
        ("minimax", "MiniMax-M3", {"thinking": {"type": "disabled"}}),
        ("qwen", "qwen3-max", {"enable_thinking": False}),
        ("vllm", "Qwen/Qwen3.6-27B", {"chat_template_kwargs": {"enable_thinking": False, "thinking": False}}),
        ("llamacpp", "GLM-4.7-GGUF", {"chat_template_kwargs": {"enable_thinking": False, "thinking": False}}),
        # These always reason, or never do.
        ("deepseek", "deepseek-chat", {}),
        ("kimi", "kimi-k2-thinking", {}),
        ("kimi", "kimi-k3", {}),
        ("glm", "glm-5.3", {}),
        ("minimax", "MiniMax-M2.5", {}),
        ("qwen", "qwen3-235b-a22b-thinking-2507", {}),
        ("vllm", "openai/gpt-oss-120b", {}),
        ("vllm", "mistralai/Mistral-Small-3.2-24B-Instruct-2506", {}),
        ("strict", "m", {}),
    ],
)
def test_reasoning_is_turned_off_in_the_servers_own_words(dialect: str, model: str, fields: dict[str, Any]) -> None:
    """Only `none` turns it off, and the request says what it has for it."""
    server = OpenAI("x", "http://127.0.0.1:1", DIALECTS[dialect])
    names = ("thinking", "enable_thinking", "chat_template_kwargs", "reasoning_effort")
    off = server.encode(make_request(model=model, reasoning_effort="none"))
    assert {name: off.body[name] for name in names if name in off.body} == fields
    assert off.fitting is not None
    assert off.fitting.options == {"reasoning_effort": json.dumps(fields) if fields else "left out"}
    low = server.encode(make_request(model=model, reasoning_effort="low")).body
    assert low.keys() & fields.keys() == set()


@pytest.mark.parametrize(
    ("dialect", "model", "temperature", "sent"),
    [
        ("openai", "gpt-4.1", 0.5, 0.9),
        ("mistral", "mistral-large-latest", 0.5, 0.9),
        ("mistral", "mistral-large-latest", 0.0, None),
        ("litellm", "claude-sonnet-4-6", None, 0.9),
        ("litellm", "claude-sonnet-4-6", 0.5, None),
        ("litellm", "bedrock/us.anthropic.claude-opus-4-8", None, None),
        ("kimi", "kimi-k2.6", None, None),
        ("openai", "gpt-5-mini", None, None),
    ],
)
def test_top_p_goes_where_it_may_stand(
    dialect: str, model: str, temperature: float | None, sent: float | None
) -> None:
    """Some models take it only without a temperature, or without the temperature 0."""
    request = make_request(model=model, top_p=0.9, temperature=temperature)
    call = OpenAI("x", "http://127.0.0.1:1", DIALECTS[dialect]).encode(request)
    assert call.body.get("top_p") == sent
    assert call.fitting is not None
    assert call.fitting.options.get("top_p") == (None if sent else "left out")


@pytest.mark.parametrize(
    ("dialect", "model", "accepted"),
    [
        ("openai", "gpt-5-mini", {"verbosity", "service_tier"}),
        ("openai", "gpt-4.1", {"service_tier"}),
        ("openai", "o3", {"service_tier"}),
        ("openrouter", "openai/gpt-5.2", {"verbosity", "service_tier"}),
        ("groq", "openai/gpt-oss-120b", {"service_tier"}),
        ("cerebras", "gpt-oss-120b", {"service_tier"}),
        ("xai", "grok-4.5", set()),
        ("vllm", "m", set()),
        ("strict", "m", set()),
    ],
)
def test_options_of_one_server_do_not_reach_another(dialect: str, model: str, accepted: set[str]) -> None:
    """A server that checks its fields refuses `verbosity` and `service_tier`."""
    request = make_request(model=model, verbosity="low", service_tier="auto")
    body = OpenAI("x", "http://127.0.0.1:1", DIALECTS[dialect]).encode(request).body
    assert body.keys() & {"verbosity", "service_tier"} == accepted


@pytest.mark.parametrize("dialect", ["groq", "cerebras"])
def test_an_answers_schema_stands_in_the_prompt_where_no_stream_may_have_a_format(dialect: str) -> None:
    """They answer "response_format does not support streaming"."""
    schema = {"type": "object", "properties": {"city": {"type": "string"}}}
    body = OpenAI("x", "http://127.0.0.1:1", DIALECTS[dialect]).encode(make_request(output_schema=schema)).body
    assert "response_format" not in body
    assert '"city"' in str(body["messages"])


def test_a_temperature_is_lowered_to_the_highest() -> None:
    call = OpenAI("x", "http://127.0.0.1:1", STRICT).encode(make_request(temperature=1.5))
    assert call.body["temperature"] == 1.0
    assert call.fitting is not None
    assert call.fitting.options == {"temperature": "1.0"}
