"""The interceptor of a worker's activities: metrics, and one log line for a retry, without content."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from temporalio import activity
from temporalio.exceptions import ApplicationError
from temporalio.service import RPCError
from temporalio.worker import (
    ActivityInboundInterceptor,
    ExecuteActivityInput,
    Interceptor,
    WorkflowInboundInterceptor,
    WorkflowInterceptorClassInput,
)

from clew_activities.telemetry.metrics import record_answer, record_failure
from clew_workflows.host import retries
from clew_workflows.host.telemetry import TRACING, TracingInterceptor, read_traceparent

if TYPE_CHECKING:
    # Only a worker that makes spans has the package OpenTelemetry.
    from clew_activities.telemetry.spans import Attempt, Spans

log = logging.getLogger("clew.retry")

MODULES = ("clew_activities.", "clew_workflows.")
"""Where Clew's own activities are. Those of a team are left alone."""
RETRY = "the attempt failed and is repeated"
"""The message of a log line for a retry."""
GIVEN_UP = "the attempt was given up, and is repeated if the session is open"
"""The message of a log line for an attempt that the server or the worker has ended."""
UNSEEN = ("archive",)
"""Activities that no caller waits for, and whose last failure no turn's line has."""
_IDS = {"request_id": "request", "run_id": "run", "call_id": "call", "tool_call_id": "tool_call"}
"""The ids that the inputs of activities have, and their names in log lines."""
_REPORTED = "_clew_reported"
"""The attribute of an exception that has a log line."""


_SPANS: list[Spans] = []
"""What makes the spans of this process: one, or none."""


@contextmanager
def trace_with(spans: Spans | None) -> Iterator[None]:
    """Make the spans of this process while the context is open; None: make none."""
    if spans is None:
        yield
        return
    _SPANS.append(spans)
    TRACING.end_turn = spans.end_turn
    try:
        yield
    finally:
        TRACING.end_turn = None
        _SPANS.remove(spans)
        spans.close()


def observe_attempt(request: Any, traceparent: str | None) -> AbstractContextManager[Attempt | None]:
    """Make the span of an attempt, if this process makes spans."""
    return _SPANS[0].observe(request, traceparent) if _SPANS else nullcontext()


class TelemetryInterceptor(Interceptor):
    """Observes the attempts of Clew's activities. The failures that it reports are logged without a traceback."""

    def __init__(self) -> None:
        hide_expected_failures()

    def intercept_activity(self, next: ActivityInboundInterceptor) -> ActivityInboundInterceptor:  # noqa: A002
        """Observe one attempt."""
        return _Attempt(next)

    def workflow_interceptor_class(
        self,
        input: WorkflowInterceptorClassInput,  # noqa: A002, ARG002
    ) -> type[WorkflowInboundInterceptor]:
        """Pass traces on to the activities of sessions."""
        return TracingInterceptor


class _Attempt(ActivityInboundInterceptor):
    async def execute_activity(self, input: ExecuteActivityInput) -> Any:  # noqa: A002
        if not _is_own(input.fn):
            return await self.next.execute_activity(input)
        running, request = RunningAttempt(), input.args[0] if input.args else None
        try:
            with observe_attempt(request, read_traceparent(input.headers)) as attempt:
                answer = await self.next.execute_activity(input)
                if attempt is not None:
                    attempt.finish(answer)
        except ApplicationError as failure:
            _report_failure(failure, input, running)
            raise
        except RPCError as error:
            # The server is away or refuses the call. To the workflow the failure is the one that the SDK would make.
            unreachable = ApplicationError(str(error), type=type(error).__name__)
            _report_failure(unreachable, input, running)
            raise unreachable from error
        except asyncio.CancelledError as stop:
            if reason := _find_loss():
                fields = list_ids(input.args) | {"error": reason, "attempt": activity.info().attempt}
                log.warning(GIVEN_UP, extra={"fields": fields})
                setattr(stop, _REPORTED, True)
            raise
        record_answer(request, answer, running.passed.total_seconds())
        return answer


def _is_own(function: Any) -> bool:
    return str(getattr(function, "__module__", "")).startswith(MODULES)


def _report_failure(failure: ApplicationError, input: ExecuteActivityInput, running: RunningAttempt) -> None:  # noqa: A002
    """Count a failure, and log it if an attempt follows. The last one of a call is in the turn's line."""
    delay = running.describe().compute_delay(failure)
    record_failure(
        input.args[0] if input.args else None,
        failure.type or "unknown",
        tuple(failure.details),
        running.passed.total_seconds(),
        repeated=delay is not None,
    )
    fields = list_ids(input.args) | {"error": failure.type, "attempt": activity.info().attempt}
    if status := _find_status(failure):
        fields["status"] = status
    setattr(failure, _REPORTED, True)
    if delay is None:
        level = logging.WARNING if fields["activity"] in UNSEEN else logging.DEBUG
        log.log(level, "the attempt failed, and none follows", extra={"fields": fields})
        return
    log.warning(RETRY, extra={"fields": fields | {"next_seconds": round(delay.total_seconds(), 3)}})


class RunningAttempt:
    """The attempt of the running activity, by the server's clock. It is made when the attempt begins."""

    def __init__(self) -> None:
        self._begun_at = time.monotonic()

    @property
    def passed(self) -> timedelta:
        """The time since the attempt began."""
        return timedelta(seconds=time.monotonic() - self._begun_at)

    @property
    def time_left(self) -> timedelta | None:
        """The time for this attempt and all that follow; None: it has no limit."""
        return self.describe().time_left

    def describe(self) -> retries.Attempt:
        """Describe it as it is now."""
        info = activity.info()
        passed, limit = info.started_time - info.scheduled_time + self.passed, info.schedule_to_close_timeout
        return retries.Attempt(
            number=info.attempt,
            policy=info.retry_policy,
            passed=passed,
            time_left=None if limit is None else limit - passed,
        )


def list_ids(args: Sequence[Any]) -> dict[str, Any]:
    """List the ids that log lines of the current attempt have. None of them is a text of the conversation."""
    info = activity.info()
    ids: dict[str, Any] = {"session": info.workflow_id, "activity": info.activity_type}
    if args:
        ids |= {name: getattr(args[0], field, None) for field, name in _IDS.items()}
        ids["model"] = getattr(args[0], "model", None)
    return {name: value for name, value in ids.items() if isinstance(value, str)}


def _find_loss() -> str | None:
    """Why an attempt has been cancelled, if the session has not asked for it."""
    if activity.is_worker_shutdown():
        return "worker_stopped"
    details = activity.cancellation_details()
    # The server has had no heartbeat in time, has closed the session's workflow, or an operator has paused the call.
    return "attempt_lost" if details and not details.cancel_requested else None


def _find_status(failure: ApplicationError) -> int | None:
    """Find the HTTP status in the failure of a provider."""
    details = failure.details[0] if failure.details else None
    status = details.get("status") if isinstance(details, Mapping) else None
    return status if isinstance(status, int) else None


class _ExpectedFailures(logging.Filter):
    """Drops the SDK's log lines about failures that the interceptor reports."""

    def filter(self, record: logging.LogRecord) -> bool:
        if getattr(record, "__temporal_error_identifier", None) != "ActivityFailure" or not record.exc_info:
            return True
        return not getattr(record.exc_info[1], _REPORTED, False)


_EXPECTED_FAILURES = _ExpectedFailures()


def hide_expected_failures() -> None:
    """Keep the SDK from logging a traceback for each failure that the interceptor reports, in this process."""
    activity.logger.base_logger.addFilter(_EXPECTED_FAILURES)
