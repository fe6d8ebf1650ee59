"""`clew compare` on the command line."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from clew import Clew, ContextPolicy, Session
from clew.local import Reply, ToolCall
from tests.support.command_line import hide_worker_extra, open_terminal
from tests.support.command_line import run_clew as command
from tests.support.rolling import make_id
from tests.support.stack import Stack, get_last_message

NARROW: dict[str, Any] = {"max_input_tokens": 500, "reserve_output_tokens": 100, "keep_last_turns": 1}
CLEARING: dict[str, Any] = {"clear_tool_results": {"keep": 1}}


def script(body: dict[str, Any]) -> Reply:
    """A model that calls the tool `flood` for each request."""
    if get_last_message(body)["role"] == "user":
        return Reply(tool_calls=(ToolCall("flood", {"size": 600}),))
    return Reply("That was a lot. " * 5)


@pytest.fixture(scope="module")
async def session(stack: Stack, clew: Clew) -> Session:
    """A session of a dozen turns, with a tool."""
    policy = ContextPolicy(window="epoch", max_input_tokens=1500, reserve_output_tokens=200)
    session = await clew.open(make_id(), model=stack.add_model(script), tools=["flood"], context_policy=policy)
    for turn in range(12):
        await session.ask(f"turn {turn}")
    return session


def policy(folder: Path, named: str, value: Any) -> str:
    """Write a policy to a file and return its path."""
    file = folder / f"{named}.json"
    file.write_text(value if isinstance(value, str) else json.dumps(value))
    return str(file)


@pytest.mark.slow
async def test_a_session_under_other_policies(stack: Stack, session: Session, tmp_path: Path) -> None:
    """The session's own tokens are the recorded ones, each policy has its own; archived calls are included."""
    files = [policy(tmp_path, "narrow", NARROW), policy(tmp_path, "clearing", CLEARING)]
    options = [word for file in files for word in ("--policy", file)]
    ended = await command("compare", session.id, *options, "--json", address=stack.server.address)
    assert ended.code == 0, ended.err
    as_it_was, narrow, clearing = ended.json["trials"]
    assert [trial["name"] for trial in ended.json["trials"]] == ["as it was", "narrow", "clearing"]
    assert ended.json["session_id"] == session.id
    replies = [entry for entry in await session.entries() if entry.payload.get("role") == "assistant"]
    recipes = [entry.payload["recipe"] for entry in replies]
    assert {trial["calls"] for trial in ended.json["trials"]} == {len(recipes)} == {24}
    assert as_it_was["input_tokens"] == sum(recipe["input_tokens"] for recipe in recipes)
    assert as_it_was["reported"]["input_tokens"] == sum(recipe["usage"]["input_tokens"] for recipe in recipes)
    assert as_it_was["cached_tokens"] >= sum(recipe["shared_prefix_tokens"] for recipe in recipes) > 0
    assert narrow["policy"] == NARROW
    assert narrow["input_tokens"] < as_it_was["input_tokens"]
    assert narrow["cached_tokens"] < as_it_was["cached_tokens"]
    assert clearing["cleared"] > 0
    assert clearing["input_tokens"] < as_it_was["input_tokens"]


async def test_the_prices_of_another_model(stack: Stack, session: Session) -> None:
    """`--model` uses the worker's list prices; without it the calls have no price and no cost."""
    own = await command("compare", session.id, "--json", address=stack.server.address)
    other = await command("compare", session.id, "--model", "openai:gpt-4o", "--json", address=stack.server.address)
    (as_it_was,), (priced,) = own.json["trials"], other.json["trials"]
    assert "cost_usd" not in as_it_was
    assert min(priced["cost_usd"], priced["reported"]["cost_usd"]) > 0
    assert priced["input_tokens"] == as_it_was["input_tokens"]


async def test_a_table_of_it(stack: Stack, session: Session, tmp_path: Path) -> None:
    """One row per number, one column per policy; separated by tabs in a pipe."""
    file = policy(tmp_path, "narrow", NARROW)
    piped = await command("compare", session.id, "--policy", file, address=stack.server.address)
    rows = [line.split("\t") for line in piped.out.splitlines()]
    assert rows[0] == ["", "as it was", "narrow"]
    assert rows[1] == ["model calls", "24", "24"]
    assert {len(row) for row in rows} == {3}
    async with open_terminal("compare", session.id, "--policy", file, address=stack.server.address) as screen:
        assert await screen.wait_for_end() == 0
        for title in (
            "as it was",
            "narrow",
            "predicted cached share",
            "messages left out, mean",
            "context overflows",
        ):
            assert title in screen.screen


async def test_an_exported_session_is_compared_without_a_server(
    stack: Stack, session: Session, folder: Path, tmp_path: Path
) -> None:
    """The numbers are the same; an incomplete file is refused."""
    file, export = policy(tmp_path, "narrow", NARROW), tmp_path / "thread"
    store = {"CLEW_STORE": str(folder)}
    exported = await command("export", session.id, str(export), address=stack.server.address, **store)
    assert exported.code == 0
    options = ("--policy", file, "--json")
    online = await command("compare", session.id, *options, address=stack.server.address)
    offline = await command("compare", "--from-file", str(export), *options, address="127.0.0.1:1")
    assert offline.json["trials"] == online.json["trials"]
    export.write_bytes(export.read_bytes()[:-20])
    damaged = await command("compare", "--from-file", str(export), *options)
    assert (damaged.code, damaged.json["error"]["type"]) == (1, "file_damaged")


@pytest.mark.parametrize(
    ("content", "code", "says"),
    [
        ('{"max_tokens": 5}', 1, "invalid_input: {file} is not a context policy: max_tokens: there is no"),
        ('{"max_input_tokens": "8000"}', 1, "invalid_input: {file} is not a context policy: max_input_tokens: "),
        ("[1]", 1, "invalid_input: {file} is not a context policy: Input should be"),
        ("{", 1, "invalid_input: {file} is not a context policy: Invalid JSON"),
        ("\ud800", 1, "invalid_input: {file} is not a context policy: Invalid JSON"),
        (None, 2, "misconfigured: {file}: No such file"),
    ],
)
async def test_a_bad_file_is_refused_before_anything(
    tmp_path: Path, content: str | None, code: int, says: str
) -> None:
    """The error names the file and the problem; no server is asked."""
    file = tmp_path / "other.json"
    if content is not None:
        file.write_bytes(content.encode(errors="surrogatepass"))
    ended = await command("compare", "some-session", "--policy", str(file), address="127.0.0.1:1")
    assert ended.code == code
    assert ended.err.startswith(says.format(file=file))


async def test_a_policy_that_does_not_go_with_the_sessions_is_named(
    stack: Stack, session: Session, tmp_path: Path
) -> None:
    """A valid policy that leaves no budget together with the session's is refused by its name."""
    file = policy(tmp_path, "tiny", {"max_input_tokens": 100})
    ended = await command("compare", session.id, "--policy", file, "--json", address=stack.server.address)
    assert (ended.code, ended.json["error"]["type"]) == (1, "invalid_token_budget")
    assert ended.json["error"]["message"].startswith("policy tiny: ")


@pytest.mark.parametrize("arguments", [(), ("s-1", "--from-file", "x"), ("s-1", "--model", "gpt-4o")])
async def test_what_cannot_be_meant_is_refused(arguments: tuple[str, ...]) -> None:
    """Exit code 2 for neither session nor file, for both, and for a model without a provider."""
    assert (await command("compare", *arguments)).code == 2


@pytest.mark.slow
async def test_it_works_without_the_extra_worker(stack: Stack, session: Session, tmp_path: Path) -> None:
    """Comparing a session needs the client only; exported files and list prices need the extra."""
    file = policy(tmp_path, "narrow", NARROW)
    light = hide_worker_extra(tmp_path)
    ended = await command("compare", session.id, "--policy", file, "--json", address=stack.server.address, **light)
    assert (ended.code, ended.json["trials"][0]["calls"]) == (0, 24)
    priced = ("compare", session.id, "--model", "openai:gpt-4o")
    for arguments in (("compare", "--from-file", file), priced):
        refused = await command(*arguments, address=stack.server.address, **light)
        assert (refused.code, "pip install 'clew[worker]'" in refused.err) == (2, True)
