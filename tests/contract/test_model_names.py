"""A model that names no provider: every door refuses it in the same words."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import Any

import pytest

from clew import Agent, ContextPolicy
from clew.errors import InvalidInput
from clew.schedules import Schedules
from clew_workflows.contract.names import MODEL_NAME
from tests.support.command_line import run_clew
from tests.support.rolling import make_id
from tests.support.serving import run_service
from tests.support.stack import Stack

NAME = "gpt-4o"
CHANGES: tuple[dict[str, Any], ...] = (
    {"model": NAME},
    {"fallbacks": [NAME]},
    {"context_policy": {"summarization_model": NAME}},
)


@pytest.mark.parametrize("fields", CHANGES)
async def test_python(stack: Stack, fields: dict[str, Any]) -> None:
    """A session's configuration, its change, one message, a schedule and an agent."""
    session = await stack.open()
    schedules = Schedules(stack.clew)
    config: Any = {"model": "a:b", **fields}
    scheduled: Any = {"session_id": session.id, "every": timedelta(hours=1), "config": config}
    doors: list[Callable[[], Awaitable[Any]]] = [
        lambda: stack.clew.open(make_id(), **config),
        lambda: session.configure(**fields),
        lambda: session.ask("hello", **fields),
        lambda: schedules.create(make_id(), "tick", **scheduled),
    ]
    for door in doors:
        with pytest.raises(InvalidInput, match=MODEL_NAME.words):
            await door()
    with pytest.raises(TypeError, match=MODEL_NAME.words):
        Agent("kind", **config)
    if "context_policy" in fields:
        with pytest.raises(ValueError, match=MODEL_NAME.words):
            ContextPolicy(**fields["context_policy"])


@pytest.mark.parametrize("fields", CHANGES)
async def test_http(stack: Stack, fields: dict[str, Any]) -> None:
    """A new session, its change, and one message."""
    async with run_service(stack.clew) as served:
        path = f"/v1/sessions/{make_id()}"
        opened = await served.http.put(path, json={"model": stack.add_model("fine")})
        assert opened.is_success
        for method, where, body in (
            ("PUT", f"/v1/sessions/{make_id()}", {"model": "a:b", **fields}),
            ("POST", "/v1/sessions", {"model": "a:b", **fields}),
            ("PATCH", path, fields),
            ("POST", f"{path}/messages", {"content": "hello", **fields}),
        ):
            refused = await served.http.request(method, where, json=body)
            assert (refused.status_code, refused.json()["error"]["type"]) == (400, "invalid_input")
            assert MODEL_NAME.words in refused.json()["error"]["message"]


async def test_command_line(stack: Stack) -> None:
    """A new session, the change of one, and a schedule: one line, without a regular expression."""
    address, session = stack.server.address, await stack.open()
    for command in (
        ("ask", make_id(), "hello", "--model", NAME),
        ("ask", make_id(), "hello", "--model", "a:b", "--fallback", NAME),
        ("configure", session.id, "--model", NAME),
        ("schedule", "create", make_id(), "tick", "--every", "1h", "--model", NAME),
    ):
        # On a cluster the tests of each process have a queue of their own: another one has no worker.
        ended = await run_clew(*command, address=address, CLEW_TASK_QUEUE=stack.clew.task_queue)
        assert ended.code in (1, 2)
        assert MODEL_NAME.words in " ".join(ended.err.split()), ended
        assert "^" not in ended.err
