"""What people and programs ask of a session: messages, inputs for the run in progress, cancellations, approvals."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import jsonschema_rs

from clew.contract import (
    ApprovalInput,
    CancelInput,
    CancelReceipt,
    MessageInput,
    OnBusy,
    SteerInput,
)
from clew.entries import Draft
from clew.errors import (
    AlreadyResolved,
    Busy,
    Idle,
    InvalidInput,
    QueueFull,
    RequestMismatch,
    UnknownApproval,
)
from clew.policy import ContextPolicy, resolve
from clew.projection import projector_named
from clew.thread import Thread
from workflows import facts, runs
from workflows.decision import Decision
from workflows.effects import ToolAnswered
from workflows.state import (
    MAX_WAITING,
    MAX_WAITING_BYTES,
    AskedCall,
    Input,
    Moment,
    Receipt,
    Request,
    Run,
    State,
)

DEFAULT_OUTPUT_TOKENS = 4096
"""For a reply under a policy that reserves nothing; some providers want a number."""
REMEMBERED = 1000
"""Inputs whose ids are known again."""


def request_of(state: State, message: MessageInput, request_id: str) -> Request:
    """The request that a message makes of the session's settings and its own.

    Raises:
        InvalidInput, InvalidTokenBudget: its policy cannot be used.
    """
    config, policy = state.config, message.context_policy
    if message.model and message.model != config.model and config.context_policy is None:
        policy = resolve(request=policy, agent=ContextPolicy.for_model(message.model))
    in_force = state.policy.overlaid(policy).checked()
    projector_named(in_force.projector)
    options = config.model_options.overlaid(message.model_options)
    if options.max_output_tokens is None:
        reserved = in_force.reserve_output_tokens or DEFAULT_OUTPUT_TOKENS
        options = options.model_copy(update={"max_output_tokens": reserved})
    return Request(
        request_id,
        message.content,
        state.context_ref,
        message.model or config.model,
        options,
        policy,
        message.max_iterations or config.max_iterations,
        message.timeout_seconds or config.request_timeout_seconds,
        message.metadata,
        message.output_schema,
    )


def admit(state: State, request: Request, on_busy: OnBusy) -> None:
    """Refuse a message that a busy session does not take.

    Raises:
        Busy, QueueFull: as its words say.
    """
    if not state.busy:
        return
    if on_busy == "reject":
        raise Busy(f"request {state.request_id!r} is running: wait for it, or try again later")
    waiting = [waiting.content for waiting in state.queue]
    _check_room([given.content for given in state.inbox] if on_busy == "steer" else waiting, request.content)


def accept(state: State, request: Request, on_busy: OnBusy, at: Moment) -> Decision:
    """A message was accepted: it opens a run, waits for its turn, takes it, or joins the run in progress."""
    if not state.busy:
        return runs.next_run(replace(state, queue=(request,)), at)
    if on_busy == "steer" and state.run:
        number = state.inputs + 1
        joining = Input(
            f"input-{number}", "message", request.content, state.config.steering, "follow_up", "message",
            request.request_id,
        )  # fmt: skip
        run = replace(state.run, joined=(*state.run.joined, request.request_id))
        return Decision(replace(state, run=run, inbox=(*state.inbox, joining), inputs=number))
    if on_busy == "interrupt" and state.run:
        return runs.finish(state, "cancelled", "interrupted", at, inputs="drop", first=(request,))
    if on_busy == "interrupt":
        return Decision(replace(state, queue=(request, *state.queue)))
    return Decision(replace(state, queue=(*state.queue, request)))


def known_receipt(state: State, input_id: str | None) -> Receipt | None:
    """What an input of that id was told before."""
    return next((receipt for receipt in state.receipts if receipt.input_id == input_id), None)


def check_input(state: State, given: SteerInput) -> None:
    """Refuse an input that no run would read.

    Raises:
        Idle, QueueFull, RequestMismatch: as their words say.
    """
    if state.request_id is None:
        raise Idle("nothing is running that could read it: send a message")
    if given.expected_request_id not in (None, *state.unfinished[:1]):
        raise RequestMismatch(f"request {state.request_id!r} is running, not {given.expected_request_id!r}")
    _check_room([waiting.content for waiting in state.inbox], given.content)


def submit(state: State, kind: str, given: SteerInput, input_id: str | None) -> tuple[Decision, Receipt]:
    """An input waits for its place in the run."""
    number = state.inputs + 1
    waiting = Input(
        input_id or f"input-{number}",
        kind,
        given.content,
        given.at or state.config.steering,
        given.on_failure,
        given.source or kind,
    )
    receipt = Receipt(waiting.input_id, state.request_id or "", len(state.inbox) + 1)
    receipts = (*state.receipts, receipt)[-REMEMBERED:]
    return Decision(replace(state, inbox=(*state.inbox, waiting), inputs=number, receipts=receipts)), receipt


def check_cancel(state: State, thread: Thread, given: CancelInput) -> None:
    """Refuse a cancellation of what is not there.

    Raises:
        Idle, RequestMismatch: as their words say.
    """
    if given.request_id is not None:
        ended = thread.outcome_of(given.request_id) is not None
        if given.request_id in state.unfinished or ended:
            return
        if state.busy:
            raise RequestMismatch(f"request {state.request_id!r} is running, not {given.request_id!r}")
    if not state.busy:
        raise Idle("nothing is running that could be cancelled")


def cancel(state: State, given: CancelInput, at: Moment) -> tuple[Decision, CancelReceipt]:
    """The run in progress ends, or a request that waits never runs."""
    request_id = given.request_id or state.request_id or ""
    run = state.run
    if run and request_id in (run.request.request_id, *run.joined):
        decision = runs.finish(state, "cancelled", "cancelled", at, inputs=given.inputs)
        return decision, CancelReceipt(request_id=request_id, cancelled=True)
    for waiting in state.queue:
        if waiting.request_id == request_id:
            queue = tuple(request for request in state.queue if request is not waiting)
            decision = never_ran(replace(state, queue=queue), waiting, "cancelled", at)
            return decision, CancelReceipt(request_id=request_id, cancelled=True)
    return Decision(state), CancelReceipt(request_id=request_id, cancelled=False)


def never_ran(state: State, request: Request, reason: str, at: Moment) -> Decision:
    """A request that waited gets its outcome, and what it asked leaves a fact."""
    run = Run(f"run-{state.runs + 1}", request, at.time, at.rev)
    payload: dict[str, Any] = {
        "status": "cancelled",
        "termination_reason": reason,
        "usage": run.usage.as_json(),
        "iterations": 0,
    }
    drafts = (
        facts.dropped_request(state, request, reason),
        facts.run_entry(state, run, request.request_id, payload),
    )
    state = replace(state, runs=state.runs + 1)
    if state.tools is None:
        return Decision(replace(state, early=(*state.early, *drafts)))
    return Decision(state, drafts)


def pending_approvals(state: State) -> tuple[AskedCall, ...]:
    """The tool calls that wait for somebody's word."""
    if state.phase != "awaiting_approval" or state.run is None:
        return ()
    return tuple(call for call in state.run.asked if call.needs_approval and call.answer is None)


def check_approval(state: State, thread: Thread, given: ApprovalInput) -> None:
    """Refuse a decision about what is not pending, or with arguments that the tool does not take.

    Raises:
        AlreadyResolved, InvalidInput, UnknownApproval: as their words say.
    """
    call = next((call for call in pending_approvals(state) if call.tool_call_id == given.tool_call_id), None)
    if call is None:
        if thread.approval_of(given.tool_call_id):
            raise AlreadyResolved(f"tool call {given.tool_call_id!r} has been decided upon")
        raise UnknownApproval(f"no approval is pending for tool call {given.tool_call_id!r}")
    if given.arguments is None:
        return
    if given.decision == "deny":
        raise InvalidInput("arguments: a denied call has none to edit")
    schema = next(tool.spec["parameters"] for tool in state.tools or () if tool.spec["name"] == call.name)
    problem = next(jsonschema_rs.Draft202012Validator(schema).iter_errors(given.arguments), None)
    if problem:
        place = ".".join(map(str, problem.instance_path))
        raise InvalidInput(f"arguments{'.' if place else ''}{place}: {problem.message[:300]}")


def resolve_approval(state: State, given: ApprovalInput, at: Moment) -> Decision:
    """Somebody's word about a tool call; the last one that was waited for lets the round run."""
    run = runs.running(state)
    payload: dict[str, Any] = given.model_dump(exclude_none=True)
    fact = Draft("approval", payload, facts.run_refs(state, run) | {"tool_call_id": given.tool_call_id})
    denied = f"denied: {given.reason or 'no reason was given'}"
    asked = tuple(
        call
        if call.tool_call_id != given.tool_call_id
        else replace(
            call,
            arguments=call.arguments if given.arguments is None else given.arguments,
            answer=ToolAnswered(content=denied, is_error=True) if given.decision == "deny" else None,
            needs_approval=False,
        )
        for call in run.asked
    )
    state = replace(state, run=replace(run, asked=asked))
    if pending_approvals(state):
        return Decision(state, (fact,))
    # People take their time, which is not the request's.
    waited = at.time - (run.paused_at or at.time)
    resumed = replace(run, asked=asked, deadline=run.deadline + waited, paused_at=None)
    return Decision(replace(state, run=resumed), (fact,)).then(runs.run_tools, at)


def _check_room(waiting: list[str], content: str) -> None:
    size = sum(len(text.encode()) for text in (*waiting, content))
    if len(waiting) >= MAX_WAITING or size > MAX_WAITING_BYTES:
        raise QueueFull(f"{len(waiting)} wait already: {MAX_WAITING}, or {MAX_WAITING_BYTES} bytes, are kept")
