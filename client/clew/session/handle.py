"""Reach one session by the wire contract: updates, queries and service workflows."""

from __future__ import annotations

import asyncio
import re
import secrets
import time
import uuid
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from datetime import timedelta
from typing import Any, TypeVar

from pydantic import BaseModel
from temporalio.api.common.v1 import WorkflowExecution
from temporalio.api.workflowservice.v1 import DeleteWorkflowExecutionRequest
from temporalio.client import Client, WorkflowExecutionStatus, WorkflowHandle, WorkflowUpdateHandle
from temporalio.common import Priority, QueryRejectCondition
from temporalio.service import RPCError

from clew.session.transport import (
    INTERRUPTED,
    dump_input,
    make_interrupted,
    read_answer,
    send_update,
    translate_errors,
)
from clew_workflows.contract import READ_WORKFLOW, EntriesQuery, ReadThreadInput
from clew_workflows.contract.config import make_fairness_key
from clew_workflows.contract.errors import (
    ArchiveUnavailable,
    ClewError,
    Closed,
    NotFound,
    Refusal,
    ServerUnreachable,
    Starting,
    UnknownBlob,
    WorkerUnavailable,
)
from clew_workflows.contract.outcomes import Output
from clew_workflows.contract.payloads import SessionPayload
from clew_workflows.thread.entries import Entry
from clew_workflows.thread.source import LivePage

# Run the service workflows: they do what needs the archive, whose store only workers can reach.


SERVICE_PREFIX = "clew-service-"
"""The ids of service workflows begin with it, so that lists can leave them out."""
DELETION_TIMEOUT = timedelta(seconds=5)
"""Time within which the server must take a request to delete a history."""
TIMEOUT = timedelta(minutes=2)
"""Longest time that a service workflow may take; only a missing worker makes it take that long."""


async def run_service(
    client: Client,
    task_queue: str,
    name: str,
    argument: BaseModel,
    session_id: str,
    *,
    time_limit: timedelta = TIMEOUT,
    keeps_history: bool = True,
    label: str = "",
) -> dict[str, Any]:
    """Run a service workflow for a session and return its answer.

    Without `keeps_history` the server deletes the workflow's history afterwards, if it lets this client do that. The
    `label` is a part of the workflow's id, which tells it from others in lists.

    Raises:
        Refusal: The workflow refused its input, or failed with a word of the contract.
        WorkerUnavailable: No worker ran it in time.
    """
    verb = re.sub("(Session|Thread|Context)$", "", name).lower()
    # No session id has a slash: the workflows of a session can be told from those of one whose id begins alike.
    about = f"{session_id}/{label}" if label else session_id
    workflow_id = f"{SERVICE_PREFIX}{verb}-{about}-{uuid.uuid4().hex}"
    try:
        async with translate_errors(session_id):
            answer: dict[str, Any] = await client.execute_workflow(
                name,
                dump_input(argument),
                id=workflow_id,
                task_queue=task_queue,
                result_type=dict,
                execution_timeout=time_limit,
                static_summary=f"{verb} · {session_id}",
                static_details=f"A service workflow of Clew, {name}: no session.",
                priority=Priority(fairness_key=make_fairness_key(session_id)),
            )
    finally:
        if not keeps_history:
            await _delete_history(client, workflow_id)
    if message := answer.get("not_found"):
        raise NotFound(message)
    return answer


@contextmanager
def name_repetition(session_id: str, details: str = "") -> Iterator[None]:
    """Say in an error after which a new session may exist what makes a repetition mean the same session.

    Args:
        session_id: The new session.
        details: The other arguments of the repetition.
    """
    try:
        yield
    except (ArchiveUnavailable, ServerUnreachable, WorkerUnavailable) as error:
        remedy = f"the new session is {session_id!r}: repeat the call with this id{details}"
        raise type(error)(f"{error}: {remedy}") from error


async def _delete_history(client: Client, workflow_id: str) -> None:
    """Delete the history of a workflow. Best effort: else the server deletes it after its retention time."""
    execution = WorkflowExecution(workflow_id=workflow_id)
    request = DeleteWorkflowExecutionRequest(namespace=client.namespace, workflow_execution=execution)
    with suppress(RPCError):
        await client.workflow_service.delete_workflow_execution(request, timeout=DELETION_TIMEOUT)


Answer = TypeVar("Answer", bound=Output)

_ENDS = {"hibernated": "hibernates", "closed": "is closed"}

QUERY_SECONDS = 20
"""Seconds within which a session must answer a query."""
ABSENCE_TIMEOUT = timedelta(seconds=10)
"""Time within which a worker must say whether a session that the server does not know is archived."""
EXPLAIN_SECONDS = 5.0
"""Seconds within which a worker must say how a session has ended; without an answer the error says less."""
STARTING_SECONDS = 0.05
"""Seconds until a query is repeated that arrived during the session's start-up."""


def make_id() -> str:
    """Make the id of an update, which also names its request, input or operation.

    It is unique in its session. The history has it several times, and a rollover carries a thousand of them, so it is
    half as long as a UUID.
    """
    return secrets.token_hex(8)


class SessionHandle:
    """Sends updates and queries to one session, and runs service workflows for it.

    Attributes:
        client: Temporal's client.
        session_id: The session.
        task_queue: The task queue of the service workflows.
        workflow: Temporal's handle of the session's workflow.
        lacks_blobs: The session has refused a blob as unknown, which may have been stored: the store has lost it.
    """

    def __init__(self, client: Client, session_id: str, task_queue: str) -> None:
        self.client = client
        self.session_id = session_id
        self.task_queue = task_queue
        self.workflow: WorkflowHandle[Any, Any] = client.get_workflow_handle(session_id)
        self.lacks_blobs = False

    async def send(
        self, name: str, argument: BaseModel, update_id: str | None = None, *, awaits_answer: bool = False
    ) -> WorkflowUpdateHandle[dict[str, Any]]:
        """Send an update and return when it is accepted; with `awaits_answer` later, if the answer comes soon.

        Raises:
            Closed: The session has ended.
            Interrupted: The session was terminated or has timed out.
            NotFound: There is no such session.
            Refusal: The session refused it, or the session's start was refused. Nothing has changed.
        """
        async with self.explain_end():
            update_id = update_id or make_id()
            return await send_update(
                self.client, self.session_id, name, argument, update_id, awaits_answer=awaits_answer
            )

    async def call(self, name: str, argument: BaseModel, answer: type[Answer]) -> Answer:
        """Send an update and wait for its answer.

        Raises:
            Refusal: The session refused it. Nothing has changed.
        """
        return await self._read_answer(await self.send(name, argument), answer)

    async def end(self, name: str, argument: BaseModel, answer: type[Answer]) -> Answer:
        """Send an update that ends the session, and wait for its answer and for the end of its workflow run.

        Raises:
            Refusal: The session refused it, or could not be archived.
        """
        update = await self.send(name, argument)
        receipt = await self._read_answer(update, answer)
        await self.wait_for_end(update.workflow_run_id)
        return receipt

    async def query(
        self, name: str, argument: BaseModel | None = None, *, only_open: bool = False, seconds: float = QUERY_SECONDS
    ) -> dict[str, Any]:
        """Query the session's workflow. A query that arrives during start-up is repeated.

        Raises:
            Closed: With `only_open`, the session has ended.
            NotFound: The server knows no such session. The archive may have it.
            Refusal: The session refused the query.
        """
        args = [] if argument is None else [dump_input(argument)]
        reject = QueryRejectCondition.NOT_OPEN if only_open else QueryRejectCondition.NONE
        give_up_at = time.monotonic() + seconds
        while True:
            try:
                async with translate_errors(self.session_id):
                    answer: dict[str, Any] = await self.workflow.query(
                        name,
                        args=args,
                        result_type=dict,
                        reject_condition=reject,
                        rpc_timeout=timedelta(seconds=max(give_up_at - time.monotonic(), STARTING_SECONDS)),
                    )
                    return answer
            except Starting:
                if time.monotonic() > give_up_at:
                    raise
            await asyncio.sleep(STARTING_SECONDS)

    async def query_entries(self, query: EntriesQuery, *, only_open: bool = False) -> LivePage[Entry] | None:
        """Query one page of the entries that the session holds.

        Returns:
            The page. None if the server knows no such session, or with `only_open`, it has ended.
        """
        try:
            page = await self.query("entries", query, only_open=only_open)
        except (Closed, NotFound):
            return None
        entries = tuple(map(Entry.from_json, page["entries"]))
        return LivePage(entries, page.get("next_seq"), page.get("archived_before", 0))

    async def run_service(
        self, name: str, argument: BaseModel, *, keeps_history: bool = True, label: str = ""
    ) -> dict[str, Any]:
        """Run a service workflow for the session and return its answer. The options are those of `run_service`.

        Raises:
            Refusal: The workflow refused its input, or failed with a word of the contract; or the start of the
                session was refused.
        """
        try:
            return await run_service(
                self.client,
                self.task_queue,
                name,
                argument,
                self.session_id,
                keeps_history=keeps_history,
                label=label,
            )
        except NotFound as absent:
            raise await self.find_failure() or absent from None

    async def _read_answer(self, update: WorkflowUpdateHandle[dict[str, Any]], answer: type[Answer]) -> Answer:
        async with self.explain_end():
            return answer.model_validate(await read_answer(self.session_id, update))

    @asynccontextmanager
    async def explain_end(self) -> AsyncIterator[None]:
        """Say in the error of a session that has ended how it has, and what continues it."""
        try:
            yield
        except NotFound as absent:
            raise await self.explain_absence(absent) from None
        except Closed as ended:
            raise await self.find_failure() or await self._describe_end(ended) from ended.__cause__
        except UnknownBlob:
            self.lacks_blobs = True
            raise

    async def _describe_end(self, ended: Closed) -> Refusal:
        try:
            described = await self.workflow.describe()
            if described.status in INTERRUPTED:
                return make_interrupted(self.session_id)
            if described.status == WorkflowExecutionStatus.RUNNING:
                return ended
            status = (await self.query("status", seconds=EXPLAIN_SECONDS))["status"]
        except NotFound as absent:
            return absent
        except (ClewError, RPCError):
            return ended
        return self._make_ended(status)

    def _make_ended(self, how: str) -> Closed:
        remedy = f"open it to continue it from its archive: `clew ask {self.session_id} TEXT` does"
        return Closed(f"session {self.session_id!r} {_ENDS.get(how, 'has ended')}: {remedy}")

    async def explain_absence(self, absent: NotFound) -> Refusal:
        """Make the error for a session that the server does not know: it has ended, or there is no such session.

        The server forgets a workflow some time after its end. Then the archive says that the session has ended. Of a
        session whose start was refused it is that refusal.
        """
        if refusal := await self.find_failure():
            return refusal
        query = ReadThreadInput(session_id=self.session_id, newest=1)
        try:
            page = await run_service(
                self.client, self.task_queue, READ_WORKFLOW, query, self.session_id, time_limit=ABSENCE_TIMEOUT
            )
        except WorkerUnavailable:
            return NotFound(f"{absent.message}, unless it is archived: no worker has looked for its archive")
        except NotFound:
            return absent
        except ClewError as error:
            return NotFound(f"{absent.message}, unless it is archived: {error}")
        last = [Entry.from_json(row).body for row in page["entries"]][-1:]
        return self._make_ended(last[0].event if last and isinstance(last[0], SessionPayload) else "")

    async def find_failure(self) -> Refusal | None:
        """Find the refusal with which the session's workflow has failed: that of its start, as a rule."""
        try:
            described = await self.workflow.describe()
            if described.status != WorkflowExecutionStatus.FAILED:
                return None
            await self.wait_for_end(described.run_id)
        except Refusal as refusal:
            return refusal
        except (ClewError, RPCError):
            pass
        return None

    async def wait_for_end(self, workflow_run_id: str | None = None) -> None:
        """Wait until a workflow run of the session has ended, by default the newest.

        The session may have been opened again since: the newest one may last for months.
        """
        run = self.client.get_workflow_handle(self.session_id, run_id=workflow_run_id)
        async with translate_errors(self.session_id):
            await run.result(follow_runs=False)
