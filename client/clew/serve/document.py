"""The OpenAPI document of the service, with the bodies that `read_body` reads, and a page of it for people."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from html import escape
from typing import Any

from fastapi import APIRouter, FastAPI
from fastapi.responses import HTMLResponse
from fastapi.routing import APIRoute
from pydantic import BaseModel
from pydantic.json_schema import JsonSchemaMode, models_json_schema

from clew.serve.bodies import find_model

_REF = "#/components/schemas/"


def describe_bodies(app: FastAPI, routers: Sequence[APIRouter]) -> None:
    """Add the bodies that `read_body` reads to the OpenAPI document of an application with these routers."""
    make = app.openapi

    def make_document() -> dict[str, Any]:
        if app.openapi_schema is None:
            _add_bodies(routers, make())
        assert app.openapi_schema is not None
        return app.openapi_schema

    app.openapi = make_document  # type: ignore[method-assign]


def _add_bodies(routers: Sequence[APIRouter], document: dict[str, Any]) -> None:
    routes = [route for router in routers for route in router.routes if isinstance(route, APIRoute)]
    read = [(route, model) for route in routes if (model := find_model(route.dependant)) is not None]
    models: list[tuple[type[BaseModel], JsonSchemaMode]] = [
        (model, "validation") for model in dict.fromkeys(model for _, model in read)
    ]
    names, definitions = models_json_schema(models, ref_template=_REF + "{model}")
    schemas: dict[str, Any] = document.setdefault("components", {}).setdefault("schemas", {})
    renamed: dict[str, str] = {
        name: f"{name}Body" for name, schema in definitions["$defs"].items() if schemas.get(name, schema) != schema
    }
    for name, schema in definitions["$defs"].items():
        schemas[renamed.get(name) or name] = _rename_refs(schema, renamed)
    for route, model in read:
        schema = _rename_refs(names[model, "validation"], renamed)
        body = {"content": {"application/json": {"schema": schema}}}
        for method in route.methods or ():
            document["paths"][route.path_format][method.lower()]["requestBody"] = body


def _rename_refs(schema: Any, renamed: dict[str, str]) -> Any:
    """Rename what references name: the types of answers have other schemas under some names."""
    match schema:
        case dict():
            return {
                name: _REF + renamed.get(part.removeprefix(_REF), part.removeprefix(_REF))
                if name == "$ref" and isinstance(part, str)
                else _rename_refs(part, renamed)
                for name, part in schema.items()
            }
        case list():
            return [_rename_refs(part, renamed) for part in schema]
        case _:
            return schema


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

    @app.get("/docs", include_in_schema=False)
    async def show_document() -> HTMLResponse:
        """Show the routes."""
        return HTMLResponse(render_page(app.openapi()), headers=_HEADERS)


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
