"""LangChain's standard tests of chat models, over both APIs of `clew serve`."""

from __future__ import annotations

from pathlib import Path
from xml.etree import ElementTree

import pytest

from tests.support.client_suites import PROGRAMS, run_program
from tests.support.serving import run_service
from tests.support.simulated_model import simulate
from tests.support.stack import Stack

SECONDS = 400
"""Time for the suite, which takes over a minute of a processor, on a busy machine."""
INAPPLICABLE = {
    "test_pdf_inputs": "the test fetches a file from the network",
    "test_audio_inputs": "the test fetches a file from the network",
    "test_image_inputs": "the test fetches a file from the network",
    "test_image_tool_message": "the test fetches a file from the network",
    "test_pdf_tool_message": "the test fetches a file from the network",
    "test_anthropic_inputs": "the parts are those of another vendor's API",
    "test_stream_time": "it needs a recording of the suite's own",
}
"""What does not apply, in both APIs, and why."""


@pytest.mark.slow
async def test_langchains_standard_tests(stack: Stack, tmp_path: Path) -> None:
    """All that apply pass, over Chat Completions and over Responses."""
    report = tmp_path / "report.xml"
    model, other = stack.add_model(simulate), stack.add_model(simulate)
    async with run_service(stack.clew) as served:
        environ = {
            "BASE_URL": f"{served.address}/v1",
            "API_KEY": served.token,
            "MODEL": model,
            "OTHER_MODEL": other,
        }
        _, printed = await run_program(
            "-m", "pytest", PROGRAMS / "langchain_standard.py",
            "-q", "--noconftest", "-p", "no:cacheprovider", "-o", "asyncio_mode=auto",
            "-o", "asyncio_default_fixture_loop_scope=session", "-o", "asyncio_default_test_loop_scope=session",
            "-c", "/dev/null",
            f"--rootdir={tmp_path}", f"--junitxml={report}", "--tb=short",
            environ=environ, seconds=SECONDS,
        )  # fmt: skip
    assert report.exists(), printed[-5000:]
    outcomes: dict[str, set[str]] = {}
    for case in ElementTree.parse(report).getroot().iter("testcase"):
        outcome = next((child.tag for child in case if child.tag in ("failure", "error", "skipped")), "passed")
        outcomes.setdefault(str(case.get("name")).partition("[")[0], set()).add(outcome)
    assert len(outcomes) > len(INAPPLICABLE), printed[-5000:]
    failed = {name for name, seen in outcomes.items() if seen & {"failure", "error"}}
    assert not failed - INAPPLICABLE.keys(), printed[-8000:]
    not_run = {name for name, seen in outcomes.items() if "passed" not in seen}
    assert not_run == INAPPLICABLE.keys(), "what is listed does not pass, and nothing else is skipped"
