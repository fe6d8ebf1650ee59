"""The way in: connect to Temporal, open sessions."""

from __future__ import annotations

import asyncio
import atexit
import functools
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any, Literal, Unpack

from pydantic import TypeAdapter, ValidationError
from temporalio.api.enums.v1 import TaskQueueType
from temporalio.api.taskqueue.v1 import TaskQueue
from temporalio.api.workflowservice.v1 import DescribeTaskQueueRequest
from temporalio.client import Client, Interceptor, Plugin, WorkflowExecutionStatus
from temporalio.common import WorkflowIDReusePolicy
from temporalio.contrib.pydantic import pydantic_data_converter
from temporalio.converter import DataConverter
from temporalio.envconfig import ClientConfig
from temporalio.exceptions import WorkflowAlreadyStartedError
from temporalio.runtime import Runtime
from temporalio.service import RPCError, TLSConfig

from clew.contract import (
    DELETE_WORKFLOW,
    RESTORE_WORKFLOW,
    TASK_QUEUE,
    DeleteSessionInput,
    Limits,
    ModelOptions,
    OnBusy,
    ReadThreadInput,
    RestoreInput,
    SessionConfig,
    SessionId,
)
from clew.contract.outputs import DeleteReceipt, RestoreReceipt
from clew.contract.payloads import ConfigPayload
from clew.contract.policy import ContextPolicy
from clew.errors import Closed, InvalidInput, NotFound, ServerUnreachable, ThreadMismatch, WorkerUnavailable
from clew.session._query_retry import retry_queries_soon
from clew.session._reader import read_status
from clew.session._services import run_service
from clew.session._thread_service import read_thread
from clew.session.handle import SessionHandle
from clew.session.options import EntryFilters
from clew.session.session import Session
from clew.session.starting import start_session
from clew.session.transport import make_input, translate_error
from clew.thread.entries import Entry

CONNECT_SECONDS = 10
POLLER_SECONDS = 75
"""A worker's poll lasts at most 60 seconds; the server lists pollers for minutes after they are gone."""


@functools.cache
def _exit_quietly() -> None:
    """Let the SDK's threads come to rest before the interpreter ends.

    A program that ends right after it connected would die of them (temporalio/sdk-python#300).
    """
    atexit.register(time.sleep, 0.02)


class Clew:
    """A connection to Temporal and the task queue that sessions live on.

    Attributes:
        temporal: Temporal's own client.
        task_queue: The task queue that new sessions are started on.
    """

    def __init__(self, client: Client, task_queue: str = TASK_QUEUE) -> None:
        self.temporal = retry_queries_soon(client)
        self.task_queue = task_queue

    @classmethod
    async def connect(
        cls,
        address: str | None = None,
        *,
        namespace: str | None = None,
        task_queue: str = TASK_QUEUE,
        api_key: str | None = None,
        tls: bool | TLSConfig | None = None,
        identity: str | None = None,
        rpc_metadata: Mapping[str, str | bytes] | None = None,
        data_converter: DataConverter = pydantic_data_converter,
        interceptors: Sequence[Interceptor] = (),
        plugins: Sequence[Plugin] = (),
        runtime: Runtime | None = None,
    ) -> Clew:
        """Connect to a Temporal server. What is not given comes from Temporal's own environment configuration.

        A client that needs more of the SDK's options is made with `temporalio.client.Client.connect`, and `Clew` of
        that.

        Args:
            address: Host and port.
            namespace: Temporal's namespace.
            task_queue: The task queue that new sessions are started on.
            api_key: Temporal Cloud's key.
            tls: Whether and how the connection is encrypted.
            identity: How this client is called in event histories.
            rpc_metadata: Headers of every call to the server.
            data_converter: Encodes payloads, for example with encryption; the workers need the same one.
            interceptors: The SDK's interceptors, for example for tracing.
            plugins: The SDK's plugins.
            runtime: The SDK's runtime, with its logging and its metrics.

        Raises:
            InvalidInput: the address or Temporal's configuration cannot be used.
            ServerUnreachable: no server answers there.
        """
        try:
            config: dict[str, Any] = {"target_host": "localhost:7233", **ClientConfig.load_client_connect_config()}
        except (RuntimeError, OSError, ValueError) as error:
            raise InvalidInput(f"Temporal's configuration cannot be used: {error}") from error
        options = {
            "target_host": address or None,
            "namespace": namespace or None,
            "api_key": api_key,
            "tls": tls,
            "identity": identity,
            "rpc_metadata": rpc_metadata,
            "runtime": runtime,
        }
        config |= {name: value for name, value in options.items() if value is not None}
        config |= {"data_converter": data_converter, "interceptors": interceptors, "plugins": plugins}
        try:
            async with asyncio.timeout(CONNECT_SECONDS):
                client = await Client.connect(**config)
        except ValueError as error:
            raise InvalidInput(f"{config['target_host']!r} is no address of a server: {error}") from error
        except (RuntimeError, TimeoutError) as error:
            raise ServerUnreachable(
                f"no Temporal server answers at {config['target_host']}: {str(error)[:300]}"
            ) from error
        _exit_quietly()
        return cls(client, task_queue)

    async def open(
        self,
        session_id: str,
        *,
        model: str | None = None,
        system_prompt: str | None = None,
        tools: Sequence[str] | None = None,
        require_approval: Sequence[str] | None = None,
        on_busy: OnBusy | None = None,
        steering: Literal["terminal", "step"] | None = None,
        context_policy: ContextPolicy | None = None,
        model_options: ModelOptions | Mapping[str, Any] | None = None,
        max_iterations: int | None = None,
        request_timeout_seconds: int | None = None,
        idle_timeout_seconds: int | None = None,
        encoding: str | None = None,
        limits: Limits | Mapping[str, Any] | None = None,
        metadata: Mapping[str, str] | None = None,
        strategy: str | None = None,
    ) -> Session:
        """Resume the session where it exists, with the configuration it has; start it where it does not.

        One that hibernates, or was closed, goes on from its archive with every seq intact. Without a `model` there is
        nothing to start with, so the session must exist.

        Raises:
            InvalidInput: the id or the configuration is not of the contract's shape.
            NotFound: without a model: there is no such session.
            ThreadMismatch: the session was terminated, and must be recovered first.
        """
        validate_session_id(session_id)
        session = Session(self.temporal, session_id, self.task_queue)
        if model is None:
            try:
                status = await read_status(self._make_handle(session_id), only_open=True)
            except Closed:
                # It has ended, and the server may have forgotten it; its archive has not.
                model = await self._read_archived_model(session_id)
            else:
                if not status.closed:
                    return session
                model = status.model
        config = make_input(
            SessionConfig,
            {
                "model": model,
                "strategy": strategy,
                "system_prompt": system_prompt,
                "tools": tools,
                "require_approval": require_approval,
                "on_busy": on_busy,
                "steering": steering,
                "context_policy": context_policy,
                "model_options": model_options,
                "max_iterations": max_iterations,
                "request_timeout_seconds": request_timeout_seconds,
                "idle_timeout_seconds": idle_timeout_seconds,
                "encoding": encoding,
                "limits": limits,
                "metadata": metadata,
            },
        )
        try:
            await self._start(session_id, config, WorkflowIDReusePolicy.REJECT_DUPLICATE)
        except WorkflowAlreadyStartedError:
            await self._refuse_terminated(session_id)
            await self._start(session_id, config, WorkflowIDReusePolicy.ALLOW_DUPLICATE)
        return session

    def _make_handle(self, session_id: str) -> SessionHandle:
        return SessionHandle(self.temporal, session_id, self.task_queue)

    async def _read_archived_model(self, session_id: str) -> str:
        async for config in self.read_thread(session_id, kind="config", newest=1):
            return config.read(ConfigPayload).model
        raise NotFound(f"there is no session {session_id!r}: give a model to start it with")

    async def _start(self, session_id: str, config: SessionConfig, reuse: WorkflowIDReusePolicy) -> None:
        try:
            await start_session(self.temporal, session_id, config, self.task_queue, reuse)
        except RPCError as error:
            raise translate_error(error, session_id) from error

    async def _refuse_terminated(self, session_id: str) -> None:
        """A session goes on from its archive, which one that was cut off has not written to the end."""
        try:
            ended = await self.temporal.get_workflow_handle(session_id).describe()
        except RPCError as error:
            raise translate_error(error, session_id) from error
        if ended.status in (WorkflowExecutionStatus.TERMINATED, WorkflowExecutionStatus.TIMED_OUT):
            raise ThreadMismatch(
                f"session {session_id!r} was cut off by its termination: `clew recover` puts it together again"
            )

    def session(self, session_id: str) -> Session:
        """A session by its id, without asking whether it exists."""
        return Session(self.temporal, validate_session_id(session_id), self.task_queue)

    def read_thread(
        self,
        session_id: str,
        *,
        from_seq: int = 0,
        to_seq: int | None = None,
        limit: int | None = None,
        newest: int | None = None,
        **filters: Unpack[EntryFilters],
    ) -> AsyncIterator[Entry]:
        """A session's thread, wherever it is: entry by entry, archived and live as one.

        Args:
            session_id: The session.
            from_seq: The first entry.
            to_seq: The last entry; None: the thread's newest.
            limit: At most so many entries, from the first on.
            newest: At most so many entries, the last ones that meet the filters; without `limit`.
            filters: Conditions that every entry meets.

        Raises:
            ArchiveDamaged: an object of the archive is missing or damaged.
            ArchiveUnavailable: the archive cannot be read at present.
            InvalidInput: the arguments do not go together.
            NotFound: there is no such session.
        """
        query = {
            **filters,
            "session_id": validate_session_id(session_id),
            "from_seq": from_seq,
            "to_seq": to_seq,
            "limit": limit,
            "newest": newest,
        }
        return read_thread(self._make_handle(session_id), make_input(ReadThreadInput, query))

    async def delete(self, session_id: str) -> int:
        """End a session and delete its archive and its event histories: the number of archived segments deleted.

        What its forks share with it stays, until they are deleted too.

        Raises:
            NotFound: there is no such session, or no longer.
        """
        command = DeleteSessionInput(session_id=validate_session_id(session_id))
        answer = await run_service(self.temporal, self.task_queue, DELETE_WORKFLOW, command, session_id)
        return DeleteReceipt.model_validate(answer).deleted_segments

    async def restore(self, token: str, session_id: str | None = None) -> Session:
        """Start a session that goes on from a checkpoint (`Session.checkpoint`), under a new id or the one given.

        It has the checkpoint's context under its lane and the configuration that the checkpoint was made under.

        Raises:
            CheckpointUnavailable: the workers have no key for checkpoints.
            InvalidInput: there is a session of that id already.
            TokenExpired, TokenForeign, TokenKey, TokenLegacy, TokenMalformed, TokenSignature, TokenVersion: the token
                is not taken, for the reason that the class says.
            TokenMismatch: the workers' tools or models are not what they were.
        """
        command = make_input(RestoreInput, {"token": token, "session_id": session_id})
        about = session_id or "new"
        answer = await run_service(self.temporal, self.task_queue, RESTORE_WORKFLOW, command, about)
        return self.session(RestoreReceipt.model_validate(answer).session_id)

    async def check_worker(self) -> None:
        """Ask whether a worker polls the task queue.

        Raises:
            WorkerUnavailable: none does; sessions would wait until one comes.
        """
        request = DescribeTaskQueueRequest(
            namespace=self.temporal.namespace,
            task_queue=TaskQueue(name=self.task_queue),
            task_queue_type=TaskQueueType.TASK_QUEUE_TYPE_WORKFLOW,
        )
        try:
            answer = await self.temporal.workflow_service.describe_task_queue(request)
        except RPCError as error:
            raise translate_error(error, "") from error
        if not any(time.time() - poller.last_access_time.seconds < POLLER_SECONDS for poller in answer.pollers):
            raise WorkerUnavailable(f"no worker polls the task queue {self.task_queue!r}: start one with worker.py")


def validate_session_id(session_id: str) -> str:
    """A session id, if it is one.

    Raises:
        InvalidInput: it is not.
    """
    try:
        return _session_id.validate_python(session_id)
    except ValidationError:
        raise InvalidInput("a session id has 1 to 200 characters of letters, digits, '.', '_', ':' and '-'") from None


_session_id: TypeAdapter[str] = TypeAdapter(SessionId)
