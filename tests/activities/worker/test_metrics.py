"""The metrics of a worker, read as Prometheus reads them."""

from __future__ import annotations

import uuid

import httpx
import pytest
from temporalio.api.enums.v1 import TaskQueueType
from temporalio.runtime import PrometheusConfig, Runtime, TelemetryConfig

from clew import Clew
from clew.local.child import LOOPBACK, free_ports
from clew_activities.telemetry.metrics import BoundedLabels
from clew_activities.worker.assembly import WORKFLOW_TASKS
from clew_activities.worker.backlog import report_backlog
from clew_activities.worker.observability import read_observability_settings
from tests.support.provider_server import HELLO_STREAM, encode_events, run_fake_server
from tests.support.rolling import make_id
from tests.support.scraping import CONTENT, Scrape, run_observed_worker, serve_turns
from tests.support.stack import Stack
from tests.support.waiting import wait_until

TURNS = 4


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
        return Scrape(answer.text).sum("clew_task_queue_backlog", queue=queue, kind="workflow") == len(waiting)

    async with (
        httpx.AsyncClient(trust_env=False) as http,
        report_backlog(client, runtime.metric_meter, [(queue, TaskQueueType.TASK_QUEUE_TYPE_WORKFLOW)]),
    ):
        await wait_until(counts_both)
    for handle in waiting:
        await handle.terminate()


def test_a_label_has_a_limited_number_of_values() -> None:
    """Callers choose names of models: those beyond the limit are counted together."""
    labels = BoundedLabels(limit=2)
    names = ("a", "b", "c", "a", "d")
    assert [labels.limit(model=name)["model"] for name in names] == ["a", "b", "other", "a", "other"]
    assert labels.limit(tool="c") == {"tool": "c"}


@pytest.mark.parametrize("text", ["9464", "localhost:9464", "0.0.0.0:0", "0.0.0.0:99999", "[::1]"])
@pytest.mark.parametrize("variable", ["CLEW_METRICS_ADDRESS", "CLEW_HEALTH_ADDRESS"])
def test_an_address_that_is_none_is_refused(variable: str, text: str) -> None:
    """The message names the variable."""
    with pytest.raises(ValueError, match=f"{variable} must be an IP address and a port"):
        read_observability_settings({variable: text})
