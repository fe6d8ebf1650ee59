"""What operators see of a worker: log lines, metrics, the depth of its task queues."""

from __future__ import annotations

import asyncio
import json
import logging
import sys
import uuid
from dataclasses import replace
from http import HTTPStatus
from typing import Any

import httpx
import pytest
from temporalio import activity
from temporalio.activity import ActivityCancellationDetails
from temporalio.api.enums.v1 import TaskQueueType
from temporalio.exceptions import ApplicationError
from temporalio.runtime import PrometheusConfig, Runtime, TelemetryConfig
from temporalio.service import RPCError, RPCStatusCode
from temporalio.testing import ActivityEnvironment
from temporalio.worker import ActivityInboundInterceptor, ExecuteActivityInput

from clew import Clew
from clew.local import Reply
from clew.local.child import LOOPBACK, free_ports
from clew_activities.archive.hibernation import ArchiveActivities
from clew_activities.providers import Redaction
from clew_activities.telemetry.interceptor import TelemetryInterceptor
from clew_activities.worker.assembly import WORKFLOW_TASKS
from clew_activities.worker.observability import (
    JsonFormatter,
    RedactingFormatter,
    read_log_format,
    read_observability_settings,
    report_backlog,
)
from tests.support.processes import open_session_on, run_worker_process
from tests.support.provider_server import HELLO_STREAM, encode_events, run_fake_server
from tests.support.rolling import make_id
from tests.support.scraping import CONTENT, Scrape, run_observed_worker, serve_turns
from tests.support.stack import Stack
from tests.support.waiting import wait_until

FAILURES = 2
FAILED = replace(Reply.error(HTTPStatus.INTERNAL_SERVER_ERROR, "no purple"), headers={"Retry-After": "0.01"})


def make_record(**extra: Any) -> logging.LogRecord:
    """Make a record with an exception whose message has a secret."""
    try:
        raise ValueError("the key hunter2hunter2")
    except ValueError:
        logger = logging.getLogger("clew.turn")
        return logger.makeRecord(
            "clew.turn", logging.INFO, "file", 1, "turn %s", ("completed",), sys.exc_info(), extra=extra
        )


@pytest.mark.slow
async def test_a_provider_that_answers_500_costs_a_line_for_each_retry(stack: Stack) -> None:
    """Two failures and an answer are three lines. None has a text of the conversation, or a traceback."""
    replies = [FAILED] * FAILURES
    async with run_worker_process(stack, "logs", CLEW_LOG_FORMAT="json") as worker:
        session = await open_session_on(stack, "logs", lambda _body: replies.pop() if replies else Reply("purple"))
        outcome = await (await session.message("Do you like purple?")).result()
        text = worker.log.read_text()
    lines = [json.loads(line) for line in text.splitlines()]
    # The worker says itself what it serves, and that it does not know the model.
    *retries, turn = [line for line in lines if line["logger"] != "clew.worker"]
    assert [(line["logger"], line["level"]) for line in retries] == [("clew.retry", "WARNING")] * FAILURES
    assert [(line["error"], line["status"], line["attempt"], line["next_seconds"]) for line in retries] == [
        ("provider_unavailable", 500, attempt, 0.01) for attempt in range(1, FAILURES + 1)
    ]
    ids = {"session": session.id, "request": outcome.request_id, "run": outcome.run_id}
    assert all(line.items() >= {**ids, "call": "call-1", "activity": "call_model"}.items() for line in retries)
    assert turn.items() >= {**ids, "logger": "clew.turn", "status": "completed", "reason": "final_answer"}.items()
    assert turn["seconds"] > 0
    assert turn["model_calls"] == 1
    assert "purple" not in text
    assert "Traceback" not in text


class _ServerAway(ActivityInboundInterceptor):
    def __init__(self) -> None:
        """There is no next one."""

    async def execute_activity(self, input: ExecuteActivityInput) -> Any:  # noqa: A002
        raise RPCError("the server is away", RPCStatusCode.UNAVAILABLE, b"")


async def test_a_server_that_is_away_costs_a_line_for_each_retry(caplog: pytest.LogCaptureFixture) -> None:
    """An activity that cannot reach the server fails with one line, and the failure that the SDK would make."""
    attempt = TelemetryInterceptor().intercept_activity(_ServerAway())
    call = ExecuteActivityInput(fn=ArchiveActivities.archive, args=[], executor=None, headers={})
    with pytest.raises(ApplicationError, match="away") as failed:
        await ActivityEnvironment().run(attempt.execute_activity, call)
    assert (failed.value.type, failed.value.non_retryable) == ("RPCError", False)
    assert [(record.name, record.exc_info) for record in caplog.records] == [("clew.retry", None)]


def test_a_line_of_text_has_the_fields_behind_the_message() -> None:
    """They are `name=value`; a traceback follows without the worker's secrets."""
    formatter = RedactingFormatter(Redaction(["hunter2hunter2"]))
    first, *rest = formatter.format(make_record(fields={"session": "s-1", "seconds": 1.5})).splitlines()
    assert first.endswith("INFO clew.turn turn completed session=s-1 seconds=1.5")
    assert "ValueError" in rest[-1]
    assert "hunter2" not in rest[-1]


def test_a_line_of_json_holds_its_exception() -> None:
    """One record is one line, also with a traceback, and has no secret."""
    text = JsonFormatter(Redaction(["hunter2hunter2"])).format(make_record(fields={"session": "s-1"}))
    assert "\n" not in text
    line = json.loads(text)
    assert (line["level"], line["logger"], line["message"], line["session"]) == (
        "INFO",
        "clew.turn",
        "turn completed",
        "s-1",
    )
    assert "ValueError" in line["exception"]
    assert "hunter2" not in text


def test_an_unknown_format_is_refused() -> None:
    """The message names the variable and the formats."""
    assert read_log_format({}) == "text"
    assert read_log_format({"CLEW_LOG_FORMAT": "json"}) == "json"
    with pytest.raises(ValueError, match="CLEW_LOG_FORMAT must be text or json, not 'xml'"):
        read_log_format({"CLEW_LOG_FORMAT": "xml"})


def format_failure(*, hides_texts: bool) -> str:
    """Format the record of an exception with a cause."""
    text = " ".join(["a", "secret"])
    try:
        try:
            raise ValueError(text)
        except ValueError as cause:
            raise RuntimeError(text) from cause
    except RuntimeError:
        record = logging.LogRecord("clew", logging.WARNING, __file__, 1, "an activity failed", None, sys.exc_info())
    record.exc_text = "a secret"
    return RedactingFormatter(Redaction(), hides_texts=hides_texts).format(record)


def test_messages_of_exceptions_are_not_logged_where_texts_are_encrypted() -> None:
    """The classes and the lines of code are, for the exception and its causes."""
    logged = format_failure(hides_texts=True)
    assert "a secret" not in logged
    assert "RuntimeError: (the message is not logged)" in logged
    assert "ValueError: (the message is not logged)" in logged
    assert "line" in logged
    assert "RuntimeError: a secret" in format_failure(hides_texts=False)


class _Waiting(ActivityInboundInterceptor):
    def __init__(self) -> None:
        """There is no next one."""
        self.begun = asyncio.Event()

    async def execute_activity(self, input: ExecuteActivityInput) -> Any:  # noqa: A002
        self.begun.set()
        await asyncio.Event().wait()


@pytest.mark.parametrize(
    ("details", "error"),
    [
        (ActivityCancellationDetails(timed_out=True), "attempt_lost"),
        (ActivityCancellationDetails(not_found=True), "attempt_lost"),
        (ActivityCancellationDetails(cancel_requested=True), None),
    ],
)
async def test_an_attempt_that_the_server_gave_up_is_a_line(
    caplog: pytest.LogCaptureFixture, details: ActivityCancellationDetails, error: str | None
) -> None:
    """The SDK's traceback of it is dropped. A cancellation that the session has requested is no failure."""
    waiting = _Waiting()
    attempt = TelemetryInterceptor().intercept_activity(waiting)
    call = ExecuteActivityInput(fn=ArchiveActivities.archive, args=(), executor=None, headers={})
    environment = ActivityEnvironment()
    running = asyncio.create_task(environment.run(attempt.execute_activity, call))
    await waiting.begun.wait()
    environment.cancel(cancellation_details=details)
    with pytest.raises(asyncio.CancelledError) as caught:
        await running
    fields = [getattr(record, "fields", {}) for record in caplog.records if record.name == "clew.retry"]
    assert [line["error"] for line in fields] == ([error] if error else [])
    caplog.clear()
    extra = {"__temporal_error_identifier": "ActivityFailure"}
    activity.logger.base_logger.warning("Completing activity as failed", exc_info=caught.value, extra=extra)
    assert bool(caplog.records) == (error is None)


TURNS = 4


@pytest.mark.slow
async def test_the_metrics_say_what_turns_cost(stack: Stack) -> None:
    """Turns, model and tool calls, retries, tokens, cost, rollovers, the archive. No label has an id or a text."""
    async with run_observed_worker(stack, "metrics") as worker:
        session_id = await serve_turns(stack, "metrics", TURNS)
        seen = await worker.scrape()
    model = {"provider": "openai", "model": "gpt-4o-mini"}
    assert seen.sum("clew_turns_total", status="completed", reason="final_answer") == TURNS
    assert seen.sum("clew_turn_seconds_count", status="completed") == TURNS
    assert 0 < seen.sum("clew_turn_seconds_sum") < 60 * TURNS
    assert seen.sum("clew_model_call_seconds_count", **model) == 2 * TURNS
    assert seen.sum("clew_model_first_token_seconds_count", **model) == 2 * TURNS
    assert seen.sum("clew_model_errors_total", **model, type="provider_unavailable") == 1
    assert seen.sum("clew_retries_total", activity_type="call_model", type="provider_unavailable") == 1
    assert seen.sum("clew_model_tokens_total", **model, kind="input") > 0
    assert seen.sum("clew_model_tokens_total", **model, kind="output") > 0
    assert seen.sum("clew_model_cost_usd_count", **model) == 2 * TURNS
    assert seen.sum("clew_model_cost_usd_sum", **model) > 0
    assert seen.sum("clew_tool_call_seconds_count", tool="add", outcome="ok") == TURNS
    assert seen.sum("clew_rollovers_total") >= 1
    assert seen.sum("clew_archive_seconds_count", activity_type="archive", outcome="ok") >= 2
    assert "clew_task_queue_backlog" in seen.names
    assert "temporal_sticky_cache_size" in seen.names
    assert session_id not in seen.text
    assert CONTENT not in seen.text


@pytest.mark.slow
async def test_what_a_provider_has_cached_and_the_worker_keeps(stack: Stack) -> None:
    """The cached share of the input, and the session in the worker's cache."""
    async with (
        run_fake_server() as provider,
        run_observed_worker(stack, "cached", OPENAI_BASE_URL=provider.url) as worker,
    ):
        provider.answer(encode_events(HELLO_STREAM))
        session = await Clew(stack.clew.temporal, "cached").open(make_id(), model="openai:gpt-4o-mini")
        assert await session.ask("hello") == "Hello"

        async def is_kept() -> bool:
            return (await worker.scrape()).sum("temporal_sticky_cache_size") >= 1

        await wait_until(is_kept)
        seen = await worker.scrape()
        tasks = {"worker_type": "WorkflowWorker"}
        slots = [seen.sum(f"temporal_worker_task_slots_{kind}", **tasks) for kind in ("available", "used")]
        assert sum(slots) == WORKFLOW_TASKS, "more replays at once might not end in time"
        assert seen.sum("clew_model_tokens_total", kind="input") == 10
        assert seen.sum("clew_model_tokens_total", kind="cached_input") == 4
        await session.close()


async def test_what_waits_for_a_worker_is_counted(stack: Stack) -> None:
    """Two workflows wait on a task queue that nobody serves."""
    [port], queue = free_ports(1), f"unserved-{uuid.uuid4().hex}"
    runtime = Runtime(
        telemetry=TelemetryConfig(metrics=PrometheusConfig(f"{LOOPBACK}:{port}", counters_total_suffix=True))
    )
    client = stack.clew.temporal
    waiting = [await client.start_workflow("Unserved", id=make_id(), task_queue=queue) for _ in range(2)]

    async def counts_both() -> bool:
        answer = await http.get(f"http://{LOOPBACK}:{port}/metrics")
        scrape, labels = Scrape(answer.text), {"queue": queue, "kind": "workflow"}
        is_old = scrape.sum("clew_task_queue_backlog_age_seconds", **labels) > 0
        return is_old and scrape.sum("clew_task_queue_backlog", **labels) == len(waiting)

    async with (
        httpx.AsyncClient(trust_env=False) as http,
        report_backlog(client, runtime.metric_meter, [(queue, TaskQueueType.TASK_QUEUE_TYPE_WORKFLOW)]),
    ):
        await wait_until(counts_both)
    for handle in waiting:
        await handle.terminate()


@pytest.mark.parametrize("text", ["9464", "localhost:9464", "0.0.0.0:0", "0.0.0.0:99999", "[::1]"])
@pytest.mark.parametrize("variable", ["CLEW_METRICS_ADDRESS", "CLEW_HEALTH_ADDRESS"])
def test_an_address_that_is_none_is_refused(variable: str, text: str) -> None:
    """The message names the variable."""
    with pytest.raises(ValueError, match=f"{variable} must be an IP address and a port"):
        read_observability_settings({variable: text})
