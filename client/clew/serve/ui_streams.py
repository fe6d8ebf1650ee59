"""The routes for user interfaces: the AI SDK's (`useChat`), and those that speak AG-UI.

A client's chat is a session of its tenant: `POST /v1/ui/chat` is the `api` of the AI SDK's `DefaultChatTransport`.
"""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing, suppress
from datetime import UTC, datetime, timedelta
from typing import Annotated, Any, Literal

from ag_ui.core import BaseEvent, CustomEvent, Event, RunAgentInput, RunErrorEvent, UserMessage
from fastapi import APIRouter, Request, Response
from fastapi.responses import JSONResponse, StreamingResponse
from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError
from typing_extensions import TypeAliasType

from clew.ag_ui import run_agent
from clew.ag_ui.ag_ui_parts import BlobUrl
from clew.json_schemas import StandsFor
from clew.serve.access import Authorized, Caller
from clew.serve.answers import show
from clew.serve.bodies import read_body
from clew.serve.problems import Draining, InvalidParameter, make_body
from clew.serve.streams import EventStream, SentEvent, describe_stream, stream_events
from clew.serve.ui_messages import Chunk, ReplyChunks, UiMessage, convert_thread, read_message
from clew.serve.worker_watch import WatchedRoute
from clew.session import Session
from clew.session.events import EntryCommitted, Waits
from clew.session.request import Request as SessionRequest
from clew_workflows.contract import ExternalToolSpec, SessionStatus
from clew_workflows.contract.config import ExternalTools
from clew_workflows.contract.content import Blob
from clew_workflows.contract.errors import AlreadyAnswered, AlreadyResolved, ClewError, NotFound
from clew_workflows.contract.invalid import list_problems
from clew_workflows.contract.names import AgentName, ModelName
from clew_workflows.contract.payloads import RunPayload

router = APIRouter(tags=["user interfaces"], route_class=WatchedRoute)

UI_HEADERS: Mapping[str, str] = {"x-vercel-ai-ui-message-stream": "v1"}
"""What tells the version of the AI SDK's protocol."""
MAX_ENTRIES = 2_000
"""Most entries of a thread whose messages are listed: the newest ones."""
ENDED_RECENTLY = timedelta(minutes=1)
"""How long ago a request may have ended whose message is streamed again."""
_specs: TypeAdapter[ExternalTools] = TypeAdapter(ExternalTools)
DONE = SentEvent("[DONE]")
"""The last event of the AI SDK's protocol."""


class UiChunk(BaseModel):
    """A chunk of the AI SDK's protocol (`UIMessageChunk`), by its `type`. The last event of a stream is `[DONE]`.

    Attributes:
        type: The type of the chunk, which says what else it has.
    """

    model_config = ConfigDict(extra="allow")

    type: str


AgUiEvent = TypeAliasType("AgUiEvent", Event)
AgUiData = Annotated[dict[str, Any], StandsFor(lambda: AgUiEvent)]
"""The data of an event of an AG-UI stream."""


class ChatRequest(BaseModel):
    """The body that `DefaultChatTransport` sends, whose option `body` has the last three fields.

    Attributes:
        id: The chat, which is the session.
        messages: The messages that the client has. The last one alone is read.
        trigger: Why the client sends them.
        message_id: The message of the user that this one replaces, or the assistant's that it continues.
        agent: The agent of a session that is new.
        model: The model of a session that is new.
        external_tools: The tools that the client runs itself. Absent: those that the session has.
    """

    model_config = ConfigDict(extra="ignore", frozen=True)

    id: str
    messages: list[UiMessage] = Field(min_length=1)
    trigger: Literal["submit-message", "regenerate-message"] = "submit-message"
    message_id: str | None = Field(default=None, alias="messageId")
    agent: AgentName | None = None
    model: ModelName | None = None
    external_tools: ExternalTools | None = None


@router.post("/v1/ui/chat", response_class=EventStream, responses=describe_stream(UiChunk))
async def send_chat(
    request: Request, caller: Authorized, body: Annotated[ChatRequest, read_body(ChatRequest)]
) -> StreamingResponse:
    """Send the last message of a chat, or the decisions and results in it, and stream the assistant's message."""
    newest = body.messages[-1]
    if body.trigger == "regenerate-message" or (newest.role == "user" and body.message_id is not None):
        raise InvalidParameter(
            "a session keeps what was said: fork it before the message, and send the message there", param="trigger"
        )
    session = await _open(caller, body.id, body.external_tools, body.agent, body.model)
    blob_url = _make_blob_url(body.id)
    if newest.role == "assistant":
        request_id = None
        if not newest.is_past_its_calls:
            request_id = await _answer_calls(session, newest, caller.key.name)
        followed = session.request(request_id) if request_id else None
        chunks = ReplyChunks(request_id or "", newest, blob_url)
        return await _stream_chat(request, caller, session, followed, chunks)
    followed = await session.message(read_message(newest), request_id=newest.id)
    return await _stream_chat(request, caller, session, followed, ReplyChunks(newest.id, None, blob_url), is_new=True)


@router.get(
    "/v1/ui/chat/{chat_id}/stream",
    response_class=EventStream,
    responses={**describe_stream(UiChunk), 204: {"description": "No request runs."}},
)
async def resume_chat(request: Request, caller: Authorized, chat_id: str) -> Response:
    """Stream the assistant's message of the active request, or of one that has just ended, from its beginning.

    204: there is none. A page reads the messages before it asks for the stream, and a request may end between.
    """
    session = caller.session(chat_id)
    try:
        status = await session.status()
    except NotFound:
        # The page of a chat that is new asks before its first message.
        return Response(status_code=204)
    request_id = status.request_id or await _find_ended_request(session, status.rev)
    if request_id is None:
        return Response(status_code=204)
    chunks = ReplyChunks(request_id, None, _make_blob_url(chat_id))
    return await _stream_chat(request, caller, session, session.request(request_id), chunks)


async def _find_ended_request(session: Session, rev: int) -> str | None:
    """Find the request that has ended last, if it was less than a minute ago."""
    async for entry in session.read(from_seq=max(rev - 1, 0)):
        if entry.kind == "run" and (datetime.now(UTC) - datetime.fromisoformat(entry.at)) < ENDED_RECENTLY:
            return entry.refs.get("request_id")
    return None


@router.get("/v1/ui/chat/{chat_id}/messages", response_model=list[UiMessage])
async def list_chat(caller: Authorized, chat_id: str) -> JSONResponse:
    """List the messages of a chat, for the option `messages` of `useChat`: those of its newest entries."""
    session = caller.session(chat_id)
    status = await session.status()
    entries = session.read(from_seq=max(status.rev - MAX_ENTRIES, 0))
    return JSONResponse(await convert_thread(entries, status.pending_approvals, _make_blob_url(chat_id)))


async def _open(
    caller: Caller,
    session_id: str,
    external_tools: tuple[ExternalToolSpec, ...] | None,
    agent: str | None = None,
    model: str | None = None,
) -> Session:
    """Open the session of a chat, and let it offer the client's tools."""
    session = await caller.open(session_id, agent=agent, model=model, external_tools=external_tools)
    if external_tools is not None:
        wanted = [tool.model_dump(mode="json") for tool in external_tools]
        status = await session.status()
        if status.request_id is None and status.config.get("external_tools", []) != wanted:
            await session.configure(external_tools=external_tools)
    return session


def _make_blob_url(session_id: str) -> BlobUrl:
    def make(blob: Blob) -> str:
        return f"/v1/sessions/{session_id}/blobs/{blob['digest']}"

    return make


async def _answer_calls(session: Session, message: UiMessage, by: str) -> str | None:
    """Send the decisions and the results that a message has. Returns the request of its calls; None: it has none."""
    calls = message.list_calls()
    for call in calls:
        if call.state == "approval-responded" and call.approval is not None and call.approval.approved is not None:
            decide = session.approve if call.approval.approved else session.deny
            # A repeated message finds that it was done.
            with suppress(AlreadyResolved):
                await decide(call.tool_call_id, reason=call.approval.reason, by=by)
    status = await session.status()
    names = _list_own_tools(status)
    waiting = {call.tool_call_id for call in status.pending_external_calls if call.name in names}
    for call in calls:
        if call.tool_call_id in waiting and call.state in ("output-available", "output-error"):
            failed = call.state == "output-error"
            with suppress(AlreadyAnswered):
                await session.submit_tool_result(
                    call.tool_call_id, call.error or "" if failed else call.output, is_error=failed, by=by
                )
    return await _find_request(session, [call.tool_call_id for call in calls], status)


async def _find_request(session: Session, tool_call_ids: Sequence[str], status: SessionStatus) -> str | None:
    """Find the request of a reply's tool calls, as it is before and after some of them have results.

    A call that waits has no entry of its own. None: no call waits, and none has an entry.
    """
    pending = {call.tool_call_id for call in (*status.pending_approvals, *status.pending_external_calls)}
    if not pending.isdisjoint(tool_call_ids):
        return status.request_id
    for tool_call_id in reversed(tool_call_ids):
        async for entry in session.read(tool_call_id=tool_call_id):
            return entry.refs.get("request_id")
    return None


def _list_own_tools(status: SessionStatus) -> frozenset[str]:
    """List the names of the tools that the client runs itself."""
    return frozenset(tool["name"] for tool in status.config.get("external_tools", ()))


async def _stream_chat(
    request: Request,
    caller: Caller,
    session: Session,
    followed: SessionRequest | None,
    chunks: ReplyChunks,
    *,
    is_new: bool = False,
) -> StreamingResponse:
    """Stream the chunks of a message until its request has an outcome, or waits for the client."""

    async def follow() -> AsyncGenerator[Chunk, None]:
        yield chunks.start()
        if followed is not None:
            async with aclosing(chunks.turn.fold(followed._follow(is_fresh=not is_new))) as changes:
                async for change in changes:
                    shown = caller.reader.show_event(change)
                    if isinstance(shown, EntryCommitted) and isinstance(ended := shown.body, RunPayload):
                        await caller.forget_unresolved(session, ended.error.type if ended.error else None)
                    for chunk in chunks.take(shown):
                        # Pages of AI SDK 6 do not know it, and fail. What follows a decision tells it, too.
                        if chunk["type"] != "tool-approval-response":
                            yield chunk
                        if chunk["type"] == "finish":
                            return
                    # A page sends nothing before each call of the reply has a result, or waits for the page.
                    if isinstance(change, Waits) and not change.others_run and await _are_own(session, change):
                        break
        for chunk in chunks.finish():
            yield chunk

    async def make() -> AsyncGenerator[SentEvent, None]:
        async with aclosing(follow()) as following:
            async for chunk in following:
                yield _encode_chunk(chunk)
        yield DONE

    def encode_error(error: ClewError) -> Sequence[SentEvent]:
        text = make_body(error, caller.reader)["error"]["message"]
        made: list[Chunk] = [{"type": "error", "errorText": text}]
        if isinstance(error, Draining):
            # The page hears when to resume the stream. Without the error it would take the message for complete.
            data = {"retryAfterSeconds": error.retry_seconds}
            made.insert(0, {"type": "data-draining", "data": data, "transient": True})
        return [*map(_encode_chunk, made), DONE]

    return await stream_events(request, make(), encode_error=encode_error, headers=UI_HEADERS)


def _encode_chunk(chunk: Chunk) -> SentEvent:
    return SentEvent(json.dumps(chunk, ensure_ascii=False, separators=(",", ":")))


async def _are_own(session: Session, waits: Waits) -> bool:
    """Whether the results that calls wait for are those of the client's own tools: it answers them."""
    return not waits.results or {call.name for call in waits.results} <= _list_own_tools(await session.status())


# AG-UI.


@router.post("/v1/ag-ui/run", response_class=EventStream, responses=describe_stream(AgUiData))
async def run_session(
    request: Request, caller: Authorized, run: Annotated[RunAgentInput, read_body(RunAgentInput)]
) -> StreamingResponse:
    """Serve an input of an AG-UI client. `threadId` is the session, which exists."""
    return await _run(request, caller, run)


@router.post("/v1/ag-ui/agents/{agent}/run", response_class=EventStream, responses=describe_stream(AgUiData))
async def run_named_agent(
    request: Request, caller: Authorized, agent: str, run: Annotated[RunAgentInput, read_body(RunAgentInput)]
) -> StreamingResponse:
    """Serve an input of an AG-UI client. `threadId` is the session; a new one has the agent."""
    return await _run(request, caller, run, agent)


async def _run(request: Request, caller: Caller, run: RunAgentInput, agent: str | None = None) -> StreamingResponse:
    tools = _read_tools(run) if run.messages and isinstance(run.messages[-1], UserMessage) else None
    session = await _open(caller, run.thread_id, tools, agent)
    names = _list_own_tools(await session.status())
    blob_url = _make_blob_url(run.thread_id)

    async def make() -> AsyncGenerator[SentEvent, None]:
        served = run_agent(session, run, frontend_tools=names, by=caller.key.name, blob_url=blob_url)
        async with aclosing(served) as events:
            async for event in events:
                if isinstance(event, RunErrorEvent):
                    await caller.forget_unresolved(session, event.code)
                yield _encode_run_event(event, caller)

    def encode_error(error: ClewError) -> Sequence[SentEvent]:
        told = make_body(error, caller.reader)["error"]
        return [_encode(RunErrorEvent(message=told["message"], code=told["code"]))]

    return await stream_events(request, make(), encode_error=encode_error)


def _encode_run_event(event: BaseEvent, caller: Caller) -> SentEvent:
    if isinstance(event, RunErrorEvent):
        # A message of the session names it as Temporal does.
        event = event.model_copy(update={"message": caller.reader.tell(event.code or "internal", event.message)})
    elif isinstance(event, CustomEvent):
        event = event.model_copy(update={"value": show(caller, event.value)})
    return _encode(event)


def _encode(event: BaseEvent) -> SentEvent:
    return SentEvent(event.model_dump_json(by_alias=True, exclude_none=True))


def _read_tools(run: RunAgentInput) -> tuple[ExternalToolSpec, ...]:
    """Read the tools that an AG-UI client runs itself.

    Raises:
        InvalidParameter: A tool is not valid.
    """
    specs: list[Any] = []
    for tool in run.tools or ():
        parameters = {"type": "object", **tool.parameters} if isinstance(tool.parameters, dict) else tool.parameters
        specs.append(
            {"name": tool.name, "description": tool.description or "", "parameters": parameters or {"type": "object"}}
        )
    try:
        return _specs.validate_python(specs, strict=False)
    except ValidationError as error:
        problem = list_problems(error, ExternalToolSpec)[0]
        words = f"tools.{problem}" if problem.path else f"tools: {problem}"
        raise InvalidParameter(words, param=".".join(("tools", *map(str, problem.path)))) from None
