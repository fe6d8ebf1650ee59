"""The tables of the contract page, and where they stand in it.

A table stands between `<!-- begin NAME -->` and `<!-- end -->`; everything else on the page is written by hand.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from functools import cache
from pathlib import Path

from clew.contract.payloads import KINDS
from clew.errors import REFUSALS, ContextOverflow
from clew.json_schemas import JsonSchema, docstring_of, entry_name, entry_types, payload_types
from docs.generate import messages
from docs.generate.messages import Exchange
from docs.generate.schemas import ENTRY, all_definitions
from docs.generate.tables import forms_table, table, type_and_bounds, type_table

_BLOCK = re.compile(r"<!-- begin (?P<name>\w+) -->\n.*?<!-- end -->", re.DOTALL)


@cache
def blocks() -> dict[str, str]:
    """The text of each block, by name: the overviews, and one for each type."""
    schemas = all_definitions()
    # All kinds of entries have the same fields.
    entry = schemas[entry_name(KINDS[0])]
    schemas = {name: schema for name, schema in schemas.items() if name not in (ENTRY, *entry_types())}
    types = {
        name: f"{schema.get('description', '')}\n\n{type_table(schema)}".lstrip() for name, schema in schemas.items()
    }
    types[ENTRY] = table(("field", "type", "meaning"), _entry_rows(entry))
    return types | {
        "updates": _overview("update", messages.UPDATES),
        "signals": table(
            ("signal", "meaning", "input"),
            ([f"`{one.name}`", one.description, _link(one.input, one.bare)] for one in messages.SIGNALS),
        ),
        "queries": _overview("query", messages.QUERIES),
        "workflows": _overview("workflow", (messages.START, *messages.WORKFLOWS), described=False),
        "kinds": table(("kind", "payload", "meaning"), _kinds()),
        "refusals": table(("word", "meaning"), _refusals()),
        "forms": forms_table(),
    }


def filled(page: str, blocks: Mapping[str, str], name: Path | str) -> str:
    """A page with the blocks in their places.

    Raises:
        ValueError: The page has no marker or two markers for a block, or a marker without a block.
    """
    places = [match["name"] for match in _BLOCK.finditer(page)]
    if sorted(places) != sorted(blocks):
        wrong = {name for name in {*places, *blocks} if places.count(name) != 1 or name not in blocks}
        raise ValueError(
            f"docs/{name} needs one place for each table, `<!-- begin NAME -->` and `<!-- end -->`; "
            f"missing, unknown or twice: {', '.join(sorted(wrong))}"
        )
    return _BLOCK.sub(lambda match: f"<!-- begin {match['name']} -->\n{blocks[match['name']]}<!-- end -->", page)


def _overview(kind: str, exchanges: Iterable[Exchange], *, described: bool = True) -> str:
    meaning = ["meaning"] if described else []
    rows = (
        [
            f"`{one.name}`",
            *([one.description] if described else []),
            _link(one.input, one.bare),
            _link(one.answer),
            ", ".join(f"`{word}`" for word in one.refusals),
        ]
        for one in exchanges
    )
    return table((kind, *meaning, "input", "answers", "refused with"), rows)


def _link(type_: type | None, bare: bool = False) -> str:
    if type_ is None:
        return "nothing"
    name = type_.__name__
    return f"[{name}](#{name.lower()})" + (", or nothing" if bare else "")


def _entry_rows(entry: JsonSchema) -> Iterable[list[str]]:
    named = {"kind": "string", "payload": "by its [kind](#entries)"}
    for name, field in entry["properties"].items():
        yield [f"`{name}`", named.get(name) or type_and_bounds(field), field["description"]]


def _kinds() -> Iterable[list[str]]:
    for kind, types in payload_types().items():
        for type_ in types:
            summary, _ = docstring_of(type_)
            yield [f"`{kind}`", _link(type_), " ".join(summary.split())]


def _refusals() -> Iterable[list[str]]:
    words = REFUSALS | {ContextOverflow.type: ContextOverflow}
    for word, error in sorted(words.items()):
        summary, _ = docstring_of(error)
        yield [f"`{word}`", " ".join(summary.split())]
