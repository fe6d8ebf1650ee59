"""A tokenizer of a user's own: the example of `docs/extending.md`, on workers and in an operator's command."""

from __future__ import annotations

import re
import textwrap
import uuid
from pathlib import Path

import pytest

from clew import Clew
from clew.errors import InvalidInput
from clew.operators import import_extensions
from clew_workflows.contract.content import get_text
from tests.support.processes import ROOT, run_module, run_worker_process
from tests.support.stack import Stack


def write_example(folder: Path) -> dict[str, str]:
    """Write the page's example as a module; returns the variables with which a process imports it."""
    page = (ROOT / "docs/extending.md").read_text(encoding="utf-8").partition("\n## Add a tokenizer\n")[2]
    found = re.search(r"```python\n(.*?)```", page, re.DOTALL)
    assert found
    (folder / "counting_words.py").write_text(textwrap.dedent(found[1]), encoding="utf-8")
    return {"PYTHONPATH": str(folder), "CLEW_EXTENSIONS": "counting_words"}


@pytest.mark.slow
async def test_a_session_counts_by_a_tokenizer_of_ones_own(stack: Stack, tmp_path: Path) -> None:
    """Entries have its counts, another worker replays them, and so does the audit; no other process counts."""
    own, store = write_example(tmp_path), {"CLEW_STORE": str(tmp_path / "store")}
    clew = Clew(stack.clew.temporal, f"queue-{uuid.uuid4().hex}")
    async with run_worker_process(stack, clew.task_queue, **own, **store):
        session = await clew.open(f"test-{uuid.uuid4().hex}", model=stack.add_model("well, fine!"), encoding="words")
        assert await session.ask("how are you?") == "well, fine!"
        unknown = await clew.open(f"test-{uuid.uuid4().hex}", model="scripted:m", encoding="letters")
        with pytest.raises(InvalidInput, match=r"unknown encoding 'letters': one of .*, words"):
            await unknown.ask("how many?")
    async with run_worker_process(stack, clew.task_queue, **own, **store):
        assert await session.ask("and now?") == "well, fine!"
        said = [
            (get_text(entry.payload["content"]), entry.tokens)
            for entry in await session.entries()
            if entry.kind == "ai_message"
        ]
        assert said == [("how are you?", 8), ("well, fine!", 8), ("and now?", 7), ("well, fine!", 8)]
        audit = ("audit", session.id, "--address", stack.server.address)
        status, output = await run_module("clew.cli", *audit, seconds=60, env={**own, **store})
        assert status == 0, output
        status, output = await run_module("clew.cli", *audit, seconds=60, env=store)
        assert status == 1
        assert "unknown encoding 'words'" in output
        assert "CLEW_EXTENSIONS" in output


def test_an_extension_that_cannot_be_imported_is_named() -> None:
    """The error names the variable and the module; without the variable nothing is imported."""
    import_extensions({})
    with pytest.raises(ValueError, match="CLEW_EXTENSIONS: the module 'no_such_module' cannot be imported"):
        import_extensions({"CLEW_EXTENSIONS": "json, no_such_module"})
