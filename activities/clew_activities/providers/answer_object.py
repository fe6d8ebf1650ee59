"""Schemas whose root is no object: providers get an object with the member `value`, sessions get the value. Pure.

OpenAI and Anthropic accept only a schema whose root is an object. The thread holds the caller's schema and an answer
of that form; both follow from each other, so that the recipe of a model call is still complete.
"""

from __future__ import annotations

import re
from typing import Any

from pydantic_core import from_json, to_json

from clew.outcomes import Usage
from clew_activities.providers.interface import Decoder
from clew_activities.providers.rewrite_schema import rewrite_schema
from clew_workflows.protocol import ModelReply

# Keywords that providers refuse at the root.
_COMBINING = frozenset(("$ref", "allOf", "anyOf", "oneOf", "not", "enum", "const", "if"))
_DEFINITIONS = ("$defs", "definitions")
_MEMBER = "value"
_OPENING = re.compile(rf'\s*{{\s*"{_MEMBER}"\s*:\s*')
_COMPACT_OPENING = f'{{"{_MEMBER}":'


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
        "properties": {_MEMBER: inner},
        "required": [_MEMBER],
        "additionalProperties": False,
        **definitions,
    }
    return rewrite_schema(wrapped, _move_reference)


class AnswerDecoder:
    """Wraps a decoder and reads the value from the object that the model was asked for.

    A model may answer with the bare value, since some servers ignore the schema: then its text stays as it is.
    """

    def __init__(self, decoder: Decoder) -> None:
        self._decoder = decoder

    def feed(self, event: str, data: str) -> None:
        """Take one event, as `Decoder.feed` says."""
        self._decoder.feed(event, data)

    @property
    def text(self) -> str:
        """The value's text so far, without an end that may belong to the object."""
        text = self._decoder.text
        opening = _OPENING.match(text)
        if opening:
            return _cut_end(text[opening.end() :])
        return "" if _COMPACT_OPENING.startswith("".join(text[:1000].split())) else text

    @property
    def thinking(self) -> str:
        """The model's thinking so far."""
        return self._decoder.thinking

    @property
    def tool_name(self) -> str | None:
        """The tool whose arguments are arriving, or arrived last."""
        return self._decoder.tool_name

    @property
    def arguments_size(self) -> int:
        """Characters of tool calls' arguments so far."""
        return self._decoder.arguments_size

    @property
    def usage(self) -> Usage:
        """The usage that the server has reported so far."""
        return self._decoder.usage

    @property
    def ended(self) -> bool:
        """Whether the provider's end marker came."""
        return self._decoder.ended

    def finish(self) -> ModelReply:
        """The reply with the value as its text; raises as `Decoder.finish` says."""
        reply = self._decoder.finish()
        return reply.model_copy(update={"content": _read_value(reply.content)})


def _move_reference(subschema: dict[str, Any]) -> dict[str, Any]:
    reference = subschema.get("$ref")
    if not isinstance(reference, str) or reference.startswith(tuple(f"#/{keyword}/" for keyword in _DEFINITIONS)):
        return subschema
    return {**subschema, "$ref": f"#/properties/{_MEMBER}{reference[1:]}"}


def _read_value(text: str) -> str:
    """Return the text of the object's member, as the model wrote it; the whole text if it is no such object."""
    try:
        answer = from_json(text)
    except ValueError:
        return text
    if not isinstance(answer, dict) or answer.keys() != {_MEMBER}:
        return text
    opening = _OPENING.match(text)
    try:
        value = _cut_end(text[opening.end() :]) if opening else ""
        from_json(value)
    except ValueError:
        # The name is escaped, or there twice.
        return to_json(answer[_MEMBER]).decode()
    return value


def _cut_end(text: str) -> str:
    return text.rstrip().removesuffix("}").rstrip()
