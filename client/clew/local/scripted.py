"""An OpenAI-compatible server whose replies a function makes: real HTTP, real event streams, no model.

It implements the part of Chat Completions that clients need, streaming or not, and fails on request.
"""

import asyncio
import inspect
import json
import re
from base64 import b64encode
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Any, Literal, Self

from clew.content import Audio, Image, Media
from clew.local.child import LOOPBACK
from clew_workflows.contract.messages import Citation, ProviderCall

_MAX_HEADER_BYTES = 64 * 1024
_MEDIA = re.compile(r'(?<=")data:[a-z]+/[^"]*;base64,[^"]*|(?<="data": ")[^"]*')
"""The bytes of an image, a recording or a file in a request. No provider counts a token for four of them."""


@dataclass(frozen=True)
class ToolCall:
    """A call that the scripted model makes."""

    name: str
    arguments: Mapping[str, Any] | str
    """An object, or raw text to send malformed arguments."""
    id: str | None = None
    """The provider's id of the call. None: `call_` and the index of the call in its reply."""


@dataclass(frozen=True)
class Reply:
    """The scripted model's reply to one request."""

    text: str = ""
    tool_calls: Sequence[ToolCall] = ()
    provider_calls: Sequence[ProviderCall] = ()
    """Calls of tools that the provider ran itself, before the text. An `error` is sent as the output: the format has
    no field for it."""
    citations: Sequence[Citation] = ()
    """The sources of the text."""
    images: Sequence[Image | bytes] = ()
    """Images that the model draws behind its text, in OpenRouter's form."""
    audio: Audio | bytes | None = None
    """A recording in which the model says its text, in OpenAI's form."""
    finish_reason: Literal["stop", "tool_calls", "length", "content_filter"] | None = None
    """Why the reply ends; `length`: at its limit; `content_filter`: the server stopped it. None: `tool_calls`
    if it has some, else `stop`."""
    tokens_per_second: float | None = None
    """The pace; a token is a word. None: the reply is sent at once."""
    disconnect_after: int | None = None
    """Close the connection after this number of tokens, before the stream is complete; None: send all."""
    status: HTTPStatus = HTTPStatus.OK
    """The HTTP status; any but 200 makes the response an error whose message is `text`."""
    code: str | None = None
    """The code of an error, such as `context_length_exceeded`."""
    headers: Mapping[str, str] = field(default_factory=dict)
    """Additional headers, such as `Retry-After`."""
    delay_seconds: float = 0.0
    """Seconds before the response begins."""
    hangs: bool = False
    """The response never begins: the server holds the connection until the client closes it."""

    @classmethod
    def error(cls, status: int, message: str = "", *, code: str | None = None) -> Self:
        """Make an error response. Statuses 408, 409, 429 and from 500 on are retried, the others fail the request."""
        return cls(message or HTTPStatus(status).phrase, status=HTTPStatus(status), code=code)

    @classmethod
    def rate_limited(cls, retry_after_seconds: float | None = None) -> Self:
        """Make the error 429, with the time after which the server accepts the next call if one is set."""
        headers = {} if retry_after_seconds is None else {"Retry-After": f"{retry_after_seconds:g}"}
        return cls("rate limited", status=HTTPStatus.TOO_MANY_REQUESTS, headers=headers)


Script = Callable[[dict[str, Any]], Reply | Awaitable[Reply]]
"""Makes the reply from a request's body; sync or async."""


@dataclass(frozen=True)
class ScriptedModel:
    """A running scripted model."""

    base_url: str
    """Ends in `/v1`."""
    requests: list[dict[str, Any]]
    """The bodies received so far, oldest first."""


@asynccontextmanager
async def scripted_model(script: Script) -> AsyncIterator[ScriptedModel]:
    """Serve `script` on a free loopback port, inside this event loop.

    If `script` raises, the response is a status 500 whose message names the exception.
    """
    requests: list[dict[str, Any]] = []
    connections: set[asyncio.Task[None]] = set()

    async def converse(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        # A client may disconnect at any time, for example a killed worker.
        with suppress(ConnectionError, asyncio.IncompleteReadError):
            try:
                await _answer_one(reader, writer, script, requests)
            finally:
                writer.close()
                await writer.wait_closed()

    def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.create_task(converse(reader, writer))
        connections.add(task)
        task.add_done_callback(connections.discard)

    server = await asyncio.start_server(accept, LOOPBACK, 0, limit=_MAX_HEADER_BYTES)
    try:
        port = server.sockets[0].getsockname()[1]
        yield ScriptedModel(f"http://{LOOPBACK}:{port}/v1", requests)
    finally:
        server.close()
        for task in connections:
            task.cancel()
        await asyncio.gather(*connections, return_exceptions=True)
        await server.wait_closed()


async def _answer_one(
    reader: asyncio.StreamReader,
    writer: asyncio.StreamWriter,
    script: Script,
    requests: list[dict[str, Any]],
) -> None:
    """Read and answer one request. The connection serves only one."""
    method, path, length = _parse_head(await reader.readuntil(b"\r\n\r\n"))
    content = await reader.readexactly(length)
    if (method, path) != ("POST", "/v1/chat/completions"):
        reply = Reply("no such page", status=HTTPStatus.NOT_FOUND)
        return await _send_error(writer, reply)
    body = json.loads(content)
    requests.append(body)
    try:
        answer = script(body)
        reply = await answer if inspect.isawaitable(answer) else answer
    except Exception as error:
        reply = Reply(f"the script raised {error!r}", status=HTTPStatus.INTERNAL_SERVER_ERROR)
    if reply.hangs:
        await reader.read()
        return None
    if reply.delay_seconds:
        await asyncio.sleep(reply.delay_seconds)
    if reply.status != HTTPStatus.OK:
        return await _send_error(writer, reply)
    if body.get("stream"):
        return await _send_stream(writer, reply, body)
    return await _send_completion(writer, reply, body)


def _parse_head(head: bytes) -> tuple[str, str, int]:
    request_line, *lines = head.decode("latin-1").split("\r\n")
    method, path, _ = request_line.split(" ")
    headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
    return method, path, int(headers.get("content-length", "0"))


async def _send_head(writer: asyncio.StreamWriter, reply: Reply, content_type: str) -> None:
    lines = [
        f"HTTP/1.1 {reply.status.value} {reply.status.phrase}",
        f"Content-Type: {content_type}",
        "Connection: close",
        *(f"{name}: {value}" for name, value in reply.headers.items()),
    ]
    writer.write("\r\n".join([*lines, "", ""]).encode("latin-1"))
    await writer.drain()


async def _send_error(writer: asyncio.StreamWriter, reply: Reply) -> None:
    await _send_head(writer, reply, "application/json")
    error = {"message": reply.text, "type": reply.status.name.lower(), "param": None, "code": reply.code}
    writer.write(json.dumps({"error": error}).encode())
    await writer.drain()


async def _send_completion(writer: asyncio.StreamWriter, reply: Reply, body: dict[str, Any]) -> None:
    """Send the reply as one object, after the time that its pace takes."""
    tokens = _split(reply.text)
    if reply.tokens_per_second is not None:
        await asyncio.sleep(len(tokens) / reply.tokens_per_second)
    if reply.disconnect_after is not None:
        return
    message: dict[str, Any] = {"role": "assistant", "content": reply.text}
    if reply.tool_calls:
        message["tool_calls"] = [
            {"id": _id(index, call), "type": "function", "function": {"name": call.name, "arguments": _encode(call)}}
            for index, call in enumerate(reply.tool_calls)
        ]
    message |= _make_pages(reply) | _make_media(reply)
    choice = {"index": 0, "message": message, "finish_reason": _finish(reply)}
    usage = _count(reply, tokens, body)
    answer = {**_envelope(body), "object": "chat.completion", "choices": [choice], "usage": usage}
    await _send_head(writer, reply, "application/json")
    writer.write(json.dumps(answer).encode())
    await writer.drain()


async def _send_stream(writer: asyncio.StreamWriter, reply: Reply, body: dict[str, Any]) -> None:
    """Send the reply as server-sent events at its pace, up to `disconnect_after`."""
    await _send_head(writer, reply, "text/event-stream")
    pages = _make_pages(reply)
    if calls := pages.pop("executed_tools", None):
        await _send_event(writer, body, {"executed_tools": calls})
    tokens = _split(reply.text)
    for number, token in enumerate(tokens):
        if number == reply.disconnect_after:
            return
        await _send_event(writer, body, {"content": token})
        if reply.tokens_per_second is not None:
            await asyncio.sleep(1 / reply.tokens_per_second)
    if media := _make_media(reply):
        await _send_event(writer, body, media)
    for delta in _make_call_deltas(reply):
        await _send_event(writer, body, delta)
    if pages:
        await _send_event(writer, body, pages)
    if reply.disconnect_after is not None:
        return
    await _send_event(writer, body, {}, _finish(reply))
    if (body.get("stream_options") or {}).get("include_usage"):
        await _write_event(writer, {**_envelope(body), "choices": [], "usage": _count(reply, tokens, body)})
    writer.write(b"data: [DONE]\n\n")
    await writer.drain()


def _split(text: str) -> list[str]:
    return re.findall(r"\s*\S+|\s+$", text)


def _finish(reply: Reply) -> str:
    return reply.finish_reason or ("tool_calls" if reply.tool_calls else "stop")


def _count(reply: Reply, tokens: Sequence[str], body: dict[str, Any]) -> dict[str, int]:
    """Make the usage: a word is a token of the reply, four bytes are one of the request, without those of media."""
    texts = _MEDIA.sub("", json.dumps(body["messages"]))
    prompt, completion = len(texts) // 4, len(tokens) + 10 * len(reply.tool_calls)
    return {"prompt_tokens": prompt, "completion_tokens": completion, "total_tokens": prompt + completion}


def _id(index: int, call: ToolCall) -> str:
    return f"call_{index}" if call.id is None else call.id


def _encode(call: ToolCall) -> str:
    return call.arguments if isinstance(call.arguments, str) else json.dumps(dict(call.arguments))


def _make_call_deltas(reply: Reply) -> Iterator[dict[str, Any]]:
    """Split each call into deltas: the name first, then the arguments in two pieces."""
    for index, call in enumerate(reply.tool_calls):
        arguments = _encode(call)
        function = {"name": call.name, "arguments": ""}
        yield {"tool_calls": [{"index": index, "id": _id(index, call), "type": "function", "function": function}]}
        half = len(arguments) // 2
        for piece in (arguments[:half], arguments[half:]):
            yield {"tool_calls": [{"index": index, "function": {"arguments": piece}}]}


_PROVIDER_TOOLS = {
    "web_search": ("search", "query"),
    "web_fetch": ("visit", "url"),
    "code_execution": ("python", "code"),
}
"""Groq's name of each tool that a provider runs, and of the argument that is its input."""


def _make_pages(reply: Reply) -> dict[str, Any]:
    """Make the members of a message for the provider's own calls, in Groq's form, and for citations, in OpenAI's."""
    members = {
        "executed_tools": [_make_executed_tool(index, call) for index, call in enumerate(reply.provider_calls)],
        "annotations": [
            {"type": "url_citation", "url_citation": _make_annotation(citation)} for citation in reply.citations
        ],
    }
    return {name: value for name, value in members.items() if value}


def _make_media(reply: Reply) -> dict[str, Any]:
    """Make the members of a message for what the model draws and says."""
    members: dict[str, Any] = {}
    if reply.images:
        members["images"] = [
            {"type": "image_url", "image_url": {"url": _make_data_url(image)}} for image in reply.images
        ]
    if reply.audio is not None:
        members["audio"] = {"id": "audio-scripted", "data": b64encode(_read(reply.audio)).decode()}
    return members


def _make_data_url(media: Media | bytes) -> str:
    declared = media.media_type if isinstance(media, Media) else None
    return f"data:{declared or 'application/octet-stream'};base64,{b64encode(_read(media)).decode()}"


def _read(media: Media | bytes) -> bytes:
    return media.read() if isinstance(media, Media) else media


def _make_executed_tool(index: int, call: ProviderCall) -> dict[str, Any]:
    name, argument = _PROVIDER_TOOLS.get(call["tool"], (call["tool"], "input"))
    made: dict[str, Any] = {"index": index, "type": name}
    made["arguments"] = json.dumps({argument: call["input"]}) if "input" in call else ""
    if output := call.get("error") or call.get("output"):
        made["output"] = output
    if "sources" in call:
        made["search_results"] = {"results": call["sources"]}
    return made


def _make_annotation(citation: Citation) -> dict[str, Any]:
    names = {"start": "start_index", "end": "end_index", "quote": "content"}
    return {names.get(name, name): value for name, value in citation.items()}


async def _send_event(
    writer: asyncio.StreamWriter, body: dict[str, Any], delta: dict[str, Any], finish: str | None = None
) -> None:
    choice = {"index": 0, "delta": {"role": "assistant", **delta}, "finish_reason": finish}
    await _write_event(writer, {**_envelope(body), "choices": [choice]})


async def _write_event(writer: asyncio.StreamWriter, event: dict[str, Any]) -> None:
    writer.write(f"data: {json.dumps(event)}\n\n".encode())
    await writer.drain()


def _envelope(body: dict[str, Any]) -> dict[str, Any]:
    model = body.get("model", "scripted")
    return {"id": "chatcmpl-scripted", "object": "chat.completion.chunk", "created": 0, "model": model}
