"""The OpenAPI document, and its page."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from fastapi import FastAPI
from fastapi.routing import APIRoute

from clew.serve import Keys, ServeSettings, make_app
from clew.serve.application import ROUTERS
from clew.serve.bodies import find_model
from clew_workflows.contract import MessageInput
from tests.support.serving import make_key


def make_described(**settings: Any) -> FastAPI:
    clew: Any = object()
    return make_app(Keys([make_key("a", "b")[1]]), clew=clew, settings=ServeSettings(**settings))


@pytest.fixture(scope="module")
def document() -> dict[str, Any]:
    return make_described().openapi()


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


def test_the_document_has_every_route_with_its_body(document: dict[str, Any]) -> None:
    """Each body that a route reads is described, every reference is defined, and the routes need a key."""
    for router in ROUTERS:
        for route in router.routes:
            if not isinstance(route, APIRoute) or not route.include_in_schema:
                continue
            for method in route.methods or ():
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


@pytest.mark.parametrize("described", [True, False])
async def test_the_page_needs_no_network(described: bool) -> None:
    """It names each route, has no script, and loads nothing; the setting turns it off."""
    transport = httpx.ASGITransport(make_described(describes_itself=described))
    async with httpx.AsyncClient(transport=transport, base_url="http://test") as http:
        page, document = await http.get("/docs"), await http.get("/openapi.json")
    assert (page.status_code, document.status_code) == ((200, 200) if described else (404, 404))
    if described:
        assert page.headers["Content-Security-Policy"].startswith("default-src 'none'")
        assert "<script" not in page.text
        assert "http://" not in page.text
        assert all(path in page.text for path in document.json()["paths"])
        assert "request_id (body)" in page.text
