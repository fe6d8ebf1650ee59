"""The demonstration runs to its end."""

import re

import pytest

from tests.support.processes import run_module


@pytest.mark.slow
async def test_the_demo_ends_by_itself_and_shows_an_answer_that_survived() -> None:
    """Conversation, tools and a killed worker within 90 seconds, exit status 0, and nothing of it missing."""
    status, shown = await run_module("examples.demo", seconds=90, env={"COLUMNS": "200"})
    assert status == 0, shown
    assert "tool     lookup_order" in shown
    assert "killed in the middle of its answer" in shown
    assert "(attempt 2, from the start)" in shown
    assert "4 requests, 4 outcomes, every message once." in shown
    assert re.search(r"Event history: \d+ events, \d+ bytes", shown)
    assert "/namespaces/default/workflows/demo" in shown
