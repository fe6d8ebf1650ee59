"""Malformed input is refused with a word of the contract, and the session continues."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Sequence
from io import BytesIO
from types import NoneType
from typing import Any

import pytest
from temporalio.api.enums.v1 import EventType
from temporalio.client import (
    WorkflowFailureError,
    WorkflowHandle,
    WorkflowQueryFailedError,
    WorkflowUpdateFailedError,
)
from temporalio.common import RawValue
from temporalio.exceptions import ApplicationError

from clew.errors import InvalidInput
from clew_activities.archive import Archive
from clew_audit.audit import audit_file, audit_session
from clew_audit.histories import SavedHistories
from clew_workflows.host.handlers import QUERIES, SIGNALS, UPDATES
from tests.support.examples import mark_slow_except
from tests.support.hostile_input import MALFORMED, assert_unharmed, make_chain, make_raw
from tests.support.images import DATA_URL, PNG
from tests.support.stack import Stack

NO_ARGUMENT = ("no argument", "null", "nothing")
"""The payloads of `MALFORMED` that a message without an argument may have."""


def list_malformed(is_bare: bool) -> dict[str, Sequence[RawValue]]:
    """List the malformed payloads of a message; with `is_bare` it may come without an argument."""
    return {case: args for case, args in MALFORMED.items() if not (is_bare and case in NO_ARGUMENT)}


@pytest.mark.slow
async def test_a_malformed_update_is_refused_and_leaves_nothing(stack: Stack) -> None:
    """Every update with every malformed payload is refused with a word of the contract."""
    session = await stack.open()
    await session.ask("hello")
    handle = stack.clew.temporal.get_workflow_handle(session.id)
    before = (await handle.describe()).raw_description.workflow_execution_info.history_length
    for update in (*UPDATES, "no_such_update"):
        for case, args in list_malformed(update in UPDATES and UPDATES[update].is_bare).items():
            with pytest.raises(WorkflowUpdateFailedError) as refused:
                await handle.execute_update(update, args=list(args))
            assert isinstance(refused.value.cause, ApplicationError), (update, case)
            assert refused.value.cause.type in ("invalid_input", "too_large"), (update, case)
            assert len(refused.value.cause.message) < 1000, (update, case)
    assert (await handle.describe()).raw_description.workflow_execution_info.history_length == before
    await assert_unharmed(stack, session.id)


async def test_a_schema_that_takes_the_machine_is_refused_and_leaves_nothing(stack: Stack) -> None:
    """A message of two kilobytes whose schema expands to a billion times its size is refused."""
    session = await stack.open()
    await session.ask("hello")
    handle = stack.clew.temporal.get_workflow_handle(session.id)
    before = (await handle.describe()).raw_description.workflow_execution_info.history_length
    for keyword in ("allOf", "anyOf", "oneOf"):
        bomb = make_chain(30, lambda ref, keyword=keyword: {keyword: [ref, ref]})  # type: ignore[misc]
        with pytest.raises(WorkflowUpdateFailedError) as refused:
            await handle.execute_update("message", {"content": "hello", "output_schema": bomb})
        assert isinstance(refused.value.cause, ApplicationError)
        assert refused.value.cause.type == "invalid_input"
        assert "refer to fewer alternatives" in refused.value.cause.message
    assert (await handle.describe()).raw_description.workflow_execution_info.history_length == before
    await assert_unharmed(stack, session.id)


@pytest.mark.parametrize("update_id", ["a\nb", "x" * 201])
async def test_an_update_id_that_cannot_name_a_request_is_refused(stack: Stack, update_id: str) -> None:
    """The server takes it; nobody could ask for the request later."""
    session = await stack.open()
    handle = stack.clew.temporal.get_workflow_handle(session.id)
    with pytest.raises(WorkflowUpdateFailedError) as refused:
        await handle.execute_update("message", {"content": "hello"}, id=update_id)
    assert isinstance(refused.value.cause, ApplicationError)
    assert refused.value.cause.type == "invalid_input"
    named = {"content": "hello", "request_id": "r-1"}
    assert (await handle.execute_update("message", named, id=update_id + "2"))["request_id"] == "r-1"
    await assert_unharmed(stack, session.id)


@pytest.mark.parametrize(
    "signal",
    mark_slow_except(("steer", "modify_context", "subagent_result", "no_such_signal"), [*SIGNALS, "no_such_signal"]),
)
async def test_a_malformed_signal_becomes_an_entry(stack: Stack, signal: str) -> None:
    """Every signal with every malformed payload becomes an entry with the reason."""
    session = await stack.open()
    handle = stack.clew.temporal.get_workflow_handle(session.id)
    rejected = list_malformed(signal in SIGNALS and SIGNALS[signal].is_bare)
    for args in rejected.values():
        await handle.signal(signal, args=list(args))
    await assert_unharmed(stack, session.id)
    entries = await session.entries(kind="input")
    assert len(entries) == len(rejected)
    for entry in entries:
        assert (entry.payload["event"], entry.payload["kind"]) == ("rejected", signal)
        assert entry.payload["reason"]
        assert len(entry.payload["content"]) <= (0 if entry.payload["reason"].startswith("invalid_input") else 200)
    assert (await session.entries())[0].kind == "config"


@pytest.mark.slow
async def test_a_malformed_query_is_refused(stack: Stack) -> None:
    """Every query with every malformed payload is refused with a word of the contract."""
    session = await stack.open()
    await session.entries()
    handle = stack.clew.temporal.get_workflow_handle(session.id)
    bare = {name: handler.is_bare for name, handler in QUERIES.items() if handler.input is not NoneType}
    for query, is_bare in (bare | {"no_such_query": False}).items():
        for args in list_malformed(is_bare).values():
            with pytest.raises(WorkflowQueryFailedError, match=r"^(invalid_input|too_large): "):
                await handle.query(query, args=list(args))
        for case in NO_ARGUMENT if is_bare else ():
            assert await handle.query(query, args=list(MALFORMED[case])), (query, case)
    await assert_unharmed(stack, session.id)


def make_starts(model: str) -> dict[str, tuple[Sequence[RawValue], str]]:
    """Make malformed starts, each with the word that it fails with."""
    config = f'{{"model":"{model}"'.encode()
    return {
        what: (args, "too_large" if what == "too large" else "invalid_input") for what, args in MALFORMED.items()
    } | {
        "no config": ((make_raw(b"{}"),), "invalid_input"),
        "a config of the wrong type": ((make_raw(b'{"config":[]}'),), "invalid_input"),
        "no model": ((make_raw(b'{"config":{}}'),), "invalid_input"),
        "an address for a model": ((make_raw(b'{"config":{"model":"http://evil/v1"}}'),), "invalid_input"),
        "an unknown field": ((make_raw(b'{"config":' + config + b',"base_url":"http://evil"}}'),), "invalid_input"),
        "another strategy": ((make_raw(b'{"config":' + config + b',"strategy":"cot"}}'),), "unsupported_strategy"),
        "no budget": (
            (make_raw(b'{"config":' + config + b',"context_policy":{"max_input_tokens":10}}}'),),
            "invalid_token_budget",
        ),
        "what does not go together": (
            (
                make_raw(
                    b'{"config":' + config + b',"context_policy":{"window":"epoch","token_estimator":"heuristic"}}}'
                ),
            ),
            "invalid_input",
        ),
        "an unknown projector": (
            (make_raw(b'{"config":' + config + b',"context_policy":{"projector":"magic"}}}'),),
            "invalid_input",
        ),
        "carried by nobody": (
            (make_raw(b'{"config":' + config + b'},"carried":{"version":1,"zlib":"AAAA"}}'),),
            "invalid_input",
        ),
        "a long prompt": (
            (make_raw(b'{"config":' + config + b',"system_prompt":"' + b"p" * 65_537 + b'"}}'),),
            "too_large",
        ),
    }


async def start(stack: Stack, args: Sequence[RawValue], workflow: str = "AgentSession") -> WorkflowHandle[Any, Any]:
    return await stack.clew.temporal.start_workflow(
        workflow, args=list(args), id=f"test-{uuid.uuid4().hex}", task_queue=stack.clew.task_queue
    )


@pytest.mark.slow
async def test_a_start_that_cannot_be_used_ends_at_once_with_its_word(stack: Stack) -> None:
    """The workflow fails; it does not keep running with failing workflow tasks."""
    for what, (args, word) in make_starts(stack.add_model("fine")).items():
        handle = await start(stack, args)
        with pytest.raises(WorkflowFailureError) as failed:
            await handle.result()
        assert isinstance(failed.value.cause, ApplicationError), what
        assert failed.value.cause.type == word, (what, failed.value.cause.message)
        history = await handle.fetch_history()
        assert history.events[-1].event_type == EventType.EVENT_TYPE_WORKFLOW_EXECUTION_FAILED, what
        assert not [
            event for event in history.events if event.event_type == EventType.EVENT_TYPE_WORKFLOW_TASK_FAILED
        ], what


async def test_an_unknown_workflow_type_and_a_bad_session_id_end_at_once(stack: Stack) -> None:
    """An unknown workflow type and an id outside the contract fail with `invalid_input`."""
    good = make_raw(f'{{"config":{{"model":"{stack.add_model("fine")}"}}}}'.encode())
    handles = [
        await start(stack, [good], workflow="AgentSesion"),
        await stack.clew.temporal.start_workflow(
            "AgentSession", good, id=f"bad id {uuid.uuid4().hex}", task_queue=stack.clew.task_queue
        ),
    ]
    for handle in handles:
        with pytest.raises(WorkflowFailureError) as failed:
            await handle.result()
        assert isinstance(failed.value.cause, ApplicationError)
        assert failed.value.cause.type == "invalid_input"


def nest_schema(levels: int) -> dict[str, Any]:
    """Make a schema with so many levels."""
    schema: dict[str, Any] = {"type": "integer"}
    for _ in range((levels - 1) // 2):
        schema = {"anyOf": [schema]}
    return schema


async def test_what_is_accepted_can_be_read_again_however_deep_it_is_nested(stack: Stack) -> None:
    """The deepest accepted schema can be read live, archived and by a replay; a deeper one is refused."""
    model = stack.add_model("1")
    session = await stack.clew.open(f"test-{uuid.uuid4().hex}", model=model)
    with pytest.raises(InvalidInput, match="nested over 64 levels deep"):
        await session.message("a number, please", output_schema=nest_schema(65))
    assert await session.ask("a number, please", output_schema=nest_schema(63)) == "1"
    (accepted,) = [entry for entry in await session.entries() if entry.payload.get("role") == "user"]
    assert accepted.payload["output_schema"] == nest_schema(63)
    await session.hibernate()
    session = await stack.clew.open(session.id, model=model)
    assert accepted in await session.entries()
    assert await session.ask("another one", output_schema=nest_schema(63)) == "1"
    report = await audit_session(stack.clew.temporal, Archive(stack.store, "default"), session.id)
    assert report.differences == []


@pytest.mark.slow
async def test_malformed_input_replays_as_it_was_handled(stack: Stack) -> None:
    """Malformed starts, signals and updates have the same effect live, in a replay, and in a replay from a file."""
    session = await stack.open()
    handle = stack.clew.temporal.get_workflow_handle(session.id)
    signals = [*(name for name, handler in SIGNALS.items() if not handler.is_bare), "no_such_signal"]
    for args in MALFORMED.values():
        await asyncio.gather(*(handle.signal(signal, args=list(args)) for signal in signals))
        with pytest.raises(WorkflowUpdateFailedError):
            await handle.execute_update("message", args=list(args))
    await assert_unharmed(stack, session.id)
    refused = [await start(stack, args) for args, _word in make_starts(stack.add_model("fine")).values()]
    for each in refused:
        with pytest.raises(WorkflowFailureError):
            await each.result()
    archive = Archive(stack.store, "default")
    for session_id in (session.id, *(each.id for each in refused)):
        saved = BytesIO()
        report = await audit_session(stack.clew.temporal, archive, session_id, saved)
        assert report.differences == []
        saved.seek(0)
        report = await audit_file(SavedHistories(saved, stack.clew.temporal.data_converter), archive)
        assert report.differences == []


async def test_a_data_url_is_refused_and_leaves_nothing(stack: Stack) -> None:
    """A message, an input, a message of a snapshot and one of a preview have no bytes in texts; a signal is noted."""
    session = await stack.open()
    await session.ask("hello")
    handle = stack.clew.temporal.get_workflow_handle(session.id)
    text = f"What is this? {DATA_URL}"
    snapshot = {"messages": [{"role": "user", "content": text}]}
    replace = {"op_id": "o-1", "operation": {"type": "replace", "result_context": snapshot}}
    updates: dict[str, dict[str, Any]] = {
        "message": {"content": text},
        "submit_input": {"content": text, "kind": "steer"},
        "submit_context_operation": replace,
    }
    before = (await session.status()).rev
    for name, argument in updates.items():
        with pytest.raises(WorkflowUpdateFailedError) as refused:
            await handle.execute_update(name, argument)
        assert isinstance(refused.value.cause, ApplicationError)
        assert refused.value.cause.type == "invalid_operation" if name.endswith("operation") else "invalid_input"
        assert f"a data URL (image/png, {len(PNG)} bytes)" in refused.value.cause.message
    with pytest.raises(WorkflowQueryFailedError, match="data URL"):
        await handle.query("context", {"pending": [{"role": "user", "content": text}]})
    for client_side in (session.ask(text), session.context(pending=[text])):
        with pytest.raises(InvalidInput, match="store the bytes as a blob"):
            await client_side
    assert (await session.status()).rev == before
    await handle.signal("steer", {"content": text})
    assert await session.ask("go on") == "fine"
    (noted,) = await session.entries(kind="input")
    assert "data URL" in noted.payload["reason"]


def _make_hostile_tools() -> list[dict[str, Any]]:
    """Make tools of a caller's own whose schemas are not valid, or costly to compile."""
    schemas: list[dict[str, Any]] = [
        {"type": "string"},
        {"type": "object", "minProperties": "x"},
        {"type": "object", "properties": {"a": {"pattern": "("}}},
        {"type": "object", "properties": {"a": {"pattern": "(a{1,999}){1,999}"}}},
        {"type": "object", "properties": {f"p{n}": {"pattern": f"a{n}"} for n in range(101)}},
        {"type": "object", "$ref": "https://example.com/schema"},
        {"type": "object", "$ref": "#"},
    ]
    return [{"name": "order", "parameters": schema} for schema in schemas]


async def test_options_of_models_out_of_bounds_are_refused_and_leave_nothing(stack: Stack) -> None:
    """As an update, where nothing has checked them before the session: their values, their sizes and their depth."""
    session = await stack.open()
    await session.ask("hello")
    handle = stack.clew.temporal.get_workflow_handle(session.id)
    deep: Any = {}
    for _ in range(250):
        deep = {"a": deep}
    wrong: list[dict[str, Any]] = [
        {"top_p": -0.01},
        {"verbosity": "loud"},
        {"service_tier": "no tier"},
        {"reasoning_effort": "most"},
        {"provider_options": {"openai": "x"}},
        {"provider_options": {"openai": {"user": "x" * 5000}}},
        {"provider_options": {"openai": deep}},
    ]
    before = (await handle.describe()).raw_description.workflow_execution_info.history_length
    updates: list[tuple[str, dict[str, Any]]] = [
        ("message", {"content": "hello", "model_options": options}) for options in wrong
    ]
    updates += [("configure", {"model_options": options}) for options in wrong]
    updates += [("configure", {"provider_tools": tools}) for tools in (["search"], "web_search", [3])]
    updates += [("configure", {"external_tools": [tool]}) for tool in _make_hostile_tools()]
    for name, argument in updates:
        with pytest.raises(WorkflowUpdateFailedError) as refused:
            await handle.execute_update(name, argument)
        assert isinstance(refused.value.cause, ApplicationError), argument
        assert refused.value.cause.type == "invalid_input", argument
        assert len(refused.value.cause.message) < 1000
    assert (await handle.describe()).raw_description.workflow_execution_info.history_length == before
    await assert_unharmed(stack, session.id)
