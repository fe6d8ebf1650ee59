"""Messages, inputs for the active run, and cancellations."""

from __future__ import annotations

import re
from dataclasses import replace

from pydantic_core import to_json

from clew_workflows.contract import CancelInput, MessageInput, OnBusy, SubmitInput
from clew_workflows.contract.content import Content
from clew_workflows.contract.errors import Busy, Idle, InvalidInput, QueueFull, RequestMismatch, RequestReused
from clew_workflows.contract.outputs import CancelReceipt, InputReceipt
from clew_workflows.session import drafts, runs, summaries
from clew_workflows.session.requests import is_known_request
from clew_workflows.session.state import (
    MAX_WAITING,
    MAX_WAITING_BYTES,
    Decision,
    Ending,
    Input,
    Moment,
    Request,
    State,
    digest_command,
)
from clew_workflows.thread.thread import Thread

MAX_RECEIPTS = 1000
"""Receipts of inputs that a session remembers, to recognize a repetition."""
_MINTED_ID = re.compile(r"input-[0-9]+")
"""The form of the ids that the session gives to inputs without one."""
RUN_SETTINGS = (
    "model", "fallbacks", "model_options", "context_policy", "max_iterations", "timeout_seconds", "output_schema",
    "tools", "external_tools", "replies",
)  # fmt: skip
"""The settings of a message that apply to a whole run, so that a message that joins one must not have them."""


def take_message(state: State, request: Request, on_busy: OnBusy, at: Moment) -> Decision:
    """Accept a message. If the session is busy, `on_busy` says whether it waits, interrupts, joins or is refused.

    Raises:
        Busy: A run is active or a summary is being written, and `on_busy` is `reject`.
        InvalidInput: The message would join the active run, and has settings of its own.
        QueueFull: 64 messages or inputs, or 512 KiB of them, wait already.
    """
    if not state.busy:
        if state.phase == "idle":
            return runs.open_run(state, at, request, is_new=True)
        return Decision(replace(state, queue=(request,)))
    _check_busy(state, request, on_busy)
    if on_busy == "steer" and state.run:
        number = state.counters.inputs + 1
        joining = Input(
            f"input-{number}", "message", request.content, state.settings.config.steering, "follow_up", "message",
            request.request_id, request.message, refs=request.message.refs if request.message else None,
        )  # fmt: skip
        run = replace(state.run, joined=(*state.run.joined, request.request_id))
        return Decision(
            replace(state, run=run, inbox=(*state.inbox, joining), counters=replace(state.counters, inputs=number))
        )
    if on_busy == "interrupt" and state.run:
        interrupted = Ending("cancelled", "interrupted", "drop")
        return runs.stop_run(replace(state, queue=(request, *state.queue)), at, interrupted)
    if on_busy == "interrupt":
        waiting = replace(state, queue=(request, *state.queue))
        return summaries.give_up(waiting, "interrupted").then(runs.open_next_run, at)
    return Decision(replace(state, queue=(*state.queue, request)))


def take_input(state: State, command: SubmitInput, input_id: str | None) -> tuple[Decision, InputReceipt]:
    """Accept an input for the active run. A repetition gets the receipt of the first.

    Raises:
        Idle: No request is active or waits.
        InvalidInput: The id has the form of the session's own, `input-<number>`.
        QueueFull: 64 inputs, or 512 KiB of them, wait already.
        RequestMismatch: `expected_request_id` is not a request of the active run.
        RequestReused: The id names another input that was accepted before.
    """
    if input_id is not None and _MINTED_ID.fullmatch(input_id):
        raise InvalidInput("input_id: ids of the form 'input-<number>' are the session's own")
    known = next((receipt for receipt in state.memory.receipts if receipt.input_id == input_id), None)
    digest = digest_command(command)
    if known:
        if state.memory.is_reused("input_id", known.input_id, digest):
            raise RequestReused(
                f"input_id: the session has accepted another input as {input_id!r}: send this one under its own id"
            )
        return Decision(state), known
    if state.request_id is None:
        raise Idle("nothing is running that could read it: send a message")
    served = (state.request_id, *(state.run.joined if state.run else ()))
    if command.expected_request_id not in (None, *served):
        raise RequestMismatch(f"request {state.request_id!r} is running, not {command.expected_request_id!r}")
    _check_room(_list_waiting_sizes(state), _measure(command.content))
    number = state.counters.inputs + 1
    waiting = Input(
        input_id or f"input-{number}",
        command.kind,
        command.content,
        command.at or state.settings.config.steering,
        command.on_failure,
        command.source or command.kind,
        refs=command.refs,
    )
    receipt = InputReceipt(input_id=waiting.input_id, request_id=state.request_id, position=len(state.inbox) + 1)
    receipts = (*state.memory.receipts, receipt)[-MAX_RECEIPTS:]
    # The session's own ids name one input each.
    memory = state.memory.add_digest("input_id", input_id, digest) if input_id else state.memory
    return Decision(
        replace(
            state,
            inbox=(*state.inbox, waiting),
            counters=replace(state.counters, inputs=number),
            memory=replace(memory, receipts=receipts),
        )
    ), receipt


def cancel_request(state: State, thread: Thread, command: CancelInput, at: Moment) -> tuple[Decision, CancelReceipt]:
    """Cancel the active run, drop a queued request, or give up the summary that is being written.

    Raises:
        Idle: No request is active or waits, and no summary is being written.
        RequestMismatch: Other requests are running or wait, and not the named one.
    """
    if command.request_id is None or not is_known_request(state, thread, command.request_id):
        if command.request_id is not None and state.busy:
            raise RequestMismatch(f"request {state.request_id!r} is running, not {command.request_id!r}")
        if not (state.busy or state.own_summary):
            raise Idle("nothing is running that could be cancelled")
    if state.summaries.writing and command.request_id is None:
        given_up = summaries.give_up(state, command.reason or "cancelled")
        return given_up.then(runs.follow_end, at), CancelReceipt(request_id="", cancelled=True)
    request_id = command.request_id or state.request_id or ""
    run, ending = state.run, Ending("cancelled", "cancelled", command.inputs, command.reason)
    if run and request_id in (run.request.request_id, *run.joined):
        # Of a request that has joined the run, the message may be unread: it is not to be answered later.
        own = [unread for unread in state.inbox if unread.request_id == request_id]
        kept = replace(state, inbox=tuple(unread for unread in state.inbox if unread not in own))
        dropped = Decision(kept, tuple(drafts.draft_unread(unread, "dropped", "cancelled") for unread in own))
        return dropped.then(runs.stop_run, at, ending), CancelReceipt(request_id=request_id, cancelled=True)
    for waiting in state.queue:
        if waiting.request_id == request_id:
            closed = runs.close_unopened(state, at, waiting, ending)
            return closed, CancelReceipt(request_id=request_id, cancelled=True)
    return Decision(state), CancelReceipt(request_id=request_id, cancelled=False)


def _check_busy(state: State, request: Request, on_busy: OnBusy) -> None:
    """Refuse a message that the busy session cannot accept."""
    if on_busy == "reject" and state.request_id is None:
        raise Busy("a summary is being written: try again in a moment, or send it with on_busy 'queue'")
    if on_busy == "reject":
        raise Busy(f"request {state.request_id!r} is running: wait for it, or try again later")
    joins = on_busy == "steer" and state.run is not None
    if joins:
        _check_settings(request.message)
        _check_room(_list_waiting_sizes(state), _measure(request.content, request.metadata))
    else:
        _check_room([_measure_request(waiting) for waiting in state.queue], _measure_request(request))


def _check_settings(message: MessageInput | None) -> None:
    own = [name for name in RUN_SETTINGS if getattr(message, name, None) is not None]
    if own:
        raise InvalidInput(
            f"{', '.join(own)}: a message that joins a run is served with that run's settings; leave them out, or "
            "send it with on_busy 'queue' or 'interrupt'"
        )


def _list_waiting_sizes(state: State) -> list[int]:
    return [_measure(waiting.content, waiting.metadata) for waiting in state.inbox]


def _measure(content: Content, metadata: dict[str, str] | None = None) -> int:
    size = len(content.encode()) if isinstance(content, str) else len(to_json(content))
    return size + (len(to_json(metadata)) if metadata else 0)


def _measure_request(request: Request) -> int:
    """Measure a request in bytes, its schema and its policy included: they may be larger than its content."""
    return (
        len(to_json(request.message))
        if request.message
        else sum(_measure(unread.content) for unread in request.inputs)
    )


def _check_room(waiting: list[int], size: int) -> None:
    if len(waiting) >= MAX_WAITING or sum(waiting) + size > MAX_WAITING_BYTES:
        raise QueueFull(f"{len(waiting)} wait already: at most {MAX_WAITING}, or {MAX_WAITING_BYTES} bytes, can wait")
