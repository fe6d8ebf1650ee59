"""Counts the words of the pages that people write, and compares their sum with the budget.

python -m docs.generate.words              print a table; exit 1 if there are more words than the budget
python -m docs.generate.words --quiet      print the sum alone

What is made from the code is not counted: `docs/reference/`, and blocks between `<!-- begin NAME -->` or
`<!-- table: NAME -->` and `<!-- end -->`. Of `docs/upstream/` only the overview is counted: the others are reports to
another project. A word has a letter or a digit: bars of tables and other signs are none.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Mapping
from pathlib import Path

ROOT = Path(__file__).parents[2]
BUDGET = 45_000
"""Most words that people write, in all."""
OUTSIDE = ("README.md", "CONTRIBUTING.md")
"""Pages outside of `docs/`."""
LEFT_OUT = re.compile(r"docs/reference/|docs/upstream/(?!README\.md)")
_MADE = re.compile(r"<!-- (?:begin|table:) .*?<!-- end -->|<!--.*?-->", re.DOTALL)


def count_words(markdown: str) -> int:
    """Count the words of a page that people write."""
    return sum(any(map(str.isalnum, word)) for word in _MADE.sub(" ", markdown).split())


def count_pages(root: Path) -> dict[str, int]:
    """Count the words of each page, by its path."""
    paths = [*(root / name for name in OUTSIDE), *sorted((root / "docs").rglob("*.md"))]
    names = {path.relative_to(root).as_posix(): path for path in paths if path.exists()}
    return {
        name: count_words(path.read_text(encoding="utf-8"))
        for name, path in names.items()
        if not LEFT_OUT.match(name)
    }


def write_table(counts: Mapping[str, int], budget: int = BUDGET) -> str:
    """Write the table: the pages by their words, and the sum."""
    rows = [f"{count:>7,}  {name}" for name, count in sorted(counts.items(), key=lambda row: (-row[1], row[0]))]
    return "\n".join([*rows, f"{sum(counts.values()):>7,}  of at most {budget:,} words"])


def main() -> int:
    """Print the table; return the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m docs.generate.words", description="Count the words of the pages."
    )
    parser.add_argument("--quiet", action="store_true", help="print the sum alone")
    counts = count_pages(ROOT)
    text = write_table(counts)
    print(text.rpartition("\n")[2] if parser.parse_args().quiet else text)
    if (words := sum(counts.values())) > BUDGET:
        print(f"The pages have {words - BUDGET:,} words too many.", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
