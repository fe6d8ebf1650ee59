"""Bodies that are the contract's types."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clew.serve.bodies import MAX_TEXT_CHARACTERS, ValueCounter, check_texts, parse_body
from clew.serve.problems import BodyTooLarge, InvalidParameter
from clew_workflows.contract import ContextOperation, MessageInput, SessionConfig
from clew_workflows.contract.errors import InvalidOperation

json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text('a,"\\[{é', max_size=8),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text('a,"\\[', max_size=4), inner, max_size=4),
)


def test_lists_become_tuples_and_an_empty_body_is_an_object() -> None:
    """A body has the JSON form, which the session receives."""
    parsed = parse_body(SessionConfig, b'{"model": "openai:x", "tools": ["a"]}')
    assert parsed.tools == ("a",)
    with pytest.raises(InvalidParameter, match="content"):
        parse_body(MessageInput, b"")


@pytest.mark.parametrize(
    "body", [b"[]", b"null", b"{", b'{"content": "x", "tools": "a"}', b'{"content": "\\ud800"}', b"[" * 100_000]
)
def test_a_body_that_is_not_valid_is_refused(body: bytes) -> None:
    """As a caller's error."""
    with pytest.raises(InvalidParameter):
        parse_body(MessageInput, body)


def test_a_context_operation_has_a_word_of_its_own() -> None:
    """The contract's, as in the session."""
    with pytest.raises(InvalidOperation):
        parse_body(ContextOperation, b'{"op_id": "a", "operation": {"type": "erase"}}')


@given(json_values, st.integers(1, 7))
def test_values_are_counted_without_parsing(value: Any, size: int) -> None:
    """In pieces of any size, whatever stands in texts."""
    text = json.dumps(value).encode()
    counter = ValueCounter()
    for start in range(0, len(text), size):
        counter.take(text[start : start + size])
    assert counter.values == count(value)


def count(value: Any) -> int:
    """Count the lists and objects of a value, and what separates their members."""
    if isinstance(value, dict | list):
        members = list(value.values()) if isinstance(value, dict) else value
        return 1 + max(len(members) - 1, 0) + sum(map(count, members))
    return 0


@pytest.mark.parametrize(
    "body",
    [
        {"content": "a" * (MAX_TEXT_CHARACTERS + 1)},
        {"content": [{"type": "text", "text": "a" * 900_000}] * 9},
        {"metadata": {"a": ["a" * (MAX_TEXT_CHARACTERS + 1)]}},
    ],
)
def test_a_text_that_no_session_takes_is_too_large(body: Any) -> None:
    """One, or all together."""
    with pytest.raises(BodyTooLarge, match="send a file as a blob"):
        check_texts(body)


def test_files_are_no_texts() -> None:
    """Wherever the interfaces have them: in base64, or in an address."""
    large = "A" * (MAX_TEXT_CHARACTERS + 1)
    check_texts(
        [{"data": large}, {"image_url": {"url": large}}, {"file_data": large}, f"data:image/png;base64,{large}"]
    )
