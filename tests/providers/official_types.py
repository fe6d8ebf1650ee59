"""Requests and replies by the types of the providers' own packages.

A request that does not have the type of its package is refused, as is a field that the type does not have. A reply
of a strict server is built with the type of the package, so that a server sends nothing that the package does not
know.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import cache
from typing import Any

from pydantic import BaseModel, TypeAdapter, ValidationError

from tests.providers.strict_server import Exchange, Refusal, Rule
from tests.support.provider_server import drain

Place = tuple[Any, ...]
_AS_SENT: dict[str, Any] = {"mode": "json", "by_alias": True, "exclude_unset": True}


@cache
def _make_adapter(official: Any) -> TypeAdapter[Any]:
    return TypeAdapter(official)


def format_place(place: Iterable[Any]) -> str:
    """Format a place as `messages[1].tool_calls[0]`."""
    return "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in place).lstrip(".")


def refuse_type(official: Any, refuse: Callable[[Any, Place, str, str], Refusal], *ignored: str) -> Rule:
    """Make the rule that a body has the package's type, and no field that the type does not have.

    Args:
        official: The type.
        refuse: Makes the refusal from the body, the place, pydantic's kind of the problem and its words.
        ignored: Fields that may stand anywhere although the type does not have them.
    """

    def rule(exchange: Exchange) -> Iterator[Refusal]:
        adapter = _make_adapter(official)
        try:
            known = adapter.validate_python(exchange.body)
            # Iterators of a typed dictionary are validated as they are read.
            known = adapter.dump_python(known, **_AS_SENT) if isinstance(known, BaseModel) else drain(known)
        except ValidationError as error:
            first = error.errors()[0]
            yield refuse(exchange.body, first["loc"], first["type"], first["msg"])
            return
        for place in _compare(exchange.body, known):
            if place[-1] not in ignored:
                yield refuse(exchange.body, place, "extra_forbidden", "Extra inputs are not permitted")

    return rule


def match_type(official: Any, refuse: str, *ignored: str) -> Rule:
    """Make the same rule with a text: `{}` is the place."""

    def make_refusal(_body: Any, place: Place, kind: str, problem: str) -> Refusal:
        words = refuse.format(format_place(place))
        return Refusal(words if kind == "extra_forbidden" else f"{words}: {problem}")

    return refuse_type(official, make_refusal, *ignored)


def build_event(official: Any, event: dict[str, Any]) -> dict[str, Any]:
    """Build an event of a reply with the package's type.

    Raises:
        ValidationError: The event does not have the type.
        AssertionError: The type does not have one of its fields.
    """
    adapter = _make_adapter(official)
    built: dict[str, Any] = adapter.dump_python(adapter.validate_python(event), **_AS_SENT)
    unknown = [format_place(place) for place in _compare(event, built)]
    assert not unknown, f"{official} does not have {unknown}"
    return built


def _compare(body: Any, known: Any, place: Place = ()) -> Iterator[Place]:
    """List the places of the fields of a body that a validated copy of it does not have."""
    if isinstance(body, dict) and isinstance(known, dict):
        for key, value in body.items():
            if key not in known:
                yield (*place, key)
            else:
                yield from _compare(value, known[key], (*place, key))
    elif isinstance(body, list) and isinstance(known, list):
        for index, (one, other) in enumerate(zip(body, known, strict=False)):
            yield from _compare(one, other, (*place, index))
