"""The OpenAPI document of the service, from the contract's types, and a page of it for people."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from html import escape
from typing import Any, get_args, get_origin

from fastapi import APIRouter, FastAPI, Request
from fastapi.responses import HTMLResponse
from fastapi.routing import APIRoute

from clew.json_schemas import JsonSchema, StandsFor, definitions
from clew.serve.answers import ErrorBody
from clew.serve.bodies import find_model
from clew.serve.document_examples import EXAMPLES, PARAMETERS, REFUSED, Example
from clew.serve.streams import EventStream

_REF = "#/components/schemas/"
_DEFS = "#/$defs/"
_OWN = "clew"
"""What the names of Clew's packages begin with: of two types of one name, Clew's keeps it."""


def name_operation(route: APIRoute) -> str:
    """Name the operation of a route by its function: `send_message` is `sendMessage`."""
    first, *others = route.name.split("_")
    return first + "".join(map(str.capitalize, others))


def describe_routes(app: FastAPI, routers: Sequence[APIRouter]) -> None:
    """Have the OpenAPI document of an application say what these routers take and answer, with examples."""
    make = app.openapi

    def make_document() -> dict[str, Any]:
        if app.openapi_schema is None:
            _describe([route for router in routers for route in router.routes if isinstance(route, APIRoute)], make())
        assert app.openapi_schema is not None
        return app.openapi_schema

    app.openapi = make_document  # type: ignore[method-assign]


def _describe(routes: Sequence[APIRoute], document: dict[str, Any]) -> None:
    """Describe bodies and answers by the contract's own schemas, and add the examples.

    The framework reads no bodies here, and knows nothing of what a value of the contract leaves out.
    """
    operations = [
        (route, document["paths"][route.path_format][method.lower()])
        for route in routes
        if route.include_in_schema
        for method in route.methods or ()
    ]
    schemas = _make_schemas([route for route, _ in operations])
    document["components"]["schemas"] = schemas
    for route, operation in operations:
        example = EXAMPLES.get(operation["operationId"], Example())
        operation["parameters"] = [_describe_parameter(one) for one in operation.get("parameters", ())]
        if (model := find_model(route.dependant)) is not None:
            body: dict[str, Any] = {"schema": _refer(model), "example": example.body}
            # An empty body is an empty object.
            is_required = bool(schemas[_name(model)].get("required"))
            operation["requestBody"] = {"required": is_required, "content": {"application/json": body}}
        elif "requestBody" in operation:
            (body,) = operation["requestBody"]["content"].values()
            body["example"] = example.body
        operation["responses"] = _describe_answers(route, operation["responses"], example)


def _make_schemas(routes: Sequence[APIRoute]) -> dict[str, JsonSchema]:
    """Make the schemas of all that routes take and answer."""
    types: dict[str, Any] = {"ErrorBody": ErrorBody}
    for route in routes:
        for model in (find_model(route.dependant), *_list_models(route)):
            held = get_args(model)[0] if get_origin(model) is list else model
            if held is not None:
                types[_name(held)] = held
    made = definitions([*types.items()])
    renamed = {name: _shorten(name) for name in made if "__" in name}
    shown = {renamed.get(name, name): _refer_anew(schema, renamed) for name, schema in made.items()}
    return dict(sorted(shown.items()))


def _list_models(route: APIRoute) -> Iterator[Any]:
    yield route.response_model
    yield from (model for _, model in _list_others(route))


def _list_others(route: APIRoute) -> list[tuple[str, Any]]:
    """List the models of a route's answers beside the usual one and errors, by status. That of 200 is a stream's."""
    others = {str(status): answer.get("model") for status, answer in route.responses.items()}
    return [(status, model) for status, model in others.items() if model is not None and status != "default"]


def _name(held: Any) -> str:
    """Name a type, or one that stands for another."""
    stands = next((meta for meta in getattr(held, "__metadata__", ()) if isinstance(meta, StandsFor)), None)
    return str((stands.make() if stands else held).__name__)


def _shorten(name: str) -> str:
    """Shorten the name of a type that another one has, too: Clew's keeps it, others begin with their package."""
    package, own = name.partition("__")[0], name.rpartition("__")[2]
    return own if package.startswith(_OWN) else "".join(map(str.capitalize, package.split("_"))) + own


def _refer(held: Any) -> JsonSchema:
    if get_origin(held) is list:
        return {"type": "array", "items": _refer(get_args(held)[0])}
    return {"$ref": _REF + _name(held)}


def _refer_anew(schema: Any, renamed: Mapping[str, str]) -> Any:
    """Refer to components, by their names in the document."""
    match schema:
        case dict():
            return {name: _refer_anew(part, renamed) for name, part in schema.items()}
        case list():
            return [_refer_anew(part, renamed) for part in schema]
        case str() if schema.startswith(_DEFS):
            name = schema.removeprefix(_DEFS)
            return _REF + renamed.get(name, name)
    return schema


def _describe_parameter(parameter: dict[str, Any]) -> dict[str, Any]:
    """Describe a parameter, which may be absent and is never null."""
    schema = {name: part for name, part in parameter["schema"].items() if name != "title"}
    choices = [choice for choice in schema.pop("anyOf", ()) if choice != {"type": "null"}]
    schema |= choices[0] if len(choices) == 1 else {"anyOf": choices} if choices else {}
    # The parameter has it.
    schema.pop("description", None)
    made = parameter | {"schema": schema}
    return made | {"example": PARAMETERS[parameter["name"]]} if parameter["name"] in PARAMETERS else made


def _describe_answers(route: APIRoute, made: dict[str, Any], example: Example) -> dict[str, Any]:
    answers = {status: answer for status, answer in made.items() if status.startswith("2")}
    content: dict[str, Any] = {}
    if route.response_model is not None:
        content["application/json"] = {"schema": _refer(route.response_model), "example": example.answer}
    for status, model in _list_others(route):
        if status == "200":
            content[EventStream.media_type] = _describe_events(model, example)
        else:
            other = {"application/json": {"schema": _refer(model), "example": example.other}}
            answers[status] = {"description": made[status]["description"], "content": other}
    for media_type, described in answers["200"].get("content", {}).items():
        if not content:
            content[media_type] = {**described, "example": example.answer}
    answers["200"] |= {"content": content, "description": (route.endpoint.__doc__ or "").strip().partition("\n")[0]}
    error = {"application/json": {"schema": _refer(ErrorBody), "example": REFUSED}}
    return {**answers, "default": {"description": "An error. `code` is the contract's word.", "content": error}}


def _describe_events(events: Any, example: Example) -> JsonSchema:
    """Describe a stream: `schema` is that of the JSON in the data of each event, `itemSchema` that of an event."""
    data = {"type": "string", "contentMediaType": "application/json", "contentSchema": _refer(events)}
    fields = {"data": data, "event": {"type": "string"}, "id": {"type": "string"}, "retry": {"type": "integer"}}
    item = {"type": "object", "properties": fields, "required": ["data"]}
    return {"schema": _refer(events), "itemSchema": item, "example": example.event}


# The page, which has no script and needs no network.


_STYLE = """
:root { color-scheme: light dark; font: 16px/1.5 system-ui, sans-serif }
body { max-width: 60rem; margin: 2rem auto; padding: 0 1rem }
section { border-top: 1px solid #8886; padding: .5rem 0 }
h2 { font: 600 1rem ui-monospace, monospace; margin: .5rem 0; overflow-wrap: anywhere }
code, pre { font: .875rem ui-monospace, monospace }
pre { overflow-x: auto; background: #8882; padding: .75rem; border-radius: .25rem }
dt { font-family: ui-monospace, monospace; font-size: .875rem }
"""
_HEADERS = {"Content-Security-Policy": "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'"}


def add_page(app: FastAPI) -> None:
    """Add `/docs`, a page that lists the routes of the OpenAPI document."""
    app.add_api_route("/docs", show_document, include_in_schema=False)


async def show_document(request: Request) -> HTMLResponse:
    """Show the routes.

    FastAPI keeps each function that answers a route, and with it what it closes over: the application would stay.
    """
    application: FastAPI = request.app
    return HTMLResponse(render_page(application.openapi()), headers=_HEADERS)


def render_page(document: dict[str, Any]) -> str:
    """Render an OpenAPI document: each operation with its parameters and its body."""
    title = escape(f"{document['info']['title']} {document['info']['version']}")
    sections = "\n".join(_render_operations(document))
    return (
        f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{title}</title>'
        f'<meta name="viewport" content="width=device-width"><style>{_STYLE}</style></head><body>'
        f"<h1>{title}</h1><p>Send a key with each request: <code>Authorization: Bearer clew_…</code>. "
        f'Programs read <a href="openapi.json">openapi.json</a>.</p>\n{sections}</body></html>'
    )


def _render_operations(document: dict[str, Any]) -> Iterator[str]:
    schemas: dict[str, Any] = document.get("components", {}).get("schemas", {})
    for path, operations in document["paths"].items():
        for method, operation in operations.items():
            heading = f"<h2>{escape(method.upper())} {escape(path)}</h2>"
            text = escape(operation.get("description") or operation.get("summary") or "")
            rows = [*_list_parameters(operation), *_list_fields(operation, schemas)]
            shown = "".join(f"<dt>{escape(name)}</dt><dd>{escape(meaning)}</dd>" for name, meaning in rows)
            yield f"<section>{heading}<p>{text}</p>{f'<dl>{shown}</dl>' if shown else ''}</section>"


def _list_parameters(operation: dict[str, Any]) -> Iterator[tuple[str, str]]:
    for parameter in operation.get("parameters", []):
        yield f"{parameter['name']} ({parameter['in']})", parameter.get("description", "")


def _list_fields(operation: dict[str, Any], schemas: dict[str, Any]) -> Iterator[tuple[str, str]]:
    content = operation.get("requestBody", {}).get("content", {})
    reference = content.get("application/json", {}).get("schema", {}).get("$ref", "")
    schema = schemas.get(reference.removeprefix(_REF), {})
    required = schema.get("required", ())
    for name, field in schema.get("properties", {}).items():
        yield f"{name} (body{', required' if name in required else ''})", field.get("description", "")
