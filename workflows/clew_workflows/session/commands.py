"""The commands of a session, which updates and signals bring: `decide` accepts or refuses them.

An update's validator calls `decide` too and discards the decision, so that each rule stands once.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from pydantic import TypeAdapter, ValidationError

from clew_workflows.contract import (
    ApprovalInput,
    AwaitRequestInput,
    CancelInput,
    CheckpointInput,
    CloseInput,
    ConfigureInput,
    ContextOperation,
    ForkedInput,
    HibernateInput,
    LateResultInput,
    MessageInput,
    MoveInput,
    SubagentResultInput,
    SubmitInput,
    SummarizeInput,
    ToolResultInput,
)
from clew_workflows.contract.errors import Closed, InvalidInput, Repeated, RequestReused, UnknownRequest
from clew_workflows.contract.names import Id
from clew_workflows.contract.outputs import ApprovalReceipt, ConfigureReceipt, OperationReceipt, Receipt
from clew_workflows.session import (
    carried,
    checkpoints,
    configuration,
    decisions,
    messages_taken,
    named_blobs,
    operations,
    outside,
    runs,
    subagents,
    summaries,
    tool_rounds,
)
from clew_workflows.session.requests import is_known_request, make_request
from clew_workflows.session.runs import FOLLOW_UP
from clew_workflows.session.state import Decision, Moment, State, digest_command
from clew_workflows.thread.thread import Thread

_id: TypeAdapter[str] = TypeAdapter(Id)

Command = (
    MessageInput
    | AwaitRequestInput
    | SubmitInput
    | ContextOperation
    | ConfigureInput
    | CancelInput
    | ApprovalInput
    | ToolResultInput
    | CheckpointInput
    | HibernateInput
    | SummarizeInput
    | CloseInput
    | MoveInput
    | ForkedInput
    | SubagentResultInput
    | LateResultInput
)
"""The input of an update or a signal."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """The answer will be the outcome of a request.

    Attributes:
        request_id: The request.
        is_new: The command has made the request; False: it repeats one, or waits for one.
    """

    request_id: str
    is_new: bool = False


@dataclass(frozen=True, slots=True)
class Configured:
    """The answer will be the seq of the `config` entry."""


@dataclass(frozen=True, slots=True)
class Checkpointing:
    """The answer will be a signed checkpoint.

    Attributes:
        state: The session's state at the command.
        context_ref: The lane.
        at_seq: The seq of the newest entry at the command.
        expires_seconds: Seconds from signing until the checkpoint expires.
    """

    state: State
    context_ref: str
    at_seq: int
    expires_seconds: int


@dataclass(frozen=True, slots=True)
class Hibernating:
    """The answer follows when the session is archived.

    Attributes:
        reason: The caller's reason.
    """

    reason: str | None


@dataclass(frozen=True, slots=True)
class Closing:
    """The answer follows when the closed session is archived."""


@dataclass(frozen=True, slots=True)
class SummaryAwaited:
    """The answer will be the seqs of a summary.

    Attributes:
        summary_id: The summary.
    """

    summary_id: str


@dataclass(frozen=True, slots=True)
class CompactionAwaited:
    """The answer will be the receipt of a compaction, which the session is writing.

    Attributes:
        summary_id: Its summary.
        op_id: The operation.
    """

    summary_id: str
    op_id: str


Answer = (
    CompactionAwaited | Outcome | Configured | Checkpointing | Hibernating | Closing | SummaryAwaited | Receipt | None
)
"""The answer to an update at once, as a receipt, or what the answer will be; None for signals without an update."""

_DISPLACING = (
    MessageInput,
    ContextOperation,
    ConfigureInput,
    SummarizeInput,
    HibernateInput,
    CheckpointInput,
)
"""Commands for which an automatic summary is given up."""


def decide(
    state: State, thread: Thread, command: Command, own_id: str | None, at: Moment, *, seal: str | None = None
) -> tuple[Decision, Answer]:
    """Decide a command: the decision, and the answer to its caller or what the answer will be.

    Args:
        state: The session's state.
        thread: The session's thread.
        command: The command.
        own_id: The update's id, for a message or an input without an id of its own; None for a signal.
        at: The moment of the decision.
        seal: The id in the command's encrypted text; None: it came unencrypted.

    Raises:
        Refusal: The session cannot accept the command in its present state.
        ContextOverflow: A checkpoint's context does not fit the budget.
        TooLarge: The blobs that the command names exceed a limit.
        Repeated: The same encrypted text came before, and the command would be carried out again.
    """
    if state.phase in ("hibernating", "closed"):
        _check_ended(state, command)
    if state.own_summary and isinstance(command, _DISPLACING):
        decision, answer = _displace_summary(state, thread, command, own_id, at)
    else:
        decision, answer = _decide(state, thread, command, own_id, at)
    if decision.state is not state and named_blobs.may_have_media(command):
        named_blobs.check_limits(state, command)
        decision = named_blobs.count(decision, command)
    if seal is not None:
        decision = _remember_seal(state, decision, answer, seal)
    return decision, answer


def _check_ended(state: State, command: Command) -> None:
    """Refuse a command that a session which hibernates or is closed does not take."""
    if isinstance(command, CloseInput):
        return
    if state.closed and not state.listed.hibernated:
        raise Closed("the session is closed: open it again, or another one")
    if state.closed or not isinstance(command, MoveInput | ForkedInput | SubagentResultInput | LateResultInput):
        raise Closed("the session hibernates: open it again")


def _remember_seal(state: State, decision: Decision, answer: Answer, seal: str) -> Decision:
    """Remember the id in a command's encrypted text, if the command changes anything. It may do so once."""
    is_idle = decision.state is state and not decision.commit and decision.effect is None
    if is_idle and not isinstance(answer, Checkpointing | Hibernating):
        return decision
    if state.memory.has_seal(seal):
        raise Repeated("the same encrypted input has been carried out before: encrypt it anew to send it again")
    return replace(decision, state=replace(decision.state, memory=decision.state.memory.add_seal(seal)))


def _displace_summary(
    state: State, thread: Thread, command: Command, own_id: str | None, at: Moment
) -> tuple[Decision, Answer]:
    """Decide a command for which the automatic summary that is being written is given up."""
    given_up = summaries.give_up(state, "the session got other work")
    later = replace(at, rev=at.rev + len(given_up.commit))
    decision, answer = _decide(given_up.state, thread, command, own_id, later)
    if _is_repeated(answer):
        return Decision(state), answer
    return decision.prepend(*given_up.commit), answer


def _decide(  # noqa: PLR0912 - one case for each command
    state: State, thread: Thread, command: Command, own_id: str | None, at: Moment
) -> tuple[Decision, Answer]:
    match command:
        case MessageInput():
            return _take_message(state, thread, command, command.request_id or _check_id(own_id), at)
        case AwaitRequestInput():
            return _await_request(state, thread, command)
        case SubmitInput():
            input_id = command.input_id or (None if own_id is None else _check_id(own_id))
            return messages_taken.take_input(state, command, input_id)
        case ContextOperation():
            decision, done = operations.take_operation(state, thread, command, at)
            writing = decision.state.summaries.writing
            begins = done == "deferred" and state.summaries.writing is None
            if begins and writing and writing.operation:
                return decision, CompactionAwaited(writing.summary_id, command.op_id)
            seq = at.rev if done == "applied" else None
            return decision, OperationReceipt(op_id=command.op_id, status=done, seq=seq)
        case ConfigureInput():
            decision, when = configuration.configure(state, command)
            return decision, ConfigureReceipt(status="deferred") if when == "deferred" else Configured()
        case SummarizeInput():
            decision = summaries.begin(state, thread, command)
            return decision, SummaryAwaited(f"summary-{decision.state.counters.summaries}")
        case CancelInput():
            return messages_taken.cancel_request(state, thread, command, at)
        case ApprovalInput():
            resolved = ApprovalReceipt(tool_call_id=command.tool_call_id, decision=command.decision)
            return outside.resolve_approval(state, thread, command, at).then(runs.start_tools, at), resolved
        case ToolResultInput():
            decision, received = outside.submit_result(state, command, at)
            return decision.then(runs.proceed, at), received
        case CheckpointInput():
            checkpoints.check_checkpoint(state, thread, command)
            lane = command.context_ref or state.context_ref
            return Decision(state), Checkpointing(state, lane, thread.last_seq, command.expires_seconds)
        case HibernateInput():
            # Only the refusal counts: `Hibernation` decides again when the preparation is over.
            decisions.hibernate(state, command.reason)
            return Decision(state), Hibernating(command.reason)
        case CloseInput():
            # A close may be repeated while the store is away: its answer waits for the end again.
            return decisions.close(state, at, command.reason), Closing()
        case MoveInput():
            # The workflow task of the signal has told the session whether it has to move: `Rollover.due`.
            return Decision(state), None
        case ForkedInput():
            return carried.record_fork(state, thread, command), None
        case SubagentResultInput():
            return subagents.take_result(state, command).then(runs.proceed, at), None
        case LateResultInput():
            return tool_rounds.take_late_result(state, command), None


def _check_id(update_id: str | None) -> str:
    """Check an update's id that is to name its request or input. The server takes any text.

    Raises:
        InvalidInput: It has not the form of an id.
    """
    try:
        return _id.validate_python(update_id)
    except ValidationError:
        raise InvalidInput(
            "the Update id names what has no id of its own, and has 1 to 200 characters without control characters: "
            "send another Update id, or a request_id or an input_id"
        ) from None


def _take_message(
    state: State, thread: Thread, command: MessageInput, request_id: str, at: Moment
) -> tuple[Decision, Outcome]:
    digest = digest_command(command)
    if is_known_request(state, thread, request_id):
        if state.memory.is_reused("request_id", request_id, digest):
            raise RequestReused(
                f"request_id: the session has accepted another message as request {request_id!r}: send this one "
                "under an id of its own"
            )
        return Decision(state), Outcome(request_id)
    if request_id.startswith(FOLLOW_UP):
        raise InvalidInput(f"request_id: ids that begin with {FOLLOW_UP!r} are the session's own")
    request = make_request(state, command, request_id)
    decision = messages_taken.take_message(state, request, command.on_busy or state.settings.config.on_busy, at)
    memory = decision.state.memory.add_digest("request_id", request_id, digest)
    return replace(decision, state=replace(decision.state, memory=memory)), Outcome(request_id, is_new=True)


def _await_request(state: State, thread: Thread, command: AwaitRequestInput) -> tuple[Decision, Outcome]:
    if not is_known_request(state, thread, command.request_id):
        raise UnknownRequest(f"the session knows no request {command.request_id!r}")
    return Decision(state), Outcome(command.request_id)


def _is_repeated(answer: Answer) -> bool:
    """Whether the command repeats one that was accepted before."""
    match answer:
        case Outcome():
            return not answer.is_new
        case OperationReceipt():
            return answer.status == "duplicate"
        case _:
            return False
