"""The files of `docs/schemas/`: JSON Schemas and TypeScript of the contract, and the document of `clew serve`."""

from __future__ import annotations

import json
from functools import cache
from typing import Any

from clew.contract import EntriesPage, FollowPage
from clew.contract.payloads import Retried
from clew.json_schemas import DIALECT, JsonSchema, definitions, entry_union, payload_types
from docs.generate import messages, serve, typescript
from docs.generate.messages import Exchange

DECLARATIONS = "clew.d.ts"
BUNDLE = "clew.json"
OPENAPI = "openapi.json"
ENTRY = "Entry"
PAGES = (EntriesPage, FollowPage)
"""The types of pages that hold entries."""
_HEADER = "// The wire contract of Clew. Made from the code by `make pages`; docs/contract.md says what it means.\n\n"
_MAPS = (
    ("Updates", "The updates of `AgentSession`.", messages.UPDATES),
    ("Signals", "The signals of `AgentSession`.", messages.SIGNALS),
    ("Queries", "The queries of `AgentSession`.", messages.QUERIES),
    ("Workflows", "The workflow types.", (messages.START, *messages.WORKFLOWS)),
)


def all_types() -> dict[str, Any]:
    """Every type that the bundle begins from, by name: messages, entries and what these hold."""
    held = {type_.__name__: type_ for types in payload_types().values() for type_ in types}
    # What stands in the `details` of an error has a type that no other type names.
    return messages.wire_types() | held | {ENTRY: entry_union(), Retried.__name__: Retried}


@cache
def all_definitions() -> dict[str, JsonSchema]:
    """The schema of every type of the contract, by name."""
    return _with_entries(definitions(list(all_types().items())))


def _with_entries(schemas: dict[str, JsonSchema]) -> dict[str, JsonSchema]:
    """The schemas in which pages of entries say what entries are: their types only know objects."""
    return schemas | {page.__name__: _name_entries(schemas[page.__name__]) for page in PAGES}


def _name_entries(page: JsonSchema) -> JsonSchema:
    entries = page["properties"]["entries"] | {"items": {"$ref": f"#/$defs/{ENTRY}"}}
    return page | {"properties": page["properties"] | {"entries": entries}}


@cache
def files() -> dict[str, str]:
    """The text of each file, by its name."""
    bundle = {
        "$schema": DIALECT,
        "$id": BUNDLE,
        "title": "The wire contract of Clew",
        "description": "`$defs` has the types of all messages; `messages` their inputs, outputs and refusals.",
        "messages": _messages(),
        "$defs": all_definitions(),
    }
    return {
        BUNDLE: _lay_out(bundle, 4) + "\n",
        DECLARATIONS: _declarations(),
        OPENAPI: _lay_out(serve.document(), 4) + "\n",
    }


def _messages() -> JsonSchema:
    return {
        name.lower(): {
            exchange.name: {
                **{
                    key: _refer(type_)
                    for key, type_ in (("input", exchange.input), ("output", exchange.answer))
                    if type_
                },
                "refusals": refusals(exchange),
            }
            for exchange in exchanges
        }
        for name, _, exchanges in _MAPS
    }


def _refer(type_: type) -> JsonSchema:
    return {"$ref": f"#/$defs/{type_.__name__}"}


def refusals(exchange: Exchange) -> list[str]:
    """Every word that a message may be refused with."""
    common: tuple[str, ...] = ()
    if exchange in messages.UPDATES:
        common = messages.COMMON_UPDATE_REFUSALS
    elif exchange in messages.QUERIES and exchange.input is not None:
        common = messages.COMMON_QUERY_REFUSALS
    elif exchange in messages.WORKFLOWS:
        common = messages.COMMON_WORKFLOW_REFUSALS
    return sorted({*common, *exchange.refusals})


def _declarations() -> str:
    declared = [typescript.declaration(name, schema) for name, schema in all_definitions().items()]
    maps = [
        typescript.message_map(
            name,
            comment,
            [
                (exchange.name, _type_of(exchange.input, exchange.bare), _type_of(exchange.answer))
                for exchange in exchanges
            ],
        )
        for name, comment, exchanges in _MAPS
    ]
    return _HEADER + "\n".join((*maps, *declared))


def _type_of(type_: type | None, bare: bool = False) -> str:
    if type_ is None:
        return "undefined"
    return f"{type_.__name__} | undefined" if bare else type_.__name__


def _lay_out(value: Any, levels: int, indent: str = "") -> str:
    """Write JSON with a line for each member of the outer objects, so that a field of a type has one line."""
    if levels == 0 or not isinstance(value, dict):
        return json.dumps(value, ensure_ascii=False)
    rows = (
        f"\n{indent} {json.dumps(name)}: {_lay_out(held, levels - 1, indent + ' ')}" for name, held in value.items()
    )
    return f"{{{','.join(rows)}\n{indent}}}"
