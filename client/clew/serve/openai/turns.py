"""Carry out what a request asks for in a session: begin a response, go on with one, follow it, and read it again.

No process keeps anything of a response: its id names the session and the request, and the thread has the rest.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing, suppress
from dataclasses import dataclass, replace
from http import HTTPStatus
from typing import Any

from clew.serve.access import UNRESOLVED, Caller
from clew.serve.error_words import Reader
from clew.serve.openai import ids
from clew.serve.openai.asks import Ask, Decision, make_snapshot, split_opening
from clew.serve.openai.content_parts import Parts
from clew.serve.openai.events import Event, ResponseEvents
from clew.serve.openai.frames import BODY, KEY, PREVIOUS, Frame, follow_settings, read_frame, read_time
from clew.serve.openai.ids import ResponseName
from clew.serve.openai.refusals import InvalidValue, MissingParameter, ModelNotFound, NotStored, UnsupportedValue
from clew.serve.problems import TOO_LARGE, find_status
from clew.session import Request, Session
from clew.session.events import read_live_status
from clew.session.events.feed import Feed
from clew.session.session_blobs import check_parts
from clew.session.transport import make_input
from clew_workflows.contract import GET_BLOB_WORKFLOW, GetBlobInput
from clew_workflows.contract.errors import (
    AlreadyAnswered,
    AlreadyResolved,
    Busy,
    ClewError,
    Closed,
    NotFound,
    RequestReused,
    UnknownApproval,
    UnknownRequest,
    UnknownToolCall,
)
from clew_workflows.contract.messages import ToolCall
from clew_workflows.contract.names import AGENT_NAME, MODEL_NAME
from clew_workflows.contract.outputs import BlobPage, LiveStatus, SessionStatus
from clew_workflows.contract.payloads import ApprovalPayload, AssistantMessage, RunPayload, ToolMessage, UserMessage
from clew_workflows.thread.entries import Entry

IDLE_SECONDS = 3600
"""A session that this API has made hibernates after this many seconds without work. The next request resumes it."""
RESOLVE_SECONDS = 5.0
"""The longest wait for a worker that resolves the model of a request. A response goes on without its answer."""
KEY_REUSED = "the Idempotency-Key was used for another request: send this one with a key of its own"
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
        functions: The names of the caller's functions when that reply was written; None: those of the frame.
    """

    session: Session
    frame: Frame
    begun: Entry | None = None
    sent: Request | None = None
    functions: frozenset[str] | None = None

    @property
    def request_id(self) -> str:
        """The request."""
        return self.frame.name.request_id

    def make_events(self, reader: Reader, *, may_approve: bool = True) -> ResponseEvents:
        """Make what makes the events of the response for its reader."""
        begun = self.begun.read(AssistantMessage) if self.begun else None
        functions = self.frame.function_names if self.functions is None else self.functions
        return ResponseEvents(self.frame, begun, functions=functions, reader=reader, may_approve=may_approve)


# Begin a response.


@dataclass(frozen=True)
class Place:
    """Where a response belongs.

    Attributes:
        session_id: The session.
        previous: The response that it follows; None: the newest.
        creates: A session that does not exist is made.
        is_named: The request names the response by its id. Otherwise it has items of it.
        is_guessed: The request names nothing of it: its items do. It may have all of the conversation.
    """

    session_id: str
    previous: ResponseName | None = None
    creates: bool = False
    is_named: bool = False
    is_guessed: bool = False


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
    if (ask.agent and not AGENT_NAME.matches(ask.agent)) or (
        ask.provider_model and not MODEL_NAME.matches(ask.provider_model)
    ):
        raise await _make_model_not_found(caller, str(ask.model))
    has_agent = place is not None or ask.agent is not None
    wish = _Wish(caller, ask, key, caller.check_message(ask.make_message_options(), has_agent=has_agent))
    if place is None:
        return await _begin_session(wish, ids.make_session_id(key))
    try:
        session, status = await resume(caller, place.session_id)
    except NotFound as error:
        if not (place.creates or place.is_guessed):
            param = "previous_response_id" if place.is_named else "conversation"
            raise NotStored(str(error), param=param) from None
        new_id = place.session_id if place.creates else ids.make_session_id(key)
        return await _begin_session(wish, new_id)
    if ask.results or ask.decisions:
        return await _go_on(wish, session, status, place.session_id)
    if not ask.content:
        raise MissingParameter("there is no new message: the last one is the assistant's", param="input")
    if key and await _knows(session, status, ids.make_request_id(key)):
        # The request is a repetition. The session may wait for what follows it.
        _, own = _find_changes(status, ask)
        return await _send_message(wish, session, place.session_id, own, shown=_find_model(status, ask))
    if place.previous is None:
        _refuse_waiting(place.session_id, status)
        return await _send(wish, session, status, place.session_id)
    return await _follow_up(wish, session, status, place.previous, is_named=place.is_named)


async def find_place(caller: Caller, ask: Ask) -> Place | None:
    """Find the session that the items of an input come from; None: they come from none of this tenant."""
    named = ask.find_place()
    parts = ids.decode(named, *ids.THREAD_KINDS) if named else None
    if not parts or len(parts) < 2:
        return None
    session_id, within = parts[0], parts[1]
    if ask.results or ask.decisions:
        # The session knows what its calls wait for.
        return Place(session_id, is_guessed=True)
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
    return Place(session_id, ResponseName(session_id, request_id), is_guessed=True) if request_id else None


async def _begin_session(wish: _Wish, session_id: str) -> Turn:
    caller, ask = wish.caller, wish.ask
    if not ask.model:
        raise MissingParameter("Missing required parameter: 'model'.", param="model")
    if ask.decisions:
        raise InvalidValue(f"No approval request found with id {ask.decisions[0].request[:200]}.", param="input")
    for said in ask.spoken:
        if said.is_reference:
            raise NotStored(f"Item with id '{str(said.item)[:200]}' not found.", param=said.param)
    opening = split_opening(ask)
    snapshot, replies = make_snapshot(opening.history), make_snapshot(opening.replies, calls="r")
    # Before there is a session that would have to be deleted.
    for content in (opening.content, *(message["content"] for message in (*snapshot, *replies))):
        check_parts(content)
    metadata = {name: value for name in ("user",) if (value := ask.echo.get(name))}
    # Without a key nobody else has the id.
    is_new = wish.key is None or not await _exists(caller.session(session_id))
    session = await caller.open(
        session_id,
        agent=ask.agent,
        model=ask.provider_model,
        external_tools=list(ask.functions) or None,
        metadata=metadata or None,
        idle_timeout_seconds=IDLE_SECONDS,
    )
    own = {"replies": replies} if replies else {}
    try:
        if snapshot:
            await session.replace_context(snapshot, op_id="history")
        turn = await _send_message(wish, session, session_id, own, content=opening.content)
        await _check_model(caller, turn)
    except ClewError as error:
        if is_new and find_status(error) in (HTTPStatus.BAD_REQUEST, HTTPStatus.NOT_FOUND, TOO_LARGE):
            await caller.clew.delete(session.id)
        raise
    return turn


async def _exists(session: Session) -> bool:
    with suppress(NotFound):
        await session.status()
        return True
    return False


async def _make_model_not_found(caller: Caller, model: str) -> ModelNotFound:
    """Make the error for a model that no worker has. An operator reads which providers there are."""
    message = f"The model '{model[:200]}' does not exist or you do not have access to it."
    if caller.reader.is_operator and ":" not in model:
        message += " " + await caller.clew.explain_model(f"Where it is no agent, {MODEL_NAME.words}.")
    return ModelNotFound(message, param="model")


async def _check_model(caller: Caller, turn: Turn) -> None:
    """Wait until a worker has resolved the agent or the model of a request that has just been sent.

    Raises:
        ModelNotFound: No worker has it.
    """
    assert turn.sent is not None
    try:
        async with asyncio.timeout(RESOLVE_SECONDS), aclosing(turn.sent.events()) as following:
            # The first event comes when the message has entered the thread.
            async for _ in following:
                break
    except TimeoutError:
        return
    # A request whose configuration has a problem ends at once.
    for entry in await turn.session.entries(request_id=turn.request_id, kind="run"):
        error = entry.read(RunPayload).error
        if error is not None and error.type in UNRESOLVED:
            raise await _make_model_not_found(caller, turn.frame.model)


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
        options: The options of the message.
    """

    caller: Caller
    ask: Ask
    key: str | None
    options: dict[str, Any]


async def _send(wish: _Wish, session: Session, status: SessionStatus, session_id: str) -> Turn:
    """Send a message to a session, after the changes of its configuration that the request needs."""
    ask = wish.ask
    changes, own = _find_changes(status, ask)
    wish.caller.check_config({**changes, "model": changes.get("model") or own.get("model")})
    if changes:
        if status.status not in ("idle", "preparing"):
            raise Busy(f"session {session_id!r} serves another request")
        await session.configure(**changes)
    turn = await _send_message(wish, session, session_id, own, shown=_find_model(status, ask))
    if changes or "model" in own:
        await _check_model(wish.caller, turn)
    return turn


def _find_changes(status: SessionStatus, ask: Ask) -> tuple[dict[str, Any], dict[str, Any]]:
    """Find the changes of a session's configuration that a request needs, and the settings of the request alone."""
    config = status.config
    changes: dict[str, Any] = {}
    own: dict[str, Any] = {}
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
        # A model that the session has no longer, or not yet, is the request's own.
        own["model"] = ask.provider_model
    elif ask.model is None and not config.get("agent") and config.get("model") == NO_MODEL:
        raise MissingParameter("Missing required parameter: 'model'.", param="model")
    if list(ask.functions) != list(map(_describe_function, config.get("external_tools") or ())):
        own["external_tools"] = list(ask.functions)
    return changes, own


def _find_model(status: SessionStatus, ask: Ask) -> str:
    return ask.model or (status.agent.name if status.agent else None) or status.config.get("agent") or status.model


def _describe_function(tool: Mapping[str, Any]) -> dict[str, Any]:
    return {name: tool.get(name) or "" for name in ("name", "description")} | {"parameters": tool["parameters"]}


async def _send_message(
    wish: _Wish,
    session: Session,
    session_id: str,
    own: Mapping[str, Any],
    *,
    content: Parts | None = None,
    shown: str | None = None,
) -> Turn:
    ask, request_id = wish.ask, ids.make_request_id(wish.key)
    content = await _describe_blobs(session, ask.content if content is None else content)
    try:
        sent = await session.message(content, request_id=request_id, **wish.options, **own)
    except RequestReused as error:
        raise (error if wish.key is None else RequestReused(KEY_REUSED)) from None
    frame = Frame(ResponseName(session_id, request_id), int(time.time()), shown or ask.model or "", **ask.repeated)
    return Turn(session, frame, sent=sent)


async def _describe_blobs(session: Session, content: Parts) -> Parts:
    """Describe the blobs that a content names by their digests."""
    described: Parts = []
    for part in content:
        if isinstance(part, Mapping) and "digest" in part:
            blob = (await _read_blob_page(session, part["digest"])).blob
            described.append({name: value for name, value in part.items() if name != "digest"} | {"blob": dict(blob)})
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
    session_id = ids.make_session_id(wish.key)
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
            name = ids.encode(ids.CALL, session_id, call.tool_call_id)
            raise InvalidValue(f"No tool output found for function call {name}.", param="input")
    for approval in status.pending_approvals:
        name = ids.encode(ids.APPROVAL_REQUEST, session_id, approval.tool_call_id)
        raise InvalidValue(f"No decision found for approval request {name}.", param="input")


async def _go_on(wish: _Wish, session: Session, status: SessionStatus, session_id: str) -> Turn:
    """Submit results and decisions, and go on with the request that waits for them, under this one's settings."""
    ask = wish.ask
    results = {_read_call_name(session_id, str(said.call_id)): said for said in ask.results}
    decisions = {_read_approval_name(session_id, decision.request): decision for decision in ask.decisions}
    answered = next(iter((*results, *decisions)))
    turn, part = await _find_part(session, session_id, answered)
    _check_repetition(turn.frame, ask, wish.key)
    assert turn.begun is not None
    settings = _find_settings(wish, part.frame, status)
    functions, own = part.frame.function_names, turn.begun.read(AssistantMessage).call_ids
    for call in status.pending_external_calls:
        # A repeated request finds the calls of a later reply.
        if call.tool_call_id in own and call.name in functions and call.tool_call_id not in results:
            name = ids.encode(ids.CALL, session_id, call.tool_call_id)
            raise InvalidValue(f"No tool output found for function call {name}.", param="input")
    if ask.content and status.request_id == turn.request_id:
        content = await _describe_blobs(session, ask.content)
        await session.steer(content, at="step", input_id=name_input(turn), expected_request_id=turn.request_id)
    # The run goes on behind the last one, which brings the settings.
    last = [*decisions, *results][-1]
    for call_id, decision in decisions.items():
        with suppress(AlreadyResolved):
            await _decide(session, call_id, decision, settings if call_id == last else None)
    is_new = True
    for call_id, said in results.items():
        # A repeated request finds that it was done.
        try:
            await _submit(session, call_id, said.content, settings if call_id == last else None)
        except AlreadyAnswered:
            is_new = call_id != last
    if settings is None or not is_new:
        return turn
    echo = {**ask.echo, PREVIOUS: turn.frame.echo.get(PREVIOUS)}
    frame = replace(turn.frame, **{**ask.repeated, "model": _find_model(status, ask), "echo": echo})
    return replace(turn, frame=frame, functions=frozenset(functions))


def _find_settings(wish: _Wish, frame: Frame, status: SessionStatus) -> dict[str, Any] | None:
    """Find the settings with which the request goes on (`RunSettings`); None: they are those of the part before.

    Raises:
        Forbidden: The key does not permit them.
        UnsupportedValue: The session has no agent, and the request names one.
    """
    ask = wish.ask
    changes, own = _find_changes(status, ask)
    wish.caller.check_config({"agent": changes.get("agent"), "model": own.get("model")}, changes=True)
    before = {name: getattr(frame, name) for name in ask.repeated}
    before |= {"functions": tuple(map(_describe_function, frame.functions)), "echo": {**frame.echo, PREVIOUS: None}}
    after = {**ask.repeated, "echo": {**ask.echo, PREVIOUS: None}}
    if before == after and ask.model in (None, frame.model, status.model):
        return None
    return {**wish.options, **own, **({"agent": changes["agent"]} if "agent" in changes else {})}


def _check_repetition(frame: Frame, ask: Ask, key: str | None) -> None:
    """Check that a request which repeats the key of the one that has begun a response is the same.

    Raises:
        RequestReused: It is another one.
    """
    echo = frame.echo
    if key is not None and echo.get(KEY) == ask.echo.get(KEY) and echo.get(BODY) != ask.echo.get(BODY):
        raise RequestReused(KEY_REUSED)


def name_input(turn: Turn) -> str:
    """Name the message that comes with results. A repeated request sends it once."""
    return f"{turn.request_id}.{turn.begun.seq if turn.begun else ''}"


def _read_call_name(session_id: str, name: str) -> str:
    """Read the name of a call as callers have it. A session's own name is one, too."""
    parts = ids.decode(name, ids.CALL, ids.FUNCTION_CALL)
    if parts is None:
        return name
    if len(parts) != 2 or parts[0] != session_id:
        raise InvalidValue(f"No tool call found for function call output with call_id {name[:200]}.", param="input")
    return parts[1]


def _read_approval_name(session_id: str, name: str) -> str:
    parts = ids.decode(name, ids.APPROVAL_REQUEST)
    if parts is None or len(parts) != 2 or parts[0] != session_id:
        raise InvalidValue(f"No approval request found with id {name[:200]}.", param="input")
    return parts[1]


async def _find_part(session: Session, session_id: str, tool_call_id: str) -> tuple[Turn, Turn]:
    """Find the reply with a call: the response that answers what its caller sends begins behind it.

    Returns:
        That response, and the one that ended with the reply.
    """
    known = await session.entries(tool_call_id=tool_call_id, limit=1)
    status = await session.status() if not known else None
    request_id = known[0].refs.get("request_id") if known else status.request_id if status else None
    entries = await session.entries(request_id=request_id) if request_id else []
    for entry in reversed(entries):
        if isinstance(entry.body, AssistantMessage) and tool_call_id in entry.body.call_ids:
            name = ResponseName(session_id, str(request_id), entry.seq)
            turn = await _read_turn(session, name, entries)
            before = ResponseName.read(str(turn.frame.echo[PREVIOUS]))
            return turn, await _read_turn(session, before, entries)
    raise InvalidValue(
        f"No tool call found for function call output with call_id {tool_call_id[:100]}.", param="input"
    )


async def _decide(
    session: Session, tool_call_id: str, decision: Decision, settings: Mapping[str, Any] | None
) -> None:
    try:
        if decision.approve:
            await session.approve(tool_call_id, reason=decision.reason, settings=settings)
        else:
            await session.deny(tool_call_id, reason=decision.reason, settings=settings)
    except UnknownApproval as unknown:
        raise InvalidValue(f"No approval request found: {unknown.message}", param="input") from None


async def _submit(session: Session, tool_call_id: str, content: Parts, settings: Mapping[str, Any] | None) -> None:
    stored: Any = await session._blobs.make_content(await _describe_blobs(session, content))
    texts = [part["text"] for part in stored if part["type"] == "text"] if not isinstance(stored, str) else [stored]
    if len(texts) == len(stored) or isinstance(stored, str):
        stored = "\n".join(texts)
    try:
        await session.submit_tool_result(tool_call_id, stored, settings=settings)
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
    request = turn.sent or turn.session.request(turn.request_id)
    async with aclosing(request._follow(behind=turn.begun, is_fresh=turn.sent is None)) as following:
        async for event in following:
            for made in events.take(event):
                yield made
            if events.is_over:
                return
    raise Closed(f"session {turn.frame.name.session_id!r} has ended before the response")


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
    before = _read_frame_of(ResponseName.read(str(frame.echo[PREVIOUS])), entries, configs)
    frame = replace(frame, created_at=int(read_time(begun.at)))
    return Turn(session, frame, begun, functions=before.function_names)


def _read_frame_of(name: ResponseName, entries: Sequence[Entry], configs: Sequence[Entry]) -> Frame:
    """Read the frame of a response: that of its request, with what the results and decisions have set since."""
    replies = [entry for entry in entries if isinstance(entry.body, AssistantMessage) and entry.recipe]
    first_reply = replies[0].seq if replies else None
    message = next((entry for entry in entries if isinstance(entry.body, UserMessage)), None)
    whole = replace(name, after_seq=None)
    frame = read_frame(whole, message, _find_config(configs, first_reply))
    part = whole
    for reply in replies:
        if name.after_seq is None or reply.seq > name.after_seq:
            break
        functions = frame.function_names
        calls = reply.read(AssistantMessage).tool_calls or ()
        answers = [entry for entry in entries if entry.seq > reply.seq and _answers(entry, calls)]
        set_by = next((entry for entry in reversed(answers) if _get_settings(entry)), None)
        if any(call["name"] in functions for call in calls) or set_by or reply.seq == name.after_seq:
            # The part before ends with this reply.
            previous, part = part, replace(name, after_seq=reply.seq)
            following = next((other.seq for other in replies if other.seq > reply.seq), None)
            if set_by:
                frame = follow_settings(frame, _get_settings(set_by), _find_config(configs, following))
            frame = replace(frame, name=part, echo={**frame.echo, PREVIOUS: previous.id})
    return frame


def _get_settings(answer: Entry) -> Mapping[str, Any]:
    """Return the settings that came with a result or a decision; empty: none."""
    body = answer.body
    return (body.settings or {}) if isinstance(body, ToolMessage | ApprovalPayload) else {}


def _find_config(configs: Sequence[Entry], before_seq: int | None) -> Entry | None:
    """Find the configuration in force before an entry; None: the newest."""
    return next((entry for entry in reversed(configs) if before_seq is None or entry.seq < before_seq), None)


def _answers(entry: Entry, calls: Sequence[ToolCall]) -> bool:
    """Whether an entry is the result of one of a reply's calls, or a decision about it."""
    ids = [call["id"] for call in calls]
    return isinstance(body := entry.body, ToolMessage | ApprovalPayload) and body.tool_call_id in ids


def fold(turn: Turn, entries: Sequence[Entry], status: LiveStatus | None, reader: Reader) -> ResponseEvents:
    """Make a response from the entries of its request, and the session's status now."""
    events = turn.make_events(reader)
    after = turn.begun.seq if turn.begun else -1
    feed = Feed(after + 1)
    for entry in entries:
        if entry.seq > after:
            for event in feed.take_entry(entry):
                list(events.take(event))
    if status and status.request_id == turn.request_id:
        list(events.take(status))
    return events


def has_ended(entries: Sequence[Entry]) -> bool:
    """Whether a request with these entries has its outcome."""
    return any(entry.kind == "run" for entry in entries)


async def read_response(turn: Turn, entries: Sequence[Entry], reader: Reader) -> dict[str, Any]:
    """Read a response as it is now."""
    live = None if has_ended(entries) else await read_live_status(turn.session._handle)
    events = fold(turn, entries, live, reader)
    if events.is_over:
        return events.response
    waits = live is not None and turn.request_id in (await turn.session.status()).queued_request_ids
    return events.describe("queued" if waits else "in_progress")
