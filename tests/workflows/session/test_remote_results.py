"""Results of remote calls: every payload becomes a text that the model reads."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic_core import to_json

from clew_workflows.session.tool_rounds import read_remote_result
from tests.support.images import PARTS, PNG

LIMIT = 256


@given(st.sampled_from(["json/plain", "json/protobuf", "binary/null", "binary/plain", "", "é"]), st.binary())
def test_no_payload_is_too_odd(encoding: str, data: bytes) -> None:
    """The answer is short enough, and can be written."""
    answer = read_remote_result(encoding, data, LIMIT)
    assert len(answer.text.encode()) <= LIMIT or answer.is_error


@given(st.text(alphabet=st.characters(exclude_categories=["Cs"])))
def test_a_string_is_the_text_itself(text: str) -> None:
    """Without quotes, as the result of a Python function is."""
    answer = read_remote_result("json/plain", to_json(text), 10_000)
    assert (answer.content, answer.is_error) == (text, False)


def test_other_values_are_their_json() -> None:
    """As the worker has written it."""
    assert read_remote_result("json/plain", b'{"a": [1.50, null]}', LIMIT).content == '{"a": [1.50, null]}'
    assert read_remote_result("json/protobuf", b'{"a":1}', LIMIT).content == '{"a":1}'
    assert read_remote_result("binary/null", b"", LIMIT).content == "null"


def test_a_result_over_the_limit_is_truncated() -> None:
    """The mark names the size of all of it."""
    content = read_remote_result("json/plain", b'"' + b"x" * 300 + b'"', LIMIT).text
    assert content.endswith("x\n[truncated: the first 186 of 300 bytes are shown]")
    assert len(read_remote_result("json/plain", b'"' + b"x" * LIMIT + b'"', LIMIT).content) == LIMIT


@pytest.mark.parametrize("form", PARTS)
def test_an_image_is_described(form: str) -> None:
    """The model reads what was left out, as of the result of a Python function."""
    content = read_remote_result("json/plain", to_json(PARTS[form]), 100_000).content
    assert f"{len(PNG)} bytes: left out" in content
    assert len(content) < 300


@pytest.mark.parametrize("odd", [7, None, "text", {"type": "video"}, {"type": "image", "blob": {}}, {"type": "text"}])
def test_a_part_that_cannot_be_used_costs_no_other(odd: object) -> None:
    """It is a text, and the image beside it stays an image."""
    image = {"type": "image", "url": "https://h.example/a.png"}
    answer = read_remote_result("json/plain", to_json([{"type": "text", "text": "look"}, odd, image]), 10_000)
    assert not isinstance(answer.content, str)
    assert [part["type"] for part in answer.content] == ["text", "text", "image"]
    assert answer.content[0] == {"type": "text", "text": "look"}
