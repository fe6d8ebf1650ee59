"""Keys, tenants and limits: what a caller may do, and that it never reaches another tenant's session."""

from __future__ import annotations

import asyncio
import logging
import os
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from fastapi.routing import APIRoute
from pydantic import ValidationError

from clew.errors import InvalidInput, NotFound
from clew.local import ToolCall
from clew.serve import Key, Keys, access
from clew.serve.access import Caller, NewSessions, RateLimiter, compute_hash, make_token, read_keys
from clew.serve.application import ROUTERS
from clew.serve.error_words import ALL_TENANTS
from clew.serve.problems import Forbidden, RateLimited
from tests.support.media import make_png
from tests.support.scripts import make_tool_script, wait_for_approvals
from tests.support.serving import make_http, make_key, run_service
from tests.support.serving_chats import run_shop
from tests.support.stack import Stack
from tests.support.waiting import wait_until

SECRET = "the-secret-of-the-victim"
VICTIM = "chat"


def write_keys(path: Path, *rows: str) -> Path:
    path.write_text("\n".join(f"[[key]]\n{row}" for row in rows))
    return path


def make_caller(**fields: Any) -> Caller:
    _, key = make_key("own", "acme", **fields)
    return Caller(key, None, NewSessions())  # type: ignore[arg-type]


# The file of keys.


def test_a_file_of_keys_has_hashes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A key is found by its token. A changed file is read without a restart; one that is broken is logged alone."""
    first, second = make_token(), make_token()
    path = tmp_path / "keys.toml"
    row = f'name = "a"\nhash = "{compute_hash(first)}"\ntenant = "acme"\nagents = ["support"]'
    keys = Keys.load(write_keys(path, row))
    found = keys.find(first)
    assert found
    assert (found.name, found.tenant, found.agents, found.models) == ("a", "acme", ("support",), None)
    assert keys.find(second) is None
    assert first not in path.read_text()
    monkeypatch.setattr(access, "RELOAD_SECONDS", -1.0)
    write_keys(path, f'name = "b"\nhash = "{compute_hash(second)}"\ntenant = "other"')
    assert keys.find(first) is None
    assert keys.find(second)
    assert not [record for record in caplog.records if record.levelno >= logging.ERROR]
    for break_file in (lambda: path.write_text("[[key"), path.unlink):
        caplog.clear()
        break_file()
        assert keys.find(second)
        (record,) = [record for record in caplog.records if record.levelno >= logging.ERROR]
        assert "the keys stay as they were" in record.getMessage()


def test_a_mounted_secret_is_read_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Kubernetes moves a link to a new folder: the file has the same name, and perhaps the same size and time."""
    monkeypatch.setattr(access, "RELOAD_SECONDS", -1.0)
    tokens = {"one": make_token(), "two": make_token()}
    for version, token in tokens.items():
        (tmp_path / version).mkdir()
        row = f'name = "a"\nhash = "{compute_hash(token)}"\ntenant = "acme"'
        os.utime(write_keys(tmp_path / version / "keys.toml", row), (1, 1))
    (tmp_path / "..data").symlink_to("one")
    (tmp_path / "keys.toml").symlink_to("..data/keys.toml")
    keys = Keys.load(tmp_path / "keys.toml")
    assert keys.find(tokens["one"])
    (tmp_path / "..new").symlink_to("two")
    (tmp_path / "..new").rename(tmp_path / "..data")
    assert keys.find(tokens["two"])
    assert keys.find(tokens["one"]) is None


@pytest.mark.parametrize(
    "row",
    [
        'name = "a"\ntenant = "t"',
        'name = "a"\ntenant = "t"\nhash = "sha256:zz"',
        f'name = "a"\ntenant = "t:u"\nhash = "{compute_hash("x")}"',
        f'name = "a"\ntenant = "t"\nhash = "{compute_hash("x")}"\nunknown = 1',
        f'name = "a"\ntenant = "t"\nhash = "{compute_hash("x")}"\nrequests_per_minute = "600"',
    ],
)
def test_a_row_that_is_not_valid_is_refused(tmp_path: Path, row: str) -> None:
    """With its number; no value is repeated, since it may be a key."""
    with pytest.raises(InvalidInput, match="key 1"):
        read_keys(write_keys(tmp_path / "keys.toml", row))


def test_two_keys_differ(tmp_path: Path) -> None:
    """Neither names nor hashes come twice."""
    row = f'name = "a"\ntenant = "t"\nhash = "{compute_hash("x")}"'
    with pytest.raises(InvalidInput):
        read_keys(write_keys(tmp_path / "keys.toml", row, row))


# What a key permits.


@pytest.mark.parametrize(
    ("fields", "config", "permitted"),
    [
        ({}, {"model": "openai:x", "tools": ["rm"]}, True),
        ({"agents": ["support"]}, {"agent": "support", "metadata": {"user": "a"}}, True),
        ({"agents": ["support"]}, {"agent": "other"}, False),
        ({"agents": ["support"]}, {"agent": "support", "tools": ["rm"]}, False),
        ({"agents": ["support"]}, {"agent": "support", "system_prompt": "obey"}, False),
        ({"agents": ["support"]}, {"agent": "support", "limits": {}}, False),
        ({"agents": ["support"]}, {"agent": "support", "model": "openai:x"}, False),
        ({"agents": ["support"]}, {"model": "openai:x"}, False),
        ({"agents": ["support"], "models": ["openai:*"]}, {"agent": "support", "model": "openai:x"}, True),
        ({"agents": ["support"], "models": ["openai:*"]}, {"model": "openai:x", "tools": ["rm"]}, False),
        ({"models": ["openai:x"]}, {"model": "openai:x", "fallbacks": ["openai:y"]}, False),
        ({"models": ["openai:x"]}, {"model": "openai:x", "tools": ["rm"]}, True),
        ({"agents": ["support"], "operator": True}, {"agent": "other", "tools": ["rm"], "model": "openai:x"}, True),
        ({}, {"model": "openai:x", "webhooks": [{"url": "https://x.example", "secret": "a"}]}, False),
        ({"operator": True}, {"model": "openai:x", "webhooks": [{"url": "https://x.example", "secret": "a"}]}, True),
        ({}, {"model": "openai:x", "priority": 2}, False),
        ({}, {"model": "openai:x", "priority": 5}, True),
        ({"operator": True}, {"model": "openai:x", "priority": 1}, True),
        ({"agents": ["support"]}, {"agent": "support", "context_policy": {"keep_last_turns": 2}}, True),
        ({"agents": ["support"]}, {"agent": "support", "context_policy": {"system_prompt": "obey"}}, False),
        ({"models": ["openai:x"]}, {"model": "openai:x", "context_policy": {"system_prompt": "obey"}}, True),
        ({"models": ["openai:x"]}, {"context_policy": {"summarization_model": "openai:y"}}, False),
        (
            {"agents": ["support"], "models": ["openai:*"]},
            {"model": "openai:x", "context_policy": {"system_prompt": "obey"}},
            True,
        ),
    ],
)
def test_a_key_permits_agents_models_and_fields(
    fields: dict[str, Any], config: dict[str, Any], permitted: bool
) -> None:
    """A key with agents leaves what an agent fixes to the agent."""
    caller = make_caller(
        **{name: tuple(value) if isinstance(value, list) else value for name, value in fields.items()}
    )
    if permitted:
        caller.check_config(config)
    else:
        with pytest.raises(Forbidden):
            caller.check_config(config)


@pytest.mark.parametrize(
    ("options", "permitted"),
    [
        ({"model_options": {"temperature": 0}, "context_policy": {"max_messages": 5}, "tools": []}, True),
        ({"context_policy": {"system_prompt": "obey"}}, False),
        ({"context_policy": {"summarization_model": "openai:x"}}, False),
        ({"model": "openai:x"}, False),
        ({"max_iterations": 1000}, False),
        ({"timeout_seconds": 86400}, False),
        ({"model_options": {"provider_options": {"openai": {"plugins": []}}}}, False),
        ({"model_options": {"max_output_tokens": 50}}, True),
        ({"context_policy": {"reserve_output_tokens": 1_000_000}}, False),
        ({"context_policy": {"projector": "other"}}, False),
        ({"a field of a later version": 1}, False),
    ],
)
def test_a_message_leaves_the_prompt_and_the_limits_to_the_agent(options: dict[str, Any], permitted: bool) -> None:
    """A key with agents sets in a message what it may set in a configuration, and an operator's sets all."""
    assert make_caller(agents=("support",), operator=True).check_message(options) == options
    assert make_caller().check_message(options) == options
    caller = make_caller(agents=("support",))
    if permitted:
        assert caller.check_message(options) == {**options, "shortens_only": True}
    else:
        with pytest.raises(Forbidden):
            caller.check_message(options)


async def test_a_message_may_leave_tools_of_the_agent_out(stack: Stack) -> None:
    """And add none; a configuration leaves them to the agent."""
    async with run_shop(stack, "shop") as served:
        await served.http.put("/v1/sessions/chat", json={"agent": "shop"})
        for tools in (["guarded"], []):
            sent = await served.http.post(
                "/v1/sessions/chat/messages?wait=60", json={"content": "hi", "tools": tools}
            )
            assert (sent.status_code, sent.json()["answer"]) == (200, "You said hi")
        refused = await served.http.post("/v1/sessions/chat/messages", json={"content": "hi", "tools": ["add"]})
        assert (refused.status_code, refused.json()["error"]["code"]) == (400, "unknown_tool")
        for method, path in (("PATCH", "/v1/sessions/chat"), ("PUT", "/v1/sessions/other")):
            refused = await served.http.request(method, path, json={"agent": "shop", "tools": ["guarded"]})
            assert (refused.status_code, refused.json()["error"]["code"]) == (403, "forbidden")


async def test_no_route_replaces_the_prompt_of_an_agent(stack: Stack) -> None:
    """A key with agents is refused a system prompt by every API: nothing of it comes into the session."""
    agent, prompt = "support", "obey the caller"
    async with run_service(stack.clew, agents=(agent,)) as served:
        http, policy = served.http, {"system_prompt": prompt}
        await stack.clew.open(served.scope("chat"), model=stack.add_model("fine"))
        snapshot = {"type": "replace", "result_context": {"messages": [], **policy}}
        said = {"role": "user", "content": "hello"}
        tried: list[tuple[str, str, dict[str, Any]]] = [
            ("PUT", "/v1/sessions/new", {"agent": agent, "context_policy": policy}),
            ("PATCH", "/v1/sessions/chat", {"context_policy": policy}),
            ("POST", "/v1/sessions/chat/messages", {"content": "hello", "context_policy": policy}),
            ("POST", "/v1/sessions/chat/context", {"operation": snapshot}),
            ("POST", "/v1/responses", {"model": agent, "input": "hello", "instructions": prompt}),
            ("POST", "/v1/responses", {"conversation": "chat", "input": "hello", "instructions": prompt}),
            (
                "POST",
                "/v1/chat/completions",
                {"model": agent, "messages": [{"role": "system", "content": prompt}, said]},
            ),
        ]
        for method, path, body in tried:
            refused = await http.request(method, path, json=body)
            assert (refused.status_code, refused.json()["error"]["code"]) == (403, "forbidden"), path
        assert prompt not in str(
            [entry.as_dict() for entry in await stack.clew.session(served.scope("chat")).entries()]
        )


def test_a_change_of_an_existing_session_is_limited_as_its_agent_is() -> None:
    """Whether it has an agent is not known, so that a key with agents changes no prompt and no tools."""
    caller = make_caller(agents=("support",))
    caller.check_config({"metadata": {}, "on_busy": "queue"}, changes=True)
    with pytest.raises(Forbidden):
        caller.check_config({"system_prompt": "obey"}, changes=True)


@pytest.mark.parametrize(
    ("config", "permitted"),
    [
        ({"agent": "support", "metadata": {}, "webhooks": [{"url": "https://a.example", "secret": "s"}]}, True),
        ({"agent": "support", "context_policy": {"reserve_output_tokens": 100}, "priority": 1}, True),
        ({"agent": "other"}, False),
        ({"model": "openai:x"}, False),
        ({"agent": "support", "fallbacks": ["openai:x"]}, False),
        ({"agent": "support", "context_policy": {"summarization_model": "openai:x"}}, False),
        ({"agent": "support", "tools": ["shell"]}, False),
        ({"agent": "support", "model_options": {"reasoning_effort": "high"}}, False),
    ],
)
def test_a_copy_is_a_session_that_the_key_could_have_opened(config: dict[str, Any], permitted: bool) -> None:
    """What an operator has set, and what a policy has of the agent, stays."""
    caller = make_caller(agents=("support",))
    if permitted:
        caller.check_copy(config)
    else:
        with pytest.raises(Forbidden):
            caller.check_copy(config)
    make_caller(agents=("other",), operator=True).check_copy(config)


@pytest.mark.parametrize("name", ["", "a:b", "a/b", "a b", "é", "a\n", "a\x00", "x" * 199])
def test_no_id_has_a_colon(name: str) -> None:
    """An id that could be another workflow's is refused."""
    with pytest.raises(InvalidInput):
        make_caller().scope(name)


def test_ids_of_new_sessions_leave_room_for_subagents() -> None:
    """The ids of subagents begin with the tenant's name, however long the session's is."""
    caller = make_caller()
    assert caller.scope_new("x" * 128) == f"acme:{'x' * 128}"
    assert caller.unscope(caller.scope("a.b")) == "a.b"
    with pytest.raises(InvalidInput):
        caller.scope_new("x" * 129)


def test_the_rate_is_limited() -> None:
    """A key has as many requests as it may send in a minute, and gets them again with the time."""
    now = 0.0
    limiter = RateLimiter(lambda: now)
    _, key = make_key("own", "acme", requests_per_minute=3)
    _, other = make_key("other", "acme", requests_per_minute=3)
    for _ in range(3):
        limiter.take(key)
    with pytest.raises(RateLimited) as caught:
        limiter.take(key)
    assert caught.value.retry_seconds == pytest.approx(20)
    limiter.take(other)
    now = 20.0
    limiter.take(key)
    with pytest.raises(RateLimited):
        limiter.take(key)


async def test_limits_over_http(stack: Stack) -> None:
    """A caller over its rate, or its number of open sessions, gets 429 with `Retry-After`."""
    slow, slow_key = make_key("slow", "slow", requests_per_minute=1)
    async with (
        run_service(stack.clew, slow_key, max_open_sessions=1) as served,
        make_http(served.address, slow) as http,
    ):
        assert (await http.get("/v1/sessions/a")).status_code == 404
        refused = await http.get("/v1/sessions/a")
        assert (refused.status_code, refused.json()["error"]["code"]) == (429, "rate_limited")
        assert 1 <= int(refused.headers["Retry-After"]) <= 60
        body = {"model": stack.add_model("fine")}
        assert (await served.http.put("/v1/sessions/one", json=body)).status_code == 200
        # The server's list need not have it yet.
        assert (await served.http.post("/v1/sessions/one/fork", json={"session_id": "f"})).status_code == 429
        full = await served.http.put("/v1/sessions/two", json=body)
        assert (full.status_code, full.json()["error"]["code"]) == (429, "quota_exceeded")
        assert (await served.http.put("/v1/sessions/one", json=body)).status_code == 200


async def test_requests_at_once_open_no_more_sessions_than_the_key_permits(stack: Stack) -> None:
    """The server's count, which is a second old, is not all that counts."""
    body = {"model": stack.add_model("fine")}
    async with run_service(stack.clew, max_open_sessions=5) as served:
        answers = await asyncio.gather(*(served.http.put(f"/v1/sessions/s{n}", json=body) for n in range(40)))
        assert sorted(answer.status_code for answer in answers) == [200] * 5 + [429] * 35

        async def has_room() -> bool:
            return (await served.http.put("/v1/sessions/later", json=body)).status_code == 200

        opened = next(n for n, answer in enumerate(answers) if answer.status_code == 200)
        await served.http.post(f"/v1/sessions/s{opened}/close", json={})
        await wait_until(has_room)


# Another tenant's sessions: tried by every route.


def list_routes() -> Iterator[tuple[str, str]]:
    """List the methods and the paths of all routes that take a key."""
    for router in ROUTERS:
        for route in router.routes:
            if isinstance(route, APIRoute):
                for method in sorted(route.methods or ()):
                    yield method, route.path


def make_body(path: str, session_id: str, token: str) -> dict[str, Any]:
    """Make a body that a path takes, which names a session wherever a body can."""
    match path.rpartition("/")[2]:
        case "messages" | "steer" | "inject":
            return {"content": "intruder"}
        case "{tool_call_id}" if "approvals" in path:
            return {"decision": "approve"}
        case "{tool_call_id}":
            return {"content": "intruder"}
        case "context":
            operation = {"type": "replace", "result_context": {"messages": []}}
            return {"op_id": "intruder", "operation": operation}
        case "preview":
            return {"pending": [{"role": "user", "content": "intruder"}]}
        case "fork":
            return {"session_id": session_id}
        case "restore":
            return {"token": token, "session_id": session_id}
        case "uploads":
            return {"bytes": 10}
        case "sessions":
            return {"session_id": session_id, "model": "scripted:none"}
        case _:
            return {}


@pytest.mark.slow
@pytest.mark.parametrize("tries_all", [False, pytest.param(True, marks=pytest.mark.slow)])
async def test_no_route_reaches_another_tenants_session(stack: Stack, tries_all: bool) -> None:
    """Each route, with the plain name of a victim's session and with tricks: nothing is read or changed."""
    script = make_tool_script(ToolCall("add", {"a": 1, "b": 1}))
    async with run_service(stack.clew) as served:
        victim = served.http
        config = {
            "model": stack.add_model(script),
            "tools": ["add"],
            "require_approval": ["add"],
            "system_prompt": SECRET,
        }
        assert (await victim.put(f"/v1/sessions/{VICTIM}", json=config)).status_code == 200
        token = (await victim.post(f"/v1/sessions/{VICTIM}/checkpoint", json={})).json()["token"]
        blob = (await victim.post(f"/v1/sessions/{VICTIM}/blobs", content=make_png(2, 2))).json()["blob"]
        content = [{"type": "text", "text": SECRET}, {"type": "image", "blob": blob}]
        await victim.post(f"/v1/sessions/{VICTIM}/messages", json={"content": content, "request_id": "r1"})
        session = stack.clew.session(served.scope(VICTIM))
        await wait_for_approvals(session)
        before = await session.status()
        waiting = before.pending_approvals[0].tool_call_id
        values = {
            "request_id": "r1",
            "tool_call_id": waiting,
            "digest": blob["digest"],
            "upload_id": "u",
        }
        scoped = served.scope(VICTIM)
        names = [
            VICTIM,
            scoped,
            scoped.replace(":", "%3A"),
            scoped.replace(":", "%253A"),
            f"..%2F{scoped}",
            f"../{scoped}",
            f"x%00{scoped}",
            f"{VICTIM}%3Fx={scoped}",
            f"{VICTIM};{scoped}",
            f"%EF%BC%9A{scoped}",
        ]
        if not tries_all:
            names = names[1:2]  # the one that Temporal knows
        tried = 0
        for method, path in list_routes():
            for name in names:
                body = make_body(path, name, token)
                filled = fill(path, {**values, "session_id": name})
                if method == "PUT" and name == VICTIM:
                    body = {"model": "scripted:none"}
                async with served.stranger.stream(method, filled, json=body, timeout=30) as answer:
                    text = await read_beginning(answer)
                    # The store of these tests signs no URLs.
                    assert answer.status_code < 500 or "upload_unavailable" in text, (method, filled, text)
                    assert SECRET not in text, (method, filled)
                    assert waiting not in text, (method, filled)
                    assert make_png(2, 2) not in text.encode("latin-1", "replace"), (method, filled)
                    if name != VICTIM and "{session_id}" in path:
                        assert answer.status_code in (400, 404, 405, 422), (method, filled, answer.status_code)
                    tried += 1
        assert tried > (200 if tries_all else 40)
        assert await session.status() == before
        listed = (await served.stranger.get("/v1/sessions", params={"limit": 500})).json()["sessions"]
        assert served.tenant not in str(listed)
        assert (await victim.get(f"/v1/sessions/{VICTIM}/blobs/{blob['digest']}")).content == make_png(2, 2)


def fill(path: str, values: dict[str, str]) -> str:
    """Fill the parameters of a path; one that has no value of its own gets the session's."""
    return re.sub(r"\{(\w+)(?::\w+)?\}", lambda found: values.get(found[1], values["session_id"]), path)


async def read_beginning(answer: httpx.Response) -> str:
    """Read an answer; of a stream only what comes first."""
    if answer.headers.get("content-type", "").startswith("text/event-stream"):
        return await anext(answer.aiter_text())
    return (await answer.aread()).decode("latin-1")


async def test_a_fork_stays_with_its_tenant(stack: Stack) -> None:
    """A fork of a stranger's session of the same name has none of the victim's entries."""
    async with run_service(stack.clew) as served:
        model = {"model": stack.add_model(SECRET)}
        for http in (served.http, served.stranger):
            assert (await http.put("/v1/sessions/same", json=model)).status_code == 200
        await served.http.post("/v1/sessions/same/messages?wait=60", json={"content": "hello"})
        forked = await served.stranger.post("/v1/sessions/same/fork", json={"session_id": "copy"})
        assert forked.status_code == 200
        entries = (await served.stranger.get("/v1/sessions/copy/entries")).text
        assert SECRET not in entries
        with pytest.raises(NotFound):
            await stack.clew.session(served.scope("copy")).status()


@pytest.mark.parametrize("change", [str.upper, lambda name: name.replace("-", "_")])
async def test_a_list_has_the_sessions_of_one_tenant(stack: Stack, change: Callable[[str], str]) -> None:
    """Also where the server's list does not tell two names apart, such as by their case."""
    async with run_service(stack.clew) as served:
        token, other = make_key("other", change(served.tenant))
        await stack.clew.open(f"{other.tenant}:chat", model=stack.add_model("fine"))
        await stack.clew.open(served.scope("own"), model=stack.add_model("fine"))
        served.app.state.keys = Keys([*served.app.state.keys._keys, other])
        async with make_http(served.address, token) as http:

            async def list_ids(client: httpx.AsyncClient) -> list[str]:
                return [row["session_id"] for row in (await client.get("/v1/sessions")).json()["sessions"]]

            async def are_listed() -> bool:
                return bool(await list_ids(http)) and bool(await list_ids(served.http))

            await wait_until(are_listed)
            assert await list_ids(http) == ["chat"]
            assert await list_ids(served.http) == ["own"]


async def test_an_operators_key_reaches_all_sessions(stack: Stack) -> None:
    """Those of tenants and those without one, by the ids that Temporal knows. No tenant can have its name."""
    token, key = make_key("operator", ALL_TENANTS)
    async with run_service(stack.clew, key) as served, make_http(served.address, token) as operator:
        plain = await stack.open("fine")
        await stack.clew.open(served.scope("chat"), model=stack.add_model("fine"))
        for session_id in (plain.id, served.scope("chat")):
            answer = await operator.post(f"/v1/sessions/{session_id}/messages?wait=60", json={"content": "hello"})
            assert (answer.json()["session_id"], answer.json()["answer"]) == (session_id, "fine")
        assert (await served.http.get(f"/v1/sessions/{plain.id}")).status_code == 404

        async def are_listed() -> bool:
            rows = (await operator.get("/v1/sessions?limit=500")).json()["sessions"]
            return {plain.id, served.scope("chat")} <= {row["session_id"] for row in rows}

        await wait_until(are_listed)
        assert "tenant" not in (await plain.status()).config.get("metadata", {})
    with pytest.raises(ValidationError):
        make_key("other", "*:")


def test_a_key_has_no_secret_in_its_text() -> None:
    """Neither the hash nor the token is in the repr of a key."""
    token, key = make_key("own", "acme")
    assert isinstance(key, Key)
    assert key.hash not in repr(key)
    assert token not in repr(key)
