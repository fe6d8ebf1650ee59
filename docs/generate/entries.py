"""Entries as they travel: a type for each kind, with what it holds."""

from __future__ import annotations

from functools import cache, reduce
from operator import or_
from types import GenericAlias
from typing import Annotated, Any, Literal

from pydantic import Field, create_model

from clew.contract.payloads import KINDS, Payload
from clew_workflows.contract import payloads
from clew_workflows.contract.outcomes import Output
from clew_workflows.thread.entries import Entry, Refs
from docs.generate.json_schema import docstring_of


def payload_types() -> dict[str, list[type[Payload]]]:
    """The types of what entries hold, by the kind of entry."""
    shown = [getattr(payloads, name) for name in payloads.__all__]
    types = [one for one in shown if isinstance(one, type) and issubclass(one, Payload) and one is not Payload]
    leaves = [one for one in types if not any(other is not one and issubclass(other, one) for other in types)]
    return {kind: [one for one in leaves if one.entry_kind == kind] for kind in KINDS}


@cache
def entry_types() -> dict[str, Any]:
    """A type for the entries of each kind, by its name: all that an entry has, with the payload of its kind."""
    meanings = docstring_of(Entry)[1] | {"payload": "What it holds, by its kind."}

    def entry_type(kind: str, held: list[type[Payload]]) -> Any:
        fields: dict[str, Any] = {
            "seq": int,
            "id": str,
            "kind": Literal[kind],
            "at": str,
            "payload": reduce(or_, held),
            "refs": Refs,
            "tokens": int,
        }
        described = {name: (type_, Field(description=meanings[name])) for name, type_ in fields.items()}
        make: Any = create_model
        return make(entry_name(kind), __base__=Output, __doc__=f"An entry of the kind `{kind}`.", **described)

    return {entry_name(kind): entry_type(kind, held) for kind, held in payload_types().items()}


def entry_union() -> Any:
    """An entry of any kind."""
    return Annotated[
        reduce(or_, entry_types().values()), Field(discriminator="kind", description="An entry, by its kind.")
    ]


def entries_page(page: type[Any]) -> Any:
    """The type of a page of entries, with entries of any kind. The type itself only knows objects."""
    make: Any = create_model
    return make(
        page.__name__,
        __base__=page,
        __doc__=page.__doc__,
        entries=(GenericAlias(list, (entry_union(),)), ...),
    )


def entry_name(kind: str) -> str:
    """The name of the type of a kind's entries."""
    return "".join(map(str.capitalize, kind.split("_"))) + "Entry"
