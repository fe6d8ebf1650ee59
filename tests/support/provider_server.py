"""A model provider: its server with prepared answers, requests to it, and the events of its streams."""

import asyncio
import json
from collections import deque
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from pydantic import TypeAdapter

from clew.contract import ModelOptions
from clew_activities.providers import Redaction
from clew_activities.providers.interface import Decoder, ModelRequest, Provider
from clew_activities.providers.reply import RedactedDecoder
from clew_workflows.contract.messages import Message, ToolSpec, list_call_ids
from clew_workflows.protocol import ModelReply

Step = bytes | asyncio.Event | None
"""Bytes to send as one chunk, an event to wait for, or None to drop the connection."""


@dataclass
class Received:
    path: str
    headers: dict[str, str]
    body: Any
    connection: int


@dataclass
class Answer:
    status: int
    headers: dict[str, str]
    steps: tuple[Step, ...]
    verbatim: bool = False


@dataclass
class FakeServer:
    """A server on loopback that sends the prepared answers in order, over real HTTP.

    Attributes:
        url: Its base URL.
        received: The requests so far.
        answers: The answers to the next requests.
        requested: Set by the first request.
        hung_up: Set when a client closes its connection.
        connections: Connections opened so far.
    """

    url: str = ""
    received: list[Received] = field(default_factory=list)
    answers: deque[Answer] = field(default_factory=deque)
    requested: asyncio.Event = field(default_factory=asyncio.Event)
    hung_up: asyncio.Event = field(default_factory=asyncio.Event)
    connections: int = 0

    def answer(self, *steps: Step, status: int = 200, **headers: str) -> None:
        fields = {name.replace("_", "-"): value for name, value in headers.items()}
        self.answers.append(Answer(status, {"content-type": "text/event-stream"} | fields, steps))

    def answer_json(self, value: Any, status: int = 200, **headers: str) -> None:
        self.answer(json.dumps(value).encode(), status=status, content_type="application/json", **headers)

    def answer_verbatim(self, *steps: Step) -> None:
        """Send these bytes, which need not be HTTP, and close the connection."""
        self.answers.append(Answer(0, {}, steps, verbatim=True))

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        number = self.connections
        try:
            while head := await reader.readuntil(b"\r\n\r\n"):
                first, *lines = head.decode().strip().split("\r\n")
                headers = {k.lower(): v.strip() for k, v in (line.split(":", 1) for line in lines)}
                body = json.loads(await reader.readexactly(int(headers["content-length"])))
                self.received.append(Received(first.split()[1], headers, body, number))
                self.requested.set()
                await self._write(writer, self.answers.popleft())
        except (asyncio.IncompleteReadError, ConnectionError):
            self.hung_up.set()
        finally:
            writer.close()

    async def _write(self, writer: asyncio.StreamWriter, answer: Answer) -> None:
        lines = "".join(f"{name}: {value}\r\n" for name, value in answer.headers.items())
        if not answer.verbatim:
            writer.write(f"HTTP/1.1 {answer.status} X\r\n{lines}transfer-encoding: chunked\r\n\r\n".encode())
        for step in answer.steps:
            if step is None:
                writer.transport.abort()
                raise ConnectionAbortedError
            if isinstance(step, asyncio.Event):
                await step.wait()
            elif step:
                writer.write(step if answer.verbatim else f"{len(step):x}\r\n".encode() + step + b"\r\n")
                await writer.drain()
        if answer.verbatim:
            raise ConnectionAbortedError
        writer.write(b"0\r\n\r\n")
        await writer.drain()


@asynccontextmanager
async def run_fake_server() -> AsyncIterator[FakeServer]:
    """Run a fake server."""
    fake = FakeServer()
    tasks: set[asyncio.Task[None]] = set()

    async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        tasks.add(task)
        await fake.serve(reader, writer)

    listener = await asyncio.start_server(accept, "127.0.0.1", 0)
    fake.url = f"http://127.0.0.1:{listener.sockets[0].getsockname()[1]}"
    try:
        yield fake
    finally:
        listener.close()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


ADD: ToolSpec = {
    "name": "add",
    "description": "Adds two numbers.",
    "parameters": {
        "type": "object",
        "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}},
        "required": ["a", "b"],
    },
}

HELLO: Message = {"role": "user", "content": "hello"}


def make_request(
    *messages: Message,
    model: str = "m",
    tools: Sequence[ToolSpec] = (),
    output_schema: dict[str, Any] | None = None,
    cache_key: str | None = None,
    **options: Any,
) -> ModelRequest:
    set_options: dict[str, Any] = {"max_output_tokens": 4096, **options}
    return ModelRequest(
        model=model,
        messages=messages or (HELLO,),
        tools=tools,
        options=ModelOptions(**set_options),
        output_schema=output_schema,
        cache_key=cache_key,
    )


def make_redacted_decoder(provider: Provider, redaction: Redaction | None = None) -> RedactedDecoder:
    return RedactedDecoder(provider.make_decoder(make_request()), redaction or Redaction())


def make_call(name: str = "add", call_id: str = "tc_1", content: str = "", **arguments: Any) -> Message:
    return {
        "role": "assistant",
        "content": content,
        "tool_calls": [{"id": call_id, "name": name, "arguments": arguments}],
    }


def make_result(content: str, call_id: str = "tc_1") -> Message:
    return {"role": "tool", "content": content, "tool_call_id": call_id, "name": "add"}


def decode(decoder: Decoder, events: Iterable[Any]) -> ModelReply:
    for event in events:
        decoder.feed("message", event if isinstance(event, str) else json.dumps(event))
    return decoder.finish()


def encode_events(events: Iterable[Any]) -> bytes:
    """Encode events as server-sent events, each named by its `type` if it has one."""
    frames = []
    for event in events:
        name = f"event: {event['type']}\n" if isinstance(event, dict) and "type" in event else ""
        frames.append(f"{name}data: {event if isinstance(event, str) else json.dumps(event)}\n\n")
    return "".join(frames).encode()


def assert_accepted(params: Any, body: dict[str, Any]) -> None:
    """Assert that a body is valid for the official package's type, and has no unknown field."""
    adapter = TypeAdapter(params)  # its iterators are lazy and need it alive
    assert drain(adapter.validate_python(body)) == body


def drain(value: Any) -> Any:
    """Copy what pydantic has validated, with its lazy iterators read."""
    if isinstance(value, dict):
        return {key: drain(item) for key, item in value.items()}
    if isinstance(value, str | int | float | bool | None):
        return value
    return [drain(item) for item in value]


def make_chunk(finish: str | None = None, **delta: Any) -> dict[str, Any]:
    return {
        "id": "chatcmpl-1",
        "object": "chat.completion.chunk",
        "created": 1,
        "model": "m",
        "choices": [{"index": 0, "delta": delta, "finish_reason": finish}],
    }


def make_tool(arguments: Any = "", name: str | None = None, **fields: Any) -> dict[str, Any]:
    return fields | {"function": {"arguments": arguments} | ({"name": name} if name is not None else {})}


def make_usage(**counts: Any) -> dict[str, Any]:
    return make_chunk() | {"choices": [], "usage": counts}


HELLO_STREAM: list[Any] = [
    make_chunk(role="assistant", content=""),
    make_chunk(content="Hel"),
    make_chunk(content="lo"),
    make_chunk("stop"),
    make_usage(prompt_tokens=10, completion_tokens=2, total_tokens=12, prompt_tokens_details={"cached_tokens": 4}),
    "[DONE]",
]

TOOL_STREAM: list[Any] = [
    make_chunk(
        role="assistant", content=None, tool_calls=[make_tool("", "add", index=0, id="call_a", type="function")]
    ),
    make_chunk(tool_calls=[make_tool('{"a": ', index=0)]),
    make_chunk(tool_calls=[make_tool("", "add", index=1, id="call_b", type="function")]),
    make_chunk(tool_calls=[make_tool('{"a": 3, "b": 4}', index=1)]),
    make_chunk(tool_calls=[make_tool('1, "b": 2}', index=0)]),
    make_chunk("tool_calls"),
    "[DONE]",
]


def start_block(index: int, **block: Any) -> dict[str, Any]:
    return {"type": "content_block_start", "index": index, "content_block": block}


def make_delta(index: int, **fields: Any) -> dict[str, Any]:
    return {"type": "content_block_delta", "index": index, "delta": fields}


def stop_block(index: int) -> dict[str, Any]:
    return {"type": "content_block_stop", "index": index}


def open_message(**usage: Any) -> dict[str, Any]:
    message: dict[str, Any] = {
        "id": "msg_1",
        "type": "message",
        "role": "assistant",
        "model": "m",
        "content": [],
        "stop_reason": None,
        "stop_sequence": None,
        "usage": {"input_tokens": 0, "output_tokens": 1} | usage,
    }
    return {"type": "message_start", "message": message}


def close_message(reason: str = "end_turn", details: Any = None, **usage: Any) -> list[dict[str, Any]]:
    fields = {"stop_reason": reason, "stop_sequence": None, "stop_details": details}
    return [
        {"type": "message_delta", "delta": fields, "usage": {"output_tokens": 0} | usage},
        {"type": "message_stop"},
    ]


ANTHROPIC_STREAM: list[Any] = [
    open_message(input_tokens=10, cache_read_input_tokens=70, cache_creation_input_tokens=20),
    {"type": "ping"},
    start_block(0, type="thinking", thinking="", signature=""),
    make_delta(0, type="thinking_delta", thinking="Let me "),
    make_delta(0, type="thinking_delta", thinking="think."),
    make_delta(0, type="signature_delta", signature="c2ln"),
    stop_block(0),
    start_block(1, type="redacted_thinking", data="ZGF0YQ=="),
    stop_block(1),
    start_block(2, type="text", text=""),
    make_delta(2, type="text_delta", text="I will "),
    make_delta(2, type="text_delta", text="add."),
    stop_block(2),
    start_block(3, type="tool_use", id="toolu_1", name="add", input={}),
    make_delta(3, type="input_json_delta", partial_json=""),
    make_delta(3, type="input_json_delta", partial_json='{"a": 1, '),
    make_delta(3, type="input_json_delta", partial_json='"b": 2}'),
    stop_block(3),
    start_block(4, type="tool_use", id="toolu_2", name="now", input={}),
    stop_block(4),
    *close_message("tool_use", output_tokens=33),
]


def decode_request(body: dict[str, Any], context: Sequence[Message] = ()) -> dict[str, Any]:
    """Convert the body of a provider's request to the form of the contract.

    `context`: the rebuilt context, whose tool calls have the session's ids. A request has those, or the provider's.
    """
    messages: list[dict[str, Any]] = []
    calls_by_id: dict[str, dict[str, Any]] = {}
    calling = [message for message in context if message.get("tool_calls")]
    for wire_message in body["messages"]:
        message: dict[str, Any] = {"role": wire_message["role"], "content": wire_message["content"] or ""}
        if wire_calls := wire_message.get("tool_calls"):
            known: Message | None = calling.pop(0) if calling else None
            ids = list_call_ids(known) if known else [call["id"] for call in wire_calls]
            for call_id, call in zip(ids, wire_calls, strict=True):
                arguments = json.loads(call["function"]["arguments"])
                calls_by_id[call["id"]] = {"id": call_id, "name": call["function"]["name"], "arguments": arguments}
            message["tool_calls"] = [calls_by_id[call["id"]] for call in wire_calls]
            if known and (data := known.get("provider_data")):
                message["provider_data"] = data
                own_ids = [call["id"] for call in data.get("calls", [])]
                assert [call["id"] for call in wire_calls] in (own_ids, ids)
        if wire_message["role"] == "tool":
            call = calls_by_id[wire_message["tool_call_id"]]
            message |= {"tool_call_id": call["id"], "name": call["name"]}
        messages.append(message)
    form = body.get("response_format")
    return {
        "messages": messages,
        "tool_spec": [
            {name: tool["function"][name] for name in ("name", "description", "parameters")}
            for tool in body.get("tools", [])
        ],
        "output_schema": form["json_schema"]["schema"] if form else None,
    }
