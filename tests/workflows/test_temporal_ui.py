"""What operators see of a session in the Temporal UI, as the server answers it."""

from __future__ import annotations

import json
from collections.abc import Iterable
from functools import partial

import pytest
from temporalio.api.enums.v1 import EventType
from temporalio.api.history.v1 import HistoryEvent
from temporalio.api.sdk.v1 import WorkflowInteractionDefinition, WorkflowMetadata
from temporalio.client import WorkflowExecution, WorkflowExecutionStatus, WorkflowFailureError, WorkflowHistory

from clew import Session
from clew.errors import NotFound
from clew.local import ToolCall
from clew_workflows.host.handlers import METADATA_QUERY
from docs.generate import messages
from tests.support.rolling import make_id
from tests.support.scripts import make_tool_script
from tests.support.stack import Stack
from tests.support.waiting import wait_until


def read_summary(event: HistoryEvent) -> str:
    """Read the label of an event; empty if it has none."""
    label: str = json.loads(event.user_metadata.summary.data or b'""')
    return label


def read_labels(history: WorkflowHistory) -> dict[str, list[str]]:
    """Read the labels of the activities, by type."""
    labels: dict[str, list[str]] = {}
    for event in history.events:
        if event.HasField("activity_task_scheduled_event_attributes"):
            name = event.activity_task_scheduled_event_attributes.activity_type.name
            labels.setdefault(name, []).append(read_summary(event))
    return labels


async def has_status(session: Session, status: str) -> bool:
    return (await session.status()).status == status


OWN = {"forked", "late_result", "subagent_result"}
"""The signals of the contract that Clew alone sends."""


def list_names(definitions: Iterable[WorkflowInteractionDefinition]) -> list[str]:
    """List the names of handlers, and assert that each has a description."""
    assert all(definition.description for definition in definitions)
    return [definition.name for definition in definitions]


async def test_the_menus_list_the_contract_and_each_query_answers(stack: Stack) -> None:
    """The metadata name every query, signal and update for callers. Every query answers without an argument."""
    session = await stack.open()
    await session.entries()
    handle = stack.clew.temporal.get_workflow_handle(session.id)
    definition = (await handle.query(METADATA_QUERY, result_type=WorkflowMetadata)).definition
    assert definition.type == "AgentSession"
    queries = list_names(definition.query_definitions)
    assert queries == sorted(query.name for query in messages.QUERIES)
    assert list_names(definition.update_definitions) == sorted(update.name for update in messages.UPDATES)
    assert list_names(definition.signal_definitions) == sorted({signal.name for signal in messages.SIGNALS} - OWN)
    for query in queries:
        assert await handle.query(query), query


async def test_helpers_of_clew_can_be_told_from_sessions_and_do_not_fail(stack: Stack) -> None:
    """A client that asks for a session which does not exist gets its answer, and no workflow has failed."""
    session_id = make_id()
    with pytest.raises(NotFound):
        await stack.clew.open(session_id)
    with pytest.raises(NotFound):
        await stack.clew.session(session_id).entries()

    async def list_helpers() -> list[WorkflowExecution]:
        query = 'WorkflowId STARTS_WITH "clew-service-"'
        return [found async for found in stack.clew.temporal.list_workflows(query) if session_id in found.id]

    async def are_listed() -> bool:
        return len(await list_helpers()) >= 2

    await wait_until(are_listed)
    helpers = await list_helpers()
    assert {found.workflow_type for found in helpers} == {"ReadThread"}
    assert {found.status for found in helpers} == {WorkflowExecutionStatus.COMPLETED}


async def test_a_refused_session_says_why(stack: Stack) -> None:
    """The details of a workflow that could not start as a session are the refusal."""
    handle = await stack.clew.temporal.start_workflow(
        "AgentSession", {"nonsense": 1}, id=make_id(), task_queue=stack.clew.task_queue
    )
    with pytest.raises(WorkflowFailureError):
        await handle.result()
    metadata = await handle.query(METADATA_QUERY, result_type=WorkflowMetadata)
    assert metadata.current_details.startswith("invalid_input: ")


async def test_an_operator_reads_what_a_session_does(stack: Stack) -> None:
    """The workflow's current details describe the session, and each activity has a label."""
    session = await stack.open(make_tool_script(ToolCall("add", {"a": 1, "b": 2})), tools=["add"])
    await session.ask("go")
    handle = stack.clew.temporal.get_workflow_handle(session.id)
    metadata = await handle.query(METADATA_QUERY, result_type=WorkflowMetadata)
    assert "**idle**" in metadata.current_details
    assert "2 model calls" in metadata.current_details
    history = await handle.fetch_history()
    labels = read_labels(history)
    model = (await session.status()).model.partition(":")[2]
    assert labels["call_model"][0] == f"call 1 · {model} · “go”"
    assert labels["call_model"][1].startswith(f"call 2 · {model} · so far ")
    assert labels["run_tool"] == ['add {"a":1,"b":2} · tool00001']
    groups = [
        marker.label for event in history.events for marker in event.event_group_markers if marker.HasField("label")
    ]
    assert {group.id for group in groups} == {"run-1"}
    assert [json.loads(group.label.data) for group in groups if group.HasField("label")] == ["run-1 · “go”"]


async def test_a_wait_for_approval_has_a_bar(stack: Stack) -> None:
    """It is a timer that begins when the call waits and is cancelled by the decision: two events."""
    session = await stack.open(make_tool_script(ToolCall("guarded", {})), tools=["guarded"])
    request = await session.message("go")
    await wait_until(partial(has_status, session, "awaiting_approval"))
    await session.approve("tool00001")
    await request.result()
    history = await stack.clew.temporal.get_workflow_handle(session.id).fetch_history()
    started = (event for event in history.events if event.event_type == EventType.EVENT_TYPE_TIMER_STARTED)
    (bar,) = (event for event in started if "waits for approval" in read_summary(event))
    assert read_summary(bar) == "waits for approval of guarded {} · tool00001"
    ends = [
        event.timer_canceled_event_attributes.started_event_id
        for event in history.events
        if event.event_type == EventType.EVENT_TYPE_TIMER_CANCELED
    ]
    assert ends == [bar.event_id]
