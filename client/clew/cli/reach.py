"""Reach a session, or say quickly why not: no server, no session, no worker."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Coroutine, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from temporalio.client import WorkflowExecutionDescription, WorkflowExecutionStatus
from temporalio.envconfig import ClientConfig
from temporalio.runtime import Runtime, TelemetryConfig
from temporalio.service import RPCError, RPCStatusCode

from clew.contract import WORKFLOW_TYPE
from clew.contract.outputs import SessionStatus
from clew.errors import ClewError, Closed, InvalidInput, ServerUnreachable, WorkerUnavailable
from clew.session.connection import Clew
from clew.session.session import Session
from clew.session.transport import translate_error

T = TypeVar("T")

SERVER_SECONDS = 5.0
"""A server that takes longer to say anything is taken for none."""
WORKER_SECONDS = 10.0
"""The server counts a worker among those who poll for minutes after its end; it is the silence that tells."""


class Misconfigured(ClewError):
    """Temporal's environment configuration, or the address given, cannot be used."""


@dataclass(frozen=True, slots=True)
class Target:
    """Where sessions live. What is None comes from Temporal's environment configuration."""

    address: str | None
    namespace: str | None
    task_queue: str


@dataclass(frozen=True, slots=True)
class Opened:
    """A session that answers, as it stood when it was reached."""

    session: Session
    status: SessionStatus
    resumed: bool


async def connect(target: Target, seconds: float = SERVER_SECONDS) -> Clew:
    """Connect, within seconds or not at all.

    Raises:
        Misconfigured: there is no using what was configured.
        ServerUnreachable: no server answers; the message says where, and how to start one.
    """
    try:
        address = target.address or ClientConfig.load_client_connect_config().get("target_host") or "localhost:7233"
        connecting = Clew.connect(
            address,
            namespace=target.namespace,
            task_queue=target.task_queue,
            # The SDK's own warnings would end up in the middle of the output.
            runtime=Runtime(telemetry=TelemetryConfig(logging=None)),
        )
    except (RuntimeError, OSError, ValueError) as error:
        raise Misconfigured(f"Temporal's configuration cannot be used: {error}") from error
    try:
        return await wait_at_most(seconds, connecting)
    except ValueError as error:
        raise Misconfigured(f"the address {address!r} cannot be used: {error}") from error
    except TimeoutError:
        raise _make_no_server(address, f"silent for {seconds:g} s") from None
    except ServerUnreachable as error:
        raise _make_no_server(address, _extract_reason(str(error))) from error


async def find_session(clew: Clew, session_id: str) -> Opened:
    """A session that exists, ended or not, and that a worker answers for.

    Raises:
        Closed: there is none of that id.
        WorkerUnavailable: no worker serves it.
    """
    clew.session(session_id)
    described = await _describe(clew, session_id)
    if described is None:
        raise Closed(f"there is no session {session_id!r}: open it with `clew ask` or `clew chat` and a --model")
    connection = _use_task_queue(clew, described)
    await connection.check_worker()
    session = connection.session(session_id)
    return Opened(session, await _read_status(session), resumed=True)


async def use_task_queue(clew: Clew, session_id: str) -> Clew:
    """The way to a session that may be in its archive alone.

    Raises:
        WorkerUnavailable: no worker is there to look for it.
    """
    clew.session(session_id)
    connection = _use_task_queue(clew, await _describe(clew, session_id))
    await connection.check_worker()
    return connection


async def open_session(
    clew: Clew,
    session_id: str,
    *,
    model: str | None,
    system_prompt: str | None,
    tools: Sequence[str] | None,
    require_approval: Sequence[str] | None,
) -> Opened:
    """A session to talk to: resumed where it exists, ended or not, started with the configuration where it does not.

    Raises:
        Closed: there is none of that id and no model to start one with.
        WorkerUnavailable: no worker serves it.
    """
    if model is None:
        found = await find_session(clew, session_id)
        if not found.status.closed:
            return found
        session = await (await use_task_queue(clew, session_id)).open(session_id)
        return Opened(session, await _read_status(session), resumed=True)
    clew.session(session_id)
    described = await _describe(clew, session_id)
    await _use_task_queue(clew, described).check_worker()
    session = await clew.open(
        session_id,
        model=model,
        system_prompt=system_prompt,
        tools=tools or None,
        require_approval=require_approval or None,
    )
    resumed = described is not None and described.status is WorkflowExecutionStatus.RUNNING
    return Opened(session, await _read_status(session), resumed)


async def wait_for_answer(work: Coroutine[Any, Any, T], session_id: str, seconds: float = WORKER_SECONDS) -> T:
    """What a worker answers at once, or the error that none does.

    Raises:
        WorkerUnavailable: it has been silent for too long.
    """
    try:
        return await wait_at_most(seconds, work)
    except TimeoutError:
        raise WorkerUnavailable(
            f"no worker answers for session {session_id!r} within {seconds:g} s, though one polled its task "
            "queue lately: start one with worker.py"
        ) from None


async def wait_at_most(seconds: float | None, work: Coroutine[Any, Any, T]) -> T:
    """The result of `work`.

    Unlike `asyncio.wait_for` it does not depend on how the work takes its cancellation: the SDK makes errors of its
    own of it, in which a Ctrl-C would be lost.

    Raises:
        TimeoutError: it took longer.
    """
    task = asyncio.ensure_future(work)
    try:
        done, _ = await asyncio.wait([task], timeout=seconds)
        if not done:
            raise TimeoutError
        return task.result()
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def _read_status(session: Session) -> SessionStatus:
    return await wait_for_answer(session.status(), session.id)


async def _describe(clew: Clew, session_id: str) -> WorkflowExecutionDescription | None:
    """The session's workflow as the server alone knows it, without a worker."""
    try:
        described = await wait_at_most(SERVER_SECONDS, clew.temporal.get_workflow_handle(session_id).describe())
    except TimeoutError:
        raise ServerUnreachable(f"the Temporal server has been silent for {SERVER_SECONDS:g} s") from None
    except RPCError as error:
        if error.status is not RPCStatusCode.NOT_FOUND:
            raise translate_error(error, session_id) from error
        if "namespace" in error.message.lower():
            raise ServerUnreachable(
                f"the Temporal server has no namespace {clew.temporal.namespace!r}: name another with --namespace "
                "or TEMPORAL_NAMESPACE"
            ) from error
        return None
    if described.workflow_type != WORKFLOW_TYPE:
        raise InvalidInput(f"the workflow {session_id!r} is a {described.workflow_type}, not a session")
    return described


def _use_task_queue(clew: Clew, described: WorkflowExecutionDescription | None) -> Clew:
    """A session may live on another task queue than the one that new ones are started on."""
    return Clew(clew.temporal, described.task_queue) if described else clew


def _make_no_server(address: str, reason: str) -> ServerUnreachable:
    return ServerUnreachable(
        f"no Temporal server answers at {address} ({reason}): start one with `make demo` or `temporal server "
        "start-dev`, or say where it is with --address or TEMPORAL_ADDRESS"
    )


def _extract_reason(report: str) -> str:
    """The part of the SDK's report that a person reads."""
    quoted = re.findall(r'(?:message|error): "([^"]+)"', report)
    return quoted[-1] if quoted else report.rpartition("Failed client connect: ")[2]
