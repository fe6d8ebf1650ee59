"""Agent packages, unchanged, as clients of `clew serve`: their tool loops end, and each step has its own settings."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.support.client_suites import PROGRAMS, run_program
from tests.support.serving import run_service
from tests.support.simulated_model import STORY, simulate
from tests.support.stack import Stack

SECONDS = 60
CASES: list[tuple[str, str, dict[str, Any]]] = [
    (
        "agents_sdk",
        api,
        {"answer": STORY, "calls": ["Porto", "Lima"], "last_agent": "sales", "handed": STORY, "streamed": STORY},
    )
    for api in ("responses", "chat")
]
CASES += [
    ("pydantic_ai_agent", api, {"answer": STORY, "calls": ["Porto"], "city": "Porto"})
    for api in ("responses", "chat")
]
CASES += [
    ("litellm_client", "chat", {"answer": STORY, "streamed": STORY, "told": STORY}),
    ("instructor_client", "chat", {"TOOLS": "Porto", "JSON_SCHEMA": "Porto"}),
]
IN_THE_GATE = [("agents_sdk", "responses"), ("pydantic_ai_agent", "chat"), ("instructor_client", "chat")]


def list_cases() -> list[Any]:
    """List the cases. The gate has some: each takes a process with its package."""
    return [
        pytest.param(
            *(name, api, expected),
            id=f"{name}-{api}",
            marks=[pytest.mark.slow] if (name, api) in IN_THE_GATE else [pytest.mark.slow, pytest.mark.long],
        )
        for name, api, expected in CASES
    ]


@pytest.mark.parametrize(("package", "api", "expected"), list_cases())
async def test_a_package_runs_its_tool_loop(stack: Stack, package: str, api: str, expected: dict[str, Any]) -> None:
    """It has a base URL and a key, and nothing else."""
    model = stack.add_model(simulate)
    async with run_service(stack.clew) as served:
        environ = {"BASE_URL": f"{served.address}/v1", "API_KEY": served.token, "MODEL": model}
        status, printed = await run_program(PROGRAMS / f"{package}.py", api, environ=environ, seconds=SECONDS)
    assert status == 0, printed[-4000:]
    assert json.loads(printed.splitlines()[-1]) == expected
    prompts = [body["messages"][0]["content"] for body in stack.list_requests(model)]
    if package == "agents_sdk":
        assert {"You tell the weather.", "You route.", "You sell."} == set(prompts)
