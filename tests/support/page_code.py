"""The Python of a page, run as it stands: blocks with `await` outside of a function, too."""

from __future__ import annotations

import ast
import inspect
import re
import textwrap
from typing import Any

from docs.generate import DOCS


def list_blocks(page: str, language: str = "python") -> list[str]:
    """List the code blocks of a page in a language, also those within lists; "": those that name no language."""
    text = (DOCS / page).read_text(encoding="utf-8")
    blocks = re.findall(r"^( *)```(\w*)\n(.*?)^\1```$", text, re.MULTILINE | re.DOTALL)
    return [textwrap.dedent(code) for _, named, code in blocks if named == language]


def find_block(page: str, containing: str, language: str = "python") -> str:
    """Find the one code block of a page that contains a text."""
    (block,) = [block for block in list_blocks(page, language) if containing in block]
    return block


async def run_block(code: str, names: dict[str, Any]) -> dict[str, Any]:
    """Run a block with these names, and return them with what it has defined."""
    compiled = compile(code, "page", "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT, dont_inherit=True)
    running = eval(compiled, names)
    if inspect.isawaitable(running):
        await running
    return names
