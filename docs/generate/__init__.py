"""What `docs/` holds that is made from the code: JSON Schemas, TypeScript declarations, tables of pages.

The tables of the contract are made when the site is built, by `site`; its page has places for them.

`make pages` writes all of it, `make check` fails where something is not current.
"""

from __future__ import annotations

from pathlib import Path

from docs.generate import models, openai_api, page, schemas, serve

DOCS = Path(__file__).parents[1]
CONTRACT = Path("contract.md")
MODELS = Path("models.md")
OPENAI = Path("serve-openai.md")
SERVE = Path("serve.md")
SCHEMAS = Path("schemas")


def contents(docs: Path) -> dict[Path, str]:
    """The text of every file that is made from the code, by its path under `docs`.

    The pages are read there: people write them, and only their tables are made from the code.
    """
    made = {SCHEMAS / name: text for name, text in schemas.files().items()}
    tables = {
        CONTRACT: dict.fromkeys(page.blocks(), ""),
        MODELS: models.blocks(),
        OPENAI: openai_api.blocks(),
        SERVE: serve.blocks(),
    }
    return made | {name: page.filled((docs / name).read_text(), blocks, name) for name, blocks in tables.items()}


def write(docs: Path) -> None:
    """Write every file, and remove those that are made no more."""
    made = contents(docs)
    (docs / SCHEMAS).mkdir(exist_ok=True)
    for path, text in made.items():
        (docs / path).write_text(text)
    for path in stale(docs):
        (docs / path).unlink()


def stale(docs: Path) -> list[Path]:
    """The files that differ from what the code says, that are missing, or that are made no more."""
    made = contents(docs)
    differing = {path for path, text in made.items() if _text_of(docs / path) != text}
    left_over = {SCHEMAS / file.name for file in (docs / SCHEMAS).glob("*")} - made.keys()
    return sorted(differing | left_over)


def _text_of(path: Path) -> str | None:
    return path.read_text() if path.exists() else None
