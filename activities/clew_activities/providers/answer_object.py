"""Answers with a schema: what providers get of the schema, and where the value stands in the reply. Pure.

OpenAI and Anthropic accept only a schema whose root is an object. For another one providers get the schema of an
object with the member `value`. The thread holds the caller's schema and an answer of that form; both follow from each
other, so that the recipe of a model call is still complete.

Models put the value into a fence of Markdown, or between sentences. The answer is the value alone.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

from pydantic_core import from_json, to_json

from clew_activities.providers.interface import Decoder
from clew_activities.providers.rewrite_schema import rewrite_schema
from clew_workflows.contract.outcomes import Usage
from clew_workflows.protocol import ModelReply

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


class AnswerDecoder:
    """Wraps a decoder and reads the value from the reply: where it stands, and if it `is_wrapped` from its object.

    A model may answer with the bare value, since some servers ignore the schema.
    """

    def __init__(self, decoder: Decoder, *, is_wrapped: bool = True) -> None:
        self._decoder = decoder
        self._is_wrapped = is_wrapped

    def feed(self, event: str, data: str) -> None:
        """Take one event, as `Decoder.feed` says."""
        self._decoder.feed(event, data)

    @property
    def text(self) -> str:
        """The value's text so far, without an end that may belong to the object."""
        text = self._decoder.text
        if not self._is_wrapped:
            return text
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
        if reply.tool_calls:
            return reply
        text = find_value(reply.content)
        return reply.model_copy(update={"content": _read_value(text) if self._is_wrapped else text})


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


def _move_reference(subschema: dict[str, Any]) -> dict[str, Any]:
    reference = subschema.get("$ref")
    if not isinstance(reference, str) or reference.startswith(tuple(f"#/{keyword}/" for keyword in _DEFINITIONS)):
        return subschema
    return {**subschema, "$ref": f"#/properties/{MEMBER}{reference[1:]}"}


def _read_value(text: str) -> str:
    """Return the text of the object's member, as the model wrote it; the whole text if it is no such object."""
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


def _cut_end(text: str) -> str:
    return text.rstrip().removesuffix("}").rstrip()
