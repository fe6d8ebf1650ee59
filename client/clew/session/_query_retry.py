"""Repeat queries that the server or a worker refuses for now after milliseconds; the SDK would wait a second."""

from __future__ import annotations

import time
from datetime import timedelta
from typing import Any

from temporalio.api.common.v1 import WorkflowExecution
from temporalio.api.errordetails.v1 import QueryFailedFailure
from temporalio.api.workflowservice.v1 import QueryWorkflowRequest, QueryWorkflowResponse
from temporalio.client import (
    Client,
    Interceptor,
    OutboundInterceptor,
    QueryWorkflowInput,
    WorkflowExecutionStatus,
    WorkflowQueryFailedError,
    WorkflowQueryRejectedError,
)
from temporalio.common import HeaderCodecBehavior
from temporalio.converter import DataConverter, WorkflowSerializationContext
from temporalio.exceptions import FailureError
from temporalio.service import RPCError, RPCStatusCode

from clew.session.transport import Pauses
from clew_workflows.contract.inputs import QUERY_AHEAD

PATIENCE_SECONDS = 10.0
"""Seconds for which a query is repeated that the server cannot take, as in the SDK."""
BUSY_SECONDS = 30.0
"""Seconds for which a query is repeated that waits for a workflow task, if its own timeout permits that. The task of
a lost worker times out after ten."""
_FIRST_PAUSE_SECONDS = 0.01
_LONGEST_PAUSE_SECONDS = 1.0
_SHORTEST_TIMEOUT = timedelta(milliseconds=1)
"""The shortest timeout that the SDK can express, for a pause that took too long."""
# With RESOURCE_EXHAUSTED these are what the SDK retries.
_RETRIED = (
    RPCStatusCode.UNAVAILABLE,
    RPCStatusCode.ABORTED,
    RPCStatusCode.INTERNAL,
    RPCStatusCode.UNKNOWN,
    RPCStatusCode.DATA_LOSS,
    RPCStatusCode.OUT_OF_RANGE,
    # The server cancels queries under way when it closes a connection, which it does after five minutes
    # (`frontend.keepAliveMaxConnectionAge`), and when it unloads a task queue.
    RPCStatusCode.CANCELLED,
)


def retry_queries_soon(
    client: Client, *, patience_seconds: float = PATIENCE_SECONDS, busy_seconds: float = BUSY_SECONDS
) -> Client:
    """Make a client like this one that repeats refused queries after milliseconds.

    While a workflow task is in progress, the server buffers one query and refuses the others
    (`history.maxBufferedQueryCount` is 1). The buffer is free again after milliseconds, or seconds if the worker was
    lost. The SDK treats the refusal as overload: it waits a second, and gives up after ten.
    """
    config = client.config()
    if any(isinstance(interceptor, _RetryQueriesSoon) for interceptor in config["interceptors"]):
        return client
    # The last interceptor is the innermost, so tracing interceptors see each query once.
    config["interceptors"] = [*config["interceptors"], _RetryQueriesSoon(client, patience_seconds, busy_seconds)]
    return Client(**config)


class _RetryQueriesSoon(Interceptor):
    def __init__(self, client: Client, patience_seconds: float, busy_seconds: float) -> None:
        self._client = client
        self._patience_seconds = patience_seconds
        self._busy_seconds = busy_seconds

    def intercept_client(self, next: OutboundInterceptor) -> OutboundInterceptor:  # noqa: A002 - the SDK's name
        return _Outbound(next, self._client, self._patience_seconds, self._busy_seconds)


class _Outbound(OutboundInterceptor):
    def __init__(
        self,
        next: OutboundInterceptor,  # noqa: A002 - the SDK's name
        client: Client,
        patience_seconds: float,
        busy_seconds: float,
    ) -> None:
        super().__init__(next)
        self._client = client
        self._patience_seconds = patience_seconds
        self._busy_seconds = busy_seconds

    async def query_workflow(self, input: QueryWorkflowInput) -> Any:  # noqa: A002 - the SDK's name
        client = self._client
        if input.headers and client.config()["header_codec_behavior"] == HeaderCodecBehavior.CODEC:
            return await super().query_workflow(input)
        context = WorkflowSerializationContext(namespace=client.namespace, workflow_id=input.id)
        converter = client.data_converter.with_context(context)
        request = QueryWorkflowRequest(
            namespace=client.namespace,
            execution=WorkflowExecution(workflow_id=input.id, run_id=input.run_id or ""),
        )
        if input.reject_condition:
            request.query_reject_condition = int(input.reject_condition)  # type: ignore[assignment]
        request.query.query_type = input.query
        request.query.query_args.payloads.extend(await converter.encode(input.args))
        for name, payload in input.headers.items():
            request.query.header.fields[name].CopyFrom(payload)
        answer = await self._query(request, input, converter)
        if answer.HasField("query_rejected"):
            raise WorkflowQueryRejectedError(WorkflowExecutionStatus(answer.query_rejected.status))
        hints = [input.ret_type] if input.ret_type else None
        (value,) = await converter.decode(answer.query_result.payloads, hints) or [None]
        return value

    async def _query(
        self, request: QueryWorkflowRequest, query: QueryWorkflowInput, converter: DataConverter
    ) -> QueryWorkflowResponse:
        """Repeat the query until the client's patience or the query's own `rpc_timeout` ends."""
        started, timeout = time.monotonic(), query.rpc_timeout
        pauses = Pauses(_FIRST_PAUSE_SECONDS, _LONGEST_PAUSE_SECONDS)
        while True:
            passed = time.monotonic() - started
            time_left = None if timeout is None else max(timeout - timedelta(seconds=passed), _SHORTEST_TIMEOUT)
            try:
                return await self._query_once(request, query, converter, time_left)
            except (RPCError, WorkflowQueryFailedError) as error:
                patience = self._find_patience(error)
                if timeout is not None:
                    patience = min(patience, timeout.total_seconds())
                if time.monotonic() - started + pauses.next_seconds > patience:
                    raise
            await pauses.wait()

    async def _query_once(
        self,
        request: QueryWorkflowRequest,
        query: QueryWorkflowInput,
        converter: DataConverter,
        time_left: timedelta | None,
    ) -> QueryWorkflowResponse:
        try:
            service = self._client.workflow_service
            return await service.query_workflow(request, metadata=query.rpc_metadata, timeout=time_left)
        except RPCError as error:
            if error.status != RPCStatusCode.INVALID_ARGUMENT:
                raise
            raise WorkflowQueryFailedError(await _read_reason(error, converter)) from error

    def _find_patience(self, error: RPCError | WorkflowQueryFailedError) -> float:
        """Find for how many seconds a query that fails so is repeated."""
        if isinstance(error, WorkflowQueryFailedError):
            return self._busy_seconds if error.message == QUERY_AHEAD else 0.0
        if error.status == RPCStatusCode.RESOURCE_EXHAUSTED:
            return self._busy_seconds
        return self._patience_seconds if error.status in _RETRIED else 0.0


async def _read_reason(error: RPCError, converter: DataConverter) -> str:
    """Read why a query has failed. If a workflow task failed and failures are encrypted, the message does not say."""
    for detail in error.grpc_status.details:
        failed = QueryFailedFailure()
        if detail.Unpack(failed) and failed.failure.HasField("encoded_attributes"):
            reason = await converter.decode_failure(failed.failure)
            return reason.message if isinstance(reason, FailureError) else str(reason)
    return error.message
