"""Updates reach the session although many come at once, and Temporal's errors are translated."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from temporalio.client import WorkflowHandle, WorkflowUpdateRPCTimeoutOrCancelledError
from temporalio.service import RPCError, RPCStatusCode

from clew import Clew
from clew.agents import Agent
from clew.contract import ConfigureInput, MessageInput, SessionConfig
from clew.errors import ClewError, InvalidInput, NotFound, TooLarge, WorkerUnavailable
from clew.session.transport import check_input, dump_input, is_unknown, make_input, translate_error, translate_errors
from clew.tools import external_tool, tool
from clew_workflows.contract.inputs import ContextQuery
from tests.support.stack import Stack


async def wait_like_the_sdk(started: asyncio.Event) -> None:
    """Wait, and turn a cancellation into an error, as the SDK does."""
    try:
        started.set()
        await asyncio.Event().wait()
    except asyncio.CancelledError as error:
        raise WorkflowUpdateRPCTimeoutOrCancelledError from error


async def test_a_cancellation_stays_the_callers() -> None:
    """A caller's cancellation stays a `CancelledError`, although the SDK raises another error."""
    started = asyncio.Event()

    async def caller() -> None:
        async with translate_errors("s"):
            await wait_like_the_sdk(started)

    task = asyncio.create_task(caller())
    await started.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert task.cancelled()


async def test_what_takes_too_long_is_a_worker_that_does_not_answer() -> None:
    """A timeout is a `WorkerUnavailable`, not a cancellation."""
    with pytest.raises(WorkerUnavailable):
        async with translate_errors("s", 0.01):
            await wait_like_the_sdk(asyncio.Event())


@pytest.mark.slow
async def test_many_updates_at_once_are_all_answered(stack: Stack) -> None:
    """The server takes ten of a session's at a time. Callers wait for their turn, and hear nothing of that limit."""
    session = await stack.open()
    other = await Clew.connect(stack.server.address, task_queue=stack.clew.task_queue)
    sessions = [session, other.session(session.id)]
    receipts = await asyncio.gather(*(sessions[i % 2].configure(metadata={"n": str(i)}) for i in range(60)))
    assert {receipt.status for receipt in receipts} == {"applied"}
    assert len(await session.entries(kind="config")) == 1 + 60
    outcomes = await asyncio.gather(*(sessions[i % 2].ask("hello", request_id="same") for i in range(30)))
    assert set(outcomes) == {"fine"}
    assert len(stack.list_requests((await session.status()).config["model"])) == 1


async def test_an_update_that_the_server_has_no_room_for_is_sent_again(
    stack: Stack, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After the caller's time an error says so in Clew's words. It is no refusal: the session may have the update."""
    session = await stack.open()
    through = WorkflowHandle.start_update
    sent: list[str] = []

    async def refuse(self: WorkflowHandle[Any, Any], *args: Any, **options: Any) -> Any:
        sent.append(options["id"])
        if len(sent) == 3:
            return await through(self, *args, **options)
        raise RPCError("limit on number of concurrent in-flight updates", RPCStatusCode.RESOURCE_EXHAUSTED, b"")

    monkeypatch.setattr(WorkflowHandle, "start_update", refuse)
    await session.configure(metadata={"n": "1"})
    assert len(sent) == 3
    assert len(set(sent)) == 1
    monkeypatch.setattr("clew.session.transport.ACCEPT_SECONDS", 0.3)
    with pytest.raises(WorkerUnavailable, match="too many updates") as failed:
        await session.configure(metadata={"n": "2"})
    assert "in-flight" not in str(failed.value)


async def test_an_update_to_a_workflow_whose_tasks_fail_is_sent_again_more_and_more_rarely(
    stack: Stack, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server refuses it at once, for minutes: many callers that send it again at once take the workers' time."""
    session = await stack.open()
    sent: list[str] = []

    async def refuse(_self: WorkflowHandle[Any, Any], *_args: Any, **options: Any) -> Any:
        sent.append(options["id"])
        problem = "Unable to perform workflow execution update due to Workflow Task in failed state."
        raise RPCError(problem, RPCStatusCode.FAILED_PRECONDITION, b"")

    monkeypatch.setattr(WorkflowHandle, "start_update", refuse)
    monkeypatch.setattr("clew.session.transport.ACCEPT_SECONDS", 2.0)
    with pytest.raises(WorkerUnavailable, match="no worker accepted"):
        await session.configure(metadata={"n": "1"})
    assert 2 <= len(sent) <= 12


@tool
def look_up(key: str) -> str:
    """Look a key up."""
    return key


def test_a_tool_and_an_agent_are_sent_as_their_names() -> None:
    """Every call takes the tools that an `Agent` takes: the session gets their names."""
    tools = [look_up, external_tool("ship", "Ship it.", {"type": "object", "properties": {}}), "plain"]
    names = ["look_up", "ship", "plain"]
    fields = {"agent": Agent("kind", model="m:m"), "tools": tools, "require_approval": [look_up]}
    for model in (SessionConfig, ConfigureInput):
        sent = dump_input(make_input(model, fields))
        assert sent == {"agent": "kind", "tools": names, "require_approval": ["look_up"]}
    assert dump_input(make_input(MessageInput, {"content": "hi", "tools": tools}))["tools"] == names


def test_an_input_that_no_session_takes_is_refused_before_it_is_sent() -> None:
    """By its bytes as JSON, in the words of the session."""
    query = make_input(ContextQuery, {"pending": [{"role": "user", "content": "ä" * 100_000}]})
    assert check_input(query) is query
    with pytest.raises(TooLarge, match=r"the input has 4000.. bytes, at most 262144 are taken"):
        check_input(make_input(ContextQuery, {"pending": [{"role": "user", "content": "a" * 200_000}] * 2}))


def test_a_function_that_is_no_tool_is_refused() -> None:
    """The error says how it becomes one."""

    def plain() -> None:
        """Do nothing."""

    with pytest.raises(InvalidInput, match=r"plain is a function: decorate it with clew\.tool"):
        make_input(SessionConfig, {"model": "m:m", "tools": [plain]})


@pytest.mark.parametrize(
    ("status", "message", "kind"),
    [
        (RPCStatusCode.NOT_FOUND, "workflow not found for ID: s-1", NotFound),
        # A server with many shards deletes the history before the record of the workflow.
        (
            RPCStatusCode.INVALID_ARGUMENT,
            "Requested workflow history not found, may have passed retention period.",
            NotFound,
        ),
        (RPCStatusCode.INVALID_ARGUMENT, "Invalid NextPageToken.", ClewError),
    ],
)
def test_a_session_that_the_server_deletes_is_not_found(
    status: RPCStatusCode, message: str, kind: type[ClewError]
) -> None:
    """Whichever of its parts the server has deleted first."""
    error = RPCError(message, status, b"")
    assert type(translate_error(error, "s-1")) is kind
    assert is_unknown(error) is (kind is NotFound)


@pytest.mark.parametrize("status", [RPCStatusCode.ABORTED, RPCStatusCode.INTERNAL, RPCStatusCode.UNKNOWN])
def test_a_call_whose_outcome_is_open_is_not_told_as_refused(status: RPCStatusCode) -> None:
    """The server may have carried it out."""
    error = translate_error(RPCError("the connection was lost", status, b""), "s-1")
    assert type(error) is ClewError
    assert "refused" not in str(error)
