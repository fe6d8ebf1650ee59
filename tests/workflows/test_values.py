"""The values that workflows and activities exchange and store."""

from __future__ import annotations

import base64
import tracemalloc
import zlib
from typing import Any

import pytest
from pydantic_core import from_json, to_json

from clew.contract import ContextPolicy, ModelOptions
from clew.errors import InvalidInput, NewerVersion
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
from clew_workflows.session.carried import FORMAT, restore
from clew_workflows.values import MAX_INFLATED_BYTES, Format, Packed, Value, inflate

# The JSON of the protocol's values, of which the history has one for each model call and each answer.


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


# What Clew has compressed is read, and nothing that inflates beyond it.


WHOLE = zlib.compress(b"x" * 1000)


def test_what_was_packed_is_read() -> None:
    """Any JSON value is unpacked as it was packed."""
    values: tuple[Any, ...] = (None, [], {"a": ["b", 2**53, 1.5]})
    for value in values:
        assert Packed.pack(value).value == value


def test_exactly_as_much_as_is_allowed_is_inflated() -> None:
    """One byte more is refused."""
    assert inflate(WHOLE, 1000) == b"x" * 1000
    with pytest.raises(ValueError, match="inflates to more than 999 bytes"):
        inflate(WHOLE, 999)


@pytest.mark.parametrize("data", [b"", b"x", WHOLE[:-1], WHOLE[:9], WHOLE + b"x", WHOLE + WHOLE])
def test_what_is_not_one_whole_stream_is_refused(data: bytes) -> None:
    """Damaged, cut short, or with something behind it."""
    with pytest.raises(ValueError, match=r"compressed value|header"):
        inflate(data, 10_000)


def make_packed(text: bytes) -> dict[str, int | str]:
    return {"version": FORMAT.version, "zlib": base64.b64encode(zlib.compress(text, 9)).decode()}


@pytest.mark.parametrize(
    "text",
    [
        b"[" * 500_000,
        b"[" * 500_000 + b"]" * 500_000,
        b'{"state":' * 100_000,
        b'{"state":' + b"9" * 5000 + b"}",
        b'{"version":1,"thread":' + b"[" * 10_000_000,
        b'{"state":"\\ud800"}',
        b"\xff\xfe",
        b"NaN",
    ],
)
def test_json_that_breaks_parsers_is_refused(text: bytes) -> None:
    """Nested without an end, numbers without an end, no UTF-8: typed, as all that Clew has not written."""
    with pytest.raises(InvalidInput, match="carried is written by Clew alone"):
        restore(make_packed(text))


def test_a_bomb_is_refused_in_little_memory() -> None:
    """512 MB in half a megabyte: a thirtieth of it is inflated before it is refused."""
    stream = zlib.compressobj(9)
    bomb = b"".join([*(stream.compress(bytes(1 << 20)) for _ in range(512)), stream.flush()])
    tracemalloc.start()
    try:
        with pytest.raises(InvalidInput, match=f"inflates to more than {MAX_INFLATED_BYTES} bytes"):
            restore({"version": FORMAT.version, "zlib": base64.b64encode(bomb).decode()})
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 4 * MAX_INFLATED_BYTES


# Versions of durable formats.


def rename(value: dict[str, Any]) -> dict[str, Any]:
    return {"text": value["content"]}


def add_size(value: dict[str, Any]) -> dict[str, Any]:
    return {**value, "size": len(value["text"])}


LETTER = Format("letter", 4, (rename, add_size))
"""A format whose versions 2, 3 and 4 are read."""


@pytest.mark.parametrize(
    ("version", "value"), [(2, {"content": "hi"}), (3, {"text": "hi"}), (4, {"text": "hi", "size": 2})]
)
def test_each_version_becomes_the_newest(version: int, value: dict[str, Any]) -> None:
    """A value takes the steps from its version to the newest, and no other; the newest takes none."""
    assert LETTER.upgrade(value, LETTER.check(version)) == {"text": "hi", "size": 2}


def test_a_newer_version_is_refused_by_both_numbers() -> None:
    """The refusal names the version in the data, those that are read, and the way out."""
    with pytest.raises(NewerVersion, match=r"^letter is of version 5, and .* reads 2 to 4: upgrade"):
        LETTER.check(5)
    with pytest.raises(NewerVersion, match=r"^letters/7 is of version 2, and this version of Clew reads 1: upgrade"):
        Format("letter").check(2, "letters/7")


@pytest.mark.parametrize("version", [1, 0, -1, None, "4", 4.0, True, [4]])
def test_what_is_no_version_is_no_newer_one(version: object) -> None:
    """A number that was never written, and what is no number, are damage."""
    with pytest.raises(ValueError, match="the versions are 2 to 4"):
        LETTER.check(version)
