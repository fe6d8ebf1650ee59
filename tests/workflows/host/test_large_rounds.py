"""A round of tool calls that is larger than what a workflow run hands on or fetches at once."""

from __future__ import annotations

import io
from typing import Any

import pytest

from clew import Clew, Session
from clew.local import Reply, ToolCall
from clew_activities.archive import Archive
from clew_audit.audit import audit_session
from clew_audit.exports import export_session, import_session
from tests.support.rolling import list_runs, make_id
from tests.support.stack import Stack, get_last_message

CALLS = 64
CHARACTERS = 65_000
"""Characters of each result, just under the default `max_tool_result_bytes`."""


def call_read_page(number: int) -> ToolCall:
    """A call whose result compresses badly."""
    return ToolCall("read_page", {"number": number, "size": CHARACTERS})


def call_repeat(_number: int) -> ToolCall:
    """A call whose result has twice its size in JSON."""
    return ToolCall("repeat", {"text": "\n", "count": CHARACTERS})


async def check_answers(clew: Clew, session: Session, messages: int = 2) -> None:
    """The session answers messages, and its contexts are those that the whole thread gives."""
    for number in range(messages):
        assert await session.ask(f"hello {number}") == "fine"
    entries = await session.entries(kind="ai_message")
    recipes = [(entry.refs["call_id"], entry.recipe) for entry in entries if entry.recipe]
    for call_id, recipe in recipes[-messages:]:
        assert (await session.context(call_id=call_id)).meta.digest == recipe.digest


@pytest.mark.slow
@pytest.mark.parametrize("call", [call_read_page, call_repeat])
async def test_a_session_goes_on_after_a_round_of_many_large_results(stack: Stack, call: Any) -> None:
    """It answers after a rollover and a hibernation, is forked, exported, imported and audited."""
    clew, archive = stack.clew, Archive(stack.store, "default")

    def script(body: dict[str, Any]) -> Reply:
        asks = get_last_message(body)["content"] == "go"
        return Reply("", tool_calls=tuple(map(call, range(CALLS)))) if asks else Reply("fine")

    session = await clew.open(
        make_id(), model=stack.add_model(script), tools=["read_page", "repeat"], encoding="heuristic"
    )
    assert await session.ask("go") == "fine"
    await check_answers(clew, session)
    assert len(await list_runs(clew, session.id)) > 1
    assert (await audit_session(clew.temporal, archive, session.id)).clean

    await check_answers(clew, await session.fork())
    await session.hibernate()
    session = await clew.open(session.id)
    await check_answers(clew, session)

    file = io.BytesIO()
    await export_session(clew.temporal, archive, session.id, file)
    file.seek(0)
    new_id, _ = await import_session(clew.temporal, archive, file, session_id=make_id(), task_queue=clew.task_queue)
    await check_answers(clew, clew.session(new_id))
    for session_id in (session.id, new_id):
        assert (await audit_session(clew.temporal, archive, session_id)).clean
