"""The page about the MCP server: its client calls an agent."""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Awaitable
from typing import Any, cast

import pytest

from docs.generate import DOCS
from tests.support.serving_chats import run_shop
from tests.support.stack import Stack

PAGE = (DOCS / "mcp-server.md").read_text(encoding="utf-8")


async def test_the_client_calls_an_agent(stack: Stack, capsys: pytest.CaptureFixture[str]) -> None:
    """With an address and a key it prints the agent's answer."""
    (code,) = re.findall(r"^```python\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
    async with run_shop(stack, "travel") as served:
        code = code.replace("https://clew.example.com", served.address)
        compiled = compile(code, "mcp-server.md", "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT, dont_inherit=True)
        names: dict[str, Any] = {"key": served.token}
        running = eval(compiled, names)
        assert inspect.iscoroutine(running)
        await cast("Awaitable[None]", running)
    assert capsys.readouterr().out.splitlines() == ["You said Where is it warm in March?"]
