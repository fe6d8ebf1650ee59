"""Context operations that need no session to be refused."""

from __future__ import annotations

import json
from contextlib import nullcontext
from typing import Any, get_args

import pytest
from pydantic import ValidationError

from clew.contract import ContextOperation, MessageInput, Operation
from clew.errors import InvalidInput, InvalidOperation, Refusal
from clew_workflows.contract.inputs import PutBlobInput, SendMessageInput
from clew_workflows.contract.validation import translate_validation_error


def refused(**fields: Any) -> Refusal:
    """The refusal of an operation, sent as JSON."""
    with pytest.raises(ValidationError) as raised:
        ContextOperation.model_validate_json(json.dumps({"op_id": "o", **fields}))
    return translate_validation_error(ContextOperation, raised.value)


def test_every_operation_is_told_by_its_type() -> None:
    """The class of an operation is known from its JSON alone."""
    fields_by_type: dict[str, dict[str, Any]] = {
        "replace": {"result_context": {"messages": []}},
        "switch": {},
        "pin": {"seqs": [1]},
        "unpin": {"seqs": [1]},
        "expand": {},
    }
    classes = []
    for kind, fields in fields_by_type.items():
        text = json.dumps({"op_id": "o", "context_ref": "draft", "operation": {"type": kind, **fields}})
        operation = ContextOperation.model_validate_json(text).operation
        assert operation.type == kind
        classes.append(type(operation))
    assert tuple(classes) == get_args(get_args(Operation)[0])


@pytest.mark.parametrize(
    "operation",
    [
        {},
        "expand",
        {"type": "explode"},
        {"type": "expand", "seqs": [1]},
        {"type": "pin"},
        {"type": "replace"},
        {"type": "replace", "result_context": {"messages": [{"role": "system", "content": "x"}]}},
        {"type": "switch"},
    ],
)
def test_what_is_wrong_with_an_operation_is_refused_as_invalid_operation(operation: Any) -> None:
    """Also for what its type alone shows, and for a lane that it needs."""
    assert isinstance(refused(operation=operation), InvalidOperation)


@pytest.mark.parametrize("fields", [{}, {"operation": {"type": "expand"}, "lane": "x"}])
def test_what_is_wrong_around_an_operation_is_refused_as_invalid_input(fields: Any) -> None:
    """As in every other input."""
    if not fields:
        with pytest.raises(ValidationError) as raised:
            ContextOperation.model_validate_json("[]")
        assert isinstance(translate_validation_error(ContextOperation, raised.value), InvalidInput)
    else:
        assert isinstance(refused(**fields), InvalidInput)


@pytest.mark.parametrize(
    ("fields", "is_valid"),
    [
        ({"session_id": "s"}, True),
        ({"session_prefix": "s", "config": {"model": "openai:gpt-4o"}}, True),
        ({"session_prefix": "s"}, False),
        ({"session_id": "s", "session_prefix": "s", "config": {"model": "openai:gpt-4o"}}, False),
        ({}, False),
    ],
)
def test_a_message_of_a_schedule_is_for_one_session(fields: dict[str, Any], is_valid: bool) -> None:
    """One that has its id, or a new one, which needs a configuration."""
    with nullcontext() if is_valid else pytest.raises(ValidationError):
        SendMessageInput.model_validate_json(json.dumps({"message": {"content": "x"}, **fields}))


@pytest.mark.parametrize(
    ("fields", "is_valid"),
    [
        ({}, True),
        ({"part": 1}, False),
        ({"last": False}, False),
        ({"upload_id": "u", "part": 1}, True),
        ({"upload_id": "u", "last": False}, True),
    ],
)
def test_a_blob_of_several_chunks_is_an_upload(fields: dict[str, Any], is_valid: bool) -> None:
    """Its id tells the chunks of one from those of another."""
    with nullcontext() if is_valid else pytest.raises(ValidationError, match="upload_id"):
        PutBlobInput.model_validate_json(json.dumps({"session_id": "s", "data": "", **fields}))


def test_an_input_that_has_no_operation_is_never_refused_as_one() -> None:
    """A field named `operation` in another input is an unknown field like any other."""
    with pytest.raises(ValidationError) as raised:
        MessageInput.model_validate_json('{"content": "x", "operation": 1}')
    assert isinstance(translate_validation_error(MessageInput, raised.value), InvalidInput)
