"""JSON Schemas that come from outside, checked against without being trusted."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import jsonschema_rs


def problems(value: Any, schema: Any) -> Iterator[str]:
    """How a value differs from what a schema asks for, each in words.

    Patterns are matched in linear time, and the schema can refer to nothing but itself: no file, no network.

    Raises:
        ValueError: the schema is none.
    """
    try:
        validator = jsonschema_rs.Draft202012Validator(
            schema, pattern_options=jsonschema_rs.RegexOptions(), retriever=_nothing
        )
    except (ValueError, jsonschema_rs.ValidationError, jsonschema_rs.ReferencingError) as error:
        raise ValueError(str(error)[:500]) from None
    for found in validator.iter_errors(value):
        place = ".".join(map(str, found.instance_path))
        yield f"{place}: {found.message[:300]}" if place else found.message[:300]


def _nothing(uri: str) -> Any:
    raise ValueError(f"{uri} is not within the schema")
