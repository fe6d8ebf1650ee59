"""Connect to Temporal and open sessions."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import shlex
import time
import uuid
from base64 import urlsafe_b64decode
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Unpack

from temporalio.api.enums.v1 import TaskQueueType
from temporalio.api.taskqueue.v1 import TaskQueue
from temporalio.api.workflowservice.v1 import DescribeTaskQueueRequest
from temporalio.client import Client, Interceptor, PayloadLimitsConfig, Plugin
from temporalio.common import Priority, WorkflowIDConflictPolicy, WorkflowIDReusePolicy
from temporalio.contrib.pydantic import pydantic_data_converter
from temporalio.converter import DataConverter
from temporalio.envconfig import ClientConfig
from temporalio.exceptions import TemporalError, WorkflowAlreadyStartedError
from temporalio.runtime import (
    LogForwardingConfig,
    LoggingConfig,
    PrometheusConfig,
    Runtime,
    TelemetryConfig,
    TelemetryFilter,
)
from temporalio.service import RPCError, TLSConfig

from clew.session._encryption import decrypt_token, encrypt_client
from clew.session.handle import STARTING_SECONDS, SessionHandle, name_repetition, run_service
from clew.session.keywords import EntryFilters, SessionOptions
from clew.session.live.channel import read_address
from clew.session.live.reader import use_channel
from clew.session.session import Session
from clew.session.session_lists import SessionLists
from clew.session.session_reads import read_status, read_thread
from clew.session.transport import INTERRUPTED, drop_absent, dump_input, make_input, make_interrupted, translate_error
from clew_workflows.contract import (
    AGENTS_WORKFLOW,
    DELETE_WORKFLOW,
    RESTORE_WORKFLOW,
    TASK_QUEUE,
    ConfigureInput,
    DeleteSessionInput,
    ReadThreadInput,
    RestoreInput,
    SessionConfig,
)
from clew_workflows.contract.config import find_fairness_key, make_start_arguments
from clew_workflows.contract.errors import (
    ClewError,
    Closed,
    Interrupted,
    InvalidInput,
    NotFound,
    ServerUnreachable,
    Starting,
    TokenMalformed,
    WorkerUnavailable,
)
from clew_workflows.contract.lists import AgentsList, AgentSummary, ListAgentsInput
from clew_workflows.contract.names import DELETED_WORKFLOW, MODEL_NAME, SESSION_ID
from clew_workflows.contract.outputs import DeleteReceipt
from clew_workflows.contract.payloads import ConfigPayload
from clew_workflows.encryption import Encryption
from clew_workflows.temporal_faults.exit_crash import delay_exit
from clew_workflows.temporal_faults.query_buffer import retry_queries_soon
from clew_workflows.temporal_faults.started_workflows import has_started
from clew_workflows.thread.entries import Entry

CONNECT_SECONDS = 10
"""Seconds within which a server must accept the connection."""
PAYLOAD_LIMITS = PayloadLimitsConfig(payloads_warn_size=1_500_000)
"""Sizes from which the SDK writes a warning to standard error. A chunk of a blob is smaller."""
POLLER_SECONDS = 75
"""Seconds since its last poll after which a worker counts as stopped. A poll lasts at most 60 seconds."""
PROVIDERS_SECONDS = 5.0
"""Seconds within which a worker tells its providers, for the words of a refusal."""
COMPARISON_SECONDS = 2.0
"""Seconds within which an existing session must answer what its configuration is."""
COLLECTOR = "OTEL_EXPORTER_OTLP_ENDPOINT"
"""OpenTelemetry's variable for the address of a collector."""

log = logging.getLogger("clew")


@dataclass(frozen=True, slots=True)
class CheckpointSource:
    """What a checkpoint was made of.

    Attributes:
        session_id: The session.
        config: Its configuration.
    """

    session_id: str
    config: Mapping[str, Any]


class Clew(SessionLists):
    """A connection to Temporal, and the task queue of new sessions. Make one for a process, and share it.

    Attributes:
        temporal: Temporal's own client.
        task_queue: The task queue that new sessions are started on.

    Example:
        clew = await Clew.connect("localhost:7233")
        session = await clew.open("support-4711", agent="support")
    """

    def __init__(self, client: Client, task_queue: str = TASK_QUEUE, *, encryption: Encryption | None = None) -> None:
        """Use a Temporal client.

        Args:
            client: The client. If its data converter has no codec, it gets the one of `encryption`.
            task_queue: The task queue that new sessions are started on.
            encryption: The keys; None: those of the environment.

        Raises:
            InvalidInput: The environment's keys, or its `CLEW_LIVE`, are not valid.
        """
        super().__init__(retry_queries_soon(encrypt_client(client, encryption)), task_queue)
        if (live := _read_live()) is not None:
            use_channel(self.temporal, live)

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
        encryption: Encryption | None = None,
    ) -> Clew:
        """Connect to a Temporal server. Options left out come from Temporal's environment configuration.

        For other options of the SDK, make a `temporalio.client.Client` and pass it to `Clew`.

        Args:
            address: Host and port, without a scheme; `localhost:7233` if nothing names another.
            namespace: Temporal's namespace; `default` if nothing names another.
            task_queue: The task queue that new sessions are started on; the workers serve it.
            api_key: API key of Temporal Cloud.
            tls: Whether the connection is encrypted, or the TLS settings.
            identity: Name of this client in event histories.
            rpc_metadata: Headers of every call to the server.
            data_converter: Encodes payloads; the workers need the same one. Without a codec it gets that of
                `encryption`.
            interceptors: The SDK's interceptors, for example for tracing.
            plugins: The SDK's plugins.
            runtime: The SDK's runtime, with its logging and its metrics.
            encryption: The keys that encrypt the texts of conversations; None: those of the environment.

        Raises:
            InvalidInput: The address, Temporal's configuration or a key is not valid.
            ServerUnreachable: No server answers at the address within 10 seconds.

        Example:
            address, namespace = "acme.a1b2c.tmprl.cloud:7233", "acme.a1b2c"
            clew = await Clew.connect(address, namespace=namespace, api_key=key, tls=True)
        """
        _read_live()
        try:
            config: dict[str, Any] = {"target_host": "localhost:7233", **ClientConfig.load_client_connect_config()}
        except (RuntimeError, OSError, ValueError) as error:
            raise InvalidInput(f"Temporal's environment configuration is not valid: {error}") from error
        options = {
            "target_host": address or None,
            "namespace": namespace or None,
            "api_key": api_key,
            "tls": tls,
            "identity": identity,
            "rpc_metadata": rpc_metadata,
            "runtime": runtime,
        }
        config |= drop_absent(options)
        config |= {"data_converter": data_converter, "interceptors": interceptors, "plugins": plugins}
        config["payload_limits"] = PAYLOAD_LIMITS
        try:
            async with asyncio.timeout(CONNECT_SECONDS):
                client = await Client.connect(**config)
        except ValueError as error:
            raise InvalidInput(f"{config['target_host']!r} is not the address of a server: {error}") from error
        except (RuntimeError, TimeoutError) as error:
            raise ServerUnreachable(
                f"no Temporal server answers at {config['target_host']}: {str(error)[:300]}"
            ) from error
        delay_exit()
        return cls(client, task_queue, encryption=encryption)

    async def open(self, session_id: str, **config: Unpack[SessionOptions]) -> Session:
        """Resume a session with the configuration that it has, or start a new one with this configuration.

        A session that hibernates or was closed continues from its archive. Without an `agent` or a `model` it must
        exist. `Session.ignored` has the fields of this call whose value differs there.

        Args:
            session_id: The session: an id of your own, such as that of a customer's chat.
            config: The configuration (`SessionOptions`). With an `agent`, fields that are left out are the agent's.

        Returns:
            The session. The call returns when the server has it; a worker need not run yet.

        Raises:
            Interrupted: The session was terminated or timed out; `clew recover` repairs it.
            InvalidInput: The id or the configuration is not valid.
            NotFound: There is no such session, and neither an `agent` nor a `model` to start it with.
            ServerUnreachable: No server answers.

        Example:
            session = await clew.open("support-4711", agent="support", metadata={"user": "ada"})
            other = await clew.open("s-1", model="openai:gpt-4o", tools=["lookup_order"])
        """
        return await self._open(session_id, config, compares=True)

    async def _open(self, session_id: str, config: SessionOptions, *, compares: bool) -> Session:
        """Open a session. `compares`: the caller reads `Session.ignored`: a session that exists is queried for it."""
        validate_session_id(session_id)
        fields = drop_absent(config)
        handle, known, status = self._make_handle(session_id), dict[str, Any](), None
        if fields.keys().isdisjoint(("agent", "model")):
            try:
                status = await read_status(handle, only_open=True)
                known = _select_model(status.config, status.model)
            except (Closed, NotFound):
                # It has ended, and Temporal may have deleted its workflow: its archive has the configuration.
                known = await self._read_archived_model(session_id)
        try:
            start = make_input(SessionConfig, known | fields)
        except InvalidInput as error:
            raise InvalidInput(await self.explain_model(str(error))) from None
        requested = {name: value for name, value in dump_input(start).items() if name in fields}
        if status and not status.closed:
            ignored = find_ignored(session_id, requested, status.config)
        else:
            is_new = await start_or_resume(self.temporal, session_id, start, self.task_queue)
            ignored = {} if is_new or not compares else await read_ignored(handle, requested)
        return Session(self.temporal, session_id, self.task_queue, ignored)

    def _make_handle(self, session_id: str) -> SessionHandle:
        return SessionHandle(self.temporal, session_id, self.task_queue)

    async def _read_archived_model(self, session_id: str) -> dict[str, Any]:
        async for config in self.read_thread(session_id, kind="config", newest=1):
            payload = config.read(ConfigPayload)
            return _select_model(payload.own or {}, payload.model)
        raise NotFound(f"there is no session {session_id!r}: name an agent or a model to start it")

    def session(self, session_id: str) -> Session:
        """Make a handle of a session, without checking that the session exists. It calls nothing.

        Args:
            session_id: The session.

        Raises:
            InvalidInput: The text is not a session id.

        Example:
            await clew.session("support-4711").cancel()
        """
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
        """Read a session's thread, archived and live entries alike.

        Args:
            session_id: The session.
            from_seq: Seq of the first entry.
            to_seq: Seq of the last entry; None for the thread's newest.
            limit: Largest number of entries, counted from the first.
            newest: Number of entries to read from the end; not together with `limit`.
            filters: Conditions that each entry meets (`EntryFilters`).

        Raises:
            ArchiveDamaged: An object of the archive is missing or damaged.
            ArchiveUnavailable: The archive cannot be read at present.
            InvalidInput: An argument is not valid, or `newest` and `limit` are both set.
            NotFound: There is no such session.

        Example:
            newest = clew.read_thread("support-4711", kind="ai_message", newest=10)
            async for entry in newest:
                print(entry.seq, entry.payload["role"])
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

    async def delete(self, session_id: str) -> DeleteReceipt:
        """End a session, and delete its archive and its event histories, and its subagents in the same way.

        It cannot be undone. Forks are sessions of their own, with the entries that they began with. Segments that
        they share are deleted with the last fork.

        Args:
            session_id: The session; it may be open, hibernate, or have ended.

        Returns:
            What was deleted.

        Raises:
            NotFound: There is no such session.
            WorkerUnavailable: It is open and has not ended in time: no worker serves its task queue, or its archive
                cannot be written. It ends when that is possible, and is deleted by another call.

        Example:
            await clew.delete("support-4711")
        """
        command = DeleteSessionInput(session_id=validate_session_id(session_id))
        answer = await run_service(self.temporal, self.task_queue, DELETE_WORKFLOW, command, session_id)
        return DeleteReceipt.model_validate(answer)

    async def restore(self, token: str, session_id: str | None = None) -> Session:
        """Start a session from a checkpoint (`Session.checkpoint`), with its context and its configuration.

        Repeating it with the same `session_id` gives the same session.

        Args:
            token: The checkpoint.
            session_id: Id of the new session; None for a random one.

        Raises:
            CheckpointUnavailable: The workers have no key for checkpoints.
            RequestReused: There is another session with that id already.
            TokenExpired: The checkpoint has expired.
            TokenForeign: It was made in another Temporal namespace.
            TokenKey: The workers do not have the key that it was signed with.
            TokenLegacy: It holds a thread instead of a context.
            TokenMalformed: The text is not a complete token.
            TokenMismatch: The workers' tools or the model's policy have changed.
            TokenSignature: The signature does not match the text.
            TokenVersion: It was made by an incompatible version.
            UnknownKey: It is encrypted with a key that this process does not have.
            WorkerUnavailable: The session may be started without its context. The error names the `session_id` with
                which a repetition finishes it.

        Example:
            copy = await clew.restore(token, session_id="support-4711-b")
        """
        new_id = str(uuid.uuid4()) if session_id is None else session_id
        command = make_input(RestoreInput, {"token": decrypt_token(self.temporal, token), "session_id": new_id})
        with name_repetition(new_id):
            await run_service(self.temporal, self.task_queue, RESTORE_WORKFLOW, command, new_id)
        return self.session(new_id)

    def describe_checkpoint(self, token: str) -> CheckpointSource:
        """Read which session a checkpoint was made of, and its configuration, without verifying the signature.

        `restore` verifies it: of a token that it accepts, this is true.

        Args:
            token: The checkpoint.

        Returns:
            The `session_id` and the `config`.

        Raises:
            TokenMalformed: The text is not a complete token.
            UnknownKey: It is encrypted with a key that this process does not have.

        Example:
            print(clew.describe_checkpoint(token).session_id)
        """
        parts = decrypt_token(self.temporal, token).split(".")
        try:
            payload = json.loads(urlsafe_b64decode(parts[1] + "=" * (-len(parts[1]) % 4)))
            config = SessionConfig.model_validate(payload["config"], strict=False)
            return CheckpointSource(validate_session_id(payload["session_id"]), dump_input(config))
        except (InvalidInput, LookupError, TypeError, ValueError, RecursionError):
            raise TokenMalformed("this is not a checkpoint's token, or it is not complete") from None

    async def list_agents(self) -> tuple[AgentSummary, ...]:
        """List the agents that sessions can be opened with, by their names. A worker of the task queue answers.

        Raises:
            WorkerUnavailable: No worker answers.

        Example:
            print([agent.name for agent in await clew.list_agents()])
        """
        return (await self._read_agents()).agents

    async def _read_agents(self) -> AgentsList:
        query = ListAgentsInput()
        answer = await run_service(
            self.temporal, self.task_queue, AGENTS_WORKFLOW, query, "agents", keeps_history=False
        )
        return AgentsList.model_validate(answer)

    async def explain_model(self, reason: str) -> str:
        """Add to a reason that refuses a model without a provider which providers the workers have.

        Args:
            reason: The message of an error.

        Returns:
            The message, unchanged where it is about something else or no worker answers within 5 seconds.

        Example:
            print(await clew.explain_model(str(error)))
        """
        if MODEL_NAME.words not in reason:
            return reason
        # The reason stands also where no worker answers.
        with suppress(ClewError, TemporalError, TimeoutError):
            async with asyncio.timeout(PROVIDERS_SECONDS):
                providers = (await self._read_agents()).providers
            named = f"{MODEL_NAME.words}; this worker has {', '.join(providers or ()) or 'no provider'}"
            return reason.replace(MODEL_NAME.words, named)
        return reason

    async def check_worker(self) -> None:
        """Check that a worker polls the task queue, for example when a service starts.

        Raises:
            ServerUnreachable: No server answers.
            WorkerUnavailable: No worker polls it. Sessions wait until one starts.

        Example:
            await clew.check_worker()
        """
        request = DescribeTaskQueueRequest(
            namespace=self.temporal.namespace,
            task_queue=TaskQueue(name=self.task_queue),
            task_queue_type=TaskQueueType.TASK_QUEUE_TYPE_WORKFLOW,
        )
        try:
            answer = await self.temporal.workflow_service.describe_task_queue(request, retry=True)
        except RPCError as error:
            raise translate_error(error, "") from error
        queue = "" if self.task_queue == TASK_QUEUE else f" --task-queue {shlex.quote(self.task_queue)}"
        if not any(time.time() - poller.last_access_time.seconds < POLLER_SECONDS for poller in answer.pollers):
            raise WorkerUnavailable(
                f"no worker polls the task queue {self.task_queue!r}: start one with `clew worker{queue}`"
            )


def _read_live() -> str | None:
    """Read the address of the live channel; None: there is none.

    Raises:
        InvalidInput: It is not valid.
    """
    try:
        return read_address(os.environ)
    except ValueError as error:
        raise InvalidInput(str(error)) from None


def make_runtime(metrics_address: str | None, buckets: Mapping[str, Sequence[float]]) -> Runtime:
    """Make the SDK's runtime of a process. The log lines of its core go through Python's handlers.

    Args:
        metrics_address: The IP address and the port at which it serves the metrics of the SDK and of the process, at
            `/metrics`; None: it serves none.
        buckets: The upper bounds of the buckets of the process's histograms, by their names.

    Raises:
        ValueError: The port cannot be opened.
    """
    metrics = None
    if metrics_address is not None:
        metrics = PrometheusConfig(
            bind_address=metrics_address,
            counters_total_suffix=True,
            unit_suffix=True,
            durations_as_seconds=True,
            histogram_bucket_overrides=buckets,
        )
    forwarding = LogForwardingConfig(logger=logging.getLogger("temporalio"), append_target_to_name=False)
    logs = LoggingConfig(filter=TelemetryFilter(core_level="WARN", other_level="ERROR"), forwarding=forwarding)
    try:
        return Runtime(telemetry=TelemetryConfig(logging=logs, metrics=metrics))
    except ValueError as error:
        raise ValueError(f"the metrics port {metrics_address} cannot be opened: {error}") from None


def names_collector(environ: Mapping[str, str]) -> bool:
    """Whether the variables of OpenTelemetry name a collector of traces, and do not switch traces off."""
    collectors = (COLLECTOR, "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT")
    is_off = environ.get("OTEL_SDK_DISABLED", "").lower() == "true" or environ.get("OTEL_TRACES_EXPORTER") == "none"
    return not is_off and any(environ.get(variable) for variable in collectors)


def validate_session_id(session_id: str) -> str:
    """Check a session's id and return it.

    Raises:
        InvalidInput: The text is not a session id.
    """
    given: object = session_id
    if not isinstance(given, str) or not SESSION_ID.matches(given):
        raise InvalidInput(SESSION_ID.words)
    return session_id


def _select_model(config: Mapping[str, Any], model: str) -> dict[str, Any]:
    """Select the field without which a session cannot be started: the agent or the model."""
    return {"agent": config["agent"]} if config.get("agent") else {"model": model}


# Start a session's workflow, also one that has ended.


async def start_session(
    client: Client,
    session_id: str,
    config: SessionConfig,
    task_queue: str,
    reuse: WorkflowIDReusePolicy = WorkflowIDReusePolicy.ALLOW_DUPLICATE,
    *,
    after: str = "",
) -> bool:
    """Start a session. One that has an archive continues from it, with the archived configuration.

    Concurrent starts with the same id start one session. `reuse` says whether an ended session may be started again,
    and `after` names its newest workflow run, which its archive must reach to; empty: the archive is right as it is.

    Returns:
        Whether this call has started a workflow. If not, the session was running already.

    Raises:
        WorkflowAlreadyStartedError: A session of this id has ended, and `reuse` is `REJECT_DUPLICATE`.
        RPCError: The server refused the call or did not answer.
    """
    start = make_start_arguments(session_id, config, after)
    handle = await client.start_workflow(
        start.workflow,
        start.argument,
        id=start.id,
        task_queue=task_queue,
        id_conflict_policy=WorkflowIDConflictPolicy.USE_EXISTING,
        id_reuse_policy=reuse,
        static_summary=start.static_summary,
        # For the session's workflow tasks. The session sets those of its activities.
        priority=Priority(config.priority, find_fairness_key(session_id, config.metadata)),
    )
    return has_started(handle)


async def start_or_resume(client: Client, session_id: str, config: SessionConfig, task_queue: str) -> bool:
    """Start a session, or continue it from its archive. Returns whether it is new.

    Raises:
        Interrupted: The session was terminated or timed out: its workflow could not archive its last entries.
        ServerUnreachable: No server answers.
    """
    try:
        try:
            return await start_session(client, session_id, config, task_queue, WorkflowIDReusePolicy.REJECT_DUPLICATE)
        except WorkflowAlreadyStartedError:
            ended = await client.get_workflow_handle(session_id).describe()
            if ended.workflow_type == DELETED_WORKFLOW:
                return await start_session(client, session_id, config, task_queue)
            if ended.status in INTERRUPTED:
                raise make_interrupted(session_id) from None
            await start_session(client, session_id, config, task_queue, after=ended.run_id)
            return False
    except RPCError as error:
        raise translate_error(error, session_id) from error


# Compare the configuration of `Clew.open` with that of a session that exists already.


async def read_ignored(handle: SessionHandle, requested: Mapping[str, Any]) -> dict[str, Any]:
    """Find the requested fields whose value differs in a session that exists already.

    Best effort: a session that does not answer in time is not compared.

    Raises:
        Refusal: The session could not be started.
    """
    if not requested:
        return {}
    give_up_at = time.monotonic() + COMPARISON_SECONDS
    try:
        status = await read_status(handle, seconds=COMPARISON_SECONDS)
        # Until it is prepared, or thawed, a session shows the configuration of its start.
        while status.rev == 0 and time.monotonic() < give_up_at:
            await asyncio.sleep(STARTING_SECONDS)
            status = await read_status(handle, seconds=COMPARISON_SECONDS)
    except Interrupted:
        raise
    except (Closed, NotFound, ServerUnreachable, Starting, WorkerUnavailable):
        return {}
    return find_ignored(handle.session_id, requested, status.config) if status.rev else {}


def find_ignored(session_id: str, requested: Mapping[str, Any], config: Mapping[str, Any]) -> dict[str, Any]:
    """Find the requested fields whose value differs in a configuration, with its values. They are logged."""
    ignored = {name: config.get(name) for name, value in requested.items() if not _agrees(value, config.get(name))}
    if ignored:
        changeable = [f"{name}=…" for name in ignored if name in ConfigureInput.model_fields]
        log.warning(
            "session %r exists already, so these fields are ignored: %s%s",
            session_id,
            ", ".join(ignored),
            f". Change them: session.configure({', '.join(changeable)})" if changeable else "",
        )
    return ignored


def _agrees(value: Any, actual: Any) -> bool:
    """Whether a value in force has all that was requested. What was not requested does not matter."""
    if isinstance(value, Mapping) and isinstance(actual, Mapping):
        return all(_agrees(part, actual.get(name)) for name, part in value.items())
    if isinstance(value, list) and isinstance(actual, list) and len(value) == len(actual):
        # What a part of a list leaves out has its default, and not what the other one has.
        return all(_agrees(one, other) and _agrees(other, one) for one, other in zip(value, actual, strict=True))
    return bool(value == actual)
