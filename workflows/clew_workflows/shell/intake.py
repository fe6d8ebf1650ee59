"""The reception: updates and signals in the order in which they came, also while the session does not know itself."""

from __future__ import annotations

from dataclasses import dataclass

from clew.contract import CloseInput
from clew.errors import ClewError, Closed, QueueFull, Refusal
from clew_workflows.core import commands, decisions
from clew_workflows.core.state import MAX_WAITING
from clew_workflows.shell.ingress import Command
from clew_workflows.shell.runtime import Journal


@dataclass(eq=False, slots=True)
class Arrival:
    """An update or a signal, and what came of it. An update has an id of its own, a signal an excerpt."""

    name: str
    command: Command | None = None
    own_id: str | None = None
    excerpt: str = ""
    refusal: ClewError | None = None
    answer: commands.Answer = None
    settled: bool = False


class Reception:
    """Decides about what comes, at once or, as long as it is closed, when it opens."""

    def __init__(self, journal: Journal, is_open: bool) -> None:
        self.is_open = is_open
        self.asked_to_close = False
        self._journal = journal
        self._waiting: list[Arrival] = []

    def take(self, arrival: Arrival) -> None:
        """Decide about an update or a signal, or let it wait."""
        if self.is_open:
            self._decide(arrival)
            return
        self.asked_to_close |= isinstance(arrival.command, CloseInput)
        if arrival.own_id is None and len(self._waiting) >= MAX_WAITING:
            arrival.command = None
            arrival.refusal = arrival.refusal or QueueFull("too much came before the session had begun")
        self._waiting.append(arrival)

    def open(self) -> None:
        """From now on everything is decided at once; first what has waited."""
        self.is_open = True
        waiting, self._waiting = self._waiting, []
        for arrival in waiting:
            if not arrival.settled:
                self._decide(arrival)

    def turn_away(self, refusal: Refusal) -> None:
        """Refuse the callers of updates that wait."""
        for arrival in self._waiting:
            if arrival.own_id is not None and not arrival.settled:
                arrival.refusal, arrival.settled = refusal, True

    def confirm_close(self) -> None:
        """Answer the callers who asked to close a session that never opened."""
        for arrival in self._waiting:
            if isinstance(arrival.command, CloseInput) and not arrival.settled:
                arrival.answer, arrival.settled = commands.Closing(), True

    def _decide(self, arrival: Arrival) -> None:
        """A refused update told its caller so; a signal that cannot be used becomes a fact."""
        journal = self._journal
        arrival.settled = True
        try:
            if journal.state.closed and not isinstance(arrival.command, CloseInput):
                raise Closed("the session has closed: open it again, or another one")
            if arrival.refusal or arrival.command is None:
                raise arrival.refusal or Closed("nothing came")
            commands.check(journal.state, journal.thread, arrival.command, arrival.own_id)
        except ClewError as refusal:
            arrival.refusal = refusal
            if arrival.own_id is None and not journal.state.closed:
                journal.apply(decisions.reject(journal.state, arrival.name, str(refusal), arrival.excerpt))
            return
        decision, arrival.answer = commands.decide(
            journal.state, journal.thread, arrival.command, arrival.own_id, journal.now
        )
        journal.apply(decision)
