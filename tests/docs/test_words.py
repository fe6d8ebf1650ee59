"""The words that people write are counted, without those that are made from the code."""

from __future__ import annotations

from pathlib import Path

from docs.generate.words import count_pages, count_words, write_table


def test_what_is_made_from_the_code_is_not_counted() -> None:
    """Blocks between the marks that the generators fill."""
    page = (
        "# Two words\n\n<!-- begin a -->\n| a |\n<!-- end -->\n\n"
        "and <!-- table: x -->1 2 3<!-- end --> more | <!-- a note -->\n"
    )
    assert count_words(page) == len(["Two", "words", "and", "more"])


def test_pages_of_the_reference_and_reports_are_not_counted(tmp_path: Path) -> None:
    """The overview of the reports is."""
    for name in (
        "README.md",
        "docs/tools.md",
        "docs/reference/limits.md",
        "docs/upstream/README.md",
        "docs/upstream/a.md",
    ):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("three more words\n")
    counts = count_pages(tmp_path)
    assert counts == {"README.md": 3, "docs/tools.md": 3, "docs/upstream/README.md": 3}
    assert write_table(counts, budget=8).endswith("9  of at most 8 words")
