"""The page about requests: its code reads a recipe, and the tries that it names are the code's."""

from __future__ import annotations

import re
import textwrap
from typing import Any

from clew.testing import stack
from clew_activities.providers.refused_parts import MAX_TRIES
from docs.generate import DOCS

PAGE = (DOCS / "requests.md").read_text(encoding="utf-8")


async def test_the_code_reads_the_recipe() -> None:
    (block,) = re.findall(r"^```python\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
    names: dict[str, Any] = {}
    exec(f"async def run(session):\n{textwrap.indent(block, '    ')}\n    return recipe", names)
    async with stack() as running:
        recipe = await names["run"](await running.open("fine"))
    assert recipe.attempt == 1
    assert re.fullmatch("[0-9a-f]{64}", recipe.request.digest)


def test_a_refused_item_is_looked_for_as_often_as_the_page_says() -> None:
    assert MAX_TRIES == 12
    assert "a dozen requests at most" in " ".join(PAGE.split())
