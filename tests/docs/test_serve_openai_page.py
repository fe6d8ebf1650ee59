"""The page about clients of the OpenAI API: they get answers of an agent."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from docs.generate import DOCS
from tests.support.llm_command import run_llm
from tests.support.npm import install_packages, run_node
from tests.support.page_code import list_blocks
from tests.support.processes import ROOT
from tests.support.serving_chats import run_shop
from tests.support.stack import Stack

PAGE = (DOCS / "serve-openai.md").read_text(encoding="utf-8")
ADDRESS = "http://localhost:8080"
PACKAGES = ROOT / "tests/clew/serve/openai/npm"
"""Pins the clients with their hashes."""


@pytest.mark.slow
async def test_the_clients_in_python(stack: Stack, capsys: pytest.CaptureFixture[str]) -> None:
    """The official client continues its conversation, and LangChain gets an answer."""
    async with run_shop(stack, "support") as served:
        for code in list_blocks("serve-openai.md", "python"):
            names: dict[str, Any] = {"key": served.token}
            compiled = compile(code.replace(ADDRESS, served.address), "serve-openai.md", "exec", dont_inherit=True)
            await asyncio.to_thread(exec, compiled, names)
    assert capsys.readouterr().out.splitlines() == [
        "You said Please cancel it.", "You said Where is my order 1234?",
    ]  # fmt: skip


@pytest.mark.slow
async def test_the_clients_in_typescript(stack: Stack, tmp_path: Path) -> None:
    """The official client and the AI SDK get answers. Skipped where npm cannot bring them."""
    install_packages(PACKAGES, tmp_path)
    (code,) = list_blocks("serve-openai.md", "ts")
    async with run_shop(stack, "support") as served:
        program = f'const key = "{served.token}";\n{code}\nconsole.log(response.output_text);\nconsole.log(text);\n'
        (tmp_path / "page.mts").write_text(program.replace(ADDRESS, served.address))
        printed = await run_node("--experimental-strip-types", "--no-warnings", tmp_path / "page.mts")
    assert printed.splitlines() == ["You said Where is it?"] * 2


@pytest.mark.slow
@pytest.mark.parametrize("more", ["", "  responses: true\n"], ids=["chat", "responses"])
async def test_llm_reads_the_file(stack: Stack, tmp_path: Path, more: str) -> None:
    """The command `llm` asks the agent that the page's file names, through both APIs."""
    (lines,) = list_blocks("serve-openai.md", "yaml")
    async with run_shop(stack, "support") as served:
        (tmp_path / "extra-openai-models.yaml").write_text(lines.replace(ADDRESS, served.address) + more)
        assert await run_llm(tmp_path, served.token, "-m", "support", "Where is it?") == "You said Where is it?"
