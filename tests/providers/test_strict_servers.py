"""The strict servers themselves: they take valid requests and refuse invalid ones, and their streams are valid."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from typing import Any

import httpx2
import pytest
from anthropic import AsyncAnthropic
from botocore.session import Session
from google.genai import Client, types
from mistralai.client import Mistral
from mistralai.client.models import TextChunk, ThinkChunk, ToolCall
from openai import AsyncOpenAI

from clew_activities.providers.provider_errors import ErrorAnswer, ItemRefused, classify_response
from tests.providers import bedrock_api
from tests.providers.chat_completions import ChatCompletions
from tests.providers.dialects import CLAUDE_AT_BEDROCK, DIALECTS
from tests.providers.strict_server import (
    Call,
    Dialect,
    Exchange,
    Refusal,
    Sent,
    StrictServer,
    Turn,
    run_strict_servers,
)

KEY = "key-of-the-tests"
ROWS = {dialect.name: dialect for dialect in DIALECTS}
CHAT = [name for name, row in ROWS.items() if isinstance(row.wire, ChatCompletions)]
ADD = {
    "type": "function",
    "function": {
        "name": "add",
        "description": "Adds.",
        "parameters": {
            "type": "object",
            "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}},
            "required": ["a", "b"],
        },
    },
}
ANTHROPIC_ADD = {"name": "add", "description": "Adds.", "input_schema": ADD["function"]["parameters"]}  # type: ignore[index]
Change = Callable[[dict[str, Any]], object]


def make_call(call_id: str = "aB3xK9mP2", arguments: str = '{"a": 1, "b": 2}') -> dict[str, Any]:
    function = {"name": "add", "arguments": arguments}
    return {
        "role": "assistant",
        "content": "",
        "tool_calls": [{"id": call_id, "type": "function", "function": function}],
    }


def make_result(call_id: str = "aB3xK9mP2") -> dict[str, Any]:
    return {"role": "tool", "tool_call_id": call_id, "content": "3"}


def make_body(dialect: Dialect) -> dict[str, Any]:
    """Make a body of Chat Completions in the middle of a tool loop, as each of the servers takes it."""
    call_id = "functions.add:0" if dialect.name in ("kimi", "vllm-kimi", "openrouter-kimi") else "aB3xK9mP2"
    call = make_call(call_id)
    if dialect.name.startswith(("deepseek", "kimi", "openrouter-")):
        call["reasoning_content"] = " "
    if dialect.name.startswith("kimi"):
        del call["content"]
    if dialect.name == "gemini":
        signature = "skip_thought_signature_validator"
        call["tool_calls"][0]["extra_content"] = {"google": {"thought_signature": signature}}
    limit = "max_completion_tokens" if dialect.name.startswith("openai") else "max_tokens"
    body: dict[str, Any] = {
        "model": dialect.model,
        "messages": [
            {"role": "system", "content": "You add."},
            {"role": "user", "content": "Add 1 and 2."},
            call,
            make_result(call_id),
        ],
        "tools": [json.loads(json.dumps(ADD))],
        "stream": True,
        limit: 100,
    }
    if dialect.name == "openai-gpt-5.6":
        body["reasoning_effort"] = "none"
    return body


def make_anthropic_body() -> dict[str, Any]:
    call = {"type": "tool_use", "id": "toolu_1", "name": "add", "input": {"a": 1, "b": 2}}
    return {
        "model": "claude-sonnet-4-6",
        "max_tokens": 2000,
        "system": "You add.",
        "messages": [
            {"role": "user", "content": "Add 1 and 2."},
            {"role": "assistant", "content": [call]},
            {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "toolu_1", "content": "3"}]},
        ],
        "tools": [json.loads(json.dumps(ANTHROPIC_ADD))],
        "stream": True,
    }


def make_bedrock_body() -> dict[str, Any]:
    call = {"toolUse": {"toolUseId": "tooluse_1", "name": "add", "input": {"a": 1, "b": 2}}}
    result = {"toolResult": {"toolUseId": "tooluse_1", "content": [{"text": "3"}]}}
    schema = json.loads(json.dumps(ADD["function"]["parameters"]))  # type: ignore[index]
    return {
        "system": [{"text": "You add."}],
        "messages": [
            {"role": "user", "content": [{"text": "Add 1 and 2."}]},
            {"role": "assistant", "content": [call]},
            {"role": "user", "content": [result]},
        ],
        "toolConfig": {"tools": [{"toolSpec": {"name": "add", "inputSchema": {"json": schema}}}]},
        "inferenceConfig": {"maxTokens": 2000},
    }


def list_refusals(dialect: Dialect, body: dict[str, Any], *sent: Sent) -> str:
    """List what a dialect says of a body, whether it refuses it or takes it with a loss."""
    headers = {"authorization": f"Bearer {KEY}", "anthropic-version": "2026-10-21"}
    headers |= dict.fromkeys(("x-api-key", "x-goog-api-key"), KEY)
    exchange = Exchange(body, headers, sent)
    rules = (*dialect.rules, *dialect.losses)
    return "\n".join(refusal.message for rule in rules for refusal in rule(exchange))


@pytest.mark.parametrize("name", CHAT)
def test_a_valid_conversation_is_taken(name: str) -> None:
    assert not list_refusals(ROWS[name], make_body(ROWS[name]))


def test_a_valid_conversation_is_taken_by_anthropic() -> None:
    assert not list_refusals(ROWS["anthropic"], make_anthropic_body())


def _insert(index: int, role: str, content: Any = "more") -> Change:
    return lambda body: body["messages"].insert(index, {"role": role, "content": content})


def _append(role: str, content: Any = "more") -> Change:
    return lambda body: body["messages"].append({"role": role, "content": content})


def _set(**fields: Any) -> Change:
    return lambda body: body.update(fields)


def _set_message(index: int, **fields: Any) -> Change:
    return lambda body: body["messages"][index].update(fields)


def _rename_call(call_id: str) -> Change:
    def change(body: dict[str, Any]) -> None:
        body["messages"][2]["tool_calls"][0]["id"] = body["messages"][3]["tool_call_id"] = call_id

    return change


def _set_function(**fields: Any) -> Change:
    return lambda body: body["tools"][0]["function"].update(fields)


def _set_schema(**fields: Any) -> Change:
    return lambda body: body["tools"][0]["function"]["parameters"].update(fields)


def _set_property(schema: Any, name: str = "c") -> Change:
    return lambda body: body["tools"][0]["function"]["parameters"]["properties"].update({name: schema})


def _drop_result(body: dict[str, Any]) -> None:
    body["messages"].pop()
    body["messages"].append({"role": "user", "content": "Well?"})


def _drop_call(body: dict[str, Any]) -> None:
    del body["messages"][2]


def _drop_properties(body: dict[str, Any]) -> None:
    body["tools"][0]["function"]["parameters"] = {"type": "object"}


def _add_tools(count: int) -> Change:
    def change(body: dict[str, Any]) -> None:
        tool = body["tools"][0]["function"]
        body["tools"] += [{"type": "function", "function": {**tool, "name": f"t{n}"}} for n in range(count)]

    return change


def _drop_thinking(body: dict[str, Any]) -> None:
    del body["messages"][2]["reasoning_content"]


def _drop_signature(body: dict[str, Any]) -> None:
    del body["messages"][2]["tool_calls"][0]["extra_content"]


def _change_signature(body: dict[str, Any]) -> None:
    body["messages"][2]["tool_calls"][0]["extra_content"]["google"]["thought_signature"] = "c2ln"


def _break_arguments(body: dict[str, Any]) -> None:
    body["messages"][2]["tool_calls"][0]["function"]["arguments"] = '{"a": 1, "b"'


def _call_twice(body: dict[str, Any]) -> None:
    body["messages"][2]["tool_calls"].append(make_call("bB3xK9mP2")["tool_calls"][0])
    body["messages"].append(make_result("bB3xK9mP2"))


UNION = {"type": "integer", "anyOf": [{"minimum": 1}, {"maximum": 9}]}
JSON_OBJECT = {"type": "json_object"}

REFUSED: list[tuple[str, Change, str]] = [
    ("openai", _drop_result, "must be followed by tool messages"),
    ("openai", _drop_call, "must be a response to a preceding message"),
    ("openai", lambda body: body["messages"].append(make_result()), "Duplicate value for 'tool_call_id'"),
    ("openai", _set_message(1, content=None), "expected a string, got null"),
    ("openai", _set_message(2, reasoning_content="hm"), "Unknown parameter: 'messages[2].reasoning_content'"),
    ("openai", _set(enable_thinking=True), "Unknown parameter: 'enable_thinking'"),
    ("openai", _rename_call("x" * 41), "string too long"),
    ("openai", _add_tools(128), "maximum length 128"),
    ("openai", _set_schema(anyOf=[{"required": ["a"]}]), "at the top level"),
    ("openai", _drop_properties, "object schema missing properties"),
    ("openai", _set_property({"type": "array"}), "array schema missing items"),
    ("openai", _set_function(name="a.b"), "does not match pattern"),
    ("openai", _set(max_tokens=1), "Use 'max_completion_tokens'"),
    ("openai", _set(temperature=0.5), "Only the default (1) value"),
    ("openai", _set(stop=["x"]), "'stop' is not supported"),
    ("openai", _set_function(strict=True), "'additionalProperties' is required"),
    ("openai", _set(tools=[]), "[] is too short"),
    ("openai-gpt-5.6", _set(reasoning_effort="low"), "set reasoning_effort to 'none'"),
    ("azure", _set(prompt_cache_key="k"), "Unrecognized request argument"),
    ("azure", _set_function(description="x" * 1025), "maximum length 1024"),
    ("gemini", _set(prompt_cache_key="k"), 'Unknown name "prompt_cache_key"'),
    ("gemini", _set_message(2, reasoning_content="hm"), "Unknown name \"reasoning_content\" at 'messages[2]'"),
    ("gemini", _drop_signature, "missing a thought_signature"),
    ("gemini", _change_signature, "Corrupted thought signature"),
    ("gemini", _insert(2, "assistant"), "function call turn comes immediately after a user turn"),
    ("gemini", _drop_call, "function response turn comes immediately after"),
    ("gemini", _insert(4, "assistant", ""), "contents.parts must not be empty"),
    ("gemini", _set_function(name="3d"), "Must start with a letter or an underscore"),
    ("gemini", _set_property({"type": ["string", "null"]}), "Proto field is not repeating"),
    ("gemini", _set_property({"type": "integer", "enum": [1]}), "(TYPE_STRING)"),
    ("gemini", _set_property({"type": "array"}), "items: missing field"),
    ("gemini", _set_property(UNION), "must be the only field set"),
    ("gemini", _set(response_format=JSON_OBJECT), "is unsupported"),
    ("mistral", _set(max_completion_tokens=1), "Extra inputs are not permitted: ['body', 'max_completion_tokens']"),
    ("mistral", _set_message(2, reasoning_content="hm"), "'messages', 2, 'assistant', 'reasoning_content'"),
    ("mistral", _set_message(0, role="developer"), "'messages', 0"),
    ("mistral", _set_message(1, content=5), "'messages', 1, 'user', 'content'"),
    ("mistral", _set_message(1, content=[{"type": "image_url", "image_url": 5}]), "'messages', 1, 'user', 'content'"),
    ("mistral", _set(max_tokens="many"), "unable to parse string as an integer: ['body', 'max_tokens'"),
    ("mistral", _set_function(arguments={}), "'tools', 0, 'function', 'arguments'"),
    ("mistral", _append("user"), "Unexpected role 'user' after role 'tool'"),
    ("mistral", _insert(3, "assistant"), "Not the same number of function calls and responses"),
    ("mistral", _append("assistant"), "Expected last role User or Tool"),
    ("mistral", _rename_call("call_1"), "a length of 9"),
    ("mistral", _set_schema(type="thing"), "Invalid tool schema"),
    ("deepseek", _drop_thinking, "must be passed back to the API"),
    ("deepseek", _append("assistant", "Three."), "must be passed back to the API. (messages[4])"),
    ("openrouter-deepseek", _drop_thinking, "must be passed back to the API"),
    ("openrouter-kimi", _drop_thinking, "reasoning_content is missing"),
    ("kimi", _set_message(2, content=""), "text content is empty"),
    ("deepseek", _set_message(0, role="developer"), "unknown variant `developer`"),
    ("deepseek", _set(tool_choice="required"), "does not support this tool_choice"),
    ("deepseek", _set(response_format={"type": "json_schema"}), "This response_format type is unavailable now"),
    ("deepseek", _set(response_format=JSON_OBJECT), "must contain the word 'json'"),
    ("deepseek-r1", _insert(1, "user"), "successive user or assistant messages"),
    ("deepseek-r1", _insert(1, "assistant"), "must be a user message"),
    ("xai", _set(stop=["x"]), "Argument not supported on this model: stop"),
    ("xai", _set(reasoning_effort="low"), "does not support parameter reasoningEffort"),
    ("xai", _append("user", ""), "at least one content element"),
    ("xai", _break_arguments, "not a valid JSON string"),
    ("kimi", _drop_thinking, "reasoning_content is missing"),
    ("kimi", _set_message(2, reasoning_content=""), "reasoning_content is missing"),
    ("kimi", _set_property({"enum": ["a"]}), "type is not defined"),
    ("kimi", _set_property({"type": "array", "items": [{"type": "string"}]}), "items must be an object"),
    ("kimi", _set_property({"$ref": "#/definitions/x"}), "references must start with #/$defs/"),
    ("kimi", _set_property(UNION), "when using anyOf, type should be defined in anyOf items"),
    ("kimi", _set_property(True), "must be an object"),
    ("kimi", _set_function(name="3d"), "must start with a letter"),
    ("glm", lambda body: body["messages"].pop(1), "The messages parameter is illegal"),
    ("minimax", _insert(1, "system"), "invalid chat setting"),
    ("minimax", _break_arguments, "invalid function arguments json string"),
    ("qwen", _set_message(2, content=None), "The content field is a required field"),
    ("groq", _set_message(2, reasoning_content="hm"), "property 'reasoning_content' is unsupported"),
    ("groq", _set(prompt_cache_key="k"), "property 'prompt_cache_key' is unsupported"),
    ("groq", _set(response_format=JSON_OBJECT), "cannot be combined with tool"),
    ("cerebras", _set_message(2, reasoning_content="hm"), "messages.2.assistant.reasoning_content"),
    ("cerebras", _set(response_format=JSON_OBJECT), "incompatible"),
    ("vllm", _break_arguments, "Expecting value"),
    ("vllm-mistral", _insert(1, "system"), "Only user, assistant and tool roles"),
    ("vllm-mistral", _append("user"), "must alternate user and assistant roles"),
    ("vllm-mistral", _rename_call("call_1"), "length >= 9"),
    ("vllm-gemma", _insert(1, "user"), "must alternate user/assistant"),
    ("vllm-qwen", _insert(2, "system"), "System message must be at the beginning"),
    ("llamacpp", _append("assistant", ""), "must contain either 'content' or 'tool_calls'"),
    ("llamacpp-mistral", _append("user"), "Jinja Exception: After the optional system message"),
    ("llamacpp-gemma", _append("user"), "Jinja Exception: Conversation roles must alternate"),
    ("llamacpp-qwen", lambda body: body["messages"].pop(1), "No user query found"),
    ("llamacpp", _set_message(2, content="hm", reasoning_content="hm"), "Cannot pass both content and thinking"),
    ("llamacpp", _set_property({"type": "string", "pattern": "[a-z]"}), "must start with '^' and end with '$'"),
    ("llamacpp", _set_property({"type": "string", "maxLength": 10_000}), "exceeds sane defaults"),
    ("vllm-llama", _call_twice, "single tool-calls at once"),
    ("unknown", _set_message(2, content=None), "at least one content element"),
    ("lmstudio", _set(response_format=JSON_OBJECT), "must be 'json_schema' or 'text'"),
    ("openai", _set(reasoning_effort="xhigh"), "Unsupported value: 'xhigh'"),
    ("openai-gpt-5.6", _set(reasoning_effort="minimal"), "Unsupported value: 'minimal'"),
    ("azure", _set(verbosity="low"), "'verbosity' does not support this value"),
    ("azure", _set(reasoning_effort="low"), "Unrecognized request argument"),
    ("gemini", _set(reasoning_effort="medium"), "Thinking level medium is not supported"),
    ("mistral", _set(temperature=0, top_p=0.9), "top_p must be 1 when using greedy sampling"),
    ("mistral-small", _set(reasoning_effort="medium"), "is not supported for this model"),
    ("deepseek", _set(reasoning_effort="none"), "unknown variant `none`"),
    ("deepseek", _set(thinking={"type": "off"}), "thinking.type: unknown variant"),
    ("xai", _set(reasoning_effort="low"), "does not support parameter reasoningEffort"),
    ("xai-grok-4.5", _set(reasoning_effort="none"), "Invalid reasoning effort"),
    ("kimi", _rename_call("aB3xK9mP2"), "has no tool's name"),
    ("vllm-kimi", _rename_call("aB3xK9mP2"), "has no tool's name"),
    ("kimi-k3", _set(thinking={"type": "disabled"}), "thinking is not supported"),
    ("kimi-k3", _set(top_p=0.5), "invalid top_p"),
    ("glm", _set(thinking={"type": "adaptive"}), "thinking 参数非法"),
    ("glm-5.3", _set(thinking={"type": "disabled"}), "cannot be disabled"),
    ("glm-5.3", _set(reasoning_effort="none"), "cannot be disabled"),
    ("minimax", _set(thinking={"type": "enabled"}), "invalid thinking.type"),
    ("groq", _set(reasoning_effort="none"), "must be one of `low`"),
    ("groq-qwen", _set(reasoning_effort="low"), "must be one of `none` or `default`"),
    ("vllm", _set(reasoning_effort="minimal"), "Input should be 'none'"),
    ("vllm-gpt-oss", _set(reasoning_effort="none"), "Harmony does not support"),
    ("vllm-qwen-3.8", _set(reasoning_effort="high"), "Unexpected reasoning effort high"),
    ("vllm-mistral", _set(chat_template_kwargs={}), "is not supported for Mistral tokenizers"),
    ("litellm", _set(temperature=0.5, top_p=0.5), "cannot both be specified"),
    ("lmstudio", _set(tool_choice={"type": "function", "function": {"name": "add"}}), "Invalid tool_choice type"),
    ("ollama", _set(reasoning_effort="minimal"), "invalid reasoning value"),
    ("ollama", _set_message(1, content=None), "invalid message content type: <nil>"),
    ("ollama", _set_property(True), "cannot unmarshal bool"),
    ("litellm", _set(seed=1), "does not support parameters: ['seed']"),
    ("litellm", _set_schema(anyOf=[{"required": ["a"]}]), "at the top level"),
    ("litellm", lambda body: body.pop("tools"), "without tools= param specified"),
    ("unknown", _insert(1, "system"), "must be at the beginning"),
    ("unknown", _insert(1, "user"), "must alternate"),
    ("unknown", _append("user"), "Unexpected role 'user' after role 'tool'"),
    ("unknown", _set(seed=1), "Extra inputs are not permitted: seed"),
    ("unknown", _set_property({"type": "string"}, "$top"), "Property keys should match pattern"),
    ("unknown", _rename_call("call_1"), "a length of 9"),
]
"""A change of a valid body, and the words with which the dialect refuses it."""


@pytest.mark.parametrize(("name", "change", "words"), REFUSED)
def test_an_invalid_request_is_refused(name: str, change: Change, words: str) -> None:
    """In the real server's words."""
    body = make_body(ROWS[name])
    change(body)
    assert words in list_refusals(ROWS[name], body)


def _drop_results(body: dict[str, Any]) -> None:
    body["messages"][2] = {"role": "user", "content": "Well?"}


SEARCH = {"type": "server_tool_use", "id": "srvtoolu_1", "name": "web_search", "input": {"query": "q"}}
PAGE = {"type": "web_search_result", "url": "https://a.example", "title": "A", "encrypted_content": "bm90IG93bg=="}
FOUND = {"type": "web_search_tool_result", "tool_use_id": "srvtoolu_1", "content": [PAGE]}


def _leave_search(body: dict[str, Any]) -> None:
    """Leave a search without its result, although the user has gone on."""
    body["messages"][1]["content"].insert(0, SEARCH)
    body["messages"][2]["content"].append({"type": "text", "text": "Well?"})


ANTHROPIC_REFUSED: list[tuple[Change, str]] = [
    (_drop_results, "`tool_use` ids were found without `tool_result` blocks"),
    (lambda body: body["messages"].pop(1), "unexpected `tool_use_id`"),
    (lambda body: body["messages"].pop(0), 'must use the "user" role'),
    (_append("assistant"), "does not support assistant message prefill"),
    (_append("user", ""), "must have non-empty content"),
    (_append("user", [{"type": "text", "text": " \n"}]), "non-whitespace text"),
    (_insert(0, "system"), "Input should be 'user' or 'assistant'"),
    (_set(seed=1), "seed: Extra inputs are not permitted"),
    (_set(temperature=0.5), "temperature: Extra inputs are not permitted"),
    (_set(thinking={"type": "enabled", "budget_tokens": 1024}), "Expected `thinking` or `redacted_thinking`"),
    (_set(thinking={"type": "enabled", "budget_tokens": 2000}), "must be greater than `thinking.budget_tokens`"),
    (lambda body: body["tools"][0]["input_schema"].update(anyOf=[{}]), "does not support oneOf, allOf, or anyOf"),
    (lambda body: body["tools"][0]["input_schema"]["properties"].update({"$top": {}}), "Property keys should match"),
    (lambda body: body["tools"][0].update(name="a.b"), "String should match pattern"),
    (lambda body: body["tools"].append(body["tools"][0]), "Tool names must be unique"),
    (lambda body: body["messages"][1]["content"][0].update(id="functions.add:0"), "'^[a-zA-Z0-9_-]+$'"),
    (
        lambda body: body["messages"][1]["content"].insert(
            0, {"type": "thinking", "thinking": "x", "signature": "c2ln"}
        ),
        "Invalid `signature`",
    ),
    (_leave_search, "without a corresponding `web_search_tool_result`"),
    (lambda body: body["messages"][1]["content"].insert(0, FOUND), "unexpected `tool_use_id` found in `web_search"),
    (lambda body: body["messages"][1]["content"].__setitem__(slice(0, 0), [SEARCH, FOUND]), "`encrypted_content`"),
    (_append("assistant", [SEARCH, FOUND]), "does not support assistant message prefill"),
    (_set(cache_control={"type": "ephemeral", "ttl": "1h"}), "must not come after a ttl='5m'"),
    (
        lambda body: body["tools"].append({"type": "web_search_20990101", "name": "web_search"}),
        "input_schema: Extra inputs",
    ),
    (_set(thinking={"type": "adaptive", "block_binding": {}}), "block_binding: Extra inputs are not permitted"),
]


@pytest.mark.parametrize(("change", "words"), ANTHROPIC_REFUSED)
def test_an_invalid_request_is_refused_by_anthropic(change: Change, words: str) -> None:
    body = make_anthropic_body()
    body["tools"][0]["cache_control"] = {"type": "ephemeral"}
    change(body)
    assert words in list_refusals(ROWS["anthropic"], body)


GATEWAY_REFUSED: list[tuple[Change, str]] = [
    (_set(cache_control={"type": "ephemeral"}), "cache_control: Extra inputs are not permitted"),
    (_set(output_config={"format": {"type": "json_schema", "schema": {}}}), "output_config.format: Extra inputs"),
    (_set(tool_choice={"type": "none", "disable_parallel_tool_use": True}), "tool_choice.none.disable_parallel"),
    (_set(context_management={"edits": []}), "context_management: Extra inputs"),
    (lambda body: body["tools"][0].update(defer_loading=True), "tools.0.custom.defer_loading: Extra inputs"),
    (lambda body: body["tools"].append({"type": "web_search_20260318", "name": "web_search"}), "Input tag"),
    (_append("assistant"), "does not support assistant message prefill"),
]


@pytest.mark.parametrize(("change", "words"), GATEWAY_REFUSED)
def test_an_invalid_request_is_refused_by_gateways_to_anthropic(change: Change, words: str) -> None:
    body = make_anthropic_body()
    row = ROWS["anthropic-litellm"]
    assert not list_refusals(row, body)
    change(body)
    assert words in list_refusals(row, body)


@pytest.mark.parametrize("name", ["anthropic-litellm", "anthropic-openrouter", "anthropic-vertex"])
def test_the_errors_of_gateways_name_what_the_server_behind_them_refuses(name: str) -> None:
    refusal = Refusal("messages.0.content.0: Could not process image")
    body = json.dumps(ROWS[name].wire.encode_refusal(refusal))
    error = classify_response(ErrorAnswer(status=400, headers={}, body=body, at=0))
    assert isinstance(error, ItemRefused)
    assert error.kind == "media"
    assert "messages.0.content.0: Could not process image" in error.words


def list_bedrock_refusals(body: dict[str, Any]) -> str:
    """List what Bedrock says of a body; the signature is not verified."""
    rules = (rule for rule in bedrock_api.CLAUDE if rule is not bedrock_api.verify_signature)
    return "\n".join(refusal.message for rule in rules for refusal in rule(Exchange(body)))


def test_a_valid_conversation_is_taken_by_bedrock() -> None:
    assert not list_bedrock_refusals(make_bedrock_body())


def _set_tool(**fields: Any) -> Change:
    return lambda body: body["toolConfig"]["tools"][0]["toolSpec"].update(fields)


def _rename_use(call_id: str) -> Change:
    def change(body: dict[str, Any]) -> None:
        body["messages"][1]["content"][0]["toolUse"]["toolUseId"] = call_id
        body["messages"][2]["content"][0]["toolResult"]["toolUseId"] = call_id

    return change


REASONING = {"reasoningContent": {"reasoningText": {"text": "x", "signature": "c2ln"}}}
THINKING = {"thinking": {"type": "enabled", "budget_tokens": 1024}}

BEDROCK_REFUSED: list[tuple[Change, str]] = [
    (lambda body: body.pop("toolConfig"), "The toolConfig field must be defined when using toolUse and toolResult"),
    (lambda body: body["messages"].pop(0), "A conversation must start with a user message"),
    (_append("user", [{"text": "more"}]), "must alternate between user and assistant roles"),
    (_set_message(2, content=[{"text": "no"}]), "Expected toolResult blocks at messages.2.content for the following"),
    (_set_message(1, content=[{"text": "no"}]), "exceeds the number of toolUse blocks of previous turn"),
    (_set_message(0, content=[{"text": " "}]), "at messages.0.content.0 is blank"),
    (_set_message(0, content=[]), "The content field in the Message object at messages.0 is empty"),
    (_set_message(0, name="x"), 'Unknown parameter in messages[0]: "name"'),
    (_set_message(0, role="tool"), "satisfy enum value set"),
    (_set(stream=True), 'Unknown parameter in input: "stream"'),
    (_set(inferenceConfig={"maxTokens": 0}), "Invalid value for parameter inferenceConfig.maxTokens"),
    (_set(inferenceConfig={"maxTokens": 9, "temperature": 1.5}), "have value less than or equal to 1"),
    (_set(inferenceConfig={"maxTokens": 9, "temperature": 0.5, "topP": 0.5}), "cannot both be specified"),
    (_set_tool(name="a.b"), "satisfy regular expression pattern: [a-zA-Z0-9_-]+"),
    (_set_tool(name="a" * 65), "have length less than or equal to 64"),
    (_set_tool(description=""), "Invalid length for parameter toolConfig.tools[0].toolSpec.description"),
    (_set_tool(inputSchema={"json": {"type": "array"}}), "must be one of the following: object"),
    (lambda body: body["toolConfig"]["tools"].append(body["toolConfig"]["tools"][0]), "duplicate tool names"),
    (_rename_use("functions add"), "satisfy regular expression pattern"),
    (_rename_use("functions.add:0"), "'^[a-zA-Z0-9_-]+$'"),
    (lambda body: body["system"].extend([{"cachePoint": {"type": "default"}}] * 5), "A maximum of 4 blocks"),
    (lambda body: body["messages"][1]["content"].insert(0, REASONING), "Invalid `signature`"),
    (_set(additionalModelRequestFields=THINKING), "Expected `thinking` or `redacted_thinking`"),
    (_set(additionalModelRequestFields={"reasoning_effort": "low"}), "reasoning_effort: Extra inputs"),
]


@pytest.mark.parametrize(("change", "words"), BEDROCK_REFUSED)
def test_an_invalid_request_is_refused_by_bedrock(change: Change, words: str) -> None:
    body = make_bedrock_body()
    change(body)
    assert words in list_bedrock_refusals(body)


def make_gemini_body(**fields: Any) -> dict[str, Any]:
    function = {"name": "add", "args": {"a": 1, "b": 2}, "id": "f_1"}
    result = {"name": "add", "id": "f_1", "response": {"result": "3"}}
    call: dict[str, Any] = {"functionCall": function, "thoughtSignature": "skip_thought_signature_validator"}
    declaration = {"name": "add", "description": "Adds.", "parametersJsonSchema": ADD["function"]["parameters"]}  # type: ignore[index]
    body = {
        "systemInstruction": {"parts": [{"text": "You add."}]},
        "contents": [
            {"role": "user", "parts": [{"text": "Add 1 and 2."}]},
            {"role": "model", "parts": [call]},
            {"role": "user", "parts": [{"functionResponse": result}]},
        ],
        "tools": [{"functionDeclarations": [declaration]}],
        "generationConfig": {"maxOutputTokens": 100},
        **fields,
    }
    return json.loads(json.dumps(body))  # type: ignore[no-any-return]


GEMINI_SENT = Sent(
    "", {"signed": []}, {"f_1": {"functionCall": {"name": "add", "args": {"a": 1, "b": 2}, "id": "f_1"}}}
)


@pytest.mark.parametrize("name", ["google", "google-2.5"])
def test_a_valid_conversation_is_taken_by_gemini(name: str) -> None:
    assert not list_refusals(ROWS[name], make_gemini_body(), GEMINI_SENT)


def _declare(**fields: Any) -> Change:
    return lambda body: body["tools"][0]["functionDeclarations"][0].update(fields)


def _configure(**fields: Any) -> Change:
    return lambda body: body["generationConfig"].update(fields)


def _add_part(index: int, part: dict[str, Any]) -> Change:
    return lambda body: body["contents"][index]["parts"].append(part)


REFERENCE = {"type": "object", "properties": {"a": {"$ref": "#/$defs/A", "type": "string"}}, "$defs": {"A": {}}}
LEVEL, BUDGET = {"thinkingLevel": "MINIMAL"}, {"thinkingBudget": 10**6}
GEMINI_REFUSED: list[tuple[str, Change, str]] = [
    ("google", _set(messages=[]), 'Unknown name "messages"'),
    ("google", _add_part(0, {"text": "x", "role": "user"}), "Unknown name \"role\" at 'contents[0].parts[1]'"),
    ("google", _set(contents=[]), "contents is not specified"),
    ("google", lambda body: body["contents"].append({"role": "user", "parts": []}), "parts must not be empty"),
    ("google", _add_part(0, {"text": ""}), "required oneof field 'data'"),
    ("google", lambda body: body["contents"].append({"role": "tool", "parts": [{"text": "x"}]}), "valid role"),
    ("google", lambda body: body["contents"].pop(0), "function call turn comes immediately after"),
    ("google", lambda body: body["contents"].pop(1), "function response turn comes immediately after"),
    (
        "google",
        lambda body: body["contents"][1]["parts"].append(body["contents"][1]["parts"][0]),
        "number of function",
    ),
    ("google", lambda body: body["contents"].pop(), "ending with a model turn"),
    ("google", lambda body: body["contents"][1]["parts"][0].pop("thoughtSignature"), "missing a thought_signature"),
    ("google", lambda body: body["contents"][1]["parts"][0].update(thoughtSignature="c2ln"), "Corrupted thought"),
    ("google", lambda body: body["contents"][2]["parts"][0]["functionResponse"].pop("id"), "have the ids"),
    ("google", _declare(name="3d"), "Must start with a letter or an underscore"),
    ("google", _declare(parametersJsonSchema=REFERENCE), "was set alongside unsupported fields"),
    ("google", _declare(parametersJsonSchema={"type": "string"}), "must be of type OBJECT"),
    ("google", _set(toolConfig={"functionCallingConfig": {"allowedFunctionNames": ["add"]}}), "mode is ANY"),
    ("google", lambda body: body["tools"].append({"googleSearch": {}}), "include_server_side_tool_invocations"),
    ("google", _configure(seed=2**40), "TYPE_INT32"),
    ("google", _configure(responseJsonSchema={"type": "object"}), "only supported with response mime type"),
    ("google", _configure(thinkingConfig=LEVEL), "MINIMAL is not supported for this model"),
    ("google-2.5", _configure(thinkingConfig=LEVEL), "Thinking level is not supported"),
    ("google-2.5", _configure(thinkingConfig=BUDGET), "thinking budget"),
    ("google-2.5", lambda body: body["tools"].append({"googleSearch": {}}), "Tool use with function calling"),
    ("google-2.5", _configure(responseMimeType="application/json"), "Function calling with a response mime type"),
]


@pytest.mark.parametrize(("name", "change", "words"), GEMINI_REFUSED)
def test_an_invalid_request_is_refused_by_gemini(name: str, change: Change, words: str) -> None:
    body = make_gemini_body()
    change(body)
    assert words in list_refusals(ROWS[name], body, GEMINI_SENT)


def test_gemini_says_which_signature_did_not_come_back() -> None:
    body = make_gemini_body()
    sent = Sent("", {"signed": [{"functionCall": {"name": "add"}, "thoughtSignature": "c2ln"}]}, GEMINI_SENT.calls)
    assert "did not come back" in list_refusals(ROWS["google"], body, sent)


def test_what_a_server_sent_must_come_back_unchanged() -> None:
    """Missing, changed, under another id, or at another provider: each is said."""
    deepseek, thinking = ROWS["deepseek"], "[deepseek thinks 1] I add."
    sent = Sent(thinking, {"reasoning_content": thinking}, {"aB3xK9mP2": {}})
    body = make_body(deepseek)
    body["messages"][2]["reasoning_content"] = thinking
    assert not list_refusals(deepseek, body, sent)
    body["messages"][2]["reasoning_content"] = f"{thinking} "
    assert "came back as" in list_refusals(deepseek, body, sent)
    _rename_call("tool00001")(body)
    assert "the ids ['aB3xK9mP2'] came back as ['tool00001']" in list_refusals(deepseek, body, sent)
    assert "the thinking of deepseek" in list_refusals(ROWS["vllm"], body)


def test_thinking_must_come_back_in_the_field_of_the_server_behind_openrouter() -> None:
    """It came as `reasoning`, and goes back as `reasoning_content`, unchanged."""
    row, thinking = ROWS["openrouter-deepseek"], "[openrouter-deepseek thinks 1] I add."
    sent = Sent(thinking, {}, {"aB3xK9mP2": {}})
    body = make_body(row)
    assert "reasoning_content is not" in list_refusals(row, body, sent)
    body["messages"][2]["reasoning_content"] = thinking
    assert not list_refusals(row, body, sent)


@pytest.fixture(scope="module")
async def servers() -> AsyncIterator[dict[str, StrictServer]]:
    async with run_strict_servers(DIALECTS) as running:
        yield running


TURN = Turn("I add.", (Call("add", {"a": 1, "b": 2}), Call("add", {"a": 3, "b": 4})), thinks=True)


@pytest.mark.parametrize("name", CHAT)
async def test_the_official_client_reads_the_stream(servers: dict[str, StrictServer], name: str) -> None:
    """The quirks are in the stream, which is one of Chat Completions all the same."""
    server = servers[name]
    server.play(TURN)
    client = AsyncOpenAI(base_url=server.url, api_key=KEY, max_retries=0)
    body = make_body(server.dialect)
    text, names, arguments = "", [], ""
    async for chunk in await client.chat.completions.create(**body):
        # Azure's filter sends choices without a delta.
        for choice in filter(lambda choice: choice.delta, chunk.choices):
            if isinstance(choice.delta.content, str):
                text += choice.delta.content
            for call in choice.delta.tool_calls or ():
                assert call.function
                names += [call.function.name] if call.function.name else []
                arguments += call.function.arguments or ""
    await client.close()
    wire = server.dialect.wire
    assert isinstance(wire, ChatCompletions)
    assert (text[-6:], names) == ("I add.", [f"add{wire.name_suffix}"] * 2)
    if wire.deltas == "cumulative":
        assert arguments.endswith('{"a": 3, "b": 4}')
    else:
        assert arguments == '{"a": 1, "b": 2}{"a": 3, "b": 4}'


@pytest.mark.parametrize("name", ["mistral", "mistral-small"])
async def test_the_official_client_reads_mistrals_stream(servers: dict[str, StrictServer], name: str) -> None:
    """The client of Mistral knows each field of the request and of the reply."""
    server = servers[name]
    server.play(TURN)
    body = make_body(server.dialect)
    text, thinking = "", ""
    calls: list[ToolCall] = []
    async with (
        # One that the client makes itself is closed when the garbage is collected, in any thread and at any time.
        httpx2.AsyncClient() as http,
        Mistral(api_key=KEY, server_url=server.url.removesuffix("/v1"), async_client=http) as client,
        await client.chat.stream_async(**body) as stream,
    ):
        async for event in stream:
            for choice in event.data.choices:
                content = choice.delta.content
                if isinstance(content, str):
                    text += content
                for part in content if isinstance(content, list) else ():
                    assert isinstance(part, ThinkChunk)
                    thinking += "".join(piece.text for piece in part.thinking if isinstance(piece, TextChunk))
                if isinstance(choice.delta.tool_calls, list):
                    calls += choice.delta.tool_calls
    server.check()
    assert text == "I add."
    assert thinking == server.sent[0].thinking
    assert [(call.function.name, call.function.arguments) for call in calls] == [
        ("add", '{"a": 1, "b": 2}'),
        ("add", '{"a": 3, "b": 4}'),
    ]


async def test_the_official_client_reads_anthropics_stream(servers: dict[str, StrictServer]) -> None:
    server = servers["anthropic"]
    server.play(TURN)
    client = AsyncAnthropic(base_url=server.url, api_key=KEY, max_retries=0)
    body = make_anthropic_body()
    body["messages"] = body["messages"][:1]
    body["thinking"] = {"type": "enabled", "budget_tokens": 1024}
    del body["stream"]
    async with client.messages.stream(**body) as stream:
        message = await stream.get_final_message()
    await client.close()
    kinds = [block.type for block in message.content]
    assert kinds == ["thinking", "redacted_thinking", "text", "tool_use", "tool_use"]
    assert message.content[-1].input == {"a": 3, "b": 4}  # type: ignore[union-attr]


async def test_the_official_client_reads_bedrocks_stream(servers: dict[str, StrictServer]) -> None:
    """Botocore signs the request as the server wants it, and verifies the checksums of every frame."""
    server = servers["bedrock"]
    server.play(TURN)
    client = Session().create_client(
        "bedrock-runtime",
        bedrock_api.REGION,
        endpoint_url=server.url,
        aws_access_key_id=bedrock_api.ACCESS_KEY,
        aws_secret_access_key=bedrock_api.SECRET_KEY,
        aws_session_token=bedrock_api.SESSION_TOKEN,
    )
    body = make_bedrock_body()
    body["messages"] = body["messages"][:1]
    body["additionalModelRequestFields"] = THINKING

    def read() -> list[dict[str, Any]]:
        return list(client.converse_stream(modelId=CLAUDE_AT_BEDROCK, **body)["stream"])

    events = await asyncio.to_thread(read)
    client.close()
    server.check()
    deltas = [event["contentBlockDelta"]["delta"] for event in events if "contentBlockDelta" in event]
    assert "".join(delta.get("text", "") for delta in deltas) == "I add."
    arguments = "".join(delta["toolUse"]["input"] for delta in deltas if "toolUse" in delta)
    assert arguments == '{"a": 1, "b": 2}{"a": 3, "b": 4}'
    assert next(event for event in events if "messageStop" in event)["messageStop"]["stopReason"] == "tool_use"


# Responses


REASONING_ITEM = {"id": "rs_1", "type": "reasoning", "summary": [], "encrypted_content": "sealed"}
FUNCTION = {"id": "fc_1", "type": "function_call", "call_id": "call_1", "name": "add", "arguments": "{}"}
RETURNED = Sent(
    "", {"items": [REASONING_ITEM, FUNCTION], "model": "gpt-5.6-sol"}, {"call_1": {}}, "", {"call_1": "add"}
)


def make_responses_body() -> dict[str, Any]:
    """Make a body of Responses in the middle of a tool loop."""
    function: dict[str, Any] = ADD["function"]  # type: ignore[assignment]
    items = [
        {"role": "user", "content": "Add 1 and 2."},
        REASONING_ITEM,
        FUNCTION,
        {"type": "function_call_output", "call_id": "call_1", "output": "3"},
    ]
    return {
        "model": "gpt-5.6-sol",
        "input": json.loads(json.dumps(items)),
        "tools": [{"type": "function", "strict": False, **json.loads(json.dumps(function))}],
        "include": ["reasoning.encrypted_content"],
        "reasoning": {"effort": "high", "summary": "auto"},
        "max_output_tokens": 2000,
        "store": False,
        "stream": True,
    }


def test_a_valid_conversation_is_taken_by_responses() -> None:
    assert not list_refusals(ROWS["openai-responses"], make_responses_body(), RETURNED)


def _change_item(index: int, **fields: Any) -> Change:
    return lambda body: body["input"][index].update(fields)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda body: body["input"].pop(1), "without its required 'reasoning' item: 'rs_1'"),
        (lambda body: body["input"].pop(2), "without its required following item"),
        (lambda body: body["input"].pop(2), "No tool call found for function call output with call_id call_1"),
        (lambda body: body["input"].pop(3), "No tool output found for function call call_1"),
        (_change_item(1, encrypted_content="other"), "could not be verified"),
        (lambda body: body["input"][1].pop("encrypted_content"), "Item with id 'rs_1' not found"),
        (_change_item(2, id="fc_2"), "Item with id 'fc_2' not found"),
        (_change_item(2, arguments='{"a": 1}'), "came back as"),
        (_change_item(2, arguments="{"), "not the JSON text of an object"),
        (_change_item(2, name="my tool"), "does not match pattern"),
        (_change_item(0, name="user"), "Unknown parameter: 'input[0].name'"),
        (lambda body: body.update(stop=["END"]), "Unknown parameter: 'stop'"),
        (lambda body: body.update(store=True), "would be stored"),
        (lambda body: body.update(temperature=1), "'temperature' is not supported with this model"),
        (lambda body: body.update(max_output_tokens=5), "Expected a value >= 16"),
        (lambda body: body.update(reasoning={"effort": "minimal"}), "'minimal' is not supported"),
        (lambda body: body.update(tool_choice={"type": "function", "name": "other"}), "not found in 'tools'"),
        (lambda body: body["tools"][0].update(strict=True), "'additionalProperties' is required"),
        (lambda body: body["tools"][0]["parameters"].update(anyOf=[]), "at the top level"),
        (
            lambda body: body["input"].append({"type": "message", "role": "assistant", "content": "Three."}),
            "has no phase",
        ),
    ],
)
def test_what_responses_refuse_or_lose_is_said(change: Change, words: str) -> None:
    body = make_responses_body()
    change(body)
    assert words in list_refusals(ROWS["openai-responses"], body, RETURNED)


def test_a_model_without_reasoning_refuses_what_is_about_it() -> None:
    body = make_responses_body() | {"model": "gpt-4.1"}
    said = list_refusals(ROWS["azure-responses"], body, RETURNED)
    for words in ("'reasoning.effort' is not supported", "Encrypted content is not supported", "not be verified"):
        assert words in said


@pytest.mark.parametrize("name", ["openai-responses", "azure-responses"])
async def test_the_official_client_reads_the_stream_of_responses(servers: dict[str, StrictServer], name: str) -> None:
    server = servers[name]
    server.play(TURN)
    client = AsyncOpenAI(base_url=server.url, api_key=KEY, max_retries=0)
    body = make_responses_body()
    body |= {"model": server.dialect.model, "input": body["input"][:1]}
    if not server.dialect.thinks:
        del body["reasoning"], body["include"]
    del body["stream"]
    async with client.responses.stream(**body) as stream:
        response = await stream.get_final_response()
    await client.close()
    kinds = [item.type for item in response.output]
    assert kinds == [*(["reasoning"] if server.dialect.thinks else []), "message", "function_call", "function_call"]
    assert response.output_text == "I add."
    server.check()


@pytest.mark.parametrize("name", ["google", "google-2.5"])
async def test_the_official_client_reads_geminis_stream(servers: dict[str, StrictServer], name: str) -> None:
    server = servers[name]
    server.play(TURN)
    client = Client(
        api_key=KEY, vertexai=False, http_options=types.HttpOptions(base_url=server.url, api_version="v1beta")
    )
    config = types.GenerateContentConfig(thinking_config=types.ThinkingConfig(include_thoughts=True))
    parts: list[types.Part] = []
    stream = await client.aio.models.generate_content_stream(
        model=server.dialect.model, contents="Add 1 and 2.", config=config
    )
    async for chunk in stream:
        assert chunk.candidates
        content = chunk.candidates[0].content
        parts += (content.parts or []) if content else []
    await client.aio.aclose()
    server.check()
    texts = "".join(part.text or "" for part in parts if not part.thought)
    calls = [part.function_call.args for part in parts if part.function_call]
    assert texts == "I add."
    assert calls == [{"a": 1, "b": 2}, {"a": 3, "b": 4}]
    assert any(part.thought for part in parts), server.last
    assert sum(part.thought_signature is not None for part in parts) == 1


async def test_a_search_that_paused_goes_on_and_must_come_back_as_it_was_sent(
    servers: dict[str, StrictServer],
) -> None:
    """The official client reads the paused stream, and its content is what the server takes back."""
    server = servers["anthropic"]
    server.play(Turn("", searches=("one", "two"), ending="pause"), Turn("Found."))
    client = AsyncAnthropic(base_url=server.url, api_key=KEY, max_retries=0)
    body = make_anthropic_body()
    body["messages"] = body["messages"][:1]
    del body["stream"]
    async with client.messages.stream(**body) as stream:
        paused = await stream.get_final_message()
    assert paused.stop_reason == "pause_turn"
    content = [block.model_dump(exclude_none=True) for block in paused.content]
    kinds = [block["type"] for block in content]
    assert kinds == ["server_tool_use", "web_search_tool_result", "server_tool_use"]
    content[1]["content"][0]["page_age"] = None
    body["messages"].append({"role": "assistant", "content": content})
    async with client.messages.stream(**body) as stream:
        message = await stream.get_final_message()
    await client.close()
    assert [block.type for block in message.content] == ["web_search_tool_result", "text"]
    server.check()
    body["messages"][1]["content"] = [content[0], content[1] | {"content": [PAGE]}, content[2]]
    exchange = Exchange(body, {}, tuple(server.sent[:1]))
    said = [refusal.message for rule in (*server.dialect.rules, *server.dialect.losses) for refusal in rule(exchange)]
    assert any("Invalid `encrypted_content`" in text for text in said)
    assert any("did not come back as they were sent" in text for text in said)
