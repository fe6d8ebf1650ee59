"""Bodies that are the contract's types, and the document that describes them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from fastapi.routing import APIRoute

from clew.serve import Keys, ServeSettings, make_app
from clew.serve.app import ROUTERS
from clew.serve.bodies import find_model, parse_body
from clew.serve.problems import InvalidParameter
from clew_workflows.contract import ContextOperation, MessageInput, SessionConfig
from clew_workflows.contract.errors import InvalidOperation
from tests.support.serving import make_key


@pytest.fixture(scope="module")
def document() -> dict[str, Any]:
    return make_app(Keys([make_key("a", "b")[1]]), clew=object(), settings=ServeSettings()).openapi()  # type: ignore[arg-type]


def find_refs(value: Any) -> Iterator[str]:
    """Find the references of a JSON document."""
    if isinstance(value, dict):
        for name, part in value.items():
            if name == "$ref":
                yield part
            else:
                yield from find_refs(part)
    elif isinstance(value, list):
        for part in value:
            yield from find_refs(part)


def test_lists_become_tuples_and_an_empty_body_is_an_object() -> None:
    """A body has the JSON form, which the session receives."""
    parsed = parse_body(SessionConfig, b'{"model": "openai:x", "tools": ["a"]}')
    assert parsed.tools == ("a",)
    with pytest.raises(InvalidParameter, match="content"):
        parse_body(MessageInput, b"")


@pytest.mark.parametrize(
    "body", [b"[]", b"null", b"{", b'{"content": "x", "tools": "a"}', b'{"content": "\\ud800"}', b"[" * 100_000]
)
def test_a_body_that_is_not_valid_is_refused(body: bytes) -> None:
    """As a caller's error."""
    with pytest.raises(InvalidParameter):
        parse_body(MessageInput, body)


def test_a_context_operation_has_a_word_of_its_own() -> None:
    """The contract's, as in the session."""
    with pytest.raises(InvalidOperation):
        parse_body(ContextOperation, b'{"op_id": "a", "operation": {"type": "erase"}}')


def test_the_document_has_every_route_with_its_body(document: dict[str, Any]) -> None:
    """Each body that a route reads is described, every reference is defined, and the routes need a key."""
    for router in ROUTERS:
        for route in router.routes:
            if not isinstance(route, APIRoute) or not route.include_in_schema:
                continue
            for method in route.methods:
                described = document["paths"][route.path_format][method.lower()]
                assert described["security"], route.path
                if find_model(route.dependant):
                    assert described["requestBody"]["content"]["application/json"]["schema"]["$ref"]
    defined = {f"#/components/schemas/{name}" for name in document["components"]["schemas"]}
    assert set(find_refs(document)) <= defined
    assert document["components"]["securitySchemes"]["HTTPBearer"]["scheme"] == "bearer"


def test_the_body_of_a_message_is_the_contracts(document: dict[str, Any]) -> None:
    """Generated from the type, and not written twice."""
    assert set(document["components"]["schemas"]["MessageInput"]["properties"]) == set(MessageInput.model_fields)
