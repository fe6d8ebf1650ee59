"""Checks that what the service answers is what its OpenAPI document says."""

from __future__ import annotations

import re
from functools import cache
from typing import Any

import jsonschema_rs

from docs.generate.serve import document


def check_answer(method: str, url: str, status: int, value: Any, media_type: str = "application/json") -> None:
    """Check the JSON of an answer, or the data of an event of a stream, by the schema of its operation and status."""
    validator = _make_validator(method.lower(), _find_path(method.lower(), url.partition("?")[0]), status, media_type)
    try:
        validator.validate(value)
    except jsonschema_rs.ValidationError as error:
        raise AssertionError(f"{method} {url}: {error.message[:500]} at {error.instance_path}") from None


@cache
def _find_path(method: str, url: str) -> str:
    """Find the path of an operation: with parameters only where a part of the URL is none of a path's own."""
    fitting: list[str] = [
        path
        for path, operations in document()["paths"].items()
        if method in operations and re.fullmatch(re.sub(r"\\\{\w+\\\}", "[^/]+", re.escape(path)), url)
    ]
    return min(fitting, key=lambda path: path.count("{"))


@cache
def _make_validator(method: str, path: str, status: int, media_type: str) -> Any:
    answers = document()["paths"][path][method]["responses"]
    schema = answers.get(str(status), answers["default"])["content"][media_type]["schema"]
    return jsonschema_rs.validator_for({**schema, "components": document()["components"]})
