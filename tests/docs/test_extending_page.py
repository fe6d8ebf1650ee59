"""The page about extensions: its projector makes the contexts of a session. `test_own_encoding` has its tokenizer."""

from __future__ import annotations

import re

from clew.testing import stack
from docs.generate import DOCS


async def test_the_projector_leaves_greetings_out() -> None:
    """The model reads the question, and not the greeting before it."""
    page = (DOCS / "extending.md").read_text(encoding="utf-8")
    section = page.partition("\n## Add a projector\n")[2].partition("\n## ")[0]
    (code,) = re.findall(r"^```python\n(.*?)^```$", section, re.DOTALL | re.MULTILINE)
    exec(code, {})
    async with stack() as running:
        policy = {"projector": "without_greetings"}
        session = await running.open(["Hi!", "It is shipped."], system_prompt="You help.", context_policy=policy)
        await session.ask("hello")
        await session.ask("Where is my order?")
        model = (await session.status()).model
        seen = [message["content"] for message in running.requests(model)[-1].messages]
        assert seen == ["You help.", "Hi!", "Where is my order?"]
