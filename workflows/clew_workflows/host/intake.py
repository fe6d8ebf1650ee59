"""The intake: it decides updates and signals in the order of their arrival.

They wait until start-up has finished, and then for a workflow task whose budget they fit, because their texts are
tokenized when they are decided. While a model call is being stopped they wait for the end of its run. An input that
names blobs is decided when a worker has found that they are stored; those behind it wait, so that none overtakes it.
One activity checks the blobs of many that wait: of thousands of signals the history would become too long otherwise.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice

from temporalio import workflow
from temporalio.common import RawValue

from clew_workflows.contract import (
    CloseInput,
    ConfigureInput,
    ContextOperation,
    LateResultInput,
    MessageInput,
    SteerInput,
    SubagentResultInput,
    SubmitInput,
    SummarizeInput,
    ToolResultInput,
)
from clew_workflows.contract.content import Blob
from clew_workflows.contract.errors import (
    REFUSALS,
    ArchiveUnavailable,
    Busy,
    ClewError,
    Closed,
    InvalidInput,
    QueueFull,
    Refusal,
    RequestReused,
    make_refusal,
)
from clew_workflows.contract.limits import MAX_MESSAGE_BYTES, MAX_SYSTEM_PROMPT_BYTES
from clew_workflows.host import execution, handlers, ingress
from clew_workflows.host.runtime import Runtime
from clew_workflows.protocol import CheckBlobs, Failure
from clew_workflows.session import commands, decisions, named_blobs
from clew_workflows.session.commands import Answer, Command
from clew_workflows.session.state import MAX_WAITING, Decision, Moment, State, digest_command
from clew_workflows.temporal_faults.slow_timers import wait_for_next_task

MAX_CHECKED = 64
"""Most waiting arrivals whose blobs one activity checks: each activity adds six events to the history."""
MAX_CHECKED_BLOBS = 500
MAX_CHECKED_BYTES = 1_000_000
"""Most blobs and bytes of arrivals of one such activity; the first arrival may have more."""
MAX_UNDECIDED = 1_000
"""Waiting arrivals from which on inputs by signal are only counted. Each takes a part of a millisecond, also in every
replay, for which other sessions wait."""
MIN_COST = 1024
"""Bytes of a workflow task's budget that an arrival without text takes: deciding it takes 0.1 milliseconds."""
_UNKNOWN = "signal"
"""The name in the entry for signals that a session does not know: a flood may have as many names."""


# The budget of a workflow task: the bytes of text that it may tokenize, so that other sessions come between.
#
# Activities count the tokens of what they answer. Texts of callers, and answers that no activity has counted, are
# tokenized by the workflow: one task takes at most `MAX_TASK_BYTES` of them, and the next tasks take the others.
# Under `o200k_base` so many bytes take about 0.03 seconds; a single word of that length, the slowest text, takes
# 0.14. Inputs without much text count as 1 KiB each: a task decides some 250 of them.


MAX_TASK_BYTES = MAX_MESSAGE_BYTES
"""Most bytes that one workflow task tokenizes of what was not counted before; the largest input has as many."""


class TaskBudget:
    """The bytes that the current workflow task may still tokenize."""

    def __init__(self) -> None:
        self._task = self._spent = 0
        self._turn = asyncio.Lock()

    def spend(self, size: int) -> bool:
        """Spend bytes of the current task; returns whether it has them left. The first spender always gets them."""
        task = workflow.info().get_current_history_length()
        if task != self._task:
            self._task, self._spent = task, 0
        if self._spent and self._spent + size > MAX_TASK_BYTES:
            return False
        self._spent += size
        return True

    async def wait_to_spend(self, size: int) -> None:
        """Spend bytes of the current task, or of the first later one that has them left, in turn."""
        async with self._turn:
            while not self.spend(size):
                await wait_for_next_task()


# Arrivals.


@dataclass(eq=False, slots=True)
class Arrival:
    """An update or a signal, and its result.

    Attributes:
        name: The name of the update or the signal.
        command: Its command; None if it could not be decoded.
        own_id: The id of an update; a signal has none.
        seal: The id in the encrypted text of its arguments; None if they are not encrypted.
        undecoded: The arguments of a signal that has not been decoded; empty otherwise.
        excerpt: The beginning of a signal's arguments.
        size: The bytes of its arguments.
        refusal: Why it was refused.
        answer: The answer to its caller, or what the answer will be.
        settled: It has been decided.
        checked: The blobs that it names are stored, or it was refused.
    """

    name: str
    command: Command | None = None
    own_id: str | None = None
    seal: str | None = None
    undecoded: Sequence[RawValue] = ()
    excerpt: str = ""
    size: int = 0
    refusal: ClewError | None = None
    answer: Answer = None
    settled: bool = False
    checked: bool = False

    @property
    def cost(self) -> int:
        """The bytes of the budget that it takes: at most as much text is tokenized for it at once."""
        if self.refusal:
            return MIN_COST
        return MIN_COST + self._tokenized

    @property
    def _tokenized(self) -> int:
        match self.command:
            case ConfigureInput():
                # The system prompt in force is committed again.
                return self.size + MAX_SYSTEM_PROMPT_BYTES
            case ToolResultInput() | SubagentResultInput() | LateResultInput():
                # The result is tokenized as a whole and in pieces.
                return 2 * self.size
            case _:
                return self.size


@dataclass(frozen=True, slots=True)
class _Foreseen:
    """What an update's validator has decided, for its handler if that finds the same state at the same time."""

    command: Command
    state: State
    at: Moment
    decision: Decision
    answer: Answer


class Intake:
    """Decides commands at once, or when the session opens.

    Attributes:
        is_open: Start-up has finished.
        asked_to_close: A close has arrived before that.
        budget: What may still be tokenized in the current workflow task.
    """

    def __init__(self, runtime: Runtime, *, is_open: bool) -> None:
        self.is_open = is_open
        self.asked_to_close = False
        self.budget = TaskBudget()
        self._runtime = runtime
        self._waiting: deque[Arrival] = deque()
        self._left_out: dict[str, int] = {}
        self._foreseen: _Foreseen | None = None

    def foresee(self, command: Command, own_id: str | None, seal: str | None = None) -> Answer:
        """Decide a command that may arrive next; returns the answer to it. Nothing is applied.

        Raises:
            ClewError: The session cannot accept the command in its present state.
        """
        decision, answer = self._decide(command, own_id, seal)
        self._foreseen = _Foreseen(command, self._runtime.state, self._runtime.now, decision, answer)
        return answer

    def refuse_reused(self, command: Command) -> None:
        """Refuse a command whose id is that of another one which has arrived, and waits for its decision.

        Raises:
            RequestReused: It is.
        """
        for arrival in self._waiting:
            match command, arrival.command:
                case (MessageInput(request_id=str(own)), MessageInput(request_id=known)):
                    field = "request_id"
                case (SubmitInput(input_id=str(own)), SubmitInput(input_id=known)):
                    field = "input_id"
                case (ContextOperation(op_id=own), ContextOperation(op_id=known)):
                    field = "op_id"
                case _:
                    continue
            if own == known and digest_command(command) != digest_command(arrival.command):
                raise RequestReused(f"{field}: {own!r} is the id of another one: send this one under its own id")

    def take(self, arrival: Arrival) -> None:
        """Decide an update or a signal and apply the decision, or let it wait for the end of start-up."""
        if self.is_open:
            self._waiting.append(arrival)
            if len(self._waiting) == 1:
                self._settle_waiting()
            return
        self._decode(arrival)
        self.asked_to_close |= isinstance(arrival.command, CloseInput)
        self._runtime.settle_soon()
        if arrival.own_id is None and len(self._waiting) >= MAX_WAITING:
            arrival.command = None
            arrival.refusal = arrival.refusal or QueueFull("too many signals arrived before the session had started")
        self._waiting.append(arrival)

    def leave_out(self, name: str) -> bool:
        """Leave an input by signal out of a flood, and count it; returns whether that was done.

        One `input` entry tells how many there were, when those that wait are decided. What ends or moves the session,
        and what Clew itself sends, is always taken.
        """
        handler = handlers.SIGNALS.get(name)
        is_input = handler is None or handler.input in (SteerInput, ContextOperation)
        if len(self._waiting) < MAX_UNDECIDED or not is_input:
            return False
        known = name if handler else _UNKNOWN
        self._left_out[known] = self._left_out.get(known, 0) + 1
        return True

    def open(self) -> None:
        """Decide what has waited; from now on decide each arrival as soon as a workflow task has room for it."""
        self.is_open = True
        self._settle_waiting()

    def turn_away(self, refusal: Refusal) -> None:
        """Refuse the callers of updates that wait."""
        for arrival in self._waiting:
            if arrival.own_id is not None and not arrival.settled:
                arrival.refusal, arrival.settled = refusal, True
        self._runtime.settle_soon()

    def confirm_close(self) -> None:
        """Answer the callers that close a session which has not started."""
        for arrival in self._waiting:
            if isinstance(arrival.command, CloseInput) and not arrival.settled:
                arrival.answer, arrival.settled = commands.Closing(), True
        self._runtime.settle_soon()

    @property
    def is_settled(self) -> bool:
        """Whether nothing that has arrived since start-up waits for a decision."""
        return not self.is_open or not self._waiting

    @property
    def is_behind(self) -> bool:
        """Whether arrivals wait for a decision, so that the present state is not what the next one will meet."""
        return not self.is_open or bool(self._waiting) or self._runtime.state.stopping

    def _settle_waiting(self) -> None:
        """Decide arrivals while they fit the budget of this workflow task. The next tasks decide the others."""
        while self._waiting and not self._runtime.state.stopping:
            self._decode(self._waiting[0])
            if self._find_unchecked(self._waiting[0]) or not self._fits(self._waiting[0]):
                break
            arrival = self._waiting.popleft()
            if not arrival.settled:
                self._settle(arrival)
        if self._waiting:
            self._runtime.start(self._continue())
        else:
            self._tell_left_out()
        self._runtime.settle_soon()

    def _tell_left_out(self) -> None:
        runtime, left_out, self._left_out = self._runtime, self._left_out, {}
        for name, count in left_out.items():
            if not runtime.state.closed:
                refusal = QueueFull(f"{count} of these signals were left out: {MAX_UNDECIDED} inputs waited already")
                runtime.apply(decisions.reject(runtime.state, name, str(refusal), ""))

    def _decode(self, arrival: Arrival) -> None:
        """Decode a signal. It is decoded late, so that thousands of them do not take a workflow task too long."""
        args, arrival.undecoded = arrival.undecoded, ()
        if not args and (arrival.command or arrival.refusal or arrival.own_id is not None):
            return
        arrival.excerpt = ingress.make_excerpt(args)
        try:
            arrival.command = ingress.decode_signal(arrival.name, args, self._runtime.state.settings.config)
        except ClewError as refusal:
            arrival.refusal = refusal
            # What is malformed is no input of the session, such as a `steer` with the role `system`.
            if isinstance(refusal, InvalidInput):
                arrival.excerpt = ingress.find_id(args)

    async def _continue(self) -> None:
        if self._runtime.state.stopping:
            await self._runtime.wait_until(lambda: not self._runtime.state.stopping)
        elif self._find_unchecked(self._waiting[0]):
            await self._check(self._list_unchecked())
        else:
            await wait_for_next_task()
        self._settle_waiting()

    def _find_unchecked(self, arrival: Arrival) -> tuple[Blob, ...]:
        """Find the blobs that an arrival names and that must be checked before it is decided."""
        if arrival.checked or arrival.settled or arrival.refusal or self._runtime.state.closed:
            return ()
        return named_blobs.list_blobs(arrival.command)

    def _list_unchecked(self) -> list[tuple[Arrival, tuple[Blob, ...]]]:
        """List the arrivals whose blobs are checked next, from the first one that waits, with their blobs."""
        listed: list[tuple[Arrival, tuple[Blob, ...]]] = []
        count = size = 0
        for arrival in islice(self._waiting, MAX_CHECKED):
            size += arrival.size
            if listed and size > MAX_CHECKED_BYTES:
                break
            self._decode(arrival)
            if blobs := self._find_unchecked(arrival):
                count += len(blobs)
                if listed and count > MAX_CHECKED_BLOBS:
                    break
                listed.append((arrival, blobs))
        return listed

    async def _check(self, listed: list[tuple[Arrival, tuple[Blob, ...]]]) -> None:
        """Have a worker check that blobs are stored as they are described; the arrivals of others are refused."""
        state = self._runtime.state
        family = state.archive.family if state.archive else state.session_id
        owners = [arrival for arrival, blobs in listed for _ in blobs]
        checked = CheckBlobs.make(family, (blob for _, blobs in listed for blob in blobs))
        answer = await execution.carry_out(checked, None, state)
        for arrival, _ in listed:
            arrival.checked = True
            if isinstance(answer, Failure):
                arrival.refusal = (
                    ArchiveUnavailable(f"the blobs cannot be looked up at present, send it again: {answer.message}")
                    if answer.type not in REFUSALS
                    else make_refusal(answer.type, answer.message)
                )
        for problem in () if isinstance(answer, Failure) else answer.problems:
            owner = owners[problem.blob]
            owner.refusal = owner.refusal or make_refusal(problem.type, problem.message)

    def _fits(self, arrival: Arrival) -> bool:
        # A closed session refuses them all.
        return arrival.settled or self._runtime.state.closed or self.budget.spend(arrival.cost)

    def _settle(self, arrival: Arrival) -> None:
        """Decide an arrival. A refused update is answered; a refused signal becomes an `input` entry."""
        runtime = self._runtime
        arrival.settled = True
        try:
            if arrival.refusal or arrival.command is None:
                raise arrival.refusal or Closed("no command arrived")
            decision, arrival.answer = self._decide(arrival.command, arrival.own_id, arrival.seal)
        except ClewError as refusal:
            arrival.refusal = refusal
            if arrival.own_id is None and not runtime.state.closed:
                runtime.apply(decisions.reject(runtime.state, arrival.name, str(refusal), arrival.excerpt))
            return
        runtime.apply(decision)

    def _decide(self, command: Command, own_id: str | None, seal: str | None) -> tuple[Decision, Answer]:
        runtime, foreseen = self._runtime, self._foreseen
        self._foreseen = None
        if runtime.rolling and not runtime.state.closed and isinstance(command, SummarizeInput):
            # The next workflow run would write it, after its caller has been answered.
            raise Busy("the session continues in a new run of its workflow: try again in a moment")
        if (
            foreseen
            and foreseen.command is command
            and foreseen.state is runtime.state
            and foreseen.at == runtime.now
        ):
            return foreseen.decision, foreseen.answer
        return commands.decide(runtime.state, runtime.thread, command, own_id, runtime.now, seal=seal)
