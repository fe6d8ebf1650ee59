"""The MCP server: agents as tools and sessions as resources, over streamable HTTP at `/v1/mcp`.

A call of a tool is a message to a session. Nothing of a call is in the process: a client that has to decide about an
approval calls again, with the state that names the session and the request.

Source: https://modelcontextprotocol.io/specification/2026-07-28
"""

from __future__ import annotations

import asyncio
import json
import uuid
from collections.abc import Iterable, Iterator, Mapping
from contextlib import aclosing, contextmanager, suppress
from importlib.metadata import version
from typing import Any, TypeAlias

import mcp_types as types
from fastapi import APIRouter, Request, Response
from mcp.server.context import ServerRequestContext
from mcp.server.lowlevel.server import Server
from mcp.server.streamable_http_manager import StreamableHTTPSessionManager
from mcp.shared.exceptions import MCPError
from mcp_types.version import MODERN_PROTOCOL_VERSIONS
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from starlette.types import Receive, Scope, Send

from clew.serve.access import Authorized, Caller
from clew.serve.problems import InvalidParameter, make_body
from clew.serve.streams import Drain
from clew.serve.ui_messages import convert_thread
from clew.session import Session
from clew.session.events import (
    ApprovalRequired,
    EntryCommitted,
    Retrying,
    SessionEvent,
    StatusChanged,
    TextAdded,
    ToolFinished,
    ToolProgressed,
    ToolStarted,
)
from clew_workflows.contract import SessionSummary
from clew_workflows.contract.errors import AlreadyResolved, ClewError
from clew_workflows.contract.names import AgentName, Id
from clew_workflows.contract.outputs import PendingCall
from clew_workflows.contract.payloads import AssistantMessage, RunPayload

router = APIRouter(tags=["MCP"])

MAX_LISTED = 100
"""Most sessions of a list of resources."""
MAX_ENTRIES = 500
"""Most entries of a session that a resource shows: the newest ones."""
RUN_AGENT = "run_agent"
"""The tool of keys that may use all agents."""
URI_PREFIX = "clew://sessions/"
"""What the addresses of sessions begin with."""
_CANCEL_SECONDS = 10.0

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


_OUTPUT_SCHEMA: Mapping[str, Any] = {
    "type": "object",
    "properties": {
        "session_id": {"type": "string", "description": "Name it in the next call to continue the conversation."},
        "request_id": {"type": "string"},
        "status": {"enum": ["completed", "failed", "cancelled", "awaiting_approval"]},
        "termination_reason": {"type": "string"},
        "answer": {"type": "string"},
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
    request.state.caller = caller
    return _McpResponse()


class _McpResponse(Response):
    """Lets the MCP server answer a request. It keeps nothing between requests."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        manager = StreamableHTTPSessionManager(SERVER, stateless=True)
        async with manager.run():
            await manager.handle_request(scope, receive, send)


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


def name_tool(agent: str) -> str:
    """Name the tool of an agent."""
    return agent.replace(".", "_")


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
    """Send a message to a session, or the decisions that it waits for, and wait for the outcome."""
    caller = _get_caller(context)
    try:
        state = await _begin(caller, params)
        session = caller.session(state.session_id)
        declined = await _decide(session, params.input_responses or {}, caller.key.name)
        try:
            return await _follow(context, session, state, asks=not declined)
        except asyncio.CancelledError:
            await _cancel(context, session, state.request_id)
            raise
    except ClewError as error:
        told = make_body(error, tenant=caller.tenant)["error"]
        return types.CallToolResult(
            content=[types.TextContent(type="text", text=f"{told['code']}: {told['message']}")], is_error=True
        )


async def _begin(caller: Caller, params: types.CallToolRequestParams) -> CallState:
    """Send the message of a call. A call that goes on names its request.

    Raises:
        ClewError: The session refuses the message, or the key does not permit it.
    """
    if params.request_state is not None:
        try:
            return CallState.model_validate_json(params.request_state)
        except ValidationError:
            raise InvalidParameter("requestState: it is none that this server has made") from None
    agents = caller.key.agents
    named = {RUN_AGENT: None} if agents is None else {name_tool(agent): agent for agent in agents}
    if params.name not in named:
        raise MCPError(types.INVALID_PARAMS, f"there is no tool {params.name[:100]!r}")
    try:
        call = Call.model_validate(params.arguments or {})
    except ValidationError as error:
        first = error.errors(include_input=False)[0]
        raise InvalidParameter(f"{'.'.join(map(str, first['loc']))}: {first['msg']}") from None
    agent = named[params.name] or call.agent
    if agent is None and call.session_id is None:
        raise InvalidParameter("agent: a new session needs one", param="agent")
    state = CallState(session_id=call.session_id or f"mcp-{uuid.uuid4().hex}", request_id=uuid.uuid4().hex)
    session = await caller.open(state.session_id, agent=agent)
    await session.message(call.message, request_id=state.request_id)
    return state


async def _decide(session: Session, answers: Mapping[str, types.InputResponse], by: str) -> bool:
    """Send the decisions of the client's user. Returns whether the user has not decided about one."""
    undecided = False
    for tool_call_id, answer in answers.items():
        if not isinstance(answer, types.ElicitResult) or answer.action == "cancel":
            undecided = True
            continue
        content = answer.content or {}
        approved = answer.action == "accept" and content.get("approved") is True
        reason = content.get("reason")
        # A repeated call finds that it was done.
        with suppress(AlreadyResolved):
            decide = session.approve if approved else session.deny
            await decide(tool_call_id, reason=reason if isinstance(reason, str) and reason else None, by=by)
    return undecided


async def _cancel(context: _Context, session: Session, request_id: str) -> None:
    """Cancel the request of a call that its client has ended: since 2026-07-28 it does so by leaving.

    A process that drains leaves the request alone, and so does a client of an earlier version, which may come back.
    """
    drain: Drain = _get_request(context).app.state.drain
    if context.protocol_version not in MODERN_PROTOCOL_VERSIONS or drain.has_begun:
        return

    async def cancel() -> None:
        with suppress(ClewError, TimeoutError):
            async with asyncio.timeout(_CANCEL_SECONDS):
                await session.cancel(request_id, reason="the MCP client has cancelled the call")

    # The call is cancelled, and everything that it waits for.
    task = asyncio.get_running_loop().create_task(cancel())
    _cancelling.add(task)
    task.add_done_callback(_cancelling.discard)


_cancelling: set[asyncio.Task[None]] = set()


async def _follow(context: _Context, session: Session, state: CallState, *, asks: bool) -> _Result:
    """Follow a request to its outcome, or until the client has to decide."""
    asks = asks and _can_ask(context)
    answer, steps = "", 0
    async with aclosing(session.request(state.request_id).events()) as events:
        async for event in events:
            if text := describe_progress(event):
                steps += 1
                await context.session.report_progress(steps, None, text)
            if isinstance(event, EntryCommitted):
                match event.entry.body if event.entry.kind in ("ai_message", "run") else None:
                    case AssistantMessage() as reply:
                        answer = reply.text
                    case RunPayload() as outcome:
                        return _make_result(state, outcome, answer)
            elif isinstance(event, ApprovalRequired | StatusChanged):
                status = await session.status()
                if status.request_id == state.request_id and (calls := status.pending_approvals):
                    if asks:
                        return _ask(state, calls)
                    if _can_ask(context):
                        return _make_waiting(state)
    return _make_waiting(state)


def _can_ask(context: _Context) -> bool:
    """Whether the client can be asked: others wait until a person has decided elsewhere."""
    wanted = types.ClientCapabilities(elicitation=types.ElicitationCapability())
    return context.protocol_version in MODERN_PROTOCOL_VERSIONS and context.session.check_client_capability(wanted)


def _ask(state: CallState, calls: Iterable[PendingCall]) -> types.InputRequiredResult:
    requests: dict[str, types.InputRequest] = {
        call.tool_call_id: types.ElicitRequest(
            params=types.ElicitRequestFormParams(
                message=f"May {call.name} run with {json.dumps(call.arguments, ensure_ascii=False)[:2000]}?",
                requested_schema=dict(_DECISION_SCHEMA),
            )
        )
        for call in calls
    }
    return types.InputRequiredResult(input_requests=requests, request_state=state.model_dump_json())


def describe_progress(event: SessionEvent) -> str | None:
    """Describe an event for people; None: it is not worth a notification."""
    match event:
        case ToolStarted(name=name):
            return f"{name} runs"
        case ToolProgressed(name=name, text=text):
            return f"{name}: {text}"
        case ToolFinished(name=str(name), is_error=is_error):
            return f"{name} has failed" if is_error else f"{name} is done"
        case ApprovalRequired(name=name):
            return f"{name} waits for an approval"
        case Retrying(error=error):
            return f"another attempt: {error}"
        case TextAdded(offset=0):
            return "the model answers"
    return None


def _make_result(state: CallState, outcome: RunPayload, answer: str) -> types.CallToolResult:
    failed = outcome.error.message if outcome.error else outcome.termination_reason
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


def _make_waiting(state: CallState) -> types.CallToolResult:
    structured = {**state.model_dump(), "status": "awaiting_approval", "answer": ""}
    text = "a tool call waits for an approval, which was not given: the session goes on after it"
    return types.CallToolResult(content=[types.TextContent(type="text", text=text)], structured_content=structured)


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
        raise MCPError(types.INVALID_PARAMS, f"a resource is {URI_PREFIX}SESSION")
    with _translate_errors(caller):
        session = caller.session(params.uri.removeprefix(URI_PREFIX))
        status = await session.status()
        entries = session.read(from_seq=max(status.rev - MAX_ENTRIES, 0))
        messages = await convert_thread(entries, status.pending_approvals)
    text = json.dumps({"status": status.status, "messages": messages}, ensure_ascii=False)
    contents = types.TextResourceContents(uri=params.uri, mime_type="application/json", text=text)
    return types.ReadResourceResult(contents=[contents])


@contextmanager
def _translate_errors(caller: Caller) -> Iterator[None]:
    """Translate errors of a session to those of the protocol, with the names that the caller knows."""
    try:
        yield
    except ClewError as error:
        told = make_body(error, tenant=caller.tenant)["error"]
        raise MCPError(types.INVALID_PARAMS, f"{told['code']}: {told['message']}") from None


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
"""The server. It keeps nothing of a client: each request names its caller."""
