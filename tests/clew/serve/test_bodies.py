"""Bodies that are the contract's types."""

from __future__ import annotations

import pytest

from clew.serve.bodies import parse_body
from clew.serve.problems import InvalidParameter
from clew_workflows.contract import ContextOperation, MessageInput, SessionConfig
from clew_workflows.contract.errors import InvalidOperation


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
