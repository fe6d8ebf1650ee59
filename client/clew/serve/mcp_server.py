"""The MCP server: agents as tools and sessions as resources, over streamable HTTP at `/v1/mcp`.

A call of a tool is a message to a session of Clew. A client that has to decide about an approval calls again, with
the state that names the session and the request: nothing of a call is in the process. A client of the protocols
before 2026-07-28 is asked within its call, in an MCP session of this process (`mcp_sessions`).

Source: https://modelcontextprotocol.io/specification/2026-07-28
"""

from __future__ import annotations

import asyncio
import ipaddress
import json
import re
import uuid
from collections.abc import AsyncGenerator, Iterable, Iterator, Mapping, Sequence
from contextlib import aclosing, contextmanager, suppress
from dataclasses import replace
from hashlib import sha256
from importlib.metadata import version
from typing import Any, TypeAlias
from urllib.parse import urlsplit

import mcp_types as types
from fastapi import APIRouter, Request, Response
from mcp.server.context import ServerRequestContext
from mcp.server.lowlevel.server import Server
from mcp.server.streamable_http import MCP_SESSION_ID_HEADER, REQUEST_CANCELLED
from mcp.server.streamable_http_manager import StreamableHTTPSessionManager
from mcp.shared.exceptions import MCPError
from mcp.shared.inbound import MCP_PROTOCOL_VERSION_HEADER
from mcp_types.version import HANDSHAKE_PROTOCOL_VERSIONS, MODERN_PROTOCOL_VERSIONS, is_version_at_least
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from starlette.types import Message, Receive, Scope, Send

from clew.serve.access import Authorized, Caller
from clew.serve.bodies import check_body, work_on
from clew.serve.error_words import Reader
from clew.serve.mcp_sessions import McpSessions
from clew.serve.problems import Forbidden, InvalidParameter, WrongMethod, make_body, name_field
from clew.serve.streams import Drain
from clew.serve.ui_messages import convert_thread
from clew.session import Session
from clew.session.events import (
    ApprovalRequired,
    Change,
    EntryCommitted,
    LiveTurn,
    ResultRequired,
    Retrying,
    SubagentWaiting,
    TextAdded,
    ToolFinished,
    ToolProgressed,
    ToolStarted,
    Waits,
)
from clew.session.request import Request as SessionRequest
from clew.session.session_reads import WaitingCall
from clew.session.transport import ACCEPT_SECONDS
from clew_workflows.contract import SessionSummary
from clew_workflows.contract.errors import AlreadyResolved, ClewError
from clew_workflows.contract.invalid import list_problems
from clew_workflows.contract.names import AgentName, Id, rewrite_name
from clew_workflows.contract.outputs import PendingCall
from clew_workflows.contract.payloads import ApprovalPayload, AssistantMessage, RunPayload

router = APIRouter(tags=["MCP"])

MAX_LISTED = 100
"""Most sessions of a list of resources."""
MAX_ENTRIES = 500
"""Most entries of a session that a resource shows: the newest ones."""
RUN_AGENT = "run_agent"
"""The tool of keys that may use all agents."""
STRUCTURED = "2025-06-18"
"""The first version of the protocol that has structured results, and questions to the client's user."""
URI_PREFIX = "clew://sessions/"
"""What the addresses of sessions begin with."""
_CANCEL_SECONDS = ACCEPT_SECONDS + 10.0
"""Seconds in which a message that was being sent is accepted, and its request cancelled."""

_Context: TypeAlias = ServerRequestContext[Any, Any]
_Result: TypeAlias = types.CallToolResult | types.InputRequiredResult


class Call(BaseModel):
    """The arguments of a tool.

    Attributes:
        message: The message.
        session_id: The session. Absent: a new one.
        agent: The agent of a new session, where the tool does not name it.
    """

    model_config = ConfigDict(extra="forbid", strict=True)

    message: str = Field(min_length=1)
    session_id: str | None = None
    agent: AgentName | None = None


class CallState(BaseModel):
    """The state of a call whose client has to decide: it comes back with the decisions.

    Attributes:
        session_id: The session.
        request_id: The request.
    """

    model_config = ConfigDict(extra="forbid", strict=True)

    session_id: str
    request_id: Id


_WAITING: Mapping[str, Any] = {
    "tool_call_id": {"type": "string"},
    "tool": {"type": "string"},
    "session_id": {"type": "string", "description": "The subagent's session that it waits in."},
}
_OUTPUT_SCHEMA: Mapping[str, Any] = {
    "type": "object",
    "properties": {
        "session_id": {"type": "string", "description": "Name it in the next call to continue the conversation."},
        "request_id": {"type": "string"},
        "status": {"enum": ["completed", "failed", "cancelled", "awaiting_approval"]},
        "termination_reason": {"type": "string"},
        "answer": {"type": "string"},
        "approvals": {
            "description": "The tool calls that wait for a person's decision.",
            "type": "array",
            "items": {"type": "object", "properties": _WAITING, "required": ["tool_call_id", "tool"]},
        },
        "results": {
            "description": "The tool calls that wait for their results from outside.",
            "type": "array",
            "items": {"type": "object", "properties": _WAITING, "required": ["tool_call_id", "tool"]},
        },
    },
    "required": ["session_id", "request_id", "status", "answer"],
}
_DECISION_SCHEMA: Mapping[str, Any] = {
    "type": "object",
    "properties": {
        "approved": {"type": "boolean", "title": "May it run?"},
        "reason": {"type": "string", "title": "Reason", "description": "The model reads the reason of a denial."},
    },
    "required": ["approved"],
}


@router.api_route("/v1/mcp", methods=["GET", "POST", "DELETE"], include_in_schema=False)
async def serve_mcp(request: Request, caller: Authorized) -> Response:
    """Serve a request of an MCP client."""
    _check_origin(request)
    request.state.caller = caller
    request.state.left = asyncio.Event()
    body = await request.body()
    await work_on(request, len(body), check_body, body)
    return _McpResponse(body)


def _check_origin(request: Request) -> None:
    """Check that no page of another origin sends the request.

    A browser names the page's origin. The service's own one is the address that the request names. Its name is not: a
    page's owner may point a name to any address, so that names are those of `cors_origins` alone.

    Raises:
        Forbidden: A page of another origin sends it.
    """
    origin = request.headers.get("origin")
    origins: tuple[str, ...] = request.app.state.settings.cors_origins
    if origin is None or origin in origins:
        return
    scheme, _, authority = origin.partition("://")
    if scheme in ("http", "https") and authority == request.headers.get("host") and _is_address(authority):
        return
    raise Forbidden(f"the origin {origin[:100]!r} is none that may call it: name it with --cors-origin")


def _is_address(authority: str) -> bool:
    """Whether the host of an authority is an IP address, or that of this machine."""
    host = urlsplit(f"//{authority}").hostname or ""
    if host == "localhost":
        return True
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


class _McpResponse(Response):
    """Lets the MCP server answer a request, of which it has the body."""

    def __init__(self, body: bytes) -> None:
        super().__init__()
        self._request_body = body

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        unread = [self._request_body]

        async def replay() -> Message:
            return {"type": "http.request", "body": unread.pop(), "more_body": False} if unread else await receive()

        request = Request(scope)
        try:
            await self._answer(request, replay, send)
        finally:
            request.state.left.set()

    async def _answer(self, request: Request, receive: Receive, send: Send) -> None:
        """Answer in the session that the request names, in a new one, or without one."""
        sessions: McpSessions = request.app.state.mcp_sessions
        owner = request.state.caller.key.hash
        protocol = request.headers.get(MCP_PROTOCOL_VERSION_HEADER)
        has_sessions = protocol is None or protocol in HANDSHAKE_PROTOCOL_VERSIONS
        session_id = request.headers.get(MCP_SESSION_ID_HEADER)
        if has_sessions and request.method == "GET" and (session_id is None or not sessions.are_kept):
            raise WrongMethod("only an MCP session has such a stream")
        if has_sessions and sessions.are_kept and session_id is not None:
            await sessions.handle(owner, session_id, request.scope, receive, send)
        elif has_sessions and sessions.are_kept and _begins_session(self._request_body):
            await sessions.open(owner, request.scope, receive, send)
        else:
            manager = StreamableHTTPSessionManager(SERVER, stateless=True)
            async with manager.run():
                await manager.handle_request(request.scope, receive, send)


def _begins_session(body: bytes) -> bool:
    """Whether the body of a request is `initialize`. One that cannot be read is refused without a session."""
    try:
        message = json.loads(body)
    except (ValueError, RecursionError):
        return False
    return isinstance(message, dict) and message.get("method") == "initialize"


def _get_request(context: _Context) -> Request:
    """Get the HTTP request of a message."""
    request: Request | None = context.request
    assert request is not None, "the transport is HTTP"
    return request


def _get_caller(context: _Context) -> Caller:
    caller: Caller = _get_request(context).state.caller
    return caller


# Tools: one for each agent that the key may use.


def make_tools(agents: Iterable[str] | None) -> list[types.Tool]:
    """Make the tools of a key with these agents; None: it may use all agents, and names one."""
    if agents is not None:
        return [_make_tool(name_tool(agent), f"Send a message to the agent {agent!r}.") for agent in agents]
    agent = {"agent": {"type": "string", "description": "The agent; needed for a new session."}}
    return [_make_tool(RUN_AGENT, "Send a message to an agent.", agent)]


_TOOL_NAME = re.compile(r"[A-Za-z0-9_-]+")


def name_tool(agent: str) -> str:
    """Name the tool of an agent: as the agent, or with a hash at its end where the agent has a dot."""
    return rewrite_name(agent, _TOOL_NAME, 64)


def _make_tool(name: str, description: str, more: Mapping[str, Any] | None = None) -> types.Tool:
    properties = {
        "message": {"type": "string", "description": "The message."},
        "session_id": {"type": "string", "description": "The session to continue. Absent: a new one."},
        **(more or {}),
    }
    return types.Tool(
        name=name,
        description=f"{description} The answer comes with the id of the session.",
        input_schema={"type": "object", "properties": properties, "required": ["message"]},
        output_schema=dict(_OUTPUT_SCHEMA),
    )


async def list_tools(context: _Context, _params: types.PaginatedRequestParams | None) -> types.ListToolsResult:
    """List the tools of the key."""
    return types.ListToolsResult(tools=make_tools(_get_caller(context).key.agents))


async def call_tool(context: _Context, params: types.CallToolRequestParams) -> _Result:
    """Send a message to a session, or the decisions that it waits for, and wait for the outcome.

    The call ends with its client: one that cancels it or leaves cancels the request of the session, too.
    """
    calling = asyncio.create_task(_call(context, params))
    # It outlives a call that is cancelled, until the session has cancelled the request.
    _calls.add(calling)
    calling.add_done_callback(_forget)
    leaving = asyncio.create_task(_get_request(context).state.left.wait())
    try:
        await asyncio.wait({calling, leaving}, return_when=asyncio.FIRST_COMPLETED)
        if calling.done():
            return calling.result()
        raise MCPError(REQUEST_CANCELLED, "the client has left")
    finally:
        leaving.cancel()
        calling.cancel()


_calls: set[asyncio.Task[_Result]] = set()


def _forget(calling: asyncio.Task[_Result]) -> None:
    _calls.discard(calling)
    if not calling.cancelled():
        # Nobody is told of an error after the client has left.
        calling.exception()


async def _call(context: _Context, params: types.CallToolRequestParams) -> _Result:
    caller = _get_caller(context)
    try:
        state, call = _read_call(caller, params, _get_request(context).headers.get("idempotency-key"))
        session = caller.session(state.session_id)
        sending = asyncio.create_task(_send(caller, state, call))
        try:
            sent = await asyncio.shield(sending)
            declined = await _decide(session, params.input_responses or {}, caller.key.name)
            request = sent or session.request(state.request_id)
            result = await _follow(
                context, session, state, request, asks=not declined and _can_ask(context), is_fresh=sent is None
            )
        except asyncio.CancelledError:
            await _cancel(context, session, state, sending)
            raise
    except ClewError as error:
        told = make_body(error, caller.reader)["error"]
        return types.CallToolResult(
            content=[types.TextContent(type="text", text=f"{told['code']}: {told['message']}")], is_error=True
        )
    if isinstance(result, types.CallToolResult) and not is_version_at_least(context.protocol_version, STRUCTURED):
        result.content.append(types.TextContent(type="text", text=json.dumps(result.structured_content)))
    return result


def _read_call(caller: Caller, params: types.CallToolRequestParams, key: str | None) -> tuple[CallState, Call | None]:
    """Read what a call sends, and name its request. One that goes on names it itself, and sends no message.

    `key`: the client's key for repetitions of the call.

    Raises:
        InvalidParameter: The arguments, or the state, are not valid.
        MCPError: The key has no such tool.
    """
    if params.request_state is not None:
        try:
            return CallState.model_validate_json(params.request_state), None
        except ValidationError:
            raise InvalidParameter("requestState: it is none that this server has made") from None
    agents = caller.key.agents
    named = {RUN_AGENT: None} if agents is None else {name_tool(agent): agent for agent in agents}
    if params.name not in named:
        raise MCPError(types.INVALID_PARAMS, f"there is no tool {params.name[:100]!r}")
    try:
        call = Call.model_validate(params.arguments or {})
    except ValidationError as error:
        first = list_problems(error, Call)[0]
        words = str(first) if first.path else f"the arguments: {first.message}"
        raise InvalidParameter(words, param=name_field(first.path)) from None
    call = call.model_copy(update={"agent": named[params.name] or call.agent})
    if call.agent is None and call.session_id is None:
        raise InvalidParameter("agent: a new session needs one", param="agent")
    request_id = key or uuid.uuid4().hex
    own = sha256(key.encode()).hexdigest()[:32] if key else uuid.uuid4().hex
    return CallState(session_id=call.session_id or f"mcp-{own}", request_id=request_id), call


async def _send(caller: Caller, state: CallState, call: Call | None) -> SessionRequest | None:
    """Send the message of a call. Returns its request; None: the call has no message.

    Raises:
        ClewError: The session refuses the message, or the key does not permit it.
    """
    if call is None:
        return None
    session = await caller.open(state.session_id, agent=call.agent)
    return await session.message(call.message, request_id=state.request_id)


async def _decide(session: Session, answers: Mapping[str, types.InputResponse], by: str) -> bool:
    """Send the decisions of the client's user. Returns whether the user has not decided about one."""
    decided = [await _decide_call(session, tool_call_id, answer, by) for tool_call_id, answer in answers.items()]
    return not all(decided)


async def _decide_call(session: Session, tool_call_id: str, answer: types.InputResponse, by: str) -> bool:
    """Send the decision about a tool call. Returns whether the user has decided."""
    if not isinstance(answer, types.ElicitResult) or answer.action == "cancel":
        return False
    content = answer.content or {}
    approved = answer.action == "accept" and content.get("approved") is True
    reason = content.get("reason")
    # A repeated call finds that it was done.
    with suppress(AlreadyResolved):
        decide = session.approve if approved else session.deny
        await decide(tool_call_id, reason=reason if isinstance(reason, str) and reason else None, by=by)
    return True


async def _cancel(context: _Context, session: Session, state: CallState, sending: asyncio.Task[Any]) -> None:
    """Cancel the request of a call that its client has ended. A process that drains leaves the request alone."""
    drain: Drain = _get_request(context).app.state.drain
    if drain.has_begun:
        return
    with suppress(ClewError, TimeoutError):
        async with asyncio.timeout(_CANCEL_SECONDS):
            # A request that the session does not know yet cannot be cancelled.
            await sending
            await session.cancel(state.request_id, reason="the MCP client has cancelled the call")


async def _follow(
    context: _Context, session: Session, state: CallState, request: SessionRequest, *, asks: bool, is_fresh: bool
) -> _Result:
    """Follow a request to its outcome, or until a person has to decide.

    `asks`: the client's user may be that person. `is_fresh`: that person may just have decided.
    """
    answer, steps = "", 0
    waits = Waits()
    asking, caller = _Asking(context, session), _get_caller(context)
    asks_meanwhile = asks and context.protocol_version not in MODERN_PROTOCOL_VERSIONS
    async with aclosing(asking.follow(LiveTurn().fold(request._follow(is_fresh=is_fresh)))) as changes:
        async for change in changes:
            if change is not None and (text := describe_progress(change)):
                steps += 1
                await context.session.report_progress(steps, None, text)
            match change:
                case EntryCommitted(body=AssistantMessage() as reply):
                    answer = reply.text
                case EntryCommitted(body=RunPayload() as outcome):
                    await caller.forget_unresolved(session, outcome.error.type if outcome.error else None)
                    return _make_result(state, outcome, answer, caller.reader)
                case SubagentWaiting():
                    # The client's user is asked about the session's own calls.
                    waiting = await session.list_waiting_calls()
                    if of_subagents := [call for call in waiting if call.session_id != session.id]:
                        return _make_waiting(state, waits, caller, of_subagents)
                case Waits():
                    waits = change
                    if waits.approvals and not asks_meanwhile:
                        return _ask(state, waits.approvals) if asks else _make_waiting(state, waits, caller)
                case EntryCommitted(body=ApprovalPayload(tool_call_id=decided)):
                    left = tuple(call for call in waits.approvals if call.tool_call_id != decided)
                    waits = replace(waits, approvals=left)
            if asks_meanwhile:
                asking.ask(waits.approvals)
    return _make_waiting(state, waits, caller)


def _can_ask(context: _Context) -> bool:
    """Whether the client shows forms to its user: clients of 2025-06-18 and later say so."""
    capabilities = context.session.client_capabilities
    elicitation = capabilities.elicitation if capabilities else None
    if elicitation is None or (elicitation.form is None and elicitation.url is not None):
        return False
    if context.protocol_version in MODERN_PROTOCOL_VERSIONS:
        return True
    return context.session.can_send_request and is_version_at_least(context.protocol_version, STRUCTURED)


class _Asking:
    """Asks the client's user about tool calls, one after the other, while the call of the client goes on."""

    def __init__(self, context: _Context, session: Session) -> None:
        self._context, self._session = context, session
        self._question: asyncio.Task[bool] | None = None
        self._tool_call_id = ""
        # The user has decided them; the entries come later.
        self._decided: set[str] = set()

    def ask(self, approvals: Sequence[PendingCall]) -> None:
        """Ask about the first of the calls that wait. A question about a call that does not wait any more ends."""
        pending = [call for call in approvals if call.tool_call_id not in self._decided]
        if self._question is not None and self._tool_call_id not in {call.tool_call_id for call in pending}:
            self._question.cancel()
            self._question = None
        if pending and self._question is None:
            self._tool_call_id = pending[0].tool_call_id
            self._question = asyncio.create_task(self._ask_user(pending[0]))

    async def follow(self, events: AsyncGenerator[Change, None]) -> AsyncGenerator[Change | None, None]:
        """Yield the events, and None after each answer of the user.

        It ends when the user does not decide, or when the process drains: it takes no answer of the client any more.
        """
        drain: Drain = _get_request(self._context).app.state.drain
        draining = asyncio.create_task(drain.wait())
        reading: asyncio.Task[Change | None] | None = None
        try:
            while True:
                reading = reading or asyncio.create_task(_read_next(events))
                waiting = {reading} if self._question is None else {reading, self._question, draining}
                await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
                if reading.done():
                    event, reading = reading.result(), None
                    if event is None:
                        return
                    yield event
                elif self._question is not None and self._question.done():
                    has_decided, self._question = self._question.result(), None
                    if not has_decided:
                        return
                    self._decided.add(self._tool_call_id)
                    yield None
                else:
                    return
        finally:
            tasks: list[asyncio.Task[Any]] = [
                task for task in (draining, reading, self._question) if task is not None
            ]
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            await events.aclose()

    async def _ask_user(self, call: PendingCall) -> bool:
        """Ask the user about a tool call, and send the decision. Returns whether the user has decided."""
        context = self._context
        try:
            answer = await context.session.elicit_form(
                describe_call(call), dict(_DECISION_SCHEMA), related_request_id=context.request_id
            )
        except (MCPError, ValidationError):
            # The client has refused the question, or its answer is none.
            return False
        return await _decide_call(self._session, call.tool_call_id, answer, _get_caller(context).key.name)


async def _read_next(events: AsyncGenerator[Change, None]) -> Change | None:
    return await anext(events, None)


def describe_call(call: PendingCall) -> str:
    """Describe a tool call that waits for an approval to the person that decides."""
    return f"May {call.name} run with {json.dumps(call.arguments, ensure_ascii=False)[:2000]}?"


def _ask(state: CallState, calls: Iterable[PendingCall]) -> types.InputRequiredResult:
    requests: dict[str, types.InputRequest] = {
        call.tool_call_id: types.ElicitRequest(
            params=types.ElicitRequestFormParams(message=describe_call(call), requested_schema=dict(_DECISION_SCHEMA))
        )
        for call in calls
    }
    return types.InputRequiredResult(input_requests=requests, request_state=state.model_dump_json())


def describe_progress(event: Change) -> str | None:
    """Describe an event for people; None: it is not worth a notification."""
    match event:
        case ToolStarted(name=name):
            return f"{name} runs"
        case ToolProgressed(description=description):
            return description
        case ToolFinished(name=str(name), is_error=is_error):
            return f"{name} has failed" if is_error else f"{name} is done"
        case ApprovalRequired(name=name):
            return f"{name} waits for an approval"
        case ResultRequired(name=name):
            return f"{name} waits for its result"
        case SubagentWaiting(name=name):
            return f"{name} of a subagent waits"
        case Retrying(error=error):
            return f"another attempt: {error}"
        case TextAdded(offset=0):
            return "the model answers"
    return None


def _make_result(state: CallState, outcome: RunPayload, answer: str, reader: Reader) -> types.CallToolResult:
    error = outcome.error
    failed = reader.tell(error.type, error.message) if error else outcome.termination_reason
    text = answer if outcome.status == "completed" else f"{outcome.status}: {failed}"
    structured = {
        **state.model_dump(),
        "status": outcome.status,
        "termination_reason": outcome.termination_reason,
        "answer": answer,
    }
    return types.CallToolResult(
        content=[types.TextContent(type="text", text=text)],
        structured_content=structured,
        is_error=outcome.status != "completed",
    )


def _make_waiting(
    state: CallState, waits: Waits, caller: Caller, of_subagents: Sequence[WaitingCall] = ()
) -> types.CallToolResult:
    """Make the result of a call whose request waits for a person, with the ways to decide."""
    lines = [
        "The session waits for a person's decision, and goes on after it. "
        'Decide in the studio, or with a POST of {"decision": "approve"} or {"decision": "deny"}:'
    ]
    waiting: dict[str, list[dict[str, str]]] = {"approvals": [], "results": []}

    def add(needs: str, call: PendingCall, session_id: str) -> None:
        path = f"/v1/sessions/{session_id}"
        if needs == "approval":
            lines.append(f"{describe_call(call)} POST {path}/approvals/{call.tool_call_id}")
        else:
            lines.append(f"{call.name} waits for its result: POST {path}/tool-results/{call.tool_call_id}")
        named = {} if session_id == state.session_id else {"session_id": session_id}
        waiting[f"{needs}s"].append({"tool_call_id": call.tool_call_id, "tool": call.name, **named})

    for approval in waits.approvals:
        add("approval", approval, state.session_id)
    for result in waits.results:
        add("result", result, state.session_id)
    for other in of_subagents:
        add(other.needs, other.call, caller.unscope(other.session_id))
    lines.append(f"Then read {URI_PREFIX}{state.session_id}, or send the next message with this session_id.")
    listed = {name: rows for name, rows in waiting.items() if rows}
    structured = {**state.model_dump(), "status": "awaiting_approval", "answer": "", **listed}
    return types.CallToolResult(
        content=[types.TextContent(type="text", text="\n".join(lines))], structured_content=structured
    )


# Resources: the sessions of the tenant.


async def list_resources(
    context: _Context, _params: types.PaginatedRequestParams | None
) -> types.ListResourcesResult:
    """List the newest sessions of the tenant."""
    caller = _get_caller(context)
    with _translate_errors(caller):
        summaries: list[SessionSummary] = []
        async with aclosing(caller.clew.sessions(prefix=caller.prefix)) as listing:
            async for summary in listing:
                summaries.append(summary)
                if len(summaries) == MAX_LISTED:
                    break
    return types.ListResourcesResult(
        resources=[
            types.Resource(
                uri=URI_PREFIX + caller.unscope(summary.session_id),
                name=caller.unscope(summary.session_id),
                title=summary.title or None,
                mime_type="application/json",
            )
            for summary in summaries
        ]
    )


async def list_templates(
    _context: _Context, _params: types.PaginatedRequestParams | None
) -> types.ListResourceTemplatesResult:
    """List the only template: a session by its id."""
    template = types.ResourceTemplate(
        uri_template=URI_PREFIX + "{session_id}", name="session", mime_type="application/json"
    )
    return types.ListResourceTemplatesResult(resource_templates=[template])


async def read_resource(context: _Context, params: types.ReadResourceRequestParams) -> types.ReadResourceResult:
    """Read a session: its status and its newest messages."""
    caller = _get_caller(context)
    if not params.uri.startswith(URI_PREFIX):
        raise MCPError(types.INVALID_PARAMS, f"a resource is {URI_PREFIX}SESSION", {"uri": params.uri})
    with _translate_errors(caller, {"uri": params.uri}):
        session = caller.session(params.uri.removeprefix(URI_PREFIX))
        status = await session.status()
        entries = session.read(from_seq=max(status.rev - MAX_ENTRIES, 0))
        messages = await convert_thread(entries, status.pending_approvals)
    text = json.dumps({"status": status.status, "messages": messages}, ensure_ascii=False)
    contents = types.TextResourceContents(uri=params.uri, mime_type="application/json", text=text)
    return types.ReadResourceResult(contents=[contents])


@contextmanager
def _translate_errors(caller: Caller, data: Mapping[str, str] | None = None) -> Iterator[None]:
    """Translate errors of a session to those of the protocol, with the names that the caller knows.

    `data`: what the error is about.
    """
    try:
        yield
    except ClewError as error:
        told = make_body(error, caller.reader)["error"]
        raise MCPError(types.INVALID_PARAMS, f"{told['code']}: {told['message']}", data) from None


SERVER: Server[Any] = Server(
    "clew",
    version=version("clew"),
    instructions="Each tool sends a message to an agent. The agent's session keeps the conversation.",
    on_list_tools=list_tools,
    on_call_tool=call_tool,
    on_list_resources=list_resources,
    on_list_resource_templates=list_templates,
    on_read_resource=read_resource,
)
"""The server. Each request names its caller."""
