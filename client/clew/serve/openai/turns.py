"""Carry out what a request asks for in a session: begin a response, go on with one, follow it, and read it again.

No process keeps anything of a response: its id names the session and the request, and the thread has the rest.
"""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing, suppress
from dataclasses import dataclass, replace
from typing import Any

from clew.serve.access import Caller
from clew.serve.openai import names
from clew.serve.openai.asks import Ask, Decision, make_snapshot
from clew.serve.openai.events import Event, ResponseEvents
from clew.serve.openai.frames import Frame, read_frame, read_time
from clew.serve.openai.names import ResponseName
from clew.serve.openai.parts import Parts
from clew.serve.openai.refusals import InvalidValue, MissingParameter, NotStored, UnsupportedValue
from clew.session import Request, Session
from clew.session.events import EntryCommitted, SessionEvent
from clew.session.events.feed import Feed
from clew.session.transport import make_input
from clew_workflows.contract import GET_BLOB_WORKFLOW, GetBlobInput
from clew_workflows.contract.errors import (
    AlreadyAnswered,
    AlreadyResolved,
    Busy,
    Closed,
    NotFound,
    UnknownApproval,
    UnknownRequest,
    UnknownToolCall,
)
from clew_workflows.contract.outputs import BlobPage, SessionStatus
from clew_workflows.contract.payloads import AssistantMessage, RunPayload, UserMessage
from clew_workflows.thread.entries import Entry

IDLE_SECONDS = 3600
"""A session that this API has made hibernates after this many seconds without work. The next request resumes it."""
NO_MODEL = "none:set-by-the-first-response"
"""The model of a conversation that has none yet."""


@dataclass(frozen=True)
class Turn:
    """A response that a session works on, or has worked on.

    Attributes:
        session: The session.
        frame: What the response repeats of its request.
        begun: The entry of the reply whose calls the caller has answered; None: it begins with its request.
        sent: The request whose message this process has sent; None: it has sent none.
    """

    session: Session
    frame: Frame
    begun: Entry | None = None
    sent: Request | None = None

    @property
    def request_id(self) -> str:
        """The request."""
        return self.frame.name.request_id

    def make_events(self, *, may_approve: bool = True) -> ResponseEvents:
        """Make what makes the events of the response."""
        begun = self.begun.read(AssistantMessage) if self.begun else None
        prefix = self.session.id.removesuffix(self.frame.name.session_id)
        return ResponseEvents(self.frame, begun, may_approve=may_approve, hides=prefix)


# Begin a response.


@dataclass(frozen=True)
class Place:
    """Where a response belongs.

    Attributes:
        session_id: The session.
        previous: The response that it follows; None: the newest.
        creates: A session that does not exist is made.
        is_named: The request names the response by its id. Otherwise it has items of it.
    """

    session_id: str
    previous: ResponseName | None = None
    creates: bool = False
    is_named: bool = False


async def begin(caller: Caller, ask: Ask, place: Place | None, key: str | None) -> Turn:
    """Do what a request asks for, and return the response that answers it.

    Args:
        caller: The caller.
        ask: What the request asks for.
        place: Where the response belongs; None: in a new session.
        key: The caller's key for repetitions of the request: it has no second effect.

    Raises:
        ClewError: It is refused. A refused message leaves no trace.
    """
    caller.check_message(ask.make_message_options(), has_agent=place is not None or ask.agent is not None)
    wish = _Wish(caller, ask, key)
    if place is None:
        return await _begin_session(caller, ask, names.make_session_id(key), key)
    try:
        session, status = await resume(caller, place.session_id)
    except NotFound:
        if not place.creates:
            raise
        return await _begin_session(caller, ask, place.session_id, key)
    if ask.results or ask.decisions:
        return await _go_on(session, status, ask, place.session_id)
    if not ask.content:
        raise MissingParameter("there is no new message: the last one is the assistant's", param="input")
    if key and await _knows(session, status, names.make_request_id(key)):
        # The request is a repetition. The session may wait for what follows it.
        _, model = _find_changes(status, ask)
        return await _send_message(session, ask, place.session_id, key, model=model, shown=_find_model(status, ask))
    if place.previous is None:
        _refuse_waiting(place.session_id, status)
        return await _send(wish, session, status, place.session_id)
    return await _follow_up(wish, session, status, place.previous, is_named=place.is_named)


async def find_place(caller: Caller, ask: Ask) -> Place | None:
    """Find the session that the items of an input come from; None: they come from none of this tenant."""
    named = ask.find_place()
    parts = names.decode(named, *names.THREAD_KINDS) if named else None
    if not parts or len(parts) < 2:
        return None
    session_id, within = parts[0], parts[1]
    if ask.results or ask.decisions:
        # The session knows what its calls wait for.
        return Place(session_id)
    session = caller.session(session_id)
    try:
        if within.startswith("#"):
            found = await session.entries(from_seq=int(within[1:].partition(".")[0]), limit=1)
        else:
            found = await session.entries(call_id=within, limit=1) or await session.entries(
                tool_call_id=within, limit=1
            )
    except (NotFound, ValueError):
        return None
    request_id = found[0].refs.get("request_id") if found else None
    return Place(session_id, ResponseName(session_id, request_id)) if request_id else None


async def _begin_session(caller: Caller, ask: Ask, session_id: str, key: str | None) -> Turn:
    if ask.model is None:
        raise MissingParameter("Missing required parameter: 'model'.", param="model")
    if ask.results or ask.decisions:
        unknown = ask.results[0].call_id if ask.results else ask.decisions[0].request
        raise InvalidValue(
            f"No tool call found for function call output with call_id {str(unknown)[:100]}.", param="input"
        )
    if not ask.content:
        raise MissingParameter("there is no message of the user to answer", param="input")
    for said in ask.history:
        if said.is_reference:
            raise NotStored(f"Item with id '{str(said.item)[:200]}' not found.", param="input")
    snapshot = make_snapshot(ask.history)
    metadata = {name: value for name in ("user",) if (value := ask.echo.get(name))}
    session = await caller.open(
        session_id,
        agent=ask.agent,
        model=ask.provider_model,
        external_tools=list(ask.functions) or None,
        metadata=metadata or None,
        idle_timeout_seconds=IDLE_SECONDS,
    )
    if snapshot:
        await session.replace_context(snapshot, op_id="history")
    return await _send_message(session, ask, session_id, key, model=None)


async def resume(caller: Caller, session_id: str) -> tuple[Session, SessionStatus]:
    """Resume a session that exists, and read its status.

    Raises:
        NotFound: There is no such session.
    """
    session = caller.session(session_id)
    with suppress(Closed):
        status = await session.status()
        if not status.closed:
            return session, status
    session = await caller.open(session_id)
    return session, await session.status()


@dataclass(frozen=True)
class _Wish:
    """What a caller asks for.

    Attributes:
        caller: The caller.
        ask: What the request asks for.
        key: The caller's key for repetitions.
    """

    caller: Caller
    ask: Ask
    key: str | None


async def _send(wish: _Wish, session: Session, status: SessionStatus, session_id: str) -> Turn:
    """Send a message to a session, after the changes of its configuration that the request needs."""
    ask = wish.ask
    changes, model = _find_changes(status, ask)
    wish.caller.check_config({**changes, "model": changes.get("model") or model})
    if changes:
        if status.status not in ("idle", "preparing"):
            raise Busy(f"session {session_id!r} serves another request")
        await session.configure(**changes)
    # A model that the session has no longer, or not yet, is the request's own.
    return await _send_message(session, ask, session_id, wish.key, model=model, shown=_find_model(status, ask))


def _find_changes(status: SessionStatus, ask: Ask) -> tuple[dict[str, Any], str | None]:
    """Find the changes of a session's configuration that a request needs, and the model of the request alone."""
    config = status.config
    changes: dict[str, Any] = {}
    model = None
    if ask.agent and ask.agent != config.get("agent"):
        if not config.get("agent"):
            # Its own model would stand in for the agent's.
            raise UnsupportedValue(
                f"the conversation has no agent: create it with the metadata {{'clew.agent': {ask.agent!r}}}, or "
                "leave 'conversation' out",
                param="model",
            )
        changes["agent"] = ask.agent
    elif ask.provider_model and config.get("model") == NO_MODEL:
        changes["model"] = ask.provider_model
    elif ask.provider_model and ask.provider_model != (config.get("model") or status.model):
        model = ask.provider_model
    elif ask.model is None and not config.get("agent") and config.get("model") == NO_MODEL:
        raise MissingParameter("Missing required parameter: 'model'.", param="model")
    if list(ask.functions) != list(map(_describe_function, config.get("external_tools") or ())):
        changes["external_tools"] = list(ask.functions)
    return changes, model


def _find_model(status: SessionStatus, ask: Ask) -> str:
    return ask.model or (status.agent.name if status.agent else None) or status.config.get("agent") or status.model


def _describe_function(tool: Mapping[str, Any]) -> dict[str, Any]:
    return {name: tool.get(name) or "" for name in ("name", "description")} | {"parameters": tool["parameters"]}


async def _send_message(
    session: Session, ask: Ask, session_id: str, key: str | None, *, model: str | None, shown: str | None = None
) -> Turn:
    request_id = names.make_request_id(key)
    content = await _describe_blobs(session, ask.content)
    options = ask.make_message_options()
    if model is not None:
        options["model"] = model
    sent = await session.message(content, request_id=request_id, **options)
    frame = Frame(
        ResponseName(session_id, request_id),
        int(time.time()),
        shown or ask.model or "",
        instructions=ask.instructions,
        metadata=ask.metadata,
        functions=ask.functions,
        options=ask.options,
        output_schema=ask.output_schema,
        echo=ask.echo,
    )
    return Turn(session, frame, sent=sent)


async def _describe_blobs(session: Session, content: Parts) -> Parts:
    """Describe the blobs that a content names by their digests."""
    described: Parts = []
    for part in content:
        if isinstance(part, Mapping) and "digest" in part:
            blob = (await _read_blob_page(session, part["digest"])).blob
            described.append({"type": part["type"], "blob": dict(blob)})
        else:
            described.append(part)
    return described


async def _read_blob_page(session: Session, digest: str) -> BlobPage:
    query = make_input(GetBlobInput, {"session_id": session.id, "digest": digest, "offset": 0})
    answer = await session._handle.run_service(GET_BLOB_WORKFLOW, query, keeps_history=False, label=digest[:16])
    return BlobPage.model_validate(answer)


# Follow an earlier response.


async def _follow_up(
    wish: _Wish, session: Session, status: SessionStatus, previous: ResponseName, *, is_named: bool
) -> Turn:
    """Send a message behind a response: in its session if it is the newest there, else in a fork."""
    session_id = previous.session_id
    ended = await _find_end(session, previous, is_named=is_named)
    if ended is None:
        _refuse_waiting(session_id, status)
        raise Busy(f"response {previous.id!r} is still in progress")
    if status.status in ("idle", "preparing") and not await session.entries(
        from_seq=ended.seq + 1, kind="ai_message", limit=1
    ):
        try:
            return await _send(wish, session, status, session_id)
        except Busy:
            pass  # Another request has come first: both follow the same response.
    return await _fork(wish, session, ended.seq)


async def _knows(session: Session, status: SessionStatus, request_id: str) -> bool:
    """Whether a session has taken in a request."""
    if request_id in (status.request_id, *status.queued_request_ids):
        return True
    return bool(await session.entries(request_id=request_id, limit=1))


async def _read_request(session: Session, request_id: str) -> Sequence[Entry]:
    """Read the entries of a request. One that waits, or has just begun, has none.

    Raises:
        UnknownRequest: The session has no such request.
    """
    entries = await session.entries(request_id=request_id)
    if not entries and not await _knows(session, await session.status(), request_id):
        try:
            await session.request(request_id)._wait_for_decision()
        except Closed as ended:
            raise UnknownRequest(request_id) from ended
        entries = await session.entries(request_id=request_id)
    return entries


async def _find_end(session: Session, response: ResponseName, *, is_named: bool) -> Entry | None:
    """Find the entry that ends the request of a response; None: it has not ended.

    Raises:
        NotStored: There is no such response, or it is named and not stored.
    """
    absent = NotStored(f"Previous response with id '{response.id}' not found.", param="previous_response_id")
    try:
        entries = await _read_request(session, response.request_id)
    except UnknownRequest:
        raise absent from None
    if is_named and not _read_frame_of(response, entries, ()).is_stored:
        raise absent
    return next((entry for entry in reversed(entries) if entry.kind == "run"), None)


async def _fork(wish: _Wish, session: Session, at_seq: int) -> Turn:
    session_id = names.make_session_id(wish.key)
    scoped = wish.caller.scope(session_id)
    await wish.caller.check_room(scoped)
    forked = await session.fork(at_seq, scoped)
    status = await forked.status()
    return await _send(wish, forked, status, session_id)


# Go on with a response that waits for its caller.


def _refuse_waiting(session_id: str, status: SessionStatus) -> None:
    """Refuse a message to a session that waits for results or decisions of its caller.

    Raises:
        InvalidValue: It does.
    """
    functions = {tool["name"] for tool in status.config.get("external_tools") or ()}
    for call in status.pending_external_calls:
        if call.name in functions:
            name = names.encode(names.CALL, session_id, call.tool_call_id)
            raise InvalidValue(f"No tool output found for function call {name}.", param="input")
    for approval in status.pending_approvals:
        name = names.encode(names.APPROVAL_REQUEST, session_id, approval.tool_call_id)
        raise InvalidValue(f"No decision found for approval request {name}.", param="input")


async def _go_on(session: Session, status: SessionStatus, ask: Ask, session_id: str) -> Turn:
    """Submit results and decisions, and go on with the request that waits for them."""
    results = {_read_call_name(session_id, str(said.call_id)): said for said in ask.results}
    decisions = {_read_approval_name(session_id, decision.request): decision for decision in ask.decisions}
    answered = next(iter((*results, *decisions)))
    turn = await _find_part(session, session_id, answered)
    _check_same(turn.frame, status, ask)
    assert turn.begun is not None
    functions, own = turn.frame.function_names, turn.begun.read(AssistantMessage).call_ids
    for call in status.pending_external_calls:
        # A repeated request finds the calls of a later reply.
        if call.tool_call_id in own and call.name in functions and call.tool_call_id not in results:
            name = names.encode(names.CALL, session_id, call.tool_call_id)
            raise InvalidValue(f"No tool output found for function call {name}.", param="input")
    if ask.content and status.request_id == turn.request_id:
        content = await _describe_blobs(session, ask.content)
        await session.steer(
            content,
            at="step",
            input_id=name_input(turn),
            expected_request_id=turn.request_id,
        )
    for call_id, decision in decisions.items():
        with suppress(AlreadyResolved):
            await _decide(session, call_id, decision)
    for call_id, said in results.items():
        # A repeated request finds that it was done.
        with suppress(AlreadyAnswered):
            await _submit(session, call_id, said.content)
    return turn


def name_input(turn: Turn) -> str:
    """Name the message that comes with results. A repeated request sends it once."""
    return f"{turn.request_id}.{turn.begun.seq if turn.begun else ''}"


def _read_call_name(session_id: str, name: str) -> str:
    """Read the name of a call as callers have it. A session's own name is one, too."""
    parts = names.decode(name, names.CALL, names.FUNCTION_CALL)
    if parts is None:
        return name
    if len(parts) != 2 or parts[0] != session_id:
        raise InvalidValue(f"No tool call found for function call output with call_id {name[:200]}.", param="input")
    return parts[1]


def _read_approval_name(session_id: str, name: str) -> str:
    parts = names.decode(name, names.APPROVAL_REQUEST)
    if parts is None or len(parts) != 2 or parts[0] != session_id:
        raise InvalidValue(f"No approval request found with id {name[:200]}.", param="input")
    return parts[1]


async def _find_part(session: Session, session_id: str, tool_call_id: str) -> Turn:
    """Find the reply with a call: the response that answers what its caller sends begins behind it."""
    known = await session.entries(tool_call_id=tool_call_id, limit=1)
    status = await session.status() if not known else None
    request_id = known[0].refs.get("request_id") if known else status.request_id if status else None
    entries = await session.entries(request_id=request_id) if request_id else []
    for entry in reversed(entries):
        if isinstance(entry.body, AssistantMessage) and tool_call_id in entry.body.call_ids:
            name = ResponseName(session_id, str(request_id), entry.seq)
            return await _read_turn(session, name, entries)
    raise InvalidValue(
        f"No tool call found for function call output with call_id {tool_call_id[:100]}.", param="input"
    )


def _check_same(frame: Frame, status: SessionStatus, ask: Ask) -> None:
    """Check that a request which goes on with another one wants nothing else than that one.

    Raises:
        UnsupportedValue: It does.
    """
    known = {
        "model": frame.model,
        "instructions": frame.instructions,
        "text.format": frame.output_schema,
        "tools": list(map(_describe_function, frame.functions)),
        **frame.options,
    }
    wanted = {
        "model": ask.model,
        "instructions": ask.instructions,
        "text.format": ask.output_schema,
        "tools": list(ask.functions) or None,
        **ask.options,
    }
    for name, value in wanted.items():
        if value is not None and value != known.get(name) and not (name == "tool_choice" and value == "auto"):
            if name == "model" and value in (status.model, status.config.get("model")):
                continue
            raise UnsupportedValue(
                f"'{name}' differs from that of the response which waits for these results: its request goes on as "
                "it began",
                param=name,
            )


async def _decide(session: Session, tool_call_id: str, decision: Decision) -> None:
    try:
        if decision.approve:
            await session.approve(tool_call_id, reason=decision.reason)
        else:
            await session.deny(tool_call_id, reason=decision.reason)
    except UnknownApproval as unknown:
        raise InvalidValue(f"No approval request found: {unknown.message}", param="input") from None


async def _submit(session: Session, tool_call_id: str, content: Parts) -> None:
    stored: Any = await session._blobs.make_content(await _describe_blobs(session, content))
    texts = [part["text"] for part in stored if part["type"] == "text"] if not isinstance(stored, str) else [stored]
    if len(texts) == len(stored) or isinstance(stored, str):
        stored = "\n".join(texts)
    try:
        await session.submit_tool_result(tool_call_id, stored)
    except UnknownToolCall as unknown:
        raise InvalidValue(f"No tool call found for function call output: {unknown.message}", param="input") from None


# Follow a response.


async def follow(turn: Turn, events: ResponseEvents) -> AsyncGenerator[Event, None]:
    """Follow a response: yield its events to the end.

    Raises:
        ClewError: The session has refused the message, was interrupted or is gone.
    """
    for made in events.begin():
        yield made
    async with aclosing(_follow_session(turn)) as following:
        async for event in following:
            for made in events.take(event):
                yield made
            if events.is_over:
                return
    raise Closed(f"session {turn.frame.name.session_id!r} has ended before the response")


async def _follow_session(turn: Turn) -> AsyncGenerator[SessionEvent, None]:
    if turn.begun is None:
        request = turn.sent or turn.session.request(turn.request_id)
        async with aclosing(request.events()) as events:
            async for event in events:
                yield event
        return
    run_id = turn.begun.refs.get("run_id")
    async with aclosing(turn.session.follow(turn.begun.seq + 1)) as following:
        async for event in following:
            is_own = turn.request_id == event.request_id or (run_id is not None and run_id == event.run_id)
            if is_own:
                yield event
                if isinstance(event, EntryCommitted) and event.entry.kind == "run":
                    return


# Read a response again.


async def find(caller: Caller, response_id: str) -> tuple[Turn, Sequence[Entry]]:
    """Find a response, and the entries of its request.

    Raises:
        NotStored: There is no such response, or its caller did not want it to be stored.
    """
    try:
        name = ResponseName.read(response_id)
        session = caller.session(name.session_id)
        entries = await _read_request(session, name.request_id)
    except (NotFound, UnknownRequest):
        raise NotStored(f"Response with id '{response_id[:200]}' not found.") from None
    turn = await _read_turn(session, name, entries)
    if not turn.frame.is_stored:
        raise NotStored(f"Response with id '{response_id[:200]}' not found: it was not to be stored.")
    return turn, await _add_shared(session, entries)


async def _add_shared(session: Session, entries: Sequence[Entry]) -> Sequence[Entry]:
    """Add the entries of a run that another request began, and that has served this one, too."""
    ended = entries[-1].body if entries else None
    run_id = entries[-1].refs.get("run_id") if entries else None
    if not isinstance(ended, RunPayload) or ended.usage.shared_with is None or run_id is None:
        return entries
    shared = await session.entries(run_id=run_id)
    return [entry for entry in shared if entry.kind != "run" or entry.seq == entries[-1].seq]


async def _read_turn(session: Session, name: ResponseName, entries: Sequence[Entry]) -> Turn:
    configs = await session.entries(kind="config")
    frame = _read_frame_of(name, entries, configs)
    if name.after_seq is None:
        return Turn(session, frame)
    begun = next((entry for entry in entries if entry.seq == name.after_seq), None)
    if begun is None or not isinstance(begun.body, AssistantMessage):
        raise NotStored(f"Response with id '{name.id}' not found.")
    return Turn(session, replace(frame, created_at=int(read_time(begun.at))), begun)


def _read_frame_of(name: ResponseName, entries: Sequence[Entry], configs: Sequence[Entry]) -> Frame:
    first_reply = next((entry.seq for entry in entries if isinstance(entry.body, AssistantMessage)), None)
    config = next((entry for entry in reversed(configs) if first_reply is None or entry.seq < first_reply), None)
    message = next((entry for entry in entries if isinstance(entry.body, UserMessage)), None)
    frame = read_frame(name, message, config)
    if name.after_seq is None:
        return frame
    # The part before begins behind the newest reply before that had the caller's calls.
    functions = frame.function_names
    earlier = [
        entry.seq
        for entry in entries
        if isinstance(body := entry.body, AssistantMessage)
        and entry.seq < name.after_seq
        and any(call["name"] in functions for call in body.tool_calls or ())
    ]
    before = replace(name, after_seq=earlier[-1] if earlier else None)
    return replace(frame, echo={**frame.echo, "previous": before.id})


def fold(turn: Turn, entries: Sequence[Entry], status: SessionStatus | None) -> ResponseEvents:
    """Make a response from the entries of its request, and the calls that wait now."""
    events = turn.make_events()
    after = turn.begun.seq if turn.begun else -1
    feed = Feed(after + 1)
    for entry in entries:
        if entry.seq > after:
            for event in feed.take_entry(entry):
                for _ in events.take(event):
                    pass
    if status and status.request_id == turn.request_id:
        approvals = [call.tool_call_id for call in status.pending_approvals]
        results = [call.tool_call_id for call in status.pending_external_calls]
        for _ in events.wait_for(approvals=approvals, results=results):
            pass
    return events


def has_ended(entries: Sequence[Entry]) -> bool:
    """Whether a request with these entries has its outcome."""
    return any(entry.kind == "run" for entry in entries)


async def read_response(turn: Turn, entries: Sequence[Entry]) -> dict[str, Any]:
    """Read a response as it is now."""
    status = None
    if not has_ended(entries):
        # A session that has ended waits for nothing.
        with suppress(Closed, NotFound):
            status = await turn.session.status()
    events = fold(turn, entries, status)
    if events.is_over:
        return events.response
    waits = status is not None and turn.request_id in status.queued_request_ids
    return events.describe("queued" if waits else "in_progress")
