"""What a tenant reads of errors: nothing of the operator's inside, at any door, while operators read all of it."""

from __future__ import annotations

import asyncio
import re
import uuid
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from clew import Agent, Clew
from clew.local import Reply, ToolCall
from clew.serve.error_words import FAILED, TENANT, WORDS, Reader
from clew_workflows.contract import errors
from clew_workflows.contract.errors import REFUSALS, ClewError, Refusal, RequestFailed, make_refusal
from clew_workflows.contract.outcomes import OutcomeError, RequestOutcome
from tests.support.rolling import make_id
from tests.support.serving import Served, make_http, make_key, run_service
from tests.support.stack import Stack, get_last_message, serve
from tests.support.waiting import PATIENCE_SECONDS

INSIDE = {
    "agent": "zz-hidden-agent",
    "provider": "zzprovider",
    "variable": "CLEW_PROVIDER_ZZPROVIDER_BASE_URL",
    "host": "zz-inside.invalid",
    "text of a provider": "zz-account-of-the-operator",
    "tool": "zz_hidden_tool",
}
"""What only the operator's setup has."""
OPERATORS_WORDS = re.compile(r"CLEW_[A-Z]|`clew |--(?:agents|tools|model|tool) ")
"""How operators are told what to do."""
OPERATORS = Reader(is_operator=True)
CONTRACT = Path(__file__).parents[3] / "docs" / "contract.md"


def list_words() -> Iterable[str]:
    """List the words of the contract: of refusals, of other errors, and of how requests fail."""
    yield from REFUSALS
    for name in errors.__all__:
        value = getattr(errors, name)
        if isinstance(value, type) and issubclass(value, ClewError) and isinstance(getattr(value, "type", None), str):
            yield str(value.type)  # type: ignore[attr-defined]
    section = CONTRACT.read_text().partition("\n## Error types\n")[2].partition("\n## ")[0]
    yield from re.findall(r"^\| `([a-z_]+)` \|", section, re.MULTILINE)


def test_each_word_has_a_text_for_tenants() -> None:
    """None falls to the text of an unknown one unnoticed. No text has a word of operators."""
    assert set(list_words()) <= WORDS.keys()
    assert len(set(list_words())) > 70
    for _, _, text in WORDS.values():
        assert not OPERATORS_WORDS.search(text)
        assert text


@pytest.mark.parametrize("word", sorted(WORDS))
def test_a_reason_with_the_operators_words_is_not_shown(word: str) -> None:
    """An error that names a command, a variable, a worker, an address or a file is read by operators alone."""
    for inside in (
        "no agent 'x', the worker's agents are: zz-hidden-agent",
        "set CLEW_PROVIDER_ZZ_BASE_URL",
        "set ZZ_API_KEY",
        "run `clew recover s`",
        "point --agents at it",
        "cannot reach https://zz-inside.invalid/v1",
        "/srv/zz-inside/store is full",
    ):
        for error in (make_refusal(word, inside), Refusal(f"{word}: {inside}")):
            assert inside not in TENANT.tell_error(error, word)
            assert inside in OPERATORS.tell_error(error, word)
        assert TENANT.tell(word, inside) == WORDS[word][2]
    assert TENANT.tell("a-later-word", "anything") == FAILED


def test_a_reason_about_the_request_is_shown() -> None:
    """A tenant reads what is wrong with what it has sent, with the names that it knows."""
    reader = Reader("acme:")
    assert reader.tell("unknown_lane", "session 'acme:chat' has no lane 'x'") == "session 'chat' has no lane 'x'"
    outcome = RequestOutcome(
        request_id="r",
        status="failed",
        last_seq=1,
        error=OutcomeError(type="token_limit", message="5 tokens are used up"),
    )
    assert reader.tell_error(RequestFailed(outcome), "request_failed") == "5 tokens are used up"


@asynccontextmanager
async def run_inside(stack: Stack) -> AsyncIterator[tuple[Served, httpx.AsyncClient]]:
    """Run the service before a worker whose setup has what no tenant reads, and a client with an operator's key."""
    environ = {
        **stack.environ,
        INSIDE["variable"]: f"http://{INSIDE['host']}:9/v1",
        "CLEW_PROVIDER_AWAY_BASE_URL": f"http://{INSIDE['host']}:9/v1",
        "CLEW_PROVIDER_ZZPROVIDER_API_KEY": "zz-key-of-the-operator",
    }
    refused = stack.add_model(lambda _: Reply.error(400, f"no, {INSIDE['text of a provider']}"))
    agents = [
        Agent("own", model=stack.add_model("fine"), tools=["add"]),
        Agent(INSIDE["agent"], model=f"{INSIDE['provider']}:large", tools=["add"]),
        Agent("refused", model=refused),
        Agent("unreachable", model="away:large", request_timeout_seconds=1),
        *make_teams(stack, refused),
    ]
    clew = Clew(stack.clew.temporal, make_id())
    token, key = make_key("operator", f"o-{uuid.uuid4().hex[:8]}", operator=True)
    async with (
        serve(clew, environ, agents=agents) as own,
        run_service(own, key) as served,
        make_http(served.address, token) as operator,
    ):
        yield served, operator


def make_teams(stack: Stack, refused: str) -> list[Agent]:
    """Make agents whose tools fail: a subagent whose provider refuses, one that no worker can run."""

    def call_first(body: dict[str, Any]) -> Reply:
        if get_last_message(body)["role"] == "tool":
            return Reply("so be it")
        return Reply(tool_calls=(ToolCall(body["tools"][0]["function"]["name"], {"task": "go"}),))

    helpers = [Agent("helper1", model=refused), Agent("helper2", model="nowhere:large")]
    return [
        Agent(f"team{number}", model=stack.add_model(call_first), tools=[helper.as_tool()])
        for number, helper in enumerate(helpers, 1)
    ]


FAILING: dict[str, dict[str, Any]] = {
    "an unknown agent": {"agent": "nobody"},
    "an unknown provider": {"model": "nowhere:large"},
    "an unknown tool": {"model": "scripted:m0", "tools": ["nothing"]},
    "an unknown server of tools": {"model": "scripted:m0", "tools": ["mcp__nothing__nothing"]},
    "a provider that refuses": {"agent": "refused"},
    "a provider that is away": {"agent": "unreachable"},
    "a subagent that is refused": {"agent": "team1"},
    "a subagent without a provider": {"agent": "team2"},
    "no price": {"model": "scripted:m0", "limits": {"max_cost_usd": 1}},
}


async def read_everything(http: httpx.AsyncClient, name: str, config: dict[str, Any]) -> str:
    """Provoke the failure at every door, and read all that the service says of it."""
    read: list[str] = []

    async def call(method: str, path: str, body: Any = None) -> None:
        async with http.stream(method, path, json=body, timeout=PATIENCE_SECONDS) as answer:
            read.append(f"{path} {answer.status_code} {answer.headers}")
            async for line in answer.aiter_lines():
                read.append(line)
                if '"kind":"run"' in line and path.endswith("from_seq=0"):
                    break

    base = f"/v1/sessions/{name}"
    await call("PUT", base, config)
    message = {"content": "hello", "request_id": "r1"}
    await call("POST", f"{base}/messages?wait=60", message)
    has_begun = "200" in read[-2]
    for path in ("", "/entries", "/messages", "/context", "/windows", "/report", "/requests/r1?wait=30", "/waiting"):
        await call("GET", base + path)
    if has_begun:
        await call("GET", f"{base}/events?from_seq=0")
        await call("GET", f"{base}/requests/r1/events")
    await call("POST", f"{base}/summarize", {})
    await call("POST", f"{base}/checkpoint", {})
    await call("POST", f"{base}/uploads", {"media_type": "image/png", "bytes": 10})
    await call("GET", "/v1/sessions")
    named = {key: value for key, value in config.items() if key in ("agent", "model")}
    said = {"id": "m2", "role": "user", "parts": [{"type": "text", "text": "hello"}]}
    await call("POST", "/v1/ui/chat", {"id": name, "messages": [said], **named})
    await call("GET", f"/v1/ui/chat/{name}/messages")
    await call("GET", f"/v1/ui/chat/{name}/stream")
    empty: dict[str, Any] = {"state": {}, "tools": [], "context": [], "forwardedProps": {}, "runId": "run"}
    run = {"threadId": name, "messages": [{"id": "m3", "role": "user", "content": "hello"}], **empty}
    await call("POST", f"/v1/ag-ui/agents/{config['agent']}/run" if "agent" in config else "/v1/ag-ui/run", run)
    model = config.get("agent") or config["model"]
    for streams in (False, True):
        await call("POST", "/v1/responses", {"model": model, "input": "hello", "stream": streams})
        said = {"role": "user", "content": "hello"}
        await call("POST", "/v1/chat/completions", {"model": model, "messages": [said], "stream": streams})
    params = {"name": "run_agent", "arguments": {"message": "hello", "agent": config.get("agent", "nobody")}}
    called = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params}
    async with http.stream(
        "POST",
        "/v1/mcp",
        json=called,
        headers={"Accept": "application/json, text/event-stream", "Mcp-Protocol-Version": "2025-06-18"},
    ) as answer:
        read.append((await answer.aread()).decode())
    return "\n".join(read)


async def check_doors(stack: Stack, served: Served, operator: httpx.AsyncClient, failing: str) -> None:
    """Check what a tenant and an operator read of one failure."""
    config, name = dict(FAILING[failing]), f"chat-{uuid.uuid4().hex}"
    if config.get("model") == "scripted:m0":
        config["model"] = stack.add_model("fine")
    read = await read_everything(served.http, name, config)
    for what, text in INSIDE.items():
        place = read.lower().find(text.lower())
        assert place < 0, (failing, what, read[max(place - 300, 0) : place + 200])
    for match in OPERATORS_WORDS.finditer(read):
        raise AssertionError((failing, read[max(match.start() - 300, 0) : match.end() + 100]))
    told = await read_everything(operator, name, config)
    assert any(text in told for text in INSIDE.values()) or OPERATORS_WORDS.search(told), failing


@pytest.mark.slow
async def test_no_door_tells_a_tenant_of_the_inside(stack: Stack) -> None:
    """All bytes that a tenant gets when its session fails for a reason of the inside. Operators get the reason."""
    async with run_inside(stack) as (served, operator), asyncio.TaskGroup() as group:
        for failing in FAILING:
            group.create_task(check_doors(stack, served, operator, failing))


@pytest.mark.slow
async def test_a_model_without_a_provider_is_refused_with_those_there_are(stack: Stack) -> None:
    """Operators read them, over HTTP and in Python. Tenants read how a model is written."""
    async with run_inside(stack) as (served, operator):
        for http in (served.http, operator):
            for path, body in (
                ("/v1/sessions", {"model": "gpt-4o"}),
                ("/v1/responses", {"model": "gpt-4o", "input": "hello"}),
                ("/v1/chat/completions", {"model": "gpt-4o", "messages": [{"role": "user", "content": "hello"}]}),
            ):
                answer = await http.post(path, json=body)
                message = answer.json()["error"]["message"]
                assert answer.status_code == (400 if path == "/v1/sessions" else 404)
                assert ("scripted, zzprovider" in message) == (http is operator)
                assert "provider:model" in message or (http is served.http and path != "/v1/sessions")
        clew: Clew = served.app.state.clew
        with pytest.raises(errors.InvalidInput, match="openai:gpt-4o; this worker has away, scripted, zzprovider"):
            await clew.open(make_id(), model="gpt-4o")
