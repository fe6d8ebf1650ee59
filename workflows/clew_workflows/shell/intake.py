"""The intake: it decides updates and signals in the order of their arrival. They wait until start-up has finished."""

from __future__ import annotations

from dataclasses import dataclass

from clew.contract import CloseInput
from clew.errors import ClewError, Closed, QueueFull, Refusal
from clew_workflows.core import commands, decisions
from clew_workflows.core.commands import Answer, Command
from clew_workflows.core.decision import Decision
from clew_workflows.core.state import MAX_WAITING
from clew_workflows.shell.runtime import Runtime


@dataclass(eq=False, slots=True)
class Arrival:
    """An update or a signal, and its result.

    Attributes:
        name: The name of the update or the signal.
        command: Its command; None if it could not be decoded.
        own_id: The id of an update; a signal has none.
        excerpt: The beginning of a signal's arguments.
        refusal: Why it was refused.
        answer: The answer to its caller, or what the answer will be.
        settled: It has been decided.
    """

    name: str
    command: Command | None = None
    own_id: str | None = None
    excerpt: str = ""
    refusal: ClewError | None = None
    answer: Answer = None
    settled: bool = False


class Intake:
    """Decides commands at once, or when the session opens.

    Attributes:
        is_open: Start-up has finished.
        asked_to_close: A close has arrived before that.
    """

    def __init__(self, runtime: Runtime, is_open: bool) -> None:
        self.is_open = is_open
        self.asked_to_close = False
        self._runtime = runtime
        self._waiting: list[Arrival] = []

    def decide(self, command: Command, own_id: str | None) -> tuple[Decision, Answer]:
        """Decide a command without applying the decision.

        Raises:
            ClewError: The session cannot accept the command in its present state.
        """
        runtime = self._runtime
        return commands.decide(runtime.state, runtime.thread, command, own_id, runtime.now)

    def take(self, arrival: Arrival) -> None:
        """Decide an update or a signal and apply the decision, or let it wait for the end of start-up."""
        if self.is_open:
            self._settle(arrival)
            return
        self.asked_to_close |= isinstance(arrival.command, CloseInput)
        if arrival.own_id is None and len(self._waiting) >= MAX_WAITING:
            arrival.command = None
            arrival.refusal = arrival.refusal or QueueFull("too many signals arrived before the session had started")
        self._waiting.append(arrival)

    def open(self) -> None:
        """Decide what has waited; from now on decide each arrival at once."""
        self.is_open = True
        waiting, self._waiting = self._waiting, []
        for arrival in waiting:
            if not arrival.settled:
                self._settle(arrival)

    def turn_away(self, refusal: Refusal) -> None:
        """Refuse the callers of updates that wait."""
        for arrival in self._waiting:
            if arrival.own_id is not None and not arrival.settled:
                arrival.refusal, arrival.settled = refusal, True

    def confirm_close(self) -> None:
        """Answer the callers that close a session which has not started."""
        for arrival in self._waiting:
            if isinstance(arrival.command, CloseInput) and not arrival.settled:
                arrival.answer, arrival.settled = commands.Closing(), True

    def _settle(self, arrival: Arrival) -> None:
        """Decide an arrival. A refused update is answered; a refused signal becomes an `input` entry."""
        runtime = self._runtime
        arrival.settled = True
        try:
            if arrival.refusal or arrival.command is None:
                raise arrival.refusal or Closed("no command arrived")
            decision, arrival.answer = self.decide(arrival.command, arrival.own_id)
        except ClewError as refusal:
            arrival.refusal = refusal
            if arrival.own_id is None and not runtime.state.closed:
                runtime.apply(decisions.reject(runtime.state, arrival.name, str(refusal), arrival.excerpt))
            return
        runtime.apply(decision)
