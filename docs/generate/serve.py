"""The reference of `clew serve`: its routes, its errors, its fields of OpenAI's API, and its OpenAPI document."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from functools import cache
from typing import Any

from fastapi.routing import APIRoute

from clew.serve import Keys, ServeSettings, make_app
from clew.serve.application import ROUTERS
from clew.serve.bodies import find_model
from clew.serve.error_words import WORDS
from clew.serve.problems import Problem
from clew_workflows.contract import errors
from clew_workflows.contract.errors import ClewError, Refusal, find_word
from docs.generate import openai_api
from docs.generate.tables import table


@cache
def make_page() -> str:
    """Make the page."""
    fields = ("field", "", "how")
    return (
        "# Routes and codes over HTTP\n\n"
        "The routes of `clew serve`, the codes of its errors, and the fields of OpenAI's API that it serves. "
        "[A service over HTTP](../serve.md) and [the OpenAI API](../serve-openai.md) show how to use it. "
        "[openapi.json](../schemas/openapi.json) has all bodies and answers.\n\n"
        "## Routes\n\n"
        f"{table(('route', 'body', 'meaning'), _list_routes())}\n"
        "The [contract](../contract.md) describes the bodies.\n\n"
        "## Status codes\n\n"
        f"{table(('status', 'code'), _list_statuses())}\n"
        "## Fields of the Responses API\n\n"
        f"{table(fields, openai_api.list_responses_fields())}\n"
        "## Fields of Chat Completions\n\n"
        f"{table(fields, openai_api.list_chat_fields())}"
    )


@cache
def document() -> dict[str, Any]:
    """The OpenAPI document of the service."""
    nothing: Any = object()
    return make_app(Keys([]), clew=nothing, settings=ServeSettings()).openapi()


def _list_routes() -> Iterator[list[str]]:
    for router in ROUTERS:
        for route in router.routes:
            if isinstance(route, APIRoute) and route.include_in_schema:
                model = find_model(route.dependant)
                summary = (route.endpoint.__doc__ or "").strip().partition("\n")[0]
                for method in sorted(route.methods or ()):
                    yield [f"`{method} {route.path}`", f"`{model.__name__}`" if model else "", summary]


def _list_statuses() -> Iterator[list[str]]:
    words: dict[int, set[str]] = defaultdict(set)
    for cls in filter(lambda value: isinstance(value, type), map(vars(errors).__getitem__, errors.__all__)):
        if issubclass(cls, ClewError) and cls not in (ClewError, Refusal):
            words[WORDS[find_word(cls)][0]].add(find_word(cls))
    for problem in Problem.__subclasses__():
        words[problem.status].add(problem.type)
    for number in sorted(words):
        yield [str(int(number)), ", ".join(f"`{word}`" for word in sorted(words[number]))]
