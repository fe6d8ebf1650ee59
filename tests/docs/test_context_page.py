"""The page about contexts: its code runs, and its defaults and its table are the code's."""

from __future__ import annotations

import re
import textwrap
from typing import Any

from clew import Agent, Session
from clew.contract import ContextPolicy
from clew.testing import stack
from clew_activities.model.model_table import choose_policy
from clew_workflows.contract.policy import resolve
from clew_workflows.session.summaries import RUNS_BEFORE_RETRY
from docs.generate import DOCS

PAGE = (DOCS / "context.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```python\n(.*?)^```$", PAGE, re.DOTALL | re.MULTILINE)
WINDOWS = (20, 75, 300)
TURNS = 6
"""Turns before each operation: more than a policy keeps, so that there is something to summarize."""


async def run_code(code: str, session: Session, names: dict[str, Any]) -> None:
    """Run lines of a page in the names that earlier ones have left."""
    names["session"] = session
    exec(f"async def run():\n{textwrap.indent(code, '    ')}\n    return locals()", names)
    names |= await names.pop("run")()


async def test_the_code_runs() -> None:
    """The agent is deployed, a context is previewed and read again, and each operation is carried out."""
    agent, preview, *operations = BLOCKS
    names: dict[str, Any] = {}
    exec(agent, names)
    support: Agent = names["support"]
    async with stack(agents=[support], scripts={"support": lambda _: "fine"}) as running:
        session = await running.clew.open("ada", agent="support")
        await run_code(preview, session, names)
        assert names["preview"].meta.fits
        assert names["sent"].messages[-1]["content"] == "Where is my order?"
        for line in "".join(operations).splitlines():
            for _ in range(TURNS):
                await session.ask("A question that is longer than its summary.")
            await run_code(line, session, names)
        kinds = {entry.kind for entry in await session.entries()}
    assert "summary" in kinds


def test_a_policy_of_one_field_has_the_defaults_that_the_page_warns_of() -> None:
    """And without a policy the worker chooses an epoch of the model's size."""
    alone = resolve(agent=ContextPolicy(low_water=0.6))
    assert f"`max_input_tokens` {alone.max_input_tokens} and `window` `{alone.window}`" in " ".join(PAGE.split())
    chosen = choose_policy("openai:gpt-4o-mini")
    assert (chosen.window, chosen.max_input_tokens > alone.max_input_tokens) == ("epoch", True)
    assert set(re.findall(r"`(\w+_\w+)`", PAGE)) >= {"max_input_tokens", "reserve_output_tokens"}


def test_the_table_of_marks_is_what_the_formula_gives() -> None:
    """Each row has the window and the parts of prompts that are not cached, and the default is the code's."""
    row = r"^\| (0\.\d)(, the default)? \| (\d+) %" + r" \| ([\d.]+) %" * len(WINDOWS) + r" \|$"
    rows = re.findall(row, PAGE, re.MULTILINE)
    assert rows
    assert [mark for mark, is_default, *_ in rows if is_default] == [str(ContextPolicy().low_water)]
    for text, _, window, *uncached in rows:
        mark = float(text)
        assert window == f"{50 * (1 + mark):.0f}"
        assert uncached == [f"{200 / ((1 - mark**2) * turns):.1f}" for turns in WINDOWS]


def test_a_session_pauses_its_own_summaries_as_long_as_the_page_says() -> None:
    assert RUNS_BEFORE_RETRY == 10
    assert "ten runs" in " ".join(PAGE.split())
