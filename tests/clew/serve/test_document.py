"""The OpenAPI document, and its page."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, get_args

import httpx
import jsonschema_rs
import pytest
from fastapi import FastAPI
from fastapi.routing import APIRoute

from clew.serve import Keys, ServeSettings, make_app
from clew.serve.application import ROUTERS
from clew.serve.bodies import find_model
from clew.serve.document_examples import EXAMPLES
from clew.serve.error_words import TENANT
from clew.serve.problems import Draining, make_body
from clew.session.events import Retrying, SessionEvent, StatusChanged, TextAdded, ToolProgressed
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


def list_operations(document: dict[str, Any]) -> list[dict[str, Any]]:
    """List the operations of a document."""
    return [operation for operations in document["paths"].values() for operation in operations.values()]


def list_described(operation: dict[str, Any]) -> Iterator[tuple[dict[str, Any], Any]]:
    """List the schemas of an operation, each with its example."""
    for parameter in operation["parameters"]:
        if "example" in parameter or parameter["required"]:
            yield parameter["schema"], parameter["example"]
    for held in (operation.get("requestBody"), *operation["responses"].values()):
        for content in (held or {}).get("content", {}).values():
            yield content["schema"], content["example"]


def find_problem(document: dict[str, Any], schema: dict[str, Any], value: Any) -> str | None:
    """Find why a value is not valid under a schema of the document; None: it is."""
    whole = {**schema, "components": document["components"]}
    try:
        jsonschema_rs.validator_for(whole).validate(value)
    except jsonschema_rs.ValidationError as error:
        return f"{error.message[:300]} at {error.instance_path}"
    return None


def test_every_operation_has_an_id_and_valid_examples(document: dict[str, Any]) -> None:
    """Each parameter of a path, each body and each answer has an example that is valid under its own schema."""
    operations = list_operations(document)
    ids = [operation["operationId"] for operation in operations]
    assert sorted(set(ids)) == sorted(ids)
    assert EXAMPLES.keys() == set(ids)
    problems = [
        f"{operation['operationId']}: {problem}"
        for operation in operations
        for schema, example in list_described(operation)
        if (problem := find_problem(document, schema, example))
    ]
    assert not problems


def test_every_body_and_every_answer_has_a_schema(document: dict[str, Any]) -> None:
    """No operation leaves open what it takes or answers, and each says how it tells an error."""
    for operation in list_operations(document):
        for schema, _ in list_described(operation):
            assert schema, operation["operationId"]
        assert operation["responses"]["200"]["content"], operation["operationId"]
        assert operation["responses"]["default"]["content"]["application/json"]["schema"]["$ref"].endswith(
            "/ErrorBody"
        )
        assert not {status for status in operation["responses"] if status.startswith("4")}


def test_what_may_be_absent_is_optional_and_never_null(document: dict[str, Any]) -> None:
    """In answers of the contract null stands for absent and does not travel; no parameter of a URL is null."""
    schemas = document["components"]["schemas"]
    outcome = schemas["RequestAnswer"]
    assert set(outcome["required"]) == {"request_id", "status", "last_seq", "iterations", "usage", "session_id"}
    assert outcome["properties"]["answer"]["type"] == "string"
    assert "model" not in schemas["OpenInput"].get("required", ())
    assert schemas["MessageInput"]["required"] == ["content"]
    nullable = [
        (operation["operationId"], parameter["name"])
        for operation in list_operations(document)
        for parameter in operation["parameters"]
        if "null" in str(parameter["schema"])
    ]
    assert not nullable


def test_the_stream_of_events_has_the_schema_of_every_event(document: dict[str, Any]) -> None:
    """One union by `type`: the events of sessions, and those of the stream itself."""
    content = document["paths"]["/v1/sessions/{session_id}/events"]["get"]["responses"]["200"]["content"]
    stream = content["text/event-stream"]
    assert stream["schema"] == stream["itemSchema"]["properties"]["data"]["contentSchema"]
    union = document["components"]["schemas"][stream["schema"]["$ref"].rpartition("/")[2]]
    own = {event.__dataclass_fields__["type"].default for event in get_args(SessionEvent)}
    assert set(union["discriminator"]["mapping"]) == {*own, "draining", "error"}
    ends: list[Any] = [{"type": "draining"}, {"type": "error", "error": make_body(Draining("x"), TENANT)["error"]}]
    events: list[Any] = [
        StatusChanged(status="idle"),
        TextAdded(call_id="c", attempt=1, offset=0, text="a"),
        ToolProgressed(tool_call_id="t", name="n", text="half", fraction=0.5),
        Retrying(attempt=2, error="worker_lost", message="m"),
    ]
    for value in (*(event.as_dict() for event in events), *ends):
        assert find_problem(document, stream["schema"], value) is None
    assert find_problem(document, stream["schema"], {"type": "text"})
    assert find_problem(document, stream["schema"], {"type": "unknown"})


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
