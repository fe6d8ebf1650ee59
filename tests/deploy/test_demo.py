"""The demonstration shows what it promises."""

import os
import re
import sys
from asyncio import create_subprocess_exec, subprocess, timeout

from deploy.local.child import ROOT


async def test_the_demo_ends_by_itself_and_shows_an_answer_that_survived() -> None:
    """Conversation, tools and a killed worker within 90 seconds, exit status 0, and nothing of it missing."""
    async with timeout(90):
        demo = await create_subprocess_exec(
            *(sys.executable, "-m", "examples.demo"),
            cwd=ROOT,
            env={**os.environ, "COLUMNS": "200"},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )
        output, _ = await demo.communicate()
    shown = output.decode()
    assert demo.returncode == 0, shown
    assert "tool     lookup_order" in shown
    assert "dead in the middle of its answer" in shown
    assert "(attempt 2, from the start)" in shown
    assert "4 requests, 4 outcomes, every message once." in shown
    assert re.search(r"Event history: \d+ events, \d+ bytes", shown)
    assert "/namespaces/default/workflows/demo" in shown
