"""The fields of an input: unknown names and wrong values are refused, values at their caps are taken."""

from __future__ import annotations

from typing import Any

import pytest

from clew.contract.limits import MAX_SYSTEM_PROMPT_BYTES
from clew.errors import InvalidInput
from tests.support.ingress import DECODERS, VALID, decode_refusal, make_arguments


@pytest.mark.parametrize("field", ["unknown", "Content", "content ", "", "\u0000", "model_config", "__class__"])
def test_an_unknown_field_is_refused_by_its_name(field: str) -> None:
    """Never ignored: a typing error in a field's name would otherwise be a setting that does nothing."""
    for name in DECODERS:
        refusal = decode_refusal(name, make_arguments(VALID[name] | {field: 1}))
        assert isinstance(refusal, InvalidInput), name
        assert field in str(refusal), name


@pytest.mark.parametrize(
    ("name", "fields", "place"),
    [
        ("message", {"content": 1}, "content"),
        ("message", {"content": None}, "content"),
        ("message", {"content": ["a"]}, "content"),
        ("message", {"request_id": 7}, "request_id"),
        ("message", {"max_iterations": "10"}, "max_iterations"),
        ("message", {"max_iterations": True}, "max_iterations"),
        ("message", {"max_iterations": 10.0}, "max_iterations"),
        ("message", {"max_iterations": 1.5}, "max_iterations"),
        ("message", {"max_iterations": 0}, "max_iterations"),
        ("message", {"max_iterations": 1001}, "max_iterations"),
        ("message", {"timeout_seconds": -1}, "timeout_seconds"),
        ("message", {"timeout_seconds": 30 * 86400 + 1}, "timeout_seconds"),
        ("message", {"model": "gpt-4o"}, "model"),
        ("message", {"model": "HTTPS://evil.example:gpt-4o"}, "model"),
        ("message", {"model": "OpenAI:gpt-4o"}, "model"),
        ("message", {"model": "openai:gpt 4o"}, "model"),
        ("message", {"model": "openai:"}, "model"),
        ("message", {"model": "openai:" + "m" * 201}, "model"),
        ("message", {"model_options": {"temperature": "0"}}, "model_options.temperature"),
        ("message", {"model_options": {"temperature": 2.1}}, "model_options.temperature"),
        ("message", {"model_options": {"base_url": "https://evil.example"}}, "model_options.base_url"),
        ("message", {"model_options": {"stop": "END"}}, "model_options.stop"),
        ("message", {"model_options": {"stop": ["a"] * 5}}, "model_options.stop"),
        ("message", {"model_options": {"stop": [""]}}, "model_options.stop.0"),
        ("message", {"model_options": {"seed": 2**63}}, "model_options.seed"),
        ("message", {"model_options": {"reasoning_effort": "extreme"}}, "model_options.reasoning_effort"),
        ("message", {"context_policy": {"keep_last_turns": True}}, "context_policy.keep_last_turns"),
        ("message", {"context_policy": {"keep_last_turns": -1}}, "context_policy.keep_last_turns"),
        ("message", {"context_policy": {"include_kinds": ["message", "thought"]}}, "context_policy.include_kinds.1"),
        ("message", {"context_policy": {"system_prompt": "x" * 65537}}, "context_policy.system_prompt"),
        ("message", {"context_policy": "short"}, "context_policy"),
        ("message", {"metadata": {"a": 1}}, "metadata.a"),
        ("message", {"metadata": {"a": "x" * 2001}}, "metadata.a"),
        ("message", {"metadata": {"\n": "x"}}, "metadata"),
        ("message", {"metadata": {f"k{number}": "" for number in range(65)}}, "metadata"),
        ("message", {"on_busy": "wait"}, "on_busy"),
        ("message", {"output_schema": []}, "output_schema"),
        ("start", {"config": None}, "config"),
        ("start", {"config": []}, "config"),
        ("start", {"config": {}}, "config: Value error, a model or an agent is needed"),
        ("start", {"config": {"model": "openai:m", "tools": "add"}}, "config.tools"),
        ("start", {"config": {"model": "openai:m", "tools": [""]}}, "config.tools.0"),
        ("start", {"config": {"model": "openai:m", "tools": ["t" * 201]}}, "config.tools.0"),
        ("start", {"config": {"model": "openai:m", "tools": ["t"] * 129}}, "config.tools"),
        ("start", {"config": {"model": "openai:m", "encoding": "p50k base"}}, "config.encoding"),
        ("start", {"config": {"model": "openai:m", "limits": {"max_tool_result_bytes": 255}}}, "config.limits"),
        ("start", {"config": {"model": "openai:m", "limits": {"max_message_bytes": 0}}}, "config.limits"),
        ("start", {"config": {"model": "openai:m", "limits": {"max_message_bytes": 262145}}}, "config.limits"),
        ("start", {"config": {"model": "openai:m", "metadata": None}}, "config.metadata"),
        ("start", {"config": {"model": "openai:m", "strategy": "s" * 201}}, "config.strategy"),
        ("await_request", {"request_id": ""}, "request_id"),
        ("await_request", {"request_id": "r" * 201}, "request_id"),
        ("await_request", {"request_id": "a\nb"}, "request_id"),
        ("await_request", {"request_id": "a\x00"}, "request_id"),
        ("await_request", {"request_id": "a\x7f"}, "request_id"),
        ("await_request", {"request_id": "a\n"}, "request_id"),
        ("close", {"reason": 1}, "reason"),
        ("close", {"reason": "r" * 2001}, "reason"),
        ("close_session", {"reason": "r" * 2001}, "reason"),
        ("context", {"at_seq": -1}, "at_seq"),
        ("context", {"at_seq": "1"}, "at_seq"),
        ("context", {"page": -1}, "page"),
        ("context", {"call_id": "\t"}, "call_id"),
        ("transcript", {"limit": 0}, "limit"),
        ("transcript", {"include_system": 1}, "include_system"),
        ("transcript", {"include_system": "true"}, "include_system"),
        ("entries", {"kind": 1}, "kind"),
        ("entries", {"from_seq": 0.0}, "from_seq"),
        ("window", {"token_budget": "100"}, "token_budget"),
    ],
)
def test_a_wrong_value_is_refused_by_its_place(name: str, fields: dict[str, Any], place: str) -> None:
    """Nothing is guessed at: "10" is no number, 1 is not true, and the message says where it stands."""
    refusal = decode_refusal(name, make_arguments(VALID[name] | fields))
    assert isinstance(refusal, InvalidInput)
    assert str(refusal).startswith(place)


@pytest.mark.parametrize(
    ("name", "fields"),
    [
        ("message", {"request_id": "r" * 200, "max_iterations": 1000, "timeout_seconds": 30 * 86400}),
        ("message", {"request_id": "ein Bär 🐻 \u00a0"}),
        ("message", {"model": "openrouter:meta/llama-3:free", "model_options": {"temperature": 2, "seed": -(2**63)}}),
        ("message", {"model_options": {"stop": ["x" * 200] * 4, "max_output_tokens": 1}}),
        ("message", {"metadata": {name: "x" * (156 if name == "e" else 2000) for name in "abcde"}}),
        ("message", {"context_policy": {"max_input_tokens": 2**53 - 1, "system_prompt": "x" * 65536}}),
        ("message", {"on_busy": "reject", "context_policy": {}}),
        ("start", {"config": {"model": "openai:m", "tools": [f"t{n}" for n in range(128)], "system_prompt": ""}}),
        ("start", {"config": {"model": "openai:m", "system_prompt": "x" * MAX_SYSTEM_PROMPT_BYTES}}),
        ("start", {"config": {"model": "openai:m", "limits": {"max_message_bytes": 262144}}, "carried": None}),
        ("window", {"token_budget": 1}),
        ("window", {"token_budget": 10**30}),
        ("entries", {"from_seq": 2**70, "kind": "nothing", "limit": 2**70}),
    ],
)
def test_what_is_exactly_at_its_cap_is_taken(name: str, fields: dict[str, Any]) -> None:
    """A cap is the last value allowed, not the first refused."""
    assert DECODERS[name](make_arguments(VALID[name] | fields)) is not None
