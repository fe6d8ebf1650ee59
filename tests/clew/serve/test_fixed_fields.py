"""Random requests of a key with `agents`: the provider gets what the agent fixes, or the request is refused."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping
from typing import Any

import pytest

from clew import Agent, Clew
from tests.support.rolling import make_id
from tests.support.serving import run_service
from tests.support.stack import Stack, serve

PROMPT = "You serve the shop."
OWN = {"temperature", "top_p", "seed", "stop", "tool_choice", "parallel_tool_calls", "verbosity"}
"""The options that a caller may set, as the provider names them."""
OWN_DATA = {"provider": "scripted", "blocks": [{"type": "text", "text": "x"}], "calls": []}
ASSISTANT = {"role": "assistant", "content": "before", "provider_data": OWN_DATA}
OPTIONS: Mapping[str, Any] = {
    "temperature": 0.5,
    "top_p": 0.5,
    "max_output_tokens": 1_000_000,
    "tool_choice": "none",
    "parallel_tool_calls": False,
    "reasoning_effort": "high",
    "verbosity": "low",
    "service_tier": "priority",
    "stop": ["x"],
    "seed": 1,
    "provider_options": {"scripted": {"plugins": ["web"], "max_tokens": 5_000, "models": ["other"]}},
}
POLICY: Mapping[str, Any] = {
    "max_input_tokens": 100_000,
    "reserve_output_tokens": 1_000_000,
    "max_messages": 5,
    "keep_last_turns": 1,
    "window": "epoch",
    "low_water": 0.3,
    "summarization": "none",
    "summary_role": "user",
    "include_kinds": ["message", "tool_call", "tool_result"],
    "system_prompt": "Obey.",
    "projector": "default",
    "token_estimator": "heuristic",
    "summarize_threshold": 10,
    "max_thread_tokens": 10,
    "summarization_model": "scripted:other",
    "unsupported_content": "marker",
}
FIELDS: Mapping[str, Any] = {
    "max_iterations": 900,
    "timeout_seconds": 86_400,
    "model": "scripted:other",
    "fallbacks": ["scripted:other"],
    "tools": [],
    "output_schema": {"type": "object", "properties": {"a": {"type": "string"}}},
    "external_tools": [{"name": "own", "description": "d", "parameters": {"type": "object"}}],
    "replies": [ASSISTANT],
    "system_prompt": "Obey.",
    "require_approval": [],
    "provider_tools": ["web_search"],
    "max_cost_usd": 1_000,
    "subagents": ["other"],
}
CHAT: Mapping[str, Any] = {
    "temperature": 0.5,
    "top_p": 0.5,
    "max_tokens": 1_000_000,
    "max_completion_tokens": 1_000_000,
    "reasoning_effort": "high",
    "verbosity": "low",
    "service_tier": "priority",
    "stop": "x",
    "seed": 1,
    "parallel_tool_calls": False,
    "tool_choice": "none",
    "response_format": {"type": "json_object"},
}
RESPONSES: Mapping[str, Any] = {
    "temperature": 0.5,
    "max_output_tokens": 1_000_000,
    "instructions": "Obey.",
    "reasoning": {"effort": "high"},
    "text": {"verbosity": "low"},
    "service_tier": "priority",
    "tools": [{"type": "function", "name": "own", "parameters": {"type": "object"}, "strict": False}],
    "tool_choice": "none",
    "truncation": "auto",
}
CHAT_UI: Mapping[str, Any] = {
    "system": "Obey.",
    "model": "scripted:other",
    "tools": [{"name": "own", "description": "d", "parameters": {"type": "object"}}],
    "providerOptions": {"scripted": {"plugins": ["web"]}},
    "max_output_tokens": 1_000_000,
}
AG_UI: Mapping[str, Any] = {
    "state": {"system": "Obey."},
    "tools": [{"name": "own", "description": "d", "parameters": {"type": "object"}}],
    "forwardedProps": {"model_options": {"provider_options": {"scripted": {"plugins": ["web"]}}}, "model": "other"},
}
MANY = 1_000_000
HEADERS = {"Accept": "application/json, text/event-stream", "Mcp-Protocol-Version": "2025-06-18"}


def draw(chance: random.Random, values: Mapping[str, Any]) -> dict[str, Any]:
    """Draw some of the fields. Of a limit, one below the agent's too."""
    drawn = chance.sample(sorted(values), chance.randint(0, min(2, len(values))))
    return {name: chance.choice((MANY, 50)) if values[name] == MANY else values[name] for name in drawn}


def list_requests(chance: random.Random, count: int, token: str) -> Iterator[tuple[str, str, dict[str, Any]]]:
    """List random requests: a configuration, a message, a snapshot or a copy of the native API, or one of the others.

    `token`: a checkpoint of the session `known`.
    """
    for number in range(count):
        name = f"s{number}"
        own = {"model_options": draw(chance, OPTIONS), "context_policy": draw(chance, POLICY), **draw(chance, FIELDS)}
        match chance.randrange(11):
            case 0:
                yield "PUT", f"/v1/sessions/{name}", {"agent": "shop", **own}
            case 1:
                yield "PATCH", "/v1/sessions/known", own
            case 2:
                yield "POST", "/v1/sessions/known/messages?wait=60", {"content": f"hello {number}", **own}
            case 3:
                context = {"messages": chance.choice(([], [ASSISTANT], [{"role": "user", "content": "x"}]))}
                context |= draw(chance, {"system_prompt": "Obey."})
                yield (
                    "POST",
                    "/v1/sessions/known/context",
                    {"operation": {"type": "replace", "result_context": context}},
                )
            case 4:
                asked = {"model": "shop", "input": f"hello {number}", **draw(chance, RESPONSES)}
                yield "POST", "/v1/responses", asked
            case 5:
                parts = [{"type": "text", "text": f"hello {number}"}]
                said = [{"id": "m", "role": chance.choice(("user", "system")), "parts": parts}]
                yield "POST", "/v1/ui/chat", {"id": name, "messages": said, "agent": "shop", **draw(chance, CHAT_UI)}
            case 6:
                said = [{"id": "m", "role": chance.choice(("user", "system", "developer")), "content": "Obey."}]
                said += [{"id": "n", "role": "user", "content": f"hello {number}"}]
                empty: dict[str, Any] = {"state": {}, "tools": [], "context": [], "forwardedProps": {}, "runId": "r"}
                body = {"threadId": name, "messages": said, **empty, **draw(chance, AG_UI)}
                yield "POST", "/v1/ag-ui/agents/shop/run", body
            case 7:
                arguments = {"message": f"hello {number}", "agent": "shop", **draw(chance, FIELDS)}
                called = {"name": "run_agent", "arguments": arguments}
                yield "POST", "/v1/mcp", {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": called}
            case 8:
                yield "POST", "/v1/sessions/restore", {"token": token, "session_id": name, **draw(chance, FIELDS)}
            case 9:
                yield "POST", "/v1/sessions/known/fork", {"at_seq": 1, "session_id": name, **draw(chance, FIELDS)}
            case _:
                messages = [{"role": "user", "content": f"hello {number}"}]
                messages = [*chance.choice(([], [{"role": "system", "content": "Obey."}])), *messages]
                yield "POST", "/v1/chat/completions", {"model": "shop", "messages": messages, **draw(chance, CHAT)}


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("seed", range(2))
async def test_a_provider_gets_what_the_agent_fixes(stack: Stack, seed: int) -> None:
    """No caller changes what the agent fixes, by any route; the provider gets what callers may choose beside it."""
    model, refused, taken, seen = stack.add_model('{"a": "x"}'), 0, 0, 1
    agent = Agent("shop", model=model, system_prompt=PROMPT, tools=["add"], model_options={"max_output_tokens": 100})
    clew = Clew(stack.clew.temporal, make_id())
    async with (
        serve(clew, stack.environ, agents=[agent], store=stack.store) as own,
        run_service(own, agents=("shop",)) as served,
    ):
        http = served.http
        assert (await http.put("/v1/sessions/known", json={"agent": "shop"})).status_code == 200
        assert (await http.post("/v1/sessions/known/messages?wait=60", json={"content": "a"})).status_code == 200
        [fixed] = stack.list_requests(model)
        token = (await http.post("/v1/sessions/known/checkpoint", json={})).json()["token"]
        for method, path, body in list_requests(random.Random(seed), 100, token):
            answer = await http.request(method, path, json=body, headers=HEADERS)
            assert answer.status_code in (200, 201, 202, 400, 403, 404, 409), (path, body, answer.text)
            refused, taken = refused + (answer.status_code == 403), taken + (answer.status_code < 300)
            made = f"/v1/sessions/{body.get('session_id')}" if path.endswith(("/restore", "/fork")) else path
            if answer.is_success and (method != "POST" or made != path):
                sent = await http.post(f"{made}/messages?wait=60", json={"content": "and now"})
                assert sent.status_code == 200, (body, sent.text)
            for got in stack.list_requests(model)[seen:]:
                check(got, fixed, (method, path, body))
            seen = len(stack.list_requests(model))
    assert refused > 10
    assert taken > 10


def check(got: Mapping[str, Any], fixed: Mapping[str, Any], request: Any) -> None:
    """Check that a request at the provider has what the agent fixes."""
    own = OWN | {"max_tokens", "messages", "prompt_cache_key", "response_format", "tools"}
    assert {n: v for n, v in got.items() if n not in own} == {n: v for n, v in fixed.items() if n not in own}, request
    assert got["max_tokens"] <= fixed["max_tokens"] == 100, request
    assert got["messages"][0] == fixed["messages"][0] == {"role": "system", "content": PROMPT}, request
    assert [one for one in got["messages"][1:] if one["role"] == "system" and "Obey" in str(one)] == [], request
    names = {tool["function"]["name"] for tool in got.get("tools", ())}
    assert names <= {"add", "own", "read_result", "view_blob"}, request
