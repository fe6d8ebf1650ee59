import hashlib
import json
from dataclasses import replace
from typing import Any

import anthropic
import httpx2
import pytest
from anthropic.types import message_create_params
from anthropic.types.beta import message_create_params as beta_message_create_params
from hypothesis import given
from hypothesis import strategies as st

from clew_activities.providers import load_providers
from clew_activities.providers.anthropic.provider import Anthropic, make_providers
from clew_activities.providers.anthropic.stream import AnthropicDecoder
from clew_activities.providers.dialects import ANTHROPIC, MESSAGES_DIALECTS
from clew_activities.providers.encoders import compare_request, dump_body
from clew_activities.providers.fit_tools import fit_name
from clew_activities.providers.provider_errors import ProviderError
from clew_workflows.contract.messages import Message, canonicalize
from clew_workflows.contract.payloads import SentRequest
from tests.support.provider_server import (
    ADD,
    ANTHROPIC_STREAM,
    HELLO,
    FakeServer,
    assert_accepted,
    close_message,
    decode,
    encode_events,
    make_call,
    make_delta,
    make_request,
    make_result,
    open_message,
    start_block,
)

PROVIDER = Anthropic("anthropic", "https://api.anthropic.com", api_key="sk-ant-secret")

MANUAL, ADAPTIVE, SAMPLING_FREE, BINDING = (
    "claude-sonnet-4-5",
    "claude-opus-4-6",
    "claude-opus-4-7",
    "claude-opus-5-5",
)

THOUGHT = {"type": "thinking", "thinking": "hm", "signature": "c2ln"}
REDACTED = {"type": "redacted_thinking", "data": "ZGF0YQ=="}


def make_thought(message: Message, *blocks: dict[str, Any], provider: str = "anthropic") -> Message:
    return {**message, "provider_data": {"provider": provider, "blocks": list(blocks)}}


def make_text(content: str) -> dict[str, Any]:
    return {"type": "text", "text": content}


def encode_messages(*sent: Message) -> Any:
    return PROVIDER.encode(make_request(*sent)).body["messages"]


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"temperature": 0.5, "stop": ("END",), "seed": 7},
        {"tools": [ADD], "tool_choice": "required"},
        {"tools": [ADD], "tool_choice": "add", "reasoning_effort": "high"},
        {"tools": [ADD], "tool_choice": "none", "reasoning_effort": "low", "temperature": 0.0},
        {"output_schema": {"type": "object"}, "reasoning_effort": "minimal"},
    ],
)
@pytest.mark.parametrize("model", [MANUAL, ADAPTIVE, SAMPLING_FREE, BINDING, "a-name"])
def test_a_body_is_what_the_official_package_would_send(model: str, options: dict[str, Any]) -> None:
    conversation: list[Message] = [
        {"role": "system", "content": "Be brief."},
        HELLO,
        make_thought(make_call(a=1), THOUGHT, REDACTED),
        make_result("2"),
    ]
    call = PROVIDER.encode(make_request(*conversation, model=model, **options))
    body = dict(call.body)
    # The package's newest version of the API knows no temperature; the version before it does.
    temperature = body.pop("temperature", None)
    assert call.headers["anthropic-version"] == ("2026-10-21" if temperature is None else "2023-06-01")
    params = beta_message_create_params if "anthropic-beta" in call.headers else message_create_params
    assert_accepted(params.MessageCreateParamsStreaming, body)


def test_system_messages_leave_the_conversation_in_order() -> None:
    body = PROVIDER.encode(
        make_request(
            {"role": "system", "content": "Be brief."},
            {"role": "system", "content": " "},
            HELLO,
            {"role": "system", "content": "Summary of earlier conversation: none."},
            {"role": "user", "content": "Well?"},
        )
    ).body
    ends = {"cache_control": {"type": "ephemeral"}}
    assert body["system"] == [
        make_text("Be brief.") | ends,
        make_text("Summary of earlier conversation: none.") | ends,
    ]
    assert body["messages"] == [{"role": "user", "content": [make_text("hello"), make_text("Well?")]}]


def test_results_of_tools_are_one_user_message_before_what_the_user_says() -> None:
    both: Message = {
        "role": "assistant",
        "content": "Both.",
        "tool_calls": [
            {"id": "tc_1", "name": "add", "arguments": {"a": 1}},
            {"id": "tc_2", "name": "my tool", "arguments": {}},
        ],
    }
    sent = encode_messages(
        HELLO, both, make_result("3", "tc_1"), make_result("", "tc_2"), {"role": "user", "content": "Stop!"}
    )
    assert sent[1:] == [
        {
            "role": "assistant",
            "content": [
                make_text("Both."),
                {"type": "tool_use", "id": "tc_1", "name": "add", "input": {"a": 1}},
                {"type": "tool_use", "id": "tc_2", "name": fit_name("my tool", ANTHROPIC.tools), "input": {}},
            ],
        },
        {
            "role": "user",
            "content": [
                {"type": "tool_result", "tool_use_id": "tc_1", "content": "3"},
                {"type": "tool_result", "tool_use_id": "tc_2"},
                make_text("Stop!"),
            ],
        },
    ]


def test_messages_of_one_role_are_merged_and_the_first_is_the_users() -> None:
    sent = encode_messages({"role": "assistant", "content": "a"}, {"role": "assistant", "content": "b"}, HELLO)
    assert [message["role"] for message in sent] == ["user", "assistant", "user"]
    assert sent[1]["content"] == [make_text("a"), make_text("b")]


@pytest.mark.parametrize(
    ("message", "blocks"),
    [
        pytest.param(
            make_thought(make_call(content="Adding.", a=1), THOUGHT, REDACTED),
            [THOUGHT, REDACTED, make_text("Adding."),
             {"type": "tool_use", "id": "tc_1", "name": "add", "input": {"a": 1}}],
            id="thinking first, verbatim",
        ),
        pytest.param(
            make_thought(make_call(content="One. Two."), THOUGHT, make_text("One. "), REDACTED),
            [THOUGHT, make_text("One. "), REDACTED, make_text("Two."),
             {"type": "tool_use", "id": "tc_1", "name": "add", "input": {}}],
            id="thinking in its place between texts",
        ),
        pytest.param(
            make_thought(make_call(content="\n\nTwo."), make_text("\n"), THOUGHT, make_text("\n"), REDACTED),
            [THOUGHT, REDACTED, make_text("Two."), {"type": "tool_use", "id": "tc_1", "name": "add", "input": {}}],
            id="white space alone",
        ),
        pytest.param(
            make_thought({"role": "assistant", "content": "Edited."}, THOUGHT, make_text("One. "), REDACTED),
            [THOUGHT, REDACTED, make_text("Edited.")],
            id="a text that was edited since",
        ),
        pytest.param(
            make_thought({"role": "assistant", "content": "x"}, THOUGHT, provider="other"),
            [make_text("x")], id="another's"
        ),
        pytest.param(
            make_thought({"role": "assistant", "content": "x"}, {"type": "image"}),
            [make_text("x")], id="of no kind we keep"
        ),
    ],
)  # fmt: skip
def test_thinking_goes_back_to_the_provider_that_sent_it(message: Message, blocks: list[dict[str, Any]]) -> None:
    assert encode_messages(HELLO, message)[1]["content"] == blocks


@pytest.mark.parametrize(
    ("model", "options", "sent"),
    [
        (MANUAL, {}, {}),
        (MANUAL, {"reasoning_effort": "minimal"}, {"thinking": {"type": "enabled", "budget_tokens": 1024}}),
        (MANUAL, {"reasoning_effort": "high"}, {"thinking": {"type": "enabled", "budget_tokens": 2048}}),
        (MANUAL, {"reasoning_effort": "high", "max_output_tokens": 64_000},
         {"thinking": {"type": "enabled", "budget_tokens": 16_384}}),
        (MANUAL, {"reasoning_effort": "high", "max_output_tokens": 2000}, {}),
        (MANUAL, {"reasoning_effort": "high", "tools": [ADD], "tool_choice": "add"}, {}),
        (MANUAL, {"temperature": 0.3}, {"temperature": 0.3}),
        (MANUAL, {"temperature": 0.3, "reasoning_effort": "minimal"},
         {"thinking": {"type": "enabled", "budget_tokens": 1024}}),
        ("claude-3-7-sonnet-20250219", {"temperature": 0.3}, {"temperature": 0.3}),
        ("claude-opus-4-20250514", {"temperature": 0.3}, {"temperature": 0.3}),
        (ADAPTIVE, {"reasoning_effort": "minimal"},
         {"thinking": {"type": "adaptive", "display": "summarized"}, "output_config": {"effort": "low"}}),
        (ADAPTIVE, {"temperature": 0.3}, {"temperature": 0.3}),
        (ADAPTIVE, {"reasoning_effort": "high", "tools": [ADD], "tool_choice": "required"},
         {"output_config": {"effort": "high"}}),
        (SAMPLING_FREE, {"temperature": 0.3}, {}),
        ("claude-opus-5", {"temperature": 0.3}, {}),
        ("claude-mythos-preview", {"temperature": 0.3}, {}),
        ("some-local-model", {"temperature": 0.3}, {"temperature": 0.3}),
        (BINDING, {"temperature": 0.3},
         {"thinking": {"type": "adaptive", "block_binding": {"prefix_mismatch_behavior": "drop_block"}}}),
        (BINDING, {"reasoning_effort": "high"},
         {"thinking": {"type": "adaptive", "block_binding": {"prefix_mismatch_behavior": "drop_block"},
                       "display": "summarized"},
          "output_config": {"effort": "high"}}),
    ],
)  # fmt: skip
def test_thinking_effort_and_temperature_are_what_the_models_generation_takes(
    model: str, options: dict[str, Any], sent: dict[str, Any]
) -> None:
    body = PROVIDER.encode(make_request(model=model, **options)).body
    assert {key: body[key] for key in ("thinking", "output_config", "temperature") if key in body} == sent


def test_a_budget_is_not_asked_for_in_a_round_that_began_without_thinking() -> None:
    def body(answer: Message) -> dict[str, Any]:
        return PROVIDER.encode(
            make_request(HELLO, answer, make_result("3"), model=MANUAL, reasoning_effort="low")
        ).body

    assert "thinking" not in body(make_call())
    assert "thinking" in body(make_thought(make_call(), THOUGHT))


@pytest.mark.parametrize(
    ("choice", "sent"),
    [
        ("auto", {"type": "auto"}),
        ("none", {"type": "none"}),
        ("required", {"type": "any"}),
        ("add", {"type": "tool", "name": "add"}),
    ],
)
def test_a_tool_choice_is_sent_where_there_are_tools(choice: str, sent: object) -> None:
    assert PROVIDER.encode(make_request(tools=[ADD], tool_choice=choice)).body["tool_choice"] == sent
    assert "tool_choice" not in PROVIDER.encode(make_request(tool_choice=choice)).body


def test_the_key_goes_into_one_header_and_no_repr() -> None:
    call = PROVIDER.encode(make_request())
    assert call.headers["x-api-key"] == "sk-ant-secret"
    assert "sk-ant-secret" not in repr(call) + repr(PROVIDER)


def test_a_stream_is_folded_with_its_thinking_kept_verbatim() -> None:
    reply = decode(AnthropicDecoder("anthropic"), ANTHROPIC_STREAM)
    assert (reply.content, reply.thinking, reply.stop_reason) == ("I will add.", "Let me think.", "tool_calls")
    assert [(call.name, call.arguments) for call in reply.tool_calls] == [("add", {"a": 1, "b": 2}), ("now", {})]
    assert reply.provider_data == {
        "provider": "anthropic",
        "blocks": [
            {"type": "thinking", "thinking": "Let me think.", "signature": "c2ln"},
            {"type": "redacted_thinking", "data": "ZGF0YQ=="},
        ],
        "calls": [{"id": "toolu_1"}, {"id": "toolu_2"}],
    }
    usage = reply.usage
    assert (usage.input_tokens, usage.cached_input_tokens, usage.output_tokens) == (100, 70, 33)


def test_thinking_between_texts_comes_back_in_its_place() -> None:
    events = [
        start_block(0, type="text", text="One. "),
        start_block(1, **THOUGHT),
        start_block(2, type="text", text="Two."),
        *close_message(),
    ]
    reply = decode(AnthropicDecoder("anthropic"), events)
    answer: Message = {"role": "assistant", "content": reply.content}
    assert reply.provider_data is not None
    sent = encode_messages(HELLO, make_thought(answer, *reply.provider_data["blocks"]))
    assert sent[1]["content"] == [make_text("One. "), THOUGHT, make_text("Two.")]


@pytest.mark.parametrize(
    "blocks",
    [
        pytest.param([{"type": "thinking", "thinking": "no signature", "signature": ""}], id="unsigned"),
        pytest.param([{"type": "redacted_thinking", "data": "x" * 600_000}], id="too large"),
        pytest.param([REDACTED] * 20_000, id="too many", marks=pytest.mark.slow),
    ],
)
def test_thinking_that_cannot_come_back_whole_does_not_come_back(blocks: list[dict[str, Any]]) -> None:
    events = [start_block(index, **block) for index, block in enumerate(blocks)]
    reply = decode(
        AnthropicDecoder("anthropic"), [*events, start_block(99_999, type="text", text="hi"), *close_message()]
    )
    assert (reply.content, reply.provider_data) == ("hi", None)


def test_thinking_over_its_own_cap_is_truncated_to_read_and_whole_to_go_back() -> None:
    long = "x" * 300_000
    events = [
        start_block(0, type="thinking", thinking=long, signature="s"),
        start_block(1, type="text", text="hi"),
        *close_message(),
    ]
    reply = decode(AnthropicDecoder("anthropic"), events)
    assert reply.thinking is not None
    assert len(reply.thinking) <= 256 * 1024
    assert reply.provider_data is not None
    assert reply.provider_data["blocks"][0]["thinking"] == long


@pytest.mark.parametrize(
    ("reason", "neutral"),
    [
        ("end_turn", "stop"),
        ("stop_sequence", "stop"),
        ("max_tokens", "length"),
        ("pause_turn", "paused"),
        ("model_context_window_exceeded", "length"),
        ("something_new", "stop"),
    ],
)
def test_a_reason_to_stop_is_neutral(reason: str, neutral: str) -> None:
    events = [start_block(0, type="text", text="hi"), close_message(reason)[0]]
    assert decode(AnthropicDecoder("anthropic"), events).stop_reason == neutral


HI = start_block(0, type="text", text="hi")
REFUSED = {"type": "refusal", "category": "bio", "explanation": "No."}


@pytest.mark.parametrize(
    ("events", "kind", "retryable"),
    [
        ([open_message(), HI], "truncated_stream", True),
        ([open_message(), *close_message()], "empty_reply", True),
        ([start_block(0, **THOUGHT), *close_message("max_tokens")], "empty_reply", False),
        ([HI, *close_message("refusal", REFUSED)], "content_refused", False),
        ([*close_message("refusal")], "content_refused", False),
        ([HI, {"type": "error", "error": {"type": "overloaded_error", "message": "Overloaded"}}], "overloaded", True),
        ([{"type": "error", "error": {"type": "api_error", "message": "boom"}}], "provider_unavailable", True),
        (["nonsense"], "truncated_stream", True),
    ],
)
def test_what_is_no_reply_is_a_typed_error(events: list[Any], kind: str, retryable: bool) -> None:
    with pytest.raises(ProviderError) as caught:
        decode(AnthropicDecoder("anthropic"), events)
    assert (caught.value.type, caught.value.retryable) == (kind, retryable)


def test_a_refusal_says_what_it_is_about() -> None:
    with pytest.raises(ProviderError, match="bio: No"):
        decode(AnthropicDecoder("anthropic"), close_message("refusal", REFUSED))


def test_a_whole_message_folds_like_a_stream() -> None:
    message = open_message(input_tokens=5)["message"] | {
        "content": [THOUGHT, make_text("hi"), {"type": "tool_use", "id": "t", "name": "add", "input": {"a": 1}}],
        "stop_reason": "tool_use",
    }
    reply = decode(AnthropicDecoder("anthropic"), [message])
    assert (reply.content, reply.thinking, reply.tool_calls[0].arguments) == ("hi", "hm", {"a": 1})
    assert reply.provider_data == {"provider": "anthropic", "blocks": [THOUGHT], "calls": [{"id": "t"}]}


async def test_a_stream_folds_into_what_the_official_client_makes_of_it(server: FakeServer) -> None:
    server.answer(encode_events(ANTHROPIC_STREAM))
    http = httpx2.AsyncClient(trust_env=False)
    async with (
        anthropic.AsyncAnthropic(api_key="k", base_url=server.url, max_retries=0, http_client=http) as official,
        official.messages.stream(model="m", max_tokens=9, messages=[]) as stream,
    ):
        theirs = await stream.get_final_message()
    ours = decode(AnthropicDecoder("anthropic"), ANTHROPIC_STREAM)
    blocks = [block.model_dump(exclude_none=True) for block in theirs.content]
    assert ours.content == "".join(block["text"] for block in blocks if block["type"] == "text")
    assert ours.provider_data is not None
    assert ours.provider_data["blocks"] == [block for block in blocks if "thinking" in block["type"]]
    assert [(call.name, call.arguments) for call in ours.tool_calls] == [
        (block["name"], block["input"]) for block in blocks if block["type"] == "tool_use"
    ]
    assert ours.usage.output_tokens == theirs.usage.output_tokens


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(0, 5) | st.text(st.characters(codec=None, exclude_categories=())),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=6,
)
NAMES = "text thinking signature data partial_json input name id content tool_use_id citation citations"
PARTS = dict.fromkeys(NAMES.split(), JSON)
KINDS = st.sampled_from(
    ["text", "thinking", "redacted_thinking", "tool_use", "server_tool_use", "web_search_tool_result",
     "code_execution_tool_result"]
)  # fmt: skip
EVENTS = st.one_of(
    st.builds(lambda block, at: start_block(at, **block),
              st.fixed_dictionaries({"type": KINDS | JSON}, optional=PARTS), st.integers(0, 2)),
    st.builds(lambda parts, at: make_delta(at, **parts),
              st.fixed_dictionaries({}, optional=PARTS), st.integers(0, 2)),
    st.builds(lambda usage: open_message(input_tokens=usage), JSON),
    st.builds(lambda reason, details: close_message(reason, details)[0], JSON, JSON),
    st.fixed_dictionaries({"type": JSON}, optional={"index": JSON, "error": JSON, "message": JSON}),
)  # fmt: skip


@pytest.mark.slow
@given(st.lists(EVENTS, max_size=6))
def test_whatever_arrives_is_a_reply_that_can_be_stored_or_a_typed_error(events: list[Any]) -> None:
    try:
        reply = decode(AnthropicDecoder("anthropic"), [*events, HI, close_message()[0]])
        reply.model_dump_json().encode()
        json.dumps(reply.provider_data, ensure_ascii=False).encode()
    except ProviderError as error:
        error.message.encode()


def test_without_a_prompt_the_tools_are_what_stays() -> None:
    """They are cached apart from the conversation, which may be truncated."""
    body = PROVIDER.encode(make_request(HELLO, tools=[ADD, {**ADD, "name": "also"}])).body
    assert [tool.get("cache_control") for tool in body["tools"]] == [None, {"type": "ephemeral"}]
    assert "system" not in body


def test_the_request_says_what_it_has_otherwise() -> None:
    """Messages that were joined, added and left out, and options that the API does not take."""
    hello: Message = {"role": "assistant", "content": "hello"}
    blank: Message = {"role": "system", "content": " "}
    empty: Message = {"role": "assistant", "content": ""}
    messages = (blank, hello, HELLO, HELLO, make_call(a=1), make_result("3"), HELLO, empty, hello)
    call = PROVIDER.encode(make_request(*messages, tools=[ADD], tool_choice="gone", stop=("\n", "END"), seed=1))
    assert call.body["stop_sequences"] == ["END"]
    assert call.fitting is not None
    assert call.fitting.as_dict() == {
        "dialect": "anthropic",
        "merged": 2,
        "added": 2,
        "dropped": 2,
        "options": {"seed": "left out", "stop": "['END']", "tool_choice": "left out"},
    }


def test_a_request_that_has_the_context_as_it_is_says_nothing() -> None:
    calls = (HELLO, make_call(a=1), make_result("3"), make_call(a=1, call_id="tc_2"), make_result("3", "tc_2"))
    fitting = PROVIDER.encode(make_request(*calls, tools=[ADD])).fitting
    assert fitting is not None
    assert fitting.as_dict() == {"dialect": "anthropic"}


@pytest.mark.parametrize("call_id", ["a\ud800", "a" * 1_000_000])
def test_an_id_can_be_stored_whatever_it_is(call_id: str) -> None:
    """A lone surrogate ended the model call without a typed error."""
    start = {"type": "content_block_start", "index": 0}
    block = {"type": "tool_use", "id": call_id, "name": "add", "input": {}}
    reply = decode(AnthropicDecoder("p"), [{**start, "content_block": block}, *close_message("tool_use")])
    assert reply.provider_data is not None
    assert len(canonicalize(reply.provider_data)) < 1000


def make_use(number: int, **fields: Any) -> dict[str, Any]:
    base = {"type": "server_tool_use", "id": f"srvtoolu_{number}", "name": "web_search", "input": {"query": "rain"}}
    return base | fields


def make_found(number: int) -> dict[str, Any]:
    page = {"type": "web_search_result", "url": "https://a.example", "title": "A", "encrypted_content": "ZW5j"}
    return {"type": "web_search_tool_result", "tool_use_id": f"srvtoolu_{number}", "content": [page]}


CITATION = {
    "type": "web_search_result_location",
    "url": "https://a.example",
    "title": "A",
    "encrypted_index": "aWR4",
    "cited_text": "It rained.",
}
CITED = {"type": "text", "text": "It rains.", "citations": [CITATION]}


def stop_block(index: int) -> dict[str, Any]:
    return {"type": "content_block_stop", "index": index}


def test_a_search_is_recorded_and_its_blocks_go_back_as_they_came() -> None:
    """The query and the sources are read from the blocks, the citation's place from the text around it."""
    events = [
        open_message(),
        start_block(0, type="text", text="Let me see. "),
        start_block(1, **make_use(1, input={})),
        make_delta(1, type="input_json_delta", partial_json='{"query": '),
        make_delta(1, type="input_json_delta", partial_json='"rain"}'),
        stop_block(1),
        start_block(2, **make_found(1)),
        start_block(3, type="text", text="", citations=[]),
        make_delta(3, type="text_delta", text="It "),
        make_delta(3, type="citations_delta", citation=CITATION),
        make_delta(3, type="text_delta", text="rains."),
        stop_block(3),
        start_block(4, type="tool_use", id="t", name="add", input={}),
        *close_message("tool_use"),
    ]
    reply = decode(AnthropicDecoder("anthropic"), events)
    source = {"url": "https://a.example", "title": "A"}
    assert reply.provider_calls == ({"tool": "web_search", "input": "rain", "sources": [source]},)
    assert reply.citations == (source | {"quote": "It rained.", "start": 12, "end": 21},)
    assert reply.content[12:21] == "It rains."
    assert reply.provider_data is not None
    blocks = [make_text("Let me see. "), make_use(1), make_found(1), CITED]
    assert reply.provider_data["blocks"] == blocks
    sent = encode_messages(HELLO, make_thought(make_call(content=reply.text), *blocks), make_result("3"))
    assert sent[1]["content"][:-1] == blocks


@pytest.mark.parametrize(
    ("name", "value", "content", "recorded"),
    [
        ("web_fetch", {"url": "https://a.example"},
         {"type": "web_fetch_result", "url": "https://a.example",
          "content": {"type": "document", "title": "A", "source": {}}},
         {"tool": "web_fetch", "input": "https://a.example",
          "sources": [{"url": "https://a.example", "title": "A"}]}),
        ("web_search", {"query": "q"}, {"type": "web_search_tool_result_error", "error_code": "max_uses_exceeded"},
         {"tool": "web_search", "input": "q", "error": "max_uses_exceeded"}),
        ("bash_code_execution", {"command": "ls"},
         {"type": "bash_code_execution_result", "stdout": "a\n", "stderr": "no b", "return_code": 2, "content": []},
         {"tool": "code_execution", "input": "ls", "output": "a\nno b", "error": "exit code 2"}),
        ("code_execution", {"code": "1"},
         {"type": "code_execution_result", "stdout": "1", "stderr": "", "return_code": 0, "content": []},
         {"tool": "code_execution", "input": "1", "output": "1"}),
        ("text_editor_code_execution", {"command": "view", "path": "a"},
         {"type": "text_editor_code_execution_view_result", "file_type": "text", "content": "hi"},
         {"tool": "code_execution", "input": "view", "output": "hi"}),
    ],
)  # fmt: skip
def test_a_call_of_each_tool_of_the_provider_is_recorded(
    name: str, value: Any, content: Any, recorded: dict[str, Any]
) -> None:
    result = {"type": f"{name}_tool_result", "tool_use_id": "srvtoolu_1", "content": content}
    blocks = [make_use(1, name=name, input=value), result]
    events = [start_block(index, **block) for index, block in enumerate(blocks)]
    reply = decode(AnthropicDecoder("anthropic"), [*events, HI, *close_message()])
    assert reply.provider_calls == (recorded,)


def make_paused(*blocks: dict[str, Any], content: str = "") -> Message:
    return make_thought({"role": "assistant", "content": content}, *blocks)


def test_a_paused_reply_is_the_last_message_as_it_came() -> None:
    """It may have no text; the call that has no result yet goes back, and its result is recorded with its query."""
    events = [start_block(0, **THOUGHT), start_block(1, **make_use(1)), *close_message("pause_turn")]
    paused = decode(AnthropicDecoder("anthropic"), events)
    assert (paused.stop_reason, paused.content, paused.provider_calls) == ("paused", "", ())
    assert paused.provider_data is not None
    request = make_request(HELLO, make_paused(*paused.provider_data["blocks"]), model=ADAPTIVE)
    assert PROVIDER.encode(request).body["messages"][1:] == [{"role": "assistant", "content": [THOUGHT, make_use(1)]}]
    rest = [start_block(0, **make_found(1)), start_block(1, type="text", text="hi"), *close_message()]
    reply = decode(PROVIDER.make_decoder(request), rest)
    assert [call["input"] for call in reply.provider_calls] == ["rain"]


def test_a_call_without_a_result_is_left_out_once_the_user_has_spoken() -> None:
    """The run failed or was cancelled; the calls with results stay."""
    answered, dangling = [make_use(1), make_found(1)], make_use(2)
    sent = encode_messages(HELLO, make_paused(*answered, dangling), HELLO)
    assert sent[1] == {"role": "assistant", "content": answered}
    assert len(encode_messages(HELLO, make_paused(dangling), HELLO)) == 1


def test_a_call_beside_other_tools_goes_back_until_its_result_has_come() -> None:
    """The API runs it after the other tools have returned; what it then found stands in the next reply."""
    call = make_thought(make_call(), make_use(1))
    open_round = encode_messages(HELLO, call, make_result("3"))
    assert open_round[1]["content"][0] == make_use(1)
    steered = encode_messages(HELLO, call, make_result("3"), HELLO)
    assert [block["type"] for block in steered[1]["content"]] == ["tool_use"]
    later = make_thought(make_call(call_id="tc_2"), make_found(1))
    closed = encode_messages(HELLO, call, make_result("3"), later, make_result("3", "tc_2"), HELLO)
    assert (closed[1]["content"][0], closed[3]["content"][0]) == (make_use(1), make_found(1))


def test_code_goes_on_in_its_container_within_a_turn() -> None:
    delta = close_message("pause_turn")
    delta[0]["delta"]["container"] = {"id": "container_1", "expires_at": "2026-12-01T00:00:00Z"}
    use = make_use(1, name="code_execution", input={"code": "1"})
    paused = decode(AnthropicDecoder("anthropic"), [start_block(0, **use), *delta])
    assert paused.provider_data is not None
    message = make_paused(*paused.provider_data["blocks"])
    assert PROVIDER.encode(make_request(HELLO, message)).body["container"] == "container_1"
    assert "container" not in PROVIDER.encode(make_request(HELLO, message, HELLO)).body


@pytest.mark.parametrize(
    ("model", "types"),
    [
        ("claude-2.1", []),
        (MANUAL, ["web_search_20250305", "web_fetch_20250910", "code_execution_20250825"]),
        (ADAPTIVE, ["web_search_20260318", "web_fetch_20260318", "code_execution_20260521"]),
        (BINDING, ["web_search_20260318", "web_fetch_20260318", "code_execution_20260521"]),
        ("some-local-model", []),
    ],
)
def test_a_model_gets_the_newest_tools_of_the_provider_that_it_takes(model: str, types: list[str]) -> None:
    """Beside the session's own tools, of which one may have the same name."""
    names = ("web_search", "web_fetch", "code_execution")
    request = replace(make_request(model=model, tools=[ADD]), provider_tools=names)
    call = PROVIDER.encode(request)
    assert [tool["type"] for tool in call.body["tools"][1:]] == types
    assert call.fitting is not None
    assert len(call.fitting.tools_left_out) == len(names) - len(types)
    params = beta_message_create_params if "anthropic-beta" in call.headers else message_create_params
    assert_accepted(params.MessageCreateParamsStreaming, dict(call.body))
    clash = PROVIDER.encode(replace(request, tools=[{**ADD, "name": "web_search"}]))
    assert clash.fitting is not None
    assert "web_search" in clash.fitting.tools_left_out


@pytest.mark.parametrize(
    ("model", "thinking", "effort"),
    [
        (MANUAL, None, None),
        (ADAPTIVE, None, None),
        (SAMPLING_FREE, None, None),
        ("claude-opus-5", {"type": "disabled"}, None),
        ("claude-haiku-5-5", {"type": "disabled"}, None),
        ("claude-sonnet-5-5", {"type": "between_tools"}, None),
        ("claude-fable-5", None, "low"),
        ("claude-mythos-preview", None, "low"),
        (BINDING, {"type": "adaptive", "block_binding": {"prefix_mismatch_behavior": "drop_block"}}, "low"),
    ],
)
def test_no_reasoning_is_what_each_generation_has_of_it(
    model: str, thinking: dict[str, Any] | None, effort: str | None
) -> None:
    """Thinking is turned off where the model would think; one that always thinks thinks least."""
    message = make_thought(make_call(a=1), THOUGHT)
    call = PROVIDER.encode(make_request(HELLO, message, make_result("3"), model=model, reasoning_effort="none"))
    assert (call.body.get("thinking"), call.body.get("output_config", {}).get("effort")) == (thinking, effort)
    assert call.fitting is not None
    assert call.fitting.options.get("reasoning_effort") == effort
    # Blocks that are bound to what was before them do not go back where the API would only check them.
    is_off_and_bound = model in ("claude-haiku-5-5", "claude-sonnet-5-5")
    assert (THOUGHT in call.body["messages"][1]["content"]) == (not is_off_and_bound)


@pytest.mark.parametrize(
    ("model", "asked", "sent"),
    [
        (ADAPTIVE, "xhigh", "max"),
        (SAMPLING_FREE, "xhigh", "xhigh"),
        ("claude-sonnet-5", "minimal", "low"),
        (MANUAL, "xhigh", None),
    ],
)
def test_an_effort_is_the_nearest_that_the_generation_has(model: str, asked: str, sent: str | None) -> None:
    call = PROVIDER.encode(make_request(model=model, reasoning_effort=asked))
    assert call.body.get("output_config", {}).get("effort") == sent
    assert call.fitting is not None
    assert call.fitting.options.get("reasoning_effort") == (sent if sent != asked else None)


@pytest.mark.parametrize(
    ("model", "options", "sent", "described"),
    [
        (ADAPTIVE, {"top_p": 0.5}, {"top_p": 0.5}, {}),
        (ADAPTIVE, {"top_p": 0.5, "temperature": 0.2}, {"temperature": 0.2}, {"top_p": "left out"}),
        (ADAPTIVE, {"top_p": 0.5, "reasoning_effort": "low"}, {}, {"top_p": "left out"}),
        (ADAPTIVE, {"top_p": 0.97, "reasoning_effort": "low"}, {"top_p": 0.97}, {}),
        (BINDING, {"top_p": 0.97}, {}, {"top_p": "left out"}),
        (ADAPTIVE, {"service_tier": "standard_only"}, {"service_tier": "standard_only"}, {}),
        (ADAPTIVE, {"service_tier": "flex"}, {}, {"service_tier": "left out"}),
        (ADAPTIVE, {"verbosity": "low"}, {}, {"verbosity": "left out"}),
        (BINDING, {"tools": [ADD], "tool_choice": "required"}, {}, {"tool_choice": "left out"}),
        ("claude-haiku-5-5", {"tools": [ADD], "tool_choice": "required"}, {"tool_choice": {"type": "any"}}, {}),
    ],
)
def test_an_option_that_the_generation_does_not_take_is_left_out_and_described(
    model: str, options: dict[str, Any], sent: dict[str, Any], described: dict[str, str]
) -> None:
    call = PROVIDER.encode(make_request(model=model, **options))
    names = ("top_p", "temperature", "service_tier", "verbosity", "tool_choice")
    assert {name: call.body[name] for name in names if name in call.body} == sent
    assert call.fitting is not None
    assert call.fitting.options == described
    expected = "2023-06-01" if {"top_p", "temperature"} & sent.keys() else "2026-10-21"
    assert call.headers["anthropic-version"] == expected


def configure(**environ: str) -> Anthropic:
    (provider,) = make_providers({"ANTHROPIC_API_KEY": "k", **environ})
    return provider


def test_a_worker_says_how_long_the_cache_keeps_prompts() -> None:
    """All breakpoints have the TTL, and the recipe alone is enough to encode the body again."""
    request = make_request({"role": "system", "content": "Be brief."}, HELLO, tools=[ADD])
    short, long = (
        configure(ANTHROPIC_CACHE_TTL="5m").encode(request),
        configure(ANTHROPIC_CACHE_TTL="1h").encode(request),
    )
    assert json.dumps(short.body).count('"ttl"') == 0
    assert json.dumps(long.body).count('"ttl": "1h"') == json.dumps(long.body).count('"cache_control"') == 2
    for call in (short, long):
        digest = hashlib.sha256(dump_body(call.body)).hexdigest()
        sent = SentRequest(digest=digest, encoder=call.encoder, dialect=call.dialect)
        assert compare_request(request, "anthropic", sent).status == "same"


def test_the_cache_has_at_most_four_breakpoints() -> None:
    system: list[Message] = [{"role": "system", "content": f"Part {number}."} for number in range(5)]
    request = replace(make_request(*system, HELLO, tools=[ADD]), provider_tools=("web_search",))
    assert json.dumps(PROVIDER.encode(request).body).count('"cache_control"') <= 4


def test_a_worker_names_beta_features_beside_the_codecs_own() -> None:
    """They stand in a header alone: the body is the same without them."""
    request, plain = make_request(model=BINDING), configure()
    call = configure(ANTHROPIC_BETA=" compact-2026-09-04, thinking-binding-controls-2026-08-01 ").encode(request)
    assert call.headers["anthropic-beta"] == "thinking-binding-controls-2026-08-01,compact-2026-09-04"
    assert call.body == plain.encode(request).body
    assert "anthropic-beta" not in plain.encode(make_request()).headers


@pytest.mark.parametrize(
    ("variable", "value"),
    [("ANTHROPIC_CACHE_TTL", "2h"), ("ANTHROPIC_BETA", "one two"), ("ANTHROPIC_BETA", "a\nb: c")],
)
def test_a_variable_that_cannot_be_used_is_named_without_its_value(variable: str, value: str) -> None:
    with pytest.raises(ValueError, match=variable) as caught:
        configure(**{variable: value})
    assert value not in str(caught.value)


def test_prompts_that_are_cached_for_an_hour_are_counted_apart() -> None:
    """They cost more than those that are cached for five minutes."""
    created = {"ephemeral_1h_input_tokens": 30, "ephemeral_5m_input_tokens": 10}
    start = open_message(input_tokens=5, cache_creation_input_tokens=40, cache_creation=created)
    usage = decode(AnthropicDecoder("anthropic"), [start, HI, *close_message()]).usage
    assert (usage.input_tokens, usage.written_input_tokens, usage.long_written_input_tokens) == (45, 40, 30)


@pytest.mark.parametrize("name", sorted({*MESSAGES_DIALECTS} - {"anthropic", "gateway"}))
def test_another_server_gets_nothing_of_anthropics_alone(name: str) -> None:
    """No beta, no newest version, no format of the answer, no adaptive thinking, no options that it may refuse."""
    provider = Anthropic("other", "http://other", api_key="key-1234", betas=(), dialect=MESSAGES_DIALECTS[name])
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
    request = make_request(
        HELLO, model="model-5.1", tools=[ADD], reasoning_effort="high", service_tier="auto", output_schema=schema
    )
    sent = provider.encode(request)
    known = {"model", "messages", "stream", "system", "tools", "max_tokens", "thinking"}
    assert sent.body.keys() <= known
    assert sent.body.get("thinking", {}).get("type") in (None, "enabled")
    assert "anthropic-beta" not in sent.headers
    assert sent.headers["anthropic-version"] == "2023-06-01"
    assert sent.headers["authorization"] == "Bearer key-1234"
    assert "integer" in json.dumps(sent.body["system"])


def test_thinking_without_a_signature_goes_back_to_the_server_that_sends_none() -> None:
    """As DeepSeek wants it, also beside the calls that another model has made."""
    provider = Anthropic("deepseek", "https://api.deepseek.com/anthropic", dialect=MESSAGES_DIALECTS["deepseek"])
    request = make_request(HELLO, model="deepseek-v4-pro", tools=[ADD])
    events = [
        open_message(),
        start_block(0, type="thinking", thinking=""),
        make_delta(0, type="thinking_delta", thinking="I must add."),
        start_block(0, type="tool_use", id="call_1", name="add", input={}),
        make_delta(0, type="input_json_delta", partial_json='{"a": 1}'),
        *close_message("tool_use"),
    ]
    reply = decode(provider.make_decoder(request), events)
    assert reply.tool_calls[0].arguments == {"a": 1}
    assert reply.provider_data is not None
    own: Message = {**make_call(a=1), "provider_data": reply.provider_data}
    foreign = make_call(call_id="tc_2", a=2)
    messages = [HELLO, own, make_result("1"), foreign, make_result("2", "tc_2")]
    body = provider.encode(make_request(*messages, model="deepseek-v4-pro", tools=[ADD])).body
    thoughts = [turn["content"][0] for turn in body["messages"] if turn["role"] == "assistant"]
    assert [(block["type"], block["thinking"]) for block in thoughts] == [
        ("thinking", "I must add."),
        ("thinking", " "),
    ]


@pytest.mark.parametrize(
    ("environ", "name", "dialect"),
    [
        ({"ANTHROPIC_API_KEY": "k"}, "anthropic", "anthropic"),
        ({"ANTHROPIC_BASE_URL": "https://api.deepseek.com/anthropic"}, "anthropic", "deepseek"),
        ({"ANTHROPIC_BASE_URL": "https://api.moonshot.cn/anthropic"}, "anthropic", "kimi"),
        ({"ANTHROPIC_BASE_URL": "https://api.z.ai/api/anthropic"}, "anthropic", "glm"),
        ({"ANTHROPIC_BASE_URL": "https://api.minimax.io/anthropic"}, "anthropic", "minimax"),
        ({"ANTHROPIC_BASE_URL": "https://ai-gateway.vercel.sh"}, "anthropic", "gateway"),
        ({"ANTHROPIC_BASE_URL": "http://h", "CLEW_PROVIDER_ANTHROPIC_DIALECT": "vllm"}, "anthropic", "vllm"),
        ({"CLEW_PROVIDER_DS_BASE_URL": "https://api.deepseek.com/anthropic"}, "ds", "deepseek"),
        (
            {"CLEW_PROVIDER_OLLAMA_BASE_URL": "http://h", "CLEW_PROVIDER_OLLAMA_DIALECT": "anthropic"},
            "ollama",
            "ollama",
        ),
        ({"CLEW_PROVIDER_X_BASE_URL": "http://h", "CLEW_PROVIDER_X_DIALECT": "anthropic-kimi"}, "x", "kimi"),
        ({"CLEW_PROVIDER_X_BASE_URL": "http://h/anthropic"}, "x", "anthropic"),
    ],
)
def test_a_server_has_the_dialect_of_its_variable_its_host_or_its_name(
    environ: dict[str, str], name: str, dialect: str
) -> None:
    provider = load_providers(environ).get(name)
    assert isinstance(provider, Anthropic)
    assert provider.choose_dialect("claude-sonnet-4-5").name == dialect


@pytest.mark.parametrize(("model", "dialect"), [("claude-sonnet-4-5", "anthropic"), ("qwen3", "strict")])
def test_at_a_server_that_is_not_known_the_model_decides(model: str, dialect: str) -> None:
    sent = Anthropic("x", "http://gateway").encode(make_request(HELLO, model=model))
    assert sent.fitting is not None
    assert sent.fitting.dialect == dialect
