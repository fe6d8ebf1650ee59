"""The pytest plugin, and the test that the page about testing shows, run by pytest in a process of its own."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.page_code import find_block

SETTINGS = """
[pytest]
filterwarnings = error
asyncio_default_fixture_loop_scope = function
"""


def run_pytest(folder: Path, source: str, *options: str) -> str:
    """Run a test module with warnings as errors, and return pytest's output."""
    (folder / "test_of_a_user.py").write_text(source)
    (folder / "pytest.ini").write_text(SETTINGS)
    ran = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", *options],
        cwd=folder,
        env={name: value for name, value in os.environ.items() if not name.startswith("PYTEST")},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    return ran.stdout + ran.stderr


@pytest.mark.slow
def test_the_pages_example_passes(tmp_path: Path) -> None:
    """A tool, an approval after a month and a worker's death, as a user copies them."""
    code = find_block("testing.md", "def test_a_refund_waits_for_a_person")
    output = run_pytest(tmp_path, code, "-o", "asyncio_mode=auto")
    assert "1 passed" in output, output


SHOP = '''
import pytest

from clew import tool


@tool
def refund(order: str) -> str:
    """Refund an order."""
    return f"refunded {order}"


'''
CALLING = """


async def test_the_stack_has_the_tools(clew_session):
    from clew.testing import Reply, ToolCall

    session = await clew_session([Reply(tool_calls=[ToolCall("refund", {"order": "7"})]), "Done."], tools=["refund"])
    assert await session.ask("Refund order 7.") == "Done."
"""


@pytest.mark.slow
def test_the_pages_fixtures(tmp_path: Path) -> None:
    """The page's `conftest.py` gives the stack its tool, and its test passes."""
    conftest, test = find_block("testing.md", "# conftest.py").split("# test_refunds.py\n")
    (tmp_path / "conftest.py").write_text(SHOP + conftest)
    output = run_pytest(tmp_path, test + CALLING, "-o", "asyncio_mode=auto")
    assert "2 passed" in output, output


USING = """
import sys
import pytest

pytestmark = pytest.mark.asyncio


async def test_a_session_answers(clew_session):
    assert await (await clew_session("fine")).ask("hello") == "fine"


async def test_another_loop_uses_the_same_stack(clew_session, clew_stack):
    session = await clew_session("fine")
    await session.ask("how are you?")
    assert (await clew_stack.read(session)).final_answer == "bad"
"""


@pytest.mark.slow
def test_a_failed_test_shows_the_threads_of_its_sessions(tmp_path: Path) -> None:
    """The fixtures work in pytest-asyncio's strict mode, with an event loop for each test."""
    output = run_pytest(tmp_path, USING, "-o", "asyncio_mode=strict")
    assert "1 failed, 1 passed" in output
    assert re.search(r"thread of <session .*user: how are you\?.*assistant: fine", output, re.DOTALL)
    assert "user: hello" not in output


UNUSED = """
import sys


def test_nothing_is_imported():
    assert not {name for name in sys.modules if name.partition(".")[0] in ("clew", "temporalio", "pydantic")}
"""


@pytest.mark.slow
def test_the_plugin_imports_nothing_before_it_is_used(tmp_path: Path) -> None:
    """Other projects' tests in the same environment do not pay for it."""
    # This plugin of another package is in the environment of the tests, and imports pydantic.
    output = run_pytest(tmp_path, UNUSED, "-p", "no:langsmith_plugin")
    assert "1 passed" in output, output
