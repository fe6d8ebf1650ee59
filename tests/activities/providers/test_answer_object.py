"""Schemas whose root is no object reach providers as objects, and answers come back as values."""

from __future__ import annotations

import itertools
import json
import time
from typing import Any

import jsonschema_rs
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import TypeAdapter

from clew_activities.providers.answer_object import find_value, is_object_schema, make_object_schema
from clew_activities.providers.openai.chat_stream import OpenAIDecoder
from clew_activities.providers.reply import AnswerDecoder
from tests.support.provider_server import make_chunk

Schema = dict[str, Any]

NODE: Schema = {"type": "object", "properties": {"next": {"anyOf": [{"$ref": "#/$defs/node"}, {"type": "null"}]}}}
SCHEMAS: dict[str, tuple[Schema, list[Any], list[Any]]] = {
    "list": ({"type": "array", "items": {"type": "integer"}}, [[], [1]], [["a"], {}]),
    "anything": ({}, [None, 1, {"value": 2}], []),
    "no type": ({"required": ["a"]}, [{"a": 1}, 7], [{}]),
    "definitions": ({"$ref": "#/$defs/node", "$defs": {"node": NODE}}, [{"next": {"next": None}}], [{"next": 1}]),
    "old definitions": (
        {"items": {"$ref": "#/definitions/n"}, "definitions": {"n": {"type": "null"}}},
        [[None]],
        [[1]],
    ),
    "itself": ({"type": "array", "items": {"$ref": "#"}}, [[[[]]]], [[[1]]]),
    "own part": (
        {"type": "array", "prefixItems": [{"type": "string"}], "items": {"$ref": "#/prefixItems/0"}},
        [["a", "b"]],
        [["a", 1]],
    ),
    "a value like a reference": ({"enum": [{"$ref": "#/a"}]}, [{"$ref": "#/a"}], [{"$ref": "#/properties/value/a"}]),
    "a property of that name": (
        {"anyOf": [{"type": "object", "properties": {"$ref": {"type": "integer"}}}]},
        [{"$ref": 1}],
        [{"$ref": "#"}],
    ),
    "an id": (
        {"$id": "urn:x", "$schema": "https://json-schema.org/draft/2020-12/schema", "items": {"$ref": "#"}},
        [[1]],
        [],
    ),
}


@pytest.mark.parametrize("name", SCHEMAS)
def test_an_object_is_valid_where_its_value_is(name: str) -> None:
    """The wrapped schema accepts `{"value": …}` for the values that the schema accepts, and no others."""
    schema, good, bad = SCHEMAS[name]
    before = json.dumps(schema)
    assert not is_object_schema(schema)
    wrapped = make_object_schema(schema)
    assert (wrapped["type"], json.dumps(schema)) == ("object", before)
    whole, value = (jsonschema_rs.Draft202012Validator(form) for form in (wrapped, schema))
    assert [value.is_valid(one) for one in good + bad] == [True] * len(good) + [False] * len(bad)
    assert [whole.is_valid({"value": one}) for one in good + bad] == [True] * len(good) + [False] * len(bad)
    assert not whole.is_valid({"value": good[0], "more": 1})


def test_objects_go_as_they_are() -> None:
    """Alternatives at the root are what providers refuse even of objects."""
    assert is_object_schema({"type": "object", "properties": {}, "$defs": {}})
    assert not is_object_schema({"type": "object", "anyOf": [{}]})
    assert not is_object_schema({"type": ["object", "null"]})
    assert not is_object_schema(TypeAdapter(int | str).json_schema())


def read(pieces: list[str]) -> tuple[list[str], str]:
    """Decode a reply that arrives in pieces: the text after each piece, and the reply's text."""
    decoder = AnswerDecoder(OpenAIDecoder())
    texts = []
    for piece in pieces:
        decoder.feed("message", json.dumps(make_chunk(content=piece)))
        texts.append(decoder.text)
    decoder.feed("message", json.dumps(make_chunk("stop")))
    return texts, decoder.finish().text


@pytest.mark.parametrize(
    ("text", "content"),
    [
        ('{"value": [1, 2]}', "[1, 2]"),
        (' {\n "value" : {"a": "}"}\n}\n', '{"a": "}"}'),
        ('{"value":"}"}', '"}"'),
        ('{"value":1,"value":2}', "2"),
        ('{"v\\u0061lue": 3}', "3"),
        ("[1, 2]", "[1, 2]"),
        ("Oslo", "Oslo"),
        ('{"value": 1, "more": 2}', '{"value": 1, "more": 2}'),
        ('{"value": [1', '{"value": [1'),
        ('{"va lue": 1}', '{"va lue": 1}'),
        ("[" * 5000, "[" * 5000),
    ],
)
def test_the_value_is_the_text_that_the_model_wrote(text: str, content: str) -> None:
    """What is no such object stays as it is: a bare value, prose, an answer that was cut."""
    assert read([text])[1] == content


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
)


@given(JSON, st.sampled_from([None, 1]), st.integers(1, 5))
def test_the_text_of_a_value_only_grows(value: Any, indent: int | None, size: int) -> None:
    """Streams show the value as it grows, whatever the pieces, and end with it."""
    text = json.dumps({"value": value}, indent=indent)
    texts, content = read([text[at : at + size] for at in range(0, len(text), size)])
    assert json.loads(content) == value
    assert texts[-1] == content
    assert all(later.startswith(earlier) for earlier, later in itertools.pairwise(texts))


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ('{"a": 1}', '{"a": 1}'),
        ('```json\n{"a": 1}\n```', '{"a": 1}'),
        ('Here it is:\n```\n{"a": 1}\n```\nWell?', '{"a": 1}'),
        ('<think>{"b": 2}</think>\n{"a": 1}', '{"a": 1}'),
        ('The answer is {"a": [1]}, I think [see 2].', '{"a": [1]}'),
        ("```json\n5\n```", "5"),
        ("no json at all", "no json at all"),
        ("{" * 5000, "{" * 5000),
    ],
)
def test_a_value_is_read_where_it_stands(text: str, value: str) -> None:
    assert find_value(text) == value


@pytest.mark.parametrize("text", ["```\n" + " " * 250_000, "```\n" * 60_000 + " ", "[" * 250_000, "<think>" * 30_000])
def test_a_text_is_searched_in_time_that_grows_with_its_length(text: str) -> None:
    """White space after a fence that is never closed took minutes, in which the worker did nothing else."""
    began = time.process_time()
    find_value(text)
    assert time.process_time() - began < 5
