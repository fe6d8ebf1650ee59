"""A pytest plugin with fixtures for `clew.testing`. pytest loads it by its entry point, if Clew is installed.

Its module imports nothing of Clew before a test uses a fixture. The fixtures are sync, so that they work with
pytest-asyncio in each of its modes, with other plugins for async tests, and without any.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Generator, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from clew import Session
    from clew.agents import Agent
    from clew.testing import Stack
    from clew.tools import ToolDefinition

READ_SECONDS = 5.0
"""Seconds for reading the threads of a failed test."""

_opened = pytest.StashKey["tuple[Stack, list[Session]]"]()


@pytest.fixture(scope="session")
def clew_tools() -> Sequence[ToolDefinition]:
    """The tools of `clew_stack`: override this fixture in your conftest.py."""
    return ()


@pytest.fixture(scope="session")
def clew_agents() -> Sequence[Agent]:
    """The agents of `clew_stack`: override this fixture in your conftest.py."""
    return ()


@pytest.fixture(scope="session")
def clew_stack(clew_tools: Sequence[ToolDefinition], clew_agents: Sequence[Agent]) -> Iterator[Stack]:
    """Run the stack that all tests of the process share: a Temporal server, a worker, scripted models."""
    from clew import testing  # noqa: PLC0415 - only tests that use it pay for the import

    with testing.stack(tools=clew_tools, agents=clew_agents) as stack:
        yield stack


@pytest.fixture
def clew_session(request: pytest.FixtureRequest, clew_stack: Stack) -> Callable[..., Awaitable[Session]]:
    """A function that opens sessions, with the arguments of `Stack.open`. A failed test shows their threads."""
    sessions: list[Session] = []
    request.node.stash[_opened] = clew_stack, sessions

    async def open_session(script: Any = None, session_id: str | None = None, **options: Any) -> Session:
        session = await clew_stack.open(script, session_id, **options)
        sessions.append(session)
        return session

    return open_session


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, object, object]:
    """Fail a test in which a model was called that nobody has scripted."""
    result = yield
    if (stack := getattr(item, "funcargs", {}).get("clew_stack")) is not None:
        stack.check()
    return result


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Add the threads of the test's sessions to the report of a failure."""
    report = yield
    if report.when == "call" and report.failed and _opened in item.stash:
        stack, sessions = item.stash[_opened]
        for session in sessions:
            report.sections.append((f"thread of {session!r}", stack.render(session, READ_SECONDS)))
    return report
