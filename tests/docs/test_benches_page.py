"""Numbers of benches come from files, each with the date, the commit and the machine."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest
from rich.table import Table

from bench import recording
from bench.recording import FOLDER, Record, make_command, read_table, record
from docs.generate import DOCS, REFERENCE
from docs.generate.benches import make_page

FILES = sorted(FOLDER.glob("*.json"))
BENCHES = {
    *("actions", "cache", "crowd", "encryption", "endless", "fairness", "history", "load", "media", "pauses"),
    *("projection", "serve", "streaming", "workload"),
}


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_a_file_says_what_was_measured_when_and_where(path: Path) -> None:
    """Its command is one of the repository, and each row has a cell for each column."""
    made = Record.model_validate_json(path.read_text())
    words = made.command.split()
    assert importlib.util.find_spec(words[words.index("-m") + 1]) is not None
    assert path.stem.partition("-")[0] == words[words.index("-m") + 1].removeprefix("bench.")
    assert made.tables
    for table in made.tables:
        assert table.rows, table.title
        assert {len(row) for row in table.rows} == {len(table.columns)}


def test_the_page_is_made_from_the_files() -> None:
    """Each has a part, with its command, its day and its commit."""
    page = (DOCS / REFERENCE / "benches.md").read_text()
    assert page.endswith(make_page())
    for path in FILES:
        made = Record.model_validate_json(path.read_text())
        assert f"\n## {path.stem}\n" in page
        assert f"`{made.command}` · {made.date} · commit `{made.commit}`" in page


def test_every_bench_writes_by_the_shared_function() -> None:
    """Each has the option, and the name of its file."""
    for name in BENCHES:
        text = (recording.ROOT / "bench" / f"{name}.py").read_text()
        assert "add_write_option(parser)" in text, name
        assert "with record(" in text, name


def test_what_is_printed_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Tables and lines, under another name if `--write` has one."""
    monkeypatch.setattr(recording, "FOLDER", tmp_path / "results")
    monkeypatch.setattr(recording, "find_commit", lambda: "0123abcd+")
    table = Table("", "ms", title="a turn")
    table.add_row("median", "1.5")
    for write in ("", "small"):
        with record("any", write) as console:
            console.print(table)
            console.print("as planned")
    with record("any", None) as console:
        console.print("not kept")
    assert sorted(path.stem for path in (tmp_path / "results").iterdir()) == ["any", "small"]
    made = Record.model_validate_json((tmp_path / "results" / "any.json").read_text())
    assert made.tables == [read_table(table)]
    assert (made.tables[0].rows, made.notes, made.commit) == ([["median", "1.5"]], ["as planned"], "0123abcd+")


@pytest.mark.parametrize(
    ("arguments", "command"),
    [
        (["--write"], "python -m bench.history"),
        (["--quick", "--write", "load-small", "--parts", "idle"], "python -m bench.history --quick --parts idle"),
        (["50", "--write"], "python -m bench.history 50"),
    ],
)
def test_the_command_is_the_one_that_was_run(arguments: list[str], command: str) -> None:
    """Without `--write`."""
    assert make_command([str(recording.ROOT / "bench" / "history.py"), *arguments]) == command
