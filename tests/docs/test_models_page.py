"""The page on models names what the code has."""

from __future__ import annotations

import re
from pathlib import Path

from clew_activities.providers.dialects import DIALECTS

PAGE = Path(__file__).parents[2] / "docs" / "models.md"


def test_the_page_has_a_row_for_each_dialect() -> None:
    rows = re.findall(r"^\| `([a-z]+)` \|", PAGE.read_text(encoding="utf-8"), re.MULTILINE)
    assert sorted(rows) == sorted(DIALECTS)


def test_the_page_says_where_messages_are_sent_as_they_are() -> None:
    for line in PAGE.read_text(encoding="utf-8").splitlines():
        if (row := re.match(r"\| `([a-z]+)` \|[^|]*\|([^|]*)\|", line)) and row[1] in DIALECTS:
            dialect = DIALECTS[row[1]]
            assert (row[2].strip() == "as they are") == (dialect.system == "anywhere"), row[1]
