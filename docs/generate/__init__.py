"""What `docs/` holds that is made from the code: the reference, JSON Schemas, TypeScript declarations.

The tables of the contract are made when the site is built, by `site`; its page has places for them.

`make pages` writes all of it, `make check` fails where something is not current.
"""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import Any

DOCS = Path(__file__).parents[1]
CONTRACT = Path("contract.md")
SCHEMAS = Path("schemas")
REFERENCE = Path("reference")
PAGES = {
    "python-api.md": "python_api",
    "variables.md": "variables",
    "commands.md": "commands",
    "http.md": "serve",
    "providers.md": "providers",
    "limits.md": "limits",
    "metrics.md": "metrics",
    "extras.md": "extras",
    "benches.md": "benches",
}
"""The pages of the reference, and the modules here whose `make_page` makes them."""
NOTE = "<!-- Made from the code by `make pages`: change the code, not this page. -->\n\n"
"""The first line of each."""


def contents(docs: Path) -> dict[Path, str]:
    """The text of every file that is made from the code, by its path under `docs`.

    The contract is read there: people write it, and only its tables are made from the code.
    """
    made = {SCHEMAS / name: text for name, text in _load("schemas").files().items()}
    made |= {REFERENCE / name: NOTE + _load(module).make_page() for name, module in PAGES.items()}
    tables = _load("page")
    contract = tables.filled((docs / CONTRACT).read_text(), dict.fromkeys(tables.blocks(), ""), CONTRACT)
    return made | {CONTRACT: contract}


def _load(module: str) -> Any:
    """Import a module when it is needed: together they import all of Clew, which takes seconds."""
    return import_module(f"docs.generate.{module}")


def write(docs: Path) -> None:
    """Write every file, and remove those that are made no more."""
    made = contents(docs)
    for folder in (SCHEMAS, REFERENCE):
        (docs / folder).mkdir(exist_ok=True)
    for path, text in made.items():
        (docs / path).write_text(text)
    for path in stale(docs):
        (docs / path).unlink()


def stale(docs: Path) -> list[Path]:
    """The files that differ from what the code says, that are missing, or that are made no more."""
    made = contents(docs)
    differing = {path for path, text in made.items() if _text_of(docs / path) != text}
    files = {folder / file.name for folder in (SCHEMAS, REFERENCE) for file in (docs / folder).glob("*")}
    left_over = files - made.keys()
    return sorted(differing | left_over)


def _text_of(path: Path) -> str | None:
    return path.read_text() if path.exists() else None
