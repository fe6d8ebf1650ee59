"""The tables of the contract page, and where they stand in it.

A table stands between `<!-- begin NAME -->` and `<!-- end -->`; everything else on the page is written by hand.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from clew.errors import REFUSALS, ContextOverflow
from docs.generate import messages
from docs.generate.json_schema import docstring_of
from docs.generate.messages import Exchange
from docs.generate.schemas import all_definitions
from docs.generate.tables import forms_table, table, type_table

_BLOCK = re.compile(r"<!-- begin (?P<name>\w+) -->\n.*?<!-- end -->", re.DOTALL)


def blocks() -> dict[str, str]:
    """The text of each block, by name: the overviews, and one for each type."""
    types = {
        name: f"{schema.get('description', '')}\n\n{type_table(schema)}".lstrip()
        for name, schema in all_definitions().items()
    }
    return types | {
        "updates": _overview("update", messages.UPDATES),
        "signals": table(
            ("signal", "input"), ([f"`{one.name}`", _link(one.input, one.bare)] for one in messages.SIGNALS)
        ),
        "queries": _overview("query", messages.QUERIES),
        "workflows": _overview("workflow", (messages.START, *messages.WORKFLOWS)),
        "refusals": table(("word", "meaning"), _refusals()),
        "forms": forms_table(),
    }


def filled(page: str, blocks: Mapping[str, str]) -> str:
    """A page with the blocks in their places.

    Raises:
        ValueError: a block has no place, two, or a place has no block.
    """
    places = [match["name"] for match in _BLOCK.finditer(page)]
    if sorted(places) != sorted(blocks):
        wrong = {name for name in {*places, *blocks} if places.count(name) != 1 or name not in blocks}
        raise ValueError(f"docs/contract.md: these tables are missing, unknown or twice: {', '.join(sorted(wrong))}")
    return _BLOCK.sub(lambda match: f"<!-- begin {match['name']} -->\n{blocks[match['name']]}<!-- end -->", page)


def _overview(kind: str, exchanges: Iterable[Exchange]) -> str:
    rows = (
        [
            f"`{one.name}`",
            _link(one.input, one.bare),
            _link(one.answer),
            ", ".join(f"`{word}`" for word in one.refusals),
        ]
        for one in exchanges
    )
    return table((kind, "input", "answers", "refused with"), rows)


def _link(type_: type | None, bare: bool = False) -> str:
    if type_ is None:
        return "nothing"
    name = type_.__name__
    return f"[{name}](#{name.lower()})" + (", or nothing" if bare else "")


def _refusals() -> Iterable[list[str]]:
    words = REFUSALS | {ContextOverflow.type: ContextOverflow}
    for word, error in sorted(words.items()):
        summary, _ = docstring_of(error)
        yield [f"`{word}`", " ".join(summary.split())]
