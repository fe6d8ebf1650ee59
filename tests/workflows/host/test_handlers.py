"""The table of updates, signals and queries."""

from __future__ import annotations

import json
from types import NoneType

import pytest

from clew_workflows.host.handlers import QUERIES, SIGNALS, UPDATES, Handler
from tests.support.ingress import DECODERS, make_arguments


@pytest.mark.parametrize("name", [*UPDATES, *SIGNALS])
def test_an_example_is_accepted(name: str) -> None:
    """Each update and signal for callers has an example that can be sent as it is, or needs no argument."""
    for handlers in (UPDATES, SIGNALS):
        handler: Handler[object] | None = handlers.get(name)
        if handler and not handler.is_internal:
            assert handler.is_bare != bool(handler.example)
            assert DECODERS[name](make_arguments(json.loads(handler.example)) if handler.example else []) is not None


def test_every_query_for_callers_may_come_without_an_argument() -> None:
    """So that an operator can run each one by choosing it."""
    assert all(query.is_bare or query.is_internal or query.input is NoneType for query in QUERIES.values())
