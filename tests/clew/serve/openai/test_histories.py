"""Histories of other services: what the schemas of the APIs permit is taken, or refused by its own path."""

from __future__ import annotations

import base64
from typing import Any, get_args

import openai
import pytest
from openai.types.responses.response_input_item_param import ResponseInputItemParam
from typing_extensions import get_type_hints

from clew.local import Reply
from clew.serve.openai import asks, bodies
from clew.serve.openai.refusals import InvalidValue, UnsupportedValue
from tests.support.examples import mark_slow_except
from tests.support.media import make_png
from tests.support.openai_api import connect
from tests.support.openai_scripts import echo
from tests.support.serving import run_service
from tests.support.stack import Stack

CALL: dict[str, Any] = {"type": "function_call", "call_id": "abc123", "name": "add", "arguments": '{"a": 1}'}
OUTPUT: dict[str, Any] = {"type": "function_call_output", "call_id": "abc123", "output": "3"}
USER: dict[str, Any] = {"role": "user", "content": "One and two?"}
PNG = make_png()
IMAGE = f"data:image/png;base64,{base64.b64encode(PNG).decode()}"
REFUSED = {
    "additional_tools",
    "compaction",
    "compaction_trigger",
    "configuration_update",
    "program",
    "program_output",
    "tool_search_call",
    "tool_search_output",
}
"""The types of items that are refused: they change settings, or stand for what only their service can read."""
SAMPLES: dict[str, list[dict[str, Any]]] = {
    "message": [{"type": "message", "role": "assistant", "id": "m", "status": "completed", "content": []}],
    "function_call": [CALL],
    "function_call_output": [OUTPUT],
    "custom_tool_call": [{"type": "custom_tool_call", "call_id": "c", "name": "sql", "input": "select 1"}],
    "custom_tool_call_output": [{"type": "custom_tool_call_output", "call_id": "c", "output": "1"}],
    "computer_call": [
        {"type": "computer_call", "id": "i", "call_id": "c", "action": {"type": "wait"}, "pending_safety_checks": []}
    ],
    "computer_call_output": [
        {
            "type": "computer_call_output",
            "call_id": "c",
            "output": {"type": "computer_screenshot", "image_url": IMAGE},
        }
    ],
    "local_shell_call": [
        {"type": "local_shell_call", "id": "c", "call_id": "c", "action": {"type": "exec"}, "status": "completed"}
    ],
    "local_shell_call_output": [{"type": "local_shell_call_output", "id": "c", "output": "ok"}],
    "shell_call": [{"type": "shell_call", "call_id": "c", "action": {"commands": ["ls"]}}],
    "shell_call_output": [{"type": "shell_call_output", "call_id": "c", "output": [{"stdout": "a"}]}],
    "apply_patch_call": [{"type": "apply_patch_call", "call_id": "c", "operation": {"type": "delete_file"}}],
    "apply_patch_call_output": [{"type": "apply_patch_call_output", "call_id": "c", "status": "completed"}],
    "file_search_call": [
        {"type": "file_search_call", "id": "f", "queries": ["q"], "status": "completed", "results": [{"text": "t"}]}
    ],
    "web_search_call": [{"type": "web_search_call", "id": "w", "action": {"type": "search"}, "status": "completed"}],
    "code_interpreter_call": [
        {
            "type": "code_interpreter_call",
            "id": "p",
            "code": "1",
            "container_id": "k",
            "outputs": None,
            "status": "completed",
        }
    ],
    "image_generation_call": [
        {"type": "image_generation_call", "id": "g", "result": base64.b64encode(PNG).decode(), "status": "completed"}
    ],
    "mcp_call": [{"type": "mcp_call", "id": "m", "server_label": "s", "name": "n", "arguments": "{}", "output": "o"}],
    "mcp_list_tools": [{"type": "mcp_list_tools", "id": "l", "server_label": "s", "tools": []}],
    "mcp_approval_request": [
        {"type": "mcp_approval_request", "id": "a", "server_label": "s", "name": "n", "arguments": "{}"}
    ],
    "mcp_approval_response": [{"type": "mcp_approval_response", "approval_request_id": "a", "approve": True}],
    "reasoning": [{"type": "reasoning", "id": "r", "summary": [], "content": None, "encrypted_content": None}],
    "item_reference": [{"type": "item_reference", "id": "i"}],
}
"""An item of each type that is taken."""


def list_types() -> set[str]:
    """The types of items that the official client declares."""
    return {
        value
        for item in get_args(ResponseInputItemParam)
        for value in get_args(_strip(get_type_hints(item, include_extras=True)["type"]))
        if isinstance(value, str)
    }


def _strip(hint: Any) -> Any:
    """Strip `Required` and `Optional` from a declared `Literal`."""
    while not any(isinstance(value, str) for value in get_args(hint)):
        hint = get_args(hint)[0]
    return hint


def test_each_type_of_item_is_taken_or_refused_by_its_path() -> None:
    """Those that the official client declares, all of them."""
    assert list_types() == set(SAMPLES) | REFUSED
    for samples in SAMPLES.values():
        asks.read_items(samples)
    for kind in REFUSED:
        with pytest.raises(UnsupportedValue) as refused:
            asks.read_items([USER, {"type": kind, "id": "x"}])
        assert refused.value.param == "input[1].type"


@pytest.mark.parametrize("neutral", [None, False, 0, "", {}, []])
def test_neutral_values_of_what_is_not_served_are_taken(neutral: Any) -> None:
    """In items, in parts, in tools and in options, by both APIs."""
    part = {"type": "input_text", "text": "a", "wings": neutral}
    asks.read_items([{"role": "user", "content": [part], "wings": neutral}, {**CALL, "wings": neutral}])
    bodies.ResponseCreate.model_validate({"reasoning": {"mode": neutral}, "text": {"wings": neutral}})
    function = {"name": "a", "wings": neutral}
    message = {"role": "user", "content": [{"type": "text", "text": "a", "wings": neutral}], "wings": neutral}
    bodies.ChatCreate.model_validate(
        {"model": "m", "messages": [message], "tools": [{"type": "function", "function": function}]}
    )


@pytest.mark.parametrize(
    ("items", "param"),
    [
        ([USER, {"role": "user", "content": [{"type": "input_text"}]}], "input[1].content[0].text"),
        ([{"role": "user", "content": [{"type": "input_text", "text": 3}]}], "input[0].content[0].text"),
        ([{"role": "user", "content": [{"type": "input_image"}]}], "input[0].content[0]"),
        ([{"role": "user", "content": [{"type": "video"}]}], "input[0].content[0].type"),
        (
            [{"role": "user", "content": [{"type": "input_text", "text": "a", "wings": 2}]}],
            "input[0].content[0].wings",
        ),
        ([{"role": "king", "content": "a"}], "input[0].role"),
        ([USER, {**CALL, "name": ""}], "input[1].name"),
        ([USER, {"type": "function_call_output", "output": "a"}], "input[1].call_id"),
        ([{"role": "developer", "content": [{"type": "input_image", "image_url": IMAGE}]}], "input[0].content[0]"),
    ],
)
def test_a_bad_part_is_named_by_its_own_path(items: list[dict[str, Any]], param: str) -> None:
    """Not by the item or the list that has it."""
    with pytest.raises(InvalidValue) as refused:
        asks.read_items(items)
    assert refused.value.param == param


@pytest.mark.parametrize(
    ("text", "arguments"),
    [
        ('{"a": 1}', {"a": 1}),
        ("", {}),
        (None, {}),
        ("null", {}),
        ('{"a": ', {asks.MALFORMED: '{"a": '}),
        ("[1]", {asks.MALFORMED: "[1]"}),
        ('{"a": NaN}', {asks.MALFORMED: '{"a": NaN}'}),
    ],
)
def test_arguments_of_an_earlier_call_are_what_a_model_wrote(text: str | None, arguments: dict[str, Any]) -> None:
    """Those that are no JSON object stay a text, in both APIs."""
    (said,), _ = asks.read_items([{**CALL, "arguments": text}])
    assert said.calls[0].arguments == arguments
    call = {"id": "c", "type": "function", "function": {"name": "add", "arguments": text}}
    body = bodies.ChatCreate.model_validate({"model": "m", "messages": [{"role": "assistant", "tool_calls": [call]}]})
    assert asks.read_chat(body).spoken[0].calls[0].arguments == arguments


async def test_a_history_may_end_with_results_of_another_service(client: openai.AsyncOpenAI, stack: Stack) -> None:
    """The model reads the whole of it, and answers the result. Its ids are anyone's."""
    model = stack.add_model(echo)
    history: Any = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Hello"}, USER, CALL, OUTPUT]
    made = await client.responses.create(model=model, input=history)
    assert made.output_text == "user: Hi | assistant: Hello | user: One and two? | assistant:  | tool: 3"
    (call,) = stack.list_requests(model)[0]["messages"][3]["tool_calls"]
    assert (call["function"]["name"], call["function"]["arguments"]) == ("add", '{"a": 1}')
    assert [item.type for item in made.output] == ["message"]
    messages: Any = [
        USER,
        {
            "role": "assistant",
            "content": None,
            "tool_calls": [{"id": "abc123", "type": "function", "function": {"name": "add", "arguments": "{"}}],
        },
        {"role": "tool", "tool_call_id": "abc123", "content": "3"},
    ]
    for stream in (False, True):
        if stream:
            chunks = [
                c async for c in await client.chat.completions.create(model=model, messages=messages, stream=True)
            ]
            text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks)
        else:
            text = (await client.chat.completions.create(model=model, messages=messages)).choices[
                0
            ].message.content or ""
        assert text == "user: One and two? | assistant:  | tool: 3"


async def test_a_message_may_follow_foreign_results(client: openai.AsyncOpenAI, stack: Stack) -> None:
    """It is the message of the run; what was before is the context."""
    model = stack.add_model(echo)
    made = await client.responses.create(model=model, input=[USER, CALL, OUTPUT, {"role": "user", "content": "And?"}])  # type: ignore[list-item]
    assert made.output_text.endswith("tool: 3 | user: And?")


@pytest.mark.slow
@pytest.mark.parametrize("detail", mark_slow_except(["low"], ["auto", "low", "high", "original"]))
async def test_the_detail_of_an_image_reaches_the_provider(
    client: openai.AsyncOpenAI, stack: Stack, detail: str
) -> None:
    """In both APIs; `auto` is what a provider does without it."""
    # A model whose name says that it takes images.
    name = f"gpt-4o-{detail}"
    stack.scripts[name], model = (lambda _body: Reply("seen")), f"scripted:{name}"
    part: Any = {"type": "input_image", "image_url": IMAGE, "detail": detail}
    await client.responses.create(model=model, input=[{"role": "user", "content": [part]}])
    chat: Any = {"type": "image_url", "image_url": {"url": IMAGE, "detail": detail}}
    await client.chat.completions.create(model=model, messages=[{"role": "user", "content": [chat]}])
    expected = None if detail == "auto" else detail
    for body in stack.list_requests(model):
        (sent,) = body["messages"][0]["content"]
        assert sent["image_url"].get("detail") == expected


def read_chat(*messages: dict[str, Any], **body: Any) -> asks.Ask:
    return asks.read_chat(bodies.ChatCreate.model_validate({"model": "m", "messages": messages, **body}))


def test_results_answer_the_calls_of_their_id_in_order() -> None:
    """Some servers give calls of one message the same id, or an empty one, and use it again later."""
    call = {"id": "", "type": "function", "function": {"name": "add", "arguments": "{}"}}
    round_: list[dict[str, Any]] = [
        {"role": "assistant", "tool_calls": [call, call]},
        {"role": "tool", "tool_call_id": "", "content": "one"},
        {"role": "tool", "tool_call_id": "", "content": "two"},
    ]
    made = asks.make_snapshot(
        read_chat(USER, *round_, *round_, *round_, {"role": "assistant", "content": "x"}).history
    )
    named = [call["id"] for message in made for call in message.get("tool_calls", ())]
    assert len(set(named)) == len(named) == 6
    results = [(message["tool_call_id"], message["content"]) for message in made if message["role"] == "tool"]
    assert results == list(zip(named, ["one", "two"] * 3, strict=True))


def test_a_call_without_its_result_is_named_by_its_own_path() -> None:
    """Not by the list."""
    call = {"id": "c1", "type": "function", "function": {"name": "add", "arguments": "{}"}}
    chat = read_chat(USER, {"role": "assistant", "tool_calls": [call]}, USER)
    said, _ = asks.read_items([USER, CALL, USER])
    for history, param in ((chat.spoken, "messages[1].tool_calls[0]"), (said, "input[1]")):
        with pytest.raises(InvalidValue) as refused:
            asks.make_snapshot(history)
        assert refused.value.param == param


def test_messages_of_the_system_alone_are_answered() -> None:
    """The last one is; the others are instructions."""
    asked = read_chat({"role": "system", "content": "Be brief."}, {"role": "developer", "content": "Say hi."})
    assert (asked.instructions, asked.content) == ("Be brief.", ["Say hi."])
    body = bodies.ResponseCreate.model_validate({"model": "m", "input": [{"role": "system", "content": "Say hi."}]})
    asked = asks.read_response(body)
    assert (asked.instructions, asked.content) == (None, ["Say hi."])


def test_approvals_of_another_service_are_history() -> None:
    """Unless they are the newest items: nothing waits for them here."""
    request = SAMPLES["mcp_approval_request"][0]
    decision = SAMPLES["mcp_approval_response"][0]
    said, decisions = asks.read_items([USER, request, decision, SAMPLES["mcp_call"][0], USER])
    assert not decisions
    assert [one.role for one in said] == ["user", "assistant", "tool", "user"]
    _, decisions = asks.read_items([USER, request, decision])
    assert [one.request for one in decisions] == ["a"]


def test_a_spoken_reply_is_its_transcript() -> None:
    """A reply has it in a response; a request may name its id alone, which only its service knows."""
    spoken = {
        "role": "assistant",
        "content": None,
        "audio": {"id": "a", "transcript": "Hello", "data": "", "expires_at": 1},
    }
    assert read_chat(USER, spoken, USER).history[1].content == ["Hello"]
    assert read_chat(USER, {**spoken, "content": "Hi", "audio": {"id": "a"}}, USER).history[1].content == ["Hi"]
    with pytest.raises(UnsupportedValue) as refused:
        read_chat(USER, {"role": "assistant", "audio": {"id": "a"}}, USER)
    assert refused.value.param == "messages[1].audio"


@pytest.mark.parametrize("parameters", [None, {}, {"properties": {}}, {"type": "object", "properties": {}}])
def test_the_parameters_of_a_function_describe_an_object(parameters: dict[str, Any] | None) -> None:
    """Also without saying so."""
    function = {"name": "look", "parameters": parameters}
    (chat,) = read_chat(USER, tools=[{"type": "function", "function": function}]).functions
    body = bodies.ResponseCreate.model_validate({"input": "Hi", "tools": [{"type": "function", **function}]})
    assert asks.read_response(body).functions == (chat,)
    assert chat["parameters"] == {"type": "object", "properties": {}}


def test_a_form_without_a_schema_is_any_object() -> None:
    """Chat Completions need not have one."""
    form = {"type": "json_schema", "json_schema": {"name": "form"}}
    assert read_chat(USER, response_format=form).output_schema == {"type": "object"}


FUNCTION: dict[str, Any] = {"name": "look", "parameters": {"type": "object"}}
REFUSED_FIELDS: list[tuple[dict[str, Any], str, dict[str, Any], str]] = [
    # What Responses are sent, the field that the refusal names, and the same of Chat Completions.
    ({"input": " "}, "input", {"messages": [{"role": "user", "content": " "}]}, "messages"),
    ({"input": [{"role": "user", "content": []}]}, "input", {"messages": [{"role": "user"}]}, "messages"),
    (
        {"tools": [{"type": "function", **FUNCTION}] * 2},
        "tools",
        {"tools": [{"type": "function", "function": FUNCTION}] * 2},
        "tools",
    ),
    (
        {"tools": [{"type": "function", "name": "look", "parameters": {"type": "array"}}]},
        "tools[0].parameters",
        {"tools": [{"type": "function", "function": {"name": "look", "parameters": {"type": "array"}}}]},
        "tools[0].function.parameters",
    ),
    (
        {"tool_choice": {"type": "function", "name": "look"}},
        "tool_choice",
        {"tool_choice": {"type": "function", "function": {"name": "look"}}},
        "tool_choice",
    ),
    ({"instructions": "x" * 70_000}, "instructions", {}, ""),
    (
        {"text": {"format": {"type": "json_schema", "name": "f", "schema": {"type": 3}}}},
        "text.format.schema",
        {"response_format": {"type": "json_schema", "json_schema": {"name": "f", "schema": {"type": 3}}}},
        "response_format.json_schema.schema",
    ),
    ({"model": ""}, "model", {"model": ""}, "model"),
    ({"model": "two words"}, "model", {"model": ":"}, "model"),
    ({"previous_response_id": "resp_none"}, "previous_response_id", {}, ""),
    ({"conversation": "none"}, "conversation", {}, ""),
]


@pytest.mark.parametrize("sent", REFUSED_FIELDS)
async def test_a_refusal_names_the_callers_field(client: openai.AsyncOpenAI, stack: Stack, sent: Any) -> None:
    """Also where it is the contract that refuses: its own fields have other names."""
    response, param, chat, chat_param = sent
    model = stack.add_model("fine")
    bodies = [("/responses", {"model": model, "input": "Hi", **response}, param)]
    if chat_param:
        bodies.append(("/chat/completions", {"model": model, "messages": [USER], **chat}, chat_param))
    for path, body, expected in bodies:
        with pytest.raises(openai.APIStatusError) as refused:
            await client.post(path, body=body, cast_to=object)
        assert (refused.value.param, refused.value.status_code in (400, 404)) == (expected, True)
        assert not any(word in str(refused.value) for word in ("external_tools", "model_options", "context_policy"))


async def test_empty_ids_name_nothing(client: openai.AsyncOpenAI, stack: Stack) -> None:
    """As null does."""
    body = {"previous_response_id": "", "conversation": ""}
    made: Any = await client.responses.create(model=stack.add_model("fine"), input="Hi", extra_body=body)
    assert made.status == "completed"


async def test_an_agent_that_the_key_does_not_permit_is_a_model(stack: Stack) -> None:
    """The refusal names the field that has it."""
    async with run_service(stack.clew, agents=("shop",)) as served, connect(served) as client:
        for body in ({"input": "Hi"}, {"messages": [USER]}):
            path = "/responses" if "input" in body else "/chat/completions"
            with pytest.raises(openai.PermissionDeniedError) as refused:
                await client.post(path, body={"model": "other", **body}, cast_to=object)
            assert refused.value.param == "model"
