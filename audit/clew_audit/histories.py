"""The event histories of a session's workflow runs, from the server or from a file."""

from __future__ import annotations

import math
from collections.abc import AsyncIterator, Awaitable, Mapping
from dataclasses import dataclass, replace
from typing import Any, BinaryIO, TypeVar

from google.protobuf.json_format import ParseError
from temporalio.api.common.v1 import WorkflowExecution
from temporalio.api.enums.v1 import EventType
from temporalio.api.workflowservice.v1 import GetWorkflowExecutionHistoryRequest
from temporalio.client import Client, WorkflowExecutionDescription, WorkflowHistory
from temporalio.contrib.pydantic import pydantic_data_converter
from temporalio.converter import DataConverter
from temporalio.service import RPCError

from clew.session.connection import validate_session_id
from clew.session.transport import is_unknown, translate_error
from clew_audit.json_lines import FileDamaged, LineReader, LineWriter
from clew_workflows.contract.errors import InvalidInput
from clew_workflows.contract.names import DELETED_WORKFLOW
from clew_workflows.values import Format

T = TypeVar("T")

FORMAT = Format("histories")

_ENDED = {
    EventType.EVENT_TYPE_WORKFLOW_EXECUTION_CONTINUED_AS_NEW: "continued",
    EventType.EVENT_TYPE_WORKFLOW_EXECUTION_COMPLETED: "completed",
    EventType.EVENT_TYPE_WORKFLOW_EXECUTION_FAILED: "failed",
    EventType.EVENT_TYPE_WORKFLOW_EXECUTION_CANCELED: "cancelled",
    EventType.EVENT_TYPE_WORKFLOW_EXECUTION_TERMINATED: "terminated",
    EventType.EVENT_TYPE_WORKFLOW_EXECUTION_TIMED_OUT: "timed_out",
}


@dataclass(frozen=True, slots=True)
class Run:
    """One workflow run of a session.

    Attributes:
        run_id: Its id.
        execution: Id that it shares with the runs that it continues as new; None: not known.
        replaced: A reset has replaced it by another run: its entries are not in the session's thread.
        history: Its event history; None: the server has deleted it.
    """

    run_id: str
    execution: str | None
    replaced: bool = False
    history: WorkflowHistory | None = None

    @property
    def ended(self) -> str:
        """How it ended: `continued`, `completed`, `failed`, `cancelled`, `terminated`, `timed_out`.

        `running`: it has not ended; `gone`: the server has deleted its history.
        """
        if self.history is None:
            return "gone"
        return _ENDED.get(self.history.events[-1].event_type, "running")

    @property
    def bytes(self) -> int:
        """Size of its events, in bytes."""
        return sum(event.ByteSize() for event in self.history.events) if self.history else 0

    @property
    def events(self) -> int:
        """Number of its events."""
        return len(self.history.events) if self.history else 0


async def ask_server(call: Awaitable[T], session_id: str) -> T | None:
    """Wait for an answer of the server; None: it does not know the workflow, or not that run of it.

    Raises:
        ClewError: The server cannot be reached, or refuses to answer.
    """
    try:
        return await call
    except RPCError as error:
        if is_unknown(error):
            return None
        raise translate_error(error, session_id) from error


async def describe_newest(client: Client, session_id: str) -> WorkflowExecutionDescription | None:
    """Describe the newest workflow execution of a session; None: the server has none, or the session was deleted."""
    described = await ask_server(client.get_workflow_handle(session_id).describe(), session_id)
    return None if described is None or described.workflow_type == DELETED_WORKFLOW else described


class ServerHistories:
    """The histories on a server. One at a time is fetched and held in memory."""

    def __init__(self, client: Client, session_id: str) -> None:
        self.session_id = session_id
        self.namespace = client.namespace
        self.converter = client.data_converter
        self._client = client

    async def read_runs(self) -> AsyncIterator[Run]:
        """Read all runs that the server knows, the oldest first.

        Raises:
            ClewError: The server cannot be reached.
        """
        for run in await self._list_runs():
            yield await self._fetch(run)

    async def read_newest(self) -> AsyncIterator[Run]:
        """Read the runs whose entries are in the session's thread, the newest first."""
        for run in reversed(await self._list_runs()):
            if not run.replaced:
                yield await self._fetch(run)

    async def _list_runs(self) -> list[Run]:
        """List the runs without their histories. A deleted run is listed if a later run refers to it."""
        first_events: dict[str, _FirstEvent | None] = {}
        newest, unread = await self._find_run_ids()
        while unread:
            run_id = unread.pop()
            if run_id not in first_events:
                first_events[run_id] = first = await self._read_first(run_id)
                if first and first.previous:
                    unread.add(first.previous)
        executions = {
            first.execution: first for first in sorted(filter(None, first_events.values()), key=lambda f: f.time)
        }
        order = sorted(executions, key=lambda execution: executions[execution].time)
        runs: list[Run] = []
        for execution in order:
            own = {first.run_id: first for first in first_events.values() if first and first.execution == execution}
            runs += _order_runs(execution, own, await self._find_last(own, newest))
        listed = {run.run_id for run in runs}
        return [*(Run(run_id, None) for run_id in first_events if run_id not in listed), *runs]

    async def _find_run_ids(self) -> tuple[str | None, set[str]]:
        described = await describe_newest(self._client, self.session_id)
        newest = described.run_id if described else None
        try:
            query = f"WorkflowId = '{self.session_id}' AND WorkflowType != '{DELETED_WORKFLOW}'"
            run_ids = {run.run_id async for run in self._client.list_workflows(query) if run.run_id}
        except RPCError as error:
            raise translate_error(error, self.session_id) from error
        return newest, run_ids | ({newest} if newest else set())

    async def _find_last(self, own: Mapping[str, _FirstEvent], newest: str | None) -> str:
        """Find the last run of an execution: of the runs that no other run continues, the one that ended last."""
        continued = {first.previous for first in own.values()}
        leaves = [run_id for run_id in own if run_id not in continued]
        if newest in leaves or len(leaves) == 1:
            return newest if newest in leaves and newest else leaves[0]
        closed: dict[str, float] = {}
        for run_id in leaves:
            try:
                described = await self._client.get_workflow_handle(self.session_id, run_id=run_id).describe()
            except RPCError as error:
                raise translate_error(error, self.session_id) from error
            closed[run_id] = described.close_time.timestamp() if described.close_time else math.inf
        return max(leaves, key=lambda run_id: closed[run_id])

    async def _read_first(self, run_id: str) -> _FirstEvent | None:
        """Read the first event of a run; None: the server has deleted it."""
        request = GetWorkflowExecutionHistoryRequest(
            namespace=self._client.namespace,
            execution=WorkflowExecution(workflow_id=self.session_id, run_id=run_id),
            maximum_page_size=1,
        )
        asking = self._client.workflow_service.get_workflow_execution_history(request, retry=True)
        answer = await ask_server(asking, self.session_id)
        if answer is None:
            return None
        event = answer.history.events[0]
        started = event.workflow_execution_started_event_attributes
        return _FirstEvent(
            run_id,
            started.first_execution_run_id,
            started.continued_execution_run_id,
            event.event_time.ToNanoseconds(),
        )

    async def _fetch(self, run: Run) -> Run:
        if run.execution is None:
            return run
        handle = self._client.get_workflow_handle(self.session_id, run_id=run.run_id)
        return replace(run, history=await ask_server(handle.fetch_history(), self.session_id))


@dataclass(frozen=True, slots=True)
class _FirstEvent:
    run_id: str
    execution: str
    previous: str
    time: int


def _order_runs(execution: str, own: Mapping[str, _FirstEvent], last: str) -> list[Run]:
    """Order the runs of an execution: replaced ones first, then the ones that continue one another."""
    chain: list[Run] = []
    run_id = last
    while run_id:
        first = own.get(run_id)
        chain.insert(0, Run(run_id, execution if first else None))
        run_id = first.previous if first else ""
    chained = {run.run_id for run in chain}
    return [*(Run(run_id, execution, replaced=True) for run_id in own if run_id not in chained), *chain]


async def save_runs(file: BinaryIO, source: ServerHistories) -> AsyncIterator[Run]:
    """Yield the runs of a session and write each to a file. The file is complete after the last one."""
    writer = LineWriter(file, FORMAT, {"session_id": source.session_id, "namespace": source.namespace})
    async for run in source.read_runs():
        row: dict[str, Any] = {"run_id": run.run_id, "execution": run.execution, "replaced": run.replaced}
        if run.history:
            row["history"] = run.history.to_json_dict()
        writer.write_row(row)
        yield run
    writer.end()


class SavedHistories:
    """The histories in a file that `save_runs` has written."""

    def __init__(self, file: BinaryIO, converter: DataConverter = pydantic_data_converter) -> None:
        self.converter = converter
        self._reader = LineReader(file, FORMAT)
        header = self._reader.header
        try:
            self.session_id, self.namespace = (
                validate_session_id(header["session_id"]),
                validate_session_id(header["namespace"]),
            )
        except (KeyError, InvalidInput) as error:
            raise FileDamaged(f"the file's first line has no valid session id or namespace: {error}") from None

    async def read_runs(self) -> AsyncIterator[Run]:
        """Read all runs in the file, the oldest first.

        Raises:
            FileDamaged: The file is damaged or incomplete. This may be raised only after the last run.
        """
        for row in self._reader.read_rows():
            try:
                history = row.get("history")
                parsed = WorkflowHistory.from_json(self.session_id, history) if history else None
                yield Run(row["run_id"], row["execution"], row["replaced"], parsed)
            except (KeyError, TypeError, AttributeError, ValueError, ParseError) as error:
                raise FileDamaged(f"the file holds a run that cannot be read: {str(error)[:300]}") from None
