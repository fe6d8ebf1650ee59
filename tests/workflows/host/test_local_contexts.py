"""Local contexts: each is taken once, by the call that it was built for."""

from __future__ import annotations

from typing import Any

import pytest

from clew.local import Reply, ToolCall
from clew_activities.archive import thread_source
from clew_activities.model import call_model
from clew_workflows.host.runtime import LOCAL_CONTEXTS, LocalContexts
from tests.support.session_harness import SessionHarness
from tests.support.stack import Stack, get_last_message


def make_session(content: str = "hello") -> SessionHarness:
    session = SessionHarness()
    session.ask(content)
    return session


def test_a_context_is_taken_once() -> None:
    """The second attempt of a call finds nothing and asks the session."""
    contexts, session = LocalContexts(), make_session()
    context = session.build_context(session.call)
    contexts.post("run", session.call, context)
    assert contexts.take("run", session.call) is context
    assert contexts.take("run", session.call) is None


def test_no_call_takes_the_context_of_another() -> None:
    """Another workflow run has calls of the same ids; after a change of configuration a call is made again."""
    contexts, session = LocalContexts(), make_session()
    contexts.post("run", session.call, session.build_context(session.call))
    assert contexts.take("other run", session.call) is None
    assert contexts.take("run", session.call.model_copy(update={"at_seq": session.call.at_seq + 1})) is None
    assert contexts.take("run", session.call) is None, "what was posted for another call is of no use to any"


def test_the_newest_context_of_a_call_counts() -> None:
    """A call that is made again is given the context that was posted for it then."""
    contexts, session = LocalContexts(), make_session()
    contexts.post("run", session.call, session.build_context(session.call))
    again = session.call.model_copy(update={"model": "scripted:other"})
    context = session.build_context(session.call)
    contexts.post("run", again, context)
    assert contexts.take("run", again) is context


def test_contexts_have_a_limited_number_of_tokens() -> None:
    """Contexts that no call takes are dropped for newer ones."""
    session = make_session()
    context = session.build_context(session.call)
    contexts = LocalContexts(max_tokens=2 * context.meta.estimated_tokens)
    for run in ("first", "second", "third"):
        contexts.post(run, session.call, context)
    assert [contexts.take(run, session.call) for run in ("first", "second", "third")] == [None, context, context]
    for run in ("fourth", "fifth"):
        contexts.post(run, session.call, context)
    assert [contexts.take(run, session.call) for run in ("fourth", "fifth")] == [context, context], (
        "taken contexts do not count"
    )


def script(body: dict[str, Any]) -> Reply:
    """Use a tool, then answer."""
    if get_last_message(body)["role"] == "tool":
        return Reply("5")
    return Reply(tool_calls=(ToolCall("add", {"a": 2, "b": 3}),))


@pytest.mark.parametrize("shares_process", [True, False])
async def test_a_call_sends_the_same_context_from_the_process_and_by_query(
    stack: Stack, monkeypatch: pytest.MonkeyPatch, shares_process: bool
) -> None:
    """On one worker no call queries its session; where it runs elsewhere, each does, for the same context."""
    queried: list[str] = []
    ask = thread_source.query_session

    async def query_session(session: Any, query: str, arguments: dict[str, Any]) -> dict[str, Any]:
        queried.append(session.id)
        return await ask(session, query, arguments)

    monkeypatch.setattr(call_model, "query_session", query_session)
    monkeypatch.setattr(LOCAL_CONTEXTS, "is_open", shares_process)
    session = await stack.open(script, tools=["add"], system_prompt="Add.")
    assert await session.ask("2 and 3?") == "5"
    assert queried.count(session.id) == (0 if shares_process else 2)
    replies = [entry for entry in await session.entries() if entry.recipe]
    contexts = [await session.context(call_id=str(entry.refs["call_id"])) for entry in replies]
    assert [entry.recipe and entry.recipe.digest for entry in replies] == [
        context.meta.digest for context in contexts
    ]
