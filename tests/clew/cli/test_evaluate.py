"""`clew evaluate` on the command line."""

from __future__ import annotations

from pathlib import Path

import pytest

from clew.local import Reply
from tests.support import evaluated_agents
from tests.support.command_line import CommandResult, run_clew
from tests.support.stack import Stack


@pytest.fixture(scope="module")
async def export(stack: Stack, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Export a session of two turns."""
    folder = tmp_path_factory.mktemp("evaluated")
    session = await stack.open(lambda body: Reply(f"I read {len(body['messages'])}"))
    for text in ("one", "two"):
        await session.ask(text)
    file = folder / "session.jsonl"
    ended = await run_clew(
        "export", session.id, str(file), address=stack.server.address, CLEW_STORE=str(folder / "store")
    )
    assert ended.code == 0, ended.err
    return file


async def run_evaluate(stack: Stack, export: Path, *options: str) -> CommandResult:
    return await run_clew(
        *("evaluate", str(export), "--agents", evaluated_agents.__name__, *options),
        CLEW_PROVIDER_SCRIPTED_BASE_URL=stack.provider.base_url,
    )


async def test_the_replies_are_compared(stack: Stack, export: Path) -> None:
    """Each model call in a line where it is the same, in two where it differs; then the sums."""
    model = stack.add_model(
        lambda body: Reply("I read 1" if len(body["messages"]) == 2 else body["messages"][0]["content"])
    )
    ended = await run_evaluate(stack, export, "--agent", "terse", "--model", model)
    assert ended.code == 0, ended.err
    same, was, now, total, *_ = ended.out.splitlines()
    assert same.endswith("same: I read 1")
    assert (was.partition("  ")[2], now.partition("  ")[2]) == ("was: I read 3", "now: Be terse.")
    assert total == "2 model calls: 1 with the same text, 2 with the same tool calls, 0 without a reply"
    document = (await run_evaluate(stack, export, "--agent", "kind", "--model", model, "--json")).json
    assert (document["agent"], document["same_text"]) == ("kind", 1)


async def test_an_agent_or_a_model_that_is_not_there_is_refused(stack: Stack, export: Path) -> None:
    """One line names what is defined."""
    for options, problem in (
        (["--agent", "other"], "no agent 'other': the modules define terse, kind"),
        ([], "name an agent: the modules define terse, kind"),
        (["--agent", "kind", "--model", "absent:m"], "no provider 'absent' on this worker"),
    ):
        ended = await run_evaluate(stack, export, *options)
        assert ended.code == 1
        assert problem in ended.err
