"""The JSON of the protocol's values, of which the history has one for each model call and each answer."""

from __future__ import annotations

import pytest
from pydantic_core import from_json, to_json

from clew.contract import ContextPolicy, ModelOptions
from clew_workflows.contract.outcomes import Usage
from clew_workflows.protocol import (
    ArchiveRef,
    CallModel,
    FunctionRoute,
    ModelAnswered,
    ModelReply,
    Prepared,
    RequestedTool,
    ResolvedTool,
    RolloverThresholds,
    ToolAnswered,
)
from clew_workflows.values import Value

POLICY = ContextPolicy(keep_last_turns=3, system_prompt=None)
CALL = CallModel(
    request_id="r-1",
    run_id="run-1",
    call_id="call-1",
    iteration=1,
    context_ref="default",
    at_seq=0,
    model="m:m",
    options=ModelOptions(max_output_tokens=100, seed=0),
    context_policy=POLICY,
    encoding="o200k_base",
    hooks=(),
)
TOOL = ResolvedTool(
    spec={"name": "add", "description": "", "parameters": {}},
    route=FunctionRoute(type="function"),
    timeout_seconds=60,
    max_attempts=1,
    requires_approval=False,
)
VALUES: tuple[Value, ...] = (
    CALL,
    ModelAnswered(
        reply=ModelReply(
            tool_calls=(RequestedTool(name="add"),), usage=Usage(input_tokens=3), stop_reason="tool_calls"
        ),
        digest="d",
        policy_hash="p",
        input_tokens=0,
        attempt=1,
        epoch=(),
        shared_prefix_tokens=0,
    ),
    ToolAnswered(content=""),
    Prepared(tools=(TOOL,), hooks=()),
    ArchiveRef(execution="e", family="f"),
)


@pytest.mark.parametrize("value", VALUES, ids=lambda value: type(value).__name__)
def test_a_value_reads_back_as_it_was(value: Value) -> None:
    """Also what is empty and is not the default: no hooks, an epoch without seqs, a prefix of 0 tokens."""
    assert type(value).model_validate_json(to_json(value)) == value


def test_what_is_empty_by_default_takes_no_bytes() -> None:
    """A call's JSON has the fields that say something, those of its options and its policy included."""
    assert from_json(to_json(CALL)) == {
        "request_id": "r-1",
        "run_id": "run-1",
        "call_id": "call-1",
        "iteration": 1,
        "context_ref": "default",
        "at_seq": 0,
        "model": "m:m",
        "options": {"max_output_tokens": 100, "seed": 0},
        "context_policy": {"keep_last_turns": 3, "system_prompt": None},
        "encoding": "o200k_base",
        "hooks": [],
    }


def test_a_policys_fields_are_those_that_were_set() -> None:
    """A field that is set to its default replaces that of the session, and one that is not set does not."""
    decoded = CallModel.model_validate_json(to_json(CALL)).context_policy
    assert decoded is not None
    assert decoded.model_fields_set == {"keep_last_turns", "system_prompt"}


def test_a_default_that_a_release_may_change_is_written() -> None:
    """A replay reads from the history what the worker of its time decided with."""
    thresholds = RolloverThresholds()
    assert from_json(to_json(thresholds)) == thresholds.model_dump()
    assert from_json(to_json(ArchiveRef(execution="e", family="f")))["thresholds"] == thresholds.model_dump()


def test_what_is_no_json_is_complete() -> None:
    """Only the JSON leaves fields out."""
    assert CALL.model_dump().keys() == CallModel.model_fields.keys()
