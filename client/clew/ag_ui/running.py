"""Serve the inputs of AG-UI clients: what a client wants of a session, and the events that answer it."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Collection, Mapping
from contextlib import aclosing, suppress
from typing import Any, Unpack

from ag_ui.core import (
    PROTOCOL_VERSION,
    BaseEvent,
    Interrupt,
    ResumeEntry,
    RunAgentInput,
    RunErrorEvent,
    RunFinishedCancelledOutcome,
    RunFinishedEvent,
    RunFinishedInterruptOutcome,
    RunFinishedSuccessOutcome,
    RunStartedEvent,
    TokenUsage,
    ToolMessage,
)
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from clew.ag_ui.ag_ui_parts import BlobUrl, read_content
from clew.ag_ui.mapping import RunEvents, convert_thread, get_new_message, list_new_results
from clew.session import Request, Session
from clew.session.events import Change, EntryCommitted, Waits
from clew.session.keywords import MessageOptions
from clew_workflows.contract.content import Content
from clew_workflows.contract.errors import AlreadyAnswered, AlreadyResolved, ClewError, InvalidInput
from clew_workflows.contract.outcomes import Usage
from clew_workflows.contract.outputs import PendingCall
from clew_workflows.contract.payloads import RunPayload


class Approval(BaseModel):
    """A person's answer to the interrupt of a tool call, as the payload of a resume entry.

    Attributes:
        approved: Whether the tool may run.
        edited_args: The arguments that replace the model's.
        reason: The reason. The model reads that of a denial.
    """

    model_config = ConfigDict(extra="ignore")

    approved: bool
    edited_args: dict[str, Any] | None = Field(default=None, alias="editedArgs")
    reason: str | None = None


_APPROVAL_SCHEMA: Mapping[str, Any] = {
    "type": "object",
    "properties": {
        "approved": {"type": "boolean"},
        "editedArgs": {"type": "object", "description": "Arguments that replace the model's."},
        "reason": {"type": "string", "description": "The model reads the reason of a denial."},
    },
    "required": ["approved"],
}
"""The JSON Schema of `Approval`, for clients that make a form of it."""


async def run_agent(
    session: Session,
    run: RunAgentInput,
    *,
    may_approve: bool = True,
    frontend_tools: Collection[str] = (),
    by: str | None = None,
    blob_url: BlobUrl | None = None,
    **options: Unpack[MessageOptions],
) -> AsyncGenerator[BaseEvent, None]:
    """Serve one input of an AG-UI client: yield the events of a run, from `RUN_STARTED` to its end.

    The session has the conversation. Of the input's messages only the last one is sent, if it is a user's, with its
    id as `request_id`: a repeated input is served once. The others say which messages the client has.

    - An input whose last message is a user's is answered by the events of that request.
    - An input with `resume`, or with results of `frontend_tools`, decides or answers the calls that wait. The events
      of their request follow.
    - Any other input connects: `MESSAGES_SNAPSHOT` has the thread, and the events of the active request follow.

    A run ends with the outcome of the request; with an interrupt for each call that waits for approval; or, once
    nothing else runs, with the calls of `frontend_tools` in `pendingToolCallIds`. Errors end it with `RUN_ERROR`,
    whose code is a word of the contract. A client that leaves does not cancel the request: that is `Session.cancel`.

    What a client gets:

    - a reply: `TEXT_MESSAGE_START`, `…_CONTENT`, `…_END`; the id is that of the model call. Thinking:
      `REASONING_MESSAGE_…`.
    - a tool call and its result: `TOOL_CALL_START`, `…_ARGS` in one piece, `…_END`, `TOOL_CALL_RESULT`; the metadata
      `is_error` marks a failure. A call that the provider ran has `clew.run_by` in its metadata.
    - the sources of a reply: `clew.citations` in the metadata of `TEXT_MESSAGE_END`. Parts of a reply that are no
      texts: a line for each, and `clew.parts` in the metadata.
    - another client's message, a steer: `TEXT_MESSAGE_…` of the role `user`, or with parts `MESSAGES_SNAPSHOT`.
    - a reply that starts over: `MESSAGES_SNAPSHOT` without its text.
    - progress, a retry, a call that waits in a subagent: `CUSTOM` with the names `clew.tool_progress`,
      `clew.retrying` and `clew.subagent_waiting`; the value is the session's event.
    - the outcome: `RUN_FINISHED` or `RUN_ERROR`, both with the usage.

    Content of the client's messages: `image` and `audio` with a `data` source are stored as images and recordings,
    `video` and `document` as files; an `image` may have an `https` URL; a `file` source of the provider `clew` names
    a blob of the session. Other URLs and files are refused with `unsupported_content`. The client gets no bytes: a
    part is a `file` source whose value is the digest, or with `blob_url` a `url` source.

    An example with FastAPI is `examples/web/service.py`.

    Args:
        session: The session, which must be open. Whether the client may use it is checked before.
        run: The input.
        may_approve: Whether the client decides about calls that wait for approval. Otherwise the run waits until
            somebody else has decided.
        frontend_tools: Names of the external tools whose calls the client answers. `run.tools` is not used: a session
            has the tools of its configuration.
        by: Who uses the client: a name or an id. The thread has it beside decisions and results.
        blob_url: Makes the address at which the client reads a blob, in its service; None: parts name blobs alone.
        options: The options of `Session.message`.
    """
    yield RunStartedEvent(
        thread_id=run.thread_id, run_id=run.run_id, parent_run_id=run.parent_run_id, protocol_version=PROTOCOL_VERSION
    )
    events = RunEvents(run.messages, blob_url)
    try:
        request = await _act(session, run, may_approve, frontend_tools, by=by, options=options)
        if request is None:
            # Before the thread: a request that ends meanwhile is followed to its end.
            active = (await session.status()).request_id
            for made in events.replace(await convert_thread(session.read(kind="ai_message"), blob_url)):
                yield made
            request = session.request(active) if active else None
        if request is not None:
            async with aclosing(events.turn.fold(request._follow(is_fresh=get_new_message(run) is None))) as changes:
                async for change in changes:
                    for made in events.take(change):
                        yield made
                    if ending := _find_ending(run, change, frontend_tools, may_approve=may_approve):
                        for made in (*events.close(), ending):
                            yield made
                        return
        yield _finish(run, RunFinishedSuccessOutcome())
    except ClewError as error:
        for made in (*events.close(), RunErrorEvent(message=str(error), code=getattr(error, "type", None))):
            yield made


async def _act(
    session: Session,
    run: RunAgentInput,
    may_approve: bool,
    frontend_tools: Collection[str],
    *,
    by: str | None,
    options: MessageOptions,
) -> Request | None:
    """Do what an input wants. Returns the request whose events answer it; None: the client connects."""
    decisions = [(entry.interrupt_id, _read_decision(entry)) for entry in run.resume or ()]
    if decisions and not may_approve:
        raise InvalidInput("this client must not decide about tool calls")
    for tool_call_id, decision in decisions:
        # A repeated input finds that it was done.
        with suppress(AlreadyResolved):
            await _decide(session, tool_call_id, decision, by)
    answered = [tool_call_id for tool_call_id, _ in decisions]
    if frontend_tools and (results := list_new_results(run)):
        names = {call.tool_call_id: call.name for call in (await session.status()).pending_external_calls}
        for result in results:
            if names.get(result.tool_call_id) in frontend_tools:
                with suppress(AlreadyAnswered):
                    await session.submit_tool_result(
                        result.tool_call_id,
                        await _store_result(session, result),
                        is_error=result.error is not None,
                        by=by,
                    )
        answered += [result.tool_call_id for result in results]
    if message := get_new_message(run):
        named: MessageOptions = {**options, "request_id": message.id}
        return await session.message(read_content(message.content), **named)
    for tool_call_id in answered[-1:]:
        async for entry in session.read(tool_call_id=tool_call_id):
            request_id = entry.refs.get("request_id")
            return session.request(request_id) if request_id else None
    return None


async def _store_result(session: Session, result: ToolMessage) -> Content:
    """Read the result that a client has sent, and store its bytes."""
    return await session._blobs.make_content(read_content(result.content))


def _read_decision(entry: ResumeEntry) -> Approval:
    """Read the answer to an interrupt: an object, or whether the tool may run.

    Raises:
        InvalidInput: The payload is something else.
    """
    if entry.status == "cancelled":
        return Approval(approved=False, reason="the person did not decide")
    payload = {"approved": entry.payload} if isinstance(entry.payload, bool) else entry.payload
    try:
        return Approval.model_validate(payload, strict=True)
    except ValidationError as error:
        raise InvalidInput(
            f"the payload for interrupt {entry.interrupt_id!r} is not {{approved: boolean, editedArgs?: object, "
            f"reason?: string}}: {error.errors()[0]['msg']}"
        ) from None


async def _decide(session: Session, tool_call_id: str, decision: Approval, by: str | None) -> None:
    if decision.approved:
        await session.approve(tool_call_id, arguments=decision.edited_args, reason=decision.reason, by=by)
    else:
        await session.deny(tool_call_id, reason=decision.reason, by=by)


def _find_ending(
    run: RunAgentInput, change: Change, own_tools: Collection[str], *, may_approve: bool
) -> BaseEvent | None:
    """Find the event that ends a run: its request has an outcome, or waits for the client. None: it goes on."""
    match change:
        case EntryCommitted(body=RunPayload() as outcome):
            return _make_ending(run, outcome)
        case Waits(approvals=[_, *_] as approvals) if may_approve:
            return _finish(run, RunFinishedInterruptOutcome(interrupts=[*map(_make_interrupt, approvals)]))
        case Waits(results=results, others_run=False):
            if own := [call.tool_call_id for call in results if call.name in own_tools]:
                return _finish(run, RunFinishedSuccessOutcome(pending_tool_call_ids=own))
    return None


def _make_ending(run: RunAgentInput, outcome: RunPayload) -> BaseEvent:
    """Make the event that reports the outcome of the request."""
    usage = [_convert_usage(outcome.usage)]
    match outcome.status:
        case "completed":
            return _finish(run, RunFinishedSuccessOutcome(), usage)
        case "cancelled":
            return _finish(run, RunFinishedCancelledOutcome(), usage)
    error = outcome.error
    message = error.message if error else outcome.termination_reason
    return RunErrorEvent(message=message, code=error.type if error else outcome.termination_reason, usage=usage)


def _finish(
    run: RunAgentInput,
    outcome: RunFinishedSuccessOutcome | RunFinishedInterruptOutcome | RunFinishedCancelledOutcome,
    usage: list[TokenUsage] | None = None,
) -> BaseEvent:
    return RunFinishedEvent(thread_id=run.thread_id, run_id=run.run_id, outcome=outcome, usage=usage)


def _make_interrupt(call: PendingCall) -> Interrupt:
    return Interrupt(
        id=call.tool_call_id,
        reason="tool_call",
        message=f"May {call.name} run?",
        tool_call_id=call.tool_call_id,
        response_schema=dict(_APPROVAL_SCHEMA),
    )


def _convert_usage(usage: Usage) -> TokenUsage:
    return TokenUsage(
        input_tokens=usage.input_tokens,
        output_tokens=usage.output_tokens,
        total_tokens=usage.input_tokens + usage.output_tokens,
        cached_input_tokens=usage.cached_input_tokens,
        cache_write_input_tokens=usage.written_input_tokens,
    )
