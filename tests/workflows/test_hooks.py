"""Hooks of a worker, called by its sessions: messages, tool calls and answers pass only if they accept them."""

from __future__ import annotations

import uuid
from collections.abc import AsyncIterator

import pytest

from clew import Clew, RequestFailed
from clew.local import Reply, ToolCall
from clew_activities.tools.run_hooks import HooksUnusable, load_hooks
from tests.support import guards, toolbox
from tests.support.scripts import list_kinds, make_tool_script
from tests.support.stack import Stack, make_client, run_deployment, serve


@pytest.fixture
async def guarded(stack: Stack) -> AsyncIterator[Clew]:
    """A client of a task queue whose worker has hooks."""
    async with serve(make_client(stack), stack.environ, hooks=load_hooks([guards.__name__])) as clew:
        yield clew


async def test_what_a_hook_refuses_goes_no_further(stack: Stack, guarded: Clew) -> None:
    """A refused message reaches no model, a refused call no tool; of a refused answer the caller reads the reason."""
    script = make_tool_script(ToolCall("add", {"a": 1000, "b": 1}), ToolCall("add", {"a": 1, "b": 1}))
    session = await guarded.open(f"hooks-{uuid.uuid4().hex}", model=stack.add_model(script), tools=["add"])
    with pytest.raises(RequestFailed, match="message is rude") as caught:
        await session.ask("a rude word")
    assert caught.value.outcome.termination_reason == "refused_by_hook"
    assert await list_kinds(session) == ["config", "input", "error", "run"]
    assert stack.list_requests((await session.status()).model) == []
    assert await session.ask("add them") == "refused: too large | 2"
    await session.configure(model=stack.add_model(lambda _body: Reply("the secret is 7")))
    with pytest.raises(RequestFailed, match="it has a secret") as caught:
        await session.ask("tell me")
    assert caught.value.outcome.answer_seq is None


@pytest.mark.slow
async def test_a_hook_that_fails_lets_nothing_pass(stack: Stack, guarded: Clew) -> None:
    """It is called three times."""
    session = await guarded.open(f"hooks-{uuid.uuid4().hex}", model=stack.add_model("fine"))
    with pytest.raises(RequestFailed, match="refuse_rude") as caught:
        await session.ask("broken")
    error = caught.value.outcome.error
    assert error
    assert (error.type, error.retryable) == ("hook_failed", True)
    assert await session.ask("hello") == "fine"


async def test_hooks_that_come_while_a_session_is_idle_check_its_next_message(stack: Stack) -> None:
    """No model sees what they refuse: neither the request's own call, nor a later one, nor a summary."""
    clew, model = make_client(stack), stack.add_model("fine")
    async with run_deployment(stack, clew):
        session = await clew.open(f"hooks-{uuid.uuid4().hex}", model=model)
        assert await session.ask("hello") == "fine"
    async with run_deployment(stack, clew, hooks=load_hooks([guards.__name__])):
        with pytest.raises(RequestFailed, match="message is rude") as caught:
            await session.ask("a rude word")
        assert caught.value.outcome.termination_reason == "refused_by_hook"
        assert len(stack.list_requests(model)) == 1
        assert await list_kinds(session) == [
            "config", "user", "assistant", "run", "user", "error", "ai_context_operation", "run",
        ]  # fmt: skip
        assert await session.ask("again") == "fine"
        await session.summarize(to_seq=9)
        assert await session.ask("and again") == "fine"
        bodies = stack.list_requests(model)
        assert len(bodies) == 4
        assert "rude" not in str(bodies)
        assert "again" in str(bodies[2])


def test_a_module_without_hooks_is_refused() -> None:
    with pytest.raises(HooksUnusable, match=r"'tests.support.toolbox' defines no hook"):
        load_hooks([toolbox.__name__])
    with pytest.raises(HooksUnusable, match="cannot be imported"):
        load_hooks(["tests.nowhere"])
