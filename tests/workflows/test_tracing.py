"""Traces: one for a request with its calls, its tools and its subagents, from whichever workers serve them."""

from __future__ import annotations

from dataclasses import replace
from http import HTTPStatus
from typing import Any

import pytest
from opentelemetry.trace import NonRecordingSpan, SpanContext, TraceFlags, use_span
from temporalio.api.common.v1 import Payload
from temporalio.client import Client
from temporalio.contrib.opentelemetry import OpenTelemetryInterceptor

from clew import Clew
from clew.local import Reply, ToolCall
from clew_activities.worker.sight import read_spans
from clew_workflows.shell.tracing import read_traceparent
from tests.support.collecting import Collector, Received, run_collector
from tests.support.rolling import make_id
from tests.support.stack import Stack
from tests.support.waiting import wait_until
from tests.support.workers import run_worker_process

TRACE = "0af7651916cd43dd8448eb211c80319c"
CALLER = "b7ad6b7169203331"
CONTENT = "purple"


@pytest.mark.slow
async def test_one_trace_holds_request_calls_tools_and_subagent(stack: Stack) -> None:
    """A second worker takes the session over: it replays the first turn, and makes no span of it again."""
    failing = [replace(Reply.error(HTTPStatus.SERVICE_UNAVAILABLE), headers={"Retry-After": "0.01"})]

    def lead(body: dict[str, Any]) -> Reply:
        if failing:
            return failing.pop()
        results = sum(message["role"] == "tool" for message in body["messages"])
        if results == 2:
            return Reply(CONTENT)
        return Reply(
            tool_calls=[ToolCall("helper", {"task": CONTENT}, "c1"), ToolCall("add", {"a": 1, "b": 2}, "c2")]
        )

    client = await Client.connect(
        stack.server.address,
        data_converter=stack.clew.temporal.data_converter,
        interceptors=[OpenTelemetryInterceptor()],
    )
    clew, session_id = Clew(client, "traced"), make_id()
    caller = SpanContext(int(TRACE, 16), int(CALLER, 16), is_remote=False, trace_flags=TraceFlags(TraceFlags.SAMPLED))
    async with run_collector() as collector:
        settings = {
            "OTEL_EXPORTER_OTLP_ENDPOINT": collector.endpoint,
            "OTEL_BSP_SCHEDULE_DELAY": "100",
            "CLEW_AGENTS": "tests.support.traced_agents",
            "SUBAGENTS_BOSS": stack.add_model(lead),
            "SUBAGENTS_HELPER": stack.add_model(lambda _body: Reply(CONTENT)),
        }
        async with run_worker_process(stack, "traced", OTEL_SERVICE_NAME="one", **settings):
            session = await clew.open(session_id, agent="boss")
            with use_span(NonRecordingSpan(caller)):
                assert await session.ask(CONTENT) == CONTENT
            await wait_until(lambda: has_turns(collector, 2))
        async with run_worker_process(stack, "traced", OTEL_SERVICE_NAME="two", **settings):
            with use_span(NonRecordingSpan(caller)):
                assert await session.ask(CONTENT) == CONTENT
            await wait_until(lambda: has_turns(collector, 3))
    spans = [span for span in collector.spans if span.service == "one"]
    assert {span.trace for span in collector.spans} == {TRACE}
    boss = find(spans, "invoke_agent boss")
    helper = find(spans, "invoke_agent helper")
    assert (boss.parent, helper.parent) == (CALLER, boss.id)
    assert boss.attributes["gen_ai.conversation.id"] == session_id
    calls = [span for span in spans if span.name.startswith("chat ")]
    assert sorted(span.parent for span in calls) == sorted([boss.id] * 3 + [helper.id])
    assert [span.attributes["error.type"] for span in calls if span.failed] == ["provider_unavailable"]
    answered = next(span for span in calls if not span.failed)
    assert answered.attributes["gen_ai.operation.name"] == "chat"
    assert answered.attributes["gen_ai.provider.name"] == "scripted"
    assert answered.attributes["gen_ai.usage.input_tokens"] > 0
    tool = find(spans, "execute_tool add")
    assert tool.parent == boss.id
    assert tool.attributes["gen_ai.tool.call.id"] == "tool-2"
    again = [span.name for span in collector.spans if span.service == "two"]
    assert [name for name in again if name.startswith("invoke_agent")] == ["invoke_agent boss"]
    assert len({span.id for span in collector.spans}) == len(collector.spans)
    assert CONTENT not in str(collector.spans)


async def has_turns(collector: Collector, number: int) -> bool:
    return sum(span.name.startswith("invoke_agent") for span in collector.spans) >= number


def find(spans: list[Received], name: str) -> Received:
    """Find the only span of a name."""
    [span] = [span for span in spans if span.name == name]
    return span


def test_without_a_collector_there_are_no_spans() -> None:
    """The variables of OpenTelemetry turn traces on and off."""
    address = {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:4318"}
    assert read_spans({}) is None
    assert read_spans({**address, "OTEL_SDK_DISABLED": "true"}) is None
    assert read_spans({**address, "OTEL_TRACES_EXPORTER": "none"}) is None


@pytest.mark.parametrize("data", [b"", b"\xff", b"[]", b'{"traceparent": 1}', b'{"traceparent": "00-zz-1-01"}'])
def test_a_header_that_is_no_context_counts_as_none(data: bytes) -> None:
    """Anybody may send one: no workflow task fails."""
    assert read_traceparent({"_tracer-data": Payload(data=data)}) is None
