"""The comparison with peers: its model, its processes, its tables and its pinned environments."""

from __future__ import annotations

import asyncio
import json
import re
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from bench.peers.__main__ import RESULTS, measure
from bench.peers.conversation import ANSWER, TOOL
from bench.peers.process import PeerFailed, Setting, peer_process
from bench.peers.rows import ROWS
from bench.peers.script import Context, Script
from bench.peers.service import describe
from bench.peers.tables import PAGE, TABLES, fill_page

ROOT = Path(__file__).parents[2]
CONSTRAINTS = ROOT / "constraints" / "peers"


def ask(script: Script, *messages: dict[str, Any]) -> Any:
    return script({"messages": list(messages)})


def test_the_model_calls_the_tool_as_often_as_the_message_says() -> None:
    """`[tools 2]` asks for two rounds of the tool, and then for the answer; texts may be in parts."""
    script = Script()
    user = {"role": "user", "content": [{"type": "text", "text": "go [tools 2]"}]}
    said: list[dict[str, Any]] = [{"role": "user", "content": "before"}, {"role": "tool", "content": "old"}, user]
    for _ in range(2):
        (call,) = ask(script, *said).tool_calls
        assert call.name == TOOL
        said.append({"role": "tool", "content": "found"})
    assert ask(script, *said).text == ANSWER
    assert script.calls == Counter({"go [tools 2]": 3})


async def test_the_model_holds_one_answer() -> None:
    """`[hold NAME]` lets the first answer wait, and says that it waits; the next one is given."""
    script = Script()
    user = {"role": "user", "content": "go [hold a]"}
    waiting = asyncio.create_task(script.wait_until_held("a"))
    assert ask(script, user).hangs
    await waiting
    assert ask(script, user).text == ANSWER


def test_a_context_counts_what_a_request_shows() -> None:
    """Questions by their texts, answers without those that call tools, and results."""
    messages: list[dict[str, Any]] = [
        {"role": "system", "content": "s"},
        {"role": "user", "content": "a"},
        {"role": "assistant", "content": None, "tool_calls": [{}]},
        {"role": "tool", "content": "r"},
        {"role": "assistant", "content": "b"},
        {"role": "user", "content": "a"},
    ]
    context = Context.read(messages)
    assert (context.users, context.assistants, context.results) == (Counter({"a": 2}), 1, 1)


def test_an_error_is_described_by_its_causes() -> None:
    """The last cause comes first: it says why a conversation ended."""
    error = RuntimeError("the update failed")
    error.__cause__ = ValueError("the history is too large\nand more")
    assert describe(error) == "the history is too large < the update failed"


async def test_a_process_that_ends_says_why(tmp_path: Path) -> None:
    """A peer that cannot start fails with the end of its log."""
    setting = Setting("peer_of_no_one", None, "", "http://127.0.0.1:9/v1", "127.0.0.1:9", tmp_path / "peer")
    with pytest.raises(PeerFailed, match=r"No module named .*peer_of_no_one"):
        async with peer_process(setting):
            pass


def test_every_row_has_a_module_and_a_pinned_environment() -> None:
    """A row's module exists, and its environment is pinned with hashes; no file names an index."""
    for row in ROWS.values():
        assert (ROOT / "bench" / "peers" / f"{row.module}.py").exists()
        if row.environment is None:
            continue
        pins = (CONSTRAINTS / f"{row.environment}.txt").read_text()
        packages = [block for block in re.split(r"\n(?=\S)", pins) if not block.startswith("#")]
        assert packages
        assert all("==" in block and "--hash=sha256:" in block for block in packages)
        assert "://" not in pins
        assert "index" not in pins.partition("==")[0]
    environments = {row.environment for row in ROWS.values()} - {None}
    assert environments == {path.stem for path in CONSTRAINTS.glob("*.txt")}
    assert environments == {path.stem for path in CONSTRAINTS.glob("*.in")}


def test_the_page_has_the_tables_of_the_results() -> None:
    """The tables of docs/comparison.md are those of the measurement, and none is missing."""
    page = PAGE.read_text()
    results = json.loads(RESULTS.read_text())
    assert set(results["rows"]) <= set(ROWS)
    assert set(re.findall(r"<!-- table: (\w+) -->", page)) == set(TABLES)
    assert fill_page(page, results) == page


@pytest.mark.slow
@pytest.mark.long
async def test_a_peer_is_measured() -> None:
    """Clew goes through all scenarios in a process of its own: nothing is lost, no effect is repeated."""
    measured = await measure(ROWS["clew"], turns=12, seconds=120)
    growth = measured["growth"]
    assert (growth["turns"], growth["ended"], growth["sizes"][10]["runs"]) == (12, None, 1)
    recovery = measured["recovery"]
    assert recovery["model_calls"] == 3
    assert (recovery["tool_effects"], recovery["lost"], recovery["duplicates"]) == (1, 0, 0)
    case = measured["public_case"]
    assert case["answered"]
    assert case["tokens"] >= 209_000
