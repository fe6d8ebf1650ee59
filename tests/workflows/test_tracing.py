"""Traces: one for a request with its calls, its tools and its subagents, from whichever workers serve them."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field, replace
from http import HTTPStatus
from typing import Any

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import NonRecordingSpan, SpanContext, TraceFlags, use_span
from temporalio.api.common.v1 import Payload
from temporalio.client import Client
from temporalio.contrib.opentelemetry import OpenTelemetryInterceptor

from clew import Clew, ContextPolicy, Session
from clew.local import Reply, ToolCall
from clew.local.child import LOOPBACK, free_ports
from clew_activities.telemetry.interceptor import trace_with
from clew_activities.telemetry.spans import Spans, TurnIds
from clew_activities.worker.observability import read_spans
from clew_workflows.host.telemetry import read_traceparent
from tests.support.processes import run_worker_process
from tests.support.rolling import make_id
from tests.support.scripts import FOUNDED, PAGE, make_tool_script
from tests.support.stack import Stack
from tests.support.waiting import wait_until

TRACE = "0af7651916cd43dd8448eb211c80319c"
CALLER = "b7ad6b7169203331"
CONTENT = "purple"


@dataclass(frozen=True)
class Received:
    """A span.

    Attributes:
        name: Its name.
        trace: The id of its trace.
        id: Its own id.
        parent: The id of its parent.
        service: The process that sent it.
        attributes: Its attributes.
        failed: It has the status of an error.
    """

    name: str
    trace: str
    id: str
    parent: str
    service: str
    attributes: dict[str, Any]
    failed: bool


@dataclass
class Collector:
    """A collector of OpenTelemetry: it keeps the spans that workers send by OTLP over HTTP.

    Attributes:
        endpoint: The value of `OTEL_EXPORTER_OTLP_ENDPOINT`.
        spans: The spans.
    """

    endpoint: str
    spans: list[Received] = field(default_factory=list)

    async def handle(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Take requests of one connection."""
        try:
            while True:
                header = (await reader.readuntil(b"\r\n\r\n")).decode().lower()
                size = int(header.partition("content-length:")[2].split("\r\n", 1)[0])
                self._take(await reader.readexactly(size))
                writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: application/x-protobuf\r\nContent-Length: 0\r\n\r\n")
                await writer.drain()
        except (asyncio.IncompleteReadError, OSError):
            pass
        finally:
            writer.close()

    def _take(self, data: bytes) -> None:
        for resource in ExportTraceServiceRequest.FromString(data).resource_spans:
            described = {pair.key: pair.value.string_value for pair in resource.resource.attributes}
            for scope in resource.scope_spans:
                for span in scope.spans:
                    attributes = {
                        pair.key: getattr(pair.value, str(pair.value.WhichOneof("value"))) for pair in span.attributes
                    }
                    self.spans.append(
                        Received(
                            name=span.name,
                            trace=span.trace_id.hex(),
                            id=span.span_id.hex(),
                            parent=span.parent_span_id.hex(),
                            service=described["service.name"],
                            attributes=attributes,
                            failed=span.status.code == span.status.STATUS_CODE_ERROR,
                        )
                    )


@asynccontextmanager
async def run_collector() -> AsyncIterator[Collector]:
    """Run a collector while the context is open."""
    port = free_ports(1)[0]
    collector = Collector(f"http://{LOOPBACK}:{port}")
    async with await asyncio.start_server(collector.handle, LOOPBACK, port):
        yield collector


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
            "CLEW_AGENTS": "tests.support.crew",
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
    assert tool.attributes["gen_ai.tool.call.id"] == "tool00002"
    again = [span.name for span in collector.spans if span.service == "two"]
    assert [name for name in again if name.startswith("invoke_agent")] == ["invoke_agent boss"]
    assert len({span.id for span in collector.spans}) == len(collector.spans)
    assert CONTENT not in str(collector.spans)


@contextmanager
def keep_spans(*, shows_content: bool = False) -> Iterator[InMemorySpanExporter]:
    """Keep the spans of this process in memory."""
    exporter = InMemorySpanExporter()
    provider = TracerProvider(id_generator=TurnIds())
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    with trace_with(Spans(provider, shows_content=shows_content)):
        yield exporter


@pytest.mark.parametrize("shows_content", [False, True])
async def test_spans_have_texts_only_if_they_are_asked_for(stack: Stack, shows_content: bool) -> None:
    """Those of replies, summaries, and of the arguments and results of tools; never the caller's message."""
    session = await stack.open(make_tool_script(ToolCall("add", {"a": 40, "b": 2})), tools=["add"])
    with keep_spans(shows_content=shows_content) as exporter:
        assert await session.ask("a purple question") == "42"
        assert await session.ask("another") == "42"
        await session.configure(model=stack.add_model(CONTENT))
        await session.summarize(to_seq=4)
        texts = [span["attributes"] for span in list_spans(exporter)]
    replies = [json.loads(text["gen_ai.output.messages"]) for text in texts if "gen_ai.output.messages" in text]
    if not shows_content:
        assert replies == []
        assert not any("gen_ai.tool.call.arguments" in text or "gen_ai.tool.call.result" in text for text in texts)
        assert CONTENT not in str(texts)
        return
    contents = [message["parts"][0]["content"] for (message,) in replies]
    assert contents == ["", "42", "", "42", CONTENT]
    tools = [text for text in texts if text["gen_ai.operation.name"] == "execute_tool"]
    assert json.loads(tools[0]["gen_ai.tool.call.arguments"]) == {"a": 40, "b": 2}
    assert tools[0]["gen_ai.tool.call.result"] == "42"
    assert "a purple question" not in str(texts)


async def test_a_summary_is_a_span_of_the_turn_before_it_or_of_its_caller(stack: Stack) -> None:
    """Each attempt is one, failed ones too, with the usage of its calls."""
    failing = [replace(Reply.error(HTTPStatus.SERVICE_UNAVAILABLE), headers={"Retry-After": "0.01"})]

    def script(body: dict[str, Any]) -> Reply:
        is_summary = "memory of a conversation" in str(body["messages"][0])
        return failing.pop() if is_summary and failing else Reply("short" if is_summary else "an answer " * 20)

    client = await Client.connect(
        stack.server.address,
        data_converter=stack.clew.temporal.data_converter,
        interceptors=[OpenTelemetryInterceptor()],
    )
    clew = Clew(client, stack.clew.task_queue)
    policy = ContextPolicy(
        max_input_tokens=400, reserve_output_tokens=100, summarization="request_new", summarize_threshold=3,
        keep_last_turns=1, low_water=0.1,
    )  # fmt: skip
    caller = SpanContext(int(TRACE, 16), int(CALLER, 16), is_remote=False, trace_flags=TraceFlags(TraceFlags.SAMPLED))
    with keep_spans() as exporter:
        session = await clew.open(make_id(), model=stack.add_model(script), context_policy=policy)
        for _ in range(3):
            await session.ask("a question")
        await wait_until(lambda: has_summary(session, 1))
        await session.ask("a question")
        with use_span(NonRecordingSpan(caller)):
            await session.summarize()
        spans = list_spans(exporter)
    written = [span for span in spans if "clew.summary.id" in span["attributes"]]
    assert [span["status"]["status_code"] for span in written] == ["ERROR", "UNSET", "UNSET"]
    failed, automatic, asked = written
    assert failed["attributes"]["error.type"] == "provider_unavailable"
    [turn] = [span for span in spans if span["context"]["span_id"] == automatic["parent_id"]]
    assert turn["name"] == "invoke_agent"
    assert {span["context"]["trace_id"] for span in (failed, automatic, turn)} == {turn["context"]["trace_id"]}
    assert failed["parent_id"] == automatic["parent_id"]
    assert automatic["attributes"]["gen_ai.operation.name"] == "chat"
    assert automatic["attributes"]["gen_ai.usage.output_tokens"]
    assert (asked["context"]["trace_id"], asked["parent_id"]) == (f"0x{TRACE}", f"0x{CALLER}")


def list_spans(exporter: InMemorySpanExporter) -> list[dict[str, Any]]:
    """List the spans that have ended, as JSON."""
    return [json.loads(span.to_json()) for span in exporter.get_finished_spans()]


async def has_summary(session: Session, number: int) -> bool:
    return len(await session.entries(kind="summary")) >= number


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


@pytest.mark.parametrize("shows_content", [False, True])
async def test_spans_name_the_tools_that_a_provider_ran(stack: Stack, shows_content: bool) -> None:
    """Their inputs and results are texts: the conventions' parts of the output."""
    session = await stack.open(lambda _: FOUNDED)
    with keep_spans(shows_content=shows_content) as exporter:
        await session.ask("Where does tea grow?")
        (chat,) = (span["attributes"] for span in list_spans(exporter) if span["name"].startswith("chat"))
    assert list(chat["clew.provider_tools.called"]) == ["web_search", "code_execution"]
    if not shows_content:
        assert "where tea grows" not in str(chat)
        return
    ((message,),) = [json.loads(chat["gen_ai.output.messages"])]
    called, answered, *_, written = message["parts"]
    assert (called["type"], called["name"]) == ("server_tool_call", "web_search")
    assert called["server_tool_call"] == {"type": "web_search", "input": "where tea grows"}
    assert answered["type"] == "server_tool_call_response"
    assert answered["server_tool_call_response"]["sources"] == [{"url": PAGE, "title": "Assam"}]
    assert written == {"type": "text", "content": FOUNDED.text}
