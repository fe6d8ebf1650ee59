"""The page on models names what the code has."""

from __future__ import annotations

import re
from pathlib import Path

from clew_activities.providers.dialects import DIALECTS, MESSAGES_DIALECTS, find_dialect
from docs.generate import models
from tests.providers.dialects import DIALECTS as ROWS
from tests.providers.scenarios import SCENARIOS

PAGE = Path(__file__).parents[2] / "docs" / "models.md"
TABLES = PAGE.read_text(encoding="utf-8").partition("## Options of a call")[0]
DIALECTS_TABLE, _, MESSAGES_TABLE = TABLES.partition("## Other servers with Anthropic's API")


def test_the_page_has_a_row_for_each_dialect() -> None:
    for table, dialects in ((DIALECTS_TABLE, DIALECTS), (MESSAGES_TABLE, MESSAGES_DIALECTS)):
        rows = re.findall(r"^\| `([a-z]+)` \|", table, re.MULTILINE)
        assert sorted(rows) == sorted(set(dialects) - {"anthropic"})


def test_the_page_says_where_messages_are_sent_as_they_are() -> None:
    for line in DIALECTS_TABLE.splitlines():
        if (row := re.match(r"\| `([a-z]+)` \|[^|]*\|([^|]*)\|", line)) and row[1] in DIALECTS:
            dialect = DIALECTS[row[1]]
            assert (row[2].strip() == "as they are") == (dialect.system == "anywhere"), row[1]


def test_the_matrix_says_of_each_cell_whether_it_is_played() -> None:
    """Each cell of the tests has a mark, and one that is left out names its reason."""
    matrix = models.blocks()["matrix"]
    lines = {line.split(" | ")[0].lstrip("| "): line for line in matrix.splitlines() if line.startswith("| ")}
    notes = dict(re.findall(r"^(\d+)\. (.*)\.$", matrix, re.MULTILINE))
    for row in ROWS:
        cells = [cell.strip() for cell in lines[row.name].strip("| ").split(" | ")][1:]
        for name, cell in zip(SCENARIOS, cells, strict=False):
            reason = models.find_reason(row, name)
            marked = notes[cell.split("<sup>")[1].removesuffix("</sup>")] if "<sup>" in cell else None
            assert (marked or "").lower() == (reason or "").lower(), (row.name, name)
        assert len(cells) == len(models.COLUMNS)


def test_a_provider_that_is_configured_as_the_page_says_has_its_dialect() -> None:
    """The table needs no variable for it: the host or the name is enough."""
    rows = re.findall(r"^\| `(\w+)` \| (.*?) \| `\w+:(.*?)` \|$", models.blocks()["providers"], re.MULTILINE)
    assert len(rows) >= len(DIALECTS) - 2
    for provider, variables, _ in rows:
        if provider not in ("openai", "anthropic", "google", "bedrock"):
            url = re.search(r"_BASE_URL=([^`]*)", variables)
            assert url is not None, provider
            assert find_dialect("m", url[1]).name == provider or "127.0.0.1" in url[1]
            assert find_dialect(provider, url[1]).name == provider
