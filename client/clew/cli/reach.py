"""Reach a session, or fail within seconds: no server, no session, or no worker."""

from __future__ import annotations

import re
import shlex
from collections.abc import AsyncGenerator, Coroutine
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any, TypeVar, Unpack

from temporalio.client import WorkflowExecutionDescription, WorkflowExecutionStatus
from temporalio.envconfig import ClientConfig
from temporalio.runtime import Runtime, TelemetryConfig
from temporalio.service import RPCError, RPCStatusCode

from clew.session.connection import Clew
from clew.session.keywords import SessionOptions
from clew.session.session import Session
from clew.session.transport import translate_error
from clew_workflows.contract import WORKFLOW_TYPE
from clew_workflows.contract.errors import (
    ClewError,
    InvalidInput,
    NotFound,
    ServerUnreachable,
    UnknownApproval,
    WorkerUnavailable,
)
from clew_workflows.contract.lists import SessionSummary
from clew_workflows.contract.names import DELETED_WORKFLOW
from clew_workflows.contract.outputs import SessionStatus
from clew_workflows.temporal_faults.cancelled_calls import wait_at_most

T = TypeVar("T")

SERVER_SECONDS = 5.0
"""Seconds within which the server must answer."""
WORKER_SECONDS = 10.0
"""Seconds within which a worker must answer. The server lists stopped workers as pollers for minutes."""


class Misconfigured(ClewError):
    """A setting, a file or the address of the server is not valid."""


@dataclass(frozen=True, slots=True)
class Target:
    """The server, namespace and task queue of a command.

    Attributes:
        address: Host and port; None for Temporal's environment configuration.
        namespace: Temporal's namespace; None for Temporal's environment configuration.
        task_queue: The task queue of new sessions.
    """

    address: str | None
    namespace: str | None
    task_queue: str


@dataclass(frozen=True, slots=True)
class Opened:
    """A session that answers.

    Attributes:
        session: The session.
        status: Its status when it was reached.
        resumed: Whether it existed before.
    """

    session: Session
    status: SessionStatus
    resumed: bool


async def connect(target: Target, seconds: float = SERVER_SECONDS) -> Clew:
    """Connect to the server.

    Raises:
        Misconfigured: Temporal's configuration or the address is not valid.
        ServerUnreachable: No server answers in time.
    """
    try:
        address = target.address or ClientConfig.load_client_connect_config().get("target_host") or "localhost:7233"
        connecting = Clew.connect(
            address,
            namespace=target.namespace,
            task_queue=target.task_queue,
            # Keep the SDK's warnings out of the output.
            runtime=Runtime(telemetry=TelemetryConfig(logging=None)),
        )
    except (RuntimeError, OSError, ValueError) as error:
        raise Misconfigured(f"Temporal's environment configuration is not valid: {error}") from error
    try:
        return await wait_at_most(seconds, connecting)
    except ValueError as error:
        raise Misconfigured(f"the address {address!r} is not valid: {error}") from error
    except TimeoutError:
        raise _make_no_server(address, target.namespace, f"no answer within {seconds:g} s") from None
    except ServerUnreachable as error:
        raise _make_no_server(address, target.namespace, _extract_reason(str(error))) from error


async def find_session(clew: Clew, session_id: str) -> Opened:
    """Find a session that exists as a workflow, open or ended, and read its status.

    Raises:
        Closed: The session has ended, and the server has forgotten its workflow.
        NotFound: There is no such session.
        WorkerUnavailable: No worker answers for it.
    """
    clew.session(session_id)
    described = await _describe(clew, session_id)
    if described is None:
        await clew.check_worker()
        absent = _make_absent(session_id)
        raise await wait_for_answer(clew.session(session_id)._handle.explain_absence(absent), session_id)
    connection = _use_task_queue(clew, described)
    await connection.check_worker()
    session = connection.session(session_id)
    return Opened(session, await _read_status(session), resumed=True)


async def use_task_queue(clew: Clew, session_id: str) -> Clew:
    """Make a connection for a session that may exist only in the archive: it uses the session's task queue.

    Raises:
        WorkerUnavailable: No worker polls that task queue.
    """
    clew.session(session_id)
    connection = _use_task_queue(clew, await _describe(clew, session_id))
    await connection.check_worker()
    return connection


async def open_session(clew: Clew, session_id: str, **options: Unpack[SessionOptions]) -> Opened:
    """Resume a session, or start it with this configuration.

    Raises:
        NotFound: There is no such session, and neither an agent nor a model to start it with.
        WorkerUnavailable: No worker answers for it.
    """
    if options.get("agent") is None and options.get("model") is None:
        try:
            session = await (await use_task_queue(clew, session_id)).open(session_id, **options)
        except NotFound:
            raise _make_absent(session_id) from None
        return Opened(session, await _read_status(session), resumed=True)
    clew.session(session_id)
    described = await _describe(clew, session_id)
    await _use_task_queue(clew, described).check_worker()
    session = await clew.open(session_id, **options)
    resumed = described is not None and described.status is WorkflowExecutionStatus.RUNNING
    return Opened(session, await _read_status(session), resumed)


async def take_sessions(listed: AsyncGenerator[SessionSummary, None], most: int) -> list[SessionSummary]:
    """Read the first sessions of a list."""
    rows = []
    async with aclosing(listed):
        async for summary in listed:
            rows.append(summary)
            if len(rows) == most:
                break
    return rows


async def wait_for_answer(work: Coroutine[Any, Any, T], session_id: str, seconds: float = WORKER_SECONDS) -> T:
    """Wait for an answer that a running worker gives at once.

    Raises:
        WorkerUnavailable: No answer came in time.
    """
    try:
        return await wait_at_most(seconds, work)
    except TimeoutError:
        raise WorkerUnavailable(
            f"no worker answers for session {session_id!r} within {seconds:g} s, though one polled its task "
            "queue recently: start one with `clew worker`"
        ) from None


async def wait_for_change(work: Coroutine[Any, Any, T], session_id: str, change: str, repeat: str = "") -> T:
    """Wait until a session has taken a change. It may still take it after this wait is over.

    Args:
        work: Sends the change.
        session_id: The session.
        change: The noun for it in the error, such as `message`.
        repeat: How it can be repeated, for the error.

    Raises:
        WorkerUnavailable: No answer came in time.
    """
    try:
        return await wait_for_answer(work, session_id)
    except WorkerUnavailable as error:
        raise WorkerUnavailable(
            f"{error}; the session may still accept the {change} once a worker runs{repeat}"
        ) from None


async def find_waiting_approval(session: Session) -> str:
    """Find the only tool call that waits for an approval. Returns its id.

    Raises:
        UnknownApproval: None waits, or more than one.
    """
    waiting = [call.tool_call_id for call in (await session.status()).pending_approvals]
    if len(waiting) != 1:
        raise UnknownApproval(
            f"several tool calls wait for approval: name one of {', '.join(waiting)}"
            if waiting
            else "no tool call waits for approval"
        )
    return waiting[0]


async def _read_status(session: Session) -> SessionStatus:
    return await wait_for_answer(session.status(), session.id)


async def _describe(clew: Clew, session_id: str) -> WorkflowExecutionDescription | None:
    """Describe the session's workflow, which the server does without a worker; None if there is none."""
    try:
        described = await wait_at_most(SERVER_SECONDS, clew.temporal.get_workflow_handle(session_id).describe())
    except TimeoutError:
        raise ServerUnreachable(f"the Temporal server has not answered within {SERVER_SECONDS:g} s") from None
    except RPCError as error:
        if error.status is not RPCStatusCode.NOT_FOUND:
            raise translate_error(error, session_id) from error
        if "namespace" in error.message.lower():
            raise ServerUnreachable(
                f"the Temporal server has no namespace {clew.temporal.namespace!r}: name another with --namespace "
                "or TEMPORAL_NAMESPACE"
            ) from error
        return None
    if described.workflow_type == DELETED_WORKFLOW:
        return None
    if described.workflow_type != WORKFLOW_TYPE:
        raise InvalidInput(f"the workflow {session_id!r} is a {described.workflow_type}, not a session")
    return described


def _use_task_queue(clew: Clew, described: WorkflowExecutionDescription | None) -> Clew:
    """Make a connection that uses the task queue of an existing session."""
    return Clew(clew.temporal, described.task_queue) if described else clew


def _make_absent(session_id: str) -> NotFound:
    command = f"`clew chat {session_id} --model PROVIDER:NAME`"
    return NotFound(f"there is no session {session_id!r}: start one with {command}, or with --agent")


def _make_no_server(address: str, namespace: str | None, reason: str) -> ServerUnreachable:
    host, _, port = address.rpartition(":")
    words = ["temporal", "server", "start-dev", *(["--port", port] if port != "7233" else [])]
    words += ["--namespace", namespace] if namespace else []
    # A server that is started here is at no other machine's address.
    start = f"start one, for example with `{shlex.join(words)}`, or " if host in ("localhost", "127.0.0.1") else ""
    return ServerUnreachable(
        f"no Temporal server answers at {address} ({reason}): {start}name another with --address or TEMPORAL_ADDRESS"
    )


def _extract_reason(report: str) -> str:
    """Extract the readable part of the SDK's error."""
    quoted = re.findall(r'(?:message|error): "([^"]+)"', report)
    return quoted[-1] if quoted else report.rpartition("Failed client connect: ")[2]
