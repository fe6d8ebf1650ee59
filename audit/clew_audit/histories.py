"""The event histories of a session: those of all runs that the server still has, or a file of them."""

from __future__ import annotations

import math
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, BinaryIO

from google.protobuf.json_format import ParseError
from temporalio.api.common.v1 import WorkflowExecution
from temporalio.api.enums.v1 import EventType
from temporalio.api.workflowservice.v1 import GetWorkflowExecutionHistoryRequest
from temporalio.client import Client, WorkflowHistory
from temporalio.contrib.pydantic import pydantic_data_converter
from temporalio.converter import DataConverter
from temporalio.service import RPCError, RPCStatusCode

from clew.errors import InvalidInput
from clew.session.connection import validate_session_id
from clew.session.transport import translate_error
from clew_audit.json_lines import FileDamaged, LineReader, LineWriter

KIND = "histories"

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
    """One run of a session's workflow. `history` is None where the server has deleted it.

    `execution` is the id that all runs which continue one another share. `replaced`: a reset has put another run in
    the place of this one, and the session's thread does not go through it.
    """

    run_id: str
    execution: str | None
    replaced: bool = False
    history: WorkflowHistory | None = None

    @property
    def ended(self) -> str:
        """How it ended: `continued`, `completed`, `failed`, `cancelled`, `terminated`, `timed_out`; or `running`."""
        if self.history is None:
            return "gone"
        return _ENDED.get(self.history.events[-1].event_type, "running")

    @property
    def bytes(self) -> int:
        """What its events weigh."""
        return sum(event.ByteSize() for event in self.history.events) if self.history else 0

    @property
    def events(self) -> int:
        """How many events it has."""
        return len(self.history.events) if self.history else 0


class ServerHistories:
    """The histories that a server has. Each is fetched when its turn comes, and none is kept."""

    def __init__(self, client: Client, session_id: str) -> None:
        self.session_id = session_id
        self.namespace = client.namespace
        self.converter = client.data_converter
        self._client = client

    async def read_runs(self) -> AsyncIterator[Run]:
        """All runs that the server knows of, the oldest first.

        Raises:
            ClewError: the server does not answer.
        """
        for run in await self._listed():
            yield await self._fetched(run)

    async def read_newest(self) -> AsyncIterator[Run]:
        """The runs that the session's thread goes through, the newest first."""
        for run in reversed(await self._listed()):
            if not run.replaced:
                yield await self._fetched(run)

    async def _listed(self) -> list[Run]:
        """The runs without their histories. Of those that are deleted only the ones that others name are known."""
        known: dict[str, _First | None] = {}
        newest, unread = await self._run_ids()
        while unread:
            run_id = unread.pop()
            if run_id not in known:
                known[run_id] = first = await self._first(run_id)
                if first and first.previous:
                    unread.add(first.previous)
        executions = {first.execution: first for first in sorted(filter(None, known.values()), key=lambda f: f.time)}
        order = sorted(executions, key=lambda execution: executions[execution].time)
        runs: list[Run] = []
        for execution in order:
            own = {first.run_id: first for first in known.values() if first and first.execution == execution}
            runs += _chain(execution, own, await self._last_of(own, newest))
        listed = {run.run_id for run in runs}
        return [*(Run(run_id, None) for run_id in known if run_id not in listed), *runs]

    async def _run_ids(self) -> tuple[str | None, set[str]]:
        try:
            newest = (await self._client.get_workflow_handle(self.session_id).describe()).run_id
        except RPCError as error:
            if error.status is not RPCStatusCode.NOT_FOUND:
                raise translate_error(error, self.session_id) from error
            newest = None
        try:
            query = f"WorkflowId = '{self.session_id}'"
            run_ids = {found.run_id async for found in self._client.list_workflows(query) if found.run_id}
        except RPCError as error:
            raise translate_error(error, self.session_id) from error
        return newest, run_ids | ({newest} if newest else set())

    async def _last_of(self, own: Mapping[str, _First], newest: str | None) -> str:
        """The last run of an execution: of those that no other run continues the one that ended last."""
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

    async def _first(self, run_id: str) -> _First | None:
        """What the first event of a run says; None where it is gone."""
        request = GetWorkflowExecutionHistoryRequest(
            namespace=self._client.namespace,
            execution=WorkflowExecution(workflow_id=self.session_id, run_id=run_id),
            maximum_page_size=1,
        )
        try:
            answer = await self._client.workflow_service.get_workflow_execution_history(request)
        except RPCError as error:
            if error.status is RPCStatusCode.NOT_FOUND:
                return None
            raise translate_error(error, self.session_id) from error
        event = answer.history.events[0]
        started = event.workflow_execution_started_event_attributes
        return _First(
            run_id,
            started.first_execution_run_id,
            started.continued_execution_run_id,
            event.event_time.ToNanoseconds(),
        )

    async def _fetched(self, run: Run) -> Run:
        if run.execution is None:
            return run
        try:
            handle = self._client.get_workflow_handle(self.session_id, run_id=run.run_id)
            return replace(run, history=await handle.fetch_history())
        except RPCError as error:
            if error.status is RPCStatusCode.NOT_FOUND:
                return run
            raise translate_error(error, self.session_id) from error


@dataclass(frozen=True, slots=True)
class _First:
    run_id: str
    execution: str
    previous: str
    time: int


def _chain(execution: str, own: Mapping[str, _First], last: str) -> list[Run]:
    """The runs of an execution: those that a reset has replaced, then those that continue one another, in order."""
    chain: list[Run] = []
    run_id = last
    while run_id:
        first = own.get(run_id)
        chain.insert(0, Run(run_id, execution if first else None))
        run_id = first.previous if first else ""
    there = {run.run_id for run in chain}
    return [*(Run(run_id, execution, replaced=True) for run_id in own if run_id not in there), *chain]


async def save_runs(file: BinaryIO, source: ServerHistories) -> AsyncIterator[Run]:
    """The runs of a session, each written to a file on its way. After the last one the file is whole."""
    writer = LineWriter(file, KIND, {"session_id": source.session_id, "namespace": source.namespace})
    async for run in source.read_runs():
        row: dict[str, Any] = {"run_id": run.run_id, "execution": run.execution, "replaced": run.replaced}
        if run.history:
            row["history"] = run.history.to_json_dict()
        writer.write_row(row)
        yield run
    writer.end()


class SavedHistories:
    """The histories in a file that `saving` has written: no server is needed for them."""

    def __init__(self, file: BinaryIO, converter: DataConverter = pydantic_data_converter) -> None:
        self.converter = converter
        self._reader = LineReader(file, KIND)
        header = self._reader.header
        try:
            self.session_id, self.namespace = (
                validate_session_id(header["session_id"]),
                validate_session_id(header["namespace"]),
            )
        except (KeyError, InvalidInput) as error:
            raise FileDamaged(f"its first line does not say whose histories these are: {error}") from None

    async def read_runs(self) -> AsyncIterator[Run]:
        """All runs in the file, the oldest first.

        Raises:
            FileDamaged: it is not what was written; said, at the latest, after the last run.
        """
        for row in self._reader.read_rows():
            try:
                history = row.get("history")
                parsed = WorkflowHistory.from_json(self.session_id, history) if history else None
                yield Run(row["run_id"], row["execution"], row["replaced"], parsed)
            except (KeyError, TypeError, AttributeError, ValueError, ParseError) as error:
                raise FileDamaged(f"it holds a run that cannot be read: {str(error)[:300]}") from None
