"""List sessions: live ones by Temporal's visibility, ended ones from the archive, whose store only workers reach."""

from __future__ import annotations

import re
from collections.abc import AsyncGenerator, AsyncIterator
from datetime import UTC, datetime, timedelta
from typing import Any, get_args

from temporalio.client import Client, WorkflowExecution, WorkflowExecutionStatus
from temporalio.service import RPCError, RPCStatusCode

from clew.session.handle import run_service
from clew.session.transport import INTERRUPTED, make_input, translate_error
from clew_workflows.contract.errors import InvalidInput, SearchAttributesMissing
from clew_workflows.contract.lists import (
    SEARCH_ATTRIBUTES,
    ListedStatus,
    ListSessionsInput,
    SessionsPage,
    SessionSummary,
    cut_keyword,
    split_tags,
)
from clew_workflows.contract.names import DELETED_WORKFLOW, LIST_WORKFLOW, WORKFLOW_TYPE

Since = datetime | timedelta | str
Summaries = AsyncGenerator[SessionSummary, None]
_ARCHIVED: tuple[ListedStatus, ...] = ("hibernated", "closed")
ENDED_AT_ONCE = 100
"""Sessions that have ended of which one call to the server finds those that were deleted."""
_UNITS = {"m": "minutes", "h": "hours", "d": "days", "w": "weeks"}


class SessionLists:
    """The part of `Clew` that lists sessions."""

    def __init__(self, client: Client, task_queue: str) -> None:
        self.temporal = client
        self.task_queue = task_queue

    async def sessions(
        self,
        *,
        user: str | None = None,
        status: ListedStatus | None = None,
        agent: str | None = None,
        since: Since | None = None,
        prefix: str | None = None,
        query: str | None = None,
    ) -> Summaries:
        """List sessions: live ones, the newest first, then those that only the archive has, by their ids.

        The list of live sessions is eventually consistent: a change is seen about a second later. Each session is
        listed once; the iterator remembers the ids. At most a page of sessions is in memory.

        Args:
            user: Sessions whose metadata `user` is this.
            status: Sessions in this status.
            agent: Sessions with this agent.
            since: Sessions that were active since then: a time, a duration until now, or a text: `today`, `24h`,
                `7d`, `2026-11-01`. A time without a time zone is local.
            prefix: Sessions whose ids begin with this.
            query: A filter in the syntax of Temporal's visibility, such as `ClewCostUsd > 1`. It applies to what the
                server knows, so sessions that only the archive has are not listed.

        Raises:
            ArchiveUnavailable: The archive cannot be read at present.
            InvalidInput: An argument is not valid.
            SearchAttributesMissing: The namespace lacks the search attributes that the filters need:
                `clew setup-namespace` adds them.

        Example:
            waiting = clew.sessions(user="ada", status="awaiting_approval", since="7d")
            async for summary in waiting:
                print(summary.session_id, summary.title, summary.cost_usd)
        """
        if status is not None and status not in get_args(ListedStatus):
            raise InvalidInput(f"status: it is one of {', '.join(get_args(ListedStatus))}")
        fields = {
            "user": user,
            "status": status,
            "agent": agent,
            "since": None if since is None else _format_time(parse_since(since)),
            "prefix": prefix,
        }
        listing = _Listing(self.temporal, self.task_queue, make_input(ListSessionsInput, fields))
        async for summary in listing.list_known(query) if query is not None else listing.list_all():
            yield summary


def parse_since(since: Since) -> datetime:
    """Parse a time: `today`, a duration such as `24h`, or a time in ISO 8601.

    Raises:
        InvalidInput: The text is none of them.
    """
    now = datetime.now().astimezone()
    try:
        if isinstance(since, timedelta):
            return now - since
        if isinstance(since, datetime):
            return since.astimezone()
        if since == "today":
            return now.replace(hour=0, minute=0, second=0, microsecond=0)
        if duration := re.fullmatch(r"([0-9]{1,6})([mhdw])", since):
            return now - timedelta(**{_UNITS[duration[2]]: int(duration[1])})
        return datetime.fromisoformat(since).astimezone()
    except (ValueError, OverflowError, OSError):
        raise InvalidInput(f"since: {str(since)[:50]!r} is not today, a duration like 24h, or a date") from None


class _Listing:
    """One list of sessions."""

    def __init__(self, client: Client, task_queue: str, filters: ListSessionsInput) -> None:
        self._client = client
        self._task_queue = task_queue
        self._filters = filters
        self._listed: set[str] = set()

    async def list_known(self, query: str) -> Summaries:
        """List what the server knows and the query names."""
        conditions = ['ExecutionStatus != "ContinuedAsNew"', f"({query})"]
        async for summary in self._list_executions(conditions, with_status=True):
            yield summary

    async def list_all(self) -> Summaries:
        """List live sessions, archived ones, and those whose workflows were terminated before they were archived."""
        status = self._filters.status
        if status not in (*_ARCHIVED, "interrupted"):
            async for summary in self._list_executions(['ExecutionStatus = "Running"'], with_status=True):
                yield summary
        if status in (None, *_ARCHIVED, "interrupted"):
            async for summary in self._list_archived():
                yield summary
        if status in (None, "interrupted"):
            ended = 'ExecutionStatus IN ("Terminated", "TimedOut")'
            async for summary in self._list_executions([ended], with_status=False):
                yield summary

    async def _list_executions(self, conditions: list[str], *, with_status: bool) -> Summaries:
        """List the sessions of workflow executions that meet the conditions and the filters."""
        query = " AND ".join([f'WorkflowType = "{WORKFLOW_TYPE}"', *conditions, *self._make_conditions(with_status)])
        prefix = self._filters.prefix or ""
        try:
            async for execution in self._leave_out_deleted(self._client.list_workflows(query)):
                # Some of Temporal's databases do not tell the case of a prefix.
                if not execution.id.startswith(prefix):
                    continue
                if execution.id not in self._listed and execution.status != WorkflowExecutionStatus.FAILED:
                    self._listed.add(execution.id)
                    yield await _summarize(execution)
        except RPCError as error:
            raise self._translate(error) from error

    async def _leave_out_deleted(
        self, executions: AsyncIterator[WorkflowExecution]
    ) -> AsyncGenerator[WorkflowExecution, None]:
        """Leave out sessions that were deleted, whose histories the server deletes later. None of them runs."""
        ended: list[WorkflowExecution] = []
        async for execution in executions:
            if execution.status == WorkflowExecutionStatus.RUNNING:
                yield execution
                continue
            ended.append(execution)
            if len(ended) == ENDED_AT_ONCE:
                for other in await self._select_present(ended):
                    yield other
                ended.clear()
        for execution in await self._select_present(ended):
            yield execution

    async def _select_present(self, ended: list[WorkflowExecution]) -> list[WorkflowExecution]:
        if not ended:
            return []
        ids = ", ".join(sorted({_quote(execution.id) for execution in ended}))
        query = f'WorkflowType = "{DELETED_WORKFLOW}" AND WorkflowId IN ({ids})'
        deleted: dict[str, datetime] = {}
        async for execution in self._client.list_workflows(query):
            deleted[execution.id] = max(execution.start_time, deleted.get(execution.id, execution.start_time))
        return [
            execution
            for execution in ended
            if execution.id not in deleted or execution.start_time > deleted[execution.id]
        ]

    def _make_conditions(self, with_status: bool) -> list[str]:
        filters = self._filters
        keywords = {
            "ClewUser": filters.user,
            "ClewAgent": filters.agent,
            "ClewStatus": filters.status if with_status else None,
        }
        conditions = [f"{name} = {_quote(value)}" for name, value in keywords.items() if value is not None]
        if filters.since:
            conditions.append(f"ClewLastActive >= {_quote(filters.since)}")
        if filters.prefix:
            conditions.append(f"WorkflowId STARTS_WITH {_quote(filters.prefix)}")
        return conditions

    async def _list_archived(self) -> Summaries:
        query = self._filters
        while True:
            answer = await run_service(self._client, self._task_queue, LIST_WORKFLOW, query, "archived")
            page = SessionsPage.model_validate(answer)
            for summary in page.sessions:
                if summary.session_id not in self._listed:
                    listed = summary if summary.archived else await self._look_up(summary)
                    if listed:
                        self._listed.add(summary.session_id)
                        yield listed
            if page.next_after is None:
                return
            query = query.model_copy(update={"after": page.next_after})

    async def _look_up(self, summary: SessionSummary) -> SessionSummary | None:
        """Look at a session whose archive says that it runs: its workflow may have been terminated.

        Returns None if it runs and is not to be listed.
        """
        try:
            described = await self._client.get_workflow_handle(summary.session_id).describe()
        except RPCError as error:
            if error.status != RPCStatusCode.NOT_FOUND:
                raise translate_error(error, summary.session_id) from error
            return summary
        if described.status != WorkflowExecutionStatus.RUNNING:
            return summary
        # The server's list does not show it yet, or without the attributes that it was filtered by.
        return None if self._filters.status else summary.model_copy(update={"status": None})

    def _translate(self, error: RPCError) -> Exception:
        if error.status != RPCStatusCode.INVALID_ARGUMENT:
            return translate_error(error, "")
        if any(name in error.message for name in SEARCH_ATTRIBUTES):
            return SearchAttributesMissing(
                f"the namespace {self._client.namespace!r} lacks search attributes that the filter needs "
                f"({error.message}): run `clew setup-namespace`"
            )
        return InvalidInput(f"query: {error.message}")


async def _summarize(execution: WorkflowExecution) -> SessionSummary:
    """Summarize a session as the server lists it."""
    values = {pair.key.name: pair.value for pair in execution.typed_search_attributes}
    memo = await _read_memo(execution)
    metadata: dict[str, str] = memo.get("metadata") or {}
    status = values.get("ClewStatus")
    if execution.status in INTERRUPTED:
        status = "interrupted"
    active = values.get("ClewLastActive")
    return SessionSummary(
        session_id=execution.id,
        status=status if status in get_args(ListedStatus) else None,
        title=memo.get("title"),
        agent=values.get("ClewAgent"),
        model=values.get("ClewModel"),
        user=metadata.get("user") or values.get("ClewUser"),
        tags=split_tags(metadata) or tuple(values.get("ClewTags", ())),
        tokens=values.get("ClewTokens"),
        cost_usd=values.get("ClewCostUsd"),
        started_at=memo.get("started_at") or _format_time(execution.start_time),
        active_at=_format_time(active) if active else None,
        parent=values.get("ClewParent"),
        metadata=metadata,
    )


async def _read_memo(execution: WorkflowExecution) -> dict[str, Any]:
    """Read the memo; an empty one if it cannot be decoded, or Clew has not written it."""
    try:
        memo = dict(await execution.memo())
    except Exception:  # a payload codec of the caller's may raise anything
        return {}
    metadata = memo.get("metadata")
    is_valid = isinstance(metadata, dict) and all(isinstance(value, str) for value in metadata.values())
    texts = {name: memo[name] for name in ("title", "started_at") if isinstance(memo.get(name), str)}
    return {**texts, "metadata": metadata if is_valid else {}}


def _quote(text: str) -> str:
    return f'"{cut_keyword(text)}"'


def _format_time(time: datetime) -> str:
    return time.astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
