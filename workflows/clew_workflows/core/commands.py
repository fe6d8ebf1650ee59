"""What callers ask for, decided: each command is checked against the session as it is, then carried out.

Updates and signals come here alike. A check has no effect; what passes it is accepted.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from clew.contract import (
    ApprovalInput,
    AwaitRequestInput,
    CancelInput,
    CheckpointInput,
    CloseInput,
    ConfigureInput,
    ContextOperation,
    ForkedInput,
    HibernateInput,
    MessageInput,
    SubmitInput,
    SummarizeInput,
)
from clew.contract.outputs import ApprovalReceipt, CancelReceipt, ConfigureReceipt, InputReceipt, OperationReceipt
from clew.errors import ArchiveUnavailable, Busy, Closed, InvalidInput, UnknownRequest
from clew.thread.thread import Thread
from clew_workflows.core import (
    approvals,
    checkpoints,
    configuration,
    decisions,
    forking,
    inputs,
    operations,
    summaries,
)
from clew_workflows.core.decision import Decision
from clew_workflows.core.outcomes import knows
from clew_workflows.core.requests import request_of
from clew_workflows.core.runs import FOLLOW_UP
from clew_workflows.core.state import Moment, State
from clew_workflows.shell.ingress import Command


@dataclass(frozen=True, slots=True)
class Outcome:
    """The answer is the outcome of a request, as soon as it has one."""

    request_id: str


@dataclass(frozen=True, slots=True)
class Configured:
    """The answer is the configuration's entry, as soon as it is committed."""


@dataclass(frozen=True, slots=True)
class Checkpointing:
    """The answer is the checkpoint of a lane as it is now, once it is signed."""

    state: State
    context_ref: str
    at_seq: int
    expires_seconds: int


@dataclass(frozen=True, slots=True)
class Hibernating:
    """The answer is given when the session is in the archive."""

    reason: str | None


@dataclass(frozen=True, slots=True)
class Closing:
    """The answer is given when the closed session is in the archive."""


@dataclass(frozen=True, slots=True)
class SummaryAwaited:
    """The answer is the summary's entry, as soon as it is committed."""

    summary_id: str


Receipt = InputReceipt | OperationReceipt | ConfigureReceipt | CancelReceipt | ApprovalReceipt
Answer = Outcome | Configured | Checkpointing | Hibernating | Closing | SummaryAwaited | Receipt | None


def check(state: State, thread: Thread, command: Command, own_id: str | None) -> None:
    """Refuse what the session as it is cannot take. `own_id` names what comes without an id of its own.

    Raises:
        Refusal: for the reason it gives.
    """
    if state.phase == "hibernating" and not isinstance(command, ForkedInput | CloseInput):
        raise Closed("the session hibernates: open it again")
    match command:
        case MessageInput():
            _check_message(state, thread, command, command.request_id or own_id or "")
        case AwaitRequestInput():
            if not knows(state, thread, command.request_id):
                raise UnknownRequest(f"the session knows no request {command.request_id!r}")
        case SubmitInput():
            inputs.check_input_id(command.input_id or own_id)
            if inputs.known_receipt(state, command.input_id or own_id) is None:
                inputs.check_input(state, command)
        case ContextOperation() | ConfigureInput() | SummarizeInput():
            _check_change(state, thread, command)
        case CheckpointInput():
            checkpoints.check(state, thread, command)
        case HibernateInput():
            check_hibernate(state)
        case CancelInput():
            inputs.check_cancel(state, thread, command)
        case ApprovalInput():
            approvals.check(state, thread, command)


def decide(state: State, thread: Thread, command: Command, own_id: str | None, at: Moment) -> tuple[Decision, Answer]:
    """What follows from a command that was accepted, and what its caller is answered."""
    if not (state.own_summary and _displaces_summary(state, thread, command, own_id)):
        return _decide(state, thread, command, own_id, at)
    given_up = summaries.give_up(state, "something else arrived")
    later = replace(at, rev=at.rev + len(given_up.commit))
    decision, answer = _decide(given_up.state, thread, command, own_id, later)
    return decision.after(*given_up.commit), answer


def _decide(
    state: State, thread: Thread, command: Command, own_id: str | None, at: Moment
) -> tuple[Decision, Answer]:
    match command:
        case MessageInput():
            request_id = command.request_id or own_id or ""
            if knows(state, thread, request_id):
                return Decision(state), Outcome(request_id)
            request = request_of(state, command, request_id)
            on_busy = command.on_busy or state.config.on_busy
            return inputs.accept(state, request, on_busy, at), Outcome(request_id)
        case AwaitRequestInput():
            return Decision(state), Outcome(command.request_id)
        case SubmitInput():
            input_id = command.input_id or own_id
            decision, receipt = Decision(state), inputs.known_receipt(state, input_id)
            if receipt is None:
                decision, receipt = inputs.submit(state, command.kind, command, input_id)
            return decision, receipt
        case ContextOperation() | ConfigureInput() | SummarizeInput():
            return _decide_change(state, thread, command, at)
        case CancelInput():
            return inputs.cancel(state, command, at)
        case ApprovalInput():
            resolved = ApprovalReceipt(tool_call_id=command.tool_call_id, decision=command.decision)
            return approvals.resolve(state, command, at), resolved
        case CheckpointInput():
            lane = command.context_ref or state.context_ref
            return Decision(state), Checkpointing(state, lane, thread.last_seq, command.expires_seconds)
        case HibernateInput():
            return Decision(state), Hibernating(command.reason)
        case CloseInput():
            # Sent again while the store is away, it asks once more whether the session has ended.
            return decisions.close(state, at, command.reason), Closing()
        case ForkedInput():
            return forking.recorded(state, thread, command), None


def _check_change(state: State, thread: Thread, given: ContextOperation | ConfigureInput | SummarizeInput) -> None:
    """Refuse a change of what contexts are made of."""
    match given:
        case ContextOperation():
            operations.submit(state, thread, given, Moment(thread.rev, 0))
        case ConfigureInput():
            configuration.configure(state, given)
        case SummarizeInput():
            summaries.check(state, thread, given)


def _decide_change(
    state: State, thread: Thread, given: ContextOperation | ConfigureInput | SummarizeInput, at: Moment
) -> tuple[Decision, Answer]:
    match given:
        case ContextOperation():
            decision, done = operations.submit(state, thread, given, at)
            seq = at.rev if done == "applied" else None
            return decision, OperationReceipt(op_id=given.op_id, status=done, seq=seq)
        case ConfigureInput():
            decision, when = configuration.configure(state, given)
            return decision, ConfigureReceipt(status="deferred") if when == "deferred" else Configured()
        case SummarizeInput():
            decision = summaries.begin(state, given)
            return decision, SummaryAwaited(f"summary-{decision.state.summaries}")


def _displaces_summary(state: State, thread: Thread, command: Command, own_id: str | None) -> bool:
    """Whether a command is work for which a summary of the session's own accord is given up."""
    match command:
        case MessageInput():
            return is_new(state, thread, command, own_id)
        case ContextOperation():
            return not operations.is_known(state, command.op_id)
        case _:
            return isinstance(command, ConfigureInput | SummarizeInput | HibernateInput | CheckpointInput)


def _check_message(state: State, thread: Thread, given: MessageInput, request_id: str) -> None:
    if knows(state, thread, request_id):
        return
    if request_id.startswith(FOLLOW_UP):
        raise InvalidInput(f"request_id: ids that begin with {FOLLOW_UP!r} are the session's own")
    inputs.admit(state, request_of(state, given, request_id), given.on_busy or state.config.on_busy)


def check_hibernate(state: State) -> None:
    """Refuse to put a session away that is at work.

    Raises:
        ArchiveUnavailable, Busy, Closed: as their words say.
    """
    if state.phase in ("hibernating", "closed"):
        raise Closed("the session hibernates: open it again")
    if state.archive is None:
        raise ArchiveUnavailable("the session was begun by a worker that had no archive")
    if state.busy:
        raise Busy("a request is running or waits: wait for it, or cancel it")


def is_new(state: State, thread: Thread, command: Command, own_id: str | None) -> bool:
    """Whether a command asks for a request that there was not before."""
    return isinstance(command, MessageInput) and not knows(state, thread, command.request_id or own_id or "")
