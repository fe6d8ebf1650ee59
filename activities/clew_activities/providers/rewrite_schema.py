"""Makes a changed copy of a JSON Schema, subschema by subschema. Pure."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from clew_workflows.contract.schemas import KEYWORDS_BY_NAME, SUBSCHEMA_KEYWORDS, Subschema


def rewrite_schema(schema: Subschema, rewrite: Callable[[Subschema], Subschema]) -> Subschema:
    """Return a copy in which `rewrite` has changed each subschema, the inner ones first.

    Values that look like schemas, such as those of `enum` and `default`, stay as they are.
    """
    return rewrite({keyword: _rewrite_content(keyword, content, rewrite) for keyword, content in schema.items()})


def _rewrite_content(keyword: str, content: Any, rewrite: Callable[[Subschema], Subschema]) -> Any:
    if keyword not in SUBSCHEMA_KEYWORDS:
        return content
    if isinstance(content, list):
        return [_rewrite_part(part, rewrite) for part in content]
    if isinstance(content, dict) and keyword in KEYWORDS_BY_NAME:
        return {name: _rewrite_part(part, rewrite) for name, part in content.items()}
    return _rewrite_part(content, rewrite)


def _rewrite_part(part: Any, rewrite: Callable[[Subschema], Subschema]) -> Any:
    return rewrite_schema(part, rewrite) if isinstance(part, dict) else part
