"""Sessions without Temporal whose model calls reach the strict servers without a network.

The session is the one that a workflow hosts, and each model call is encoded, sent, read and classified by the code of
the worker. The server answers within the same process, so that a session takes some milliseconds, and every pair of
dialects can have one. An empty or truncated reply is asked for again, as often as a worker does; another failed call
is final, as it is for a run with a fallback once its time is over. Calls are made without what a server refuses.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from itertools import count
from typing import Any

import httpx

from clew.content import Image, Media
from clew.tools import ToolDefinition
from clew_activities.model.call_model import prepare_call, take_refusal
from clew_activities.model.model_table import find_taken_media
from clew_activities.model.prepare import make_profile
from clew_activities.providers import ModelRequest, ProviderError, Providers, load_providers, stream
from clew_activities.providers.encoders import get_forms, make_cache_key
from clew_activities.providers.provider_errors import EmptyReply, ItemRefused, PromptRefused, TruncatedStream
from clew_activities.providers.refused_parts import Search
from clew_activities.providers.request_media import choose_media
from clew_activities.received_media import make_part
from clew_activities.tools.registry import resolve_tool
from clew_activities.tools.stored_results import view_blob
from clew_workflows.contract.content import Content, Part
from clew_workflows.contract.payloads import Recipe
from clew_workflows.host.retries import MAX_WASTED_ATTEMPTS
from clew_workflows.protocol import (
    CallModel,
    Failure,
    ModelAnswered,
    Prepare,
    Prepared,
    RunTool,
    RunTools,
    ToolAnswered,
    ToolReturned,
)
from clew_workflows.session import decisions
from tests.providers.matrix import REPORT, list_report, make_environ, show_report
from tests.providers.scenarios import POLICY
from tests.providers.strict_server import DROP, Dialect, Refusal, StrictServer
from tests.support import toolbox
from tests.support.session_harness import SessionHarness

_FIRST_PORT = 20_000
"""No server listens at these ports: they tell the servers apart."""
_TOOLS: Mapping[str, ToolDefinition] = {tool.name: tool for tool in (toolbox.add, show_report, view_blob)}


class _Transport(httpx.AsyncBaseTransport):
    """Hands requests to the strict server whose port they name."""

    def __init__(self, servers: Mapping[int, StrictServer]) -> None:
        self._servers = servers

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        server = self._servers[request.url.port or 0]
        wire = server.dialect.wire
        answer = server.answer(request.url.raw_path.decode(), dict(request.headers), await request.aread())
        if isinstance(answer, Refusal):
            headers = dict(wire.list_error_headers(answer))
            refusal = json.dumps(wire.encode_refusal(answer)).encode()

            async def refuse() -> AsyncIterator[bytes]:
                yield refusal

            return httpx.Response(answer.status, headers=headers, content=refuse())

        async def send() -> AsyncIterator[bytes]:
            for event in answer:
                if event is DROP:
                    raise httpx.ReadError("the connection is broken")
                yield wire.encode_event(event)

        return httpx.Response(200, headers={"content-type": wire.content_type}, content=send())


@dataclass
class Servers:
    """The strict servers of all dialects by their names, and a worker's providers that a user has set up for them."""

    by_name: Mapping[str, StrictServer]
    providers: Providers
    client: httpx.AsyncClient


@asynccontextmanager
async def run_pure_servers(dialects: Iterable[Dialect]) -> AsyncIterator[Servers]:
    """Make the servers of these dialects."""
    by_port: dict[int, StrictServer] = {}
    environ: dict[str, str] = {}
    for port, dialect in zip(count(_FIRST_PORT), dialects, strict=False):
        url = f"http://127.0.0.1:{port}{dialect.base_path}"
        by_port[port] = StrictServer(dialect, url)
        environ |= make_environ(dialect, url)
    async with httpx.AsyncClient(transport=_Transport(by_port)) as client:
        by_name = {server.dialect.name: server for server in by_port.values()}
        yield Servers(by_name, load_providers(environ), client)


@dataclass
class PureSession:
    """A session of one model, with fallbacks.

    Attributes:
        servers: The servers that it talks to.
        harness: The session.
        blobs: The bytes of the images, recordings and files of its archive, by their digests.
    """

    servers: Servers
    harness: SessionHarness
    blobs: dict[str, bytes] = field(default_factory=dict)

    @classmethod
    def open(cls, servers: Servers, dialect: Dialect, *, tools: tuple[str, ...], **config: Any) -> PureSession:
        """Open a session with the dialect's model."""
        harness = SessionHarness(
            prepare=False,
            table=True,
            model=dialect.full_model,
            encoding="heuristic",
            tools=tools,
            context_policy=POLICY,
            **config,
        )
        harness.take_event(_prepare(dialect.full_model, tools))
        return cls(servers, harness)

    async def ask(self, content: str, *media: Media, **own: Any) -> dict[str, Any]:
        """Send a message, and return the outcome of its request."""
        parts: Content = [{"type": "text", "text": content}, *map(self.store, media)] if media else content
        request_id = self.harness.ask(parts, **own)
        while self.harness.effect:
            match self.harness.effect:
                case Prepare() as query:
                    self.harness.take_event(_prepare(query.model or "", query.tools or (), views=query.views))
                case CallModel() as call:
                    self.harness.take_event(await self._call_model(call))
                case RunTools() as round_:
                    for planned in round_.calls:
                        self._answer_call(planned.call)
                case effect:
                    raise AssertionError(f"the session wants {effect}")
        return self.harness.find_outcome(request_id)

    def store(self, media: Media) -> Part:
        """Store an image or a file, and make the part that names it."""
        data = media.read()
        digest = hashlib.sha256(data).hexdigest()
        self.blobs[digest] = data
        media_type = "image/png" if isinstance(media, Image) else "application/pdf"
        blob: Any = {"digest": digest, "media_type": media_type, "bytes": len(data), "name": media.name}
        return make_part(media.kind, blob)

    def list_recipes(self) -> list[Recipe]:
        """List the recipes of the model calls that were answered."""
        return [entry.recipe for entry in self.harness.thread if entry.recipe]

    def list_results(self) -> list[Content]:
        """List the contents of the tools' results, in the order of the calls."""
        payloads = [entry.payload for entry in self.harness.thread.filter_by_kind("ai_message")]
        return [payload["content"] for payload in payloads if payload["role"] == "tool"]

    async def _call_model(self, call: CallModel) -> ModelAnswered | Failure:
        """Make a model call as a worker does."""
        name, _, model = call.model.partition(":")
        provider, context = self.servers.providers.get(name), self.harness.build_context(call)
        request = ModelRequest(
            model=model,
            messages=context.messages,
            tools=context.tool_spec,
            options=call.options,
            provider_tools=call.provider_tools,
            cache_key=make_cache_key("pure", call.context_ref),
            takes=find_taken_media(call.model),
        )
        search = Search(request, get_forms(provider, model), provider.name, call.refused)
        for attempt in count(1):
            reduced = search.reduced
            blobs = choose_media(reduced.request, get_forms(provider, model)).blobs
            sent = replace(reduced.request, blobs={digest: self.blobs[digest] for digest in blobs})
            prepared, decoder = prepare_call(provider, sent, self.servers.providers.redaction)
            try:
                reply = await stream(self.servers.client, provider, prepared, decoder)
            except ProviderError as error:
                if isinstance(error, ItemRefused):
                    take_refusal(search, error, provider, sent)
                    if search.has_next:
                        continue
                    if isinstance(error, PromptRefused):
                        search.note_texts(error, call.model, tried=True)
                elif attempt < MAX_WASTED_ATTEMPTS and error.type in (EmptyReply.type, TruncatedStream.type):
                    continue
                return Failure(type=error.type, message=error.message, details=error.details)
            assert decoder.sent, "a reply follows a request"
            return ModelAnswered(
                reply=reduced.restore_names(reply),
                digest=context.meta.digest,
                policy_hash=context.meta.policy_hash,
                input_tokens=context.meta.estimated_tokens,
                attempt=attempt,
                request=replace(decoder.sent, refused=reduced.refused),
                fitting=reduced.describe(decoder.fitting),
            )
        raise AssertionError("the count has no end")

    def _answer_call(self, call: RunTool) -> None:
        """Run a tool."""
        content: Content
        if call.name == show_report.name:
            content = [{"type": "text", "text": REPORT}, *map(self.store, list_report())]
        else:
            content = str(toolbox.add(**call.arguments))
        event = ToolReturned(tool_call_id=call.tool_call_id, answer=ToolAnswered(content=content))
        self.harness.apply(decisions.take_event(self.harness.state, event, self.harness.now))


def _prepare(model: str, tools: tuple[str, ...], *, views: bool = False) -> Prepared:
    """Resolve a configuration as a worker does. `views`: the model may look at stored images again."""
    resolved = tuple(resolve_tool(_TOOLS[name]) for name in (*tools, *([view_blob.name] if views else [])))
    return Prepared(tools=resolved, profile=make_profile(model), deployment="d-1", shows_texts=True)
