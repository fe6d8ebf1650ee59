"""Answers with a schema: what providers get of the schema, and where the value stands in the reply. Pure.

OpenAI and Anthropic accept only a schema whose root is an object. For another one providers get the schema of an
object with the member `value`. The thread holds the caller's schema and an answer of that form; both follow from each
other, so that the recipe of a model call is still complete.

Models put the value into a fence of Markdown, or between sentences. The answer is the value alone.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from typing import Any

from pydantic_core import from_json, to_json

from clew_workflows.contract.schemas import KEYWORDS_BY_NAME, SUBSCHEMA_KEYWORDS, Subschema

# Keywords that providers refuse at the root.
_COMBINING = frozenset(("$ref", "allOf", "anyOf", "oneOf", "not", "enum", "const", "if"))
_DEFINITIONS = ("$defs", "definitions")
MEMBER = "value"
"""The member of the object that stands for a value of another form."""
_OPENING = re.compile(rf'\s*{{\s*"{MEMBER}"\s*:\s*')
_FENCE = re.compile(r"```[a-zA-Z0-9]*[ \t]*\r?\n(.*?)```", re.DOTALL)
_END_OF_THINKING = "</think>"
_BRACKET = re.compile(r"[{\[]")
_MOST_TRIES = 64
_DECODER = json.JSONDecoder()
_COMPACT_OPENING = f'{{"{MEMBER}":'


def describe_schema(schema: dict[str, Any]) -> str:
    """Describe a schema for the model, where the provider does not take it."""
    text = json.dumps(schema, ensure_ascii=False)
    return f"Answer with a JSON value alone. It follows this JSON Schema: {text}"


def is_object_schema(schema: dict[str, Any]) -> bool:
    """Whether providers accept the schema's root."""
    return schema.get("type") == "object" and not _COMBINING & schema.keys()


def make_object_schema(schema: dict[str, Any]) -> dict[str, Any]:
    """Make the schema of an object that has a value of `schema` as its only member. Definitions stay at the root."""
    definitions = {keyword: schema[keyword] for keyword in _DEFINITIONS if keyword in schema}
    inner = {
        keyword: content
        for keyword, content in schema.items()
        # `$id` would make the inner schema the root of its references.
        if keyword not in (*definitions, "$schema", "$id")
    }
    wrapped = {
        "type": "object",
        "properties": {MEMBER: inner},
        "required": [MEMBER],
        "additionalProperties": False,
        **definitions,
    }
    return rewrite_schema(wrapped, _move_reference)


def _move_reference(subschema: dict[str, Any]) -> dict[str, Any]:
    reference = subschema.get("$ref")
    if not isinstance(reference, str) or reference.startswith(tuple(f"#/{keyword}/" for keyword in _DEFINITIONS)):
        return subschema
    return {**subschema, "$ref": f"#/properties/{MEMBER}{reference[1:]}"}


def rewrite_schema(schema: Subschema, rewrite: Callable[[Subschema], Subschema]) -> Subschema:
    """Return a copy in which `rewrite` has changed each subschema, the inner ones first.

    Values that look like schemas, such as those of `enum` and `default`, stay as they are.
    """
    return rewrite({keyword: _rewrite_content(keyword, content, rewrite) for keyword, content in schema.items()})


def list_subschemas(schema: Subschema) -> list[Subschema]:
    """List the subschemas of a JSON Schema, the inner ones first and the schema itself last."""
    listed: list[Subschema] = []

    def note(subschema: Subschema) -> Subschema:
        listed.append(subschema)
        return subschema

    rewrite_schema(schema, note)
    return listed


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


def find_value(text: str) -> str:
    """Find the JSON value of an answer where it stands: alone, in a fence, or between sentences.

    Of several the last fence is taken, or the longest object or array. A text without one stays as it is.
    """
    text_after = text.rpartition(_END_OF_THINKING)[2]
    candidates = [text, text_after, *(match[1] for match in reversed(list(_FENCE.finditer(text_after))))]
    for candidate in candidates:
        if _is_json(candidate):
            return candidate.strip()
    return max(_list_values(text_after), key=len, default=text)


def read_growing_member(text: str) -> str:
    """Read the member of a growing object, without an end that may belong to the object.

    A text that is not such an object is itself.
    """
    if opening := _OPENING.match(text):
        return _cut_end(text[opening.end() :])
    return "" if _COMPACT_OPENING.startswith("".join(text[:1000].split())) else text


def read_member(text: str) -> str:
    """Return the text of the object's member, as the model wrote it; the full text if it is not such an object."""
    try:
        answer = from_json(text)
    except ValueError:
        return text
    if not isinstance(answer, dict) or answer.keys() != {MEMBER}:
        return text
    opening = _OPENING.match(text)
    try:
        value = _cut_end(text[opening.end() :]) if opening else ""
        from_json(value)
    except ValueError:
        # The name is escaped, or there twice.
        return to_json(answer[MEMBER]).decode()
    return value


def _is_json(text: str) -> bool:
    try:
        from_json(text, allow_inf_nan=False)
    except ValueError:
        return False
    return True


def _list_values(text: str) -> Iterator[str]:
    """List the objects and arrays in a text."""
    position = 0
    for _ in range(_MOST_TRIES):
        opening = _BRACKET.search(text, position)
        if opening is None:
            return
        try:
            _, end = _DECODER.raw_decode(text, opening.start())
        except (ValueError, RecursionError):
            position = opening.end()
        else:
            yield text[opening.start() : end]
            position = end


def _cut_end(text: str) -> str:
    return text.rstrip().removesuffix("}").rstrip()
