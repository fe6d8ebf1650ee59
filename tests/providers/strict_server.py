"""Strict servers: each refuses what the real one refuses, remembers why, and else plays the scripted model.

A server is the same for all dialects. Its `Dialect` is a row of the table in `dialects`: rules that refuse a request,
rules that say what a request has lost although the real server takes it, and the wire format with its quirks.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import re
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

Ending = Literal["stop", "length", "pause"]


@dataclass(frozen=True)
class Call:
    """A tool call of the model.

    Attributes:
        name: The tool, by the name that the server received.
        arguments: An object, or the raw text of one that is cut or malformed.
    """

    name: str
    arguments: Mapping[str, Any] | str


@dataclass(frozen=True)
class Fault:
    """A failure of the server.

    Attributes:
        when: `before`: an error response; `inside`: an error event in the middle of the reply; `cut`: the connection
            breaks in the middle of the reply; `after`: it breaks when the reply has said that it ends.
        status: The status of an error response.
    """

    when: Literal["before", "inside", "cut", "after"]
    status: int = 503


@dataclass(frozen=True)
class Turn:
    """One reply of the model.

    Attributes:
        text: Its text.
        calls: Its tool calls.
        thinks: Whether it thinks first; the server chooses a text that no other reply has.
        searches: The queries that the server runs itself before the text. Each finds one source,
            `https://example.com/<n>` with the title `Example <n>`, n from 1 on, which the text cites.
        leaks: Whether the server leaves the calls in the text, in the model's own form, if it has such a fault.
        ending: Why it ends; `length`: at the token limit; `pause`: in the middle of its last search.
        fault: The failure that takes the reply's place, or breaks it.
    """

    text: str = ""
    calls: tuple[Call, ...] = ()
    thinks: bool = False
    searches: tuple[str, ...] = ()
    leaks: bool = False
    ending: Ending = "stop"
    fault: Fault | None = None


DROP = object()
"""Among the events of a reply: the connection breaks here."""


@dataclass(frozen=True)
class Refusal:
    """An error with which a server refuses a request, in the real server's words.

    Attributes:
        message: The message.
        status: The HTTP status.
        type: The type of the error.
        code: The code of the error.
        param: The parameter of the error.
        events: The events of a stream that say it with status 200, in place of an error.
    """

    message: str
    status: int = 400
    type: str | None = "invalid_request_error"
    code: Any = None
    param: str | None = None
    events: tuple[Any, ...] = ()


@dataclass(frozen=True)
class Sent:
    """A reply that a server has sent.

    Attributes:
        thinking: The text of its thinking.
        returns: The fields of the assistant's message that hold what is the provider's own, as they must come back.
        calls: What is the provider's own on each tool call, by the call's id.
        text: The text of the reply.
        names: The name of each tool call, by the call's id.
    """

    thinking: str = ""
    returns: Mapping[str, Any] = field(default_factory=dict)
    calls: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    text: str = ""
    names: Mapping[str, str] = field(default_factory=dict)


@dataclass
class Exchange:
    """A request at a server.

    Attributes:
        body: Its JSON body.
        headers: Its headers, by names in lower case.
        sent: The replies that the server has sent since the test began, oldest first.
        path: Its path as it was sent, with the query.
        raw: Its body as it was sent.
    """

    body: dict[str, Any]
    headers: Mapping[str, str] = field(default_factory=dict)
    sent: Sequence[Sent] = ()
    path: str = ""
    raw: bytes = b""

    @property
    def digest(self) -> str:
        """SHA-256 of its body as it was sent."""
        return hashlib.sha256(self.raw).hexdigest()

    def find_sent(self, call_ids: Iterable[str]) -> Sent | None:
        """Find the reply of this server that has made one of the calls; None: another provider's."""
        wanted = set(call_ids)
        return next((sent for sent in reversed(self.sent) if wanted & set(sent.calls)), None)


Rule = Callable[[Exchange], Iterable[Refusal]]
Step = Turn | Callable[[Exchange], Turn]


@dataclass(frozen=True)
class Billing:
    """The tokens of a reply, as a bill has them."""

    input_tokens: int
    output_tokens: int


class Wire(Protocol):
    """A wire format with the quirks of one server."""

    @property
    def path(self) -> str:
        """The path of a request, below the base URL."""
        ...

    @property
    def content_type(self) -> str:
        """The content type of a stream."""
        ...

    @property
    def cut_reason(self) -> str:
        """The finish reason of a reply with calls that the token limit cuts."""
        ...

    def encode(self, turn: Turn, exchange: Exchange, thinking: str, billing: Billing) -> tuple[list[Any], Sent]:
        """Encode a reply as the events of a stream. Each is an object, a text, or `DROP`."""
        ...

    def encode_event(self, event: Any) -> bytes:
        """Encode an event as the bytes of a stream."""
        ...

    def encode_refusal(self, refusal: Refusal) -> Any:
        """Make the JSON of an error response."""
        ...

    def list_error_headers(self, refusal: Refusal) -> Mapping[str, str]:
        """List the headers that an error response has beside the usual ones."""
        ...


class ServerSentEvents:
    """The part of a wire format that has server-sent events.

    Attributes:
        content_type: The content type of a stream.
        data: What begins a line of data.
    """

    content_type = "text/event-stream"
    data: str = "data: "

    def encode_event(self, event: Any) -> bytes:
        """Encode an event. A `type` names it; a text that begins with `:` or `error:` is sent as it is."""
        if isinstance(event, str):
            return f"{event if event.startswith((':', 'error:')) else f'{self.data}{event}'}\n\n".encode()
        name = f"event: {event['type']}\n" if "type" in event else ""
        return f"{name}{self.data}{json.dumps(event)}\n\n".encode()

    def list_error_headers(self, refusal: Refusal) -> Mapping[str, str]:
        """List the headers that an error response has beside the usual ones: none."""
        return {}


@dataclass(frozen=True)
class Dialect:
    """A row of the table: a server, and how a user configures it.

    Attributes:
        name: The name of the row.
        provider: The name of the provider in the worker's environment.
        model: The name of the model.
        base_path: The path of the base URL.
        wire: The wire format.
        rules: What the server refuses.
        losses: What the server takes, although it has lost what the provider or the user needs.
        environ: Further variables that a user sets.
        configure: Makes the variables that a user sets, from the URL; None: those of the provider's name.
        thinks: Whether the model thinks.
        thinking_options: The model options with which it does.
        reports_usage: Whether the server sends usage.
        left_out: The scenarios without a cell, each with the reason.
        runs_searches: Whether the server searches the web itself, beside the session's tools.
        pauses: Whether it pauses a reply whose searches take long.
        media: The types of images, recordings and files that the model takes.
        media_in_results: Whether a tool's result may have them.
    """

    name: str
    provider: str
    model: str
    wire: Wire
    rules: Sequence[Rule]
    losses: Sequence[Rule] = ()
    base_path: str = "/v1"
    environ: Mapping[str, str] = field(default_factory=dict)
    configure: Callable[[str], Mapping[str, str]] | None = None
    thinks: bool = True
    thinking_options: Mapping[str, Any] = field(default_factory=dict)
    reports_usage: bool = True
    left_out: Mapping[str, str] = field(default_factory=dict)
    runs_searches: bool = False
    pauses: bool = False
    media: frozenset[str] = frozenset()
    media_in_results: bool = False

    @property
    def full_model(self) -> str:
        """The model as a session names it."""
        return f"{self.provider}:{self.model}"


@dataclass
class StrictServer:
    """One dialect's server on loopback.

    Attributes:
        dialect: Its row.
        url: Its base URL.
        steps: What the model does next.
        exchanges: The requests since the test began.
        verdicts: What was refused or lost, one line each.
        surplus: Requests after the script's end.
        billed: The tokens of the replies.
        spoiled: Set by the first verdict.
        retry_after: The seconds that an error response names.
        refusing: What is refused one day although it is as it should be, which is no verdict.
        free: Held while a test has the server.
    """

    dialect: Dialect
    url: str = ""
    steps: deque[Step] = field(default_factory=deque)
    exchanges: list[Exchange] = field(default_factory=list)
    verdicts: list[str] = field(default_factory=list)
    surplus: int = 0
    billed: list[Billing] = field(default_factory=list)
    spoiled: asyncio.Event = field(default_factory=asyncio.Event)
    sent: list[Sent] = field(default_factory=list)
    retry_after: int = 0
    refusing: list[Rule] = field(default_factory=list)
    free: asyncio.Lock = field(default_factory=asyncio.Lock)
    _thoughts: int = 0

    def play(self, *steps: Step) -> None:
        """Forget the last test, and play these steps."""
        self.steps = deque(steps)
        self.exchanges, self.verdicts, self.billed, self.sent = [], [], [], []
        self.surplus = self.retry_after = 0
        self.refusing = []
        self.spoiled = asyncio.Event()

    @property
    def last(self) -> dict[str, Any]:
        """The body of the last request."""
        return self.exchanges[-1].body

    def check_verdicts(self) -> None:
        """Check that nothing was refused or lost.

        Raises:
            AssertionError: With what was refused and why.
        """
        assert not self.verdicts, f"{self.dialect.name}: " + "\n  ".join(self.verdicts)

    def check(self) -> None:
        """Check that nothing was refused or lost, and that all steps were played.

        Raises:
            AssertionError: With what was refused and why.
        """
        problems = list(self.verdicts)
        if self.surplus:
            problems.append(f"{self.surplus} requests came after the script's end")
        if self.steps and not problems:
            problems.append(f"{len(self.steps)} steps of the script were not played")
        assert not problems, f"{self.dialect.name}: " + "\n  ".join(problems)

    def answer(self, path: str, headers: Mapping[str, str], raw: bytes) -> list[Any] | Refusal:
        """Judge a request and make the answer: the events of a stream, or what it is refused with."""
        exchange = Exchange(json.loads(raw), headers, tuple(self.sent), path, raw)
        self.exchanges.append(exchange)
        refusals = [refusal for rule in self.dialect.rules for refusal in rule(exchange)]
        expected = self.dialect.base_path + self.dialect.wire.path
        if path.partition("?")[0] != expected:
            refusals.insert(0, Refusal(f"Not Found: {path}, not {expected}", status=404))
        number = len(self.exchanges)
        for word, found in (
            ("refused", refusals),
            # What was refused must get lost.
            ("lost", [r for rule in self.dialect.losses for r in rule(exchange) if not self.refusing]),
        ):
            self.verdicts += [f"request {number} {word}: {refusal.message}" for refusal in found]
        if self.verdicts:
            self.spoiled.set()
        refusals += [refusal for rule in self.refusing for refusal in rule(exchange)]
        if refusals:
            return list(refusals[0].events) or refusals[0]
        if not self.steps:
            self.surplus += 1
            return self._encode(Turn(text="The script is over."), exchange)
        step = self.steps.popleft()
        return self._encode(step if isinstance(step, Turn) else step(exchange), exchange)

    def _encode(self, turn: Turn, exchange: Exchange) -> list[Any] | Refusal:
        if turn.fault and turn.fault.when == "before":
            return Refusal("The engine is currently overloaded", status=turn.fault.status, type="overloaded_error")
        thinking = ""
        if turn.thinks and self.dialect.thinks:
            self._thoughts += 1
            thinking = f"[{self.dialect.name} thinks {self._thoughts}] I must add,\n\u201ccarefully\u201d."
        size = sum(len(call.name) + len(str(call.arguments)) for call in turn.calls) + len(turn.text) + len(thinking)
        billing = Billing(len(json.dumps(exchange.body)) // 4 + 1, size // 4 + 1)
        events, sent = self.dialect.wire.encode(turn, exchange, thinking, billing)
        self.billed.append(billing)
        self.sent.append(sent)
        return events


THOUGHT = re.compile(r"\[([\w-]+) thinks \d+\]")


def find_foreign_thoughts(name: str) -> Rule:
    """Make the rule that no request has what another provider's model thought."""

    def rule(exchange: Exchange) -> Iterable[Refusal]:
        if foreign := set(THOUGHT.findall(json.dumps(exchange.body))) - {name}:
            yield Refusal(f"the request has the thinking of {', '.join(sorted(foreign))}")

    return rule


async def _serve(server: StrictServer, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        with suppress(asyncio.IncompleteReadError, ConnectionError):
            while True:
                await _answer_one(server, reader, writer)
    finally:
        writer.close()


async def _answer_one(server: StrictServer, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Read and answer one request.

    Raises:
        ConnectionError: The reply drops the connection, or the client has.
        asyncio.IncompleteReadError: The client has closed the connection.
    """
    first, *lines = (await reader.readuntil(b"\r\n\r\n")).decode().strip().split("\r\n")
    headers = {k.lower(): v.strip() for k, v in (line.split(":", 1) for line in lines)}
    raw = await reader.readexactly(int(headers["content-length"]))
    answer, wire = server.answer(first.split()[1], headers, raw), server.dialect.wire
    if isinstance(answer, Refusal):
        content = json.dumps(wire.encode_refusal(answer)).encode()
        fields = {
            "retry-after": server.retry_after,
            "content-type": "application/json",
            "content-length": len(content),
            **wire.list_error_headers(answer),
        }
        lines = [f"HTTP/1.1 {answer.status} X", *(f"{name}: {value}" for name, value in fields.items())]
        writer.write("\r\n".join((*lines, "", "")).encode() + content)
    else:
        fields = {"content-type": wire.content_type, "transfer-encoding": "chunked"}
        lines = ["HTTP/1.1 200 OK", *(f"{name}: {value}" for name, value in fields.items())]
        writer.write("\r\n".join((*lines, "", "")).encode())
        for event in answer:
            if event is DROP:
                await writer.drain()
                writer.transport.abort()
                raise ConnectionAbortedError
            frame = wire.encode_event(event)
            writer.write(f"{len(frame):x}\r\n".encode() + frame + b"\r\n")
        writer.write(b"0\r\n\r\n")
    await writer.drain()


@asynccontextmanager
async def run_strict_servers(dialects: Iterable[Dialect]) -> AsyncIterator[dict[str, StrictServer]]:
    """Run a server for each dialect, by the dialect's name."""
    servers = {dialect.name: StrictServer(dialect) for dialect in dialects}
    tasks: set[asyncio.Task[None]] = set()
    listeners = []
    for server in servers.values():

        def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, server: StrictServer = server) -> None:
            task = asyncio.create_task(_serve(server, reader, writer))
            tasks.add(task)
            task.add_done_callback(tasks.discard)

        listener = await asyncio.start_server(accept, "127.0.0.1", 0)
        listeners.append(listener)
        server.url = f"http://127.0.0.1:{listener.sockets[0].getsockname()[1]}{server.dialect.base_path}"
    try:
        yield servers
    finally:
        for listener in listeners:
            listener.close()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
